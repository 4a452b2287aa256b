"""Reminder series: planned from the event, planned again when it moves (REM-4)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.notifications import Due
from sendloom.domain.series import (
    Action,
    MemberState,
    Offset,
    due_before,
    parse_offset,
    plan,
)
from sendloom.domain.wall_time import resolve
from sendloom.domain.zones import load
from sendloom.errors import Refusal

BERLIN = load("Europe/Berlin")
WEEK, DAY, HOUR = (parse_offset(text) for text in ("P7D", "P1D", "PT1H"))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("P7D", "P7D"), ("P1W", "P7D"), ("PT60M", "PT1H"), ("P1DT90M", "P1DT1H30M"), ("PT0M", "PT0M")],
)
def test_two_ways_to_write_an_offset_are_one(text: str, canonical: str):
    assert parse_offset(text).text == canonical
    assert parse_offset(canonical) == parse_offset(text)


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "7D", "P-1D", "P1Y", "P400D", "PT1.5H", "P١D", "P1D "]
)
def test_what_is_no_offset_is_refused(text: str):
    with pytest.raises(Refusal) as refused:
        parse_offset(text)
    assert refused.value.code == "bad_offset"


def test_a_week_before_nine_in_the_morning_is_nine_in_the_morning_across_a_change_of_clocks():
    due, at = due_before(Due(local="2026-03-30T09:00"), WEEK, BERLIN)
    assert due == Due(local="2026-03-23T09:00:00")
    assert at == datetime(2026, 3, 23, 8, tzinfo=UTC)
    instant = Due(at=datetime(2026, 3, 30, 7, tzinfo=UTC))
    assert due_before(instant, WEEK, BERLIN) == (Due(at=at), at)


def test_an_hour_before_is_an_hour_on_the_clock_also_when_clocks_skip_it():
    # 03:30 on the day that 02:00 to 03:00 does not exist.
    due, at = due_before(Due(local="2026-03-29T03:30"), HOUR, BERLIN)
    assert at == datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    assert due == Due(local="2026-03-29T01:30:00")


def test_an_hour_that_happens_twice_is_named_by_its_instant():
    due, at = due_before(Due(local="2026-10-25T03:15"), HOUR, BERLIN)
    assert due == Due(at=at)
    assert at == datetime(2026, 10, 25, 1, 15, tzinfo=UTC)


def actions(event: datetime, now: datetime, states: dict[Offset, MemberState]) -> dict[str, Action]:
    return {step.offset.text: step.action for step in plan(Due(at=event), states, now, BERLIN)}


EVENT = datetime(2026, 6, 10, 8, tzinfo=UTC)
ABSENT, OPEN, SENT = MemberState.ABSENT, MemberState.OPEN, MemberState.SENT


def test_what_is_past_when_it_is_planned_is_left_out():
    now = EVENT - timedelta(days=3)
    assert actions(EVENT, now, {WEEK: ABSENT, DAY: ABSENT, HOUR: ABSENT}) == {
        "P7D": Action.LEAVE_OUT,
        "P1D": Action.CREATE,
        "PT1H": Action.CREATE,
    }


def test_a_later_date_moves_the_open_ones_and_leaves_the_sent_one_sent():
    now = EVENT - timedelta(days=3)
    later = EVENT + timedelta(days=30)
    assert actions(later, now, {WEEK: SENT, DAY: OPEN, HOUR: OPEN}) == {
        "P7D": Action.KEEP,
        "P1D": Action.MOVE,
        "PT1H": Action.MOVE,
    }


def test_an_earlier_date_takes_back_what_would_be_past_and_sends_nothing_at_once():
    now = EVENT - timedelta(days=3)
    assert actions(now + timedelta(hours=2), now, {WEEK: OPEN, DAY: OPEN, HOUR: OPEN}) == {
        "P7D": Action.CANCEL,
        "P1D": Action.CANCEL,
        "PT1H": Action.MOVE,
    }


def test_one_that_was_left_out_is_created_when_the_date_moves_far_enough():
    now = EVENT - timedelta(days=3)
    assert actions(EVENT + WEEK_LATER, now, {WEEK: ABSENT}) == {"P7D": Action.CREATE}


WEEK_LATER = timedelta(days=7)

offsets = st.builds(Offset, st.integers(0, 40), st.integers(0, 3_000))
moments = st.timedeltas(timedelta(0), timedelta(days=270)).map(
    lambda passed: datetime(2026, 3, 1, tzinfo=UTC) + passed
)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])


@given(
    st.dictionaries(offsets, st.sampled_from(MemberState), min_size=1, max_size=6),
    moments,
    st.booleans(),
    moments,
    zones,
)
def test_a_plan_sends_nothing_past_and_touches_nothing_sent(
    states: dict[Offset, MemberState],
    when: datetime,
    local: bool,
    now: datetime,
    zone_name: str,
):
    zone = load(zone_name)
    wall = when.replace(tzinfo=None).isoformat(timespec="seconds")
    event = Due(local=wall) if local else Due(at=when)
    steps = plan(event, states, now, zone)
    assert {step.offset for step in steps} == states.keys()
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    for step in steps:
        state = states[step.offset]
        assert (step.action is Action.KEEP) == (state is SENT)
        if step.due is not None:
            assert step.at > now
            stated = step.due.at or resolve(datetime.fromisoformat(step.due.local or ""), zone)
            assert stated == step.at
        elif state is not SENT:
            assert step.at <= now
    # Done once, there is nothing more to do but to move things to where they are.
    after = {
        step.offset: {Action.CREATE: OPEN, Action.MOVE: OPEN, Action.KEEP: SENT}.get(
            step.action, ABSENT
        )
        for step in steps
    }
    again = plan(event, after, now, zone)
    assert {s.action for s in again} <= {Action.MOVE, Action.KEEP, Action.LEAVE_OUT}
    assert [(s.offset, s.at) for s in again] == [(s.offset, s.at) for s in steps]
