"""What a ledger that is not in Postgres still asks Postgres: the time, the epochs of shards, and where a person was written to."""

import asyncio
import logging
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Protocol

from schemas.kinds import Channel
from sendloom.errors import StoreUnavailable
from sendloom.ports import ClaimScope
from sendloom.stores.pool import Pool, PostgresStore
from sendloom.stores.queries import load

log = logging.getLogger(__name__)

SQL = load("ledger.sql")

LOOK_EVERY = 30.0
"""Seconds between two looks at the server's clock. Ours drifts by some milliseconds in that time."""


class Clock(Protocol):
    async def now(self) -> datetime: ...


class Epochs(Protocol):
    async def current(self, scope: ClaimScope) -> int | None:
        """The epoch of the scope's shard and channel; None: nobody has taken one."""
        ...


class Places(Protocol):
    async def of_recipient(self, tenant: str, recipient_id: str, day: date) -> list[ClaimScope]:
        """Every partition in which they may have been claimed on that day."""
        ...


class PostgresClock(PostgresStore):
    """Postgres's time, told from a monotonic clock between two looks at it.

    So no machine's wall clock says when a lease ends. While Postgres is away the last look still counts: what is off then is
    only drift.
    """

    def __init__(self, pool: Pool, monotonic: Callable[[], float]) -> None:
        super().__init__(pool)
        self._monotonic = monotonic
        self._look: tuple[datetime, float] | None = None
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def now(self) -> datetime:
        """Raises StoreUnavailable: it was never seen."""
        if self._monotonic() - self._looked > LOOK_EVERY:
            async with self._looking:
                if self._monotonic() - self._looked > LOOK_EVERY:
                    await self._look_again()
        assert self._look is not None
        seen, at = self._look
        return seen + timedelta(seconds=self._monotonic() - at)

    async def _look_again(self) -> None:
        before = self._monotonic()
        try:
            seen: datetime = await self._value("SELECT clock_timestamp()")
        except StoreUnavailable:
            if self._look is None:
                raise
            log.warning("Postgres's clock cannot be looked at; the last look is used")
            # Asked again soon, and not by every claim.
            self._looked = before - LOOK_EVERY + 1
            return
        after = self._monotonic()
        self._look, self._looked = (seen, (before + after) / 2), after


class PostgresEpochs(PostgresStore):
    """As senders take them (`PostgresCampaigns.take_epoch`)."""

    async def current(self, scope: ClaimScope) -> int | None:
        at = (scope.tenant, scope.campaign_id, scope.shard, scope.channel)
        epoch: int | None = await self._value(SQL["epoch"], *at)
        return epoch


class PostgresPlaces(PostgresStore):
    """By their decisions, which are indexed by person. The channel may have been another rung's then, so each is named."""

    async def of_recipient(self, tenant: str, recipient_id: str, day: date) -> list[ClaimScope]:
        rows = await self._fetch(SQL["places_of_recipient"], tenant, recipient_id, day)
        return [
            ClaimScope(tenant, frozen_at, campaign_id, shard, page, channel)
            for frozen_at, campaign_id, shard, page in rows
            for channel in Channel
        ]
