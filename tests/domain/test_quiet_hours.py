"""When silence ends, in the recipient's zone; the quieter reading where a clock change leaves a choice."""

from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendloom.domain.quiet_hours import Window, next_allowed, opening, parse_window, span
from sendloom.domain.wall_time import resolve
from sendloom.domain.zones import load
from sendloom.errors import Refusal

NIGHT = Window(time(22), time(8))
NEW_YORK = load("America/New_York")
MINUTE = timedelta(minutes=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str) -> datetime:
    return datetime.fromisoformat(text)


def ny(text: str) -> datetime:
    return resolve(datetime.fromisoformat(text), NEW_YORK)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-01-15T07:59:59", "2026-01-15T08:00"),
        ("2026-01-15T08:00:00", "2026-01-15T08:00:00"),
        ("2026-01-15T12:00:00", "2026-01-15T12:00:00"),
        ("2026-01-15T21:59:59", "2026-01-15T21:59:59"),
        ("2026-01-15T22:00:00", "2026-01-16T08:00"),
        ("2026-01-15T23:30:00", "2026-01-16T08:00"),
        ("2026-01-15T00:00:00", "2026-01-15T08:00"),
    ],
)
def test_the_window_is_half_open_and_crosses_midnight(now, expected):
    assert next_allowed(ny(now), NEW_YORK, NIGHT) == ny(expected)


@pytest.mark.parametrize(
    ("now", "expected"),
    [("12:59", "12:59"), ("13:00", "14:30"), ("14:29", "14:30"), ("14:30", "14:30")],
)
def test_a_window_inside_one_day(now, expected):
    siesta = Window(time(13), time(14, 30))
    assert next_allowed(ny(f"2026-01-15T{now}"), NEW_YORK, siesta) == ny(f"2026-01-15T{expected}")


def test_equal_edges_mean_no_window():
    now = ny("2026-01-15T03:00")
    assert next_allowed(now, NEW_YORK, Window(time(3), time(3))) == now


@pytest.mark.parametrize(
    ("now", "window", "expected"),
    [
        # the end of silence is the second of two
        ("2027-11-07T05:45", Window(time(22), time(1, 30)), "2027-11-07T06:30"),
        ("2027-11-07T06:29", Window(time(22), time(1, 30)), "2027-11-07T06:30"),
        # the start of silence is the first of two: 01:10 in the second pass is already silent
        ("2027-11-07T06:10", Window(time(1, 30), time(8)), "2027-11-07T13:00"),
        # wholly inside the repeated hour: silent from the first start to the second end
        ("2027-11-07T05:15", Window(time(1, 15), time(1, 45)), "2027-11-07T06:45"),
        # edges that spring skips move to the first moment after
        ("2027-03-14T06:30", Window(time(22), time(2, 30)), "2027-03-14T07:00"),
        ("2027-03-14T07:00", Window(time(2, 30), time(8)), "2027-03-14T12:00"),
        ("2027-03-14T06:59", Window(time(2, 30), time(8)), "2027-03-14T06:59"),
        # both edges in the gap: nothing is silent that day
        ("2027-03-14T07:00", Window(time(2, 10), time(2, 50)), "2027-03-14T07:00"),
    ],
)
def test_new_york_clock_changes_are_read_the_quiet_way(now, window, expected):
    assert next_allowed(utc(now), NEW_YORK, window) == utc(expected)


@pytest.mark.parametrize(
    ("zone", "window", "now", "expected"),
    [
        ("Africa/Cairo", Window(time(0), time(7)), "2027-04-29T22:00", "2027-04-30T04:00"),
        ("Africa/Cairo", Window(time(22), time(0)), "2027-04-29T21:30", "2027-04-29T22:00"),
        ("America/Nuuk", Window(time(23, 30), time(7)), "2027-03-28T01:00", "2027-03-28T08:00"),
        ("America/Nuuk", Window(time(20), time(23, 30)), "2027-03-28T00:30", "2027-03-28T01:00"),
        ("Asia/Kolkata", NIGHT, "2026-01-15T16:30", "2026-01-16T02:30"),
        ("Pacific/Chatham", NIGHT, "2026-01-15T08:15", "2026-01-15T18:15"),
    ],
)
def test_other_zones_keep_their_own_hours(zone, window, now, expected):
    assert next_allowed(utc(now), load(zone), window) == utc(expected)


def test_a_spring_night_ends_at_eight_on_the_wall_though_it_is_an_hour_shorter():
    evening = ny("2027-03-13T22:00")
    assert next_allowed(evening, NEW_YORK, NIGHT) == utc("2027-03-14T12:00")
    assert next_allowed(evening, NEW_YORK, NIGHT) - evening == timedelta(hours=9)


def test_an_autumn_night_is_an_hour_longer():
    evening = ny("2027-11-06T22:00")
    assert next_allowed(evening, NEW_YORK, NIGHT) - evening == timedelta(hours=11)


# --- properties ---------------------------------------------------------------------------------------------------------

ZONES = (
    "America/New_York",
    "Europe/London",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Nuuk",
    "America/Santiago",
    "Pacific/Chatham",
    "Asia/Kathmandu",
)
zones = st.sampled_from(ZONES).map(load)
edges = st.integers(0, 24 * 12 - 1).map(lambda n: time(n // 12, n % 12 * 5))
windows = st.builds(Window, edges, edges)
# Half the examples lie within two days of a clock change.
changes = st.sampled_from(
    [
        "2027-03-14T07:00",
        "2027-11-07T06:00",
        "2027-03-28T01:00",
        "2027-10-31T01:00",
        "2027-04-29T22:00",
        "2027-10-28T21:00",
        "2027-04-03T15:00",
        "2027-10-02T15:30",
        "2027-09-05T04:00",
        "2027-04-04T03:00",
    ]
).flatmap(lambda at: st.integers(-172_800, 172_800).map(lambda s: utc(at) + timedelta(seconds=s)))
instants = changes | st.datetimes(local("2026-01-01"), local("2030-01-01")).map(
    lambda naive: naive.replace(tzinfo=UTC)
)


def silent(at: datetime, zone, window: Window) -> bool:
    """The definition, the slow way: some day's silence, from its first start to its last end, holds this instant."""
    if window.start == window.end:
        return False
    day = at.astimezone(zone).date()
    for n in range(-3, 3):
        on = day + timedelta(days=n)
        until = on + timedelta(days=1) if window.end < window.start else on
        start = resolve(datetime.combine(on, window.start), zone)
        end = resolve(datetime.combine(until, window.end), zone, last=True)
        if start <= at < end:
            return True
    return False


@given(instants, zones, windows)
def test_the_answer_is_never_silent_never_early_and_minimal_to_the_minute(now, zone, window):
    found = next_allowed(now, zone, window)
    assert found >= now
    assert not silent(found, zone, window)
    assert silent(now, zone, window) == (found > now)
    if found > now:
        assert silent(found - timedelta(seconds=1), zone, window)
        step = max(MINUTE, (found - now) / 50)
        at = now
        while at < found:
            assert silent(at, zone, window)
            at += step


@given(instants, zones, windows)
def test_a_wall_time_inside_the_window_is_silent(now, zone, window):
    """Whatever the instants say, nobody's phone rings while their clock shows a quiet hour."""
    found = next_allowed(now, zone, window)
    wall = found.astimezone(zone).time()
    if window.start < window.end:
        inside = window.start <= wall < window.end
    else:
        inside = window.start != window.end and (wall >= window.start or wall < window.end)
    assert not inside


@given(instants, zones, windows, st.timedeltas(timedelta(0), timedelta(hours=30)))
def test_later_never_opens_earlier(now, zone, window, more):
    assert next_allowed(now, zone, window) <= next_allowed(now + more, zone, window)


@given(instants, zones, windows)
def test_a_span_says_the_same_of_everything_in_it(now, zone, window):
    """Also what the memory of recent spans relies on."""
    found = span(now, zone, window)
    assert found.since <= now < found.until
    for at in (
        max(found.since, now - timedelta(days=1)),
        min(found.until, now + timedelta(days=1)) - MINUTE / 60,
    ):
        assert silent(at, zone, window) == found.silent


@given(instants, zones, windows, windows)
def test_an_opening_is_free_of_both_and_the_first_that_is(now, zone, one, other):
    found = opening(now, zone, (one, other))

    def held(at: datetime) -> bool:
        return silent(at, zone, one) or silent(at, zone, other)

    if found is None:
        assert all(held(now + timedelta(minutes=15 * n)) for n in range(4 * 24))
        return
    assert found.at >= now
    assert not held(found.at)
    assert (found.held_by is None) == (found.at == now)
    if found.at > now:
        assert held(found.at - timedelta(seconds=1))
    assert found.closes > found.at
    if found.closes < found.at + timedelta(days=3):
        assert held(found.closes)
        assert not held(found.closes - timedelta(seconds=1))


def test_windows_that_leave_no_room_say_so():
    assert (
        opening(
            ny("2026-01-15T12:00"), NEW_YORK, (Window(time(8), time(20)), Window(time(20), time(8)))
        )
        is None
    )


@pytest.mark.parametrize(
    "text", ["", "22:00", "22:00-", "22-08", "22:00-25:00", "22:00-08:00-09:00", "a-b"]
)
def test_what_is_no_window_is_refused(text):
    with pytest.raises(Refusal) as refused:
        parse_window(text)
    assert refused.value.code == "bad_window"


def test_a_window_is_read_and_can_be_inverted():
    assert parse_window(" 22:00 - 08:00 ") == NIGHT
    assert NIGHT.inverted() == Window(time(8), time(22))
