"""What recurs, and the log of what was fired."""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import AwareDatetime

from activities.campaign_audience import pin_segment
from activities.triggers import redefine
from api import accept
from api.accept import Found
from api.auditing import audited
from api.auth import Caller, Scope
from api.deps import IdempotencyKey, Keeper, Parts, PartsDep
from api.deps import caller as a_caller
from api.paging import page_of
from api.timing import timely, within
from api.views import may_see
from schemas.api import (
    REPLAY_HEADER,
    Page,
    ScheduleRequest,
    ScheduleStatus,
    TriggerAnswer,
)
from schemas.kinds import Kind, MessageClass
from schemas.schedules import (
    RecurringContent,
    ScheduleKind,
    ScheduleState,
    TriggerStatus,
)
from sendloom.domain.catch_up import CronIn, Every, times
from sendloom.domain.gates import quiet_window
from sendloom.domain.ids import schedule_id
from sendloom.domain.quiet_hours import Window, parse_window, span
from sendloom.domain.same_body import require_same_body
from sendloom.domain.zones import load, validate_zone, zone_or_default
from sendloom.errors import Refusal, Transient
from sendloom.ports import ScheduleRow
from sendloom.rows import Trigger

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])
log_router = APIRouter(prefix="/v1/triggers", tags=["schedules"])

LEAST_SECONDS = 60
"""The shortest interval, unless the tenant's `schedule_min_seconds` says otherwise."""
LOOKED_AT = 60
"""Runs ahead that are looked at for quiet hours."""
LOOKED_AHEAD = timedelta(days=366)
CHANGE_TRIES = 5

Viewer = Annotated[Caller, Depends(a_caller(Scope.SEND, Scope.CAMPAIGNS, Scope.SUPPORT, Scope.OPS))]
Controller = Annotated[Caller, Depends(a_caller(Scope.SEND, Scope.CAMPAIGNS, Scope.OPS))]


@router.post("", status_code=201)
async def create(
    request: Request,
    response: Response,
    body: ScheduleRequest,
    caller: Keeper,
    parts: PartsDep,
    key: IdempotencyKey,
) -> ScheduleStatus:
    """From now on, at every time it names. A daily moment that always lies in quiet hours is refused (`always_quiet`)."""
    hashed = parts.hashes.body_hash(caller.id, accept.canonical(await request.body()))
    id = schedule_id(caller.id, caller.mode, key)

    async def take_on() -> tuple[ScheduleRow, bool, list[str]]:
        stored = await parts.schedules.get(caller.id, id)
        warnings: list[str] = []
        if stored is None:
            row, warnings = await _row(parts, caller, body, id, hashed)
            stored, replayed = await parts.schedules.insert_or_match(row)
        else:
            require_same_body(
                stored.body_hmac,
                hashed,
                "this idempotency key was used with another body, or its schedule was changed since",
            )
            replayed = True
        return stored, replayed, warnings

    row, replayed, warnings = await within(take_on())
    if replayed:
        response.headers[REPLAY_HEADER] = "true"
    else:
        await audited(parts, caller, "schedule.create", str(id))
    await _tell(parts, row)
    return _status(row, warnings)


async def _row(
    parts: Parts, caller: Caller, body: ScheduleRequest, id: UUID, hashed: bytes
) -> tuple[ScheduleRow, list[str]]:
    """The row, and what the caller should know.

    Raises:
        Refusal: with nothing written.
    """
    run = body.notification or body.campaign
    assert run is not None
    caller.require(Scope.SEND if body.notification else Scope.CAMPAIGNS)
    zone = validate_zone(body.zone or caller.tenant.default_zone)
    runs = times(body.cron, body.every_seconds, load(zone))
    _require_not_too_often(caller, body)
    recipient = body.notification.recipient_id if body.notification else None
    found = await accept.find(parts, caller, body.category, run.template_id, recipient)
    parts.leave_room(caller, found.category)
    if body.notification:
        warnings = _check_notification(parts, caller, body, found, runs)
    else:
        warnings = []
        await _check_campaign(parts, caller, body, found)
    now = accept.now()
    return (
        ScheduleRow(
            tenant=caller.id,
            id=id,
            mode=caller.mode,
            kind=ScheduleKind.NOTIFICATION if body.notification else ScheduleKind.CAMPAIGN,
            body_hmac=hashed,
            name=body.name,
            category=body.category,
            recipient_id=recipient,
            content=_content(body),
            cron=body.cron,
            every_seconds=body.every_seconds,
            zone=zone,
            overlap=body.overlap,
            catch_up=body.catch_up,
            catch_up_seconds=body.catch_up_window_seconds,
            catch_up_max=body.catch_up_max,
            jitter_seconds=body.jitter_seconds,
            state=ScheduleState.ACTIVE,
            handled_until=now,
            next_at=runs.next(now),
            created_by=caller.actor,
            created_at=now,
        ),
        warnings,
    )


def _require_not_too_often(caller: Caller, body: ScheduleRequest) -> None:
    least = caller.tenant.settings.get("schedule_min_seconds")
    least = least if isinstance(least, int) and least > 0 else LEAST_SECONDS
    if body.every_seconds is not None and body.every_seconds < least:
        raise Refusal("too_often", f"at least {least} s between two runs", field="every_seconds")


def _content(body: ScheduleRequest) -> RecurringContent:
    if body.notification is not None:
        given = body.notification
        return RecurringContent(
            template_id=given.template_id,
            variables=given.variables,
            ttl_seconds=given.ttl_seconds,
            correlation_id=given.correlation_id,
        )
    campaign = body.campaign
    assert campaign is not None
    return RecurringContent(
        template_id=campaign.template_id,
        variables=campaign.variables,
        name=campaign.name,
        list_id=campaign.list_id,
        segment_id=campaign.audience.segment if campaign.audience else None,
        window=campaign.window,
        rate_per_second=campaign.rate_per_second,
    )


def _check_notification(
    parts: Parts, caller: Caller, body: ScheduleRequest, found: Found, runs: CronIn | Every
) -> list[str]:
    run = body.notification
    assert run is not None
    if found.category.message_class is MessageClass.SECURITY:
        raise Refusal("cannot_recur", f"{body.category} is security", field="category")
    accept.require_variables(parts, caller, found, run.variables)
    accept.usable(found)
    accept.expiry(accept.now(), run.ttl_seconds, found.category)
    return _quiet(caller, found, runs, accept.now())


def _quiet(caller: Caller, found: Found, runs: CronIn | Every, now: datetime) -> list[str]:
    """Case C67: what would always lie in quiet hours is refused when it is set up, not found out night after night."""
    tenant, category, person = caller.tenant, found.category, found.person
    assert person is not None
    window = quiet_window(
        category.message_class,
        category.quiet_hours,
        Window(tenant.quiet_start, tenant.quiet_end),
    )
    zone, unknown = zone_or_default(person.zone, tenant.default_zone)
    if window is None or (unknown and category.message_class is MessageClass.MARKETING):
        return []
    ahead: list[datetime] = []
    moment = now
    while len(ahead) < LOOKED_AT and (moment := runs.next(moment)) - now <= LOOKED_AHEAD:
        ahead.append(moment)
    silent = sum(span(at, zone, window).silent for at in ahead)
    hours = f"{window.start:%H:%M}-{window.end:%H:%M} in {zone.key}"
    if ahead and silent == len(ahead):
        raise Refusal(
            "always_quiet",
            f"every run would fall into the recipient's quiet hours, {hours}",
            field="cron" if isinstance(runs, CronIn) else "every_seconds",
        )
    if silent:
        return [f"{silent} of the next {len(ahead)} runs fall into quiet hours ({hours}) and wait"]
    return []


async def _check_campaign(
    parts: Parts, caller: Caller, body: ScheduleRequest, found: Found
) -> None:
    run = body.campaign
    assert run is not None
    if found.category.message_class is not MessageClass.MARKETING:
        raise Refusal(
            "marketing_only", f"{body.category} is {found.category.message_class}", field="category"
        )
    if not found.channels:
        raise Refusal(
            "no_template",
            "the template has no content for the category's channels",
            field="campaign.template_id",
        )
    if run.window is not None:
        parse_window(run.window, field="campaign.window")
    if run.audience is not None:
        # Each run pins the definition of its own moment: only that there is one matters now.
        await pin_segment(
            parts.segments, caller.id, run.audience.segment, field="campaign.audience.segment"
        )
    elif run.list_id is not None and await parts.lists.get(caller.id, run.list_id) is None:
        # One that is not ready yet may be by then; a run that finds it so fails and says why.
        raise Refusal("unknown_list", f"there is no list {run.list_id}", field="campaign.list_id")


async def _tell(parts: Parts, row: ScheduleRow) -> None:
    """Temporal is told last. While it is away our row stands, and the sweeper tells it later."""
    if row.applied_version >= row.version:
        return
    try:
        await parts.workflows.apply_schedule(row)
        await parts.schedules.applied(row.tenant, row.id, row.version)
    except Transient as e:
        log.warning("Temporal is told of a schedule later", extra={"why": str(e)})


# --- looking ------------------------------------------------------------------------------------------------------------


@router.get("")
@timely
async def listed(
    caller: Viewer,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: UUID | None = None,
) -> Page[ScheduleStatus]:
    """All that are not deleted, by id."""
    rows = await parts.schedules.of_tenant(caller.id, limit, after)
    return Page(
        items=[_status(row) for row in rows if may_see(caller, row.mode)],
        next=str(rows[-1].id) if len(rows) == limit else None,
    )


@router.get("/{id}")
@timely
async def show(id: UUID, caller: Viewer, parts: PartsDep) -> ScheduleStatus:
    """One, also when it was deleted."""
    return _status(await _find(parts, caller, id))


async def _find(parts: Parts, caller: Caller, id: UUID) -> ScheduleRow:
    row = await parts.schedules.get(caller.id, id)
    if row is None or not may_see(caller, row.mode):
        raise Refusal("not_found", f"there is no schedule {id}", status=404)
    return row


def _status(row: ScheduleRow, warnings: list[str] | None = None) -> ScheduleStatus:
    return ScheduleStatus(
        id=row.id,
        mode=row.mode,
        kind=row.kind,
        name=row.name,
        category=row.category,
        state=row.state,
        cron=row.cron,
        every_seconds=row.every_seconds,
        zone=row.zone,
        template_id=row.content.template_id,
        recipient_id=row.recipient_id,
        list_id=row.content.list_id,
        segment=row.content.segment_id,
        overlap=row.overlap,
        catch_up=row.catch_up,
        catch_up_window_seconds=row.catch_up_seconds,
        catch_up_max=row.catch_up_max,
        jitter_seconds=row.jitter_seconds,
        next_at=row.next_at if row.state is ScheduleState.ACTIVE else None,
        created_at=row.created_at,
        created_by=row.created_by,
        warnings=warnings or [],
    )


@router.get("/{id}/triggers")
@timely
async def triggers(
    id: UUID,
    caller: Viewer,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[AwareDatetime | None, Query(description="`next` of the page before.")] = None,
) -> Page[TriggerAnswer]:
    """What was fired, refused or left out, newest first; also of a schedule that was deleted."""
    await _find(parts, caller, id)
    rows = await parts.triggers.of_trigger(caller.id, id, limit, before)
    return page_of(rows, limit, _trigger, lambda row: row.scheduled_for.isoformat())


@log_router.get("")
@timely
async def fired(
    caller: Viewer,
    parts: PartsDep,
    since: Annotated[AwareDatetime, Query(description="Scheduled at or after.")],
    until: Annotated[AwareDatetime, Query(description="Scheduled before.")],
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Page[TriggerAnswer]:
    """What should have been fired in a stretch of time, and what became of it, by scheduled time."""
    rows = await parts.triggers.between(caller.id, since, until, limit)
    ids = {row.trigger_id for row in rows}
    schedules = await asyncio.gather(*(parts.schedules.get(caller.id, id) for id in ids))
    shown = {row.id for row in schedules if row is not None and may_see(caller, row.mode)}
    return Page(
        items=[_trigger(row) for row in rows if row.trigger_id in shown],
        next=rows[-1].scheduled_for.isoformat() if len(rows) == limit else None,
    )


def _trigger(row: Trigger) -> TriggerAnswer:
    url = None if row.ref_id is None else accept.status_url(Kind(row.kind), row.ref_id)
    return TriggerAnswer(
        schedule_id=row.trigger_id,
        kind=ScheduleKind(row.kind),
        scheduled_for=row.scheduled_for,
        status=TriggerStatus(row.status),
        by=row.by,
        fired_at=row.fired_at,
        id=row.ref_id,
        status_url=url,
        missed=row.missed,
        missed_until=row.missed_until,
        reason=row.reason,
    )


# --- changing -----------------------------------------------------------------------------------------------------------


@router.put("/{id}")
async def put(
    request: Request, id: UUID, body: ScheduleRequest, caller: Keeper, parts: PartsDep
) -> ScheduleStatus:
    """Replace what it does and when, from now on; whether it is paused stays. What is owed already is fired."""
    hashed = parts.hashes.body_hash(caller.id, accept.canonical(await request.body()))

    async def change() -> tuple[ScheduleRow, list[str]]:
        warnings: list[str] = []

        async def write(row: ScheduleRow) -> ScheduleRow | None:
            if hmac.compare_digest(row.body_hmac, hashed):
                return row
            new, found = await _row(parts, caller, body, id, hashed)
            warnings[:] = found
            kept = replace(
                new,
                mode=row.mode,
                state=row.state,
                created_at=row.created_at,
                created_by=row.created_by,
            )
            return await redefine(parts.schedules, row, kept, accept.now())

        return await _change(parts, caller, id, write), warnings

    row, warnings = await within(change())
    await audited(parts, caller, "schedule.change", str(id))
    await _tell(parts, row)
    return _status(row, warnings)


@router.delete("/{id}")
async def delete(id: UUID, caller: Controller, parts: PartsDep) -> ScheduleStatus:
    """It fires no more. What it has fired goes on, and its log stays."""
    return await _set_state(parts, caller, id, ScheduleState.DELETED, "delete")


@router.post("/{id}/pause")
async def pause(id: UUID, caller: Controller, parts: PartsDep) -> ScheduleStatus:
    """It fires nothing until it is resumed."""
    return await _set_state(parts, caller, id, ScheduleState.PAUSED, "pause")


@router.post("/{id}/resume")
async def resume(id: UUID, caller: Controller, parts: PartsDep) -> ScheduleStatus:
    """It fires again, from its next time on. What was due while it was paused was not missed: it was not wanted."""
    return await _set_state(parts, caller, id, ScheduleState.ACTIVE, "resume")


async def _set_state(
    parts: Parts, caller: Caller, id: UUID, state: ScheduleState, action: str
) -> ScheduleStatus:
    async def write(row: ScheduleRow) -> ScheduleRow | None:
        if row.state is state:
            return row
        new = replace(row, state=state)
        if state is ScheduleState.ACTIVE:
            return await redefine(parts.schedules, row, new, accept.now())
        return await parts.schedules.replace(new, row.version)

    deleting = state is ScheduleState.DELETED
    row = await within(_change(parts, caller, id, write, deleting=deleting))
    await audited(parts, caller, f"schedule.{action}", str(id))
    await _tell(parts, row)
    return _status(row)


async def _change(
    parts: Parts,
    caller: Caller,
    id: UUID,
    write: Callable[[ScheduleRow], Awaitable[ScheduleRow | None]],
    *,
    deleting: bool = False,
) -> ScheduleRow:
    """Write over the row as it is, whoever else changes it; `write` answers None when it has changed since.

    Raises:
        Refusal: `not_found`, `schedule_deleted`.
    """
    for _ in range(CHANGE_TRIES):
        row = await _find(parts, caller, id)
        caller.require_category(row.category)
        if row.state is ScheduleState.DELETED and not deleting:
            raise Refusal("schedule_deleted", "it was deleted", status=409)
        changed = await write(row)
        if changed is not None:
            return changed
    raise Transient("the schedule is being changed by others")
