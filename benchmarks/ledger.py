"""Claims and outcomes a second, and their p99, on both ledgers in one run. `python -m benchmarks.ledger --json`.

For each ledger: one a statement and 200 a page, with 1 and with 64 in flight, on new rows; every page is wanted by a rival at the
same time, so that two wins would show. Afterwards everything acknowledged is read again:

- claims_lost: acknowledged as won, and not there with that owner;
- claims_won_twice: won by both rivals.

For Cassandra also the driver's bridge to asyncio beside a pool of threads that call it and wait, on the same reads. The last line is
one JSON object.

    python -m benchmarks.ledger [--ledger postgres|cassandra|both] [--nodes 1|3] [--hosts host:port,…] [--seconds 3]
"""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import uvloop

from benchmarks.stack import machine, percentile
from schemas.kinds import Channel, ClaimState
from sendloom.embedded.cassandra import DATACENTER, EmbeddedCassandra
from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.embedded.postgres import EmbeddedPostgres
from sendloom.platform.hosts import parse_hosts
from sendloom.ports import ClaimAnswer, ClaimResult, ClaimScope, FullLedger, Want, Won
from sendloom.stores.cassandra import Address, Connection, Requests, connection, monotonic
from sendloom.stores.cql.runner import migrate as migrate_cassandra
from sendloom.stores.ledger.cassandra import CQL, CassandraLedger
from sendloom.stores.ledger.grounds import PostgresClock, PostgresEpochs, PostgresPlaces
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.migrations.runner import migrate
from sendloom.stores.pool import Pool, open_pool

LEASE = timedelta(minutes=5)
SHAPES = ((1, 1), (1, 64), (200, 1), (200, 64))
"""(rows a statement, statements in flight)."""
RIVAL_EVERY = 8
"""Of so many pages one is wanted twice at once: enough to show a double win, too few to be what is measured."""


@dataclass
class Figures:
    rows: int = 0
    claim_s: list[float] = field(default_factory=list)
    record_s: list[float] = field(default_factory=list)
    won: dict[ClaimScope, UUID] = field(default_factory=dict)
    twice: int = 0
    seconds: float = 0.0


def _ids(chunk: int) -> list[str]:
    return [f"r{n:03}" for n in range(chunk)]


async def measure(
    ledger: FullLedger, rival: FullLedger, chunk: int, in_flight: int, seconds: float
) -> tuple[Figures, Figures]:
    """Claims alone, then the outcomes of those alone, so that each is a figure of its own."""
    frozen_at, campaign = datetime.now(UTC), uuid4()
    wants = [Want(id) for id in _ids(chunk)]
    claims, records = Figures(), Figures()
    until = time.monotonic() + seconds
    numbers = iter(range(1 << 30))

    async def claimer() -> None:
        while time.monotonic() < until:
            page = next(numbers)
            scope = ClaimScope("bench", frozen_at, campaign, page % 64, page, Channel.EMAIL)
            owner, other = uuid4(), uuid4()
            began = time.perf_counter()
            if page % RIVAL_EVERY:
                answers = await ledger.claim(scope, wants, owner, LEASE)
                claims.claim_s.append(time.perf_counter() - began)
            else:
                answers, others = await asyncio.gather(
                    ledger.claim(scope, wants, owner, LEASE),
                    rival.claim(scope, wants, other, LEASE),
                )
                claims.twice += sum(
                    isinstance(a, Won) and isinstance(b, Won)
                    for a, b in zip(answers, others, strict=True)
                )
                if _all_won(others):
                    answers, owner = others, other
            if not _all_won(answers):
                raise RuntimeError("a new page was not won as a whole")
            claims.won[scope] = owner
            claims.rows += chunk

    began = time.perf_counter()
    await asyncio.gather(*(claimer() for _ in range(in_flight)))
    claims.seconds = time.perf_counter() - began
    left = iter(claims.won.items())
    until = time.monotonic() + seconds

    async def recorder() -> None:
        for scope, owner in left:
            if time.monotonic() > until:
                return
            results = [
                ClaimResult(id, 1, owner, ClaimState.SENT, provider="smtp", provider_message_id=f"<{id}.{scope.page}@example.com>")
                for id in _ids(chunk)
            ]  # fmt: skip
            began = time.perf_counter()
            await ledger.record(scope, results)
            records.record_s.append(time.perf_counter() - began)
            records.rows += chunk

    began = time.perf_counter()
    await asyncio.gather(*(recorder() for _ in range(in_flight)))
    records.seconds = time.perf_counter() - began
    return claims, records


def _all_won(answers: list[ClaimAnswer]) -> bool:
    return all(isinstance(answer, Won) for answer in answers)


async def lost(ledger: FullLedger, won: dict[ClaimScope, UUID], chunk: int) -> int:
    """How many acknowledged claims are not there, as their owner's."""
    missing = 0
    wants = [Want(id) for id in _ids(chunk)]
    left = iter(won.items())

    async def reader() -> None:
        nonlocal missing
        for scope, owner in left:
            rows = await ledger.read(scope, wants)
            missing += sum(row is None or row.owner != owner for row in rows)

    await asyncio.gather(*(reader() for _ in range(16)))
    return missing


async def both_shapes(
    name: str, ledger: FullLedger, rival: FullLedger, seconds: float
) -> dict[str, Any]:
    await measure(ledger, rival, 200, 8, seconds)  # the JVM compiles, plans are made
    result: dict[str, Any] = {f"{name}_claims_lost": 0, f"{name}_claims_won_twice": 0}
    for chunk, in_flight in SHAPES:
        claims, records = await measure(ledger, rival, chunk, in_flight, seconds)
        shape = f"{chunk}x{in_flight}"
        result[f"{name}_claims_per_second_{shape}"] = round(claims.rows / claims.seconds)
        result[f"{name}_claims_p99_ms_{shape}"] = round(1000 * percentile(claims.claim_s, 99), 1)
        result[f"{name}_outcomes_per_second_{shape}"] = round(records.rows / records.seconds)
        result[f"{name}_outcomes_p99_ms_{shape}"] = round(
            1000 * percentile(records.record_s, 99), 1
        )
        result[f"{name}_claims_lost"] += await lost(ledger, claims.won, chunk)
        result[f"{name}_claims_won_twice"] += claims.twice
    return result


async def bridge(connected: Connection, seconds: float) -> dict[str, Any]:
    """The same read, 64 in flight: awaited through our bridge, and waited for in a pool of 64 threads.

    Beside the rate, what the event loop is good for meanwhile: how late a timer of 1 ms comes.
    """
    requests = Requests(connected, 64)
    prepared = await requests.prepare(CQL["page_epoch"], idempotent=True)
    session = await connected.session()
    bound = prepared.bind(("bench", uuid4(), 0, 0, "email"))
    loop = asyncio.get_running_loop()

    async def late() -> list[float]:
        delays: list[float] = []
        while True:
            began = loop.time()
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                return delays
            delays.append(loop.time() - began - 0.001)

    async def rate(ask: Any) -> tuple[float, float, float]:
        done = 0
        until = time.monotonic() + seconds
        timer = asyncio.create_task(late())
        cpu = psutil.Process(os.getpid()).cpu_times()

        async def one() -> None:
            nonlocal done
            while time.monotonic() < until:
                await ask()
                done += 1

        await asyncio.gather(*(one() for _ in range(64)))
        after = psutil.Process(os.getpid()).cpu_times()
        timer.cancel()
        delays = await timer
        spent = after.user + after.system - cpu.user - cpu.system
        return done / seconds, 1000 * percentile(delays, 99), 1e6 * spent / done

    with ThreadPoolExecutor(64) as pool:
        await rate(lambda: requests.execute(bound))
        bridged = await rate(lambda: requests.execute(bound))
        threads = await rate(
            lambda: loop.run_in_executor(pool, lambda: list(session.execute(bound)))
        )
    result: dict[str, Any] = {}
    for name, (per_second, late_ms, cpu_us) in (("bridge", bridged), ("threads", threads)):
        result[f"{name}_reads_per_second"] = round(per_second)
        result[f"{name}_loop_late_p99_ms"] = round(late_ms, 2)
        result[f"{name}_cpu_us_a_read"] = round(cpu_us)
    result["ratio_bridge"] = round(bridged[0] / threads[0], 2)
    return result


@asynccontextmanager
async def cassandra_ledgers(
    hosts: str, pool: Pool, replication: int
) -> AsyncIterator[tuple[Connection, CassandraLedger, CassandraLedger]]:
    address = Address(hosts=parse_hosts(hosts), datacenter=DATACENTER, keyspace="sendloom_bench")
    await migrate_cassandra(address, replication)
    async with connection(address) as connected:

        def one() -> CassandraLedger:
            clock = PostgresClock(pool, monotonic)
            return CassandraLedger(
                Requests(connected), clock, PostgresEpochs(pool), PostgresPlaces(pool)
            )

        yield connected, one(), one()


async def run(dsn: str, hosts: str | None, options: argparse.Namespace) -> dict[str, Any]:
    await migrate(dsn)
    pool = await open_pool(dsn, 16, "benchmark ledger")
    result: dict[str, Any] = {"machine": machine(), "nodes": options.nodes}
    async with AsyncExitStack() as opened:
        opened.push_async_callback(pool.close)
        if options.ledger != "cassandra":
            ledgers = PostgresLedger(pool), PostgresLedger(pool)
            result |= await both_shapes("postgres", *ledgers, options.seconds)
        if hosts is not None:
            replication = 3 if options.nodes == 3 else 1
            connected, ledger, rival = await opened.enter_async_context(
                cassandra_ledgers(hosts, pool, replication)
            )
            result |= await both_shapes("cassandra", ledger, rival, options.seconds)
            result |= await bridge(connected, options.seconds)
    for what in ("claims_lost", "claims_won_twice"):
        result[what] = sum(value for name, value in result.items() if name.endswith(f"_{what}"))
    return result


@contextmanager
def servers(options: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """Postgres, for its clock and its own figures, and Cassandra, in a folder of their own; removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="sendloom-ledger-") as directory,
        contextlib.ExitStack() as opened,
    ):
        home = Path(directory)
        home.chmod(0o755)
        postgres = EmbeddedPostgres(
            directory=home / "postgres", port=free_port(), password=uuid4().hex
        )
        opened.enter_context(running(postgres.part(), home / "postgres.log"))
        hosts: str | None = options.hosts
        if hosts is None and options.ledger != "postgres":
            server = EmbeddedCassandra(
                directory=home / "cassandra",
                port=free_port(),
                storage_port=free_port(),
                nodes=options.nodes,
            )
            server.directory.mkdir()
            for part in server.parts():
                opened.enter_context(running(part, home / f"{part.name}.log"))
            hosts = server.address
        yield postgres.dsn(), hosts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledger", choices=("postgres", "cassandra", "both"), default="both")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument(
        "--hosts", help="a Cassandra of your own; a keyspace sendloom_bench is made"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args()
    with servers(options) as (dsn, hosts):
        result = uvloop.run(run(dsn, hosts, options))
    if not options.json:
        for name, value in result.items():
            print(f"{name:40} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
