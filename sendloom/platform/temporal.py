"""How every process reaches Temporal: one converter, one time limit, errors a person can act on."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
)
from temporalio.client import Client, Interceptor
from temporalio.runtime import (
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.service import GrpcCompression, RPCError, RPCStatusCode, TLSConfig

from sendloom.errors import ConfigurationError
from sendloom.platform.payloads import data_converter
from sendloom.settings import Settings, TemporalSettings

_PROBE = timedelta(seconds=2)
_REFUSED = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)


async def connect(
    settings: Settings,
    *,
    interceptors: Sequence[Interceptor] = (),
    runtime: Runtime | None = None,
    lazy: bool = False,
    namespace_exists: bool = True,
) -> Client:
    """A client that is known to work. A lazy one is not tried: for the API, which must start while Temporal is away.

    `namespace_exists=False` is for `sendloom temporal setup`, which creates it.

    Raises:
        ConfigurationError: unreachable, refused or no such namespace, within the configured seconds. Says which.
    """
    t = settings.temporal
    tls = _tls(t)
    if settings.telemetry.otlp_endpoint is not None:
        # Imported only where traces go somewhere. Workers inherit it from their client.
        from temporalio.contrib.opentelemetry import TracingInterceptor

        interceptors = [*interceptors, TracingInterceptor()]
    try:
        async with asyncio.timeout(t.connect_seconds):
            client = await Client.connect(
                t.address,
                namespace=t.namespace,
                api_key=t.api_key.get_secret_value() if t.api_key else None,
                tls=tls,
                data_converter=data_converter(settings.keys.ring()),
                interceptors=interceptors,
                runtime=runtime,
                lazy=lazy,
                # Payloads are sealed, so there is nothing in them to compress; trying cost either side a tenth of a call.
                grpc_compression=GrpcCompression.NONE,
            )
            if namespace_exists and not lazy:
                await client.workflow_service.describe_namespace(
                    DescribeNamespaceRequest(namespace=t.namespace)
                )
            return client
    except TimeoutError:
        raise ConfigurationError(
            f"Temporal at {t.address} did not answer within {t.connect_seconds:g} s. "
            "Is it running (`sendloom status`), and is SENDLOOM_TEMPORAL__ADDRESS right?"
        ) from None
    except RPCError as e:
        raise ConfigurationError(_explain(t, e)) from None
    except RuntimeError as e:
        raise ConfigurationError(_explain_core(t, str(e))) from None


async def waiting_in(client: Client, queue: str) -> tuple[int, timedelta, frozenset[str]]:
    """A queue's tasks, the age of the oldest, and the identities of who asked for one lately."""
    tasks, oldest, workers = 0, timedelta(0), set[str]()
    for kind in (
        TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    ):
        said = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=kind,
                report_stats=True,
            ),
            timeout=_PROBE,
        )
        tasks += said.stats.approximate_backlog_count
        oldest = max(oldest, said.stats.approximate_backlog_age.ToTimedelta())
        workers |= {poller.identity for poller in said.pollers}
    return tasks, oldest, frozenset(workers)


async def reachable(client: Client) -> bool:
    """Whether the frontend answers now and knows the namespace."""
    try:
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace), timeout=_PROBE
        )
    except (RPCError, RuntimeError):
        return False
    return True


def sdk_runtime(metrics_address: str | None = None) -> Runtime:
    """The SDK's own metrics on an address of their own. Make one, before the first client."""
    return Runtime(
        telemetry=TelemetryConfig(
            logging=LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR")),
            metrics=PrometheusConfig(bind_address=metrics_address, durations_as_seconds=True)
            if metrics_address
            else None,
        )
    )


def _explain_core(t: TemporalSettings, text: str) -> str:
    """What the SDK's core raises when connecting fails; its text may quote request metadata, so it is never shown."""
    if "code: Unauthenticated" in text or "code: PermissionDenied" in text:
        return _refused(t)
    reason = "TLS failed" if "tls" in text.lower() else "the connection failed"
    return (
        f"cannot reach Temporal at {t.address}: {reason}. "
        "Is it running (`sendloom status`), and is SENDLOOM_TEMPORAL__ADDRESS right?"
    )


def _refused(t: TemporalSettings) -> str:
    return (
        f"Temporal at {t.address} refused our credentials for namespace `{t.namespace}`. "
        "Check SENDLOOM_TEMPORAL__API_KEY or SENDLOOM_TEMPORAL__TLS_CERT and SENDLOOM_TEMPORAL__TLS_KEY."
    )


def _explain(t: TemporalSettings, e: RPCError) -> str:
    if e.status is RPCStatusCode.NOT_FOUND:
        return (
            f"Temporal at {t.address} has no namespace `{t.namespace}`. Create it with `sendloom temporal setup`, "
            "or correct SENDLOOM_TEMPORAL__NAMESPACE."
        )
    if e.status in _REFUSED:
        return _refused(t)
    return f"Temporal at {t.address} answered {e.status.name.lower().replace('_', ' ')}. Is it healthy?"


def _tls(t: TemporalSettings) -> TLSConfig | bool:
    if not (t.tls or t.api_key or t.tls_ca or t.tls_cert):
        return False
    return TLSConfig(
        server_root_ca_cert=_pem("TLS_CA", t.tls_ca),
        client_cert=_pem("TLS_CERT", t.tls_cert),
        client_private_key=_pem("TLS_KEY", t.tls_key),
    )


def _pem(name: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigurationError(
            f"SENDLOOM_TEMPORAL__{name}: cannot read {path}: {e.strerror}."
        ) from None
