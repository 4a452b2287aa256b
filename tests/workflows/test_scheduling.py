"""What Temporal is told of a schedule: the same moments as ours, and waking only."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from temporalio.client import (
    Client,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleRange,
)
from temporalio.service import RPCError

from schemas.schedules import ScheduleState
from sendloom.domain.cron import parse
from sendloom.domain.ids import temporal_schedule_id
from sendloom.domain.lanes import OPS_QUEUE
from tests.stores.conftest import a_schedule
from workflows.scheduling import apply, calendars


def matches(spec: ScheduleCalendarSpec, at: datetime) -> bool:
    """As Temporal reads a calendar: every field must fit."""

    def fits(ranges: "list[ScheduleRange] | tuple[ScheduleRange, ...]", value: int) -> bool:
        return any(r.start <= value <= max(r.end, r.start) for r in ranges)

    return (
        fits(list(spec.minute), at.minute)
        and fits(list(spec.hour), at.hour)
        and fits(list(spec.day_of_month), at.day)
        and fits(list(spec.month), at.month)
        and fits(list(spec.day_of_week), at.isoweekday() % 7)
    )


@pytest.mark.parametrize(
    "expression",
    [
        "0 9 * * *",
        "*/20 8-10 * * mon-fri",
        "0 12 13 * fri",
        "15 6 1,15 * *",
        "0 0 * * sun",
        "30 7 */9 3 *",
    ],
)
def test_temporal_is_told_the_same_moments_as_ours(expression: str):
    cron, zone = parse(expression), ZoneInfo("UTC")
    specs = calendars(cron)
    start = datetime(2026, 2, 27, tzinfo=UTC)
    ours = set(cron.between(start, start + timedelta(days=40), zone))
    minute = timedelta(minutes=1)
    theirs = {
        at
        for n in range(1, 40 * 24 * 60 + 1)
        if any(matches(spec, at := start + n * minute) for spec in specs)
    }
    assert theirs == ours
    assert ours


async def test_applying_creates_changes_pauses_and_deletes_and_may_be_repeated(
    temporal_client: Client,
):
    row = a_schedule("scheduling")
    handle = temporal_client.get_schedule_handle(temporal_schedule_id(row.id))
    for _ in range(2):
        await apply(temporal_client, row)
    described = await handle.describe()
    action = described.schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow)
    assert (action.workflow, action.task_queue) == ("Trigger", OPS_QUEUE)
    assert described.schedule.spec.time_zone_name == "Europe/Berlin"
    assert not described.schedule.state.paused
    await apply(
        temporal_client,
        a_schedule(
            "scheduling",
            id=row.id,
            cron=None,
            every_seconds=3600,
            jitter_seconds=30,
            state=ScheduleState.PAUSED,
        ),
    )
    described = await handle.describe()
    assert described.schedule.state.paused
    assert described.schedule.spec.jitter == timedelta(seconds=30)
    [interval] = described.schedule.spec.intervals
    assert interval.every == timedelta(hours=1)
    gone = a_schedule("scheduling", id=row.id, state=ScheduleState.DELETED)
    for _ in range(2):
        await apply(temporal_client, gone)
    with pytest.raises(RPCError):
        await handle.describe()
