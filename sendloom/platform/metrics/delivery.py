"""Single sends: what they came to, how long they took, what was in doubt."""

from prometheus_client import Counter, Gauge, Histogram

from schemas.kinds import Channel, MessageClass

_OUTCOMES = Counter(
    "sendloom_outcomes_total",
    "Decisions by what they came to (accepted, suppressed, …)",
    ("channel", "message_class", "outcome"),
)
_CALLS = Counter(
    "sendloom_provider_calls_total",
    "Provider calls by what they came to",
    ("provider", "channel", "message_class", "outcome"),
)
_CALL_SECONDS = Histogram(
    "sendloom_provider_call_seconds",
    "One provider call",
    ("provider", "message_class"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
_ACCEPT_TO_PROVIDER = Histogram(
    "sendloom_accept_to_provider_seconds",
    "From the accepted row to the provider's acceptance",
    ("channel", "message_class"),
    buckets=(0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600),
)
_CLAIM_SECONDS = Histogram(
    "sendloom_claim_seconds",
    "One claim statement",
    ("message_class",),
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
_IN_DOUBT = Gauge(
    "sendloom_in_doubt",
    "Claimed and not yet recorded, in this process",
    ("channel", "message_class"),
)
_UNRECORDED = Counter(
    "sendloom_unrecorded_total", "Outcomes whose recording failed at first", ("message_class",)
)
_WITHOUT_CLAIM = Counter(
    "sendloom_sent_without_claim_total", "Security sends made while claims were away (POL-7)"
)
_AWAY = Counter(
    "sendloom_store_away_total", "Looks that could not be taken before a send (POL-7)", ("store",)
)
_SUPPRESSED = Counter(
    "sendloom_suppressed_total", "Decisions not to send, by reason", ("message_class", "reason")
)
_ZONE_UNKNOWN = Counter(
    "sendloom_zone_unknown_total",
    "Marketing planned without regard to quiet hours, because the recipient has no zone",
)
_DEAD = Counter(
    "sendloom_dead_letters_total", "Ended without success", ("channel", "message_class")
)


def record_outcome(channel: Channel, message_class: MessageClass, outcome: str) -> None:
    _OUTCOMES.labels(channel, message_class, outcome).inc()


def record_suppressed(message_class: MessageClass, reason: str) -> None:
    """`reason` is one of the gates' stable reasons."""
    _SUPPRESSED.labels(message_class, reason).inc()


def record_zone_unknown(count: int = 1) -> None:
    """Quiet hours that were skipped (POL-3)."""
    _ZONE_UNKNOWN.inc(count)


def record_call(
    provider: str, channel: Channel, message_class: MessageClass, outcome: str, seconds: float
) -> None:
    _CALLS.labels(provider, channel, message_class, outcome).inc()
    _CALL_SECONDS.labels(provider, message_class).observe(seconds)


def record_calls(
    provider: str, channel: Channel, message_class: MessageClass, outcome: str, count: int
) -> None:
    """A chunk's calls at once, without their durations."""
    _CALLS.labels(provider, channel, message_class, outcome).inc(count)


def record_accept_to_provider(
    channel: Channel, message_class: MessageClass, seconds: float
) -> None:
    _ACCEPT_TO_PROVIDER.labels(channel, message_class).observe(seconds)


def record_claim(message_class: MessageClass, seconds: float) -> None:
    _CLAIM_SECONDS.labels(message_class).observe(seconds)


def record_in_doubt(channel: Channel, message_class: MessageClass, count: int) -> None:
    _IN_DOUBT.labels(channel, message_class).set(count)


def record_unrecorded(message_class: MessageClass, count: int = 1) -> None:
    _UNRECORDED.labels(message_class).inc(count)


def record_without_claim() -> None:
    _WITHOUT_CLAIM.inc()


def record_away(store: str) -> None:
    """`store` is one of profiles, suppressions, switches. Any of it is worth an alert."""
    _AWAY.labels(store).inc()


def record_dead_letter(channel: Channel, message_class: MessageClass) -> None:
    _DEAD.labels(channel, message_class).inc()
