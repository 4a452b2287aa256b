"""Free ports that stay the same over restarts, and an error that names who is in the way."""

import json
import logging
import random
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

from sendloom.errors import ConfigurationError

log = logging.getLogger(__name__)

_QUIET = range(20_000, 30_000)


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
