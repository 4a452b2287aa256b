"""What the running stack says about itself, in `<home>/state.json`, and what a killed one left behind."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
from pydantic import BaseModel

from sendloom.embedded.parts import kill_group
from sendloom.errors import ConfigurationError

STATE_FILE = "state.json"
_LOCK_FILE = "lock"


class Running(BaseModel):
    """A process, told apart from a later one that got the same number."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> "Running | None":
        try:
            return cls(pid=pid, created=psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


class PartState(BaseModel):
    state: str = "waiting"
    """waiting, starting, ready, done, restarting, stopped"""
    pid: int | None = None
    created: float | None = None
    restarts: int = 0
    last_exit: int | None = None
    problem: str | None = None
    stop_signal: int = signal.SIGTERM
    ports: tuple[int, ...] = ()

    def runs(self, pid: int | None) -> None:
        """Note which process it is now; None: it is not running."""
        now = Running.of(pid) if pid is not None else None
        self.pid, self.created = (now.pid, now.created) if now else (None, None)

    def process(self) -> psutil.Process | None:
        """The process, if it is alive."""
        if self.pid is None or self.created is None:
            return None
        return Running(pid=self.pid, created=self.created).process()


class StackState(BaseModel):
    supervisor: Running | None = None
    ready: bool = False
    stopping: bool = False
    parts: dict[str, PartState] = {}
    addresses: dict[str, str] = {}
    """Under the names the commands' JSON has: `api_url`, `inbox_url`, `temporal_address`, …"""

    def supervised(self) -> bool:
        """Whether the supervisor that wrote this is still alive."""
        return self.supervisor is not None and self.supervisor.process() is not None


def read_state(home: Path) -> StackState:
    """The last state written; an empty one when there is none or it is damaged."""
    try:
        return StackState.model_validate_json((home / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return StackState()


def write_state(home: Path, state: StackState) -> None:
    """Atomically: a reader sees the old or the new one."""
    new = home / (STATE_FILE + ".new")
    new.write_text(state.model_dump_json(indent=1))
    new.replace(home / STATE_FILE)


@contextlib.contextmanager
def sole_supervisor(home: Path) -> Iterator[None]:
    """Hold the home for ourselves. The kernel lets go of it when we end, however we end.

    Raises:
        ConfigurationError: another supervisor has it.
    """
    descriptor = os.open(home / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_state(home).supervisor
            who = f" (process {holder.pid})" if holder else ""
            raise ConfigurationError(
                f"the stack in {home} is already running{who}. `sendloom status` shows it, `sendloom down` stops it."
            ) from None
        yield
    finally:
        os.close(descriptor)


def stop_orphans(home: Path, *, seconds: float = 20) -> list[str]:
    """End what a killed supervisor left running, the way each part wants to be ended. Returns their names."""
    left = {
        name: (part, process)
        for name, part in read_state(home).parts.items()
        if (process := part.process())
    }
    for part, process in left.values():
        with contextlib.suppress(psutil.Error):
            process.send_signal(part.stop_signal)
    _, alive = psutil.wait_procs([process for _, process in left.values()], timeout=seconds)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
    for _, process in left.values():
        kill_group(process.pid)
    return list(left)
