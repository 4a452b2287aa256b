"""What was sent is written alike in one statement and in two steps, and no decision is ahead of its claim."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest

from schemas.kinds import Channel, ClaimState, RecipientState
from schemas.notifications import DecisionKey
from sendloom.errors import StoreUnavailable
from sendloom.ports import ClaimResult, ClaimScope, Decision, SentStore, Want
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.sent import PostgresSent, SentInTurn
from tests.stores.conftest import NOW, Stores, World

R = RecipientState
MINUTE = timedelta(minutes=1)
IDS = [f"r{n:02}" for n in range(30)]
NAMES = {id: f"m-{id}" for id in reversed(IDS)}


@pytest.fixture(params=["together", "in turn"])
def sent(request: pytest.FixtureRequest, stores: Stores) -> SentStore:
    in_turn = SentInTurn(stores.ledger, stores.decisions)
    return PostgresSent(stores.pool, in_turn) if request.param == "together" else in_turn


@pytest.fixture
def page(world: World) -> ClaimScope:
    return ClaimScope(world.tenant, NOW, uuid4(), 0, 0, Channel.EMAIL)


async def decide(
    stores: Stores, page: ClaimScope, ids: Sequence[str], state: RecipientState = R.PENDING
) -> None:
    due = NOW if state is R.DEFERRED else None
    await stores.decisions.insert(
        [Decision(_key(page, id), state, page.channel, due_at=due) for id in ids]
    )


def _key(page: ClaimScope, id: str) -> DecisionKey:
    return DecisionKey(
        tenant=page.tenant,
        frozen_at=page.frozen_at,
        campaign_id=page.campaign_id,
        shard=page.shard,
        page=page.page,
        recipient_id=id,
    )


async def decided(stores: Stores, page: ClaimScope, ids: Sequence[str]) -> set[RecipientState]:
    found = [await stores.decisions.read(_key(page, id)) for id in ids]
    assert all(one is not None and one.due_at is None for one in found)
    return {one.state for one in found if one is not None}


async def test_a_page_that_was_taken_is_recorded_and_moved(
    stores: Stores, page: ClaimScope, sent: SentStore
) -> None:
    owner, others = uuid4(), ["s1", "s2"]
    await decide(stores, page, IDS[:20] + others)
    # Proof wins over whatever was thought meanwhile.
    await decide(stores, page, IDS[20:25], R.DEFERRED)
    await decide(stores, page, IDS[25:], R.UNKNOWN)
    await stores.ledger.claim(page, [Want(id) for id in IDS + others], owner, MINUTE)
    await sent.write(page, owner, "p", NAMES)
    await sent.write(page, uuid4(), "q", {})
    found = await stores.ledger.read(page, [Want(id) for id in IDS])
    assert [row and row.provider_message_id for row in found] == [f"m-{id}" for id in IDS]
    assert {row and (row.state, row.provider, row.code) for row in found} == {
        (ClaimState.SENT, "p", None)
    }
    assert await decided(stores, page, IDS) == {R.SENT}
    assert await decided(stores, page, others) == {R.PENDING}
    left = await stores.ledger.read(page, [Want(id) for id in others])
    assert {row and row.state for row in left} == {ClaimState.CLAIMED}


async def test_some_recorded_before_or_lost_or_never_claimed_end_as_their_results_would(
    stores: Stores, page: ClaimScope, sent: SentStore
) -> None:
    owner = uuid4()
    await decide(stores, page, IDS)
    await stores.ledger.claim(page, [Want(id) for id in IDS[:-1]], owner, MINUTE)
    before = [
        ClaimResult(IDS[0], 1, owner, ClaimState.SENT, provider="p", provider_message_id="old"),
        ClaimResult(IDS[1], 1, owner, ClaimState.FAILED, provider="p", code="450"),
    ]
    await stores.ledger.record(page, before)
    await sent.write(page, owner, "p", NAMES)
    found = await stores.ledger.read(page, [Want(id) for id in IDS])
    assert {row and row.state for row in found} == {ClaimState.SENT}
    named = [row and row.provider_message_id for row in found]
    assert named == ["old", *(f"m-{id}" for id in IDS[1:])]
    assert await decided(stores, page, IDS) == {R.SENT}


async def test_nothing_is_moved_that_could_not_be_recorded(
    stores: Stores, page: ClaimScope
) -> None:
    class Away(PostgresLedger):
        async def record(self, scope: ClaimScope, results: Sequence[ClaimResult]) -> None:
            raise StoreUnavailable("away")

    owner = uuid4()
    await decide(stores, page, IDS)
    await stores.ledger.claim(page, [Want(id) for id in IDS[:-1]], owner, MINUTE)
    in_turn = SentInTurn(Away(stores.pool), stores.decisions)
    for sent in (in_turn, PostgresSent(stores.pool, in_turn)):
        with pytest.raises(StoreUnavailable):
            await sent.write(page, owner, "p", NAMES)
        assert await decided(stores, page, IDS) == {R.PENDING}
