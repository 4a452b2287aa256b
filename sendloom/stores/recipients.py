"""Recipients and what belongs to them: addresses, devices, preferences, consents. Every write may be repeated."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from schemas.kinds import Channel
from sendloom.ports import Sealer
from sendloom.rows import (
    AddressWrite,
    Consent,
    Preference,
    RecipientRow,
    RecipientWrite,
    StoredAddress,
    StoredDevice,
    Suppression,
)
from sendloom.stores.pool import BULK, STATEMENT, Connection, Pool, PostgresStore, or_none
from sendloom.stores.queries import load

SQL = load("recipients.sql")

ADDRESS = "address"
"""The purpose addresses are sealed for."""
DEVICE = "device"


class PostgresRecipients(PostgresStore):
    """Writes, and the reads of the API. What the gates need is read by `PostgresPeople`."""

    def __init__(self, pool: Pool, sealer: Sealer) -> None:
        super().__init__(pool)
        self._sealer = sealer

    async def upsert(self, tenant: str, recipients: Sequence[RecipientWrite]) -> None:
        """Create or change these; one that was erased is there again, without what was erased."""
        if not recipients:
            return
        async with self._transaction() as connection:
            await write_recipients(connection, tenant, recipients, revive=True)
            addresses = [(r.recipient_id, address) for r in recipients for address in r.addresses]
            await write_addresses(connection, self._sealer, tenant, addresses)

    async def get(self, tenant: str, recipient_id: str) -> RecipientRow | None:
        row = await self._row(SQL["get"], tenant, recipient_id)
        if row is None:
            return None
        addresses = await self._fetch(SQL["addresses"], tenant, recipient_id)
        devices = await self._fetch(SQL["devices"], tenant, recipient_id)
        return RecipientRow(
            recipient_id=row["recipient_id"],
            locale=row["locale"],
            zone=row["zone"],
            attributes=row["attributes"],
            internal=row["internal"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
            erased_at=row["erased_at"],
            addresses=tuple(StoredAddress(Channel(a[0]), *tuple(a)[1:]) for a in addresses),
            devices=tuple(StoredDevice(d[0], Channel(d[1]), *tuple(d)[2:]) for d in devices),
        )

    async def by_address(self, tenant: str, channel: Channel, lookup_form: str) -> list[str]:
        """Who has this address now."""
        address_hash = self._sealer.address_hash(tenant, channel, lookup_form)
        rows = await self._fetch(SQL["by_address"], tenant, channel, address_hash)
        return [row[0] for row in rows]

    async def verify_address(
        self, tenant: str, recipient_id: str, channel: Channel, address_hash: bytes
    ) -> bool:
        """The person has shown that they hold it. False: they have another one by now."""
        args = (tenant, recipient_id, channel, address_hash)
        return await self._execute(SQL["verify_address"], *args) > 0

    async def mark_dead(
        self, tenant: str, channel: Channel, address_hash: bytes, reason: str
    ) -> int:
        return await self._execute(SQL["mark_dead"], tenant, channel, address_hash, reason)

    async def remove_address(self, tenant: str, recipient_id: str, channel: Channel) -> bool:
        return await self._execute(SQL["remove_address"], tenant, recipient_id, channel) > 0

    async def register_device(
        self, tenant: str, recipient_id: str, device_id: str, channel: Channel, token: str
    ) -> bool:
        """Upsert; the token leaves whoever had it before. False: there is no such recipient."""
        token_hash = self._sealer.address_hash(tenant, channel, token)
        sealed = self._sealer.seal(DEVICE, tenant, token.encode())
        async with self._transaction() as connection:
            await connection.execute(SQL["lock_token"], token_hash, timeout=STATEMENT)
            await connection.execute(
                SQL["free_token"],
                tenant,
                channel,
                token_hash,
                recipient_id,
                device_id,
                timeout=STATEMENT,
            )
            registered = await connection.fetchval(
                SQL["register_device"],
                tenant,
                recipient_id,
                device_id,
                channel,
                token_hash,
                sealed,
                timeout=STATEMENT,
            )
        return registered is not None

    async def disable_device(
        self, tenant: str, channel: Channel, token: str, known_at: datetime
    ) -> bool:
        """A provider says that the token is dead, as of `known_at`."""
        token_hash = self._sealer.address_hash(tenant, channel, token)
        args = (tenant, channel, token_hash, known_at)
        return await self._execute(SQL["disable_device"], *args) > 0

    async def remove_device(self, tenant: str, recipient_id: str, device_id: str) -> bool:
        return await self._execute(SQL["remove_device"], tenant, recipient_id, device_id) > 0

    async def set_preferences(
        self, tenant: str, recipient_id: str, preferences: Sequence[Preference]
    ) -> None:
        await self._execute(
            SQL["set_preferences"],
            tenant,
            recipient_id,
            [p.category for p in preferences],
            [p.channel for p in preferences],
            [p.opted_out for p in preferences],
            [p.source for p in preferences],
        )

    async def preferences(self, tenant: str, recipient_id: str) -> list[Preference]:
        rows = await self._fetch(SQL["preferences"], tenant, recipient_id)
        return [Preference(*row) for row in rows]

    async def opted_out(
        self, tenant: str, category: str, channel: Channel, recipient_ids: Sequence[str]
    ) -> set[str]:
        """Of these, who must not be sent to; for the look right before a call."""
        args = (tenant, list(recipient_ids), category, channel)
        return {row[0] for row in await self._fetch(SQL["opted_out"], *args)}

    async def recent_opt_outs(self, tenant: str, since: datetime) -> list[tuple[str, str, str]]:
        """(recipient id, category, channel) of every opt-out since."""
        rows = await self._fetch(SQL["recent_opt_outs"], tenant, since)
        return [(row[0], row[1], row[2]) for row in rows]

    async def record_consents(
        self, tenant: str, recipient_id: str, consents: Sequence[Consent]
    ) -> None:
        async with self._transaction() as connection:
            await connection.execute(SQL["lock_recipient"], tenant, recipient_id, timeout=STATEMENT)
            await write_consents(connection, tenant, [(recipient_id, c) for c in consents])

    async def consents(self, tenant: str, recipient_id: str) -> list[Consent]:
        rows = await self._fetch(SQL["consents"], tenant, recipient_id)
        return [Consent(*row) for row in rows]

    async def suppressions(
        self,
        tenant: str,
        channel: Channel | None,
        limit: int,
        after: tuple[str, bytes] | None = None,
    ) -> list[Suppression]:
        """In (channel, hash) order, after that of the last one seen."""
        args = (tenant, channel, *(after or ("", b"")), limit)
        rows = await self._fetch(SQL["suppressions"], *args)
        return [Suppression(Channel(row[0]), *tuple(row)[1:]) for row in rows]

    async def erase(self, tenant: str, recipient_id: str) -> bool:
        """Everything personal goes, at once or not at all; suppressions (keyed hashes) stay. False: unknown."""
        async with self._transaction() as connection:
            found = await connection.execute(SQL["erase"], tenant, recipient_id, timeout=STATEMENT)
            if found.endswith(" 0"):
                return False
            for name in (
                "lock_uploads",
                "erase_addresses",
                "erase_devices",
                "erase_preferences",
                "erase_consents",
                "erase_consent_events",
                "erase_cap_uses",
                "erase_list_variables",
                "erase_staged",
                "erase_payloads",
            ):
                await connection.execute(SQL[name], tenant, recipient_id, timeout=BULK)
            touched = await connection.fetch(
                SQL["erase_decisions"], tenant, recipient_id, timeout=BULK
            )
            pages: dict[tuple[datetime, UUID], list[tuple[int, int]]] = {}
            for frozen_at, campaign_id, shard, page in touched:
                pages.setdefault((frozen_at, campaign_id), []).append((shard, page))
            for (frozen_at, campaign_id), where in sorted(pages.items()):
                await connection.execute(
                    SQL["summarise"],
                    tenant,
                    frozen_at,
                    campaign_id,
                    [shard for shard, _ in where],
                    [page for _, page in where],
                    timeout=STATEMENT,
                )
        return True


async def write_recipients(
    connection: Connection, tenant: str, recipients: Iterable[RecipientWrite], *, revive: bool
) -> None:
    """In the order of ids, as every writer of recipients does. The last one given of an id counts."""
    rows = sorted({r.recipient_id: r for r in recipients}.values(), key=lambda r: r.recipient_id)
    # A statement either replaces attributes (or `internal`) for all of its rows or leaves them alone.
    kinds: dict[tuple[bool, bool], list[RecipientWrite]] = {}
    for row in rows:
        kinds.setdefault((row.attributes is not None, row.internal is not None), []).append(row)
    for (attributes, internal), batch in kinds.items():
        await connection.execute(
            SQL["upsert_recipients"],
            tenant,
            [r.recipient_id for r in batch],
            or_none([r.locale for r in batch]),
            or_none([r.zone for r in batch]),
            [r.attributes for r in batch] if attributes else None,
            [r.internal for r in batch] if internal else None,
            revive,
            attributes,
            internal,
            timeout=BULK,
        )


async def write_addresses(
    connection: Connection,
    sealer: Sealer,
    tenant: str,
    addresses: Iterable[tuple[str, AddressWrite]],
    *,
    only_new: bool = False,
) -> None:
    """`only_new`: one that is there already, and as verified, keeps its seal. The last one given of a channel counts."""
    last = {(recipient_id, address.channel): address for recipient_id, address in addresses}
    if not last:
        return
    # Hashing and sealing a chunk of a list takes long enough to be felt by everybody else on the loop.
    hashes = await asyncio.to_thread(
        lambda: {
            at: sealer.address_hash(tenant, address.channel, address.lookup)
            for at, address in last.items()
        }
    )
    if only_new:
        ids = sorted({recipient_id for recipient_id, _ in last})
        known = await connection.fetch(SQL["known_addresses"], tenant, ids, timeout=BULK)
        for recipient_id, channel, address_hash, verified in known:
            at = (recipient_id, Channel(channel))
            if hashes.get(at) == address_hash and verified >= last[at].verified:
                del last[at]
        if not last:
            return
    batch = sorted(last)
    sealed = await asyncio.to_thread(
        lambda: [sealer.seal(ADDRESS, tenant, last[at].deliverable.encode()) for at in batch]
    )
    await connection.execute(
        SQL["upsert_addresses"],
        tenant,
        [recipient_id for recipient_id, _ in batch],
        [channel for _, channel in batch],
        [hashes[at] for at in batch],
        sealed,
        [last[at].verified for at in batch],
        timeout=BULK,
    )


async def write_consents(
    connection: Connection, tenant: str, consents: Iterable[tuple[str, Consent]]
) -> None:
    rows = sorted(
        {(id, c.category, c.channel, c.at): (id, c) for id, c in consents}.items(),
        key=lambda item: item[0],
    )
    if not rows:
        return
    batch = [row for _, row in rows]
    await connection.execute(
        SQL["consent"],
        tenant,
        [id for id, _ in batch],
        [c.category for _, c in batch],
        [c.channel for _, c in batch],
        [c.at for _, c in batch],
        [c.granted for _, c in batch],
        [c.source for _, c in batch],
        [c.wording for _, c in batch],
        timeout=BULK,
    )
