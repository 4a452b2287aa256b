"""Metrics: what is recorded can be scraped, under names and labels that are decided in one place."""

import inspect
from types import ModuleType

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from schemas.kinds import Channel, MessageClass
from sendloom.platform.metrics import campaign, delivery, exposition, http, workers

MODULES = [http, delivery, campaign, workers]
UNBOUNDED = {"tenant", "recipient", "id", "address", "campaign", "notification", "path", "key"}


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_what_is_recorded_is_exposed() -> None:
    labels = {
        "provider": "smtp",
        "channel": "email",
        "message_class": "marketing",
        "outcome": "accepted",
    }
    before = value("sendloom_provider_calls_total", **labels)
    delivery.record_call("smtp", Channel.EMAIL, MessageClass.MARKETING, "accepted", 0.2)
    delivery.record_calls("smtp", Channel.EMAIL, MessageClass.MARKETING, "accepted", 99)
    assert value("sendloom_provider_calls_total", **labels) - before == 100


def test_a_request_is_counted_by_its_route_and_its_kind_of_status() -> None:
    labels = {"method": "GET", "route": "/v1/notifications/{id}", "status": "4xx"}
    before = value("sendloom_http_requests_total", **labels)
    http.record_request("GET", "/v1/notifications/{id}", 404, 0.01)
    assert value("sendloom_http_requests_total", **labels) - before == 1


def test_a_lane_shows_its_backlog_and_its_oldest_item() -> None:
    workers.record_backlog("send-sms-security", 7, 1.5)
    assert value("sendloom_lane_backlog", queue="send-sms-security") == 7
    assert value("sendloom_lane_oldest_seconds", queue="send-sms-security") == 1.5


def test_the_exposition_is_what_prometheus_parses() -> None:
    campaign.record_planned("suppressed", 3)
    body, content_type = exposition()
    families = {f.name for f in text_string_to_metric_families(body.decode())}
    assert "sendloom_campaign_planned" in families
    assert content_type.startswith("text/plain")


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_no_label_can_grow_without_bound(module: ModuleType) -> None:
    metrics = [
        m for name, m in vars(module).items() if name.startswith("_") and hasattr(m, "_labelnames")
    ]
    assert metrics
    for metric in metrics:
        assert not UNBOUNDED & set(metric._labelnames), metric._name
        assert metric._name.startswith("sendloom_")


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_module_offers_only_functions_that_record(module: ModuleType) -> None:
    functions = [
        name
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__
    ]
    assert functions
    assert all(name.startswith("record_") for name in functions)
