"""When a window of silence ends, in the recipient's zone.

A window is half-open `[start, end)`, may cross midnight, and is none when both edges are the same. Where a clock change
makes an edge ambiguous the reading is the quieter one: silence starts at the first of two and ends at the second; an edge
that does not exist moves to the first moment after the gap. All comparisons are between instants.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sendloom.domain.wall_time import local_day, parse_time_of_day, resolve
from sendloom.errors import Refusal


class Window(NamedTuple):
    """Wall times. As quiet hours it is the silence; as a send window, the only time something may leave."""

    start: time
    end: time

    @property
    def empty(self) -> bool:
        return self.start == self.end

    def inverted(self) -> "Window":
        """The silence around a send window, and the other way round."""
        return Window(self.end, self.start)


def parse_window(text: str, *, field: str = "window") -> Window:
    """Reads `22:00-08:00`.

    Raises:
        Refusal: `bad_window`.
    """
    start, dash, end = text.partition("-")
    try:
        if not dash:
            raise Refusal("bad_window", "no dash")
        return Window(parse_time_of_day(start.strip()), parse_time_of_day(end.strip()))
    except Refusal:
        raise Refusal(
            "bad_window",
            "this is not a window of two times of day",
            field=field,
            fix="write it as 09:00-20:00",
        ) from None


class Span(NamedTuple):
    """A stretch of time, `[since, until)`, that is wholly silent or wholly free."""

    since: datetime
    until: datetime
    silent: bool


_FOREVER = Span(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), silent=False)
_DAYS_AROUND = range(-2, 4)

# A page asks about the same few dozen zones at nearly the same moments, so a recent answer is nearly always the answer: the
# silence of now, and the freedom after it. Only a memory of a pure function: losing it costs time.
_RECENT: dict[tuple[ZoneInfo, Window], tuple[Span, ...]] = {}
_RECENT_KEYS = 8_192
_RECENT_SPANS = 4


def span(now: datetime, zone: ZoneInfo, window: Window) -> Span:
    """The silent or free stretch that `now` lies in."""
    key = (zone, window)
    recent = _RECENT.get(key, ())
    for known in recent:
        if known.since <= now < known.until:
            return known
    if len(_RECENT) >= _RECENT_KEYS:
        _RECENT.clear()
    found = _find(now, zone, window)
    _RECENT[key] = (found, *recent[: _RECENT_SPANS - 1])
    return found


def _find(now: datetime, zone: ZoneInfo, window: Window) -> Span:
    if window.empty:
        return _FOREVER
    today = local_day(now, zone)
    overnight = timedelta(days=1 if window.end < window.start else 0)
    silences: list[tuple[datetime, datetime]] = []
    for n in _DAYS_AROUND:
        day = datetime.combine(today + timedelta(days=n), time.min)
        start = resolve(datetime.combine(day, window.start), zone)
        end = resolve(datetime.combine(day + overnight, window.end), zone, last=True)
        if silences and start <= silences[-1][1]:
            silences[-1] = (silences[-1][0], max(silences[-1][1], end))
        elif start < end:
            silences.append((start, end))
    free_since = silences[0][0] - timedelta(days=1)
    for start, end in silences:
        if now < start:
            return Span(free_since, start, silent=False)
        if now < end:
            return Span(start, end, silent=True)
        free_since = end
    # Both edges fell into the same gap on the last days looked at; nothing later is known, so promise little.
    return Span(now, now + timedelta(hours=1), silent=False)


def next_allowed(now: datetime, zone: ZoneInfo, window: Window) -> datetime:
    """`now`, or the end of the silence it falls into."""
    found = span(now, zone, window)
    return found.until if found.silent else now


class Opening(NamedTuple):
    """The first moment free of every silence, when the next silence begins, and which silence (by index) moved it last."""

    at: datetime
    closes: datetime
    held_by: int | None


_LONGEST_SEARCH = timedelta(days=8)


def opening(now: datetime, zone: ZoneInfo, silences: Sequence[Window]) -> Opening | None:
    """Where several silences leave room, from `now` on. None: they leave no room within a week."""
    at, closes = now, _FOREVER.until
    held_by: int | None = None
    free = n = 0
    while free < len(silences):
        found = span(at, zone, silences[n])
        if found.silent:
            # All are asked again, this one too: its next silence may follow at once.
            at, held_by, free, closes = found.until, n, 0, _FOREVER.until
            if at - now > _LONGEST_SEARCH:
                return None
            continue
        closes = min(closes, found.until)
        free += 1
        n = (n + 1) % len(silences)
    return Opening(at, closes, held_by)
