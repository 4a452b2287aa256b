"""What travels for one notification, passcode or reminder. References only: content stays sealed in the stores."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from schemas.kinds import (
    Channel,
    Kind,
    LatenessPolicy,
    MessageClass,
    Mode,
    RecipientState,
    UnknownPolicy,
)
from schemas.outcomes import CallOutcome, Outcome
from schemas.wire import Wire, trusted


class DecisionKey(Wire):
    """One decision: (campaign or notification, recipient). A notification is its own campaign: shard 0, page 0.

    `frozen_at` is the launch, fire or accept time, fixed once; it names the partition.
    """

    tenant: str
    frozen_at: datetime
    campaign_id: UUID
    shard: int = 0
    page: int = 0
    recipient_id: str


class DeliveryKey(DecisionKey):
    """One attempt group: a decision on one channel, one send number, one device (push only, else empty)."""

    channel: Channel
    send_no: int = 1
    device: str = ""


def trusted_decision_key(
    tenant: str, frozen_at: datetime, campaign_id: UUID, shard: int, page: int, recipient_id: str
) -> DecisionKey:
    """What was validated when it was read, not validated again: a campaign makes several a recipient."""
    fields = {
        "tenant": tenant,
        "frozen_at": frozen_at,
        "campaign_id": campaign_id,
        "shard": shard,
        "page": page,
        "recipient_id": recipient_id,
    }
    return trusted(DecisionKey, _DECISION_FIELDS, fields)


_DECISION_FIELDS = set(DecisionKey.model_fields)


class NotificationInput(Wire):
    """Starts a `Notification`. The body (template, variables) is read from the accepted row."""

    tenant: str
    mode: Mode
    notification_id: UUID
    recipient_id: str
    category: str
    message_class: MessageClass
    accepted_at: datetime
    expires_at: datetime
    priority: int = 3
    not_before: datetime | None = None


class PlanRequest(Wire):
    """Asks for the plan of one rung. A send number above 1 is a resend of a passcode."""

    n: NotificationInput
    rung: int = 0
    send_no: int = 1


class Sendable(Wire):
    """The plan for one rung: this delivery may leave now, on this lane."""

    kind: Literal["sendable"] = "sendable"
    delivery: DeliveryKey
    rung: int
    rungs: int
    """How many rungs the ladder has."""
    message_class: MessageClass
    mode: Mode
    category: str
    unknown_policy: UnknownPolicy
    not_after: datetime
    """The end of the window it may leave in; later it is planned again."""
    expires_at: datetime
    """The hard end."""


class NoRung(Wire):
    """No usable channel at or after the asked rung."""

    kind: Literal["no_rung"] = "no_rung"
    reason: str


class Objection(Wire):
    """The gates objected; `outcome` is Suppressed, Deferred or Expired."""

    kind: Literal["objection"] = "objection"
    outcome: Outcome


class Settled(Wire):
    """The decision already has a final outcome (an earlier run got that far)."""

    kind: Literal["settled"] = "settled"
    outcome: Outcome


class Plan(Wire):
    """What `delivery.plan` returns."""

    step: Sendable | NoRung | Objection | Settled = Field(discriminator="kind")


class Recorded(Wire):
    """What came of a send, and whether it is in the ledger yet. `recorded=False`: repeat the record, never the call."""

    outcome: Outcome
    attempt: int = 1
    owner: str = ""
    recorded: bool = True


class RecordRequest(Wire):
    """Repeats only the marking."""

    sendable: Sendable
    outcome: CallOutcome
    attempt: int
    owner: str


class ReminderView(Wire):
    """What GET answers."""

    id: UUID
    state: str
    """scheduled | firing | sent | skipped | cancelled | … the notification's state"""
    due_at: datetime | None = None
    notification_id: UUID | None = None
    reason: str | None = None


class CloseReminder(Wire):
    """The reminder's last step."""

    tenant: str
    id: UUID
    view: ReminderView


class CloseRequest(Wire):
    """The workflow's last step: close the accepted row; what ends without success becomes a dead letter."""

    kind: Kind
    tenant: str
    id: UUID
    recipient_id: str
    category: str
    message_class: MessageClass
    accepted_at: datetime
    outcome: Outcome
    dead_letter: bool
    channel: Channel | None = None
    rung: int = 0
    send_no: int = 1
    attempt: int = 0
    reminder: CloseReminder | None = None
    """Whose notification this was, if its own workflow sent it: closed with it."""


class ChannelView(Wire):
    """The truth on one channel."""

    channel: Channel
    delivery_id: str
    state: str
    """accepted | sending | sent | rejected | failed | unknown"""
    attempt: int = 0
    provider: str | None = None
    provider_message_id: str | None = None
    code: str | None = None
    sent_at: datetime | None = None
    delivered_at: datetime | None = None
    opened_at: datetime | None = None
    bounced_at: datetime | None = None


class NotificationView(Wire):
    """What GET answers; also the workflow's query."""

    id: UUID
    state: RecipientState
    reason: str | None = None
    deferred_until: datetime | None = None
    channels: list[ChannelView] = []


class PasscodeInput(NotificationInput):
    """Starts a `Passcode`. The secret is drawn once, before this exists, and is sealed in the accepted row."""

    max_checks: int = 5


class PasscodeRef(Wire):
    """Names one passcode to the activities that check, resend and cancel it."""

    tenant: str
    id: UUID
    expires_at: datetime


class CheckPasscode(PasscodeRef):
    """Counts one check and compares."""

    code: str


class ResendPasscode(PasscodeRef):
    """Takes the send number of a resend key."""

    key: str


class CheckRequest(Wire):
    """A code to compare. It is sealed by the codec in history, and the stored form is a keyed hash."""

    code: str


class CheckResult(Wire):
    """Enumerated apart from send outcomes."""

    result: Literal["approved", "wrong", "expired", "max_attempts", "used", "cancelled"]
    attempts_left: int


class ResendRequest(Wire):
    """Sends the same secret again. `key` makes a repeat harmless."""

    key: str


class ResendResult(Wire):
    """The send number that was, or had been, started under the key."""

    send_no: int


class CancelRequest(Wire):
    """Why, and who asked."""

    reason: str = "cancelled"
    by: str = ""


class Due(Wire):
    """When a reminder is due: an instant, or a wall time in the recipient's zone. Exactly one is set."""

    at: datetime | None = None
    local: str | None = None
    """Naive ISO local date and time, for example `2026-01-15T09:00`."""


class ReminderInput(Wire):
    """Starts a `Reminder`."""

    tenant: str
    mode: Mode
    reminder_id: UUID
    recipient_id: str
    category: str
    message_class: MessageClass
    accepted_at: datetime
    due: Due
    lateness: LatenessPolicy = LatenessPolicy.SEND
    grace_seconds: int = 3600
    """How late counts as late."""
    ttl_seconds: int = 86_400
    priority: int = 3


class RescheduleRequest(Wire):
    """A new due time."""

    due: Due


class SendNowRequest(Wire):
    """Who asked."""

    by: str = ""


class ResolveDue(Wire):
    """Asks when a reminder is due for its recipient, from the zone they have now."""

    reminder: ReminderInput
    due: Due
    asked_at: datetime
    """When this due time was asked for: a wall time that had passed by then is never sent at once."""
    persist: bool = False
    """Move the accepted row's due time too."""


class ResolvedDue(Wire):
    """`due_at` is None when the lateness policy says to skip."""

    due_at: datetime | None
    due: Due
    """What was asked for, or where the lateness policy moved it."""
    instant: bool = False
    """Nobody's zone moves it: when it comes, it need not be worked out again. Histories from before this was known say no."""


class FireReminder(Wire):
    """Insert the accepted row of the notification that the reminder is."""

    reminder: ReminderInput
    due_at: datetime


class FiredReminder(Wire):
    """What to send; None: it was cancelled in our own store, which is asked last."""

    notification: NotificationInput | None
    reason: str = ""
    in_place: bool = False
    """By the reminder's own workflow, as nobody else can be driving it. Histories from before this was known say no: a child."""
