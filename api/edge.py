"""What happens to every request before a route sees it: sizes are bounded, times are measured."""

import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem
from schemas.api import BODY_BYTES, CHUNK_BYTES
from sendloom.platform.metrics.http import record_in_flight, record_request


def limit_of(path: str) -> int:
    return CHUNK_BYTES if path.startswith("/v1/lists/") and "/chunks/" in path else BODY_BYTES


def _too_large(limit: int) -> str:
    return f"at most {limit // 1024} KiB are taken in one request"


class Edge:
    """Refuses a body over the limit by its announced length, without reading it; an unannounced one as soon as it is over."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        record_in_flight(1)
        try:
            await self._bounded(scope, receive, sending)
        finally:
            record_in_flight(-1)
            route = scope.get("route")
            record_request(
                scope["method"],
                getattr(route, "path", ""),
                status,
                time.perf_counter() - began,
            )

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = limit_of(scope["path"])
        announced = next((v for k, v in scope["headers"] if k == b"content-length"), b"")
        if announced.isdigit() and int(announced) > limit:
            # The rest of the body is not read: the connection cannot be used again.
            refusal = problem("body_too_large", _too_large(limit), headers={"Connection": "close"})
            await refusal(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413, _too_large(limit), headers={"Connection": "close"})
            return message

        await self._app(scope, counted, send)
