"""Giving way on a shared machine: a campaign's processes and database backends run below everything else."""

import contextlib
import os
from pathlib import Path


def give_way(pid: int, nice: int) -> None:
    """Lowers a process, and the scheduler's group of its session.

    Linux weighs sessions against each other before it looks at the processes in them (`sched_autogroup_enabled`, see
    sched(7)), so for a process that leads its session the nice value alone changes nothing. Nothing happens when the process
    is gone or somebody else's: this makes things smoother, never right.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def step_back(pid: int, nice: int) -> None:
    """Gives way, and besides whoever wakes up takes its processor at once, as if it were idle (SCHED_IDLE)."""
    give_way(pid, nice)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def own_nice() -> int:
    """What this process runs at."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def is_local_postgres(pid: int, host: str | None) -> bool:
    """Whether the backend that a server on `host` calls `pid` is a process of this machine."""
    if host is not None and not host.startswith("/") and host not in ("127.0.0.1", "::1"):
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith("postgres")
    return False
