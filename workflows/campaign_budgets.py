"""Time-outs and retries of a campaign's activities, each with its reason."""

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy

from schemas.kinds import MessageClass
from sendloom.domain.budgets import RECORD_MARGIN, provider_timeout


class Budget(TypedDict, total=False):
    """The options of one kind of activity."""

    start_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


HEARTBEAT = timedelta(seconds=5)
"""A killed worker is noticed after this: shards flow again within 10 s. Three beats are due in it, from a timer."""

# A store that is down is waited for, never given up on: nothing else would finish the campaign.
_PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    # Cassandra is back within 20 s of a kill on a busy machine, and everybody is to be sent to again within 30.
    maximum_interval=timedelta(seconds=3),
)

STEP: Budget = {
    # One or two statements, each bounded to 5 s by the store; longer is what a killed worker costs.
    "start_to_close_timeout": timedelta(seconds=12),
    "retry_policy": _PATIENT,
}

SWEEP: Budget = {
    # Over every page of a campaign: minutes for 50 million, and it says that it lives.
    "start_to_close_timeout": timedelta(hours=1),
    "heartbeat_timeout": 2 * HEARTBEAT,
    "retry_policy": _PATIENT,
}

PLAN: Budget = {
    # A stretch stops by itself after seconds; what is over that is a slow database.
    "start_to_close_timeout": timedelta(minutes=2),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": _PATIENT,
}


def send(message_class: MessageClass) -> Budget:
    """A stretch, then the last call's whole time-out, then repeating a record while the database is away."""
    return {
        "start_to_close_timeout": timedelta(minutes=2)
        + provider_timeout(message_class)
        + RECORD_MARGIN,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": _PATIENT,
    }
