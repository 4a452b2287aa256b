"""Which runs of a schedule are owed. Judged from what was handled last, never from what a scheduler remembers.

Times are scheduled times: whoever wakes us late, twice or not at all changes nothing about which there are. A run is missed
once the following one is due, or it is later than `ON_TIME`. What is left out is always the oldest part of what is due, so
one line of the trigger log counts all of it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from schemas.schedules import CatchUpRule
from sendloom.domain.cron import Cron, parse

Next = Callable[[datetime], datetime]
"""The first scheduled time strictly after a moment."""

ON_TIME = timedelta(minutes=1)
"""The rule `none` still fires what is late by no more than this, beyond the schedule's own jitter."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rule:
    """What is made up after an outage, however long."""

    catch_up: CatchUpRule
    window: timedelta
    """A run missed by more than this is not made up."""
    most: int
    """Of `all`, no more than these, the newest."""
    on_time: timedelta = ON_TIME


@dataclass(frozen=True, slots=True)
class Owed:
    """`fire` oldest first. `skipped` runs, from `skipped_from` to `skipped_to`, all come before them."""

    fire: tuple[datetime, ...]
    skipped: int
    skipped_from: datetime | None
    skipped_to: datetime | None
    handled_until: datetime
    """The last scheduled time that was judged; the next call goes on from it."""


def owed(next_after: Next, handled_until: datetime, now: datetime, rule: Rule) -> Owed:
    """What to fire and what to leave out, of everything due in (handled_until, now]."""
    newest: deque[datetime] = deque(maxlen=max(rule.most, 1))
    first: datetime | None = None
    last, due = handled_until, 0
    while (moment := next_after(last)) <= now:
        first = first or moment
        last, due = moment, due + 1
        newest.append(moment)
    fire = tuple(kept(newest, now, rule))
    skipped = due - len(fire)
    if not skipped:
        return Owed(fire, 0, None, None, last)
    # The newest of the left out is the one before the first that is kept.
    dropped_last = last
    if fire:
        older = [moment for moment in newest if moment < fire[0]]
        dropped_last = older[-1] if older else _before(next_after, first or last, fire[0])
    return Owed(fire, skipped, first, dropped_last, last)


def kept(due: Sequence[datetime], now: datetime, rule: Rule) -> list[datetime]:
    """Which of these, oldest first, are still to be fired; also for runs judged earlier that an outage kept from starting."""
    if not due:
        return []
    match rule.catch_up:
        case CatchUpRule.ALL:
            newest = list(due)[-rule.most :]
            return [moment for moment in newest if now - moment <= rule.window]
        case CatchUpRule.LATEST:
            return [due[-1]] if now - due[-1] <= rule.window else []
        case CatchUpRule.NONE:
            return [due[-1]] if now - due[-1] <= rule.on_time else []


def _before(next_after: Next, first: datetime, end: datetime) -> datetime:
    """The last scheduled time before `end`. Only `all` with many runs comes here: they did not fit into what is remembered."""
    moment = first
    while (following := next_after(moment)) < end:
        moment = following
    return moment


# --- when ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Every:
    """Each so many seconds, counted from 1970 as Temporal does."""

    seconds: int

    def next(self, after: datetime) -> datetime:
        passed = (after - _EPOCH) // timedelta(seconds=self.seconds)
        return _EPOCH + (passed + 1) * timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class CronIn:
    """A cron expression in its zone."""

    cron: Cron
    zone: ZoneInfo

    def next(self, after: datetime) -> datetime:
        return self.cron.next(after, self.zone)


def times(cron: str | None, every_seconds: int | None, zone: ZoneInfo) -> CronIn | Every:
    """The times of a schedule, which has exactly one of the two.

    Raises:
        Refusal: `bad_cron`.
    """
    if cron is not None:
        return CronIn(parse(cron), zone)
    assert every_seconds is not None
    return Every(every_seconds)
