"""An audience that is written out at launch: what it is pinned to, and the list it goes into. For the API, and for a schedule that fires."""

from uuid import UUID

from schemas.campaigns import PinnedSegment
from sendloom.errors import Refusal
from sendloom.ports import ListNames, SegmentStore


async def pin_segment(
    segments: SegmentStore, tenant: str, segment_id: str, *, field: str = "audience.segment"
) -> PinnedSegment:
    """The definition that it has now.

    Raises:
        Refusal: `unknown_segment`.
    """
    row = await segments.get(tenant, segment_id)
    if row is None:
        raise Refusal("unknown_segment", f"there is no segment {segment_id}", field=field)
    return PinnedSegment(
        segment_id=row.segment_id, version=row.version, definition=dict(row.definition)
    )


async def own_list(
    lists: ListNames, tenant: str, campaign_id: UUID, name: str, segment: PinnedSegment | None
) -> str:
    """A list of the campaign's own, the same one for every attempt; its only version is written at launch. Without a segment it is a correction's."""
    kind, what = ("sent-of", "correction") if segment is None else ("segment", "segment")
    list_id = f"{kind}-{campaign_id}"
    await lists.create(tenant, list_id, f"{what}: {name}"[:200])
    return list_id
