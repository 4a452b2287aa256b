"""What reminders that wait for days cost a worker: nothing beyond its cache (C18)."""

import asyncio
import gc
import time
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from temporalio.client import Client

from schemas.kinds import Channel, Kind, MessageClass
from schemas.notifications import Due
from sendloom.platform.sealing import RingSealer
from sendloom.platform.temporal import connect
from sendloom.platform.temporal_setup import set_up
from sendloom.providers.simulators.server import Simulators
from sendloom.rows import AddressWrite, PartWrite, RecipientWrite
from sendloom.settings import Settings
from sendloom.stores.pool import Pool, open_pool
from sendloom.stores.recipients import PostgresRecipients
from tests.builders import (
    EMAIL,
    RECIPIENT,
    TENANT,
    a_category,
    a_reminder,
    a_tenant,
    accepted_row,
)
from tests.conftest import MakeSettings
from tests.workers.processes import Worker, environment
from workers import wiring
from workers.main import calm_the_collector
from workflows import starting

TRANSACTIONAL = MessageClass.TRANSACTIONAL
WAITING = 100
CACHED = 10
"""Workflows the worker may keep: a tenth of those that wait."""
BOUND_MB = 180
"""`docs/capacity.md`: what a worker is by itself, its cache, and garbage not yet collected."""
GARBAGE = 1_700
"""Workflows that left the cache and are not collected yet: 20 MB of them, at 12 KB."""
ON_TIME_S = 10.0
"""Transactional: at p99."""


class Cell:
    """Servers, one tenant with one person, and reminders for them."""

    def __init__(self, settings: Settings, pool: Pool, client: Client, sims: Simulators) -> None:
        self.settings = settings
        self.pool = pool
        self.client = client
        self.sims = sims
        self.sealer = RingSealer(settings.keys.ring(), settings.keys.hashes())
        self.stores = wiring.stores(pool, self.sealer)

    async def fill(self) -> None:
        catalog = self.stores.catalog
        await catalog.put_tenant(a_tenant())
        await catalog.put_category(a_category(TRANSACTIONAL))
        part = PartWrite(Channel.EMAIL, "en", "Hello", "Dear {{name}}", None)
        await catalog.add_template_version(TENANT, "t", {"name": {}}, "en", [part])
        await catalog.publish(TENANT, "t", 1)
        address = AddressWrite(Channel.EMAIL, EMAIL, EMAIL, verified=True)
        recipients = PostgresRecipients(self.pool, self.sealer)
        await recipients.upsert(TENANT, [RecipientWrite(RECIPIENT, addresses=(address,))])

    async def remind(self, dues: list[Due]) -> None:
        """Accepted and started, as the API does it."""
        room = asyncio.Semaphore(40)
        now = datetime.now(UTC)

        async def one(due: Due) -> None:
            async with room:
                row = accepted_row(a_reminder(due, accepted_at=now), Kind.REMINDER)
                stored, _ = await self.stores.accepted.insert_or_match(row)
                await starting.start(self.client, stored)

        await asyncio.gather(*(one(due) for due in dues))

    async def waiting(self, count: int) -> None:
        """Until the worker has had so many in its hands and put them down again: their moment is known."""
        known = "SELECT count(*) FROM accepted WHERE due_at IS NOT NULL"
        async with asyncio.timeout(120):
            while await self.pool.fetchval(known) < count:  # noqa: ASYNC110 - another process works
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def cell(
    make_settings: MakeSettings, fresh_database: str, valkey: str, temporal_server: str
) -> AsyncIterator[Cell]:
    async with Simulators() as sims:
        settings = make_settings(
            postgres=fresh_database,
            redis=valkey,
            # A namespace of its own: queues have fixed names, and nobody else's worker must serve them.
            temporal={
                "address": temporal_server,
                "namespace": f"waiting-{uuid4().hex[:8]}",
                "cached_workflows": CACHED,
            },
            smtp={"host": sims.host, "port": sims.smtp_port},
        )
        await set_up(settings, None)
        pool = await open_pool(fresh_database, 8, "tests")
        try:
            made = Cell(settings, pool, await connect(settings), sims)
            await made.fill()
            yield made
        finally:
            await pool.close()


async def megabytes(worker: Worker) -> float:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"http://127.0.0.1:{worker.port}/metrics")).text
    [line] = [x for x in text.splitlines() if x.startswith("process_resident_memory_bytes ")]
    return float(line.split(" ")[1]) / 1e6


def in_a_day_or_two(count: int) -> list[Due]:
    """By the clock on the wall, so that the worker has to look each one up."""
    first = datetime.now(UTC) + timedelta(hours=24)
    moments = [first + timedelta(seconds=n * 86_000 / count) for n in range(count)]
    return [Due(local=f"{moment:%Y-%m-%dT%H:%M:%S}") for moment in moments]


@pytest.mark.timeout(120)
async def test_c18_reminders_that_wait_cost_a_worker_no_memory_and_delay_none_that_is_due(
    cell: Cell,
):
    """Ten times what its cache holds, all there before it is. So few are lost in what the allocator keeps: the growth is
    the next test's."""
    await cell.remind(in_a_day_or_two(WAITING))
    async with Worker(environment(cell.settings), "--class", TRANSACTIONAL) as worker:
        await worker.ready()
        asked_at = time.monotonic()
        await cell.remind([Due(at=datetime.now(UTC) + timedelta(seconds=1)) for _ in range(10)])
        async with asyncio.timeout(60):
            while cell.sims.smtp.stats.messages < 10:  # noqa: ASYNC110 - another process sends
                await asyncio.sleep(0.02)
        assert time.monotonic() - (asked_at + 1) < ON_TIME_S
        await cell.waiting(WAITING)
        assert await megabytes(worker) < BOUND_MB
    assert cell.sims.smtp.stats.messages == 10


class Workflow:
    """To a collector: a hundred objects in circles, which nothing but it can free."""

    alive = 0

    def __init__(self) -> None:
        Workflow.alive += 1
        self.parts = [[self] for _ in range(100)]

    def __del__(self) -> None:
        Workflow.alive -= 1


def test_c18_twenty_thousand_that_leave_a_cache_are_collected_before_they_are_many():
    """Counted, not weighed. Each has been in the cache so long that only a full collection finds it."""
    thresholds = gc.get_threshold()
    cache: deque[Workflow] = deque(maxlen=1_000)
    most = 0
    try:
        calm_the_collector(pages=False)
        for _ in range(20_000):
            cache.append(Workflow())
            most = max(most, Workflow.alive - len(cache))
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert 0 < most < GARBAGE
