"""Recipients, their addresses and devices, and what was sent to them. An address goes in and never comes out."""

import asyncio
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from api.auditing import audited
from api.auth import Caller
from api.deps import Admin, Keeper, Parts, PartsDep, Reader
from api.timing import timely
from api.views import may_see, message_status
from schemas.api import (
    AddressAnswer,
    AddressBody,
    DeviceAnswer,
    DeviceBody,
    DeviceId,
    MessageStatus,
    Page,
    RecipientAnswer,
    RecipientRequest,
)
from schemas.kinds import Channel, Kind
from sendloom.domain.addresses import normalise
from sendloom.domain.list_lines import check_recipient_id
from sendloom.domain.locales import validate_locale
from sendloom.domain.segments import check_attributes
from sendloom.domain.zones import validate_zone
from sendloom.errors import Refusal
from sendloom.rows import AddressWrite, RecipientRow, RecipientWrite, StoredAddress

router = APIRouter(prefix="/v1/recipients", tags=["recipients"])

Id = Annotated[str, Path(max_length=400)]


@router.put("/{recipient_id}")
@timely
async def put(
    recipient_id: Id, body: RecipientRequest, caller: Keeper, parts: PartsDep
) -> RecipientAnswer:
    """Create one, or change what is given; an address left out stays as it is."""
    check_recipient_id(recipient_id)
    check_attributes(body.attributes)
    write = RecipientWrite(
        recipient_id,
        locale=validate_locale(body.locale) if body.locale is not None else None,
        zone=validate_zone(body.zone) if body.zone is not None else None,
        attributes=body.attributes if "attributes" in body.model_fields_set else None,
        internal=body.internal if "internal" in body.model_fields_set else None,
        addresses=tuple(
            _address(caller, channel, given, field)
            for channel, given, field in (
                (Channel.EMAIL, body.email, "email.address"),
                (Channel.SMS, body.phone, "phone.address"),
            )
            if given is not None
        ),
    )
    await parts.recipients.upsert(caller.id, [write])
    return await _show(parts, caller, recipient_id)


def _address(caller: Caller, channel: Channel, given: AddressBody, field: str) -> AddressWrite:
    address = normalise(
        channel, given.address, default_region=caller.tenant.default_region, field=field
    )
    return AddressWrite(channel, address.deliverable, address.lookup, given.verified)


@router.get("/{recipient_id}")
@timely
async def show(recipient_id: Id, caller: Reader, parts: PartsDep) -> RecipientAnswer:
    """What is known of them, without the addresses themselves."""
    return await _show(parts, caller, recipient_id)


async def _show(parts: Parts, caller: Caller, recipient_id: str) -> RecipientAnswer:
    row = await require(parts, caller, recipient_id)
    return RecipientAnswer(
        recipient_id=row.recipient_id,
        locale=row.locale,
        zone=row.zone,
        attributes=dict(row.attributes),
        internal=row.internal,
        addresses=[_shown(parts, caller, address) for address in row.addresses],
        devices=[
            DeviceAnswer(device_id=device.device_id, channel=device.channel)
            for device in row.devices
            if device.disabled_at is None
        ],
        erased_at=row.erased_at,
    )


def _shown(parts: Parts, caller: Caller, address: StoredAddress) -> AddressAnswer:
    return AddressAnswer(
        channel=address.channel,
        hint=hint(address.channel, parts.open_address(caller.id, address.sealed)),
        verified=address.verified_at is not None,
        dead_reason=address.dead_reason,
        suppressed=address.suppressed,
    )


def hint(channel: Channel, address: str) -> str:
    """Enough to recognise an address one knows, too little to write to it."""
    if channel is Channel.EMAIL:
        local, _, domain = address.rpartition("@")
        name, dot, rest = domain.partition(".")
        return f"{local[:1]}…@{name[:1]}…{dot}{rest}"
    return f"{address[:2]}…{address[-2:]}"


async def require(parts: Parts, caller: Caller, recipient_id: str) -> RecipientRow:
    """
    Raises:
        Refusal: `not_found`.
    """
    row = await parts.recipients.get(caller.id, recipient_id)
    if row is None:
        raise Refusal("not_found", "there is no such recipient", status=404)
    return row


@router.delete("/{recipient_id}", status_code=204)
async def erase(recipient_id: Id, caller: Admin, parts: PartsDep) -> Response:
    """Everything personal goes. Suppressions are keyed hashes and stay, so that the address is not written to again."""
    if not await parts.recipients.erase(caller.id, recipient_id):
        raise Refusal("not_found", "there is no such recipient", status=404)
    await audited(parts, caller, "recipient.erase", recipient_id)
    return Response(status_code=204)


@router.delete("/{recipient_id}/addresses/{channel}", status_code=204)
@timely
async def remove_address(
    recipient_id: Id, channel: Literal["email", "sms"], caller: Keeper, parts: PartsDep
) -> Response:
    """They are not reached on this channel any more."""
    if not await parts.recipients.remove_address(caller.id, recipient_id, Channel(channel)):
        raise Refusal("not_found", "there is no such address", status=404)
    return Response(status_code=204)


@router.put("/{recipient_id}/devices/{device_id}")
@timely
async def put_device(
    recipient_id: Id, device_id: DeviceId, body: DeviceBody, caller: Keeper, parts: PartsDep
) -> DeviceAnswer:
    """Say on every start of the app. A token that somebody else had moves here."""
    channel = Channel(body.channel)
    token = normalise(channel, body.token, field="token").lookup
    if not await parts.recipients.register_device(
        caller.id, recipient_id, device_id, channel, token
    ):
        raise Refusal("not_found", "there is no such recipient", status=404)
    return DeviceAnswer(device_id=device_id, channel=channel)


@router.delete("/{recipient_id}/devices/{device_id}", status_code=204)
@timely
async def remove_device(
    recipient_id: Id, device_id: DeviceId, caller: Keeper, parts: PartsDep
) -> Response:
    """Say on log-out."""
    if not await parts.recipients.remove_device(caller.id, recipient_id, device_id):
        raise Refusal("not_found", "there is no such device", status=404)
    return Response(status_code=204)


@router.get("/{recipient_id}/messages")
@timely
async def messages(
    recipient_id: Id,
    caller: Reader,
    parts: PartsDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    before: Annotated[datetime | None, Query(description="Only what was accepted earlier.")] = None,
) -> Page[MessageStatus]:
    """What was sent to them lately, newest first. Campaigns are under campaigns."""
    rows = await parts.accepted.by_recipient(caller.id, recipient_id, limit, before)
    shown = [
        row
        for row in rows
        if row.kind in (Kind.NOTIFICATION, Kind.PASSCODE) and may_see(caller, row.mode)
    ]
    items = await asyncio.gather(*(message_status(parts, row) for row in shown))
    full = len(rows) == limit
    return Page(items=list(items), next=rows[-1].accepted_at.isoformat() if full else None)
