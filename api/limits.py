"""How much one key may ask of this process, judged before any store is written (ACC-7, ACC-10)."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from api.errors import Limited
from schemas.kinds import MessageClass

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
