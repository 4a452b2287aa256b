"""Waiting: long enough to outlive an outage, never longer than the message."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import MessageClass
from sendloom.domain.backoff import (
    RETRY_AFTER_MAX,
    bucket_of,
    delay,
    exhausted,
    next_attempt,
    retry_bucket,
)
from sendloom.domain.budgets import RETRIES

NOW = datetime(2026, 1, 15, 12, 0, tzinfo=UTC)
TRANSACTIONAL = RETRIES[MessageClass.TRANSACTIONAL]
classes = st.sampled_from(MessageClass)
attempts = st.integers(1, 500)
jitter = st.floats(0, 1, exclude_max=True)


@given(classes, attempts, jitter)
def test_full_jitter_is_anything_up_to_the_doubled_ceiling(message_class, attempt, x):
    budget = RETRIES[message_class]
    ceiling = min(budget.longest_delay, budget.first_delay * 2 ** min(attempt - 1, 30))
    assert timedelta(0) <= delay(budget, attempt, lambda: x) <= ceiling
    assert delay(budget, attempt, lambda: 0.5) == ceiling * 0.5


@given(classes, attempts, jitter, st.timedeltas(timedelta(0), timedelta(hours=5)))
def test_retry_after_is_the_floor(message_class, attempt, x, retry_after):
    waited = delay(RETRIES[message_class], attempt, lambda: x, retry_after)
    assert waited >= retry_after
    assert waited == max(retry_after, delay(RETRIES[message_class], attempt, lambda: x))


def test_a_provider_that_asks_for_a_year_is_obeyed_only_so_far():
    assert delay(TRANSACTIONAL, 1, lambda: 0.0, timedelta(days=365)) == RETRY_AFTER_MAX


@given(
    classes,
    attempts,
    jitter,
    st.timedeltas(timedelta(0), timedelta(hours=30)),
    st.timedeltas(timedelta(0), timedelta(hours=30)),
)
def test_the_next_attempt_is_inside_every_bound_or_none(message_class, attempt, x, age, life):
    budget = RETRIES[message_class]
    at = next_attempt(
        budget, attempt, since=NOW - age, now=NOW, not_after=NOW + life, rng=lambda: x
    )
    if at is not None:
        assert NOW <= at < NOW + life
        assert at < NOW - age + budget.total
        assert attempt < budget.attempts
    elif attempt < budget.attempts:
        wait = delay(budget, attempt, lambda: x)
        assert wait >= life or age + wait >= budget.total


@pytest.mark.parametrize(
    ("attempt", "age", "over"), [(17, 0, False), (18, 0, True), (1, 23, False), (1, 24, True)]
)
def test_attempts_and_total_time_both_end_it(attempt, age, over):
    assert exhausted(TRANSACTIONAL, attempt, NOW - timedelta(hours=age), NOW) is over


@pytest.mark.parametrize(("left", "planned"), [(1, False), (2, False), (3, True)])
def test_a_retry_that_would_come_after_the_total_time_is_not_planned(left, planned):
    """Two seconds' wait, with this much of the total left, or of the message's own life."""
    life, long = timedelta(seconds=left), timedelta(hours=30)
    for since, not_after in (
        (NOW - TRANSACTIONAL.total + life, NOW + long),
        (NOW, NOW + life),
    ):
        at = next_attempt(
            TRANSACTIONAL, 1, since=since, now=NOW, not_after=not_after, rng=lambda: 1.0
        )
        assert at == (NOW + timedelta(seconds=2) if planned else None)


def test_c92_no_luck_with_jitter_burns_every_attempt_in_a_30_minute_outage():
    """A hundred reminders, many times over: each still has an attempt left when the provider is back."""
    rng = random.Random(92)
    for _ in range(2_000):
        now, attempt = NOW, 1
        while now < NOW + timedelta(minutes=30):
            at = next_attempt(
                TRANSACTIONAL,
                attempt,
                since=NOW,
                now=now,
                not_after=NOW + timedelta(hours=24),
                rng=rng.random,
            )
            assert at is not None
            now, attempt = at, attempt + 1


@pytest.mark.parametrize(
    ("attempt", "minutes"), [(1, 1), (2, 10), (3, 60), (4, 60), (200, 60), (0, 1)]
)
def test_campaign_rows_wait_a_minute_ten_minutes_then_hours(attempt, minutes):
    assert retry_bucket(attempt, NOW) == NOW + timedelta(minutes=minutes)


def test_a_bucket_respects_retry_after():
    assert retry_bucket(1, NOW, timedelta(minutes=25)) == NOW + timedelta(minutes=25)
    assert retry_bucket(1, NOW, timedelta(seconds=5)) == NOW + timedelta(minutes=1)


@given(st.timedeltas(timedelta(0), timedelta(days=2)))
def test_a_bucket_is_a_whole_minute_never_early_and_less_than_a_minute_late(more):
    moment = NOW + more
    bucket = bucket_of(moment)
    assert (bucket.second, bucket.microsecond) == (0, 0)
    assert timedelta(0) <= bucket - moment < timedelta(minutes=1)
