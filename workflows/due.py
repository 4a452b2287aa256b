"""What waits in a due bucket: one loop per campaign works every row whose moment has come, in its own lane."""

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.campaign_plan import CampaignActivities
    from activities.campaign_send import CampaignSendActivities
    from schemas.campaigns import (
        CampaignRef,
        Control,
        DueInput,
        DueResult,
        DueStretch,
        LookAgain,
        StretchResult,
    )
    from schemas.kinds import Channel, ControlState
    from sendloom.domain.ids import campaign_workflow_id
    from sendloom.domain.lanes import lane_for
    from workflows import campaign_budgets as budgets

EVERY_MINUTE = timedelta(minutes=1)
"""While shards run, new rows may be put into a bucket at any moment."""
LONGEST_SLEEP = timedelta(hours=1)
"""A look costs three events; a wrong clock or a lost message costs at most this."""
PAUSED_FIRST = timedelta(seconds=5)
ROLL_AFTER = 200
"""Rounds in one run: some 2,000 events."""


def _to_next_minute(now: datetime) -> timedelta:
    """Buckets are minutes, so nothing new falls due before."""
    return EVERY_MINUTE - timedelta(seconds=now.second, microseconds=now.microsecond)


@workflow.defn(name="Due")
class DueWorkflow:
    @workflow.init
    def __init__(self, due: DueInput) -> None:
        self._due = due
        self._ref = CampaignRef(tenant=due.tenant, mode=due.mode, campaign_id=due.campaign_id)
        self._closing = due.closing
        self._catch_up = due.catch_up
        self._told_version = due.told_version
        self._draining = False
        self._cancelled = False
        self._woken = 0
        self._rounds = 0
        self._waiting = 0
        self._finished = False

    @workflow.run
    async def run(self, due: DueInput) -> DueResult:
        # One loop a channel: a provider that hangs holds back only its own rows.
        await asyncio.gather(*(self._serve(channel) for channel in due.channels))
        if self._finished or self._draining or self._cancelled:
            return DueResult(waiting=self._waiting, cancelled=self._cancelled)
        workflow.continue_as_new(
            due.model_copy(
                update={
                    "closing": self._closing,
                    "catch_up": self._catch_up,
                    "told_version": self._told_version,
                }
            ),
        )

    @workflow.signal
    def look_again(self, what: LookAgain | None = None) -> None:
        """Rows were put into a bucket, or the control row has changed."""
        if what is not None and what.catch_up:
            self._catch_up = True
        self._woken += 1

    @workflow.signal
    def control_changed(self, what: LookAgain | None = None) -> None:
        """The control row has changed."""
        self._woken += 1

    @workflow.signal
    def shards_ended(self) -> None:
        """Nobody adds rows any more: end when nothing waits."""
        self._closing = True
        self._woken += 1

    @workflow.signal
    def drain(self) -> None:
        """Return after the stretch in hand."""
        self._draining = True

    async def _serve(self, channel: Channel) -> None:
        quiet = 0
        while not self._stop:
            seen = self._woken
            view = await workflow.execute_activity_method(
                CampaignActivities.due, self._ref, **budgets.STEP
            )
            self._rounds += 1
            self._waiting = view.waiting
            if view.waiting == 0:
                self._catch_up = False
                # A replay just before the close starts a loop that nobody tells of it.
                self._finished = self._closing or view.closed
            if view.earliest is None or view.earliest > workflow.now():
                await self._sleep(seen, self._until(view.earliest))
                continue
            result = await self._work(channel)
            quiet = await self._rest(seen, result, quiet)

    @property
    def _stop(self) -> bool:
        return self._draining or self._cancelled or self._finished or self._is_long

    @property
    def _is_long(self) -> bool:
        return self._rounds >= ROLL_AFTER or workflow.info().is_continue_as_new_suggested()

    async def _work(self, channel: Channel) -> StretchResult:
        due = self._due
        return await workflow.execute_activity_method(
            CampaignSendActivities.send_due,
            DueStretch(
                tenant=due.tenant,
                mode=due.mode,
                campaign_id=due.campaign_id,
                frozen_at=due.frozen_at,
                message_class=due.message_class,
                channel=channel,
                half_rate=self._catch_up,
            ),
            task_queue=lane_for(channel, due.message_class).queue,
            **budgets.send(due.message_class),
        )

    def _until(self, earliest: datetime | None) -> timedelta:
        longest = LONGEST_SLEEP if self._closing else EVERY_MINUTE
        if earliest is None:
            return longest
        return min(longest, earliest - workflow.now())

    async def _rest(self, seen: int, result: StretchResult, quiet: int) -> int:
        """How many times in a row it has found the campaign paused."""
        if result.control is ControlState.CANCELLED:
            self._cancelled = True
        if result.fault is not None and result.control_version > self._told_version:
            self._told_version = result.control_version
            await self._tell_campaign(result)
        if result.control is ControlState.PAUSED:
            woken = await self._sleep(seen, min(PAUSED_FIRST * 2**quiet, EVERY_MINUTE))
            return 0 if woken else min(quiet + 1, 10)
        if result.until is not None:
            await self._sleep(seen, result.until - workflow.now())
        elif result.done:
            # Nothing of this channel is due. Should another channel's rows be, theirs is the loop that works them.
            await self._sleep(seen, _to_next_minute(workflow.now()))
        return 0

    async def _sleep(self, seen: int, longest: timedelta) -> bool:
        """Whether something woke it before."""
        if longest <= timedelta(0):
            return False
        try:
            await workflow.wait_condition(
                lambda: self._woken != seen or self._stop, timeout=longest
            )
        except TimeoutError:
            return False
        return True

    async def _tell_campaign(self, result: StretchResult) -> None:
        """A courtesy: the control row itself is already written, and after the close nobody listens."""
        campaign = workflow.get_external_workflow_handle(
            campaign_workflow_id(self._due.campaign_id)
        )
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
