"""Is it alive, is it ready, how is it doing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response

from api.deps import PartsDep
from api.timing import within
from schemas.api import Health
from sendloom.errors import SchemaTooOld, Transient
from sendloom.platform.metrics import exposition

log = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

OPTIONAL = frozenset({"redis"})
"""Without it everything works, more slowly."""
PROBE_WITHIN = 0.8


@router.get("/healthz")
async def alive() -> Health:
    """The process answers. Says nothing about what it needs."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health}})
async def ready(response: Response, parts: PartsDep) -> Health:
    """Whether it can take requests, and what is wrong if not."""
    names = list(parts.probes)
    found = await asyncio.gather(*(_probe(name, parts.probes[name]) for name in names))
    checks = dict(zip(names, found, strict=True))
    wrong = {name for name, said in checks.items() if said != "ok"}
    if wrong - OPTIONAL:
        response.status_code = 503
        response.headers["Retry-After"] = "1"
        return Health(status="unavailable", checks=checks)
    return Health(status="degraded" if wrong else "ok", checks=checks)


async def _probe(name: str, probe: Callable[[], Awaitable[None]]) -> str:
    try:
        await within(probe(), PROBE_WITHIN)
    except (SchemaTooOld, Transient) as e:
        # Our own sentences: they hold no secret and say what to do.
        log.warning("not ready", extra={"part": name})
        return str(e)
    except Exception as e:
        log.warning("not ready", extra={"part": name, "error": type(e).__name__})
        return f"does not answer ({type(e).__name__})"
    return "ok"


@router.get("/metrics", include_in_schema=False)
async def metrics() -> Response:
    """For Prometheus."""
    body, media = exposition()
    return Response(body, media_type=media)
