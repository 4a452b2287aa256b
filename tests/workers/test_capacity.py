"""Figures to scale by, and marketing's hard ceilings (LANE-8)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from schemas.kinds import MessageClass
from sendloom.domain.capacity import Bounds
from sendloom.domain.lanes import lanes_of
from sendloom.platform.temporal import waiting_in
from sendloom.settings import Settings
from tests.campaign_fakes import until
from workers import wiring
from workers.capacity import CapacityWatch, Waiting, queues_of
from workers.locks import PlaceLost, Places

SECURITY, TRANSACTIONAL, MARKETING = (
    MessageClass.SECURITY,
    MessageClass.TRANSACTIONAL,
    MessageClass.MARKETING,
)
SOON = 0.02


def value(name: str, **labels: str) -> float:
    found = REGISTRY.get_sample_value(name, labels)
    assert found is not None
    return found


# --- what is wanted ---------------------------------------------------------------------------------------------------


async def test_each_class_is_told_apart_by_its_oldest_item():
    waits = {"send-sms-security": timedelta(seconds=1), "send-email-marketing": timedelta(hours=1)}

    async def look(queue: str) -> Waiting:
        own = {f"host/{pid}/{queue}" for pid in ((1, 2) if queue.endswith("security") else (3,))}
        return Waiting(7, waits.get(queue, timedelta(0)), frozenset(own))

    watch = CapacityWatch(
        look, {SECURITY: Bounds(1), TRANSACTIONAL: Bounds(1), MARKETING: Bounds(0, 1)}
    )
    await watch.watch()
    processes = {
        c: (
            value("sendloom_worker_processes", message_class=c),
            value("sendloom_worker_processes_wanted", message_class=c),
        )
        for c in MessageClass
    }
    assert processes == {SECURITY: (2, 4), TRANSACTIONAL: (1, 1), MARKETING: (1, 1)}
    assert value("sendloom_lane_oldest_seconds", queue="send-sms-security") == 1
    assert value("sendloom_lane_backlog", queue="flow-transactional") == 7


async def test_too_few_processes_for_security_are_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
):
    async def nobody(queue: str) -> Waiting:
        return Waiting(0, timedelta(0), frozenset())

    await CapacityWatch(nobody, {SECURITY: Bounds(3), MARKETING: Bounds(0, 4)}).watch()
    assert value("sendloom_worker_processes_wanted", message_class=SECURITY) == 3
    [said] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert said.getMessage() == "security has too few processes"


def test_every_queue_of_a_class_is_looked_at():
    assert set(queues_of(SECURITY)) == {
        "flow-security",
        "send-email-security",
        "send-sms-security",
        "send-apns-security",
        "send-fcm-security",
    }


@activity.defn(name="capacity.nothing")
async def nothing() -> None:
    return None


@workflow.defn(name="CapacityNothing")
class Nothing:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=5))


async def test_temporal_says_what_waits_and_who_asks(temporal_client: Client):
    queue = f"capacity-{uuid4()}"
    handles = [
        await temporal_client.start_workflow(Nothing.run, id=f"{queue}-{n}", task_queue=queue)
        for n in range(3)
    ]
    async with asyncio.timeout(60):
        tasks, oldest, workers = 0, timedelta(0), frozenset[str]()
        while tasks < 3 or not oldest:
            tasks, oldest, workers = await waiting_in(temporal_client, queue)
    assert workers == frozenset()
    async with Worker(
        temporal_client,
        task_queue=queue,
        workflows=[Nothing],
        activities=[nothing],
        identity=f"host/17/{queue}",
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await asyncio.gather(*(handle.result() for handle in handles))
        _, _, workers = await waiting_in(temporal_client, queue)
    assert workers == {f"host/17/{queue}"}


# --- ceilings -----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def places(database: str) -> AsyncIterator[Any]:
    async with AsyncExitStack() as leaving:

        def place(most: int = 2) -> Places:
            made = Places(database, "marketing", most, every=SOON)
            leaving.push_async_callback(made.leave)
            return made

        yield place


async def test_a_third_process_stands_by_until_one_of_two_leaves(
    places: Any, caplog: pytest.LogCaptureFixture
):
    first, second, third = places(), places(), places()
    await asyncio.gather(first.take(), second.take())
    waiting = asyncio.create_task(third.take())
    await until(lambda: "standing by" in caplog.text, 30)
    assert not waiting.done()
    await first.leave()
    await asyncio.wait_for(waiting, 30)


async def test_a_place_whose_connection_was_cut_is_taken_again(places: Any, database: str):
    place = places(1)
    await place.take()
    keeping = asyncio.create_task(place.keep())
    lost = place._connection
    await cut(database)
    await kept(place, keeping, lost)
    assert await places(1)._try() is False


async def test_who_lost_its_place_to_another_stops(places: Any, database: str):
    loser, winner = places(1), places(1)
    await loser.take()
    waiting = asyncio.create_task(winner.take())
    await cut(database)
    await asyncio.wait_for(waiting, 30)
    with pytest.raises(PlaceLost):
        await asyncio.wait_for(loser.keep(), 30)


@asynccontextmanager
async def wire(database: str) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A way to the database, and our ends of it: what is closed here the server does not hear of."""
    there = urlsplit(database)
    ours: list[asyncio.StreamWriter] = []
    beyond: list[asyncio.StreamWriter] = []
    passing: list[asyncio.Task[None]] = []

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, onward = await asyncio.open_connection(there.hostname, there.port)
        ours.append(writer)
        beyond.append(onward)
        passing.append(asyncio.create_task(carry(reader, onward)))
        passing.append(asyncio.create_task(carry(back, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield database.replace(f":{there.port}/", f":{port}/"), ours
    finally:
        server.close()
        for end in (*ours, *beyond):
            end.close()
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


async def kept(place: Places, keeping: "asyncio.Task[None]", lost: object) -> None:
    """Until it has its place again."""
    await until(lambda: keeping.done() or place._connection not in (None, lost), 30)
    if keeping.done():
        keeping.result()
    keeping.cancel()


async def test_a_session_that_the_server_has_longer_than_we_is_no_other_process(
    places: Any, database: str
):
    """The network was cut: the server may not hear of it for minutes."""
    async with wire(database) as (through, ours):
        place = Places(through, "marketing", 1, every=SOON)
        await place.take()
        lost = place._connection
        keeping = asyncio.create_task(place.keep())
        ours[0].close()
        await kept(place, keeping, lost)
        assert await places(1)._try() is False
        await place.leave()


async def test_nor_is_one_that_the_server_is_slow_to_end(places: Any, database: str):
    place = places(1)
    await place.take()
    lost = place._connection
    backend = lost.get_server_pid()
    watching = await asyncpg.connect(database)
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND pid <> $2"
    os.kill(backend, signal.SIGSTOP)
    try:
        keeping = asyncio.create_task(place.keep())
        lost.terminate()
        tried: set[int] = set()
        async with asyncio.timeout(30):
            # It looks again, and again the old session is still there.
            while len(tried) < 2 and not keeping.done():
                tried |= {row["pid"] for row in await watching.fetch(sessions, place._us, backend)}
    finally:
        os.kill(backend, signal.SIGCONT)
        await watching.close()
    await kept(place, keeping, lost)
    assert await places(1)._try() is False


async def cut(database: str) -> None:
    """Ends every session that holds a place."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
        )
    finally:
        await connection.close()


@pytest.mark.parametrize("message_class", MessageClass)
async def test_a_process_opens_no_more_connections_than_it_says(
    message_class: MessageClass, settings: Settings, temporal_client: Client
):
    async with AsyncExitStack() as open_:
        common = await open_.enter_async_context(wiring.shared(settings))
        parts: list[Any] = [common.watch, common.guard]
        for serves in (
            wiring.flow(settings, message_class, temporal_client, common),
            *(wiring.lane(settings, lane, common) for lane in lanes_of(message_class)),
        ):
            methods: list[Any] = list(await open_.enter_async_context(serves))
            parts += [method.__self__ for method in methods]
        pools = {id(pool): pool for part in parts for pool in pools_of(part)}
        most = sum(pool.get_max_size() for pool in pools.values())
    place = 1 if message_class is MARKETING else 0
    assert most + place == wiring.connections(message_class)
    assert wiring.connections(MARKETING) == 22


def pools_of(part: Any) -> list[Any]:
    """Of everything an object is made of that has one."""
    return [
        pool
        for one in getattr(part, "__dict__", {}).values()
        if (pool := getattr(one, "_pool", None)) is not None
    ]
