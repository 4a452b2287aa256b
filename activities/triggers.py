"""Firing what a schedule owes. A run is (schedule, scheduled time): judged once, written down once, started once."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from temporalio import activity

from activities.campaign_audience import own_list, pin_segment
from activities.campaign_row import campaign_row
from schemas.campaigns import CampaignInput, CampaignSpec
from schemas.content import CampaignContent, Content
from schemas.kinds import Kind, MessageClass
from schemas.notifications import NotificationInput
from schemas.schedules import (
    FireTrigger,
    Overlap,
    ScheduleKind,
    ScheduleState,
    TriggerResult,
    TriggerStatus,
)
from sendloom.domain.catch_up import ON_TIME, Owed, Rule, kept, owed, times
from sendloom.domain.ids import fire_id
from sendloom.domain.zones import load
from sendloom.errors import Refusal, StoreUnavailable
from sendloom.platform.metrics.triggers import record_trigger
from sendloom.ports import (
    AcceptedRow,
    AcceptedStore,
    CampaignStore,
    CatalogStore,
    Category,
    Fire,
    ListNames,
    PeopleStore,
    ScheduleRow,
    ScheduleStore,
    SegmentStore,
    TemplateParts,
)

log = logging.getLogger(__name__)

JUDGE_TRIES = 5
CLOCK_ERROR = timedelta(minutes=1)
"""A wake-up for a moment further ahead of our clock than this is not believed."""


class TriggerActivities:
    """`start` runs an accepted row's workflow; a row that runs already is success."""

    def __init__(
        self,
        *,
        schedules: ScheduleStore,
        accepted: AcceptedStore,
        campaigns: CampaignStore,
        catalog: CatalogStore,
        people: PeopleStore,
        segments: SegmentStore,
        lists: ListNames,
        start: Callable[[AcceptedRow], Awaitable[bool]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._schedules = schedules
        self._accepted = accepted
        self._campaigns = campaigns
        self._catalog = catalog
        self._people = people
        self._segments = segments
        self._lists = lists
        self._start = start
        self._now = now

    @activity.defn(name="trigger.fire")
    async def fire(self, request: FireTrigger) -> TriggerResult:
        """Judge what is owed since the last handled time, write that down, then start it. Safe to repeat at any point."""
        skipped = await self._judge(request)
        fired: list[UUID] = []
        refused = 0
        moments = await self._schedules.owed(request.tenant, request.schedule_id)
        given_up = await self._give_up(request, moments)
        for scheduled_for in moments:
            if scheduled_for in given_up:
                skipped += 1
                continue
            ref = await self._fire_one(request.tenant, request.schedule_id, scheduled_for)
            if ref is None:
                refused += 1
            else:
                fired.append(ref)
        return TriggerResult(fired=fired, skipped=skipped, refused=refused)

    # --- judging ------------------------------------------------------------------------------------------------------

    async def _judge(self, request: FireTrigger) -> int:
        """How many runs were left out."""
        for _ in range(JUDGE_TRIES):
            row = await self._schedules.get(request.tenant, request.schedule_id)
            if row is None or row.state is not ScheduleState.ACTIVE:
                return 0
            found = await judge(self._schedules, row, self._until(request, row), request.by)
            if found is None:
                continue
            if found.skipped:
                log.warning(
                    "runs were missed and left out by the schedule's rule",
                    extra={"schedule": str(row.id), "skipped": found.skipped},
                )
            return found.skipped
        raise StoreUnavailable("the schedule is being changed")

    def _until(self, request: FireTrigger, row: ScheduleRow) -> datetime:
        """Up to when runs are due. Each is held back by up to the jitter, unless it is the one we were woken for."""
        now = self._now()
        until = now - timedelta(seconds=row.jitter_seconds)
        if request.woken_for is not None and request.woken_for <= now + CLOCK_ERROR:
            until = max(until, request.woken_for)
        return until

    async def _give_up(self, request: FireTrigger, moments: list[datetime]) -> set[datetime]:
        """What was judged owed and never promised, because everything was down right then, is judged by the rule once more."""
        if len(moments) < 2 and not (moments and self._now() - moments[0] > ON_TIME):
            return set()
        row = await self._schedules.get(request.tenant, request.schedule_id)
        assert row is not None
        given_up = set(moments) - set(kept(moments, self._now(), _rule(row)))
        for moment in sorted(given_up):
            if await self._accepted.get(row.tenant, fire_id(row.id, moment)) is not None:
                given_up.discard(moment)
                continue
            await self._schedules.settle(row.tenant, row.id, moment, TriggerStatus.MISSED)
        return given_up

    # --- firing -------------------------------------------------------------------------------------------------------

    async def _fire_one(self, tenant: str, id: UUID, scheduled_for: datetime) -> UUID | None:
        """The run's id; None when it was refused or its predecessor has not ended."""
        schedule = await self._schedules.get(tenant, id)
        assert schedule is not None
        ref = fire_id(id, scheduled_for)
        row = await self._accepted.get(tenant, ref)
        if row is None:
            refused = await self._objection(schedule, scheduled_for)
            if refused is not None:
                status, reason = refused
                await self._schedules.settle(tenant, id, scheduled_for, status, reason=reason)
                return None
            try:
                made = await self._make(schedule, scheduled_for, ref)
            except Refusal as e:
                log.warning(
                    "a run was refused",
                    extra={"schedule": str(id), "code": e.code, "why": e.detail},
                )
                await self._schedules.settle(
                    tenant, id, scheduled_for, TriggerStatus.REFUSED, reason=e.code
                )
                return None
            row, _ = await self._accepted.insert_or_match(made)
        if row.closed_at is None:
            if row.kind is Kind.CAMPAIGN:
                await self._campaigns.insert(campaign_row(row))
            await self._start(row)
            await self._accepted.mark_started(tenant, ref)
        await self._schedules.settle(tenant, id, scheduled_for, TriggerStatus.FIRED, ref)
        record_trigger(schedule.kind, self._now() - scheduled_for)
        return ref

    async def _objection(
        self, schedule: ScheduleRow, scheduled_for: datetime
    ) -> tuple[TriggerStatus, str] | None:
        if schedule.state is not ScheduleState.ACTIVE:
            return TriggerStatus.REFUSED, f"schedule_{schedule.state}"
        tenant = await self._catalog.tenant(schedule.tenant)
        if tenant is None or tenant.disabled:
            return TriggerStatus.REFUSED, "tenant_disabled"
        if schedule.overlap is Overlap.SKIP:
            last = await self._schedules.last_fired(schedule.tenant, schedule.id, scheduled_for)
            before = None if last is None else await self._accepted.get(schedule.tenant, last)
            if before is not None and before.closed_at is None:
                return TriggerStatus.OVERLAPPED, str(last)
        return None

    async def _make(self, schedule: ScheduleRow, scheduled_for: datetime, ref: UUID) -> AcceptedRow:
        """
        Raises:
            Refusal: what it needs is not there any more.
        """
        category = await self._catalog.category(schedule.tenant, schedule.category)
        if category is None:
            raise Refusal("unknown_category", "the category is not there", field="category")
        parts = await self._catalog.template_parts(
            schedule.tenant, schedule.content.template_id, None
        )
        if not parts:
            raise Refusal("unknown_template", "nothing is published", field="template_id")
        now = self._now()
        seconds = schedule.content.ttl_seconds or category.ttl_seconds
        row = AcceptedRow(
            tenant=schedule.tenant,
            id=ref,
            mode=schedule.mode,
            kind=Kind(schedule.kind),
            idempotency_key=f"schedule/{schedule.id}/{scheduled_for.astimezone(UTC).isoformat()}",
            # Of the run's identity, not of what it says: that may be changed between two attempts, and the first one stays.
            body_hmac=hashlib.blake2b(ref.bytes, digest_size=32).digest(),
            message_class=category.message_class,
            category=category.category,
            recipient_id=schedule.recipient_id,
            accepted_at=now,
            expires_at=now + timedelta(seconds=seconds),
            workflow_input=b"",
            content=b"",
            correlation_id=schedule.content.correlation_id,
            parent_id=schedule.id,
        )
        if schedule.kind is ScheduleKind.CAMPAIGN:
            return await self._campaign(row, schedule, category, parts, scheduled_for)
        return await self._notification(row, schedule, category, parts)

    async def _notification(
        self,
        row: AcceptedRow,
        schedule: ScheduleRow,
        category: Category,
        parts: list[TemplateParts],
    ) -> AcceptedRow:
        assert schedule.recipient_id is not None
        [person] = await self._people.people(
            row.tenant, row.category, [schedule.recipient_id], False
        )
        if not person.exists or person.erased:
            raise Refusal("unknown_recipient", "there is no such recipient", field="recipient_id")
        given = NotificationInput(
            tenant=row.tenant,
            mode=row.mode,
            notification_id=row.id,
            recipient_id=schedule.recipient_id,
            category=row.category,
            message_class=row.message_class,
            accepted_at=row.accepted_at,
            expires_at=row.expires_at,
            priority=category.priority,
        )
        content = Content(
            template_id=schedule.content.template_id,
            template_version=parts[0].version,
            variables=schedule.content.variables,
            locale=person.locale,
        )
        return replace(
            row,
            workflow_input=given.model_dump_json().encode(),
            content=content.model_dump_json().encode(),
        )

    async def _campaign(
        self,
        row: AcceptedRow,
        schedule: ScheduleRow,
        category: Category,
        parts: list[TemplateParts],
        scheduled_for: datetime,
    ) -> AcceptedRow:
        if category.message_class is not MessageClass.MARKETING:
            raise Refusal("marketing_only", "only marketing categories can be campaigns")
        said = schedule.content
        name = f"{said.name} {scheduled_for.astimezone(load(schedule.zone)):%Y-%m-%d %H:%M}"
        segment, list_id = None, said.list_id
        if said.segment_id is not None:
            segment = await pin_segment(self._segments, row.tenant, said.segment_id)
            # Before the row: whoever finds that finds the list that its launch writes into.
            list_id = await own_list(self._lists, row.tenant, row.id, name, segment)
        assert list_id is not None
        given = CampaignInput(
            tenant=row.tenant, mode=row.mode, campaign_id=row.id, accepted_at=row.accepted_at
        )
        content = CampaignContent(
            template_id=said.template_id,
            template_version=parts[0].version,
            variables=said.variables,
            name=name,
            list_id=list_id,
            created_by=schedule.created_by,
            spec=CampaignSpec(
                window=said.window, rate_per_second=said.rate_per_second, segment=segment
            ),
        )
        return replace(
            row,
            workflow_input=given.model_dump_json().encode(),
            content=content.model_dump_json().encode(),
        )


async def judge(
    schedules: ScheduleStore, row: ScheduleRow, until: datetime, by: str
) -> Owed | None:
    """Write down what is owed and what is left out, up to a moment. None: the row has changed since it was read."""
    next_after = times(row.cron, row.every_seconds, load(row.zone)).next
    # A year of minutes takes a second to count; others must not wait for it.
    found = await asyncio.to_thread(owed, next_after, row.handled_until, until, _rule(row))
    if found.handled_until == row.handled_until:
        return found
    next_at = next_after(found.handled_until)
    written = await schedules.judge(row, found.handled_until, next_at, _lines(found, by))
    return found if written else None


async def redefine(
    schedules: ScheduleStore, row: ScheduleRow, new: ScheduleRow, now: datetime
) -> ScheduleRow | None:
    """Put a new definition in place of `row`, from now on; a run that was due before it stays owed (case C72). None: it has changed."""
    if row.state is ScheduleState.ACTIVE and await judge(schedules, row, now, "change") is None:
        return None
    next_at = times(new.cron, new.every_seconds, load(new.zone)).next(now)
    return await schedules.replace(replace(new, handled_until=now, next_at=next_at), row.version)


def _rule(row: ScheduleRow) -> Rule:
    return Rule(
        row.catch_up,
        timedelta(seconds=row.catch_up_seconds),
        row.catch_up_max,
        ON_TIME + timedelta(seconds=row.jitter_seconds),
    )


def _lines(found: Owed, by: str) -> list[Fire]:
    """The trigger log's lines: one for everything left out, one for each run."""
    lines = [Fire(moment, TriggerStatus.OWED, by) for moment in found.fire]
    if found.skipped:
        assert found.skipped_from is not None
        lines.insert(
            0,
            Fire(
                found.skipped_from,
                TriggerStatus.MISSED,
                by,
                missed=found.skipped,
                missed_until=found.skipped_to,
            ),
        )
    return lines
