"""One read of everything the gates ask about people: by id, or a page of a frozen list."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any
from uuid import UUID

from schemas.kinds import Channel
from sendloom.ports import Address, Device, Member, Person
from sendloom.stores.pool import BULK, PostgresStore, Record, joined
from sendloom.stores.queries import load

SQL = load("people.sql")

NOTHING: Mapping[str, Any] = {}
"""Shared by everybody who has no variables."""

_CHANNEL = {channel.value: channel for channel in Channel}
_ONE = {channel: frozenset({channel}) for channel in (*_CHANNEL, "*")}


class PostgresPeople(PostgresStore):
    """Implements `PeopleStore`; `members` is the campaign's half of it."""

    async def people(
        self, tenant: str, category: str, recipient_ids: Sequence[str], cap_days: bool
    ) -> list[Person]:
        if not recipient_ids:
            return []
        ids = list(recipient_ids)
        row = await self._row(SQL["people"], tenant, category, cap_days, joined(ids))
        assert row is not None
        people = _people(ids, *row)
        return [people[id] for id in ids]

    async def members(
        self, tenant: str, category: str, version_id: UUID, shard: int, page: int, cap_days: bool
    ) -> list[Member]:
        row = await self._row(SQL["members"], tenant, category, cap_days, version_id, shard, page)
        return _members(row)

    async def sample(self, tenant: str, category: str, version_id: UUID, most: int) -> list[Member]:
        row = await self._row(
            SQL["sample"], tenant, category, False, version_id, most, timeout=BULK
        )
        return _members(row)


def _members(row: Record | None) -> list[Member]:
    assert row is not None
    ids, variables, *facts = row
    if ids is None:
        return []
    people = _people(ids, *facts)
    return [
        Member(id, of_them or NOTHING, people[id])
        for id, of_them in zip(ids, variables, strict=True)
    ]


def _people(
    ids: Sequence[str],
    r_ids: Sequence[str] | None,
    r_locales: Sequence[str | None],
    r_zones: Sequence[str | None],
    r_erased: Sequence[bool],
    a_ids: Sequence[str] | None,
    a_channels: Sequence[str],
    a_hashes: Sequence[bytes],
    a_sealed: Sequence[bytes],
    a_verified: Sequence[bool],
    a_dead: Sequence[str | None],
    s_channels: Sequence[str] | None,
    s_hashes: Sequence[bytes],
    s_reasons: Sequence[str],
    p_ids: Sequence[str] | None,
    p_channels: Sequence[str],
    k_ids: Sequence[str] | None,
    k_channels: Sequence[str],
    d_ids: Sequence[str] | None,
    d_devices: Sequence[str],
    d_channels: Sequence[str],
    d_sealed: Sequence[bytes],
    u_ids: Sequence[str] | None,
    u_scopes: Sequence[str],
    u_days: Sequence[date],
) -> dict[str, Person]:
    """Runs for every recipient of every campaign: nobody pays here for what they do not have."""
    people = {id: Person(id, False) for id in ids}
    if r_ids is not None:
        for id, locale, zone, erased in zip(r_ids, r_locales, r_zones, r_erased, strict=True):
            person = people[id]
            person.exists = True
            person.locale = locale
            person.zone = zone
            person.erased = erased
    suppressed = (
        {}
        if s_channels is None
        else dict(zip(zip(s_channels, s_hashes, strict=True), s_reasons, strict=True))
    )
    if a_ids is not None:
        for id, channel, address_hash, sealed, verified, dead in zip(
            a_ids, a_channels, a_hashes, a_sealed, a_verified, a_dead, strict=True
        ):
            person = people[id]
            at = _CHANNEL[channel]
            person.addresses[at] = Address(address_hash, sealed, verified, dead)
            if suppressed and (reason := suppressed.get((channel, address_hash))) is not None:
                person.suppressed[at] = reason
    if p_ids is not None:
        for id, channel in zip(p_ids, p_channels, strict=True):
            person = people[id]
            person.opted_out = person.opted_out | _ONE[channel]
    if k_ids is not None:
        for id, channel in zip(k_ids, k_channels, strict=True):
            person = people[id]
            # Nearly everybody has one, for all channels; those share it.
            person.consented = (
                person.consented | _ONE[channel] if person.consented else _ONE[channel]
            )
    if d_ids is not None:
        for id, device, channel, sealed in zip(d_ids, d_devices, d_channels, d_sealed, strict=True):
            people[id].devices.append(Device(device, _CHANNEL[channel], sealed))
    if u_ids is not None:
        for id, scope, day in zip(u_ids, u_scopes, u_days, strict=True):
            people[id].cap_uses.setdefault(scope, []).append(day)
    return people
