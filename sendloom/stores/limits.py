"""Limits per address, recipient and source, counted in SQL: losing Redis loses no count (PASS-4)."""

from datetime import datetime, timedelta

from sendloom.stores.pool import PostgresStore
from sendloom.stores.queries import load

SQL = load("limits.sql")


class PostgresLimits(PostgresStore):
    """Fixed windows. A subject is a kind and a keyed hash, never an address."""

    async def take(
        self, tenant: str, subject: str, limit: int, window: timedelta
    ) -> datetime | None:
        """Count one. None: it may go on; otherwise when the window ends."""
        if await self._value(SQL["take"], tenant, subject, limit, window) is not None:
            return None
        ends: datetime = await self._value(SQL["window_end"], window)
        return ends

    async def used(self, tenant: str, subject: str, over: timedelta) -> int:
        """How many in the windows that started within `over`."""
        used: int = await self._value(SQL["used"], tenant, subject, over)
        return used

    async def purge(self, before: datetime, limit: int) -> int:
        return await self._execute(SQL["purge"], before, limit)
