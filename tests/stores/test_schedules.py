"""What recurs: a judgement and its lines in the trigger log are one fact, whoever judges at the same time."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from schemas.schedules import RecurringContent, ScheduleState, TriggerStatus
from sendloom.errors import Refusal
from sendloom.ports import Fire
from tests.stores.conftest import NOW, World, a_schedule, a_series

HOUR = timedelta(hours=1)
OWED, MISSED = TriggerStatus.OWED, TriggerStatus.MISSED


def fire(at: datetime) -> Fire:
    return Fire(at, OWED, "schedule")


async def test_the_same_key_and_body_is_the_same_schedule_and_another_body_is_refused(
    world: World,
) -> None:
    schedules = world.stores.schedules
    row = a_schedule(world.tenant)
    assert await schedules.insert_or_match(row) == (row, False)
    assert await schedules.insert_or_match(row) == (row, True)
    with pytest.raises(Refusal) as refused:
        await schedules.insert_or_match(replace(row, body_hmac=b"x" * 32))
    assert refused.value.code == "key_reused"


async def test_a_change_over_a_version_that_is_not_there_any_more_changes_nothing(
    world: World,
) -> None:
    schedules = world.stores.schedules
    row = a_schedule(world.tenant)
    await schedules.insert_or_match(row)
    changed = await schedules.replace(replace(row, cron="5 * * * *"), row.version)
    assert changed is not None
    assert (changed.cron, changed.version) == ("5 * * * *", 2)
    assert await schedules.replace(replace(row, cron="7 * * * *"), row.version) is None
    assert await schedules.get(world.tenant, row.id) == changed


async def test_what_was_stored_before_there_were_segments_is_read_as_it_was(world: World) -> None:
    schedules, stores = world.stores.schedules, world.stores
    row = a_schedule(world.tenant, content=RecurringContent(template_id="t", list_id="everyone"))
    await schedules.insert_or_match(row)
    before = b'{"template_id":"t","variables":{},"name":"news","list_id":"everyone","window":null}'
    sealed = stores.sealer.seal("schedule-content", world.tenant, before)
    await stores.pool.execute(
        "UPDATE schedules SET content = $3 WHERE tenant = $1 AND schedule_id = $2",
        *(world.tenant, row.id, sealed),
    )
    stored = await schedules.get(world.tenant, row.id)
    assert stored is not None
    content = RecurringContent(template_id="t", name="news", list_id="everyone", segment_id=None)
    assert stored.content == content


async def test_two_who_judge_at_once_write_it_down_once(world: World) -> None:
    schedules = world.stores.schedules
    row = a_schedule(world.tenant)
    await schedules.insert_or_match(row)
    at = NOW + HOUR
    judged = await asyncio.gather(
        *(schedules.judge(row, at, at + HOUR, [fire(at)]) for _ in range(4))
    )
    assert sorted(judged) == [False, False, False, True]
    assert await schedules.owed(world.tenant, row.id) == [at]
    after = await schedules.get(world.tenant, row.id)
    assert after is not None
    assert (after.handled_until, after.next_at) == (at, at + HOUR)


@pytest.mark.parametrize("state", [ScheduleState.PAUSED, ScheduleState.DELETED])
async def test_nothing_is_judged_of_one_that_is_not_active(
    state: ScheduleState, world: World
) -> None:
    schedules = world.stores.schedules
    row = a_schedule(world.tenant)
    await schedules.insert_or_match(row)
    stopped = await schedules.replace(replace(row, state=state), row.version)
    assert stopped is not None
    at = NOW + HOUR
    assert not await schedules.judge(stopped, at, at + HOUR, [fire(at)])
    assert not await schedules.judge(row, at, at + HOUR, [fire(at)])
    assert await schedules.owed(world.tenant, row.id) == []


async def test_what_became_of_a_run_is_written_once(world: World) -> None:
    schedules, triggers = world.stores.schedules, world.stores.triggers
    row = a_schedule(world.tenant)
    await schedules.insert_or_match(row)
    first, second = NOW + HOUR, NOW + 2 * HOUR
    await schedules.judge(row, second, second + HOUR, [fire(first), fire(second)])
    ref = uuid4()
    await schedules.settle(world.tenant, row.id, first, TriggerStatus.FIRED, ref)
    await schedules.settle(world.tenant, row.id, first, TriggerStatus.REFUSED, reason="late")
    await schedules.settle(world.tenant, row.id, second, TriggerStatus.OVERLAPPED, reason="busy")
    newest, oldest = await triggers.of_trigger(world.tenant, row.id)
    assert (oldest.status, oldest.ref_id, oldest.fired_at is not None) == ("fired", ref, True)
    assert (newest.status, newest.reason, newest.fired_at) == ("overlapped", "busy", None)
    assert await schedules.last_fired(world.tenant, row.id, second) == ref
    assert await schedules.last_fired(world.tenant, row.id, first) is None
    assert await schedules.owed(world.tenant, row.id) == []


async def test_what_did_we_fire_last_tuesday_at_nine_finds_also_what_was_left_out_then(
    world: World,
) -> None:
    """REM-6."""
    schedules, triggers = world.stores.schedules, world.stores.triggers
    row = a_schedule(world.tenant)
    await schedules.insert_or_match(row)
    nine = datetime(2026, 5, 5, 9, tzinfo=UTC)
    gap = Fire(nine - 3 * HOUR, MISSED, "sweeper", missed=5, missed_until=nine + HOUR)
    await schedules.judge(row, nine + 2 * HOUR, nine + 3 * HOUR, [gap, fire(nine + 2 * HOUR)])
    [found] = await triggers.between(world.tenant, nine, nine + HOUR)
    assert (found.status, found.missed, found.by) == ("missed", 5, "sweeper")
    assert found.missed_until == nine + HOUR
    [later] = await triggers.between(world.tenant, nine + 2 * HOUR, nine + 3 * HOUR)
    assert later.status == "owed"
    assert await triggers.between(world.tenant, nine + 3 * HOUR, nine + 9 * HOUR) == []


async def test_overdue_is_what_nobody_woke_us_for_beyond_its_jitter_and_what_was_left_owed(
    world: World,
) -> None:
    schedules = world.stores.schedules
    ago = datetime.now(UTC) - timedelta(minutes=2)
    ahead = datetime.now(UTC) + HOUR
    late, held_back, paused, left, fine = (
        a_schedule(world.tenant, next_at=ago),
        a_schedule(world.tenant, next_at=ago, jitter_seconds=600),
        a_schedule(world.tenant, next_at=ago, state=ScheduleState.PAUSED),
        a_schedule(world.tenant, next_at=ahead, handled_until=ago - HOUR),
        a_schedule(world.tenant, next_at=ahead),
    )
    for row in (late, held_back, paused, left, fine):
        await schedules.insert_or_match(row)
    await schedules.judge(left, ago, ahead, [fire(ago)])
    overdue = await schedules.overdue(timedelta(seconds=10), 100)
    assert {id for tenant, id in overdue if tenant == world.tenant} == {late.id, left.id}


async def test_what_temporal_has_not_been_told_is_found_until_it_has(world: World) -> None:
    schedules = world.stores.schedules
    row = a_schedule(world.tenant)
    await schedules.insert_or_match(row)

    async def untold() -> list[int]:
        rows = await schedules.unapplied(timedelta(0), 1000)
        return [found.version for found in rows if found.id == row.id]

    assert await untold() == [1]
    await schedules.applied(world.tenant, row.id, 1)
    assert await untold() == []
    await schedules.replace(replace(row, state=ScheduleState.DELETED), 1)
    assert await untold() == [2]
    await schedules.applied(world.tenant, row.id, 1)
    assert await untold() == [2], "an older application told it nothing"
    assert row.id not in {found.id for found in await schedules.of_tenant(world.tenant, 100)}
    assert row.id not in {found.id for found in await schedules.everywhere(None, 1000)}


async def test_a_series_is_stored_sealed_and_changed_over_its_version_only(world: World) -> None:
    series = world.stores.series
    row = a_series(world.tenant)
    assert await series.insert_or_match(row) == (row, False)
    moved = await series.replace(replace(row, event_local="2035-02-01T09:00:00"), 1)
    assert moved is not None
    assert (moved.event_local, moved.version, moved.content) == (
        "2035-02-01T09:00:00",
        2,
        row.content,
    )
    assert await series.replace(replace(row, cancelled=True), 1) is None
    raw = await world.stores.pool.fetchval(
        "SELECT content FROM reminder_series WHERE series_id = $1", row.id
    )
    assert b"P7D" not in raw
