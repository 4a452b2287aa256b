"""Five-field cron in a named zone.

Two kinds of expression, as cron itself has them. One whose hour field begins with `*` (or names all 24) is an interval: it
goes by real time, so it fires in both passes of an autumn hour and skips what spring skips. Any other names wall times:
each happens once a day, at the first moment after a gap, in the first pass of an overlap. Either way each answer is
strictly later than the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from sendloom.domain.wall_time import day_start, local_day, resolve
from sendloom.errors import Refusal

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_HORIZON_DAYS = 366 * 8 + 8
"""Longer than the longest wait there is: 29 February over a century year."""

_MONTHS = {
    name: n
    for n, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        start=1,
    )
}
_WEEKDAYS = {name: n for n, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    words: dict[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression. Days of the week count from Sunday = 0."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool
    interval: bool

    def next(self, after: datetime, zone: ZoneInfo) -> datetime:
        """The first fire strictly after `after`, in UTC."""
        return self._next_interval(after, zone) if self.interval else self._next_wall(after, zone)

    def between(self, after: datetime, until: datetime, zone: ZoneInfo) -> list[datetime]:
        """Every fire in (after, until], oldest first."""
        fires = []
        while (after := self.next(after, zone)) <= until:
            fires.append(after)
        return fires

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        # Cron's oldest rule: two restrictions mean either, one means that one.
        if self.any_day or self.any_weekday:
            return by_date and by_weekday
        return by_date or by_weekday

    def _next_wall(self, after: datetime, zone: ZoneInfo) -> datetime:
        first = local_day(after, zone) - _DAY
        for n in range(_HORIZON_DAYS):
            day = first + n * _DAY
            if not self._on(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    moment = resolve(datetime.combine(day, time(hour, minute)), zone)
                    if moment > after:
                        return moment
        raise AssertionError("parse() lets no expression through that never fires")

    def _next_interval(self, after: datetime, zone: ZoneInfo) -> datetime:
        moment = after.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        last = local_day(after, zone) + _HORIZON_DAYS * _DAY
        while True:
            local = moment.astimezone(zone)
            day = local.date()
            if not self._on(day):
                if day > last:
                    raise AssertionError("parse() lets no expression through that never fires")
                moment = day_start(day + _DAY, zone)
            elif local.hour in self.hours and local.minute in self.minutes:
                return moment
            else:
                moment += _MINUTE


def parse(text: str, *, field: str = "cron") -> Cron:
    """Reads `minute hour day month weekday`, with names, lists, ranges and steps.

    Raises:
        Refusal: `bad_cron`, saying which field and why.
    """

    def refuse(why: str) -> Refusal:
        return Refusal(
            "bad_cron", why, field=field, fix="write five fields, for example 30 9 * * mon-fri"
        )

    parts = text.lower().split()
    if len(parts) != len(_FIELDS):
        raise refuse(f"{len(parts)} fields where there are five")
    sets = [_values(part, spec, refuse) for part, spec in zip(parts, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = sets
    weekdays = {day % 7 for day in weekdays}
    any_day, any_weekday = parts[2].startswith("*"), parts[4].startswith("*")
    never = not any(day <= _LONGEST[month - 1] for month in months for day in days)
    if never and (any_day or any_weekday):
        raise refuse("no month has that day, so it would never fire")
    return Cron(
        text=" ".join(parts),
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(weekdays),
        any_day=any_day,
        any_weekday=any_weekday,
        interval=parts[1].startswith("*") or len(hours) == 24,
    )


def _values(part: str, spec: _Field, refuse: Callable[[str], Refusal]) -> set[int]:
    values: set[int] = set()
    for item in part.split(","):
        span, slash, step_text = item.partition("/")
        step = 1
        if slash:
            if not _plain(step_text) or not 0 < int(step_text) <= spec.high:
                raise refuse(f"{spec.name}: a step is a number from 1 to {spec.high}")
            step = int(step_text)
        if span == "*":
            # A star in the weekday field would otherwise count Sunday twice, which steps would show.
            low, high = spec.low, 6 if spec.words is _WEEKDAYS else spec.high
        else:
            start, dash, end = span.partition("-")
            low = _number(start, spec, refuse)
            high = _number(end, spec, refuse) if dash else low
            if dash and end == "sun" and start != "sun":
                high = 7
            if slash and not dash:
                raise refuse(f"{spec.name}: a step needs a range or a star before it")
            if low > high:
                raise refuse(f"{spec.name}: the range runs backwards")
        values.update(range(low, high + 1, step))
    return values


def _number(text: str, spec: _Field, refuse: Callable[[str], Refusal]) -> int:
    if text in spec.words:
        return spec.words[text]
    if not _plain(text) or not spec.low <= int(text) <= spec.high:
        raise refuse(f"{spec.name}: only {spec.low} to {spec.high}")
    return int(text)


def _plain(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 2
