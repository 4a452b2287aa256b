"""The real servers under the real supervisor."""

import asyncio
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import asyncpg
import psutil
import pytest
import redis.asyncio
from temporalio.client import WorkflowExecutionStatus

from sendloom.embedded.parts import wait_until
from sendloom.embedded.state import StackState, read_state
from sendloom.platform.temporal import connect
from sendloom.settings import SETTINGS_FILE, Settings, load_settings

SERVERS = """
import asyncio, sys
from pathlib import Path
from sendloom.embedded.run import run_stack
servers = ("postgres", "valkey", "temporal", "migrate", "temporal-setup")
asyncio.run(run_stack(Path(sys.argv[1]), only=lambda parts: [p for p in parts if p.name in servers]))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sendloom-home-"))
    yield path
    for part in read_state(path).parts.values():
        if (left := part.process()) is not None:
            left.kill()
    shutil.rmtree(path, ignore_errors=True)


def start(home: Path) -> subprocess.Popen[bytes]:
    """The servers under a supervisor of their own, ready."""
    process = subprocess.Popen([sys.executable, "-c", SERVERS, str(home)])

    def ready() -> bool:
        state = read_state(home)
        ours = state.supervisor is not None and state.supervisor.pid == process.pid
        return ours and state.ready

    assert wait_until(ready, seconds=120, failed=lambda: process.poll() is not None)
    return process


def end(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(120)


def settings_of(home: Path) -> Settings:
    return load_settings({"SENDLOOM_HOME": str(home)})


def pid_of(state: StackState, name: str) -> int:
    pid = state.parts[name].pid
    assert pid is not None
    return pid


def restarted(home: Path, name: str) -> bool:
    return read_state(home).parts[name].restarts == 1


async def write_everywhere(settings: Settings) -> None:
    connection = await asyncpg.connect(settings.postgres_dsn)
    try:
        await connection.execute("CREATE TABLE kept AS SELECT 'a row' AS what")
    finally:
        await connection.close()
    async with redis.asyncio.Redis.from_url(settings.redis_url) as client:
        await client.set("kept", "a key")
    temporal = await connect(settings)
    await temporal.start_workflow("Nobody", id="kept", task_queue="nobody-polls-this")


async def read_everywhere(settings: Settings) -> tuple[str, str, WorkflowExecutionStatus | None]:
    connection = await asyncpg.connect(settings.postgres_dsn)
    try:
        row: str = await connection.fetchval("SELECT what FROM kept")
    finally:
        await connection.close()
    async with redis.asyncio.Redis.from_url(settings.redis_url, decode_responses=True) as client:
        key = str(await client.get("kept"))
    temporal = await connect(settings)
    return row, key, (await temporal.get_workflow_handle("kept").describe()).status


def test_data_survive_a_restart_and_sigterm_ends_with_0(home: Path) -> None:
    first = start(home)
    assert stat.S_IMODE((home / SETTINGS_FILE).stat().st_mode) == 0o600
    before = settings_of(home)
    asyncio.run(write_everywhere(before))
    assert end(first) == 0
    assert not [p for p in read_state(home).parts.values() if p.pid]

    second = start(home)
    try:
        assert settings_of(home) == before
        assert asyncio.run(read_everywhere(before)) == (
            "a row",
            "a key",
            WorkflowExecutionStatus.RUNNING,
        )
    finally:
        assert end(second) == 0


def test_killed_servers_and_a_killed_supervisor_lose_nothing_acknowledged(home: Path) -> None:
    first = start(home)
    settings = settings_of(home)
    asyncio.run(write_everywhere(settings))
    for name in ("postgres", "temporal"):
        victim = psutil.Process(pid_of(read_state(home), name))
        began = time.monotonic()
        victim.kill()
        assert wait_until(partial(restarted, home, name), seconds=60)
        assert wait_until(lambda: read_state(home).ready, seconds=60)
        assert time.monotonic() - began < 45
    first.kill()
    first.wait()
    assert not read_state(home).supervised()

    second = start(home)  # finds what the first one left, and its stale files
    try:
        row, key, status = asyncio.run(read_everywhere(settings))
        assert (row, key, status) == ("a row", "a key", WorkflowExecutionStatus.RUNNING)
    finally:
        assert end(second) == 0
