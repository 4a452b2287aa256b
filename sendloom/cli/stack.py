"""Commands that run Sendloom: the whole embedded stack, or one process of it."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sendloom.embedded.state import StackState

_READY_SECONDS = 300
"""Longer than any part is given; a part that ends is reported at once."""
_DOWN_SECONDS = 90
_REPOSITORY = Path(__file__).resolve().parents[2]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

temporal_app = typer.Typer(help="Prepare a Temporal server.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    for command in (up, down, status, doctor, migrate, api, worker, simulators, settings):
        app.command()(command)
    app.add_typer(temporal_app, name="temporal")


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when everything is ready.")
    ] = False,
    json_: Json = False,
) -> None:
    """Start everything on this machine: servers, provider simulators, API and workers."""
    from sendloom.embedded.state import read_state
    from sendloom.settings import settings_home

    home = settings_home()
    if detach:
        if read_state(home).supervised():
            _wait_ready(home)
        else:
            _start_in_background(home)
        _print_urls(read_state(home), json_)
        return
    home.mkdir(parents=True, exist_ok=True)
    asyncio.run(_supervise(home, json_))


def down() -> None:
    """Stop the stack that runs in this home; its data stay."""
    from sendloom.embedded.parts import wait_until
    from sendloom.embedded.state import read_state, stop_orphans
    from sendloom.errors import ConfigurationError
    from sendloom.settings import settings_home

    home = settings_home()
    supervisor = read_state(home).supervisor
    process = supervisor.process() if supervisor else None
    if process is not None:
        process.send_signal(signal.SIGTERM)
        if not wait_until(lambda: not _alive(process), seconds=_DOWN_SECONDS):
            raise ConfigurationError(
                f"the supervisor (process {process.pid}) did not stop in {_DOWN_SECONDS} s; "
                f"{home / 'logs'} says what it waits for."
            )
        typer.echo("stopped")
    elif left := stop_orphans(home):
        typer.echo(f"stopped what a killed supervisor had left: {', '.join(left)}")
    else:
        typer.echo(f"nothing runs in {home}")


def status(json_: Json = False) -> None:
    """Show each part of the running stack. Exits with 1 when something is not ready."""
    from sendloom.embedded.state import read_state
    from sendloom.settings import settings_home

    home = settings_home()
    state = read_state(home)
    supervised = state.supervised()
    ready = supervised and state.ready
    if json_:
        shown = {"home": str(home), "running": supervised, "ready": ready, **state.addresses}
        parts = {name: part.model_dump() for name, part in state.parts.items()}
        typer.echo(json.dumps({**shown, "parts": parts}))
    elif not supervised:
        typer.echo(f"nothing runs in {home}; `sendloom up` starts it")
    else:
        _print_table(
            ("part", "state", "process", "restarts", "ports"),
            [
                (
                    *(name, part.state, str(part.pid or "–")),
                    *(str(part.restarts), " ".join(map(str, part.ports))),
                )
                for name, part in state.parts.items()
            ],
        )
        _print_urls(state, False)
    raise typer.Exit(0 if ready else 1)


def doctor(json_: Json = False) -> None:
    """Say what is wrong here and how to fix it. Exits with 1 when something is."""
    from sendloom.embedded.doctor import examine

    findings = asyncio.run(examine())
    problems = [f for f in findings if not f.ok]
    if json_:
        typer.echo(json.dumps({"ok": not problems, "checks": [f.model_dump() for f in findings]}))
    else:
        for f in findings:
            mark, colour = ("ok", "green") if f.ok else ("WRONG", "red")
            typer.echo(f"{typer.style(f'{mark:>5}', fg=colour)}  {f.name}: {f.detail}")
            if not f.ok:
                typer.echo(f"       fix: {f.fix}")
        typer.echo("nothing is wrong" if not problems else f"{len(problems)} problem(s)")
    _leave(1 if problems else 0)


def migrate() -> None:
    """Bring the database to this build's schema. Safe to repeat, and to run from several places at once."""
    from sendloom.settings import load_settings
    from sendloom.stores.ledger.opening import cassandra_address
    from sendloom.stores.migrations.runner import migrate as run

    settings_ = load_settings()
    asyncio.run(run(settings_.postgres_dsn))
    if (address := cassandra_address(settings_)) is not None:
        from sendloom.stores.cql.runner import migrate as run_cql

        asyncio.run(run_cql(address, settings_.cassandra.replication))
    typer.echo("the schema is up to date")


@temporal_app.command()
def setup() -> None:
    """Create the namespace, search attributes and schedules this build needs. Safe to repeat."""
    from sendloom.platform.temporal_setup import set_up
    from sendloom.settings import load_settings

    schedules = _REPOSITORY / "temporal-config" / "schedules.yaml"
    with _configuration_errors():
        changed = asyncio.run(set_up(load_settings(), schedules if schedules.exists() else None))
        for line in changed or ["nothing to change"]:
            typer.echo(line)
    _leave(0)


@temporal_app.command()
def rebuild(json_: Json = False) -> None:
    """After the loss of Temporal's data: start everything that was promised again, from our own tables. Safe to repeat.

    Exits with 1 when something could not be started; running it again does that.
    """
    from sendloom.settings import load_settings

    with _configuration_errors():
        settings_ = load_settings()
        counts = asyncio.run(_rebuild(settings_))
    if json_:
        typer.echo(json.dumps(counts))
    else:
        for name, count in sorted(counts.items()):
            typer.echo(f"{name:<14} {count}")
    _leave(1 if counts.get("failed") else 0)


def api() -> None:
    """Serve the HTTP API."""
    from sendloom.platform import logging, process
    from sendloom.settings import load_settings

    with _configuration_errors():
        settings_ = load_settings()
    logging.configure("api", settings_.log_level)
    process.run_and_leave(lambda: _serve_api(settings_.api.host, settings_.api.port))


def worker(
    message_class: Annotated[
        str | None,
        typer.Option("--class", help="Serve a class: security, transactional, marketing or ops."),
    ] = None,
    lane: Annotated[
        list[str] | None, typer.Option(help="Serve only this lane's queue; may be repeated.")
    ] = None,
    health_port: Annotated[
        int, typer.Option(help="Port of /healthz, /readyz and /metrics; 0 takes any free one.")
    ] = 0,
) -> None:
    """Serve lanes until told to stop."""
    from workers.main import main

    with _configuration_errors():
        main(message_class=message_class, lanes=lane or [], health_port=health_port)


def simulators(
    smtp_port: Annotated[int, typer.Option(help="Port of the SMTP sink.")] = 2525,
    http_port: Annotated[
        int, typer.Option(help="Port of the HTTP providers and the inbox.")
    ] = 8025,
) -> None:
    """Run the provider simulators alone."""
    import runpy

    sys.argv = [
        *("sendloom simulators", "--smtp-port", str(smtp_port), "--http-port", str(http_port))
    ]
    runpy.run_module("sendloom.providers.simulators", run_name="__main__")


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
    new_keys: Annotated[
        bool, typer.Option("--new-keys", help="Print fresh keys as NAME=value lines.")
    ] = False,
) -> None:
    """List every setting; values in force are never shown."""
    from sendloom.settings import fresh_keys, known_settings, settings_reference

    if new_keys:
        for name, value in fresh_keys().items():
            typer.echo(f"{name}={value}")
        return
    if markdown:
        typer.echo(settings_reference(), nl=False)
        return
    _print_table(
        ("variable", "default", "what it is"),
        [
            (s.name, "required" if s.required else s.default or "–", s.description)
            for s in known_settings().values()
        ],
    )


async def _supervise(home: Path, json_: bool) -> None:
    from sendloom.embedded.run import run_stack
    from sendloom.platform import logging

    logging.configure("supervisor")
    await run_stack(home, changed=_announcer(time.monotonic(), json_))


def _announcer(began: float, json_: bool) -> Any:
    """Says once a part is ready, and once that all are."""
    said: set[str] = set()

    def changed(state: "StackState") -> None:
        for name, part in state.parts.items():
            if part.state in ("ready", "done") and name not in said:
                said.add(name)
                typer.echo(f"{time.monotonic() - began:5.1f} s  {name} {part.state}", err=True)
        if state.ready and "" not in said:
            said.add("")
            _print_urls(state, json_)
            typer.echo("ready; Ctrl-C stops it", err=True)

    return changed


def _wait_ready(home: Path) -> None:
    from sendloom.embedded.parts import wait_until
    from sendloom.embedded.state import read_state
    from sendloom.errors import ConfigurationError

    if not wait_until(
        lambda: read_state(home).ready,
        seconds=_READY_SECONDS,
        failed=lambda: not read_state(home).supervised(),
    ):
        raise ConfigurationError(
            "the stack that runs here is not ready; `sendloom status` shows what it waits for."
        )


def _start_in_background(home: Path) -> None:
    from sendloom.embedded.parts import tail, wait_until
    from sendloom.embedded.state import read_state
    from sendloom.errors import ConfigurationError

    (home / "logs").mkdir(parents=True, exist_ok=True)
    file = home / "logs" / "supervisor.log"
    with file.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sendloom.cli", "up"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ready() -> bool:
        state = read_state(home)
        ours = state.supervisor is not None and state.supervisor.pid == process.pid
        return ours and state.ready

    if wait_until(ready, seconds=_READY_SECONDS, failed=lambda: process.poll() is not None):
        return
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(_DOWN_SECONDS)
    raise ConfigurationError(f"the stack did not become ready:\n{tail(file)}")


async def _rebuild(settings_: Any) -> dict[str, int]:
    from sendloom.platform.temporal import connect
    from sendloom.platform.temporal_setup import set_up
    from sendloom.stores.migrations.runner import check_schema
    from workers import wiring

    await check_schema(settings_.postgres_dsn)
    schedules = _REPOSITORY / "temporal-config" / "schedules.yaml"
    await set_up(settings_, schedules if schedules.exists() else None)
    async with wiring.rebuild(settings_, await connect(settings_)) as rebuilding:
        rebuilt = await rebuilding.run()
    return dict(rebuilt.counts)


async def _serve_api(host: str, port: int) -> None:
    import uvicorn

    from sendloom.errors import ConfigurationError
    from sendloom.platform.process import stop_requested

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn's own raises the signal again after draining, and the process would not end with 0.
            yield

    server = Server(
        uvicorn.Config(
            "api.app:create_app",
            factory=True,
            host=host,
            port=port,
            http="httptools",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=10,
        )
    )
    stop = stop_requested()
    serving = asyncio.create_task(server.serve())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    try:
        await serving
    except SystemExit:
        raise ConfigurationError(
            f"the API could not start on {host}:{port}; the line above says why."
        ) from None
    if not server.started:
        raise ConfigurationError("the API could not start; the line above says why.")


@contextlib.contextmanager
def _configuration_errors() -> Iterator[None]:
    """For commands that load temporalio: the usual way out of the interpreter may abort, so leave by the other one."""
    from sendloom.errors import ConfigurationError, SchemaTooOld
    from sendloom.platform.process import EXIT_CONFIGURATION

    try:
        yield
    except (ConfigurationError, SchemaTooOld) as e:
        typer.secho(f"sendloom: {e}", fg="red", err=True)
        _leave(EXIT_CONFIGURATION)


def _leave(code: int) -> None:
    from sendloom.platform.process import leave

    leave(code)


def _alive(process: Any) -> bool:
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _print_urls(state: "StackState", json_: bool) -> None:
    if json_:
        typer.echo(json.dumps({"ready": state.ready, **state.addresses}))
        return
    for name, address in state.addresses.items():
        if name.endswith("_url"):
            typer.echo(f"  {name.removesuffix('_url').replace('_', ' '):<12} {address}")


def _print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
