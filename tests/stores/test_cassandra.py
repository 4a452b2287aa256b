"""What is Cassandra's own: answers that are lost, nodes that are killed, its schema, its driver."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from cassandra.cluster import Session
from cassandra.query import Statement

from schemas.kinds import Channel, ClaimState
from sendloom.embedded.cassandra import DATACENTER, EmbeddedCassandra
from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.errors import ConfigurationError, Fenced, SchemaTooOld, StoreUnavailable
from sendloom.platform.hosts import parse_hosts
from sendloom.ports import ClaimResult, ClaimScope, InDoubt, InFlight, Want, Won
from sendloom.stores.cassandra import (
    Address,
    Connection,
    InQuestion,
    Requests,
    Rows,
    connection,
    monotonic,
    open_cluster,
)
from sendloom.stores.cql.runner import check_schema, migrate, migrations, statements
from sendloom.stores.ledger.cassandra import CQL, MARGIN, CassandraLedger
from sendloom.stores.ledger.grounds import LOOK_EVERY, PostgresClock
from sendloom.stores.pool import Pool
from tests.stores.conftest import NOW, a_cassandra_ledger

pytestmark = pytest.mark.cassandra

MINUTE = timedelta(minutes=1)


@pytest_asyncio.fixture
async def connected(cassandra_address: Address) -> AsyncIterator[Connection]:
    async with connection(cassandra_address) as opened:
        yield opened


@pytest.fixture
def ledger(connected: Connection, pool: Pool) -> CassandraLedger:
    return a_cassandra_ledger(connected, pool)


def a_scope(**changes: Any) -> ClaimScope:
    scope = ClaimScope(f"t-{uuid4().hex[:8]}", NOW, uuid4(), 0, 0, Channel.EMAIL)
    return replace(scope, **changes)


# --- answers that are lost --------------------------------------------------------------------------------------------


class Lossy(Requests):
    """Loses the answer to some conditional statements, after they took effect or before they got anywhere."""

    def __init__(self, connection: Connection, *, losing: int, arrives: bool) -> None:
        super().__init__(connection)
        self._losing = losing
        self._arrives = arrives

    async def change(self, statement: Statement, **kw: Any) -> Rows:
        if self._losing > 0:
            self._losing -= 1
            if self._arrives:
                await super().change(statement, **kw)
            raise InQuestion from TimeoutError()
        return await super().change(statement, **kw)


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("losing", [1, 3])
async def test_a_claim_whose_answer_is_lost_is_recognised_by_its_owner(
    connected: Connection, pool: Pool, arrives: bool, losing: int
) -> None:
    scope, owner = a_scope(), uuid4()
    lossy = a_cassandra_ledger(connected, pool)
    lossy._requests = Lossy(connected, losing=losing, arrives=arrives)
    wants = [Want(f"r{n:02}") for n in range(20)]
    answers = await lossy.claim(scope, wants, owner, MINUTE)
    assert [type(answer) for answer in answers] == [Won] * 20
    rows = await lossy.read(scope, wants)
    assert {(row.owner, row.attempt) for row in rows if row} == {(owner, 1)}
    others = await a_cassandra_ledger(connected, pool).claim(scope, wants, uuid4(), MINUTE)
    assert [type(answer) for answer in others] == [InFlight] * 20


async def test_a_lost_answer_to_somebody_elses_claim_is_no_win(
    connected: Connection, pool: Pool, ledger: CassandraLedger
) -> None:
    scope = a_scope()
    await ledger.claim(scope, [Want("theirs")], uuid4(), MINUTE)
    lossy = a_cassandra_ledger(connected, pool)
    lossy._requests = Lossy(connected, losing=2, arrives=True)
    answers = await lossy.claim(scope, [Want("theirs"), Want("new")], uuid4(), MINUTE)
    assert [type(answer) for answer in answers] == [InFlight, Won]


async def test_a_claim_that_never_gets_an_answer_is_unavailable(
    connected: Connection, pool: Pool
) -> None:
    lossy = a_cassandra_ledger(connected, pool)
    lossy._requests = Lossy(connected, losing=1000, arrives=False)
    with pytest.raises(StoreUnavailable):
        await lossy.claim(a_scope(), [Want("r")], uuid4(), MINUTE)


@pytest.mark.parametrize("arrives", [True, False])
async def test_c65_records_suppressions_and_settling_survive_lost_answers(
    connected: Connection, pool: Pool, ledger: CassandraLedger, arrives: bool
) -> None:
    scope, owner, address = a_scope(), uuid4(), uuid4().bytes
    lossy = a_cassandra_ledger(connected, pool)

    def lose() -> None:
        lossy._requests = Lossy(connected, losing=2, arrives=arrives)

    await ledger.claim(scope, [Want("r")], owner, MINUTE)
    await ledger.claim(scope, [Want("ended")], owner, timedelta(0))
    lose()
    await lossy.record(scope, [ClaimResult("r", 1, owner, ClaimState.SENT, code="250")])
    lose()
    await lossy.settle(scope)
    rows = await ledger.read(scope, [Want("r"), Want("ended")])
    assert [(row.state, row.code) for row in rows if row] == [
        (ClaimState.SENT, "250"),
        (ClaimState.UNKNOWN, "lease_over"),
    ]
    lose()
    await lossy.suppress(scope.tenant, Channel.EMAIL, address, "manual", "ops")
    lose()
    await lossy.suppress(scope.tenant, Channel.EMAIL, address, "stop", "sms")
    assert await ledger.suppression(scope.tenant, Channel.EMAIL, [address]) == {address: "stop"}
    lose()
    assert await lossy.unsuppress(scope.tenant, Channel.EMAIL, address)
    assert not await lossy.unsuppress(scope.tenant, Channel.EMAIL, address)


# --- epochs and leases ------------------------------------------------------------------------------------------------


class Stale:
    """A zombie that looked at the shard's epoch before it was stopped, and goes on a moment later."""

    async def current(self, scope: ClaimScope) -> int | None:
        return scope.epoch


async def test_c90_a_zombie_that_looked_before_it_was_stopped_is_fenced_by_the_page(
    ledger: CassandraLedger,
) -> None:
    ledger._epochs = Stale()
    scope = a_scope()
    old, new = replace(scope, epoch=3), replace(scope, epoch=4)
    await ledger.claim(old, [Want("a")], uuid4(), MINUTE)
    await ledger.claim(new, [Want("b")], uuid4(), MINUTE)
    with pytest.raises(Fenced):
        await ledger.claim(old, [Want("c"), Want("d")], uuid4(), MINUTE)
    assert await ledger.read(scope, [Want("c"), Want("d")]) == [None, None]
    # Another page has never heard of the new one; who claims there first is still the only one.
    [won] = await ledger.claim(replace(old, page=1), [Want("e")], uuid4(), MINUTE)
    assert isinstance(won, Won)
    [late] = await ledger.claim(replace(new, page=1), [Want("e")], uuid4(), MINUTE)
    assert isinstance(late, InFlight)


async def test_a_lease_is_over_only_some_time_after_its_end(
    connected: Connection, pool: Pool
) -> None:
    """What two looks at the clock may differ by must not end a lease that still runs."""
    careful = a_cassandra_ledger(connected, pool, margin=MARGIN)
    scope, owner = a_scope(), uuid4()
    await careful.claim(scope, [Want("just"), Want("record")], owner, timedelta(0))
    [just] = await careful.claim(scope, [Want("just")], uuid4(), MINUTE)
    assert isinstance(just, InFlight)
    assert just.until > datetime.now(UTC)
    assert await careful.settle(scope) == 0
    await careful.claim(scope, [Want("long ago")], owner, -MARGIN)
    [ended] = await careful.claim(scope, [Want("long ago")], uuid4(), MINUTE)
    assert ended == InDoubt(1, owner)
    assert await careful.settle(scope) == 1


async def test_leases_go_by_postgres_whatever_our_clocks_say(pool: Pool) -> None:
    class Ours:
        at = 1_000.0

        def __call__(self) -> float:
            return self.at

    ours = Ours()
    clock = PostgresClock(pool, ours)
    there: datetime = await pool.fetchval("SELECT clock_timestamp()")
    first = await clock.now()
    assert abs(first - there) < timedelta(seconds=5)
    ours.at += 10
    assert await clock.now() - first == timedelta(seconds=10)
    # Ten seconds have not passed there: the next look says so.
    ours.at += LOOK_EVERY + 1
    assert await clock.now() - first < timedelta(seconds=5)


async def test_while_postgres_is_away_the_last_look_at_its_clock_counts(pool: Pool) -> None:
    class Away(PostgresClock):
        away = False

        async def _value(self, sql: str, *args: Any, timeout: float = 5) -> Any:
            if self.away:
                raise StoreUnavailable("away")
            return await super()._value(sql, *args, timeout=timeout)

    at = 0.0
    clock = Away(pool, lambda: at)
    clock.away = True
    with pytest.raises(StoreUnavailable):
        await clock.now()
    clock.away = False
    first = await clock.now()
    clock.away, at = True, 10 * LOOK_EVERY
    assert await clock.now() - first == timedelta(seconds=at)


# --- the schema -------------------------------------------------------------------------------------------------------


async def test_claims_leave_after_ninety_days_and_suppressions_never(
    connected: Connection, ledger: CassandraLedger
) -> None:
    scope, owner = a_scope(), uuid4()
    await ledger.claim(scope, [Want("r")], owner, MINUTE)
    await ledger.record(scope, [ClaimResult("r", 1, owner, ClaimState.SENT)])
    await ledger.suppress(scope.tenant, Channel.EMAIL, b"h" * 32, "stop", "test")
    session = await connected.session()
    claim = session.execute(
        "SELECT TTL(state), TTL(owner) FROM claims WHERE tenant = %s AND campaign_id = %s"
        " AND shard = 0 AND page = 0 AND channel = 'email'",
        (scope.tenant, scope.campaign_id),
    ).one()
    assert all(89 * 86_400 < ttl <= 90 * 86_400 for ttl in claim)
    kept = session.execute(
        "SELECT TTL(reason) FROM suppressions WHERE tenant = %s AND channel = 'email' AND bucket = %s",
        (scope.tenant, ord("h") >> 4),
    ).one()
    assert kept[0] is None


@pytest_asyncio.fixture
async def empty(cassandra_address: Address) -> AsyncIterator[Address]:
    address = replace(cassandra_address, keyspace=f"test_{uuid4().hex[:12]}")
    yield address
    with open_cluster(address) as cluster:
        await asyncio.to_thread(
            cluster.connect().execute, f"DROP KEYSPACE IF EXISTS {address.keyspace}", timeout=60
        )


async def test_migrating_twice_at_once_and_again_applies_each_file_once(empty: Address) -> None:
    with pytest.raises(SchemaTooOld, match="sendloom migrate"):
        await check_schema(empty)
    both = await asyncio.gather(migrate(empty, 1), migrate(empty, 1))
    names = [migration.name for migration in migrations()]
    assert sorted(both) == [[], names]
    await check_schema(empty)
    assert await migrate(empty, 1) == []


async def test_a_migration_that_was_changed_stops_the_next_one(empty: Address) -> None:
    await migrate(empty, 1)
    async with connection(empty) as opened:
        session = await opened.session()
        session.execute("UPDATE schema_migrations SET sha256 = 0x00 WHERE version = 1")
    with pytest.raises(ConfigurationError, match="was changed"):
        await migrate(empty, 1)


def test_every_statement_of_a_migration_may_be_repeated() -> None:
    for migration in migrations():
        for statement in statements(migration.sql):
            assert "IF NOT EXISTS" in statement


async def test_no_conditional_statement_is_ever_repeated_by_the_driver(
    ledger: CassandraLedger, connected: Connection
) -> None:
    conditional = {
        *("claim", "claim_again", "renew", "first_epoch", "epoch"),
        *("record", "record_over", "record_new", "settle"),
        *("suppress", "suppress_over", "unsuppress"),
    }
    for name in CQL:
        prepared = await ledger._prepare(name)
        assert prepared.is_idempotent is (name not in conditional), name


# --- the driver -------------------------------------------------------------------------------------------------------


class Counting(Connection):
    """Notes how many statements were in flight at most."""

    now = most = 0

    def start(self, session: Session, statement: Statement, seconds: float) -> asyncio.Future[Any]:
        future = super().start(session, statement, seconds)
        self.now += 1
        self.most = max(self.most, self.now)

        def end(_: object) -> None:
            self.now -= 1

        future.add_done_callback(end)
        return future


async def test_no_more_is_in_flight_than_allowed_and_the_rest_waits(
    cassandra_address: Address,
) -> None:
    counting = Counting(cassandra_address)
    try:
        requests = Requests(counting, 5)
        query = await requests.prepare("SELECT version FROM schema_migrations", idempotent=True)
        answers = await asyncio.gather(*(requests.execute(query.bind(())) for _ in range(60)))
        assert answers == [[(1,)]] * 60
        assert counting.most == 5
        # Whoever does not wait for the answer leaves the slot taken until it is there.
        waiting = [asyncio.create_task(requests.execute(query.bind(()))) for _ in range(5)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await requests.execute(query.bind(())) == [(1,)]
        assert counting.most == 5
    finally:
        await counting.close()


async def test_what_nobody_answers_is_unavailable(pool: Pool) -> None:
    nobody = Address(hosts=(("127.0.0.1", free_port()),), datacenter=DATACENTER, keyspace="x")
    async with connection(nobody) as away:
        ledger = a_cassandra_ledger(away, pool)
        with pytest.raises(StoreUnavailable):
            await ledger.claim(a_scope(), [Want("r")], uuid4(), MINUTE)
        with pytest.raises(StoreUnavailable):
            await ledger.suppression("t", Channel.EMAIL, [b"x"])


async def test_one_connection_serves_everybody_and_ends_with_the_last(
    cassandra_address: Address,
) -> None:
    async with connection(cassandra_address) as first:
        async with connection(cassandra_address) as second:
            assert second is first
        assert await first.session()
    with pytest.raises(StoreUnavailable):
        await first.session()
    async with connection(cassandra_address) as third:
        assert third is not first


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
async def test_after_kill_9_every_acknowledged_claim_is_there(
    cassandra_hosts: str, tmp_path: Path, pool: Pool
) -> None:
    """`commitlog_sync: batch`. With `periodic`, and nothing else changed, hundreds are gone."""
    server = EmbeddedCassandra(
        directory=tmp_path, port=free_port(), storage_port=free_port(), heap_mb=512
    )
    address = Address(hosts=parse_hosts(server.address), datacenter=DATACENTER, keyspace="killed")
    acknowledged: dict[ClaimScope, UUID] = {}
    enough = asyncio.Event()
    with running(server.part(), tmp_path / "first.log") as process:
        await migrate(address, 1)
        async with connection(address) as opened:
            ledger = a_cassandra_ledger(opened, pool)

            async def claimer(n: int) -> None:
                page = 0
                while True:
                    scope, owner = a_scope(shard=n, page=page), uuid4()
                    wants = [Want(f"r{m}") for m in range(1 + 20 * (n % 2))]
                    try:
                        answers = await ledger.claim(scope, wants, owner, MINUTE)
                    except StoreUnavailable:
                        # Killed, or only slow: then another page is asked for.
                        if enough.is_set():
                            return
                        page += 1
                        continue
                    assert all(isinstance(answer, Won) for answer in answers)
                    acknowledged[scope] = owner
                    if len(acknowledged) >= 300:
                        enough.set()
                    page += 1

            async def killer() -> None:
                await enough.wait()
                os.kill(process.pid, signal.SIGKILL)

            await asyncio.gather(killer(), *map(claimer, range(12)))
    assert len(acknowledged) >= 300
    with running(server.part(), tmp_path / "second.log"):
        async with connection(address) as opened:
            ledger = a_cassandra_ledger(opened, pool)
            for scope, owner in acknowledged.items():
                wants = [Want(f"r{m}") for m in range(1 + 20 * (scope.shard % 2))]
                rows = await ledger.read(scope, wants)
                assert {row and row.owner for row in rows} == {owner}


def test_hosts_are_read_as_they_are_written() -> None:
    assert parse_hosts("a:1, b:1") == (("a", 1), ("b", 1))
    assert parse_hosts("a") == (("a", 9042),)
    for wrong in ("", "a:x", "a:1,b:2", ":1"):
        with pytest.raises(ValueError, match="must"):
            parse_hosts(wrong)


def test_the_clock_of_leases_never_goes_back() -> None:
    assert monotonic() <= monotonic()
