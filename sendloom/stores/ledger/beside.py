"""Stores whose statements look into the ledger's tables, when those are not in Postgres: they ask the ledger for that part.

What a table in Postgres still says of a suppression counts as well.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from schemas.kinds import Channel
from sendloom.domain.guard_rails import Tally
from sendloom.errors import Refusal, StoreUnavailable
from sendloom.platform.metrics import delivery as metrics
from sendloom.ports import (
    CampaignRow,
    FullLedger,
    Health,
    Member,
    PageSend,
    Person,
    Sealer,
)
from sendloom.rows import RecipientRow, Suppression
from sendloom.stores.accepted import LOOKED_AT, PostgresAccepted
from sendloom.stores.accepted import SQL as ACCEPTED
from sendloom.stores.campaigns import SQL as CAMPAIGNS
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.people import PageFacts, PostgresPeople
from sendloom.stores.pool import Pool
from sendloom.stores.queries import load
from sendloom.stores.recipients import PostgresRecipients

log = logging.getLogger(__name__)

CATALOG = load("catalog.sql")

PATIENCE = 2.0
"""Seconds; what a passcode may wait for the ledger."""
NOT_KNOWN = "unknown"
"""Shown instead of a reason while nobody can say whether there is one."""


class PeopleBeside(PostgresPeople):
    _ledger: FullLedger

    def __init__(self, pool: Pool, ledger: FullLedger) -> None:
        super().__init__(pool)
        self._ledger = ledger

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
        people = await super().people(tenant, category, recipient_ids, cap_days, channels=channels)
        try:
            async with asyncio.timeout(PATIENCE):
                await _look(self._ledger, tenant, people)
        except (StoreUnavailable, TimeoutError) as e:
            # POL-7: a passcode does not wait for the ledger, and goes where it was cleared for at accept. Everything else waits.
            message_class = await self._value(CATALOG["message_class"], tenant, category)
            if not unread and message_class != "security":
                raise StoreUnavailable("suppressions cannot be looked at") from e
            for person in people:
                person.suppressions_unread = True
        return people

    async def _suppressed(self, tenant: str, facts: PageFacts) -> dict[tuple[str, bytes], str]:
        suppressed = await super()._suppressed(tenant, facts)
        if facts.a_ids is not None:
            by_channel: dict[str, list[bytes]] = {}
            for channel, address_hash in zip(facts.a_channels, facts.a_hashes, strict=True):
                by_channel.setdefault(channel, []).append(address_hash)
            for channel, hashes in by_channel.items():
                found = await _suppression(self._ledger, tenant, Channel(channel), hashes)
                suppressed |= {(channel, hash): reason for hash, reason in found.items()}
        return suppressed

    async def sample(
        self,
        tenant: str,
        category: str,
        version_id: UUID,
        most: int,
        *,
        channels: Sequence[Channel] | None = None,
    ) -> list[Member]:
        members = await super().sample(tenant, category, version_id, most, channels=channels)
        await _look(self._ledger, tenant, [member.person for member in members])
        return members


class CampaignsBeside(PeopleBeside, PostgresCampaigns):
    def __init__(self, pool: Pool, decisions: PostgresDecisions, ledger: FullLedger) -> None:
        PostgresCampaigns.__init__(self, pool, decisions)
        self._ledger = ledger

    async def page_sends(
        self, campaign: CampaignRow, shard: int, page: int, channel: Channel
    ) -> list[PageSend]:
        sends = await super().page_sends(campaign, shard, page, channel)
        await self._look_at_sends(campaign.tenant, channel, sends)
        return sends

    async def due_sends(
        self, campaign: CampaignRow, channel: Channel, before: datetime, limit: int
    ) -> list[tuple[int, int, list[PageSend]]]:
        pages = await super().due_sends(campaign, channel, before, limit)
        sends = [send for _, _, of_page in pages for send in of_page]
        await self._look_at_sends(campaign.tenant, channel, sends)
        return pages

    async def _look_at_sends(
        self, tenant: str, channel: Channel, sends: Iterable[PageSend]
    ) -> None:
        by_hash: dict[bytes, list[PageSend]] = {}
        for send in sends:
            if send.address is not None:
                by_hash.setdefault(send.address.address_hash, []).append(send)
        found = await _suppression(self._ledger, tenant, channel, list(by_hash))
        for address_hash, reason in found.items():
            for send in by_hash[address_hash]:
                send.suppressed = reason

    async def health(self, campaign: CampaignRow) -> Health:
        row = await self._row(CAMPAIGNS["seen"], campaign.tenant, campaign.campaign_id)
        if row is None or campaign.frozen_at is None:
            raise Refusal("unknown_campaign", "there is no such campaign", status=404)
        said = await self._ledger.complaints(
            campaign.tenant, campaign.frozen_at, campaign.campaign_id
        )
        return Health(said.bounced, said.complained, Tally(**row["guarded"]), row["at"])


class AcceptedBeside(PostgresAccepted):
    def __init__(self, pool: Pool, sealer: Sealer, ledger: FullLedger) -> None:
        super().__init__(pool, sealer)
        self._ledger = ledger

    async def oldest_waiting_security(self, at_least: timedelta) -> timedelta | None:
        """The oldest ones are looked at first: usually the first of them is the answer."""
        rows = await self._fetch(ACCEPTED["waiting_security"], LOOKED_AT, at_least)
        for row in rows:
            try:
                claims = await self._ledger.of_campaign(
                    row["tenant"], row["accepted_at"], row["id"]
                )
            except StoreUnavailable:
                # Then it is not known to be called for, and security has the benefit of the doubt.
                claims = []
            if not claims:
                age: timedelta = row["age"]
                return age
        return None


class RecipientsBeside(PostgresRecipients):
    def __init__(self, pool: Pool, sealer: Sealer, ledger: FullLedger) -> None:
        super().__init__(pool, sealer)
        self._ledger = ledger

    async def get(self, tenant: str, recipient_id: str) -> RecipientRow | None:
        """For people to look at: whoever sends asks anew. So it does not need the ledger, and a phone can be registered, and
        a passcode sent to it, while that is away."""
        row = await super().get(tenant, recipient_id)
        if row is None:
            return None
        addresses = []
        try:
            async with asyncio.timeout(PATIENCE):
                for address in row.addresses:
                    of = [address.address_hash]
                    found = await self._ledger.suppression(tenant, address.channel, of)
                    reason = found.get(address.address_hash, address.suppressed)
                    addresses.append(replace(address, suppressed=reason))
        except (StoreUnavailable, TimeoutError):
            log.warning("a recipient is shown without a look at suppressions")
            addresses = [
                replace(address, suppressed=address.suppressed or NOT_KNOWN)
                for address in row.addresses
            ]
        return replace(row, addresses=tuple(addresses))

    async def suppressions(
        self,
        tenant: str,
        channel: Channel | None,
        limit: int,
        after: tuple[str, bytes] | None = None,
    ) -> list[Suppression]:
        return await self._ledger.suppressions(tenant, channel, limit, after)


async def _look(ledger: FullLedger, tenant: str, people: Iterable[Person]) -> None:
    """One question a channel for all of them."""
    by_channel: dict[Channel, dict[bytes, list[Person]]] = {}
    for person in people:
        for channel, address in person.addresses.items():
            of_hash = by_channel.setdefault(channel, {})
            of_hash.setdefault(address.address_hash, []).append(person)
    for channel, by_hash in by_channel.items():
        found = await _suppression(ledger, tenant, channel, list(by_hash))
        for address_hash, reason in found.items():
            for person in by_hash[address_hash]:
                person.suppressed[channel] = reason


async def _suppression(
    ledger: FullLedger, tenant: str, channel: Channel, hashes: list[bytes]
) -> dict[bytes, str]:
    """Whoever waits for this waits in silence, so that it is away is said here (POL-7)."""
    try:
        return await ledger.suppression(tenant, channel, hashes)
    except StoreUnavailable:
        metrics.record_away("suppressions")
        log.error("suppressions cannot be looked at")
        raise
