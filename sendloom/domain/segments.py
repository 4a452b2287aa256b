"""Who a campaign is for, as a predicate over recipients: read with limits, judged here, compiled to SQL in the stores.

Every leaf is true or false. With the attribute missing, or of another type than the value, it is false, and `not` comes
after that; `stores/segment_sql.py` must agree to the letter (docs/adr/0006-segments.md).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from schemas.kinds import Channel
from sendloom.domain.locales import validate_locale
from sendloom.domain.zones import validate_zone
from sendloom.errors import Refusal

DEPTH_MAX = 8
NODES_MAX = 100
VALUES_MAX = 1_000
"""In all the lists of a definition together."""
STRING_MAX = 256
ATTRIBUTES_MAX = 64
INTEGER_MAX = 2**53
"""What JSON readers agree on."""

Value: TypeAlias = str | int | float | bool
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{0,63}", re.ASCII)
_EQUAL = ("eq", "ne")
_ORDER = ("lt", "lte", "gt", "gte")
OPERATORS = (*_EQUAL, "in", "exists", *_ORDER)
_BRANCHES = ("all", "any", "not")
_LEAVES = ("attribute", "locale", "zone", "has_channel")


@dataclass(frozen=True, slots=True)
class Attribute:
    """One comparison. `values` has one value, or for `in` some, or for `exists` none."""

    key: str
    operator: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Locale:
    """One of these tags, or a more exact one: `de` is also `de-AT`."""

    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Zone:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HasChannel:
    """A living address or device is there. Consent and preferences are the gates' business."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class All:
    parts: "tuple[Segment, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: "tuple[Segment, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    part: "Segment"


Segment: TypeAlias = Attribute | Locale | Zone | HasChannel | All | AnyOf | Not


@dataclass(frozen=True, slots=True)
class PersonFacts:
    """What a segment may ask of somebody."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    locale: str | None = None
    zone: str | None = None
    channels: frozenset[Channel] = frozenset()


# --- judging --------------------------------------------------------------------------------------------------------


def matches(segment: Segment, person: PersonFacts) -> bool:
    """Whether somebody is in it."""
    match segment:
        case All(parts):
            return all(matches(part, person) for part in parts)
        case AnyOf(parts):
            return any(matches(part, person) for part in parts)
        case Not(part):
            return not matches(part, person)
        case Attribute():
            return _attribute_matches(segment, person.attributes.get(segment.key))
        case Locale(tags):
            has = f"{person.locale}-"
            return person.locale is not None and any(has.startswith(f"{tag}-") for tag in tags)
        case Zone(names):
            return person.zone in names
        case HasChannel(channel):
            return channel in person.channels


def _attribute_matches(leaf: Attribute, has: Any) -> bool:
    kind = kind_of(has)
    if kind is None:
        return False
    if leaf.operator == "exists":
        return True
    if leaf.operator == "in":
        return any(kind == kind_of(v) and _exact(has) == _exact(v) for v in leaf.values)
    value = leaf.values[0]
    if kind != kind_of(value):
        return False
    one, other = _exact(has), _exact(value)
    match leaf.operator:
        case "eq":
            return bool(one == other)
        case "ne":
            return bool(one != other)
        case "lt":
            return bool(one < other)
        case "lte":
            return bool(one <= other)
        case "gt":
            return bool(one > other)
        case _:
            return bool(one >= other)


def kind_of(value: Any) -> str | None:
    """As `jsonb_typeof` calls it; None for what no attribute may be. A boolean is no number."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else None


def _exact(value: Any) -> Any:
    """Numbers as the decimals that they are written as, which is how Postgres has them."""
    return value if isinstance(value, bool | str) else decimal_of(value)


def decimal_of(value: float) -> Decimal:
    return Decimal(repr(value))


# --- reading --------------------------------------------------------------------------------------------------------


def parse(definition: Any, *, at: str = "definition") -> Segment:
    """
    Raises:
        Refusal: `segment_invalid`, `segment_too_deep`, `segment_too_large`, `bad_locale`, `bad_zone`; `field` says where.
    """
    return _Reader().node(definition, at, 1)


class _Reader:
    """Counts what it has read, so that a definition costs no more than a limit before it is refused."""

    def __init__(self) -> None:
        self._nodes = 0
        self._values = 0

    def node(self, given: Any, at: str, depth: int) -> Segment:
        if depth > DEPTH_MAX:
            raise Refusal(
                "segment_too_deep",
                f"conditions are nested more than {DEPTH_MAX} deep",
                field=at,
            )
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise Refusal(
                "segment_too_large", f"there are more than {NODES_MAX} conditions", field=at
            )
        if not isinstance(given, Mapping):
            raise _invalid(at, "a condition is an object")
        kinds = [name for name in (*_BRANCHES, *_LEAVES) if name in given]
        if len(kinds) != 1:
            raise _invalid(at, f"a condition has one of {', '.join((*_BRANCHES, *_LEAVES))}")
        kind = kinds[0]
        if kind == "attribute":
            return self._attribute(given, at)
        if len(given) > 1:
            other = next(str(name) for name in given if name != kind)
            raise _invalid(at, f"{other[:64]!r} does not go with {kind}")
        return self._other(kind, given[kind], f"{at}.{kind}", depth)

    def _other(self, kind: str, value: Any, at: str, depth: int) -> Segment:
        if kind == "not":
            return Not(self.node(value, at, depth + 1))
        if kind in ("all", "any"):
            if not isinstance(value, list) or not value:
                raise _invalid(at, "this is a list of at least one condition")
            parts = tuple(self.node(v, f"{at}[{n}]", depth + 1) for n, v in enumerate(value))
            return All(parts) if kind == "all" else AnyOf(parts)
        if kind == "has_channel":
            if not isinstance(value, str) or value not in set(Channel):
                raise _invalid(at, f"this is one of {', '.join(Channel)}")
            return HasChannel(Channel(value))
        names = self._list(value if isinstance(value, list) else [value], at)
        if not all(isinstance(name, str) for name in names):
            raise _invalid(at, "this is a string or a list of strings")
        if kind == "locale":
            return Locale(tuple(validate_locale(str(name), field=at) for name in names))
        return Zone(tuple(validate_zone(str(name), field=at) for name in names))

    def _attribute(self, given: Mapping[str, Any], at: str) -> Attribute:
        key = given["attribute"]
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise _invalid(f"{at}.attribute", "this is no attribute's name")
        rest = [name for name in given if name != "attribute"]
        if len(rest) != 1 or rest[0] not in OPERATORS:
            raise _invalid(at, f"an attribute has one of {', '.join(OPERATORS)}")
        operator, value, at = rest[0], given[rest[0]], f"{at}.{rest[0]}"
        if operator == "exists":
            if value is not True:
                raise _invalid(at, "this is true", fix="For the opposite, put it into a `not`.")
            return Attribute(key, operator, ())
        if operator == "in":
            if not isinstance(value, list):
                raise _invalid(at, "this is a list of values")
            return Attribute(key, operator, self._list(value, at))
        _check_value(value, at, "segment_invalid")
        if operator in _ORDER and isinstance(value, bool):
            raise _invalid(at, "booleans have no order")
        return Attribute(key, operator, (value,))

    def _list(self, values: Sequence[Any], at: str) -> tuple[Value, ...]:
        if not values:
            raise _invalid(at, "the list is empty")
        self._values += len(values)
        if self._values > VALUES_MAX:
            raise Refusal("segment_too_large", f"there are more than {VALUES_MAX} values", field=at)
        for n, value in enumerate(values):
            _check_value(value, f"{at}[{n}]", "segment_invalid")
        return tuple(values)


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """What may be kept of somebody to choose them by.

    Raises:
        Refusal: `too_many_attributes`, `attribute_invalid`.
    """
    if len(attributes) > ATTRIBUTES_MAX:
        raise Refusal(
            "too_many_attributes",
            f"a recipient has at most {ATTRIBUTES_MAX} attributes",
            field="attributes",
        )
    for key, value in attributes.items():
        if not _KEY.fullmatch(key):
            raise Refusal(
                "attribute_invalid",
                "an attribute's name is a letter, then up to 63 letters, digits, dots, dashes or underscores",
                field="attributes",
            )
        _check_value(value, f"attributes.{key}", "attribute_invalid")


def _check_value(value: Any, at: str, code: str) -> None:
    kind = kind_of(value)
    if kind is None:
        raise Refusal(code, "a value is a string, a number or a boolean", field=at)
    if isinstance(value, str):
        if len(value) > STRING_MAX:
            raise Refusal(code, f"the value is over {STRING_MAX} characters", field=at)
        if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise Refusal(code, "the value has characters that are no text", field=at)
    elif isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise Refusal(code, f"whole numbers go up to {INTEGER_MAX}", field=at)
    elif not math.isfinite(value):
        raise Refusal(code, "the number is not finite", field=at)


def _invalid(at: str, detail: str, fix: str = "") -> Refusal:
    return Refusal("segment_invalid", detail, field=at, fix=fix)
