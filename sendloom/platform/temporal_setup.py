"""What a Temporal server must know before our workers start: namespace, search attributes, schedules. Safe to repeat."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar

import yaml
from google.protobuf.duration_pb2 import Duration
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from sendloom.errors import ConfigurationError
from sendloom.platform.search_attributes import ALL
from sendloom.platform.temporal import connect
from sendloom.settings import Settings

T = TypeVar("T")

RETENTION = timedelta(hours=168)
"""Support reads histories for a week; what must last longer is in Postgres."""

_SEEN_WITHIN = 90.0
"""A cluster's frontends refresh their namespaces every 10 s or so, and the names of search attributes every minute."""


class ScheduleEntry(BaseModel):
    """One line of `temporal-config/schedules.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workflow: str
    task_queue: str
    every_seconds: int = Field(gt=0)
    jitter_seconds: int = Field(ge=0)
    overlap: Literal["skip", "buffer_one", "allow_all"]
    catchup_seconds: int = Field(gt=0)
    why: str


async def set_up(settings: Settings, schedules: Path | None) -> list[str]:
    """Bring the server to what this build needs. Returns what was changed, in words.

    Raises:
        ConfigurationError: unreachable, refused, an attribute of another type, or a broken schedules file.
    """
    client = await connect(settings, namespace_exists=False)
    try:
        changed = await _namespace(client)
        changed += await _search_attributes(client)
        if schedules is not None:
            for schedule_id, entry in read_schedules(schedules).items():
                changed.append(await _schedule(client, schedule_id, entry))
    except RPCError as e:
        raise ConfigurationError(
            f"Temporal at {settings.temporal.address} refused the set-up: {e.status.name.lower()}. "
            "The credentials need the right to administer the namespace."
        ) from e
    return changed


def read_schedules(file: Path) -> dict[str, ScheduleEntry]:
    """The recurring work, by schedule id.

    Raises:
        ConfigurationError: unreadable or malformed; names the entry.
    """
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as e:
        raise ConfigurationError(f"{file}: {e}") from e
    if not isinstance(entries, dict):
        raise ConfigurationError(f"{file}: must be schedule ids with their entries")
    read = {}
    for schedule_id, entry in entries.items():
        try:
            read[schedule_id] = ScheduleEntry.model_validate(entry)
        except ValidationError as e:
            raise ConfigurationError(f"{file}, {schedule_id}: {e}") from e
    return read


async def missing_search_attributes(client: Client) -> list[str]:
    """Ours that the namespace does not have, or has with another type."""
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    return [a.name for a in ALL if listed.custom_attributes.get(a.name) != keyword]


async def _namespace(client: Client) -> list[str]:
    describe = DescribeNamespaceRequest(namespace=client.namespace)
    retention = Duration()
    retention.FromTimedelta(RETENTION)
    try:
        found = await client.workflow_service.describe_namespace(describe)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:
            raise
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(
                namespace=client.namespace,
                workflow_execution_retention_period=retention,
                description="Sendloom",
            )
        )
        await _once_seen(lambda: client.workflow_service.describe_namespace(describe))
        return [f"namespace {client.namespace} created"]
    if found.config.workflow_execution_retention_ttl.ToTimedelta() >= RETENTION:
        return []
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(
            namespace=client.namespace,
            config=NamespaceConfig(workflow_execution_retention_ttl=retention),
        )
    )
    return [f"retention of {client.namespace} raised to {RETENTION}"]


async def _search_attributes(client: Client) -> list[str]:
    missing = await _once_seen(lambda: missing_search_attributes(client))
    if not missing:
        return []
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=client.namespace,
            search_attributes=dict.fromkeys(missing, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD),
        )
    )
    # Until then every start that names one would be refused.
    named = " OR ".join(f"{name} = ''" for name in missing)
    await _once_seen(lambda: client.count_workflows(named), RPCStatusCode.INVALID_ARGUMENT)
    return [f"search attribute {name} registered" for name in missing]


async def _once_seen(
    ask: Callable[[], Awaitable[T]], unseen: RPCStatusCode = RPCStatusCode.NOT_FOUND
) -> T:
    """The answer, asked again while a frontend says `unseen`: it has not heard of what is new yet."""
    deadline = asyncio.get_running_loop().time() + _SEEN_WITHIN
    while True:
        try:
            return await ask()
        except RPCError as e:
            late = asyncio.get_running_loop().time() > deadline
            if e.status is not unseen or late:
                raise
        await asyncio.sleep(0.2)


async def _schedule(client: Client, schedule_id: str, entry: ScheduleEntry) -> str:
    """Create it or bring it up to date; whether it is paused stays as operations left it."""
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            entry.workflow, id=f"schedule/{schedule_id}", task_queue=entry.task_queue
        ),
        spec=ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=timedelta(seconds=entry.every_seconds))],
            jitter=timedelta(seconds=entry.jitter_seconds),
        ),
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy[entry.overlap.upper()],
            catchup_window=timedelta(seconds=entry.catchup_seconds),
        ),
    )
    try:
        await client.create_schedule(schedule_id, wanted)
        return f"schedule {schedule_id} created"
    except ScheduleAlreadyRunningError:
        pass

    def replace(current: ScheduleUpdateInput) -> ScheduleUpdate:
        wanted.state = current.description.schedule.state
        return ScheduleUpdate(wanted)

    await client.get_schedule_handle(schedule_id).update(replace)
    return f"schedule {schedule_id} up to date"
