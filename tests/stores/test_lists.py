"""Lists: chunks that may be repeated, places that never change, and a pure rule for how an audience is cut."""

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.errors import Refusal
from sendloom.stores.lists import SHARD_PAGES_MIN, SHARDS_MAX, shape
from tests.stores.conftest import Stores, World, a_row


@given(st.integers(1, 60_000_000), st.integers(1, 1000))
def test_an_audience_of_any_size_is_cut_into_at_most_a_thousand_shards(
    size: int, page_size: int
) -> None:
    cut = shape(size, page_size)
    assert (cut.pages - 1) * page_size < size <= cut.pages * page_size
    assert (cut.shards - 1) * cut.pages_per_shard < cut.pages <= cut.shards * cut.pages_per_shard
    assert cut.shards <= SHARDS_MAX
    assert cut.pages_per_shard >= SHARD_PAGES_MIN


def test_shards_grow_once_there_are_enough_to_share_out() -> None:
    cuts = [shape(size) for size in (1, 5_001, 50_000, 200_000, 500_000, 50_000_000)]
    assert [(cut.shards, cut.pages_per_shard) for cut in cuts] == [
        (1, 5),
        (2, 5),
        (10, 5),
        (20, 10),
        (50, 10),
        (1_000, 50),
    ]


async def upload(world: World, list_id: str = "l") -> UUID:
    await world.stores.lists.create(world.tenant, list_id)
    version = await world.stores.lists.start_version(world.tenant, list_id, uuid4(), "ndjson")
    return version.version_id


async def test_every_row_gets_its_place_in_one_order(stores: Stores, world: World) -> None:
    version_id = await world.list_of([a_row(n) for n in reversed(range(35))])
    version = await stores.lists.version(world.tenant, version_id)
    assert version is not None
    assert (version.state, version.size, version.rejected) == ("ready", 35, 0)
    places = []
    for shard in (0, 1, 2):
        for page, size in await stores.campaigns.pages(world.tenant, version_id, shard):
            found = await stores.campaigns.page_people(
                world.tenant, "offers.weekly", version_id, shard, page, False
            )
            assert len(found.recipient_ids) == size
            places += [(shard, page, recipient_id) for recipient_id in found.recipient_ids]
    assert places == [(n // 15, n // 3 % 5, f"r{n:03}") for n in range(35)]
    staged = await stores.pool.fetchval(
        "SELECT count(*) FROM list_staging WHERE tenant = $1", world.tenant
    )
    assert staged == 0


async def test_a_chunk_may_come_again_but_not_with_other_content(
    stores: Stores, world: World
) -> None:
    version_id = await upload(world)
    errors = [{"line": 3, "column": "email", "code": "bad_address", "detail": "no"}]
    at = (world.tenant, version_id, 0)
    first = await stores.lists.add_chunk(*at, b"a" * 32, 1, 3, [a_row(0), a_row(1)], errors)
    again = await stores.lists.add_chunk(*at, b"a" * 32, 1, 3, [a_row(0), a_row(1)], errors)
    assert (first.accepted, first.replayed, again.replayed) == (2, False, True)
    assert again.errors == tuple(errors)
    with pytest.raises(Refusal) as e:
        await stores.lists.add_chunk(*at, b"b" * 32, 1, 3, [a_row(5)], ())
    assert (e.value.code, e.value.status) == ("chunk_conflict", 409)
    version = await stores.lists.make_ready(world.tenant, version_id)
    assert (version.size, version.rejected) == (2, 1)
    assert await stores.lists.chunks(world.tenant, version_id) == [await stores.lists.chunk(*at)]
    # A repeat that arrives after the fact is answered, and something new refused.
    assert (await stores.lists.add_chunk(*at, b"a" * 32, 1, 3, [], ())).replayed
    with pytest.raises(Refusal) as e:
        await stores.lists.add_chunk(world.tenant, version_id, 1, b"c" * 32, 4, 1, [a_row(7)])
    assert e.value.code == "version_closed"
    assert await stores.lists.make_ready(world.tenant, version_id) == version


async def test_the_same_chunk_sent_twice_at_once_is_taken_once(
    stores: Stores, world: World
) -> None:
    version_id = await upload(world)
    records = await asyncio.gather(
        *(
            stores.lists.add_chunk(
                world.tenant, version_id, 0, b"a" * 32, 1, 50, [a_row(n) for n in range(50)]
            )
            for _ in range(3)
        )
    )
    assert sorted(record.replayed for record in records) == [False, True, True]


async def test_of_two_lines_for_one_person_the_later_counts_whatever_comes_first(
    stores: Stores, world: World
) -> None:
    for order in ((0, 1), (1, 0)):
        version_id = await upload(world)
        for chunk in order:
            rows = [
                a_row(0, variables={"chunk": chunk, "line": 1}),
                a_row(0, variables={"chunk": chunk, "line": 2}),
                a_row(1 + chunk),
            ]
            await stores.lists.add_chunk(
                world.tenant, version_id, chunk, bytes([chunk]) * 32, 1, 3, rows
            )
        version = await stores.lists.make_ready(world.tenant, version_id)
        assert version.size == 3
        [first, *_] = await stores.campaigns.sample(world.tenant, "offers.weekly", version_id, 100)
        assert dict(first.variables) == {"chunk": 1, "line": 2}


async def test_a_line_without_an_id_is_known_by_its_address(stores: Stores, world: World) -> None:
    rows = [
        a_row(0, recipient_id=None),
        a_row(0, recipient_id=None, variables={}),
        a_row(1, recipient_id=None, email=None, email_lookup=None, phone="+12025550101"),
    ]
    version_id = await world.list_of(rows)
    members = await stores.campaigns.sample(world.tenant, "offers.weekly", version_id, 100)
    assert len(members) == 2
    mail = stores.sealer.address_hash(world.tenant, Channel.EMAIL, "r000@example.com")
    assert members[0].recipient_id == f"email-{mail.hex()}"
    assert members[1].person.addresses.keys() == {Channel.SMS}


async def test_an_address_without_consent_is_not_verified_by_being_on_a_list(
    stores: Stores, world: World
) -> None:
    await world.list_of([a_row(0, consent=None), a_row(1)])
    people = await stores.people.people(world.tenant, "offers.weekly", ["r000", "r001"], False)
    assert [p.addresses[Channel.EMAIL].verified for p in people] == [False, True]
    # A later list that brings the same address unproven takes nothing away.
    await world.list_of([a_row(1, consent=None)])
    [person] = await stores.people.people(world.tenant, "offers.weekly", ["r001"], False)
    assert person.addresses[Channel.EMAIL].verified


async def test_an_empty_list_has_failed_and_says_why(stores: Stores, world: World) -> None:
    version = await stores.lists.make_ready(world.tenant, await upload(world))
    assert (version.state, version.reason, version.size) == ("failed", "empty", 0)


async def test_c72_readers_see_the_old_list_or_the_new_one_never_an_empty_one(
    stores: Stores, world: World
) -> None:
    old = await world.list_of([a_row(n) for n in range(5)])
    version_id = await upload(world, "everyone")
    await stores.lists.add_chunk(
        world.tenant, version_id, 0, b"a" * 32, 1, 9, [a_row(n) for n in range(9)]
    )
    record = await stores.lists.get(world.tenant, "everyone")
    assert record is not None
    assert record.current_version == old
    await stores.lists.make_ready(world.tenant, version_id)
    record = await stores.lists.get(world.tenant, "everyone")
    assert record is not None
    assert record.current_version == version_id
    assert sum(size for _, size in await stores.campaigns.pages(world.tenant, old, 0)) == 5
    assert [v.version_id for v in await stores.lists.versions(world.tenant, "everyone")] == [
        version_id,
        old,
    ]


async def test_an_older_upload_that_is_ready_later_does_not_become_current(
    stores: Stores, world: World
) -> None:
    older = await upload(world, "everyone")
    newer = await world.list_of([a_row(1)])
    await stores.lists.add_chunk(world.tenant, older, 0, b"a" * 32, 1, 1, [a_row(0)])
    await stores.lists.make_ready(world.tenant, older)
    record = await stores.lists.get(world.tenant, "everyone")
    assert record is not None
    assert record.current_version == newer


async def test_an_upload_nobody_went_on_with_is_reaped(stores: Stores, world: World) -> None:
    abandoned, going_on = await upload(world), await upload(world)
    for version_id in (abandoned, going_on):
        await stores.lists.add_chunk(world.tenant, version_id, 0, b"a" * 32, 1, 1, [a_row(0)])
    await stores.pool.execute(
        "UPDATE list_versions SET touched_at = now() - interval '2 days' WHERE version_id = $1",
        abandoned,
    )
    assert await stores.lists.reap(timedelta(days=1)) == 1
    reaped = await stores.lists.version(world.tenant, abandoned)
    assert reaped is not None
    assert (reaped.state, reaped.reason) == ("failed", "abandoned")
    assert (await stores.lists.make_ready(world.tenant, going_on)).state == "ready"
    assert (await stores.lists.make_ready(world.tenant, abandoned)).state == "failed"


async def test_what_is_not_there_is_refused(stores: Stores, world: World) -> None:
    with pytest.raises(Refusal) as e:
        await stores.lists.start_version(world.tenant, "nowhere", uuid4(), "csv")
    assert e.value.code == "unknown_list"
    for work in (
        stores.lists.add_chunk(world.tenant, uuid4(), 0, b"a" * 32, 1, 1, [a_row(0)]),
        stores.lists.make_ready(world.tenant, uuid4()),
    ):
        with pytest.raises(Refusal) as e:
            await work
        assert e.value.code == "unknown_version"
    await stores.lists.create(world.tenant, "l", "Old name")
    await stores.lists.create(world.tenant, "l", "New name")
    await stores.lists.create(world.tenant, "l")
    assert [record.name for record in await stores.lists.lists(world.tenant)] == ["New name"]
