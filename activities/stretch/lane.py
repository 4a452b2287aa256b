"""What all stretches of one lane in a process share: its stores, its in-doubt budget, and what it knows of its provider."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from activities.campaign_carriers import Carrier, TestCarrier
from activities.campaign_control import ControlWatch, InDoubtBudget
from activities.campaign_ground import Grounds
from activities.lane_guard import LaneGuard
from activities.rendering import Templates
from activities.stretch.pace import ProviderPace, Storms
from schemas.kinds import Mode
from sendloom.domain import pacing
from sendloom.domain.lanes import Lane
from sendloom.errors import StoreUnavailable
from sendloom.ports import (
    CampaignStore,
    CatalogStore,
    DeadLetterStore,
    DecisionStore,
    Ledger,
    PeopleStore,
    Sealer,
    SentStore,
    Tokens,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

REPEAT_LONGEST = 1.0
"""Between two tries to write, or claim, in a store that is away: it is used as soon as it is back."""


class SendingLane:
    """One for a lane and a process."""

    def __init__(
        self,
        *,
        lane: Lane,
        carrier: Carrier,
        campaigns: CampaignStore,
        decisions: DecisionStore,
        ledger: Ledger,
        sent: SentStore,
        people: PeopleStore,
        catalog: CatalogStore,
        dead_letters: DeadLetterStore,
        templates: Templates,
        sealer: Sealer,
        watch: ControlWatch,
        guard: LaneGuard | None = None,
        tokens: Tokens | None = None,
        provider_rate: float | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.channel = lane.channel
        self.queue = lane.queue
        self.campaigns = campaigns
        self.decisions = decisions
        self.ledger = ledger
        self.sent = sent
        self.people = people
        self.catalog = catalog
        self.dead_letters = dead_letters
        self.grounds = Grounds(campaigns, catalog, templates)
        self.sealer = sealer
        self.watch = watch
        self.guard = guard
        self.tokens = tokens
        self.now = now
        self.monotonic = monotonic
        self.budget = InDoubtBudget(lane.calls_in_flight)
        self.chunk_max = max(1, min(pacing.CHUNK_MAX, lane.calls_in_flight // 2))
        self.pace = ProviderPace(
            f"provider:{carrier.name}:{lane.queue}", tokens, provider_rate, monotonic
        )
        self.storms = Storms()
        self.unwritten = 0
        """Writes that the database has refused and that are being repeated: until they are through, nothing more is claimed."""
        self.guarded: dict[UUID, float] = {}
        """When the guard rails of a campaign were last looked at."""
        self._carrier = carrier
        self._test_carrier = TestCarrier(carrier)

    def carrier(self, mode: Mode) -> Carrier:
        return self._test_carrier if mode is Mode.TEST else self._carrier

    async def insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """For what follows a call: only the write is repeated, for as long as the database is away (POL-7)."""
        try:
            return await write()
        except StoreUnavailable:
            log.warning("a record could not be written; it is repeated")
        delay = 0.1
        self.unwritten += 1
        try:
            while True:
                await asyncio.sleep(delay)
                delay = min(delay * 2, REPEAT_LONGEST)
                with contextlib.suppress(StoreUnavailable):
                    return await write()
        finally:
            self.unwritten -= 1
