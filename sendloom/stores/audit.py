"""Who did what, and what was fired when. Both outlive the scheduler."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sendloom.rows import AuditEntry, Trigger
from sendloom.stores.pool import PostgresStore
from sendloom.stores.queries import load

SQL = load("audit.sql")


class PostgresAudit(PostgresStore):
    """Every administrative act and every support look-up."""

    async def add(
        self, tenant: str, actor: str, action: str, target: str, detail: Mapping[str, Any] = {}
    ) -> None:
        await self._execute(SQL["add"], tenant, actor, action, target, dict(detail))

    async def recent(
        self, tenant: str, limit: int, before: int | None = None, target: str | None = None
    ) -> list[tuple[int, AuditEntry]]:
        """(number, entry), newest first; `before` is the last number seen."""
        rows = await self._fetch(SQL["recent"], tenant, limit, before, target)
        return [(row[0], AuditEntry(*tuple(row)[1:])) for row in rows]


class PostgresTriggers(PostgresStore):
    """The trigger log (REM-6)."""

    async def fired(self, tenant: str, trigger: Trigger) -> bool:
        """Write it down, if absent. False: this (trigger, scheduled time) was fired before."""
        return bool(
            await self._value(
                SQL["fired"],
                tenant,
                trigger.trigger_id,
                trigger.scheduled_for,
                trigger.kind,
                trigger.fired_at,
                trigger.status,
                trigger.by,
                trigger.ref_id,
            )
        )

    async def update(
        self,
        tenant: str,
        trigger_id: UUID,
        scheduled_for: datetime,
        status: str,
        fired_at: datetime | None = None,
        ref_id: UUID | None = None,
    ) -> bool:
        args = (tenant, trigger_id, scheduled_for, status, fired_at, ref_id)
        return await self._execute(SQL["triggered"], *args) > 0

    async def between(
        self, tenant: str, first: datetime, last: datetime, limit: int = 1000
    ) -> list[Trigger]:
        """What should have been fired from `first` up to, not including, `last`."""
        rows = await self._fetch(SQL["between"], tenant, first, last, limit)
        return [Trigger(*row) for row in rows]

    async def of_trigger(
        self, tenant: str, trigger_id: UUID, limit: int = 100, before: datetime | None = None
    ) -> list[Trigger]:
        """Newest first; `before` is the last scheduled time seen."""
        rows = await self._fetch(SQL["of_trigger"], tenant, trigger_id, limit, before)
        return [Trigger(*row) for row in rows]
