"""Numbered `.cql` files, forward only, as in `stores/migrations`; Cassandra has no transactions, so every statement of one may be
repeated (`IF NOT EXISTS`), and a file counts as applied when all of it is."""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from typing import Any
from uuid import uuid4

from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.query import SimpleStatement

from sendloom.errors import ConfigurationError, SchemaTooOld, StoreUnavailable
from sendloom.stores.cassandra import QUORUM, Address, answering, open_cluster
from sendloom.stores.migrations.runner import FIX, Migration

log = logging.getLogger(__name__)

_FILE = re.compile(r"(\d{4})_\w+\.cql")
_COMMENT = re.compile(r"--.*")
_DDL_SECONDS = 30.0
AGREE_SECONDS = 10.0
"""For every node that is up to know a change."""
_LOCK_SECONDS = 120

_TABLES = (
    """CREATE TABLE IF NOT EXISTS schema_migrations (
           version int PRIMARY KEY, name text, sha256 blob, applied_at timestamp)""",
    "CREATE TABLE IF NOT EXISTS schema_lock (name text PRIMARY KEY, owner uuid)",
)

_DISAGREE = "Cassandra: the nodes do not agree on the schema; look at them, then repeat"


def migrations() -> list[Migration]:
    """What this build knows, oldest first."""
    found = [
        Migration(int(match[1]), entry.name, entry.read_text("utf-8"))
        for entry in resources.files("sendloom.stores.cql").iterdir()
        if (match := _FILE.fullmatch(entry.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ConfigurationError("the CQL migrations are not numbered 0001, 0002, … without a gap")
    return found


def statements(cql: str) -> list[str]:
    """The statements of a file; none of ours has a semicolon or two dashes inside a string."""
    return [s.strip() for s in _COMMENT.sub("", cql).split(";") if s.strip()]


async def migrate(
    address: Address, replication: int, *, agree_within: float = AGREE_SECONDS
) -> list[str]:
    """Create the keyspace, apply what is missing, in order; the names applied. Safe to repeat and by several at once.

    Raises:
        ConfigurationError: a migration was changed after it was applied.
        StoreUnavailable: too few nodes answer, or they do not agree on the schema.
    """
    return await asyncio.to_thread(_migrate, address, replication, agree_within)


async def check_schema(address: Address) -> None:
    """Nothing, when the schema is new enough for this build.

    Raises:
        SchemaTooOld: it is older; the message says the command.
        StoreUnavailable: the cluster does not answer.
    """
    await asyncio.to_thread(_check, address)


def _migrate(address: Address, replication: int, agree_within: float) -> list[str]:
    assert address.keyspace is not None
    applied: list[str] = []
    with _session(replace(address, keyspace=None), agree_within) as session:
        # What is there already changes nothing, and so waits for nobody: a node may still not know it.
        if not session.cluster.control_connection.wait_for_schema_agreement():
            raise StoreUnavailable(_DISAGREE)
        _ddl(
            session,
            f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} WITH replication = "
            f"{{'class': 'NetworkTopologyStrategy', '{address.datacenter}': {int(replication)}}}",
        )
        session.set_keyspace(address.keyspace)
        for table in _TABLES:
            _ddl(session, table)
        with _locked(session):
            known: dict[int, bytes] = dict(
                _rows(session, "SELECT version, sha256 FROM schema_migrations")
            )
            for migration in migrations():
                if migration.version in known:
                    if known[migration.version] != migration.sha256:
                        raise ConfigurationError(
                            f"{migration.name} was changed after this cluster got it; "
                            "a change of the schema is a new file"
                        )
                    continue
                for statement in statements(migration.sql):
                    _ddl(session, statement)
                session.execute(
                    SimpleStatement(
                        "INSERT INTO schema_migrations (version, name, sha256, applied_at)"
                        " VALUES (%s, %s, %s, toTimestamp(now()))",
                        consistency_level=QUORUM,
                    ),
                    (
                        migration.version,
                        migration.name,
                        hashlib.sha256(migration.sql.encode()).digest(),
                    ),
                )
                applied.append(migration.name)
                log.info("migration applied", extra={"migration": migration.name})
    return applied


def check_session(session: Session) -> None:
    """As `check_schema`, on a session that is in our keyspace."""
    newest = migrations()[-1]
    try:
        rows = _rows(session, "SELECT version FROM schema_migrations")
    except InvalidRequest:
        raise SchemaTooOld(f"Cassandra has no Sendloom schema yet: {FIX}") from None
    version = max((row[0] for row in rows), default=0)
    if version < newest.version:
        raise SchemaTooOld(
            f"Cassandra's schema is at {version}, this build needs {newest.version}: {FIX}"
        )


def _check(address: Address) -> None:
    with _session(replace(address, keyspace=None)) as session:
        try:
            session.set_keyspace(address.keyspace)
        except InvalidRequest:
            raise SchemaTooOld(f"Cassandra has no Sendloom schema yet: {FIX}") from None
        check_session(session)


@contextmanager
def _session(address: Address, agree_within: float = AGREE_SECONDS) -> Iterator[Session]:
    cluster = open_cluster(address)
    # A change that only some nodes know must stop us, not be waited for in vain for ever.
    cluster.max_schema_agreement_wait = agree_within
    try:
        with answering():
            yield cluster.connect(address.keyspace)
    finally:
        cluster.shutdown()


@contextmanager
def _locked(session: Session) -> Iterator[None]:
    """One migration at a time. A lock whose holder died ends by itself."""
    owner = uuid4()
    take = f"INSERT INTO schema_lock (name, owner) VALUES ('migrate', %s) IF NOT EXISTS USING TTL {_LOCK_SECONDS}"
    deadline = time.monotonic() + 2 * _LOCK_SECONDS
    while True:
        row = session.execute(take, (owner,), timeout=_DDL_SECONDS).one()
        # Ours also when the answer to the first attempt was lost.
        if row[0] or row[-1] == owner:
            break
        if time.monotonic() > deadline:
            raise StoreUnavailable("another migration of Cassandra does not end")
        time.sleep(0.5)
    try:
        yield
    finally:
        session.execute("DELETE FROM schema_lock WHERE name = 'migrate' IF owner = %s", (owner,))


def _ddl(session: Session, statement: str) -> None:
    future = session.execute_async(statement, timeout=_DDL_SECONDS)
    future.result()
    if not future.is_schema_agreed:
        raise StoreUnavailable(_DISAGREE)


def _rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    return list(session.execute(SimpleStatement(query, consistency_level=QUORUM)))
