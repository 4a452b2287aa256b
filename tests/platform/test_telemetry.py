"""Traces reach a collector over a real socket, carry nothing personal, and never hold anything up (OPS-4)."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

from sendloom.embedded.ports import free_port
from sendloom.platform.telemetry import OtlpJsonExporter, install
from sendloom.settings import TelemetrySettings


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


def test_a_collector_that_is_gone_holds_nothing_up() -> None:
    spans = provider(f"http://127.0.0.1:{free_port()}")
    tracer = spans.get_tracer("t")
    began = time.monotonic()
    for _ in range(10_000):  # more than the queue holds
        with tracer.start_as_current_span("send"):
            pass
    assert time.monotonic() - began < 5
    spans.shutdown()


def test_without_a_collector_there_is_nothing_to_run() -> None:
    assert install(TelemetrySettings(), "test") is None
