"""Reminder series: some reminders before one event, planned again when it moves, taken back together (REM-4)."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Request, Response

from activities.reminders import FIRE
from api import accept
from api.accept import Ask
from api.auth import Caller
from api.deps import IdempotencyKey, Parts, PartsDep, Reader, Sender
from api.reminders import ask_workflow, cancel_row, due_of, reminder_status, take_on
from api.timing import timely, within
from api.views import may_see
from schemas.api import (
    REPLAY_HEADER,
    DueBody,
    OffsetBody,
    ReminderRequest,
    SeriesMemberStatus,
    SeriesMove,
    SeriesRequest,
    SeriesStatus,
)
from schemas.kinds import Kind, LatenessPolicy
from schemas.notifications import Due
from schemas.schedules import SeriesContent, SeriesMember
from sendloom.domain.ids import child_id, series_id, series_member_id
from sendloom.domain.same_body import require_same_body
from sendloom.domain.series import (
    Action,
    MemberState,
    Offset,
    Step,
    due_before,
    parse_offset,
    plan,
)
from sendloom.domain.zones import zone_or_default
from sendloom.errors import Refusal, Transient
from sendloom.ports import AcceptedRow, SeriesRow

router = APIRouter(prefix="/v1/reminder-series", tags=["reminder series"])

AT_ONCE = 6
"""Members created, moved or taken back at the same time."""
CHANGE_TRIES = 5
PAST = "past"
"""Why a member is taken back when the event comes nearer; one taken back for it may come again."""


@dataclass(frozen=True, slots=True)
class _MemberAsk(Ask):
    """Asks for one member. Its id says which of which series it is, so that asking twice makes one."""

    member: UUID

    @property
    def id(self) -> UUID:
        return self.member


@dataclass(frozen=True, slots=True)
class _Found:
    """One member as it is. `nth`: which reminder it is, or would be."""

    state: MemberState
    nth: int
    row: AcceptedRow | None


@router.post("", status_code=202)
async def create(
    request: Request,
    response: Response,
    body: SeriesRequest,
    caller: Sender,
    parts: PartsDep,
    key: IdempotencyKey,
) -> SeriesStatus:
    """Each offset becomes a reminder; those whose moment has passed are left out, and the answer says which."""
    hashed = parts.hashes.body_hash(caller.id, accept.canonical(await request.body()))
    id = series_id(caller.id, caller.mode, key)

    async def take_on_all() -> tuple[SeriesStatus, bool]:
        row = await parts.series.get(caller.id, id)
        replayed = row is not None
        if row is None:
            row, replayed = await parts.series.insert_or_match(
                await _row(parts, caller, body, id, hashed)
            )
        else:
            require_same_body(row.body_hmac, hashed)
        # Also when it was there: what a crash left undone is done now.
        return await _carry_out(parts, caller, row), replayed

    status, replayed = await within(take_on_all())
    if replayed:
        response.headers[REPLAY_HEADER] = "true"
    return status


async def _row(
    parts: Parts, caller: Caller, body: SeriesRequest, id: UUID, hashed: bytes
) -> SeriesRow:
    """
    Raises:
        Refusal: with nothing written.
    """
    members: dict[Offset, str] = {}
    for n, given in enumerate(body.offsets):
        one = OffsetBody(before=given) if isinstance(given, str) else given
        offset = parse_offset(one.before, field=f"offsets.{n}")
        if offset in members:
            raise Refusal("bad_offset", f"{offset.text} is there twice", field=f"offsets.{n}")
        members[offset] = one.template_id or body.template_id
    event = due_of(body.event)
    for template in sorted(set(members.values())):
        found = await accept.find(parts, caller, body.category, template, body.recipient_id)
        accept.require_variables(parts, caller, found, body.variables)
        accept.usable(found)
        accept.expiry(accept.now(), body.ttl_seconds, found.category)
        assert found.person is not None
        zone, _ = zone_or_default(found.person.zone, caller.tenant.default_zone)
    if all(due_before(event, offset, zone)[1] <= accept.now() for offset in members):
        raise Refusal("due_past", "every one of its moments has passed", field="event")
    return SeriesRow(
        tenant=caller.id,
        id=id,
        mode=caller.mode,
        body_hmac=hashed,
        category=body.category,
        recipient_id=body.recipient_id,
        correlation_id=body.correlation_id or f"series:{id}",
        event_at=event.at,
        event_local=event.local,
        content=SeriesContent(
            variables=body.variables,
            lateness=body.lateness,
            grace_seconds=body.grace_seconds,
            ttl_seconds=body.ttl_seconds,
            members=[
                SeriesMember(before=offset.text, template_id=template)
                for offset, template in members.items()
            ],
        ),
        created_at=accept.now(),
    )


@router.get("/{id}")
@timely
async def show(id: UUID, caller: Reader, parts: PartsDep) -> SeriesStatus:
    """Its members: waiting, left out, or how each ended."""
    row = await _find(parts, caller, id)
    return await _status(parts, row, await _zone(parts, caller, row))


async def _find(parts: Parts, caller: Caller, id: UUID) -> SeriesRow:
    row = await parts.series.get(caller.id, id)
    if row is None or not may_see(caller, row.mode):
        raise Refusal("not_found", f"there is no reminder series {id}", status=404)
    return row


@router.put("/{id}")
async def move(id: UUID, body: SeriesMove, caller: Sender, parts: PartsDep) -> SeriesStatus:
    """The event has moved. Safe to repeat: a repeat finishes what an interruption left."""
    event = due_of(body.event)
    for _ in range(CHANGE_TRIES):
        row = await within(_find(parts, caller, id))
        caller.require_category(row.category)
        if row.cancelled:
            raise Refusal("series_cancelled", "it was cancelled", status=409)
        if (row.event_at, row.event_local) == (event.at, event.local):
            return await _carry_out(parts, caller, row)
        moved = await within(
            parts.series.replace(
                replace(row, event_at=event.at, event_local=event.local), row.version
            )
        )
        if moved is not None:
            return await _carry_out(parts, caller, moved)
    raise Transient("the series is being changed by others")


@router.delete("/{id}")
async def cancel(id: UUID, caller: Sender, parts: PartsDep) -> SeriesStatus:
    """Take back all that are open. What is being sent, or was, says so in its state."""
    for _ in range(CHANGE_TRIES):
        row = await within(_find(parts, caller, id))
        caller.require_category(row.category)
        if not row.cancelled:
            changed = await within(parts.series.replace(replace(row, cancelled=True), row.version))
            if changed is None:
                continue
            row = changed
        return await _carry_out(parts, caller, row)
    raise Transient("the series is being changed by others")


# --- carrying it out ----------------------------------------------------------------------------------------------------


async def _carry_out(parts: Parts, caller: Caller, row: SeriesRow) -> SeriesStatus:
    """Make the members agree with the row; again when the row was changed meanwhile."""
    room = asyncio.Semaphore(AT_ONCE)
    for _ in range(CHANGE_TRIES):
        zone = await _zone(parts, caller, row)
        found = await _members(parts, row)

        async def one(step: Step, row: SeriesRow = row, found: Any = found) -> None:
            async with room:
                await _do(parts, caller, row, step, found[step.offset])

        if row.cancelled:
            await asyncio.gather(
                *(_take_back(parts, caller, m, "cancelled") for m in found.values())
            )
        else:
            states = {offset: member.state for offset, member in found.items()}
            steps = plan(_event(row), states, accept.now(), zone)
            await asyncio.gather(*(one(step) for step in steps))
        now_there = await parts.series.get(row.tenant, row.id)
        assert now_there is not None
        if now_there.version == row.version:
            return await _status(parts, row, zone)
        row = now_there
    raise Transient("the series is being changed by others")


def _event(row: SeriesRow) -> Due:
    return Due(at=row.event_at, local=row.event_local)


async def _zone(parts: Parts, caller: Caller, row: SeriesRow) -> ZoneInfo:
    [person] = await parts.people.people(row.tenant, row.category, [row.recipient_id], False)
    zone, _ = zone_or_default(person.zone, caller.tenant.default_zone)
    return zone


async def _members(parts: Parts, row: SeriesRow) -> dict[Offset, _Found]:
    offsets = [parse_offset(member.before) for member in row.content.members]
    found = await asyncio.gather(*(_member(parts, row, offset) for offset in offsets))
    return dict(zip(offsets, found, strict=True))


async def _member(parts: Parts, series: SeriesRow, offset: Offset) -> _Found:
    last: AcceptedRow | None = None
    nth = 0
    while True:
        id = series_member_id(series.id, offset.text, nth)
        row = await parts.accepted.get(series.tenant, id)
        if row is None:
            return _Found(MemberState.ABSENT, nth, last)
        if await parts.accepted.get(series.tenant, child_id(id, FIRE)) is not None:
            return _Found(MemberState.SENT, nth, row)
        if row.closed_at is None:
            return _Found(MemberState.OPEN, nth, row)
        if not _may_come_again(row):
            return _Found(MemberState.SENT, nth, row)
        last, nth = row, nth + 1


def _may_come_again(row: AcceptedRow) -> bool:
    """It was skipped as late, or taken back by us because its moment had passed; not taken back by somebody."""
    outcome = row.outcome or {}
    kind = outcome.get("state") or outcome.get("kind")
    return kind == "skipped" or (kind == "cancelled" and outcome.get("reason") == PAST)


async def _do(parts: Parts, caller: Caller, row: SeriesRow, step: Step, found: _Found) -> None:
    match step.action:
        case Action.CREATE:
            assert step.due is not None
            await _create(parts, caller, row, step.offset, step.due, found.nth)
        case Action.MOVE if found.row is not None and found.row.due_at != step.at:
            due = step.due
            assert due is not None
            id = found.row.id
            await _unless_too_late(
                ask_workflow(parts, found.row, lambda: parts.workflows.reschedule_reminder(id, due))
            )
        case Action.MOVE if found.row is not None:
            await accept.start(parts, found.row)
        case Action.CANCEL:
            await _take_back(parts, caller, found, PAST)
        case _:
            pass


async def _take_back(parts: Parts, caller: Caller, found: _Found, reason: str) -> None:
    if found.state is MemberState.OPEN and found.row is not None:
        await _unless_too_late(cancel_row(parts, caller, found.row, reason))


async def _unless_too_late(work: Any) -> None:
    """What has just fired, or passed, stays as it is; its state says so."""
    try:
        await work
    except Refusal as e:
        if e.code not in ("too_late", "due_past"):
            raise


async def _create(
    parts: Parts, caller: Caller, row: SeriesRow, offset: Offset, due: Due, nth: int
) -> None:
    id = series_member_id(row.id, offset.text, nth)
    content = row.content
    template = {member.before: member.template_id for member in content.members}[offset.text]
    # What names it, not when it is due: that may be asked for again after the event has moved.
    body = f'{{"series":"{row.id}","before":"{offset.text}","nth":{nth}}}'
    ask = _MemberAsk(
        caller,
        Kind.REMINDER,
        f"series/{row.id}/{offset.text}/{nth}",
        body.encode(),
        accept.now(),
        id,
    )
    await _unless_too_late(
        take_on(
            parts,
            ask,
            ReminderRequest(
                recipient_id=row.recipient_id,
                category=row.category,
                template_id=template,
                due=DueBody(at=due.at, local=due.local),
                variables=content.variables,
                lateness=LatenessPolicy(content.lateness),
                grace_seconds=content.grace_seconds,
                ttl_seconds=content.ttl_seconds,
                correlation_id=row.correlation_id,
            ),
        )
    )


# --- saying how it is ---------------------------------------------------------------------------------------------------


async def _status(parts: Parts, row: SeriesRow, zone: ZoneInfo) -> SeriesStatus:
    found = await _members(parts, row)
    event = _event(row)
    members = await asyncio.gather(
        *(
            _member_status(parts, row, offset, member, due_before(event, offset, zone)[1])
            for offset, member in found.items()
        )
    )
    return SeriesStatus(
        id=row.id,
        mode=row.mode,
        state="cancelled" if row.cancelled else "active",
        recipient_id=row.recipient_id,
        category=row.category,
        correlation_id=row.correlation_id,
        event_at=due_before(event, Offset(0, 0), zone)[1].astimezone(UTC),
        created_at=row.created_at,
        members=sorted(members, key=lambda member: member.due_at),
    )


async def _member_status(
    parts: Parts, series: SeriesRow, offset: Offset, found: _Found, due_at: datetime
) -> SeriesMemberStatus:
    template = {member.before: member.template_id for member in series.content.members}
    state, id = "left_out", None
    if found.row is not None:
        shown = await reminder_status(parts, found.row)
        id, due_at = found.row.id, found.row.due_at or due_at
        state = shown.state
        if found.state is MemberState.ABSENT and not series.cancelled:
            state = "left_out"
    return SeriesMemberStatus(
        before=offset.text,
        template_id=template[offset.text],
        state=state,
        due_at=due_at,
        id=id,
    )
