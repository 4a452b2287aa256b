"""Segments: named predicates over recipients. A campaign copies the definition when it is created."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from api.auditing import audited
from api.deps import Campaigner, CampaignReader, PartsDep
from api.paging import page_of
from api.timing import timely
from schemas.api import (
    NAME,
    Page,
    SegmentAnswer,
    SegmentPreview,
    SegmentPreviewRequest,
    SegmentRequest,
)
from sendloom.domain.segments import parse
from sendloom.errors import Refusal
from sendloom.rows import SegmentRecord

router = APIRouter(prefix="/v1/segments", tags=["segments"])

SegmentId = Annotated[str, Path(pattern=NAME)]
EXAMPLES = 10


@router.put("/{segment_id}")
@timely
async def put(
    segment_id: SegmentId, body: SegmentRequest, caller: Campaigner, parts: PartsDep
) -> SegmentAnswer:
    """Create one, or change it in place. Campaigns created before keep the definition it had."""
    parse(body.definition)
    row = await parts.segments.put(caller.id, segment_id, body.name, body.definition, caller.actor)
    await audited(parts, caller, "segment.put", segment_id, version=row.version)
    return _shown(row)


@router.get("/{segment_id}")
@timely
async def show(segment_id: SegmentId, caller: CampaignReader, parts: PartsDep) -> SegmentAnswer:
    """One segment."""
    row = await parts.segments.get(caller.id, segment_id)
    if row is None:
        raise _not_found(segment_id)
    return _shown(row)


@router.get("")
@timely
async def every(
    caller: CampaignReader,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
    after: Annotated[str, Query(max_length=64)] = "",
) -> Page[SegmentAnswer]:
    """By id."""
    rows = await parts.segments.recent(caller.id, limit, after)
    return page_of(rows, limit, _shown, lambda row: row.segment_id)


@router.delete("/{segment_id}", status_code=204)
@timely
async def delete(segment_id: SegmentId, caller: Campaigner, parts: PartsDep) -> Response:
    """Campaigns created from it go on."""
    if not await parts.segments.delete(caller.id, segment_id):
        raise _not_found(segment_id)
    await audited(parts, caller, "segment.delete", segment_id)
    return Response(status_code=204)


@router.post("/preview")
@timely
async def preview(
    body: SegmentPreviewRequest, caller: Campaigner, parts: PartsDep
) -> SegmentPreview:
    """Who a definition would choose now, counted over at most 100,000 recipients and for about a second."""
    found = await parts.segments.look(caller.id, parse(body.definition), EXAMPLES)
    return SegmentPreview(
        members=found.members,
        scanned=found.scanned,
        complete=found.complete,
        examples=list(found.first),
    )


def _not_found(segment_id: str) -> Refusal:
    return Refusal("not_found", f"there is no segment {segment_id}", status=404)


def _shown(row: SegmentRecord) -> SegmentAnswer:
    return SegmentAnswer(
        segment_id=row.segment_id,
        name=row.name,
        definition=dict(row.definition),
        version=row.version,
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )
