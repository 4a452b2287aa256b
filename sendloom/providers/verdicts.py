"""One row's answer in a provider's table of codes, and how it becomes an outcome."""

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from schemas.kinds import FaultScope
from schemas.outcomes import CallOutcome, Failed, Rejected, Unknown

DETAIL_MAX = 200

_ADDRESS = re.compile(r"[^\s<>\"'(),;:]+@[^\s<>\"'(),;]+")
_NUMBER = re.compile(r"\+?\d[\d\s().\-]{5,}\d")


class Kind(StrEnum):
    REJECTED = "rejected"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a provider's code means to us. Rows of tables are made with `rejects`, `fails` and `unclear`."""

    kind: Kind
    scope: FaultScope = FaultScope.MESSAGE
    suppress: bool = False
    opted_out: bool = False
    retry_after: timedelta | None = None
    throttled: bool = False

    def outcome(
        self, provider: str, code: str, detail: str = "", *, retry_after: timedelta | None = None
    ) -> CallOutcome:
        """`retry_after` is the provider's own word and can only lengthen the table's."""
        match self.kind:
            case Kind.REJECTED:
                return Rejected(
                    provider=provider,
                    code=code,
                    scope=self.scope,
                    suppress=self.suppress,
                    opted_out=self.opted_out,
                    detail=detail,
                )
            case Kind.FAILED:
                waits = [wait for wait in (self.retry_after, retry_after) if wait is not None]
                return Failed(
                    provider=provider,
                    code=code,
                    scope=self.scope,
                    retry_after=max(waits, default=None),
                    throttled=self.throttled,
                    detail=detail,
                )
            case Kind.UNKNOWN:
                return Unknown(provider=provider, code=code, detail=detail)


def rejects(scope: FaultScope, *, suppress: bool = False, opted_out: bool = False) -> Verdict:
    return Verdict(Kind.REJECTED, scope, suppress=suppress, opted_out=opted_out)


def fails(
    scope: FaultScope, *, retry_after: timedelta | None = None, throttled: bool = False
) -> Verdict:
    return Verdict(Kind.FAILED, scope, retry_after=retry_after, throttled=throttled)


def unclear() -> Verdict:
    return Verdict(Kind.UNKNOWN)


def not_called(provider: str) -> Failed:
    """Nothing was tried, so nothing counts."""
    return Failed(provider=provider, code="not_called", counts=False)


def redact(text: str) -> str:
    """A provider's free text, short, in ASCII, without the addresses and numbers it likes to repeat."""
    flat = " ".join(text.encode("ascii", "replace").decode().split())
    flat = "".join(c if c.isprintable() else "?" for c in flat)
    return _NUMBER.sub("<number>", _ADDRESS.sub("<address>", flat))[:DETAIL_MAX]
