"""Whatever ended without success, until somebody has looked at it."""

from collections.abc import Sequence
from uuid import UUID

from schemas.kinds import Channel, Kind
from schemas.notifications import DecisionKey
from sendloom.ports import DeadLetter
from sendloom.stores.pool import ACQUIRE, STATEMENT, Connection, PostgresStore, Record, answering
from sendloom.stores.queries import load

SQL = load("dead_letters.sql")


class PostgresDeadLetters(PostgresStore):
    """Implements `DeadLetterStore`."""

    async def add(self, letters: Sequence[DeadLetter]) -> None:
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                await add_letters(connection, letters)

    async def by_status(
        self, tenant: str, status: str, limit: int, after: UUID | None = None
    ) -> list[DeadLetter]:
        """Newest first."""
        rows = await self._fetch(SQL["by_status"], tenant, status, limit, after)
        return [_letter(row) for row in rows]

    async def get(self, tenant: str, id: UUID) -> DeadLetter | None:
        row = await self._row(SQL["get"], tenant, id)
        return None if row is None else _letter(row)

    async def resolve(self, tenant: str, id: UUID, status: str, by: str) -> bool:
        if status not in ("replayed", "discarded"):
            raise ValueError("a dead letter is replayed or discarded")
        return await self._execute(SQL["resolve"], tenant, id, status, by) > 0


async def add_letters(connection: Connection, letters: Sequence[DeadLetter]) -> None:
    batch = sorted({letter.id: letter for letter in letters}.values(), key=lambda one: one.id)
    if not batch:
        return
    await connection.execute(
        SQL["add"],
        [one.decision.tenant for one in batch],
        [one.id for one in batch],
        [one.kind for one in batch],
        [one.ref_id for one in batch],
        [one.decision.campaign_id for one in batch],
        [one.decision.frozen_at for one in batch],
        [one.decision.shard for one in batch],
        [one.decision.page for one in batch],
        [one.decision.recipient_id for one in batch],
        [one.category for one in batch],
        [one.channel for one in batch],
        [one.state for one in batch],
        [one.code for one in batch],
        [one.last_error for one in batch],
        timeout=STATEMENT,
    )


def _letter(row: Record) -> DeadLetter:
    return DeadLetter(
        id=row["id"],
        kind=Kind(row["kind"]),
        ref_id=row["ref_id"],
        decision=DecisionKey(
            tenant=row["tenant"],
            frozen_at=row["frozen_at"],
            campaign_id=row["campaign_id"],
            shard=row["shard"],
            page=row["page"],
            recipient_id=row["recipient_id"],
        ),
        category=row["category"],
        channel=None if row["channel"] is None else Channel(row["channel"]),
        state=row["state"],
        code=row["code"],
        last_error=row["last_error"],
        created_at=row["created_at"],
        status=row["status"],
        replays=row["replays"],
    )
