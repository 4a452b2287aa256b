"""A process that has everything imported and forks our commands: a killed worker is back in milliseconds, not in seconds.

Importing what a worker needs takes some two seconds of CPU, most of what a passcode waited for after a kill -9. Here it is done
once, before it is needed, and every child shares that memory. A child is a session of its own and outlives this process; it is
only forked while there is one thread, before anything of Temporal's or of a store's is running.
"""

import contextlib
import gc
import io
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from sendloom.embedded.parts import Part, Process, launch
from sendloom.platform.priority import give_way

log = logging.getLogger(__name__)

PRELOADED = ("sendloom.cli.stack", "workers.main", "api.app", "uvicorn", "uvloop")
_MODULE = ("-m", "sendloom.cli")
_WARM_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_MESSAGE = 1 << 20


class Nursery:
    """The supervisor's end. Without the other end, parts are started the slow way."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._warm = False
        self._closed = False

    def open(self) -> None:
        """Start it; it gets warm beside whatever is done next."""
        with self._lock:
            self._open()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def launch(self, part: Part, file: Path) -> Process:
        """Like `parts.launch`; forked when the part runs a command of ours."""
        args = our_command(part)
        if args is None:
            return launch(part, file)
        wish = {
            "args": args,
            "env": {**os.environ, **part.env},
            "cwd": str(part.cwd) if part.cwd else None,
            "log": str(file),
            "nice": part.nice,
            "name": part.name,
        }
        with self._lock:
            pid = self._ask(wish)
            if pid is not None:
                try:
                    return Forked(pid, self)
                except OSError:
                    log.warning("a forked part was gone at once", extra={"part": part.name})
        return launch(part, file)

    def reap(self, pid: int) -> int | None:
        """The exit code of a child that has ended; None when nobody knows it."""
        with self._lock:
            return self._ask({"reap": pid})

    def _ask(self, what: dict[str, Any]) -> int | None:
        if self._socket is None:
            self._open()
            # The next one is forked; this one is not kept waiting for the imports a second time.
            return None
        try:
            if not self._warm:
                self._socket.settimeout(_WARM_SECONDS)
                self._warm = self._socket.recv(_MESSAGE) != b""
            self._socket.settimeout(_ANSWER_SECONDS)
            self._socket.send(json.dumps(what).encode())
            answer: int | None = json.loads(self._socket.recv(_MESSAGE))
            return answer
        except (OSError, ValueError):
            log.warning("the nursery does not answer; parts are started without it")
            self._drop()
            self._open()
            return None

    def _open(self) -> None:
        if self._closed:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._log_file.parent.mkdir(parents=True, exist_ok=True)
            with self._log_file.open("ab") as out:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sendloom.embedded.nursery", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    cwd=_REPOSITORY,
                )
        self._socket, self._warm = ours, False

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            # Its end of the socket is closed, so it leaves by itself; this is for one that hangs.
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


class Forked:
    """A child of the nursery, watched from here."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self._nursery = nursery
        # Nobody reaps it but we, so the number is still its own.
        self._fd = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            # Looked at again now and then: another thread may have reaped it meanwhile.
            ready = self._ended(1.0 if left is None else min(left, 1.0))
            if ready:
                with self._lock:
                    if self._code is None:
                        code = self._nursery.reap(self.pid)
                        self._code = -signal.SIGKILL if code is None else code
                        os.close(self._fd)
                break
            if left is not None and left <= 1.0:
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"forked {self.pid}", timeout)
        assert self._code is not None
        return self._code

    def send_signal(self, sig: int, /) -> None:
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._fd, sig)

    def _ended(self, seconds: float) -> bool:
        with self._lock:
            if self._code is not None:
                return True
            # A descriptor of its own: another thread may close the first while this one waits.
            fd = os.dup(self._fd)
        try:
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)
            return bool(waiting.poll(seconds * 1000))
        finally:
            os.close(fd)


def our_command(part: Part) -> list[str] | None:
    """The arguments of `sendloom …`, if that is what the part runs and if it runs as we do."""
    if part.user is None and part.command[:3] == (sys.executable, *_MODULE):
        return list(part.command[3:])
    return None


# --- the other end ----------------------------------------------------------------------------------------------------------


def serve(fd: int) -> None:
    """Until the supervisor is gone. What was forked stays."""
    for module in PRELOADED:
        import_module(module)
    gc.collect()
    # Else every collection of a child would write to, and so copy, all of what it shares.
    gc.freeze()
    with socket.socket(fileno=fd) as asked:
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a module started a thread on import: nothing can be forked")
        asked.send(b"warm")
        while message := asked.recv(_MESSAGE):
            wish = json.loads(message)
            answer = _reap(wish["reap"]) if "reap" in wish else _fork(wish, asked)
            asked.send(json.dumps(answer).encode())


def _reap(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _fork(wish: dict[str, Any], asked: socket.socket) -> int:
    leads, led = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(leads)
        os.close(led)
        asked.close()
        _become(wish)
    os.close(led)
    # Its group can be killed from the moment its number is known.
    os.read(leads, 1)
    os.close(leads)
    return pid


def _become(wish: dict[str, Any]) -> NoReturn:
    """The child, from here to its end."""
    code = 1
    try:
        out = os.open(wish["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(line_buffering=True)
        if wish["nice"]:
            # There is one thread; those to come inherit it.
            give_way(os.getpid(), wish["nice"])
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(wish["name"][:15])
        os.environ.clear()
        os.environ.update(wish["env"])
        if wish["cwd"]:
            os.chdir(wish["cwd"])
        sys.argv = ["sendloom", *wish["args"]]
        from sendloom.cli import main

        main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        logging.getLogger(__name__).exception("a part ended by an error nobody expected")
    finally:
        # Whatever the log's disk says, this must end here and not go back into the nursery's own code.
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


_REPOSITORY = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    serve(int(sys.argv[1]))
