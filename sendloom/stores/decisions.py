"""Decisions: inserted once, changed only by compare-and-set; with them the caps they use up and the payloads they fix."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from schemas.kinds import Channel, RecipientState
from schemas.notifications import DecisionKey, DeliveryKey
from sendloom.domain.outcomes import RECIPIENT_CODE, RECIPIENT_OF_CODE, Cause, decision_may
from sendloom.domain.reasons import Reason
from sendloom.errors import Refusal
from sendloom.ports import CapUse, Decision, DeliveryRow, Move, Sealer
from sendloom.stores.pool import (
    ACQUIRE,
    STATEMENT,
    Connection,
    Pool,
    PostgresStore,
    Record,
    answering,
    column,
    joined,
    or_none,
    touched,
)
from sendloom.stores.queries import load

SQL = load("decisions.sql")

_PAYLOAD = "delivery"
_MANY = 10
"""From here on a statement that fails when a decision is there already is worth trying first."""
_Page = tuple[str, datetime, UUID, int, int]
_Keyed = TypeVar("_Keyed", Decision, Move)

# What may have been sent has used its cap; so has what is still to be.
_GIVES_BACK = frozenset(RecipientState) - {
    RecipientState.PENDING,
    RecipientState.SENT,
    RecipientState.UNKNOWN,
}
_GIVES_BACK_CODES = sorted(RECIPIENT_CODE[state] for state in _GIVES_BACK)


class PostgresDecisions(PostgresStore):
    """Implements `DecisionStore`."""

    def __init__(self, pool: Pool, sealer: Sealer) -> None:
        super().__init__(pool)
        self._sealer = sealer

    async def insert(
        self,
        decisions: Sequence[Decision],
        deliveries: Sequence[DeliveryRow] = (),
        caps: Sequence[CapUse] = (),
    ) -> list[Decision]:
        if not decisions:
            return []
        if not caps and (not deliveries or len(_by_page(decisions)) == 1):
            fixed = self._columns(deliveries) if deliveries else None
            with answering():
                # One page is one statement, which needs no transaction around it.
                async with self._pool.acquire(timeout=ACQUIRE) as connection:
                    return await _insert(connection, decisions, fixed, alone=True)
        async with self._transaction() as connection:
            if caps:
                stored = await _insert_capped(connection, decisions, caps)
            else:
                stored = await _insert(connection, decisions)
            if deliveries:
                await connection.execute(
                    SQL["insert_deliveries"], *self._columns(deliveries), timeout=STATEMENT
                )
            return stored

    async def insert_page(
        self, recipient_ids: Sequence[str], cohorts: Sequence[int], like: Sequence[Decision]
    ) -> bool:
        def spread(of: Callable[[Decision], Any]) -> tuple[list[Any] | None, Any]:
            """As `column`, without a look at every row."""
            values = [of(decision) for decision in like]
            if values.count(values[0]) == len(values):
                return None, values[0]
            return [values[cohort] for cohort in cohorts], None

        if not recipient_ids:
            return True
        try:
            await self._execute(
                SQL["insert_all"], *_arguments(_page(like[0].key), recipient_ids, spread)
            )
        except asyncpg.UniqueViolationError:
            return False
        return True

    async def read(self, key: DecisionKey) -> Decision | None:
        row = await self._row(SQL["read"], *_page(key), key.recipient_id)
        return None if row is None else decision(row)

    async def move(self, moves: Sequence[Move]) -> int:
        if not moves:
            return 0
        matched = 0
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                for page, batch in _by_page(moves):
                    ids = [m.key.recipient_id for m in batch]
                    if len(set(ids)) != len(ids):
                        raise ValueError("two moves of one decision")
                    matched += await _move(connection, page, ids, batch)
        return matched

    async def move_page(self, recipient_ids: Sequence[str], like: Move) -> int:
        if not recipient_ids:
            return 0
        if like.send_no is not None or like.not_before is not None or like.not_after is not None:
            raise ValueError("these are told one by one, with `move`")
        # In the one order that every writer keeps.
        ids = sorted(set(recipient_ids))
        if like.to in _GIVES_BACK:
            with answering():
                async with self._pool.acquire(timeout=ACQUIRE) as connection:
                    return await _move(connection, _page(like.key), ids, [like])
        return await self._execute(
            SQL["move_page"],
            *_page(like.key),
            joined(ids),
            mask(like.expect, like.to, like.cause),
            RECIPIENT_CODE[like.to],
            like.reason,
            like.channel,
            like.rung,
            like.attempt,
            like.due_at,
        )

    async def use_caps(
        self, tenant: str, campaign_id: UUID, caps: Sequence[CapUse]
    ) -> frozenset[str]:
        if not caps:
            return frozenset()
        async with self._transaction() as connection:
            full = await _lock_and_look(connection, tenant, campaign_id, caps)
            uses = [use for use in caps if use.recipient_id not in full]
            await _use(connection, tenant, campaign_id, uses)
        return full

    async def delivery(self, key: DeliveryKey) -> DeliveryRow | None:
        row = await self._row(SQL["delivery"], *_delivery_key(key))
        # A purged payload is gone: there is nothing left that could be sent.
        if row is None or row["payload"] is None:
            return None
        payload = self._sealer.open(_PAYLOAD, key.tenant, row["payload"])
        return DeliveryRow(key, row["address_hash"], payload)

    async def add_delivery(self, row: DeliveryRow) -> DeliveryRow:
        """
        Raises:
            Refusal: `payload_gone`.
        """
        await self._execute(SQL["insert_deliveries"], *self._columns([row]))
        stored = await self.delivery(row.key)
        if stored is None:
            raise Refusal("payload_gone", "the payload was purged or erased", status=410)
        return stored

    async def by_recipient(self, tenant: str, recipient_id: str, limit: int) -> list[Decision]:
        rows = await self._fetch(SQL["by_recipient"], tenant, recipient_id, limit)
        return [decision(row) for row in rows]

    def _columns(self, deliveries: Sequence[DeliveryRow]) -> tuple[list[Any], ...]:
        keys = [row.key for row in deliveries]
        return (
            [key.tenant for key in keys],
            [key.frozen_at for key in keys],
            [key.campaign_id for key in keys],
            [key.recipient_id for key in keys],
            [key.channel for key in keys],
            [key.send_no for key in keys],
            [key.device for key in keys],
            [row.address_hash for row in deliveries],
            [self._sealer.seal(_PAYLOAD, row.key.tenant, row.payload) for row in deliveries],
        )


def _arguments(
    page: _Page,
    recipient_ids: Sequence[str],
    spread: Callable[[Callable[[Decision], Any]], tuple[Sequence[Any] | None, Any]],
    send_nos: list[int] | None = None,
    attempts: list[int] | None = None,
) -> tuple[Any, ...]:
    """What `inserted` takes; `spread` makes a column of what it is given to read from a decision."""
    states, state = spread(lambda d: RECIPIENT_CODE[d.state])
    channels, channel = spread(attrgetter("channel"))
    rungs, rung = spread(attrgetter("rung"))
    reasons, reason = spread(attrgetter("reason"))
    not_befores, not_before = spread(attrgetter("not_before"))
    not_afters, not_after = spread(attrgetter("not_after"))
    due_ats, due_at = spread(attrgetter("due_at"))
    return (
        *page,
        joined(recipient_ids),
        *(states, channels, rungs, send_nos, attempts, reasons, not_befores, not_afters, due_ats),
        *(state, channel, rung, reason, not_before, not_after, due_at),
    )


async def _insert(
    connection: Connection,
    decisions: Sequence[Decision],
    deliveries: tuple[list[Any], ...] | None = None,
    *,
    alone: bool = False,
) -> list[Decision]:
    """`alone`: no transaction is open that a failing statement would end. `deliveries` go with one page of decisions."""
    pages: dict[_Page, dict[str, Decision]] = {}
    for page, batch in _by_page(decisions):
        stored = pages[page] = {d.key.recipient_id: d for d in batch}
        if len(stored) < len(batch):
            raise ValueError("the same decision is there twice")
        ids = [d.key.recipient_id for d in batch]
        args = _arguments(
            page,
            ids,
            lambda of: column([of(d) for d in batch]),  # noqa: B023 - used up at once
            [d.send_no for d in batch] if any(d.send_no != 1 for d in batch) else None,
            [d.attempt for d in batch] if any(d.attempt for d in batch) else None,
        )
        if alone and len(batch) >= _MANY and deliveries is None:
            with suppress(asyncpg.UniqueViolationError):
                await connection.execute(SQL["insert_all"], *args, timeout=STATEMENT)
                continue
        if deliveries is None:
            new = await connection.fetchval(SQL["insert"], *args, timeout=STATEMENT)
        else:
            new = await connection.fetchval(
                SQL["insert_with_deliveries"], *args, *deliveries, timeout=STATEMENT
            )
        if new is not None:
            old = list(set(ids).difference(new))
            for row in await connection.fetch(
                SQL["of_page"], *page, joined(old), timeout=STATEMENT
            ):
                stored[row["recipient_id"]] = decision(row)
    if len(pages) == 1:
        return [stored[d.key.recipient_id] for d in decisions]
    return [pages[_page(d.key)][d.key.recipient_id] for d in decisions]


async def _insert_capped(
    connection: Connection, decisions: Sequence[Decision], caps: Sequence[CapUse]
) -> list[Decision]:
    """Under the locks of everybody concerned: look, decide, insert, use up."""
    by_recipient = {d.key.recipient_id: d for d in decisions}
    first = decisions[0].key
    if len(by_recipient) != len(decisions) or any(
        (d.key.tenant, d.key.campaign_id) != (first.tenant, first.campaign_id) for d in decisions
    ):
        raise ValueError("caps are used up by one decision a recipient, of one campaign")
    full = await _lock_and_look(connection, first.tenant, first.campaign_id, caps)
    wanted = [
        replace(d, state=RecipientState.SUPPRESSED, reason=Reason.FREQUENCY_CAP, due_at=None)
        if d.key.recipient_id in full and d.state is RecipientState.PENDING
        else d
        for d in decisions
    ]
    stored = await _insert(connection, wanted)
    # Only what this call inserted uses up anything: `_insert` hands back the very object when it did.
    new = {
        after.key.recipient_id
        for before, after in zip(wanted, stored, strict=True)
        if before is after and after.state is RecipientState.PENDING
    }
    uses = [use for use in caps if use.recipient_id in new]
    await _use(connection, first.tenant, first.campaign_id, uses)
    return stored


async def _lock_and_look(
    connection: Connection, tenant: str, campaign_id: UUID, caps: Sequence[CapUse]
) -> frozenset[str]:
    """For whom a cap is full. Nobody else uses up theirs before we commit."""
    people = sorted({use.recipient_id for use in caps})
    await connection.fetch(SQL["lock_people"], tenant, people, timeout=STATEMENT)
    rows = await connection.fetch(
        SQL["full_caps"],
        tenant,
        campaign_id,
        list(range(len(caps))),
        [use.recipient_id for use in caps],
        [use.scope for use in caps],
        [use.local_day for use in caps],
        [use.limit_day for use in caps],
        [use.limit_week for use in caps],
        timeout=STATEMENT,
    )
    return frozenset(caps[row[0]].recipient_id for row in rows)


async def _use(
    connection: Connection, tenant: str, campaign_id: UUID, uses: Sequence[CapUse]
) -> None:
    if not uses:
        return
    await connection.execute(
        SQL["use_caps"],
        tenant,
        campaign_id,
        [use.recipient_id for use in uses],
        [use.scope for use in uses],
        [use.local_day for use in uses],
        timeout=STATEMENT,
    )


async def _move(
    connection: Connection, page: _Page, recipient_ids: Sequence[str], moves: Sequence[Move]
) -> int:
    """`moves`: one for each, or a single one for all."""
    expects, expect = column([mask(m.expect, m.to, m.cause) for m in moves])
    states, state = column([RECIPIENT_CODE[m.to] for m in moves])
    reasons, reason = column([m.reason for m in moves])
    channels, channel = column([m.channel for m in moves])
    rungs, rung = column([m.rung for m in moves])
    attempts, attempt = column([m.attempt for m in moves])
    due_ats, due_at = column([m.due_at for m in moves])
    columns = (
        joined(recipient_ids),
        expects,
        states,
        reasons,
        channels,
        rungs,
        or_none([m.send_no for m in moves]),
        attempts,
        or_none([m.not_before for m in moves]),
        or_none([m.not_after for m in moves]),
        due_ats,
        expect,
        state,
        reason,
        channel,
        rung,
        attempt,
        due_at,
    )
    if any(m.to in _GIVES_BACK for m in moves):
        matched: int = await connection.fetchval(
            SQL["move_and_give_back"], *page, *columns, _GIVES_BACK_CODES, timeout=STATEMENT
        )
        return matched
    return touched(await connection.execute(SQL["move"], *page, *columns, timeout=STATEMENT))


@lru_cache(maxsize=1024)
def mask(expect: frozenset[RecipientState], to: RecipientState, cause: Cause) -> int:
    """The expected states as a bit mask of their codes.

    Raises:
        ValueError: the table of moves does not allow this. Nothing such must reach the database.
    """
    for state in expect:
        if not decision_may(state, to, cause):
            raise ValueError(f"a decision may not go from {state} to {to} by {cause}")
    return sum(1 << RECIPIENT_CODE[state] for state in expect)


def decision(row: Record) -> Decision:
    return Decision(
        key=DecisionKey(
            tenant=row["tenant"],
            frozen_at=row["frozen_at"],
            campaign_id=row["campaign_id"],
            shard=row["shard"],
            page=row["page"],
            recipient_id=row["recipient_id"],
        ),
        state=RECIPIENT_OF_CODE[row["state"]],
        channel=None if row["channel"] is None else Channel(row["channel"]),
        rung=row["rung"],
        send_no=row["send_no"],
        attempt=row["attempt"],
        reason=row["reason"],
        not_before=row["not_before"],
        not_after=row["not_after"],
        due_at=row["due_at"],
    )


def _page(key: DecisionKey) -> _Page:
    return (key.tenant, key.frozen_at, key.campaign_id, key.shard, key.page)


def _delivery_key(key: DeliveryKey) -> tuple[Any, ...]:
    return (
        key.tenant,
        key.frozen_at,
        key.campaign_id,
        key.recipient_id,
        key.channel,
        key.send_no,
        key.device,
    )


def _by_page(items: Iterable[_Keyed]) -> list[tuple[_Page, list[_Keyed]]]:
    """Grouped, in the one order of pages and recipients that every writer keeps."""
    groups: dict[_Page, list[_Keyed]] = {}
    last: DecisionKey | None = None
    batch: list[_Keyed] = []
    for item in items:
        key = item.key
        # Neighbours mostly are of one page, and looking a page up in a dict costs more than looking at it.
        if (
            last is None
            or key.page != last.page
            or key.shard != last.shard
            or (key.campaign_id is not last.campaign_id and key.campaign_id != last.campaign_id)
            or (key.frozen_at is not last.frozen_at and key.frozen_at != last.frozen_at)
            or key.tenant != last.tenant
        ):
            batch = groups.setdefault(_page(key), [])
            last = key
        batch.append(item)
    for batch in groups.values():
        batch.sort(key=_recipient)
    return sorted(groups.items(), key=itemgetter(0))


def _recipient(item: Decision | Move) -> str:
    return item.key.recipient_id
