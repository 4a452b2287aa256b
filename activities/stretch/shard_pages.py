"""A shard's planned pages in order, from the durable cursor, which moves behind the last finished one."""

import asyncio

from activities.campaign_plan import PLAN
from activities.stretch.run import StretchRun, Work, all_of
from sendloom.errors import Fenced

PAGES_AT_ONCE = 2
"""While one page is on the wire the next is read and rendered. What is read too far ahead is stale before its turn comes."""


class ShardPages(Work):
    """The main pass."""

    def __init__(self, stretch: StretchRun, shard: int) -> None:
        self._s = stretch
        self._shard = shard
        self._order: list[int] = []
        self._finished: set[int] = set()
        self._touched: set[int] = set()
        self._closing = asyncio.Lock()
        self._planned_to = 0
        self._plan_closed = False

    async def run(self) -> None:
        s, row = self._s, self._s.ground.row
        campaigns = s.lane.campaigns
        stage = s.lane.channel
        self.next_page, closed = await campaigns.cursor(
            row.tenant, row.campaign_id, self._shard, stage
        )
        if closed:
            self.done = self.caught_up = True
            return
        self._planned_to, self._plan_closed = await campaigns.cursor(
            row.tenant, row.campaign_id, self._shard, PLAN
        )
        pages = await campaigns.pages(row.tenant, s.ground.version_id, self._shard)
        todo = [number for number, _ in pages if self.next_page <= number < self._planned_to]
        places = asyncio.Semaphore(1 if s.allowance.limited else PAGES_AT_ONCE)
        tasks: list[asyncio.Task[None]] = []
        try:
            for number in todo:
                await places.acquire()
                if s.stopping:
                    break
                self._order.append(number)
                tasks.append(asyncio.create_task(self._page(number, places)))
        finally:
            try:
                await all_of(tasks)
            except Fenced:
                s.standing.fenced = True
        await self._summarise_unfinished()
        self.caught_up = self.next_page >= self._planned_to
        if self.caught_up and self._plan_closed and not s.standing.fenced:
            await self._advance(self._planned_to, closed=True)
            self.done = True

    async def _summarise_unfinished(self) -> None:
        """Its numbers must not wait for the next stretch, which may be a pause away; nor for the close, when a newer attempt
        has passed over these pages before all of this one's outcomes were recorded."""
        s, row = self._s, self._s.ground.row
        pages = self._touched if s.standing.fenced else self._touched - self._finished
        if pages:
            await s.lane.campaigns.summarise(
                row.tenant,
                s.ground.frozen_at,
                row.campaign_id,
                [(self._shard, number) for number in sorted(pages)],
            )

    async def _page(self, number: int, places: asyncio.Semaphore) -> None:
        s = self._s
        try:
            finished = False
            while not finished and not s.stopping:
                read_at = s.lane.monotonic()
                rows = await s.lane.campaigns.page_sends(
                    s.ground.row, self._shard, number, s.lane.channel
                )
                # Also without rows: a killed attempt may have recorded them all, and not counted.
                self._touched.add(number)
                before = s.standing.handled
                finished = not rows or await s.work(self._shard, number, rows, read_at)
                if not finished and s.standing.handled == before:
                    # For example until control rows can be read again.
                    await asyncio.sleep(0.05)
        except BaseException as e:
            s.standing.broke(e)
            raise
        finally:
            places.release()
        if finished:
            await self._finish(number)

    async def _finish(self, number: int) -> None:
        """Moves the cursor over what is finished, in order, after the numbers are written."""
        async with self._closing:
            self._finished.add(number)
            ready: list[int] = []
            while self._order and self._order[0] in self._finished:
                ready.append(self._order.pop(0))
            if not ready:
                return
            changed = [(self._shard, n) for n in ready if n in self._touched]
            if changed:
                row = self._s.ground.row
                await self._s.lane.campaigns.summarise(
                    row.tenant, self._s.ground.frozen_at, row.campaign_id, changed
                )
            await self._advance(ready[-1] + 1, closed=False)

    async def _advance(self, page: int, *, closed: bool) -> None:
        s, row = self._s, self._s.ground.row
        assert s.epoch is not None
        await s.lane.campaigns.advance(
            row.tenant, row.campaign_id, self._shard, s.lane.channel, s.epoch, page, closed
        )
        self.next_page = page
