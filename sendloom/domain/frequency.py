"""How often one person may be written to: by category, by channel and over all marketing, a local day and an ISO week.

Unset means no cap. `0` means "never send": it is a rule somebody may want for a channel, and it is shown as such; it is
never waited out. Anything below is refused. What a decision consumes is keyed by its own id and local day, so asking
twice costs nothing; the store checks the same limits again under a lock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from schemas.kinds import Channel
from sendloom.domain.wall_time import day_start, week_start
from sendloom.errors import Refusal


class Scope(StrEnum):
    """What is counted together."""

    CATEGORY = "category"
    CHANNEL = "channel"
    MARKETING = "marketing"


NEVER = 0
LIMIT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CapRule:
    """The limits of one counter. `scope` is its key: `category:…`, `channel:…` or `marketing`. None: no such limit."""

    scope: str
    limit_day: int | None
    limit_week: int | None


@dataclass(frozen=True, slots=True)
class Caps:
    """A category's rules, split by when they can be judged: before a channel is chosen, and per channel."""

    common: tuple[CapRule, ...] = ()
    by_channel: tuple[tuple[Channel, CapRule], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.common or self.by_channel)

    def for_channel(self, channel: Channel) -> CapRule | None:
        for ours, rule in self.by_channel:
            if ours is channel:
                return rule
        return None

    def consumed_on(self, channel: Channel) -> tuple[CapRule, ...]:
        """Every counter that one message on this channel uses up."""
        rule = self.for_channel(channel)
        return self.common if rule is None else (*self.common, rule)


NO_CAPS = Caps()


def read_caps(category: str, stored: Iterable[Mapping[str, Any]]) -> Caps:
    """The rules of `[{scope, per, limit}]`, as a category stores them.

    Raises:
        Refusal: `bad_cap`.
    """
    limits: dict[Scope, dict[str, int]] = {}
    for n, cap in enumerate(stored):
        at = f"caps[{n}]"
        unknown = set(cap) - {"scope", "per", "limit"}
        if unknown:
            raise _refuse(f"unknown field {sorted(unknown)[0]!r}", at)
        try:
            scope = Scope(cap.get("scope", ""))
        except ValueError:
            raise _refuse("scope is category, channel or marketing", f"{at}.scope") from None
        per = cap.get("per")
        if per not in ("day", "week"):
            raise _refuse("per is day or week", f"{at}.per")
        limit = read_limit(cap.get("limit"), field=f"{at}.limit")
        if limit is None:
            continue
        if per in limits.setdefault(scope, {}):
            raise _refuse(f"two caps for one {scope} and {per}", at)
        limits[scope][per] = limit

    def rule(key: str, scope: Scope) -> CapRule:
        return CapRule(key, limits[scope].get("day"), limits[scope].get("week"))

    common = []
    if limits.get(Scope.CATEGORY):
        common.append(rule(f"category:{category}", Scope.CATEGORY))
    if limits.get(Scope.MARKETING):
        common.append(rule("marketing", Scope.MARKETING))
    by_channel = [
        (channel, rule(f"channel:{channel}", Scope.CHANNEL))
        for channel in Channel
        if limits.get(Scope.CHANNEL)
    ]
    return Caps(tuple(common), tuple(by_channel))


def read_limit(limit: object, *, field: str = "limit") -> int | None:
    """A limit as asked for. None (or blank) is no cap; 0 is "never send".

    Raises:
        Refusal: `bad_cap`.
    """
    if limit is None or limit == "":
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= LIMIT_MAX:
        raise _refuse(f"a limit is a whole number from 0 to {LIMIT_MAX}", field)
    return limit


def describe(limit: int | None, per: str) -> str:
    """What a limit means, for the reply that shows it."""
    if limit is None:
        return "no cap"
    return "never send" if limit == NEVER else f"at most {limit} a {per}"


def _refuse(why: str, field: str) -> Refusal:
    return Refusal(
        "bad_cap",
        why,
        field=field,
        fix="leave it out for no cap; 0 means that nothing is ever sent",
    )


class Full(StrEnum):
    """Which limit a counter has reached."""

    DAY = "day"
    WEEK = "week"
    NEVER = "never"


def full(rule: CapRule, uses: Sequence[date], today: date) -> Full | None:
    """Whether one more would be over, given the local days already used."""
    day, week = rule.limit_day, rule.limit_week
    if day == NEVER or week == NEVER:
        return Full.NEVER
    if not uses:
        return None
    if week is not None:
        monday = week_start(today)
        sunday = monday + timedelta(days=6)
        if sum(1 for used in uses if monday <= used <= sunday) >= week:
            return Full.WEEK
    if day is not None and uses.count(today) >= day:
        return Full.DAY
    return None


def free_again(reached: Full, today: date, zone: ZoneInfo) -> datetime | None:
    """When the counter has room again; None: never."""
    match reached:
        case Full.DAY:
            return day_start(today + timedelta(days=1), zone)
        case Full.WEEK:
            return day_start(week_start(today) + timedelta(days=7), zone)
        case Full.NEVER:
            return None
