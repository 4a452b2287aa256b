"""Saying that an activity lives, from a timer and not from its progress; and picking up what it said."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from temporalio import activity

from schemas.wire import Wire

EVERY = 1.0
"""Seconds. The first beat comes after this, so what is done sooner costs none."""
CAMPAIGN = 1.6
"""Seconds, for the long steps of campaigns: three within the 5 after which one is believed dead. Each costs as much as a step of a workflow."""

W = TypeVar("W", bound=Wire)
T = TypeVar("T")


def resume(model: type[W]) -> W | None:
    """What the attempt before this one said last. It may be stale: beats are throttled and get lost."""
    details = activity.info().heartbeat_details
    return model.model_validate(details[0]) if details else None


@contextlib.asynccontextmanager
async def heartbeating(
    details: Callable[[], Wire | None] = lambda: None, *, every: float = EVERY
) -> AsyncIterator[None]:
    """Beat until the block ends, whatever the block is waiting for."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(every)
            say(details())

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


def say(details: Wire | None) -> None:
    """One beat now."""
    if details is None:
        activity.heartbeat()
    else:
        activity.heartbeat(details.model_dump(mode="json"))


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, whoever cancels the caller meanwhile: a call that is being made is finished and recorded."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()
