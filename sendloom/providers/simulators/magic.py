"""Which recipient makes a simulator do what. The tables are the only place that decides it; `docs/simulators.md` shows them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

PHONE_PREFIX = "+1202555"
"""Followed by 0150 to 0199. North American numbers 555-01xx are reserved for examples."""


class At(StrEnum):
    """The moment of the dialogue at which a simulator misbehaves."""

    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    FINAL = "final"
    QUIT = "quit"


class Act(StrEnum):
    """What it does at that moment."""

    REPLY = "reply"
    REPLY_ONCE = "reply once"
    """The first time for one message; the same message is then taken."""
    CLOSE = "reply, close"
    RESET = "reset"
    SILENCE = "silence"
    WAIT = "wait"
    """Stored at once, answered after a while."""
    WAIT_THEN_STORE = "wait, then store"
    """Stored and answered after a while, even if the client has left by then."""


@dataclass(frozen=True, slots=True)
class MailMagic:
    """`name` is the local part, or what comes before its first `+`. `reply` holds whole lines, one per line."""

    name: str
    at: At
    act: Act
    outcome: str
    meaning: str
    reply: str = ""
    stored: bool = False
    seconds: float = 0.0


OK = "250 2.0.0 Ok: queued"

MAIL: tuple[MailMagic, ...] = (
    # Refused at RCPT: about the address.
    MailMagic(
        "reject", At.RCPT, Act.REPLY, "rejected", "no such mailbox", "550 5.1.1 No such user here"
    ),
    MailMagic(
        "bare",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "no such mailbox, no enhanced code",
        "550 No such user here",
    ),
    MailMagic(
        "nodomain",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "no such domain",
        "550 5.1.2 Bad destination system",
    ),
    MailMagic(
        "badsyntax",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "address refused as malformed",
        "553 5.1.3 Bad address syntax",
    ),
    MailMagic(
        "moved", At.RCPT, Act.REPLY, "rejected", "mailbox has moved", "550 5.1.6 Mailbox has moved"
    ),
    MailMagic(
        "notlocal",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "not local; never follow it",
        "551 5.1.6 User not local; try <other@example.com>",
    ),
    MailMagic(
        "nullmx",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "domain takes no mail",
        "556 5.1.10 Recipient address has null MX",
    ),
    MailMagic(
        "disabled", At.RCPT, Act.REPLY, "rejected", "mailbox disabled", "550 5.2.1 Mailbox disabled"
    ),
    MailMagic(
        "noroute",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "no route to the domain",
        "550 5.4.4 Unable to route",
    ),
    MailMagic(
        "syntax",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "server calls the command malformed",
        "501 5.5.4 Syntax error in parameters",
    ),
    MailMagic(
        "params",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "server refuses the parameters",
        "555 5.5.4 Parameters not recognized",
    ),
    MailMagic(
        "policy-rcpt",
        At.RCPT,
        Act.REPLY,
        "rejected",
        "policy, told early; address stays good",
        "550 5.7.1 Rejected by policy",
    ),
    MailMagic(
        "greylist",
        At.RCPT,
        Act.REPLY_ONCE,
        "failed, then accepted",
        "greylisted for one try",
        "450 4.7.1 Greylisted, try again later",
    ),
    MailMagic("full", At.RCPT, Act.REPLY, "failed", "mailbox full", "452 4.2.2 Mailbox full"),
    MailMagic(
        "toomany",
        At.RCPT,
        Act.REPLY,
        "failed",
        "too many recipients",
        "452 4.5.3 Too many recipients",
    ),
    MailMagic(
        "toomany-552",
        At.RCPT,
        Act.REPLY,
        "failed",
        "too many recipients, in the older spelling",
        "552 5.5.3 Too many recipients",
    ),
    MailMagic(
        "disagree",
        At.RCPT,
        Act.REPLY,
        "failed",
        "codes disagree: the basic one counts",
        "450 5.1.1 No such user here",
    ),
    MailMagic(
        "closing-rcpt",
        At.RCPT,
        Act.CLOSE,
        "failed",
        "server closes down at RCPT",
        "421 4.3.2 Service shutting down",
    ),
    MailMagic(
        "drop-rcpt", At.RCPT, Act.RESET, "failed", "line reset in place of the reply to RCPT"
    ),
    MailMagic("hang-rcpt", At.RCPT, Act.SILENCE, "failed", "no reply to RCPT"),
    # At DATA, and in the body.
    MailMagic(
        "busy-data",
        At.DATA,
        Act.REPLY,
        "failed",
        "refused in place of 354",
        "451 4.3.0 Try again later",
    ),
    MailMagic("drop-data", At.DATA, Act.RESET, "failed", "line reset in place of 354"),
    MailMagic("hang-data", At.DATA, Act.SILENCE, "failed", "354 never comes"),
    MailMagic(
        "drop-before",
        At.BODY,
        Act.RESET,
        "failed; unknown if the dot had left",
        "line reset at the first byte of the body",
    ),
    # In place of the final reply: about the message.
    MailMagic(
        "policy",
        At.FINAL,
        Act.REPLY,
        "rejected",
        "policy; address stays good",
        "550 5.7.1 Message rejected by policy",
    ),
    MailMagic(
        "unauthenticated",
        At.FINAL,
        Act.REPLY,
        "rejected",
        "DKIM or SPF missing; address stays good",
        "550 5.7.26 This mail has been blocked because the sender is unauthenticated",
    ),
    MailMagic(
        "content",
        At.FINAL,
        Act.REPLY,
        "rejected",
        "content not supported",
        "554 5.6.0 Message content not acceptable",
    ),
    MailMagic(
        "refused",
        At.FINAL,
        Act.REPLY,
        "rejected",
        "transaction failed, no enhanced code",
        "554 Transaction failed",
    ),
    MailMagic(
        "toobig",
        At.FINAL,
        Act.REPLY,
        "rejected",
        "message too big",
        "552 5.3.4 Message too big for system",
    ),
    MailMagic(
        "odd5",
        At.FINAL,
        Act.REPLY,
        "rejected",
        "a code nobody documented: first digit",
        "599 5.9.9 Odd",
    ),
    MailMagic(
        "odd4",
        At.FINAL,
        Act.REPLY,
        "failed",
        "a code nobody documented: first digit",
        "499 4.9.9 Odd",
    ),
    MailMagic(
        "overquota",
        At.FINAL,
        Act.REPLY,
        "failed",
        "mailbox over quota",
        "552 5.2.2 Mailbox over quota",
    ),
    MailMagic(
        "storage",
        At.FINAL,
        Act.REPLY,
        "failed",
        "server out of storage",
        "452 4.3.1 Insufficient system storage",
    ),
    MailMagic(
        "busy",
        At.FINAL,
        Act.REPLY_ONCE,
        "failed, then accepted",
        "busy for one try of each Message-ID",
        "451 4.3.0 Try again later",
    ),
    MailMagic("fail", At.FINAL, Act.REPLY, "failed", "busy for ever", "451 4.3.0 Try again later"),
    MailMagic(
        "throttle",
        At.FINAL,
        Act.REPLY_ONCE,
        "failed, then accepted",
        "too fast for one try of each Message-ID",
        "454 Throttling failure: Maximum sending rate exceeded",
    ),
    MailMagic(
        "throttle-always",
        At.FINAL,
        Act.REPLY,
        "failed",
        "too fast for ever",
        "454 Throttling failure: Maximum sending rate exceeded",
    ),
    MailMagic(
        "closing",
        At.FINAL,
        Act.CLOSE,
        "failed",
        "421 in place of the final reply",
        "421 4.3.2 Service shutting down",
    ),
    # Taken, but the client hears it late, oddly or never.
    MailMagic("hang", At.FINAL, Act.SILENCE, "unknown", "stored, never answered", stored=True),
    MailMagic(
        "drop-after",
        At.FINAL,
        Act.RESET,
        "unknown",
        "stored, line reset before the 250",
        stored=True,
    ),
    MailMagic(
        "garble",
        At.FINAL,
        Act.REPLY,
        "unknown",
        "stored, the answer is not SMTP",
        "?! 250 what",
        stored=True,
    ),
    MailMagic(
        "slow",
        At.FINAL,
        Act.WAIT,
        "accepted",
        "stored, answered after the seconds in `slow+3s` (or `slow+250ms`)",
        OK,
        stored=True,
        seconds=1.0,
    ),
    MailMagic(
        "late",
        At.FINAL,
        Act.WAIT_THEN_STORE,
        "accepted; unknown if the client left",
        "stored and answered after the seconds in `late+8s`, client or not",
        OK,
        stored=True,
        seconds=1.0,
    ),
    MailMagic(
        "multiline",
        At.FINAL,
        Act.REPLY,
        "accepted",
        "an answer of three lines",
        "250-2.0.0 Ok\n250-2.0.0 and well\n250 2.0.0 queued",
        stored=True,
    ),
    MailMagic(
        "terse", At.FINAL, Act.REPLY, "accepted", "an answer without text", "250", stored=True
    ),
    MailMagic(
        "long",
        At.FINAL,
        Act.REPLY,
        "accepted",
        "an answer of 900 characters",
        "250 2.0.0 " + "ok " * 297,
        stored=True,
    ),
    MailMagic(
        "hang-quit",
        At.QUIT,
        Act.SILENCE,
        "accepted",
        "stored and answered, then no reply to QUIT",
        OK,
        stored=True,
    ),
)

MAIL_BY_NAME = {magic.name: magic for magic in MAIL}

_SECONDS = re.compile(r"\+(\d+(?:\.\d+)?)(ms|s)(?=\+|$)")


def mail_magic(recipient: str) -> MailMagic | None:
    """What this recipient stands for; None is an ordinary mailbox."""
    name = recipient.partition("@")[0].partition("+")[0]
    return MAIL_BY_NAME.get(name) or MAIL_BY_NAME.get(name.lower())


def seconds_for(magic: MailMagic, recipient: str) -> float:
    """The delay that a recipient asks for in its tags, or the row's own."""
    if found := _SECONDS.search(recipient.rpartition("@")[0]):
        return float(found[1]) / (1000 if found[2] == "ms" else 1)
    return magic.seconds


class SmsAct(StrEnum):
    """What the messages API does for a number."""

    ERROR = "error"
    ERROR_ONCE = "error once"
    """The first time for one message; the same message is then taken."""
    PAGE = "page"
    """HTML from something in between, not the API's own error."""
    REDIRECT = "redirect"
    UNREADABLE = "unreadable 201"
    SILENCE = "silence"
    RESET = "reset"
    WAIT = "wait"
    WAIT_THEN_TAKE = "wait, then take"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class SmsMagic:
    """`number` is the last four digits after +1 202 555. `receipts` are the statuses reported after `queued`."""

    number: str
    act: SmsAct
    outcome: str
    meaning: str
    status: int = 201
    code: int | None = None
    message: str = ""
    taken: bool = True
    seconds: float = 0.0
    receipts: tuple[str, ...] = ("sent", "delivered")
    receipt_code: int | None = None
    receipts_first: bool = False
    """Reported before the 201 is sent."""
    signed: bool = True

    @property
    def phone(self) -> str:
        return PHONE_PREFIX + self.number


def _error(
    number: str,
    code: int,
    outcome: str,
    meaning: str,
    message: str,
    *,
    status: int = 400,
    act: SmsAct = SmsAct.ERROR,
) -> SmsMagic:
    return SmsMagic(number, act, outcome, meaning, status, code, message, taken=False)


def _undelivered(number: str, code: int, meaning: str, *, failed: bool = False) -> SmsMagic:
    receipts = ("failed",) if failed else ("sent", "undelivered")
    return SmsMagic(
        number,
        SmsAct.ACCEPT,
        f"accepted, then {receipts[-1]}",
        meaning,
        receipts=receipts,
        receipt_code=code,
    )


SMS: tuple[SmsMagic, ...] = (
    # Refused at request time.
    _error("0150", 21211, "rejected", "not a valid number", "Invalid 'To' Phone Number"),
    _error(
        "0151", 21614, "rejected", "not a mobile number", "'To' number is not a valid mobile number"
    ),
    _error(
        "0152",
        21610,
        "rejected",
        "opted out; suppress, never fail over",
        "Attempt to send to unsubscribed recipient",
    ),
    _error(
        "0153",
        21612,
        "rejected",
        "no route from this sender",
        "The 'To' phone number is not currently reachable with the 'From' phone number",
    ),
    _error(
        "0154",
        21408,
        "rejected",
        "country not enabled",
        "Permission to send an SMS has not been enabled for the region",
    ),
    _error(
        "0155",
        21606,
        "rejected",
        "sender cannot send SMS",
        "The 'From' phone number is not a valid, SMS-capable number",
    ),
    _error(
        "0156", 21999, "rejected", "a code nobody documented; number stays good", "Undocumented"
    ),
    _error(
        "0157",
        21608,
        "failed",
        "trial account: our configuration",
        "The number is unverified. Trial accounts cannot send messages to unverified numbers",
    ),
    _error(
        "0158",
        21611,
        "failed",
        "sender's queue is full",
        "This 'From' number has exceeded the maximum number of queued messages",
    ),
    _error(
        "0159",
        20003,
        "failed",
        "credentials refused: our configuration",
        "Authenticate",
        status=401,
    ),
    # Trouble on the way.
    _error(
        "0160",
        20429,
        "failed, then accepted",
        "too many requests, for one try of each message",
        "Too Many Requests",
        status=429,
        act=SmsAct.ERROR_ONCE,
    ),
    _error("0161", 20429, "failed", "too many requests, for ever", "Too Many Requests", status=429),
    SmsMagic("0162", SmsAct.PAGE, "unknown", "429 from something in between", 429, taken=False),
    _error(
        "0163",
        20503,
        "unknown",
        "unavailable, for ever; nothing taken",
        "Service unavailable",
        status=503,
    ),
    _error(
        "0164",
        20500,
        "unknown",
        "server error, for one try of each message",
        "Internal server error",
        status=500,
        act=SmsAct.ERROR_ONCE,
    ),
    SmsMagic("0165", SmsAct.PAGE, "unknown", "taken, but a gateway answers 502", 502),
    SmsMagic("0166", SmsAct.UNREADABLE, "unknown", "taken, but the 201 is cut off"),
    SmsMagic("0167", SmsAct.REDIRECT, "failed", "redirected: our configuration", 307, taken=False),
    SmsMagic("0168", SmsAct.UNREADABLE, "unknown", "201 without a sid; nothing taken", taken=False),
    SmsMagic("0170", SmsAct.SILENCE, "unknown", "taken, never answered"),
    SmsMagic("0171", SmsAct.SILENCE, "unknown", "not taken, never answered", taken=False),
    SmsMagic("0172", SmsAct.RESET, "unknown", "taken, line reset before the answer"),
    SmsMagic("0173", SmsAct.RESET, "unknown", "not taken, line reset", taken=False),
    SmsMagic("0174", SmsAct.WAIT, "accepted", "taken at once, answered after 1 s", seconds=1.0),
    SmsMagic("0175", SmsAct.WAIT, "accepted", "taken at once, answered after 3 s", seconds=3.0),
    SmsMagic(
        "0176",
        SmsAct.WAIT_THEN_TAKE,
        "accepted; unknown if the client left",
        "taken and answered after 8 s, client or not",
        seconds=8.0,
    ),
    # Taken; what the receipts then say.
    _undelivered("0180", 30003, "handset unreachable"),
    _undelivered("0181", 30005, "unknown handset"),
    _undelivered("0182", 30006, "landline or unreachable carrier"),
    _undelivered("0183", 30007, "filtered by the carrier"),
    _undelivered("0184", 30004, "blocked by the recipient"),
    _undelivered("0185", 30008, "unknown error"),
    _undelivered("0186", 30001, "queue overflow", failed=True),
    _undelivered("0187", 30450, "blocked as SMS pumping", failed=True),
    _undelivered("0188", 30034, "sender not registered"),
    SmsMagic("0190", SmsAct.ACCEPT, "accepted", "sent, then nothing more", receipts=("sent",)),
    SmsMagic("0191", SmsAct.ACCEPT, "accepted", "no receipt at all", receipts=()),
    SmsMagic(
        "0192",
        SmsAct.ACCEPT,
        "accepted, then delivered",
        "receipts in the wrong order",
        receipts=("delivered", "sent"),
    ),
    SmsMagic(
        "0193",
        SmsAct.ACCEPT,
        "accepted, then delivered",
        "each receipt twice",
        receipts=("sent", "sent", "delivered", "delivered"),
    ),
    SmsMagic(
        "0194",
        SmsAct.ACCEPT,
        "accepted, then delivered",
        "receipts before the answer",
        receipts_first=True,
    ),
    SmsMagic("0195", SmsAct.ACCEPT, "accepted", "receipts with a forged signature", signed=False),
)

SMS_BY_PHONE = {magic.phone: magic for magic in SMS}


def markdown() -> str:
    """The two tables as `docs/simulators.md` carries them."""
    mail = (
        (f"`{m.name}`", f"{m.at}: {m.act}", _shown(m.reply), _yes(m.stored), m.outcome, m.meaning)
        for m in MAIL
    )
    sms = (
        (f"`{m.phone}`", _answer(m), _yes(m.taken), _receipts(m), m.outcome, m.meaning) for m in SMS
    )
    return "\n\n".join(
        (
            _table(("local part", "at: does", "reply", "stored", "right outcome", "meaning"), mail),
            _table(("number", "answer", "taken", "receipts", "right outcome", "meaning"), sms),
        )
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _shown(reply: str) -> str:
    first = reply.split("\n")[0]
    shortened = first if len(first) <= 60 else first[:57].rstrip() + "…"
    return f"`{shortened}`" if reply else ""


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _answer(magic: SmsMagic) -> str:
    match magic.act:
        case SmsAct.ERROR | SmsAct.ERROR_ONCE:
            return (
                f"{magic.status} `{magic.code}`{', once' if magic.act is SmsAct.ERROR_ONCE else ''}"
            )
        case SmsAct.PAGE:
            return f"{magic.status} HTML"
        case SmsAct.REDIRECT:
            return f"{magic.status}"
        case SmsAct.ACCEPT:
            return "201"
        case SmsAct.WAIT | SmsAct.WAIT_THEN_TAKE:
            return f"{magic.act}: 201 after {magic.seconds:g} s"
        case _:
            return str(magic.act)


def _receipts(magic: SmsMagic) -> str:
    if not magic.taken and magic.act is not SmsAct.ERROR_ONCE:
        return ""
    steps = ", ".join(magic.receipts) or "none"
    return steps + (f" `{magic.receipt_code}`" if magic.receipt_code else "")
