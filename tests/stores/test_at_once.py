"""Who waits for a row goes on with its new content, but with what was to be seen of everything else before: two at once, in the order
that hurts. Postgres says who waits, so nothing here depends on time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from schemas.kinds import Channel, RecipientState
from sendloom.ports import WRITTEN, CapUse
from sendloom.rows import AddressWrite, Consent, RecipientWrite
from sendloom.stores.pool import Pool
from tests.stores.conftest import NOW, Stores, World, a_campaign, a_row, waiting

OLD, NEW = (
    AddressWrite(Channel.EMAIL, name, name) for name in ("old@example.com", "new@example.com")
)


@asynccontextmanager
async def held(pool: Pool, sql: str, *args: Any) -> AsyncIterator[asyncio.TaskGroup]:
    """Rows as somebody else has written or locked them and not committed yet; what is started meanwhile ends after that."""
    async with asyncio.TaskGroup() as group, pool.acquire() as holder, holder.transaction():
        await holder.execute(sql, *args)
        yield group


# --- addresses and devices ------------------------------------------------------------------------------------------


async def test_an_address_that_is_just_being_replaced_dies_alone(
    stores: Stores, world: World
) -> None:
    t, recipients = world.tenant, stores.recipients
    await recipients.upsert(t, [RecipientWrite("ann", addresses=(OLD,))])
    hashes = [stores.sealer.address_hash(t, Channel.EMAIL, a.lookup) for a in (OLD, NEW)]
    replace = "UPDATE addresses SET address_hash = $2 WHERE tenant = $1"
    async with held(stores.pool, replace, t, hashes[1]) as group:
        marking = group.create_task(recipients.mark_dead(t, Channel.EMAIL, hashes[0], "gone"))
        await waiting(stores.pool, 1)
    assert await marking == 0
    ann = await recipients.get(t, "ann")
    assert ann is not None
    assert [(a.address_hash, a.dead_reason) for a in ann.addresses] == [(hashes[1], None)]


async def a_device(stores: Stores, t: str) -> str:
    """How the row is given another token, as a registration does that has not committed."""
    await stores.recipients.upsert(t, [RecipientWrite("ann"), RecipientWrite("bob")])
    assert await stores.recipients.register_device(t, "ann", "phone", Channel.APNS, "old")
    return "UPDATE devices SET token_hash = $2 WHERE tenant = $1"


async def devices_of(stores: Stores, t: str, who: str) -> dict[str, bool]:
    row = await stores.recipients.get(t, who)
    assert row is not None
    return {device.device_id: device.disabled_at is None for device in row.devices}


async def test_a_device_that_just_got_another_token_does_not_go_with_the_one_it_had(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    replace = await a_device(stores, t)
    newer = stores.sealer.address_hash(t, Channel.APNS, "new")
    async with held(stores.pool, replace, t, newer) as group:
        moving = group.create_task(
            stores.recipients.register_device(t, "bob", "phone", Channel.APNS, "old")
        )
        await waiting(stores.pool, 1)
    assert await moving
    assert await devices_of(stores, t, "ann") == {"phone": True}
    assert await devices_of(stores, t, "bob") == {"phone": True}


async def test_a_device_that_just_got_another_token_is_not_disabled_for_the_one_it_had(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    replace = await a_device(stores, t)
    newer = stores.sealer.address_hash(t, Channel.APNS, "new")
    later = NOW + timedelta(days=1)
    async with held(stores.pool, replace, t, newer) as group:
        disabling = group.create_task(
            stores.recipients.disable_device(t, Channel.APNS, "old", later)
        )
        await waiting(stores.pool, 1)
    assert not await disabling
    assert await devices_of(stores, t, "ann") == {"phone": True}


# --- what a list sends to -------------------------------------------------------------------------------------------


async def an_upload(stores: Stores, t: str, people: int = 2) -> UUID:
    version = await stores.lists.start_version(t, "everyone", uuid4(), "ndjson")
    rows = [a_row(n) for n in range(people)]
    await stores.lists.add_chunk(t, version.version_id, 0, b"h" * 32, 1, people, rows)
    return version.version_id


async def current(stores: Stores, t: str) -> UUID | None:
    found = await stores.lists.get(t, "everyone")
    assert found is not None
    return found.current_version


async def test_an_older_upload_that_waited_for_a_newer_one_does_not_replace_it(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    await world.list_of([a_row(0)])
    older, newer = [await an_upload(stores, t) for _ in range(2)]
    # As the newer one's step leaves the list, until it commits.
    make_current = "UPDATE lists SET current_version = $2 WHERE tenant = $1"
    async with held(stores.pool, make_current, t, newer) as group:
        group.create_task(stores.lists.make_ready(t, older))
        await waiting(stores.pool, 1)
    assert await current(stores, t) == newer


async def test_two_versions_withdrawn_at_once_leave_the_one_before_both(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    first, second, third = [await world.list_of([a_row(n)]) for n in range(3)]
    lock = "SELECT FROM lists WHERE tenant = $1 FOR UPDATE"
    async with held(stores.pool, lock, t) as group:
        group.create_task(stores.lists.withdraw(t, third, "bad"))
        await waiting(stores.pool, 1)
        other = group.create_task(stores.lists.withdraw(t, second, "bad"))
        await ended_or_waiting(stores.pool, other, 2)
    assert await current(stores, t) == first


async def ended_or_waiting(pool: Pool, task: "asyncio.Task[Any]", backends: int) -> None:
    """Until it can do no more before the others go on."""
    locked = asyncio.create_task(waiting(pool, backends))
    await asyncio.wait([task, locked], return_when=asyncio.FIRST_COMPLETED)
    locked.cancel()
    await asyncio.gather(locked, return_exceptions=True)


async def test_a_freeze_that_waited_for_a_new_version_pins_that_one(
    stores: Stores, world: World
) -> None:
    lists, t = stores.lists, world.tenant
    await world.list_of([a_row(n) for n in range(2)])
    row = a_campaign(t)
    await stores.campaigns.insert(row)
    newer = (await lists.start_version(t, "everyone", uuid4(), "ndjson")).version_id
    rows = [a_row(n) for n in range(5)]
    await lists.add_chunk(t, newer, 0, b"n" * 32, 1, len(rows), rows, ())
    async with held(stores.pool, "SELECT FROM lists WHERE tenant = $1 FOR UPDATE", t) as group:
        group.create_task(lists.make_ready(t, newer))
        await waiting(stores.pool, 1)
        freezing = group.create_task(
            stores.campaigns.freeze(t, row.campaign_id, NOW, [Channel.EMAIL])
        )
        await waiting(stores.pool, 2)
    assert (await freezing).size == len(rows)


# --- uploads that are given up --------------------------------------------------------------------------------------


async def staged(stores: Stores, t: str) -> int:
    count: int = await stores.pool.fetchval(
        "SELECT count(*) FROM list_staging WHERE tenant = $1", t
    )
    return count


async def test_a_chunk_on_its_way_into_an_upload_that_is_given_up_leaves_nothing_behind(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    await stores.lists.create(t, "everyone")
    version = await an_upload(stores, t)
    lock = "SELECT FROM recipients WHERE tenant = $1 FOR UPDATE"
    async with held(stores.pool, lock, t) as group:
        rows = [a_row(n) for n in range(3)]
        group.create_task(stores.lists.add_chunk(t, version, 1, b"i" * 32, 3, 3, rows))
        await waiting(stores.pool, 1)
        giving_up = group.create_task(stores.lists.fail(t, version, "abandoned"))
        await ended_or_waiting(stores.pool, giving_up, 2)
    assert await giving_up
    assert await staged(stores, t) == 0


# --- erasure --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["device", "consent"])
async def test_who_is_just_being_erased_is_given_nothing_new(
    what: str, stores: Stores, world: World
) -> None:
    t, recipients = world.tenant, stores.recipients
    await recipients.upsert(t, [RecipientWrite("ann")])
    await stores.decisions.use_caps(
        t, uuid4(), [CapUse("ann", "marketing", NOW.date(), None, None)]
    )
    # The erasure gets this far, past devices and consents, and waits.
    lock = "SELECT FROM cap_uses WHERE tenant = $1 FOR UPDATE"
    async with held(stores.pool, lock, t) as group:
        group.create_task(recipients.erase(t, "ann"))
        await waiting(stores.pool, 1)
        given = group.create_task(
            recipients.register_device(t, "ann", "phone", Channel.APNS, "token")
            if what == "device"
            else recipients.record_consents(
                t, "ann", [Consent("*", "*", True, NOW, "form", "I agree")]
            )
        )
        await ended_or_waiting(stores.pool, given, 2)
    assert await devices_of(stores, t, "ann") == {}
    assert await recipients.consents(t, "ann") == []


async def values_kept(stores: Stores, t: str, who: str) -> int:
    """Places where a list has something personal of somebody."""
    count: int = await stores.pool.fetchval(
        """SELECT (SELECT count(*) FROM list_rows WHERE tenant = $1 AND recipient_id = $2 AND variables IS NOT NULL)
                + (SELECT count(*) FROM list_staging WHERE tenant = $1 AND recipient_id = $2 AND variables IS NOT NULL)""",
        t,
        who,
    )
    return count


async def test_who_is_erased_while_a_list_becomes_ready_leaves_no_values_in_it(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    await stores.lists.create(t, "everyone")
    version = await an_upload(stores, t)
    lock = "SELECT FROM lists WHERE tenant = $1 FOR UPDATE"
    async with held(stores.pool, lock, t) as group:
        group.create_task(stores.lists.make_ready(t, version))
        await waiting(stores.pool, 1)
        group.create_task(stores.recipients.erase(t, "r000"))
        await waiting(stores.pool, 2)
    assert await values_kept(stores, t, "r000") == 0
    assert await values_kept(stores, t, "r001") == 1


@asynccontextmanager
async def copied(stores: Stores, world: World) -> AsyncIterator[tuple[asyncio.TaskGroup, UUID]]:
    """A campaign's audience on its way into a list, whose version this is: of two, the second is being written by an attempt that
    was thought dead."""
    t = world.tenant
    source = await world.campaign(2)
    await world.plan(source, state=RecipientState.SENT)
    await stores.lists.create(t, "copy")
    version = (await stores.lists.start_version(t, "copy", uuid4(), WRITTEN)).version_id
    zombie = "INSERT INTO list_staging (tenant, version_id, recipient_id, chunk) VALUES ($1, $2, 'r001', 0)"
    async with held(stores.pool, zombie, t, version) as group:
        group.create_task(stores.lists.write_sent(t, "copy", version, source))
        await waiting(stores.pool, 1)
        yield group, version


async def test_who_is_erased_while_a_campaigns_audience_is_copied_leaves_no_values_in_the_copy(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    async with copied(stores, world) as (group, _):
        erasing = group.create_task(stores.recipients.erase(t, "r000"))
        await ended_or_waiting(stores.pool, erasing, 2)
    assert await values_kept(stores, t, "r000") == 0


async def test_a_copy_on_its_way_into_a_list_that_is_given_up_leaves_nothing_behind(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    async with copied(stores, world) as (group, version):
        giving_up = group.create_task(stores.lists.fail(t, version, "cancelled"))
        await ended_or_waiting(stores.pool, giving_up, 2)
    assert await staged(stores, t) == 0
