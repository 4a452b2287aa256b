"""Processes leave cleanly: their exit codes are what an orchestrator acts on."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_HEAD = """
import asyncio, logging, os, signal, sys
from sendloom.errors import ConfigurationError
from sendloom.platform import logging as ours, process
ours.configure("test")
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _HEAD + body],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_signal_drains_and_ends_with_0(signal_name: str) -> None:
    done = run(f"""
async def main():
    stop = process.stop_requested()
    os.kill(os.getpid(), signal.{signal_name})
    await stop.wait()
    print("drained")
process.run_and_leave(main)
""")
    assert (done.returncode, done.stdout) == (0, "drained\n")


def test_what_an_operator_must_fix_is_one_line_and_78() -> None:
    done = run("""
async def main():
    raise ConfigurationError("port 8080 is taken")
process.run_and_leave(main)
""")
    assert done.returncode == 78
    assert "port 8080 is taken" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_is_away_is_one_line_and_75() -> None:
    done = run("""
from sendloom.errors import StoreUnavailable
async def main():
    raise StoreUnavailable("postgres did not answer")
process.run_and_leave(main)
""")
    assert done.returncode == 75
    assert "postgres did not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unexpected_error_ends_with_1_and_its_trace() -> None:
    done = run("""
async def main():
    raise ZeroDivisionError("oh")
process.run_and_leave(main)
""")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_connected_temporal_client_does_not_spoil_the_exit_code(temporal_server: str) -> None:
    done = run(f"""
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio import activity

@activity.defn
async def nothing() -> None: ...

async def main():
    client = await Client.connect({temporal_server!r}, namespace="sendloom")
    async with Worker(client, task_queue="exit-codes", activities=[nothing]):
        pass
    print("drained")
process.run_and_leave(main)
""")
    assert (done.returncode, done.stdout) == (0, "drained\n"), done.stderr
