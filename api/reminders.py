"""Reminders: asked for now, sent at their moment, moved or taken back in between."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from activities.reminders import FIRE
from api import accept
from api.accept import Ask, Found
from api.auth import Caller
from api.deps import IdempotencyKey, Parts, PartsDep, Reader, Sender
from api.ports import Gone, TooLate
from api.timing import timely, within
from api.views import PENDING, find_row, may_see, message_status
from schemas.api import (
    REPLAY_HEADER,
    CancelBody,
    CancelledMany,
    CorrelationId,
    DueBody,
    ReminderAccepted,
    ReminderRequest,
    ReminderStatus,
    RescheduleBody,
)
from schemas.content import Content
from schemas.kinds import Kind
from schemas.notifications import Due, ReminderInput, ResolveDue
from sendloom.domain.ids import child_id
from sendloom.domain.wall_time import exists, parse_local
from sendloom.domain.zones import zone_or_default
from sendloom.errors import Refusal
from sendloom.ports import AcceptedRow

router = APIRouter(prefix="/v1/reminders", tags=["reminders"])

AT_ONCE = 20
"""Cancellations by correlation id in flight."""
CANCELLED = "cancelled"


@router.post("", status_code=202)
async def create(
    request: Request,
    response: Response,
    body: ReminderRequest,
    caller: Sender,
    parts: PartsDep,
    key: IdempotencyKey,
) -> ReminderAccepted:
    """Accepted; the answer says when it is due, and whether a change of clocks moved that."""
    ask = Ask(caller, Kind.REMINDER, key, await request.body(), accept.now())
    row, replayed = await within(take_on(parts, ask, body))
    if replayed:
        response.headers[REPLAY_HEADER] = "true"
    assert row.due_at is not None
    return ReminderAccepted(
        **accept.answer(row, replayed), due_at=row.due_at, due_moved=_content(row).due_moved
    )


async def take_on(parts: Parts, ask: Ask, body: ReminderRequest) -> tuple[AcceptedRow, bool]:
    caller = ask.caller

    async def read() -> Found:
        return await accept.find(parts, caller, body.category, body.template_id, body.recipient_id)

    async def make(found: Found) -> AcceptedRow:
        category, person = found.category, found.person
        assert person is not None
        parts.leave_room(caller, category)
        accept.require_variables(parts, caller, found, body.variables)
        channels = accept.usable(found)
        ttl = accept.expiry(ask.now, body.ttl_seconds, category) - ask.now
        given = ReminderInput(
            tenant=caller.id,
            mode=caller.mode,
            reminder_id=ask.id,
            recipient_id=body.recipient_id,
            category=category.category,
            message_class=category.message_class,
            accepted_at=ask.now,
            due=due_of(body.due),
            lateness=body.lateness,
            grace_seconds=body.grace_seconds,
            ttl_seconds=int(ttl.total_seconds()),
            priority=category.priority,
        )
        resolved = await parts.resolve_due(
            ResolveDue(reminder=given, due=given.due, asked_at=ask.now)
        )
        if resolved.due_at is None:
            raise Refusal("due_past", "that moment has passed", field="due")
        moved = resolved.due != given.due
        if given.due.local is not None:
            zone, _ = zone_or_default(person.zone, caller.tenant.default_zone)
            moved = moved or not exists(parse_local(given.due.local, field="due.local"), zone)
        return accept.new_row(
            ask,
            category,
            recipient_id=body.recipient_id,
            correlation_id=body.correlation_id,
            due_at=resolved.due_at,
            # One that is late already is sent now, and is good from now.
            expires_at=max(resolved.due_at, ask.now) + ttl,
            workflow_input=given.model_dump_json().encode(),
            content=accept.content(
                found,
                body.template_id,
                body.variables,
                accept.stamped(parts, caller, found, channels),
                due_moved=moved,
            ),
        )

    row, replayed = await accept.accept(parts, ask, read, make)
    await accept.start(parts, row)
    return row, replayed


def due_of(body: DueBody) -> Due:
    """
    Raises:
        Refusal: `bad_local_time`.
    """
    if body.local is not None:
        parse_local(body.local, field="due.local")
        return Due(local=body.local)
    assert body.at is not None
    return Due(at=body.at.astimezone(UTC))


def _content(row: AcceptedRow) -> Content:
    return Content.model_validate_json(row.content)


@router.get("/{id}")
@timely
async def show(id: UUID, caller: Reader, parts: PartsDep) -> ReminderStatus:
    """Where it is: waiting, or what became of the notification it sent."""
    return await _show(parts, caller, id)


async def _show(parts: Parts, caller: Caller, id: UUID) -> ReminderStatus:
    return await reminder_status(parts, await find_row(parts, caller, Kind.REMINDER, id))


async def reminder_status(parts: Parts, row: AcceptedRow) -> ReminderStatus:
    child = await parts.accepted.get(row.tenant, child_id(row.id, FIRE))
    notification = await message_status(parts, child) if child is not None else None
    outcome = row.outcome or {}
    if notification is not None:
        state, reason = notification.state, notification.reason
        state = "firing" if state == PENDING else state
    elif row.closed_at is not None:
        state = str(outcome.get("state") or outcome.get("kind") or CANCELLED)
        reason = outcome.get("reason")
    else:
        state, reason = "scheduled", None
    return ReminderStatus(
        id=row.id,
        mode=row.mode,
        state=state,
        reason=reason,
        recipient_id=row.recipient_id,
        category=row.category,
        accepted_at=row.accepted_at,
        due_at=row.due_at,
        due_moved=_content(row).due_moved,
        closed_at=row.closed_at,
        correlation_id=row.correlation_id,
        notification=notification,
    )


@router.post("/cancel")
async def cancel_many(
    body: CancelBody,
    caller: Sender,
    parts: PartsDep,
    correlation_id: Annotated[CorrelationId, Query()],
) -> CancelledMany:
    """Cancel every reminder of a correlation id. Safe to repeat; what had left is listed as too late."""
    rows = [
        row
        for row in await parts.accepted.by_correlation(caller.id, correlation_id)
        if row.kind is Kind.REMINDER and may_see(caller, row.mode)
    ]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(row: AcceptedRow) -> bool:
        async with room:
            try:
                await cancel_row(parts, caller, row, body.reason)
            except Refusal as e:
                if e.code != "too_late":
                    raise
                return False
            return True

    open_rows = [row for row in rows if row.closed_at is None]
    done = await asyncio.gather(*(one(row) for row in open_rows))
    return CancelledMany(
        cancelled=sum(done),
        already_closed=len(rows) - len(open_rows),
        too_late=[row.id for row, cancelled in zip(open_rows, done, strict=True) if not cancelled],
    )


@router.post("/{id}/cancel")
async def cancel(id: UUID, body: CancelBody, caller: Sender, parts: PartsDep) -> ReminderStatus:
    """Take it back. Refused as `too_late` once it is being sent."""
    row = await find_row(parts, caller, Kind.REMINDER, id)
    if not _is_cancelled(row):
        await cancel_row(parts, caller, row, body.reason)
    return await _show(parts, caller, id)


def _is_cancelled(row: AcceptedRow) -> bool:
    return row.closed_at is not None and (row.outcome or {}).get("kind") == CANCELLED


async def cancel_row(parts: Parts, caller: Caller, row: AcceptedRow, reason: str) -> None:
    """The workflow decides whether it is too late; then our own row says so too, and is asked last before a send."""
    if row.closed_at is not None:
        raise _too_late("it has ended")
    try:
        await parts.workflows.cancel_reminder(row.id, reason, caller.actor)
    except TooLate as e:
        raise _too_late(str(e)) from None
    except Gone:
        # Never started, or lost with Temporal's data. The row stops whoever starts it later.
        if await parts.accepted.get(row.tenant, child_id(row.id, FIRE)) is not None:
            raise _too_late("it has been sent") from None
    await parts.accepted.close(
        row.tenant, row.id, {"kind": CANCELLED, "state": CANCELLED, "reason": reason}
    )


def _too_late(why: str) -> Refusal:
    return Refusal("too_late", why or "it has ended", status=409)


@router.post("/{id}/reschedule")
async def reschedule(
    id: UUID, body: RescheduleBody, caller: Sender, parts: PartsDep
) -> ReminderStatus:
    """Move it. Refused as `too_late` once it is being sent, as `due_past` for a moment that has passed."""
    row = await find_row(parts, caller, Kind.REMINDER, id)
    due = due_of(body.due)
    await ask_workflow(parts, row, lambda: parts.workflows.reschedule_reminder(id, due))
    return await _show(parts, caller, id)


@router.post("/{id}/send-now")
async def send_now(id: UUID, caller: Sender, parts: PartsDep) -> ReminderStatus:
    """Do not wait. Refused as `too_late` once it is being sent."""
    row = await find_row(parts, caller, Kind.REMINDER, id)
    await ask_workflow(parts, row, lambda: parts.workflows.send_reminder_now(id, caller.actor))
    return await _show(parts, caller, id)


async def ask_workflow(
    parts: Parts, row: AcceptedRow, update: Callable[[], Awaitable[None]]
) -> None:
    """An update of the workflow, which is started first if a crash kept it from that."""
    if row.closed_at is not None:
        raise _too_late("it has ended")
    await accept.start(parts, row)
    try:
        await update()
    except (TooLate, Gone) as e:
        raise _too_late(str(e)) from None
