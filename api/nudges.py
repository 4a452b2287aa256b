"""Telling a campaign's workflow of a row that is written. The row is what counts, so no caller hears of a workflow that is busy.

One signal a campaign is on its way at a time; of what comes meanwhile the newest of each name is next. So callers who pause and resume
all at once are one signal after another to the workflow, and far fewer than they are.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from api.ports import Gone
from schemas.campaigns import ControlSignal

log = logging.getLogger(__name__)

Tell = Callable[[UUID, str, ControlSignal], Awaitable[None]]
"""Raises `Gone` when there is nobody to tell, anything else when it was not told."""

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0
GIVE_UP_AFTER = 15 * 60.0
"""Seconds. Whoever waits inside the workflow looks at the row too, if less often."""


class _Due:
    """One signal, and who wants to know that it was told, or will be."""

    def __init__(self, signal: ControlSignal) -> None:
        self.signal = signal
        self.seen = asyncio.Event()

    @property
    def version(self) -> int:
        return self.signal.version or 0


class _Campaign:
    """What is due to one, by name, and who tells it."""

    def __init__(self) -> None:
        self.due: dict[str, _Due] = {}
        self.fresh = asyncio.Event()
        """Somebody has asked since the last try, so there is no waiting for the next."""
        self.teller: asyncio.Task[None] | None = None

    def add(self, name: str, signal: ControlSignal) -> _Due:
        mine, known = _Due(signal), self.due.get(name)
        self.fresh.set()
        # Two callers may come in another order than their rows were written.
        if known is not None and known.version >= mine.version:
            return known
        self.due[name] = mine
        if known is not None:
            known.seen.set()
        return mine

    def next(self) -> tuple[str, _Due]:
        """The oldest row of what is due."""
        return min(self.due.items(), key=lambda item: item[1].version)

    def all_seen(self) -> None:
        for one in self.due.values():
            one.seen.set()


class Nudges:
    """What still has to be told, campaign by campaign."""

    def __init__(
        self,
        tell: Tell,
        *,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
        give_up_after: float = GIVE_UP_AFTER,
    ) -> None:
        self._tell = tell
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._give_up_after = give_up_after
        self._campaigns: dict[UUID, _Campaign] = {}

    async def nudge(self, id: UUID, name: str, signal: ControlSignal, within: float) -> None:
        """Told, or found to be for later, within so many seconds."""
        campaign = self._campaigns.setdefault(id, _Campaign())
        mine = campaign.add(name, signal)
        if campaign.teller is None:
            campaign.teller = asyncio.create_task(self._tell_all(id, campaign))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await mine.seen.wait()

    async def close(self) -> None:
        """Stop trying."""
        tellers = [c.teller for c in self._campaigns.values() if c.teller is not None]
        for teller in tellers:
            teller.cancel()
        await asyncio.gather(*tellers, return_exceptions=True)

    async def _tell_all(self, id: UUID, campaign: _Campaign) -> None:
        loop = asyncio.get_running_loop()
        pause, told_at = self._first_pause, loop.time()
        try:
            while campaign.due:
                name, newest = campaign.next()
                campaign.fresh.clear()
                try:
                    await self._tell(id, name, newest.signal)
                except Gone:
                    return
                except Exception as e:
                    if loop.time() - told_at > self._give_up_after:
                        log.warning("a campaign was not told of its row", extra={"campaign": id})
                        return
                    log.info("a campaign is told again", extra={"error": type(e).__name__})
                    campaign.all_seen()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await campaign.fresh.wait()
                    pause = min(2 * pause, self._longest_pause)
                    continue
                newest.seen.set()
                if campaign.due.get(name) is newest:
                    del campaign.due[name]
                pause, told_at = self._first_pause, loop.time()
        finally:
            campaign.all_seen()
            del self._campaigns[id]
