"""One shard of a campaign: plans ahead of sending, channel by channel, until only rows with a due bucket are left."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.campaign_plan import CampaignActivities
    from activities.campaign_send import CampaignSendActivities
    from schemas.campaigns import (
        Control,
        LookAgain,
        ShardInput,
        ShardResult,
        Stretch,
        StretchResult,
    )
    from schemas.kinds import Channel, ControlState
    from sendloom.domain.ids import campaign_workflow_id
    from sendloom.domain.lanes import lane_for
    from workflows import campaign_budgets as budgets

FIRST_STRETCH = 1_000
"""Small, so that sending starts soon after the launch."""
QUICK_SHARDS = 4
"""How many begin with one. They keep the first senders busy; to the others it would be two more activities for nothing."""
ROLL_AFTER = 150
"""Stretches in one run: some 2,000 events."""
LOOK_FIRST = timedelta(seconds=5)
LOOK_LONGEST = timedelta(minutes=1)
"""While paused it waits to be woken; should that message be lost it looks again, ever less often."""


class _Progress:
    """Where one channel's sending is, in pages."""

    def __init__(self) -> None:
        self.page = 0
        self.handled = 0
        self.done = False


@workflow.defn(name="Shard")
class ShardWorkflow:
    @workflow.init
    def __init__(self, shard: ShardInput) -> None:
        self._shard = shard
        self._planned = shard.planned
        self._told_version = shard.told_version
        self._stretches = 0
        self._handled = 0
        self._plan_from = 0
        self._plan_to = 0
        """The last stretch that was planned: [from, to) in pages."""
        self._sending = {channel: _Progress() for channel in shard.ref.channels}
        self._draining = False
        self._cancelled = False
        self._woken = 0

    @workflow.run
    async def run(self, shard: ShardInput) -> ShardResult:
        await asyncio.gather(self._plan(), *(self._send(channel) for channel in self._sending))
        done = self._planned and all(progress.done for progress in self._sending.values())
        if done or self._cancelled or self._draining:
            return ShardResult(done=done, cancelled=self._cancelled, handled=self._handled)
        workflow.continue_as_new(
            ShardInput(
                ref=shard.ref,
                planned=self._planned,
                stretches=shard.stretches + self._stretches,
                told_version=self._told_version,
            ),
        )

    @workflow.signal
    def control_changed(self, what: LookAgain | None = None) -> None:
        """The control row has changed: what waits looks again."""
        self._woken += 1

    @workflow.signal
    def drain(self) -> None:
        """Return at the end of the stretch; the cursors say where to go on."""
        self._draining = True

    # --- the loops --------------------------------------------------------------------------------------------------

    async def _plan(self) -> None:
        quiet = 0
        while not self._planned:
            await workflow.wait_condition(lambda: self._stop or self._may_plan)
            if self._stop:
                return
            result = await workflow.execute_activity_method(
                CampaignActivities.plan,
                self._stretch(None, FIRST_STRETCH if self._begins_small else None),
                **budgets.PLAN,
            )
            self._stretches += 1
            if result.next_page > self._plan_to or result.done:
                self._plan_from, self._plan_to = self._plan_to, result.next_page
            self._planned = result.done
            if not result.done:
                quiet = await self._rest(result, quiet)

    async def _send(self, channel: Channel) -> None:
        progress = self._sending[channel]
        lane = lane_for(channel, self._shard.ref.message_class)
        quiet = 0
        while not progress.done:
            await workflow.wait_condition(lambda: self._stop or self._may_send(progress))
            if self._stop:
                return
            result = await workflow.execute_activity_method(
                CampaignSendActivities.send,
                self._stretch(channel, None),
                task_queue=lane.queue,
                **budgets.send(self._shard.ref.message_class),
            )
            self._stretches += 1
            self._handled += result.handled
            progress.page = max(progress.page, result.next_page)
            progress.handled += result.handled
            progress.done = result.done
            quiet = await self._rest(result, quiet)

    @property
    def _stop(self) -> bool:
        return self._draining or self._cancelled or self._is_long

    @property
    def _is_long(self) -> bool:
        return self._stretches >= ROLL_AFTER or workflow.info().is_continue_as_new_suggested()

    @property
    def _begins_small(self) -> bool:
        return self._shard.ref.shard < QUICK_SHARDS and self._shard.stretches + self._stretches == 0

    @property
    def _may_plan(self) -> bool:
        """One stretch ahead of the fastest channel that has work; a hanging provider holds back only its own channel."""
        busy = [p for p in self._sending.values() if p.handled] or list(self._sending.values())
        return max((p.page for p in busy), default=self._plan_to) >= self._plan_from

    def _may_send(self, progress: _Progress) -> bool:
        return self._planned or progress.page < self._plan_to

    def _stretch(self, channel: Channel | None, most: int | None) -> Stretch:
        stretch = Stretch(ref=self._shard.ref, channel=channel)
        return stretch if most is None else stretch.model_copy(update={"max_recipients": most})

    async def _rest(self, result: StretchResult, quiet: int) -> int:
        """Waits as the stretch asked, in a timer, holding no slot; how many times in a row it has found the campaign paused."""
        if result.control is ControlState.CANCELLED:
            self._cancelled = True
        if result.fault is not None and result.control_version > self._told_version:
            self._told_version = result.control_version
            await self._tell_campaign(result)
        if result.control is ControlState.PAUSED:
            # The next stretch looks at the control row itself and, still paused, comes straight back.
            woken = await self._wait(min(LOOK_FIRST * 2**quiet, LOOK_LONGEST))
            return 0 if woken else min(quiet + 1, 10)
        if result.until is not None:
            await self._wait(result.until - workflow.now())
        return 0

    async def _wait(self, longest: timedelta) -> bool:
        """Whether something woke it before."""
        if longest <= timedelta(0):
            return False
        seen = self._woken
        try:
            await workflow.wait_condition(
                lambda: self._woken != seen or self._stop, timeout=longest
            )
        except TimeoutError:
            return False
        return True

    async def _tell_campaign(self, result: StretchResult) -> None:
        """So that the campaign shows why it stands still. It is a courtesy: the control row itself is already written."""
        ref = self._shard.ref
        campaign = workflow.get_external_workflow_handle(campaign_workflow_id(ref.campaign_id))
        try:
            await campaign.signal(
                "control_seen",
                Control(
                    version=result.control_version,
                    state=result.control,
                    reason=result.fault or "",
                ),
            )
        except ApplicationError:
            workflow.logger.info("the campaign was not there to be told")
