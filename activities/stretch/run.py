"""One attempt at a stretch: lets its rows through chunk by chunk, watches what may stop it, and says how far it came."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import uuid5

from temporalio import activity

from activities.campaign_ground import Ground
from activities.guard_rails import watch_over
from activities.heartbeats import CAMPAIGN, heartbeating
from activities.lane_guard import watching
from activities.stretch.allowance import Allowance
from activities.stretch.chunk import Chunks
from activities.stretch.lane import SendingLane
from activities.stretch.look import LastLook
from activities.stretch.rows import Result
from activities.stretch.standing import Standing
from schemas.campaigns import Control, StretchResult
from schemas.kinds import ControlState, Mode
from sendloom.domain.ids import NAMESPACE
from sendloom.errors import Fenced, StoreUnavailable
from sendloom.platform.metrics import campaign as metrics
from sendloom.ports import ClaimScope, PageSend

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_VALID = 5.0
"""Seconds. An opt-out or suppression this recent may be missed; then the rows are read again."""
SWITCHES_EVERY = 1.0
GUARD_EVERY = 10.0
GUARDED_KEPT = 1_000
KILLED_WAIT = timedelta(seconds=10)


class Work:
    """Where a stretch's rows come from."""

    done = False
    caught_up = False
    next_page = 0

    async def run(self) -> None:
        raise NotImplementedError


class StretchRun:
    """One attempt of one activity."""

    def __init__(
        self,
        lane: SendingLane,
        ground: Ground,
        mode: Mode,
        max_recipients: int,
        max_seconds: float,
        *,
        epoch: int | None = None,
        half_rate: bool = False,
    ) -> None:
        self.lane = lane
        self.ground = ground
        self.epoch = epoch
        self._max_recipients = max_recipients
        self._began = lane.monotonic()
        self._ends = self._began + max_seconds
        self._control = Control(version=0, state=ControlState.RUNNING)
        carrier = lane.carrier(mode)
        self.standing = Standing(lane.watch, ground.row, carrier.name)
        self.allowance = Allowance(lane, ground, self.standing, half_rate=half_rate)
        self._last_look = LastLook(lane, ground, carrier, self.standing)
        info = activity.info()
        # Never a process: a claim whose answer was lost is recognised by the attempt that asked for it.
        owner = uuid5(NAMESPACE, f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}")
        self.chunks = Chunks(lane, ground, carrier, self.standing, self.allowance, owner)

    async def run(self, work: Work) -> StretchResult:
        row, lane, standing = self.ground.row, self.lane, self.standing
        self._control = await lane.watch.follow(row.tenant, row.campaign_id)
        step = "due" if self.epoch is None else "send"
        try:
            async with heartbeating(every=CAMPAIGN), self._watching(), watching(lane.guard):
                worker = asyncio.create_task(work.run())
                cancelled = False
                while not worker.done():
                    try:
                        await asyncio.wait([worker])
                    except asyncio.CancelledError:
                        # Nothing more is claimed; what is on the wire is finished and recorded first.
                        cancelled = standing.interrupted = True
                if cancelled:
                    # Retrieved, or asyncio complains that nobody looked at it.
                    worker.exception()
                    raise asyncio.CancelledError
                worker.result()
            self._control = lane.watch.look(row.tenant, row.campaign_id)
            if standing.fault is not None:
                await self._pause_self(standing.fault)
        except Fenced:
            standing.fenced = True
        finally:
            lane.watch.leave(row.tenant, row.campaign_id)
            metrics.record_stretch(step, lane.channel, lane.monotonic() - self._began)
        if standing.fenced:
            metrics.record_fenced(lane.channel)
            log.info("sending was taken over by a newer attempt")
        if standing.killed is not None and standing.until is None:
            standing.until = lane.now() + KILLED_WAIT
        return StretchResult(
            done=work.done and not standing.fenced,
            handled=standing.handled,
            until=standing.until,
            control=self._control.state,
            control_version=self._control.version,
            fault=standing.fault,
            fenced=standing.fenced,
            next_page=work.next_page,
            caught_up=work.caught_up,
        )

    # --- for where the rows come from ---------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether nothing more may be claimed in this stretch."""
        row, lane = self.ground.row, self.lane
        self._control = lane.watch.look(row.tenant, row.campaign_id)
        return (
            self.standing.over
            or self._control.state is not ControlState.RUNNING
            or self.standing.handled >= self._max_recipients
            or lane.monotonic() >= self._ends
            or activity.is_worker_shutdown()
        )

    def scope(self, shard: int, page: int) -> ClaimScope:
        row = self.ground.row
        return ClaimScope(
            row.tenant,
            self.ground.frozen_at,
            row.campaign_id,
            shard,
            page,
            self.lane.channel,
            self.epoch,
        )

    async def work(self, shard: int, page: int, rows: Sequence[PageSend], read_at: float) -> bool:
        """Sends these rows of one page, chunk by chunk. True when none of them is left that could go now."""
        lane, budget = self.lane, self.lane.budget
        scope = self.scope(shard, page)
        tasks: list[asyncio.Task[int]] = []
        rest = list(rows)
        left = 0
        try:
            while rest and not self.stopping and self._is_fresh(read_at):
                if not await self._control_is_fresh() or await self._gives_way():
                    continue
                if lane.unwritten:
                    await asyncio.sleep(0.05)
                    continue
                allowed = await self.allowance.take(len(rest))
                if allowed == 0:
                    continue
                # First a place, then the messages: dressed ones that wait would be most of the memory of a stretch.
                await budget.acquire(allowed)
                if self.stopping or lane.unwritten or not self._is_fresh(read_at):
                    budget.release(allowed)
                    continue
                chunk, rest = rest[:allowed], rest[allowed:]
                result = Result(self.ground.row, scope)
                ready, objections = self._last_look.at(chunk, result)
                budget.release(len(chunk) - len(ready))
                try:
                    await self.chunks.believe(objections, result)
                except BaseException:
                    budget.release(len(ready))
                    raise
                if ready:
                    tasks.append(asyncio.create_task(self.chunks.carry(ready, result)))
                else:
                    left += await self.chunks.close(result)
        finally:
            left += sum(await all_of(tasks))
        return not rest and left == 0

    async def _gives_way(self) -> bool:
        """Waits in hand while security waits: a timer for each shard would load a server that is behind already."""
        guard = self.lane.guard
        return guard is not None and await guard.let_pass()

    async def _control_is_fresh(self) -> bool:
        """Waits rather than claims what could not be called."""
        if not self.lane.watch.fresh:
            await asyncio.sleep(0.02)
        return self.lane.watch.fresh

    def _is_fresh(self, read_at: float) -> bool:
        return self.lane.monotonic() - read_at < LOOK_VALID

    # --- what may stop it ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Looks at the kill switches beside the work."""
        await self._look_at_switches()

        async def look() -> None:
            while True:
                await asyncio.sleep(SWITCHES_EVERY)
                await self._look_at_switches()
                await self._look_at_guard_rails()

        task = asyncio.create_task(look())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look_at_switches(self) -> None:
        row, lane = self.ground.row, self.lane
        try:
            self.standing.killed = await lane.catalog.killed(
                row.tenant, row.category, lane.queue, row.campaign_id
            )
        except StoreUnavailable:
            # Without the database nothing can be claimed either.
            log.warning("kill switches could not be read")

    async def _look_at_guard_rails(self) -> None:
        """Once in a while for each campaign of the lane, by whichever stretch comes to it first (CAMP-9)."""
        row, lane = self.ground.row, self.lane
        now = lane.monotonic()
        if now - lane.guarded.get(row.campaign_id, float("-inf")) < GUARD_EVERY:
            return
        if len(lane.guarded) > GUARDED_KEPT:
            lane.guarded.clear()
        lane.guarded[row.campaign_id] = now
        try:
            written = await watch_over(lane.campaigns, row)
        except StoreUnavailable:
            log.warning("a campaign's receipts could not be read")
            return
        if written is not None:
            lane.watch.hear(row.tenant, row.campaign_id, written)

    async def _pause_self(self, fault: str) -> None:
        """A fault of our own configuration: everybody stops until somebody has looked (cases C13, C69)."""
        row, lane = self.ground.row, self.lane
        known = lane.watch.look(row.tenant, row.campaign_id)
        if known.state is ControlState.RUNNING and known.version == self.standing.faulted_at:
            known = await lane.insist(
                lambda: lane.campaigns.set_control(
                    row.tenant,
                    row.campaign_id,
                    ControlState.PAUSED,
                    None,
                    fault,
                    "sendloom",
                )
            )
            lane.watch.hear(row.tenant, row.campaign_id, known)
            metrics.record_paused("sender_fault")
            log.warning("a campaign paused itself", extra={"reason": fault})
        self._control = known


async def all_of(tasks: Sequence["asyncio.Task[T]"]) -> list[T]:
    """Waits for every one, then raises the first failure: nothing may go on behind a stretch's back."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
