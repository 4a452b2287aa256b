"""What a schedule owes after an outage: the stated rule, never a burst, never silence (REM-5)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.schedules import CatchUpRule
from sendloom.domain.catch_up import Every, Owed, Rule, owed, times
from sendloom.domain.zones import load

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)
HOURLY = times("0 * * * *", None, load("Europe/Berlin"))
MINUTELY = times("* * * * *", None, load("UTC"))


def rule(catch_up: CatchUpRule, window: timedelta = WEEK, most: int = 10) -> Rule:
    return Rule(catch_up, window, most)


LATEST, NONE, ALL = (rule(one) for one in (CatchUpRule.LATEST, CatchUpRule.NONE, CatchUpRule.ALL))


def test_nothing_is_owed_before_the_next_time():
    assert owed(HOURLY.next, NOON, NOON + HOUR - timedelta(seconds=1), ALL) == Owed(
        (), 0, None, None, NOON
    )


@pytest.mark.parametrize("given_rule", [LATEST, NONE, ALL])
def test_the_run_whose_time_has_come_is_fired_under_every_rule(given_rule: Rule):
    found = owed(HOURLY.next, NOON, NOON + HOUR, given_rule)
    assert found == Owed((NOON + HOUR,), 0, None, None, NOON + HOUR)


@pytest.mark.parametrize(
    ("given_rule", "fires", "skipped"),
    [(LATEST, 1, 100), (NONE, 1, 100), (ALL, 10, 91), (rule(CatchUpRule.ALL, most=200), 101, 0)],
)
def test_c01_after_101_missed_minutes_it_goes_on_at_once_by_the_rule(
    given_rule: Rule, fires: int, skipped: int
):
    back = NOON + timedelta(minutes=101)
    found = owed(MINUTELY.next, NOON, back, given_rule)
    assert (len(found.fire), found.skipped) == (fires, skipped)
    assert found.fire[-1] == back
    # It is not stopped: the very next minute is owed as ever.
    later = owed(MINUTELY.next, found.handled_until, back + timedelta(minutes=1), given_rule)
    assert later.fire == (back + timedelta(minutes=1),)
    assert later.skipped == 0


@pytest.mark.parametrize(("outage", "due"), [(timedelta(minutes=90), 1), (timedelta(days=3), 72)])
def test_c30_one_digest_makes_up_for_the_whole_gap(outage: timedelta, due: int):
    back = NOON + outage
    found = owed(HOURLY.next, NOON, back, LATEST)
    assert len(found.fire) == 1
    assert found.skipped == due - 1
    assert found.handled_until == found.fire[0]
    if due > 1:
        assert (found.skipped_from, found.skipped_to) == (NOON + HOUR, found.fire[0] - HOUR)
    assert owed(HOURLY.next, found.handled_until, back, LATEST).fire == ()


def test_c30_the_rule_none_counts_what_it_leaves_out():
    found = owed(HOURLY.next, NOON, NOON + timedelta(days=3, minutes=30), NONE)
    assert (found.fire, found.skipped) == ((), 72)
    assert (found.skipped_from, found.skipped_to) == (NOON + HOUR, NOON + timedelta(days=3))


def test_a_run_missed_longer_ago_than_the_window_is_not_made_up():
    daily = times("0 9 * * *", None, load("UTC"))
    back = NOON + timedelta(days=1)
    assert owed(daily.next, NOON, back, rule(CatchUpRule.LATEST, HOUR)).fire == ()
    assert len(owed(daily.next, NOON, back, rule(CatchUpRule.LATEST, 3 * HOUR)).fire) == 1


def test_the_rule_all_takes_the_newest_and_counts_the_older_ones():
    found = owed(HOURLY.next, NOON, NOON + 20 * HOUR, rule(CatchUpRule.ALL, most=3))
    assert found.fire == tuple(NOON + n * HOUR for n in (18, 19, 20))
    assert (found.skipped, found.skipped_to) == (17, NOON + 17 * HOUR)


def test_a_wall_time_in_a_gap_is_owed_once_at_the_first_moment_after_it():
    night = times("30 2 * * *", None, load("Europe/Berlin"))
    before = datetime(2035, 3, 24, 12, tzinfo=UTC)
    found = owed(night.next, before, before + timedelta(days=1), ALL)
    assert found.fire == (datetime(2035, 3, 25, 1, tzinfo=UTC),)


rules = st.builds(
    Rule,
    catch_up=st.sampled_from(CatchUpRule),
    window=st.timedeltas(timedelta(0), timedelta(hours=3)),
    most=st.integers(1, 40),
)
crons = st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "0 9 * * mon-fri"])
schedules = st.one_of(
    st.builds(
        lambda c, z: times(c, None, load(z)), crons, st.sampled_from(["UTC", "Europe/Berlin"])
    ),
    st.builds(Every, st.integers(20, 5_000)),
)
# Around a change of clocks.
starts = st.timedeltas(timedelta(0), timedelta(days=2)).map(
    lambda passed: datetime(2026, 10, 24, tzinfo=UTC) + passed
)


@given(
    schedules, starts, st.lists(st.timedeltas(timedelta(0), timedelta(hours=6)), max_size=8), rules
)
def test_whenever_it_is_asked_every_time_is_fired_or_counted_once_and_in_order(
    schedule: Every, start: datetime, waits: list[timedelta], given_rule: Rule
):
    now = handled = start
    fired: list[datetime] = []
    skipped = 0
    for wait in waits:
        now += wait
        found = owed(schedule.next, handled, now, given_rule)
        allowed = given_rule.most if given_rule.catch_up is CatchUpRule.ALL else 1
        assert len(found.fire) <= allowed
        assert all(handled < moment <= now for moment in found.fire)
        if found.skipped:
            assert found.skipped_from is not None
            assert found.skipped_to is not None
            assert handled < found.skipped_from <= found.skipped_to
            assert not found.fire or found.skipped_to < found.fire[0]
            span, moment = 0, found.skipped_from - timedelta(microseconds=1)
            while (moment := schedule.next(moment)) <= found.skipped_to:
                span += 1
            assert span == found.skipped
        fired += found.fire
        skipped += found.skipped
        assert found.handled_until >= handled
        handled = found.handled_until
    assert fired == sorted(set(fired))
    there, moment = 0, start
    while (moment := schedule.next(moment)) <= now:
        there += 1
    assert len(fired) + skipped == there
