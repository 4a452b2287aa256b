"""When a reminder is due, and that it becomes one notification."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.kinds import Kind, LatenessPolicy
from schemas.notifications import (
    CloseReminder,
    Due,
    FiredReminder,
    FireReminder,
    ReminderInput,
    ReminderView,
    ResolvedDue,
    ResolveDue,
)
from sendloom.domain.ids import child_id
from tests.activities.running import environment
from tests.builders import World, a_person, a_reminder
from tests.fakes import START

SEND, SKIP, NEXT_DAY = LatenessPolicy.SEND, LatenessPolicy.SKIP, LatenessPolicy.NEXT_DAY


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


async def resolve(
    world: World, r: ReminderInput, *, asked_at: datetime | None = None, persist: bool = False
) -> ResolvedDue:
    request = ResolveDue(reminder=r, due=r.due, asked_at=asked_at or r.accepted_at, persist=persist)
    return await environment().run(world.reminding().resolve, request)


async def fire(world: World, r: ReminderInput) -> FiredReminder:
    request = FireReminder(reminder=r, due_at=world.clock.at)
    return await environment().run(world.reminding().fire, request)


@pytest.mark.parametrize(
    ("zone", "due_at"),
    [
        ("America/New_York", "2026-01-15T14:00"),
        ("America/Los_Angeles", "2026-01-15T17:00"),
        ("Asia/Tokyo", "2026-01-15T00:00"),
        ("Australia/Sydney", "2026-01-14T22:00"),
        ("Europe/London", "2026-01-15T09:00"),
    ],
)
async def test_c42_nine_oclock_is_nine_oclock_where_the_recipient_is(zone, due_at):
    world = World()
    world.clock.at = at("2026-01-10T00:00")
    world.person = a_person(world.sealer, zone=zone)
    r = a_reminder(Due(local="2026-01-15T09:00"), accepted_at=world.clock.at)
    assert (await resolve(world, r)).due_at == at(due_at)


@pytest.mark.parametrize(
    ("policy", "due_at"),
    [
        (SEND, "2026-01-16T00:00"),  # never "now"
        (NEXT_DAY, "2026-01-16T00:00"),
        (SKIP, None),
    ],
)
async def test_c42_a_wall_time_that_had_passed_when_it_was_asked_for_is_never_now(policy, due_at):
    world = World()
    world.clock.at = at("2026-01-15T05:00")  # 14:00 in Tokyo
    world.person = a_person(world.sealer, zone="Asia/Tokyo")
    r = a_reminder(Due(local="2026-01-15T09:00"), accepted_at=world.clock.at, lateness=policy)
    resolved = await resolve(world, r)
    assert resolved.due_at == (at(due_at) if due_at else None)


async def test_a_day_that_moved_stays_moved_when_it_is_asked_about_again():
    world = World()
    world.clock.at = at("2026-01-15T05:00")
    world.person = a_person(world.sealer, zone="Asia/Tokyo")
    r = a_reminder(Due(local="2026-01-15T09:00"), accepted_at=world.clock.at)
    moved = await resolve(world, r)
    assert moved.due == Due(local="2026-01-16T09:00:00")
    world.clock.at = at("2026-01-16T00:00")
    again = r.model_copy(update={"due": moved.due})
    assert (await resolve(world, again)).due_at == at("2026-01-16T00:00")


async def test_the_zone_is_the_one_the_recipient_has_when_asked():
    world = World()
    world.clock.at = at("2026-01-10T00:00")
    world.person = a_person(world.sealer, zone="Europe/London")
    r = a_reminder(Due(local="2026-01-15T09:00"), accepted_at=world.clock.at)
    before = await resolve(world, r)
    world.person = a_person(world.sealer, zone="America/New_York")
    after = await resolve(world, r)
    assert (before.due_at, after.due_at) == (at("2026-01-15T09:00"), at("2026-01-15T14:00"))


async def test_without_a_zone_the_tenants_counts():
    world = World()
    world.clock.at = at("2026-01-10T00:00")
    world.person = a_person(world.sealer, zone=None)
    r = a_reminder(Due(local="2026-01-15T09:00"), accepted_at=world.clock.at)
    assert (await resolve(world, r)).due_at == at("2026-01-15T09:00")


@pytest.mark.parametrize(
    ("policy", "late", "due_at"),
    [
        (SEND, timedelta(hours=5), timedelta(hours=1)),
        (SKIP, timedelta(minutes=30), timedelta(hours=1)),  # within its grace
        (SKIP, timedelta(hours=5), None),
        (NEXT_DAY, timedelta(hours=5), timedelta(hours=25)),
        (NEXT_DAY, timedelta(hours=53), timedelta(hours=73)),
    ],
)
async def test_late_because_everything_was_down_follows_the_lateness_policy(policy, late, due_at):
    world = World()
    due = START + timedelta(hours=1)
    r = a_reminder(Due(at=due), lateness=policy, grace_seconds=3600)
    world.clock.at = due + late
    resolved = await resolve(world, r)
    assert resolved.due_at == (START + due_at if due_at else None)


async def test_a_local_reminder_that_is_late_goes_out_late():
    world = World()
    r = a_reminder(Due(local="2026-03-02T16:00"), accepted_at=START)
    world.clock.at = START + timedelta(hours=9)
    resolved = await resolve(world, r)
    assert resolved.due_at is not None
    assert resolved.due_at <= world.clock.at


@pytest.mark.parametrize(
    ("due", "instant"),
    [(Due(at=START + timedelta(hours=3)), True), (Due(local="2026-03-02T16:00"), False)],
)
async def test_only_what_no_zone_moves_is_an_instant(due, instant):
    assert (await resolve(World(), a_reminder(due))).instant is instant


async def test_the_rows_due_time_follows():
    world = World()
    due = START + timedelta(hours=3)
    r = a_reminder(Due(at=due))
    await world.accept(r)
    moved = r.model_copy(update={"due": Due(at=due + timedelta(hours=1))})
    await resolve(world, moved, persist=True)
    assert world.accepted.rows[r.tenant, r.reminder_id].due_at == due + timedelta(hours=1)


async def test_firing_twice_is_one_notification_with_one_set_of_times():
    world = World()
    r = a_reminder(Due(at=START), ttl_seconds=600)
    await world.accept(r)
    first = await fire(world, r)
    world.clock.advance(timedelta(minutes=1))
    second = await fire(world, r)
    n = first.notification
    assert second.notification == n
    # Whoever inserted the row sends it; a repeat cannot know who that was.
    assert (first.in_place, second.in_place) == (True, False)
    assert n is not None
    assert n.notification_id == child_id(r.reminder_id, "fire")
    assert (n.accepted_at, n.expires_at) == (START, START + timedelta(minutes=10))
    row = world.accepted.rows[r.tenant, n.notification_id]
    assert (row.kind, row.parent_id) == (Kind.NOTIFICATION, r.reminder_id)
    # The sweeper must not think that it was left.
    assert row.started_at == START
    assert "mark_started" not in world.accepted.calls, "it could be swept in between"
    assert row.content == world.accepted.rows[r.tenant, r.reminder_id].content


async def test_c44_a_reminder_cancelled_in_our_own_store_does_not_fire():
    world = World()
    r = a_reminder(Due(at=START))
    await world.accept(r)
    await world.accepted.close(
        r.tenant, r.reminder_id, {"kind": "cancelled", "reason": "booking is off"}
    )
    assert await fire(world, r) == FiredReminder(notification=None, reason="booking is off")
    assert len(world.accepted.rows) == 1


@pytest.mark.parametrize(("state", "kind"), [("sent", "accepted"), ("skipped", "skipped")])
async def test_closing_says_what_became_of_it(state, kind):
    world = World()
    r = a_reminder(Due(at=START))
    await world.accept(r)
    view = ReminderView(id=r.reminder_id, state=state)
    await environment().run(
        world.reminding().close, CloseReminder(tenant=r.tenant, id=r.reminder_id, view=view)
    )
    outcome = world.accepted.rows[r.tenant, r.reminder_id].outcome
    assert outcome is not None
    assert (outcome["kind"], outcome["state"]) == (kind, state)


async def test_what_is_a_little_late_was_due_when_it_was_due():
    """Not "now": whoever waits for that moment would wait for ever."""
    world = World()
    r = a_reminder(Due(local="2026-03-02T16:00"), accepted_at=START)
    world.clock.at = START + timedelta(hours=1, milliseconds=3)
    assert (await resolve(world, r)).due_at == START + timedelta(hours=1)
