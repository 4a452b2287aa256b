"""Lanes and the processes that serve them (LANE-7)."""

from prometheus_client import Counter, Gauge, Histogram

from schemas.kinds import MessageClass

_BACKLOG = Gauge("sendloom_lane_backlog", "Tasks waiting in a queue", ("queue",))
_OLDEST = Gauge(
    "sendloom_lane_oldest_seconds", "Age of the oldest task waiting in a queue", ("queue",)
)
_SCHEDULE_TO_START = Histogram(
    "sendloom_schedule_to_start_seconds",
    "From scheduled to picked up, by queue",
    ("queue",),
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 120),
)
_ACTIVITIES = Counter(
    "sendloom_activities_total",
    "Activity attempts by how they ended",
    ("queue", "activity", "result"),
)
_RUNNING = Gauge(
    "sendloom_worker_processes", "Processes that ask for a class's work", ("message_class",)
)
_WANTED = Gauge(
    "sendloom_worker_processes_wanted",
    "Processes a class should have, by the age of its oldest item (LANE-8)",
    ("message_class",),
)
_DRAINING = Gauge("sendloom_worker_draining", "1 while this process drains")


def record_backlog(queue: str, tasks: int, oldest_seconds: float) -> None:
    _BACKLOG.labels(queue).set(tasks)
    _OLDEST.labels(queue).set(oldest_seconds)


def record_processes(message_class: MessageClass, running: int, wanted: int) -> None:
    _RUNNING.labels(message_class).set(running)
    _WANTED.labels(message_class).set(wanted)


def record_picked_up(queue: str, waited_seconds: float) -> None:
    _SCHEDULE_TO_START.labels(queue).observe(waited_seconds)


def record_activity(queue: str, activity: str, result: str) -> None:
    """`result` is `done`, `failed` or `cancelled`."""
    _ACTIVITIES.labels(queue, activity, result).inc()


def record_draining() -> None:
    _DRAINING.set(1)
