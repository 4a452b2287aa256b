"""Who serves what: the one place that builds workers."""

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker, WorkerDeploymentConfig

from schemas.kinds import MessageClass
from sendloom.domain.lanes import OPS_QUEUE, Lane, flow_queue
from sendloom.platform.search_attributes import UNVERSIONED
from workers.sandbox import fast_runner
from workflows.campaign import CampaignWorkflow
from workflows.catch_up import CatchUpWorkflow
from workflows.due import DueWorkflow
from workflows.notification import NotificationWorkflow
from workflows.passcode import PasscodeWorkflow
from workflows.reminder import ReminderWorkflow
from workflows.shard import ShardWorkflow
from workflows.trigger import TriggerWorkflow

Activities = Sequence[Callable[..., Any]]

WORKFLOWS: tuple[type, ...] = (
    NotificationWorkflow,
    PasscodeWorkflow,
    ReminderWorkflow,
    CampaignWorkflow,
    ShardWorkflow,
    DueWorkflow,
    CatchUpWorkflow,
)
"""Everything a class does. Each class's flow queue serves all of them."""

OPS_WORKFLOWS: tuple[type, ...] = (TriggerWorkflow,)
"""What the ops queue serves."""

DRAIN = timedelta(seconds=20)
"""Shorter than what the supervisor waits before it kills (30 s). A call that takes longer is finished beyond it if it may."""

STICKY = {
    # What a killed worker's cached workflow waits before another worker may have it.
    MessageClass.SECURITY: timedelta(seconds=1),
    MessageClass.TRANSACTIONAL: timedelta(seconds=2),
    MessageClass.MARKETING: timedelta(seconds=3),
}

WORKFLOW_POLLERS = 10
"""Half of them for workflows that nobody has cached: of the SDK's five one would be, and a burst of new passcodes would wait
for it in the server's backlog, from which it comes back seconds late."""
WORKFLOW_TASKS = {
    # As many as are not waiting for each other anyway: a core carries some hundred tasks a second of 50 ms each. Of what is
    # due at once the rest waits in Temporal, in order, and Temporal has time for a passcode.
    MessageClass.SECURITY: 100,
    MessageClass.TRANSACTIONAL: 6,
    MessageClass.MARKETING: 100,
}
"""Steps of workflows at once, in one process."""
FLOW_ACTIVITIES = 100
LOCAL_ACTIVITIES = 200
OPS_ACTIVITIES = 20
"""A wake-up holds a database connection for two or three statements."""

DEPLOYMENT = "sendloom"


def flow_worker(
    client: Client,
    message_class: MessageClass,
    activities: Activities,
    build_id: str | None,
    cached_workflows: int = 2_000,
) -> Worker:
    """Workflows of one class, and the activities that call no provider.

    Whatever waits for longer than the cache holds it (reminders for days, passcodes ten minutes for their checks) is read
    again from its history.
    """
    queue = flow_queue(message_class)
    return Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=activities,
        workflow_runner=fast_runner(),
        max_cached_workflows=cached_workflows,
        max_concurrent_workflow_tasks=WORKFLOW_TASKS[message_class],
        max_concurrent_activities=FLOW_ACTIVITIES,
        max_concurrent_local_activities=LOCAL_ACTIVITIES,
        sticky_queue_schedule_to_start_timeout=STICKY[message_class],
        workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(WORKFLOW_POLLERS),
        nonsticky_to_sticky_poll_ratio=0.5,
        **_common(queue, build_id),
    )


def lane_worker(client: Client, lane: Lane, activities: Activities, build_id: str | None) -> Worker:
    """One lane: nothing but its sends."""
    return Worker(
        client,
        task_queue=lane.queue,
        activities=activities,
        max_concurrent_activities=lane.activity_slots,
        **_common(lane.queue, build_id),
    )


def ops_worker(client: Client, activities: Activities, build_id: str | None) -> Worker:
    """Wake-ups of schedules: some milliseconds each, and never behind a campaign."""
    return Worker(
        client,
        task_queue=OPS_QUEUE,
        workflows=OPS_WORKFLOWS,
        activities=activities,
        workflow_runner=fast_runner(),
        max_cached_workflows=200,
        max_concurrent_activities=OPS_ACTIVITIES,
        sticky_queue_schedule_to_start_timeout=STICKY[MessageClass.TRANSACTIONAL],
        **_common(OPS_QUEUE, build_id),
    )


def _common(queue: str, build_id: str | None) -> dict[str, Any]:
    return {
        "identity": f"{socket.gethostname()}/{os.getpid()}/{queue}",
        "graceful_shutdown_timeout": DRAIN,
        # Beats come every second from a timer; throttling them to 80 % of the time-out would leave no room for a slow one.
        "max_heartbeat_throttle_interval": timedelta(seconds=1),
        "default_heartbeat_throttle_interval": timedelta(seconds=1),
        # Said, because otherwise the SDK hashes the code of every imported module, compiling what has no cache: 1.8 s of each start.
        **(
            {"build_id": UNVERSIONED}
            if build_id is None
            else {"deployment_config": _deployment(build_id)}
        ),
    }


def _deployment(build_id: str) -> WorkerDeploymentConfig:
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(DEPLOYMENT, build_id),
        use_worker_versioning=True,
        # One rule for what lives seconds and what lives months: runs move on to the current build, and histories replay.
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )
