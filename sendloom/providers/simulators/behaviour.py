"""Faults that hit everybody, switched at run time. Faults of one recipient are in `magic`."""

import json
import time
from collections import deque
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Switches(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class MailBehaviour(_Switches):
    """How the SMTP sink treats every session."""

    hang: Literal["greeting", "reply"] | None = Field(
        None, description="say nothing at all, or store each message and never answer"
    )
    slow_s: float = Field(0.0, ge=0, description="delay of each final reply; stored at once")
    throttle_per_s: int | None = Field(
        None, ge=1, description="messages taken in any second; more get `454 Throttling failure`"
    )
    close_after: int | None = Field(
        None, ge=1, description="messages per session; then MAIL FROM gets 421 and the line closes"
    )
    drop_every: int | None = Field(
        None,
        ge=1,
        description="after so many transactions, over all sessions, the next loses its line",
    )
    drop_at: Literal["mail", "body", "reply"] = Field(
        "mail", description="where: at MAIL FROM, in the body, or stored but before the reply"
    )
    auth_failure: bool = Field(False, description="AUTH gets `454 4.7.0` whatever the password")
    greeting: str | None = Field(
        None, pattern=r"^[45]\d\d .+$", description="refuse each session with this line"
    )
    starttls: Literal["normal", "refuse", "inject"] = Field(
        "normal", description="454, or plaintext smuggled in after the 220"
    )


class SmsBehaviour(_Switches):
    """How the messages API treats every request."""

    hang: bool = Field(False, description="take each message and never answer")
    hang_senders: frozenset[str] = Field(
        frozenset(), description="the same for these From numbers or messaging services only"
    )
    slow_s: float = Field(0.0, ge=0, description="delay of each answer; taken at once")
    throttle_per_s: int | None = Field(
        None, ge=1, description="messages taken in any second; more get 429 `20429`"
    )
    drop_every: int | None = Field(
        None, ge=1, description="after so many requests the next loses its line"
    )
    drop_at: Literal["request", "reply"] = Field(
        "request", description="where: not taken, or taken but not answered"
    )
    unavailable: bool = Field(False, description="each request gets 503 `20503`")
    receipts: bool = Field(True, description="report what became of messages")
    receipt_delay_s: float = Field(0.05, ge=0, description="pause before each receipt")


class Behaviour(_Switches):
    """All switches. As they come, everything works."""

    mail: MailBehaviour = Field(default_factory=MailBehaviour)
    sms: SmsBehaviour = Field(default_factory=SmsBehaviour)

    def change(self, changes: dict[str, Any]) -> None:
        """Set what is named, leave the rest; all or nothing."""
        wanted = self.model_dump()
        for part, switches in changes.items():
            current = wanted.get(part)
            wanted[part] = (
                {**current, **switches} if current and isinstance(switches, dict) else switches
            )
        checked = Behaviour.model_validate(wanted)
        self.mail, self.sms = checked.mail, checked.sms

    def reset(self) -> None:
        """Everything works again. Sessions already hanging stay so until their client leaves."""
        self.mail, self.sms = MailBehaviour(), SmsBehaviour()


def markdown() -> str:
    """The switches as `docs/simulators.md` lists them."""
    lines = ["| switch | as it comes | does |", "| --- | --- | --- |"]
    for part, switches in (("mail", MailBehaviour), ("sms", SmsBehaviour)):
        fresh = switches().model_dump(mode="json")
        lines += [
            f"| `{part}.{name}` | `{json.dumps(fresh[name])}` | {field.description} |"
            for name, field in switches.model_fields.items()
        ]
    return "\n".join(lines)


class RateLimit:
    """At most `limit` in any second that ends now; a refused one does not count."""

    def __init__(self) -> None:
        self._taken: deque[float] = deque()

    def allows(self, limit: int | None) -> bool:
        if limit is None:
            return True
        now = time.monotonic()
        taken = self._taken
        while taken and now - taken[0] >= 1.0:
            taken.popleft()
        if len(taken) >= limit:
            return False
        taken.append(now)
        return True


class EveryNth:
    """True once after each `n` false ones, over everybody who asks."""

    def __init__(self) -> None:
        self._passed = 0

    def due(self, n: int | None) -> bool:
        if n is None:
            return False
        if self._passed >= n:
            self._passed = 0
            return True
        self._passed += 1
        return False


class FirstTime:
    """True the first time it sees a key. Forgets the oldest beyond a bound."""

    def __init__(self, bound: int = 100_000) -> None:
        self._seen: dict[tuple[str, ...], None] = {}
        self._bound = bound

    def __call__(self, *key: str) -> bool:
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._bound:
            del self._seen[next(iter(self._seen))]
        return True
