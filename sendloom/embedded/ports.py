"""Free ports that stay the same over restarts, and an error that names who is in the way."""

import contextlib
import json
import logging
import os
import random
import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import psutil

from sendloom.errors import ConfigurationError

log = logging.getLogger(__name__)

_QUIET = range(20_000, 30_000)


class PortTaken(ConfigurationError):
    """Somebody else took a port between our choice and our part's bind: choosing again helps."""


def free_port(taken: Collection[int] = ()) -> int:
    """A free port below those the kernel gives to outgoing connections, which could have it when we come back."""
    candidates = [port for port in _QUIET if port not in taken]
    random.shuffle(candidates)
    return next(port for port in candidates if is_free(port))


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as s:
        # As servers do; without it a port just left counts as taken for a minute.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError:
            return False
        return True


def listens(leader: int, ports: Collection[int]) -> bool:
    """Whether this process and those of its session listen on all the ports.

    What answers on a port says nothing of who it is: it may be another stack's server. True for a living process that we may
    not look into, which is one of another user's.
    """
    missing = set(ports)
    for pid in _session(leader):
        try:
            process = psutil.Process(pid)
            missing -= {
                c.laddr.port
                for c in process.net_connections("tcp")
                if c.status == psutil.CONN_LISTEN
            }
        except psutil.AccessDenied:
            # One that has ended and was not waited for yet cannot be looked into either.
            return _lives(pid)
        except psutil.Error:
            continue
        if not missing:
            return True
    return not missing


def _session(leader: int) -> Iterator[int]:
    """The leader first: nearly always it is the one that listens."""
    yield leader
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid != leader and os.getsid(pid) == leader:
                yield pid


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def who_listens(port: int) -> str:
    """The process on a port, in words."""
    try:
        pids = {
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid
        }
        for pid in pids:
            process = psutil.Process(pid)
            return f"process {pid} ({process.name()}, user {process.username()})"
    except psutil.Error:
        pass
    return "a process of another user"


def choose_ports(
    file: Path,
    wanted: Mapping[str, int],
    configured: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """A port for each name in `wanted` (its preferred port): the configured one, the one chosen last time, the preferred
    one, or any free one. Written to `file`, so that addresses stay true over a restart.

    Raises:
        ConfigurationError: a configured port is taken. Names the process that has it.
    """
    earlier = read_ports(file)
    chosen: dict[str, int] = {}
    for name, preferred in wanted.items():
        taken = {*chosen.values(), *(port for n, port in earlier.items() if n != name)}
        if (port := (configured or {}).get(name)) is not None:
            if not is_free(port):
                raise ConfigurationError(
                    f"port {port}, configured for {name}, is taken by {who_listens(port)}. "
                    "Stop it, or choose another in the settings."
                )
        elif (port := earlier.get(name, preferred)) in taken or not is_free(port):
            if name in earlier:
                log.warning(
                    "a port chosen earlier is taken now; using another",
                    extra={"part": name, "port": port, "taken_by": who_listens(port)},
                )
            port = free_port(taken)
        chosen[name] = port
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**earlier, **chosen}, indent=1) + "\n")
    return chosen


def read_ports(file: Path) -> dict[str, int]:
    """What was chosen last time."""
    if not file.exists():
        return {}
    ports: dict[str, int] = json.loads(file.read_text())
    return ports
