"""Where the API's ports meet their adapters. The only file of it that knows a store, a provider or a driver."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial

from temporalio.client import Client
from temporalio.service import RPCError

from activities.reminders import ReminderActivities
from api.compiled import CompiledTemplates
from api.deps import Parts
from api.limits import Limiter, Load
from api.ports import Workflows
from api.temporal import TemporalWorkflows
from api.timing import ANSWER_WITHIN
from sendloom.errors import StoreUnavailable
from sendloom.platform.sealing import RingSealer
from sendloom.platform.temporal import connect
from sendloom.settings import Settings
from sendloom.stores.audit import PostgresAudit, PostgresTriggers
from sendloom.stores.catalog import PostgresCatalog
from sendloom.stores.dead_letters import PostgresDeadLetters
from sendloom.stores.ledger.opening import ledger_stores, open_cassandra
from sendloom.stores.limits import PostgresLimits
from sendloom.stores.lists import PostgresLists
from sendloom.stores.migrations.runner import check_schema
from sendloom.stores.passcodes import PostgresPasscodes
from sendloom.stores.pool import Pool, open_pool
from sendloom.stores.redis_client import DOWN, Redis
from sendloom.stores.schedules import PostgresSchedules, PostgresSeries
from sendloom.stores.segments import PostgresSegments

log = logging.getLogger(__name__)

POOL = 16
"""Connections of one API process."""
TEMPORALS_SHARE = 0.8
"""Of the time an accept has; a start that takes longer leaves the stores none."""
UPLOAD_POOL = 4
"""Connections of their own for uploads, so that a big list never holds up an accept."""


@asynccontextmanager
async def parts(
    settings: Settings,
    workflows: Workflows | None = None,
    answer_within: float = ANSWER_WITHIN,
    load: Load | None = None,
) -> AsyncIterator[Parts]:
    """Everything the routes reach. Waits for no server: the API starts also while one is away, and says so.

    `workflows` replaces Temporal, for tests of what needs none.
    """
    hashes = settings.keys.hashes()
    sealer = RingSealer(settings.keys.ring(), hashes)
    async with AsyncExitStack() as opened:
        pool = await opened.enter_async_context(_pool(settings, POOL, "api"))
        uploads = await opened.enter_async_context(_pool(settings, UPLOAD_POOL, "api uploads"))
        cache = await opened.enter_async_context(_redis(settings))
        probes: dict[str, Callable[[], Awaitable[None]]] = {
            "postgres": _SchemaProbe(settings.postgres_dsn, pool),
            "redis": partial(_ping, cache),
        }
        if workflows is None:
            client = await connect(settings, lazy=True)
            temporal = TemporalWorkflows(
                client,
                timedelta(seconds=answer_within * TEMPORALS_SHARE),
                settings.temporal.build_id,
            )
            opened.push_async_callback(temporal.close)
            workflows = temporal
            probes["temporal"] = partial(_temporal_answers, client)
        cassandra = await opened.enter_async_context(open_cassandra(settings))
        s = ledger_stores(pool, sealer, cassandra)
        catalog = PostgresCatalog(pool)
        reminding = ReminderActivities(accepted=s.accepted, people=s.people, catalog=catalog)
        yield Parts(
            settings=settings,
            hashes=hashes,
            sealer=sealer,
            accepted=s.accepted,
            people=s.people,
            catalog=catalog,
            decisions=s.decisions,
            ledger=s.ledger,
            dead_letters=PostgresDeadLetters(pool),
            passcodes=PostgresPasscodes(pool),
            campaigns=s.campaigns,
            recipients=s.recipients,
            lists=PostgresLists(uploads, sealer),
            # A look at everybody is no accept's business to wait for.
            segments=PostgresSegments(uploads),
            limits=PostgresLimits(pool),
            audit=PostgresAudit(pool),
            schedules=PostgresSchedules(pool, sealer),
            series=PostgresSeries(pool, sealer),
            triggers=PostgresTriggers(pool),
            workflows=workflows,
            resolve_due=reminding.resolve,
            limiter=Limiter(),
            load=load or Load(),
            compiled=CompiledTemplates(),
            probes=probes,
        )


@asynccontextmanager
async def _pool(settings: Settings, size: int, name: str) -> AsyncIterator[Pool]:
    pool = await open_pool(settings.postgres_dsn, size, f"sendloom {name}", eager=False)
    try:
        yield pool
    finally:
        # Not `close`: a connection that hangs must not keep the process from ending.
        pool.terminate()


@asynccontextmanager
async def _redis(settings: Settings) -> AsyncIterator[Redis]:
    client = Redis.from_url(settings.redis_url, socket_timeout=0.5, socket_connect_timeout=0.5)
    try:
        yield client
    finally:
        await client.aclose()


class _SchemaProbe:
    """Postgres answers; and until it was seen once, that its schema is new enough."""

    def __init__(self, dsn: str, pool: Pool) -> None:
        self._dsn = dsn
        self._catalog = PostgresCatalog(pool)
        self._seen = False

    async def __call__(self) -> None:
        if not self._seen:
            await check_schema(self._dsn)
            self._seen = True
        await self._catalog.tenant("")


async def _ping(client: Redis) -> None:
    try:
        await client.ping()
    except DOWN as e:
        raise StoreUnavailable("Redis does not answer; limits and caches fall back") from e


async def _temporal_answers(client: Client) -> None:
    try:
        if await client.service_client.check_health():
            return
    except (RPCError, RuntimeError):
        pass
    raise StoreUnavailable("Temporal does not answer")
