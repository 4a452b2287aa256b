"""Workers for workflow tests: production's workflows, activities over fakes, every send lane, and no cached workflows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
)

from schemas.kinds import Kind, MessageClass
from schemas.notifications import NotificationView, ReminderView
from schemas.wire import Wire
from sendloom.domain.lanes import flow_queue, lanes_of
from sendloom.platform.search_attributes import ALL, BUILDS
from sendloom.ports import AcceptedRow
from tests.builders import World
from workers.sandbox import strict_runner
from workflows.notification import NotificationWorkflow
from workflows.passcode import PasscodeWorkflow
from workflows.reminder import ReminderWorkflow
from workflows.starting import start, workflow_id_of

WORKFLOWS = [NotificationWorkflow, PasscodeWorkflow, ReminderWorkflow]

T = TypeVar("T")

PATIENCE = 45.0
"""Seconds, for a busy machine; below the minute after which workflows look by themselves at what a signal should have told them."""

Time = Callable[[], Awaitable[datetime]]


async def wall_clock() -> datetime:
    return datetime.now(UTC)


class Running:
    """One class's flow queue and lanes, over a world of fakes."""

    def __init__(
        self, client: Client, world: World, time: Time, env: WorkflowEnvironment | None = None
    ) -> None:
        self.client = client
        self.world = world
        self.now = time
        self._env = env

    async def ended(self, handle: WorkflowHandle[Any, T]) -> T:
        """The result. A server that skips time does so until then."""
        skipping: Any = self._env
        if skipping is None:
            return await handle.result()
        async with skipping.time_skipping_unlocked():
            while True:
                try:
                    return await handle.result()
                except RuntimeError as e:
                    # Time that is skipped may pass the long poll's own limit.
                    if "No completion event" not in str(e):
                        raise

    async def start(self, given: Wire, **how: Any) -> WorkflowHandle[Any, Any]:
        """Accepted and started, as the API does it."""
        return await self.start_row(await self.world.accept(given, **how))

    async def start_row(self, row: AcceptedRow) -> WorkflowHandle[Any, Any]:
        await start(self.client, row)
        await self.world.accepted.mark_started(row.tenant, row.id)
        result = ReminderView if row.kind is Kind.REMINDER else NotificationView
        return self.client.get_workflow_handle(workflow_id_of(row), result_type=result)


class _ActivitiesKnowTheTime(Interceptor):
    """Sets the world's clock to the server's time, which may just have skipped a day, before each activity."""

    def __init__(self, world: World, time: Time) -> None:
        self._world = world
        self._time = time

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        world, time = self._world, self._time

        class KnowsTheTime(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                world.clock.at = await time()
                return await super().execute_activity(input)

        return KnowsTheTime(next)


@contextlib.asynccontextmanager
async def running(
    client: Client,
    world: World,
    message_class: MessageClass,
    *,
    time: Time = wall_clock,
    cached: int = 0,
    steps: int | None = None,
    env: WorkflowEnvironment | None = None,
) -> AsyncIterator[Running]:
    """Workers for one class; `steps`: so many of its workflows' at once. Without cached workflows every task replays from the start, which finds hidden state."""
    world.clock.at = await time()
    delivery, closing = world.delivery(), world.closing()
    checking, reminding = world.checking(), world.reminding()
    how: dict[str, Any] = {"interceptors": [_ActivitiesKnowTheTime(world, time)]}
    workers = [
        Worker(
            client,
            task_queue=flow_queue(message_class),
            workflows=WORKFLOWS,
            activities=[
                delivery.plan,
                delivery.record,
                delivery.settle,
                closing.close,
                checking.check,
                checking.resend,
                checking.cancel,
                reminding.resolve,
                reminding.fire,
                reminding.close,
            ],
            workflow_runner=strict_runner(),
            max_cached_workflows=cached,
            max_concurrent_workflow_tasks=steps,
            # A bug must fail the test at once instead of being retried for ever.
            workflow_failure_exception_types=[Exception],
            **how,
        ),
        *(
            Worker(client, task_queue=lane.queue, activities=[delivery.send], **how)
            for lane in lanes_of(message_class)
        ),
    ]
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        yield Running(client, world, time, env)


async def register_search_attributes(env: WorkflowEnvironment) -> None:
    """As `sendloom temporal setup` does; and Temporal's own, which the server that skips time does not have."""
    await env.client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=env.client.namespace,
            search_attributes={
                **{a.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD for a in ALL},
                BUILDS.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
            },
        )
    )


async def another_client(env: WorkflowEnvironment) -> Client:
    return await Client.connect(
        env.client.service_client.config.target_host,
        namespace=env.client.namespace,
        data_converter=env.client.data_converter,
    )


@contextlib.asynccontextmanager
async def skipping(
    env: WorkflowEnvironment,
    world: World,
    message_class: MessageClass,
    *,
    cached: int = 0,
    client: Client | None = None,
) -> AsyncIterator[Running]:
    """The same on a server that skips time. A second set of workers needs a client of its own."""
    async with running(
        client or env.client,
        world,
        message_class,
        time=env.get_current_time,
        cached=cached,
        env=env,
    ) as r:
        yield r


async def eventually(check: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 - it is outside of us
            await asyncio.sleep(0.005)
