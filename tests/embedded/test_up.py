"""`sendloom up`, `status` and `down` with everything there is."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sendloom.embedded.parts import tail, wait_until
from sendloom.embedded.state import read_state, stop_orphans

ROOT = Path(__file__).parents[2]


class Home:
    """A home and the command that acts on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def sendloom(self, *words: str, seconds: float = 360) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sendloom.cli", *words],
            env={**os.environ, "SENDLOOM_HOME": str(self.directory)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.sendloom("status", "--json").stdout)
        return answer

    def logs(self) -> str:
        files = sorted((self.directory / "logs").glob("*.log"))
        return "\n".join(f"== {f.name}\n{tail(f)}" for f in files)


@pytest.fixture
def home() -> Iterator[Home]:
    directory = Path(tempfile.mkdtemp(prefix="sendloom-up-"))
    made = Home(directory)
    yield made
    made.sendloom("down")
    stop_orphans(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(600)
def test_everything_starts_heals_and_stops(home: Home) -> None:
    up = home.sendloom("up", "--detach", "--json")
    assert up.returncode == 0, up.stdout + up.stderr + home.logs()
    addresses = json.loads(up.stdout)

    status = home.status()
    assert status["ready"], status
    assert addresses["api_url"] == status["api_url"]
    checked = home.sendloom("doctor", "--json")
    assert checked.returncode == 0, checked.stdout

    again = home.sendloom("up", "--detach")  # it is up: the same answer, nothing started
    assert again.returncode == 0
    assert home.status()["parts"] == status["parts"]
    foreground = home.sendloom("up")
    assert foreground.returncode == 78
    assert "already running" in foreground.stderr

    nice = {
        name: psutil.Process(part["pid"]).nice()
        for name, part in status["parts"].items()
        if part["pid"]
    }
    assert nice["worker-marketing-1"] == nice["worker-marketing-2"] == nice["worker-security"] + 19

    for name in ("worker-security", "api"):
        os.kill(read_state(home.directory).parts[name].pid or 0, signal.SIGKILL)
    assert wait_until(lambda: restarted(home, "worker-security", "api"), seconds=60)
    assert wait_until(lambda: read_state(home.directory).ready, seconds=120), home.logs()

    pids = [part["pid"] for part in home.status()["parts"].values() if part["pid"]]
    supervisor = read_state(home.directory).supervisor
    assert supervisor is not None
    process = supervisor.process()
    assert process is not None
    down = home.sendloom("down")
    assert (down.returncode, down.stdout.strip()) == (0, "stopped"), down.stderr
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    exits = {n: p.last_exit for n, p in read_state(home.directory).parts.items()}
    assert set(exits.values()) == {0}, (exits, home.logs())


def restarted(home: Home, *names: str) -> bool:
    parts = read_state(home.directory).parts
    return all(parts[name].restarts >= 1 for name in names)
