"""How a process of ours starts, stops and leaves."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from sendloom.errors import ConfigurationError, SchemaTooOld

log = logging.getLogger(__name__)

EXIT_CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: starting again without a change will not help."""


def leave(code: int) -> NoReturn:
    """End now, with what was written flushed.

    temporalio's Rust threads can abort a Python interpreter that shuts down in the usual way (sdk-python issue 300),
    which turns a clean drain into a core dump. Call it after everything is drained and closed.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
            stream.flush()
    os._exit(code)


def run_and_leave(main: Callable[[], Awaitable[None]]) -> NoReturn:
    """Run `main` on uvloop to its end, then leave: 0, or 78 with one clear line for what an operator must fix."""
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_await(main))
    except (ConfigurationError, SchemaTooOld) as e:
        log.error("cannot run: %s", e)
        leave(EXIT_CONFIGURATION)
    except KeyboardInterrupt:
        leave(0)
    except BaseException:
        log.exception("ended by an error nobody expected")
        leave(1)
    leave(0)


def stop_requested() -> asyncio.Event:
    """Set by the first SIGTERM or Ctrl-C. Call from a running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    return stop


async def _await(main: Callable[[], Awaitable[None]]) -> None:
    await main()
