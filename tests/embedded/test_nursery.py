"""Forking our own commands from a process that has everything imported, on real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sendloom.embedded.nursery import Forked, Nursery
from sendloom.embedded.parts import Part, Process, kill_group, wait_until
from sendloom.embedded.ports import free_port
from sendloom.embedded.probes import tcp_open


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path / "nursery.log")
    nursery.open()
    yield nursery
    nursery.close()


def ours(*args: str, **more: str) -> Part:
    return Part(
        name="one", command=(sys.executable, "-m", "sendloom.cli", *args), once=True, env=more
    )


def simulators() -> tuple[Part, int]:
    smtp, http = free_port(), free_port()
    return ours(
        *("simulators", "--smtp-port", str(smtp), "--http-port", str(http)),
        SENDLOOM_SIMULATOR_TWILIO_TOKEN="for-a-test",
    ), smtp


def end(process: Process) -> None:
    kill_group(process.pid)
    process.wait(60)


def test_a_command_is_forked_and_its_exit_code_and_output_come_back(
    nursery: Nursery, tmp_path: Path
) -> None:
    out = tmp_path / "out.log"
    process = nursery.launch(ours("settings", "--markdown"), out)
    assert isinstance(process, Forked)
    assert process.wait(60) == 0
    assert "SENDLOOM_POSTGRES" in out.read_text()
    assert nursery.launch(ours("no-such-command"), out).wait(60) == 2


def test_each_child_has_the_environment_it_was_given_and_no_other(
    nursery: Nursery, tmp_path: Path
) -> None:
    out = tmp_path / "out.log"
    home = tmp_path / "a home"
    first = nursery.launch(ours("status", "--json", SENDLOOM_HOME=str(home)), out)
    assert first.wait(60) == 1
    assert str(home) in out.read_text()
    second = nursery.launch(ours("status", "--json", SENDLOOM_HOME=str(tmp_path / "b")), out)
    assert second.wait(60) == 1
    assert out.read_text().count(str(home)) == 1


def test_a_killed_child_is_noticed_and_another_takes_its_place(
    nursery: Nursery, tmp_path: Path
) -> None:
    part, port = simulators()
    process = nursery.launch(part, tmp_path / "out.log")
    try:
        assert wait_until(lambda: tcp_open("127.0.0.1", port), seconds=60)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert os.getsid(process.pid) == process.pid
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert not psutil.pid_exists(process.pid)
    finally:
        end(process)
    assert nursery.launch(ours("settings"), tmp_path / "out.log").wait(60) == 0


def test_without_the_nursery_parts_are_started_the_slow_way_until_it_is_back(
    nursery: Nursery, tmp_path: Path
) -> None:
    out = tmp_path / "out.log"
    assert isinstance(nursery.launch(ours("settings"), out), Forked)
    part, port = simulators()
    lives = nursery.launch(part, out)
    try:
        assert wait_until(lambda: tcp_open("127.0.0.1", port), seconds=60)
        assert nursery.pid is not None
        os.kill(nursery.pid, signal.SIGKILL)
        slow = nursery.launch(ours("settings"), out)
        assert not isinstance(slow, Forked)
        assert slow.wait(60) == 0
        assert tcp_open("127.0.0.1", port), "what was forked outlives it"
        assert isinstance(nursery.launch(ours("settings"), out), Forked)
    finally:
        lives.send_signal(signal.SIGKILL)
        assert lives.wait(60) == -signal.SIGKILL


def test_other_programs_are_not_its_business(nursery: Nursery, tmp_path: Path) -> None:
    part = Part(name="other", command=(sys.executable, "-c", "raise SystemExit(3)"))
    process = nursery.launch(part, tmp_path / "out.log")
    assert not isinstance(process, Forked)
    assert process.wait(60) == 3
