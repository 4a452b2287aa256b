"""Prometheus metrics, one module per subject. Names, units, labels and buckets are decided there and nowhere else.

Labels are bounded: enums, route templates, provider names, queue names. Never a tenant's recipient, an address or an id.
"""

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest


def exposition() -> tuple[bytes, str]:
    """The body and content type of `/metrics`."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
