"""Reading a segment, and its limits. That SQL says the same is tested on Postgres in `tests/stores/test_segments.py`."""

from typing import Any

import pytest

from schemas.kinds import Channel
from sendloom.domain import segments
from sendloom.domain.segments import PersonFacts, check_attributes, matches, parse
from sendloom.errors import Refusal

ANN = PersonFacts(
    attributes={"plan": "pro", "age": 30, "vip": True, "score": 1.5, "legacy": {"a": 1}},
    locale="de-AT",
    zone="Europe/Vienna",
    channels=frozenset({Channel.EMAIL}),
)


def leaf(operator: str, value: Any, key: str = "age") -> dict[str, Any]:
    return {"attribute": key, operator: value}


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (leaf("eq", 30), True),
        (leaf("eq", 30.0), True),
        (leaf("eq", "30"), False),
        (leaf("ne", 31), True),
        # Of another type, or not there: false, and `not` comes after that.
        (leaf("ne", "30"), False),
        ({"not": leaf("ne", "30")}, True),
        (leaf("ne", 1, key="nobody"), False),
        ({"not": leaf("lt", 1, key="nobody")}, True),
        (leaf("gte", 30), True),
        (leaf("gt", 30), False),
        (leaf("lt", "Z", key="plan"), False),
        (leaf("lt", "z", key="plan"), True),
        (leaf("eq", 1, key="vip"), False),
        (leaf("in", [1, "pro"], key="plan"), True),
        (leaf("in", [1, 2], key="vip"), False),
        (leaf("exists", True, key="vip"), True),
        (leaf("exists", True, key="legacy"), False),
        ({"locale": "de"}, True),
        ({"locale": ["fr", "de_at"]}, True),
        ({"locale": "de-DE"}, False),
        ({"zone": ["Europe/Vienna"]}, True),
        ({"has_channel": "email"}, True),
        ({"has_channel": "sms"}, False),
        ({"all": [{"locale": "de"}, {"has_channel": "sms"}]}, False),
        ({"any": [{"locale": "de"}, {"has_channel": "sms"}]}, True),
    ],
)
def test_somebody_is_in_it_or_not(definition: Any, expected: bool):
    assert matches(parse(definition), ANN) is expected


def nested(depth: int) -> Any:
    return {"has_channel": "email"} if depth == 1 else {"not": nested(depth - 1)}


@pytest.mark.parametrize(
    ("definition", "code", "field"),
    [
        (None, "segment_invalid", "definition"),
        ({}, "segment_invalid", "definition"),
        ({"all": []}, "segment_invalid", "definition.all"),
        ({"all": [{"zone": "UTC"}, {"no": 1}]}, "segment_invalid", "definition.all[1]"),
        ({"any": {"zone": "UTC"}}, "segment_invalid", "definition.any"),
        ({"zone": "UTC", "locale": "de"}, "segment_invalid", "definition"),
        ({"zone": "UTC", "x": 1}, "segment_invalid", "definition"),
        ({"zone": "+02:00"}, "bad_zone", "definition.zone"),
        ({"locale": ["de", "!"]}, "bad_locale", "definition.locale"),
        ({"locale": [1]}, "segment_invalid", "definition.locale"),
        ({"has_channel": "pigeon"}, "segment_invalid", "definition.has_channel"),
        ({"has_channel": ["email"]}, "segment_invalid", "definition.has_channel"),
        ({"attribute": "a"}, "segment_invalid", "definition"),
        ({"attribute": "a", "eq": 1, "ne": 2}, "segment_invalid", "definition"),
        ({"attribute": "a'; --", "eq": 1}, "segment_invalid", "definition.attribute"),
        ({"attribute": 7, "eq": 1}, "segment_invalid", "definition.attribute"),
        (leaf("like", "x"), "segment_invalid", "definition"),
        (leaf("eq", None), "segment_invalid", "definition.eq"),
        (leaf("eq", [1]), "segment_invalid", "definition.eq"),
        (leaf("in", []), "segment_invalid", "definition.in"),
        (leaf("in", [1, {}]), "segment_invalid", "definition.in[1]"),
        (leaf("lt", True), "segment_invalid", "definition.lt"),
        (leaf("exists", False), "segment_invalid", "definition.exists"),
        (leaf("eq", "x" * 257), "segment_invalid", "definition.eq"),
        (leaf("eq", "a\x00"), "segment_invalid", "definition.eq"),
        (leaf("eq", "\ud800"), "segment_invalid", "definition.eq"),
        (leaf("eq", 2**53 + 1), "segment_invalid", "definition.eq"),
        (leaf("eq", float("nan")), "segment_invalid", "definition.eq"),
        (nested(9), "segment_too_deep", "definition" + ".not" * 8),
        ({"any": [{"zone": "UTC"}] * 100}, "segment_too_large", "definition.any[99]"),
        (leaf("in", list(range(1_001))), "segment_too_large", "definition.in"),
    ],
)
def test_what_is_no_segment_is_refused_with_its_place(definition: Any, code: str, field: str):
    with pytest.raises(Refusal) as e:
        parse(definition)
    assert (e.value.code, e.value.field) == (code, field)


def test_what_is_just_within_the_limits_is_read():
    parse(nested(segments.DEPTH_MAX))
    parse({"any": [{"zone": "UTC"}] * (segments.NODES_MAX - 1)})
    parse(leaf("in", list(range(segments.VALUES_MAX))))


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"a": None}, "attribute_invalid"),
        ({"a": {"b": 1}}, "attribute_invalid"),
        ({"a": [1]}, "attribute_invalid"),
        ({"a": "x" * 257}, "attribute_invalid"),
        ({"a": 1e999}, "attribute_invalid"),
        ({"a": 2**60}, "attribute_invalid"),
        ({"1a": 1}, "attribute_invalid"),
        ({"a" * 65: 1}, "attribute_invalid"),
        ({f"a{n}": 1 for n in range(65)}, "too_many_attributes"),
    ],
)
def test_attributes_are_few_flat_and_short(attributes: Any, code: str):
    with pytest.raises(Refusal) as e:
        check_attributes(attributes)
    assert e.value.code == code
    assert e.value.field is not None


def test_attributes_within_the_limits_are_taken():
    check_attributes({"firstName": "Ana", "a.b-c_1": 1, "x": 1.5, "y": False, "z": "x" * 256})
