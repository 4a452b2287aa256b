"""Stores beside a ledger on Cassandra say what the same stores say beside one on Postgres."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from schemas.kinds import Channel, Kind, MessageClass
from schemas.notifications import DeliveryKey
from sendloom.errors import StoreUnavailable
from sendloom.ports import ClaimRow, ClaimScope, Receipt, ReceiptStatus, Want
from sendloom.rows import AddressWrite, RecipientWrite
from sendloom.stores.cassandra import Address, connection
from sendloom.stores.ledger.beside import (
    AcceptedBeside,
    CampaignsBeside,
    PeopleBeside,
    RecipientsBeside,
)
from sendloom.stores.ledger.cassandra import CassandraLedger
from tests.stores.conftest import (
    NOW,
    Stores,
    World,
    a_cassandra_ledger,
    a_category,
    an_accepted,
)

pytestmark = pytest.mark.cassandra

CAT = "offers.weekly"


@pytest_asyncio.fixture
async def ledger(cassandra_address: Address, stores: Stores) -> AsyncIterator[CassandraLedger]:
    async with connection(cassandra_address) as connected:
        yield a_cassandra_ledger(connected, stores.pool)


def hash_of(stores: Stores, world: World, n: int) -> bytes:
    return stores.sealer.address_hash(world.tenant, Channel.EMAIL, f"r{n:03}@example.com")


async def test_a_page_and_its_people_know_who_is_suppressed(
    ledger: CassandraLedger, stores: Stores, world: World
) -> None:
    campaign = await world.campaign(3)
    campaigns = CampaignsBeside(stores.pool, stores.decisions, ledger)
    people = PeopleBeside(stores.pool, ledger)
    await ledger.suppress(world.tenant, Channel.EMAIL, hash_of(stores, world, 0), "stop", "x")
    # What Postgres has from before counts as well.
    await stores.ledger.suppress(
        world.tenant, Channel.EMAIL, hash_of(stores, world, 1), "manual", "x"
    )
    right = {"r000": "stop", "r001": "manual", "r002": None}
    await world.plan(campaign)
    assert campaign.version_id is not None
    sends = [
        send
        for shard in range(campaign.shards or 0)
        for page, _ in await campaigns.pages(world.tenant, campaign.version_id, shard)
        for send in await campaigns.page_sends(campaign, shard, page, Channel.EMAIL)
    ]
    assert {send.recipient_id: send.suppressed for send in sends} == right
    for shard in range(campaign.shards or 0):
        for page, _ in await campaigns.pages(world.tenant, campaign.version_id, shard):
            here = await campaigns.page_people(
                world.tenant, CAT, campaign.version_id, shard, page, False
            )
            for who, cohort in zip(here.recipient_ids, here.cohorts, strict=True):
                assert here.people[cohort].suppressed.get(Channel.EMAIL) == right[who]
    found = await people.people(world.tenant, CAT, list(right), False)
    sample = await people.sample(world.tenant, CAT, campaign.version_id, 99)
    for person in (*found, *(member.person for member in sample)):
        assert person.suppressed.get(Channel.EMAIL) == right[person.recipient_id]
    by_sms = (Channel.SMS,)
    [nowhere] = await people.people(world.tenant, CAT, ["r000"], False, channels=by_sms)
    [member] = await people.sample(world.tenant, CAT, campaign.version_id, 1, channels=by_sms)
    assert (nowhere.addresses, member.person.addresses) == ({}, {})


async def test_receipts_reach_the_guard_rails(
    ledger: CassandraLedger, stores: Stores, world: World
) -> None:
    campaign = await world.campaign(1)
    key = DeliveryKey(
        tenant=world.tenant,
        frozen_at=NOW,
        campaign_id=campaign.campaign_id,
        shard=0,
        page=0,
        channel=Channel.EMAIL,
        recipient_id="r000",
    )
    await ledger.receive([Receipt(key, ReceiptStatus.BOUNCED, NOW)])
    beside = await CampaignsBeside(stores.pool, stores.decisions, ledger).health(campaign)
    plain = await stores.campaigns.health(campaign)
    assert (beside.bounced, beside.complained) == (1, 0)
    assert (beside.seen, beside.control_at) == (plain.seen, plain.control_at)


async def test_a_recipient_shows_what_is_suppressed(
    ledger: CassandraLedger, stores: Stores, world: World
) -> None:
    recipients = RecipientsBeside(stores.pool, stores.sealer, ledger)
    mail = AddressWrite(Channel.EMAIL, "a@example.com", "a@example.com", False)
    await recipients.upsert(world.tenant, [RecipientWrite("a", addresses=(mail,))])
    address_hash = stores.sealer.address_hash(world.tenant, Channel.EMAIL, "a@example.com")
    await ledger.suppress(world.tenant, Channel.EMAIL, address_hash, "complaint", "x")
    row = await recipients.get(world.tenant, "a")
    assert row is not None
    assert [address.suppressed for address in row.addresses] == ["complaint"]
    [listed] = await recipients.suppressions(world.tenant, None, 9)
    assert listed.address_hash == address_hash


async def test_what_is_claimed_for_a_call_does_not_wait_any_more(
    ledger: CassandraLedger, stores: Stores, world: World
) -> None:
    accepted = AcceptedBeside(stores.pool, stores.sealer, ledger)
    await stores.pool.execute("UPDATE accepted SET closed_at = now() WHERE closed_at IS NULL")
    second = timedelta(seconds=1)
    assert await accepted.oldest_waiting_security(second) is None
    rows = [
        an_accepted(
            world.tenant,
            kind=Kind.PASSCODE,
            message_class=MessageClass.SECURITY,
            idempotency_key=str(uuid4()),
            accepted_at=datetime.now(UTC) - timedelta(seconds=seconds),
        )
        for seconds in (90, 30)
    ]
    for row in rows:
        await accepted.insert_or_match(row)
    oldest, younger = rows
    found = await accepted.oldest_waiting_security(second)
    assert found is not None
    assert 90 <= found.total_seconds() < 120
    scope = ClaimScope(world.tenant, oldest.accepted_at, oldest.id, 0, 0, Channel.SMS)
    await ledger.claim(scope, [Want("r1")], uuid4(), timedelta(minutes=1))
    after = await accepted.oldest_waiting_security(second)
    assert after is not None
    assert 30 <= after.total_seconds() < 90
    scope = ClaimScope(world.tenant, younger.accepted_at, younger.id, 0, 0, Channel.EMAIL)
    await ledger.claim(scope, [Want("r1")], uuid4(), timedelta(minutes=1))
    assert await accepted.oldest_waiting_security(second) is None


async def test_only_a_passcode_goes_on_while_suppressions_cannot_be_looked_at(
    ledger: CassandraLedger, stores: Stores, world: World
) -> None:
    """POL-7, and fail closed for everything else."""

    class Away(CassandraLedger):
        def __init__(self) -> None:
            pass

        async def suppression(
            self, tenant: str, channel: Channel, address_hashes: Sequence[bytes]
        ) -> dict[bytes, str]:
            raise StoreUnavailable("away")

        async def of_campaign(
            self, tenant: str, frozen_at: datetime, campaign_id: UUID
        ) -> list[ClaimRow]:
            raise StoreUnavailable("away")

    campaign = await world.campaign(1)
    await world.plan(campaign)
    await stores.catalog.put_category(
        a_category(world.tenant, category="otp", message_class=MessageClass.SECURITY)
    )
    recipients = RecipientsBeside(stores.pool, stores.sealer, Away())
    mail = AddressWrite(Channel.EMAIL, "new@example.com", "new@example.com", True)
    await recipients.upsert(world.tenant, [RecipientWrite("new", addresses=(mail,))])
    shown = await recipients.get(world.tenant, "new")
    assert shown is not None, "who has just signed up could not be sent a passcode"
    assert [address.suppressed for address in shown.addresses] == ["unknown"]
    people = PeopleBeside(stores.pool, Away())
    [person] = await people.people(world.tenant, "otp", ["r000"], False)
    assert person.exists
    with pytest.raises(StoreUnavailable):
        await people.people(world.tenant, CAT, ["r000"], False)
    # To take something on is not to send it.
    [person] = await people.people(world.tenant, CAT, ["r000"], False, unread=True)
    assert person.suppressions_unread
    campaigns = CampaignsBeside(stores.pool, stores.decisions, Away())
    with pytest.raises(StoreUnavailable):
        await campaigns.page_sends(campaign, 0, 0, Channel.EMAIL)
    waiting = an_accepted(
        world.tenant,
        message_class=MessageClass.SECURITY,
        accepted_at=datetime.now(UTC) - timedelta(seconds=5),
    )
    await stores.accepted.insert_or_match(waiting)
    accepted = AcceptedBeside(stores.pool, stores.sealer, Away())
    assert await accepted.oldest_waiting_security(timedelta(seconds=1)) is not None
