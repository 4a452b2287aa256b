"""Marketing gives way by itself while security waits, and goes on by itself (LANE-3)."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from sendloom.errors import StoreUnavailable
from sendloom.platform.metrics import campaign as metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """When marketing gives way. It goes on at a lower age than it stops at, so that it does not flap."""

    every: float
    """Seconds between two looks."""
    yield_at: timedelta
    resume_at: timedelta


APART = Patience(0.5, timedelta(seconds=2), timedelta(seconds=1))
"""Security has machines of its own: a wait means that it is behind."""
TOGETHER = Patience(0.1, timedelta(milliseconds=200), timedelta(milliseconds=100))
"""On the same cores a wait that a person does not notice yet is the sign that there is not enough for both."""

GIVE_WAY = 0.1
STALE = 5.0
"""Seconds. A look that old says nothing any more: without a database nothing is sent either way."""


class SecurityBacklog(Protocol):
    async def oldest_waiting_security(self, at_least: timedelta) -> timedelta | None:
        """How long the oldest security message has waited to be called for, or None if none has waited `at_least` so long."""
        ...


class LaneGuard:
    """One for each marketing lane of a process; it looks only while something is being sent."""

    def __init__(
        self,
        backlog: SecurityBacklog,
        *,
        patience: Patience = APART,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backlog = backlog
        self._monotonic = monotonic
        self._patience = patience
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
        asked_at, patience = self._monotonic(), self._patience
        try:
            age = await self._backlog.oldest_waiting_security(patience.resume_at)
        except StoreUnavailable:
            log.warning("the age of what security waits for could not be read")
            return
        except Exception:
            log.exception("the age of what security waits for could not be read")
            return
        self._heard_at = asked_at
        metrics.record_security_wait(age or timedelta(0))
        yields = age is not None and age > (
            patience.resume_at if self._yields else patience.yield_at
        )
        if yields is not self._yields:
            self._yields = yields
            seconds = round((age or timedelta(0)).total_seconds(), 1)
            level = logging.WARNING if self._patience is APART else logging.DEBUG
            log.log(
                level,
                "marketing gives way to security" if yields else "marketing goes on",
                extra={"oldest_security_s": seconds},
            )

    async def let_pass(self) -> bool:
        """Waits in hand while security waits, one look's time; whether it did."""
        if not self.yields:
            return False
        began = self._monotonic()
        await asyncio.sleep(GIVE_WAY)
        metrics.record_held_back("security", self._monotonic() - began)
        return True

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._patience.every)


def watching(guard: LaneGuard | None) -> contextlib.AbstractAsyncContextManager[None]:
    """Keeps looking inside; nothing for a lane without a guard."""
    return contextlib.nullcontext() if guard is None else guard.watching()
