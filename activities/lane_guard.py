"""Marketing gives way by itself while security waits, and goes on by itself (LANE-3)."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from sendloom.errors import StoreUnavailable
from sendloom.platform.metrics import campaign as metrics

log = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds between two looks."""
YIELD_AT = timedelta(seconds=2)
RESUME_AT = timedelta(seconds=1)
"""Lower than what makes it yield, so that it does not flap."""
STALE = 5.0
"""Seconds. A look that old says nothing any more: without a database nothing is sent either way."""


class SecurityBacklog(Protocol):
    async def oldest_waiting_security(self) -> timedelta | None:
        """How long the oldest security message has waited to be called for, or None."""
        ...


class LaneGuard:
    """One for each marketing lane of a process; it looks only while something is being sent."""

    def __init__(
        self,
        backlog: SecurityBacklog,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        every: float = EVERY,
    ) -> None:
        self._backlog = backlog
        self._monotonic = monotonic
        self._every = every
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._heard_at = float("-inf")
        self._yields = False

    @property
    def yields(self) -> bool:
        """Whether marketing is to claim nothing now."""
        return self._yields and self._monotonic() - self._heard_at < STALE

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keeps looking for as long as somebody is inside."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def look(self) -> None:
        """Once, now."""
        asked_at = self._monotonic()
        try:
            age = await self._backlog.oldest_waiting_security()
        except StoreUnavailable:
            log.warning("the age of what security waits for could not be read")
            return
        except Exception:
            log.exception("the age of what security waits for could not be read")
            return
        self._heard_at = asked_at
        metrics.record_security_wait(age or timedelta(0))
        yields = age is not None and age > (RESUME_AT if self._yields else YIELD_AT)
        if yields is not self._yields:
            self._yields = yields
            seconds = round((age or timedelta(0)).total_seconds(), 1)
            log.warning(
                "marketing gives way to security" if yields else "marketing goes on",
                extra={"oldest_security_s": seconds},
            )

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._every)
