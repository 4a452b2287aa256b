"""What Redis makes fast, and that nothing is believed of it when it is gone, empty or back."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from schemas.campaigns import Control
from schemas.kinds import ControlState
from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.errors import StoreUnavailable
from sendloom.stores.control_mirror import ControlMirror
from sendloom.stores.redis_client import Redis, open_redis
from sendloom.stores.sent_cache import RedisSentCache
from sendloom.stores.tokens import LocalTokens, RedisTokens
from tests.stores.conftest import NOW, Stores, World

NOWHERE = "redis://127.0.0.1:1/0"
HUGE = 10**6


@pytest_asyncio.fixture
async def client(valkey: str) -> AsyncIterator[Redis]:
    client = open_redis(valkey)
    yield client
    await client.aclose()


async def pass_time(client: Redis, name: str, seconds: float, *fields: str) -> None:
    """As if the bucket had been left alone so long."""
    key = f"sendloom:{{buckets}}:{name}"
    for field in fields or ("at",):
        at = await client.hget(key, field)
        assert at is not None
        await client.hset(key, field, str(float(at) - seconds))


# --- tokens ---------------------------------------------------------------------------------------------------------


async def test_a_bucket_starts_low_fills_at_its_rate_and_never_over_its_depth(
    client: Redis,
) -> None:
    tokens = RedisTokens(client)
    taken, wait = await tokens.take([("c", 100.0)], 50)
    assert taken == 1
    assert 0 < wait <= 0.01
    await pass_time(client, "c", 0.2)
    taken, _ = await tokens.take([("c", 100.0)], HUGE)
    assert 20 <= taken <= 50
    await pass_time(client, "c", 3600)
    taken, _ = await tokens.take([("c", 100.0)], HUGE)
    assert taken == 50


async def test_several_buckets_are_taken_from_together_or_not_at_all(client: Redis) -> None:
    tokens = RedisTokens(client)
    wide, narrow = ("provider", 1000.0), ("campaign", 10.0)
    await tokens.take([wide, narrow], 1)
    for name in ("provider", "campaign"):
        await pass_time(client, name, 0.3)
    taken, wait = await tokens.take([wide, narrow], 100)
    assert taken == 3
    assert 0 < wait <= 0.1
    taken, wait = await tokens.take([wide, narrow], 100)
    assert taken == 0
    # What the narrow one refused was not taken from the wide one.
    taken, _ = await tokens.take([wide], HUGE)
    assert taken >= 297


async def test_many_processes_together_stay_under_the_rate(valkey: str) -> None:
    clients = [open_redis(valkey) for _ in range(4)]
    tokens = [RedisTokens(one) for one in clients]
    await tokens[0].take([("c", 200.0)], 1)
    await pass_time(clients[0], "c", 60)
    taken = await asyncio.gather(*(one.take([("c", 200.0)], 70) for one in tokens * 3))
    total = sum(n for n, _ in taken)
    # Half a second's worth, and what came in while the test ran.
    assert 100 <= total < 200
    for one in clients:
        await one.aclose()


async def test_rate_nothing_takes_nothing_and_no_bucket_asks_for_no_patience(
    client: Redis,
) -> None:
    tokens = RedisTokens(client)
    assert await tokens.take([("off", 0.0)], 5) == (0, 60.0)
    assert await tokens.take([], 5) == (5, 0.0)
    assert await tokens.take([("c", 5.0)], 0) == (0, 0.0)


async def test_c45_no_bucket_is_ever_without_an_expiry(client: Redis) -> None:
    tokens = RedisTokens(client)
    await tokens.take([("a", 5.0), ("slow", 0.0001)], 1)
    await tokens.slow_down("b", 100.0)
    await tokens.speed_up("d", 100.0)
    keys = [key async for key in client.scan_iter("sendloom:*")]
    assert len(keys) == 4
    for key in keys:
        assert await client.ttl(key) > 0
    # And one that was lost in mid-count lets its user send again.
    await client.flushall()
    assert (await tokens.take([("a", 5.0)], 1))[0] == 1


async def test_a_throttled_provider_is_slowed_at_once_and_sped_up_in_steps(
    client: Redis,
) -> None:
    tokens = RedisTokens(client)
    assert await tokens.slow_down("p", 100.0) == 50.0
    # Fifty throttles of one moment are one reason.
    assert [await tokens.slow_down("p", 100.0) for _ in range(50)] == [50.0] * 50
    await pass_time(client, "p", 2, "down")
    assert await tokens.slow_down("p", 100.0) == 25.0
    assert await tokens.speed_up("p", 100.0) == 30.0
    assert await tokens.speed_up("p", 100.0) == 30.0
    await tokens.take([("p", 100.0)], 1)
    await pass_time(client, "p", 3600)
    taken, _ = await tokens.take([("p", 100.0)], HUGE)
    assert taken == 15
    for _ in range(40):
        await pass_time(client, "p", 2, "up")
        rate = await tokens.speed_up("p", 100.0)
    assert rate == 100.0
    for _ in range(40):
        await pass_time(client, "p", 2, "down")
        rate = await tokens.slow_down("p", 100.0)
    assert rate == 2.0


async def test_without_redis_each_process_takes_its_share_and_remembers_the_throttle() -> None:
    client = open_redis(NOWHERE)
    tokens = RedisTokens(client, share=0.25)
    assert (await tokens.take([("c", 400.0)], 500))[0] == 1
    assert await tokens.slow_down("c", 400.0) == 200.0
    taken, wait = await tokens.take([("c", 400.0)], 500)
    assert taken <= 10
    assert wait < 0.1
    await client.aclose()


async def test_local_buckets_are_the_same_with_a_share() -> None:
    now = 0.0
    tokens = LocalTokens(share=0.25, clock=lambda: now)
    assert (await tokens.take([("c", 400.0)], 500))[0] == 1
    now += 0.2
    assert (await tokens.take([("c", 400.0)], 500))[0] == 20
    now += 100
    assert (await tokens.take([("c", 400.0)], 500))[0] == 50
    assert await tokens.slow_down("c", 400.0) == 200.0
    assert await tokens.slow_down("c", 400.0) == 200.0
    now += 100
    assert (await tokens.take([("c", 400.0)], 500))[0] == 25
    assert await tokens.speed_up("c", 400.0) == 220.0
    taken, wait = await tokens.take([("c", 400.0), ("off", 0.0)], 5)
    assert (taken, wait) == (0, 60.0)
    with pytest.raises(ValueError, match="share"):
        LocalTokens(share=0)


# --- sent -----------------------------------------------------------------------------------------------------------


async def test_only_what_was_sent_is_remembered_and_nothing_is_missed_without_redis(
    client: Redis,
) -> None:
    cache = RedisSentCache(client)
    assert await cache.sent("dlv_1") is None
    await cache.remember("dlv_1", "<m@example.com>")
    assert await cache.sent("dlv_1") == "<m@example.com>"
    assert await client.ttl("sendloom:sent:dlv_1") > 0
    gone = open_redis(NOWHERE)
    cache = RedisSentCache(gone)
    await cache.remember("dlv_1", "x")
    assert await cache.sent("dlv_1") is None
    await gone.aclose()


# --- control --------------------------------------------------------------------------------------------------------


class Rows:
    """The two methods of the campaign store that a mirror asks, and how often it did."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, UUID], Control] = {}
        self.asked = 0
        self.down = False

    async def control(self, tenant: str, campaign_id: UUID) -> Control:
        if self.down:
            raise StoreUnavailable
        self.asked += 1
        return self.rows[tenant, campaign_id]

    async def controls_changed_since(self, at: datetime) -> dict[tuple[str, UUID], Control]:
        if self.down:
            raise StoreUnavailable
        return dict(self.rows)


AT = ("t", UUID(int=1))


def control(version: int, state: ControlState = ControlState.RUNNING) -> Control:
    return Control(version=version, state=state)


def a_mirror(url: str, rows: Rows) -> ControlMirror:
    return ControlMirror(url, rows)  # type: ignore[arg-type]


async def test_the_first_look_is_into_postgres_and_the_next_ones_are_not(valkey: str) -> None:
    rows = Rows()
    rows.rows[AT] = control(3)
    mirror = a_mirror(valkey, rows)
    for _ in range(3):
        assert await mirror.control(*AT) == control(3)
    assert rows.asked == 1
    assert mirror.known(*AT) == control(3)
    assert mirror.known("t", uuid4()) is None
    await mirror.close()


async def test_a_pause_published_by_one_process_is_seen_by_another(valkey: str) -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    api, sender = a_mirror(valkey, rows), a_mirror(valkey, rows)
    await sender.control(*AT)
    rows.rows[AT] = control(2, ControlState.PAUSED)
    await api.publish(*AT, rows.rows[AT])
    assert (await sender.control(*AT)).state is ControlState.PAUSED
    # An older row that is published late changes nothing.
    await api.publish(*AT, control(1))
    assert (await sender.control(*AT)).version == 2
    asked = rows.asked
    assert (await sender.control(*AT)).version == 2
    assert rows.asked == asked
    await api.close()
    await sender.close()


async def test_processes_do_not_keep_taking_the_generation_from_each_other(valkey: str) -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    mirrors = [a_mirror(valkey, rows) for _ in range(4)]
    for _ in range(3):
        for mirror in mirrors:
            await mirror.control(*AT)
    asked = rows.asked
    for mirror in mirrors * 3:
        await mirror.control(*AT)
    assert rows.asked == asked
    for mirror in mirrors:
        await mirror.close()


async def test_after_everything_was_flushed_postgres_is_asked(client: Redis, valkey: str) -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    mirror = a_mirror(valkey, rows)
    await mirror.control(*AT)
    rows.rows[AT] = control(2, ControlState.PAUSED)
    await client.flushall()
    assert (await mirror.control(*AT)).state is ControlState.PAUSED
    await mirror.close()


async def test_without_redis_postgres_is_asked_each_time_and_without_both_nothing_is_said() -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    mirror = a_mirror(NOWHERE, rows)
    await mirror.control(*AT)
    rows.rows[AT] = control(2, ControlState.CANCELLED)
    assert (await mirror.control(*AT)).state is ControlState.CANCELLED
    rows.down = True
    with pytest.raises(StoreUnavailable):
        await mirror.control(*AT)
    await mirror.close()


async def test_what_changed_is_read_from_postgres_whatever_redis_says(valkey: str) -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    mirror = a_mirror(valkey, rows)
    assert mirror.age() == float("inf")
    await mirror.control(*AT)
    rows.rows[AT] = control(2, ControlState.PAUSED)
    await mirror.refresh()
    assert mirror.known(*AT) == control(2, ControlState.PAUSED)
    assert (await mirror.control(*AT)).version == 2
    assert mirror.age() < 60
    rows.down = True
    with pytest.raises(StoreUnavailable):
        await mirror.refresh()
    await mirror.close()


async def test_running_it_follows_postgres_and_survives_its_absence(valkey: str) -> None:
    rows = Rows()
    rows.down = True
    mirror = a_mirror(valkey, rows)
    task = asyncio.create_task(mirror.run())
    rows.rows[AT] = control(7)
    rows.down = False
    async with asyncio.timeout(5):
        while mirror.known(*AT) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await mirror.close()


async def test_a_row_that_cannot_be_read_is_not_believed(client: Redis, valkey: str) -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    mirror = a_mirror(valkey, rows)
    await mirror.control(*AT)
    await client.hset("sendloom:control", f"t/{AT[1]}", '{"version": "no"}')
    asked = rows.asked
    assert await mirror.control(*AT) == control(1)
    assert rows.asked == asked + 1
    await mirror.close()


@pytest.fixture
def restarting(server_home: Path) -> Iterator["Restarting"]:
    server = Restarting(server_home / f"valkey-{uuid4().hex[:8]}")
    server.start()
    yield server
    server.stop()


class Restarting:
    """A Valkey that can be killed and brought back with an older dump."""

    def __init__(self, directory: Path) -> None:
        self.valkey = EmbeddedValkey(directory=directory, port=free_port(), snapshots=False)
        self._stack = ExitStack()

    def start(self) -> None:
        self._stack.enter_context(
            running(self.valkey.part(), self.valkey.directory.with_suffix(".log"))
        )

    def stop(self) -> None:
        self._stack.close()


async def test_a_valkey_restored_from_an_old_dump_that_says_running_is_not_believed(
    restarting: Restarting,
) -> None:
    rows = Rows()
    rows.rows[AT] = control(1)
    directory = restarting.valkey.directory
    sender, api = a_mirror(restarting.valkey.url, rows), a_mirror(restarting.valkey.url, rows)
    await sender.control(*AT)
    await api.control(*AT)
    await sender.control(*AT)
    admin = open_redis(restarting.valkey.url)
    await admin.execute_command("SAVE")
    await admin.aclose()
    shutil.copy(directory / "dump.rdb", directory / "old.rdb")
    rows.rows[AT] = control(2, ControlState.PAUSED)
    await asyncio.to_thread(restarting.stop)
    # The pause is written while it is away, so nobody can tell it.
    await api.publish(*AT, rows.rows[AT])
    shutil.copy(directory / "old.rdb", directory / "dump.rdb")
    await asyncio.to_thread(restarting.start)
    # A process that has just started knows nothing but what it is told.
    fresh = a_mirror(restarting.valkey.url, rows)
    for mirror in (sender, fresh):
        assert (await mirror.control(*AT)).state is ControlState.PAUSED
        assert (await mirror.control(*AT)).state is ControlState.PAUSED
    for mirror in (sender, api, fresh):
        await mirror.close()


async def test_over_the_real_store_a_pause_is_seen(
    stores: Stores, world: World, valkey: str
) -> None:
    campaign = await world.campaign(1)
    mirror = ControlMirror(valkey, stores.campaigns, clock=lambda: NOW + timedelta(seconds=5))
    at = (world.tenant, campaign.campaign_id)
    assert (await mirror.control(*at)).state is ControlState.RUNNING
    await stores.campaigns.set_control(*at, ControlState.PAUSED, None, "why", "ann")
    await mirror.refresh()
    assert (await mirror.control(*at)).state is ControlState.PAUSED
    await mirror.close()
