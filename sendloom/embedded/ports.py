"""Free ports that stay the same over restarts, and an error that names who is in the way."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from sendloom.errors import ConfigurationError


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


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
        ConfigurationError: a configured or earlier chosen port is taken. Names the process that has it.
    """
    earlier: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    chosen: dict[str, int] = {}
    for name, preferred in wanted.items():
        fixed = (configured or {}).get(name)
        if fixed is not None:
            _demand_free(name, fixed, "choose another in the settings")
            chosen[name] = fixed
        elif name in earlier:
            _demand_free(name, earlier[name], f"remove its line from {file} to get another")
            chosen[name] = earlier[name]
        else:
            taken = {*chosen.values(), *earlier.values()}
            port = preferred if preferred not in taken and is_free(preferred) else free_port()
            while port in taken:
                port = free_port()
            chosen[name] = port
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**earlier, **chosen}, indent=1) + "\n")
    return chosen


def _demand_free(name: str, port: int, fix: str) -> None:
    if not is_free(port):
        raise ConfigurationError(
            f"port {port}, wanted for {name}, is taken by {who_listens(port)}. Stop it, or {fix}."
        )
