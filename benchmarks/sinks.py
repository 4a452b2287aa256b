"""Where benchmark mail goes: Postfix `smtp-sink` when it is installed, else our own simulator (slower, and named in the output)."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for_port(port: int, seconds: float = 10.0) -> None:
    """Raises TimeoutError when nothing listens in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing listens on port {port}") from None
            time.sleep(0.02)


@dataclass
class Sink:
    """A running sink. `count()` is what the sink itself has counted, never what we believe."""

    port: int
    name: str
    _counter: Path
    _dumps: Path | None = None
    _process: subprocess.Popen[bytes] | None = None
    _base: int = field(default=0)

    def total(self) -> int:
        size = self._counter.stat().st_size
        with self._counter.open("rb") as f:
            f.seek(max(0, size - 200))
            found = re.findall(rb"mesg=(\d+)", f.read())
        return int(found[-1]) if found else 0

    def count(self) -> int:
        """Messages since `reset`."""
        return self.total() - self._base

    def reset(self) -> None:
        self._base = self.total()

    async def wait_for(self, messages: int, stall_seconds: float = 60.0) -> float:
        """Seconds from now until `messages` are counted.

        Raises:
            TimeoutError: the count did not move for `stall_seconds`.
        """
        start = last_moved = time.monotonic()
        last = -1
        while True:
            now, count = time.monotonic(), self.count()
            if count >= messages:
                return now - start
            if count != last:
                last, last_moved = count, now
            if now - last_moved > stall_seconds:
                raise TimeoutError(f"the sink stands at {count} of {messages}")
            await asyncio.sleep(0.01)

    def recipients(self) -> Counter[str]:
        """Envelope recipients and how often each was served; only for a recording sink."""
        assert self._dumps is not None, "start the sink with record=True"
        seen: Counter[str] = Counter()
        for path in self._dumps.iterdir():
            with path.open("rb") as f:
                for line in f:
                    if line.startswith(b"X-Rcpt-Args: "):
                        seen[line[13:].split(b">")[0].strip(b" <\r\n").decode()] += 1
        return seen

    def forget(self) -> None:
        """Empty the record; only between runs, when nothing is being sent."""
        if self._dumps is not None:
            for path in self._dumps.iterdir():
                path.unlink()
        self.reset()


@contextmanager
def smtp_sink(*, record: bool = False, port: int | None = None) -> Iterator[Sink]:
    """A sink in its own session (process group), so that killing a stack never touches it."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="sendloom-sink-") as folder:
        here = Path(folder)
        here.chmod(0o777)
        counter = here / "counter"
        dumps = here / "dumps"
        dumps.mkdir()
        dumps.chmod(0o777)
        if path := (shutil.which("smtp-sink") or _in_sbin("smtp-sink")):
            user = ["-u", "nobody"] if os.geteuid() == 0 else []
            dump = ["-D", f"{dumps}/mail"] if record else []
            command = [path, *user, *dump, "-c", "-m", "1000", f"127.0.0.1:{port}", "1000"]
            name = "postfix smtp-sink" + (" -D" if record else "")
        else:
            # No Postfix here: our simulator, which appends every arrival to a log we count.
            command = [
                sys.executable, "-m", "benchmarks.simulated_sink", "--port", str(port),
                *(["--dumps", str(dumps)] if record else []),
            ]  # fmt: skip
            name = "sendloom simulator (no smtp-sink installed)"
        with counter.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd=Path.cwd(),
            )
        try:
            wait_for_port(port)
            yield Sink(port, name, counter, dumps if record else None, process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _in_sbin(name: str) -> str | None:
    path = Path("/usr/sbin") / name
    return str(path) if path.exists() else None


def smtp_source(port: int, messages: int, sessions: int, size: int) -> float | None:
    """Messages a second of Postfix `smtp-source -d` (kept connections) against a sink; None when it is not installed."""
    path = shutil.which("smtp-source") or _in_sbin("smtp-source")
    if path is None:
        return None
    start = time.monotonic()
    subprocess.run(
        [path, "-d", "-s", str(sessions), "-l", str(size), "-m", str(messages),
         "-f", "bench@example.com", "-t", "somebody@example.com", f"127.0.0.1:{port}"],
        check=True,
    )  # fmt: skip
    return messages / (time.monotonic() - start)
