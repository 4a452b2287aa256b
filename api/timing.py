"""Answering in time: a store or Temporal that hangs must become a 503 within a second (ACC-10)."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from sendloom.errors import StoreUnavailable

T = TypeVar("T")

ANSWER_WITHIN = 0.9
"""Seconds, from the first byte of a request."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result. What is late is cancelled but not waited for, because giving a hung connection back takes long.

    Raises:
        StoreUnavailable: it took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        return task.result()
    forget(task)
    raise StoreUnavailable(f"no answer within {seconds:g} s")


def forget(task: "asyncio.Future[Any]") -> None:
    """Stop it, and let nobody hear of how it ended."""
    task.add_done_callback(_look)
    task.cancel()


def _look(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()
