"""Claims whose owner is gone and that nobody comes back for."""

from datetime import timedelta
from uuid import uuid4

from schemas.kinds import Channel, ClaimState
from sendloom.ports import ClaimScope, Want
from tests.stores.conftest import NOW, Stores, World

MINUTE = timedelta(minutes=1)


async def test_only_claims_long_past_their_lease_become_unknown(
    stores: Stores, world: World
) -> None:
    scope = ClaimScope(world.tenant, NOW, uuid4(), 0, 0, Channel.EMAIL)
    owner = uuid4()
    await stores.ledger.claim(scope, [Want("orphan")], owner, timedelta(minutes=-6))
    await stores.ledger.claim(scope, [Want("just-over")], owner, timedelta(minutes=-4))
    await stores.ledger.claim(scope, [Want("live")], owner, MINUTE)
    assert await stores.ledger.settle_orphans(timedelta(minutes=5), 100) >= 1
    rows = await stores.ledger.read(scope, [Want("orphan"), Want("just-over"), Want("live")])
    assert [(row.state, row.code) for row in rows if row] == [
        (ClaimState.UNKNOWN, "lease_over"),
        (ClaimState.CLAIMED, None),
        (ClaimState.CLAIMED, None),
    ]


async def test_they_are_settled_in_bounded_batches(stores: Stores, world: World) -> None:
    scope = ClaimScope(world.tenant, NOW, uuid4(), 0, 0, Channel.SMS)
    await stores.ledger.settle_orphans(timedelta(minutes=5), 10_000)
    wants = [Want(f"r{n}") for n in range(5)]
    await stores.ledger.claim(scope, wants, uuid4(), timedelta(minutes=-6))
    counts = [await stores.ledger.settle_orphans(timedelta(minutes=5), 2) for _ in range(4)]
    assert counts == [2, 2, 1, 0]
