"""A part of the stack: one child process, what it needs, and how to tell that it is ready."""

import contextlib
import ctypes
import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, TypedDict

from sendloom.embedded.ports import listens
from sendloom.errors import ConfigurationError
from sendloom.platform.priority import give_way

Probe: TypeAlias = Callable[[], bool]
"""True when ready. Quick (about a second at most), blocking, never raises."""

_POLL = 0.02


@dataclass(frozen=True, kw_only=True)
class Part:
    """How to run one child process."""

    name: str
    command: tuple[str, ...]
    ready: Probe = lambda: True
    needs: tuple[str, ...] = ()
    """Parts that must be ready before this one starts."""
    prepare: Callable[[], None] | None = None
    """Before each start, in a thread: create directories, remove what a killed run left."""
    user: int | None = None
    """Run as this uid (Postgres refuses root)."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 15
    """After this it is killed."""
    ready_seconds: float = 60
    nice: int = 0
    ports: tuple[int, ...] = ()
    """It listens on all of them when it is ready."""
    once: bool = False
    """A step: it is done, and ready, when it ends with 0."""
    drain: int = 0
    """Parts with the lowest number are stopped first, those with the same together."""


def launch(part: Part, log: Path, *, die_with_parent: bool = False) -> subprocess.Popen[bytes]:
    """Start it in a process group of its own, so that a Ctrl-C meant for us does not reach it first.

    `die_with_parent` is for tests and benchmarks, whose servers must not outlive a killed run.
    """

    with log.open("ab") as out:
        process = subprocess.Popen(
            part.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **run_as(part.user),
            cwd=part.cwd,
            env={**os.environ, **part.env},
            preexec_fn=partial(_LIBC.prctl, _PR_SET_PDEATHSIG, int(part.stop_signal))
            if die_with_parent
            else None,
        )
    if part.nice:
        # Its threads do not exist yet, and inherit this.
        give_way(process.pid, part.nice)
    return process


class _As(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def run_as(user: int | None) -> _As:
    """Arguments of `subprocess` that shed our own user and every group with it."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


class Process(Protocol):
    """What is done with a child: the part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


def stop(part: Part, process: Process) -> int:
    """Ask it to end, wait, and kill what is left of its group. Returns the exit code."""
    if process.poll() is None:
        process.send_signal(part.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(part.stop_seconds)
    kill_group(process.pid)
    return process.wait()


def kill_group(pid: int) -> None:
    """Nothing of the group survives this; no error if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def is_ready(part: Part, process: Process) -> bool:
    """Whether this process answers, and not a server of another stack that took its port."""
    if not part.ready():
        return False
    # Looked up second, because until something answers it is a vain look through /proc; and asked again, because only now it
    # is known whom we ask.
    return not part.ports or (listens(process.pid, part.ports) and part.ready())


def wait_until(check: Probe, *, seconds: float, failed: Callable[[], bool] = lambda: False) -> bool:
    """Whether `check` became true in time; false at once when `failed` says it cannot any more."""
    deadline = time.monotonic() + seconds
    while not check():
        if failed() or time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


@contextlib.contextmanager
def running(
    part: Part, log: Path, *, die_with_parent: bool = True
) -> Iterator[subprocess.Popen[bytes]]:
    """One ready part for the length of the block; for tests and benchmarks.

    Raises:
        ConfigurationError: it ended or was not ready in time. Carries the end of its log.
    """
    if part.prepare:
        part.prepare()
    process = launch(part, log, die_with_parent=die_with_parent)
    try:
        if not wait_until(
            lambda: is_ready(part, process),
            seconds=part.ready_seconds,
            failed=lambda: process.poll() is not None,
        ):
            raise ConfigurationError(
                f"{part.name} did not become ready; its log ends:\n{tail(log)}"
            )
        yield process
    finally:
        stop(part, process)


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log as a person reads them, for an error message."""
    try:
        with log.open("rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - 16_384))
            last = f.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return f"({log} cannot be read)"
    return "\n".join(map(_readable, last))


def _readable(line: str) -> str:
    """Of our own JSON lines the message, and of a trace its last line."""
    try:
        entry = json.loads(line)
        trace = str(entry.get("trace", "")).strip().splitlines()
        return f"{entry['level']} {entry['message']}" + (f": {trace[-1]}" if trace else "")
    except (ValueError, KeyError, AttributeError, TypeError):
        return line


_PR_SET_PDEATHSIG = 1
# Loaded here: doing it between fork and exec could deadlock.
_LIBC = ctypes.CDLL(None)
