"""A reminder series: some reminders before one event, planned again when the event moves (REM-4).

Days and weeks are taken off the calendar (a week before 9 a.m. is 9 a.m., also across a clock change), hours and less off
the clock. A moment that has passed when the plan is made is left out, whatever the lateness policy: "in 7 days" must not
arrive on the eve. What has been sent stays sent and is never sent again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from schemas.notifications import Due
from sendloom.domain.wall_time import parse_local, resolve
from sendloom.errors import Refusal

MEMBERS_MAX = 12
LONGEST = timedelta(days=366)

_DURATION = re.compile(r"P(?:(\d{1,3})W)?(?:(\d{1,4})D)?(?:T(?:(\d{1,4})H)?(?:(\d{1,5})M)?)?")


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """How long before the event."""

    days: int
    minutes: int

    @property
    def text(self) -> str:
        """The canonical form; two ways to write one offset are one member."""
        hours, minutes = divmod(self.minutes, 60)
        clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
        days = f"{self.days}D" if self.days else ""
        return f"P{days}" + (f"T{clock}" if clock else "") if days or clock else "PT0M"


def parse_offset(text: str, *, field: str = "offsets") -> Offset:
    """Reads `P7D`, `P1W`, `PT1H` or `P1DT12H`.

    Raises:
        Refusal: `bad_offset`.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) and text.isascii() else None
    if match is None or not any(match.groups()):
        raise Refusal("bad_offset", "this is not a duration before the event", field=field)
    weeks, days, hours, minutes = (int(part or 0) for part in match.groups())
    offset = Offset(weeks * 7 + days, hours * 60 + minutes)
    if timedelta(days=offset.days, minutes=offset.minutes) > LONGEST:
        raise Refusal("bad_offset", f"at most {LONGEST.days} days before the event", field=field)
    return offset


def due_before(event: Due, offset: Offset, zone: ZoneInfo) -> tuple[Due, datetime]:
    """When the member is due, and which instant that is in the recipient's zone as it is now.

    A local event gives local members, so that they move with the recipient; an hour that happens twice is named by its
    instant.
    """
    if event.at is not None:
        wall = event.at.astimezone(zone).replace(tzinfo=None, fold=0)
        base = resolve(wall - timedelta(days=offset.days), zone) if offset.days else event.at
        at = base.astimezone(UTC) - timedelta(minutes=offset.minutes)
        return Due(at=at), at
    assert event.local is not None
    local = parse_local(event.local) - timedelta(days=offset.days)
    at = resolve(local, zone) - timedelta(minutes=offset.minutes)
    if offset.minutes:
        local = at.astimezone(zone).replace(tzinfo=None, fold=0)
        if resolve(local, zone) != at:
            return Due(at=at), at
    return Due(local=local.isoformat(timespec="seconds")), at


class MemberState(StrEnum):
    """What there is of a member when the plan is made."""

    ABSENT = "absent"
    """Never created, or what was created ended without being sent: it may be created."""
    OPEN = "open"
    SENT = "sent"
    """Sent, or past the point of taking it back."""


class Action(StrEnum):
    CREATE = "create"
    MOVE = "move"
    CANCEL = "cancel"
    KEEP = "keep"
    LEAVE_OUT = "leave_out"


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one member. `due` is set when it is created or moved."""

    offset: Offset
    action: Action
    at: datetime
    due: Due | None = None


def plan(
    event: Due, states: Mapping[Offset, MemberState], now: datetime, zone: ZoneInfo
) -> list[Step]:
    """One step a member, earliest first. Doing them twice changes nothing more."""
    steps = []
    for offset, state in states.items():
        due, at = due_before(event, offset, zone)
        match state:
            case MemberState.SENT:
                step = Step(offset, Action.KEEP, at)
            case MemberState.OPEN if at <= now:
                step = Step(offset, Action.CANCEL, at)
            case MemberState.OPEN:
                step = Step(offset, Action.MOVE, at, due)
            case MemberState.ABSENT if at <= now:
                step = Step(offset, Action.LEAVE_OUT, at)
            case MemberState.ABSENT:
                step = Step(offset, Action.CREATE, at, due)
        steps.append(step)
    return sorted(steps, key=lambda step: (step.at, step.offset))
