"""A stack for each test that asks for one."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sendloom.embedded.state import stop_orphans
from tests.system.running import ROOT, Stack

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A stack that starts on a busy machine may need more than other tests are given."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def stack() -> Iterator[Stack]:
    home = Path(tempfile.mkdtemp(prefix="sendloom-system-"))
    made = Stack(home)
    try:
        yield made
    finally:
        subprocess.run(
            [sys.executable, "-m", "sendloom.cli", "down"],
            env={**os.environ, "SENDLOOM_HOME": str(home)},
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        stop_orphans(home)
        shutil.rmtree(home, ignore_errors=True)
