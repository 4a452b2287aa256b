"""Local wall time ↔ instants.

One rule everywhere (REM-2): a wall time that a clock change skips becomes the first moment after the gap, on that day
only; one that happens twice means the first. Everything returned is in UTC; sums are done in UTC, because arithmetic
inside a zone is wall arithmetic.
"""

from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from schemas.kinds import LatenessPolicy
from sendloom.errors import Refusal

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


def resolve(local: datetime, zone: ZoneInfo, *, last: bool = False) -> datetime:
    """The instant of a naive wall time. `last` takes the second of two, for what must err on the late side."""
    at = local.replace(tzinfo=zone, fold=1 if last else 0).astimezone(UTC)
    if _wall(at, zone) == local:
        return at
    # In a gap, fold 1 reads the offset after the change (so an instant before it), fold 0 the one before.
    lo = local.replace(tzinfo=zone, fold=1, microsecond=0).astimezone(UTC)
    hi = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    before, after = 0, -((lo - hi) // _SECOND)
    while after - before > 1:
        middle = (before + after) // 2
        if _wall(lo + middle * _SECOND, zone) >= local:
            after = middle
        else:
            before = middle
    return lo + after * _SECOND


def _wall(at: datetime, zone: ZoneInfo) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def exists(local: datetime, zone: ZoneInfo) -> bool:
    """Whether a clock on the wall ever shows this time."""
    return _wall(local.replace(tzinfo=zone, fold=0).astimezone(UTC), zone) == local


def parse_local(text: str, *, field: str = "local") -> datetime:
    """A naive date and time such as `2026-01-15T09:00`.

    Raises:
        Refusal: `bad_local_time`. With an offset it would be an instant, which is asked for differently.
    """
    try:
        local = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        local = None
    if local is None or local.tzinfo is not None or len(text) <= len("2026-01-15"):
        raise Refusal(
            "bad_local_time",
            "this is not a local date and time",
            field=field,
            fix="write it without an offset, for example 2026-01-15T09:00",
        )
    return local


def parse_time_of_day(text: str, *, field: str = "at") -> time:
    """A wall time such as `09:00`.

    Raises:
        Refusal: `bad_local_time`.
    """
    try:
        at = time.fromisoformat(text)
    except (TypeError, ValueError):
        at = None
    if at is None or at.tzinfo is not None or len(text) < len("09:00"):
        raise Refusal(
            "bad_local_time", "this is not a time of day", field=field, fix="write it as 09:00"
        )
    return at


def local_day(now: datetime, zone: ZoneInfo) -> date:
    """The date on the recipient's calendar."""
    return now.astimezone(zone).date()


def week_start(day: date) -> date:
    """The Monday of the day's ISO week."""
    return day - timedelta(days=day.weekday())


def day_start(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of a local day; not always midnight (Cairo and Beirut skip it once a year)."""
    return resolve(datetime.combine(day, time.min), zone)


def retention_cutoff(now: datetime, zone: ZoneInfo, days: int) -> datetime:
    """What is older than this is more than `days` local days old, on either side of a clock change."""
    return day_start(local_day(now, zone) - timedelta(days=days), zone)


def next_occurrence(after: datetime, at: time, zone: ZoneInfo) -> datetime:
    """The first instant strictly after `after` at which a daily `at` happens in the zone."""
    day = local_day(after, zone) - _DAY
    while True:
        moment = resolve(datetime.combine(day, at), zone)
        if moment > after:
            return moment
        day += _DAY


class Moment(NamedTuple):
    """When it leaves. `at` is None when the policy says to skip; `missed` says that the asked-for moment had passed."""

    at: datetime | None
    missed: bool


def planned(
    local: datetime,
    zone: ZoneInfo,
    now: datetime,
    policy: LatenessPolicy,
    grace: timedelta = timedelta(0),
) -> Moment:
    """When a wall time falls due in the zone, and what the lateness policy makes of it when that has passed.

    Up to `grace` late is not late: it leaves now, whatever the policy.
    """
    due = resolve(local, zone)
    if due >= now:
        return Moment(due, missed=False)
    if now - due <= grace:
        return Moment(now, missed=False)
    match policy:
        case LatenessPolicy.SEND:
            return Moment(now, missed=True)
        case LatenessPolicy.NEXT_DAY:
            return Moment(next_occurrence(now, local.time(), zone), missed=True)
        case LatenessPolicy.SKIP:
            return Moment(None, missed=True)


def at_accept(policy: LatenessPolicy) -> LatenessPolicy:
    """The policy for a reminder whose local time had passed before it was asked for: never "now" (case C42)."""
    return LatenessPolicy.NEXT_DAY if policy is LatenessPolicy.SEND else policy
