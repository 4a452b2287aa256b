"""When a known failure is tried again: exponential, full jitter, the provider's Retry-After as the floor, bounded by class."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sendloom.domain.budgets import DUE_BUCKETS, RetryBudget

_MINUTE = timedelta(minutes=1)
RETRY_AFTER_MAX = timedelta(hours=6)
"""A provider that asks for more is obeyed this far: a typing error of theirs must not park a message for a year."""


def delay(
    budget: RetryBudget,
    attempt: int,
    rng: Callable[[], float],
    retry_after: timedelta | None = None,
) -> timedelta:
    """How long to wait after failed attempt number `attempt` (from 1). `rng` gives 0 <= x < 1."""
    # The exponent is bounded: attempt 200 must not make a number that no timedelta holds.
    doublings: int = 2 ** min(max(attempt, 1) - 1, 40)
    ceiling = min(budget.longest_delay, budget.first_delay * doublings)
    jittered = ceiling * rng()
    return jittered if retry_after is None else max(jittered, min(retry_after, RETRY_AFTER_MAX))


def exhausted(budget: RetryBudget, attempt: int, since: datetime, now: datetime) -> bool:
    """Whether attempt number `attempt` was the last that the class allows."""
    return attempt >= budget.attempts or now - since >= budget.total


def next_attempt(
    budget: RetryBudget,
    attempt: int,
    *,
    since: datetime,
    now: datetime,
    not_after: datetime,
    rng: Callable[[], float],
    retry_after: timedelta | None = None,
) -> datetime | None:
    """When to try again after failed attempt number `attempt`, or None: it is over.

    A retry that would come after the budget's total or the message's own end is not planned.
    """
    if exhausted(budget, attempt, since, now):
        return None
    at = now + delay(budget, attempt, rng, retry_after)
    return at if at < min(not_after, since + budget.total) else None


def bucket_of(moment: datetime) -> datetime:
    """The due bucket of a moment: its minute, rounded up, so that a row is never looked at too early."""
    moment = moment.astimezone(UTC)
    floor = moment.replace(second=0, microsecond=0)
    return floor if floor == moment else floor + _MINUTE


def retry_bucket(attempt: int, now: datetime, retry_after: timedelta | None = None) -> datetime:
    """Where a campaign's row waits after failed attempt number `attempt` (from 1): 1 min, 10 min, then hourly (CAMP-14)."""
    wait = DUE_BUCKETS[min(max(attempt, 1), len(DUE_BUCKETS)) - 1]
    if retry_after is not None:
        wait = max(wait, min(retry_after, RETRY_AFTER_MAX))
    return bucket_of(now + wait)
