"""When a campaign stops itself (CAMP-9)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendloom.domain.guard_rails import (
    BOUNCES,
    LEAST_HANDLED,
    STALL,
    Tally,
    stalled,
    too_much,
)

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
COUNTS = st.integers(0, 1_000_000)
TALLIES = st.builds(Tally, COUNTS, COUNTS, COUNTS, COUNTS)


@pytest.mark.parametrize(
    ("tally", "reason"),
    [
        (Tally(sent=1_000, bounced=30), None),
        (Tally(sent=1_000, bounced=31), "bounce_rate"),
        (Tally(sent=969, rejected=31), "bounce_rate"),
        (Tally(sent=10, bounced=9), None),
        (Tally(sent=100, bounced=4), None),
        (Tally(sent=10_000, complained=5), None),
        (Tally(sent=10_000, complained=6), "complaint_rate"),
        (Tally(sent=200, complained=1), None),
        (Tally(sent=0, rejected=100), "bounce_rate"),
        (Tally(), None),
    ],
)
def test_the_limits_are_where_they_are_said_to_be(tally: Tally, reason: str | None):
    found = too_much(tally)
    assert (found.split()[0] if found else None) == reason


@given(TALLIES)
def test_few_messages_never_stop_a_campaign_and_many_bounces_always_do(tally: Tally):
    handled = tally.sent + tally.rejected
    if handled < LEAST_HANDLED:
        assert too_much(tally) is None
    elif tally.rejected + tally.bounced > max(BOUNCES * handled, 5):
        assert too_much(tally) is not None


@given(TALLIES)
def test_what_somebody_has_looked_at_never_stops_it_again(tally: Tally):
    assert too_much(tally.since(tally)) is None


@given(TALLIES, st.integers(0, 1000))
def test_more_bounces_never_make_it_go_on(tally: Tally, more: int):
    worse = Tally(tally.sent, tally.rejected, tally.bounced + more, tally.complained)
    assert too_much(tally) is None or too_much(worse) is not None


def test_it_is_stalled_when_somebody_could_go_and_nobody_did():
    late = NOW - STALL - timedelta(seconds=1)
    assert stalled(NOW, late, 1, None) is not None
    assert stalled(NOW, late, 0, None) is None
    assert stalled(NOW, NOW - STALL, 1, None) is None
    # Ten sends at one a quarter of an hour take longer than that.
    assert stalled(NOW, late, 1, 1 / 900) is None
    assert stalled(NOW, NOW - timedelta(hours=3), 1, 1 / 900) is not None
