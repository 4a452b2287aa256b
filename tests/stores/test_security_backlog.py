"""How long the oldest security message has waited to be called for (LANE-3)."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from schemas.kinds import Channel, Kind, MessageClass, Mode, RecipientState
from schemas.notifications import DecisionKey
from sendloom.ports import AcceptedRow, ClaimScope, Decision, Want
from tests.stores.conftest import Stores, World


async def accepted(
    stores: Stores,
    world: World,
    seconds_ago: float,
    message_class: MessageClass = MessageClass.SECURITY,
    due_at: datetime | None = None,
) -> AcceptedRow:
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    row = AcceptedRow(
        tenant=world.tenant,
        id=uuid4(),
        mode=Mode.LIVE,
        kind=Kind.PASSCODE,
        idempotency_key=str(uuid4()),
        body_hmac=b"x",
        message_class=message_class,
        category="security.otp",
        recipient_id="r-1",
        accepted_at=at,
        expires_at=at + timedelta(minutes=10),
        workflow_input=b"{}",
        content=b"{}",
        due_at=due_at,
    )
    await stores.accepted.insert_or_match(row)
    return row


async def age(stores: Stores) -> float | None:
    found = await stores.accepted.oldest_waiting_security(timedelta(seconds=1))
    return None if found is None else found.total_seconds()


def scope(row: AcceptedRow, id: UUID) -> ClaimScope:
    return ClaimScope(row.tenant, row.accepted_at, id, 0, 0, Channel.SMS)


async def test_only_what_nobody_has_called_for_counts(stores: Stores, world: World) -> None:
    await stores.pool.execute("UPDATE accepted SET closed_at = now() WHERE closed_at IS NULL")
    assert await age(stores) is None
    await accepted(stores, world, 100, MessageClass.TRANSACTIONAL)
    await accepted(stores, world, 95, due_at=datetime.now(UTC) + timedelta(hours=1))
    assert await age(stores) is None

    # Far enough apart for a busy machine, and within the two minutes that are looked at.
    claimed = await accepted(stores, world, 90)
    suppressed = await accepted(stores, world, 70)
    closed = await accepted(stores, world, 50)
    planned = await accepted(stores, world, 20)
    fresh = await accepted(stores, world, 0)
    assert 90 <= (await age(stores) or 0) < 120

    # In a call, which may hang: more room for security would not make it quicker.
    await stores.ledger.claim(
        scope(claimed, claimed.id), [Want("r-1")], uuid4(), timedelta(seconds=30)
    )
    for row, state in ((suppressed, RecipientState.SUPPRESSED), (planned, RecipientState.PENDING)):
        key = DecisionKey(
            tenant=row.tenant,
            frozen_at=row.accepted_at,
            campaign_id=row.id,
            shard=0,
            page=0,
            recipient_id="r-1",
        )
        await stores.decisions.insert([Decision(key, state, channel=Channel.SMS)])
    await stores.accepted.close(closed.tenant, closed.id, {"kind": "expired"})
    found = await age(stores)
    assert found is not None
    assert 20 <= found < 50, "only the planned one waits"
    await stores.accepted.close(planned.tenant, planned.id, {"kind": "accepted"})
    await stores.accepted.close(fresh.tenant, fresh.id, {"kind": "accepted"})
    assert await age(stores) is None
