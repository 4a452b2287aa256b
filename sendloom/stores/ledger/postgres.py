"""The ledger on Postgres: claims won by insert, outcomes merged by upsert, everything in arrays."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import asyncpg

from schemas.kinds import Channel, ClaimState
from schemas.notifications import DeliveryKey
from sendloom.domain.outcomes import CLAIM_OF_RANK, CLAIM_RANK
from sendloom.errors import Fenced, StoreUnavailable
from sendloom.ports import (
    ClaimAnswer,
    ClaimResult,
    ClaimRow,
    ClaimScope,
    Complaints,
    Receipt,
    ReceiptStatus,
    Want,
    Won,
)
from sendloom.rows import Suppression
from sendloom.stores.ledger.common import Id
from sendloom.stores.ledger.common import answer_of as _answer
from sendloom.stores.ledger.common import by_kind as _by_kind
from sendloom.stores.ledger.common import distinct as _distinct
from sendloom.stores.ledger.common import id_of as _id
from sendloom.stores.pool import BULK, PostgresStore, Record, column, joined, joined_or_none
from sendloom.stores.queries import load

SQL = load("ledger.sql")
RECIPIENTS = load("recipients.sql")

_MANY = 10
"""From here on a statement that fails when it meets the unexpected is worth trying first."""


class PostgresLedger(PostgresStore):
    """Implements `FullLedger`."""

    async def claim(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> list[ClaimAnswer]:
        if not wants:
            return []
        if len(wants) >= _MANY and all(map(_is_first, wants)):
            all_of_it = await self._claim_all(scope, wants, owner, lease)
            if all_of_it is not None:
                return all_of_it
        answers: dict[Id, ClaimAnswer] = {}
        # Retries and first attempts ask for different things; a chunk usually has only one kind.
        for (retry, resume), group in _by_kind(wants).items():
            if retry or resume:
                answers |= await self._claim_again(scope, group, owner, lease, retry, resume)
            else:
                answers |= await self._claim_new(scope, group, owner, lease)
        left = [want for want in wants if _id(want) not in answers]
        if left:
            answers |= await self._others(scope, left, owner, lease, won_some=bool(answers))
        return [answers[_id(want)] for want in wants]

    async def _claim_all(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> list[ClaimAnswer] | None:
        """Everything, or None: somebody has a claim there, or the epoch is over."""
        try:
            row = await self._row(SQL["claim_all"], *_at(scope), *_what(scope, wants, owner, lease))
        except asyncpg.UniqueViolationError:
            return None
        assert row is not None
        if row["won"] != len(wants):
            return None
        return [Won(1, row["lease_until"])] * len(wants)

    async def _claim_new(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> dict[Id, ClaimAnswer]:
        what = _what(scope, wants, owner, lease)
        row = await self._row(SQL["claim_new"], *_at(scope), *what)
        assert row is not None
        if not row["won"]:
            return {}
        won = Won(1, row["lease_until"])
        return dict.fromkeys(row["which"] or map(_id, wants), won)

    async def _claim_again(
        self,
        scope: ClaimScope,
        wants: list[Want],
        owner: UUID,
        lease: timedelta,
        retry: bool,
        resume: bool,
    ) -> dict[Id, ClaimAnswer]:
        what = _what(scope, wants, owner, lease)
        return _won(await self._fetch(SQL["claim_again"], *_at(scope), *what, retry, resume))

    async def _others(
        self,
        scope: ClaimScope,
        wants: list[Want],
        owner: UUID,
        lease: timedelta,
        *,
        won_some: bool,
    ) -> dict[Id, ClaimAnswer]:
        """Why these were not won."""
        # The epoch only rises, so reading it after the fact cannot call a fenced attempt current. What this call has
        # won stands even if the epoch moved since: it was ours when the statement committed.
        if scope.epoch is not None and not won_some:
            at = (scope.tenant, scope.campaign_id, scope.shard, scope.channel)
            if await self._value(SQL["epoch"], *at) != scope.epoch:
                raise Fenced(f"shard {scope.shard} {scope.channel}: epoch {scope.epoch} is over")
        rows = dict(
            zip(map(_id, wants), await self.read(scope, wants), strict=True),
        )
        answers: dict[Id, ClaimAnswer] = {}
        if ours := [
            want
            for want in wants
            if (row := rows[_id(want)]) is not None
            and row.state is ClaimState.CLAIMED
            and row.owner == owner
            and row.attempt == want.attempt
        ]:
            # The reply to our own claim was lost. Nobody called a provider on it, so it is won with a new lease.
            answers |= await self._claim_again(scope, ours, owner, lease, False, False)
        for want in wants:
            if (id := _id(want)) in answers:
                continue
            row = rows[id]
            if row is None:
                raise StoreUnavailable("a claim was neither won nor there; ask again")
            answers[id] = _answer(row)
        return answers

    async def record(self, scope: ClaimScope, results: Sequence[ClaimResult]) -> None:
        if not results:
            return
        # Two results for one claim in one statement cannot both be merged; and one order for all avoids deadlocks.
        for batch in _distinct(results):
            batch.sort(key=_recipient)
            plain = all(r.send_no == 1 and not r.device for r in batch)
            states, state = column([CLAIM_RANK[r.state] for r in batch])
            attempts, attempt = column([r.attempt for r in batch])
            owners, owner = column([r.owner for r in batch])
            providers, provider = column([r.provider for r in batch])
            codes, code = column([r.code for r in batch])
            args = (
                *_at(scope),
                joined([r.recipient_id for r in batch]),
                None if plain else [r.send_no for r in batch],
                None if plain else [r.device for r in batch],
                states,
                attempts,
                owners,
                providers,
                joined_or_none([r.provider_message_id for r in batch]),
                codes,
                state,
                attempt,
                owner,
                provider,
                code,
            )
            await self._record(len(batch), args)

    async def _record(self, rows: int, args: tuple[Any, ...]) -> None:
        changed = 0
        if rows >= _MANY:
            changed = await self._execute(SQL["record_all"], *args)
        if changed < rows:
            # A single one; or some were merged before, or never claimed: the upsert knows what to do with each.
            await self._execute(SQL["record"], *args)

    async def read(self, scope: ClaimScope, wants: Sequence[Want]) -> list[ClaimRow | None]:
        if not wants:
            return []
        ids = joined(list({want.recipient_id for want in wants}))
        rows = await self._fetch(SQL["read"], *_at(scope), ids)
        found = {
            (row["recipient_id"], row["send_no"], row["device"]): _row(
                row, scope.tenant, scope.frozen_at, scope.campaign_id, scope
            )
            for row in rows
        }
        return [found.get(_id(want)) for want in wants]

    async def settle(self, scope: ClaimScope) -> int:
        return await self._execute(SQL["settle"], *_at(scope))

    async def settle_orphans(self, over_for: timedelta, limit: int) -> int:
        """Make unknown what nobody has settled so long after its lease's end, over all tenants; how many."""
        return await self._execute(SQL["settle_orphans"], over_for, limit)

    async def of_campaign(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID
    ) -> list[ClaimRow]:
        rows = await self._fetch(SQL["of_campaign"], tenant, frozen_at, campaign_id, timeout=BULK)
        return [_row(row, tenant, frozen_at, campaign_id, None) for row in rows]

    async def of_shard(self, scope: ClaimScope, pages: Sequence[int]) -> list[ClaimRow]:
        rows = await self._fetch(
            SQL["of_shard"], *_at(scope)[:4], list(pages), scope.channel, timeout=BULK
        )
        return [_row(row, scope.tenant, scope.frozen_at, scope.campaign_id, None) for row in rows]

    async def of_recipient(self, tenant: str, recipient_id: str, day: date) -> list[ClaimRow]:
        rows = await self._fetch(SQL["of_recipient"], tenant, recipient_id, day, timeout=BULK)
        return [_row(row, tenant, row["frozen_at"], row["campaign_id"], None) for row in rows]

    async def receive(self, receipts: Sequence[Receipt]) -> None:
        # One row at most once a statement, and one order for everybody.
        by_status: dict[ReceiptStatus, dict[DeliveryKey, datetime]] = {}
        for receipt in receipts:
            seen = by_status.setdefault(receipt.status, {})
            seen[receipt.key] = min(receipt.at, seen.get(receipt.key, receipt.at))
        for status, seen in by_status.items():
            keys = sorted(seen, key=_delivery)
            await self._execute(
                SQL[status],
                [key.tenant for key in keys],
                [key.frozen_at for key in keys],
                [key.campaign_id for key in keys],
                [key.shard for key in keys],
                [key.page for key in keys],
                [key.channel for key in keys],
                [key.recipient_id for key in keys],
                [key.send_no for key in keys],
                [key.device for key in keys],
                [seen[key] for key in keys],
            )

    async def complaints(self, tenant: str, frozen_at: datetime, campaign_id: UUID) -> Complaints:
        row = await self._row(SQL["complaints"], tenant, frozen_at, campaign_id, timeout=BULK)
        assert row is not None
        return Complaints(row["bounced"], row["complained"])

    async def suppressions(
        self,
        tenant: str,
        channel: Channel | None,
        limit: int,
        after: tuple[str, bytes] | None = None,
    ) -> list[Suppression]:
        args = (tenant, channel, *(after or ("", b"")), limit)
        rows = await self._fetch(RECIPIENTS["suppressions"], *args)
        return [Suppression(Channel(row[0]), *tuple(row)[1:]) for row in rows]

    async def suppress(
        self, tenant: str, channel: Channel, address_hash: bytes, reason: str, source: str
    ) -> None:
        await self._execute(SQL["suppress"], tenant, channel, address_hash, reason, source)

    async def unsuppress(self, tenant: str, channel: Channel, address_hash: bytes) -> bool:
        return await self._execute(SQL["unsuppress"], tenant, channel, address_hash) > 0

    async def suppression(
        self, tenant: str, channel: Channel, address_hashes: Sequence[bytes]
    ) -> dict[bytes, str]:
        if not address_hashes:
            return {}
        rows = await self._fetch(SQL["suppression"], tenant, channel, list(address_hashes))
        return {row["address_hash"]: row["reason"] for row in rows}


def _at(scope: ClaimScope) -> tuple[Any, ...]:
    return (
        scope.tenant,
        scope.frozen_at,
        scope.campaign_id,
        scope.shard,
        scope.page,
        scope.channel,
    )


def _what(
    scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
) -> tuple[object, ...]:
    # One order for everybody, or two chunks with rows in common could wait for each other.
    wants = sorted(wants, key=_recipient)
    plain = all(want.send_no == 1 and not want.device for want in wants)
    first = all(map(_is_first, wants))
    return (
        scope.epoch,
        owner,
        lease,
        joined([want.recipient_id for want in wants]),
        None if plain else [want.send_no for want in wants],
        None if plain else [want.device for want in wants],
        None if first else [want.attempt for want in wants],
    )


_recipient = attrgetter("recipient_id")
_delivery = attrgetter(
    "frozen_at", "campaign_id", "shard", "page", "channel", "recipient_id", "send_no", "device"
)


def _is_first(want: Want) -> bool:
    return want.retry_of is None and want.resume_unknown_of is None


def _won(rows: Iterable[Record]) -> dict[Id, ClaimAnswer]:
    return {
        (recipient_id, send_no, device): Won(attempt, lease_until)
        for recipient_id, send_no, device, attempt, lease_until in rows
    }


def _row(
    row: Record, tenant: str, frozen_at: datetime, campaign_id: UUID, scope: ClaimScope | None
) -> ClaimRow:
    return ClaimRow(
        key=DeliveryKey(
            tenant=tenant,
            frozen_at=frozen_at,
            campaign_id=campaign_id,
            shard=row["shard"] if scope is None else scope.shard,
            page=row["page"] if scope is None else scope.page,
            channel=row["channel"] if scope is None else scope.channel,
            recipient_id=row["recipient_id"],
            send_no=row["send_no"],
            device=row["device"],
        ),
        state=CLAIM_OF_RANK[row["state"]],
        attempt=row["attempt"],
        owner=row["owner"],
        lease_until=row["lease_until"],
        lease_over=row["lease_over"],
        provider=row["provider"],
        provider_message_id=row["provider_message_id"],
        code=row["code"],
        recorded_at=row["recorded_at"],
        delivered_at=row["delivered_at"],
        opened_at=row["opened_at"],
        bounced_at=row["bounced_at"],
        complained_at=row["complained_at"],
    )
