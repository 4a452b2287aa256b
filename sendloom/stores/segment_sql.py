"""A segment as a condition on `recipients r`. Every value is a parameter; the text depends only on the tree's shape."""

from typing import Any

from schemas.kinds import Channel
from sendloom.domain.segments import (
    All,
    AnyOf,
    Attribute,
    HasChannel,
    Locale,
    Not,
    Segment,
    Zone,
    decimal_of,
    kind_of,
)

PLACE = "true /* the segment */"
"""Where a statement of a `.sql` file has the condition; it is understood as it stands."""

_SIGN = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}


def with_segment(statement: str, segment: Segment, *args: Any) -> tuple[str, tuple[Any, ...]]:
    """The statement with its condition, and its arguments followed by the condition's. `$1` must be the tenant."""
    before, place, after = statement.partition(PLACE)
    assert place, "the statement has no place for a segment"
    condition = _Compiler(list(args))
    text = condition.of(segment)
    return f"{before}{text}{after}", tuple(condition.args)


class _Compiler:
    """No leaf is ever null: `not` of unknown would be unknown, and in Python it is true."""

    def __init__(self, args: list[Any]) -> None:
        self.args = args

    def of(self, segment: Segment) -> str:
        match segment:
            case All(parts):
                return f"({' AND '.join(self.of(part) for part in parts)})"
            case AnyOf(parts):
                return f"({' OR '.join(self.of(part) for part in parts)})"
            case Not(part):
                return f"(NOT {self.of(part)})"
            case Attribute():
                return self._attribute(segment)
            case Locale(tags):
                tags_ = self._take(list(tags), "text[]")
                return (
                    f"(r.locale IS NOT NULL AND EXISTS (SELECT FROM unnest({tags_}) AS t (tag)"
                    " WHERE starts_with(r.locale || '-', t.tag || '-')))"
                )
            case Zone(names):
                return f"coalesce(r.zone = ANY ({self._take(list(names), 'text[]')}), false)"
            case HasChannel(channel):
                table, alive = (
                    ("addresses", "dead_at")
                    if channel in (Channel.EMAIL, Channel.SMS)
                    else ("devices", "disabled_at")
                )
                return (
                    f"EXISTS (SELECT FROM {table} c WHERE c.tenant = $1 AND c.recipient_id = r.recipient_id"
                    f" AND c.channel = {self._take(channel.value, 'text')} AND c.{alive} IS NULL)"
                )

    def _attribute(self, leaf: Attribute) -> str:
        key = self._take(leaf.key, "text")
        has, kind = f"(r.attributes -> {key})", f"jsonb_typeof(r.attributes -> {key})"
        if leaf.operator == "exists":
            return f"coalesce({kind} IN ('string', 'number', 'boolean'), false)"
        if leaf.operator == "in":
            # jsonb knows types and compares numbers as decimals.
            return f"coalesce({has} = ANY ({self._take(list(leaf.values), 'jsonb[]')}), false)"
        value = leaf.values[0]
        if leaf.operator == "eq":
            return f"coalesce({has} = {self._take(value, 'jsonb')}, false)"
        same_kind = f"{kind} = '{kind_of(value)}'"
        if leaf.operator == "ne":
            return f"coalesce({same_kind} AND {has} <> {self._take(value, 'jsonb')}, false)"
        text, sign = f"(r.attributes ->> {key})", _SIGN[leaf.operator]
        # CASE, because a cast must not be tried on what is no number.
        if isinstance(value, str):
            order = f'{text} COLLATE "C" {sign} {self._take(value, "text")}'
        else:
            order = f"{text}::numeric {sign} {self._take(decimal_of(value), 'numeric')}"
        return f"CASE WHEN {same_kind} THEN {order} ELSE false END"

    def _take(self, value: Any, type: str) -> str:
        self.args.append(value)
        return f"${len(self.args)}::{type}"
