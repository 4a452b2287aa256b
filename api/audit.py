"""Who did what."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.deps import PartsDep, Supporter
from api.paging import page_of
from api.timing import timely
from schemas.api import AuditEntry, Page
from sendloom.rows import AuditEntry as Act

router = APIRouter(prefix="/v1/audit", tags=["operations"])


@router.get("")
@timely
async def recent(
    caller: Supporter,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(description="`next` of the page before.")] = None,
    target: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[AuditEntry]:
    """Every administrative act, newest first."""
    rows = await parts.audit.recent(caller.id, limit, before, target)
    return page_of(rows, limit, lambda row: _shown(row[1]), lambda row: row[0])


def _shown(entry: Act) -> AuditEntry:
    return AuditEntry(
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        detail=dict(entry.detail),
    )
