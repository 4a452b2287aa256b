"""The ledger on Cassandra: a chunk is claimed, and recorded, by one conditional batch inside one partition.

What is true of every conditional statement here: it names what it expects of each row; when one row is otherwise nothing is
applied, the rows are read (LOCAL_SERIAL, so that nothing half-done is missed) and what may still be done is done by the next
batch. The same read settles what became of a batch whose answer was lost: a claim carries its owner, so a win is recognised.
"""

import asyncio
import logging
import random
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from cassandra.query import (
    UNSET_VALUE,
    BatchStatement,
    BatchType,
    BoundStatement,
    PreparedStatement,
)

from schemas.kinds import Channel, ClaimState
from schemas.notifications import DeliveryKey
from sendloom.domain.outcomes import CLAIM_OF_RANK, CLAIM_RANK, merge
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
from sendloom.stores.cassandra import QUORUM, SERIAL, InQuestion, Requests, Rows, applied
from sendloom.stores.ledger.common import (
    Id,
    answer_of,
    by_kind,
    distinct,
    id_of,
)
from sendloom.stores.ledger.grounds import Clock, Epochs, Places
from sendloom.stores.pool import joined
from sendloom.stores.queries import cql

CQL = cql("ledger.cql")

log = logging.getLogger(__name__)

MARGIN = timedelta(seconds=2)
"""A lease counts as over only so long after its end, and says so to who waits: more than our look at Postgres's clock is off."""
BATCH = 200
"""Rows of a batch that is not a claim. Claims are asked for as a whole, so that a fenced call has won nothing."""
ROUNDS = 8
"""How often a conditional batch is tried again after somebody else, or nobody knows who, was there first."""

_NOTE_SECONDS = 60
_NOTE_SLOTS = 4
_NOTED_HOURS = 14 * 24
_KEPT = 20_000
"""Pages whose epoch or note is remembered; forgetting them costs a round trip each."""
_ALL = 1 << 30
_SWEPT_AT_ONCE = 1_000
"""Partitions that one call of `settle_orphans` looks at."""
_COMPLAINT_SLOTS = 16
_CLAIMED_AT = 13
"""Its column among those of `ledger.cql`."""
_NOTHING = (None, None, None, None)
_LATEST = 1 << 52
"""A write time beyond every other; an earlier receipt's is nearer to it, so the earliest stays."""

_Place = tuple[bytes, ...]
Key = tuple[str, UUID, int, int, str]


class CassandraLedger:
    """Implements `FullLedger`."""

    def __init__(
        self,
        requests: Requests,
        clock: Clock,
        epochs: Epochs,
        places: Places,
        *,
        margin: timedelta = MARGIN,
    ) -> None:
        self._requests = requests
        self._clock = clock
        self._epochs = epochs
        self._places = places
        self._margin = margin
        self._turns: dict[Key, tuple[asyncio.Lock, int]] = {}
        self._page_epochs: dict[Key, int] = {}
        self._noted: set[object] = set()
        self._swept: int | None = None

    # --- claims -------------------------------------------------------------------------------------------------------

    async def claim(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> list[ClaimAnswer]:
        if not wants:
            return []
        by_kind(wants)
        joined([want.recipient_id for want in wants])
        # The page's own epoch fences for certain, but only once somebody newer has been there; this looks at the shard's.
        if scope.epoch is not None and await self._epochs.current(scope) != scope.epoch:
            raise _fenced(scope)
        now = await self._clock.now()
        until = _whole(now + lease)
        await self._note(scope, until)
        # Two of one process in one partition would only make each other try again.
        async with self._turn(scope):
            return await self._claim(scope, wants, owner, _whole(now), until)

    async def _claim(
        self,
        scope: ClaimScope,
        wants: Sequence[Want],
        owner: UUID,
        now: datetime,
        until: datetime,
    ) -> list[ClaimAnswer]:
        answers: dict[Id, ClaimAnswer] = {}
        found: dict[Id, ClaimRow] | None = None
        todo = list(wants)
        for round_ in range(ROUNDS):
            batch = await self._claims(scope, todo, found, owner, now, until)
            if await self._apply(batch, round_):
                if scope.epoch is not None:
                    self._remember_epoch(scope, scope.epoch)
                for want in todo:
                    answers[id_of(want)] = Won(want.attempt, until)
                return [answers[id_of(want)] for want in wants]
            found = await self._found(scope, {want.recipient_id for want in todo})
            if scope.epoch is not None:
                await self._check_page_epoch(scope)
            left = []
            for want in todo:
                row = found.get(id_of(want))
                if row is not None and _is_ours(row, want, owner) and row.lease_until == until:
                    # By this very call, whose answer was lost.
                    answers[id_of(want)] = Won(row.attempt, until)
                elif row is None or _is_ours(row, want, owner) or _may_follow(row, want):
                    left.append(want)
                else:
                    answers[id_of(want)] = answer_of(self._shown(row))
            if not (todo := left):
                return [answers[id_of(want)] for want in wants]
        raise StoreUnavailable("Cassandra: a claim was neither won nor lost; ask again")

    async def _claims(
        self,
        scope: ClaimScope,
        wants: Sequence[Want],
        found: dict[Id, ClaimRow] | None,
        owner: UUID,
        now: datetime,
        until: datetime,
    ) -> list[BoundStatement]:
        """The batch for these as they were found (None: not looked at yet)."""
        place, batch = _place(scope), []
        if scope.epoch is not None:
            epoch = _BIGINT(scope.epoch)
            if _key(scope) in self._page_epochs:
                prepared = await self._prepare("epoch")
                batch.append(_bound(prepared, [epoch, *place, epoch]))
            else:
                prepared = await self._prepare("first_epoch")
                batch.append(_bound(prepared, [epoch, *place]))
        insert = await self._prepare("claim")
        frozen, who = _BIGINT(_micros(scope.frozen_at)), owner.bytes
        ends, begins = _BIGINT(_millis(until)), _BIGINT(_millis(now))
        for want in wants:
            row = None if found is None else found.get(id_of(want))
            attempt, key = _SMALLINT(want.attempt), _row_key(place, want)
            if row is not None and _is_ours(row, want, owner):
                prepared = await self._prepare("renew")
                batch.append(_bound(prepared, [ends, begins, *key, attempt, who]))
            elif (row is not None) or (found is None and not _is_first(want)):
                prepared = await self._prepare("claim_again")
                after = _SMALLINT(want.attempt - 1)
                what = [frozen, attempt, who, ends, begins, *key, after, _follows(want)]
                batch.append(_bound(prepared, what))
            else:
                batch.append(_bound(insert, [*key, frozen, attempt, who, ends, begins]))
        return batch

    async def _check_page_epoch(self, scope: ClaimScope) -> None:
        assert scope.epoch is not None
        rows = await self._ask("page_epoch", *_key(scope), serial=True)
        epoch = rows[0][0] if rows else None
        if epoch is None:
            self._page_epochs.pop(_key(scope), None)
        elif epoch > scope.epoch:
            raise _fenced(scope)
        else:
            self._remember_epoch(scope, epoch)

    def _remember_epoch(self, scope: ClaimScope, epoch: int) -> None:
        if len(self._page_epochs) > _KEPT:
            self._page_epochs.clear()
        self._page_epochs[_key(scope)] = epoch

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def record(self, scope: ClaimScope, results: Sequence[ClaimResult]) -> None:
        if not results:
            return
        now = _whole(await self._clock.now())
        for whole in distinct(results):
            for batch in _chunks(whole):
                async with self._turn(scope):
                    await self._record(scope, batch, now)

    async def _record(self, scope: ClaimScope, todo: list[ClaimResult], now: datetime) -> None:
        found: dict[Id, ClaimRow] | None = None
        for round_ in range(ROUNDS):
            batch = []
            for result in todo:
                row = None if found is None else found.get(_result_id(result))
                if found is None:
                    batch.append(await self._record_claimed(scope, result, now))
                elif row is None:
                    batch.append(await self._record_new(scope, result, now))
                else:
                    batch.append(await self._record_over(scope, result, row, now))
            if await self._apply(batch, round_):
                return
            found = await self._found(scope, {result.recipient_id for result in todo})
            todo = [r for r in todo if _changes(found.get(_result_id(r)), r)]
            if not todo:
                return
        raise StoreUnavailable("Cassandra: an outcome is not known to be recorded; repeat it")

    async def _record_claimed(
        self, scope: ClaimScope, result: ClaimResult, now: datetime
    ) -> BoundStatement:
        values = [
            _TINYINT(CLAIM_RANK[result.state]),
            # Nothing was there, and a null that is written is a tombstone to be read.
            *(UNSET_VALUE if v is None else v.encode() for v in _said(result)),
            _BIGINT(_millis(now)),
            *_result_key(_place(scope), result),
            _SMALLINT(result.attempt),
            result.owner.bytes,
        ]
        return _bound(await self._prepare("record"), values)

    async def _record_over(
        self, scope: ClaimScope, result: ClaimResult, row: ClaimRow, now: datetime
    ) -> BoundStatement:
        values = [
            _TINYINT(CLAIM_RANK[result.state]),
            _SMALLINT(max(result.attempt, row.attempt)),
            *(None if v is None else v.encode() for v in _said(result)),
            _BIGINT(_millis(now)),
            *_result_key(_place(scope), result),
            _TINYINT(CLAIM_RANK[row.state]),
            _SMALLINT(row.attempt),
            row.owner.bytes,
        ]
        return _bound(await self._prepare("record_over"), values)

    async def _record_new(
        self, scope: ClaimScope, result: ClaimResult, now: datetime
    ) -> BoundStatement:
        at = _BIGINT(_millis(now))
        values = [
            *_result_key(_place(scope), result),
            _BIGINT(_micros(scope.frozen_at)),
            _TINYINT(CLAIM_RANK[result.state]),
            _SMALLINT(result.attempt),
            result.owner.bytes,
            *(UNSET_VALUE if v is None else v.encode() for v in _said(result)),
            *(at, at, at),
        ]
        return _bound(await self._prepare("record_new"), values)

    # --- settling -----------------------------------------------------------------------------------------------------

    async def settle(self, scope: ClaimScope) -> int:
        return await self._settle(scope, timedelta(0), _ALL)

    async def _settle(self, scope: ClaimScope, over_for: timedelta, most: int) -> int:
        settled = 0
        prepared, place = await self._prepare("settle"), _place(scope)
        for round_ in range(ROUNDS):
            rows = self._claim_rows(
                await self._ask("read_page", *_key(scope), serial=True),
                now := await self._clock.now(),
            )
            latest = now - self._margin - over_for
            over = [r for r in rows if r.state is ClaimState.CLAIMED and r.lease_until <= latest]
            all_of_it = True
            for chunk in _chunks(over[: most - settled]):
                batch = [
                    _bound(
                        prepared,
                        [
                            _BIGINT(_millis(now)),
                            *_delivery_key(place, row.key),
                            _SMALLINT(row.attempt),
                            row.owner.bytes,
                            _BIGINT(_millis(row.lease_until)),
                        ],
                    )
                    for row in chunk
                ]
                async with self._turn(scope):
                    if await self._apply(batch, round_):
                        settled += len(chunk)
                    else:
                        all_of_it = False
            if all_of_it:
                return settled
        raise StoreUnavailable("Cassandra: leases could not be settled; repeat it")

    async def settle_orphans(self, over_for: timedelta, limit: int) -> int:
        """Make unknown what nobody has settled so long after its lease's end, over all tenants; how many.

        Looks only where a lease ended: each claim is noted first, under the minute in which its lease will. What is claimed
        there still, by then, has a later lease and so a later note.
        """
        now = (await self._clock.now() - self._margin - over_for).timestamp()
        ripe = int(now // _NOTE_SECONDS) - 1
        last = _hour(ripe)
        first = last - _NOTED_HOURS if self._swept is None else self._swept
        settled = looked = 0
        for hours in _chunks(range(first, last + 1), 32):
            found = await asyncio.gather(*(self._ask("noted_minutes", hour) for hour in hours))
            for minute in sorted(minute for rows in found for (minute,) in rows if minute <= ripe):
                if settled >= limit or looked >= _SWEPT_AT_ONCE:
                    return settled
                made, seen = await self._sweep(minute, over_for, limit - settled)
                settled, looked = settled + made, looked + seen
        # An hour back: who notes late is found, too.
        self._swept = last - 1
        return settled

    async def _sweep(self, minute: int, over_for: timedelta, limit: int) -> tuple[int, int]:
        """One minute's partitions: how many claims were settled, and how many partitions seen."""
        settled = seen = 0
        for slot in range(_NOTE_SLOTS):
            while rows := await self._ask("noted", minute, slot, _SWEPT_AT_ONCE):
                for key in rows:
                    if settled >= limit:
                        return settled, seen
                    settled += (made := await self._settle(_scope(*key), over_for, limit - settled))
                    seen += 1
                    if settled < limit or not made:
                        await self._ask("unnote", minute, slot, *key)
        await self._ask("unnote_minute", _hour(minute), minute)
        return settled, seen

    async def _note(self, scope: ClaimScope, until: datetime) -> None:
        minute, key = int(until.timestamp()) // _NOTE_SECONDS, _key(scope)
        if (minute, key) in self._noted:
            return
        if len(self._noted) > _KEPT:
            self._noted.clear()
        if minute not in self._noted:
            await self._ask("note_minute", _hour(minute), minute)
            self._noted.add(minute)
        await self._ask("note", minute, scope.campaign_id.bytes[-1] % _NOTE_SLOTS, *key)
        self._noted.add((minute, key))

    # --- the delivery log ---------------------------------------------------------------------------------------------

    async def read(self, scope: ClaimScope, wants: Sequence[Want]) -> list[ClaimRow | None]:
        if not wants:
            return []
        ids = {want.recipient_id for want in wants}
        found, said = await asyncio.gather(
            self._found(scope, ids),
            self._ask("read_receipts", *_key(scope), sorted(ids)),
        )
        receipts = _receipts(said)
        rows = [found.get(id_of(want)) for want in wants]
        return [None if row is None else self._shown(row, receipts) for row in rows]

    async def of_campaign(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID
    ) -> list[ClaimRow]:
        places = [ClaimScope(tenant, frozen_at, campaign_id, 0, 0, channel) for channel in Channel]
        found = await asyncio.gather(*map(self._of_page, places))
        return sorted((row for rows in found for row in rows), key=_order)

    async def of_shard(self, scope: ClaimScope, pages: Sequence[int]) -> list[ClaimRow]:
        found = await asyncio.gather(
            *(self._of_page(replace(scope, page=page)) for page in sorted(pages))
        )
        return [row for rows in found for row in rows]

    async def of_recipient(self, tenant: str, recipient_id: str, day: date) -> list[ClaimRow]:
        scopes = await self._places.of_recipient(tenant, recipient_id, day)
        asked = (self._ask("read", *_key(scope), [recipient_id]) for scope in scopes)
        found = await asyncio.gather(*asked)
        of_day = [
            (scope, row)
            for scope, rows in zip(scopes, found, strict=True)
            for row in rows
            if (at := row[_CLAIMED_AT]) and at.date() == day
        ]
        of_day.sort(key=lambda each: each[1][_CLAIMED_AT])
        said = await asyncio.gather(
            *(self._ask("read_receipts", *_key(scope), [recipient_id]) for scope, _ in of_day)
        )
        now = await self._clock.now()
        return [
            self._shown(row, _receipts(receipts))
            for (_, each), receipts in zip(of_day, said, strict=True)
            for row in self._claim_rows([each], now)
        ]

    async def receive(self, receipts: Sequence[Receipt]) -> None:
        await asyncio.gather(*map(self._receive, receipts))

    async def _receive(self, receipt: Receipt) -> None:
        key, at = receipt.key, _whole(receipt.at)
        where = (key.tenant, key.campaign_id, key.shard, key.page, key.channel.value)
        which = (key.recipient_id, key.send_no, key.device)
        await self._ask(receipt.status.value, _LATEST - _micros(at), _naive(at), *where, *which)
        if receipt.status in (ReceiptStatus.BOUNCED, ReceiptStatus.COMPLAINED):
            slot = key.recipient_id.encode()[-1] % _COMPLAINT_SLOTS
            about = (key.tenant, key.campaign_id, receipt.status.value, slot)
            await self._ask("complain", *about, *where[2:], *which)

    async def complaints(self, tenant: str, frozen_at: datetime, campaign_id: UUID) -> Complaints:
        async def count(kind: ReceiptStatus) -> int:
            asked = (
                self._ask("complaints", tenant, campaign_id, kind.value, slot)
                for slot in range(_COMPLAINT_SLOTS)
            )
            return sum(rows[0][0] for rows in await asyncio.gather(*asked))

        return Complaints(
            *await asyncio.gather(count(ReceiptStatus.BOUNCED), count(ReceiptStatus.COMPLAINED))
        )

    async def _of_page(self, scope: ClaimScope) -> list[ClaimRow]:
        claims, said = await asyncio.gather(
            self._ask("read_page", *_key(scope)), self._ask("read_page_receipts", *_key(scope))
        )
        receipts = _receipts(said)
        return [
            self._shown(row, receipts) for row in self._claim_rows(claims, await self._clock.now())
        ]

    # --- suppressions -------------------------------------------------------------------------------------------------

    async def suppress(
        self, tenant: str, channel: Channel, address_hash: bytes, reason: str, source: str
    ) -> None:
        at = (tenant, channel.value, _hash_bucket(address_hash), address_hash)
        for round_ in range(ROUNDS):
            now = _naive(await self._clock.now())
            try:
                rows = await self._change("suppress", *at, reason, source, now)
                if applied(rows):
                    return
                before = rows[0][-2]
                if reason not in _OUTRANKS or before in _OUTRANKS:
                    return
                if applied(await self._change("suppress_over", reason, source, now, *at, before)):
                    return
            except InQuestion:
                await _rest(round_)
        raise StoreUnavailable("Cassandra: a suppression is not known to be written; repeat it")

    async def unsuppress(self, tenant: str, channel: Channel, address_hash: bytes) -> bool:
        at = (tenant, channel.value, _hash_bucket(address_hash), address_hash)
        doubt = False
        for round_ in range(ROUNDS):
            try:
                return applied(await self._change("unsuppress", *at)) or doubt
            except InQuestion:
                doubt = True
                await _rest(round_)
        raise StoreUnavailable("Cassandra: a suppression is not known to be lifted; repeat it")

    async def suppression(
        self, tenant: str, channel: Channel, address_hashes: Sequence[bytes]
    ) -> dict[bytes, str]:
        buckets: dict[int, list[bytes]] = defaultdict(list)
        for address_hash in set(address_hashes):
            buckets[_hash_bucket(address_hash)].append(address_hash)
        found = await asyncio.gather(
            *(
                self._ask("suppression", tenant, channel.value, bucket, hashes)
                for bucket, hashes in buckets.items()
            )
        )
        return {bytes(address_hash): reason for rows in found for address_hash, reason in rows}

    async def suppressions(
        self,
        tenant: str,
        channel: Channel | None,
        limit: int,
        after: tuple[str, bytes] | None = None,
    ) -> list[Suppression]:
        """In (channel, hash) order, after that of the last one seen."""
        found: list[Suppression] = []
        for at in sorted([channel] if channel is not None else list(Channel)):
            if after is not None and at.value < after[0]:
                continue
            seen = after[1] if after is not None and at.value == after[0] else b""
            for bucket in range(_hash_bucket(seen) if seen else 0, _HASH_BUCKETS):
                rows = await self._ask(
                    "suppressions", tenant, at.value, bucket, seen, limit - len(found)
                )
                found += [
                    Suppression(at, bytes(hash_), reason, source, written.replace(tzinfo=UTC))
                    for hash_, reason, source, written in rows
                ]
                if len(found) >= limit:
                    return found
        return found

    # --- statements ---------------------------------------------------------------------------------------------------

    async def _prepare(self, name: str) -> PreparedStatement:
        return await self._requests.prepare(CQL[name], idempotent=name not in _CONDITIONAL)

    async def _ask(self, name: str, *values: object, serial: bool = False) -> Rows:
        """A read, or a write that says the same each time."""
        bound = (await self._prepare(name)).bind(values)
        bound.consistency_level = SERIAL if serial else QUORUM
        return await self._requests.execute(bound)

    async def _change(self, name: str, *values: object) -> Rows:
        return await self._requests.change((await self._prepare(name)).bind(values))

    async def _apply(self, statements: Sequence[BoundStatement], round_: int) -> bool:
        """Whether all of it is applied. False also when nobody knows: the caller reads."""
        if round_ > 1:
            await _rest(round_)
        statement: Any = statements[0]
        if len(statements) > 1:
            statement = BatchStatement(
                batch_type=BatchType.UNLOGGED,
                consistency_level=QUORUM,
                serial_consistency_level=SERIAL,
            )
            for each in statements:
                statement.add(each)
        try:
            return applied(await self._requests.change(statement))
        except InQuestion as e:
            log.warning(
                "a conditional write is in question", extra={"error": type(e.__cause__).__name__}
            )
            return False

    async def _found(self, scope: ClaimScope, ids: Iterable[str]) -> dict[Id, ClaimRow]:
        """As they are, whatever is still on its way."""
        rows = await self._ask("read", *_key(scope), sorted(ids), serial=True)
        return {_id(row): row for row in self._claim_rows(rows, await self._clock.now())}

    @asynccontextmanager
    async def _turn(self, scope: ClaimScope) -> AsyncIterator[None]:
        """One at a time in a partition."""
        key = _key(scope)
        lock, waiting = self._turns.get(key) or (asyncio.Lock(), 0)
        self._turns[key] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(key)
            if waiting > 1:
                self._turns[key] = (lock, waiting - 1)

    def _claim_rows(self, rows: Rows, now: datetime) -> list[ClaimRow]:
        """As stored: `lease_until` is without the margin, `lease_over` is judged with it."""
        return [row for each in rows if (row := _claim_row(each, now - self._margin)) is not None]

    def _shown(
        self, row: ClaimRow, receipts: Mapping[Id, Sequence[datetime | None]] = {}
    ) -> ClaimRow:
        """As others see it: a lease with its margin, and what receipts said."""
        delivered, opened, bounced, complained = receipts.get(_id(row), _NOTHING)
        return replace(
            row,
            lease_until=row.lease_until + self._margin,
            delivered_at=delivered,
            opened_at=opened,
            bounced_at=bounced,
            complained_at=complained,
        )


_OUTRANKS = frozenset({"complaint", "stop"})
_HASH_BUCKETS = 16
_CONDITIONAL = frozenset(
    name for name, text in CQL.items() if " IF " in f" {' '.join(text.split())} "
)
"""Never marked idempotent, so the driver never repeats them."""

_TINYINT = struct.Struct(">b").pack
_SMALLINT = struct.Struct(">h").pack
_INT = struct.Struct(">i").pack
_BIGINT = struct.Struct(">q").pack


def _bound(prepared: PreparedStatement, values: list[Any]) -> BoundStatement:
    """Values already as they go over the wire: binding a chunk's one by one costs five times as much."""
    statement = BoundStatement(prepared)
    statement.values = values
    return statement


def _key(scope: ClaimScope) -> Key:
    return (scope.tenant, scope.campaign_id, scope.shard, scope.page, scope.channel.value)


def _scope(tenant: str, campaign_id: UUID, shard: int, page: int, channel: str) -> ClaimScope:
    """From a partition's key alone. When it was frozen is written in each row."""
    return ClaimScope(tenant, _EPOCH, campaign_id, shard, page, Channel(channel))


def _place(scope: ClaimScope) -> _Place:
    return (
        scope.tenant.encode(),
        scope.campaign_id.bytes,
        _INT(scope.shard),
        _INT(scope.page),
        scope.channel.value.encode(),
    )


def _row_key(place: _Place, want: Want) -> _Place:
    return (*place, want.recipient_id.encode(), _SMALLINT(want.send_no), want.device.encode())


def _result_key(place: _Place, result: ClaimResult) -> _Place:
    which = (result.recipient_id.encode(), _SMALLINT(result.send_no), result.device.encode())
    return (*place, *which)


def _delivery_key(place: _Place, key: DeliveryKey) -> _Place:
    return (*place, key.recipient_id.encode(), _SMALLINT(key.send_no), key.device.encode())


def _claim_row(row: tuple[Any, ...], latest: datetime) -> ClaimRow | None:
    """None: its time to live is over but for some cells."""
    tenant, campaign_id, shard, page, channel, recipient_id, send_no, device = row[:8]
    frozen, state, attempt, owner, until, _, provider, message_id, code, recorded_at = row[8:]
    if state is None or attempt is None or owner is None or until is None:
        return None
    lease_until = until.replace(tzinfo=UTC)
    return ClaimRow(
        key=DeliveryKey(
            tenant=tenant,
            frozen_at=_EPOCH + timedelta(microseconds=frozen or 0),
            campaign_id=campaign_id,
            shard=shard,
            page=page,
            channel=Channel(channel),
            recipient_id=recipient_id,
            send_no=send_no,
            device=device,
        ),
        state=CLAIM_OF_RANK[state],
        attempt=attempt,
        owner=owner,
        lease_until=lease_until,
        lease_over=lease_until <= latest,
        provider=provider,
        provider_message_id=message_id,
        code=code,
        recorded_at=_aware(recorded_at),
        delivered_at=None,
        opened_at=None,
        bounced_at=None,
    )


def _receipts(rows: Rows) -> dict[Id, tuple[datetime | None, ...]]:
    return {(row[0], row[1], row[2]): tuple(map(_aware, row[3:])) for row in rows}


def _hour(minute: int) -> int:
    return minute * _NOTE_SECONDS // 3600


def _said(result: ClaimResult) -> tuple[str | None, str | None, str | None]:
    return (result.provider, result.provider_message_id, result.code)


def _result_id(result: ClaimResult) -> Id:
    return (result.recipient_id, result.send_no, result.device)


def _id(row: ClaimRow) -> Id:
    return (row.key.recipient_id, row.key.send_no, row.key.device)


def _is_first(want: Want) -> bool:
    return want.retry_of is None and want.resume_unknown_of is None


def _is_ours(row: ClaimRow, want: Want, owner: UUID) -> bool:
    return row.state is ClaimState.CLAIMED and row.owner == owner and row.attempt == want.attempt


def _states_followed(want: Want) -> list[ClaimState]:
    failed = [ClaimState.FAILED] if want.retry_of is not None else []
    return failed + ([ClaimState.UNKNOWN] if want.resume_unknown_of is not None else [])


def _may_follow(row: ClaimRow, want: Want) -> bool:
    return row.state in _states_followed(want) and row.attempt == want.attempt - 1


def _follows(want: Want) -> bytes:
    """`list<tinyint>` of the states."""
    states = [_TINYINT(CLAIM_RANK[state]) for state in _states_followed(want)]
    return _INT(len(states)) + b"".join(_INT(len(state)) + state for state in states)


def _changes(row: ClaimRow | None, result: ClaimResult) -> bool:
    """Whether a record makes a claim something else: of somebody who never held it only `sent` is believed."""
    if row is None:
        return True
    if row.owner != result.owner and result.state is not ClaimState.SENT:
        return False
    return merge(row.state, row.attempt, result.state, result.attempt) is not row.state


def _fenced(scope: ClaimScope) -> Fenced:
    return Fenced(f"shard {scope.shard} {scope.channel}: epoch {scope.epoch} is over")


def _order(row: ClaimRow) -> tuple[object, ...]:
    return (row.key.shard, row.key.page, row.key.channel.value, *_id(row))


def _hash_bucket(address_hash: bytes) -> int:
    """Its first four bits, so buckets are in the order of hashes."""
    return address_hash[0] >> 4


def _chunks(items: Sequence[Any], size: int = BATCH) -> Iterator[list[Any]]:
    for n in range(0, len(items), size):
        yield list(items[n : n + size])


async def _rest(round_: int) -> None:
    # Not all at the same moment.
    await asyncio.sleep(random.uniform(0.005, 0.02) * 2**round_)


def _whole(at: datetime) -> datetime:
    """To the millisecond, which is what Cassandra keeps."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


_EPOCH = datetime.fromtimestamp(0, UTC)


def _millis(at: datetime) -> int:
    return _micros(at) // 1000


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _naive(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None)


def _aware(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)
