"""Wall time to instants, across every kind of clock change."""

from datetime import UTC, date, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import LatenessPolicy
from sendloom.domain.wall_time import (
    Moment,
    at_accept,
    day_start,
    exists,
    local_day,
    next_occurrence,
    parse_local,
    parse_time_of_day,
    planned,
    resolve,
    retention_cutoff,
    week_start,
)
from sendloom.domain.zones import load
from sendloom.errors import Refusal


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str) -> datetime:
    return datetime.fromisoformat(text)


AWKWARD = (
    "America/New_York",
    "Europe/London",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Beirut",
    "America/Santiago",
    "America/Nuuk",
    "Pacific/Chatham",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "UTC",
)
zones = st.sampled_from(AWKWARD).map(load)
wall_times = st.datetimes(local("2011-01-01"), local("2035-01-01"))
instants = st.datetimes(local("2011-01-01"), local("2035-01-01")).map(
    lambda naive: naive.replace(tzinfo=UTC)
)


@pytest.mark.parametrize(
    ("zone", "wall", "instant"),
    [
        # (REM-2) a gap gives the first moment after it
        ("America/New_York", "2027-03-14T02:30", "2027-03-14T07:00"),
        ("America/New_York", "2027-03-14T02:00", "2027-03-14T07:00"),
        ("America/New_York", "2027-03-14T01:59:59", "2027-03-14T06:59:59"),
        ("America/New_York", "2027-03-14T03:00", "2027-03-14T07:00"),
        ("America/New_York", "2027-03-14T02:30:00.5", "2027-03-14T07:00"),
        ("Europe/London", "2027-03-28T01:30", "2027-03-28T01:00"),
        ("Australia/Lord_Howe", "2027-10-03T02:15", "2027-10-02T15:30"),
        ("Africa/Cairo", "2027-04-30T00:30", "2027-04-29T22:00"),
        ("Asia/Beirut", "2027-03-28T00:00", "2027-03-27T22:00"),
        ("America/Santiago", "2027-09-05T00:30", "2027-09-05T04:00"),
        ("America/Nuuk", "2027-03-27T23:30", "2027-03-28T01:00"),
        # Samoa went without a 30 December 2011
        ("Pacific/Apia", "2011-12-30T09:00", "2011-12-30T10:00"),
        # an overlap gives the first
        ("America/New_York", "2027-11-07T01:30", "2027-11-07T05:30"),
        ("Europe/London", "2027-10-31T01:30", "2027-10-31T00:30"),
        ("Australia/Lord_Howe", "2027-04-04T01:45", "2027-04-03T14:45"),
        # odd offsets
        ("Pacific/Chatham", "2027-01-15T09:00", "2027-01-14T19:15"),
        ("Pacific/Chatham", "2027-07-15T09:00", "2027-07-14T20:15"),
        ("Asia/Kolkata", "2027-01-15T09:00", "2027-01-15T03:30"),
        ("Asia/Kathmandu", "2027-01-15T09:00", "2027-01-15T03:15"),
    ],
)
def test_wall_times_resolve_by_the_one_rule(zone, wall, instant):
    assert resolve(local(wall), load(zone)) == utc(instant)


def test_the_second_of_two_is_there_for_who_asks():
    assert resolve(local("2027-11-07T01:30"), load("America/New_York"), last=True) == utc(
        "2027-11-07T06:30"
    )


@pytest.mark.parametrize(
    ("zone", "instant"),
    [
        ("America/New_York", "2026-01-15T14:00"),
        ("America/Los_Angeles", "2026-01-15T17:00"),
        ("Asia/Tokyo", "2026-01-15T00:00"),
        ("Australia/Sydney", "2026-01-14T22:00"),
        ("Europe/London", "2026-01-15T09:00"),
    ],
)
def test_c42_nine_in_the_morning_is_nine_where_the_person_is(zone, instant):
    assert resolve(local("2026-01-15T09:00"), load(zone)) == utc(instant)


def test_c27_a_time_that_spring_skips_moves_on_that_day_only():
    zone, at = load("Europe/London"), time(1, 30)
    fires, now = [], utc("2025-03-29T00:00")
    for _ in range(4):
        fires.append(now := next_occurrence(now, at, zone))
    assert fires == [
        utc("2025-03-29T01:30"),
        utc("2025-03-30T01:00"),
        utc("2025-03-31T00:30"),
        utc("2025-04-01T00:30"),
    ]


def test_c91_an_hour_set_in_january_is_the_same_hour_on_the_wall_in_july():
    zone, at = load("Europe/Paris"), time(8, 0)
    assert next_occurrence(utc("2026-01-20T00:00"), at, zone) == utc("2026-01-20T07:00")
    assert next_occurrence(utc("2026-07-20T00:00"), at, zone) == utc("2026-07-20T06:00")


@pytest.mark.parametrize(
    ("now", "cutoff"),
    [
        # 00:40 local either side of both changes; Paris changes on 29 March and 25 October 2026
        ("2026-03-28T23:40", "2026-03-21T23:00"),
        ("2026-03-29T22:40", "2026-03-22T23:00"),
        ("2026-04-04T22:40", "2026-03-28T23:00"),
        ("2026-04-05T22:40", "2026-03-29T22:00"),
        ("2026-10-25T23:40", "2026-10-18T22:00"),
        ("2026-11-01T23:40", "2026-10-25T23:00"),
    ],
)
def test_c91_retention_counts_local_days(now, cutoff):
    assert retention_cutoff(utc(now), load("Europe/Paris"), 7) == utc(cutoff)


@given(wall_times, zones)
def test_a_wall_time_that_exists_comes_back_as_itself(wall, zone):
    at = resolve(wall, zone)
    shown = at.astimezone(zone).replace(tzinfo=None, fold=0)
    if exists(wall, zone):
        assert shown == wall
    else:
        # The first moment after: later on the wall, and a second earlier the clock was still before the gap.
        assert shown > wall
        assert (at - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None) < wall


@given(wall_times, zones)
def test_the_last_of_two_is_never_before_the_first(wall, zone):
    first, last = resolve(wall, zone), resolve(wall, zone, last=True)
    assert first <= last
    assert exists(wall, zone) or first == last


@given(wall_times, st.timedeltas(timedelta(0), timedelta(days=2)), zones)
def test_later_on_the_wall_is_never_an_earlier_instant(wall, more, zone):
    assert resolve(wall, zone) <= resolve(wall + more, zone)


@given(instants, st.times(), zones)
def test_the_next_occurrence_is_strictly_later_and_never_far(now, at, zone):
    found = next_occurrence(now, at, zone)
    assert now < found <= now + timedelta(days=2, hours=2)
    day = local_day(found, zone)
    # It is that day's moment, or (moved out of a gap across midnight) the day before's.
    assert found in {resolve(datetime.combine(day - timedelta(days=n), at), zone) for n in range(3)}


@given(instants, zones)
def test_a_local_day_starts_at_or_before_every_moment_in_it(now, zone):
    day = local_day(now, zone)
    assert day_start(day, zone) <= now < day_start(day + timedelta(days=1), zone)


@given(st.dates(date(2000, 1, 1), date(2040, 1, 1)))
def test_a_week_starts_on_its_monday(day):
    monday = week_start(day)
    assert monday.isoweekday() == 1
    assert monday.isocalendar()[:2] == day.isocalendar()[:2]


def test_midnight_that_cairo_skips_is_one_in_the_morning():
    assert day_start(date(2027, 4, 30), load("Africa/Cairo")) == utc("2027-04-29T22:00")


NINE = local("2026-01-15T09:00")
BERLIN = load("Europe/Berlin")
DUE = utc("2026-01-15T08:00")


@pytest.mark.parametrize(
    ("now", "policy", "moment"),
    [
        (DUE - timedelta(hours=1), LatenessPolicy.SKIP, Moment(DUE, missed=False)),
        (DUE - timedelta(milliseconds=1), LatenessPolicy.SEND, Moment(DUE, missed=False)),
        (DUE, LatenessPolicy.SKIP, Moment(DUE, missed=False)),
        (DUE + timedelta(hours=3), LatenessPolicy.SEND, Moment(DUE + timedelta(hours=3), True)),
        (DUE + timedelta(hours=3), LatenessPolicy.SKIP, Moment(None, True)),
        (DUE + timedelta(hours=3), LatenessPolicy.NEXT_DAY, Moment(DUE + timedelta(days=1), True)),
        (DUE + timedelta(days=40), LatenessPolicy.NEXT_DAY, Moment(DUE + timedelta(days=41), True)),
        (
            DUE + timedelta(minutes=10),
            LatenessPolicy.SKIP,
            Moment(DUE + timedelta(minutes=10), False),
        ),
    ],
)
def test_a_missed_moment_follows_the_stated_policy(now, policy, moment):
    assert planned(NINE, BERLIN, now, policy, grace=timedelta(minutes=10)) == moment


@pytest.mark.parametrize(
    ("due", "next_day"),
    # Berlin's clocks go forward in the night to the 29th, and back in the night to 25 October.
    [("2026-03-28T08:00", "2026-03-29T07:00"), ("2026-10-24T07:00", "2026-10-25T08:00")],
)
def test_the_next_day_of_a_missed_moment_is_the_same_hour_on_the_wall(due, next_day):
    nine = utc(due).astimezone(BERLIN).replace(tzinfo=None)
    now = utc(due) + timedelta(hours=1)
    assert planned(nine, BERLIN, now, LatenessPolicy.NEXT_DAY) == Moment(utc(next_day), missed=True)


@pytest.mark.parametrize("policy", LatenessPolicy)
def test_c42_a_reminder_asked_for_too_late_never_goes_now(policy):
    now = DUE + timedelta(hours=3)
    at = planned(NINE, BERLIN, now, at_accept(policy)).at
    assert at is None or at > now


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2026-01-15",
        "2026-01-15T09:00Z",
        "2026-01-15T09:00+01:00",
        "2026-02-30T09:00",
    ],
)
def test_what_is_no_local_time_is_refused(text):
    with pytest.raises(Refusal) as refused:
        parse_local(text)
    assert refused.value.code == "bad_local_time"


def test_a_local_time_in_a_gap_is_accepted_and_moves():
    wall = parse_local("2027-03-14T02:30")
    assert resolve(wall, load("America/New_York")) == utc("2027-03-14T07:00")


@pytest.mark.parametrize("text", ["", "9", "24:00", "09:00Z", "noon"])
def test_what_is_no_time_of_day_is_refused(text):
    with pytest.raises(Refusal, match="bad_local_time"):
        parse_time_of_day(text)


def test_a_time_of_day_is_read():
    assert parse_time_of_day("09:05") == time(9, 5)
