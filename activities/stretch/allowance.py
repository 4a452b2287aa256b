"""How many rows a stretch may claim now, by every rate that is asked for and by what the wire has shown."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from activities.campaign_ground import Ground
from activities.stretch.lane import SendingLane
from activities.stretch.standing import Standing
from schemas.outcomes import CallOutcome, Failed
from sendloom.domain import pacing
from sendloom.domain.budgets import LEASE_MARGIN
from sendloom.platform.metrics import campaign as metrics


class Allowance:
    """One for a stretch."""

    def __init__(
        self, lane: SendingLane, ground: Ground, standing: Standing, *, half_rate: bool
    ) -> None:
        self.half_rate = half_rate
        self._lane = lane
        self._ground = ground
        self._standing = standing
        self._most = lane.chunk_max

    @property
    def limited(self) -> bool:
        """Whether there is a rate to keep to."""
        return bool(self._buckets())

    async def take(self, most: int) -> int:
        """How many rows may be claimed now. 0: look again, or the wait is long and `until` says how long."""
        lane = self._lane
        most = min(most, self._most)
        buckets = self._buckets()
        if lane.tokens is None or not buckets:
            return max(1, most // 2) if self.half_rate else most
        most = pacing.chunk_size((rate for _, rate in buckets), most)
        allowed, wait = await lane.tokens.take(buckets, most)
        if allowed > 0:
            return allowed
        metrics.record_held_back("tokens", wait)
        if wait > pacing.WAIT_IN_HAND.total_seconds():
            self._standing.until = lane.now() + timedelta(seconds=wait)
        else:
            await asyncio.sleep(max(wait, 0.005))
        return 0

    async def learn(self, outcomes: Sequence[CallOutcome], began: float) -> None:
        """The provider's pace, storms, and how many rows a chunk can hold."""
        lane = self._lane
        seconds = lane.monotonic() - began
        called = [o for o in outcomes if not (isinstance(o, Failed) and not o.counts)]
        await lane.pace.learn(called)
        if seconds >= LEASE_MARGIN.total_seconds() and len(called) < len(outcomes):
            # The wire is slower than the lease allows for so many: fewer next time, or most of a chunk is claimed in vain.
            self._most = max(1, len(called))
        elif seconds < 1.0:
            self._most = min(lane.chunk_max, self._most * 2)
        storm = lane.storms.learn(self._ground.row.campaign_id, called)
        if storm is None:
            return
        if storm.endless:
            metrics.record_paused("failure_spike")
            self._standing.blame_sender(f"failure_spike {storm.code}")
        else:
            self._standing.until = lane.now() + storm.wait

    def _buckets(self) -> list[tuple[str, float]]:
        lane, ground = self._lane, self._ground
        row = ground.row
        buckets = lane.pace.buckets()
        control = lane.watch.look(row.tenant, row.campaign_id)
        rate = ground.rate(control.rate_per_second)
        if rate is not None:
            buckets.append((f"campaign:{row.tenant}:{row.campaign_id}", rate))
            if self.half_rate:
                buckets.append((f"catch-up:{row.tenant}:{row.campaign_id}", rate / 2))
        rates = ground.tenant.settings.get("rates")
        if isinstance(rates, Mapping) and lane.channel in rates:
            buckets.append((f"tenant:{row.tenant}:{lane.channel}", float(rates[lane.channel])))
        return buckets
