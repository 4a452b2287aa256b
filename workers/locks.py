"""One process at a time, whichever of them it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sendloom.stores.pool import Pool, answering


@asynccontextmanager
async def advisory_lock(pool: Pool, name: str) -> AsyncIterator[bool]:
    """Whether the lock is ours, for the length of the block. It ends with our connection, so a killed holder blocks nobody."""
    with answering():
        async with pool.acquire() as connection, connection.transaction():
            ours: bool = await connection.fetchval(
                "SELECT pg_try_advisory_xact_lock(hashtext('sendloom'), hashtext($1))", name
            )
            yield ours
