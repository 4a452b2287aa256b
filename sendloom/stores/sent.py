"""What a provider took of a page: its claims recorded, then its decisions moved."""

from collections.abc import Mapping
from uuid import UUID

from schemas.kinds import ClaimState
from sendloom.domain.outcomes import RECIPIENT_CODE
from sendloom.ports import ClaimResult, ClaimScope, DecisionStore, Ledger, Move, SentStore
from sendloom.stores.decisions import mask
from sendloom.stores.pool import Pool, PostgresStore, joined, joined_or_none
from sendloom.stores.queries import load

SQL = load("sent.sql")


class SentInTurn:
    """Implements `SentStore` over any two stores."""

    def __init__(self, ledger: Ledger, decisions: DecisionStore) -> None:
        self._ledger = ledger
        self._decisions = decisions

    async def write(
        self, scope: ClaimScope, owner: UUID, provider: str, sent: Mapping[str, str]
    ) -> None:
        if not sent:
            return
        results = [
            ClaimResult(id, 1, owner, ClaimState.SENT, provider=provider, provider_message_id=named)
            for id, named in sent.items()
        ]
        await self._ledger.record(scope, results)
        await self._decisions.move_page(list(sent), Move.proven(scope))


class PostgresSent(PostgresStore):
    """Implements `SentStore` where claims and decisions are in one database: in one statement, nearly always."""

    def __init__(self, pool: Pool, in_turn: SentStore) -> None:
        super().__init__(pool)
        self._in_turn = in_turn

    async def write(
        self, scope: ClaimScope, owner: UUID, provider: str, sent: Mapping[str, str]
    ) -> None:
        if not sent:
            return
        # In the one order that every writer keeps.
        ids = sorted(sent)
        like = Move.proven(scope)
        recorded = await self._value(
            SQL["write"],
            scope.tenant,
            scope.frozen_at,
            scope.campaign_id,
            scope.shard,
            scope.page,
            scope.channel,
            joined(ids),
            joined_or_none([sent[id] for id in ids]),
            provider,
            mask(like.expect, like.to, like.cause),
            RECIPIENT_CODE[like.to],
        )
        if recorded < len(ids):
            # Some were recorded before, or never claimed: the ledger knows what to do with each.
            await self._in_turn.write(scope, owner, provider, sent)
