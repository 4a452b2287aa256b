"""Firing what a schedule owes, over the real tables: once, by the rule, whoever wakes us and however often (REM-5)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from activities.triggers import TriggerActivities, redefine
from schemas.campaigns import CampaignInput, CampaignSpec, PinnedSegment
from schemas.content import CampaignContent, Content
from schemas.kinds import CampaignPhase, Channel, Kind, MessageClass
from schemas.notifications import NotificationInput
from schemas.schedules import (
    CatchUpRule,
    FireTrigger,
    Overlap,
    RecurringContent,
    ScheduleKind,
    ScheduleState,
    TriggerResult,
    TriggerStatus,
)
from sendloom.domain.ids import fire_id
from sendloom.domain.segments import parse
from sendloom.errors import StoreUnavailable
from sendloom.ports import AcceptedRow, Fire, ScheduleRow
from sendloom.rows import PartWrite, RecipientWrite, Trigger
from sendloom.stores.lists import PostgresLists
from tests.fakes import FakeClock
from tests.stores.conftest import NOW, Stores, World, a_schedule, a_tenant
from tests.stores.conftest import pool as pool
from tests.stores.conftest import sealer as sealer
from tests.stores.conftest import stores as stores
from tests.stores.conftest import world as world
from workers.nudging import Nudger

HOUR = timedelta(hours=1)
NINE = NOW.replace(minute=0, second=0) + 2 * HOUR
PRO = {"attribute": "plan", "eq": "pro"}


class Starts:
    """Temporal as the activity sees it: remembers what runs, and can be away."""

    def __init__(self) -> None:
        self.rows: list[AcceptedRow] = []
        self.away = False

    async def __call__(self, row: AcceptedRow) -> bool:
        if self.away:
            raise ConnectionError("Temporal is away")
        self.rows.append(row)
        return True

    @property
    def times(self) -> Counter[Any]:
        return Counter(row.id for row in self.rows)


@dataclass
class Case:
    """One schedule that was handled until nine o'clock, and the means to fire it."""

    world: World
    row: ScheduleRow
    clock: FakeClock = field(default_factory=lambda: FakeClock(NINE))
    starts: Starts = field(default_factory=Starts)

    @property
    def stores(self) -> Stores:
        return self.world.stores

    @property
    def activities(self) -> TriggerActivities:
        s = self.stores
        return TriggerActivities(
            schedules=s.schedules,
            accepted=s.accepted,
            campaigns=s.campaigns,
            catalog=s.catalog,
            people=s.people,
            segments=s.segments,
            lists=s.lists,
            start=self.starts,
            now=self.clock.now,
        )

    async def wake(self, at: datetime, woken_for: datetime | None = None) -> TriggerResult:
        self.clock.at = at
        request = FireTrigger(tenant=self.row.tenant, schedule_id=self.row.id, woken_for=woken_for)
        return await self.activities.fire(request)

    async def log(self) -> list[Trigger]:
        return (await self.stores.triggers.of_trigger(self.row.tenant, self.row.id))[::-1]

    async def change(self, **changes: Any) -> None:
        current = await self.stores.schedules.get(self.row.tenant, self.row.id)
        assert current is not None
        changed = await self.stores.schedules.replace(replace(current, **changes), current.version)
        assert changed is not None
        self.row = changed

    async def end_all(self) -> None:
        for row in self.starts.rows:
            await self.stores.accepted.close(row.tenant, row.id, {"kind": "accepted"})


@pytest_asyncio.fixture
async def case(stores: Stores) -> Case:
    world = await stores.world(
        category="orders.shipped", message_class=MessageClass.TRANSACTIONAL, quiet_hours=False
    )
    await stores.catalog.add_template_version(
        world.tenant, "t", {}, "en", [PartWrite(Channel.EMAIL, "en", "x", "x")]
    )
    await stores.catalog.publish(world.tenant, "t", 1)
    await stores.recipients.upsert(world.tenant, [RecipientWrite("r1", "de", "Europe/Berlin")])
    made = Case(
        world, a_schedule(world.tenant, zone="UTC", handled_until=NINE, next_at=NINE + HOUR)
    )
    await stores.schedules.insert_or_match(made.row)
    return made


async def test_a_run_is_an_accepted_notification_with_the_id_of_its_scheduled_time(case: Case):
    result = await case.wake(NINE + HOUR)
    ref = fire_id(case.row.id, NINE + HOUR)
    assert result.fired == [ref]
    [row] = case.starts.rows
    given = NotificationInput.model_validate_json(row.workflow_input)
    assert (given.notification_id, given.recipient_id, row.kind) == (ref, "r1", Kind.NOTIFICATION)
    content = Content.model_validate_json(row.content)
    assert (content.template_id, content.template_version) == ("t", 1)
    assert (content.variables, content.locale) == ({"order": "17"}, "de")
    assert row.parent_id == case.row.id
    [line] = await case.log()
    assert (line.status, line.ref_id, line.scheduled_for) == ("fired", ref, NINE + HOUR)
    assert (await case.stores.accepted.get(row.tenant, ref)).started_at is not None  # type: ignore[union-attr]


async def test_woken_again_and_by_many_at_once_it_is_fired_once(case: Case):
    await asyncio.gather(*(case.wake(NINE + HOUR) for _ in range(6)))
    await case.wake(NINE + HOUR)
    assert len(case.starts.times) == 1
    assert [line.status for line in await case.log()] == ["fired"]


async def test_a_wake_up_before_our_own_clock_says_so_is_believed_and_one_from_far_ahead_is_not(
    case: Case,
):
    early = NINE + HOUR - timedelta(seconds=2)
    assert len((await case.wake(early, woken_for=NINE + HOUR)).fired) == 1
    assert (await case.wake(early, woken_for=NINE + 9 * HOUR)).fired == []


async def test_what_a_crash_left_between_the_log_and_the_start_is_started_by_whoever_comes_next(
    case: Case,
):
    case.starts.away = True
    with pytest.raises(ConnectionError):
        await case.wake(NINE + HOUR)
    assert [line.status for line in await case.log()] == ["owed"]
    case.starts.away = False
    # What it says was changed in between: the run that was accepted stays what it was.
    await case.change(content=RecurringContent(template_id="t", variables={"order": "18"}))
    await case.wake(NINE + HOUR + timedelta(minutes=1))
    [row] = case.starts.rows
    assert Content.model_validate_json(row.content).variables == {"order": "17"}
    assert [line.status for line in await case.log()] == ["fired"]


async def test_c30_after_three_days_one_run_makes_up_for_all_and_the_rest_is_counted(case: Case):
    back = NINE + timedelta(days=3)
    assert (await case.wake(back)).skipped == 71
    assert len(case.starts.rows) == 1
    missed, fired = await case.log()
    assert (missed.status, missed.missed, missed.scheduled_for) == ("missed", 71, NINE + HOUR)
    assert missed.missed_until == back - HOUR
    assert (fired.status, fired.scheduled_for) == ("fired", back)
    # Seventy wake-ups that waited for a worker come now: there is nothing left for them.
    for hour in range(1, 72, 7):
        assert (await case.wake(back, woken_for=NINE + hour * HOUR)).fired == []
    await case.end_all()
    assert len((await case.wake(back + HOUR)).fired) == 1


async def test_c30_after_ninety_minutes_the_one_missed_run_is_made_up(case: Case):
    result = await case.wake(NINE + timedelta(minutes=90))
    assert (result.fired, result.skipped) == ([fire_id(case.row.id, NINE + HOUR)], 0)


async def test_c30_ninety_minutes_and_then_three_days_are_one_digest_each_however_many_wake_us(
    case: Case,
):
    """Each run that was missed wakes us when Temporal is back, all at once."""

    async def back_at(at: datetime, missed: list[datetime]) -> TriggerResult:
        found = await asyncio.gather(*(case.wake(at, woken_for=moment) for moment in missed))
        await case.end_all()
        return TriggerResult(
            fired=[ref for result in found for ref in result.fired],
            skipped=sum(result.skipped for result in found),
        )

    first = NINE + HOUR
    made_up = await back_at(NINE + timedelta(minutes=90), [first])
    assert (set(made_up.fired), made_up.skipped) == ({fire_id(case.row.id, first)}, 0)
    assert len((await case.wake(NINE + 2 * HOUR)).fired) == 1
    await case.end_all()
    down = [NINE + n * HOUR for n in range(3, 75)]
    made_up = await back_at(down[-1] + timedelta(minutes=20), down)
    assert (set(made_up.fired), made_up.skipped) == ({fire_id(case.row.id, down[-1])}, 71)
    assert len((await case.wake(down[-1] + HOUR)).fired) == 1
    # One digest for each gap, beside the two that were on time; and each hour is accounted for.
    assert len(case.starts.times) == 4
    hours = [line.missed or 1 for line in await case.log()]
    assert hours == [1, 1, 71, 1, 1]


@pytest.mark.parametrize(
    ("rule", "most", "fired"),
    [
        (CatchUpRule.LATEST, 10, 1),
        (CatchUpRule.NONE, 10, 1),
        (CatchUpRule.ALL, 10, 10),
        (CatchUpRule.ALL, 101, 101),
    ],
)
async def test_c01_every_minute_and_101_of_them_missed_goes_on_at_once_by_the_rule(
    rule: CatchUpRule, most: int, fired: int, case: Case
):
    minute = timedelta(minutes=1)
    await case.change(cron="* * * * *", catch_up=rule, catch_up_max=most, overlap=Overlap.ALLOW)
    # Half a minute after the last of them, which so is still on time: under the rule `none` only that one goes.
    back = NINE + 101 * minute
    result = await case.wake(back + minute / 2)
    assert (len(result.fired), result.skipped) == (fired, 101 - fired)
    assert result.fired == [fire_id(case.row.id, back - n * minute) for n in reversed(range(fired))]
    # It is not stopped: the next five minutes go one by one, and nothing is late any more.
    for n in range(1, 6):
        result = await case.wake(back + n * minute, woken_for=back + n * minute)
        assert (result.fired, result.skipped) == ([fire_id(case.row.id, back + n * minute)], 0)
    row = await case.stores.schedules.get(case.row.tenant, case.row.id)
    assert row is not None
    assert (row.state, row.next_at) == (ScheduleState.ACTIVE, back + 6 * minute)
    assert set(case.starts.times.values()) == {1}


async def test_all_that_was_missed_is_made_up_in_order_when_the_rule_says_so(case: Case):
    await case.change(catch_up=CatchUpRule.ALL, catch_up_max=3, overlap=Overlap.ALLOW)
    result = await case.wake(NINE + 5 * HOUR)
    wanted = [fire_id(case.row.id, NINE + n * HOUR) for n in (3, 4, 5)]
    assert (result.fired, result.skipped) == (wanted, 2)
    assert [row.id for row in case.starts.rows] == wanted


async def test_a_run_whose_predecessor_has_not_ended_is_skipped_and_said(case: Case):
    first = (await case.wake(NINE + HOUR)).fired[0]
    second = await case.wake(NINE + 2 * HOUR)
    assert (second.fired, second.refused) == ([], 1)
    line = (await case.log())[-1]
    assert (line.status, line.reason) == ("overlapped", str(first))
    await case.end_all()
    assert len((await case.wake(NINE + 3 * HOUR)).fired) == 1


async def test_where_overlap_is_allowed_runs_go_side_by_side(case: Case):
    await case.change(overlap=Overlap.ALLOW)
    for n in (1, 2, 3):
        await case.wake(NINE + n * HOUR)
    assert len(case.starts.times) == 3


@pytest.mark.parametrize("state", [ScheduleState.PAUSED, ScheduleState.DELETED])
async def test_one_that_is_paused_or_deleted_fires_nothing(state: ScheduleState, case: Case):
    await case.change(state=state)
    assert (await case.wake(NINE + 5 * HOUR)).fired == []
    assert await case.log() == []


async def test_jitter_holds_runs_back_unless_it_is_the_one_we_are_woken_for(case: Case):
    await case.change(jitter_seconds=600)
    assert (await case.wake(NINE + HOUR + timedelta(seconds=30))).fired == []
    result = await case.wake(NINE + HOUR + timedelta(minutes=4), woken_for=NINE + HOUR)
    assert len(result.fired) == 1


async def test_what_cannot_be_is_refused_once_and_the_next_run_is_tried(case: Case):
    await case.change(content=RecurringContent(template_id="gone"))
    assert (await case.wake(NINE + HOUR)).refused == 1
    await case.change(recipient_id="nobody", content=RecurringContent(template_id="t"))
    assert (await case.wake(NINE + 2 * HOUR)).refused == 1
    await case.stores.catalog.put_tenant(replace(a_tenant(case.row.tenant), disabled=True))
    assert (await case.wake(NINE + 3 * HOUR)).refused == 1
    assert [(line.status, line.reason) for line in await case.log()] == [
        ("refused", "unknown_template"),
        ("refused", "unknown_recipient"),
        ("refused", "tenant_disabled"),
    ]
    assert case.starts.rows == []


async def test_a_recurring_campaign_is_a_campaign_of_its_own_each_time(case: Case):
    marketing = await case.stores.world()
    await case.stores.catalog.add_template_version(
        marketing.tenant, "t", {}, "en", [PartWrite(Channel.EMAIL, "en", "x", "x")]
    )
    await case.stores.catalog.publish(marketing.tenant, "t", 1)
    weekly = a_schedule(
        marketing.tenant,
        kind=ScheduleKind.CAMPAIGN,
        category="offers.weekly",
        recipient_id=None,
        zone="UTC",
        content=RecurringContent(
            template_id="t", name="news", list_id="everyone", rate_per_second=5
        ),
        handled_until=NINE,
        next_at=NINE + HOUR,
    )
    await case.stores.schedules.insert_or_match(weekly)
    campaigns = Case(marketing, weekly)
    [ref] = (await campaigns.wake(NINE + HOUR)).fired
    [row] = campaigns.starts.rows
    assert CampaignInput.model_validate_json(row.workflow_input).campaign_id == ref
    assert CampaignContent.model_validate_json(row.content).spec.rate_per_second == 5
    stored = await case.stores.campaigns.get(marketing.tenant, ref)
    assert stored is not None
    assert (stored.phase, stored.list_id) == (CampaignPhase.ACCEPTED, "everyone")
    assert stored.name == f"news {NINE + HOUR:%Y-%m-%d %H:%M}"


@pytest_asyncio.fixture
async def weekly(stores: Stores) -> Case:
    """Campaigns to whoever is in a segment, which is `PRO` to begin with."""
    world = await stores.world()
    await stores.catalog.add_template_version(
        world.tenant, "t", {}, "en", [PartWrite(Channel.EMAIL, "en", "x", "x")]
    )
    await stores.catalog.publish(world.tenant, "t", 1)
    await stores.segments.put(world.tenant, "pro", "Pro", PRO, "test")
    made = Case(
        world,
        a_schedule(
            world.tenant,
            kind=ScheduleKind.CAMPAIGN,
            category="offers.weekly",
            recipient_id=None,
            zone="UTC",
            content=RecurringContent(template_id="t", name="news", segment_id="pro"),
            overlap=Overlap.ALLOW,
            handled_until=NINE,
            next_at=NINE + HOUR,
        ),
    )
    await stores.schedules.insert_or_match(made.row)
    return made


async def pinned(case: Case, run: UUID) -> tuple[str, PinnedSegment]:
    """The list and the segment of a run's campaign."""
    row = await case.stores.campaigns.get(case.row.tenant, run)
    assert row is not None
    segment = CampaignSpec.model_validate(dict(row.spec)).segment
    assert segment is not None
    return row.list_id, segment


async def lists_of(case: Case) -> list[str]:
    return [one.list_id for one in await case.stores.lists.lists(case.row.tenant)]


async def test_a_campaign_to_a_segment_pins_it_anew_whenever_it_fires(weekly: Case):
    [first] = (await weekly.wake(NINE + HOUR)).fired
    await weekly.stores.segments.put(weekly.row.tenant, "pro", "Pro", {"not": PRO}, "test")
    [second] = (await weekly.wake(NINE + 2 * HOUR)).fired
    assert await pinned(weekly, first) == (
        f"segment-{first}",
        PinnedSegment(segment_id="pro", version=1, definition=PRO),
    )
    assert await pinned(weekly, second) == (
        f"segment-{second}",
        PinnedSegment(segment_id="pro", version=2, definition={"not": PRO}),
    )
    lists = await weekly.stores.lists.lists(weekly.row.tenant)
    assert {one.list_id: (one.name, one.current_version) for one in lists} == {
        f"segment-{first}": (f"segment: news {NINE + HOUR:%Y-%m-%d %H:%M}", None),
        f"segment-{second}": (f"segment: news {NINE + 2 * HOUR:%Y-%m-%d %H:%M}", None),
    }


async def test_a_campaign_to_a_segment_that_is_fired_by_many_at_once_is_one_with_one_list(
    weekly: Case,
):
    await asyncio.gather(*(weekly.wake(NINE + HOUR) for _ in range(6)))
    ref = fire_id(weekly.row.id, NINE + HOUR)
    assert set(weekly.starts.times) == {ref}
    assert await lists_of(weekly) == [f"segment-{ref}"]
    assert [line.status for line in await weekly.log()] == ["fired"]


async def test_a_run_to_a_segment_that_could_not_start_keeps_what_it_pinned(weekly: Case):
    weekly.starts.away = True
    with pytest.raises(ConnectionError):
        await weekly.wake(NINE + HOUR)
    # Changed, and even deleted, before it is fired again: the run was accepted as it was.
    await weekly.stores.segments.put(weekly.row.tenant, "pro", "Pro", {"not": PRO}, "test")
    await weekly.stores.segments.delete(weekly.row.tenant, "pro")
    weekly.starts.away = False
    [ref] = (await weekly.wake(NINE + HOUR)).fired
    assert (await pinned(weekly, ref))[1].definition == PRO
    assert await lists_of(weekly) == [f"segment-{ref}"]


async def test_a_run_to_a_segment_that_was_deleted_is_refused_and_leaves_no_list(weekly: Case):
    await weekly.stores.segments.delete(weekly.row.tenant, "pro")
    result = await weekly.wake(NINE + HOUR)
    assert (result.fired, result.refused) == ([], 1)
    assert [(line.status, line.reason) for line in await weekly.log()] == [
        ("refused", "unknown_segment")
    ]
    assert (await lists_of(weekly), weekly.starts.rows) == ([], [])
    await weekly.stores.segments.put(weekly.row.tenant, "pro", "Pro", PRO, "test")
    assert len((await weekly.wake(NINE + 2 * HOUR)).fired) == 1


async def test_the_list_of_a_run_is_there_for_its_launch_to_write_the_members_into(weekly: Case):
    stores, tenant = weekly.stores, weekly.row.tenant
    await stores.recipients.upsert(
        tenant,
        [
            RecipientWrite("free", attributes={"plan": "free"}),
            RecipientWrite("pro-1", attributes={"plan": "pro"}),
            RecipientWrite("pro-2", attributes={"plan": "pro"}),
        ],
    )
    [ref] = (await weekly.wake(NINE + HOUR)).fired
    list_id, segment = await pinned(weekly, ref)
    version = await stores.lists.write_segment(tenant, list_id, uuid4(), parse(segment.definition))
    assert (version.state, version.size) == ("ready", 2)


async def test_c72_a_schedule_that_is_rewritten_while_it_fires_loses_and_doubles_no_run(case: Case):
    """Each minute is due while somebody else rewrites the schedule at the very same moment."""
    minute = timedelta(minutes=1)
    await case.change(cron="* * * * *", overlap=Overlap.ALLOW)
    schedules = case.stores.schedules

    async def rewrite(at: datetime, number: int) -> None:
        while True:
            row = await schedules.get(case.row.tenant, case.row.id)
            assert row is not None
            new = replace(row, name=f"number {number}")
            if await redefine(schedules, row, new, at) is not None:
                return

    for n in range(1, 21):
        due = NINE + n * minute
        await asyncio.gather(
            case.wake(due, woken_for=due), rewrite(due + timedelta(milliseconds=5), n)
        )
    await case.wake(NINE + 20 * minute)
    log = await case.log()
    assert [line.scheduled_for for line in log] == [NINE + n * minute for n in range(1, 21)]
    assert {line.status for line in log} == {"fired"}
    assert set(case.starts.times) == {fire_id(case.row.id, NINE + n * minute) for n in range(1, 21)}


PEOPLE, OFTEN_GONE, STEPS = 10_000, 1_000, 100
ALL_OF_THEM, WITHOUT = PEOPLE, PEOPLE - OFTEN_GONE


async def people_with_future_steps(world: World) -> list[Any]:
    """Everybody is in the audience; of a hundred who come and go, each is owed a hundred reminders."""
    pool, tenant = world.stores.pool, world.tenant
    await pool.execute(
        "INSERT INTO recipients (tenant, recipient_id, zone, attributes)"
        " SELECT $1, 'p' || lpad(n::text, 6, '0'), 'UTC', '{\"plan\": \"pro\"}' FROM generate_series(1, $2) n",
        tenant,
        PEOPLE,
        timeout=60,
    )
    await pool.execute(
        "INSERT INTO accepted (tenant, id, mode, kind, idempotency_key, body_hmac, message_class, category, recipient_id,"
        " workflow_input, content, accepted_at, due_at, expires_at)"
        " SELECT $1, gen_random_uuid(), 'live', 'reminder', n || '/' || step, '', 'transactional', 'orders.shipped',"
        " 'p' || lpad(n::text, 6, '0'), '', '', $3::timestamptz, $3 + step * interval '1 day', $3 + step * interval '2 days'"
        " FROM generate_series(1, 100) n, generate_series(1, $2) step",
        tenant,
        STEPS,
        NOW,
        timeout=60,
    )
    return await steps(world)


async def steps(world: World) -> list[Any]:
    return await world.stores.pool.fetch(
        "SELECT id, recipient_id, due_at, closed_at, outcome FROM accepted"
        " WHERE tenant = $1 AND kind = 'reminder' ORDER BY id",
        world.tenant,
    )


async def test_c72_an_audience_rebuilt_in_a_loop_is_the_old_or_the_new_one_and_no_step_is_lost(
    stores: Stores,
):
    """Ten thousand, of whom a thousand come and go, while a campaign to them is started each second."""
    world = await stores.world()
    lists = PostgresLists(stores.pool, stores.sealer, page_size=500)
    await stores.catalog.add_template_version(
        world.tenant, "t", {}, "en", [PartWrite(Channel.EMAIL, "en", "x", "x")]
    )
    await stores.catalog.publish(world.tenant, "t", 1)
    before = await people_with_future_steps(world)
    assert len(before) == 100 * STEPS
    await lists.write_segment(world.tenant, "everyone", uuid4(), parse(PRO))
    row = a_schedule(
        world.tenant,
        kind=ScheduleKind.CAMPAIGN,
        category="offers.weekly",
        recipient_id=None,
        zone="UTC",
        cron=None,
        every_seconds=1,
        overlap=Overlap.ALLOW,
        content=RecurringContent(template_id="t", name="news", list_id="everyone"),
        handled_until=NINE,
        next_at=NINE + timedelta(seconds=1),
    )
    await stores.schedules.insert_or_match(row)
    case = Case(world, row)
    read: Counter[int] = Counter()
    building = rebuilt = False
    seconds = while_building = 0

    async def trigger_each_second() -> None:
        """Fires, and then starts what was fired: that is when an audience is read and pinned."""
        nonlocal seconds, while_building
        while not rebuilt:
            seconds += 1
            at = NINE + timedelta(seconds=seconds)
            [ref] = (await case.wake(at, woken_for=at)).fired
            frozen = await stores.campaigns.freeze(world.tenant, ref, at, (Channel.EMAIL,))
            while_building += building
            pinned = await stores.campaigns.get(world.tenant, ref)
            assert pinned is not None
            there = await stores.pool.fetchval(
                "SELECT count(*) FROM list_rows WHERE tenant = $1 AND version_id = $2",
                world.tenant,
                pinned.version_id,
            )
            assert there == frozen.size
            read[frozen.size] += 1

    async def rebuild() -> None:
        nonlocal building, rebuilt
        rounds = 0
        while rounds < 3 or while_building < 6:
            for plan, size in (("basic", WITHOUT), ("pro", ALL_OF_THEM)):
                await stores.pool.execute(
                    "UPDATE recipients SET attributes = jsonb_build_object('plan', $2::text)"
                    " WHERE tenant = $1 AND recipient_id <= 'p' || lpad($3::text, 6, '0')",
                    world.tenant,
                    plan,
                    str(OFTEN_GONE),
                    timeout=60,
                )
                building = True
                version = await lists.write_segment(world.tenant, "everyone", uuid4(), parse(PRO))
                building = False
                assert version.size == size
            rounds += 1
        rebuilt = True

    async with asyncio.TaskGroup() as both:
        both.create_task(rebuild())
        both.create_task(trigger_each_second())
    assert set(read) == {ALL_OF_THEM, WITHOUT}
    fired = {fire_id(row.id, NINE + timedelta(seconds=n)): 1 for n in range(1, seconds + 1)}
    assert case.starts.times == fired
    assert await steps(world) == before


async def test_a_run_that_was_due_before_a_change_is_still_owed_after_it(case: Case):
    row = await case.stores.schedules.get(case.row.tenant, case.row.id)
    assert row is not None
    late = NINE + HOUR + timedelta(milliseconds=200)
    new = replace(row, cron="30 * * * *")
    changed = await redefine(case.stores.schedules, row, new, late)
    assert changed is not None
    assert changed.next_at == NINE + HOUR + timedelta(minutes=30)
    result = await case.wake(late)
    assert result.fired == [fire_id(row.id, NINE + HOUR)]


# --- nobody wakes us --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def unlocked(_: str) -> AsyncIterator[bool]:
    yield True


async def long_forgotten(case: Case) -> None:
    """Handled three hours ago by the real clock, which is the store's."""
    case.clock.at, before = NOW, NOW - 3 * HOUR
    case.row = a_schedule(case.row.tenant, handled_until=before, next_at=before + HOUR)
    await case.stores.schedules.insert_or_match(case.row)


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def nudger(
    case: Case,
    applied: list[ScheduleRow],
    fails: frozenset[Any] = frozenset(),
    reachable: Any = yes,
) -> Nudger:
    async def apply(row: ScheduleRow) -> None:
        applied.append(row)

    async def fire(request: FireTrigger) -> TriggerResult:
        if request.schedule_id in fails:
            raise RuntimeError("this one is broken")
        return await case.activities.fire(request)

    return Nudger(
        schedules=case.stores.schedules,
        fire=fire,
        apply=apply,
        reachable=reachable,
        lock=unlocked,
    )


async def test_with_the_scheduler_lost_the_sweeper_keeps_the_rule_and_others_go_on(case: Case):
    """The trigger log does not live in the scheduler (STORE-5)."""
    await long_forgotten(case)
    broken = replace(case.row, id=uuid4())
    await case.stores.schedules.insert_or_match(broken)
    applied: list[ScheduleRow] = []
    sweeping = nudger(case, applied, fails=frozenset({broken.id}))
    await sweeping.nudge()
    await sweeping.nudge()
    assert len(case.starts.times) == 1
    statuses = [(line.status, line.by) for line in await case.log()]
    assert statuses[-1] == ("fired", "sweeper")
    assert len([one for one in statuses if one[0] == "fired"]) == 1


async def test_while_temporal_is_away_nothing_is_promised_that_would_leave_in_one_burst(case: Case):
    await long_forgotten(case)
    await nudger(case, [], reachable=no).nudge()
    assert await case.log() == []
    await nudger(case, []).nudge()
    assert await case.log() != []


async def test_c30_runs_that_were_judged_one_by_one_while_nothing_could_start_are_one_run_later(
    case: Case,
):
    """As if the store had gone between the judgement and the promise, hour after hour."""
    judged = case.row
    for n in (1, 2, 3):
        at = NINE + n * HOUR
        line = Fire(at, TriggerStatus.OWED, "schedule")
        assert await case.stores.schedules.judge(judged, at, at + HOUR, [line])
        found = await case.stores.schedules.get(judged.tenant, judged.id)
        assert found is not None
        judged = found
    result = await case.wake(NINE + 3 * HOUR + timedelta(minutes=20))
    assert (result.fired, result.skipped) == ([fire_id(judged.id, NINE + 3 * HOUR)], 2)
    assert [(line.status, line.missed) for line in await case.log()] == [
        ("missed", 1),
        ("missed", 1),
        ("fired", 0),
    ]


async def test_while_the_store_is_away_the_sweeper_waits(case: Case):
    class Away:
        async def overdue(self, *_: Any) -> Any:
            raise StoreUnavailable("away")

    async def never(_: Any) -> Any:
        raise AssertionError(uuid4())

    away = Nudger(
        schedules=Away(),  # type: ignore[arg-type]
        fire=never,
        apply=never,
        reachable=yes,
        lock=unlocked,
    )
    await away.nudge()
