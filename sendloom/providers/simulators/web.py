"""The inbox over HTTP: two pages for people, JSON for tests, the demo and the kill runs."""

import asyncio
import time
from dataclasses import asdict
from typing import Any, cast

import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from schemas.kinds import Channel
from sendloom.providers.simulators import pages
from sendloom.providers.simulators.behaviour import Behaviour
from sendloom.providers.simulators.inbox import Arrival, Inbox, Selector
from sendloom.providers.simulators.smtp import SmtpSink
from sendloom.providers.simulators.twilio import TwilioApi

LONGEST_WAIT_S = 300.0
_SELECTORS: tuple[Selector, ...] = ("to", "reference", "message_id", "channel")
_PAGE_HEADERS = {
    # Nothing that arrived may run, load or be framed, whatever slips through the escaping.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class BadQuery(Exception):
    """A parameter that makes no sense. The text says which."""


class InboxPages:
    """Give `routes` to a Starlette application."""

    def __init__(self, inbox: Inbox, behaviour: Behaviour, smtp: SmtpSink, sms: TwilioApi) -> None:
        self._inbox = inbox
        self._behaviour = behaviour
        self._smtp = smtp
        self._sms = sms
        self._started = time.monotonic()
        self._waiting: set[asyncio.Task[int]] = set()
        self.routes = [
            Route("/", self._list_page),
            Route("/messages/{id}", self._message_page),
            Route("/messages/{id}/raw", self._raw),
            Route("/healthz", self._health),
            Route("/api/messages", _answering(self._messages), methods=["GET"]),
            Route("/api/messages", _answering(self._clear), methods=["DELETE"]),
            Route("/api/messages/{id}", _answering(self._message), methods=["GET"]),
            Route("/api/counts", _answering(self._counts), methods=["GET"]),
            Route("/api/stats", _answering(self._stats), methods=["GET"]),
            Route("/api/wait", _answering(self._wait), methods=["GET"]),
            Route("/api/behaviour", _answering(self._switches), methods=["GET"]),
            Route("/api/behaviour", _answering(self._switch), methods=["POST"]),
            Route("/api/behaviour", _answering(self._switch_back), methods=["DELETE"]),
        ]

    async def close(self) -> None:
        for task in list(self._waiting):
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _list_page(self, request: Request) -> Response:
        to, any_id = (request.query_params.get(name, "").strip() for name in ("to", "id"))
        found = self._inbox.search(to=_typed(to), any_id=any_id, limit=pages.MOST_SHOWN)
        page = pages.list_page(found, self._inbox.counts(most=0), to=to, any_id=any_id)
        return HTMLResponse(page, headers=_PAGE_HEADERS)

    async def _message_page(self, request: Request) -> Response:
        arrival = self._inbox.get(request.path_params["id"])
        if arrival is None:
            return HTMLResponse(pages.missing_page(), 404, _PAGE_HEADERS)
        by_reference = arrival.channel is Channel.SMS
        times = self._inbox.count(
            "reference" if by_reference else "message_id",
            arrival.reference if by_reference else arrival.message_id,
        )
        return HTMLResponse(pages.message_page(arrival, times), headers=_PAGE_HEADERS)

    async def _raw(self, request: Request) -> Response:
        arrival = self._inbox.get(request.path_params["id"])
        if arrival is None:
            return HTMLResponse(pages.missing_page(), 404, _PAGE_HEADERS)
        return Response(
            arrival.content, headers=_PAGE_HEADERS, media_type="text/plain; charset=utf-8"
        )

    async def _messages(self, request: Request) -> Response:
        query = request.query_params
        channel = query.get("channel")
        if channel is not None and channel not in list(Channel):
            raise BadQuery("channel: not one of ours")
        to = query.get("to")
        found = self._inbox.messages(
            to=None if to is None else _typed(to),
            reference=query.get("reference"),
            channel=None if channel is None else Channel(channel),
            limit=int(_number(request, "limit", 50, 1000)),
        )
        shown = []
        for arrival in found:
            shown.append(pages.as_json(arrival))
            await asyncio.sleep(0)  # opening one takes up to a millisecond, and mail is coming in
        return _json({"messages": shown})

    async def _message(self, request: Request) -> Response:
        arrival: Arrival | None = self._inbox.get(request.path_params["id"])
        if arrival is None:
            return _json({"error": "no such message, or too old to be kept"}, 404)
        return _json(pages.as_json(arrival, full=True))

    async def _clear(self, request: Request) -> Response:
        self._inbox.clear(counts=request.query_params.get("counts") in ("1", "true"))
        return Response(status_code=204)

    async def _counts(self, request: Request) -> Response:
        by, value = _selector(request)
        if by is not None:
            return _json({by: value, "count": self._inbox.count(by, value)})
        counts = self._inbox.counts()
        shown = asdict(counts)
        shown["duplicated"] = [{"id": identity, "count": n} for identity, n in counts.duplicated]
        return _json(shown)

    async def _stats(self, request: Request) -> Response:
        return _json(
            {
                "uptime_s": round(time.monotonic() - self._started, 3),
                "kept": self._inbox.kept,
                "smtp": self._smtp.report(),
                "sms": self._sms.report(),
            }
        )

    async def _wait(self, request: Request) -> Response:
        """Answers when `count` have arrived or `timeout` is over; `reached` says which."""
        by, value = _selector(request)
        count = int(_number(request, "count", 1, 1e9))
        timeout = _number(request, "timeout", 10, LONGEST_WAIT_S)
        waiting = asyncio.ensure_future(self._inbox.wait(count, by, value, timeout=timeout))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)
        try:
            arrived = await waiting
        except asyncio.CancelledError:
            if not waiting.cancelled():
                raise
            return _json({"error": "shutting down"}, 503)
        return _json({"count": arrived, "reached": arrived >= count})

    async def _switches(self, request: Request) -> Response:
        return Response(self._behaviour.model_dump_json(), media_type="application/json")

    async def _switch(self, request: Request) -> Response:
        try:
            changes = orjson.loads(await request.body())
        except orjson.JSONDecodeError:
            raise BadQuery("body: not JSON") from None
        if not isinstance(changes, dict):
            raise BadQuery("body: not an object")
        try:
            self._behaviour.change(changes)
        except ValidationError as e:
            problems = [
                {"at": ".".join(map(str, error["loc"])), "problem": error["msg"]}
                for error in e.errors()
            ]
            return _json({"error": "unknown switch or value", "problems": problems}, 422)
        return await self._switches(request)

    async def _switch_back(self, request: Request) -> Response:
        self._behaviour.reset()
        return await self._switches(request)


def _answering(endpoint: Any) -> Any:
    async def answer(request: Request) -> Response:
        try:
            return cast(Response, await endpoint(request))
        except BadQuery as problem:
            return _json({"error": str(problem)}, 400)

    return answer


def _json(body: object, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def _selector(request: Request) -> tuple[Selector | None, str]:
    given = [
        (name, request.query_params[name]) for name in _SELECTORS if name in request.query_params
    ]
    if len(given) > 1:
        raise BadQuery("give only one of to, reference, message_id, channel")
    if not given:
        return None, ""
    by, value = given[0]
    return by, _typed(value) if by == "to" else value


def _typed(to: str) -> str:
    """A `+` typed into an address bar arrives as a space, which no recipient has."""
    return to.replace(" ", "+")


def _number(request: Request, name: str, default: float, most: float) -> float:
    text = request.query_params.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise BadQuery(f"{name}: a number from 0 to {most:g}")
    return number
