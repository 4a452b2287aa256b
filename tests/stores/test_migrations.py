"""Migrating: under a lock, forward only, noticed when missing."""

import asyncio

import asyncpg
import pytest

from sendloom.errors import ConfigurationError, SchemaTooOld, StoreUnavailable
from sendloom.stores.migrations.runner import (
    MONTHS_AHEAD,
    check_schema,
    ensure_partitions,
    migrate,
    migrations,
)
from sendloom.stores.pool import open_pool
from tests.stores.conftest import waiting


async def test_an_empty_database_is_refused_with_the_command(empty_database: str) -> None:
    with pytest.raises(SchemaTooOld, match="sendloom migrate"):
        await check_schema(empty_database)


async def test_after_migrating_the_schema_is_new_enough_and_again_changes_nothing(
    empty_database: str,
) -> None:
    assert await migrate(empty_database) == [migration.name for migration in migrations()]
    await check_schema(empty_database)
    assert await migrate(empty_database) == []


async def test_three_at_once_apply_each_file_once(empty_database: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_database) for _ in range(3)))
    names = [name for applied_here in applied for name in applied_here]
    assert sorted(names) == [migration.name for migration in migrations()]


async def test_an_older_schema_is_refused(fresh_database: str) -> None:
    connection = await asyncpg.connect(fresh_database)
    await connection.execute("UPDATE schema_migrations SET version = -version")
    await connection.close()
    with pytest.raises(SchemaTooOld, match="sendloom migrate"):
        await check_schema(fresh_database)


async def test_a_migration_that_was_changed_after_the_fact_is_refused(fresh_database: str) -> None:
    connection = await asyncpg.connect(fresh_database)
    await connection.execute("UPDATE schema_migrations SET sha256 = '\\x00'")
    await connection.close()
    with pytest.raises(ConfigurationError, match="new file"):
        await migrate(fresh_database)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable):
        await check_schema("postgresql://nobody@127.0.0.1:1/none")


async def test_partitions_reach_a_year_ahead_and_take_over_what_fell_into_the_default_one(
    fresh_database: str,
) -> None:
    connection = await asyncpg.connect(fresh_database)
    ahead = await connection.fetchval(
        "SELECT (date_trunc('month', now() AT TIME ZONE 'UTC') + $1 * interval '1 month') AT TIME ZONE 'UTC' + interval '1 day'",
        MONTHS_AHEAD,
    )
    insert = """INSERT INTO decisions (tenant, frozen_at, campaign_id, shard, page, recipient_id, state)
                VALUES ('t', $1, gen_random_uuid(), 0, 0, 'r', 0) RETURNING tableoid::regclass::text"""
    assert (await connection.fetchval(insert, ahead)).startswith("decisions_2")
    # Its month was never made: as if a clock had been wrong when it was.
    child = f"decisions_{ahead:%Y%m}"
    await connection.execute(f"DROP TABLE {child}")
    assert await connection.fetchval(insert, ahead) == "decisions_default"
    await migrate(fresh_database)
    assert await connection.fetchval("SELECT count(*) FROM decisions_default") == 0
    assert await connection.fetchval(f"SELECT count(*) FROM {child}") == 1
    await connection.close()


async def test_a_month_that_two_make_at_once_is_made_once(fresh_database: str) -> None:
    """Housekeeping and `sendloom migrate`, or two of either."""
    async with await open_pool(fresh_database, 2, "tests") as pool:
        child = await pool.fetchval(
            "SELECT max(relname) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'claims\\_2%'"
        )
        await pool.execute(f"DROP TABLE {child}")
        async with asyncio.TaskGroup() as group, pool.acquire() as holder, holder.transaction():
            # What the month is made from: whoever makes it gets this far.
            await holder.execute("LOCK claims_default")
            group.create_task(ensure_partitions(fresh_database))
            await waiting(pool, 1)
            group.create_task(migrate(fresh_database))
            await waiting(pool, 2)
        assert await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", child)
