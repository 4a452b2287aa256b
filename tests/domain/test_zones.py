"""Zones come from the pinned data, bad ones are refused on write and flagged on use."""

import zoneinfo
from datetime import datetime, timedelta

import pytest

from sendloom.domain.zones import NAMES, load, validate_zone, zone_or_default
from sendloom.errors import Refusal


def test_the_host_has_no_say_in_zone_data():
    assert zoneinfo.TZPATH == ()


@pytest.mark.parametrize("name", ["America/Vancouver", "Africa/Casablanca"])
def test_zones_that_gave_up_changing_their_clocks_do_not_change_in_2027(name):
    """Host data older than 2026f says otherwise."""
    zone = load(name)
    offsets = {
        (datetime(2027, 1, 1, 12, tzinfo=zone) + timedelta(days=n)).utcoffset() for n in range(365)
    }
    assert len(offsets) == 1


def test_a_zone_is_loaded_once():
    assert load("Europe/Paris") is load("Europe/Paris")


@pytest.mark.parametrize(
    "name",
    ["", "Mars/Phobos", "GMT+25", "+02:00", "CEST", "europe/paris", "../etc/passwd", "Factory"],
)
def test_c68_a_bad_zone_is_refused_when_written(name):
    with pytest.raises(Refusal) as refused:
        validate_zone(name)
    assert refused.value.code == "bad_zone"
    assert refused.value.field == "zone"


def test_a_zone_in_the_wrong_case_is_refused_with_the_right_spelling():
    with pytest.raises(Refusal) as refused:
        validate_zone("europe/PARIS")
    assert "Europe/Paris" in refused.value.fix


@pytest.mark.parametrize("name", ["", None, "Mars/Phobos", "GMT+25"])
def test_c68_a_bad_zone_becomes_the_tenants_and_is_flagged(name):
    assert zone_or_default(name, "Asia/Tokyo") == (load("Asia/Tokyo"), True)


def test_c68_a_good_zone_is_used_and_not_flagged():
    for name in sorted(NAMES)[:100]:
        zone, flagged = zone_or_default(name, "Asia/Tokyo")
        assert (zone.key, flagged) == (name, False)


def test_a_bad_default_is_an_error_not_the_servers_zone():
    with pytest.raises(Refusal, match="bad_zone"):
        zone_or_default(None, "Mars/Phobos")
