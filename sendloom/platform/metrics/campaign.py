"""Campaigns by stretch. No label names a campaign: the API answers for one, metrics for all."""

from datetime import timedelta

from prometheus_client import Counter, Gauge, Histogram

from schemas.kinds import Channel

_PLANNED = Counter(
    "sendloom_campaign_planned_total", "Recipients planned, by verdict", ("verdict",)
)
_SENT = Counter(
    "sendloom_campaign_recipients_total",
    "Recipients whose send came to a state",
    ("channel", "state"),
)
_STRETCH_SECONDS = Histogram(
    "sendloom_campaign_stretch_seconds",
    "One activity's stretch",
    ("step", "channel"),
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80),
)
_PAUSED = Counter(
    "sendloom_campaign_paused_total", "Campaigns paused, by what paused them", ("reason",)
)
_FENCED = Counter("sendloom_campaign_fenced_total", "Attempts that met a newer epoch", ("channel",))
_HELD_BACK = Counter(
    "sendloom_campaign_held_back_seconds_total",
    "Waiting for tokens or for the lane guard",
    ("why",),
)

_SECURITY_WAIT = Gauge(
    "sendloom_security_oldest_waiting_seconds",
    "Age of the oldest security message not called for yet, as marketing lanes see it",
)


def record_planned(verdict: str, count: int) -> None:
    _PLANNED.labels(verdict).inc(count)


def record_sent(channel: Channel, state: str, count: int) -> None:
    _SENT.labels(channel, state).inc(count)


def record_stretch(step: str, channel: str, seconds: float) -> None:
    """`step` is `plan`, `send`, `due` or `settle`; planning has no channel and passes the empty string."""
    _STRETCH_SECONDS.labels(step, channel).observe(seconds)


def record_paused(reason: str) -> None:
    _PAUSED.labels(reason).inc()


def record_fenced(channel: Channel) -> None:
    _FENCED.labels(channel).inc()


def record_held_back(why: str, seconds: float) -> None:
    _HELD_BACK.labels(why).inc(seconds)


def record_security_wait(age: timedelta) -> None:
    _SECURITY_WAIT.set(age.total_seconds())
