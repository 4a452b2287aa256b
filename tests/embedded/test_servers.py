"""The servers behind the test fixtures and `sendloom up` are real ones, configured as the product needs them."""

import stat
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio
from temporalio.client import Client

from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.embedded.postgres import EmbeddedPostgres
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.errors import ConfigurationError


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


def test_postgres_runs_below_a_directory_that_is_closed_to_others(
    server_home: Path, tmp_path: Path
) -> None:
    """As root it runs as another user, who must be let through. Not below pytest's own: each pytest that begins closes that."""
    closed = server_home / "closed"
    closed.mkdir(0o700)
    server = EmbeddedPostgres(
        directory=closed / "postgres", port=free_port(), password="p", for_tests=True
    )
    with running(server.part(), tmp_path / "log"):
        assert server.execute("SELECT 1", database="postgres") == "1"
    assert not stat.S_IMODE(closed.stat().st_mode) & (stat.S_IROTH | stat.S_IWOTH)


def test_a_server_that_cannot_start_says_why(tmp_path: Path, valkey_server: EmbeddedValkey) -> None:
    second = EmbeddedValkey(directory=tmp_path / "valkey", port=valkey_server.port)
    # The first one answers in its place, which is not enough.
    with pytest.raises(ConfigurationError, match=r"(?s)valkey did not become ready.*in use"):
        with running(second.part(), tmp_path / "log"):
            pass
