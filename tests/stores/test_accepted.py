"""What was promised: once, with its first content, until somebody closes it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from schemas.kinds import Channel, Kind, MessageClass
from schemas.notifications import DeliveryKey
from sendloom.errors import Refusal
from sendloom.ports import DeliveryRow
from tests.stores.conftest import NOW, Stores, World, an_accepted

ZERO = timedelta(0)


async def test_a_new_row_is_inserted_and_a_repeat_finds_the_first_content(
    stores: Stores, world: World
) -> None:
    row = an_accepted(
        world.tenant, due_at=NOW, correlation_id="order-1", parent_id=uuid4(), kind=Kind.REMINDER
    )
    assert await stores.accepted.insert_or_match(row) == (row, False)
    other = replace(row, content=b'{"secret":"other"}', workflow_input=b"{}")
    assert await stores.accepted.insert_or_match(other) == (row, True)
    assert await stores.accepted.get(world.tenant, row.id) == row


async def test_a_row_can_be_inserted_as_started(stores: Stores, world: World) -> None:
    """What is driven already when it is inserted: there is no moment in which the sweeper could think that it was left."""
    row = an_accepted(world.tenant, started_at=NOW)
    await stores.accepted.insert_or_match(row)
    assert await stores.accepted.get(world.tenant, row.id) == row
    assert row.id not in {found.id for found in await stores.accepted.unstarted(ZERO, 10_000)}


async def test_the_same_key_with_another_body_is_refused(stores: Stores, world: World) -> None:
    row = an_accepted(world.tenant)
    await stores.accepted.insert_or_match(row)
    with pytest.raises(Refusal) as e:
        await stores.accepted.insert_or_match(replace(row, body_hmac=b"x" * 32))
    assert (e.value.code, e.value.status) == ("key_reused", 409)


async def test_of_ten_at_once_one_is_first(stores: Stores, world: World) -> None:
    for _ in range(40):  # each of the table's unique indexes may be the one that decides
        row = an_accepted(world.tenant)
        tried = await asyncio.gather(
            *(stores.accepted.insert_or_match(replace(row, content=b"%d" % n)) for n in range(10))
        )
        assert sum(1 for _, existed in tried if not existed) == 1
        assert len({stored.content for stored, _ in tried}) == 1


async def test_content_is_sealed_at_rest(stores: Stores, world: World) -> None:
    row = an_accepted(world.tenant)
    await stores.accepted.insert_or_match(row)
    raw = await stores.pool.fetchrow(
        "SELECT workflow_input, content FROM accepted WHERE tenant = $1", world.tenant
    )
    assert raw is not None
    assert b"abcdefghijkl" not in raw["content"]
    assert b'"a"' not in raw["workflow_input"]


async def test_the_first_outcome_stays_but_what_was_sent_was_sent(
    stores: Stores, world: World
) -> None:
    row = an_accepted(world.tenant)
    await stores.accepted.insert_or_match(row)
    at = (world.tenant, row.id)
    await stores.accepted.close(*at, {"kind": "unknown", "code": "a"})
    await stores.accepted.close(*at, {"kind": "failed"})
    first = await stores.accepted.get(*at)
    assert first is not None
    assert first.outcome == {"kind": "unknown", "code": "a"}
    await stores.accepted.close(*at, {"kind": "accepted", "provider": "smtp"})
    await stores.accepted.close(*at, {"kind": "accepted", "provider": "other"})
    await stores.accepted.close(*at, {"kind": "failed"})
    last = await stores.accepted.get(*at)
    assert last is not None
    assert last.outcome == {"kind": "accepted", "provider": "smtp"}
    assert last.closed_at == first.closed_at


async def test_the_sweeper_finds_what_was_never_started(stores: Stores, world: World) -> None:
    # Postgres's clock judges, so this is counted from now and not from when the tests began.
    now = datetime.now(UTC)
    rows = [an_accepted(world.tenant, accepted_at=now - timedelta(minutes=n)) for n in range(4)]
    for row in rows:
        await stores.accepted.insert_or_match(row)
    await stores.accepted.mark_started(world.tenant, rows[3].id)
    await stores.accepted.close(world.tenant, rows[2].id, {"kind": "cancelled"})

    async def found(older_than: timedelta, limit: int = 100) -> list[object]:
        left = await stores.accepted.unstarted(older_than, limit)
        return [row.id for row in left if row.tenant == world.tenant]

    assert await found(ZERO) == [rows[1].id, rows[0].id]
    assert await found(timedelta(seconds=30)) == [rows[1].id]
    started = await stores.accepted.get(world.tenant, rows[3].id)
    assert started is not None
    first = started.started_at
    await stores.accepted.mark_started(world.tenant, rows[3].id)
    started = await stores.accepted.get(world.tenant, rows[3].id)
    assert started is not None
    assert started.started_at == first is not None


async def test_rebuild_walks_every_open_row_of_every_tenant_once(stores: Stores) -> None:
    worlds = [await stores.world() for _ in range(2)]
    rows = [an_accepted(world.tenant) for world in worlds for _ in range(3)]
    for row in rows:
        await stores.accepted.insert_or_match(row)
    await stores.accepted.close(rows[0].tenant, rows[0].id, {"kind": "accepted"})
    walked, after = [], None
    while page := await stores.accepted.open_rows(after, 2):
        walked += page
        after = (page[-1].tenant, page[-1].id)
    ours = [row.id for row in walked if row.tenant in {world.tenant for world in worlds}]
    assert len(walked) == len({(row.tenant, row.id) for row in walked})
    assert set(ours) == {row.id for row in rows[1:]}


async def test_rows_are_found_by_person_newest_first_and_by_correlation(
    stores: Stores, world: World
) -> None:
    rows = [
        an_accepted(
            world.tenant, accepted_at=NOW + timedelta(seconds=n), correlation_id=f"c{n % 2}"
        )
        for n in range(4)
    ]
    for row in rows:
        await stores.accepted.insert_or_match(row)
    first = await stores.accepted.by_recipient(world.tenant, "r1", 3)
    rest = await stores.accepted.by_recipient(world.tenant, "r1", 3, first[-1].accepted_at)
    assert [row.id for row in first + rest] == [row.id for row in reversed(rows)]
    assert await stores.accepted.by_correlation(world.tenant, "c1") == [rows[1], rows[3]]


async def test_a_due_time_moves_until_the_row_is_closed(stores: Stores, world: World) -> None:
    row = an_accepted(world.tenant, due_at=NOW, message_class=MessageClass.SECURITY)
    await stores.accepted.insert_or_match(row)
    at = (world.tenant, row.id)
    await stores.accepted.set_due(*at, NOW + timedelta(days=1))
    await stores.accepted.close(*at, {"kind": "cancelled"})
    await stores.accepted.set_due(*at, NOW + timedelta(days=2))
    stored = await stores.accepted.get(*at)
    assert stored is not None
    assert stored.due_at == NOW + timedelta(days=1)


async def test_closed_rows_are_purged_in_batches_and_open_ones_never(
    stores: Stores, world: World
) -> None:
    rows = [an_accepted(world.tenant) for _ in range(4)]
    for row in rows:
        await stores.accepted.insert_or_match(row)
    for row in rows[:3]:
        await stores.accepted.close(world.tenant, row.id, {"kind": "accepted"})
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert await stores.accepted.purge(NOW - timedelta(days=30), 100) == 0
    assert await stores.accepted.purge(later, 2) == 2
    while await stores.accepted.purge(later, 2):
        pass
    left = [await stores.accepted.get(world.tenant, row.id) for row in rows]
    assert left[:3] == [None] * 3
    assert left[3] is not None


async def test_pass5_an_old_passcodes_code_is_forgotten_everywhere_and_its_row_stays(
    stores: Stores, world: World
) -> None:
    old = an_accepted(world.tenant, kind=Kind.PASSCODE, accepted_at=NOW - timedelta(days=6))
    young = an_accepted(world.tenant, kind=Kind.PASSCODE, accepted_at=NOW)
    order = an_accepted(world.tenant, accepted_at=NOW - timedelta(days=6))
    for row in (old, young, order):
        await stores.accepted.insert_or_match(row)
    delivery = DeliveryRow(
        DeliveryKey(
            tenant=world.tenant,
            frozen_at=old.accepted_at,
            campaign_id=old.id,
            recipient_id="r",
            channel=Channel.SMS,
        ),
        b"h" * 16,
        b'{"body":"the code"}',
    )
    await stores.decisions.add_delivery(delivery)
    assert await stores.accepted.forget_secrets(NOW - timedelta(days=5), 10) == 1
    assert await stores.accepted.forget_secrets(NOW - timedelta(days=5), 10) == 0
    kept = await stores.accepted.get(world.tenant, old.id)
    assert kept is not None
    assert kept.content == b""
    assert await stores.decisions.delivery(delivery.key) is None
    for row in (young, order):
        assert await stores.accepted.get(world.tenant, row.id) == row
