"""What a provider account has shown to bear, and when it bears nothing at all."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from schemas.kinds import FaultScope
from schemas.outcomes import Accepted, CallOutcome, Failed
from sendloom.domain.pacing import Meter
from sendloom.ports import Tokens

log = logging.getLogger(__name__)

STORM_FIRST = timedelta(seconds=1)
STORM_LONGEST = timedelta(seconds=30)
STORM_CHUNKS = 10
"""Chunks in a row of which no call came through, each waited after for longer: some three minutes, then it pauses."""
CALM = 10.0
"""Seconds without a throttle before the pace is raised."""
PROBE = 1.25


@dataclass(slots=True)
class Shown:
    """What a provider account has shown to bear. `base` is what it was before it first said no."""

    base: float
    rate: float
    changed_at: float


class ProviderPace:
    """One for a lane of a process; what it learns is shared with all others over the provider's bucket."""

    def __init__(
        self,
        bucket: str,
        tokens: Tokens | None,
        given: float | None,
        monotonic: Callable[[], float],
    ) -> None:
        """`given`: what the provider is known to bear, before it has shown anything."""
        self.shown: Shown | None = None
        self.bucket = bucket
        self._tokens = tokens
        self._given = given
        self._monotonic = monotonic
        self._meter = Meter()

    def buckets(self) -> list[tuple[str, float]]:
        if self.shown is not None:
            return [(self.bucket, self.shown.rate)]
        return [] if self._given is None else [(self.bucket, self._given)]

    async def learn(self, called: Sequence[CallOutcome]) -> None:
        """What the calls of one chunk say about it."""
        self._meter.note(self._monotonic(), sum(1 for o in called if isinstance(o, Accepted)))
        if any(isinstance(o, Failed) and o.throttled for o in called):
            await self._throttled(len(called))
        elif called:
            await self._calm()

    async def _throttled(self, asked: int) -> None:
        """The provider says that this is too fast."""
        now = self._monotonic()
        if self.shown is None:
            # The first chunk to end may be one of which nothing came through. That is no pace of 1 a second, from which it would
            # take minutes to climb: we come down from what we asked for.
            base = max(1.0, self._meter.rate(now) or float(asked))
            if self._given is not None:
                base = min(base, self._given)
            self.shown = Shown(base, base, float("-inf"))
        if self._tokens is None or now - self.shown.changed_at < 1.0:
            # What was already on its way when the pace was lowered says nothing about the new pace.
            return
        self.shown.rate = await self._tokens.slow_down(self.bucket, self.shown.base)
        self.shown.changed_at = now
        log.info("a provider asked for less", extra={"rate": round(self.shown.rate, 1)})

    async def _calm(self) -> None:
        """Nothing was throttled; after a while a little more is tried."""
        now = self._monotonic()
        if self.shown is None or self._tokens is None or now - self.shown.changed_at < CALM:
            return
        if self.shown.rate >= self.shown.base:
            # It bears all that it bore when it said no, and perhaps that was said on a bad day.
            self.shown.base *= PROBE
        self.shown.rate = await self._tokens.speed_up(self.bucket, self.shown.base)
        self.shown.changed_at = now


@dataclass(slots=True)
class Storm:
    """Chunks of which no call came through, one after another."""

    chunks: int = 0
    code: str = ""

    @property
    def wait(self) -> timedelta:
        return min(STORM_FIRST * float(2 ** max(self.chunks - 1, 0)), STORM_LONGEST)

    @property
    def endless(self) -> bool:
        return self.chunks >= STORM_CHUNKS


class Storms:
    """A provider that takes nothing must not burn everybody's attempts (case C92)."""

    def __init__(self) -> None:
        self._of: dict[UUID, Storm] = {}

    def learn(self, campaign_id: UUID, called: Sequence[CallOutcome]) -> Storm | None:
        """The storm that these calls of one chunk stand in, if they do; an endless one is told once and begins anew."""
        faults = [
            o
            for o in called
            if isinstance(o, Failed) and o.scope is FaultScope.PROVIDER and not o.throttled
        ]
        if not called:
            return None
        if len(faults) < len(called):
            self._of.pop(campaign_id, None)
            return None
        storm = self._of.setdefault(campaign_id, Storm())
        storm.chunks += 1
        storm.code = faults[-1].code
        if storm.endless:
            del self._of[campaign_id]
        return storm
