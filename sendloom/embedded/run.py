"""From a directory to a running stack and back."""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from sendloom.embedded.home import cassandra_alone, open_home
from sendloom.embedded.parts import Part
from sendloom.embedded.ports import PortTaken
from sendloom.embedded.stack import stack_addresses, stack_parts
from sendloom.embedded.state import StackState, sole_supervisor, stop_orphans
from sendloom.embedded.supervisor import Supervisor

log = logging.getLogger(__name__)

_PORT_CHOICES = 3
"""Somebody else starts a stack at the same moment; not thrice."""


async def run_cassandra(
    home: Path, nodes: int, *, changed: Callable[[StackState], None] = lambda _: None
) -> None:
    """Cassandra alone, until SIGTERM or Ctrl-C.

    Raises:
        ConfigurationError: it already runs, a port is taken, or a node cannot be started.
    """
    directory = home / "cassandra"
    directory.mkdir(parents=True, exist_ok=True)
    with sole_supervisor(directory):
        if left := await asyncio.to_thread(stop_orphans, directory):
            log.warning("stopped what a killed supervisor had left", extra={"parts": left})

        def chosen() -> Supervisor:
            server = cassandra_alone(home, nodes)
            addresses = {"cassandra_hosts": server.address}
            return Supervisor(server.parts(), directory, addresses=addresses, changed=changed)

        await supervise(chosen)


async def run_stack(
    home: Path,
    *,
    changed: Callable[[StackState], None] = lambda _: None,
    only: Callable[[Sequence[Part]], Sequence[Part]] = lambda parts: parts,
) -> None:
    """Run everything (or `only` some of it) until SIGTERM or Ctrl-C, then drain. The home must exist.

    Raises:
        ConfigurationError: it already runs, a port is taken, or a part cannot be started.
    """
    with sole_supervisor(home):
        # What a killed supervisor left holds our ports and data: end it before looking at either.
        if left := await asyncio.to_thread(stop_orphans, home):
            log.warning("stopped what a killed supervisor had left", extra={"parts": left})

        def chosen() -> Supervisor:
            opened = open_home(home)
            parts = only(stack_parts(opened))
            return Supervisor(parts, home, addresses=stack_addresses(opened), changed=changed)

        await supervise(chosen)


async def supervise(chosen: Callable[[], Supervisor]) -> None:
    """Until SIGTERM or Ctrl-C. `chosen` looks for free ports; it is asked again when one was taken before it could be used.

    Raises:
        ConfigurationError: a part cannot be started.
        PortTaken: each time a port was taken.
    """
    loop = asyncio.get_running_loop()
    for more in reversed(range(_PORT_CHOICES)):
        supervisor = chosen()
        # Nothing is awaited between two runs, so a signal finds the old supervisor or the new one.
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sig, supervisor.request_stop)
        try:
            await supervisor.run()
        except PortTaken as e:
            if not more or supervisor.asked_to_stop:
                raise
            log.warning("%s Starting again with another.", e)
        else:
            return
