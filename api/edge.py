"""What happens to every request before a route sees it: sizes are bounded, times are measured."""

import asyncio
import time
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem
from api.limits import Load
from api.timing import begin
from schemas.api import BODY_BYTES, CHUNK_BYTES
from sendloom.platform.metrics.http import record_in_flight, record_request


def limit_of(path: str) -> int:
    return CHUNK_BYTES if path.startswith("/v1/lists/") and "/chunks/" in path else BODY_BYTES


def _too_large(limit: int) -> str:
    return f"at most {limit // 1024} KiB are taken in one request"


class Edge:
    """Refuses a body over the limit by its announced length, without reading it; an unannounced one as soon as it is over."""

    def __init__(self, app: ASGIApp, answer_within: float, load: Load) -> None:
        self._app = app
        self._load = load
        self._answer_within = answer_within

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        begin(self._answer_within)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        record_in_flight(1)
        self._load.began()
        try:
            await self._bounded(scope, receive, sending)
        finally:
            record_in_flight(-1)
            self._load.ended(status, time.perf_counter() - began)
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
            refusal = problem("body_too_large", _too_large(limit), headers=CLOSE)
            await refusal(scope, receive, _lingering(receive, send))
            return
        seen, sending = 0, send

        async def counted() -> Message:
            nonlocal seen, sending
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                sending = _lingering(receive, send)
                raise HTTPException(413, _too_large(limit), headers=CLOSE)
            return message

        async def answering(message: Message) -> None:
            await sending(message)

        await self._app(scope, counted, answering)


CLOSE = {"Connection": "close"}
"""Of a body that is not read to its end nothing after it can be read either."""
LINGER = 5.0
"""Seconds that what still comes is thrown away for. A socket closed with unread bytes resets the connection, and the answer
would be lost on its way to a client that sends first and listens later."""


def _lingering(receive: Receive, send: Send) -> Send:
    """Sends the answer at once, and ends it when the caller has stopped sending."""

    async def sending(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body"):
            await send(message)
            return
        await send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b""})

    return sending
