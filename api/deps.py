"""What routes are given: the parts of the process, who is asking, and the header every create needs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.security import HTTPBearer

from api.auth import Caller, Scope, authenticate
from api.compiled import CompiledTemplates
from api.limits import DEFAULT_PER_SECOND, Limiter, Load
from api.ports import Audit, Catalog, Limits, Lists, Recipients, Segments, Triggers, Workflows
from api.timing import within
from schemas.api import IDEMPOTENCY_HEADER
from schemas.kinds import Channel
from schemas.notifications import ResolvedDue, ResolveDue
from sendloom.errors import Refusal
from sendloom.platform.sealing import Hashes
from sendloom.ports import (
    AcceptedStore,
    CampaignStore,
    Category,
    DeadLetterStore,
    DecisionStore,
    Ledger,
    PasscodeStore,
    PeopleStore,
    ScheduleStore,
    Sealer,
    SeriesStore,
)
from sendloom.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a route may reach. Put together in `wiring.py`."""

    settings: Settings
    hashes: Hashes
    sealer: Sealer
    accepted: AcceptedStore
    people: PeopleStore
    catalog: Catalog
    decisions: DecisionStore
    ledger: Ledger
    dead_letters: DeadLetterStore
    passcodes: PasscodeStore
    campaigns: CampaignStore
    recipients: Recipients
    lists: Lists
    segments: Segments
    limits: Limits
    audit: Audit
    schedules: ScheduleStore
    series: SeriesStore
    triggers: Triggers
    workflows: Workflows
    resolve_due: Callable[[ResolveDue], Awaitable[ResolvedDue]]
    """When a reminder is due: the same rule that its workflow goes by."""
    """Tells senders of a new control row sooner than their own look at it. Losing it loses nothing."""
    limiter: Limiter
    load: Load
    compiled: CompiledTemplates
    probes: dict[str, Callable[[], Awaitable[None]]]
    """What readiness asks, by name; each raises when its part does not answer."""

    def seal_address(self, tenant: str, deliverable: str) -> bytes:
        return self.sealer.seal(ADDRESS, tenant, deliverable.encode())

    def open_address(self, tenant: str, sealed: bytes) -> str:
        return self.sealer.open(ADDRESS, tenant, sealed).decode()

    def address_hash(self, tenant: str, channel: Channel, lookup: str) -> bytes:
        return self.sealer.address_hash(tenant, channel, lookup)

    def leave_room(self, caller: Caller, category: Category) -> None:
        """Shed the lesser classes first, of this process and of this key (LANE-4)."""
        self.load.leave_room(category.message_class, category.priority)
        self.limiter.leave_room(
            caller.id, caller.key.key_id, per_second(caller), category.message_class
        )


ADDRESS = "address"
"""The purpose that addresses and device tokens are sealed for."""


def per_second(caller: Caller) -> float:
    value = caller.tenant.settings.get("requests_per_second")
    return float(value) if isinstance(value, int | float) and value > 0 else DEFAULT_PER_SECOND


async def parts(request: Request) -> Parts:
    found: Parts = request.app.state.parts
    return found


PartsDep = Annotated[Parts, Depends(parts)]

_scheme = HTTPBearer(
    auto_error=False, bearerFormat="sl_<kind>_<tenant>_<key id>_<secret>", scheme_name="key"
)


def caller(*scopes: Scope) -> Callable[..., Awaitable[Caller]]:
    """A dependency: an authenticated key that has one of the scopes, within its rate."""

    async def authenticated(
        request: Request, found: PartsDep, _: Annotated[object, Depends(_scheme)]
    ) -> Caller:
        who = await within(authenticate(found.catalog, request.headers.get("Authorization")))
        found.limiter.take(who.id, who.key.key_id, per_second(who))
        who.require(*scopes)
        return who

    return authenticated


Sender = Annotated[Caller, Depends(caller(Scope.SEND))]
Campaigner = Annotated[Caller, Depends(caller(Scope.CAMPAIGNS))]
Reader = Annotated[Caller, Depends(caller(Scope.SEND, Scope.SUPPORT, Scope.OPS))]
CampaignReader = Annotated[Caller, Depends(caller(Scope.CAMPAIGNS, Scope.SUPPORT, Scope.OPS))]
CampaignController = Annotated[Caller, Depends(caller(Scope.CAMPAIGNS, Scope.OPS))]
Keeper = Annotated[Caller, Depends(caller(Scope.SEND, Scope.CAMPAIGNS))]
"""May write recipients, their preferences and consents."""
Operator = Annotated[Caller, Depends(caller(Scope.OPS))]
Supporter = Annotated[Caller, Depends(caller(Scope.SUPPORT, Scope.OPS))]
Admin = Annotated[Caller, Depends(caller())]


async def idempotency_key(
    value: Annotated[
        str | None,
        Header(
            alias=IDEMPOTENCY_HEADER,
            description="Names this request for ever; the same key and body give the same answer.",
        ),
    ] = None,
) -> str:
    """
    Raises:
        Refusal: `idempotency_key_missing`, `idempotency_key_invalid`.
    """
    if not value:
        raise Refusal(
            "idempotency_key_missing",
            "creating needs an Idempotency-Key",
            field=IDEMPOTENCY_HEADER,
            status=400,
        )
    if len(value) > 255 or not value.isascii() or not value.isprintable():
        raise Refusal(
            "idempotency_key_invalid",
            "the key is too long, or has characters that are not printable ASCII",
            field=IDEMPOTENCY_HEADER,
            status=400,
        )
    return value


IdempotencyKey = Annotated[str, Depends(idempotency_key)]
