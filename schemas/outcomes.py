"""Every way a send can end, as values with a `kind`."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from schemas.kinds import FaultScope
from schemas.wire import Wire, trusted


class Accepted(Wire):
    """The provider took it. Delivery is confirmed later, by receipt."""

    kind: Literal["accepted"] = "accepted"
    provider: str
    provider_message_id: str


def trusted_accepted(provider: str, provider_message_id: str) -> Accepted:
    """Of two texts, without looking whether they are: a campaign makes one a recipient."""
    fields = {
        "kind": "accepted",
        "provider": provider,
        "provider_message_id": provider_message_id,
    }
    return trusted(Accepted, _ACCEPTED_FIELDS, fields)


_ACCEPTED_FIELDS = {"provider", "provider_message_id"}


class Rejected(Wire):
    """Sending the same thing again would fail again.

    `suppress` is true only when the provider's own answer says that the address must not be used;
    `opted_out` when it says that the person said stop.
    """

    kind: Literal["rejected"] = "rejected"
    provider: str
    code: str
    scope: FaultScope = FaultScope.MESSAGE
    suppress: bool = False
    opted_out: bool = False
    detail: str = ""


class Failed(Wire):
    """Known not to have been taken. Worth another attempt, no earlier than `retry_after`.

    `scope` sender means configuration (wrong login, no balance): it pauses, it does not burn attempts.
    `counts` is false for `not_called`: nothing was tried.
    """

    kind: Literal["failed"] = "failed"
    provider: str
    code: str
    scope: FaultScope = FaultScope.PROVIDER
    retry_after: timedelta | None = None
    throttled: bool = False
    counts: bool = True
    detail: str = ""


class Unknown(Wire):
    """It may have been taken; nobody here knows. The category's policy decides, never a reflex."""

    kind: Literal["unknown"] = "unknown"
    provider: str
    code: str
    detail: str = ""


class Suppressed(Wire):
    """A gate objected for good."""

    kind: Literal["suppressed"] = "suppressed"
    reason: str


class Deferred(Wire):
    """A gate objected until a moment."""

    kind: Literal["deferred"] = "deferred"
    until: datetime
    reason: str


class Expired(Wire):
    """It can no longer help, so it is not sent."""

    kind: Literal["expired"] = "expired"
    reason: str = "ttl"


class Cancelled(Wire):
    """Somebody asked for it not to be sent, in time."""

    kind: Literal["cancelled"] = "cancelled"
    reason: str = "cancelled"


class Undeliverable(Wire):
    """Every rung of the ladder is used up or unusable; the caller decides."""

    kind: Literal["undeliverable"] = "undeliverable"
    reason: str


CallOutcome = Annotated[Accepted | Rejected | Failed | Unknown, Field(discriminator="kind")]
Verdict = Annotated[Suppressed | Deferred | Expired, Field(discriminator="kind")]
Outcome = Annotated[
    Accepted
    | Rejected
    | Failed
    | Unknown
    | Suppressed
    | Deferred
    | Expired
    | Cancelled
    | Undeliverable,
    Field(discriminator="kind"),
]
