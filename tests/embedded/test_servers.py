"""The servers behind the test fixtures and `sendloom up` are real ones, configured as the product needs them."""

import asyncpg
import redis.asyncio
from temporalio.client import Client


async def test_an_empty_database_accepts_sql_in_utf_8(empty_database: str) -> None:
    connection = await asyncpg.connect(empty_database)
    try:
        assert await connection.fetchval("SELECT upper('zoë')") == "ZOË"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
    finally:
        await connection.close()


async def test_valkey_is_empty_at_the_start_of_a_test(valkey: str) -> None:
    async with redis.asyncio.Redis.from_url(valkey) as client:
        assert await client.dbsize() == 0
        await client.set("left", "over")


async def test_valkey_is_empty_again_in_the_next(valkey: str) -> None:
    async with redis.asyncio.Redis.from_url(valkey) as client:
        assert await client.dbsize() == 0


async def test_temporal_has_the_namespace_and_the_search_attributes(
    temporal_client: Client,
) -> None:
    counted = await temporal_client.count_workflows("SendloomTenant = 'nobody'")
    assert counted.count == 0
