"""Keeps the parts of the stack running: starts them in order, restarts what dies, drains them in order."""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from sendloom.embedded.nursery import Nursery, our_command
from sendloom.embedded.parts import Part, Process, is_ready, kill_group, stop, tail, wait_until
from sendloom.embedded.ports import PortTaken, is_free, who_listens
from sendloom.embedded.state import PartState, Running, StackState, write_state
from sendloom.errors import ConfigurationError
from sendloom.platform.process import EXIT_CONFIGURATION, EXIT_TRY_AGAIN

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How soon a part that died is started again."""

    first: float = 0.05
    """Passcodes must flow again within 5 s of a kill."""
    longest: float = 10
    forgiven_after: float = 20
    """A part that ran this long starts from `first` again."""
    attempts: int = 4
    """What was never ready once and fails this often ends the start; what was ready before is restarted for ever."""
    patience: float = 120
    """Seconds in which a store that does not answer is no failure of the part: one of low priority may, while all others start,
    be too slow to hear an answer that was given."""


LOG_LIMIT = 20 * 1024 * 1024
_LOG_CHECK_SECONDS = 10


class Supervisor:
    """Run `parts` until told to stop.

    Each part has a task of its own, so that one that cannot start never holds up the restart of another.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        home: Path,
        *,
        addresses: Mapping[str, str] | None = None,
        backoff: Backoff = Backoff(),
        changed: Callable[[StackState], None] = lambda _: None,
    ) -> None:
        _check_needs(parts)
        self._parts = {part.name: part for part in parts}
        self._home = home
        self._logs = home / "logs"
        self._nursery = Nursery(self._logs / "nursery.log")
        self._backoff = backoff
        self._changed = changed
        self._ready = {part.name: asyncio.Event() for part in parts}
        self._processes: dict[str, Process] = {}
        self._stopping = asyncio.Event()
        self.asked_to_stop = False
        # A thread waits on each child and one probes it; the default pool would be too small for both.
        self._threads = ThreadPoolExecutor(2 * len(parts) + 4, thread_name_prefix="supervise")
        self.state = StackState(
            supervisor=Running.of(os.getpid()),
            addresses=dict(addresses or {}),
            parts={
                part.name: PartState(stop_signal=part.stop_signal, ports=part.ports)
                for part in parts
            },
        )

    def request_stop(self) -> None:
        """Drain and end; asked a second time, kill what is left. Safe in a signal handler of the loop."""
        self.asked_to_stop = True
        if self._stopping.is_set():
            for process in self._processes.values():
                kill_group(process.pid)
        self._stopping.set()

    async def run(self) -> None:
        """Until `request_stop`, or until a part could not be started at all.

        Raises:
            ConfigurationError: it could not be started. Everything that was started is stopped first.
            PortTaken: because somebody took its port; choose others and start again.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._write()
        if any(our_command(part) for part in self._parts.values()):
            self._nursery.open()
        keepers = [asyncio.create_task(self._keep(part)) for part in self._parts.values()]
        for keeper in keepers:
            keeper.add_done_callback(self._end_if_failed)
        bounding = asyncio.create_task(self._bound_logs())
        try:
            await self._stopping.wait()
        finally:
            self._stopping.set()
            self.state.stopping = True
            self._write()
            await self._drain()
            results = await asyncio.gather(*keepers, return_exceptions=True)
            bounding.cancel()
            self._nursery.close()
            self.state.supervisor = None
            self._write()
            self._threads.shutdown(wait=False)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _keep(self, part: Part) -> None:
        """One part, from its needs being ready to the end."""
        for need in part.needs:
            await self._unless_stopping(self._ready[need].wait())
        state = self.state.parts[part.name]
        delay, failures, first = self._backoff.first, 0, time.monotonic()
        while not self._stopping.is_set():
            started = time.monotonic()
            state.last_exit = await self._run_once(part, state)
            if self._stopping.is_set():
                break
            if part.once and state.last_exit == 0:
                return
            if not self._ready[part.name].is_set():
                await self._thread(partial(self._check_ports, part))
                waits = time.monotonic() - first < self._backoff.patience
                failures += not (state.last_exit == EXIT_TRY_AGAIN and waits)
                if failures >= self._backoff.attempts or state.last_exit == EXIT_CONFIGURATION:
                    raise ConfigurationError(self._why(part, state))
            if time.monotonic() - started > self._backoff.forgiven_after:
                delay = self._backoff.first
            state.restarts += 1
            self._mark(part, "restarting")
            log.warning(
                "a part ended and will be started again",
                extra={"part": part.name, "exit": state.last_exit, "in_seconds": delay},
            )
            await self._unless_stopping(asyncio.sleep(delay))
            delay = min(delay * 2, self._backoff.longest)
        self._mark(part, "stopped")

    async def _run_once(self, part: Part, state: PartState) -> int | None:
        """Start it, say when it is ready, and return its exit code; None when it could not even be started."""
        self._mark(part, "starting")
        try:
            if part.prepare is not None:
                await self._thread(part.prepare)
            process = await self._thread(lambda: self._nursery.launch(part, self._log(part)))
        except (ConfigurationError, OSError) as e:
            log.error("a part could not be started: %s", e, extra={"part": part.name})
            state.problem = str(e)
            return None
        state.problem = None
        self._processes[part.name] = process
        state.runs(process.pid)
        self._write()
        if self._stopping.is_set():  # while it was being started: the drain has not seen it
            await self._thread(lambda: stop(part, process))
        ended = self._thread(process.wait)
        if not part.once:
            if await self._thread(lambda: self._became_ready(part, process)):
                self._mark(part, "ready")
                self._ready[part.name].set()
            elif process.poll() is None and not self._stopping.is_set():
                log.error("a part did not become ready in time", extra={"part": part.name})
                await self._thread(lambda: stop(part, process))
        code = await ended
        # Its own children, if any: a restart must not meet them on its ports.
        kill_group(process.pid)
        state.runs(None)
        if part.once and code == 0:
            self._mark(part, "done")
            self._ready[part.name].set()
        return code

    def _why(self, part: Part, state: PartState) -> str:
        if state.problem is not None:
            return f"{part.name} cannot be started: {state.problem}"
        return f"{part.name} ended with exit code {state.last_exit}; its log ends:\n{tail(self._log(part))}"

    def _check_ports(self, part: Part) -> None:
        """Of a part that ended before it was ever ready.

        Raises:
            PortTaken: this is why: somebody took a port after it was chosen for the part.
        """
        # Cassandra's nodes have the same ports on different addresses.
        others = {port for p in self._parts.values() if p is not part for port in p.ports}
        for port in part.ports:
            if port not in others and not is_free(port):
                raise PortTaken(
                    f"port {port}, chosen for {part.name}, was taken by {who_listens(port)} "
                    f"before {part.name} could listen on it."
                )

    def _became_ready(self, part: Part, process: Process) -> bool:
        return wait_until(
            lambda: is_ready(part, process),
            seconds=part.ready_seconds,
            failed=lambda: process.poll() is not None or self._stopping.is_set(),
        )

    async def _drain(self) -> None:
        """In the order of `Part.drain`: who makes work first, who stores it last."""
        for _, group in groupby(sorted(self._parts.values(), key=_drain_order), key=_drain_order):
            running = [(part, p) for part in group if (p := self._processes.get(part.name))]
            await asyncio.gather(*(self._thread(partial(stop, part, p)) for part, p in running))

    async def _bound_logs(self) -> None:
        """Copy and cut: the children keep the file open, and append."""
        while True:
            await asyncio.sleep(_LOG_CHECK_SECONDS)
            for file in self._logs.glob("*.log"):
                await self._thread(partial(_bound, file))

    async def _unless_stopping(self, wait: Coroutine[Any, Any, object]) -> None:
        waits = [asyncio.ensure_future(wait), asyncio.ensure_future(self._stopping.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    def _thread(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _end_if_failed(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and keeper.exception() is not None:
            self._stopping.set()

    def _mark(self, part: Part, state: str) -> None:
        self.state.parts[part.name].state = state
        self._write()

    def _write(self) -> None:
        states = {part.state for part in self.state.parts.values()}
        self.state.ready = not self._stopping.is_set() and states <= {"ready", "done"}
        write_state(self._home, self.state)
        self._changed(self.state)

    def _log(self, part: Part) -> Path:
        return self._logs / f"{part.name}.log"


def _drain_order(part: Part) -> int:
    return part.drain


def _bound(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.stat().st_size > LOG_LIMIT:
            shutil.copyfile(file, file.with_suffix(".log.1"))
            os.truncate(file, 0)


def _check_needs(parts: Iterable[Part]) -> None:
    """Needs name earlier parts, which also rules circles out."""
    known: set[str] = set()
    for part in parts:
        if missing := set(part.needs) - known:
            raise ValueError(f"{part.name} needs {sorted(missing)}, which must come before it")
        known.add(part.name)
