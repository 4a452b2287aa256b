"""Caps by category, channel and all marketing; day and ISO week; 0 means never."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.frequency import (
    NO_CAPS,
    CapRule,
    Full,
    describe,
    free_again,
    full,
    read_caps,
    read_limit,
)
from sendloom.domain.wall_time import local_day
from sendloom.domain.zones import load
from sendloom.errors import Refusal

THURSDAY = date(2026, 1, 15)


def test_caps_are_read_into_counters():
    caps = read_caps(
        "offers.weekly",
        [
            {"scope": "category", "per": "day", "limit": 1},
            {"scope": "category", "per": "week", "limit": 3},
            {"scope": "marketing", "per": "week", "limit": 5},
            {"scope": "channel", "per": "day", "limit": 2},
        ],
    )
    assert caps.common == (
        CapRule("category:offers.weekly", 1, 3),
        CapRule("marketing", None, 5),
    )
    assert caps.for_channel(Channel.SMS) == CapRule("channel:sms", 2, None)
    assert caps.consumed_on(Channel.EMAIL) == (*caps.common, CapRule("channel:email", 2, None))
    assert caps


def test_unset_means_no_cap():
    assert read_caps("news", []) == NO_CAPS
    assert read_caps("news", [{"scope": "category", "per": "day", "limit": None}]) == NO_CAPS
    assert not NO_CAPS


@pytest.mark.parametrize("limit", [-1, 1.5, "1", True, 10_001, [1]])
def test_c74_a_limit_that_is_no_limit_is_refused(limit):
    with pytest.raises(Refusal) as refused:
        read_caps("news", [{"scope": "category", "per": "day", "limit": limit}])
    assert refused.value.code == "bad_cap"
    assert refused.value.field == "caps[0].limit"


@pytest.mark.parametrize(
    "cap",
    [
        {"scope": "galaxy", "per": "day", "limit": 1},
        {"scope": "category", "per": "month", "limit": 1},
        {"scope": "category", "per": "day", "limit": 1, "limt": 2},
        {"per": "day", "limit": 1},
    ],
)
def test_a_cap_that_cannot_be_meant_is_refused(cap):
    with pytest.raises(Refusal, match="bad_cap"):
        read_caps("news", [cap])


def test_two_limits_for_one_thing_are_refused():
    cap = {"scope": "category", "per": "day", "limit": 1}
    with pytest.raises(Refusal, match="bad_cap"):
        read_caps("news", [cap, cap])


@pytest.mark.parametrize(
    ("limit", "first", "second", "shown"),
    [
        (None, None, None, "no cap"),
        (0, Full.NEVER, Full.NEVER, "never send"),
        (1, None, Full.DAY, "at most 1 a day"),
    ],
)
def test_c74_two_mails_under_each_kind_of_limit(limit, first, second, shown):
    rule = CapRule("category:news", read_limit(limit), None)
    assert full(rule, [], THURSDAY) == first
    assert full(rule, [THURSDAY], THURSDAY) == second
    assert describe(limit, "day") == shown


def test_c74_one_a_day_has_room_again_the_next_local_day():
    zone = load("America/New_York")
    assert free_again(Full.DAY, THURSDAY, zone) == datetime(2026, 1, 16, 5, tzinfo=UTC)
    assert full(CapRule("category:news", 1, None), [THURSDAY], THURSDAY + timedelta(days=1)) is None


def test_a_week_is_monday_to_sunday_where_the_person_is():
    zone = load("Asia/Tokyo")
    rule = CapRule("marketing", None, 2)
    monday, sunday = date(2026, 1, 12), date(2026, 1, 18)
    assert full(rule, [monday, THURSDAY], sunday) == Full.WEEK
    assert full(rule, [sunday - timedelta(days=7), THURSDAY], sunday) is None
    # Within the last seven days of Thursday, and still last week's.
    assert full(rule, [sunday - timedelta(days=7), monday], THURSDAY) is None
    # A later day of this week counts: the person's clock was ahead, in another zone, when it was used.
    assert full(rule, [monday, THURSDAY], THURSDAY - timedelta(days=1)) == Full.WEEK
    assert full(rule, [monday, THURSDAY], sunday + timedelta(days=1)) is None
    assert free_again(Full.WEEK, THURSDAY, zone) == datetime(2026, 1, 18, 15, tzinfo=UTC)


def test_never_is_never_waited_out():
    assert free_again(Full.NEVER, THURSDAY, load("UTC")) is None


# Few enough that a week is often full, over the end of a year whose weeks do not end with it.
days = st.dates(date(2026, 12, 21), date(2027, 1, 10))


@given(
    st.lists(days, max_size=12),
    days,
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 8),
)
def test_full_is_exactly_at_or_over_a_limit(uses, today, limit_day, limit_week):
    on_day = sum(used == today for used in uses)
    in_week = sum(used.isocalendar()[:2] == today.isocalendar()[:2] for used in uses)
    over = (limit_day is not None and on_day >= limit_day) or (
        limit_week is not None and in_week >= limit_week
    )
    assert (full(CapRule("marketing", limit_day, limit_week), uses, today) is not None) == over


@given(st.lists(days, max_size=12), days, st.integers(1, 4), st.integers(1, 8))
def test_waiting_until_it_is_free_again_makes_room_for_that_limit(
    uses, today, limit_day, limit_week
):
    zone = load("Europe/London")
    uses = [used for used in uses if used <= today]
    rule = CapRule("marketing", limit_day, limit_week)
    for _ in range(2):
        reached = full(rule, uses, today)
        if reached is None:
            break
        at = free_again(reached, today, zone)
        assert at is not None
        later = local_day(at, zone)
        assert later > today
        today = later
    assert full(rule, uses, today) is None
