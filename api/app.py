"""The HTTP API: `create_app` puts routes, errors and parts together."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from api import (
    audit,
    campaigns,
    categories,
    dead_letters,
    deliveries,
    errors,
    health,
    lists,
    notifications,
    passcodes,
    preferences,
    recipients,
    reminder_series,
    reminders,
    schedules,
    segments,
    suppressions,
    templates,
    wiring,
)
from api.edge import Edge
from api.limits import Load
from api.ports import Workflows
from api.timing import ANSWER_WITHIN
from schemas.api import Problem
from sendloom.errors import StoreUnavailable
from sendloom.settings import Settings, load_settings

log = logging.getLogger(__name__)

STARTUP_PROBE = 3.0
"""Seconds to find out at the start that the schema is too old. Postgres may be away longer than that; then readiness says so."""

OPEN_AT_START = 8
"""Connections. One accept uses four at once."""

ROUTERS = (
    notifications.router,
    deliveries.router,
    passcodes.router,
    reminders.router,
    reminder_series.router,
    schedules.router,
    schedules.log_router,
    campaigns.router,
    lists.router,
    segments.router,
    recipients.router,
    preferences.router,
    templates.router,
    categories.router,
    suppressions.router,
    dead_letters.router,
    audit.router,
    health.router,
)


def create_app(
    settings: Settings | None = None,
    workflows: Workflows | None = None,
    answer_within: float = ANSWER_WITHIN,
) -> FastAPI:
    """The application. `workflows` replaces Temporal; `answer_within` is what a request may wait for stores and Temporal.

    Raises:
        ConfigurationError: a setting is unknown or missing (case C38): it does not start with a default instead.
    """
    given = settings or load_settings()
    load = Load()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with wiring.parts(given, workflows, answer_within, load) as parts:
            app.state.parts = parts
            await _refuse_an_old_schema(parts.probes["postgres"])
            yield

    return _app(lifespan, answer_within, load)


def describe() -> dict[str, Any]:
    """The OpenAPI document; needs no settings and no server."""
    return _app().openapi()


def _app(
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    answer_within: float = ANSWER_WITHIN,
    load: Load | None = None,
) -> FastAPI:
    app = FastAPI(
        title="Sendloom",
        version="1",
        description="Tell a person something, or millions of people, once, and say afterwards what happened and why.",
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
        responses={"4XX": {"model": Problem, "description": "See docs/errors.md"}},
        docs_url="/docs",
        redoc_url=None,
    )
    app.add_middleware(Edge, answer_within=answer_within, load=load or Load())
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router)
    return app


def _operation_id(route: APIRoute) -> str:
    return f"{route.tags[0] if route.tags else 'api'}.{route.name}".replace(" ", "_")


async def _refuse_an_old_schema(probe: Callable[[], Awaitable[None]]) -> None:
    """
    Raises:
        SchemaTooOld: the process stops, with the command that fixes it.
    """
    try:
        async with asyncio.timeout(STARTUP_PROBE):
            await probe()
            # Each takes a connection: the first callers find them open.
            await asyncio.gather(*(probe() for _ in range(OPEN_AT_START)))
    except (StoreUnavailable, TimeoutError):
        log.warning("starting without Postgres; readiness says when it is back")
