"""What recurs, and reminder series. The trigger log is written with the judgement, never after it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from schemas.kinds import Mode
from schemas.schedules import (
    CatchUpRule,
    Overlap,
    RecurringContent,
    ScheduleKind,
    ScheduleState,
    SeriesContent,
    TriggerStatus,
)
from sendloom.domain.same_body import require_same_body
from sendloom.ports import Fire, ScheduleRow, Sealer, SeriesRow
from sendloom.stores.pool import FIRST, Pool, PostgresStore, Record
from sendloom.stores.queries import load

SQL = load("schedules.sql")

_CONTENT = "schedule-content"
_SERIES = "series-content"


class PostgresSchedules(PostgresStore):
    """Implements `ScheduleStore`."""

    def __init__(self, pool: Pool, sealer: Sealer) -> None:
        super().__init__(pool)
        self._sealer = sealer

    async def insert_or_match(self, row: ScheduleRow) -> tuple[ScheduleRow, bool]:
        inserted = await self._value(
            SQL["insert"],
            row.tenant,
            row.id,
            row.mode,
            *self._definition(row),
            row.created_by,
            row.created_at,
        )
        if inserted:
            return row, False
        stored = await self.get(row.tenant, row.id)
        assert stored is not None, "a schedule is never deleted from its table"
        require_same_body(stored.body_hmac, row.body_hmac)
        return stored, True

    def _definition(self, row: ScheduleRow) -> tuple[Any, ...]:
        content = row.content.model_dump_json().encode()
        return (
            row.kind,
            row.body_hmac,
            row.name,
            row.category,
            row.recipient_id,
            self._sealer.seal(_CONTENT, row.tenant, content),
            row.cron,
            row.every_seconds,
            row.zone,
            row.overlap,
            row.catch_up,
            row.catch_up_seconds,
            row.catch_up_max,
            row.jitter_seconds,
            row.state,
            row.handled_until,
            row.next_at,
        )

    async def get(self, tenant: str, id: UUID) -> ScheduleRow | None:
        row = await self._row(SQL["get"], tenant, id)
        return None if row is None else self._open(row)

    async def of_tenant(
        self, tenant: str, limit: int, after: UUID | None = None
    ) -> list[ScheduleRow]:
        return await self._rows("of_tenant", tenant, after or UUID(int=0), limit)

    async def replace(self, row: ScheduleRow, version: int) -> ScheduleRow | None:
        stored = await self._row(
            SQL["replace"], row.tenant, row.id, version, *self._definition(row)
        )
        return None if stored is None else self._open(stored)

    async def applied(self, tenant: str, id: UUID, version: int) -> None:
        await self._execute(SQL["applied"], tenant, id, version)

    async def judge(
        self, row: ScheduleRow, until: datetime, next_at: datetime, fires: Sequence[Fire]
    ) -> bool:
        return bool(
            await self._value(
                SQL["judge"],
                row.tenant,
                row.id,
                row.version,
                row.handled_until,
                until,
                next_at,
                [fire.scheduled_for for fire in fires],
                [fire.status for fire in fires],
                [fire.by for fire in fires],
                [fire.missed for fire in fires],
                [fire.missed_until for fire in fires],
            )
        )

    async def owed(self, tenant: str, id: UUID) -> list[datetime]:
        return [row[0] for row in await self._fetch(SQL["owed"], tenant, id)]

    async def settle(
        self,
        tenant: str,
        id: UUID,
        scheduled_for: datetime,
        status: TriggerStatus,
        ref_id: UUID | None = None,
        reason: str = "",
    ) -> None:
        await self._execute(SQL["settle"], tenant, id, scheduled_for, status, ref_id, reason)

    async def last_fired(self, tenant: str, id: UUID, before: datetime) -> UUID | None:
        found: UUID | None = await self._value(SQL["last_fired"], tenant, id, before)
        return found

    async def overdue(self, grace: timedelta, limit: int) -> list[tuple[str, UUID]]:
        rows = await self._fetch(SQL["overdue"], grace, limit)
        return [(row[0], row[1]) for row in rows]

    async def unapplied(self, older_than: timedelta, limit: int) -> list[ScheduleRow]:
        return await self._rows("unapplied", older_than, limit)

    async def everywhere(self, after: tuple[str, UUID] | None, limit: int) -> list[ScheduleRow]:
        return await self._rows("everywhere", *(after or FIRST), limit)

    async def _rows(self, statement: str, *arguments: Any) -> list[ScheduleRow]:
        return [self._open(row) for row in await self._fetch(SQL[statement], *arguments)]

    def _open(self, row: Record) -> ScheduleRow:
        tenant = row["tenant"]
        return ScheduleRow(
            tenant=tenant,
            id=row["schedule_id"],
            mode=Mode(row["mode"]),
            kind=ScheduleKind(row["kind"]),
            body_hmac=row["body_hmac"],
            name=row["name"],
            category=row["category"],
            recipient_id=row["recipient_id"],
            content=RecurringContent.model_validate_json(
                self._sealer.open(_CONTENT, tenant, row["content"])
            ),
            cron=row["cron"],
            every_seconds=row["every_seconds"],
            zone=row["zone"],
            overlap=Overlap(row["overlap"]),
            catch_up=CatchUpRule(row["catch_up"]),
            catch_up_seconds=row["catch_up_seconds"],
            catch_up_max=row["catch_up_max"],
            jitter_seconds=row["jitter_seconds"],
            state=ScheduleState(row["state"]),
            handled_until=row["handled_until"],
            next_at=row["next_at"],
            created_by=row["created_by"],
            created_at=row["created_at"],
            version=row["version"],
            applied_version=row["applied_version"],
        )


class PostgresSeries(PostgresStore):
    """Implements `SeriesStore`."""

    def __init__(self, pool: Pool, sealer: Sealer) -> None:
        super().__init__(pool)
        self._sealer = sealer

    async def insert_or_match(self, row: SeriesRow) -> tuple[SeriesRow, bool]:
        inserted = await self._value(
            SQL["insert_series"],
            row.tenant,
            row.id,
            row.mode,
            row.body_hmac,
            row.category,
            row.recipient_id,
            row.correlation_id,
            row.event_at,
            row.event_local,
            self._seal(row),
            _series_state(row),
            row.created_at,
        )
        if inserted:
            return row, False
        stored = await self.get(row.tenant, row.id)
        assert stored is not None, "a series is never deleted from its table"
        require_same_body(stored.body_hmac, row.body_hmac)
        return stored, True

    async def get(self, tenant: str, id: UUID) -> SeriesRow | None:
        row = await self._row(SQL["get_series"], tenant, id)
        return None if row is None else self._open(row)

    async def replace(self, row: SeriesRow, version: int) -> SeriesRow | None:
        stored = await self._row(
            SQL["replace_series"],
            row.tenant,
            row.id,
            version,
            row.event_at,
            row.event_local,
            self._seal(row),
            _series_state(row),
        )
        return None if stored is None else self._open(stored)

    def _seal(self, row: SeriesRow) -> bytes:
        return self._sealer.seal(_SERIES, row.tenant, row.content.model_dump_json().encode())

    def _open(self, row: Record) -> SeriesRow:
        tenant = row["tenant"]
        return SeriesRow(
            tenant=tenant,
            id=row["series_id"],
            mode=Mode(row["mode"]),
            body_hmac=row["body_hmac"],
            category=row["category"],
            recipient_id=row["recipient_id"],
            correlation_id=row["correlation_id"],
            event_at=row["event_at"],
            event_local=row["event_local"],
            content=SeriesContent.model_validate_json(
                self._sealer.open(_SERIES, tenant, row["content"])
            ),
            created_at=row["created_at"],
            cancelled=row["state"] == "cancelled",
            version=row["version"],
        )


def _series_state(row: SeriesRow) -> str:
    return "cancelled" if row.cancelled else "active"
