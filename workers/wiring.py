"""Where ports meet adapters: the only file of the workers that knows both. Every lane opens what it uses for itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from temporalio.client import Client

from activities.accepted import AcceptedActivities
from activities.delivery import DeliveryActivities
from activities.passcodes import PasscodeActivities
from activities.reminders import ReminderActivities
from activities.rendering import Senders
from schemas.kinds import Channel, MessageClass
from sendloom.domain.lanes import Lane
from sendloom.platform.sealing import RingSealer
from sendloom.ports import Provider, SentCache
from sendloom.providers.test_mode import TestModeProvider
from sendloom.settings import Settings
from sendloom.stores.accepted import PostgresAccepted
from sendloom.stores.catalog import PostgresCatalog
from sendloom.stores.dead_letters import PostgresDeadLetters
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.passcodes import PostgresPasscodes
from sendloom.stores.people import PostgresPeople
from sendloom.stores.pool import Pool, open_pool
from workers.fleet import Activities
from workers.locks import advisory_lock
from workers.serve import Background, every
from workers.sweeper import PURGE_EVERY, SWEEP_EVERY, Purger, Sweeper
from workflows import starting

CONFIGURED = frozenset({Channel.EMAIL, Channel.SMS})
"""Channels that have a provider. The settings require both; push channels have none yet."""

FLOW_POOL = 8
"""Planning and closing: some milliseconds each, a hundred at once at most."""
OPS_POOL = 3

START_SECONDS = timedelta(seconds=5)
CATALOG_SECONDS = 1.0
"""A category or tenant that changes is noticed after this."""


@dataclass(frozen=True, slots=True)
class Stores:
    """One pool's view of everything a message needs."""

    accepted: PostgresAccepted
    people: PostgresPeople
    catalog: PostgresCatalog
    decisions: PostgresDecisions
    dead_letters: PostgresDeadLetters
    passcodes: PostgresPasscodes
    ledger: PostgresLedger


def stores(pool: Pool, sealer: RingSealer) -> Stores:
    return Stores(
        accepted=PostgresAccepted(pool, sealer),
        people=PostgresPeople(pool),
        catalog=PostgresCatalog(pool),
        decisions=PostgresDecisions(pool, sealer),
        dead_letters=PostgresDeadLetters(pool),
        passcodes=PostgresPasscodes(pool),
        ledger=PostgresLedger(pool),
    )


# --- what each kind of worker serves ------------------------------------------------------------------------------------


@asynccontextmanager
async def flow(
    settings: Settings, message_class: MessageClass, client: Client
) -> AsyncIterator[Activities]:
    """The activities of a class's flow queue."""
    sealer = _sealer(settings)
    async with _pool(settings, FLOW_POOL, f"flow {message_class}") as pool:
        s = stores(pool, sealer)
        delivery = _delivery(settings, sealer, s, {}, NoCache())
        closing = AcceptedActivities(
            accepted=s.accepted, decisions=s.decisions, dead_letters=s.dead_letters
        )
        checking = PasscodeActivities(passcodes=s.passcodes, hash_code=sealer.passcode_hash)
        reminding = ReminderActivities(accepted=s.accepted, people=s.people, catalog=s.catalog)
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
        ]


@asynccontextmanager
async def lane(settings: Settings, lane: Lane) -> AsyncIterator[Activities]:
    """One lane's activities, over its own pool and its own connections to providers."""
    sealer = _sealer(settings)
    async with (
        _pool(settings, lane.pool_size, lane.queue) as pool,
        _provider(settings, lane) as provider,
        _sent_cache(settings) as cache,
    ):
        providers = {} if provider is None else {lane.channel: provider}
        yield [_delivery(settings, sealer, stores(pool, sealer), providers, cache).send]


@asynccontextmanager
async def ops(
    settings: Settings, client: Client
) -> AsyncIterator[tuple[Activities, list[Background]]]:
    """Housekeeping: its activities, and the loops that run beside them."""
    sealer = _sealer(settings)
    async with _pool(settings, OPS_POOL, "ops") as pool:
        s = stores(pool, sealer)
        lock = partial(advisory_lock, pool)
        sweeper = Sweeper(
            accepted=s.accepted,
            passcodes=s.passcodes,
            hash_code=sealer.passcode_hash,
            start=partial(starting.start, client, rpc_timeout=START_SECONDS),
            lock=lock,
        )
        purger = Purger(accepted=s.accepted, passcodes=s.passcodes, lock=lock)
        yield (
            [],
            [
                partial(every, SWEEP_EVERY, sweeper.sweep, "sweep"),
                partial(every, PURGE_EVERY, purger.purge, "purge"),
            ],
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
        catalog=s.catalog,
        decisions=s.decisions,
        ledger=s.ledger,
        sealer=sealer,
        senders=_senders(settings),
        configured=CONFIGURED,
        providers=providers,
        test_provider=TestModeProvider(),
        cache=cache,
    )


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
async def _pool(settings: Settings, size: int, name: str) -> AsyncIterator[Pool]:
    pool = await open_pool(settings.postgres_dsn, size, f"sendloom {name}")
    try:
        yield pool
    finally:
        await pool.close()
