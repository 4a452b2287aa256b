"""The supervisor, driven with tiny real processes."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from sendloom.embedded import probes
from sendloom.embedded.parts import Part
from sendloom.embedded.ports import PortTaken, free_port, listens
from sendloom.embedded.run import supervise
from sendloom.embedded.state import StackState, read_state, sole_supervisor, stop_orphans
from sendloom.embedded.supervisor import Backoff, Supervisor
from sendloom.errors import ConfigurationError
from sendloom.platform.process import EXIT_CONFIGURATION, EXIT_TRY_AGAIN

QUICK = Backoff(first=0.05, longest=0.2, forgiven_after=5, attempts=2)


def sleeper(name: str, home: Path, *, needs: tuple[str, ...] = (), drain: int = 0) -> Part:
    """Says that it is there, and on SIGTERM writes that it was asked to go."""
    script = (
        "import pathlib, signal, sys, time\n"
        "home, name = pathlib.Path(sys.argv[1]), sys.argv[2]\n"
        "def stop(*_):\n"
        "    with open(home / 'order', 'a') as f: f.write(name + '\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "(home / (name + '.up')).touch()\n"
        "while True: time.sleep(60)\n"
    )
    up = home / f"{name}.up"
    return Part(
        name=name,
        command=(sys.executable, "-c", script, str(home), name),
        prepare=lambda: up.unlink(missing_ok=True),
        ready=up.exists,
        needs=needs,
        drain=drain,
        stop_seconds=5,
    )


def step(name: str, code: str, *, needs: tuple[str, ...] = ()) -> Part:
    return Part(name=name, command=(sys.executable, "-c", code), once=True, needs=needs)


SERVER = (
    "import http.server, os, sys\n"
    "class Ok(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200)\n"
    "        self.end_headers()\n"
    "port, child = int(sys.argv[1]), sys.argv[2] == 'child'\n"
    "if child and os.fork():\n"
    "    os.wait()\n"
    "try:\n"
    "    server = http.server.HTTPServer(('127.0.0.1', port), Ok)\n"
    "except OSError:\n"
    f"    sys.exit({EXIT_CONFIGURATION})\n"
    "server.serve_forever()\n"
)


def server(port: int, *, listener: str = "self") -> Part:
    """Answers 200, from itself or from a child; ends with 78 when it cannot have its port."""
    return Part(
        name="api",
        command=(sys.executable, "-c", SERVER, str(port), listener),
        ready=partial(probes.http_ok, f"http://127.0.0.1:{port}/readyz"),
        ports=(port,),
    )


@contextlib.contextmanager
def foreign_server() -> Iterator[int]:
    """Somebody else's, that answers 200 on every path; its port."""

    class Ok(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Ok) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


async def until(check: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 - it is another process that changes it
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def supervised(*parts: Part, home: Path) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(parts, home, backoff=QUICK)
    running = asyncio.create_task(supervisor.run())
    try:
        yield supervisor
    finally:
        supervisor.request_stop()
        await running


def pid_of(supervisor: Supervisor, name: str) -> int:
    pid = supervisor.state.parts[name].pid
    assert pid is not None
    return pid


async def test_a_part_starts_only_after_what_it_needs_is_ready(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def note(state: StackState) -> None:
        seen.append({name: part.state for name, part in state.parts.items()})

    parts = [
        sleeper("database", tmp_path),
        step("migrate", "", needs=("database",)),
        sleeper("api", tmp_path, needs=("migrate",)),
    ]
    supervisor = Supervisor(parts, tmp_path, backoff=QUICK, changed=note)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.state.ready)
    supervisor.request_stop()
    await running
    assert all(s["database"] == "ready" for s in seen if s["migrate"] == "starting")
    assert all(s["migrate"] == "done" for s in seen if s["api"] == "starting")


async def test_a_part_that_dies_is_running_again_within_seconds(tmp_path: Path) -> None:
    async with supervised(sleeper("worker", tmp_path), home=tmp_path) as supervisor:
        await until(lambda: supervisor.state.ready)
        killed = pid_of(supervisor, "worker")
        began = time.monotonic()
        os.kill(killed, signal.SIGKILL)
        await until(lambda: supervisor.state.parts["worker"].restarts == 1)
        await until(lambda: supervisor.state.ready)
        assert time.monotonic() - began < 30
        assert pid_of(supervisor, "worker") != killed


async def test_what_a_dead_part_had_started_is_gone_before_it_starts_again(tmp_path: Path) -> None:
    script = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path(sys.argv[1], 'child').write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    file = tmp_path / "child"
    part = Part(
        name="parent",
        command=(sys.executable, "-c", script, str(tmp_path)),
        prepare=lambda: file.unlink(missing_ok=True),
        ready=lambda: file.exists() and bool(file.read_text()),
    )
    async with supervised(part, home=tmp_path) as supervisor:
        await until(lambda: supervisor.state.ready)
        grandchild = psutil.Process(int(file.read_text()))
        os.kill(pid_of(supervisor, "parent"), signal.SIGKILL)
        await until(lambda: supervisor.state.parts["parent"].restarts == 1)
        await until(
            lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
        )


async def test_one_part_that_cannot_restart_does_not_hold_up_another(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    bad = sleeper("bad", tmp_path)
    first_ready = bad.ready

    def prepare() -> None:
        (tmp_path / "bad.up").unlink(missing_ok=True)
        if broken.exists():
            raise ConfigurationError("its disk is full")

    bad = Part(name="bad", command=bad.command, ready=first_ready, prepare=prepare)
    async with supervised(bad, sleeper("good", tmp_path), home=tmp_path) as supervisor:
        await until(lambda: supervisor.state.ready)
        broken.touch()
        for name in ("bad", "good"):
            os.kill(pid_of(supervisor, name), signal.SIGKILL)
        await until(lambda: supervisor.state.parts["bad"].restarts >= 2)
        await until(lambda: supervisor.state.parts["good"].state == "ready")
        assert supervisor.state.parts["bad"].problem == "its disk is full"


async def test_parts_are_drained_in_their_order(tmp_path: Path) -> None:
    parts = [
        sleeper("postgres", tmp_path, drain=5),
        sleeper("api", tmp_path, drain=1),
        sleeper("worker", tmp_path, drain=0),
    ]
    async with supervised(*parts, home=tmp_path) as supervisor:
        await until(lambda: supervisor.state.ready)
    assert (tmp_path / "order").read_text().split() == ["worker", "api", "postgres"]
    assert read_state(tmp_path).supervisor is None


async def test_a_step_that_fails_ends_the_start_with_the_end_of_its_log(tmp_path: Path) -> None:
    parts = [
        sleeper("database", tmp_path),
        step("migrate", "raise SystemExit('no such table')", needs=("database",)),
    ]
    with pytest.raises(ConfigurationError, match=r"(?s)migrate.*no such table"):
        await Supervisor(parts, tmp_path, backoff=QUICK).run()
    assert (tmp_path / "order").read_text().split() == ["database"]


async def test_a_part_that_a_setting_keeps_from_running_is_not_tried_for_ever(
    tmp_path: Path,
) -> None:
    part = Part(
        name="api",
        command=(sys.executable, "-c", "import sys; print('port is taken'); sys.exit(78)"),
        ready=lambda: False,
    )
    supervisor = Supervisor([part], tmp_path, backoff=QUICK)
    with pytest.raises(ConfigurationError, match="port is taken"):
        await supervisor.run()
    assert supervisor.state.parts["api"].restarts == 0


def stores_away(home: Path, times: int) -> Part:
    """Ends so often because a store does not answer, and then runs."""
    up = home / "up"
    return Part(
        name="worker",
        command=(
            *(sys.executable, "-c"),
            "import pathlib, sys, time\n"
            "home, times = pathlib.Path(sys.argv[1]), int(sys.argv[2])\n"
            "tried = len(list(home.glob('try-*')))\n"
            "(home / f'try-{tried}').touch()\n"
            f"if tried < times: sys.exit({EXIT_TRY_AGAIN})\n"
            "(home / 'up').touch()\n"
            "time.sleep(600)",
            *(str(home), str(times)),
        ),
        ready=up.exists,
    )


async def test_a_part_that_a_store_kept_waiting_at_the_start_is_tried_on(tmp_path: Path) -> None:
    """A marketing worker comes last on the processor: while all others start, its connection may take too long."""
    times = QUICK.attempts + 2
    async with supervised(stores_away(tmp_path, times), home=tmp_path) as supervisor:
        await until(lambda: supervisor.state.ready or supervisor.state.stopping)
        assert supervisor.state.ready
        assert supervisor.state.parts["worker"].restarts == times


async def test_and_not_for_ever(tmp_path: Path) -> None:
    backoff = replace(QUICK, patience=0)
    supervisor = Supervisor([stores_away(tmp_path, 99)], tmp_path, backoff=backoff)
    with pytest.raises(ConfigurationError, match=f"exit code {EXIT_TRY_AGAIN}"):
        await supervisor.run()
    assert supervisor.state.parts["worker"].restarts == QUICK.attempts - 1


async def test_a_second_request_to_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    up = tmp_path / "up"
    deaf = Part(
        name="deaf",
        command=(
            *(sys.executable, "-c"),
            "import pathlib, signal, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "pathlib.Path(sys.argv[1]).touch()\n"
            "time.sleep(600)",
            str(up),
        ),
        ready=up.exists,
        stop_seconds=600,
    )
    supervisor = Supervisor([deaf], tmp_path, backoff=QUICK)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: supervisor.state.ready)
    supervisor.request_stop()
    await until(lambda: supervisor.state.stopping)
    supervisor.request_stop()
    async with asyncio.timeout(30):
        await running


async def test_what_a_killed_supervisor_left_is_found_and_stopped(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from sendloom.embedded.parts import Part\n"
        "from sendloom.embedded.supervisor import Supervisor\n"
        "home = Path(sys.argv[1])\n"
        "part = Part(name='orphan', command=(sys.executable, '-c', 'import time; time.sleep(600)'))\n"
        "asyncio.run(Supervisor([part], home).run())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path))
    await until(lambda: read_state(tmp_path).ready)
    process.kill()
    await process.wait()
    left = read_state(tmp_path)
    orphan = left.parts["orphan"]
    assert not left.supervised()
    assert orphan.process() is not None

    assert stop_orphans(tmp_path) == ["orphan"]

    assert orphan.process() is None
    assert stop_orphans(tmp_path) == []


def test_a_second_supervisor_is_refused_and_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    with sole_supervisor(tmp_path):
        with pytest.raises(ConfigurationError, match="already running"):
            with sole_supervisor(tmp_path):
                pass
    with sole_supervisor(tmp_path):
        pass


def test_needs_must_come_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must come before"):
        Supervisor([sleeper("api", tmp_path, needs=("database",))], tmp_path)


async def test_a_foreign_server_on_its_port_does_not_make_a_part_ready(tmp_path: Path) -> None:
    seen: set[str] = set()
    with foreign_server() as port:
        part = server(port)
        assert part.ready()  # the foreign one's answer
        supervisor = Supervisor(
            [part],
            tmp_path,
            backoff=QUICK,
            changed=lambda state: seen.add(state.parts["api"].state),
        )
        with pytest.raises(
            PortTaken, match=rf"^port {port}, chosen for api, .*process {os.getpid()}.*$"
        ):
            async with asyncio.timeout(60):  # and not tried for ever
                await supervisor.run()
    assert "starting" in seen
    assert "ready" not in seen
    assert supervisor.state.parts["api"].restarts == 0


async def test_nor_one_that_lives_on_without_its_port(tmp_path: Path) -> None:
    with foreign_server() as port:
        part = Part(
            name="api",
            command=(sys.executable, "-c", "import time; time.sleep(600)"),
            ready=server(port).ready,
            ready_seconds=0.5,
            ports=(port,),
        )
        with pytest.raises(PortTaken, match=str(port)):
            await Supervisor([part], tmp_path, backoff=QUICK).run()


@pytest.mark.parametrize("listener", ["self", "child"])
async def test_a_part_is_ready_when_it_or_a_child_of_it_answers(
    tmp_path: Path, listener: str
) -> None:
    part = server(free_port(), listener=listener)
    async with supervised(part, home=tmp_path) as supervisor:
        await until(lambda: supervisor.state.ready)
        assert listens(pid_of(supervisor, "api"), part.ports)
        assert not listens(pid_of(supervisor, "api"), (*part.ports, 1))
        assert not listens(os.getpid(), part.ports)


async def test_a_port_taken_before_the_part_could_have_it_is_chosen_anew(tmp_path: Path) -> None:
    made: list[Supervisor] = []

    def ready(state: StackState) -> None:
        if state.ready:
            made[-1].request_stop()

    with foreign_server() as taken:
        ports = iter((taken, free_port()))

        def chosen() -> Supervisor:
            made.append(Supervisor([server(next(ports))], tmp_path, backoff=QUICK, changed=ready))
            return made[-1]

        await supervise(chosen)
    assert len(made) == 2


async def test_who_finds_a_port_taken_again_and_again_is_told_which(tmp_path: Path) -> None:
    made: list[Supervisor] = []
    with foreign_server() as taken:

        def chosen() -> Supervisor:
            made.append(Supervisor([server(taken)], tmp_path, backoff=QUICK))
            return made[-1]

        with pytest.raises(PortTaken, match=f"port {taken}"):
            await supervise(chosen)
    assert len(made) == 3


async def test_a_stop_asked_for_is_not_answered_with_another_start(tmp_path: Path) -> None:
    made: list[Supervisor] = []

    def stop(state: StackState) -> None:
        if state.stopping:
            made[-1].request_stop()

    with foreign_server() as taken:

        def chosen() -> Supervisor:
            made.append(Supervisor([server(taken)], tmp_path, backoff=QUICK, changed=stop))
            return made[-1]

        with pytest.raises(PortTaken):
            await supervise(chosen)
    assert len(made) == 1
