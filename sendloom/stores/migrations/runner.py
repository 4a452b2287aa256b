"""Numbered `.sql` files, forward only, applied under a lock. Processes refuse to run on an older schema."""

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import asyncpg

from sendloom.errors import ConfigurationError, SchemaTooOld
from sendloom.stores.pool import BULK, CONNECT, answering

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

log = logging.getLogger(__name__)

FIX = "run `sendloom migrate`"
MONTHS_AHEAD = 12

_FILE = re.compile(r"(\d{4})_\w+\.sql")
_LOCK = 0x53454E444C4F4F4D  # "SENDLOOM": one at a time a database that changes its tables

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    int PRIMARY KEY,
    name       text NOT NULL,
    sha256     bytea NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_PARTITIONS = f"""
SELECT ensure_partitions(
    (date_trunc('month', now() AT TIME ZONE 'UTC') - interval '1 month')::date,
    (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '{MONTHS_AHEAD} months')::date
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.sql.encode()).digest()


def migrations() -> list[Migration]:
    """What this build knows, oldest first."""
    found = [
        Migration(int(match[1]), entry.name, entry.read_text("utf-8"))
        for entry in resources.files("sendloom.stores.migrations").iterdir()
        if (match := _FILE.fullmatch(entry.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ConfigurationError("the migrations are not numbered 0001, 0002, … without a gap")
    return found


async def migrate(dsn: str) -> list[str]:
    """Apply what is missing, each file in a transaction of its own, and keep the partitions ahead; the names applied.

    Safe to run by several processes at once, and again.

    Raises:
        ConfigurationError: a migration was changed after it was applied.
        StoreUnavailable: the server does not answer.
    """
    applied: list[str] = []
    async with _connected(dsn) as connection:
        await connection.fetchval("SELECT pg_advisory_lock($1)", _LOCK, timeout=10 * BULK)
        await connection.execute(_TABLE)
        rows = await connection.fetch("SELECT version, sha256 FROM schema_migrations")
        known = {row["version"]: row["sha256"] for row in rows}
        for migration in migrations():
            if migration.version in known:
                if known[migration.version] != migration.sha256:
                    raise ConfigurationError(
                        f"{migration.name} was changed after this database got it; "
                        "a change of the schema is a new file"
                    )
                continue
            async with connection.transaction():
                await connection.execute(migration.sql, timeout=10 * BULK)
                await connection.execute(
                    "INSERT INTO schema_migrations (version, name, sha256) VALUES ($1, $2, $3)",
                    migration.version,
                    migration.name,
                    migration.sha256,
                )
            applied.append(migration.name)
            log.info("migration applied", extra={"migration": migration.name})
        await connection.execute(_PARTITIONS, timeout=BULK)
    return applied


async def check_schema(dsn: str) -> None:
    """Nothing, when the schema is new enough for this build.

    Raises:
        SchemaTooOld: it is older; the message says the command.
        StoreUnavailable: the server does not answer.
    """
    newest = migrations()[-1]
    async with _connected(dsn) as connection:
        if await connection.fetchval("SELECT to_regclass('schema_migrations')") is None:
            raise SchemaTooOld(f"the database has no Sendloom schema yet: {FIX}")
        version = await connection.fetchval("SELECT max(version) FROM schema_migrations")
        if (version or 0) < newest.version:
            raise SchemaTooOld(
                f"the database's schema is at {version or 0}, this build needs {newest.version}: {FIX}"
            )


async def ensure_partitions(dsn: str) -> None:
    """Monthly partitions from last month to a year ahead; for housekeeping."""
    async with _connected(dsn) as connection:
        await connection.fetchval("SELECT pg_advisory_lock($1)", _LOCK, timeout=BULK)
        await connection.execute(_PARTITIONS, timeout=BULK)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Connection]:
    """A connection of its own: the lock of a migration ends with it, whatever happens."""
    with answering():
        connection = await asyncpg.connect(
            dsn,
            timeout=CONNECT,
            command_timeout=BULK,
            server_settings={"application_name": "sendloom migrate", "timezone": "UTC"},
        )
        try:
            yield connection
        finally:
            try:
                await asyncio.shield(connection.close(timeout=CONNECT))
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
