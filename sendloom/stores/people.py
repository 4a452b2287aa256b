"""One read of everything the gates ask about people: by id, or a page of a frozen list."""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

from schemas.kinds import Channel
from sendloom.ports import Address, Device, Member, PagePeople, Person
from sendloom.stores.pool import BULK, PostgresStore, Record, joined, parted
from sendloom.stores.queries import load

SQL = load("people.sql")

NOTHING: Mapping[str, Any] = {}
"""Shared by everybody who has no variables."""

_CHANNEL = {channel.value: channel for channel in Channel}
_ONE = {channel: frozenset({channel}) for channel in (*_CHANNEL, "*")}


class PostgresPeople(PostgresStore):
    """Implements `PeopleStore`; `page_people` and `sample` are the campaign's half of it."""

    async def people(
        self,
        tenant: str,
        category: str,
        recipient_ids: Sequence[str],
        cap_days: bool,
        *,
        channels: Sequence[Channel] | None = None,
        unread: bool = False,
    ) -> list[Person]:
        if not recipient_ids:
            return []
        ids = list(recipient_ids)
        row = await self._row(SQL["people"], tenant, category, cap_days, channels, joined(ids))
        assert row is not None
        people = _people(ids, PageFacts.of(*row))
        return [people[id] for id in ids]

    async def page_people(
        self,
        tenant: str,
        category: str,
        version_id: UUID,
        shard: int,
        page: int,
        cap_days: bool,
        *,
        channels: Sequence[Channel] | None = None,
    ) -> PagePeople:
        row = await self._row(
            SQL["page_people"], tenant, category, cap_days, channels, version_id, shard, page
        )
        assert row is not None
        joined_ids, *facts = row
        if joined_ids is None:
            return PagePeople([], [], [])
        ids, found = parted(joined_ids), PageFacts.of(*facts)
        return _by_cohort(ids, found, await self._suppressed(tenant, found))

    async def _suppressed(self, tenant: str, facts: "PageFacts") -> dict[tuple[str, bytes], str]:
        """Of a page's addresses: (channel, address hash) → reason."""
        return facts.suppressed()

    async def sample(
        self,
        tenant: str,
        category: str,
        version_id: UUID,
        most: int,
        *,
        channels: Sequence[Channel] | None = None,
    ) -> list[Member]:
        row = await self._row(
            SQL["sample"], tenant, category, False, channels, version_id, most, timeout=BULK
        )
        return _members(row)


def _members(row: Record | None) -> list[Member]:
    assert row is not None
    ids, variables, *facts = row
    if ids is None:
        return []
    people = _people(ids, PageFacts.of(*facts))
    return [
        Member(id, of_them or NOTHING, people[id])
        for id, of_them in zip(ids, variables, strict=True)
    ]


class PageFacts(NamedTuple):
    """The columns of `facts` in people.sql side by side; ids are None where nobody has any."""

    r_ids: Sequence[str] | None
    r_locales: Sequence[str | None]
    r_zones: Sequence[str | None]
    r_erased: Sequence[bool]
    a_ids: Sequence[str] | None
    a_channels: Sequence[str]
    a_hashes: Sequence[bytes]
    a_sealed: Sequence[bytes]
    a_verified: Sequence[bool]
    a_dead: Sequence[str | None]
    s_channels: Sequence[str] | None
    s_hashes: Sequence[bytes]
    s_reasons: Sequence[str]
    p_ids: Sequence[str] | None
    p_channels: Sequence[str]
    k_ids: Sequence[str] | None
    k_channels: Sequence[str]
    d_ids: Sequence[str] | None
    d_devices: Sequence[str]
    d_channels: Sequence[str]
    d_sealed: Sequence[bytes]
    u_ids: Sequence[str] | None
    u_scopes: Sequence[str]
    u_days: Sequence[date]

    @classmethod
    def of(
        cls,
        r_ids: str | None, r_places: str, r_erased: Sequence[bool] | None,
        a_ids: str | None, a_channels: str, a_hashes: Sequence[bytes], a_sealed: Sequence[bytes],
        a_verified: Sequence[bool] | None, a_dead: Sequence[str | None] | None,
        s_channels: Sequence[str] | None, s_hashes: Sequence[bytes], s_reasons: Sequence[str],
        p_ids: str | None, p_channels: str,
        k_ids: str | None, k_channels: str,
        *devices_and_uses: Any,
    ) -> "PageFacts":  # fmt: skip
        """As they come: texts joined; what is the same for all of them left out."""
        recipients = _list(r_ids)
        places = [] if r_ids is None else places_of(r_places)
        addresses = _list(a_ids)
        count = len(addresses or ())
        return cls(
            recipients,
            [locale for locale, _ in places],
            [zone for _, zone in places],
            r_erased or [False] * len(places),
            addresses,
            _list(a_channels) or (),
            a_hashes,
            a_sealed,
            a_verified or [False] * count,
            a_dead or [None] * count,
            s_channels,
            s_hashes,
            s_reasons,
            _list(p_ids),
            _list(p_channels) or (),
            _list(k_ids),
            _list(k_channels) or (),
            *devices_and_uses,
        )

    def suppressed(self) -> dict[tuple[str, bytes], str]:
        """(channel, address hash) → reason."""
        if self.s_channels is None:
            return {}
        return dict(
            zip(zip(self.s_channels, self.s_hashes, strict=True), self.s_reasons, strict=True)
        )

    def only(self, ids: Container[str]) -> "PageFacts":
        """What is said of these people; suppressions stay, they name addresses."""
        groups = {
            "r": self.r_ids,
            "a": self.a_ids,
            "p": self.p_ids,
            "k": self.k_ids,
            "d": self.d_ids,
            "u": self.u_ids,
        }
        picked = {
            group: [n for n, id in enumerate(of) if id in ids]
            for group, of in groups.items()
            if of is not None
        }
        columns: list[Any] = [
            [column[n] for n in picked[name[0]]] if name[0] in picked else column
            for name, column in zip(self._fields, tuple[Any, ...](self), strict=True)
        ]
        return PageFacts(*columns)


def places_of(text: str) -> list[tuple[str | None, str | None]]:
    """Locale and zone of each; the different ones are few."""
    places = parted(text)
    known = {place: _place(place) for place in set(places)}
    return [known[place] for place in places]


def _place(text: str) -> tuple[str | None, str | None]:
    locale, _, zone = text.partition("\x1e")
    return locale or None, zone or None


def _list(text: str | None) -> list[str] | None:
    return None if text is None else parted(text)


def _by_cohort(
    ids: list[str], f: PageFacts, suppressed: Mapping[tuple[str, bytes], str]
) -> PagePeople:
    """Runs for every recipient of every campaign, so nobody is made an object who is like somebody else."""
    facts: list[Iterable[Any]] = []
    for of, *columns in (
        (f.r_ids, f.r_zones, f.r_erased),
        (f.a_ids, f.a_channels, f.a_verified, f.a_dead),
        (f.p_ids, f.p_channels),
        (f.k_ids, f.k_channels),
        (f.d_ids, f.d_channels),
        (f.u_ids, f.u_scopes, f.u_days),
    ):
        if of is not None:
            facts.append(map(_said_of(of, zip(*columns, strict=True)).get, ids))
    if suppressed:
        assert f.a_ids is not None
        hits = [
            (id, (channel, suppressed[channel, hash]))
            for id, channel, hash in zip(f.a_ids, f.a_channels, f.a_hashes, strict=True)
            if (channel, hash) in suppressed
        ]
        facts.append(map(_said_of([id for id, _ in hits], (hit for _, hit in hits)).get, ids))
    numbers: dict[tuple[Any, ...], int] = {}
    firsts: list[str] = []
    cohorts: list[int] = []
    for id, same in zip(ids, zip(*facts, strict=True) if facts else repeat(()), strict=False):
        number = numbers.setdefault(same, len(firsts))
        if number == len(firsts):
            firsts.append(id)
        cohorts.append(number)
    people = _people(firsts, f.only(set(firsts)), suppressed)
    return PagePeople(ids, cohorts, [people[id] for id in firsts])


def _said_of(ids: Sequence[str], entries: Iterable[Any]) -> dict[str, Any]:
    """What the entries say of each; several of one person in a tuple."""
    entries = list(entries)
    said = dict(zip(ids, entries, strict=True))
    if len(said) < len(ids):
        several: dict[str, tuple[Any, ...]] = {}
        for id, entry in zip(ids, entries, strict=True):
            several[id] = (*several.get(id, ()), entry)
        return several
    return said


def _people(
    ids: Sequence[str], f: PageFacts, suppressed: Mapping[tuple[str, bytes], str] | None = None
) -> dict[str, Person]:
    """Nobody pays here for what they do not have."""
    people = {id: Person(id, False) for id in ids}
    if f.r_ids is not None:
        for id, locale, zone, erased in zip(
            f.r_ids, f.r_locales, f.r_zones, f.r_erased, strict=True
        ):
            person = people[id]
            person.exists = True
            person.locale = locale
            person.zone = zone
            person.erased = erased
    if suppressed is None:
        suppressed = f.suppressed()
    if f.a_ids is not None:
        for id, channel, address_hash, sealed, verified, dead in zip(
            f.a_ids, f.a_channels, f.a_hashes, f.a_sealed, f.a_verified, f.a_dead, strict=True
        ):
            person = people[id]
            at = _CHANNEL[channel]
            person.addresses[at] = Address(address_hash, sealed, verified, dead)
            if suppressed and (reason := suppressed.get((channel, address_hash))) is not None:
                person.suppressed[at] = reason
    if f.p_ids is not None:
        for id, channel in zip(f.p_ids, f.p_channels, strict=True):
            person = people[id]
            person.opted_out = person.opted_out | _ONE[channel]
    if f.k_ids is not None:
        for id, channel in zip(f.k_ids, f.k_channels, strict=True):
            person = people[id]
            # Nearly everybody has one, for all channels; those share it.
            person.consented = (
                person.consented | _ONE[channel] if person.consented else _ONE[channel]
            )
    if f.d_ids is not None:
        for id, device, channel, sealed in zip(
            f.d_ids, f.d_devices, f.d_channels, f.d_sealed, strict=True
        ):
            people[id].devices.append(Device(device, _CHANNEL[channel], sealed))
    if f.u_ids is not None:
        for id, scope, day in zip(f.u_ids, f.u_scopes, f.u_days, strict=True):
            people[id].cap_uses.setdefault(scope, []).append(day)
    return people
