"""One read of everything the gates ask about people: by id, or a page of a frozen list."""

from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from schemas.kinds import Channel
from sendloom.ports import Address, Device, Member, Person
from sendloom.stores.pool import PostgresStore, Record
from sendloom.stores.queries import load

SQL = load("people.sql")

_NOBODY: frozenset[str] = frozenset()
_NOTHING: dict[str, Any] = {}
_CHANNEL = {channel.value: channel for channel in Channel}


class PostgresPeople(PostgresStore):
    """Implements `PeopleStore`; `members` is the campaign's half of it."""

    async def people(
        self, tenant: str, category: str, recipient_ids: Sequence[str], cap_days: bool
    ) -> list[Person]:
        if not recipient_ids:
            return []
        ids = list(recipient_ids)
        rows = await self._fetch(SQL["people"], tenant, category, cap_days, ids)
        if len(rows) == 1:
            return [_person(*rows[0])]
        found = {row[0]: _person(*row) for row in rows}
        return [found[id] for id in ids]

    async def members(
        self, tenant: str, category: str, version_id: UUID, shard: int, page: int, cap_days: bool
    ) -> list[Member]:
        rows = await self._fetch(
            SQL["members"], tenant, category, cap_days, version_id, shard, page
        )
        return [_member(row) for row in rows]


def _member(row: Record) -> Member:
    variables, *facts = row
    return Member(facts[0], variables or _NOTHING, _person(*facts))


def _person(
    recipient_id: str,
    exists: bool,
    locale: str | None,
    zone: str | None,
    erased: bool,
    email_hash: bytes | None,
    email_sealed: bytes,
    email_verified: bool,
    email_dead: str | None,
    email_suppressed: str | None,
    sms_hash: bytes | None,
    sms_sealed: bytes,
    sms_verified: bool,
    sms_dead: str | None,
    sms_suppressed: str | None,
    opted_out: list[str] | None,
    consented: list[str] | None,
    devices: list[tuple[str, str, bytes]] | None,
    cap_uses: list[tuple[str, date]] | None,
) -> Person:
    """Runs once a recipient of every campaign: nothing here that a person without the thing pays for."""
    person = Person(recipient_id, exists, locale, zone, erased)
    if email_hash is not None:
        person.addresses[Channel.EMAIL] = Address(
            email_hash, email_sealed, email_verified, email_dead
        )
        if email_suppressed is not None:
            person.suppressed[Channel.EMAIL] = email_suppressed
    if sms_hash is not None:
        person.addresses[Channel.SMS] = Address(sms_hash, sms_sealed, sms_verified, sms_dead)
        if sms_suppressed is not None:
            person.suppressed[Channel.SMS] = sms_suppressed
    if opted_out is not None:
        person.opted_out = frozenset(opted_out)
    if consented is not None:
        person.consented = frozenset(consented)
    if devices is not None:
        person.devices = [Device(id, _CHANNEL[channel], sealed) for id, channel, sealed in devices]
    if cap_uses is not None:
        for scope, day in cap_uses:
            person.cap_uses.setdefault(scope, []).append(day)
    return person
