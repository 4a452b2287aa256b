"""How a process of ours starts, stops and leaves."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

from sendloom.errors import ConfigurationError, SchemaTooOld, Transient

log = logging.getLogger(__name__)

EXIT_CONFIGURATION = 78
"""EX_CONFIG of sysexits.h: starting again without a change will not help."""
EXIT_TRY_AGAIN = 75
"""EX_TEMPFAIL: a store did not answer; starting again may help."""


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
    """Run `main` on uvloop to its end, then leave: 0, or with one clear line 78 (an operator must fix it) or 75 (try again)."""
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_await(main))
    except (ConfigurationError, SchemaTooOld) as e:
        log.error("cannot run: %s", e)
        leave(EXIT_CONFIGURATION)
    except Transient as e:
        log.error("cannot run now: %s", e)
        leave(EXIT_TRY_AGAIN)
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
