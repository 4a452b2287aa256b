"""Segments on Postgres: the same verdicts as in Python, versions in place, and an audience written out chunk by chunk."""

from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.segments import PersonFacts, matches, parse
from sendloom.rows import AddressWrite, RecipientWrite
from sendloom.stores.lists import PostgresLists
from sendloom.stores.segment_sql import with_segment
from sendloom.stores.segments import SQL, PostgresSegments
from tests.stores.conftest import Stores, World

# Few keys and values that lie close together, so that leaves often agree and often just miss.
KEYS = st.sampled_from(["a", "b"])
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 1.0, 0.1, 0.30000000000000004, 1e22, 5e-324, -0.0, 2**53]),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
)
STRINGS = st.one_of(
    st.sampled_from(
        ["", "1", "true", "a", "A", "ä", "z", "Z", "\uffff", "\U0001f600", "'; --", "%"]
    ),
    st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=5),
)
VALUES = st.one_of(STRINGS, NUMBERS, st.booleans())
STORED = st.one_of(VALUES, st.sampled_from([None, [], {"a": 1}, [1]]))
LOCALES = st.sampled_from(["de", "de-AT", "d", "en", "zh-Hant-TW"]).filter(lambda tag: tag != "d")
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"])
CHANNELS = st.sampled_from(list(Channel))


def some(values: Any) -> Any:
    return st.lists(values, min_size=1, max_size=3)


LEAVES = st.one_of(
    st.builds(
        lambda key, operator, value: {"attribute": key, operator: value},
        KEYS,
        st.sampled_from(["eq", "ne"]),
        VALUES,
    ),
    st.builds(
        lambda key, operator, value: {"attribute": key, operator: value},
        KEYS,
        st.sampled_from(["lt", "lte", "gt", "gte"]),
        st.one_of(STRINGS, NUMBERS),
    ),
    st.builds(lambda key, values: {"attribute": key, "in": values}, KEYS, some(VALUES)),
    st.builds(lambda key: {"attribute": key, "exists": True}, KEYS),
    st.builds(lambda tags: {"locale": tags}, some(LOCALES)),
    st.builds(lambda names: {"zone": names}, some(ZONES)),
    st.builds(lambda channel: {"has_channel": channel}, CHANNELS),
)
SEGMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"all": parts}, some(inner)),
        st.builds(lambda parts: {"any": parts}, some(inner)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=6,
)
PEOPLE = st.builds(
    PersonFacts,
    st.dictionaries(KEYS, STORED),
    st.none() | LOCALES,
    st.none() | ZONES,
    st.frozensets(CHANNELS),
)


@pytest_asyncio.fixture
async def segments(stores: Stores) -> PostgresSegments:
    return PostgresSegments(stores.pool, chunk=3)


async def judged_by_postgres(
    stores: Stores, people: list[PersonFacts], definition: Any
) -> set[int]:
    """In a transaction that is rolled back: one tenant with these people, and who of them is in the segment."""
    sql, args = with_segment(SQL["look"], parse(definition), "judged", "", 1000, 1000)
    async with stores.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute("INSERT INTO tenants (tenant, name) VALUES ('judged', '')")
            ids = [f"p{n:03}" for n in range(len(people))]
            await connection.executemany(
                "INSERT INTO recipients (tenant, recipient_id, locale, zone, attributes)"
                " VALUES ('judged', $1, $2, $3, $4)",
                [(i, p.locale, p.zone, p.attributes) for i, p in zip(ids, people, strict=True)],
            )
            for i, person in zip(ids, people, strict=True):
                for channel in person.channels:
                    if channel in (Channel.EMAIL, Channel.SMS):
                        await connection.execute(
                            "INSERT INTO addresses (tenant, recipient_id, channel, address_hash, sealed)"
                            " VALUES ('judged', $1, $2, 'x', 'x')",
                            i,
                            channel,
                        )
                    else:
                        await connection.execute(
                            "INSERT INTO devices (tenant, recipient_id, device_id, channel, token_hash, sealed)"
                            " VALUES ('judged', $1, $2, $2, $3, 'x')",
                            i,
                            channel,
                            f"{i}{channel}".encode(),
                        )
            row = await connection.fetchrow(sql, *args)
        finally:
            await transaction.rollback()
    assert row is not None
    return {int(recipient_id[1:]) for recipient_id in row["first"]}


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_python_and_postgres_agree_on_who_is_in_a_segment(
    stores: Stores, data: st.DataObject
) -> None:
    definition = data.draw(SEGMENTS)
    people = data.draw(st.lists(PEOPLE, min_size=1, max_size=6))
    # As they come back from the database, for it is that which Python would judge.
    segment = parse(orjson.loads(orjson.dumps(definition)))
    expected = {n for n, person in enumerate(people) if matches(segment, person)}
    assert await judged_by_postgres(stores, people, definition) == expected


async def test_a_value_never_becomes_a_part_of_the_statement() -> None:
    evil = "x' OR true --"
    sql, args = with_segment(
        SQL["look"],
        parse({"any": [{"attribute": "a", "eq": evil}, {"attribute": "b", "in": [evil, 7.25]}]}),
        "t",
        "",
        1,
        1,
    )
    assert "OR true" not in sql
    assert "7.25" not in sql
    assert args[4:] == ("a", evil, "b", [evil, 7.25])


async def test_a_dead_address_and_a_disabled_device_are_no_channel(
    stores: Stores, world: World, segments: PostgresSegments
) -> None:
    await fill(stores, world.tenant, 2)
    segment = parse({"has_channel": "email"})
    assert (await segments.look(world.tenant, segment, 9)).first == ("r000", "r001")
    await stores.pool.execute(
        "UPDATE addresses SET dead_at = now() WHERE tenant = $1 AND recipient_id = 'r000'",
        world.tenant,
    )
    assert (await segments.look(world.tenant, segment, 9)).first == ("r001",)


async def fill(stores: Stores, tenant: str, size: int) -> None:
    """r000, r001, …; every other one is on the pro plan."""
    await stores.recipients.upsert(
        tenant,
        [
            RecipientWrite(
                f"r{n:03}",
                attributes={"plan": ("pro", "free")[n % 2], "n": n},
                addresses=(AddressWrite(Channel.EMAIL, f"r{n}@example.com", f"r{n}@example.com"),),
            )
            for n in range(size)
        ],
    )


PRO = {"attribute": "plan", "eq": "pro"}


async def test_a_definition_that_is_the_same_makes_no_new_version(
    world: World, segments: PostgresSegments
) -> None:
    t = world.tenant
    first = await segments.put(t, "pro", "Pro", PRO, "ann")
    assert (first.version, first.created_by, first.definition) == (1, "ann", PRO)
    assert (await segments.put(t, "pro", "Pro", PRO, "bob")).updated_by == "ann"
    renamed = await segments.put(t, "pro", "Professionals", PRO, "bob")
    assert (renamed.version, renamed.name, renamed.created_by) == (1, "Professionals", "ann")
    changed = await segments.put(t, "pro", "Pro", {"not": PRO}, "bob")
    assert (changed.version, changed.updated_by) == (2, "bob")
    await segments.put(t, "also", "", PRO, "ann")
    assert [s.segment_id for s in await segments.recent(t, 9)] == ["also", "pro"]
    assert [s.segment_id for s in await segments.recent(t, 9, "also")] == ["pro"]
    assert await segments.delete(t, "pro")
    assert not await segments.delete(t, "pro")
    assert await segments.get(t, "pro") is None


async def test_a_look_stops_after_so_many_and_says_so(
    stores: Stores, world: World, segments: PostgresSegments
) -> None:
    await fill(stores, world.tenant, 10)
    pro = parse(PRO)
    whole = await segments.look(world.tenant, pro, 2)
    assert (whole.members, whole.scanned, whole.complete) == (5, 10, True)
    assert whole.first == ("r000", "r002")
    part = await segments.look(world.tenant, pro, 9, most=4)
    assert (part.members, part.scanned, part.complete) == (2, 4, False)
    # Time is bounded too: here every look at the clock is a minute later.
    clock = iter(range(0, 6000, 60))
    hurried = PostgresSegments(stores.pool, chunk=3, monotonic=lambda: next(clock))
    assert (await hurried.look(world.tenant, pro, 9)).scanned == 3


# --- written out ----------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


class KilledAt:
    """A worker that dies right before its n-th chunk, and so after n - 1 of them."""

    def __init__(self, chunk: int) -> None:
        self.left = chunk

    async def __call__(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


@pytest_asyncio.fixture
async def lists(stores: Stores) -> PostgresLists:
    return PostgresLists(stores.pool, stores.sealer, page_size=3, scan_chunk=4)


async def members(stores: Stores, tenant: str, version_id: UUID) -> list[str]:
    return [
        row[0]
        for row in await stores.pool.fetch(
            "SELECT recipient_id FROM list_rows WHERE tenant = $1 AND version_id = $2"
            " ORDER BY shard, page, recipient_id",
            tenant,
            version_id,
        )
    ]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 21])
async def test_a_segment_becomes_a_list_of_its_members_whatever_the_chunks(
    stores: Stores, world: World, lists: PostgresLists, size: int
) -> None:
    await fill(stores, world.tenant, size)
    id = uuid4()
    for _ in range(2):
        version = await lists.write_segment(world.tenant, "s", id, parse(PRO))
        assert (version.state, version.size) == ("ready", (size + 1) // 2)
    assert await members(stores, world.tenant, id) == [f"r{n:03}" for n in range(0, size, 2)]


async def test_a_worker_that_dies_between_chunks_loses_and_repeats_nobody(
    stores: Stores, world: World, lists: PostgresLists
) -> None:
    await fill(stores, world.tenant, 21)
    t, id = world.tenant, uuid4()
    at = (
        "SELECT scanned_to, (SELECT count(*) FROM list_staging s WHERE s.version_id = v.version_id)"
    )
    for chunks in (1, 2):
        with pytest.raises(Killed):
            await lists.write_segment(t, "s", id, parse(PRO), KilledAt(chunks))
        # Each attempt goes on after the last chunk that is there: one, then two more.
        row = await stores.pool.fetchrow(f"{at} FROM list_versions v WHERE version_id = $1", id)
        assert tuple(row or ()) == (("r003", 2) if chunks == 1 else ("r011", 6))
    # Whoever comes in behind the cursor has missed it; in front of it, not.
    await stores.recipients.upsert(
        t, [RecipientWrite(who, attributes={"plan": "pro"}) for who in ("a", "r099")]
    )
    version = await lists.write_segment(t, "s", id, parse(PRO))
    expected = [f"r{n:03}" for n in range(0, 21, 2)] + ["r099"]
    assert version.size == len(expected)
    assert await members(stores, t, id) == expected


async def test_an_attempt_thought_dead_and_its_successor_take_turns(
    stores: Stores, world: World, lists: PostgresLists
) -> None:
    await fill(stores, world.tenant, 40)
    t, id = world.tenant, uuid4()

    async def let_the_other() -> None:
        """The successor does a chunk before each chunk of the first attempt."""
        with suppress(Killed):
            await lists.write_segment(t, "s", id, parse(PRO), KilledAt(1))

    version = await lists.write_segment(t, "s", id, parse(PRO), let_the_other)
    assert version.size == 20
    assert await members(stores, t, id) == [f"r{n:03}" for n in range(0, 40, 2)]


@pytest.mark.parametrize(
    "definition", [{"attribute": "unknown", "eq": 1}, {"attribute": "plan", "gt": 1}]
)
async def test_a_segment_without_members_is_an_empty_list_that_has_failed(
    stores: Stores, world: World, lists: PostgresLists, definition: Any
) -> None:
    await fill(stores, world.tenant, 9)
    version = await lists.write_segment(world.tenant, "s", uuid4(), parse(definition))
    assert (version.state, version.reason) == ("failed", "empty")


async def test_what_was_reaped_while_nobody_wrote_it_is_begun_again(
    stores: Stores, world: World, lists: PostgresLists
) -> None:
    await fill(stores, world.tenant, 9)
    t, id = world.tenant, uuid4()
    with pytest.raises(Killed):
        await lists.write_segment(t, "s", id, parse(PRO), KilledAt(2))
    await lists.fail(t, id, "abandoned")
    assert (await lists.write_segment(t, "s", id, parse(PRO))).size == 5
    # What was given up for another reason stays so.
    given_up = uuid4()
    with pytest.raises(Killed):
        await lists.write_segment(t, "s", given_up, parse(PRO), KilledAt(2))
    await lists.fail(t, given_up, "cancelled")
    version = await lists.write_segment(t, "s", given_up, parse(PRO))
    assert (version.state, version.reason) == ("failed", "cancelled")


async def test_who_was_erased_is_not_written_and_leaves_what_is_being_written(
    stores: Stores, world: World, lists: PostgresLists
) -> None:
    await fill(stores, world.tenant, 9)
    t, id = world.tenant, uuid4()
    everybody = parse({"not": {"attribute": "unknown", "exists": True}})
    await stores.recipients.erase(t, "r008")
    with pytest.raises(Killed):
        await lists.write_segment(t, "s", id, everybody, KilledAt(2))
    await stores.recipients.erase(t, "r000")
    version = await lists.write_segment(t, "s", id, everybody)
    assert version.size == 7
    assert await members(stores, t, id) == [f"r{n:03}" for n in range(1, 8)]


async def test_nobody_of_another_tenant_is_in_it(
    stores: Stores, world: World, lists: PostgresLists, segments: PostgresSegments
) -> None:
    other = await stores.world()
    await fill(stores, world.tenant, 4)
    await fill(stores, other.tenant, 9)
    await segments.put(other.tenant, "pro", "", PRO, "x")
    assert await segments.get(world.tenant, "pro") is None
    assert (await segments.look(world.tenant, parse(PRO), 9)).members == 2
    assert (await lists.write_segment(world.tenant, "s", uuid4(), parse(PRO))).size == 2
