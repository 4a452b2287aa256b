"""POL-7, cell by cell: what each class does while a store is down. Real Temporal, Postgres and Valkey; only providers are scripted.

A store in Postgres is taken down at its port, Valkey by stopping it.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY
from temporalio.client import Client

from schemas.kinds import CampaignPhase, Channel, MessageClass, RecipientState
from schemas.messages import OutboundEmail
from schemas.notifications import CheckRequest, NotificationInput, PlanRequest, Settled
from schemas.outcomes import Accepted
from sendloom.domain.lanes import lane_for
from sendloom.embedded.parts import running as running_part
from sendloom.embedded.ports import free_port
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.errors import StoreUnavailable
from sendloom.stores.ledger.beside import CampaignsBeside, PeopleBeside
from sendloom.stores.passcodes import PostgresPasscodes
from sendloom.stores.redis_client import Redis, open_redis
from sendloom.stores.sent_cache import RedisSentCache
from sendloom.stores.tokens import RedisTokens
from tests.activities.running import environment
from tests.builders import (
    CATEGORY,
    CODE,
    MARKETING,
    SECURITY,
    TENANT,
    TRANSACTIONAL,
    World,
    a_category,
    a_content,
    a_notification,
    a_passcode,
)
from tests.campaign_fakes import CampaignStage, FakeTokens, a_stage, address_of, until
from tests.workflows.real_campaign import campaign_workers, no_quiet_hours, start_campaign
from tests.workflows.running import PATIENCE, Running, running
from workflows.passcode import PasscodeWorkflow

PERSON = "r000000"
STAMPED = "stamped@example.com"
"""Where somebody could be reached when their message was accepted."""

PROFILES, SUPPRESSIONS, CLAIMS, RECORDING, REDIS = (
    "profiles",
    "suppressions",
    "claims",
    "recording",
    "redis",
)
METHODS = {
    PROFILES: {"people", "page_people", "sample"},
    SUPPRESSIONS: {"suppression"},
    # Nothing is known of a claim that cannot be made, so it cannot be recorded or read either.
    CLAIMS: {"claim", "record", "read", "settle"},
    RECORDING: {"record"},
}

WAITS, SENDS, SENDS_AND_RECORDS_LATER = "waits", "sends", "sends and records later"
TABLE = {
    (PROFILES, MARKETING): WAITS,
    (PROFILES, TRANSACTIONAL): WAITS,
    (PROFILES, SECURITY): SENDS,
    (SUPPRESSIONS, MARKETING): WAITS,
    (SUPPRESSIONS, TRANSACTIONAL): WAITS,
    (SUPPRESSIONS, SECURITY): SENDS,
    (CLAIMS, MARKETING): WAITS,
    (CLAIMS, TRANSACTIONAL): WAITS,
    (CLAIMS, SECURITY): SENDS_AND_RECORDS_LATER,
    (RECORDING, MARKETING): SENDS_AND_RECORDS_LATER,
    (RECORDING, TRANSACTIONAL): SENDS_AND_RECORDS_LATER,
    (RECORDING, SECURITY): SENDS_AND_RECORDS_LATER,
    (REDIS, MARKETING): SENDS,
    (REDIS, TRANSACTIONAL): SENDS,
    (REDIS, SECURITY): SENDS,
}


def test_the_table_has_a_cell_for_every_class_and_store():
    assert set(TABLE) == set(itertools.product((*METHODS, REDIS), MessageClass))


def cells(then: str, *but: tuple[str, MessageClass]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("store", "message_class"),
        [cell for cell, says in TABLE.items() if says == then and cell not in but],
    )


@dataclass
class Weather:
    """Which ports' methods are down, and what was asked of them."""

    down: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)

    def over(self, store: Any) -> Any:
        return Port(store, self)

    def fails(self, store: str) -> None:
        self.down |= METHODS[store]

    def clears(self) -> None:
        self.down.clear()


class Port:
    """A real store, as long as it is not down."""

    def __init__(self, store: Any, weather: Weather) -> None:
        self._store = store
        self._weather = weather

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)
        weather = self._weather
        # The same thing said for a page at once is the same thing.
        name = "move" if name == "move_page" else name

        async def reach(*args: Any, **how: Any) -> Any:
            if name in weather.down:
                weather.refused[name] += 1
                raise StoreUnavailable(f"{name}: down")
            answer = await asked(*args, **how)
            weather.answered[name] += 1
            return answer

        return reach


class RealWorld(World):
    """`World` over a stage's Postgres, with a ledger of its own beside it, and a real Valkey."""

    def __init__(self, stage: CampaignStage, redis: Redis) -> None:
        super().__init__()
        self.stage = stage
        self.weather = Weather()
        # The longest wait for a store is a moment.
        self.rng = -0.49
        ticks = itertools.count()
        self.clock.monotonic = lambda: 0.2 * next(ticks)  # type: ignore[method-assign]
        stores: Any = self
        ledger = self.weather.over(stage.ledger)
        stores.sealer = stage.sealer
        stores.accepted = stage.accepted
        stores.people = self.weather.over(PeopleBeside(stage.pool, ledger))
        stores.catalog = stage.catalog
        stores.decisions = stage.decisions
        stores.ledger = ledger
        stores.dead_letters = stage.dead_letters
        stores.passcodes = PostgresPasscodes(stage.pool)
        stores.cache = RedisSentCache(redis)

    def fails(self, store: str) -> None:
        self.weather.fails(store)

    @property
    def sent(self) -> int:
        return len(self.email.sent) + len(self.sms.sent)

    async def claims(self) -> list[str]:
        rows = await self.stage.pool.fetch("SELECT claim_state(state) AS state FROM claims")
        return [row["state"] for row in rows]


@dataclass
class Valkey:
    """A server that can be stopped and started again, empty, at the same address."""

    server: EmbeddedValkey
    log: Path
    up: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        self.up.enter_context(running_part(self.server.part(), self.log))

    def stop(self) -> None:
        self.up.close()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Any:
    server = EmbeddedValkey(directory=tmp_path / "valkey", port=free_port(), snapshots=False)
    valkey = Valkey(server, tmp_path / "valkey.log")
    valkey.start()
    yield valkey
    valkey.stop()


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        stage.clock.now = lambda: datetime.now(UTC)
        yield stage


@pytest_asyncio.fixture
async def world(stage: CampaignStage, valkey: str) -> AsyncIterator[RealWorld]:
    redis = open_redis(valkey)
    yield await a_world(stage, redis)
    await redis.aclose()


async def a_world(stage: CampaignStage, redis: Redis) -> RealWorld:
    await stage.set_up(1)
    await no_quiet_hours(stage)
    for message_class in (TRANSACTIONAL, SECURITY):
        await stage.catalog.put_category(a_category(message_class))
    return RealWorld(stage, redis)


async def started(
    r: Running, message_class: MessageClass, ttl: timedelta = timedelta(hours=1), **content: Any
) -> Any:
    """(what was accepted, its workflow)"""
    accepted_at = await r.now()
    n = a_notification(
        message_class=message_class,
        category=CATEGORY[message_class],
        recipient_id=PERSON,
        accepted_at=accepted_at,
        expires_at=accepted_at + ttl,
    )
    said = a_content(
        template_id="weekly",
        variables={"first_name": "Ada"},
        # As the API stamps it, for security only.
        verified_channels=[Channel.EMAIL] if message_class is SECURITY else [],
        verified_addresses={Channel.EMAIL: STAMPED} if message_class is SECURITY else {},
        locale="en",
        **content,
    )
    return n, await r.start(n, content=said)


async def eventually(check: Callable[[], bool]) -> None:
    await until(check, PATIENCE)


async def ended(handle: Any) -> Any:
    return await asyncio.wait_for(handle.result(), PATIENCE)


# --- one message ------------------------------------------------------------------------------------------------------


@cells(WAITS)
async def test_it_waits_and_then_goes_once(
    store: str, message_class: MessageClass, temporal_client: Client, world: RealWorld
):
    world.fails(store)
    async with running(temporal_client, world, message_class) as r:
        _, handle = await started(r, message_class)
        await eventually(lambda: sum(world.weather.refused.values()) >= 3)
        assert world.sent == 0
        world.weather.clears()
        view = await ended(handle)
    assert view.state is RecipientState.SENT
    assert (world.sent, await world.claims()) == (1, ["sent"])


@cells(WAITS)
async def test_it_waits_no_longer_than_its_ttl(
    store: str, message_class: MessageClass, temporal_client: Client, world: RealWorld
):
    world.fails(store)
    async with running(temporal_client, world, message_class) as r:
        n, handle = await started(r, message_class, ttl=timedelta(seconds=5))
        await eventually(lambda: sum(world.weather.refused.values()) >= 2)
        await eventually(lambda: datetime.now(UTC) > n.expires_at)
        world.weather.clears()
        view = await ended(handle)
    assert view.state is RecipientState.EXPIRED
    assert (world.sent, await world.claims()) == (0, [])


@cells(SENDS, (REDIS, MARKETING), (REDIS, TRANSACTIONAL), (REDIS, SECURITY))
async def test_security_goes_where_it_was_cleared_for_at_accept(
    store: str, message_class: MessageClass, temporal_client: Client, world: RealWorld
):
    """Its ladder begins with SMS, and that number is suppressed; nobody can look that up now."""
    ledger = world.stage.ledger
    number = world.sealer.address_hash(TENANT, Channel.SMS, "+12025550000000")
    await ledger.suppress(TENANT, Channel.SMS, number, "stop", "x")
    world.fails(store)
    before = alerts(store)
    async with running(temporal_client, world, message_class) as r:
        _, handle = await started(r, message_class)
        view = await ended(handle)
    assert view.state is RecipientState.SENT
    [mail] = world.email.sent
    assert isinstance(mail, OutboundEmail)
    assert (mail.to_address, world.sms.sent) == (STAMPED, [])
    assert alerts(store) > before


@pytest.mark.parametrize("message_class", MessageClass)
async def test_suppressions_that_cannot_be_looked_at_are_worth_an_alert(
    message_class: MessageClass, temporal_client: Client, world: RealWorld
):
    before = alerts(SUPPRESSIONS)
    world.fails(SUPPRESSIONS)
    async with running(temporal_client, world, message_class) as r:
        _, handle = await started(r, message_class)
        await eventually(lambda: alerts(SUPPRESSIONS) > before)
        world.weather.clears()
        await ended(handle)


def alerts(store: str) -> float:
    return REGISTRY.get_sample_value("sendloom_store_away_total", {"store": store}) or 0.0


def unrecorded(message_class: MessageClass) -> float:
    """Attempts that ended without a record."""
    labels = {"message_class": message_class.value}
    return REGISTRY.get_sample_value("sendloom_unrecorded_total", labels) or 0.0


@cells(SENDS_AND_RECORDS_LATER)
async def test_it_goes_once_and_only_the_record_is_repeated(
    store: str, message_class: MessageClass, temporal_client: Client, world: RealWorld
):
    world.fails(store)
    async with running(temporal_client, world, message_class) as r:
        before = unrecorded(message_class)
        _, handle = await started(r, message_class)
        # The attempt itself gives up after two seconds; from then on its workflow repeats the record.
        await eventually(lambda: unrecorded(message_class) > before)
        tried = world.weather.refused["record"]
        await eventually(lambda: world.weather.refused["record"] > tried + 1)
        assert world.sent == 1
        if store == CLAIMS:
            # Two seconds of asking, by the world's clock, came first.
            assert world.weather.refused["claim"] >= 4
            assert await world.claims() == []
        else:
            assert await world.claims() == ["claimed"]
        world.weather.clears()
        view = await ended(handle)
    assert view.state is RecipientState.SENT
    assert (world.sent, await world.claims()) == (1, ["sent"])


async def test_marketing_claims_nothing_more_until_an_outcome_can_be_recorded_again(
    temporal_client: Client, world: RealWorld
):
    world.fails(RECORDING)
    async with running(temporal_client, world, MARKETING) as r:
        before = unrecorded(MARKETING)
        _, first = await started(r, MARKETING)
        await eventually(lambda: unrecorded(MARKETING) > before)
        second = await r.start(a_second(await r.now()), content=weekly())
        suppressions = world.weather.answered["suppression"]
        # The second takes its last look again and again, and gets no further.
        await eventually(
            lambda: world.weather.answered["suppression"] > suppressions + 5 or world.sent > 1
        )
        assert (world.sent, world.weather.answered["claim"]) == (1, 1)
        world.weather.clears()
        assert {(await ended(h)).state for h in (first, second)} == {RecipientState.SENT}
    assert (world.sent, await world.claims()) == (2, ["sent", "sent"])


async def test_transactional_claims_on_while_an_outcome_cannot_be_recorded(
    temporal_client: Client, world: RealWorld
):
    world.fails(RECORDING)
    async with running(temporal_client, world, TRANSACTIONAL) as r:
        _, first = await started(r, TRANSACTIONAL)
        await eventually(lambda: world.sent == 1)
        _, second = await started(r, TRANSACTIONAL)
        await eventually(lambda: world.sent == 2)
        world.weather.clears()
        assert {(await ended(h)).state for h in (first, second)} == {RecipientState.SENT}
    assert (world.sent, await world.claims()) == (2, ["sent", "sent"])


def a_second(accepted_at: datetime) -> NotificationInput:
    return a_notification(
        message_class=MARKETING,
        recipient_id=PERSON,
        accepted_at=accepted_at,
        expires_at=accepted_at + timedelta(hours=1),
    )


def weekly() -> Any:
    return a_content(template_id="weekly", variables={"first_name": "Ada"})


async def test_a_passcode_is_checked_while_its_outcome_cannot_be_recorded(
    temporal_client: Client, world: RealWorld
):
    """Security repeats the record and never waits for it."""
    world.fails(RECORDING)
    async with running(temporal_client, world, SECURITY) as r:
        accepted_at = await r.now()
        p = a_passcode(
            recipient_id=PERSON,
            accepted_at=accepted_at,
            expires_at=accepted_at + timedelta(minutes=10),
        )
        content = a_content(template_id="weekly", variables={"first_name": "Ada"}, secret=CODE)
        handle = await r.start(p, content=content)
        await eventually(lambda: world.sent == 1)
        checked = await handle.execute_update(PasscodeWorkflow.check, CheckRequest(code=CODE))
        assert checked.result == "approved"
        assert await world.claims() == ["claimed"]
        recorded = world.weather.refused["record"]
        await eventually(lambda: world.weather.refused["record"] > recorded)
        world.weather.clears()
        async with asyncio.timeout(PATIENCE):
            while await world.claims() != ["sent"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await handle.terminate()
    assert world.sent == 1


@pytest.mark.parametrize("message_class", MessageClass)
async def test_without_redis_a_repeat_is_answered_from_the_database(
    message_class: MessageClass,
    temporal_client: Client,
    stage: CampaignStage,
    own_valkey: Valkey,
):
    redis = open_redis(own_valkey.server.url)
    try:
        world = await a_world(stage, redis)
        async with running(temporal_client, world, message_class) as r:
            await ended((await started(r, message_class))[1])
            assert await redis.dbsize() == 1
            own_valkey.stop()
            n, handle = await started(r, message_class)
            view = await ended(handle)
        assert view.state is RecipientState.SENT
        assert (world.sent, await world.claims()) == (2, ["sent", "sent"])
        again = await environment().run(world.delivery().plan, PlanRequest(n=n, rung=0, send_no=1))
        assert isinstance(again.step, Settled)
        assert isinstance(again.step.outcome, Accepted)
        assert again.step.outcome.provider_message_id == "m-2"
        assert world.sent == 2
    finally:
        await redis.aclose()


# --- a campaign ---------------------------------------------------------------------------------------------------------

SIZE = 60


def ports(stage: CampaignStage, weather: Weather) -> dict[str, Any]:
    ledger = weather.over(stage.ledger)
    return {
        "campaigns": weather.over(CampaignsBeside(stage.pool, stage.decisions, ledger)),
        "ledger": ledger,
    }


def everybody_once(stage: CampaignStage, but: Sequence[int] = ()) -> bool:
    return stage.mailer.took == {address_of(f"r{n:06d}"): 1 for n in range(SIZE) if n not in but}


@pytest.mark.parametrize("store", [PROFILES, SUPPRESSIONS, CLAIMS])
async def test_a_campaign_waits_and_then_reaches_everybody_once(
    store: str, temporal_client: Client, stage: CampaignStage
):
    await stage.set_up(SIZE, page_size=10)
    await no_quiet_hours(stage)
    await stage.insert()
    weather = Weather()
    weather.fails(store)
    before = alerts(SUPPRESSIONS)
    given = ports(stage, weather)
    async with campaign_workers(temporal_client, stage, given, **given):
        handle = await start_campaign(temporal_client, stage)
        await eventually(lambda: sum(weather.refused.values()) >= 2)
        assert stage.mailer.took == {}
        assert set(await stage.states()) <= {"pending"}
        assert await stage.claims() == {}
        weather.clears()
        progress = await ended(handle)
    assert (progress.phase, progress.counts[RecipientState.SENT]) == (CampaignPhase.COMPLETED, SIZE)
    assert everybody_once(stage)
    assert (alerts(SUPPRESSIONS) > before) is (store == SUPPRESSIONS)


def _above(weather: Weather, refused: int) -> bool:
    return weather.refused["record"] > refused


async def test_a_campaign_claims_no_more_than_its_budget_while_outcomes_cannot_be_recorded(
    temporal_client: Client, stage: CampaignStage
):
    size, budget = 500, lane_for(Channel.EMAIL, MARKETING).calls_in_flight
    await stage.set_up(size, page_size=100)
    await no_quiet_hours(stage)
    await stage.insert()
    weather = Weather()
    weather.fails(RECORDING)
    given = ports(stage, weather)
    async with campaign_workers(temporal_client, stage, given, **given):
        handle = await start_campaign(temporal_client, stage)
        claimed: dict[str, int] = {}
        before: dict[str, int] | None = None
        async with asyncio.timeout(PATIENCE):
            # What is being claimed when the first record is refused is; from then on nothing more.
            while claimed != before or not claimed:
                refused, before = weather.refused["record"], claimed
                await eventually(partial(_above, weather, refused + 2))
                claimed = await stage.claims()
        assert set(claimed) == {"claimed"}
        assert claimed["claimed"] <= budget
        # The record is repeated; nothing more is claimed, and nobody is called again.
        assert sum(stage.mailer.took.values()) == claimed["claimed"]
        weather.clears()
        progress = await ended(handle)
    assert progress.counts[RecipientState.SENT] == size
    assert set(stage.mailer.took.values()) == {1}


class Watched(RedisTokens):
    """Remembers what was granted."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self.granted: list[int] = []

    async def take(self, buckets: Sequence[tuple[str, float]], most: int) -> tuple[int, float]:
        allowed, wait = await super().take(buckets, most)
        if allowed:
            self.granted.append(allowed)
        return allowed, wait


async def test_a_campaign_that_loses_redis_and_gets_an_empty_one_goes_on_from_the_database(
    temporal_client: Client, stage: CampaignStage, own_valkey: Valkey
):
    """Its buckets start low each time, and who opted out meanwhile is believed."""
    await stage.set_up(SIZE, page_size=10)
    await no_quiet_hours(stage)
    await stage.insert(rate_per_second=200.0)
    redis = open_redis(own_valkey.server.url)
    tokens = Watched(redis)
    low: list[int] = []

    async def change(count: int) -> None:
        if count == 20:
            own_valkey.stop()
            low.append(len(tokens.granted))
            await stage.pool.execute(
                "INSERT INTO preferences (tenant, recipient_id, category, channel, opted_out, source)"
                " VALUES ($1, $2, '*', '*', true, 'link')",
                TENANT,
                f"r{SIZE - 1:06d}",
            )
        elif count == 40:
            own_valkey.start()
            low.append(len(tokens.granted))

    stage.mailer.after_mail = change
    async with campaign_workers(temporal_client, stage, tokens=tokens):
        progress = await ended(await start_campaign(temporal_client, stage))
    await redis.aclose()
    assert progress.counts == {
        **progress.counts,
        RecipientState.SENT: SIZE - 1,
        RecipientState.SUPPRESSED: 1,
    }
    assert everybody_once(stage, but=[SIZE - 1])
    assert [tokens.granted[n] for n in low] == [1, 1]
    assert max(tokens.granted) <= 100


class Sparing(FakeTokens):
    """Five at a time and then a wait, as for a slow campaign."""

    waits = False

    async def take(self, buckets: Sequence[tuple[str, float]], most: int) -> tuple[int, float]:
        self.waits = not self.waits
        if not self.waits:
            return 0, 0.05
        return await super().take(buckets, min(most, 5))


async def test_a_paced_campaign_claims_nothing_more_once_a_record_was_refused(
    stage: CampaignStage,
):
    await stage.set_up(SIZE, page_size=SIZE)
    await stage.launch(rate_per_second=100.0)
    await no_quiet_hours(stage)
    await stage.plan()
    weather = Weather()
    weather.fails(RECORDING)
    stage.tokens = Sparing()
    sending = asyncio.create_task(
        stage.send(stage.send_activities(ledger=weather.over(stage.ledger)))
    )
    await eventually(lambda: weather.refused["record"] > 0)
    claims = weather.answered["claim"]
    # What was being claimed at that moment is; then nothing more.
    await eventually(lambda: weather.refused["record"] > 3 * claims + 3)
    claimed = (await stage.claims())["claimed"]
    assert claimed <= 5 * (claims + 1)
    weather.clears()
    await sending
    # That one was long enough; the next goes on.
    await stage.send()
    assert everybody_once(stage)
