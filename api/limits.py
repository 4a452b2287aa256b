"""How much one key may ask of this process, judged before any store is written (ACC-7, ACC-10)."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from api.errors import Limited
from schemas.kinds import MessageClass
from sendloom.domain import shedding
from sendloom.platform.metrics.http import record_shed

DEFAULT_PER_SECOND = 1000.0
_DEEP = 2
"""Seconds of its rate that a bucket holds."""
_KEPT = 10_000
"""Buckets of the most recently seen keys; a forgotten one starts full again."""

RESERVED = {
    # Shed in this order: marketing first, security last.
    MessageClass.MARKETING: 0.5,
    MessageClass.TRANSACTIONAL: 0.1,
    MessageClass.SECURITY: 0.0,
}
"""The share of a key's burst that a class must leave for the classes above it."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Limiter:
    """One token bucket a key, two seconds deep. In memory: the limit protects this process, quotas are counted elsewhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def take(self, tenant: str, key_id: str, per_second: float) -> None:
        """One request, of whatever kind.

        Raises:
            Limited: `rate_limited`, with the seconds until it can pass.
        """
        bucket = self._bucket(tenant, key_id, per_second)
        if bucket.tokens < 1:
            raise _limited(per_second, 1 - bucket.tokens)
        bucket.tokens -= 1

    def leave_room(
        self, tenant: str, key_id: str, per_second: float, message_class: MessageClass
    ) -> None:
        """Whether a message of this class may still be asked for, or must leave the rest to the classes above it.

        Raises:
            Limited: `rate_limited`.
        """
        floor = RESERVED[message_class] * per_second * _DEEP
        bucket = self._bucket(tenant, key_id, per_second)
        if bucket.tokens < floor:
            raise _limited(per_second, floor - bucket.tokens)

    def _bucket(self, tenant: str, key_id: str, per_second: float) -> _Bucket:
        now, burst = self._clock(), per_second * _DEEP
        bucket = self._buckets.get((tenant, key_id))
        if bucket is None:
            bucket = self._buckets[tenant, key_id] = _Bucket(burst, now)
            if len(self._buckets) > _KEPT:
                self._buckets.popitem(last=False)
            return bucket
        self._buckets.move_to_end((tenant, key_id))
        bucket.tokens = min(burst, bucket.tokens + (now - bucket.at) * per_second)
        bucket.at = now
        return bucket


IN_FLIGHT_ROOM = 200
"""Requests that one process answers at once before it sheds everything but security."""
BEARABLE = 2.0
"""Seconds an accept may take on average before that."""
_HALF_LIFE = 2.0
"""Seconds after which what was slow counts half: who is refused must not be refused for ever because of that."""
_SHARE = 0.1


class Load:
    """How full this process is: what it is answering now, and how long accepts took lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight = 0
        self._seconds = 0.0
        self._at = clock()

    def began(self) -> None:
        self._in_flight += 1

    def ended(self, status: int, seconds: float) -> None:
        """Only accepts (202) count: a store that is away is told by a 503, not made up for by refusing more."""
        self._in_flight -= 1
        if status == 202:
            self._seconds = (1 - _SHARE) * self._fading() + _SHARE * seconds
            self._at = self._clock()

    @property
    def now(self) -> float:
        return shedding.load(self._in_flight, IN_FLIGHT_ROOM, self._fading(), BEARABLE)

    def leave_room(self, message_class: MessageClass, priority: int) -> None:
        """
        Raises:
            Limited: `overloaded`; the same key may be repeated after the wait.
        """
        now = self.now
        if shedding.sheds(now, message_class, priority):
            seconds = shedding.wait(now, message_class, priority)
            record_shed(message_class)
            raise Limited(
                "overloaded",
                f"there is too much to do for messages of class {message_class}",
                {
                    "Retry-After": str(seconds),
                    "RateLimit-Policy": f'"load";q={IN_FLIGHT_ROOM};w={seconds}',
                    "RateLimit": f'"load";r=0;t={seconds}',
                },
            )

    def _fading(self) -> float:
        return float(self._seconds * 0.5 ** ((self._clock() - self._at) / _HALF_LIFE))


def _limited(per_second: float, lacking: float) -> Limited:
    wait = max(1, math.ceil(lacking / per_second))
    return Limited(
        "rate_limited",
        f"this key may ask {per_second:g} times a second",
        {
            "Retry-After": str(wait),
            "RateLimit-Policy": f'"key";q={int(per_second * _DEEP)};w={_DEEP}',
            "RateLimit": f'"key";r=0;t={wait}',
        },
    )
