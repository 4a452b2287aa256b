"""What the gates ask, from what the stores hold."""

from datetime import timedelta

from schemas.kinds import Channel, MessageClass
from schemas.notifications import DecisionKey
from sendloom.domain import ids
from sendloom.domain.budgets import DEFERRAL_SPREAD
from sendloom.domain.frequency import read_caps
from sendloom.domain.gates import AddressState, Policy
from sendloom.domain.quiet_hours import Window
from sendloom.ports import Address, Category, Person, Tenant


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
