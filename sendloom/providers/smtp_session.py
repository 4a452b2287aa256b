"""What every SMTP client here shares: the account, its time-outs, the login gate, and what a relay's EHLO allows."""

import asyncio
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from schemas.kinds import FaultScope, MessageClass
from schemas.outcomes import Failed, Rejected
from sendloom.domain import budgets
from sendloom.errors import ConfigurationError
from sendloom.ports import WireMail
from sendloom.providers.mime import Unmailable
from sendloom.providers.smtp_replies import PROVIDER

_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?")
_PATH = re.compile(r"[!-;=?-~]*|\"[ !#-~]*\"@[!-;=?-~]+")
"""What may stand between < and > of a command: nothing that ends either."""


def _own_name() -> str:
    """For EHLO. No look-up: a resolver that is down must not hold a send."""
    name = socket.gethostname()
    return name if _HOST_NAME.fullmatch(name) else "[127.0.0.1]"


@dataclass(frozen=True, slots=True)
class SmtpAccount:
    """One account on one relay."""

    host: str
    port: int = 25
    tls: Literal["none", "starttls", "implicit"] = "none"
    ca_file: Path | None = None
    """PEM of the authority that signed the relay; None: the system's."""
    username: str | None = None
    password: SecretStr | None = None
    local_hostname: str = field(default_factory=_own_name)
    messages_per_connection: int = 1_000
    """We hang up after so many, for relays that would do so without a word."""
    idle: timedelta = timedelta(seconds=20)
    """A kept connection unused for longer is not trusted: many relays hang up after 30 s."""

    def __post_init__(self) -> None:
        if self.username is not None and self.tls == "none" and not _is_loopback(self.host):
            raise ConfigurationError(
                "an SMTP login in clear text: set tls to `starttls` or `implicit`"
            )
        if not _HOST_NAME.fullmatch(self.local_hostname.strip("[]")):
            raise ConfigurationError("local_hostname is not a host name")

    def ssl_context(self) -> ssl.SSLContext:
        """Verifies, always."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _final_replies() -> Mapping[MessageClass, float]:
    return {c: t.total_seconds() for c, t in budgets.SMTP_FINAL_REPLY.items()}


@dataclass(frozen=True, slots=True)
class SmtpTimeouts:
    """Seconds. Together never more than `budgets.provider_timeout`, which leases are made from."""

    connect: float = budgets.PROVIDER_CONNECT.total_seconds()
    command: float = budgets.SMTP_COMMAND.total_seconds()
    final_reply: Mapping[MessageClass, float] = field(default_factory=_final_replies)

    @property
    def before_dot(self) -> float:
        """From the start of a call to the final dot, second tries included."""
        return self.connect + 3 * self.command


@dataclass(frozen=True, slots=True)
class Extensions:
    """What the relay's EHLO offers. After HELO: nothing."""

    pipelining: bool = False
    starttls: bool = False
    eightbit: bool = False
    size_offered: bool = False
    size_max: int = 0
    """0: no limit said."""
    auth: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, reply: str) -> "Extensions":
        """From the text of all lines of the reply; the first line is the relay's name."""
        words: dict[str, list[str]] = {}
        for line in reply.upper().splitlines()[1:]:
            # `AUTH=PLAIN` is how some old servers write it
            keyword, *values = line.replace("=", " ").split() or [""]
            words.setdefault(keyword, []).extend(values)
        size = words.get("SIZE", [])
        return cls(
            pipelining="PIPELINING" in words,
            starttls="STARTTLS" in words,
            eightbit="8BITMIME" in words,
            size_offered="SIZE" in words,
            size_max=int(size[0]) if size and size[0].isdecimal() else 0,
            auth=frozenset(words.get("AUTH", [])),
        )

    def mail_parameters(self, mail: WireMail) -> str:
        """For MAIL FROM, with a leading space when there are any."""
        size = f" SIZE={len(mail.data)}" if self.size_offered else ""
        return size if mail.data.isascii() else f"{size} BODY=8BITMIME"

    def refusal(self, mail: WireMail, provider: str = PROVIDER) -> Rejected | None:
        """What need not be tried, because this relay has already said that it cannot."""
        if self.size_max and len(mail.data) > self.size_max:
            return Rejected(
                provider=provider,
                code="5.3.4",
                detail=f"{len(mail.data)} octets, the relay takes {self.size_max}",
            )
        if not self.eightbit and not mail.data.isascii():
            return Rejected(
                provider=provider, code="5.6.3", detail="8-bit body, the relay takes 7-bit only"
            )
        return None


def path_refusal(mail: WireMail, provider: str = PROVIDER) -> Rejected | None:
    """An envelope address that would break out of its command."""
    if not mail.envelope_to or not _PATH.fullmatch(mail.envelope_to):
        return Rejected(provider=provider, code="5.1.3", scope=FaultScope.RECIPIENT)
    if not _PATH.fullmatch(mail.envelope_from):
        return Rejected(provider=provider, code="5.1.7", scope=FaultScope.SENDER)
    return None


def unmailable(refused: Unmailable, provider: str = PROVIDER) -> Rejected:
    """Refused here, so it says nothing about the address's owner: never suppresses."""
    return Rejected(provider=provider, code=refused.code, scope=refused.scope, detail=str(refused))


class LoginGate:
    """Lets only a few failed logins a minute reach the relay (C69): more would lock the account.

    Until one login has worked they go one at a time, so that a pool that opens does not try a wrong password on every
    connection at once.
    """

    def __init__(
        self, failures_per_minute: int = 3, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = failures_per_minute
        self._clock = clock
        self._failures: deque[float] = deque()
        self._last: Failed | None = None
        self._proven = False
        self._turn = asyncio.Lock()

    def blocked(self) -> Failed | None:
        """The last refusal, while no further login may be tried; says when one may."""
        now = self._clock()
        while self._failures and self._failures[0] <= now - 60:
            self._failures.popleft()
        if self._last is None or len(self._failures) < self._most:
            return None
        wait = timedelta(seconds=self._failures[0] + 60 - now)
        floor = self._last.retry_after or timedelta(0)
        return self._last.model_copy(update={"retry_after": max(wait, floor)})

    async def attempt(self, login: Callable[[], Awaitable[Failed | None]]) -> Failed | None:
        """Logs in, or says why not."""
        if self._proven:
            return self._note(await login())
        async with self._turn:
            return self.blocked() or self._note(await login())

    def _note(self, refused: Failed | None) -> Failed | None:
        self._proven = refused is None
        if refused is None:
            self._failures.clear()
        elif refused.scope is FaultScope.SENDER:
            self._failures.append(self._clock())
            self._last = refused
        return refused
