"""Liveness, readiness and metrics of a worker process, on a port of its own and without a framework."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from sendloom.errors import ConfigurationError
from sendloom.platform.metrics import exposition

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 5.0
_TEXT = "text/plain; charset=utf-8"


class Health:
    """What the process knows of itself. It is ready from when its workers run until it drains."""

    def __init__(self) -> None:
        self._not_ready: str | None = "starting"

    def ready(self) -> None:
        self._not_ready = None

    def standing_by(self) -> None:
        self._not_ready = "standing by: as many processes serve as may"

    def draining(self) -> None:
        self._not_ready = "draining"

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """(status, body, content type) for one path."""
        match path:
            case "/livez" | "/healthz":
                # It answers, so its event loop runs; nothing else is a reason to kill it.
                return 200, b"ok\n", _TEXT
            case "/readyz" if self._not_ready is None:
                return 200, b"ready\n", _TEXT
            case "/readyz":
                return 503, f"{self._not_ready}\n".encode(), _TEXT
            case "/metrics":
                body, content_type = exposition()
                return 200, body, content_type
            case _:
                return 404, b"/livez, /readyz and /metrics are here\n", _TEXT


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@contextlib.asynccontextmanager
async def listening(health: Health, port: int, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Answer on the port (0: any free one) until the block ends; the port it is.

    Raises:
        ConfigurationError: the port is taken.
    """
    try:
        server = await asyncio.start_server(_handler(health.answer), host, port)
    except OSError as e:
        raise ConfigurationError(
            f"the health port {host}:{port} cannot be opened: {e.strerror}. Give another with --health-port."
        ) from e
    bound: int = server.sockets[0].getsockname()[1]
    log.info("health", extra={"port": bound})
    try:
        yield bound
    finally:
        server.close()
        # Not wait_closed: a client that keeps its connection open must not hold up a drain.


def _handler(
    answer: Callable[[str], tuple[int, bytes, str]],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError,
            TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ValueError,
        ):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = request.partition(b" ")
                path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
                if method in (b"GET", b"HEAD"):
                    status, body, content_type = answer(path)
                else:
                    status, body, content_type = 405, b"", _TEXT
                head = (
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if method == b"HEAD" else body))
                await writer.drain()
        writer.close()

    return handle
