"""What people said they want: opt-outs, which hold at once, and consents, which are kept with their wording."""

from datetime import UTC, datetime

from fastapi import APIRouter

from api.auth import Caller
from api.deps import Keeper, Parts, PartsDep, Reader
from api.recipients import Id, require
from api.timing import timely
from schemas.api import (
    ConsentAnswer,
    ConsentsRequest,
    Page,
    PreferenceAnswer,
    PreferencesRequest,
)
from sendloom.rows import Consent, Preference

router = APIRouter(prefix="/v1/recipients/{recipient_id}", tags=["preferences"])


@router.put("/preferences")
@timely
async def set_preferences(
    recipient_id: Id, body: PreferencesRequest, caller: Keeper, parts: PartsDep
) -> Page[PreferenceAnswer]:
    """Change these; the others stay. Senders look at recent opt-outs before every call."""
    await require(parts, caller, recipient_id)
    await parts.recipients.set_preferences(
        caller.id,
        recipient_id,
        [Preference(p.category, p.channel, p.opted_out, p.source) for p in body.preferences],
    )
    return await _preferences(parts, caller, recipient_id)


@router.get("/preferences")
@timely
async def preferences(recipient_id: Id, caller: Reader, parts: PartsDep) -> Page[PreferenceAnswer]:
    """Everything they opted out of, or back into."""
    await require(parts, caller, recipient_id)
    return await _preferences(parts, caller, recipient_id)


async def _preferences(parts: Parts, caller: Caller, recipient_id: str) -> Page[PreferenceAnswer]:
    stored = await parts.recipients.preferences(caller.id, recipient_id)
    return Page(
        items=[
            PreferenceAnswer(
                category=p.category,
                channel=p.channel,
                opted_out=p.opted_out,
                source=p.source,
                changed_at=p.changed_at or datetime.now(UTC),
            )
            for p in stored
        ]
    )


@router.put("/consents")
@timely
async def record_consents(
    recipient_id: Id, body: ConsentsRequest, caller: Keeper, parts: PartsDep
) -> Page[ConsentAnswer]:
    """Add what they agreed to, or took back; the history is kept."""
    await require(parts, caller, recipient_id)
    now = datetime.now(UTC)
    await parts.recipients.record_consents(
        caller.id,
        recipient_id,
        [
            Consent(c.category, c.channel, c.granted, c.at or now, c.source, c.wording)
            for c in body.consents
        ],
    )
    return await _consents(parts, caller, recipient_id)


@router.get("/consents")
@timely
async def consents(recipient_id: Id, caller: Reader, parts: PartsDep) -> Page[ConsentAnswer]:
    """What holds now."""
    await require(parts, caller, recipient_id)
    return await _consents(parts, caller, recipient_id)


async def _consents(parts: Parts, caller: Caller, recipient_id: str) -> Page[ConsentAnswer]:
    stored = await parts.recipients.consents(caller.id, recipient_id)
    return Page(
        items=[
            ConsentAnswer(
                category=c.category,
                channel=c.channel,
                granted=c.granted,
                at=c.at,
                source=c.source,
                wording=c.wording,
            )
            for c in stored
        ]
    )
