"""What lets a sender call, and what stops it: the control row as last heard, and the in-doubt budget of a lane."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

from schemas.campaigns import Control
from schemas.kinds import ControlState
from sendloom.errors import StoreUnavailable

log = logging.getLogger(__name__)

CampaignKey = tuple[str, UUID]

EVERY = 0.25
"""Seconds between two looks at the control rows."""
STALE = 0.8
"""Seconds. Who has heard nothing for this long calls nobody: a pause must reach the wire within a second."""
_OVERLAP = timedelta(minutes=1)
"""Rows this old are read again and again, so that neither a slow commit nor a clock that is off hides one."""


class ControlRows(Protocol):
    """The truth: the part of `CampaignStore` that the watch reads."""

    async def control(self, tenant: str, campaign_id: UUID) -> Control: ...

    async def controls_changed_since(self, at: datetime) -> dict[CampaignKey, Control]: ...


class ControlWatch:
    """The newest control of every campaign this process sends for. One for all lanes of a process."""

    def __init__(
        self,
        rows: ControlRows,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        every: float = EVERY,
    ) -> None:
        self._rows = rows
        self._now = now
        self._monotonic = monotonic
        self._every = every
        self._known: dict[CampaignKey, Control] = {}
        self._followers: dict[CampaignKey, int] = {}
        self._heard_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def follow(self, tenant: str, campaign_id: UUID) -> Control:
        """The control row as it is now; from here on it is kept fresh until `leave`.

        Raises:
            StoreUnavailable: nobody knows whether sending is allowed.
        """
        key = (tenant, campaign_id)
        control = await self._rows.control(tenant, campaign_id)
        self._followers[key] = self._followers.get(key, 0) + 1
        self._hear(key, control)
        if self._task is None or self._task.done():
            # The rows of others may be older than this moment, but nobody else is followed yet.
            self._heard_at = self._monotonic()
            self._task = asyncio.create_task(self._watch())
        return self._known[key]

    def leave(self, tenant: str, campaign_id: UUID) -> None:
        key = (tenant, campaign_id)
        left = self._followers.get(key, 0) - 1
        if left > 0:
            self._followers[key] = left
            return
        self._followers.pop(key, None)
        self._known.pop(key, None)

    def look(self, tenant: str, campaign_id: UUID) -> Control:
        """The highest version heard of. Only for who follows."""
        return self._known[tenant, campaign_id]

    def hear(self, tenant: str, campaign_id: UUID, control: Control) -> None:
        """Somebody in this process has just written the row."""
        if (tenant, campaign_id) in self._followers:
            self._hear((tenant, campaign_id), control)

    def may_call(self, tenant: str, campaign_id: UUID) -> bool:
        """Asked before each call to a provider."""
        known = self._known.get((tenant, campaign_id))
        return known is not None and known.state is ControlState.RUNNING and self.fresh

    @property
    def fresh(self) -> bool:
        return self._monotonic() - self._heard_at < STALE

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _hear(self, key: CampaignKey, control: Control) -> None:
        known = self._known.get(key)
        if known is None or control.version > known.version:
            self._known[key] = control

    async def _watch(self) -> None:
        while self._followers:
            asked_at = self._monotonic()
            try:
                changed = await self._rows.controls_changed_since(self._now() - _OVERLAP)
                self._heard_at = asked_at
            except StoreUnavailable:
                changed = {}
                log.warning("control rows could not be read; calls stop until they can")
            except Exception:
                changed = {}
                log.exception("control rows could not be read; calls stop until they can")
            for key, control in changed.items():
                if key in self._followers:
                    self._hear(key, control)
            await asyncio.sleep(self._every)


class InDoubtBudget:
    """How many rows a lane of this process may have claimed and not recorded, over all its activities. First come, first served."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def in_doubt(self) -> int:
        return self.size - self._free

    async def acquire(self, rows: int) -> None:
        if not 0 < rows <= self.size:
            raise ValueError(f"{rows} rows can never be in doubt at once")
        if not self._queue and rows <= self._free:
            self._free -= rows
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (rows, place)
        self._queue.append(entry)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release(rows)
            else:
                # Whoever was cancelled with us may have passed us over already.
                with contextlib.suppress(ValueError):
                    self._queue.remove(entry)
                self._serve()
            raise

    def release(self, rows: int) -> None:
        self._free += rows
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            rows, place = self._queue.popleft()
            if place.cancelled():
                continue
            self._free -= rows
            place.set_result(None)
