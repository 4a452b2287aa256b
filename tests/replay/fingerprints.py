"""What a workflow asked of Temporal, in order: a line a command, so that a changed order shows in a review."""

import json
from collections.abc import Iterator

from google.protobuf.json_format import MessageToDict
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory


def fingerprint(history: WorkflowHistory) -> list[str]:
    """One line a command and a message, without ids, times and payloads."""
    return [line for event in history.events for line in _line(event)]


def _line(event: HistoryEvent) -> Iterator[str]:
    kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
    match kind:
        case "WORKFLOW_EXECUTION_STARTED":
            yield f"workflow {event.workflow_execution_started_event_attributes.workflow_type.name}"
        case "ACTIVITY_TASK_SCHEDULED":
            scheduled = event.activity_task_scheduled_event_attributes
            yield f"activity {scheduled.activity_type.name} on {scheduled.task_queue.name}"
        case "MARKER_RECORDED":
            yield from _marker(event)
        case "START_CHILD_WORKFLOW_EXECUTION_INITIATED":
            child = event.start_child_workflow_execution_initiated_event_attributes
            yield f"child {child.workflow_type.name}"
        case "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED":
            signal = event.signal_external_workflow_execution_initiated_event_attributes
            yield f"signal {signal.signal_name}"
        case "WORKFLOW_EXECUTION_SIGNALED":
            yield f"signalled {event.workflow_execution_signaled_event_attributes.signal_name}"
        case "WORKFLOW_EXECUTION_UPDATE_ACCEPTED":
            accepted = event.workflow_execution_update_accepted_event_attributes
            yield f"update {accepted.accepted_request.input.name}"
        case "TIMER_STARTED":
            yield "timer"
        case "TIMER_CANCELED":
            yield "timer cancelled"
        case "ACTIVITY_TASK_CANCEL_REQUESTED":
            yield "cancel activity"
        case (
            "WORKFLOW_EXECUTION_COMPLETED"
            | "WORKFLOW_EXECUTION_FAILED"
            | "WORKFLOW_EXECUTION_CANCELED"
            | "WORKFLOW_EXECUTION_CONTINUED_AS_NEW"
        ):
            yield kind.removeprefix("WORKFLOW_EXECUTION_").lower().replace("_", " ")


def _marker(event: HistoryEvent) -> Iterator[str]:
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != "core_local_activity":
        yield f"marker {marker.marker_name} {sorted(marker.details)}"
        return
    # What the SDK says of its own about a local activity is not ours, so it is not sealed.
    about = json.loads(marker.details["data"].payloads[0].data)
    yield f"local {about['activity_type']}"


def described(event: HistoryEvent) -> str:
    """For a failing test's message."""
    return json.dumps(MessageToDict(event), indent=1)
