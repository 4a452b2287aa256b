"""A Twilio-style Messages API: create, read, list, redact, delete, and signed status callbacks.

Scheduling (`ScheduleType`) is not simulated and is refused aloud rather than sent at once.
"""

import asyncio
import base64
import binascii
import logging
import secrets
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from email.utils import format_datetime
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from schemas.kinds import Channel
from sendloom.providers.simulators.behaviour import Behaviour, EveryNth, FirstTime, RateLimit
from sendloom.providers.simulators.inbox import Inbox
from sendloom.providers.simulators.magic import SMS_BY_PHONE, SmsAct, SmsMagic
from sendloom.providers.twilio_signature import SIGNATURE_HEADER, sign

log = logging.getLogger(__name__)

API_VERSION = "2010-04-01"
TRANSPORT = "sendloom.transport"
"""Where the server puts the connection's transport in the request's scope, so that a line can be broken on purpose."""

MOST_BODY = 1600
POOL_NUMBER = "+12025550100"
"""What a messaging service sends from."""

_GSM = set(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿"
    "abcdefghijklmnopqrstuvwxyzäöñüàÆæßÉ"
)
_GSM_ESCAPED = set("\f^{}\\[~]|€")

_HANDED_OVER = Response(status_code=499)
"""Returned when the client is gone; nobody reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwilioOptions:
    """`keys` are API keys (SK…) and their secrets. `numbers` None lets any E.164 number send."""

    account_sid: str = "AC" + "0" * 31 + "1"
    auth_token: str = "simulated-token"
    keys: Mapping[str, str] = field(default_factory=dict)
    numbers: frozenset[str] | None = None
    capacity: int = 100_000


@dataclass(slots=True)
class TwilioStats:
    requests: int = 0
    messages: int = 0
    refused: int = 0
    throttled: int = 0
    dropped: int = 0
    hung: int = 0
    unauthorized: int = 0
    receipts_delivered: int = 0
    receipts_lost: int = 0


class ApiError(Exception):
    """Answered in the API's own error shape."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def response(self) -> Response:
        headers = {"WWW-Authenticate": 'Basic realm="Twilio API"'} if self.status == 401 else None
        body = {
            "code": self.code,
            "message": self.message,
            "more_info": f"https://www.twilio.com/docs/errors/{self.code}",
            "status": self.status,
        }
        return _json(body, self.status, headers)


@dataclass(slots=True)
class Message:
    """The resource, as the API shows it."""

    sid: str
    account_sid: str
    to: str
    sender: str | None
    service: str | None
    body: str
    num_media: int
    status: str
    callback: str | None
    created: datetime
    updated: datetime
    sent: datetime | None = None
    error_code: int | None = None
    error_message: str | None = None

    def move(self, status: str, code: int | None) -> None:
        self.status = status
        self.updated = datetime.now(UTC)
        if self.sender is None:
            self.sender = POOL_NUMBER
        if self.sent is None and status in ("sent", "delivered", "undelivered"):
            self.sent = self.updated
        if code is not None:
            self.error_code = code
            self.error_message = f"Simulated error {code}"

    @property
    def uri(self) -> str:
        return f"/{API_VERSION}/Accounts/{self.account_sid}/Messages/{self.sid}.json"

    def resource(self) -> dict[str, Any]:
        media = self.uri.removesuffix(".json") + "/Media.json"
        return {
            "body": self.body,
            "num_segments": "0" if self.status == "accepted" else str(segments(self.body)),
            "direction": "outbound-api",
            "from": self.sender,
            "date_updated": format_datetime(self.updated),
            "price": None,
            "error_message": self.error_message,
            "uri": self.uri,
            "account_sid": self.account_sid,
            "num_media": str(self.num_media),
            "to": self.to,
            "date_created": format_datetime(self.created),
            "status": self.status,
            "sid": self.sid,
            "date_sent": None if self.sent is None else format_datetime(self.sent),
            "messaging_service_sid": self.service,
            "error_code": self.error_code,
            "price_unit": "USD",
            "api_version": API_VERSION,
            "subresource_uris": {"media": media},
        }


class TwilioApi:
    """The endpoints and what they share. Give `routes` to a Starlette application."""

    def __init__(self, inbox: Inbox, behaviour: Behaviour, options: TwilioOptions) -> None:
        self.options = options
        self.stats = TwilioStats()
        self._inbox = inbox
        self._behaviour = behaviour
        self._messages: OrderedDict[str, Message] = OrderedDict()
        self._by_recipient: dict[str, deque[str]] = {}
        self._rate = RateLimit()
        self._every = EveryNth()
        self._first_time = FirstTime()
        self._closing = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._receipts = ReceiptSender(options.auth_token, self.stats)
        base = f"/{API_VERSION}/Accounts/{{account}}/Messages"
        self.routes = [
            Route(f"{base}.json", self._answering(self._create), methods=["POST"]),
            Route(f"{base}.json", self._answering(self._list), methods=["GET"]),
            Route(f"{base}/{{sid}}.json", self._answering(self._read), methods=["GET"]),
            Route(f"{base}/{{sid}}.json", self._answering(self._redact), methods=["POST"]),
            Route(f"{base}/{{sid}}.json", self._answering(self._delete), methods=["DELETE"]),
            Route(
                f"/{API_VERSION}/{{rest:path}}",
                self._answering(self._not_found),
                methods=["GET", "POST"],
            ),
        ]

    async def close(self) -> None:
        """Let go of everybody who hangs, and forget receipts not yet reported."""
        self._closing.set()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._receipts.close()

    async def settled(self) -> None:
        """Until every receipt due so far has been reported or lost."""
        while self._background:
            await asyncio.wait(self._background)

    def report(self) -> dict[str, int]:
        return {**asdict(self.stats), "kept": len(self._messages)}

    # Endpoints

    def _answering(self, endpoint: Any) -> Any:
        async def answer(request: Request) -> Response:
            self.stats.requests += 1
            try:
                self._authenticate(request)
                response: Response = await endpoint(request)
            except ApiError as error:
                return error.response()
            return response

        return answer

    def _authenticate(self, request: Request) -> None:
        known = {self.options.account_sid: self.options.auth_token, **self.options.keys}
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            user = password = ""
        expected = known.get(user)
        if (
            scheme.lower() != "basic"
            or expected is None
            or not secrets.compare_digest(expected.encode(), password.encode())
        ):
            self.stats.unauthorized += 1
            raise ApiError(401, 20003, "Authenticate")
        if request.path_params.get("account", self.options.account_sid) != self.options.account_sid:
            raise _absent(request)

    async def _not_found(self, request: Request) -> Response:
        raise _absent(request)

    async def _create(self, request: Request) -> Response:
        pairs = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
        form = dict(pairs)
        media = sum(1 for name, _ in pairs if name == "MediaUrl")
        sms = self._behaviour.sms
        magic = SMS_BY_PHONE.get(form.get("To", ""))
        try:
            self._check(form, media)
            if sms.unavailable:
                raise ApiError(503, 20503, "Service unavailable")
        except ApiError:
            self.stats.refused += 1
            raise
        if not self._rate.allows(sms.throttle_per_s):
            self.stats.throttled += 1
            raise ApiError(429, 20429, "Too Many Requests")
        doomed = self._every.due(sms.drop_every)
        if doomed and sms.drop_at == "request":
            return await self._drop(request)
        if magic is not None and (early := await self._before(request, magic, form)):
            return early

        message = self._take(form, media)
        receipts = self._report_on(message, magic) if sms.receipts else None
        answer = _json(message.resource(), 201)
        if receipts is not None and magic is not None and magic.receipts_first:
            await asyncio.shield(receipts)
        sender = form.get("MessagingServiceSid") or form.get("From", "")
        if sms.hang or sender in sms.hang_senders or form.get("From") in sms.hang_senders:
            return await self._hang(request)
        if doomed:
            return await self._drop(request)
        if sms.slow_s and await self._client_left_within(request, sms.slow_s):
            return _HANDED_OVER
        if magic is not None and (late := await self._after(request, magic)):
            return late
        return answer

    async def _before(
        self, request: Request, magic: SmsMagic, form: dict[str, str]
    ) -> Response | None:
        """What happens to this number while its message is not taken yet."""
        match magic.act:
            case SmsAct.ERROR_ONCE if not self._first_time(magic.number, *_identity(form)):
                return None
            case SmsAct.ERROR | SmsAct.ERROR_ONCE:
                self.stats.refused += 1
                raise ApiError(magic.status, magic.code or 20500, magic.message)
            case SmsAct.WAIT_THEN_TAKE:
                # Taken even if the client does not wait for it.
                await self._client_left_within(request, magic.seconds, stay=True)
                return None
        return None if magic.taken else await self._after(request, magic)

    async def _after(self, request: Request, magic: SmsMagic) -> Response | None:
        """What the client is told instead of the plain answer."""
        match magic.act:
            case SmsAct.PAGE:
                page = f"<html><body><h1>{magic.status}</h1></body></html>"
                return HTMLResponse(page, magic.status)
            case SmsAct.REDIRECT:
                return RedirectResponse("https://elsewhere.example.com/", magic.status)
            case SmsAct.UNREADABLE:
                return Response(b'{"status": "queued", "si', 201, media_type="application/json")
            case SmsAct.SILENCE:
                return await self._hang(request)
            case SmsAct.RESET:
                return await self._drop(request)
            case SmsAct.WAIT:
                if await self._client_left_within(request, magic.seconds):
                    return _HANDED_OVER
        return None

    def _check(self, form: dict[str, str], media: int) -> None:
        """What the API refuses before it looks at the number's route."""
        to, sender, service = (
            form.get("To", ""),
            form.get("From", ""),
            form.get("MessagingServiceSid", ""),
        )
        if not to:
            raise ApiError(400, 21604, "A 'To' phone number is required.")
        if not sender and not service:
            raise ApiError(400, 21603, "A 'From' phone number is required.")
        if not form.get("Body") and not media and not form.get("ContentSid"):
            raise ApiError(400, 21602, "Message body is required.")
        if len(form.get("Body", "")) > MOST_BODY:
            raise ApiError(
                400, 21617, "The concatenated message body exceeds the 1600 character limit."
            )
        if not _is_e164(to):
            raise ApiError(400, 21211, "Invalid 'To' Phone Number")
        if service and not _is_sid("MG", service):
            raise ApiError(400, 21705, "The Messaging Service is invalid")
        if sender and not _is_e164(sender):
            raise ApiError(400, 21212, "Invalid 'From' Phone Number")
        if sender and self.options.numbers is not None and sender not in self.options.numbers:
            raise ApiError(400, 21606, "The 'From' phone number is not a valid, SMS-capable number")
        if (callback := form.get("StatusCallback")) is not None and not _is_callback(callback):
            raise ApiError(400, 21609, "The 'StatusCallback' URL is not valid.")
        validity = form.get("ValidityPeriod", "36000")
        if not validity.isascii() or not validity.isdigit() or not 1 <= int(validity) <= 36000:
            raise ApiError(400, 20001, "ValidityPeriod must be between 1 and 36000")
        if "ScheduleType" in form or "SendAt" in form:
            raise ApiError(400, 20001, "Scheduling is not simulated")

    def _take(self, form: dict[str, str], media: int) -> Message:
        now = datetime.now(UTC)
        service = form.get("MessagingServiceSid") or None
        message = Message(
            sid=("MM" if media else "SM") + secrets.token_hex(16),
            account_sid=self.options.account_sid,
            to=form["To"],
            sender=form.get("From") or None,
            service=service,
            body=form.get("Body", ""),
            num_media=media,
            status="accepted" if service else "queued",
            callback=form.get("StatusCallback"),
            created=now,
            updated=now,
        )
        self._messages[message.sid] = message
        self._by_recipient.setdefault(message.to, deque()).append(message.sid)
        while len(self._messages) > self.options.capacity:
            self._forget(next(iter(self._messages)))
        self.stats.messages += 1
        self._inbox.record(
            Channel.SMS,
            to=message.to,
            sender=message.sender or message.service or "",
            message_id=message.sid,
            reference=_reference(message.callback),
            content=message.body.encode(),
            envelope={"sid": message.sid, "status_callback": message.callback or ""},
        )
        self._inbox.flush()
        return message

    def _forget(self, sid: str) -> None:
        message = self._messages.pop(sid)
        sids = self._by_recipient[message.to]
        sids.remove(sid)
        if not sids:
            del self._by_recipient[message.to]

    async def _read(self, request: Request) -> Response:
        return _json(self._wanted(request).resource())

    async def _redact(self, request: Request) -> Response:
        message = self._wanted(request)
        form = dict(
            parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
        )
        if form.get("Body") != "":
            raise ApiError(400, 20001, "Only an empty Body is taken here")
        message.body = ""
        message.updated = datetime.now(UTC)
        return _json(message.resource())

    async def _delete(self, request: Request) -> Response:
        self._forget(self._wanted(request).sid)
        return Response(status_code=204)

    def _wanted(self, request: Request) -> Message:
        message = self._messages.get(request.path_params["sid"])
        if message is None:
            raise _absent(request)
        return message

    async def _list(self, request: Request) -> Response:
        """Newest first. A message not sent yet is found under the day it was created."""
        query = request.query_params
        try:
            size = min(1000, max(1, int(query.get("PageSize", "50"))))
            page = max(0, int(query.get("Page", "0")))
            on, until, since = (
                _day(query.get(name)) for name in ("DateSent", "DateSent<", "DateSent>")
            )
        except ValueError:
            raise ApiError(400, 20001, "Invalid parameter") from None
        to, sender = query.get("To"), query.get("From")
        sids = self._by_recipient.get(to, ()) if to else self._messages

        def matches(message: Message) -> bool:
            day = (message.sent or message.created).date()
            return (
                (not sender or message.sender == sender)
                and (on is None or day == on)
                and (until is None or day <= until)
                and (since is None or day >= since)
            )

        found = (m for sid in reversed(sids) if matches(m := self._messages[sid]))
        wanted = list(islice(found, page * size, (page + 1) * size + 1))
        shown, more = wanted[:size], len(wanted) > size

        def link(number: int) -> str:
            kept = [(k, v) for k, v in query.multi_items() if k not in ("Page", "PageSize")]
            return f"{request.url.path}?{urlencode([*kept, ('PageSize', size), ('Page', number)])}"

        return _json(
            {
                "messages": [message.resource() for message in shown],
                "page": page,
                "page_size": size,
                "start": page * size,
                "end": page * size + max(0, len(shown) - 1),
                "uri": link(page),
                "first_page_uri": link(0),
                "next_page_uri": link(page + 1) if more else None,
                "previous_page_uri": link(page - 1) if page else None,
            }
        )

    # Misbehaving

    async def _client_left_within(
        self, request: Request, seconds: float | None, *, stay: bool = False
    ) -> bool:
        """Wait this long (None: for ever), but not past our own end, nor, unless told to `stay`, past the client's leaving."""
        left = asyncio.ensure_future(_disconnected(request))
        closing = asyncio.ensure_future(self._closing.wait())
        waited = {closing} if stay else {left, closing}
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return left.done()
        finally:
            left.cancel()
            closing.cancel()

    async def _hang(self, request: Request) -> Response:
        self.stats.hung += 1
        if not await self._client_left_within(request, None):
            _transport(request).abort()
        return _HANDED_OVER

    async def _drop(self, request: Request) -> Response:
        self.stats.dropped += 1
        transport = _transport(request)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        # The server calls an answerless request an error unless it has seen the line go.
        await _disconnected(request)
        return _HANDED_OVER

    # Receipts

    def _report_on(self, message: Message, magic: SmsMagic | None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._live(message, magic))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _live(self, message: Message, magic: SmsMagic | None) -> None:
        """The message's later life: each status reached and reported in turn. The first one is never reported."""
        for status in magic.receipts if magic else ("sent", "delivered"):
            await asyncio.sleep(self._behaviour.sms.receipt_delay_s)
            final = status in ("undelivered", "failed")
            code = magic.receipt_code if magic and final else None
            if message.status not in ("delivered", "undelivered", "failed"):
                message.move(status, code)
            if message.callback is not None:
                await self._receipts.post(
                    message, status, code, signed=magic.signed if magic else True
                )


class ReceiptSender:
    """Posts status callbacks with the provider's own time-outs and its one retry, or what `#rc=…&rp=…` asks for instead."""

    def __init__(self, token: str, stats: TwilioStats) -> None:
        self._token = token
        self._stats = stats
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(15, connect=5, pool=60),
            limits=httpx.Limits(max_connections=50, max_keepalive_connections=50),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, message: Message, status: str, code: int | None, *, signed: bool) -> None:
        assert message.callback is not None
        url, _, fragment = message.callback.partition("#")
        form = {
            "AccountSid": message.account_sid,
            "ApiVersion": API_VERSION,
            "From": message.sender or POOL_NUMBER,
            "MessageSid": message.sid,
            "MessageStatus": status,
            "SmsSid": message.sid,
            "SmsStatus": status,
            "To": message.to,
        }
        if message.service is not None:
            form["MessagingServiceSid"] = message.service
        if code is not None:
            form |= {"ErrorCode": str(code), "ErrorMessage": f"Simulated error {code}"}
        if status in ("delivered", "undelivered"):
            form["RawDlrDoneDate"] = message.updated.strftime("%y%m%d%H%M")
        headers = {
            SIGNATURE_HEADER: sign(self._token if signed else "forged", url, form.items()),
            "I-Twilio-Idempotency-Token": secrets.token_hex(16),
        }
        retries, policy = _overrides(fragment)
        for _ in range(1 + retries):
            failure = await self._attempt(url, form, headers)
            if failure is None:
                self._stats.receipts_delivered += 1
                return
            if failure not in policy and "all" not in policy:
                break
        self._stats.receipts_lost += 1
        log.info("status callback lost", extra={"failure": failure, "status": status})

    async def _attempt(self, url: str, form: dict[str, str], headers: dict[str, str]) -> str | None:
        """None when taken, else the kind of failure in the retry policy's words."""
        try:
            reply = await self._http.post(url, data=form, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return "ct"
        except httpx.TransportError:
            return "rt"
        return None if reply.status_code < 400 else f"{reply.status_code // 100}xx"


def segments(body: str) -> int:
    """How many parts a handset receives. Counted here on its own, so that it can contradict the sender's count."""
    if all(c in _GSM or c in _GSM_ESCAPED for c in body):
        costs = [2 if c in _GSM_ESCAPED else 1 for c in body]
        alone, each = 160, 153
    else:
        costs = [2 if ord(c) > 0xFFFF else 1 for c in body]
        alone, each = 70, 67
    if sum(costs) <= alone:
        return 1
    parts, used = 1, 0
    for cost in costs:
        if used + cost > each:
            parts, used = parts + 1, 0
        used += cost
    return parts


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def _absent(request: Request) -> ApiError:
    return ApiError(404, 20404, f"The requested resource {request.url.path} was not found")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _transport(request: Request) -> asyncio.Transport:
    transport: asyncio.Transport = request.scope["extensions"][TRANSPORT]
    return transport


def _identity(form: dict[str, str]) -> tuple[str, str]:
    """What makes it the same message when it is tried again: our reference, or else its text."""
    return form["To"], _reference(form.get("StatusCallback")) or form.get("Body", "")


def _reference(callback: str | None) -> str:
    return parse_qs(urlsplit(callback or "").query).get("ref", [""])[0]


def _is_e164(number: str) -> bool:
    return (
        number.startswith("+")
        and number.isascii()
        and number[1:].isdigit()
        and 8 <= len(number) <= 16
    )


def _is_sid(prefix: str, sid: str) -> bool:
    return (
        len(sid) == 34 and sid.startswith(prefix) and all(c in "0123456789abcdef" for c in sid[2:])
    )


def _is_callback(url: str) -> bool:
    try:
        parts = httpx.URL(url)
        scheme, host, port = parts.scheme, parts.host, parts.port
    except (httpx.InvalidURL, ValueError):  # ValueError: what is not IDNA
        return False
    return (
        scheme in ("http", "https")
        and bool(host)
        and "_" not in host
        and (port is None or 0 < port < 65536)
    )


def _day(text: str | None) -> date | None:
    return None if not text else date.fromisoformat(text[:10])


def _overrides(fragment: str) -> tuple[int, set[str]]:
    asked = parse_qs(fragment)
    try:
        retries = min(5, max(0, int(asked.get("rc", ["1"])[0])))
    except ValueError:
        retries = 1
    return retries, set(asked.get("rp", ["ct"])[0].split(","))
