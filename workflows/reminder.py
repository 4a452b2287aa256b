"""A reminder waits for its moment, wherever it is moved to, and then is a notification.

It sends that itself. A child cost three more workflow tasks, a second history and a wait in the same queue behind every other
reminder of its moment (ADR 7).
"""

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.common import WorkflowIDReusePolicy as Reuse
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from activities.reminders import ReminderActivities
    from schemas.kinds import Kind
    from schemas.notifications import (
        CancelRequest,
        CloseReminder,
        Due,
        FiredReminder,
        FireReminder,
        NotificationInput,
        NotificationView,
        ReminderInput,
        ReminderView,
        RescheduleRequest,
        ResolvedDue,
        ResolveDue,
        SendNowRequest,
    )
    from sendloom.domain.ids import notification_workflow_id
    from sendloom.platform import search_attributes
    from workflows import budgets, timers
    from workflows.notification import NotificationWorkflow
    from workflows.sending import Sending, priority_of

SCHEDULED, FIRING, SKIPPED, CANCELLED, FIRED = (
    "scheduled",
    "firing",
    "skipped",
    "cancelled",
    "fired",
)


@workflow.defn(name="Reminder")
class ReminderWorkflow:
    @workflow.init
    def __init__(self, r: ReminderInput) -> None:
        self._r = r
        self._due = r.due
        self._instant = False
        self._asked_at = r.accepted_at
        self._deadline: timers.MovableDeadline | None = None
        self._state = SCHEDULED
        self._reason: str | None = None
        self._at_once = False
        self._notification: NotificationInput | None = None
        self._sending: Sending | None = None
        self._asking = asyncio.Lock()
        """Each answer is also written to the row, by which a rebuild goes: one at a time, or an older one may be written last."""

    @workflow.run
    async def run(self, r: ReminderInput) -> ReminderView:
        await self._settle_on_a_moment()
        while self._state == SCHEDULED and not self._at_once:
            await self._wait_for_it()
            await self._look_again()
        if self._at_once and self._state == SCHEDULED:
            self._state = FIRING
        if self._state == FIRING:
            await self._fire()
        await self._close()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.view()

    # --- the sentences -----------------------------------------------------------------------------------------------

    async def _settle_on_a_moment(self) -> None:
        async with self._asking:
            if self._state != SCHEDULED or self._deadline is not None:
                return  # an update was quicker
            resolved = await self._resolve(self._due, self._asked_at)
            if self._state != SCHEDULED:
                return
            if resolved.due_at is None:
                self._skip()
                return
            self._due, self._instant = resolved.due, resolved.instant
            self._deadline = timers.MovableDeadline(resolved.due_at)

    async def _wait_for_it(self) -> None:
        if self._deadline is not None:
            await self._deadline.reached(lambda: self._at_once or self._state != SCHEDULED)

    async def _look_again(self) -> None:
        """Due; but the recipient's zone may have changed while it waited, or everything was down.

        An instant that comes when it should is asked for no more: of 10,000 that come at once each question counts.
        """
        async with self._asking:
            if self._at_once or self._state != SCHEDULED or self._deadline is None:
                return
            if self._deadline.moment > workflow.now():
                return  # it was moved while we waited to ask
            late = workflow.now() - self._deadline.moment
            if self._instant and late <= timedelta(seconds=self._r.grace_seconds):
                self._state = FIRING
                return
            resolved = await self._resolve(self._due, self._asked_at)
            if self._at_once or self._state != SCHEDULED:
                return  # an update came while we asked
            if resolved.due_at is None:
                self._skip()
            elif resolved.due_at > workflow.now():
                self._due, self._instant = resolved.due, resolved.instant
                self._deadline.move(resolved.due_at)
            else:
                self._state = FIRING

    async def _fire(self) -> None:
        fired = await self._insert_notification()
        n = fired.notification
        if n is None:
            self._state, self._reason = CANCELLED, fired.reason
            return
        self._notification = n
        if fired.in_place:
            await self._send(n)
        else:
            await self._hand_over(n)

    async def _send(self, n: NotificationInput) -> None:
        self._sending = Sending(n)
        await self._sending.run()
        view = self._sending.view()
        self._state, self._reason = view.state, view.reason

    async def _hand_over(self, n: NotificationInput) -> None:
        """There was a row already, and its own workflow is how nobody sends it beside us."""
        try:
            child = await self._start_child(n)
            view = await child
            self._state, self._reason = view.state, view.reason
        except WorkflowAlreadyStartedError:
            # A run before ours, or the sweeper, got that far: there is one notification, and it is on its way.
            self._state = FIRED
        except ChildWorkflowError:
            self._state, self._reason = "failed", "the notification's workflow was ended by hand"

    async def _insert_notification(self) -> FiredReminder:
        return await workflow.execute_local_activity_method(
            ReminderActivities.fire,
            FireReminder(reminder=self._r, due_at=self._moment()),
            **budgets.STORE,
        )

    async def _start_child(
        self, n: NotificationInput
    ) -> workflow.ChildWorkflowHandle[NotificationWorkflow, NotificationView]:
        return await workflow.start_child_workflow(
            NotificationWorkflow.run,
            n,
            id=notification_workflow_id(n.notification_id),
            id_reuse_policy=Reuse.REJECT_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            task_timeout=budgets.WORKFLOW_TASK[n.message_class],
            search_attributes=attributes_of_notification(n),
            static_summary=f"{n.category} by reminder",
            priority=priority_of(n),
        )

    async def _resolve(self, due: Due, asked_at: datetime) -> ResolvedDue:
        return await workflow.execute_local_activity_method(
            ReminderActivities.resolve,
            ResolveDue(reminder=self._r, due=due, asked_at=asked_at, persist=True),
            **budgets.STORE,
        )

    async def _close(self) -> None:
        ours = CloseReminder(tenant=self._r.tenant, id=self._r.reminder_id, view=self.view())
        if self._sending is not None:
            await self._sending.close(Kind.NOTIFICATION, ours)
            return
        await workflow.execute_local_activity_method(
            ReminderActivities.close, ours, **budgets.STORE
        )

    def _skip(self) -> None:
        self._state, self._reason = SKIPPED, "late"

    def _moment(self) -> datetime:
        return self._deadline.moment if self._deadline and not self._at_once else workflow.now()

    # --- asked for ---------------------------------------------------------------------------------------------------

    @workflow.query
    def view(self) -> ReminderView:
        return ReminderView(
            id=self._r.reminder_id,
            state=self._state,
            due_at=self._deadline.moment if self._deadline else None,
            notification_id=self._notification.notification_id if self._notification else None,
            reason=self._reason,
        )

    @workflow.update
    async def reschedule(self, request: RescheduleRequest) -> ReminderView:
        asked_at = workflow.now()
        async with self._asking:
            # It may have fired while we waited to ask.
            self._refuse_unless_waiting("reschedule")
            resolved = await self._resolve(request.due, asked_at)
            # It may have been taken back or sent while we asked; the row's due time is then of no consequence.
            self._refuse_unless_waiting("reschedule")
            if resolved.due_at is None:
                raise ApplicationError("that moment has passed", type="DuePast")
            self._due, self._instant, self._asked_at = resolved.due, resolved.instant, asked_at
            if self._deadline is None:
                self._deadline = timers.MovableDeadline(resolved.due_at)
            else:
                self._deadline.move(resolved.due_at)
        return self.view()

    @reschedule.validator
    def _can_be_moved(self, request: RescheduleRequest) -> None:
        self._refuse_unless_waiting("reschedule")
        if request.due.at is not None and request.due.at <= workflow.now():
            raise ApplicationError("that moment has passed", type="DuePast")

    @workflow.update
    async def send_now(self, request: SendNowRequest) -> ReminderView:
        self._at_once = True
        await workflow.wait_condition(
            lambda: self._notification is not None or self._state not in (SCHEDULED, FIRING)
        )
        return self.view()

    @send_now.validator
    def _can_be_sent(self, request: SendNowRequest) -> None:
        self._refuse_unless_waiting("send")

    @workflow.update
    def cancel(self, request: CancelRequest) -> ReminderView:
        self._state, self._reason = CANCELLED, request.reason
        return self.view()

    @cancel.validator
    def _can_be_cancelled(self, request: CancelRequest) -> None:
        self._refuse_unless_waiting("cancel")

    @workflow.update
    async def cancel_notification(self, request: CancelRequest) -> NotificationView:
        """Once it is being sent: for as long as what it sends could be taken back had it a workflow of its own."""
        assert self._sending is not None, "the validator saw it"
        return await self._sending.taken_back(request)

    @cancel_notification.validator
    def _is_sending(self, request: CancelRequest) -> None:
        if self._sending is None:
            raise ApplicationError("too late to cancel: it is not sent from here", type="TooLate")
        self._sending.refuse_if_too_late()

    def _refuse_unless_waiting(self, what: str) -> None:
        if self._state != SCHEDULED or self._at_once:
            state = FIRING if self._at_once else self._state
            raise ApplicationError(f"too late to {what}: it is {state}", type="TooLate")


def attributes_of_notification(n: NotificationInput) -> TypedSearchAttributes:
    """Ids and enums only: visible in plain text to anyone with namespace access."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(search_attributes.TENANT, n.tenant),
            SearchAttributePair(search_attributes.KIND, Kind.NOTIFICATION),
            SearchAttributePair(search_attributes.CLASS, n.message_class),
            SearchAttributePair(search_attributes.CATEGORY, n.category),
        ]
    )
