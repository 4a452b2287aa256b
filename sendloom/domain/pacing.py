"""How fast a campaign goes: chunks by the tokens in hand, a rate from a deadline, shards by a rate."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

CHUNK_MAX = 100
"""Rows of one claim, one wire batch and one record; two of them fill a lane's in-doubt budget."""
CHUNK_SPAN = timedelta(milliseconds=250)
"""A chunk is what the rate allows in this time, so that a paced campaign flows instead of stuttering."""
WAIT_IN_HAND = timedelta(seconds=1)
"""A longer wait for tokens becomes a timer in the workflow; a worker's slot is not for waiting."""
DEADLINE_RESERVE = 1.1
"""Faster than just in time, for what has to be tried twice."""
_RATE_A_SHARD = 25.0


def chunk_size(rates: Iterable[float], most: int = CHUNK_MAX) -> int:
    """Rows to take at once under these rates a second; no rate, no limit but `most`."""
    slowest = min(rates, default=math.inf)
    if math.isinf(slowest):
        return most
    return max(1, min(most, math.ceil(slowest * CHUNK_SPAN.total_seconds())))


def deadline_rate(size: int, start: datetime, deadline: datetime) -> float | None:
    """Recipients a second that end by the deadline; None when there is nothing to spread over."""
    seconds = (deadline - start).total_seconds()
    if seconds <= 0 or size <= 0:
        return None
    return size * DEADLINE_RESERVE / seconds


def shards_at_once(rate: float | None, window: int) -> int:
    """A slow campaign needs few shards; more would only ask for tokens in vain, one activity after another."""
    if rate is None:
        return window
    return max(2, min(window, math.ceil(rate / _RATE_A_SHARD)))
