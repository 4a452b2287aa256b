"""Segments: predicates by name, and a bounded look at who is in one. Writing one out is a matter of lists."""

import time
from collections.abc import Callable
from typing import Any

from sendloom.domain.segments import Segment
from sendloom.rows import SegmentLook, SegmentRecord
from sendloom.stores.pool import Pool, PostgresStore, Record
from sendloom.stores.queries import load
from sendloom.stores.segment_sql import with_segment

SQL = load("segments.sql")

LOOK_CHUNK = 5_000
"""Recipients a statement: some tens of milliseconds with the largest tree there may be."""
LOOK_MOST = 100_000
LOOK_SECONDS = 1.0


class PostgresSegments(PostgresStore):
    def __init__(
        self,
        pool: Pool,
        *,
        chunk: int = LOOK_CHUNK,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(pool)
        self._chunk = chunk
        self._monotonic = monotonic

    async def put(
        self, tenant: str, segment_id: str, name: str, definition: Any, by: str
    ) -> SegmentRecord:
        """Create it, or change it in place. The definition was read before: what is stored can be read."""
        await self._execute(SQL["put"], tenant, segment_id, name, definition, by)
        row = await self._row(SQL["get"], tenant, segment_id)
        # Somebody may delete it in between; what was asked for was done all the same.
        if row is None:
            return await self.put(tenant, segment_id, name, definition, by)
        return _segment(row)

    async def get(self, tenant: str, segment_id: str) -> SegmentRecord | None:
        row = await self._row(SQL["get"], tenant, segment_id)
        return None if row is None else _segment(row)

    async def recent(self, tenant: str, limit: int, after: str = "") -> list[SegmentRecord]:
        """By id."""
        return [_segment(row) for row in await self._fetch(SQL["page"], tenant, after, limit)]

    async def delete(self, tenant: str, segment_id: str) -> bool:
        """Campaigns that were created from it keep their copy."""
        return await self._execute(SQL["delete"], tenant, segment_id) > 0

    async def look(
        self, tenant: str, segment: Segment, first: int, most: int = LOOK_MOST
    ) -> SegmentLook:
        """Counts over at most so many recipients, and no longer than a second; with the ids of the first members."""
        began = self._monotonic()
        after, scanned, members = "", 0, 0
        ids: list[str] = []
        while True:
            size = min(self._chunk, most - scanned)
            sql, args = with_segment(SQL["look"], segment, tenant, after, size, first - len(ids))
            row = await self._row(sql, *args)
            assert row is not None
            scanned, members = scanned + row["scanned"], members + row["members"]
            ids += row["first"]
            if row["scanned"] < size:
                return SegmentLook(members, scanned, True, tuple(ids))
            after = row["last"]
            if scanned >= most or self._monotonic() - began > LOOK_SECONDS:
                return SegmentLook(members, scanned, False, tuple(ids))


def _segment(row: Record) -> SegmentRecord:
    return SegmentRecord(*row)
