"""Cron with zones: never the same instant twice, never silent."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sendloom.domain.cron import parse
from sendloom.domain.wall_time import resolve
from sendloom.domain.zones import load
from sendloom.errors import Refusal


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, zone: str, after: str, count: int) -> list[str]:
    cron, now, found = parse(expression), utc(after), []
    for _ in range(count):
        now = cron.next(now, load(zone))
        found.append(f"{now:%Y-%m-%dT%H:%M}")
    return found


def test_c03_an_hourly_job_fires_once_in_each_pass_of_the_autumn_hour():
    assert fires("30 * * * *", "Europe/Helsinki", "2017-10-28T23:45", 4) == [
        "2017-10-29T00:30",
        "2017-10-29T01:30",
        "2017-10-29T02:30",
        "2017-10-29T03:30",
    ]


def test_c03_asked_in_the_second_pass_it_answers_half_past_four():
    assert fires("30 * * * *", "Europe/Helsinki", "2017-10-29T01:45", 1) == ["2017-10-29T02:30"]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # a named hour that autumn repeats: once, in the first pass
        (
            "30 1 * * *",
            "America/New_York",
            "2027-11-06T12:00",
            ["2027-11-07T05:30", "2027-11-08T06:30"],
        ),
        # a named hour that spring skips: the first moment after, that day only
        (
            "30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00",
            ["2027-03-14T07:00", "2027-03-15T06:30"],
        ),
        # two wall times moved to one moment are one fire
        (
            "0,30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00",
            ["2027-03-14T07:00", "2027-03-15T06:00"],
        ),
        # an interval skips the hour that is not there
        (
            "30 * * * *",
            "America/New_York",
            "2027-03-14T06:00",
            ["2027-03-14T06:30", "2027-03-14T07:30"],
        ),
        ("*/15 * * * *", "Asia/Kathmandu", "2026-01-15T00:07", ["2026-01-15T00:15"]),
        ("0 9 * * mon-fri", "Europe/Paris", "2026-01-16T12:00", ["2026-01-19T08:00"]),
        ("0 9 * * fri-sun", "UTC", "2026-01-16T12:00", ["2026-01-17T09:00", "2026-01-18T09:00"]),
        ("0 9 * * 7", "UTC", "2026-01-16T12:00", ["2026-01-18T09:00", "2026-01-25T09:00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 29 feb *", "UTC", "2096-03-01T00:00", ["2104-02-29T00:00"]),
        ("0 0 13 * fri", "UTC", "2026-01-09T12:00", ["2026-01-13T00:00", "2026-01-16T00:00"]),
        (
            "0 12 1-7/3 jan,jul *",
            "UTC",
            "2026-01-05T00:00",
            ["2026-01-07T12:00", "2026-07-01T12:00"],
        ),
        ("59 23 31 12 *", "UTC", "2026-12-31T23:59", ["2027-12-31T23:59"]),
        ("* 3 * * *", "UTC", "2026-01-15T03:59", ["2026-01-16T03:00", "2026-01-16T03:01"]),
        ("0 * 1 1 *", "UTC", "2026-01-01T23:30", ["2027-01-01T00:00"]),
    ],
)
def test_expressions_fire_when_they_should(expression, zone, after, expected):
    assert fires(expression, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * *",
        "@daily",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * foo *",
        "*/0 * * * *",
        "*/60 * * * *",
        "5/10 * * * *",
        "30-10 * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "1.5 * * * *",
        "٣ * * * *",
        "? * * * *",
        "* * L * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "CRON_TZ=UTC 0 9 * * *",
        "1- * * * *",
        "*-5 * * * *",
    ],
)
def test_nonsense_is_refused_with_a_code(expression):
    with pytest.raises(Refusal) as refused:
        parse(expression)
    assert refused.value.code == "bad_cron"
    assert refused.value.field == "cron"


def test_a_day_that_no_month_has_is_fine_beside_a_weekday():
    """Two restrictions mean either, so it fires on Mondays in February."""
    assert fires("0 0 30 2 mon", "UTC", "2026-01-15T00:00", 1) == ["2026-02-02T00:00"]


def test_fires_between_two_moments_are_listed_in_order():
    hourly = parse("0 * * * *")
    found = hourly.between(utc("2026-01-15T00:00"), utc("2026-01-15T03:00"), load("UTC"))
    assert [f"{at:%H}" for at in found] == ["01", "02", "03"]


ZONES = ("Europe/Helsinki", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "UTC")
fields = st.tuples(
    st.sampled_from(["*", "*/7", "*/20", "0", "30", "5,35", "10-20/5"]),
    st.sampled_from(["*", "*/2", "*/5", "0", "1", "2,3", "1-3", "9"]),
    st.sampled_from(["*", "1", "29", "31", "*/10"]),
    st.sampled_from(["*", "3,10", "jan-mar", "*/4"]),
    st.sampled_from(["*", "mon-fri", "sun", "6,0"]),
).map(" ".join)
# Weeks around the clock changes of 2027, where it is hardest.
nows = st.sampled_from(
    [
        "2027-03-14T00:00",
        "2027-03-28T00:00",
        "2027-04-03T12:00",
        "2027-04-29T12:00",
        "2027-10-31T00:00",
        "2027-11-07T00:00",
    ]
).flatmap(
    lambda base: st.integers(-3 * 86_400, 3 * 86_400).map(
        lambda seconds: utc(base) + timedelta(seconds=seconds)
    )
)


@given(fields, nows, st.sampled_from(ZONES).map(load))
def test_each_answer_is_strictly_later_than_the_last(expression, now, zone):
    cron = parse(expression)
    for _ in range(3):
        later = cron.next(now, zone)
        assert later > now
        assert later.second == later.microsecond == 0
        now = later


@given(fields, nows, st.sampled_from(ZONES).map(load))
def test_no_fire_is_skipped(expression, now, zone):
    """Against every real minute of two days, asked the slow way."""
    cron = parse(expression)
    assume(cron.next(now, zone) < now + timedelta(days=2))
    minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    expected = []
    for n in range(2 * 24 * 60):
        at = minute + timedelta(minutes=n)
        wall = at.astimezone(zone)
        if not (cron._on(wall.date()) and wall.hour in cron.hours and wall.minute in cron.minutes):
            continue
        first_pass = resolve(wall.replace(tzinfo=None, fold=0), zone) == at
        if cron.interval or first_pass:
            expected.append(at)
    found = cron.between(now, minute + timedelta(minutes=2 * 24 * 60 - 1), zone)
    # What spring moves out of its gap is the one thing a look at the wall does not show.
    assert set(expected) <= set(found)
    for extra in set(found) - set(expected):
        assert not cron.interval
        assert (
            extra.astimezone(zone).utcoffset()
            != (extra - timedelta(minutes=1)).astimezone(zone).utcoffset()
        )
