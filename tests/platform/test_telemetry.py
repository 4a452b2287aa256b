"""Traces reach a collector over a real socket, carry nothing personal, and never hold anything up (OPS-4)."""

import json
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from pydantic import BaseModel, SecretBytes, SecretStr

from sendloom.platform.telemetry import OtlpJsonExporter, install
from sendloom.settings import PREFIX, Settings, TelemetrySettings

ROOT = Path(__file__).parents[2]


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    received: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def provider(endpoint: str) -> TracerProvider:
    made = TracerProvider(
        resource=Resource.create({"service.name": "sendloom"}), shutdown_on_exit=False
    )
    made.add_span_processor(BatchSpanProcessor(OtlpJsonExporter(endpoint, seconds=1)))
    return made


def test_a_span_arrives_as_the_protocol_wants_it_without_what_is_secret() -> None:
    with collector() as (endpoint, received):
        spans = provider(endpoint)
        tracer = spans.get_tracer("t")
        with tracer.start_as_current_span("accept") as parent:
            with tracer.start_as_current_span(
                "send", attributes={"channel": "sms", "n": 3}
            ) as span:
                span.set_attribute("note", "to ann@example.com")
                span.set_attribute("code", "QWERTYUIOPAS")
                span.set_status(Status(StatusCode.ERROR, "no route to ann@example.com"))
        assert spans.force_flush(5000)
        spans.shutdown()
    [(path, body)] = received
    assert path == "/v1/traces"
    found = {s["name"]: s for s in body["resourceSpans"][0]["scopeSpans"][0]["spans"]}
    assert found["send"]["traceId"] == f"{parent.get_span_context().trace_id:032x}"
    assert found["send"]["parentSpanId"] == found["accept"]["spanId"]
    assert "parentSpanId" not in found["accept"]
    assert found["send"]["status"]["code"] == 2
    assert {"key": "channel", "value": {"stringValue": "sms"}} in found["send"]["attributes"]
    assert {"key": "n", "value": {"intValue": "3"}} in found["send"]["attributes"]
    assert int(found["send"]["endTimeUnixNano"]) >= int(found["send"]["startTimeUnixNano"]) > 0
    assert "example.com" not in json.dumps(body)
    assert "QWERTYUIOPAS" not in json.dumps(body)


@pytest.mark.parametrize("listens", [False, True], ids=["gone", "hangs"])
def test_a_collector_that_takes_nothing_holds_nothing_up(listens: bool) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        if listens:
            nobody.listen()
        spans = provider(f"http://127.0.0.1:{nobody.getsockname()[1]}")
        tracer = spans.get_tracer("t")
        began = time.monotonic()
        for _ in range(
            10_000
        ):  # more than the queue holds; one that hangs would take a second for each
            with tracer.start_as_current_span("send"):
                pass
        assert time.monotonic() - began < 60
        spans.shutdown()


def test_starting_a_workflow_is_traced_when_there_is_a_collector(
    temporal_server: str, make_settings: Callable[..., Settings]
) -> None:
    with collector() as (endpoint, received):
        settings = make_settings(
            temporal={"address": temporal_server},
            telemetry={"otlp_endpoint": endpoint, "sample_ratio": 1},
        )
        # In a process of its own: a tracer provider is installed once and for all.
        script = (
            "import asyncio, sys\n"
            "from sendloom.platform import process, telemetry\n"
            "from sendloom.platform.temporal import connect\n"
            "from sendloom.settings import load_settings\n"
            "async def main():\n"
            "    settings = load_settings()\n"
            "    provider = telemetry.install(settings.telemetry, 'test')\n"
            "    client = await connect(settings)\n"
            "    await client.start_workflow('Nobody', id=sys.argv[1], task_queue='nobody')\n"
            "    provider.shutdown()\n"
            "process.run_and_leave(main)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, f"traced-{uuid4()}"],
            env=variables_of(settings),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    names = {
        span["name"]
        for _, body in received
        for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    }
    assert "StartWorkflow:Nobody" in names


def variables_of(settings: Settings) -> dict[str, str]:
    """The environment that gives a process these settings."""

    def leaves(part: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
        for name, value in part:
            match value:
                case BaseModel():
                    yield from leaves(value, f"{prefix}{name}__".upper())
                case SecretBytes():
                    yield f"{prefix}{name}".upper(), b64encode(value.get_secret_value()).decode()
                case SecretStr():
                    yield f"{prefix}{name}".upper(), value.get_secret_value()
                case None:
                    pass
                case _:
                    yield f"{prefix}{name}".upper(), str(value)

    return dict(leaves(settings, PREFIX))


def test_without_a_collector_there_is_nothing_to_run() -> None:
    assert install(TelemetrySettings(), "test") is None
