"""Running workflows as the API sees them: started, asked by update, told by signal. Nothing waits longer than a caller does."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from api.errors import TemporalUnavailable
from api.nudges import Nudges
from api.ports import Gone, TooLate
from schemas.campaigns import ControlSignal, DueInput
from schemas.notifications import (
    CancelRequest,
    CheckRequest,
    CheckResult,
    Due,
    NotificationView,
    ReminderView,
    RescheduleRequest,
    ResendRequest,
    ResendResult,
    SendNowRequest,
)
from sendloom.domain import ids
from sendloom.errors import Refusal
from sendloom.ports import AcceptedRow, ScheduleRow
from workflows import scheduling, starting

T = TypeVar("T")

UPDATE_WITHIN = 5.0
"""Seconds. An update is a workflow task and a local activity; a worker that is restarting needs some seconds to be back."""

_OURS = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION})


class TemporalWorkflows:
    """Implements `api.ports.Workflows`."""

    def __init__(
        self, client: Client, start_within: timedelta, build_id: str | None = None
    ) -> None:
        self._client = client
        self._start_within = start_within
        self._build_id = build_id
        self._nudges = Nudges(self._tell_campaign)

    async def close(self) -> None:
        """Nobody is told anything any more."""
        await self._nudges.close()

    async def start(self, row: AcceptedRow, *, again: bool = False) -> None:
        await _answering(
            starting.start(
                self._client,
                row,
                again=again,
                rpc_timeout=self._start_within,
                build_id=self._build_id,
            ),
            self._start_within.total_seconds() + 0.05,
        )

    async def cancel_notification(self, id: UUID, reason: str, by: str) -> None:
        await self._update(
            ids.notification_workflow_id(id),
            "cancel",
            CancelRequest(reason=reason, by=by),
            NotificationView,
        )

    async def cancel_fired(self, reminder_id: UUID, reason: str, by: str) -> None:
        await self._update(
            ids.reminder_workflow_id(reminder_id),
            "cancel_notification",
            CancelRequest(reason=reason, by=by),
            NotificationView,
        )

    async def check_passcode(self, id: UUID, code: str) -> CheckResult:
        return await self._update(
            ids.passcode_workflow_id(id), "check", CheckRequest(code=code), CheckResult
        )

    async def resend_passcode(self, id: UUID, key: str) -> int:
        # The update's id makes a repeat of the same call the same update.
        result = await self._update(
            ids.passcode_workflow_id(id), "resend", ResendRequest(key=key), ResendResult
        )
        return result.send_no

    async def cancel_passcode(self, id: UUID, reason: str, by: str) -> None:
        await self._update(
            ids.passcode_workflow_id(id),
            "cancel",
            CancelRequest(reason=reason, by=by),
            NotificationView,
        )

    async def reschedule_reminder(self, id: UUID, due: Due) -> None:
        await self._update(
            ids.reminder_workflow_id(id), "reschedule", RescheduleRequest(due=due), ReminderView
        )

    async def send_reminder_now(self, id: UUID, by: str) -> None:
        await self._update(
            ids.reminder_workflow_id(id), "send_now", SendNowRequest(by=by), ReminderView
        )

    async def cancel_reminder(self, id: UUID, reason: str, by: str) -> None:
        await self._update(
            ids.reminder_workflow_id(id),
            "cancel",
            CancelRequest(reason=reason, by=by),
            ReminderView,
        )

    async def signal_campaign(self, id: UUID, name: str, signal: ControlSignal) -> None:
        # Whoever asked is to hear what the row says, and that takes time too.
        await self._nudges.nudge(id, name, signal, self._start_within.total_seconds() / 2)

    async def _tell_campaign(self, id: UUID, name: str, signal: ControlSignal) -> None:
        handle = self._client.get_workflow_handle(ids.campaign_workflow_id(id))
        await _answering(handle.signal(name, signal, rpc_timeout=self._start_within))

    async def work_due(self, due: DueInput) -> None:
        await _answering(starting.work_due(self._client, due, rpc_timeout=self._start_within))

    async def apply_schedule(self, row: ScheduleRow) -> None:
        await _answering(
            scheduling.apply(self._client, row, rpc_timeout=self._start_within),
            2 * self._start_within.total_seconds(),
        )

    async def _update(self, workflow_id: str, name: str, request: Any, result: type[T]) -> T:
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(workflow_id)
        try:
            answer: T = await _answering(
                handle.execute_update(name, request, result_type=result), UPDATE_WITHIN
            )
        except WorkflowUpdateFailedError as e:
            raise _refusal(e) from None
        return answer


def _refusal(e: WorkflowUpdateFailedError) -> Exception:
    cause = e.cause
    match cause.type if isinstance(cause, ApplicationError) else None:
        case "TooLate":
            return TooLate(getattr(cause, "message", ""))
        case "DuePast":
            return Refusal("due_past", "that moment has passed", field="due")
        case "AcceptedUpdateCompletedWorkflow":
            # It ended while we asked.
            return Gone()
        case _:
            return TemporalUnavailable("the workflow could not answer")


async def _answering(work: Awaitable[T], seconds: float | None = None) -> T:
    """
    Raises:
        Gone: there is no such run.
        TemporalUnavailable: anything that may pass.
    """
    try:
        async with asyncio.timeout(seconds):
            return await work
    except RPCError as e:
        if e.status is RPCStatusCode.NOT_FOUND:
            raise Gone from None
        if e.status in _OURS:
            raise
        raise TemporalUnavailable(f"Temporal: {e.status.name}") from e
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as e:
        raise TemporalUnavailable("Temporal did not answer in time") from e
    except RuntimeError as e:
        # What the SDK's core raises when a lazy client cannot connect.
        raise TemporalUnavailable("Temporal cannot be reached") from e
