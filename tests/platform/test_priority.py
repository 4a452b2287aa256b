"""Giving way on a shared machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sendloom.platform.priority import give_way, is_local_postgres


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def test_a_process_gives_way_and_so_does_its_session(child: subprocess.Popen[bytes]) -> None:
    give_way(child.pid, 10)
    assert os.getpriority(os.PRIO_PROCESS, child.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
    group = Path(f"/proc/{child.pid}/autogroup")
    if group.exists() and group.read_text().strip():
        assert group.read_text().strip().endswith("nice 10")


def test_it_takes_the_processor_from_nobody_at_once(child: subprocess.Popen[bytes]) -> None:
    give_way(child.pid, 10)
    assert os.sched_getscheduler(child.pid) == os.SCHED_BATCH


def test_a_process_that_is_gone_is_no_error(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    give_way(child.pid, 10)


def test_only_a_server_on_this_machine_has_backends_here() -> None:
    assert not is_local_postgres(os.getpid(), "127.0.0.1"), "we are no Postgres"
    assert not is_local_postgres(os.getpid(), "192.0.2.7")
