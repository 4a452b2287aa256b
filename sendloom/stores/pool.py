"""Connections to Postgres: how they are opened, how long anything may take, and the one place that says "unavailable"."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import orjson

from sendloom.errors import StoreUnavailable
from sendloom.platform.priority import give_way, is_local_postgres, own_nice

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Record = asyncpg.Record
else:
    Pool = asyncpg.Pool
    Connection = asyncpg.pool.PoolConnectionProxy
    Record = asyncpg.Record

STATEMENT = 5.0
"""Seconds. Every ordinary statement takes milliseconds; longer means that the database is in trouble."""
BULK = 60.0
"""Seconds. For the few statements whose work grows with an audience."""
ACQUIRE = 5.0
"""Seconds to wait for a connection of the pool; also what giving it back may take."""
CONNECT = 5.0
BACKEND_NICE = 10
"""Not as low as it goes: a backend may hold what others wait for."""

SERVER_SETTINGS = {
    "jit": "off",
    "timezone": "UTC",
    # One plan a statement, made once and the same for every call; a test looks at these plans.
    "plan_cache_mode": "force_generic_plan",
    # A table that was empty when its plan was made is scanned from end to end for ever after (20,000 rows a second were seen
    # to fall to 800). Everything we ask has an index; without this the planner may still not take it. For the same reason
    # statements say `LATERAL (… OFFSET 0)` where a join must be one look-up a row, whatever a table seems to hold.
    "enable_seqscan": "off",
    # These only ever help plans that read more than they need.
    "enable_memoize": "off",
    "enable_material": "off",
    "enable_bitmapscan": "off",
}


async def open_pool(
    dsn: str, size: int, application_name: str, *, eager: bool = True, gives_way: bool = False
) -> Pool:
    """A pool of at most `size` connections, the first one open unless it is not `eager`.

    `gives_way`: for a process of low priority on one machine with the server, so are its backends.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    with answering():
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1 if eager else 0,
            max_size=size,
            timeout=CONNECT,
            command_timeout=STATEMENT,
            statement_cache_size=512,
            max_cached_statement_lifetime=3600,
            max_inactive_connection_lifetime=300,
            server_settings={**SERVER_SETTINGS, "application_name": application_name},
            init=_set_up_giving_way if gives_way and own_nice() > 0 else set_codecs,
            reset=_keep_session,
        )
    assert pool is not None
    return pool


_ARRAYS = "SELECT " + ", ".join(
    f"NULL::{element}[]"
    for element in (
        "boolean", "bytea", "date", "integer", "jsonb", "record", "smallint", "text", "timestamptz",
        "uuid",
    )
)  # fmt: skip


async def set_codecs(connection: Any) -> None:
    """jsonb as Python values (its binary form is a version byte and the text), and all arrays that our statements use.

    The driver asks the server's catalogs about an array type when a statement first has it, 6 ms of two processors each time:
    asked for together it is once a connection, before anybody waits for it.
    """
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        encoder=lambda value: b"\x01" + orjson.dumps(value),
        decoder=lambda raw: orjson.loads(raw[1:]),
    )
    await connection.fetchrow(_ARRAYS)


async def _set_up_giving_way(connection: Any) -> None:
    await set_codecs(connection)
    pid = connection.get_server_pid()
    # The address as it was given is not kept anywhere public; what the socket says is as good.
    peer = connection._transport.get_extra_info("peername")
    host = peer[0] if isinstance(peer, tuple) else "/"
    if is_local_postgres(pid, host):
        give_way(pid, BACKEND_NICE)


async def _keep_session(connection: Any) -> None:
    """Nothing to undo: we use no session state, and the pool rolls back what is open. Saves a round trip a statement."""


_GONE = ("closed", "closing", "released", "is not initialized")


@contextmanager
def answering() -> Iterator[None]:
    """Anything that means "the database did not answer, or not now" becomes StoreUnavailable. Our own mistakes do not."""
    try:
        yield
    except (
        OSError,
        TimeoutError,
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
        asyncpg.InsufficientResourcesError,
        asyncpg.TransactionRollbackError,
        asyncpg.LockNotAvailableError,
        asyncpg.PostgresSystemError,
        # A primary that became a standby.
        asyncpg.ReadOnlySQLTransactionError,
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
    ) as e:
        raise StoreUnavailable(f"Postgres: {type(e).__name__}") from e
    except asyncpg.InternalClientError as e:
        raise StoreUnavailable(f"Postgres: {type(e).__name__}") from e
    except asyncpg.InterfaceError as e:
        if any(word in str(e) for word in _GONE):
            raise StoreUnavailable("Postgres: the connection is gone") from e
        raise


class PostgresStore:
    """What every store over a pool shares: a time limit on each statement and each wait, and one kind of failure."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def _fetch(self, sql: str, *args: Any, timeout: float = STATEMENT) -> list[Record]:
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                return await connection.fetch(sql, *args, timeout=timeout)

    async def _row(self, sql: str, *args: Any, timeout: float = STATEMENT) -> Record | None:
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                return await connection.fetchrow(sql, *args, timeout=timeout)

    async def _value(self, sql: str, *args: Any, timeout: float = STATEMENT) -> Any:
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                return await connection.fetchval(sql, *args, timeout=timeout)

    async def _execute(self, sql: str, *args: Any, timeout: float = STATEMENT) -> int:
        """How many rows it touched."""
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                return touched(await connection.execute(sql, *args, timeout=timeout))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        with answering():
            async with (
                self._pool.acquire(timeout=ACQUIRE) as connection,
                connection.transaction(),
            ):
                yield connection


def touched(status: str) -> int:
    """The row count in a command's status, for example `UPDATE 3`."""
    return int(status.rpartition(" ")[2])


FIRST = ("", UUID(int=0))
"""A place before every (tenant, id)."""

SEPARATOR = "\x1f"
_NULL = "\x1e"


def joined(ids: Sequence[str]) -> str:
    """Many ids as one text, which the statement takes apart with `string_to_array`.

    The driver looks at every element of an array several times; this is 15 times cheaper, and ids are most of what is sent.
    """
    text = SEPARATOR.join(ids)
    if text.count(SEPARATOR) != len(ids) - 1:
        raise ValueError("an id with a control character in it")
    return text


def parted(text: str) -> list[str]:
    """What the server has put together as `joined` does."""
    return text.split(SEPARATOR)


def joined_or_none(values: Sequence[str | None]) -> str | None:
    """As `joined`, for what a provider said: with nulls, and None when there is nothing. What would split it is left out."""
    if not any(values):
        return None
    return SEPARATOR.join(
        _NULL if value is None else value.replace(SEPARATOR, "") for value in values
    )


def column(values: Sequence[Any]) -> tuple[Sequence[Any] | None, Any]:
    """A column for `unnest` as (array, default): one value for every row is sent once, and the array is left out.

    The server pads a missing array with nulls, and the statement says `coalesce(column, default)`.
    """
    first = values[0]
    if values.count(first) == len(values):
        return None, first
    return values, None


def or_none(values: Sequence[Any]) -> Sequence[Any] | None:
    """A column for `unnest`, or None when it holds nothing: the server pads it with nulls, and nothing is encoded."""
    return values if any(value is not None for value in values) else None
