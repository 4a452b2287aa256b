"""Drawing and checking passcodes. The secret is drawn once; a check is counted durably before anything is compared."""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from schemas.kinds import Channel, FaultScope
from schemas.notifications import CheckResult
from schemas.outcomes import Accepted, CallOutcome, Failed, Rejected, Unknown
from sendloom.domain.budgets import PASSCODE_DIGITS_MIN, PASSCODE_TTL_MAX
from sendloom.errors import Refusal

DIGITS_MAX = 10
CODE_MAX = 32
CHECKS_DEFAULT = 5
CHECKS_MAX = 10

_BROUGHT = re.compile(rf"[0-9A-Za-z]{{{PASSCODE_DIGITS_MIN},{CODE_MAX}}}", re.ASCII)
_SEPARATORS = re.compile(r"[\s\u200b\u2060\ufeff-]+")


def draw_code(digits: int, randbelow: Callable[[int], int]) -> str:
    """A code of so many digits, leading zeros and all. `randbelow` is `secrets.randbelow`, except in tests.

    Raises:
        Refusal: `bad_digits`.
    """
    if not PASSCODE_DIGITS_MIN <= digits <= DIGITS_MAX:
        raise Refusal(
            "bad_digits",
            f"a passcode has {PASSCODE_DIGITS_MIN} to {DIGITS_MAX} digits",
            field="digits",
            fix="leave it out for six",
        )
    return f"{randbelow(10**digits):0{digits}d}"


def validate_code(code: str, *, field: str = "code") -> str:
    """A code the caller brought.

    Raises:
        Refusal: `bad_code`. The code is not quoted.
    """
    if not _BROUGHT.fullmatch(code):
        raise Refusal(
            "bad_code",
            f"a code has {PASSCODE_DIGITS_MIN} to {CODE_MAX} letters and digits",
            field=field,
            fix="leave it out to have one drawn",
        )
    return code


def validate_ttl(ttl: timedelta, *, field: str = "ttl_seconds") -> timedelta:
    """
    Raises:
        Refusal: `bad_ttl`: not positive, or longer than a passcode may live.
    """
    if not timedelta(0) < ttl <= PASSCODE_TTL_MAX:
        raise Refusal(
            "bad_ttl",
            f"a passcode lives at most {int(PASSCODE_TTL_MAX.total_seconds())} seconds",
            field=field,
        )
    return ttl


def code_hmac(key: bytes, tenant: str, passcode_id: UUID, code: str) -> bytes:
    """The stored form. Keyed, because six digits hashed alone are guessed at once; bound to its passcode, so equal codes differ."""
    message = f"{len(tenant)}:{tenant}{passcode_id}{entered(code)}".encode(errors="replace")
    return hmac.new(key, message, hashlib.sha256).digest()


def entered(code: str) -> str:
    """What somebody typed, as the code they meant: no spaces or hyphens, any script's digits, case kept."""
    return unicodedata.normalize("NFKC", _SEPARATORS.sub("", code)).translate(_DIGITS)


class _AnyDigit(dict[int, str]):
    """Maps every decimal digit to its ASCII form, on demand."""

    def __missing__(self, key: int) -> str:
        character = chr(key)
        digit = unicodedata.decimal(character, None)
        return character if digit is None else str(digit)


_DIGITS = _AnyDigit()


# --- checking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Challenge:
    """What is stored of a passcode. A resend sends the same secret again and touches none of this."""

    code_hmac: bytes
    checks_left: int
    """-1 after a check that there was no more room for."""
    expires_at: datetime
    used: bool = False
    cancelled: bool = False


def take_check(challenge: Challenge) -> Challenge:
    """Counts one check. Must be durable before `judge` is asked, so that parallel guesses cost one each."""
    return replace(challenge, checks_left=max(challenge.checks_left - 1, -1))


def judge(taken: Challenge, offered_hmac: bytes, now: datetime) -> CheckResult:
    """What a counted check comes to. `approved` holds only for whoever then marks it used first.

    The comparison takes the same time whatever is offered. An expired, used or cancelled passcode says so before a wrong
    one does: the client shows one generic failure anyway, and the caller can tell its user what to do.
    """
    matches = hmac.compare_digest(taken.code_hmac, offered_hmac)
    left = max(taken.checks_left, 0)
    if taken.cancelled:
        return CheckResult(result="cancelled", attempts_left=left)
    if taken.used:
        return CheckResult(result="used", attempts_left=left)
    if now >= taken.expires_at:
        return CheckResult(result="expired", attempts_left=left)
    if taken.checks_left < 0:
        return CheckResult(result="max_attempts", attempts_left=0)
    return CheckResult(result="approved" if matches else "wrong", attempts_left=left)


def may_resend(challenge: Challenge, now: datetime) -> CheckResult | None:
    """None if the same secret may be sent again; else why not. A locked one is not resent: it could not be used."""
    left = max(challenge.checks_left, 0)
    if challenge.cancelled:
        return CheckResult(result="cancelled", attempts_left=left)
    if challenge.used:
        return CheckResult(result="used", attempts_left=left)
    if now >= challenge.expires_at:
        return CheckResult(result="expired", attempts_left=left)
    if challenge.checks_left <= 0:
        return CheckResult(result="max_attempts", attempts_left=0)
    return None


# --- test mode (PASS-6) -----------------------------------------------------------------------------------------------


TEST_PROVIDER = "test"


def fixed_code(digits: int = PASSCODE_DIGITS_MIN) -> str:
    """The code that every passcode of a test key has."""
    return "0123456789"[:digits]


_MAGIC: dict[str, str] = {
    "rejected@example.com": "rejected",
    "+12025550190": "rejected",
    "bounced@example.com": "dead",
    "+12025550191": "dead",
    "stopped@example.com": "stopped",
    "+12025550192": "stopped",
    "busy@example.com": "busy",
    "+12025550193": "busy",
    "failed@example.com": "failed",
    "+12025550194": "failed",
    "unknown@example.com": "unknown",
    "+12025550195": "unknown",
    "misconfigured@example.com": "misconfigured",
    "+12025550196": "misconfigured",
}
"""Magic recipients of test keys, by lookup form. Anybody else accepts."""


def magic_outcome(lookup: str, reference: str, attempt: int) -> CallOutcome:
    """What a send of a test key comes to: every outcome there is, without a provider."""
    match _MAGIC.get(lookup):
        case "rejected":
            return Rejected(provider=TEST_PROVIDER, code="message_refused")
        case "dead":
            return Rejected(
                provider=TEST_PROVIDER,
                code="unknown_address",
                scope=FaultScope.RECIPIENT,
                suppress=True,
            )
        case "stopped":
            return Rejected(
                provider=TEST_PROVIDER,
                code="stop",
                scope=FaultScope.RECIPIENT,
                suppress=True,
                opted_out=True,
            )
        case "busy" if attempt == 1:
            return Failed(
                provider=TEST_PROVIDER,
                code="throttled",
                retry_after=timedelta(seconds=1),
                throttled=True,
            )
        case "failed":
            return Failed(provider=TEST_PROVIDER, code="unavailable")
        case "unknown":
            return Unknown(provider=TEST_PROVIDER, code="timeout")
        case "misconfigured":
            return Failed(provider=TEST_PROVIDER, code="bad_login", scope=FaultScope.SENDER)
        case _:
            return Accepted(provider=TEST_PROVIDER, provider_message_id=f"test-{reference}")


def magic_recipients(channel: Channel) -> dict[str, str]:
    """Magic address → outcome, for the documentation and the API's answer to "how do I test this"."""
    at = channel is Channel.EMAIL
    return {address: outcome for address, outcome in _MAGIC.items() if ("@" in address) is at}
