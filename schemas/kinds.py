"""The closed vocabularies of Sendloom: channels, classes, modes, kinds, states."""

from enum import StrEnum


class Channel(StrEnum):
    """How a message leaves."""

    EMAIL = "email"
    SMS = "sms"
    APNS = "apns"
    FCM = "fcm"


class MessageClass(StrEnum):
    """What a category's messages are; fixes lanes, budgets and what happens to unknown outcomes."""

    SECURITY = "security"
    TRANSACTIONAL = "transactional"
    MARKETING = "marketing"


class Mode(StrEnum):
    """`test` goes through everything but the provider call."""

    LIVE = "live"
    TEST = "test"


class Kind(StrEnum):
    """What a caller can ask for. Part of every derived id."""

    NOTIFICATION = "notification"
    PASSCODE = "passcode"
    REMINDER = "reminder"
    CAMPAIGN = "campaign"


class FaultScope(StrEnum):
    """Whose fault a refusal is. Only `recipient` may suppress; only `provider` may fail over."""

    MESSAGE = "message"
    RECIPIENT = "recipient"
    SENDER = "sender"
    PROVIDER = "provider"


class ClaimState(StrEnum):
    """What we did to a provider for one delivery."""

    CLAIMED = "claimed"
    SENT = "sent"
    REJECTED = "rejected"
    FAILED = "failed"
    UNKNOWN = "unknown"


class RecipientState(StrEnum):
    """What became of one decision. All but the first two are final for the sender."""

    PENDING = "pending"
    DEFERRED = "deferred"
    SENT = "sent"
    REJECTED = "rejected"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SUPPRESSED = "suppressed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ERASED = "erased"


class UnknownPolicy(StrEnum):
    """What to do when nobody knows whether the provider took it."""

    RESEND = "resend"
    STOP = "stop"


class LatenessPolicy(StrEnum):
    """What a reminder does when its moment has passed before it could leave."""

    SEND = "send"
    SKIP = "skip"
    NEXT_DAY = "next_day"


class ControlState(StrEnum):
    """What operations want of a campaign."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class CampaignPhase(StrEnum):
    """Where a campaign is."""

    ACCEPTED = "accepted"
    FREEZING = "freezing"
    PREFLIGHT = "preflight"
    AWAITING_APPROVAL = "awaiting_approval"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    SETTLING = "settling"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
