"""A reminder: it waits, can be moved, cancelled or sent at once, and is sent once."""

import asyncio
import contextlib
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from schemas.kinds import LatenessPolicy
from schemas.messages import OutboundEmail
from schemas.notifications import (
    CancelRequest,
    Due,
    ReminderInput,
    ReminderView,
    RescheduleRequest,
    SendNowRequest,
)
from sendloom.domain.ids import child_id
from tests.builders import TRANSACTIONAL, World, a_person, a_reminder
from tests.workflows.running import another_client, eventually
from tests.workflows.running import skipping as uncached
from workflows.reminder import ReminderWorkflow
from workflows.starting import start

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = timedelta(hours=1)

# Without a cache the SDK loses the first task of a child that starts while its parent's task runs, and the server gives it
# again only after the time-out. One test does without all the same.
skipping = partial(uncached, cached=100)


def refusal(e: pytest.ExceptionInfo[WorkflowUpdateFailedError]) -> str | None:
    assert isinstance(e.value.cause, ApplicationError)
    return e.value.cause.type


async def in_(r, hours: float, **changes) -> ReminderInput:
    now = await r.now()
    return a_reminder(Due(at=now + hours * HOUR), accepted_at=now, **changes)


def due_of(reminder: ReminderInput) -> datetime:
    assert reminder.due.at is not None
    return reminder.due.at


def date_of(world: World) -> datetime:
    """When the reminder fired: its mail's Date."""
    mail = world.email.sent[0]
    assert isinstance(mail, OutboundEmail)
    return mail.date


def outcome_of(world: World, reminder: ReminderInput) -> dict[str, Any]:
    return dict(world.accepted.rows[reminder.tenant, reminder.reminder_id].outcome or {})


async def test_c25_a_reminder_in_six_hours_is_sent_once_when_it_is_due(env: WorkflowEnvironment):
    """Many leases long, with four sets of workers of which one is stopped on the way."""
    world = World()
    async with contextlib.AsyncExitStack() as others:
        for _ in range(3):
            client = await another_client(env)
            await others.enter_async_context(uncached(env, world, TRANSACTIONAL, client=client))
        async with uncached(env, world, TRANSACTIONAL) as r:
            reminder = await in_(r, 6)
            handle = await r.start(reminder)
            await env.sleep(5 * HOUR)
        assert world.email.sent == []
        async with uncached(env, world, TRANSACTIONAL) as r:
            due = due_of(reminder)
            view: ReminderView = await r.ended(handle)
    assert view.state == "sent"
    assert len(world.email.sent) == 1
    assert due <= date_of(world) < due + timedelta(minutes=1)
    assert outcome_of(world, reminder)["kind"] == "accepted"
    notification = child_id(reminder.reminder_id, "fire")
    assert view.notification_id == notification
    child = world.accepted.rows[reminder.tenant, notification]
    assert child.outcome is not None
    assert child.outcome["kind"] == "accepted"


async def test_nine_oclock_is_the_recipients_also_when_they_have_moved(env: WorkflowEnvironment):
    world = World()
    world.person = a_person(world.sealer, zone="Europe/London")
    async with skipping(env, world, TRANSACTIONAL) as r:
        now = await r.now()
        day = (now + timedelta(days=2)).date()
        reminder = a_reminder(Due(local=f"{day}T09:00"), accepted_at=now)
        handle = await r.start(reminder)
        await eventually(lambda: "set_due" in world.accepted.calls)
        world.person = a_person(world.sealer, zone="America/New_York")
        view = await r.ended(handle)
    assert view.state == "sent"
    local = date_of(world).astimezone(ZoneInfo("America/New_York"))
    assert (local.date(), local.hour) == (day, 9)


async def test_it_can_be_moved_and_is_sent_at_the_new_time(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 1)
        handle = await r.start(reminder)
        later = due_of(reminder) + 5 * HOUR
        view = await handle.execute_update(
            ReminderWorkflow.reschedule, RescheduleRequest(due=Due(at=later))
        )
        assert view.due_at == later
        assert world.accepted.rows[reminder.tenant, reminder.reminder_id].due_at == later
        await env.sleep(2 * HOUR)
        assert world.email.sent == []
        earlier = later - 2 * HOUR
        await handle.execute_update(
            ReminderWorkflow.reschedule, RescheduleRequest(due=Due(at=earlier))
        )
        view = await r.ended(handle)
    assert view.state == "sent"
    assert len(world.email.sent) == 1
    assert earlier <= date_of(world) < later


async def test_it_cannot_be_moved_into_the_past(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 1)
        handle = await r.start(reminder)
        past = due_of(reminder) - 5 * HOUR
        with pytest.raises(WorkflowUpdateFailedError) as e:
            await handle.execute_update(
                ReminderWorkflow.reschedule, RescheduleRequest(due=Due(at=past))
            )
        assert refusal(e) == "DuePast"
        await r.ended(handle)
    assert len(world.email.sent) == 1


async def test_a_cancelled_reminder_is_not_sent(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 1)
        handle = await r.start(reminder)
        view = await handle.execute_update(
            ReminderWorkflow.cancel, CancelRequest(reason="booking is off")
        )
        assert (view.state, view.reason) == ("cancelled", "booking is off")
        assert (await r.ended(handle)).state == "cancelled"
    assert world.email.sent == []
    assert outcome_of(world, reminder)["kind"] == "cancelled"


async def test_c44_150_reminders_cancelled_by_either_path_send_nothing(env: WorkflowEnvironment):
    """Half by asking each workflow, half by the row in our own store, which is looked at when it is due."""
    world = World()
    async with skipping(env, world, TRANSACTIONAL, cached=200) as r:
        reminders = [await in_(r, 24) for _ in range(150)]
        handles = await asyncio.gather(*(r.start(reminder) for reminder in reminders))
        for n, (reminder, handle) in enumerate(zip(reminders, handles, strict=True)):
            if n % 2:
                await handle.execute_update(ReminderWorkflow.cancel, CancelRequest())
            else:
                await world.accepted.close(
                    reminder.tenant, reminder.reminder_id, {"kind": "cancelled"}
                )
        await env.sleep(25 * HOUR)
        views = [await r.ended(handle) for handle in handles]
    assert {view.state for view in views} == {"cancelled"}
    assert world.email.sent == []
    assert world.ledger.claims == {}


async def test_send_now_sends_now_and_only_once(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 48)
        handle = await r.start(reminder)
        view = await handle.execute_update(ReminderWorkflow.send_now, SendNowRequest(by="ops"))
        assert view.notification_id == child_id(reminder.reminder_id, "fire")
        assert (await r.ended(handle)).state == "sent"
    assert len(world.email.sent) == 1


async def test_it_says_clearly_when_it_is_too_late(env: WorkflowEnvironment):
    world = World()
    world.email.holds = asyncio.Event()
    async with skipping(env, world, TRANSACTIONAL) as r:
        handle = await r.start(await in_(r, 0))
        await world.email.called.wait()
        later = RescheduleRequest(due=Due(at=await r.now() + HOUR))
        for update, request in (
            ("cancel", CancelRequest()),
            ("reschedule", later),
            ("send_now", SendNowRequest()),
        ):
            with pytest.raises(WorkflowUpdateFailedError) as e:
                await handle.execute_update(update, request)
            assert refusal(e) == "TooLate"
        world.email.holds.set()
        assert (await r.ended(handle)).state == "sent"
    assert len(world.email.sent) == 1


@pytest.mark.parametrize(
    ("lateness", "state", "sent"),
    [
        (LatenessPolicy.SEND, "sent", 1),
        (LatenessPolicy.SKIP, "skipped", 0),
        (LatenessPolicy.NEXT_DAY, "sent", 1),
    ],
)
async def test_rem1_due_while_everything_was_down(
    env: WorkflowEnvironment, lateness: LatenessPolicy, state: str, sent: int
):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        # Accepted seven hours ago, due an hour later, and only now is there somebody to run it.
        now = await r.now()
        due = now - 6 * HOUR
        reminder = a_reminder(Due(at=due), accepted_at=now - 7 * HOUR, lateness=lateness)
        view = await r.ended(await r.start(reminder))
    assert view.state == state
    assert len(world.email.sent) == sent
    if lateness is LatenessPolicy.NEXT_DAY:
        assert date_of(world) >= due + timedelta(days=1)


async def test_a_reminder_rebuilt_after_a_loss_of_temporal_keeps_its_moved_time(
    env: WorkflowEnvironment,
):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 1)
        handle = await r.start(reminder)
        later = due_of(reminder) + 5 * HOUR
        await handle.execute_update(
            ReminderWorkflow.reschedule, RescheduleRequest(due=Due(at=later))
        )
        await handle.terminate()
        row = world.accepted.rows[reminder.tenant, reminder.reminder_id]
        assert await start(env.client, row, again=True)
        view = await r.ended(env.client.get_workflow_handle(handle.id, result_type=ReminderView))
    assert date_of(world) >= later
    assert view.state == "sent"
    assert len(world.email.sent) == 1
