"""A campaign's activities over pages in memory: enough of the world for its workflows, and nothing of it real."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from schemas.campaigns import (
    Approval,
    CampaignInput,
    CampaignProgress,
    CampaignRef,
    CloseResult,
    Control,
    ControlSignal,
    ControlWish,
    DueStretch,
    DueView,
    FreezeResult,
    Frozen,
    PhaseChange,
    PreflightReport,
    Refused,
    SettleResult,
    Stretch,
    StretchResult,
)
from schemas.kinds import (
    CampaignPhase,
    Channel,
    ControlState,
    MessageClass,
    Mode,
    RecipientState,
)
from sendloom.domain.ids import campaign_workflow_id
from sendloom.domain.lanes import flow_queue, lanes_of
from tests.workflows.running import Time, wall_clock
from workers.sandbox import strict_runner
from workflows.campaign import CampaignWorkflow
from workflows.catch_up import CatchUpWorkflow
from workflows.due import DueWorkflow
from workflows.shard import ShardWorkflow

MARKETING = MessageClass.MARKETING
PAGE = 10
Place = tuple[int, int, Channel]
_UNDER_WAY = {
    CampaignPhase.WAITING,
    CampaignPhase.RUNNING,
    CampaignPhase.PAUSED,
    CampaignPhase.SETTLING,
}


class CampaignWorld:
    """Each page has ten recipients on each channel. A send stretch takes a page, a plan stretch two."""

    def __init__(
        self,
        *,
        shards: int = 3,
        pages: int = 4,
        channels: Sequence[Channel] = (Channel.EMAIL,),
        time: Time = wall_clock,
    ) -> None:
        self.id = uuid4()
        self.shards, self.pages, self.channels = shards, pages, list(channels)
        self.now = time
        self.control = Control(version=0, state=ControlState.RUNNING)
        self.writes = 0
        self.refused: Refused | None = None
        self.planned: Counter[int] = Counter()
        self.cursors: Counter[tuple[int, Channel]] = Counter()
        self.sent: Counter[Place] = Counter()
        self.waiting: list[tuple[datetime, Channel]] = []
        self.sent_due: list[tuple[datetime, bool]] = []
        self.cancelled_rest = 0
        self.guard_looks = 0
        self.due_looks = 0
        self.settles: list[datetime] = []
        self.settle_says: list[SettleResult] = []
        self.phases: list[tuple[CampaignPhase, str]] = []
        self.closed: CampaignPhase | None = None
        self.looks_while_paused = 0
        self.running: Counter[Channel] = Counter()
        self.gates: dict[Place, asyncio.Event] = {}
        """A stretch that reaches the place waits there."""
        self.at_gate: dict[Place, asyncio.Event] = {}
        self.until_stopped: set[Place] = set()
        self.faults: dict[Place, str] = {}
        self.rate: float | None = None
        self.before_freeze: asyncio.Event | None = None
        self.report = PreflightReport(ok=True)
        self.preflights = 0
        self.at_preflight = asyncio.Event()
        self.before_report: asyncio.Event | None = None
        """Preflight waits for it."""
        self.approved = False
        self.not_approved: str | None = None
        self.approval_looks = 0
        self.under_way = False

    # --- what a test does ---------------------------------------------------------------------------------------------

    def gate(self, shard: int = 0, page: int = 0, channel: Channel = Channel.EMAIL) -> Place:
        place = (shard, page, channel)
        self.gates[place] = asyncio.Event()
        self.at_gate[place] = asyncio.Event()
        return place

    def gate_until_stopped(self, shard: int, page: int) -> Place:
        """One that opens when its worker is told to stop, which takes nothing on after that."""
        place = self.gate(shard, page)
        self.until_stopped.add(place)
        return place

    def write_control(self, state: ControlState, reason: str = "") -> ControlSignal:
        """As the API does, before it signals."""
        self.control = Control(
            version=self.control.version + 1, state=state, reason=reason, by="ops"
        )
        return ControlSignal(version=self.control.version, reason=reason, by="ops")

    @property
    def size(self) -> int:
        return self.shards * self.pages * PAGE * len(self.channels)

    @property
    def done(self) -> int:
        return PAGE * len(self.sent) + len(self.sent_due)

    @property
    def everybody_once(self) -> bool:
        return len(self.sent) == self.shards * self.pages * len(self.channels) and set(
            self.sent.values()
        ) == {1}

    # --- the activities -----------------------------------------------------------------------------------------------

    @activity.defn(name="campaign.freeze")
    async def freeze(self, ref: CampaignRef) -> FreezeResult:
        if self.before_freeze is not None:
            await self.before_freeze.wait()
        if self.closed is not None:
            return FreezeResult(closed=self.closed)
        if self.refused is not None:
            return FreezeResult(refused=self.refused)
        now = await self.now()
        return FreezeResult(
            frozen=Frozen(
                frozen_at=now,
                size=self.size,
                shards=self.shards,
                pages=self.pages,
                page_size=PAGE,
                channels=self.channels,
                message_class=MARKETING,
                expires_at=now + timedelta(days=7),
            ),
            control=self.control,
            rate_per_second=self.rate,
            under_way=self.under_way or (bool(self.phases) and self.phases[-1][0] in _UNDER_WAY),
        )

    @activity.defn(name="campaign.preflight")
    async def preflight(self, ref: CampaignRef) -> PreflightReport:
        self.preflights += 1
        self.at_preflight.set()
        if self.before_report is not None:
            await self.before_report.wait()
        return self.report

    @activity.defn(name="campaign.approval")
    async def approval(self, ref: CampaignRef) -> Approval:
        self.approval_looks += 1
        return Approval(approved=self.approved, refused=self.not_approved, control=self.control)

    @activity.defn(name="campaign.control")
    async def look_at_control(self, ref: CampaignRef) -> Control:
        return self.control

    @activity.defn(name="campaign.show_phase")
    async def show_phase(self, change: PhaseChange) -> None:
        self.phases.append((change.phase, change.reason))

    @activity.defn(name="campaign.write_control")
    async def write(self, wish: ControlWish) -> Control:
        self.writes += 1
        changes: dict[str, Any] = {"version": self.control.version + 1, "reason": wish.reason}
        if wish.state is not None and self.control.state is not ControlState.CANCELLED:
            changes["state"] = wish.state
        if wish.rate_per_second is not None:
            changes["rate_per_second"] = wish.rate_per_second
        self.control = self.control.model_copy(update=changes)
        return self.control

    @activity.defn(name="campaign.plan")
    async def plan(self, s: Stretch) -> StretchResult:
        shard = s.ref.shard
        if self.control.state is ControlState.RUNNING:
            self.planned[shard] = min(self.planned[shard] + 2, self.pages)
        return StretchResult(
            done=self.planned[shard] == self.pages,
            next_page=self.planned[shard],
            control=self.control.state,
            control_version=self.control.version,
        )

    @activity.defn(name="campaign.send")
    async def send(self, s: Stretch) -> StretchResult:
        assert s.channel is not None
        shard, channel = s.ref.shard, s.channel
        page = self.cursors[shard, channel]
        if self.control.state is not ControlState.RUNNING:
            self.looks_while_paused += 1
            return self._stands(page)
        handled = 0
        if page < self.planned[shard]:
            place = (shard, page, channel)
            self.running[channel] += 1
            if (gate := self.gates.get(place)) is not None:
                self.at_gate[place].set()
                if place in self.until_stopped:
                    await activity.wait_for_worker_shutdown()
                else:
                    await gate.wait()
            self.running[channel] -= 1
            if self.control.state is not ControlState.RUNNING:
                return self._stands(page)
            if (fault := self.faults.pop(place, None)) is not None:
                self.control = Control(
                    version=self.control.version + 1,
                    state=ControlState.PAUSED,
                    reason=fault,
                    by="sendloom",
                )
                return self._stands(page, fault)
            self.sent[place] += 1
            self.cursors[shard, channel] += 1
            page, handled = page + 1, PAGE
        return StretchResult(
            done=page == self.pages,
            handled=handled,
            next_page=page,
            caught_up=page == self.planned[shard],
            control=self.control.state,
            control_version=self.control.version,
        )

    def _stands(self, page: int, fault: str | None = None) -> StretchResult:
        return StretchResult(
            done=False,
            next_page=page,
            control=self.control.state,
            control_version=self.control.version,
            fault=fault,
        )

    @activity.defn(name="campaign.send_due")
    async def send_due(self, s: DueStretch) -> StretchResult:
        now = await self.now()
        if self.control.state is not ControlState.RUNNING:
            self.looks_while_paused += 1
            return self._stands(0)
        mine = [row for row in self.waiting if row[0] <= now and row[1] is s.channel]
        for row in mine:
            self.waiting.remove(row)
            self.sent_due.append((now, s.half_rate))
        return StretchResult(done=True, handled=len(mine))

    @activity.defn(name="campaign.due")
    async def due(self, ref: CampaignRef) -> DueView:
        self.due_looks += 1
        return DueView(
            earliest=min((at for at, _ in self.waiting), default=None),
            waiting=len(self.waiting),
            closed=self.closed is not None,
        )

    @activity.defn(name="campaign.progress")
    async def progress(self, ref: CampaignRef) -> CampaignProgress:
        return self._progress(CampaignPhase.RUNNING)

    @activity.defn(name="campaign.settle")
    async def settle(self, ref: CampaignRef) -> SettleResult:
        self.settles.append(await self.now())
        if self.settle_says:
            return self.settle_says.pop(0)
        return SettleResult(
            open_rows=self._open, earliest_due=min((at for at, _ in self.waiting), default=None)
        )

    @activity.defn(name="campaign.guard_rails")
    async def guard_rails(self, ref: CampaignRef) -> None:
        self.guard_looks += 1

    @activity.defn(name="campaign.cancel_rest")
    async def cancel_rest(self, ref: CampaignRef) -> int:
        self.waiting.clear()
        rest = self._open
        self.cancelled_rest += rest
        return rest

    @activity.defn(name="campaign.close")
    async def close(self, ref: CampaignRef) -> CloseResult:
        if self._open:
            return CloseResult(closed=None, progress=self._progress(CampaignPhase.SETTLING))
        cancelled = self.control.state is ControlState.CANCELLED
        self.closed = CampaignPhase.CANCELLED if cancelled else CampaignPhase.COMPLETED
        return CloseResult(closed=self.closed, progress=self._progress(self.closed))

    @property
    def _open(self) -> int:
        return self.size - PAGE * len(self.sent) - self.cancelled_rest + len(self.waiting)

    def _progress(self, phase: CampaignPhase) -> CampaignProgress:
        counts = {
            RecipientState.SENT: PAGE * len(self.sent),
            RecipientState.CANCELLED: self.cancelled_rest,
            RecipientState.PENDING: self._open - len(self.waiting),
        }
        return CampaignProgress(campaign_id=self.id, phase=phase, size=self.size, counts=counts)

    # --- workers ------------------------------------------------------------------------------------------------------

    async def start(self, client: Client, **given: Any) -> "WorkflowHandle[Any, CampaignProgress]":
        return await client.start_workflow(
            CampaignWorkflow.run,
            CampaignInput(
                tenant="acme",
                mode=Mode.LIVE,
                campaign_id=self.id,
                accepted_at=await self.now(),
                **given,
            ),
            id=campaign_workflow_id(self.id),
            task_queue=flow_queue(MARKETING),
        )


@contextlib.asynccontextmanager
async def serving(
    client: Client,
    world: CampaignWorld,
    *,
    cached: int = 0,
    campaign: type = CampaignWorkflow,
    grace: timedelta = timedelta(0),
) -> AsyncIterator[None]:
    """Marketing's flow queue and lanes."""
    workers = [
        Worker(
            client,
            task_queue=flow_queue(MARKETING),
            workflows=[campaign, ShardWorkflow, DueWorkflow, CatchUpWorkflow],
            activities=[
                world.freeze,
                world.preflight,
                world.approval,
                world.show_phase,
                world.write,
                world.look_at_control,
                world.plan,
                world.due,
                world.progress,
                world.settle,
                world.guard_rails,
                world.cancel_rest,
                world.close,
            ],
            workflow_runner=strict_runner(),
            max_cached_workflows=cached,
            workflow_failure_exception_types=[Exception],
        ),
        *(
            Worker(
                client,
                task_queue=lane.queue,
                activities=[world.send, world.send_due],
                graceful_shutdown_timeout=grace,
            )
            for lane in lanes_of(MARKETING)
        ),
    ]
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        yield


@contextlib.asynccontextmanager
async def skipping(
    env: WorkflowEnvironment, world: CampaignWorld, **how: Any
) -> AsyncIterator[None]:
    """On a server that skips time."""
    world.now = env.get_current_time
    async with serving(env.client, world, **how):
        yield


async def ended(handle: "WorkflowHandle[Any, CampaignProgress]") -> CampaignProgress:
    """The result, skipping time on the way."""
    while True:
        try:
            return await handle.result()
        except RuntimeError as e:
            # The time-skipping server ends a long poll when the time it skips passes the poll's own limit.
            if "No completion event" not in str(e):
                raise


__all__ = ["UUID", "CampaignWorld", "serving", "skipping"]
