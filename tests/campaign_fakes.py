"""A stage for campaigns: real stores on a real Postgres, a scripted mailer, and a clock that moves when told to."""

import asyncio
import dataclasses
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
from temporalio.testing import ActivityEnvironment

from activities.campaign_carriers import MailCarrier, SmsCarrier
from activities.campaign_control import ControlWatch
from activities.campaign_plan import CampaignActivities
from activities.campaign_send import CampaignSendActivities
from activities.rendering import Senders, Templates
from activities.stretch.lane import SendingLane
from schemas.campaigns import (
    CampaignRef,
    DueStretch,
    Frozen,
    ShardRef,
    Stretch,
    StretchResult,
)
from schemas.kinds import CampaignPhase, Channel, MessageClass, Mode, RecipientState
from schemas.messages import Outbound
from schemas.outcomes import Accepted, CallOutcome, Failed
from sendloom.domain.lanes import lane_for
from sendloom.ports import CampaignRow, SentStore, Tokens, WireMail
from sendloom.providers import mime
from sendloom.providers.mime_forms import Form
from sendloom.stores.accepted import PostgresAccepted
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.catalog import PostgresCatalog
from sendloom.stores.dead_letters import PostgresDeadLetters
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.lists import PostgresLists
from sendloom.stores.people import PostgresPeople
from sendloom.stores.pool import open_pool
from sendloom.stores.sent import PostgresSent, SentInTurn
from tests.fakes import START, FakeClock, FakeSealer

T = TypeVar("T")

TENANT = "acme"
CATEGORY = "offers.weekly"
SENDERS = Senders(
    email="news@example.com",
    sms="+12025550100",
    public_url="https://notify.example.com",
    unsubscribe_key=b"u" * 32,
)

Script = Callable[[WireMail], CallOutcome | None]


def accept(mail: WireMail) -> CallOutcome | None:
    return None


class ScriptedMailer:
    """Takes every mail unless the script says otherwise; counts what reached it, by envelope recipient."""

    def __init__(self, script: Script = accept) -> None:
        self.name = "smtp"
        self.script = script
        self.took: Counter[str] = Counter()
        self.mails: list[WireMail] = []
        self.batches: list[int] = []
        self.before_batch: Callable[[Sequence[WireMail]], Awaitable[None]] | None = None
        self.after_mail: Callable[[int], Awaitable[None]] | None = None

    async def send_batch(
        self,
        mails: Sequence[WireMail],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        self.batches.append(len(mails))
        if self.before_batch is not None:
            await self.before_batch(mails)
        outcomes: list[CallOutcome] = []
        for mail in mails:
            if not may_call():
                outcomes.append(Failed(provider="smtp", code="not_called", counts=False))
                continue
            outcome = self.script(mail)
            if outcome is None:
                outcome = Accepted(provider="smtp", provider_message_id=mail.reference)
                self.took[mail.envelope_to] += 1
                self.mails.append(mail)
                if self.after_mail is not None:
                    await self.after_mail(len(self.mails))
            outcomes.append(outcome)
        return outcomes

    async def close(self) -> None:
        return None


class ScriptedSms:
    """Takes every text message, but for as long as it `answers` otherwise."""

    name = "sms"

    def __init__(self) -> None:
        self.took: list[Outbound] = []
        self.answers: CallOutcome | None = None

    async def send(self, message: Outbound, message_class: MessageClass) -> CallOutcome:
        if self.answers is not None:
            return self.answers
        self.took.append(message)
        return Accepted(provider="sms", provider_message_id=message.reference)

    async def close(self) -> None:
        return None


class FakeTokens:
    """Real buckets on a clock of its own that moves only when somebody is refused, so no test waits for tokens."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.rates: dict[str, float] = {}
        self.slowed: list[float] = []
        self.sped: list[float] = []
        self.grant = 1_000_000
        """How many more may be taken in all."""
        self.wait = 60.0

    async def take(self, buckets: Sequence[tuple[str, float]], most: int) -> tuple[int, float]:
        allowed = min(most, self.grant)
        self.grant -= allowed
        for name, rate in buckets:
            self.taken[name] += allowed
            self.rates[name] = rate
        return allowed, 0.0 if allowed else self.wait

    async def slow_down(self, name: str, base: float) -> float:
        self.slowed.append(base)
        return base / 2

    async def speed_up(self, name: str, base: float) -> float:
        self.sped.append(base)
        return base


def address_of(recipient_id: str) -> str:
    return f"{recipient_id}@example.com"


class CampaignStage:
    """One tenant, one marketing category, one template in two locales, one list."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self.pool = pool
        # Leases run on Postgres's clock, so ours is a day ahead of it: a lease that has ended is in our past.
        ahead = datetime.now(UTC) + timedelta(days=1)
        self.clock = FakeClock(ahead.replace(hour=15, minute=0, second=0, microsecond=0))
        self.sealer = FakeSealer()
        self.decisions = PostgresDecisions(pool, self.sealer)
        self.campaigns = PostgresCampaigns(pool, self.decisions)
        self.ledger = PostgresLedger(pool)
        self.people = PostgresPeople(pool)
        self.catalog = PostgresCatalog(pool)
        self.dead_letters = PostgresDeadLetters(pool)
        self.accepted = PostgresAccepted(pool, self.sealer)
        self.templates = Templates(self.catalog)
        self.watch = ControlWatch(self.campaigns, every=0.05)
        self.mailer = ScriptedMailer()
        self.sms = ScriptedSms()
        self.tokens: Tokens | None = None
        self.campaign_id = uuid4()
        self.ref = CampaignRef(tenant=TENANT, mode=Mode.LIVE, campaign_id=self.campaign_id)
        self.frozen: Frozen | None = None
        self._runs = itertools.count(1)

    # --- the audience -------------------------------------------------------------------------------------------------

    async def set_up(
        self,
        recipients: int,
        *,
        page_size: int = 100,
        pages_a_shard: int = 1_000,
        ladder: Sequence[str] = ("email",),
        caps: Sequence[Mapping[str, Any]] = (),
        over_cap: str = "suppress",
        variables: Callable[[int], Mapping[str, Any]] = lambda n: {"first_name": f"Ana{n}"},
        text: str = "Hi {{first_name}}, this week only.",
        message_class: str = "marketing",
        declared: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        ids = [f"r{n:06d}" for n in range(recipients)]
        async with self.pool.acquire() as c:
            await c.execute(
                "INSERT INTO tenants (tenant, name, email_from, email_from_name, sms_from)"
                " VALUES ($1, 'Acme', 'news@example.com', 'Acme', '+12025550100')",
                TENANT,
            )
            await c.execute(
                "INSERT INTO categories (tenant, category, message_class, ladder, ttl_seconds, consent_required,"
                " unknown_policy, caps, over_cap) VALUES ($1, $2, $3, $4, 604800, true, 'stop', $5, $6)",
                TENANT,
                CATEGORY,
                message_class,
                list(ladder),
                [dict(cap) for cap in caps],
                over_cap,
            )
            await c.execute(
                "INSERT INTO templates (tenant, template_id, current_version) VALUES ($1, 'weekly', 1)",
                TENANT,
            )
            await c.execute(
                "INSERT INTO template_versions (tenant, template_id, version, variables, default_locale, published_at)"
                " VALUES ($1, 'weekly', 1, $2, 'en', now())",
                TENANT,
                dict(declared) if declared is not None else {"first_name": {}},
            )
            await c.executemany(
                "INSERT INTO template_parts (tenant, template_id, version, channel, locale, subject, text, html)"
                " VALUES ($1, 'weekly', 1, $2, $3, $4, $5, NULL)",
                [
                    (TENANT, "email", "en", "For {{first_name}}", text),
                    (TENANT, "email", "de", "Für {{first_name}}", text),
                    (TENANT, "sms", "en", None, text),
                ],
            )
            await c.copy_records_to_table(
                "recipients",
                columns=["tenant", "recipient_id", "locale", "zone"],
                records=[(TENANT, id, ("en", "de")[n % 2], "UTC") for n, id in enumerate(ids)],
            )
            for channel in ("email", "sms"):
                records = []
                for n, id in enumerate(ids):
                    plain = address_of(id) if channel == "email" else f"+1202555{n:07d}"
                    records.append(
                        (
                            TENANT,
                            id,
                            channel,
                            self.sealer.address_hash(TENANT, Channel(channel), plain),
                            self.sealer.seal("address", TENANT, plain.encode()),
                            START,
                        )
                    )
                await c.copy_records_to_table(
                    "addresses",
                    columns=[
                        "tenant",
                        "recipient_id",
                        "channel",
                        "address_hash",
                        "sealed",
                        "verified_at",
                    ],
                    records=records,
                )
            await c.copy_records_to_table(
                "consents",
                columns=[
                    "tenant",
                    "recipient_id",
                    "category",
                    "channel",
                    "granted",
                    "at",
                    "source",
                    "wording",
                ],
                records=[(TENANT, id, CATEGORY, "*", True, START, "form", "yes") for id in ids],
            )
            version = uuid4()
            await c.execute(
                "INSERT INTO lists (tenant, list_id, current_version) VALUES ($1, 'all', $2)",
                TENANT,
                version,
            )
            pages = [ids[n : n + page_size] for n in range(0, len(ids), page_size)]
            shards = max(1, -(-len(pages) // pages_a_shard))
            await c.execute(
                "INSERT INTO list_versions (tenant, version_id, list_id, state, format, size, shards, page_size, ready_at)"
                " VALUES ($1, $2, 'all', 'ready', 'ndjson', $3, $4, $5, now())",
                TENANT,
                version,
                len(ids),
                shards,
                page_size,
            )
            rows, sizes = [], []
            for n, page in enumerate(pages):
                shard, number = divmod(n, pages_a_shard)
                sizes.append((TENANT, version, shard, number, len(page)))
                for id in page:
                    rows.append((TENANT, version, shard, number, id, variables(int(id[1:]))))
            await c.copy_records_to_table(
                "list_rows",
                columns=["tenant", "version_id", "shard", "page", "recipient_id", "variables"],
                records=rows,
            )
            await c.copy_records_to_table(
                "list_pages",
                columns=["tenant", "version_id", "shard", "page", "size"],
                records=sizes,
            )

    async def launch(self, **spec: Any) -> Frozen:
        await self.insert(**spec)
        result = await self.run(self.plan_activities().freeze, self.ref)
        assert result.frozen is not None, result.refused
        self.frozen = result.frozen
        return self.frozen

    async def insert(self, **spec: Any) -> None:
        await self.campaigns.insert(
            CampaignRow(
                tenant=TENANT,
                campaign_id=self.campaign_id,
                mode=Mode.LIVE,
                name="weekly",
                category=CATEGORY,
                template_id="weekly",
                template_version=1,
                list_id="all",
                version_id=None,
                spec=spec,
                variables={},
                phase=CampaignPhase.ACCEPTED,
                reason="",
                size=None,
                shards=None,
                page_size=None,
                frozen_at=None,
                expires_at=spec.get("expires_at"),
                created_at=self.clock.now(),
                closed_at=None,
                last_send_at=None,
            )
        )

    # --- the activities -----------------------------------------------------------------------------------------------

    def plan_activities(self, **ports: Any) -> CampaignActivities:
        given = {
            "campaigns": self.campaigns,
            "decisions": self.decisions,
            "ledger": self.ledger,
            "catalog": self.catalog,
            "accepted": self.accepted,
            "dead_letters": self.dead_letters,
            "templates": self.templates,
            "audiences": PostgresLists(self.pool, self.sealer),
            "now": self.clock.now,
        }
        return CampaignActivities(**{**given, **ports})

    def send_activities(
        self, channel: Channel = Channel.EMAIL, **ports: Any
    ) -> CampaignSendActivities:
        carrier = (
            MailCarrier(self.mailer, mime, Form, SENDERS)
            if channel is Channel.EMAIL
            else SmsCarrier(self.sms, SENDERS)
        )
        given: dict[str, Any] = {
            "lane": lane_for(channel, MessageClass.MARKETING),
            "carrier": carrier,
            "campaigns": self.campaigns,
            "decisions": self.decisions,
            "ledger": self.ledger,
            "people": self.people,
            "catalog": self.catalog,
            "dead_letters": self.dead_letters,
            "templates": self.templates,
            "sealer": self.sealer,
            "watch": self.watch,
            "tokens": self.tokens,
            "now": self.clock.now,
        }
        given |= ports
        sent: SentStore = SentInTurn(given["ledger"], given["decisions"])
        if not ports.keys() & {"ledger", "decisions"}:
            sent = PostgresSent(self.pool, sent)
        return CampaignSendActivities(SendingLane(**{"sent": sent, **given}))

    def environment(self, attempt: int = 1) -> ActivityEnvironment:
        """Every run is another activity: what one claimed another does not take for its own."""
        env = ActivityEnvironment()
        env.info = dataclasses.replace(
            env.info, activity_id=f"a{next(self._runs)}", attempt=attempt
        )
        return env

    async def run(self, activity: Callable[..., Awaitable[T]], argument: Any) -> T:
        return await self.environment().run(activity, argument)

    def shard_ref(self, shard: int = 0) -> ShardRef:
        assert self.frozen is not None
        return ShardRef(
            tenant=TENANT,
            mode=Mode.LIVE,
            campaign_id=self.campaign_id,
            frozen_at=self.frozen.frozen_at,
            shard=shard,
            message_class=MessageClass.MARKETING,
            channels=self.frozen.channels,
        )

    def stretch(
        self, channel: Channel | None = Channel.EMAIL, shard: int = 0, **changes: Any
    ) -> Stretch:
        return Stretch(ref=self.shard_ref(shard), channel=channel, **changes)

    def due_stretch(self, channel: Channel = Channel.EMAIL, **changes: Any) -> DueStretch:
        assert self.frozen is not None
        return DueStretch(
            tenant=TENANT,
            mode=Mode.LIVE,
            campaign_id=self.campaign_id,
            frozen_at=self.frozen.frozen_at,
            message_class=MessageClass.MARKETING,
            channel=channel,
            **changes,
        )

    async def plan(self, shard: int = 0) -> StretchResult:
        return await self.run(self.plan_activities().plan, self.stretch(None, shard))

    async def send(
        self,
        sending: CampaignSendActivities | None = None,
        channel: Channel = Channel.EMAIL,
        shard: int = 0,
        **changes: Any,
    ) -> StretchResult:
        sending = sending or self.send_activities(channel)
        return await self.run(sending.send, self.stretch(channel, shard, **changes))

    async def send_due(
        self,
        sending: CampaignSendActivities | None = None,
        channel: Channel = Channel.EMAIL,
        **changes: Any,
    ) -> StretchResult:
        sending = sending or self.send_activities(channel)
        return await self.run(sending.send_due, self.due_stretch(channel, **changes))

    # --- what came of it ----------------------------------------------------------------------------------------------

    async def counts(self) -> dict[RecipientState, int]:
        counts = await self.campaigns.counts(TENANT, self.campaign_id)
        return {state: n for state, n in counts.items() if n}

    async def states(self) -> dict[str, int]:
        """Counted from the rows themselves, not from summaries."""
        rows = await self.pool.fetch(
            "SELECT recipient_state(state) AS state, count(*) AS n FROM decisions WHERE campaign_id = $1 GROUP BY 1",
            self.campaign_id,
        )
        return {row["state"]: row["n"] for row in rows}

    async def reasons(self) -> dict[str, int]:
        assert self.frozen is not None
        return await self.campaigns.reasons(TENANT, self.frozen.frozen_at, self.campaign_id)

    async def claims(self) -> dict[str, int]:
        rows = await self.pool.fetch(
            "SELECT claim_state(state) AS state, count(*) AS n FROM claims WHERE campaign_id = $1 GROUP BY 1",
            self.campaign_id,
        )
        return {row["state"]: row["n"] for row in rows}

    async def row(self) -> CampaignRow:
        row = await self.campaigns.get(TENANT, self.campaign_id)
        assert row is not None
        return row

    async def letters(self) -> list[str]:
        rows = await self.pool.fetch(
            "SELECT recipient_id FROM dead_letters WHERE ref_id = $1 AND status = 'open' ORDER BY 1",
            self.campaign_id,
        )
        return [row["recipient_id"] for row in rows]

    async def end_leases(self) -> None:
        """What waiting for some minutes does."""
        await self.pool.execute(
            "UPDATE claims SET lease_until = now() - interval '1 second' WHERE campaign_id = $1 AND state = 0",
            self.campaign_id,
        )

    def pass_time(self, by: timedelta) -> None:
        self.clock.advance(by)


@asynccontextmanager
async def a_stage(dsn: str) -> Any:
    pool = await open_pool(dsn, 8, "test")
    # A database is shared by a module's tests; making one for each takes longer than most of them.
    tables = await pool.fetch(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND relnamespace = 'public'::regnamespace AND relname NOT LIKE '%migration%'"
    )
    await pool.execute(f"TRUNCATE {', '.join(table['relname'] for table in tables)}")
    stage = CampaignStage(pool)
    try:
        yield stage
    finally:
        await stage.watch.close()
        await pool.close()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for a condition, never for a time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is outside of us
            await asyncio.sleep(0.005)


__all__ = [
    "UUID",
    "CampaignStage",
    "FakeTokens",
    "ScriptedMailer",
    "a_stage",
    "address_of",
    "until",
]
