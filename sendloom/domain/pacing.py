"""How fast a campaign goes: chunks by the tokens in hand, a rate from a deadline, shards by a rate."""

import math
from collections import deque
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


METER_SPAN = 2.0
"""Seconds a pace is measured over."""


class Meter:
    """How many a second came through lately. A burst after silence counts as what it was in a whole second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._sum = 0

    def note(self, at: float, count: int) -> None:
        self._seen.append((at, count))
        self._sum += count
        self._forget(at)

    def rate(self, at: float) -> float:
        self._forget(at)
        if not self._seen:
            return 0.0
        return self._sum / max(1.0, at - self._seen[0][0])

    def _forget(self, at: float) -> None:
        while self._seen and at - self._seen[0][0] > METER_SPAN:
            self._sum -= self._seen.popleft()[1]
