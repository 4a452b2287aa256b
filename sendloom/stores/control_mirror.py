"""What operations want of each campaign, close at hand for senders: in memory, beside it in Redis, and true only in Postgres.

Redis is never believed when it is absent or back. The mirror is one hash with a generation in it. We trust a generation only
as long as the connection lives on which we made it or saw it made: after a reconnect the server may be another one, or the
same one with an old dump that says "running" again. Then everybody's next look is into Postgres, under a new generation.
Besides, `run` re-reads what changed from Postgres every 250 ms, which alone keeps a pause under a second.

Versions only rise, and the highest one seen counts, wherever it came from.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from pydantic import ValidationError

from schemas.campaigns import Control
from sendloom.errors import StoreUnavailable
from sendloom.ports import CampaignStore
from sendloom.stores.redis_client import DOWN, open_redis, script

log = logging.getLogger(__name__)

EVERY = 0.25
"""Seconds between two looks at what changed."""
OVERLAP = timedelta(seconds=10)
"""A look goes back this far: a row carries the time of its statement and is seen at its commit."""

_MIRROR = "sendloom:control"
_GENERATION = "#generation"
_KEPT = 86_400
_REMEMBERED = 10_000

_Key = tuple[str, UUID]


class ControlMirror:
    """One a process. Everything but `known` may wait for Postgres and raises StoreUnavailable when that is needed and down."""

    def __init__(
        self,
        url: str,
        campaigns: CampaignStore,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._campaigns = campaigns
        self._clock = clock
        self._connections = 0
        # A connection of its own, so that its end is noticed.
        self._client = open_redis(
            url, single_connection_client=True, redis_connect_func=self._connected
        )
        self._renew = self._client.register_script(script("control_renew"))
        self._write = self._client.register_script(script("control_write"))
        self._trusted: tuple[int, bytes] | None = None
        """(connection, generation)."""
        self._known: OrderedDict[_Key, Control] = OrderedDict()
        self._looked_at: datetime | None = None
        self._fresh_at = -float("inf")

    async def control(self, tenant: str, campaign_id: UUID) -> Control:
        """The highest version there is, from Redis when it is to be trusted, else from Postgres.

        Raises:
            StoreUnavailable: neither can be believed; nothing may be sent.
        """
        key = (tenant, campaign_id)
        mirrored = await self._mirrored(key)
        if mirrored is None:
            mirrored = await self._campaigns.control(tenant, campaign_id)
            await self.publish(tenant, campaign_id, mirrored)
        return self._remember(key, mirrored)

    def known(self, tenant: str, campaign_id: UUID) -> Control | None:
        """What this process knows, without waiting; looked at before each call to a provider."""
        return self._known.get((tenant, campaign_id))

    def age(self) -> float:
        """Seconds since Postgres last said what changed; a sender stops when that is too long ago."""
        return time.monotonic() - self._fresh_at

    async def publish(self, tenant: str, campaign_id: UUID, control: Control) -> None:
        """Tell the others of a row that is already in Postgres. Never raises: they find it there, a moment later."""
        self._remember((tenant, campaign_id), control)
        try:
            for _ in range(2):
                generation = await self._generation()
                written = await self._write(
                    keys=[_MIRROR],
                    args=[
                        generation,
                        _field((tenant, campaign_id)),
                        control.version,
                        control.model_dump_json(),
                        _KEPT,
                    ],
                )
                if written:
                    return
                # Somebody began another generation meanwhile, or all was flushed.
                await self._adopt()
        except DOWN:
            self._trusted = None

    async def refresh(self) -> None:
        """Read what changed from Postgres."""
        began, started = self._clock(), time.monotonic()
        since = began - OVERLAP if self._looked_at is None else self._looked_at - OVERLAP
        for key, control in (await self._campaigns.controls_changed_since(since)).items():
            self._remember(key, control)
        self._looked_at, self._fresh_at = began, started

    async def run(self) -> None:
        """Refresh until cancelled."""
        down = False
        while True:
            try:
                await self.refresh()
                down = False
            except StoreUnavailable:
                if not down:
                    log.warning("control rows cannot be read")
                down = True
            await asyncio.sleep(EVERY)

    async def close(self) -> None:
        await self._client.aclose()

    async def _mirrored(self, key: _Key) -> Control | None:
        """The row under a generation we trust; None sends the caller to Postgres."""
        try:
            trusted = self._trusted
            generation, row = await self._client.hmget(_MIRROR, [_GENERATION, _field(key)])
            if trusted == (self._connections, generation):
                return None if row is None else Control.model_validate_json(row)
            if trusted is None or trusted[0] != self._connections:
                await self._generation()
            else:
                await self._adopt()
        except DOWN:
            self._trusted = None
        except ValidationError:
            log.warning("a mirrored control row cannot be read")
        return None

    async def _generation(self) -> bytes:
        """The one we trust; on a connection that is new to us, one we begin."""
        if self._trusted is None or self._trusted[0] != self._connections:
            await self._begin("always")
        assert self._trusted is not None
        return self._trusted[1]

    async def _adopt(self) -> None:
        """On a connection that has lived all along, another generation can only be one that somebody has just begun."""
        if self._trusted is not None and self._trusted[0] == self._connections:
            await self._begin("if-missing")
        else:
            await self._begin("always")

    async def _begin(self, when: str) -> None:
        generation = await self._renew(keys=[_MIRROR], args=[uuid4().hex, when, _KEPT])
        if when == "if-missing" and (
            self._trusted is None or self._trusted[0] != self._connections
        ):
            # The connection broke in this very call: what it found may be old.
            generation = await self._renew(keys=[_MIRROR], args=[uuid4().hex, "always", _KEPT])
        self._trusted = (self._connections, bytes(generation))

    async def _connected(self, connection: Any) -> None:
        self._connections += 1
        await connection.on_connect()

    def _remember(self, key: _Key, control: Control) -> Control:
        known = self._known.get(key)
        if known is None or control.version > known.version:
            self._known[key] = known = control
        self._known.move_to_end(key)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return known


def _field(key: _Key) -> str:
    return f"{key[0]}/{key[1]}"
