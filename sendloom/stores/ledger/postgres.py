"""The ledger on Postgres: claims won by insert, outcomes merged by upsert, everything in arrays."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
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
    Done,
    InDoubt,
    InFlight,
    Want,
    Won,
)
from sendloom.stores.pool import BULK, PostgresStore, Record, column, joined, joined_or_none
from sendloom.stores.queries import load

SQL = load("ledger.sql")

_Id = tuple[str, int, str]

_MANY = 10
"""From here on a statement that fails when it meets the unexpected is worth trying first."""


class PostgresLedger(PostgresStore):
    """Implements `Ledger`."""

    async def claim(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> list[ClaimAnswer]:
        if not wants:
            return []
        if len(wants) >= _MANY and all(map(_is_first, wants)):
            all_of_it = await self._claim_all(scope, wants, owner, lease)
            if all_of_it is not None:
                return all_of_it
        answers: dict[_Id, ClaimAnswer] = {}
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
    ) -> dict[_Id, ClaimAnswer]:
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
    ) -> dict[_Id, ClaimAnswer]:
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
    ) -> dict[_Id, ClaimAnswer]:
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
        answers: dict[_Id, ClaimAnswer] = {}
        if ours := [
            want
            for want in wants
            if (row := rows[_id(want)]) is not None
            and row.state is ClaimState.CLAIMED
            and row.owner == owner
            and row.attempt == _attempt(want)
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
            changed = 0
            if len(batch) >= _MANY:
                changed = await self._execute(SQL["record_all"], *args)
            if changed < len(batch):
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
        None if first else [_attempt(want) for want in wants],
    )


def _id(want: Want) -> _Id:
    return (want.recipient_id, want.send_no, want.device)


_recipient = attrgetter("recipient_id")


def _is_first(want: Want) -> bool:
    return want.retry_of is None and want.resume_unknown_of is None


def _attempt(want: Want) -> int:
    """The attempt this want would be."""
    return (want.retry_of or want.resume_unknown_of or 0) + 1


def _by_kind(wants: Sequence[Want]) -> dict[tuple[bool, bool], list[Want]]:
    groups: dict[tuple[bool, bool], list[Want]] = {}
    seen: set[_Id] = set()
    for want in wants:
        if (id := _id(want)) in seen:
            raise ValueError("the same delivery is wanted twice")
        seen.add(id)
        retry, resume = want.retry_of is not None, want.resume_unknown_of is not None
        if retry and resume and want.retry_of != want.resume_unknown_of:
            raise ValueError("retry_of and resume_unknown_of name different attempts")
        groups.setdefault((retry, resume), []).append(want)
    return groups


def _won(rows: Iterable[Record]) -> dict[_Id, ClaimAnswer]:
    return {
        (recipient_id, send_no, device): Won(attempt, lease_until)
        for recipient_id, send_no, device, attempt, lease_until in rows
    }


def _answer(row: ClaimRow) -> ClaimAnswer:
    if row.state is not ClaimState.CLAIMED:
        return Done(row.state, row.attempt, row.code, row.provider, row.provider_message_id)
    if row.lease_over:
        return InDoubt(row.attempt, row.owner)
    return InFlight(row.lease_until, row.attempt)


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
    )


def _distinct(results: Sequence[ClaimResult]) -> list[list[ClaimResult]]:
    """Batches in which no claim appears twice, in the order given."""
    batches: list[list[ClaimResult]] = []
    depth: dict[_Id, int] = {}
    for result in results:
        id = (result.recipient_id, result.send_no, result.device)
        n = depth.get(id, 0)
        depth[id] = n + 1
        if n == len(batches):
            batches.append([])
        batches[n].append(result)
    return batches
