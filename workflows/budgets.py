"""Temporal's options for everything a single message does, from the numbers in `sendloom/domain/budgets.py`."""

from datetime import datetime, timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy

from schemas.kinds import MessageClass
from sendloom.domain.budgets import LEASE_MARGIN, RECORD_MARGIN, RETRIES, provider_timeout


class LocalBudget(TypedDict):
    """The options of a local activity: some milliseconds of our own stores."""

    start_to_close_timeout: timedelta
    retry_policy: RetryPolicy
    local_retry_threshold: timedelta


class Budget(TypedDict):
    """The options of an activity that waits for our own stores for as long as it takes."""

    start_to_close_timeout: timedelta
    retry_policy: RetryPolicy


class SendBudget(TypedDict):
    """The options of one rung's send."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


_UNTIL_THE_STORE_IS_BACK = RetryPolicy(
    initial_interval=timedelta(milliseconds=100),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=15),
)

STORE: LocalBudget = {
    "start_to_close_timeout": timedelta(seconds=10),
    "retry_policy": _UNTIL_THE_STORE_IS_BACK,
    # Longer waits become timers: a workflow task must not be kept open for them.
    "local_retry_threshold": timedelta(seconds=2),
}

RECORD: Budget = {
    # Only the marking is repeated, so there is no reason to ever give up.
    "start_to_close_timeout": timedelta(seconds=10),
    "retry_policy": _UNTIL_THE_STORE_IS_BACK,
}

SETTLE: Budget = RECORD
"""Its waits for the end of a lease come with the error that asks for them."""

FIRE: Budget = RECORD

FIRE_TRIGGER: Budget = {
    # A catch-up may start some hundred runs, and counting a year of missed minutes takes seconds.
    "start_to_close_timeout": timedelta(seconds=60),
    "retry_policy": _UNTIL_THE_STORE_IS_BACK,
}

HEARTBEAT = {
    # A killed worker's passcode is picked up within 5 s; the others may wait out a stop of the whole machine.
    MessageClass.SECURITY: timedelta(seconds=3),
    MessageClass.TRANSACTIONAL: timedelta(seconds=6),
    MessageClass.MARKETING: timedelta(seconds=10),
}

WORKFLOW_TASK = {
    # The default of 10 s is what a killed worker's workflow waits; a step here takes milliseconds.
    MessageClass.SECURITY: timedelta(seconds=3),
    MessageClass.TRANSACTIONAL: timedelta(seconds=5),
    MessageClass.MARKETING: timedelta(seconds=5),
}

NOTICE = timedelta(seconds=1)
"""Nothing is bounded to less: a bound already in the past must still give the activity a chance to say so."""

CUT_OFF = timedelta(seconds=30)
"""The longest wait after an attempt that did not say how long to wait."""

BACKGROUND_RECORD = timedelta(seconds=2)
"""Security repeats the record but never waits longer for it (POL-7)."""


def send(message_class: MessageClass, *, expires_at: datetime, now: datetime) -> SendBudget:
    """Bounded by time alone: the claim counts the attempts, because waiting for a lease or a store is none."""
    retries = RETRIES[message_class]
    return {
        # The provider's own time-out is shorter; the rest is the last look, the claim and repeating the record.
        "start_to_close_timeout": provider_timeout(message_class) + LEASE_MARGIN + RECORD_MARGIN,
        "schedule_to_close_timeout": max(NOTICE, min(retries.total, expires_at - now)),
        "heartbeat_timeout": HEARTBEAT[message_class],
        "retry_policy": RetryPolicy(
            # Without a delay of its own an attempt was cut off (a killed worker): no reason to wait long. The server refuses
            # a first interval over the longest.
            initial_interval=min(retries.first_delay, CUT_OFF),
            backoff_coefficient=2.0,
            maximum_interval=min(retries.longest_delay, CUT_OFF),
        ),
    }
