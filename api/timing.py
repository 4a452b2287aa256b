"""Answering in time: a store or Temporal that hangs must become a 503 within a second (ACC-10)."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from sendloom.errors import StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

ANSWER_WITHIN = 0.9
"""Seconds of a request's own work; who asks, and what was asked, together."""

_left: ContextVar[float] = ContextVar("left", default=ANSWER_WITHIN)
"""Seconds that this request may still wait for stores. The time its body takes to arrive is not ours."""


def begin(seconds: float) -> None:
    """A request begins, and has so long."""
    _left.set(seconds)


async def within(work: Awaitable[T], seconds: float | None = None) -> T:
    """The result. What is late is cancelled but not waited for, because giving a hung connection back takes long.

    Raises:
        StoreUnavailable: it took longer than `seconds`, or than the request has left.
    """
    left, began = _left.get(), time.monotonic()
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=left if seconds is None else seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        _left.set(max(left - (time.monotonic() - began), 0.0))
    if done:
        return task.result()
    forget(task)
    raise StoreUnavailable("no answer in time")


def timely(handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A route that answers in time, whatever its stores do."""

    @functools.wraps(handler)
    async def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        return await within(handler(*args, **kwargs))

    return timed


def forget(task: "asyncio.Future[Any]") -> None:
    """Stop it, and let nobody hear of how it ended."""
    task.add_done_callback(_look)
    task.cancel()


def _look(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()
