"""How fast a campaign goes."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import RecipientState
from sendloom.domain import progress
from sendloom.domain.pacing import (
    CHUNK_MAX,
    Meter,
    chunk_size,
    deadline_rate,
    shards_at_once,
)

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@given(st.lists(st.floats(min_value=0.01, max_value=1e6), max_size=4))
def test_a_chunk_is_never_empty_and_never_over_the_most(rates: list[float]):
    assert 1 <= chunk_size(rates) <= CHUNK_MAX


def test_a_chunk_is_what_the_slowest_rate_allows_in_a_quarter_of_a_second():
    assert chunk_size([]) == CHUNK_MAX
    assert chunk_size([40.0, 1_000.0]) == 10
    assert chunk_size([0.1]) == 1


def test_a_deadline_is_met_with_something_in_reserve():
    rate = deadline_rate(36_000, START, START + timedelta(hours=1))
    assert rate == pytest.approx(11)
    assert deadline_rate(10, START, START) is None
    assert deadline_rate(0, START, START + timedelta(hours=1)) is None


@given(st.floats(min_value=0.001, max_value=1e6), st.integers(2, 100))
def test_some_shards_are_always_open_and_never_more_than_the_window(rate: float, window: int):
    assert 2 <= shards_at_once(rate, window) <= window
    assert shards_at_once(None, window) == window


def test_a_meter_forgets_what_is_long_ago_and_does_not_take_a_burst_for_a_pace():
    meter = Meter()
    assert meter.rate(0.0) == 0
    meter.note(0.0, 14)
    assert meter.rate(0.05) == 14
    for n in range(1, 41):
        meter.note(n * 0.1, 100)
    assert meter.rate(4.0) == pytest.approx(1_000, rel=0.1)
    assert meter.rate(10.0) == 0


def test_who_got_nothing_is_named_most_first():
    counts = {RecipientState.SUPPRESSED: 7}
    why = progress.nobody_sent(counts, {"opted_out": 2, "no_consent": 5})
    assert why == "nobody was sent to: no_consent 5, opted_out 2"
    assert progress.nobody_sent({RecipientState.SENT: 1}, {"opted_out": 2}) == ""


def test_the_sum_and_who_is_open_are_counted_over_all_states():
    counts = {RecipientState.SENT: 3, RecipientState.PENDING: 1, RecipientState.DEFERRED: 2}
    assert progress.adds_up(counts, 6)
    assert not progress.adds_up(counts, 7)
    assert progress.still_open(counts) == 3
