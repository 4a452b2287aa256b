"""Traces. Without a collector configured there is no provider and every span is a no-op; with one, nothing ever waits for it."""

import http.client
import json
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from sendloom.platform.logging import redact
from sendloom.settings import TelemetrySettings

log = logging.getLogger(__name__)


def install(settings: TelemetrySettings, process: str) -> TracerProvider | None:
    """Make the process's tracer provider the global one; None when no collector is configured."""
    if settings.otlp_endpoint is None:
        return None
    provider = TracerProvider(
        resource=Resource.create({"service.name": "sendloom", "service.instance.id": process}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        shutdown_on_exit=False,  # our processes leave by os._exit; they call shutdown themselves
    )
    # A bounded queue and a thread of its own: a collector that is slow or gone costs dropped spans, never a send.
    provider.add_span_processor(
        BatchSpanProcessor(
            OtlpJsonExporter(settings.otlp_endpoint), max_queue_size=4096, max_export_batch_size=256
        )
    )
    trace.set_tracer_provider(provider)
    return provider


class OtlpJsonExporter(SpanExporter):
    """OTLP over HTTP in its JSON encoding, which needs no package besides the SDK."""

    def __init__(self, endpoint: str, *, seconds: float = 3) -> None:
        parts = urlsplit(endpoint)
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/") + "/v1/traces"
        self._seconds = seconds

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._seconds)
        try:
            connection.request(
                "POST",
                self._path,
                json.dumps(_request(spans)),
                {"Content-Type": "application/json"},
            )
            if connection.getresponse().status < 300:
                return SpanExportResult.SUCCESS
        except (OSError, http.client.HTTPException):
            log.debug("the trace collector did not take a batch")
        finally:
            connection.close()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        return None


def _request(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    resource = spans[0].resource.attributes if spans else {}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": "sendloom"}, "spans": [_span(s) for s in spans]}],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    out: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": span.name,
        "kind": span.kind.value
        + 1,  # the SDK counts from 0, the protocol keeps 0 for "unspecified"
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
        # No message: a status description is free text and may quote its input.
        "status": {"code": span.status.status_code.value},
        "events": [
            {"name": event.name, "timeUnixNano": str(event.timestamp)} for event in span.events
        ],
    }
    if span.parent is not None:
        out["parentSpanId"] = f"{span.parent.span_id:016x}"
    return out


def _attributes(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": k, "value": _value(redact(v, k))} for k, v in attributes.items()]


def _value(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(v) for v in value]}}
        case _:
            return {"stringValue": str(value)}
