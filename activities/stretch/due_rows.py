"""A campaign's rows of one channel whose bucket has come, with their caps asked for again."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from activities.stretch.rows import PENDING, Objection
from activities.stretch.run import StretchRun, Work, all_of
from schemas.kinds import RecipientState
from sendloom.domain.backoff import bucket_of
from sendloom.domain.outcomes import OPEN, Cause
from sendloom.domain.reasons import Reason
from sendloom.ports import CapUse, Decision, Move, PageSend, Person

GROUPS_AT_ONCE = 8
"""Due rows lie thin over many pages."""
DUE_AT_ONCE = 1_000


class DueRows(Work):
    """Rows whose bucket has come, in (shard, page) order."""

    def __init__(self, stretch: StretchRun) -> None:
        self._s = stretch

    async def run(self) -> None:
        s = self._s
        while not s.stopping:
            read_at = s.lane.monotonic()
            groups = await s.lane.campaigns.due_sends(
                s.ground.row, s.lane.channel, s.lane.now(), DUE_AT_ONCE
            )
            if not groups:
                self.done = True
                return
            before = s.standing.handled
            places = asyncio.Semaphore(
                1 if s.allowance.limited or s.allowance.half_rate else GROUPS_AT_ONCE
            )
            tasks: list[asyncio.Task[None]] = []
            try:
                for shard, page, rows in groups:
                    await places.acquire()
                    if s.stopping:
                        break
                    tasks.append(
                        asyncio.create_task(self._group(shard, page, rows, read_at, places))
                    )
            finally:
                await all_of(tasks)
            if s.standing.handled == before and not s.stopping:
                await asyncio.sleep(0.05)

    async def _group(
        self,
        shard: int,
        page: int,
        rows: Sequence[PageSend],
        read_at: float,
        places: asyncio.Semaphore,
    ) -> None:
        s = self._s
        try:
            row = s.ground.row
            rows = await self._with_caps(shard, page, rows)
            await s.work(shard, page, rows, read_at)
            await s.lane.campaigns.summarise(
                row.tenant, s.ground.frozen_at, row.campaign_id, [(shard, page)]
            )
        except BaseException as e:
            s.standing.broke(e)
            raise
        finally:
            places.release()

    async def _with_caps(
        self, shard: int, page: int, rows: Sequence[PageSend]
    ) -> Sequence[PageSend]:
        """Caps are used up when a message leaves, so whoever was put off is asked again; the rest of the rows."""
        s = self._s
        ground, lane = s.ground, s.lane
        if not ground.policy.caps:
            return rows
        found = await lane.people.people(
            ground.row.tenant,
            ground.row.category,
            [row.recipient_id for row in rows],
            True,
            channels=ground.policy.ladder,
        )
        now = lane.now()
        ladder = ground.policy.ladder
        rung = ladder.index(s.lane.channel) if s.lane.channel in ladder else 0
        used = [person.cap_uses for person in found]
        scope = s.scope(shard, page)
        objections: list[Objection] = []
        uses: list[CapUse] = []
        going: list[tuple[PageSend, Person]] = []
        for row, person in zip(rows, found, strict=True):
            # Uses may be this decision's own, from before a pause; the store can tell them apart, under its lock.
            person.cap_uses = {}
            key = ground.key(shard, page, row.recipient_id)
            decision, caps = ground.decide(key, person, now, rung, again=True)
            if decision.state is RecipientState.PENDING and decision.channel is s.lane.channel:
                going.append((row, person))
                uses += caps
            else:
                objections.append(Objection(row, scope, _redecided(decision, now)))
        full: frozenset[str] = frozenset()
        if uses:
            full = await lane.decisions.use_caps(ground.row.tenant, ground.row.campaign_id, uses)
        by_id = dict(zip((row.recipient_id for row in rows), used, strict=True))
        for row, person in going:
            if row.recipient_id in full:
                person.cap_uses = by_id[row.recipient_id]
                key = ground.key(shard, page, row.recipient_id)
                decision, _ = ground.decide(key, person, now, rung, again=True)
                if decision.state is RecipientState.PENDING:
                    # Filled up since it was read.
                    decision = replace(
                        decision,
                        state=RecipientState.SUPPRESSED,
                        reason=Reason.FREQUENCY_CAP,
                    )
                objections.append(Objection(row, scope, _redecided(decision, now)))
        await s.chunks.object(scope, objections)
        return [row for row, _ in going if row.recipient_id not in full]


def _redecided(decision: Decision, now: datetime) -> Move:
    """What the gates said this time, for a row that was put off."""
    open_ = decision.state in OPEN
    return Move(
        decision.key,
        PENDING,
        RecipientState.DEFERRED if open_ else decision.state,
        Cause.ERASURE if decision.state is RecipientState.ERASED else Cause.SENDER,
        reason=decision.reason,
        channel=decision.channel,
        rung=decision.rung if open_ else None,
        not_before=decision.not_before,
        due_at=(decision.due_at or bucket_of(now)) if open_ else None,
    )
