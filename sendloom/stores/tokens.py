"""Token buckets for campaign, tenant and provider account: shared through Redis, and a careful share of them without it.

One script takes from all buckets or from none, and sets what expires in the same step. Buckets start and restart low: one
token, then the rate. A bucket holds what its rate brings in half a second, so nothing that was saved up leaves as a burst.

Without Redis each process goes on alone with `share` of every rate. Up to `1 / share` processes then stay under the rate
together; more of them would not, so set it to one over the number of processes that use a bucket.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sendloom.stores.redis_client import DOWN, Redis, script

log = logging.getLogger(__name__)

DEPTH = 0.5
"""Seconds of its rate that a bucket holds, and one token at least."""

FACTOR_DOWN = 0.5
STEP_UP = 0.05
FLOOR = 0.02
"""Of the agreed rate. Never nothing: only sending shows that it works again."""
CHANGE_EVERY = 1.0
"""Seconds between two changes in one direction."""

_WAIT_FOR_NOTHING = 60.0


class RedisTokens:
    """Implements `Tokens`."""

    def __init__(
        self, client: Redis, *, share: float = 0.2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # One hash tag, so that a cluster keeps the buckets of one script in one slot.
        self._take = client.register_script(script("take"))
        self._adapt = client.register_script(script("adapt"))
        self._alone = LocalTokens(share=share, clock=clock)
        self._down = False

    async def take(self, buckets: Sequence[tuple[str, float]], most: int) -> tuple[int, float]:
        if most <= 0 or not buckets:
            return max(most, 0), 0.0
        keys = [_key(name) for name, _ in buckets]
        args: list[str | float] = [most, DEPTH, *(rate for _, rate in buckets)]
        try:
            taken, wait = await self._take(keys=keys, args=args)
        except DOWN as e:
            self._lost(e)
            return await self._alone.take(buckets, most)
        self._back()
        return int(taken), float(wait)

    async def slow_down(self, name: str, base: float) -> float:
        return await self._change("down", name, base)

    async def speed_up(self, name: str, base: float) -> float:
        return await self._change("up", name, base)

    async def _change(self, direction: str, name: str, base: float) -> float:
        args: list[str | float] = [direction, base, FACTOR_DOWN, STEP_UP, FLOOR, CHANGE_EVERY]
        try:
            rate = float(await self._adapt(keys=[_key(name)], args=args))
        except DOWN as e:
            self._lost(e)
            if direction == "down":
                return await self._alone.slow_down(name, base)
            return await self._alone.speed_up(name, base)
        self._back()
        # A provider that throttles does so whether or not Redis is there.
        self._alone.learn(name, rate)
        return rate

    def _lost(self, error: BaseException) -> None:
        if not self._down:
            self._down = True
            log.warning("rate limits are per process now", extra={"error": type(error).__name__})

    def _back(self) -> None:
        if self._down:
            self._down = False
            log.info("rate limits are shared again")


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    adapted: float = math.inf
    down: float = -math.inf
    up: float = -math.inf


class LocalTokens:
    """The same buckets in one process, with a share of each rate."""

    def __init__(self, *, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < share <= 1:
            raise ValueError("a share is over 0 and at most 1")
        self._share = share
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    async def take(self, buckets: Sequence[tuple[str, float]], most: int) -> tuple[int, float]:
        now = self._clock()
        taken = max(most, 0)
        found: list[tuple[_Bucket, float]] = []
        for name, agreed in buckets:
            bucket = self._bucket(name)
            rate = min(agreed, bucket.adapted) * self._share
            depth = max(1.0, rate * DEPTH)
            bucket.tokens = min(depth, bucket.tokens + max(0.0, now - bucket.at) * rate)
            if rate <= 0:
                bucket.tokens = 0.0
            bucket.at = now
            found.append((bucket, rate))
            taken = min(taken, math.floor(bucket.tokens))
        wait = 0.0
        for bucket, rate in found:
            bucket.tokens -= taken
            if rate <= 0:
                wait = max(wait, _WAIT_FOR_NOTHING)
            elif bucket.tokens < 1:
                wait = max(wait, (1 - bucket.tokens) / rate)
        return taken, wait

    async def slow_down(self, name: str, base: float) -> float:
        bucket, now = self._bucket(name), self._clock()
        rate = min(bucket.adapted, base)
        if now - bucket.down >= CHANGE_EVERY:
            bucket.down = now
            rate = bucket.adapted = max(base * FLOOR, rate * FACTOR_DOWN)
        return rate

    async def speed_up(self, name: str, base: float) -> float:
        bucket, now = self._bucket(name), self._clock()
        rate = min(bucket.adapted, base)
        if now - bucket.up >= CHANGE_EVERY:
            bucket.up = now
            rate = bucket.adapted = min(base, rate + base * STEP_UP)
        return rate

    def learn(self, name: str, rate: float) -> None:
        """The adaptive rate as the shared bucket has it."""
        self._bucket(name).adapted = rate

    def _bucket(self, name: str) -> _Bucket:
        if (bucket := self._buckets.get(name)) is None:
            bucket = self._buckets[name] = _Bucket(tokens=1.0, at=self._clock())
        return bucket


def _key(name: str) -> str:
    return f"sendloom:{{buckets}}:{name}"
