"""Addresses that must not be used. They are kept as keyed hashes, stronger than any preference, and outlive erasure."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.auditing import audited
from api.auth import Caller
from api.deps import Operator, Parts, PartsDep, Supporter
from api.paging import page_of
from api.timing import timely
from schemas.api import Page, SuppressionAnswer, SuppressionBody, SuppressionRef
from schemas.kinds import Channel
from sendloom.domain.addresses import lookup_form
from sendloom.errors import Refusal
from sendloom.rows import Suppression

router = APIRouter(prefix="/v1/suppressions", tags=["suppressions"])


@router.post("", status_code=201)
@timely
async def add(body: SuppressionBody, caller: Operator, parts: PartsDep) -> SuppressionAnswer:
    """Never write to it again, from now on, also not in a campaign that runs. A graver reason already there stays."""
    hashed = _hash(parts, caller, body.channel, body.address)
    await parts.ledger.suppress(caller.id, body.channel, hashed, body.reason, caller.actor)
    await audited(parts, caller, "suppression.add", f"{body.channel}/{hashed.hex()}")
    stored = await parts.ledger.suppression(caller.id, body.channel, [hashed])
    return SuppressionAnswer(
        channel=body.channel,
        address_hash=hashed.hex(),
        reason=stored.get(hashed, body.reason),
        source=caller.actor,
    )


@router.post("/remove", status_code=204)
@timely
async def remove(body: SuppressionRef, caller: Operator, parts: PartsDep) -> Response:
    """It may be written to again. By POST, because an address does not belong into a URL."""
    hashed = _hash(parts, caller, body.channel, body.address)
    if not await parts.ledger.unsuppress(caller.id, body.channel, hashed):
        raise Refusal("not_found", "this address is not suppressed", status=404)
    await audited(parts, caller, "suppression.remove", f"{body.channel}/{hashed.hex()}")
    return Response(status_code=204)


def _hash(parts: Parts, caller: Caller, channel: Channel, address: str) -> bytes:
    lookup = lookup_form(channel, address, default_region=caller.tenant.default_region)
    return parts.address_hash(caller.id, channel, lookup)


@router.get("")
@timely
async def every(
    caller: Supporter,
    parts: PartsDep,
    channel: Channel | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(pattern=r"^[a-z]+/[0-9a-f]{2,64}$")] = None,
) -> Page[SuppressionAnswer]:
    """Pseudonyms only: hashes of this tenant's own key."""
    seen = None
    if after is not None:
        name, _, hexadecimal = after.partition("/")
        try:
            seen = (name, bytes.fromhex(hexadecimal))
        except ValueError:
            raise Refusal("invalid_parameter", "after is not a page mark", field="after") from None
    rows = await parts.recipients.suppressions(caller.id, channel, limit, seen)
    return page_of(rows, limit, _shown, lambda row: f"{row.channel}/{row.address_hash.hex()}")


def _shown(row: Suppression) -> SuppressionAnswer:
    return SuppressionAnswer(
        channel=row.channel,
        address_hash=row.address_hash.hex(),
        reason=row.reason,
        source=row.source,
        at=row.at,
    )
