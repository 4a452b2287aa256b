"""Passcodes: what is counted is counted in one statement, before anything is compared."""

from datetime import datetime
from uuid import UUID

from sendloom.errors import Refusal
from sendloom.ports import PasscodeRow
from sendloom.stores.pool import PostgresStore
from sendloom.stores.queries import load

SQL = load("passcodes.sql")


class PostgresPasscodes(PostgresStore):
    """Implements `PasscodeStore`."""

    async def insert(self, row: PasscodeRow) -> None:
        await self._execute(
            SQL["insert"],
            row.tenant,
            row.id,
            row.code_hmac,
            row.checks_left,
            row.send_no,
            row.created_at,
            row.expires_at,
        )

    async def get(self, tenant: str, id: UUID) -> PasscodeRow | None:
        row = await self._row(SQL["get"], tenant, id)
        return None if row is None else PasscodeRow(*row)

    async def take_check(self, tenant: str, id: UUID) -> PasscodeRow | None:
        row = await self._row(SQL["take_check"], tenant, id)
        return None if row is None else PasscodeRow(*row)

    async def mark_used(self, tenant: str, id: UUID) -> bool:
        return await self._execute(SQL["mark_used"], tenant, id) > 0

    async def take_resend(self, tenant: str, id: UUID, key: str) -> int:
        """
        Raises:
            Refusal: `unknown_passcode`.
        """
        send_no: int | None = await self._value(SQL["take_resend"], tenant, id, key)
        if send_no is None:
            raise Refusal("unknown_passcode", "there is no such passcode", status=404)
        return send_no

    async def cancel(self, tenant: str, id: UUID) -> bool:
        return await self._execute(SQL["cancel"], tenant, id) > 0

    async def purge(self, created_before: datetime, limit: int) -> int:
        return await self._execute(SQL["purge"], created_before, limit)
