"""After Temporal's data are gone: everything that was promised, started again from our own rows (STORE-5).

Nothing is sent twice, because workflows only drive: decisions and claims say what was done. So it may be run twice, beside
workflows that exist, and beside callers who go on asking for more.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from activities.campaign_ground import due_input
from activities.campaign_row import campaign_row
from activities.passcodes import HashCode, passcode_row
from schemas.campaigns import DueInput
from schemas.kinds import Kind
from schemas.schedules import FireTrigger, ScheduleState, TriggerResult
from sendloom.ports import (
    AcceptedRow,
    AcceptedStore,
    CampaignRow,
    CampaignStore,
    CatalogStore,
    PasscodeStore,
    ScheduleRow,
    ScheduleStore,
)

log = logging.getLogger(__name__)

PAGE = 500
AT_ONCE = 32
"""Starts in flight: enough to keep Temporal busy, too few to crowd out callers."""

T = TypeVar("T")
Start = Callable[[AcceptedRow], Awaitable[bool]]


class EndedCampaigns(CampaignStore, Protocol):
    async def waiting_after_close(self, limit: int) -> list[CampaignRow]:
        """Campaigns that have ended, with rows in a due bucket: somebody replays them."""
        ...


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How many: `started` and of which kinds, `running` (existed already), `schedules`, `fired`, `skipped`, `replays`, `failed`."""

    counts: Counter[str]

    @property
    def complete(self) -> bool:
        return not self.counts["failed"]


class Rebuild:
    """`start` also starts what has a closed run: an open row says that it is not done."""

    def __init__(
        self,
        *,
        accepted: AcceptedStore,
        passcodes: PasscodeStore,
        campaigns: EndedCampaigns,
        catalog: CatalogStore,
        schedules: ScheduleStore,
        hash_code: HashCode,
        start: Start,
        apply: Callable[[ScheduleRow], Awaitable[None]],
        fire: Callable[[FireTrigger], Awaitable[TriggerResult]],
        work_due: Callable[[DueInput], Awaitable[None]],
    ) -> None:
        self._accepted = accepted
        self._passcodes = passcodes
        self._campaigns = campaigns
        self._catalog = catalog
        self._schedules = schedules
        self._hash_code = hash_code
        self._start = start
        self._apply = apply
        self._fire = fire
        self._work_due = work_due
        self._counts: Counter[str] = Counter()

    async def run(self) -> Rebuilt:
        """Everything, once through. What fails is counted and logged, and does not stop the rest."""
        after = None
        while rows := await self._accepted.open_rows(after, PAGE):
            await self._all(rows, self._again)
            after = (rows[-1].tenant, rows[-1].id)
        await self._all(await self._campaigns.waiting_after_close(PAGE), self._replay)
        after = None
        while schedules := await self._schedules.everywhere(after, PAGE):
            await self._all(schedules, self._recur)
            after = (schedules[-1].tenant, schedules[-1].id)
        return Rebuilt(self._counts)

    async def _all(self, rows: Sequence[T], each: Callable[[T], Awaitable[None]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(row: T) -> None:
            async with room:
                try:
                    await each(row)
                except Exception:
                    # The others must not wait for this one; running it again does it.
                    log.exception("could not be rebuilt", extra={"what": each.__name__})
                    self._counts["failed"] += 1

        await asyncio.gather(*(one(row) for row in rows))

    async def _again(self, row: AcceptedRow) -> None:
        if row.kind is Kind.PASSCODE:
            # The accept may have ended before this. One that has expired since is started too: its workflow sends nothing, and
            # closes the row with what really became of it.
            await self._passcodes.insert(passcode_row(row, self._hash_code))
        if row.kind is Kind.CAMPAIGN:
            await self._campaigns.insert(campaign_row(row))
        started = await self._start(row)
        await self._accepted.mark_started(row.tenant, row.id)
        self._counts["started" if started else "running"] += 1
        if started:
            self._counts[row.kind] += 1

    async def _replay(self, row: CampaignRow) -> None:
        due = await due_input(row, self._catalog)
        if due.channels:
            await self._work_due(due)
        self._counts["replays"] += 1

    async def _recur(self, row: ScheduleRow) -> None:
        await self._apply(row)
        await self._schedules.applied(row.tenant, row.id, row.version)
        self._counts["schedules"] += 1
        if row.state is ScheduleState.ACTIVE:
            fired = await self._fire(
                FireTrigger(tenant=row.tenant, schedule_id=row.id, by="rebuild")
            )
            self._counts["fired"] += len(fired.fired)
            self._counts["skipped"] += fired.skipped
