"""Three real nodes, some of which are killed or hang while claims go on. `make test-nodes`.

What must hold throughout: who is told that a claim is theirs is the only one, for ever; what is not known for certain is
unavailable; and whoever asks again later, as the same owner, gets their answer.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from schemas.kinds import Channel, ClaimState
from sendloom.embedded.cassandra import DATACENTER, EmbeddedCassandra, why_not
from sendloom.embedded.parts import launch, stop, tail, wait_until
from sendloom.embedded.ports import free_port
from sendloom.errors import StoreUnavailable
from sendloom.platform.hosts import parse_hosts
from sendloom.ports import ClaimResult, ClaimScope, Done, InFlight, Want, Won
from sendloom.stores.cassandra import Address, connection
from sendloom.stores.cql.runner import migrate
from sendloom.stores.ledger.cassandra import CassandraLedger
from sendloom.stores.pool import Pool
from tests.conftest import NO_CASSANDRA
from tests.stores.conftest import NOW, a_cassandra_ledger

pytestmark = [pytest.mark.cassandra_nodes, pytest.mark.timeout(300)]

T = TypeVar("T")
MINUTES = timedelta(minutes=5)
PAGES = 8
ROWS = 10


class Ring:
    """Three nodes, each of which can be killed, held and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = EmbeddedCassandra(
            directory=directory, port=free_port(), storage_port=free_port(), nodes=3, heap_mb=512
        )
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        # They die with the thread that started them, so it must outlive every test.
        self._thread = ThreadPoolExecutor(1)

    @property
    def address(self) -> Address:
        hosts = parse_hosts(self.server.address)
        return Address(hosts=hosts, datacenter=DATACENTER, keyspace="ring")

    def beside(self, work: Callable[..., None], *args: int) -> asyncio.Future[None]:
        """Without holding the loop up."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def start(self, node: int) -> None:
        part, log = self.server.part(node), self.directory / f"node{node + 1}.log"
        assert part.prepare is not None
        part.prepare()
        process = launch(part, log, die_with_parent=True)
        self.processes[node] = process
        ready = wait_until(part.ready, seconds=120, failed=lambda: process.poll() is not None)
        assert ready, tail(log, 20)

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def hold(self, node: int) -> None:
        """It takes connections and bytes, and answers nothing."""
        os.kill(self.processes[node].pid, signal.SIGSTOP)

    def let_go(self, node: int) -> None:
        os.kill(self.processes[node].pid, signal.SIGCONT)

    def mend(self) -> None:
        for node in range(3):
            if node in self.processes:
                self.let_go(node)
            else:
                self.start(node)

    def stop(self) -> None:
        for node, process in self.processes.items():
            with contextlib.suppress(ProcessLookupError):
                self.let_go(node)
            stop(replace(self.server.part(node), stop_seconds=5), process)
        self._thread.shutdown()


@pytest.fixture(scope="module")
def whole_ring() -> Iterator[Ring]:
    if (missing := why_not()) is not None:
        pytest.skip(f"{NO_CASSANDRA}: {missing}")
    directory = Path(tempfile.mkdtemp(prefix="sendloom-ring-"))
    ring = Ring(directory)
    try:
        ring._thread.submit(ring.mend).result()
        yield ring
    finally:
        ring.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest_asyncio.fixture
async def ring(whole_ring: Ring) -> AsyncIterator[Ring]:
    """All three up, and the schema there."""
    await whole_ring.beside(whole_ring.mend)
    await insist(lambda: migrate(whole_ring.address, 3))
    yield whole_ring


@pytest_asyncio.fixture
async def ledger(ring: Ring, pool: Pool) -> AsyncIterator[CassandraLedger]:
    async with connection(ring.address) as connected:
        yield a_cassandra_ledger(connected, pool)


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """As senders do: the same again, for as long as the ledger is away."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.2)


class Senders:
    """Rivals for the same deliveries, each of which calls when it is told that it may."""

    def __init__(self, ledger: CassandraLedger) -> None:
        self.ledger = ledger
        self.campaign = uuid4()
        self.called: dict[tuple[int, str], list[UUID]] = {}
        self.unavailable = 0
        self._won = asyncio.Condition()

    def scope(self, page: int) -> ClaimScope:
        return ClaimScope("t", NOW, self.campaign, 0, page, Channel.EMAIL)

    async def claim(self, page: int, owner: UUID) -> None:
        scope = self.scope(page)
        wants = [Want(f"r{n}") for n in range(ROWS)]
        while True:
            try:
                answers = await self.ledger.claim(scope, wants, owner, MINUTES)
                break
            except StoreUnavailable:
                self.unavailable += 1
                await asyncio.sleep(0.05)
        won = [w for w, answer in zip(wants, answers, strict=True) if isinstance(answer, Won)]
        for want in won:
            self.called.setdefault((page, want.recipient_id), []).append(owner)
        results = [ClaimResult(want.recipient_id, 1, owner, ClaimState.SENT) for want in won]
        await insist(lambda: self.ledger.record(scope, results))
        async with self._won:
            self._won.notify_all()

    async def until_called(self, count: int) -> None:
        async with self._won:
            await self._won.wait_for(lambda: len(self.called) >= count)

    async def run(self, pages: range) -> None:
        """Two rivals a page, a few pages at a time."""
        slots = asyncio.Semaphore(4)

        async def one(page: int) -> None:
            async with slots:
                await asyncio.gather(self.claim(page, uuid4()), self.claim(page, uuid4()))

        await asyncio.gather(*map(one, pages))

    async def check(self, pages: range) -> None:
        """Everybody was called once, by whoever the ledger says."""
        assert len(self.called) == len(pages) * ROWS
        assert Counter(map(len, self.called.values())) == {1: len(self.called)}
        for page in pages:
            wants = [Want(f"r{n}") for n in range(ROWS)]
            rows = await insist(lambda at=page, of=wants: self.ledger.read(self.scope(at), of))  # type: ignore[misc]
            for row in rows:
                assert row is not None
                assert row.state is ClaimState.SENT
                assert self.called[page, row.key.recipient_id] == [row.owner]


async def test_one_node_killed_under_load_and_back_changes_nothing(
    ring: Ring, ledger: CassandraLedger
) -> None:
    senders, pages = Senders(ledger), range(120)
    load = asyncio.create_task(senders.run(pages))
    await senders.until_called(20 * ROWS)
    await ring.beside(ring.kill, 2)
    await senders.until_called(70 * ROWS)
    back = ring.beside(ring.start, 2)
    await load
    await back
    await senders.check(pages)
    # What was claimed while it was away is known to a majority with it in it as well.
    await ring.beside(ring.kill, 0)
    await senders.check(pages)


async def test_with_two_nodes_killed_nothing_is_claimed_and_later_all_of_it_once(
    ring: Ring, ledger: CassandraLedger
) -> None:
    """Fail closed, for claims and for suppressions; the same owner asks again and gets its answer."""
    senders = Senders(ledger)
    scope, owner, other = senders.scope(0), uuid4(), uuid4()
    stopped, fresh = b"\x01" * 32, b"\x02" * 32
    await insist(lambda: ledger.claim(scope, [Want("before")], other, MINUTES))
    await insist(lambda: ledger.suppress("t", Channel.EMAIL, stopped, "stop", "test"))
    for node in (1, 2):
        await ring.beside(ring.kill, node)

    async def claim() -> list[Any]:
        return await ledger.claim(scope, [Want("before"), Want("r")], owner, MINUTES)

    refused: list[Callable[[], Awaitable[Any]]] = [
        claim,
        lambda: ledger.read(scope, [Want("r")]),
        lambda: ledger.record(scope, [ClaimResult("r", 1, owner, ClaimState.SENT)]),
        lambda: ledger.settle(scope),
        lambda: ledger.suppression("t", Channel.EMAIL, [stopped, fresh]),
        lambda: ledger.suppress("t", Channel.EMAIL, fresh, "manual", "test"),
        lambda: ledger.unsuppress("t", Channel.EMAIL, stopped),
    ]
    for ask in refused:
        with pytest.raises(StoreUnavailable):
            await ask()
    await ring.beside(ring.start, 1)
    before, mine = await insist(claim)
    # The record above was refused for certain, or it is there: a claimless send is recorded, never sent again.
    assert isinstance(before, InFlight)
    assert isinstance(mine, Won | Done)
    rivals = await asyncio.gather(
        *(insist(lambda: ledger.claim(scope, [Want("r")], uuid4(), MINUTES)) for _ in range(5))
    )
    assert not any(isinstance(answer, Won) for [answer] in rivals)
    found = await insist(lambda: ledger.suppression("t", Channel.EMAIL, [stopped]))
    assert found in ({stopped: "stop"}, {})
    await ring.beside(ring.start, 2)


async def test_a_node_that_hangs_makes_nobody_call_twice(
    ring: Ring, ledger: CassandraLedger
) -> None:
    """A coordinator that took the batch and says nothing: the answer is found out by reading."""
    senders, pages = Senders(ledger), range(40)
    load = asyncio.create_task(senders.run(pages))
    await senders.until_called(5 * ROWS)
    ring.hold(1)
    try:
        await senders.until_called(25 * ROWS)
    finally:
        ring.let_go(1)
    await load
    await senders.check(pages)


async def test_a_schema_that_not_all_nodes_know_stops_the_migration(
    ring: Ring, ledger: CassandraLedger, pool: Pool
) -> None:
    newer = replace(ring.address, keyspace=f"newer_{uuid4().hex[:8]}")
    senders = Senders(ledger)
    ring.hold(2)
    try:
        with pytest.raises(StoreUnavailable, match="do not agree"):
            await migrate(newer, 3, agree_within=2.0)
        # What was there before is served meanwhile, by the other two.
        await senders.run(range(2))
    finally:
        ring.let_go(2)
    await insist(lambda: migrate(newer, 3))
    async with connection(newer) as connected:
        fresh = Senders(a_cassandra_ledger(connected, pool))
        await fresh.run(range(PAGES))
        await fresh.check(range(PAGES))
    await senders.check(range(2))
