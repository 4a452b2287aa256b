"""Stores over the module's own database, and a small world to put into it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from schemas.kinds import (
    CampaignPhase,
    Channel,
    Kind,
    MessageClass,
    Mode,
    RecipientState,
    UnknownPolicy,
)
from schemas.notifications import DecisionKey
from schemas.schedules import (
    CatchUpRule,
    Overlap,
    RecurringContent,
    ScheduleKind,
    ScheduleState,
    SeriesContent,
    SeriesMember,
)
from sendloom.domain.list_lines import ListConsent, ListRow
from sendloom.platform.sealing import Hashes, KeyRing
from sendloom.ports import (
    AcceptedRow,
    CampaignRow,
    Category,
    Decision,
    ScheduleRow,
    Sealer,
    SeriesRow,
    Tenant,
)
from sendloom.stores.accepted import PostgresAccepted
from sendloom.stores.audit import PostgresAudit, PostgresTriggers
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.cassandra import Connection, Requests, monotonic
from sendloom.stores.catalog import PostgresCatalog
from sendloom.stores.dead_letters import PostgresDeadLetters
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.ledger.cassandra import CassandraLedger
from sendloom.stores.ledger.grounds import PostgresClock, PostgresEpochs, PostgresPlaces
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.limits import PostgresLimits
from sendloom.stores.lists import PostgresLists
from sendloom.stores.passcodes import PostgresPasscodes
from sendloom.stores.people import PostgresPeople
from sendloom.stores.pool import Pool, open_pool
from sendloom.stores.recipients import PostgresRecipients
from sendloom.stores.schedules import PostgresSchedules, PostgresSeries
from sendloom.stores.segments import PostgresSegments
from sendloom.stores.sent import PostgresSent, SentInTurn

NOW = datetime.now(UTC).replace(microsecond=0)
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def waiting(pool: Pool, backends: int) -> None:
    """Until so many wait for what others have locked."""
    async with asyncio.timeout(60):
        while await pool.fetchval(_WAITING) < backends:  # noqa: ASYNC110 - it is in the database
            await asyncio.sleep(0.01)


class RingSealer:
    """The Sealer port over the real key ring and the real keyed hashes."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._hashes = Hashes(address=b"a" * 32, body=b"b" * 32, passcode=b"p" * 32)

    def seal(self, purpose: str, tenant: str, plain: bytes) -> bytes:
        return self._ring.seal(plain, purpose=purpose, tenant=tenant)

    def open(self, purpose: str, tenant: str, sealed: bytes) -> bytes:
        return self._ring.open(sealed, purpose=purpose, tenant=tenant)

    def open_many(self, purpose: str, tenant: str, sealed: Sequence[bytes]) -> list[bytes]:
        return self._ring.open_many(sealed, purpose=purpose, tenant=tenant)

    def address_hash(self, tenant: str, channel: Channel, lookup_form: str) -> bytes:
        return self._hashes.address_hash(tenant, channel, lookup_form)


@dataclass
class Stores:
    pool: Pool
    sealer: Sealer
    accepted: PostgresAccepted = field(init=False)
    audit: PostgresAudit = field(init=False)
    campaigns: PostgresCampaigns = field(init=False)
    catalog: PostgresCatalog = field(init=False)
    dead_letters: PostgresDeadLetters = field(init=False)
    decisions: PostgresDecisions = field(init=False)
    ledger: PostgresLedger = field(init=False)
    limits: PostgresLimits = field(init=False)
    lists: PostgresLists = field(init=False)
    passcodes: PostgresPasscodes = field(init=False)
    people: PostgresPeople = field(init=False)
    recipients: PostgresRecipients = field(init=False)
    schedules: PostgresSchedules = field(init=False)
    segments: PostgresSegments = field(init=False)
    sent: PostgresSent = field(init=False)
    series: PostgresSeries = field(init=False)
    triggers: PostgresTriggers = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = PostgresAccepted(self.pool, self.sealer)
        self.audit = PostgresAudit(self.pool)
        self.decisions = PostgresDecisions(self.pool, self.sealer)
        self.campaigns = PostgresCampaigns(self.pool, self.decisions)
        self.catalog = PostgresCatalog(self.pool)
        self.dead_letters = PostgresDeadLetters(self.pool)
        self.ledger = PostgresLedger(self.pool)
        self.limits = PostgresLimits(self.pool)
        # Small pages, so that a small list has many.
        self.lists = PostgresLists(self.pool, self.sealer, page_size=3)
        self.passcodes = PostgresPasscodes(self.pool)
        self.people = PostgresPeople(self.pool)
        self.recipients = PostgresRecipients(self.pool, self.sealer)
        self.schedules = PostgresSchedules(self.pool, self.sealer)
        self.segments = PostgresSegments(self.pool)
        self.sent = PostgresSent(self.pool, SentInTurn(self.ledger, self.decisions))
        self.series = PostgresSeries(self.pool, self.sealer)
        self.triggers = PostgresTriggers(self.pool)

    async def world(self, **category: Any) -> "World":
        """A tenant of its own with a category."""
        world = World(self, f"t-{uuid4().hex[:12]}")
        await self.catalog.put_tenant(a_tenant(world.tenant))
        await self.catalog.put_category(a_category(world.tenant, **category))
        return world


@dataclass
class World:
    """One tenant, and shortcuts to fill it."""

    stores: Stores
    tenant: str

    async def list_of(self, rows: Sequence[ListRow], list_id: str = "everyone") -> UUID:
        """A ready list version."""
        lists = self.stores.lists
        await lists.create(self.tenant, list_id)
        version = await lists.start_version(self.tenant, list_id, uuid4(), "ndjson")
        await lists.add_chunk(self.tenant, version.version_id, 0, b"h" * 32, 1, len(rows), rows, ())
        await lists.make_ready(self.tenant, version.version_id)
        return version.version_id

    async def campaign(self, size: int, frozen_at: datetime = NOW) -> CampaignRow:
        """A frozen campaign to r000, r001, …"""
        await self.list_of([a_row(n) for n in range(size)])
        return await self.launch(frozen_at=frozen_at)

    async def launch(self, list_id: str = "everyone", frozen_at: datetime = NOW) -> CampaignRow:
        row = a_campaign(self.tenant, list_id)
        await self.stores.campaigns.insert(row)
        await self.stores.campaigns.freeze(
            self.tenant, row.campaign_id, frozen_at, (Channel.EMAIL, Channel.SMS)
        )
        frozen = await self.stores.campaigns.get(self.tenant, row.campaign_id)
        assert frozen is not None
        return frozen

    async def plan(self, campaign: CampaignRow, **decision: Any) -> list[Decision]:
        """Pending email decisions for every row."""
        assert campaign.version_id is not None
        assert campaign.shards is not None
        planned = []
        for shard in range(campaign.shards):
            for page, _ in await self.stores.campaigns.pages(
                self.tenant, campaign.version_id, shard
            ):
                found = await self.stores.campaigns.page_people(
                    self.tenant, campaign.category, campaign.version_id, shard, page, False
                )
                planned += await self.stores.decisions.insert(
                    [
                        a_decision(campaign, shard, page, recipient_id, **decision)
                        for recipient_id in found.recipient_ids
                    ]
                )
        return planned


def a_tenant(tenant: str) -> Tenant:
    return Tenant(
        tenant=tenant,
        name="Example",
        default_zone="UTC",
        default_locale="en",
        default_region="US",
        email_from="news@example.com",
        email_from_name="Example",
        sms_from="+12025550100",
        quiet_start=time(22),
        quiet_end=time(8),
        settings={"a": 1},
        disabled=False,
    )


def a_category(tenant: str, **changes: Any) -> Category:
    return Category(
        **{
            "tenant": tenant,
            "category": "offers.weekly",
            "message_class": MessageClass.MARKETING,
            "ladder": (Channel.EMAIL, Channel.SMS),
            "ttl_seconds": 86_400,
            "quiet_hours": True,
            "consent_required": True,
            "unknown_policy": UnknownPolicy.STOP,
            "priority": 3,
            "caps": (),
            "over_cap": "suppress",
            **changes,
        }
    )


def a_row(n: int, **changes: Any) -> ListRow:
    return ListRow(
        **{
            "line": n + 1,
            "recipient_id": f"r{n:03}",
            "email": f"r{n:03}@example.com",
            "email_lookup": f"r{n:03}@example.com",
            "phone": None,
            "locale": "en",
            "zone": "Europe/Paris",
            "consent": ListConsent("form", NOW, "I agree", ("offers.weekly",)),
            "variables": {"name": f"N{n}"},
            **changes,
        }
    )


def a_campaign(tenant: str, list_id: str = "everyone") -> CampaignRow:
    return CampaignRow(
        tenant=tenant,
        campaign_id=uuid4(),
        mode=Mode.LIVE,
        name="spring",
        category="offers.weekly",
        template_id="t",
        template_version=1,
        list_id=list_id,
        version_id=None,
        spec={"rate_per_second": 50.0},
        variables={},
        phase=CampaignPhase.ACCEPTED,
        reason="",
        size=None,
        shards=None,
        page_size=None,
        frozen_at=None,
        expires_at=None,
        created_at=NOW,
        closed_at=None,
        last_send_at=None,
    )


def a_decision(
    campaign: CampaignRow, shard: int, page: int, recipient_id: str, **changes: Any
) -> Decision:
    assert campaign.frozen_at is not None
    return Decision(
        **{
            "key": DecisionKey(
                tenant=campaign.tenant,
                frozen_at=campaign.frozen_at,
                campaign_id=campaign.campaign_id,
                shard=shard,
                page=page,
                recipient_id=recipient_id,
            ),
            "state": RecipientState.PENDING,
            "channel": Channel.EMAIL,
            **changes,
        }
    )


def an_accepted(tenant: str, **changes: Any) -> AcceptedRow:
    return AcceptedRow(
        **{
            "tenant": tenant,
            "id": uuid4(),
            "mode": Mode.LIVE,
            "kind": Kind.NOTIFICATION,
            "idempotency_key": "k",
            "body_hmac": b"h" * 32,
            "message_class": MessageClass.TRANSACTIONAL,
            "category": "orders.shipped",
            "recipient_id": "r1",
            "accepted_at": NOW,
            "expires_at": NOW + timedelta(hours=1),
            "workflow_input": b'{"a":1}',
            "content": b'{"secret":"abcdefghijkl"}',
            **changes,
        }
    )


def a_schedule(tenant: str, **changes: Any) -> ScheduleRow:
    """Hourly, to one person."""
    return ScheduleRow(
        **{
            "tenant": tenant,
            "id": uuid4(),
            "mode": Mode.LIVE,
            "kind": ScheduleKind.NOTIFICATION,
            "body_hmac": b"h" * 32,
            "name": "digest",
            "category": "orders.shipped",
            "recipient_id": "r1",
            "content": RecurringContent(template_id="t", variables={"order": "17"}),
            "cron": "0 * * * *",
            "every_seconds": None,
            "zone": "Europe/Berlin",
            "overlap": Overlap.SKIP,
            "catch_up": CatchUpRule.LATEST,
            "catch_up_seconds": 86_400,
            "catch_up_max": 10,
            "jitter_seconds": 0,
            "state": ScheduleState.ACTIVE,
            "handled_until": NOW,
            "next_at": NOW + timedelta(hours=1),
            "created_by": "key:k1",
            "created_at": NOW,
            **changes,
        }
    )


def a_series(tenant: str, **changes: Any) -> SeriesRow:
    return SeriesRow(
        **{
            "tenant": tenant,
            "id": uuid4(),
            "mode": Mode.LIVE,
            "body_hmac": b"h" * 32,
            "category": "orders.shipped",
            "recipient_id": "r1",
            "correlation_id": "c",
            "event_at": None,
            "event_local": "2035-01-15T09:00:00",
            "content": SeriesContent(members=[SeriesMember(before="P7D", template_id="t")]),
            "created_at": NOW,
            **changes,
        }
    )


def a_cassandra_ledger(connected: Connection, pool: Pool, **changes: Any) -> CassandraLedger:
    """With no margin: the leases of tests are over as soon as they end."""
    return CassandraLedger(
        Requests(connected),
        PostgresClock(pool, monotonic),
        PostgresEpochs(pool),
        PostgresPlaces(pool),
        **{"margin": timedelta(0), **changes},
    )


@pytest.fixture(scope="session")
def sealer(ring: KeyRing) -> RingSealer:
    return RingSealer(ring)


@pytest_asyncio.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    pool = await open_pool(database, 4, "tests")
    yield pool
    await pool.close()


@pytest.fixture
def stores(pool: Pool, sealer: RingSealer) -> Stores:
    return Stores(pool, sealer)


@pytest_asyncio.fixture
async def world(stores: Stores) -> World:
    return await stores.world()
