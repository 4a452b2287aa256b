"""Connecting to Temporal, and what is said when that cannot work (case C64); setting a server up."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCStatusCode

from sendloom.embedded.ports import free_port
from sendloom.errors import ConfigurationError
from sendloom.platform.search_attributes import ALL
from sendloom.platform.temporal import connect
from sendloom.platform.temporal_setup import (
    RETENTION,
    missing_search_attributes,
    read_schedules,
    set_up,
)
from sendloom.settings import Settings

MakeSettings = Callable[..., Settings]
API_KEY = "hunter2-hunter2"


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None,
) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if answer is None:
                await reader.read()  # take everything, say nothing
            else:
                await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def refusing(status: RPCStatusCode) -> Callable[..., Awaitable[None]]:
    """The least HTTP/2 there is: every gRPC call is answered with this status at once (RFC 9113, RFC 7541)."""

    def literal(name: str, value: str) -> bytes:
        return bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()

    def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
        return (
            len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body
        )

    trailers = b"\x88" + literal("content-type", "application/grpc")  # 0x88 is `:status 200`
    trailers += literal("grpc-status", str(status.value))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        writer.write(frame(4, 0, 0))
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == 4 and not flags & 1:
                writer.write(frame(4, 1, 0))
            elif kind == 6 and not flags & 1:
                writer.write(frame(6, 1, 0, bytes(8)))
            elif kind == 1:
                writer.write(frame(1, 5, stream, trailers))

    return answer


async def refusal(settings: Settings) -> str:
    """What connecting says; it must say so in time and show no secret."""
    began = time.monotonic()
    with pytest.raises(ConfigurationError) as e:
        await connect(settings)
    assert time.monotonic() - began < settings.temporal.connect_seconds + 10
    assert API_KEY not in str(e.value)
    assert e.value.__cause__ is None
    return str(e.value)


async def test_c64_a_server_that_is_not_there_is_named(make_settings: MakeSettings) -> None:
    address = f"127.0.0.1:{free_port()}"
    said = await refusal(make_settings(temporal={"address": address, "connect_seconds": 2}))
    assert address in said
    assert "SENDLOOM_TEMPORAL__ADDRESS" in said


async def test_c64_a_server_that_never_answers_is_given_up_on(make_settings: MakeSettings) -> None:
    async with listening(None) as address:
        said = await refusal(make_settings(temporal={"address": address, "connect_seconds": 1}))
    assert address in said


async def test_c64_an_unknown_namespace_is_named_with_the_command_that_creates_it(
    temporal_server: str, make_settings: MakeSettings
) -> None:
    said = await refusal(
        make_settings(temporal={"address": temporal_server, "namespace": "nobody-made-it"})
    )
    assert "`nobody-made-it`" in said
    assert "sendloom temporal setup" in said


@pytest.mark.parametrize("status", [RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED])
async def test_c64_refused_credentials_are_said_to_be_refused(
    status: RPCStatusCode, make_settings: MakeSettings
) -> None:
    async with listening(refusing(status)) as address:
        settings = make_settings(temporal={"address": address})
        said = await refusal(settings)
    assert "refused our credentials" in said
    assert "SENDLOOM_TEMPORAL__API_KEY" in said


async def test_c64_an_api_key_that_goes_nowhere_is_not_printed(make_settings: MakeSettings) -> None:
    address = f"127.0.0.1:{free_port()}"
    nowhere = {"address": address, "connect_seconds": 2, "api_key": SecretStr(API_KEY)}
    await refusal(make_settings(temporal=nowhere))


async def test_a_missing_certificate_is_named(make_settings: MakeSettings, tmp_path: Path) -> None:
    said = await refusal(make_settings(temporal={"tls_ca": tmp_path / "ca.pem"}))
    assert "SENDLOOM_TEMPORAL__TLS_CA" in said


async def test_a_lazy_client_does_not_wait_for_the_server(make_settings: MakeSettings) -> None:
    await connect(make_settings(temporal={"address": f"127.0.0.1:{free_port()}"}), lazy=True)


async def test_setting_up_creates_namespace_and_attributes_once(
    temporal_server: str, make_settings: MakeSettings
) -> None:
    settings = make_settings(
        temporal={
            "address": temporal_server,
            "namespace": f"setup-{uuid4()}",
        }
    )
    first = await set_up(settings, None)
    assert f"namespace {settings.temporal.namespace} created" in first
    client = await connect(settings)
    assert await missing_search_attributes(client) == []
    assert await retention(client) == RETENTION
    # Set up means that whoever starts now finds all of it, however long the server keeps what it knew before.
    handle = await client.start_workflow(
        "Any",
        id="first",
        task_queue="nobody",
        search_attributes=TypedSearchAttributes([SearchAttributePair(key, "x") for key in ALL]),
    )
    await handle.terminate()
    assert await set_up(settings, None) == []


async def test_setting_up_raises_a_retention_that_is_too_short(
    temporal_server: str, make_settings: MakeSettings
) -> None:
    settings = make_settings(temporal={"address": temporal_server})
    await set_up(settings, None)  # the dev server made this namespace with a day or so
    assert await retention(await connect(settings)) >= RETENTION


async def test_schedules_are_created_and_then_kept_up_to_date(
    temporal_server: str, make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(temporal={"address": temporal_server})
    name = f"sweep-{uuid4()}"
    file = tmp_path / "schedules.yaml"
    entry = (
        "{name}: {{workflow: Sweep, task_queue: nobody, every_seconds: {every}, jitter_seconds: 1, overlap: skip, "
        "catchup_seconds: 60, why: a test}}\n"
    )
    file.write_text(entry.format(name=name, every=3600))
    assert f"schedule {name} created" in await set_up(settings, file)
    client = await connect(settings)
    handle = client.get_schedule_handle(name)
    await handle.pause(note="operations said so")
    try:
        file.write_text(entry.format(name=name, every=7200))
        assert f"schedule {name} up to date" in await set_up(settings, file)
        schedule = (await handle.describe()).schedule
        assert schedule.spec.intervals[0].every == timedelta(hours=2)
        assert schedule.state.paused
    finally:
        await handle.delete()


@pytest.mark.parametrize("text", ["x: {workflow: Y}\n", "x: [", "x: 1\n", "- x\n"])
def test_a_broken_schedules_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"schedules\.yaml"):
        read_schedules(file)


async def retention(client: Client) -> timedelta:
    answer = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace)
    )
    found: timedelta = answer.config.workflow_execution_retention_ttl.ToTimedelta()
    return found
