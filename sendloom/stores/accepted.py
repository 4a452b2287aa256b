"""What we promised. Inserted before a workflow starts, closed by its last step, kept 30 days beyond."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from schemas.kinds import Kind, MessageClass, Mode
from sendloom.domain.same_body import require_same_body
from sendloom.ports import AcceptedRow, Sealer
from sendloom.stores.pool import FIRST, Pool, PostgresStore, Record
from sendloom.stores.queries import load

SQL = load("accepted.sql")

LOOKED_AT = 200
"""Of the newest security messages, twice a second for each marketing process: two milliseconds."""
_INPUT = "accepted-input"
_CONTENT = "accepted-content"


class PostgresAccepted(PostgresStore):
    """Implements `AcceptedStore`."""

    def __init__(self, pool: Pool, sealer: Sealer) -> None:
        super().__init__(pool)
        self._sealer = sealer

    async def insert_or_match(self, row: AcceptedRow) -> tuple[AcceptedRow, bool]:
        inserted = await self._value(
            SQL["insert"],
            row.tenant,
            row.id,
            row.mode,
            row.kind,
            row.idempotency_key,
            row.body_hmac,
            row.message_class,
            row.category,
            row.recipient_id,
            row.correlation_id,
            row.parent_id,
            self._sealer.seal(_INPUT, row.tenant, row.workflow_input),
            self._sealer.seal(_CONTENT, row.tenant, row.content),
            row.accepted_at,
            row.due_at,
            row.expires_at,
            row.started_at,
        )
        if inserted:
            return row, False
        stored = await self.get(row.tenant, row.id)
        if stored is None:
            # Purged in this very moment: then it is free again.
            return await self.insert_or_match(row)
        require_same_body(stored.body_hmac, row.body_hmac)
        return stored, True

    async def mark_started(self, tenant: str, id: UUID) -> None:
        await self._execute(SQL["mark_started"], tenant, id)

    async def close(self, tenant: str, id: UUID, outcome: Mapping[str, Any]) -> None:
        await self._execute(SQL["close"], tenant, id, dict(outcome))

    async def get(self, tenant: str, id: UUID) -> AcceptedRow | None:
        row = await self._row(SQL["get"], tenant, id)
        return None if row is None else self._open(row)

    async def set_due(self, tenant: str, id: UUID, due_at: datetime) -> None:
        await self._execute(SQL["set_due"], tenant, id, due_at)

    async def by_recipient(
        self, tenant: str, recipient_id: str, limit: int, before: datetime | None = None
    ) -> list[AcceptedRow]:
        return await self._rows("by_recipient", tenant, recipient_id, limit, before)

    async def by_correlation(self, tenant: str, correlation_id: str) -> list[AcceptedRow]:
        return await self._rows("by_correlation", tenant, correlation_id)

    async def unstarted(self, older_than: timedelta, limit: int) -> list[AcceptedRow]:
        return await self._rows("unstarted", older_than, limit)

    async def open_rows(self, after: tuple[str, UUID] | None, limit: int) -> list[AcceptedRow]:
        return await self._rows("open_rows", *(after or FIRST), limit)

    async def oldest_waiting_security(self, at_least: timedelta) -> timedelta | None:
        """Over all tenants: the age of the oldest security message that nobody has called for yet (LANE-3)."""
        age: timedelta | None = await self._value(
            SQL["oldest_waiting_security"], LOOKED_AT, at_least
        )
        return age

    async def purge(self, closed_before: datetime, limit: int) -> int:
        return await self._execute(SQL["purge"], closed_before, limit)

    async def forget_secrets(self, accepted_before: datetime, limit: int) -> int:
        """Delete the codes of old passcodes, also out of what was sent; how many rows."""
        return await self._execute(SQL["forget_secrets"], accepted_before, limit)

    async def _rows(self, statement: str, *arguments: Any) -> list[AcceptedRow]:
        return [self._open(row) for row in await self._fetch(SQL[statement], *arguments)]

    def _open(self, row: Record) -> AcceptedRow:
        tenant = row["tenant"]
        return AcceptedRow(
            tenant=tenant,
            id=row["id"],
            mode=Mode(row["mode"]),
            kind=Kind(row["kind"]),
            idempotency_key=row["idempotency_key"],
            body_hmac=row["body_hmac"],
            message_class=MessageClass(row["message_class"]),
            category=row["category"],
            recipient_id=row["recipient_id"],
            accepted_at=row["accepted_at"],
            expires_at=row["expires_at"],
            workflow_input=self._sealer.open(_INPUT, tenant, row["workflow_input"]),
            # Nothing is left of a passcode's after some days.
            content=self._sealer.open(_CONTENT, tenant, row["content"]) if row["content"] else b"",
            due_at=row["due_at"],
            correlation_id=row["correlation_id"],
            parent_id=row["parent_id"],
            started_at=row["started_at"],
            closed_at=row["closed_at"],
            outcome=row["outcome"],
        )
