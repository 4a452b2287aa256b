"""One process at a time, or so many, whichever of them it is."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg

from sendloom.errors import StoreUnavailable
from sendloom.stores.pool import Pool, answering

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks for a free place, and between two that ours is still ours."""

_LEFT = """
SELECT bool_and(pg_terminate_backend(pid, 2000)) FROM pg_stat_activity
 WHERE application_name = $1 AND pid <> pg_backend_pid()
"""
"""Whether every session of ours that the server still has is gone now; null when there was none."""


@asynccontextmanager
async def advisory_lock(pool: Pool, name: str) -> AsyncIterator[bool]:
    """Whether the lock is ours, for the length of the block. It ends with our connection, so a killed holder blocks nobody."""
    with answering():
        async with pool.acquire() as connection, connection.transaction():
            ours: bool = await connection.fetchval(
                "SELECT pg_try_advisory_xact_lock(hashtext('sendloom'), hashtext($1))", name
            )
            yield ours


class PlaceLost(Exception):
    """Others have every place now; this process must stop serving."""


class Places:
    """At most so many processes serve at once, however many are started; the others stand by (LANE-8).

    A place is a lock of a session of Postgres: it ends with the process that has it. The server may have the session longer than
    we have the connection: by a moment when it was told to end it, by minutes when the network was cut. Until it is gone the place
    is taken by nobody but ourselves.
    """

    def __init__(self, dsn: str, name: str, most: int, *, every: float = LOOK_EVERY) -> None:
        self._dsn = dsn
        self._name = name
        self._most = most
        self._every = every
        self._us = f"sendloom place {uuid4()}"
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def take(self) -> None:
        """Waits until a place is ours."""
        waited = False
        while True:
            try:
                if await self._try():
                    return
                if not waited:
                    log.warning(
                        "every place is taken; standing by",
                        extra={"places": self._name, "most": self._most},
                    )
                waited = True
            except StoreUnavailable:
                log.warning("places cannot be looked at")
            await asyncio.sleep(self._every)

    async def keep(self) -> None:
        """For as long as it serves: a place whose connection was lost is taken again.

        Raises:
            PlaceLost: others were quicker.
        """
        while True:
            await asyncio.sleep(self._every)
            try:
                if await self._ours() or await self._try():
                    continue
            except StoreUnavailable:
                # Without the database nobody sends either.
                continue
            raise PlaceLost(f"all {self._most} places of {self._name} are taken")

    async def leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _ours(self) -> bool:
        connection = self._connection
        if connection is None or connection.is_closed():
            return False
        try:
            with answering():
                await connection.execute("SELECT 1")
        except StoreUnavailable:
            await self.leave()
            raise
        return True

    async def _try(self) -> bool:
        await self.leave()
        with answering():
            connection = await asyncpg.connect(
                self._dsn,
                timeout=5,
                command_timeout=5,
                server_settings={"application_name": self._us},
            )
        try:
            with answering():
                left = await connection.fetchval(_LEFT, self._us)
            if left is False:
                raise StoreUnavailable("Postgres: an earlier session has not ended")
            for place in range(self._most):
                with answering():
                    ours = await connection.fetchval(
                        "SELECT pg_try_advisory_lock(hashtext('sendloom'), hashtext($1))",
                        f"{self._name} {place}",
                    )
                if ours:
                    self._connection = connection
                    return True
        finally:
            if self._connection is not connection:
                connection.terminate()
        return False
