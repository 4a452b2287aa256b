"""What the gates ask, from what the stores hold."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from schemas.kinds import Channel, MessageClass
from schemas.notifications import DecisionKey
from sendloom.domain import ids
from sendloom.domain.budgets import DEFERRAL_SPREAD
from sendloom.domain.frequency import read_caps
from sendloom.domain.gates import AddressState, Policy
from sendloom.domain.quiet_hours import Window
from sendloom.errors import StoreUnavailable
from sendloom.ports import Address, CatalogStore, Category, Person, TemplateParts, Tenant

KEPT = 1.0
"""Seconds. A category or tenant that changes is noticed after this."""
KEPT_MOST = 10_000

K = TypeVar("K")
T = TypeVar("T")


class RecentCatalog:
    """A `CatalogStore` that remembers categories and tenants for a second: one message after the other asks for the same.

    While the database is away they are as they were last; kill switches are never remembered.
    """

    def __init__(
        self, catalog: CatalogStore, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalog = catalog
        self._monotonic = monotonic
        self._tenants: dict[str, tuple[float, Tenant]] = {}
        self._categories: dict[tuple[str, str], tuple[float, Category]] = {}

    async def tenant(self, tenant: str) -> Tenant | None:
        return await self._recent(self._tenants, tenant, self._catalog.tenant, tenant)

    async def category(self, tenant: str, category: str) -> Category | None:
        key = (tenant, category)
        return await self._recent(self._categories, key, self._catalog.category, *key)

    async def template_parts(
        self, tenant: str, template_id: str, version: int | None
    ) -> list[TemplateParts]:
        return await self._catalog.template_parts(tenant, template_id, version)

    async def killed(self, tenant: str, category: str, lane: str, campaign_id: UUID) -> str | None:
        return await self._catalog.killed(tenant, category, lane, campaign_id)

    async def _recent(
        self,
        kept: dict[K, tuple[float, T]],
        key: K,
        ask: Callable[..., Awaitable[T | None]],
        *args: str,
    ) -> T | None:
        now = self._monotonic()
        known = kept.get(key)
        if known is not None and now - known[0] < KEPT:
            return known[1]
        try:
            found = await ask(*args)
        except StoreUnavailable:
            if known is None:
                raise
            return known[1]
        if found is None:
            # A new one must be found at once.
            kept.pop(key, None)
            return None
        if len(kept) >= KEPT_MOST:
            kept.clear()
        kept[key] = (now, found)
        return found


def policy_of(category: Category, tenant: Tenant) -> Policy:
    """A category's policy: marketing always keeps quiet hours, security never."""
    message_class = category.message_class
    quiet = message_class is MessageClass.MARKETING or (
        category.quiet_hours and message_class is not MessageClass.SECURITY
    )
    return Policy(
        message_class=message_class,
        ladder=category.ladder,
        quiet=Window(tenant.quiet_start, tenant.quiet_end) if quiet else None,
        consent_required=category.consent_required,
        caps=read_caps(category.category, category.caps),
        defer_over_cap=category.over_cap == "defer",
    )


def address_states(person: Person) -> dict[Channel, AddressState]:
    states = {channel: state_of(address) for channel, address in person.addresses.items()}
    # A device is registered by its own app, so there is nothing left to verify.
    states.update((device.channel, AddressState.VERIFIED) for device in person.devices)
    return states


def state_of(address: Address) -> AddressState:
    if address.dead_reason is not None:
        return AddressState.DEAD
    return AddressState.VERIFIED if address.verified else AddressState.UNVERIFIED


def spread_of(key: DecisionKey) -> timedelta:
    """What this decision adds to a deferral, so that 8 o'clock is not a wall."""
    return timedelta(seconds=ids.spread(key, int(DEFERRAL_SPREAD.total_seconds())))
