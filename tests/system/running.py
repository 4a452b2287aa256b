"""The whole product in a home of its own, driven by its own commands."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sendloom.embedded.parts import tail
from sendloom.embedded.state import read_state
from sendloom.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]


class Stack:
    """The whole product in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env: dict[str, str] = {}
        """Of every command, besides the home."""

    def sendloom(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sendloom.cli", *words],
            env={**os.environ, **self.env, "SENDLOOM_HOME": str(self.home)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=360,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def logs(self, lines: int = 8) -> str:
        files = sorted((self.home / "logs").glob("*.log"))
        return "\n".join(f"== {f.name}\n{tail(f, lines)}" for f in files)

    def state(self, lines: int = 25) -> str:
        """Parts and the ends of their logs, for whoever reads why a test failed."""
        parts = read_state(self.home).parts.items()
        running = "\n".join(
            f"{name}: {part.state}, {part.restarts} restarts, last exit {part.last_exit}"
            for name, part in parts
        )
        return f"{running}\n{self.logs(lines)}"

    @property
    def settings(self) -> Settings:
        return load_settings({"SENDLOOM_HOME": str(self.home)})

    def lose_temporal(self) -> None:
        """Its database is gone, and then it is; the supervisor starts it on nothing."""
        before = read_state(self.home).parts["temporal"].restarts
        for file in (self.home / "temporal").glob("temporal.db*"):
            file.unlink()
        process = read_state(self.home).parts["temporal"].process()
        assert process is not None
        process.kill()

        def is_back() -> bool:
            state = read_state(self.home)
            return state.parts["temporal"].restarts > before and state.ready

        eventually(is_back, "Temporal to be started again")


def eventually(
    check: Callable[[], Any],
    what: str,
    seconds: float = 120,
    *,
    state: Callable[[], str] = str,
) -> None:
    """`state` says how things stood when it never came true."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:.0f} s for {what}\n{state()}")
        time.sleep(0.1)
