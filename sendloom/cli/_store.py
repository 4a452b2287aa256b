"""For commands that speak to the store itself: where there is no key yet, or no API that could be asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from sendloom.cli._client import EXIT_UNAVAILABLE, fail

if TYPE_CHECKING:
    from sendloom.stores.audit import PostgresAudit
    from sendloom.stores.catalog import PostgresCatalog

    Work = Callable[[PostgresCatalog, PostgresAudit], Awaitable["T"]]

T = TypeVar("T")

ACTOR = "cli"
"""What the audit log knows these commands by."""


def in_store(work: "Work[T]") -> "T":
    from sendloom.errors import StoreUnavailable
    from sendloom.settings import load_settings
    from sendloom.stores.audit import PostgresAudit
    from sendloom.stores.catalog import PostgresCatalog
    from sendloom.stores.migrations.runner import check_schema
    from sendloom.stores.pool import open_pool

    settings = load_settings()

    async def run() -> "T":
        await check_schema(settings.postgres_dsn)
        pool = await open_pool(settings.postgres_dsn, 1, "sendloom cli")
        try:
            return await work(PostgresCatalog(pool), PostgresAudit(pool))
        finally:
            await pool.close()

    try:
        return asyncio.run(run())
    except StoreUnavailable as e:
        fail(f"{e}. Is it running (`sendloom status`)?", EXIT_UNAVAILABLE)
