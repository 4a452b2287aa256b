"""What a crash left between two of our stores, or between a store and Temporal: found and finished, every few seconds."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from activities.campaign_row import campaign_row
from activities.passcodes import HashCode, passcode_row
from schemas.kinds import Kind
from sendloom.domain.budgets import IDEMPOTENCY_KEPT, SECRETS_KEPT
from sendloom.errors import StoreUnavailable
from sendloom.ports import AcceptedRow, AcceptedStore, CampaignStore, PasscodeStore

log = logging.getLogger(__name__)

SWEEP_EVERY = 3.0
LEFT_ALONE = timedelta(seconds=5)
"""An accept that is still going on takes well under a second."""
SWEEP_ROWS = 500

UPLOAD_ABANDONED = timedelta(hours=24)
"""An upload may be resumed next morning; after that it only holds space."""

PURGE_EVERY = 600.0
PURGE_ROWS = 1_000
"""Small batches: a purge must not be felt."""
PURGE_BATCHES = 50

Lock = Callable[[str], AbstractAsyncContextManager[bool]]
"""Whether we are the one process that does this now; held for the length of the block."""
Start = Callable[[AcceptedRow], Awaitable[bool]]


ORPHANED = timedelta(minutes=5)
"""After its lease's end. Whoever drives a message settles its claim long before; this is for one that nobody drives."""

SECRETS_FORGOTTEN = SECRETS_KEPT - timedelta(days=1)
"""A day of margin, for a purge that could not run."""


class Purgeable(Protocol):
    async def purge(self, before: datetime, limit: int, /) -> int: ...


class Rows(Purgeable, Protocol):
    async def forget_secrets(self, accepted_before: datetime, limit: int, /) -> int: ...


class Claims(Protocol):
    async def settle_orphans(self, over_for: timedelta, limit: int, /) -> int: ...


class Sweeper:
    """Starts what was accepted and not started; settles claims nobody settled."""

    def __init__(
        self,
        *,
        accepted: AcceptedStore,
        passcodes: PasscodeStore,
        campaigns: CampaignStore,
        hash_code: HashCode,
        claims: Claims,
        start: Start,
        lock: Lock,
    ) -> None:
        self._claims = claims
        self._accepted = accepted
        self._passcodes = passcodes
        self._campaigns = campaigns
        self._hash_code = hash_code
        self._start = start
        self._lock = lock

    async def sweep(self) -> None:
        """One round."""
        try:
            async with self._lock("sweep") as ours:
                if not ours:
                    return
                for row in await self._accepted.unstarted(LEFT_ALONE, SWEEP_ROWS):
                    try:
                        await self._finish(row)
                    except StoreUnavailable:
                        raise
                    except Exception:
                        # One row that cannot be started must not keep the others waiting.
                        log.exception("a row cannot be started", extra={"id": str(row.id)})
                if orphans := await self._claims.settle_orphans(ORPHANED, SWEEP_ROWS):
                    log.warning("claims that nobody settled are unknown", extra={"claims": orphans})
        except StoreUnavailable as e:
            log.warning("the sweeper waits for its store", extra={"why": str(e)})

    async def _finish(self, row: AcceptedRow) -> None:
        # The accept may have ended before these, too.
        if row.kind is Kind.PASSCODE:
            await self._passcodes.insert(passcode_row(row, self._hash_code))
        elif row.kind is Kind.CAMPAIGN:
            await self._campaigns.insert(campaign_row(row))
        started = await self._start(row)
        await self._accepted.mark_started(row.tenant, row.id)
        log.warning(
            "an accepted row had been left",
            extra={"tenant": row.tenant, "id": str(row.id), "kind": row.kind, "started": started},
        )


class Purger:
    """Deletes what has been kept long enough, in small batches."""

    def __init__(
        self,
        *,
        accepted: Rows,
        passcodes: Purgeable,
        lock: Lock,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._accepted = accepted
        self._passcodes = passcodes
        self._lock = lock
        self._now = now

    async def purge(self) -> None:
        """One round."""
        async with self._lock("purge") as ours:
            if not ours:
                return
            secrets_before = self._now() - SECRETS_FORGOTTEN
            secrets = await _in_batches(self._accepted.forget_secrets, secrets_before)
            codes = await _in_batches(self._passcodes.purge, secrets_before)
            rows = await _in_batches(self._accepted.purge, self._now() - IDEMPOTENCY_KEPT)
        if rows or secrets or codes:
            log.info(
                "purged",
                extra={"accepted_rows": rows, "forgotten": secrets, "passcode_rows": codes},
            )


class Uploads(Protocol):
    async def reap(self, untouched_for: timedelta, limit: int = 100, /) -> int: ...


class Reaper:
    """Fails list uploads that nobody goes on with, and frees what they had staged (CAMP-2)."""

    def __init__(self, *, lists: Uploads, lock: Lock) -> None:
        self._lists = lists
        self._lock = lock

    async def reap(self) -> None:
        """One round."""
        async with self._lock("reap") as ours:
            reaped = await self._lists.reap(UPLOAD_ABANDONED) if ours else 0
        if reaped:
            log.info("abandoned uploads were reaped", extra={"versions": reaped})


async def _in_batches(purge: Callable[[datetime, int], Awaitable[int]], before: datetime) -> int:
    total = 0
    for _ in range(PURGE_BATCHES):
        deleted = await purge(before, PURGE_ROWS)
        total += deleted
        if deleted < PURGE_ROWS:
            break
    return total
