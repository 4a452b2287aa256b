"""What `sendloom worker` runs: one class with its lanes and its flow queue, some lanes, or housekeeping."""

import asyncio
import gc
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from schemas.kinds import MessageClass
from sendloom.domain.lanes import LANES, Lane, lanes_of
from sendloom.errors import ConfigurationError
from sendloom.platform import logging as our_logging
from sendloom.platform import process, telemetry
from sendloom.platform.temporal import connect
from sendloom.settings import Settings, load_settings
from sendloom.stores.migrations.runner import check_schema
from workers import wiring
from workers.fleet import flow_worker, lane_worker, ops_worker
from workers.health import Health, listening
from workers.locks import Places
from workers.serve import Background, serve

log = logging.getLogger(__name__)

OPS = "ops"


def main(message_class: str | None, lanes: Sequence[str] | None, health_port: int | None) -> None:
    """Serve until SIGTERM, then leave. Never returns.

    Raises:
        ConfigurationError: it cannot even be tried.
    """
    settings = load_settings()
    serves = _serves(message_class, lanes or ())
    our_logging.configure(f"worker-{serves}", settings.log_level)
    telemetry.install(settings.telemetry, f"worker-{serves}")
    chosen = [_lane(name) for name in lanes or ()]

    async def run() -> None:
        await _run(settings, message_class, chosen, health_port or 0)

    process.run_and_leave(run)


async def _run(
    settings: Settings, message_class: str | None, lanes: list[Lane], health_port: int
) -> None:
    stop = process.stop_requested()
    health = Health()
    async with AsyncExitStack() as open_:
        await open_.enter_async_context(listening(health, health_port))
        # At once what can be: every second here is one in which a killed worker's passcodes wait.
        client, _ = await asyncio.gather(connect(settings), check_schema(settings.postgres_dsn))
        if message_class == OPS:
            await _serve_ops(settings, client, stop, health)
            return
        beside: list[Background] = []
        if _serves_marketing(message_class, lanes):
            places = Places(settings.postgres_dsn, "marketing", settings.workers.marketing_most)
            open_.push_async_callback(places.leave)
            health.standing_by()
            if not await _unless_stopped(places.take(), stop):
                return
            beside.append(places.keep)
        workers = await _open_workers(settings, client, message_class, lanes, open_)
        calm_the_collector(pages=message_class == MessageClass.MARKETING or bool(lanes))
        health.ready()
        log.info("serving", extra={"queues": [worker.task_queue for worker in workers]})
        await serve(workers, stop, beside=beside, draining=health.draining)


def _serves_marketing(message_class: str | None, lanes: Sequence[Lane]) -> bool:
    return message_class == MessageClass.MARKETING or any(
        lane.message_class is MessageClass.MARKETING for lane in lanes
    )


async def _unless_stopped(waiting: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """False: it was told to stop before what it waited for came."""
    both = asyncio.create_task(waiting), asyncio.create_task(stop.wait())
    done, rest = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
    return not stop.is_set()


def calm_the_collector(pages: bool) -> None:
    """What is here now stays: looking at it in every collection cost a third of reading a page's people.

    What a page of people makes dies with it, so looking after every 700 objects finds nothing. A workflow that left the cache
    is some hundred objects in circles, 12 KB, which only a full collection frees: it must come by often enough, or reminders
    that wait for days fill the memory by the gigabyte (case C18).
    """
    gc.freeze()
    # It remembers how much there was and waits for a quarter of that to come: from here on there is nothing.
    gc.collect()
    gc.set_threshold(*((50_000, 4, 4) if pages else (5_000, 3, 3)))


async def _open_workers(
    settings: Settings,
    client: Client,
    message_class: str | None,
    lanes: list[Lane],
    open_: AsyncExitStack,
) -> list[Worker]:
    """The flow queue's worker, if a class is served, and the lanes', each over parts of its own."""
    build_id, cached = settings.temporal.build_id, settings.temporal.cached_workflows
    common = await open_.enter_async_context(wiring.shared(settings))

    async def flow(served: MessageClass) -> Worker:
        activities = await open_.enter_async_context(wiring.flow(settings, served, client, common))
        return flow_worker(client, served, activities, build_id, cached)

    async def one(lane: Lane) -> Worker:
        activities = await open_.enter_async_context(wiring.lane(settings, lane, common))
        return lane_worker(client, lane, activities, build_id)

    opening: list[Coroutine[Any, Any, Worker]] = []
    if message_class is not None:
        served = MessageClass(message_class)
        opening.append(flow(served))
        lanes = lanes or list(lanes_of(served))
    opening += [one(lane) for lane in lanes]
    return await asyncio.gather(*opening)


async def _serve_ops(
    settings: Settings, client: Client, stop: asyncio.Event, health: Health
) -> None:
    async with wiring.ops(settings, client) as ops:
        worker = ops_worker(client, ops.activities, settings.temporal.build_id)
        calm_the_collector(pages=False)
        health.ready()
        log.info("serving", extra={"queues": [worker.task_queue]})
        await serve([worker], stop, beside=ops.loops, draining=health.draining)


def _serves(message_class: str | None, lanes: Sequence[str]) -> str:
    """A name for logs, after refusing what makes no sense."""
    classes = [*MessageClass, OPS]
    if message_class is None and not lanes:
        raise ConfigurationError(f"say what to serve: --class {' | '.join(classes)}, or --lane")
    if message_class is not None and message_class not in classes:
        raise ConfigurationError(
            f"--class {message_class} is not a class; it is one of {', '.join(classes)}"
        )
    if message_class == OPS and lanes:
        raise ConfigurationError("--class ops serves no lanes")
    return message_class or "lanes"


def _lane(queue: str) -> Lane:
    for lane in LANES.values():
        if lane.queue == queue:
            return lane
    raise ConfigurationError(
        f"--lane {queue} is not a lane; they are {', '.join(lane.queue for lane in LANES.values())}"
    )
