"""Activities that overrun hold no slot, and there are no executor threads to lose (case C78)."""

import asyncio
import inspect
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import TimeoutError as Overrun
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from schemas.kinds import MessageClass
from sendloom.domain.lanes import lanes_of
from sendloom.settings import Settings
from workers import wiring

SLOTS = 10


@activity.defn(name="slots.overrun")
async def overrun(seconds: float) -> None:
    """Beats, so that the server can tell it to stop."""
    for _ in range(int(seconds / 0.05)):
        activity.heartbeat()
        await asyncio.sleep(0.05)


@activity.defn(name="slots.quick")
async def quick() -> str:
    return "done"


@workflow.defn(name="Slots")
class Slots:
    @workflow.run
    async def run(self, overruns: bool) -> str:
        if not overruns:
            return await workflow.execute_activity(
                quick, start_to_close_timeout=timedelta(seconds=30)
            )
        await workflow.execute_activity(
            overrun,
            60.0,
            start_to_close_timeout=timedelta(seconds=1),
            schedule_to_close_timeout=timedelta(seconds=8),
            heartbeat_timeout=timedelta(seconds=1),
        )
        return "never"


async def test_c78_thirty_activities_that_overrun_leave_every_slot_free(temporal_client: Client):
    queue = f"slots-{uuid4()}"
    async with Worker(
        temporal_client,
        task_queue=queue,
        workflows=[Slots],
        activities=[overrun, quick],
        max_concurrent_activities=SLOTS,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_heartbeat_throttle_interval=timedelta(seconds=0.2),
        default_heartbeat_throttle_interval=timedelta(seconds=0.2),
    ):
        late = [
            await temporal_client.start_workflow(Slots.run, True, id=str(uuid4()), task_queue=queue)
            for _ in range(30)
        ]
        for handle in late:
            with pytest.raises(WorkflowFailureError) as e:
                await handle.result()
            cause: BaseException | None = e.value
            while cause is not None and not isinstance(cause, Overrun):
                cause = cause.__cause__
            assert isinstance(cause, Overrun)
        # As many quick ones at once as there are slots: each slot is free again.
        answers = await asyncio.wait_for(
            asyncio.gather(
                *(
                    temporal_client.execute_workflow(
                        Slots.run, False, id=str(uuid4()), task_queue=queue
                    )
                    for _ in range(SLOTS)
                )
            ),
            timeout=60,
        )
    assert answers == ["done"] * SLOTS


@pytest.mark.parametrize("message_class", list(MessageClass))
async def test_c78_no_activity_of_ours_needs_a_thread(
    message_class: MessageClass, settings: Settings, temporal_client: Client
):
    served = []
    async with wiring.shared(settings) as common:
        async with wiring.flow(settings, message_class, temporal_client, common) as activities:
            served += list(activities)
        for lane in lanes_of(message_class):
            async with wiring.lane(settings, lane, common) as activities:
                served += list(activities)
    assert len(served) > 10
    assert all(inspect.iscoroutinefunction(one) for one in served)
