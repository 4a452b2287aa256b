"""Cassandra without blocking the event loop: the driver's callbacks become awaitables, so many in flight and no more.

The driver has threads of its own; what they bring is handed over in batches, one wake-up of the loop for all that came since
the last. A conditional statement is never repeated by the driver. Whether one whose answer was lost took effect is for the
caller to find out: it gets `InQuestion`, while `StoreUnavailable` always means that nothing was changed.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cassandra
from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResponseFuture,
    Session,
)
from cassandra.connection import ConnectionException
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import PreparedStatement, Statement, tuple_factory

from sendloom.errors import SchemaTooOld, StoreUnavailable

log = logging.getLogger(__name__)
# With a trace each time, while a node is away; who asked says what it means.
logging.getLogger("cassandra.cluster").addFilter(
    lambda record: not record.getMessage().startswith("Error preparing query")
)

SECONDS = 5.0
"""Every statement takes milliseconds; longer means that the cluster is in trouble. More than a node's own time-outs."""
CONNECT = 2.0
RECONNECT_MOST = 1.0
"""Seconds between two attempts to reach a node that is away: it counts as back that soon."""
IN_FLIGHT = 64
"""Statements of one user (a lane, the API) at the same time; who wants more waits."""
_FIRST_WAIT = 2.0
"""For the very first connection, so that what starts beside Cassandra does not fail for nothing."""
_PROTOCOL = 4
"""Knows a conditional write's time-out as such, and has unset values."""

Rows = list[tuple[Any, ...]]

SERIAL = ConsistencyLevel.LOCAL_SERIAL
QUORUM = ConsistencyLevel.LOCAL_QUORUM


class InQuestion(Exception):
    """A conditional statement may have taken effect, or may not."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a cluster is, and as whom."""

    hosts: tuple[tuple[str, int], ...]
    datacenter: str
    keyspace: str | None
    username: str | None = None
    password: str | None = None


class _Repeat(FallthroughRetryPolicy):  # type: ignore[misc]  # the driver has no types
    """Only what changes nothing when it is repeated goes to the next node; everything else is for the caller to judge."""

    def on_request_error(
        self, query: Any, consistency: Any, error: Any, retry_num: int
    ) -> tuple[int, Any]:
        if getattr(query, "is_idempotent", False) and retry_num < 2:
            return self.RETRY_NEXT_HOST, None
        return self.RETHROW, None

    def on_unavailable(self, *args: Any, **kwargs: Any) -> tuple[int, Any]:
        return self.RETHROW, None


def open_cluster(address: Address) -> Cluster:
    """The driver's cluster object with our policies, not connected yet."""
    auth = None
    if address.username:
        auth = PlainTextAuthProvider(address.username, address.password or "")
    return Cluster(
        contact_points=[host for host, _ in address.hosts],
        port=address.hosts[0][1],
        auth_provider=auth,
        protocol_version=_PROTOCOL,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(
                load_balancing_policy=TokenAwarePolicy(
                    DCAwareRoundRobinPolicy(local_dc=address.datacenter)
                ),
                retry_policy=_Repeat(),
                consistency_level=QUORUM,
                serial_consistency_level=SERIAL,
                request_timeout=SECONDS,
                row_factory=tuple_factory,
            )
        },
        reconnection_policy=ExponentialReconnectionPolicy(0.1, RECONNECT_MOST),
        # A batch is several segments: without this each waited 40 ms for the acknowledgement of the first.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        connect_timeout=CONNECT,
        control_connection_timeout=CONNECT,
        idle_heartbeat_interval=5,
        idle_heartbeat_timeout=5,
        # A node that is back is used at once.
        status_event_refresh_window=0.5,
        topology_event_refresh_window=2,
        schema_event_refresh_window=2,
        executor_threads=2,
    )


class Connection:
    """One cluster for a whole process. Connects by itself, for as long as it takes; until then everything is unavailable."""

    def __init__(self, address: Address, check: Callable[[Session], None] = lambda _: None) -> None:
        """`check` raises when the cluster is no use yet, for example not migrated."""
        self._address = address
        self._check = check
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._prepared: dict[str, PreparedStatement] = {}
        self._connected = asyncio.Event()
        self._tried = asyncio.Event()
        self._arrived: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._lock = threading.Lock()
        self._waking = False
        self._loop = asyncio.get_running_loop()
        self._connecting = asyncio.create_task(self._connect())

    async def session(self) -> Session:
        """Raises StoreUnavailable while there is none."""
        if self._session is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._connected.wait(), 0 if self._tried.is_set() else _FIRST_WAIT
                )
            self._tried.set()
        if self._session is None:
            raise StoreUnavailable("Cassandra: not connected")
        return self._session

    async def prepare(self, cql: str, *, idempotent: bool) -> PreparedStatement:
        """Once a process; the driver prepares it anew on nodes that come later."""
        if (known := self._prepared.get(cql)) is not None:
            return known
        session = await self.session()
        with answering():
            prepared = await asyncio.to_thread(session.prepare, cql)
        prepared.is_idempotent = idempotent
        prepared.consistency_level = QUORUM
        prepared.serial_consistency_level = SERIAL
        return self._prepared.setdefault(cql, prepared)

    def start(self, session: Session, statement: Statement, seconds: float) -> asyncio.Future[Any]:
        """Send it; the future gets its rows (only those of a first page: nothing asks for pages)."""
        future: asyncio.Future[Any] = self._loop.create_future()
        sent: ResponseFuture = session.execute_async(statement, timeout=seconds)
        sent.add_callbacks(self._bring, self._bring_error, (future,), {}, (future,), {})
        return future

    def _bring(self, rows: Any, future: asyncio.Future[Any]) -> None:
        self._arrive((future, rows, None))

    def _bring_error(self, error: Exception, future: asyncio.Future[Any]) -> None:
        self._arrive((future, None, error))

    def _arrive(self, item: tuple[asyncio.Future[Any], Any, Exception | None]) -> None:
        # In a thread of the driver's.
        with self._lock:
            self._arrived.append(item)
            if self._waking:
                return
            self._waking = True
        # When the loop is closed nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            items, self._arrived = self._arrived, deque()
            self._waking = False
        for future, rows, error in items:
            if future.done():
                continue
            if error is None:
                future.set_result(rows)
            else:
                future.set_exception(error)

    async def _connect(self) -> None:
        while True:
            cluster = open_cluster(self._address)
            try:
                session = await asyncio.to_thread(cluster.connect, self._address.keyspace)
                await asyncio.to_thread(self._check, session)
            except asyncio.CancelledError:
                await asyncio.shield(asyncio.to_thread(cluster.shutdown))
                raise
            except Exception as e:
                # Away, or not migrated yet. Whatever it is, it is asked again.
                what = str(e) if isinstance(e, SchemaTooOld) else type(e).__name__
                log.warning("Cassandra cannot be used yet", extra={"error": what})
                self._tried.set()
                await asyncio.to_thread(cluster.shutdown)
                await asyncio.sleep(RECONNECT_MOST)
                continue
            # Nothing asks for more rows than it names, or than a partition has.
            session.default_fetch_size = None
            self._cluster, self._session = cluster, session
            self._connected.set()
            return

    async def close(self) -> None:
        self._connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._connecting
        self._session = None
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.shutdown)


class Requests:
    """One user's share of a connection: at most so many statements in flight, and who wants more waits."""

    def __init__(self, connection: Connection, in_flight: int = IN_FLIGHT) -> None:
        self.connection = connection
        self._slots = asyncio.Semaphore(in_flight)

    async def prepare(self, cql: str, *, idempotent: bool = False) -> PreparedStatement:
        return await self.connection.prepare(cql, idempotent=idempotent)

    async def execute(self, statement: Statement, *, seconds: float = SECONDS) -> Rows:
        """Anything that may be repeated: a read, or a write that says the same each time.

        Raises:
            StoreUnavailable: it did not answer.
        """
        with answering():
            return await self._run(statement, seconds)

    async def change(self, statement: Statement, *, seconds: float = SECONDS) -> Rows:
        """A conditional statement. The first column of its first row says whether it was applied.

        Raises:
            StoreUnavailable: it was certainly not applied.
            InQuestion: nobody knows.
        """
        try:
            return await self._run(statement, seconds)
        except cassandra.Unavailable as e:
            # Too few nodes were alive to begin with.
            raise StoreUnavailable("Cassandra: too few nodes") from e
        except NoHostAvailable as e:
            if _was_sent(e):
                raise InQuestion from e
            raise StoreUnavailable("Cassandra: no node can be reached") from e
        except AWAY as e:
            raise InQuestion from e
        except cassandra.InvalidRequest as e:
            if _is_unknown_schema(e):
                raise StoreUnavailable("Cassandra: a node does not know our schema") from e
            raise

    async def _run(self, statement: Statement, seconds: float) -> Rows:
        session = await self.connection.session()
        await self._slots.acquire()
        try:
            future = self.connection.start(session, statement, seconds)
        except BaseException:
            self._slots.release()
            raise
        # The slot is free when the answer is there, also if nobody waits for it any more.
        future.add_done_callback(self._free)
        return list(await asyncio.shield(future) or ())

    def _free(self, future: asyncio.Future[Any]) -> None:
        self._slots.release()
        if not future.cancelled():
            future.exception()  # or asyncio complains that nobody looked at it


AWAY = (
    cassandra.Unavailable,
    cassandra.Timeout,
    cassandra.OperationTimedOut,
    cassandra.CoordinationFailure,
    cassandra.RequestExecutionException,
    NoHostAvailable,
    ConnectionException,
    OSError,
)
"""What means "not now". Our own mistakes (an invalid statement, a missing table) do not."""


def _was_sent(e: NoHostAvailable) -> bool:
    """Whether some node may have got it before the next one was tried."""
    return any(
        not isinstance(error, ConnectionException) or "shutdown" in type(error).__name__.lower()
        for error in getattr(e, "errors", {}).values()
    )


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """What means "not now" becomes StoreUnavailable."""
    try:
        yield
    except AWAY as e:
        raise StoreUnavailable(f"Cassandra: {type(e).__name__}") from e
    except cassandra.InvalidRequest as e:
        if _is_unknown_schema(e):
            raise StoreUnavailable("Cassandra: a node does not know our schema") from e
        raise


def _is_unknown_schema(e: Exception) -> bool:
    """A node that has not heard of a table cannot be asked yet; every other invalid statement is our mistake."""
    said = str(e).lower()
    return any(word in said for word in ("does not exist", "unconfigured table", "unknown table"))


_open: dict[tuple[asyncio.AbstractEventLoop, Address], tuple[Connection, int]] = {}


@contextlib.asynccontextmanager
async def connection(
    address: Address, check: Callable[[Session], None] = lambda _: None
) -> AsyncIterator[Connection]:
    """The process's one connection to this cluster: opened by the first who asks, closed by the last who leaves."""
    at = (asyncio.get_running_loop(), address)
    kept, users = _open.get(at) or (Connection(address, check), 0)
    _open[at] = (kept, users + 1)
    try:
        yield kept
    finally:
        kept, users = _open.pop(at)
        if users > 1:
            _open[at] = (kept, users - 1)
        else:
            await kept.close()


def applied(rows: Sequence[tuple[Any, ...]]) -> bool:
    return bool(rows[0][0])


def monotonic() -> float:
    """Goes on while the machine sleeps, where there is such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
