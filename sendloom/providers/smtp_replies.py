"""What an SMTP reply, or its absence, means: by phase first, then by code. Sources: RFC 5321, 3463, 4954, 7504, 7505.

We speak to our own relay, one recipient per transaction. So a greeting, EHLO, STARTTLS or AUTH that is refused is never a
recipient's fault: no recipient has been named yet.
"""

import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from schemas.kinds import FaultScope
from schemas.outcomes import Accepted, CallOutcome, Failed, Unknown, trusted_accepted
from sendloom.providers.verdicts import Verdict, fails, redact, rejects

PROVIDER = "smtp"


class Phase(StrEnum):
    """How far a transaction has come; named by what is waited for."""

    CONNECT = "connect"
    GREETING = "greeting"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    """The body is being written; the write of the final dot has not begun."""
    DOT = "dot"
    """The final dot may have left: from here on silence is `unknown`."""


GREYLIST_DELAY = timedelta(minutes=5)
"""Greylisting servers want some minutes between attempts; sooner only starts their clock again."""
MAILBOX_FULL_DELAY = timedelta(hours=2)
"""A full mailbox is emptied by a person."""
LOGIN_DELAY = timedelta(minutes=1)
"""A login that was refused is refused again; hammering locks the account."""

_SESSION = frozenset({Phase.EHLO, Phase.STARTTLS})
_TRANSACTION = frozenset({Phase.MAIL, Phase.RCPT, Phase.DATA, Phase.BODY, Phase.DOT})
_RECIPIENT = frozenset({Phase.RCPT, Phase.DATA, Phase.DOT})
_NAMED = frozenset({Phase.RCPT, Phase.DOT})
_ANY = frozenset(Phase)

_OURS = fails(FaultScope.SENDER)
_LOGIN = fails(FaultScope.SENDER, retry_after=LOGIN_DELAY)
_LATER = fails(FaultScope.PROVIDER)
_SLOWER = fails(FaultScope.PROVIDER, throttled=True)
_GREYLISTED = fails(FaultScope.RECIPIENT, retry_after=GREYLIST_DELAY)
_MAILBOX_FULL = fails(FaultScope.RECIPIENT, retry_after=MAILBOX_FULL_DELAY)
_ADDRESS_DEAD = rejects(FaultScope.RECIPIENT, suppress=True)
_ADDRESS_REFUSED = rejects(FaultScope.RECIPIENT)
_MESSAGE_REFUSED = rejects(FaultScope.MESSAGE)
_OUR_BUG = rejects(FaultScope.SENDER)

NONE = ""
"""As an enhanced code in a row: the reply has none."""


@dataclass(frozen=True, slots=True)
class Row:
    """Matches when all that is given matches. `codes` holds codes, or first digits for a whole class."""

    phases: frozenset[Phase]
    codes: frozenset[int]
    verdict: Verdict
    enhanced: str | None = None
    """A pattern for all of the enhanced code; None: whatever it is."""
    words: str | None = None
    """A pattern to find in the text. May only make a verdict milder: texts are not a contract."""


def _row(
    phases: frozenset[Phase],
    codes: int | set[int],
    verdict: Verdict,
    *,
    enhanced: str | None = None,
    words: str | None = None,
) -> Row:
    return Row(
        phases, frozenset({codes} if isinstance(codes, int) else codes), verdict, enhanced, words
    )


_THROTTLE = r"throttl|rate.?limit|sending rate|too fast|too many (?:messages|mails|connections)"
_POLICY = r"relay|spam|block|black.?list|polic|reputation|authenticat|not allowed to send"
_TOO_BIG = r"size|too (?:large|big)"

# The first row that matches answers.
ROWS: tuple[Row, ...] = (
    # Before any message is named.
    _row(frozenset({Phase.AUTH}), {4, 5}, _LOGIN),  # 454 4.7.0, 432, 530, 534, 535, 538
    _row(frozenset({Phase.GREETING}), 4, _SLOWER),
    _row(frozenset({Phase.GREETING}), 521, _OURS),  # the relay takes no mail at all: wrong host
    _row(frozenset({Phase.GREETING}), 5, _LATER),  # 554: no service here now, another host may
    _row(_SESSION, 421, _SLOWER),
    _row(_SESSION, 4, _LATER),  # 454: TLS not available due to temporary reason
    _row(_SESSION, 5, _OURS),
    # Not now.
    _row(_TRANSACTION, 421, _SLOWER),
    _row(_RECIPIENT, {4, 5}, _MAILBOX_FULL, enhanced=r"[45]\.2\.2"),
    _row(_TRANSACTION, 4, _SLOWER, words=_THROTTLE),
    _row(_RECIPIENT, 450, _GREYLISTED),
    _row(_RECIPIENT, 451, _GREYLISTED, enhanced=r"4\.(?:2\.0|7\.[01])"),
    _row(_TRANSACTION, {451, 454}, _SLOWER),  # 454 after AUTH is done: too fast
    _row(frozenset({Phase.RCPT}), 452, _LATER),  # too many recipients: a new transaction
    _row(frozenset({Phase.RCPT}), 552, _LATER, enhanced=r"(?:5\.5\.3)?"),  # RFC 5321: as 452
    _row(frozenset({Phase.MAIL, Phase.RCPT}), {455, 555}, _MESSAGE_REFUSED),
    _row(_TRANSACTION, 4, _LATER),
    # The relay refuses us, whoever the recipient is.
    _row(_TRANSACTION, {530, 534, 535, 538}, _OURS),
    _row(_TRANSACTION, 5, _OURS, enhanced=r"5\.1\.[78]"),  # bad sender address
    _row(frozenset({Phase.MAIL}), 553, _OURS),
    # The address.
    _row(frozenset({Phase.RCPT}), {521, 556}, _ADDRESS_DEAD),
    _row(_NAMED, {550, 551, 553, 554}, _ADDRESS_DEAD, enhanced=r"5\.1\.[16]|5\.2\.1"),
    _row(_NAMED, {501, 550, 553, 554}, _ADDRESS_DEAD, enhanced=r"5\.1\.2|5\.1\.3|5\.1\.10|5\.4\.4"),
    # The message: policy, content, size. The address may be perfectly good.
    _row(_TRANSACTION, 5, _MESSAGE_REFUSED, enhanced=r"5\.7\.\d+"),
    _row(_TRANSACTION, 5, _MESSAGE_REFUSED, enhanced=r"5\.6\.\d+"),
    _row(_TRANSACTION, 5, _MESSAGE_REFUSED, enhanced=r"5\.2\.3|5\.3\.4"),
    _row(frozenset({Phase.RCPT}), 550, _MESSAGE_REFUSED, enhanced=NONE, words=_POLICY),
    _row(frozenset({Phase.RCPT}), 550, _ADDRESS_DEAD, enhanced=NONE),
    _row(frozenset({Phase.RCPT}), {551, 553}, _ADDRESS_REFUSED),
    _row(frozenset({Phase.MAIL, Phase.BODY}), 552, _MESSAGE_REFUSED),
    _row(_RECIPIENT, 552, _MESSAGE_REFUSED, words=_TOO_BIG),
    _row(_RECIPIENT, 552, _MAILBOX_FULL),
    _row(frozenset({Phase.RCPT}), 5, _ADDRESS_REFUSED, enhanced=r"5\.[124]\.\d+"),
    # We said something it does not understand. 501 is about an argument, so about this message.
    _row(_TRANSACTION, {500, 502, 503, 504}, _OUR_BUG),
    _row(_TRANSACTION, 5, _MESSAGE_REFUSED),
)

_ENHANCED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?!\S)")
_QUEUE_ID = re.compile(r"(?:queued as|\bid[=:])\s*([A-Za-z0-9._\-]{4,80})", re.IGNORECASE)


def enhanced_of(code: int, text: str) -> str:
    """The reply's `x.y.z`, or nothing when it has none or one that contradicts the basic code (which then rules)."""
    found = _ENHANCED.match(text)
    if found is None or found[1] != str(code)[0]:
        return NONE
    return found[0]


def classify(
    phase: Phase, code: int, enhanced: str, text: str, *, provider: str = PROVIDER
) -> CallOutcome:
    """The outcome that a reply settles. Only for replies that end the transaction: the go-ons of the dialogue do not come here."""
    if phase is Phase.DOT and 200 <= code < 300:
        return accepted(text, provider=provider)
    label = f"{code} {enhanced}" if enhanced else str(code)
    detail = redact(f"{phase}: {text}")
    if (row := row_for(phase, code, enhanced, text)) is not None:
        return row.verdict.outcome(provider, label, detail)
    return unanswered(phase, "unexpected_reply", detail, provider=provider)


def row_for(phase: Phase, code: int, enhanced: str, text: str) -> Row | None:
    """The first row that matches."""
    for row in ROWS:
        if (
            phase in row.phases
            and (code in row.codes or code // 100 in row.codes)
            and (row.enhanced is None or re.fullmatch(row.enhanced, enhanced))
            and (row.words is None or re.search(row.words, text, re.IGNORECASE))
        ):
            return row
    return None


def accepted(text: str, *, provider: str = PROVIDER, else_id: str = "") -> Accepted:
    """Named by the relay's queue id, or by `else_id` when it tells none."""
    found = _QUEUE_ID.search(text)
    return trusted_accepted(provider, found[1] if found else else_id)


def unanswered(
    phase: Phase, code: str, detail: str = "", *, provider: str = PROVIDER
) -> Failed | Unknown:
    """No usable reply. Only once the final dot may have left can it have been taken."""
    if phase is Phase.DOT:
        return Unknown(provider=provider, code=code, detail=detail)
    return Failed(provider=provider, code=code, scope=FaultScope.PROVIDER, detail=detail or phase)


def unreachable(error: BaseException, *, provider: str = PROVIDER) -> Failed:
    """There is no session. Looks along the causes, because libraries wrap what the socket said."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            # A mistyped host or our own name server: no recipient can change it, so it is the sender's (C13).
            return Failed(
                provider=provider,
                code="host_not_found",
                scope=FaultScope.SENDER,
                detail="the relay's name does not resolve",
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Failed(
                provider=provider,
                code="certificate_refused",
                scope=FaultScope.SENDER,
                detail=redact(str(cause)),
            )
        if isinstance(cause, ssl.SSLError):
            return Failed(provider=provider, code="tls_failed", detail=redact(str(cause)))
        if isinstance(cause, ConnectionRefusedError):
            return Failed(provider=provider, code="connection_refused")
    if any(isinstance(cause, TimeoutError) for cause in _causes(error)):
        return Failed(provider=provider, code="connect_timeout")
    return Failed(provider=provider, code="connection_failed", detail=type(error).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
