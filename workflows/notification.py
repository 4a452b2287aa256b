"""One notification to its final state."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from schemas.kinds import Kind
    from schemas.notifications import CancelRequest, NotificationInput, NotificationView
    from workflows.sending import Sending


@workflow.defn(name="Notification")
class NotificationWorkflow:
    @workflow.init
    def __init__(self, n: NotificationInput) -> None:
        self._sending = Sending(n)

    @workflow.run
    async def run(self, n: NotificationInput) -> NotificationView:
        await self._sending.run()
        await self._sending.close(Kind.NOTIFICATION)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._sending.view()

    @workflow.query
    def view(self) -> NotificationView:
        return self._sending.view()

    @workflow.update
    async def cancel(self, request: CancelRequest) -> NotificationView:
        return await self._sending.taken_back(request)

    @cancel.validator
    def _still_cancellable(self, request: CancelRequest) -> None:
        self._sending.refuse_if_too_late()
