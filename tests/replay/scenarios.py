"""Lives of workflows worth keeping. Each scenario plays one on a server that skips time; what it returns is recorded."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from schemas.kinds import ControlState, FaultScope
from schemas.notifications import (
    CancelRequest,
    CheckRequest,
    Due,
    FireReminder,
    RescheduleRequest,
    ResendRequest,
    SendNowRequest,
)
from schemas.outcomes import Failed, Rejected, Unknown
from schemas.schedules import FireTrigger, TriggerInput, TriggerResult
from sendloom.domain.ids import (
    catch_up_workflow_id,
    due_workflow_id,
    fire_id,
    notification_workflow_id,
    shard_workflow_id,
)
from sendloom.domain.lanes import OPS_QUEUE
from tests.activities.running import environment
from tests.builders import (
    CODE,
    SECURITY,
    TENANT,
    TRANSACTIONAL,
    World,
    a_notification,
    a_passcode,
    a_reminder,
    a_tenant,
)
from tests.fakes import START, ScriptedProvider
from tests.workflows import campaign_world
from tests.workflows.running import Running, eventually, skipping
from workers.fleet import OPS_WORKFLOWS
from workers.sandbox import strict_runner

Handles = dict[str, WorkflowHandle[Any, Any]]
Play = Callable[[WorkflowEnvironment], Awaitable[Handles]]

REFUSED = Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT)
LATER = Failed(provider="smtp", code="421", retry_after=timedelta(hours=2))
HANG = Unknown(provider="twilio", code="read")
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Scenario:
    """`ordered`: its commands come in the same order every time, so that the fingerprint can be the whole list."""

    play: Play
    ordered: bool = True


async def notification_sent(env: WorkflowEnvironment) -> Handles:
    return await _sent(env, World(), "notification-sent")


async def notification_down_its_ladder(env: WorkflowEnvironment) -> Handles:
    return await _sent(env, World(email=ScriptedProvider(REFUSED)), "notification-ladder")


async def notification_unknown(env: WorkflowEnvironment) -> Handles:
    return await _sent(env, World(email=ScriptedProvider(HANG)), "notification-unknown")


async def notification_unrecorded(env: WorkflowEnvironment) -> Handles:
    world = World()
    world.ledger.down_for.add("record")
    looks = iter(range(10**6))
    world.clock.monotonic = lambda: float(next(looks))  # type: ignore[method-assign]
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await eventually(lambda: world.ledger.calls.count("record") > 1)
        world.ledger.down_for.clear()
        await r.ended(handle)
    return {"notification-unrecorded": handle}


async def notification_deferred(env: WorkflowEnvironment) -> Handles:
    world = World()
    await _fall_asleep(env, world)
    return await _sent(env, world, "notification-deferred")


async def notification_cancelled(env: WorkflowEnvironment) -> Handles:
    world = World()
    await _fall_asleep(env, world)
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await eventually(lambda: bool(world.decisions.decisions))
        await handle.execute_update("cancel", CancelRequest())
        await r.ended(handle)
    return {"notification-cancelled": handle}


async def notification_cancelled_between_attempts(env: WorkflowEnvironment) -> Handles:
    world = World(email=ScriptedProvider(LATER))
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await eventually(lambda: bool(world.ledger.records))
        await handle.execute_update("cancel", CancelRequest())
        await r.ended(handle)
    return {"notification-cancelled-between-attempts": handle}


async def passcode(env: WorkflowEnvironment) -> Handles:
    world = World()
    async with skipping(env, world, SECURITY, cached=100) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await eventually(lambda: len(world.accepted.calls) > 0 and bool(world.sms.sent))
        await _recorded(world, 1)
        await handle.execute_update("check", CheckRequest(code="000000"))
        await handle.execute_update("resend", ResendRequest(key="again"))
        await _recorded(world, 2)
        await handle.execute_update("check", CheckRequest(code=CODE))
        await r.ended(handle)
    return {"passcode-checked": handle}


async def passcode_cancelled(env: WorkflowEnvironment) -> Handles:
    world = World(sms=ScriptedProvider(REFUSED), email=ScriptedProvider(LATER))
    async with skipping(env, world, SECURITY, cached=100) as r:
        p = a_passcode(accepted_at=await r.now())
        p = p.model_copy(update={"expires_at": p.accepted_at + timedelta(hours=3)})
        handle = await r.start(p)
        await _recorded(world, 2)
        await handle.execute_update("cancel", CancelRequest())
        await r.ended(handle)
    return {"passcode-cancelled": handle}


async def reminder_sent(env: WorkflowEnvironment) -> Handles:
    """The histories `reminder-sent` and `reminder-notification` are from when every notification was a child."""
    async with skipping(env, World(), TRANSACTIONAL, cached=100) as r:
        handle = await r.start(await _in(r, 6))
        await r.ended(handle)
    return {"reminder-sent-in-place": handle}


async def reminder_handed_over(env: WorkflowEnvironment) -> Handles:
    """Somebody inserted the notification before, so its own workflow sends it."""
    world = World()
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        reminder = await _in(r, 6)
        row = await world.accept(reminder)
        await environment().run(
            world.reminding().fire, FireReminder(reminder=reminder, due_at=reminder.due.at)
        )
        handle = await r.start_row(row)
        view = await r.ended(handle)
        child = env.client.get_workflow_handle(notification_workflow_id(view.notification_id))
    return {"reminder-handed-over": handle, "reminder-handed-over-notification": child}


async def reminder_moved(env: WorkflowEnvironment) -> Handles:
    world = World()
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        reminder = await _in(r, 6)
        handle = await r.start(reminder)
        await eventually(lambda: "set_due" in world.accepted.calls)
        later = Due(local=(await r.now() + 30 * HOUR).replace(tzinfo=None).isoformat()[:19])
        await handle.execute_update("reschedule", RescheduleRequest(due=later))
        await handle.execute_update("send_now", SendNowRequest())
        await r.ended(handle)
    return {"reminder-moved-sent-in-place": handle}


async def reminder_cancelled(env: WorkflowEnvironment) -> Handles:
    world = World()
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        handle = await r.start(await _in(r, 6))
        await eventually(lambda: "set_due" in world.accepted.calls)
        await handle.execute_update("cancel", CancelRequest())
        await r.ended(handle)
    return {"reminder-cancelled": handle}


async def campaign(env: WorkflowEnvironment) -> Handles:
    """A campaign with a shard, something due later, and a look by its catch-up."""
    world = campaign_world.CampaignWorld(shards=1, pages=4, time=env.get_current_time)
    gate = world.gate(0, 1)
    async with campaign_world.skipping(env, world):
        handle = await world.start(env.client)
        await world.at_gate[gate].wait()
        pause = world.write_control(ControlState.PAUSED)
        await handle.signal("pause", pause)
        world.gates[gate].set()
        await handle.signal("resume", world.write_control(ControlState.RUNNING))
        await campaign_world.ended(handle)
    return {
        "campaign": handle,
        "campaign-shard": env.client.get_workflow_handle(shard_workflow_id(world.id, 0)),
        "campaign-due": env.client.get_workflow_handle(due_workflow_id(world.id)),
        "campaign-catch-up": env.client.get_workflow_handle(catch_up_workflow_id(world.id)),
    }


@activity.defn(name="trigger.fire")
async def _fired(request: FireTrigger) -> TriggerResult:
    return TriggerResult(fired=[fire_id(request.schedule_id, START)])


async def trigger(env: WorkflowEnvironment) -> Handles:
    """By hand: only a schedule may say when it was scheduled, and the server that skips time has none."""
    async with Worker(
        env.client,
        task_queue=OPS_QUEUE,
        workflows=OPS_WORKFLOWS,
        activities=[_fired],
        workflow_runner=strict_runner(),
    ):
        handle = await env.client.start_workflow(
            "Trigger",
            TriggerInput(tenant=TENANT, schedule_id=uuid4()),
            id=f"trigger/{uuid4()}",
            task_queue=OPS_QUEUE,
            result_type=TriggerResult,
        )
        await handle.result()
    return {"trigger": handle}


SCENARIOS = {
    play.__name__: Scenario(play)
    for play in (
        notification_sent,
        notification_down_its_ladder,
        notification_unknown,
        notification_unrecorded,
        notification_deferred,
        notification_cancelled,
        notification_cancelled_between_attempts,
        passcode,
        passcode_cancelled,
        reminder_sent,
        reminder_handed_over,
        reminder_moved,
        reminder_cancelled,
        trigger,
    )
} | {"campaign": Scenario(campaign, ordered=False)}


async def _sent(env: WorkflowEnvironment, world: World, name: str) -> Handles:
    async with skipping(env, world, TRANSACTIONAL, cached=100) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await r.ended(handle)
    return {name: handle}


async def _fall_asleep(env: WorkflowEnvironment, world: World) -> None:
    now = await env.get_current_time()
    world.set_category(TRANSACTIONAL, quiet_hours=True)
    world.catalog.tenants[TENANT] = a_tenant(
        quiet_start=(now - HOUR).time().replace(microsecond=0),
        quiet_end=(now + HOUR).time().replace(microsecond=0),
    )


async def _in(r: Running, hours: int) -> Any:
    now = await r.now()
    return a_reminder(Due(at=now + hours * HOUR), accepted_at=now)


async def _recorded(world: World, count: int) -> None:
    """And give the workflow's task that follows it the time to be over."""
    await eventually(lambda: len(world.ledger.records) >= count)
    await asyncio.sleep(0.1)
