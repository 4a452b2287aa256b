"""Giving way on a shared machine: a campaign's processes and database backends run below everything else."""

import contextlib
import os
import sys
from pathlib import Path


def give_way(pid: int, nice: int) -> None:
    """Lowers a process, and the scheduler's group of its session, and makes it a batch job (SCHED_BATCH).

    Linux weighs sessions against each other before it looks at the processes in them (`sched_autogroup_enabled`, see
    sched(7)), so for a process that leads its session the nice value alone changes nothing. A batch job that wakes up takes the
    processor from nobody at once: a campaign's processes, which wake each other for every mail, then work in longer runs, a tenth
    cheaper (`benchmarks/README.md`), and who is not one comes first when it wakes. SCHED_IDLE kept passcodes no faster, gave way
    also to the campaign's own database and relay, and starved beside anything else that was busy. Nothing happens when the
    process is gone or somebody else's: this makes things smoother, never right.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        if sys.platform == "linux":
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


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
