"""Telling Temporal of a schedule. One function for the API, the sweeper and rebuild; it makes Temporal's agree with our row."""

from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from schemas.schedules import ScheduleState as State
from schemas.schedules import TriggerInput
from sendloom.domain.cron import Cron, parse
from sendloom.domain.ids import temporal_schedule_id, trigger_workflow_id
from sendloom.domain.lanes import OPS_QUEUE
from sendloom.platform import search_attributes
from sendloom.ports import ScheduleRow

CATCH_UP = timedelta(seconds=60)
"""Temporal's own, kept short: what is made up after an outage is for our rule and our trigger log to say."""


async def apply(client: Client, row: ScheduleRow, rpc_timeout: timedelta | None = None) -> None:
    """Create, change or delete. Safe to repeat, and in any order with itself: the row that is newest is applied last."""
    id = temporal_schedule_id(row.id)
    handle = client.get_schedule_handle(id)
    if row.state is State.DELETED:
        try:
            await handle.delete(rpc_timeout=rpc_timeout)
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
        return
    wanted = _schedule(row)
    try:
        await client.create_schedule(
            id,
            wanted,
            search_attributes=_attributes(row),
            rpc_timeout=rpc_timeout,
        )
        return
    except ScheduleAlreadyRunningError:
        pass

    def replace(_: ScheduleUpdateInput) -> ScheduleUpdate:
        return ScheduleUpdate(wanted)

    await handle.update(replace, rpc_timeout=rpc_timeout)


def _schedule(row: ScheduleRow) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            "Trigger",
            TriggerInput(tenant=row.tenant, schedule_id=row.id),
            id=trigger_workflow_id(row.id),
            task_queue=OPS_QUEUE,
            typed_search_attributes=_attributes(row),
            static_summary=f"wake-up of a recurring {row.kind}",
        ),
        spec=_spec(row),
        policy=SchedulePolicy(
            # One wake-up handles everything that is due, so one waiting behind it is enough, however long workers are away.
            overlap=ScheduleOverlapPolicy.BUFFER_ONE,
            catchup_window=CATCH_UP,
        ),
        state=ScheduleState(paused=row.state is State.PAUSED),
    )


def _spec(row: ScheduleRow) -> ScheduleSpec:
    jitter = timedelta(seconds=row.jitter_seconds)
    if row.cron is None:
        assert row.every_seconds is not None
        every = timedelta(seconds=row.every_seconds)
        return ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=jitter)
    return ScheduleSpec(
        calendars=calendars(parse(row.cron)), time_zone_name=row.zone, jitter=jitter
    )


def calendars(cron: Cron) -> list[ScheduleCalendarSpec]:
    """The wall times of an expression. Temporal's own reading of cron differs where day and weekday are both given.

    What a change of clocks makes of them differs too: a wall time that is skipped wakes nobody, and the sweeper does.
    """
    restrictions = [(cron.days, cron.weekdays)]
    if not cron.any_day and not cron.any_weekday:
        restrictions = [(cron.days, frozenset(range(7))), (frozenset(range(1, 32)), cron.weekdays)]
    return [
        ScheduleCalendarSpec(
            minute=_ranges(cron.minutes),
            hour=_ranges(cron.hours),
            day_of_month=_ranges(days),
            month=_ranges(cron.months),
            day_of_week=_ranges(weekdays),
        )
        for days, weekdays in restrictions
    ]


def _ranges(values: "tuple[int, ...] | frozenset[int]") -> list[ScheduleRange]:
    """Neighbours joined."""
    ranges: list[ScheduleRange] = []
    for value in sorted(values):
        if ranges and ranges[-1].end == value - 1:
            ranges[-1] = ScheduleRange(ranges[-1].start, value)
        else:
            ranges.append(ScheduleRange(value, value))
    return ranges


def _attributes(row: ScheduleRow) -> TypedSearchAttributes:
    """Ids and enums only: visible in plain text to anyone with namespace access."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(search_attributes.TENANT, row.tenant),
            SearchAttributePair(search_attributes.KIND, "schedule"),
            SearchAttributePair(search_attributes.CATEGORY, row.category),
        ]
    )
