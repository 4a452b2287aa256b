"""Running a fleet until it is told to stop, and then draining every lane at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from temporalio.worker import Worker

from sendloom.platform.metrics.workers import record_draining

log = logging.getLogger(__name__)

Background = Callable[[], Awaitable[None]]
"""Something that runs beside the workers until it is cancelled."""


async def serve(
    workers: Sequence[Worker],
    stop: asyncio.Event,
    *,
    beside: Sequence[Background] = (),
    draining: Callable[[], None] = lambda: None,
) -> None:
    """Until `stop` is set or anything here fails; then drain all lanes at once.

    Raises:
        Exception: what ended a worker or a background task before it was told to.
    """
    running = [asyncio.create_task(worker.run()) for worker in workers]
    extra = [asyncio.create_task(_run(background)) for background in beside]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*running, *extra, stopping], return_when=asyncio.FIRST_COMPLETED)
        draining()
        record_draining()
        log.info("draining", extra={"workers": len(workers)})
        for task in (*extra, stopping):
            task.cancel()
        await asyncio.gather(*(worker.shutdown() for worker in workers), return_exceptions=True)
    finally:
        for task in (*extra, stopping):
            task.cancel()
    ended = await asyncio.gather(*running, *extra, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    log.info("drained")


async def _run(background: Background) -> None:
    await background()


async def every(seconds: float, step: Callable[[], Awaitable[None]], name: str) -> None:
    """Again and again. A step that fails is logged and tried again at its next turn."""
    while True:
        try:
            await step()
        except Exception:
            # Housekeeping that stopped for good at its first failure would be noticed too late.
            log.exception("a housekeeping step failed", extra={"step": name})
        await asyncio.sleep(seconds)
