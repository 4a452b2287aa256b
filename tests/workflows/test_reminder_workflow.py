"""A reminder: it waits, can be moved, cancelled or sent at once, and is sent once."""

import asyncio
import contextlib
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from schemas.kinds import Channel, LatenessPolicy, RecipientState
from schemas.messages import OutboundEmail
from schemas.notifications import (
    CancelRequest,
    Due,
    FireReminder,
    ReminderInput,
    ReminderView,
    RescheduleRequest,
    SendNowRequest,
)
from sendloom.domain.ids import child_id, notification_workflow_id
from tests.activities.running import environment
from tests.builders import TRANSACTIONAL, World, a_person, a_reminder, a_tenant
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


async def test_it_sends_by_itself_what_nobody_else_can_be_sending(env: WorkflowEnvironment):
    """A child would wait behind every other reminder of its moment."""
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        handle = await r.start(await in_(r, 1))
        view = await r.ended(handle)
        assert view.notification_id is not None
        own = env.client.get_workflow_handle(notification_workflow_id(view.notification_id))
        with pytest.raises(RPCError) as e:
            await own.describe()
    assert e.value.status is RPCStatusCode.NOT_FOUND
    assert view.state == "sent"
    # The notification first: a reminder that is open says that there is something to do.
    assert world.accepted.closed == [view.notification_id, view.id]


async def test_a_notification_that_was_there_already_is_sent_by_its_own_workflow(
    env: WorkflowEnvironment,
):
    """A worker died after it had inserted it, or a sweeper is at work: one workflow of that id is how nobody sends it twice."""
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 1)
        row = await world.accept(reminder)
        await _fired(world, reminder)
        view = await r.ended(await r.start_row(row))
        assert view.notification_id is not None
        own = env.client.get_workflow_handle(notification_workflow_id(view.notification_id))
        assert (await own.describe()).status is WorkflowExecutionStatus.COMPLETED
    assert view.state == "sent"
    assert len(world.email.sent) == 1


async def test_a_notification_that_somebody_sends_already_is_left_to_them(
    env: WorkflowEnvironment,
):
    world = World()
    world.email.holds = asyncio.Event()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 0)
        row = await world.accept(reminder)
        id = await _fired(world, reminder)
        other = await r.start_row(world.accepted.rows[reminder.tenant, id])
        await world.email.called.wait()
        view = await (await r.start_row(row)).result()
        assert (view.state, view.notification_id) == ("fired", id)
        world.email.holds.set()
        await r.ended(other)
    assert len(world.email.sent) == 1


async def _fired(world: World, reminder: ReminderInput) -> UUID:
    """By somebody else, before."""
    request = FireReminder(reminder=reminder, due_at=due_of(reminder))
    n = (await environment().run(world.reminding().fire, request)).notification
    assert n is not None
    return n.notification_id


async def test_what_it_sends_can_be_taken_back_as_long_as_any_notification_can(
    env: WorkflowEnvironment,
):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        reminder = await in_(r, 6)
        handle = await r.start(reminder)
        with pytest.raises(WorkflowUpdateFailedError) as e:
            await handle.execute_update(ReminderWorkflow.cancel_notification, CancelRequest())
        assert refusal(e) == "TooLate"
        due = due_of(reminder)
        world.set_category(TRANSACTIONAL, quiet_hours=True, ladder=(Channel.EMAIL,))
        world.catalog.tenants[reminder.tenant] = a_tenant(
            quiet_start=(due - HOUR).time().replace(microsecond=0),
            quiet_end=(due + HOUR).time().replace(microsecond=0),
        )
        await env.sleep(6 * HOUR)
        await eventually(lambda: bool(world.decisions.decisions))
        assert world.decisions.only().state is RecipientState.DEFERRED
        view = await handle.execute_update(
            ReminderWorkflow.cancel_notification, CancelRequest(reason="wrong day")
        )
        assert (view.state, view.reason) == (RecipientState.CANCELLED, "wrong day")
        ended = await r.ended(handle)
    assert (ended.state, ended.reason) == ("cancelled", "wrong day")
    assert world.email.sent == []
    for id in (view.id, reminder.reminder_id):
        assert (world.accepted.rows[reminder.tenant, id].outcome or {})["kind"] == "cancelled"


@pytest.mark.parametrize(("local", "asked"), [(False, 1), (True, 2)])
async def test_only_what_a_zone_may_move_is_worked_out_again_when_it_is_due(
    env: WorkflowEnvironment, local: bool, asked: int
):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        now = await r.now()
        at = (now + 2 * HOUR).replace(microsecond=0)
        due = Due(local=at.replace(tzinfo=None).isoformat()) if local else Due(at=at)
        view = await r.ended(await r.start(a_reminder(due, accepted_at=now)))
    assert view.state == "sent"
    assert world.accepted.calls.count("set_due") == asked


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
