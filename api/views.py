"""What is said of a message: from the accepted row, its decision and its claims, never from Temporal (ACC-6)."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from api.auth import Caller
from api.deps import Parts
from api.timing import within
from schemas.api import MessageStatus
from schemas.kinds import Channel, ClaimState, Kind, Mode, RecipientState
from schemas.notifications import ChannelView, DecisionKey, DeliveryKey
from sendloom.domain.ids import delivery_id
from sendloom.domain.outcomes import MEANING, OPEN
from sendloom.errors import Refusal
from sendloom.ports import AcceptedRow, ClaimRow, Decision

PENDING = RecipientState.PENDING.value


def decision_key(row: AcceptedRow) -> DecisionKey:
    """A single message is its own campaign, frozen when it was accepted."""
    return DecisionKey(
        tenant=row.tenant,
        frozen_at=row.accepted_at,
        campaign_id=row.id,
        recipient_id=row.recipient_id or "",
    )


async def message_status(parts: Parts, row: AcceptedRow) -> MessageStatus:
    """The truth about one notification or passcode, from the first moment on."""
    decision, claims = await asyncio.gather(
        parts.decisions.read(decision_key(row)),
        parts.ledger.of_campaign(row.tenant, row.accepted_at, row.id),
    )
    return MessageStatus(**status_fields(row, decision, claims))


def status_fields(
    row: AcceptedRow, decision: Decision | None, claims: Iterable[ClaimRow]
) -> dict[str, Any]:
    """The fields of a MessageStatus."""
    state, reason = _state(row.outcome, decision)
    return {
        "id": row.id,
        "kind": row.kind,
        "mode": row.mode,
        "state": state,
        "reason": reason,
        "deferred_until": _deferred_until(decision),
        "recipient_id": row.recipient_id,
        "category": row.category,
        "accepted_at": row.accepted_at,
        "expires_at": row.expires_at,
        "closed_at": row.closed_at,
        "correlation_id": row.correlation_id,
        "channels": _channels(decision, claims),
    }


def _deferred_until(decision: Decision | None) -> datetime | None:
    if decision is None or decision.state is not RecipientState.DEFERRED:
        return None
    return decision.due_at or decision.not_before


def _state(outcome: Mapping[str, Any] | None, decision: Decision | None) -> tuple[str, str | None]:
    """Proof of a send wins; then how it was closed; then what is resolved so far."""
    if decision is not None and decision.state is RecipientState.SENT:
        return decision.state, None
    kind = str((outcome or {}).get("kind", ""))
    if outcome is not None and kind in MEANING:
        said = outcome.get("reason") or outcome.get("code")
        reason = str(said) if said else decision.reason if decision is not None else None
        return MEANING[kind].api, reason
    if decision is not None:
        return decision.state, decision.reason
    return PENDING, None


def _channels(decision: Decision | None, claims: Iterable[ClaimRow]) -> list[ChannelView]:
    views = [channel_view(claim) for claim in claims]
    if decision is not None and decision.channel is not None and decision.state in OPEN:
        planned = _planned_id(decision, decision.channel)
        if all(view.delivery_id != planned for view in views):
            views.append(
                ChannelView(channel=decision.channel, delivery_id=planned, state="accepted")
            )
    return views


def _planned_id(decision: Decision, channel: Channel) -> str:
    return delivery_id(
        DeliveryKey(**decision.key.model_dump(), channel=channel, send_no=decision.send_no)
    )


def channel_view(claim: ClaimRow) -> ChannelView:
    """One delivery, as far as the channel can know. A status is a column of its own, so order does not matter."""
    return ChannelView(
        channel=claim.key.channel,
        delivery_id=delivery_id(claim.key),
        state=_word(claim),
        attempt=claim.attempt,
        provider=claim.provider,
        provider_message_id=claim.provider_message_id,
        code=claim.code,
        sent_at=claim.recorded_at if claim.state is ClaimState.SENT else None,
        delivered_at=claim.delivered_at,
        opened_at=claim.opened_at,
        bounced_at=claim.bounced_at,
    )


def _word(claim: ClaimRow) -> str:
    if claim.state is ClaimState.CLAIMED:
        # A lease that ended without a record is what settle will call unknown.
        return "unknown" if claim.lease_over else "sending"
    if claim.state is not ClaimState.SENT:
        return claim.state
    if claim.bounced_at is not None:
        return "bounced"
    if claim.opened_at is not None:
        return "opened"
    return "delivered" if claim.delivered_at is not None else "sent"


async def find_row(parts: Parts, caller: Caller, kind: Kind, id: UUID) -> AcceptedRow:
    """
    Raises:
        Refusal: `not_found`, also for another tenant's; a test key sees nothing live.
    """
    row = await within(parts.accepted.get(caller.id, id))
    if row is None or row.kind is not kind or not may_see(caller, row.mode):
        raise Refusal("not_found", f"there is no {kind} {id}", status=404)
    return row


def may_see(caller: Caller, mode: Mode) -> bool:
    return mode is Mode.TEST or caller.mode is Mode.LIVE
