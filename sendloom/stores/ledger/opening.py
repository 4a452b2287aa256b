"""Which ledger the settings choose, and the stores that go with it. Only here is the Cassandra driver imported, when it is asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sendloom.ports import FullLedger, Sealer, SentStore
from sendloom.settings import Settings
from sendloom.stores.accepted import PostgresAccepted
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.people import PostgresPeople
from sendloom.stores.pool import Pool
from sendloom.stores.recipients import PostgresRecipients
from sendloom.stores.sent import PostgresSent, SentInTurn

if TYPE_CHECKING:
    from sendloom.stores.cassandra import Address, Connection


@dataclass(frozen=True, slots=True)
class LedgerStores:
    """The ledger, and every store that looks into it."""

    ledger: FullLedger
    accepted: PostgresAccepted
    people: PostgresPeople
    campaigns: PostgresCampaigns
    decisions: PostgresDecisions
    sent: SentStore
    recipients: PostgresRecipients


def cassandra_address(settings: Settings) -> "Address | None":
    """None: the ledger is in Postgres."""
    if settings.ledger != "cassandra":
        return None
    from sendloom.stores.cassandra import Address

    given = settings.cassandra
    return Address(
        hosts=given.nodes,
        datacenter=given.datacenter,
        keyspace=given.keyspace,
        username=given.username,
        password=given.password.get_secret_value() if given.password else None,
    )


@asynccontextmanager
async def open_cassandra(settings: Settings) -> AsyncIterator["Connection | None"]:
    """The process's connection to it; None when the ledger is in Postgres. Does not wait: nobody's start depends on it."""
    if (address := cassandra_address(settings)) is None:
        yield None
        return
    from sendloom.stores.cassandra import connection
    from sendloom.stores.cql.runner import check_session

    async with connection(address, check=check_session) as connected:
        yield connected


def ledger_stores(pool: Pool, sealer: Sealer, cassandra: "Connection | None") -> LedgerStores:
    decisions = PostgresDecisions(pool, sealer)
    if cassandra is None:
        of_postgres = PostgresLedger(pool)
        return LedgerStores(
            ledger=of_postgres,
            accepted=PostgresAccepted(pool, sealer),
            people=PostgresPeople(pool),
            campaigns=PostgresCampaigns(pool, decisions),
            decisions=decisions,
            sent=PostgresSent(pool, SentInTurn(of_postgres, decisions)),
            recipients=PostgresRecipients(pool, sealer),
        )
    from sendloom.stores.cassandra import Requests, monotonic
    from sendloom.stores.ledger.beside import (
        AcceptedBeside,
        CampaignsBeside,
        PeopleBeside,
        RecipientsBeside,
    )
    from sendloom.stores.ledger.cassandra import CassandraLedger
    from sendloom.stores.ledger.grounds import PostgresClock, PostgresEpochs, PostgresPlaces

    # A share of the connection for each pool: a campaign's claims never hold up a passcode's.
    ledger = CassandraLedger(
        Requests(cassandra),
        PostgresClock(pool, monotonic),
        PostgresEpochs(pool),
        PostgresPlaces(pool),
    )
    return LedgerStores(
        ledger=ledger,
        accepted=AcceptedBeside(pool, sealer, ledger),
        people=PeopleBeside(pool, ledger),
        campaigns=CampaignsBeside(pool, decisions, ledger),
        decisions=decisions,
        sent=SentInTurn(ledger, decisions),
        recipients=RecipientsBeside(pool, sealer, ledger),
    )
