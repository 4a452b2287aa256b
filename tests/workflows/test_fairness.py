"""Who is served first inside a lane, on the embedded server with the product's flags (LANE-5)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import Priority
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.reminders import ReminderActivities
from schemas.campaigns import CampaignInput, DueInput, DueStretch, Stretch, StretchResult
from schemas.kinds import Channel, Kind, Mode
from schemas.notifications import Due, FiredReminder, FireReminder, ReminderView
from sendloom.domain.ids import campaign_workflow_id, due_workflow_id
from sendloom.domain.lanes import lane_for
from sendloom.platform.temporal import waiting_in
from tests.builders import TRANSACTIONAL, World, a_notification, a_reminder, accepted_row
from tests.fakes import ScriptedProvider
from tests.workflows.campaign_world import MARKETING, CampaignWorld, serving
from tests.workflows.running import PATIENCE, eventually, running, wall_clock
from workflows.starting import start, work_due, workflow_id_of

FLOOD, FEW = 300, 5


@workflow.defn(name="Asks")
class Asks:
    """Puts as many activities into a lane's queue as it is told to, as a tenant's blast does."""

    @workflow.run
    async def run(self, queue: str, labels: list[str]) -> None:
        await asyncio.gather(
            *(
                workflow.execute_activity(
                    "serve", label, task_queue=queue, start_to_close_timeout=timedelta(minutes=5)
                )
                for label in labels
            )
        )


class Lane:
    """A queue of its own, served by a worker of the email lane's size."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.queue = f"lane-{uuid4()}"
        self.flows = f"flow-{uuid4()}"
        self.served: list[str] = []

    @activity.defn(name="serve")
    async def serve(self, label: str) -> None:
        self.served.append(label)

    async def ask(
        self, tenant: str, labels: Sequence[str], priority: int = 3
    ) -> WorkflowHandle[Any, None]:
        return await self.client.start_workflow(
            Asks.run,
            args=[self.queue, list(labels)],
            id=str(uuid4()),
            task_queue=self.flows,
            priority=Priority(priority_key=priority, fairness_key=tenant),
        )

    async def waiting(self, count: int) -> None:
        """Until so many are in the queue: asked for is not there yet."""
        async with asyncio.timeout(PATIENCE):
            while (await waiting_in(self.client, self.queue))[0] < count:  # noqa: ASYNC110 - it is outside of us
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def planning(self) -> AsyncIterator[None]:
        async with Worker(
            self.client,
            task_queue=self.flows,
            workflows=[Asks],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            yield

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        async with Worker(
            self.client,
            task_queue=self.queue,
            activities=[self.serve],
            max_concurrent_activities=lane_for(Channel.EMAIL, MARKETING).activity_slots,
        ):
            yield


async def test_lane5_one_tenants_flood_does_not_hold_up_the_few_of_another(
    temporal_client: Client,
):
    lane = Lane(temporal_client)
    async with lane.planning():
        flood = await lane.ask("blaster", ["flood"] * FLOOD)
        await lane.waiting(FLOOD)
        few = await lane.ask("modest", ["few"] * FEW)
        await lane.waiting(FLOOD + FEW)
        async with lane.sending():
            await asyncio.wait_for(asyncio.gather(flood.result(), few.result()), 60)
    assert len(lane.served) == FLOOD + FEW
    last = max(n for n, label in enumerate(lane.served) if label == "few")
    assert last < FLOOD / 4, "turn and turn about, though the flood was there first"


async def test_lane5_inside_a_lane_the_more_urgent_go_first(temporal_client: Client):
    lane = Lane(temporal_client)
    async with lane.planning():
        social = await lane.ask("acme", ["social"] * 50, priority=5)
        await lane.waiting(50)
        orders = await lane.ask("acme", ["order"] * 50, priority=1)
        await lane.waiting(100)
        async with lane.sending():
            await asyncio.wait_for(asyncio.gather(social.result(), orders.result()), 60)
    assert len(lane.served) == 100
    # The pollers may hold a few of the others already.
    assert lane.served[:50].count("order") >= 40


# --- what the product gives the server to go by ---------------------------------------------------------------------------


class Seen(CampaignWorld):
    """Remembers what came with each task."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.came: dict[str, Priority] = {}

    def _see(self, what: str) -> None:
        self.came[what] = activity.info().priority

    @activity.defn(name="campaign.send")
    async def send(self, s: Stretch) -> StretchResult:
        self._see("send")
        return await super().send(s)

    @activity.defn(name="campaign.send_due")
    async def send_due(self, s: DueStretch) -> StretchResult:
        self._see("send_due")
        return await super().send_due(s)


ACME = Priority(priority_key=3, fairness_key="acme")


async def test_lane5_every_stretch_of_a_campaign_carries_its_tenant(temporal_client: Client):
    world = Seen(shards=1)
    given = CampaignInput(
        tenant="acme", mode=Mode.LIVE, campaign_id=world.id, accepted_at=await world.now()
    )
    async with serving(temporal_client, world):
        world.waiting = [(await world.now(), Channel.EMAIL)]
        row = accepted_row(given, Kind.CAMPAIGN)
        await start(temporal_client, replace(row, id=world.id, message_class=MARKETING))
        handle = temporal_client.get_workflow_handle(campaign_workflow_id(world.id))
        await eventually(lambda: {"send", "send_due"} <= set(world.came))
        await handle.terminate()
    assert world.came == {"send": ACME, "send_due": ACME}


async def test_lane5_a_due_loop_of_its_own_carries_its_tenant_too(temporal_client: Client):
    world = Seen(shards=1)
    world.waiting = [(await world.now(), Channel.EMAIL)]
    async with serving(temporal_client, world):
        await work_due(
            temporal_client,
            DueInput(
                tenant="acme",
                mode=Mode.LIVE,
                campaign_id=world.id,
                frozen_at=await world.now(),
                message_class=MARKETING,
                channels=[Channel.EMAIL],
                closing=True,
            ),
        )
        await eventually(lambda: "send_due" in world.came, 70)
        # It ends by itself when the next minute begins, which may be now.
        with contextlib.suppress(RPCError):
            await temporal_client.get_workflow_handle(due_workflow_id(world.id)).terminate()
    assert world.came == {"send_due": ACME}


async def test_lane5_a_single_message_is_sent_under_its_tenant_and_priority(
    temporal_client: Client,
):
    came: list[Priority] = []

    def see() -> None:
        came.append(activity.info().priority)

    world = World(email=ScriptedProvider(see))
    async with running(temporal_client, world, TRANSACTIONAL) as r:
        n = a_notification(accepted_at=await r.now(), priority=2)
        await asyncio.wait_for((await r.start(n)).result(), 30)
    assert came == [Priority(priority_key=2, fairness_key=n.tenant)]


# --- many at once ---------------------------------------------------------------------------------------------------------


class FirstOut(World):
    """Holds the last reminders' first step until a mail has left, as long as whoever waits for a step is willing to."""

    HELD_FROM = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun = 0

    def reminding(self) -> ReminderActivities:
        world, usual = self, super().reminding()

        class Reminding(ReminderActivities):
            @activity.defn(name="reminder.fire")
            async def fire(self, request: FireReminder) -> FiredReminder:
                world.begun += 1
                if world.begun >= world.HELD_FROM:
                    await world.email.called.wait()
                return await usual.fire(request)

        return Reminding(accepted=self.accepted, people=self.people, catalog=self.catalog)


async def test_rem5_of_many_reminders_due_at_once_the_first_leave_before_the_last_have_begun(
    temporal_client: Client,
):
    """One step at a time. Were all to take their first step before any takes its second, nothing would ever leave here."""
    world = FirstOut()
    now = await wall_clock()
    reminders = [a_reminder(Due(at=now), accepted_at=now) for _ in range(2 * FirstOut.HELD_FROM)]
    rows = [await world.accept(reminder) for reminder in reminders]
    for row in rows:
        await start(temporal_client, row)
    async with running(temporal_client, world, TRANSACTIONAL, steps=1) as r:
        async with asyncio.timeout(PATIENCE):
            await world.email.called.wait()
        begun = world.begun
        handles = [
            r.client.get_workflow_handle(workflow_id_of(row), result_type=ReminderView)
            for row in rows
        ]
        views = await asyncio.wait_for(asyncio.gather(*(h.result() for h in handles)), PATIENCE)
    assert begun <= FirstOut.HELD_FROM
    assert {view.state for view in views} == {"sent"}
    assert len(world.email.sent) == len(reminders), "none lost, none doubled"
