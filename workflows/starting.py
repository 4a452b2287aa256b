"""Starting what was accepted. One function for the API, the sweeper, replay and rebuild, so that none of them can fork it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import (
    Priority,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from schemas.campaigns import CampaignInput, DueInput, LookAgain
from schemas.kinds import Kind
from schemas.notifications import Due, NotificationInput, PasscodeInput, ReminderInput
from schemas.wire import Wire
from sendloom.domain import ids
from sendloom.domain.lanes import flow_queue
from sendloom.platform import search_attributes
from sendloom.ports import AcceptedRow
from workflows.budgets import WORKFLOW_TASK

PRIORITY_DEFAULT = 3


@dataclass(frozen=True, slots=True)
class _Start:
    """What one kind of accepted row runs."""

    workflow: str
    workflow_id: Callable[[Any], str]
    input: type[Wire]


_STARTS = {
    Kind.NOTIFICATION: _Start("Notification", ids.notification_workflow_id, NotificationInput),
    Kind.PASSCODE: _Start("Passcode", ids.passcode_workflow_id, PasscodeInput),
    Kind.REMINDER: _Start("Reminder", ids.reminder_workflow_id, ReminderInput),
    Kind.CAMPAIGN: _Start("Campaign", ids.campaign_workflow_id, CampaignInput),
}


def workflow_id_of(row: AcceptedRow) -> str:
    return _STARTS[row.kind].workflow_id(row.id)


async def start(
    client: Client,
    row: AcceptedRow,
    *,
    again: bool = False,
    rpc_timeout: timedelta | None = None,
    build_id: str | None = None,
) -> bool:
    """Run the row's workflow with the stored input. False: it had been started already, which is success too.

    `again` is for an operator's replay and for rebuild: a closed run of the same id is no obstacle. `build_id` is the setting
    of the workers that will work it; None: they are not versioned.
    """
    how = _STARTS[row.kind]
    given = how.input.model_validate_json(row.workflow_input)
    if isinstance(given, ReminderInput) and row.started_at is not None and row.due_at is not None:
        # It ran before and may have been rescheduled; the row's due time is kept current for this.
        given = given.model_copy(update={"due": Due(at=row.due_at)})
    try:
        await client.start_workflow(
            how.workflow,
            given,
            id=how.workflow_id(row.id),
            task_queue=flow_queue(row.message_class),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
            if again
            else WorkflowIDReusePolicy.REJECT_DUPLICATE,
            search_attributes=attributes_of(row, build_id),
            priority=Priority(
                priority_key=getattr(given, "priority", PRIORITY_DEFAULT), fairness_key=row.tenant
            ),
            static_summary=f"{row.kind} {row.category}",
            task_timeout=WORKFLOW_TASK[row.message_class],
            rpc_timeout=rpc_timeout,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def work_due(client: Client, due: DueInput, *, rpc_timeout: timedelta | None = None) -> None:
    """Rows were put into a bucket: the due loop looks at once, and is started again when it had ended."""
    await client.start_workflow(
        "Due",
        due,
        id=ids.due_workflow_id(due.campaign_id),
        task_queue=flow_queue(due.message_class),
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        start_signal="look_again",
        start_signal_args=[LookAgain()],
        priority=Priority(priority_key=PRIORITY_DEFAULT, fairness_key=due.tenant),
        rpc_timeout=rpc_timeout,
    )


def attributes_of(row: AcceptedRow, build_id: str | None = None) -> TypedSearchAttributes:
    """Ids and enums only: visible in plain text to anyone with namespace access."""
    known: list[SearchAttributePair[Any]] = [
        SearchAttributePair(search_attributes.TENANT, row.tenant),
        SearchAttributePair(search_attributes.KIND, row.kind),
        SearchAttributePair(search_attributes.CLASS, row.message_class),
        SearchAttributePair(search_attributes.CATEGORY, row.category),
    ]
    if build_id is None:
        builds = search_attributes.UNVERSIONED_BUILDS
        known.append(SearchAttributePair(search_attributes.BUILDS, builds))
    return TypedSearchAttributes(known)
