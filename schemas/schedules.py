"""What travels for something that recurs."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from schemas.wire import Wire


class CatchUpRule(StrEnum):
    """What happens to runs that were missed while something was down."""

    ALL = "all"
    """Each of them, oldest first, within the window and up to the maximum."""
    LATEST = "latest"
    """One run for the whole gap: the newest."""
    NONE = "none"
    """None of them."""


class Overlap(StrEnum):
    """What happens to a run whose predecessor has not ended."""

    SKIP = "skip"
    ALLOW = "allow"


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DELETED = "deleted"


class ScheduleKind(StrEnum):
    """What each run is."""

    NOTIFICATION = "notification"
    CAMPAIGN = "campaign"


class TriggerStatus(StrEnum):
    """What became of one scheduled time. `missed` may stand for many in a row."""

    OWED = "owed"
    FIRED = "fired"
    MISSED = "missed"
    OVERLAPPED = "overlapped"
    REFUSED = "refused"


class TriggerInput(Wire):
    """Starts a `Trigger`: the scheduler has woken us."""

    tenant: str
    schedule_id: UUID


class FireTrigger(Wire):
    """Asks for whatever the schedule owes. `woken_for`: the scheduled time the scheduler means."""

    tenant: str
    schedule_id: UUID
    woken_for: datetime | None = None
    by: str = "schedule"


class TriggerResult(Wire):
    """Counts, and what was fired."""

    fired: list[UUID] = []
    skipped: int = 0
    refused: int = 0


class RecurringContent(Wire):
    """What each run says, sealed at rest in the schedule's row. A template's current version is taken when a run fires."""

    template_id: str
    variables: dict[str, Any] = {}
    ttl_seconds: int | None = None
    correlation_id: str | None = None
    name: str = ""
    """Of the campaigns."""
    list_id: str | None = None
    """Of the campaigns; its current version is frozen by each."""
    segment_id: str | None = None
    """Of the campaigns, instead of a list; each pins the definition that it has when it fires."""
    window: str | None = None
    rate_per_second: float | None = None


class SeriesMember(Wire):
    """One reminder of a series: so long before the event, saying this."""

    before: str
    """An ISO 8601 duration, in its canonical form."""
    template_id: str


class SeriesContent(Wire):
    """What a reminder series says, sealed at rest in its row."""

    variables: dict[str, Any] = {}
    lateness: str = "send"
    grace_seconds: int = 3600
    ttl_seconds: int | None = None
    members: list[SeriesMember]
