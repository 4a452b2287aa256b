"""One notification: ask for it, see what became of it, take it back while that is possible."""

from uuid import UUID

from fastapi import APIRouter, Request, Response

from activities.reminders import FIRE
from api import accept
from api.accept import Ask, Found
from api.deps import IdempotencyKey, Parts, PartsDep, Reader, Sender
from api.ports import Gone, TooLate
from api.timing import timely, within
from api.views import find_row, message_status
from schemas.api import (
    REPLAY_HEADER,
    AcceptedAnswer,
    CancelBody,
    MessageStatus,
    NotificationRequest,
)
from schemas.kinds import Kind
from schemas.notifications import NotificationInput
from sendloom.domain.ids import child_id
from sendloom.errors import Refusal
from sendloom.ports import AcceptedRow

router = APIRouter(prefix="/v1/notifications", tags=["notifications"])


@router.post("", status_code=202)
async def create(
    request: Request,
    response: Response,
    body: NotificationRequest,
    caller: Sender,
    parts: PartsDep,
    key: IdempotencyKey,
) -> AcceptedAnswer:
    """Accepted once it is durable and its workflow has started; nothing is sent before the answer."""
    ask = Ask(caller, Kind.NOTIFICATION, key, await request.body(), accept.now())
    row, replayed = await within(take_on(parts, ask, body))
    if replayed:
        response.headers[REPLAY_HEADER] = "true"
    return AcceptedAnswer(**accept.answer(row, replayed))


async def take_on(parts: Parts, ask: Ask, body: NotificationRequest) -> tuple[AcceptedRow, bool]:
    """Accept it and start it, once."""
    caller = ask.caller

    async def read() -> Found:
        return await accept.find(parts, caller, body.category, body.template_id, body.recipient_id)

    async def make(found: Found) -> AcceptedRow:
        category = found.category
        parts.leave_room(caller, category)
        accept.require_variables(parts, caller, found, body.variables)
        channels = accept.usable(found)
        expires_at = accept.expiry(ask.now, body.ttl_seconds, category)
        given = NotificationInput(
            tenant=caller.id,
            mode=caller.mode,
            notification_id=ask.id,
            recipient_id=body.recipient_id,
            category=category.category,
            message_class=category.message_class,
            accepted_at=ask.now,
            expires_at=expires_at,
            priority=category.priority,
        )
        return accept.new_row(
            ask,
            category,
            recipient_id=body.recipient_id,
            correlation_id=body.correlation_id,
            expires_at=expires_at,
            workflow_input=given.model_dump_json().encode(),
            content=accept.content(
                found,
                body.template_id,
                body.variables,
                accept.stamped(parts, caller, found, channels),
            ),
        )

    row, replayed = await accept.accept(parts, ask, read, make)
    await accept.start(parts, row)
    return row, replayed


@router.get("/{id}")
@timely
async def show(id: UUID, caller: Reader, parts: PartsDep) -> MessageStatus:
    """What became of it, by channel, from our own rows."""
    return await message_status(parts, await find_row(parts, caller, Kind.NOTIFICATION, id))


@router.post("/{id}/cancel")
async def cancel(id: UUID, body: CancelBody, caller: Sender, parts: PartsDep) -> MessageStatus:
    """Take it back. Refused as `too_late` when it has left, or has ended."""
    row = await find_row(parts, caller, Kind.NOTIFICATION, id)
    try:
        await _take_back(parts, row, body.reason, caller.actor)
    except (TooLate, Gone) as e:
        raise Refusal("too_late", str(e) or "it has ended", status=409) from None
    return await message_status(parts, row)


async def _take_back(parts: Parts, row: AcceptedRow, reason: str, by: str) -> None:
    """A reminder's is sent by the reminder's workflow, unless somebody started it again by itself."""
    try:
        await parts.workflows.cancel_notification(row.id, reason, by)
    except Gone:
        if row.parent_id is None or row.id != child_id(row.parent_id, FIRE):
            raise
        await parts.workflows.cancel_fired(row.parent_id, reason, by)
