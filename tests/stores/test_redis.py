"""What Redis makes fast, and that nothing is believed of it when it is gone, empty or back."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from sendloom.stores.limits import PostgresLimits
from sendloom.stores.pool import open_pool
from sendloom.stores.redis_client import Redis, open_redis
from sendloom.stores.sent_cache import RedisSentCache
from sendloom.stores.tokens import LocalTokens, RedisTokens

NOWHERE = "redis://127.0.0.1:1/0"
HUGE = 10**6


@pytest_asyncio.fixture
async def client(valkey: str) -> AsyncIterator[Redis]:
    client = open_redis(valkey)
    yield client
    await client.aclose()


AGES = 3600.0
"""Seconds. So far ahead of the server's clock that no time passes, however slow the machine."""


def bucket(name: str) -> str:
    return f"sendloom:{{buckets}}:{name}"


async def holds(client: Redis, name: str, tokens: float) -> None:
    """A bucket with so many, into which nothing comes until it is taken from."""
    at, _ = await client.time()
    await client.hset(bucket(name), mapping={"tokens": tokens, "at": at + AGES})


async def pass_time(client: Redis, name: str, seconds: float, *fields: str) -> None:
    """As if the bucket had been left alone so long."""
    key = bucket(name)
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
    await holds(client, "provider", 300)
    await holds(client, "campaign", 3.5)
    taken, wait = await tokens.take([wide, narrow], 100)
    assert taken == 3
    assert wait == pytest.approx(0.05)
    await holds(client, "provider", 297)
    await holds(client, "campaign", 0.5)
    taken, wait = await tokens.take([wide, narrow], 100)
    assert taken == 0
    assert wait == pytest.approx(0.05)
    # What the narrow one refused was not taken from the wide one.
    await pass_time(client, "provider", -AGES)
    assert (await tokens.take([wide], HUGE))[0] == 297


async def test_many_processes_together_stay_under_the_rate(valkey: str) -> None:
    clients = [open_redis(valkey) for _ in range(4)]
    tokens = [RedisTokens(one) for one in clients]
    await tokens[0].take([("c", 200.0)], 1)
    await pass_time(clients[0], "c", 60)
    began = time.monotonic()
    taken = await asyncio.gather(*(one.take([("c", 200.0)], 70) for one in tokens * 3))
    total = sum(n for n, _ in taken)
    # Half a second's worth, and what came in while the test ran.
    assert 100 <= total <= 100 + 200 * (time.monotonic() - began)
    for one in clients:
        await one.aclose()


async def test_rate_nothing_takes_nothing_and_no_bucket_asks_for_no_patience(
    client: Redis,
) -> None:
    tokens = RedisTokens(client)
    assert await tokens.take([("off", 0.0)], 5) == (0, 60.0)
    assert await tokens.take([], 5) == (5, 0.0)
    assert await tokens.take([("c", 5.0)], 0) == (0, 0.0)


TAKES_UNTIL_KILLED = """
import asyncio, sys
from datetime import timedelta
from sendloom.stores.limits import PostgresLimits
from sendloom.stores.pool import open_pool
from sendloom.stores.redis_client import open_redis
from sendloom.stores.tokens import RedisTokens

async def main():
    tokens = RedisTokens(open_redis(sys.argv[1]))
    limits = PostgresLimits(await open_pool(sys.argv[2], 1, "killed"))
    print("takes", flush=True)
    n = 0
    while True:
        n += 1
        # What it has seen and what is new: a counter is made as often as it is counted.
        await tokens.take([("u1", 2.0), (f"new:{n}", 2.0)], 1)
        await tokens.slow_down(f"slowed:{n}", 2.0)
        await limits.take("acme", "verify:u1", 2, timedelta(seconds=1))

asyncio.run(main())
"""


async def test_c45_a_process_killed_while_it_counts_leaves_no_counter_that_never_ends(
    client: Redis, valkey: str, database: str
) -> None:
    """At whatever command it was: there are not two steps between which it could have died."""
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", TAKES_UNTIL_KILLED, valkey, database),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"takes\n"
        made = await client.dbsize()
        async with asyncio.timeout(60):
            while await client.dbsize() < made + 60:  # noqa: ASYNC110 - another process counts
                await asyncio.sleep(0.001)
        process.kill()
        await process.wait()
    keys = [key async for key in client.scan_iter("*")]
    assert len(keys) > 180
    assert [key for key in keys if await client.ttl(key) <= 0] == []
    # u1 was at the limit, and a window later is not.
    tokens = RedisTokens(client)
    await pass_time(client, "u1", 1)
    assert (await tokens.take([("u1", 2.0)], 1))[0] == 1
    pool = await open_pool(database, 1, "tests")
    limits, window = PostgresLimits(pool), timedelta(seconds=1)
    async with asyncio.timeout(60):
        while (ends := await limits.take("acme", "verify:u1", 2, window)) is not None:
            assert ends - await pool.fetchval("SELECT now()") <= window
            await asyncio.sleep(0.02)
    await pool.close()


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
    await pass_time(client, "p", -AGES, "down")
    # Fifty throttles of one moment are one reason.
    assert [await tokens.slow_down("p", 100.0) for _ in range(50)] == [50.0] * 50
    await pass_time(client, "p", AGES + 2, "down")
    assert await tokens.slow_down("p", 100.0) == 25.0
    assert await tokens.speed_up("p", 100.0) == 30.0
    await pass_time(client, "p", -AGES, "up")
    assert await tokens.speed_up("p", 100.0) == 30.0
    await tokens.take([("p", 100.0)], 1)
    await pass_time(client, "p", 3600)
    taken, _ = await tokens.take([("p", 100.0)], HUGE)
    assert taken == 15
    for _ in range(40):
        await pass_time(client, "p", AGES + 2, "up")
        rate = await tokens.speed_up("p", 100.0)
    assert rate == 100.0
    for _ in range(40):
        await pass_time(client, "p", 2, "down")
        rate = await tokens.slow_down("p", 100.0)
    assert rate == 2.0


async def test_without_redis_each_process_takes_its_share_and_remembers_the_throttle() -> None:
    client, now = open_redis(NOWHERE), 0.0
    tokens = RedisTokens(client, share=0.25, clock=lambda: now)
    assert (await tokens.take([("c", 400.0)], 500))[0] == 1
    assert await tokens.slow_down("c", 400.0) == 200.0
    now += 0.1
    taken, wait = await tokens.take([("c", 400.0)], 500)
    assert taken == 5
    assert wait == pytest.approx(0.02)
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
