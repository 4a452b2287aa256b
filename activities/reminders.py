"""When a reminder is due for its recipient, and becoming a notification when it is."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from temporalio import activity

from schemas.kinds import Kind, LatenessPolicy
from schemas.notifications import (
    CloseReminder,
    Due,
    FiredReminder,
    FireReminder,
    NotificationInput,
    ReminderInput,
    ReminderView,
    ResolvedDue,
    ResolveDue,
)
from sendloom.domain.ids import child_id
from sendloom.domain.wall_time import at_accept, parse_local, planned, resolve
from sendloom.domain.zones import zone_or_default
from sendloom.ports import AcceptedRow, AcceptedStore, CatalogStore, PeopleStore

FIRE = "fire"
_DAY = timedelta(days=1)


class ReminderActivities:
    def __init__(
        self,
        *,
        accepted: AcceptedStore,
        people: PeopleStore,
        catalog: CatalogStore,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._accepted = accepted
        self._people = people
        self._catalog = catalog
        self._now = now

    @activity.defn(name="reminder.resolve")
    async def resolve(self, request: ResolveDue) -> ResolvedDue:
        """The moment, from the zone the recipient has now and the reminder's lateness policy."""
        resolved = await self._resolve(request)
        if request.persist and resolved.due_at is not None:
            # Rebuilding after a loss of Temporal goes by the row.
            r = request.reminder
            await self._accepted.set_due(r.tenant, r.reminder_id, resolved.due_at)
        return resolved

    async def _resolve(self, request: ResolveDue) -> ResolvedDue:
        r, due, now = request.reminder, request.due, self._now()
        grace = timedelta(seconds=r.grace_seconds)
        if due.local is None:
            assert due.at is not None
            return _instant(due, now, r.lateness, grace)
        local = parse_local(due.local)
        zone = await self._zone(r)
        policy = r.lateness
        due_at = resolve(local, zone)
        if due_at < request.asked_at:
            # It had passed before it was asked for: the next day or not at all, never "now" (case C42).
            policy, grace, now = at_accept(policy), timedelta(0), max(now, request.asked_at)
        moment = planned(local, zone, now, policy, grace)
        if moment.at is None:
            return ResolvedDue(due_at=None, due=due)
        if moment.missed and policy is LatenessPolicy.NEXT_DAY:
            day = moment.at.astimezone(zone).date()
            moved = datetime.combine(day, local.time()).isoformat(timespec="seconds")
            return ResolvedDue(due_at=moment.at, due=Due(local=moved))
        # What leaves now was due when it was due: a moment that moves with the clock would never be reached.
        return ResolvedDue(due_at=moment.at if moment.at > now else due_at, due=due)

    async def _zone(self, r: ReminderInput) -> ZoneInfo:
        [person] = await self._people.people(r.tenant, r.category, [r.recipient_id], False)
        tenant = await self._catalog.tenant(r.tenant)
        zone, _ = zone_or_default(person.zone, tenant.default_zone if tenant else "UTC")
        return zone

    @activity.defn(name="reminder.fire")
    async def fire(self, request: FireReminder) -> FiredReminder:
        """Insert the notification's accepted row, once: a repeat finds the first one and its times.

        Whoever inserts it sends it. A repeat cannot know whether that was a worker that died here or somebody who is at work, so
        it goes by the one workflow a notification's id can have.
        """
        r = request.reminder
        parent = await self._accepted.get(r.tenant, r.reminder_id)
        if parent is None or parent.closed_at is not None:
            outcome = (parent.outcome if parent else None) or {}
            return FiredReminder(notification=None, reason=str(outcome.get("reason") or "closed"))
        now = self._now()
        n = NotificationInput(
            tenant=r.tenant,
            mode=r.mode,
            notification_id=child_id(r.reminder_id, FIRE),
            recipient_id=r.recipient_id,
            category=r.category,
            message_class=r.message_class,
            accepted_at=now,
            expires_at=now + timedelta(seconds=r.ttl_seconds),
            priority=r.priority,
        )
        stored, existed = await self._accepted.insert_or_match(_child_row(parent, n))
        if existed:
            n = NotificationInput.model_validate_json(stored.workflow_input)
        return FiredReminder(notification=n, in_place=not existed)

    @activity.defn(name="reminder.close")
    async def close(self, request: CloseReminder) -> None:
        await self._accepted.close(request.tenant, request.id, outcome_of(request.view))


def outcome_of(view: ReminderView) -> dict[str, Any]:
    """What the reminder's row is closed with."""
    return {
        # "accepted" is the outcome that no later one may replace.
        "kind": "accepted" if view.state == "sent" else view.state,
        **view.model_dump(mode="json"),
    }


def _instant(due: Due, now: datetime, policy: LatenessPolicy, grace: timedelta) -> ResolvedDue:
    assert due.at is not None
    if now - due.at <= grace or policy is LatenessPolicy.SEND:
        return ResolvedDue(due_at=due.at, due=due, instant=True)
    if policy is LatenessPolicy.SKIP:
        return ResolvedDue(due_at=None, due=due)
    days = -((due.at - now) // _DAY)
    later = due.at + days * _DAY
    return ResolvedDue(due_at=later, due=Due(at=later), instant=True)


def _child_row(parent: AcceptedRow, n: NotificationInput) -> AcceptedRow:
    return replace(
        parent,
        id=n.notification_id,
        kind=Kind.NOTIFICATION,
        idempotency_key=f"reminder/{parent.id}",
        accepted_at=n.accepted_at,
        expires_at=n.expires_at,
        due_at=None,
        workflow_input=n.model_dump_json().encode(),
        parent_id=parent.id,
        # Inserted as started: the sweeper must not think that it was left.
        started_at=n.accepted_at,
        closed_at=None,
        outcome=None,
    )
