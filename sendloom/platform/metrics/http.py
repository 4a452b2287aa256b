"""The API as its callers see it."""

from prometheus_client import Counter, Gauge, Histogram

_REQUESTS = Counter(
    "sendloom_http_requests_total", "Requests answered", ("method", "route", "status")
)
_SECONDS = Histogram(
    "sendloom_http_request_seconds",
    "From the first byte of a request to the last of its answer",
    ("method", "route"),
    buckets=(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5),
)
_REFUSED = Counter(
    "sendloom_http_refused_total", "Problem documents by their stable code", ("problem",)
)
_IN_FLIGHT = Gauge("sendloom_http_requests_in_flight", "Requests being answered now")
_REPLAYED = Counter(
    "sendloom_accept_replayed_total", "Accepts that repeated an earlier one", ("kind",)
)

_SHED = Counter(
    "sendloom_accept_shed_total", "Messages refused because of load, by class", ("message_class",)
)


def record_request(method: str, route: str, status: int, seconds: float) -> None:
    """`route` is the template (`/v1/notifications/{id}`); of what matched none, the empty string."""
    _REQUESTS.labels(method, route, f"{status // 100}xx").inc()
    _SECONDS.labels(method, route).observe(seconds)


def record_refusal(problem: str) -> None:
    _REFUSED.labels(problem).inc()


def record_replay(kind: str) -> None:
    _REPLAYED.labels(kind).inc()


def record_in_flight(change: int) -> None:
    _IN_FLIGHT.inc(change)


def record_shed(message_class: str) -> None:
    _SHED.labels(message_class).inc()
