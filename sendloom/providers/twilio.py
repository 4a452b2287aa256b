"""SMS over Twilio's messages API. It has no idempotency key: once bytes of a request have left, silence is `unknown`."""

import asyncio
import email.utils
import json
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
from pydantic import SecretStr

from schemas.kinds import FaultScope, MessageClass
from schemas.messages import Outbound, OutboundSms
from schemas.outcomes import Accepted, CallOutcome, Failed, Unknown
from sendloom.domain import budgets
from sendloom.errors import ConfigurationError
from sendloom.providers.twilio_codes import PROVIDER, verdict_of
from sendloom.providers.verdicts import not_called, redact

VALIDITY_SECONDS: Final = (1, 36_000)
RETRY_AFTER_MAX: Final = timedelta(days=1)

_ACCOUNT_SID = re.compile(r"AC[0-9a-fA-F]{32}")
_SERVICE_SID = re.compile(r"MG[0-9a-fA-F]{32}")
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_WRITING = (".send_request_headers.started", ".send_request_body.started")


@dataclass(frozen=True, slots=True)
class TwilioAccount:
    """Who sends, and where to. `user` and `secret` may be an API key's; else the account's own."""

    account_sid: str
    secret: SecretStr
    user: str | None = None
    base_url: str = "https://api.twilio.com"
    risk_check: bool = True
    """SMS pumping protection."""

    def __post_init__(self) -> None:
        if not _ACCOUNT_SID.fullmatch(self.account_sid):
            raise ConfigurationError("the Twilio account sid is `AC` and 32 hex digits")

    @property
    def create_url(self) -> str:
        return f"{self.base_url.rstrip('/')}/2010-04-01/Accounts/{self.account_sid}/Messages.json"


def _reply_seconds() -> dict[MessageClass, float]:
    return {c: t.total_seconds() for c, t in budgets.HTTP_REPLY.items()}


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Seconds. `reply` is for all of the answer, from the connection on."""

    connect: float = budgets.PROVIDER_CONNECT.total_seconds()
    reply: dict[MessageClass, float] = field(default_factory=_reply_seconds)


class TwilioProvider:
    """One Twilio account. The client is the lane's own; its pool is the bound on calls in flight.

    A cancelled `send` still answers: `not_called` if nothing has left, else what Twilio says within the class's time.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        account: TwilioAccount,
        *,
        timeouts: HttpTimeouts | None = None,
        name: str = PROVIDER,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self._http = http
        self._account = account
        self._auth = httpx.BasicAuth(
            account.user or account.account_sid, account.secret.get_secret_value()
        )
        self._timeouts = timeouts or HttpTimeouts()
        self._now = now

    async def send(self, message: Outbound, message_class: MessageClass) -> CallOutcome:
        """One message, one outcome."""
        if not isinstance(message, OutboundSms):
            raise TypeError("Twilio carries SMS only")
        progress = _Progress()
        task = asyncio.create_task(self._call(message, message_class, progress))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                # Whoever cancels wants to stop soon, and to know. Only before the first byte can the call be taken back.
                if not progress.writing:
                    task.cancel()
        return not_called(self.name) if task.cancelled() else task.result()

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(
        self, message: OutboundSms, message_class: MessageClass, progress: "_Progress"
    ) -> CallOutcome:
        reply_seconds = self._timeouts.reply[message_class]
        try:
            request = self._http.build_request(
                "POST",
                self._account.create_url,
                data=self._form(message),
                # Waiting for a connection of the pool is nobody's failure (C49).
                timeout=httpx.Timeout(reply_seconds, connect=self._timeouts.connect, pool=None),
                extensions={"trace": progress.trace},
            )
            response = await self._answer(request, reply_seconds, progress)
        except asyncio.CancelledError:
            if progress.writing:
                return Unknown(provider=self.name, code="cancelled")
            return not_called(self.name)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            return self._misconfigured("bad_base_url", type(error).__name__)
        except (httpx.HTTPError, OSError) as error:
            return self._unanswered(error, progress)
        return self._read(response)

    async def _answer(
        self, request: httpx.Request, seconds: float, progress: "_Progress"
    ) -> httpx.Response:
        """httpx's time-outs are for each read; a server that drips would outlast the claim's lease. So: one limit for all.

        It starts with the first byte written, since the wait for a connection of the pool has none.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            progress.begun = lambda: limit.reschedule(loop.time() + seconds)
            return await self._http.send(request, auth=self._auth, follow_redirects=False)

    def _form(self, message: OutboundSms) -> dict[str, str]:
        shortest, longest = VALIDITY_SECONDS
        form = {
            "To": message.to,
            "Body": message.body,
            # Off: what was rendered, counted and approved is what is sent.
            "SmartEncoded": "false",
            "ValidityPeriod": str(min(max(message.validity_seconds, shortest), longest)),
            "RiskCheck": "enable" if self._account.risk_check else "disable",
        }
        service = _SERVICE_SID.fullmatch(message.sender) is not None
        form["MessagingServiceSid" if service else "From"] = message.sender
        if message.intent:
            form["MessageIntent"] = message.intent
        if message.status_callback:
            form["StatusCallback"] = message.status_callback
        return form

    def _read(self, response: httpx.Response) -> CallOutcome:
        status = response.status_code
        body = _json_of(response)
        if 200 <= status < 300:
            sid = body.get("sid")
            if isinstance(sid, str) and sid:
                return Accepted(provider=self.name, provider_message_id=sid)
            return Unknown(provider=self.name, code="no_id", detail=f"HTTP {status}")
        if 300 <= status < 400:
            return self._misconfigured("redirected", f"HTTP {status}")
        code = body.get("code")
        if status >= 500 or status < 200:
            return Unknown(
                provider=self.name,
                code=str(code) if isinstance(code, int) else f"http_{status}",
                detail=redact(str(body.get("message", ""))),
            )
        if not isinstance(code, int):
            return self._not_twilio(status)
        detail = redact(str(body.get("message", "")))
        retry_after = _retry_after(response, self._now())
        if status == 429:
            # Documented as never processed, whatever the code.
            return Failed(
                provider=self.name,
                code=str(code),
                throttled=True,
                retry_after=retry_after,
                detail=detail,
            )
        return verdict_of(code).outcome(self.name, str(code), detail, retry_after=retry_after)

    def _not_twilio(self, status: int) -> CallOutcome:
        """A 4xx that Twilio did not write: something on the way did."""
        if status in (408, 429):
            return Unknown(provider=self.name, code=f"http_{status}", detail="not Twilio's answer")
        return self._misconfigured(f"http_{status}", "not Twilio's answer")

    def _unanswered(self, error: Exception, progress: "_Progress") -> CallOutcome:
        # The trace knows; without one (a transport that has none) the kind of error has to do.
        never_sent = not progress.writing and (progress.traced or isinstance(error, _NOT_CONNECTED))
        code = _name_of(error)
        if not never_sent:
            return Unknown(provider=self.name, code=code)
        # A mistyped host or a certificate for another one is no recipient's fault and no outage (C13).
        sender = code in ("host_not_found", "certificate_refused")
        return Failed(
            provider=self.name,
            code=code,
            scope=FaultScope.SENDER if sender else FaultScope.PROVIDER,
        )

    def _misconfigured(self, code: str, detail: str) -> Failed:
        return Failed(provider=self.name, code=code, scope=FaultScope.SENDER, detail=detail)


class _Progress:
    """How far the transport has come, from its own trace."""

    def __init__(self) -> None:
        self.traced = False
        self.writing = False
        """Bytes of the request may have been handed to the socket."""
        self.begun: Callable[[], None] | None = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        self.traced = True
        # A proxy's CONNECT writes headers, too, and is not the request.
        if event.endswith(_WRITING) and _is_request(info) and not self.writing:
            self.writing = True
            if self.begun is not None:
                self.begun()


def _is_request(info: dict[str, Any]) -> bool:
    request = info.get("request")
    return getattr(request, "method", b"POST") != b"CONNECT"


def _json_of(response: httpx.Response) -> dict[str, Any]:
    try:
        body = json.loads(response.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _retry_after(response: httpx.Response, now: datetime) -> timedelta | None:
    """Seconds or an HTTP date; nonsense is none."""
    value = response.headers.get("Retry-After", "").strip()
    if not value:
        return None
    if value.isdecimal():
        # any more digits are too many seconds anyway
        return min(timedelta(seconds=int(value[:9])), RETRY_AFTER_MAX)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(moment - now, timedelta(0)), RETRY_AFTER_MAX)


def _name_of(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "certificate_refused"
        if isinstance(cause, ConnectionRefusedError):
            return "connection_refused"
        if isinstance(cause, socket.gaierror):
            return "host_not_found"
        cause = cause.__cause__ or cause.__context__
    match error:
        case httpx.ConnectTimeout():
            return "connect_timeout"
        case httpx.TimeoutException() | TimeoutError():
            return "reply_timeout"
        case httpx.ConnectError():
            return "connection_failed"
        case httpx.ProxyError():
            return "proxy_failed"
        case _:
            return "connection_lost"
