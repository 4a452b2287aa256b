"""Where ports meet adapters: the only file of the workers that knows both. Every lane opens what it uses for itself."""

import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
from redis.asyncio import Redis
from temporalio.client import Client

from activities.accepted import AcceptedActivities
from activities.campaign_carriers import Carrier, MailCarrier, SmsCarrier
from activities.campaign_control import ControlWatch
from activities.campaign_plan import CampaignActivities
from activities.campaign_send import CampaignSendActivities
from activities.delivery import DeliveryActivities
from activities.facts import RecentCatalog
from activities.lane_guard import APART, TOGETHER, LaneGuard
from activities.passcodes import PasscodeActivities
from activities.reminders import ReminderActivities
from activities.rendering import Senders, Templates
from activities.stretch.lane import SendingLane
from activities.triggers import TriggerActivities
from schemas.kinds import Channel, MessageClass
from sendloom.domain.capacity import bounds
from sendloom.domain.lanes import Lane, lanes_of
from sendloom.platform.priority import own_nice
from sendloom.platform.sealing import RingSealer
from sendloom.platform.temporal import reachable, waiting_in
from sendloom.ports import FullLedger, Provider, SentCache, SentStore
from sendloom.providers import mime
from sendloom.providers.mime_forms import Form
from sendloom.providers.smtp import SmtpProvider
from sendloom.providers.smtp_pipeline import PipelineMailer
from sendloom.providers.smtp_session import LoginGate, SmtpAccount
from sendloom.providers.test_mode import TestModeProvider
from sendloom.providers.twilio import TwilioAccount, TwilioProvider
from sendloom.settings import Settings
from sendloom.stores.accepted import PostgresAccepted
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.catalog import PostgresCatalog
from sendloom.stores.dead_letters import PostgresDeadLetters
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.ledger.opening import ledger_stores, open_cassandra
from sendloom.stores.lists import PostgresLists
from sendloom.stores.passcodes import PostgresPasscodes
from sendloom.stores.people import PostgresPeople
from sendloom.stores.pool import Pool, open_pool
from sendloom.stores.redis_client import open_redis
from sendloom.stores.schedules import PostgresSchedules
from sendloom.stores.segments import PostgresSegments
from sendloom.stores.sent_cache import RedisSentCache
from sendloom.stores.tokens import RedisTokens
from workers.capacity import LOOK_EVERY, CapacityWatch, Waiting
from workers.fleet import Activities
from workers.locks import advisory_lock
from workers.nudging import NUDGE_EVERY, Nudger
from workers.rebuild import Rebuild
from workers.serve import Background, every
from workers.sweeper import PURGE_EVERY, SWEEP_EVERY, Purger, Reaper, Sweeper
from workflows import scheduling, starting

if TYPE_CHECKING:
    from sendloom.stores.cassandra import Connection

CONFIGURED = frozenset({Channel.EMAIL, Channel.SMS})
"""Channels that have a provider. The settings require both; push channels have none yet."""

MAIL_CONNECTIONS = 10
"""Kept and pipelined, in each process of a lane that campaigns use."""

KEPT_S = 20.0
"""A kept HTTP connection unused for longer is not trusted: one the provider has just closed would come out as unknown."""

FLOW_POOL = 8
"""Planning and closing: some milliseconds each, a hundred at once at most."""
CONTROL_POOL = 2
OPS_POOL = 6
REBUILD_POOL = 8

START_SECONDS = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Stores:
    """One pool's view of everything a message needs."""

    accepted: PostgresAccepted
    people: PostgresPeople
    catalog: PostgresCatalog
    decisions: PostgresDecisions
    dead_letters: PostgresDeadLetters
    passcodes: PostgresPasscodes
    ledger: FullLedger
    sent: SentStore
    campaigns: PostgresCampaigns
    schedules: PostgresSchedules
    segments: PostgresSegments
    lists: PostgresLists


@dataclass(frozen=True, slots=True)
class Shared:
    """One of each in a process."""

    logins: LoginGate
    """A few logins a minute is the account's limit, whatever the lane."""
    watch: ControlWatch
    """On a connection of its own: calls stop when the control rows cannot be read in time."""
    guard: LaneGuard
    """What marketing gives way to."""


def stores(pool: Pool, sealer: RingSealer, cassandra: "Connection | None" = None) -> Stores:
    """`cassandra`: where the ledger is, if it is not in Postgres."""
    of_ledger = ledger_stores(pool, sealer, cassandra)
    return Stores(
        accepted=of_ledger.accepted,
        people=of_ledger.people,
        catalog=PostgresCatalog(pool),
        decisions=of_ledger.decisions,
        dead_letters=PostgresDeadLetters(pool),
        passcodes=PostgresPasscodes(pool),
        ledger=of_ledger.ledger,
        sent=of_ledger.sent,
        campaigns=of_ledger.campaigns,
        schedules=PostgresSchedules(pool, sealer),
        segments=PostgresSegments(pool),
        lists=PostgresLists(pool, sealer),
    )


# --- what each kind of worker serves ------------------------------------------------------------------------------------


@asynccontextmanager
async def flow(
    settings: Settings, message_class: MessageClass, client: Client, common: "Shared"
) -> AsyncIterator[Activities]:
    """The activities of a class's flow queue."""
    sealer = _sealer(settings)
    async with (
        _pool(settings, FLOW_POOL, f"flow {message_class}") as pool,
        open_cassandra(settings) as cassandra,
    ):
        s = stores(pool, sealer, cassandra)
        delivery = _delivery(settings, sealer, s, {}, NothingSent())
        closing = AcceptedActivities(
            accepted=s.accepted, decisions=s.decisions, dead_letters=s.dead_letters
        )
        checking = PasscodeActivities(passcodes=s.passcodes, hash_code=sealer.passcode_hash)
        reminding = ReminderActivities(accepted=s.accepted, people=s.people, catalog=s.catalog)
        campaigning = CampaignActivities(
            campaigns=s.campaigns,
            decisions=s.decisions,
            ledger=s.ledger,
            catalog=s.catalog,
            accepted=s.accepted,
            dead_letters=s.dead_letters,
            templates=Templates(s.catalog),
            audiences=s.lists,
            guard=common.guard if message_class is MessageClass.MARKETING else None,
        )
        yield [
            delivery.plan,
            delivery.record,
            delivery.settle,
            closing.close,
            checking.check,
            checking.resend,
            checking.cancel,
            reminding.resolve,
            reminding.fire,
            reminding.close,
            campaigning.freeze,
            campaigning.preflight,
            campaigning.approval,
            campaigning.show_phase,
            campaigning.write_control,
            campaigning.control,
            campaigning.plan,
            campaigning.due,
            campaigning.progress,
            campaigning.settle,
            campaigning.guard_rails,
            campaigning.cancel_rest,
            campaigning.close,
        ]


@asynccontextmanager
async def shared(settings: Settings) -> AsyncIterator["Shared"]:
    """What the lanes of one process share."""
    sealer = _sealer(settings)
    # Two connections: a slow look at what security waits for must not make a pause slow; nor must giving way.
    async with (
        _pool(settings, CONTROL_POOL, "control", gives_way=False) as pool,
        open_cassandra(settings) as cassandra,
    ):
        s = stores(pool, sealer, cassandra)
        watch = ControlWatch(s.campaigns)
        # At low priority it shares the machine with what it gives way to.
        patience = TOGETHER if own_nice() > 0 else APART
        try:
            yield Shared(LoginGate(), watch, LaneGuard(s.accepted, patience=patience))
        finally:
            await watch.close()


@asynccontextmanager
async def lane(settings: Settings, lane: Lane, common: "Shared") -> AsyncIterator[Activities]:
    """One lane's activities, over its own pool and its own connections to providers."""
    sealer = _sealer(settings)
    async with (
        _pool(settings, lane.pool_size, lane.queue) as pool,
        _redis(settings) as redis,
        _provider(settings, lane, common.logins) as provider,
        _carrier(settings, lane, provider, common.logins) as carrier,
        open_cassandra(settings) as cassandra,
    ):
        s = stores(pool, sealer, cassandra)
        providers = {} if provider is None else {lane.channel: provider}
        serves: list[Callable[..., Any]] = [
            _delivery(settings, sealer, s, providers, RedisSentCache(redis)).send
        ]
        if carrier is not None:
            sending_lane = SendingLane(
                lane=lane,
                carrier=carrier,
                campaigns=s.campaigns,
                decisions=s.decisions,
                ledger=s.ledger,
                sent=s.sent,
                people=s.people,
                catalog=s.catalog,
                dead_letters=s.dead_letters,
                templates=Templates(s.catalog),
                sealer=sealer,
                watch=common.watch,
                guard=common.guard if lane.message_class is MessageClass.MARKETING else None,
                tokens=RedisTokens(redis),
            )
            sending = CampaignSendActivities(sending_lane)
            serves += [sending.send, sending.send_due]
        yield serves


@dataclass(frozen=True, slots=True)
class Ops:
    """What the ops process does by itself, and what it is asked to do."""

    loops: list[Background]
    activities: Activities


@asynccontextmanager
async def ops(settings: Settings, client: Client) -> AsyncIterator[Ops]:
    """Housekeeping: loops, each under a lock that only one process holds; and the wake-ups of schedules."""
    sealer = _sealer(settings)
    async with _pool(settings, OPS_POOL, "ops") as pool, open_cassandra(settings) as cassandra:
        s = stores(pool, sealer, cassandra)
        lock = partial(advisory_lock, pool)
        sweeper = Sweeper(
            accepted=s.accepted,
            passcodes=s.passcodes,
            campaigns=s.campaigns,
            hash_code=sealer.passcode_hash,
            claims=s.ledger,
            start=starter(settings, client),
            lock=lock,
        )
        purger = Purger(accepted=s.accepted, passcodes=s.passcodes, lock=lock)
        reaper = Reaper(lists=s.lists, lock=lock)
        triggering = triggers(settings, s, client)
        nudger = Nudger(
            schedules=s.schedules,
            fire=triggering.fire,
            apply=partial(scheduling.apply, client, rpc_timeout=START_SECONDS),
            reachable=partial(reachable, client),
            lock=lock,
        )
        yield Ops(
            loops=[
                partial(every, SWEEP_EVERY, sweeper.sweep, "sweep"),
                partial(every, PURGE_EVERY, purger.purge, "purge"),
                partial(every, PURGE_EVERY, reaper.reap, "reap"),
                partial(every, NUDGE_EVERY, nudger.nudge, "nudge"),
                partial(every, LOOK_EVERY, capacity(settings, client).watch, "capacity"),
            ],
            activities=[triggering.fire],
        )


@asynccontextmanager
async def rebuild(settings: Settings, client: Client) -> AsyncIterator[Rebuild]:
    """For an operator: everything open, started again."""
    sealer = _sealer(settings)
    async with (
        _pool(settings, REBUILD_POOL, "rebuild") as pool,
        open_cassandra(settings) as cassandra,
    ):
        s = stores(pool, sealer, cassandra)
        yield Rebuild(
            accepted=s.accepted,
            passcodes=s.passcodes,
            campaigns=s.campaigns,
            catalog=s.catalog,
            schedules=s.schedules,
            hash_code=sealer.passcode_hash,
            start=partial(starter(settings, client), again=True),
            apply=partial(scheduling.apply, client, rpc_timeout=START_SECONDS),
            fire=triggers(settings, s, client).fire,
            work_due=partial(starting.work_due, client, rpc_timeout=START_SECONDS),
        )


def capacity(settings: Settings, client: Client) -> CapacityWatch:
    async def look(queue: str) -> Waiting:
        return Waiting(*await waiting_in(client, queue))

    given = settings.workers
    return CapacityWatch(
        look,
        {
            message_class: bounds(
                message_class,
                worst_hour=given.security_worst_hour,
                marketing_most=given.marketing_most,
            )
            for message_class in MessageClass
        },
    )


def connections(message_class: MessageClass) -> int:
    """The most database connections one process of a class opens. Marketing has `marketing_most` processes (LANE-8)."""
    place = 1 if message_class is MessageClass.MARKETING else 0
    return (
        FLOW_POOL + CONTROL_POOL + place + sum(lane.pool_size for lane in lanes_of(message_class))
    )


def starter(settings: Settings, client: Client) -> Callable[..., Coroutine[Any, Any, bool]]:
    """Starts the workflow of an accepted row."""
    return partial(
        starting.start, client, rpc_timeout=START_SECONDS, build_id=settings.temporal.build_id
    )


def triggers(settings: Settings, s: Stores, client: Client) -> TriggerActivities:
    """Also for rebuild, which fires what the loss of Temporal made late."""
    return TriggerActivities(
        schedules=s.schedules,
        accepted=s.accepted,
        campaigns=s.campaigns,
        catalog=s.catalog,
        people=s.people,
        segments=s.segments,
        lists=s.lists,
        start=starter(settings, client),
    )


# --- parts ----------------------------------------------------------------------------------------------------------------


def _delivery(
    settings: Settings,
    sealer: RingSealer,
    s: Stores,
    providers: dict[Channel, Provider],
    cache: SentCache,
) -> DeliveryActivities:
    return DeliveryActivities(
        accepted=s.accepted,
        people=s.people,
        catalog=RecentCatalog(s.catalog),
        decisions=s.decisions,
        ledger=s.ledger,
        sealer=sealer,
        senders=_senders(settings),
        configured=CONFIGURED,
        providers=providers,
        test_provider=TestModeProvider(),
        cache=cache,
    )


class NothingSent:
    """The cache of a worker that calls no provider."""

    async def sent(self, delivery_id: str) -> str | None:
        return None

    async def remember(self, delivery_id: str, provider_message_id: str) -> None:
        return None


@asynccontextmanager
async def _provider(
    settings: Settings, lane: Lane, logins: LoginGate
) -> AsyncIterator[Provider | None]:
    """The lane's own provider client; None for a channel that has none."""
    provider: Provider
    match lane.channel:
        case Channel.EMAIL:
            provider = SmtpProvider(
                _smtp_account(settings), pool_size=lane.calls_in_flight, login_gate=logins
            )
        case Channel.SMS:
            twilio = settings.twilio
            provider = TwilioProvider(
                # Nothing of the environment: a proxy variable must not decide where messages go.
                httpx.AsyncClient(limits=_limits(lane.calls_in_flight), trust_env=False),
                TwilioAccount(
                    account_sid=twilio.account_sid,
                    secret=twilio.auth_token,
                    base_url=twilio.base_url,
                ),
            )
        case _:
            yield None
            return
    try:
        yield provider
    finally:
        await provider.close()


# httpcore looks for this package six times a request, on the whole path each time because it is not there: some milliseconds
# of a passcode. An entry that says "absent" is the same answer at once, and asyncio is what it then takes.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # None is what the import system knows, not its types


def _limits(calls: int) -> httpx.Limits:
    """Every connection is kept: an idle lane must not pay for a new one."""
    return httpx.Limits(max_connections=calls, max_keepalive_connections=calls)


@asynccontextmanager
async def _carrier(
    settings: Settings, lane: Lane, provider: Provider | None, logins: LoginGate
) -> AsyncIterator[Carrier | None]:
    """What a campaign sends with on this lane. Mail has connections of its own: they are pipelined."""
    if lane.message_class is MessageClass.SECURITY or provider is None:
        yield None
    elif lane.channel is Channel.EMAIL:
        mailer = PipelineMailer(
            _smtp_account(settings), connections=MAIL_CONNECTIONS, login_gate=logins
        )
        try:
            yield MailCarrier(mailer, mime, Form, _senders(settings))
        finally:
            await mailer.close()
    else:
        yield SmsCarrier(provider, _senders(settings))


def _smtp_account(settings: Settings) -> SmtpAccount:
    smtp = settings.smtp
    return SmtpAccount(
        host=smtp.host,
        port=smtp.port,
        tls=smtp.tls,
        ca_file=smtp.tls_ca,
        username=smtp.username,
        password=smtp.password,
    )


@asynccontextmanager
async def _redis(settings: Settings) -> AsyncIterator[Redis]:
    client = open_redis(settings.redis_url)
    try:
        yield client
    finally:
        await client.aclose()


def _sealer(settings: Settings) -> RingSealer:
    return RingSealer(settings.keys.ring(), settings.keys.hashes())


def _senders(settings: Settings) -> Senders:
    return Senders(
        email=settings.smtp.sender,
        sms=settings.twilio.sender,
        public_url=settings.api.public_url,
        unsubscribe_key=settings.keys.unsubscribe.get_secret_value(),
    )


@asynccontextmanager
async def _pool(
    settings: Settings, size: int, name: str, *, gives_way: bool = True
) -> AsyncIterator[Pool]:
    pool = await open_pool(settings.postgres_dsn, size, f"sendloom {name}", gives_way=gives_way)
    try:
        yield pool
    finally:
        # Not `close`: everything is drained by now, and a connection that hangs must not keep the process from ending.
        pool.terminate()
