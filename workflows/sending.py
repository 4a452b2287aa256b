"""One message's way down its ladder: what notifications and passcodes share."""

import asyncio
from datetime import datetime

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.accepted import AcceptedActivities
    from activities.delivery import DeliveryActivities
    from schemas.kinds import Kind, MessageClass, RecipientState
    from schemas.notifications import (
        CancelRequest,
        ChannelView,
        CloseReminder,
        CloseRequest,
        NoRung,
        NotificationInput,
        NotificationView,
        Objection,
        Plan,
        PlanRequest,
        Recorded,
        RecordRequest,
        Sendable,
        Settled,
    )
    from schemas.outcomes import (
        Accepted,
        Cancelled,
        Deferred,
        Expired,
        Failed,
        Outcome,
        Rejected,
        Suppressed,
        Undeliverable,
        Unknown,
    )
    from sendloom.domain.ids import delivery_id
    from sendloom.domain.lanes import lane_for
    from sendloom.domain.outcomes import MEANING
    from sendloom.domain.reasons import Reason
    from workflows import budgets, timers


def priority_of(n: NotificationInput) -> Priority:
    return Priority(priority_key=n.priority, fairness_key=n.tenant)


class Sending:
    """Plans a rung, sends it, and goes on to the next one until there is an outcome. Runs once."""

    def __init__(self, n: NotificationInput, *, send_no: int = 1, from_rung: int = 0) -> None:
        self._n = n
        self._send_no = send_no
        self._rung = from_rung
        self._on: Sendable | None = None
        self._deferred: Deferred | None = None
        self._sent: Recorded | None = None
        self._outcome: Outcome | None = None
        self._cancelling: Cancelled | None = None
        self._call: workflow.ActivityHandle[Recorded] | None = None
        self._recording: list[asyncio.Task[None]] = []

    # --- the story ---------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        try:
            self._outcome = await self._down_the_ladder()
        except asyncio.CancelledError:
            # Somebody cancelled the workflow itself, in Temporal's UI. It still ends with the truth.
            self._cancelling = Cancelled(reason="workflow_cancelled")
            self._outcome = await self._truth()
        return self._outcome

    async def _down_the_ladder(self) -> Outcome:
        tried: Outcome | None = None
        while self._cancelling is None:
            step = (await self._plan()).step
            match step:
                case Settled(outcome=outcome):
                    return outcome
                case NoRung(reason=reason):
                    return tried or Undeliverable(reason=reason)
                case Objection(outcome=Deferred() as deferred):
                    await self._wait(deferred)
                case Objection(outcome=outcome):
                    return tried or outcome
                case Sendable() as sendable:
                    outcome = await self._send(sendable)
                    match outcome:
                        case Deferred() as deferred:
                            self._rung = sendable.rung
                            await self._wait(deferred)
                        case Rejected() | Failed() | Suppressed() if _may_fall(sendable, outcome):
                            tried = outcome
                            self._rung = sendable.rung + 1
                        case _:
                            return outcome
        return await self._truth()

    async def _wait(self, deferred: Deferred) -> None:
        self._deferred = deferred
        await timers.until(deferred.until, lambda: self._cancelling is not None)
        self._deferred = None

    async def _send(self, sendable: Sendable) -> Outcome:
        """One rung to its outcome, with whatever retries it takes."""
        self._on = sendable
        while True:
            try:
                sent = await self._attempt(sendable)
            except ActivityError:
                # Out of time or cancelled: what an activity did is in its claim, not in how it ended.
                return await self._truth()
            self._sent = sent
            if sent.recorded:
                return sent.outcome
            again = isinstance(sent.outcome, Failed | Unknown)
            await self._repeat_record(sendable, sent, wait=again)
            if not again:
                return sent.outcome

    async def _repeat_record(self, sendable: Sendable, sent: Recorded, *, wait: bool) -> None:
        """Only the marking is repeated, never the call. Security goes on while it is (POL-7)."""
        task = asyncio.create_task(self._record(sendable, sent))
        self._recording.append(task)
        if sendable.message_class is MessageClass.SECURITY:
            if wait:
                await timers.until(workflow.now() + budgets.BACKGROUND_RECORD, task.done)
        else:
            await task

    # --- cancelling --------------------------------------------------------------------------------------------------

    def refuse_if_too_late(self) -> None:
        """For an update's validator."""
        if self._outcome is not None:
            raise ApplicationError(
                f"cannot cancel: it is {MEANING[self._outcome.kind].api}", type="TooLate"
            )

    def cancel(self, reason: str) -> None:
        """From now on nothing new is sent; a call that is being made is finished and its outcome stands."""
        self._cancelling = self._cancelling or Cancelled(reason=reason)
        if self._call is not None:
            self._call.cancel()

    async def taken_back(self, request: CancelRequest) -> NotificationView:
        """Waits for the truth: a call that was being made may still turn out to have been taken.

        Raises:
            ApplicationError: `TooLate`.
        """
        self.cancel(request.reason)
        outcome = await self.finished()
        if not isinstance(outcome, Cancelled):
            raise ApplicationError(
                f"too late to cancel: it is {MEANING[outcome.kind].api}", type="TooLate"
            )
        return self.view()

    async def finished(self) -> Outcome:
        await workflow.wait_condition(lambda: self._outcome is not None)
        assert self._outcome is not None
        return self._outcome

    async def _truth(self) -> Outcome:
        """What the claim says; nothing claimed or known not sent is what was asked for."""
        if self._on is None:
            return self._cancelling or Expired(reason=Reason.EXPIRED)
        settled = await workflow.execute_activity_method(
            DeliveryActivities.settle, self._on, **budgets.SETTLE, summary="read the claim"
        )
        self._sent = settled
        if self._cancelling is not None and isinstance(settled.outcome, Failed | Expired):
            return self._cancelling
        return settled.outcome

    # --- one sentence each -------------------------------------------------------------------------------------------

    async def _plan(self) -> Plan:
        return await workflow.execute_local_activity_method(
            DeliveryActivities.plan,
            PlanRequest(n=self._n, rung=self._rung, send_no=self._send_no),
            **budgets.STORE,
        )

    async def _attempt(self, s: Sendable) -> Recorded:
        self._call = workflow.start_activity_method(
            DeliveryActivities.send,
            s,
            task_queue=lane_for(s.delivery.channel, s.message_class).queue,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            priority=priority_of(self._n),
            **budgets.send(s.message_class, expires_at=s.expires_at, now=workflow.now()),
        )
        if self._cancelling is not None:
            self._call.cancel()
        try:
            return await self._call
        finally:
            self._call = None

    async def _record(self, s: Sendable, sent: Recorded) -> None:
        assert isinstance(sent.outcome, Accepted | Rejected | Failed | Unknown)
        await workflow.execute_activity_method(
            DeliveryActivities.record,
            RecordRequest(sendable=s, outcome=sent.outcome, attempt=sent.attempt, owner=sent.owner),
            **budgets.RECORD,
            summary="repeat the record",
        )

    async def close(self, kind: Kind, reminder: CloseReminder | None = None) -> None:
        """The last step: the accepted row gets its outcome, and what ended without success a dead letter."""
        outcome = await self.finished()
        for recording in self._recording:
            await recording
        await workflow.execute_local_activity_method(
            AcceptedActivities.close,
            CloseRequest(
                kind=kind,
                tenant=self._n.tenant,
                id=self._n.notification_id,
                recipient_id=self._n.recipient_id,
                category=self._n.category,
                message_class=self._n.message_class,
                accepted_at=self._n.accepted_at,
                outcome=outcome,
                dead_letter=MEANING[outcome.kind].dead_letter,
                channel=self._on.delivery.channel if self._on else None,
                rung=self._on.rung if self._on else 0,
                send_no=self._on.delivery.send_no if self._on else self._send_no,
                attempt=self._sent.attempt if self._sent else 0,
                reminder=reminder,
            ),
            **budgets.STORE,
        )

    # --- views -------------------------------------------------------------------------------------------------------

    @property
    def rung(self) -> int:
        """Where it is, or ended."""
        return self._on.rung if self._on else self._rung

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome

    def view(self) -> NotificationView:
        """What is known here; the stores know more (receipts, earlier rungs)."""
        state, reason = _state_of(self._outcome, self._deferred)
        return NotificationView(
            id=self._n.notification_id,
            state=state,
            reason=reason,
            deferred_until=_until(self._deferred),
            channels=[self._channel(self._on)] if self._on else [],
        )

    def _channel(self, on: Sendable) -> ChannelView:
        outcome = self._sent.outcome if self._sent else None
        return ChannelView(
            channel=on.delivery.channel,
            delivery_id=delivery_id(on.delivery),
            state=MEANING[outcome.kind].api if outcome else "sending",
            attempt=self._sent.attempt if self._sent else 0,
            provider=getattr(outcome, "provider", None),
            provider_message_id=getattr(outcome, "provider_message_id", None),
            code=getattr(outcome, "code", None),
        )


def _may_fall(sendable: Sendable, outcome: Outcome) -> bool:
    """Whether the next rung is allowed: known not sent on this one, and not switched off altogether."""
    if isinstance(outcome, Suppressed) and outcome.reason == Reason.KILLED:
        return False
    return sendable.rung + 1 < sendable.rungs


def _state_of(
    outcome: Outcome | None, deferred: Deferred | None
) -> tuple[RecipientState, str | None]:
    if outcome is not None:
        return MEANING[outcome.kind].recipient, getattr(
            outcome, "reason", getattr(outcome, "code", None)
        )
    if deferred is not None:
        return RecipientState.DEFERRED, deferred.reason
    return RecipientState.PENDING, None


def _until(deferred: Deferred | None) -> datetime | None:
    return deferred.until if deferred else None
