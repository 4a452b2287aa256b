"""Runs of schedules: how late they were fired."""

from datetime import timedelta

from prometheus_client import Histogram

_LAG = Histogram(
    "sendloom_trigger_lag_seconds",
    "From a run's scheduled time to its start",
    ("kind",),
    buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600, 86_400),
)


def record_trigger(kind: str, lag: timedelta) -> None:
    _LAG.labels(kind).observe(max(lag.total_seconds(), 0.0))
