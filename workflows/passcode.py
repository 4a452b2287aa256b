"""One passcode from its first send to its expiry: checked, sent again, cancelled."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.passcodes import PasscodeActivities
    from schemas.kinds import Kind
    from schemas.notifications import (
        CancelRequest,
        CheckPasscode,
        CheckRequest,
        CheckResult,
        NotificationView,
        PasscodeInput,
        PasscodeRef,
        ResendPasscode,
        ResendRequest,
        ResendResult,
    )
    from schemas.outcomes import Accepted, Outcome
    from workflows import budgets, timers
    from workflows.sending import Sending


@workflow.defn(name="Passcode")
class PasscodeWorkflow:
    @workflow.init
    def __init__(self, p: PasscodeInput) -> None:
        self._p = p
        self._sendings = {1: Sending(p)}
        self._running: list[asyncio.Task[Outcome]] = []
        self._cancelled = False

    @workflow.run
    async def run(self, p: PasscodeInput) -> NotificationView:
        self._running.append(asyncio.create_task(self._sendings[1].run()))
        # It stays after a success too: a second use of the code must be refused, not lost.
        await timers.until(p.expires_at, lambda: False)
        while self._running:
            # One by one and from the list: a resend that was accepted just before the end adds to it.
            await self._running.pop()
        await self._best().close(Kind.PASSCODE)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.view()

    @workflow.query
    def view(self) -> NotificationView:
        return self._best().view()

    # --- check -------------------------------------------------------------------------------------------------------

    @workflow.update
    async def check(self, request: CheckRequest) -> CheckResult:
        """The attempt is counted durably before anything is compared."""
        return await workflow.execute_local_activity_method(
            PasscodeActivities.check,
            CheckPasscode(**self._ref().model_dump(), code=request.code),
            **budgets.STORE,
        )

    # --- resend ------------------------------------------------------------------------------------------------------

    @workflow.update
    async def resend(self, request: ResendRequest) -> ResendResult:
        """The same secret, under the next send number; the count of checks stays as it is."""
        send_no = await workflow.execute_local_activity_method(
            PasscodeActivities.resend,
            ResendPasscode(**self._ref().model_dump(), key=request.key),
            **budgets.STORE,
        )
        if send_no not in self._sendings:
            sending = Sending(self._p, send_no=send_no, from_rung=self._best().rung)
            self._sendings[send_no] = sending
            self._running.append(asyncio.create_task(sending.run()))
        return ResendResult(send_no=send_no)

    @resend.validator
    def _still_useful(self, request: ResendRequest) -> None:
        if self._cancelled:
            raise ApplicationError("cannot resend: it is cancelled", type="TooLate")
        self._refuse_after_expiry("resend")

    # --- cancel ------------------------------------------------------------------------------------------------------

    @workflow.update
    async def cancel(self, request: CancelRequest) -> NotificationView:
        """The code stops working at once, whether or not it has been sent."""
        cancelled = await workflow.execute_local_activity_method(
            PasscodeActivities.cancel, self._ref(), **budgets.STORE
        )
        if not cancelled:
            raise ApplicationError("too late to cancel: the code has been used", type="TooLate")
        self._cancelled = True
        for sending in self._sendings.values():
            if sending.outcome is None:
                sending.cancel(request.reason)
        return self.view()

    @cancel.validator
    def _still_cancellable(self, request: CancelRequest) -> None:
        self._refuse_after_expiry("cancel")

    def _refuse_after_expiry(self, what: str) -> None:
        if workflow.now() >= self._p.expires_at:
            raise ApplicationError(f"cannot {what}: it has expired", type="TooLate")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _ref(self) -> PasscodeRef:
        return PasscodeRef(
            tenant=self._p.tenant, id=self._p.notification_id, expires_at=self._p.expires_at
        )

    def _best(self) -> Sending:
        """The latest send that was accepted, or else the latest."""
        sendings = list(self._sendings.values())
        accepted = [s for s in sendings if isinstance(s.outcome, Accepted)]
        return (accepted or sendings)[-1]
