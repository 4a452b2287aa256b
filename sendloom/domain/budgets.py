"""Every time-out, lease and attempt limit, by class, each with its reason. Workflow options and senders derive from these."""

from dataclasses import dataclass
from datetime import timedelta

from schemas.kinds import MessageClass

SMTP_FINAL_REPLY = {
    # RFC 5321 asks 10 min for the reply to the final dot, because giving up early makes duplicates. A passcode is
    # worthless by then, and resending its same payload is harmless; for the others a duplicate is what we promise against.
    MessageClass.SECURITY: timedelta(seconds=20),
    MessageClass.TRANSACTIONAL: timedelta(seconds=120),
    MessageClass.MARKETING: timedelta(seconds=120),
}

PROVIDER_CONNECT = timedelta(seconds=5)
"""TCP, TLS, greeting and login; nothing has been taken yet, so waiting longer only holds a slot."""

SMTP_COMMAND = timedelta(seconds=10)
"""Each reply before the body; before the final dot a give-up is `failed`, never `unknown`."""

HTTP_REPLY = {
    MessageClass.SECURITY: timedelta(seconds=10),
    MessageClass.TRANSACTIONAL: timedelta(seconds=30),
    MessageClass.MARKETING: timedelta(seconds=30),
}

LEASE_MARGIN = timedelta(seconds=10)
"""Clock error between our monotonic clock and Postgres's, plus one slow record."""


def provider_timeout(message_class: MessageClass) -> timedelta:
    """The longest one provider call can take, connect to last reply."""
    return PROVIDER_CONNECT + 3 * SMTP_COMMAND + SMTP_FINAL_REPLY[message_class]


def lease(message_class: MessageClass) -> timedelta:
    """How long a claim is exclusive: the longest call plus a margin. Judged by Postgres's clock."""
    return provider_timeout(message_class) + LEASE_MARGIN


RECORD_MARGIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How a known failure is tried again."""

    attempts: int
    first_delay: timedelta
    longest_delay: timedelta
    total: timedelta
    """After this since acceptance (or first due) it is stale, whatever the ttl says."""


RETRIES = {
    # A passcode lives 10 minutes: early, close attempts.
    MessageClass.SECURITY: RetryBudget(
        6, timedelta(seconds=1), timedelta(seconds=30), timedelta(minutes=10)
    ),
    # A 30 minute outage must not burn every attempt (case C92), however the jitter falls: 6 hours of patience on average,
    # 12 at most. With 12 attempts it was 34 minutes, and more than a third of the messages would not have outlived it.
    MessageClass.TRANSACTIONAL: RetryBudget(
        18, timedelta(seconds=2), timedelta(hours=2), timedelta(hours=24)
    ),
    # Campaign rows wait in due buckets: 1 min, 10 min, then hourly.
    MessageClass.MARKETING: RetryBudget(
        8, timedelta(minutes=1), timedelta(hours=1), timedelta(hours=24)
    ),
}

DUE_BUCKETS = (timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=1))
"""Campaign retries (CAMP-14): the n-th retry waits the n-th bucket, the last one repeats."""

DEFERRAL_SPREAD = timedelta(minutes=4)
"""What leaves quiet hours is spread over this, derived from the id, so that 8 o'clock is not a wall."""

PASSCODE_TTL_MAX = timedelta(minutes=10)
PASSCODE_DIGITS_MIN = 6

ORPHANS_SETTLED_WITHIN = timedelta(minutes=10)
CLAIMS_KEPT = timedelta(days=90)
"""At least 14 days: claims outlive every retry and replay."""
IDEMPOTENCY_KEPT = timedelta(days=30)
SECRETS_KEPT = timedelta(days=7)
