"""The pool: nothing leaks, everything has a limit, and "no answer" is one kind of failure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from sendloom.errors import StoreUnavailable
from sendloom.stores.pool import ACQUIRE, PostgresStore, answering, open_pool


class Store(PostgresStore):
    async def value(self, sql: str, timeout: float = 5.0) -> object:
        return await self._value(sql, timeout=timeout)


async def test_c20_cancelled_waiters_leak_no_connection_and_close_returns(database: str) -> None:
    pool = await open_pool(database, 3, "c20")
    store = Store(pool)
    held = [await pool.acquire() for _ in range(3)]

    async def ask(n: int) -> object:
        return await store.value(f"SELECT {n}")

    waiting = [asyncio.create_task(ask(n)) for n in range(50)]
    await asyncio.sleep(0)
    for task in waiting[10:30]:
        task.cancel()
    more = [asyncio.create_task(ask(n)) for n in range(50, 100)]
    await asyncio.sleep(0)
    # Some are cancelled in the very moment in which a connection is being handed to them.
    for connection in held:
        await pool.release(connection)
    for task in more[:5]:
        task.cancel()
    done = await asyncio.gather(*waiting, *more, return_exceptions=True)
    ran = [value for value in done if not isinstance(value, BaseException)]
    cancelled = [value for value in done if isinstance(value, asyncio.CancelledError)]
    assert len(ran) + len(cancelled) == 100
    assert len(ran) >= 75
    assert pool.get_idle_size() == pool.get_size() == 3
    await asyncio.wait_for(pool.close(), 30)


async def test_c20_a_statement_cancelled_while_it_runs_gives_its_connection_back(
    database: str,
) -> None:
    pool = await open_pool(database, 1, "c20-running")
    store = Store(pool)
    other = await asyncpg.connect(database)
    running = """SELECT count(*) > 0 FROM pg_stat_activity
                  WHERE application_name = 'c20-running' AND state = 'active' AND query LIKE '%pg_sleep%'"""
    for _ in range(5):
        task = asyncio.create_task(store.value("SELECT pg_sleep(60)"))
        async with asyncio.timeout(30):
            while not await other.fetchval(running):
                pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.value("SELECT 1") == 1
    await other.close()
    await asyncio.wait_for(pool.close(), 30)


async def test_a_statement_over_its_time_is_unavailable_and_the_next_one_runs(
    database: str,
) -> None:
    pool = await open_pool(database, 1, "slow")
    store = Store(pool)
    with pytest.raises(StoreUnavailable):
        await store.value("SELECT pg_sleep(60)", timeout=0.05)
    assert await store.value("SELECT 1") == 1
    await pool.close()


async def test_a_killed_backend_is_unavailable_and_the_next_statement_gets_a_new_one(
    database: str,
) -> None:
    pool = await open_pool(database, 1, "victim")
    store = Store(pool)
    pid = await store.value("SELECT pg_backend_pid()")
    other = await asyncpg.connect(database)
    assert await other.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
    await other.close()
    try:
        await store.value("SELECT 1")
    except StoreUnavailable:
        assert await store.value("SELECT 1") == 1
    await pool.close()


async def test_no_server_and_a_closed_pool_are_unavailable(database: str) -> None:
    with pytest.raises(StoreUnavailable):
        await open_pool("postgresql://nobody@127.0.0.1:1/none", 1, "none")
    pool = await open_pool(database, 1, "closed")
    await pool.close()
    with pytest.raises(StoreUnavailable):
        await Store(pool).value("SELECT 1")


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Takes connections and says nothing, like a machine that hangs."""
    open_until = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await open_until.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        open_until.set()
        server.close()
        await server.wait_closed()


async def test_a_server_that_hangs_is_unavailable_within_the_limit() -> None:
    async with silent_server() as port, asyncio.timeout(2 * ACQUIRE):
        with pytest.raises(StoreUnavailable):
            await open_pool(f"postgresql://nobody@127.0.0.1:{port}/none", 1, "hung")


def test_our_own_mistakes_are_not_called_unavailable() -> None:
    with pytest.raises(asyncpg.UniqueViolationError), answering():
        raise asyncpg.UniqueViolationError("twice")
    with pytest.raises(asyncpg.InterfaceError), answering():
        raise asyncpg.InterfaceError("the server expects 3 arguments for this query, 2 were passed")


async def test_jsonb_comes_and_goes_as_values(database: str) -> None:
    pool = await open_pool(database, 1, "json")
    value = {"a": [1, None, "ü"], "b": {"c": 1.5}}
    assert await pool.fetchval("SELECT $1::jsonb", value) == value
    assert await pool.fetchval("SELECT $1::jsonb[]", [value, None]) == [value, None]
    assert await pool.fetchval("SHOW timezone") == "UTC"
    assert await pool.fetchval("SHOW jit") == "off"
    await pool.close()
