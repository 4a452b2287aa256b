"""A campaign: freeze → preflight → approval → wait → shards → due → settle → close. It sees shards and counts, never recipients."""

import asyncio
import contextlib
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle

with workflow.unsafe.imports_passed_through():
    from activities.campaign_plan import CampaignActivities
    from schemas.campaigns import (
        CampaignInput,
        CampaignProgress,
        CampaignRef,
        CatchUpInput,
        CloseResult,
        Control,
        ControlSignal,
        ControlWish,
        DueInput,
        DueResult,
        Frozen,
        LookAgain,
        PhaseChange,
        ShardInput,
        ShardRef,
        ShardResult,
    )
    from schemas.kinds import CampaignPhase, ControlState
    from sendloom.domain.ids import catch_up_workflow_id, due_workflow_id, shard_workflow_id
    from sendloom.domain.pacing import shards_at_once
    from workflows import campaign_budgets as budgets
    from workflows import timers
    from workflows.catch_up import CatchUpWorkflow
    from workflows.due import DueWorkflow
    from workflows.shard import ShardWorkflow

WINDOW = 100
"""Shards in flight. With at most 1,000 of them the history stays under 10,000 events."""
ROLL_AT = 12_000
"""Events. Shards alone never reach it; thousands of signals do. Then the children are asked to return and it continues as new."""
ROLL_AFTER_SIGNALS = 2_000
"""In one run. A burst shares its workflow tasks, so it is short in events; after 10,000 signals the server takes no more for the run."""
CHILD_LOST = timedelta(seconds=5)
"""Before a child that somebody terminated is started again."""
CONTROL_PACE = timedelta(seconds=1)
"""After acting on control signals; what comes meanwhile is acted on together. The first of a burst is never held up."""
WAITING_LOOK = timedelta(hours=1)
"""At the row, while nothing else would show that a cancel's signal was lost. A month of it is some 8,000 events."""
APPROVAL_LOOK = timedelta(seconds=30)
APPROVAL_LOOK_LONGEST = timedelta(minutes=15)
COUNTS_PACE = timedelta(seconds=60)
SETTLE_PACE = timedelta(seconds=10)
_FINAL = frozenset({CampaignPhase.COMPLETED, CampaignPhase.CANCELLED, CampaignPhase.FAILED})
_SHOWN_PAUSED = frozenset({CampaignPhase.WAITING, CampaignPhase.RUNNING, CampaignPhase.SETTLING})
Child = ChildWorkflowHandle[Any, Any]


@workflow.defn(name="Campaign")
class CampaignWorkflow:
    roll_at = ROLL_AT
    roll_after_signals = ROLL_AFTER_SIGNALS
    window = WINDOW

    @workflow.init
    def __init__(self, c: CampaignInput) -> None:
        self._ref = CampaignRef(tenant=c.tenant, mode=c.mode, campaign_id=c.campaign_id)
        self._frozen: Frozen | None = None
        self._planned_rate: float | None = None
        self._phase = CampaignPhase.FREEZING
        self._reason = ""
        self._shown: tuple[CampaignPhase, str] | None = None
        self._progress: CampaignProgress | None = None
        self._counted_at = workflow.now()

        self._control = Control(version=0, state=ControlState.RUNNING)
        self._state_version = 0
        self._rate_version = 0
        self._wish = c.wish
        self._being_written: ControlWish | None = None
        self._to_tell = False
        self._approval_told = False
        self._signals = 0
        self._much_told = False

        self._shards_done = set(c.shards_done)
        self._next_shard = 0
        self._children: dict[str, Child] = {}
        self._shards_ended = False
        self._rolling = False
        self._ending = False

    @workflow.run
    async def run(self, c: CampaignInput) -> CampaignProgress:
        story = asyncio.create_task(self._story(c))
        while not story.done():
            try:
                await workflow.wait([story])
            except asyncio.CancelledError:
                # Temporal's own "request cancellation" means what our signal means, and no less is owed to the counts.
                self.cancel(ControlSignal(reason="cancelled in Temporal"))
        return story.result()

    async def _story(self, c: CampaignInput) -> CampaignProgress:
        launch = await workflow.execute_activity_method(
            CampaignActivities.freeze, self._ref, **budgets.SWEEP
        )
        if launch.control is not None:
            self._heard(launch.control)
        self._forget_senseless()
        if launch.closed is not None or launch.refused is not None or launch.frozen is None:
            self._phase = launch.closed or CampaignPhase.FAILED
            self._reason = launch.refused.code if launch.refused else ""
            return self.progress()
        self._frozen = launch.frozen
        self._planned_rate = launch.rate_per_second

        control = asyncio.create_task(self._serve_control())
        if not launch.under_way and workflow.patched("preflight"):
            refused = await self._look_over()
            if refused is not None:
                # Final, and shown by who found it; the loop has nothing left to show.
                self._phase, self._reason = CampaignPhase.FAILED, refused
                self._ending = True
                await control
                return self.progress()
        if not self._rolls_in_its_phase:
            self._phase = CampaignPhase.WAITING
            await self._wait_until_due(launch.send_at or c.send_at)
        if not self._stopping:
            self._phase = CampaignPhase.RUNNING
            await self._send(launch.frozen)
        closed = await self._settle_and_close(launch.frozen)
        self._ending = True
        await control
        if closed is None:
            # What the API wrote is read again by the next run. What is only noted goes with it: in a flood, writing it first would
            # never come to an end.
            while self._wish is not None and not self._much_told:
                await self._write_wish()
            workflow.continue_as_new(
                c.model_copy(
                    update={
                        "shards_done": sorted(self._shards_done),
                        "rolls": c.rolls + 1,
                        "wish": self._wish,
                    }
                ),
            )
        return self.progress()

    # --- what operations may ask ------------------------------------------------------------------------------------

    @workflow.signal
    def pause(self, signal: ControlSignal | None = None) -> None:
        """Stop sending; calls in flight end."""
        self._hear(signal, ControlState.PAUSED)

    @workflow.signal
    def resume(self, signal: ControlSignal | None = None) -> None:
        """Go on where it stopped."""
        self._hear(signal, ControlState.RUNNING)

    @workflow.signal
    def cancel(self, signal: ControlSignal | None = None) -> None:
        """Stop for good; everybody not yet sent to becomes `cancelled`."""
        self._hear(signal, ControlState.CANCELLED)

    @workflow.signal
    def set_rate(self, signal: ControlSignal | None = None) -> None:
        """Recipients a second, from now on."""
        self._hear(signal, None)

    @workflow.signal
    def approve(self, signal: ControlSignal | None = None) -> None:
        """A second person may have agreed: the row is looked at. By itself a signal approves nothing."""
        self._count_signal()
        self._approval_told = True

    @workflow.signal
    def control_seen(self, control: Control) -> None:
        """A sender has paused the campaign, and says why."""
        self._count_signal()
        self._heard(control)

    @workflow.query
    def progress(self) -> CampaignProgress:
        """As of the last count; the API answers from the tables themselves."""
        phase, reason = self._visible
        counted = self._progress
        return CampaignProgress(
            campaign_id=self._ref.campaign_id,
            phase=phase,
            reason=reason,
            size=self._frozen.size if self._frozen else 0,
            counts=counted.counts if counted else {},
            reasons=counted.reasons if counted else {},
            control=self._control.state,
            rate_per_second=self._control.rate_per_second,
            last_send_at=counted.last_send_at if counted else None,
            updated_at=counted.updated_at if counted else None,
        )

    # --- control ----------------------------------------------------------------------------------------------------

    @property
    def _cancelled(self) -> bool:
        return self._control.state is ControlState.CANCELLED

    @property
    def _visible(self) -> tuple[CampaignPhase, str]:
        if self._control.state is ControlState.PAUSED and self._phase in _SHOWN_PAUSED:
            return CampaignPhase.PAUSED, self._control.reason
        return self._phase, self._reason

    def _hear(self, signal: ControlSignal | None, state: ControlState | None) -> None:
        """Only notes; thousands of signals cost thousands of notes. One loop acts on what they come to."""
        self._count_signal()
        signal = signal or ControlSignal()
        if signal.version is None:
            self._wish_for(signal, state)
            return
        # The API has written the row. Signals may overtake each other; the row's version says which is newer.
        if state is not None and signal.version > self._state_version and not self._cancelled:
            self._state_version = signal.version
            self._heard_state(state, signal.reason, signal.by)
        if state is None and signal.version > self._rate_version:
            self._rate_version = signal.version
            self._control = self._control.model_copy(
                update={"rate_per_second": signal.rate_per_second}
            )
            self._to_tell = True

    def _count_signal(self) -> None:
        self._signals += 1
        if self._signals == self.roll_after_signals:
            # A run that is older than this rule goes on as it began.
            self._much_told = workflow.patched("roll-by-signals")

    def _wish_for(self, signal: ControlSignal, state: ControlState | None) -> None:
        """A signal from past the API. What makes no sense is ignored, because nobody could be told."""
        wish = self._wish or ControlWish(ref=self._ref)
        being_written = self._being_written or ControlWish(ref=self._ref)
        now = wish.state or being_written.state or self._control.state
        if now is ControlState.CANCELLED or self._phase in _FINAL:
            return
        # Until the row has been read nobody knows what makes sense, and a resume dropped for it would be lost.
        unread = self._frozen is None
        if state is None:
            rate = signal.rate_per_second
            if rate is None or not 0 < rate < float("inf"):
                return
            if not unread and rate == (
                wish.rate_per_second
                or being_written.rate_per_second
                or self._control.rate_per_second
            ):
                return
            change: dict[str, object] = {"rate_per_second": rate}
        else:
            if state is now and not unread:
                return
            change = {"state": state, "reason": signal.reason}
        self._wish = wish.model_copy(update={**change, "by": signal.by or "temporal"})

    def _forget_senseless(self) -> None:
        """The row has been read: a wish for what it says already is none."""
        if self._wish is None:
            return
        same_state = self._wish.state in (None, self._control.state)
        same_rate = self._wish.rate_per_second in (None, self._control.rate_per_second)
        if same_state and same_rate:
            self._wish = None

    def _heard(self, control: Control) -> None:
        """The row as somebody read or wrote it."""
        if control.version > self._rate_version and control.rate_per_second is not None:
            self._rate_version = control.version
            self._control = self._control.model_copy(
                update={"rate_per_second": control.rate_per_second}
            )
        if control.version > self._state_version and not self._cancelled:
            self._state_version = control.version
            self._heard_state(control.state, control.reason, control.by)

    def _heard_state(self, state: ControlState, reason: str, by: str) -> None:
        if state is not ControlState.PAUSED and state is not self._control.state:
            self._to_tell = True
        self._control = self._control.model_copy(
            update={
                "version": max(self._state_version, self._rate_version),
                "state": state,
                "reason": reason,
                "by": by,
            }
        )

    async def _serve_control(self) -> None:
        """Acts on what the signals came to, one thing after another, until the campaign ends."""
        at_once = workflow.patched("phases-at-once")
        while True:
            await workflow.wait_condition(lambda: self._ending or self._something_to_do)
            phase = self._phase
            if self._wish is not None:
                await self._write_wish()
                if not self._much_told:
                    continue
            if self._to_tell:
                self._to_tell = False
                if self._cancelled:
                    await self._drain()
                else:
                    for child in list(self._children.values()):
                        await self._tell(child, "control_changed", LookAgain())
            if self._shown != self._visible and self._phase not in _FINAL:
                self._shown = self._visible
                await workflow.execute_activity_method(
                    CampaignActivities.show_phase,
                    PhaseChange(ref=self._ref, phase=self._shown[0], reason=self._shown[1]),
                    **budgets.STEP,
                )
            if self._ending:
                return
            if self._is_long and not self._rolling:
                self._rolling = True
                await self._drain()
            await self._pace(phase if at_once else None)

    async def _pace(self, phase: CampaignPhase | None) -> None:
        """Signals come in bursts. The story's own phases are few, and in a second a small campaign is half sent: they wait for nobody."""
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: (
                    self._ending
                    or (
                        phase is not None
                        and self._phase is not phase
                        and self._shown != self._visible
                    )
                ),
                timeout=CONTROL_PACE,
            )

    @property
    def _something_to_do(self) -> bool:
        return (
            self._wish is not None
            or self._to_tell
            or self._shown != self._visible
            or (self._is_long and not self._rolling)
        )

    @property
    def _is_long(self) -> bool:
        return self._much_told or workflow.info().get_current_history_length() > self.roll_at

    @property
    def _rolls_in_its_phase(self) -> bool:
        """To continue as new is nobody's business: a phase shown for it would say that preflight and approval are over."""
        return self._rolling and workflow.patched("roll-in-its-phase")

    async def _write_wish(self) -> None:
        assert self._wish is not None
        wish = self._being_written = self._wish
        self._wish = None
        self._heard(
            await workflow.execute_activity_method(
                CampaignActivities.write_control, wish, **budgets.STEP
            )
        )
        self._being_written = None

    async def _tell(self, child: Child, signal: str, *args: Any) -> None:
        try:
            await child.signal(signal, args=args)
        except Exception:
            # It has just ended, which is what the signal would have led to.
            workflow.logger.debug("a child ended before it was told")

    async def _drain(self) -> None:
        for child in list(self._children.values()):
            await self._tell(child, "drain")

    # --- the story --------------------------------------------------------------------------------------------------

    async def _look_over(self) -> str | None:
        """Preflight, then the second person where one is needed. The code of a refusal, or None: it may go on, or must stop."""
        self._phase = CampaignPhase.PREFLIGHT
        if self._stopping:
            return None
        report = await workflow.execute_activity_method(
            CampaignActivities.preflight, self._ref, **budgets.SWEEP
        )
        if self._cancelled:
            return None
        if report.code is not None:
            return report.code
        return await self._wait_for_approval() if report.approval_needed else None

    async def _wait_for_approval(self) -> str | None:
        """The row is asked again after each signal, and now and then in case one was lost."""
        self._phase = CampaignPhase.AWAITING_APPROVAL
        wait = APPROVAL_LOOK
        while not self._stopping:
            self._approval_told = False
            approval = await workflow.execute_activity_method(
                CampaignActivities.approval, self._ref, **budgets.STEP
            )
            if approval.control is not None:
                self._heard(approval.control)
            if approval.approved or approval.refused is not None:
                return approval.refused
            await timers.until(workflow.now() + wait, lambda: self._stopping or self._approval_told)
            wait = min(2 * wait, APPROVAL_LOOK_LONGEST)
        return None

    async def _wait_until_due(self, send_at: datetime | None) -> None:
        if send_at is None:
            return
        if workflow.patched("look-while-waiting"):
            while workflow.now() + WAITING_LOOK < send_at and not self._stopping:
                if await timers.until(workflow.now() + WAITING_LOOK, lambda: self._stopping):
                    self._heard(
                        await workflow.execute_activity_method(
                            CampaignActivities.control, self._ref, **budgets.STEP
                        )
                    )
        await timers.until(send_at, lambda: self._stopping)

    async def _send(self, frozen: Frozen) -> None:
        """Every shard to its end, the due loop beside them, then what waits until nothing waits."""
        due = asyncio.create_task(self._run_due(frozen))
        catch_up = asyncio.create_task(self._run_catch_up(frozen))
        lanes = min(self.window, frozen.shards)
        await asyncio.gather(*(self._run_shards(frozen, place) for place in range(lanes)))
        self._shards_ended = True
        if (child := self._children.get("due")) is not None:
            await self._tell(child, "shards_ended")
        await due
        if (child := self._children.get("catch-up")) is not None:
            await self._tell(child, "drain")
        await catch_up

    @property
    def _stopping(self) -> bool:
        return self._rolling or self._cancelled

    @property
    def _rate(self) -> float | None:
        asked = self._control.rate_per_second
        return self._planned_rate if asked is None else asked

    def _all_taken(self, frozen: Frozen) -> bool:
        return self._next_shard >= frozen.shards

    def _take_shard(self, frozen: Frozen) -> int | None:
        while self._next_shard < frozen.shards and not self._stopping:
            shard, self._next_shard = self._next_shard, self._next_shard + 1
            if shard not in self._shards_done:
                return shard
        return None

    async def _run_shards(self, frozen: Frozen, place: int) -> None:
        """One place in the window: shard after shard. A slow campaign opens few places."""
        await workflow.wait_condition(
            lambda: (
                self._stopping
                or self._all_taken(frozen)
                or place < shards_at_once(self._rate, self.window)
            )
        )
        while (shard := self._take_shard(frozen)) is not None:
            while not self._stopping:
                result = await self._run_shard(frozen, shard)
                if result is not None and result.cancelled:
                    # The row says so, and its signal was lost.
                    self._heard_state(ControlState.CANCELLED, "", "")
                if result is not None and result.done:
                    self._shards_done.add(shard)
                    await self._count()
                    break

    async def _run_shard(self, frozen: Frozen, shard: int) -> ShardResult | None:
        ref = ShardRef(
            tenant=self._ref.tenant,
            mode=self._ref.mode,
            campaign_id=self._ref.campaign_id,
            frozen_at=frozen.frozen_at,
            shard=shard,
            message_class=frozen.message_class,
            channels=frozen.channels,
        )
        result: ShardResult | None = await self._run_child(
            f"shard-{shard}",
            ShardWorkflow.run,
            ShardInput(ref=ref),
            shard_workflow_id(self._ref.campaign_id, shard),
        )
        return result

    async def _run_due(self, frozen: Frozen) -> None:
        ended: DueResult | None = None
        while ended is None and not self._stopping:
            ended = await self._run_child(
                "due",
                DueWorkflow.run,
                DueInput(
                    tenant=self._ref.tenant,
                    mode=self._ref.mode,
                    campaign_id=self._ref.campaign_id,
                    frozen_at=frozen.frozen_at,
                    message_class=frozen.message_class,
                    channels=frozen.channels,
                    closing=self._shards_ended,
                ),
                due_workflow_id(self._ref.campaign_id),
            )
            if ended is not None and ended.cancelled and not self._cancelled:
                self._heard_state(ControlState.CANCELLED, "", "")

    async def _run_catch_up(self, frozen: Frozen) -> None:
        await self._run_child(
            "catch-up",
            CatchUpWorkflow.run,
            CatchUpInput(
                tenant=self._ref.tenant,
                mode=self._ref.mode,
                campaign_id=self._ref.campaign_id,
                message_class=frozen.message_class,
            ),
            catch_up_workflow_id(self._ref.campaign_id),
        )

    async def _run_child(self, name: str, run: Any, argument: Any, id: str) -> Any:
        """Its result, or None when it was lost: terminated by hand, or still running for a run of ours that is gone."""
        try:
            child = await workflow.start_child_workflow(
                run,
                argument,
                id=id,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                # The default of 10 s is what a killed worker's workflow waits.
                task_timeout=timedelta(seconds=5),
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.warning("a child of an earlier run is still there")
            await workflow.sleep(CHILD_LOST)
            return None
        self._children[name] = child
        try:
            # What was told to the others while this one was being started.
            if self._stopping:
                await self._tell(child, "drain")
            elif self._shards_ended and name == "due":
                await self._tell(child, "shards_ended")
            return await child
        except ChildWorkflowError:
            workflow.logger.warning("a child was lost and is started again")
            await workflow.sleep(CHILD_LOST)
            return None
        finally:
            self._children.pop(name, None)

    async def _settle_and_close(self, frozen: Frozen) -> CloseResult | None:
        """Settles until every recipient has a final state and the sum is the frozen size. None: it must continue as new first."""
        if self._rolls_in_its_phase:
            return None
        self._phase = CampaignPhase.SETTLING
        self._shards_ended = True
        while not self._rolling:
            if self._cancelled:
                # Before anything is waited for: the numbers are true at once, but for who may be with a provider.
                await workflow.execute_activity_method(
                    CampaignActivities.cancel_rest, self._ref, **budgets.SWEEP
                )
            settled = await workflow.execute_activity_method(
                CampaignActivities.settle, self._ref, **budgets.SWEEP
            )
            if settled.next_lease_end is not None and settled.next_lease_end > workflow.now():
                # Somebody crashed with a call in flight. What it came to is known, or unknown, when the lease ends.
                await timers.until(
                    settled.next_lease_end + timedelta(seconds=1), lambda: self._rolling
                )
                continue
            if settled.open_rows and settled.earliest_due is not None and not self._cancelled:
                await self._run_due(frozen)
                continue
            closed = await workflow.execute_activity_method(
                CampaignActivities.close, self._ref, **budgets.SWEEP
            )
            self._progress = closed.progress
            if closed.closed is not None:
                self._phase, self._reason = closed.closed, closed.progress.reason
                return closed
            await workflow.sleep(SETTLE_PACE)
        return None

    async def _count(self) -> None:
        """Refreshes what the query shows, at most once a minute."""
        if workflow.now() - self._counted_at < COUNTS_PACE:
            return
        self._counted_at = workflow.now()
        self._progress = await workflow.execute_activity_method(
            CampaignActivities.progress, self._ref, **budgets.STEP
        )
