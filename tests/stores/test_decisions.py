"""Decisions: inserted once, changed only as the table allows, with the caps they use up."""

import asyncio
from dataclasses import replace
from datetime import date, timedelta
from uuid import uuid4

import pytest

from schemas.kinds import Channel, RecipientState
from schemas.notifications import DecisionKey, DeliveryKey
from sendloom.domain.outcomes import Cause
from sendloom.domain.reasons import Reason
from sendloom.errors import Refusal
from sendloom.ports import CapUse, Decision, DeliveryRow, Move
from sendloom.rows import RecipientWrite
from tests.stores.conftest import NOW, Stores, World

R = RecipientState
TODAY = date(2026, 3, 4)  # a Wednesday


def decision(world: World, who: str = "r1", **changes: object) -> Decision:
    key = DecisionKey(tenant=world.tenant, frozen_at=NOW, campaign_id=uuid4(), recipient_id=who)
    return replace(
        Decision(key=key, state=R.PENDING, channel=Channel.EMAIL),
        **changes,  # type: ignore[arg-type]
    )


def move(d: Decision, to: RecipientState, *expect: RecipientState, **more: object) -> Move:
    cause = more.pop("cause", Cause.SENDER)
    return Move(d.key, frozenset(expect or {R.PENDING}), to, cause, **more)  # type: ignore[arg-type]


async def test_a_decision_is_inserted_once_and_every_field_comes_back(
    stores: Stores, world: World
) -> None:
    first = decision(
        world,
        state=R.DEFERRED,
        channel=Channel.SMS,
        rung=1,
        send_no=2,
        attempt=3,
        reason="quiet_hours",
        not_before=NOW,
        not_after=NOW + timedelta(hours=1),
        due_at=NOW + timedelta(minutes=2),
    )
    assert await stores.decisions.insert([first]) == [first]
    assert await stores.decisions.read(first.key) == first
    other = replace(first, state=R.PENDING, channel=Channel.EMAIL, due_at=None)
    assert await stores.decisions.insert([other]) == [first]
    assert await stores.decisions.by_recipient(world.tenant, "r1", 10) == [first]


async def test_a_page_comes_back_in_the_order_given_with_what_was_there_before(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(3)
    assert campaign.frozen_at is not None
    mine = [
        Decision(
            DecisionKey(
                tenant=world.tenant,
                frozen_at=campaign.frozen_at,
                campaign_id=campaign.campaign_id,
                shard=shard,
                page=page,
                recipient_id=who,
            ),
            R.PENDING,
            Channel.EMAIL,
        )
        for shard, page, who in ((0, 1, "b"), (0, 0, "z"), (0, 0, "a"), (1, 0, "c"))
    ]
    there = replace(mine[2], state=R.SUPPRESSED, reason="opted_out")
    await stores.decisions.insert([there])
    assert await stores.decisions.insert(mine) == [mine[0], mine[1], there, mine[3]]


async def test_a_page_is_inserted_whole_by_cohort_or_not_at_all(
    stores: Stores, world: World
) -> None:
    going = decision(world, not_after=NOW + timedelta(hours=1))
    refused = replace(going, state=R.SUPPRESSED, channel=None, reason="opted_out", not_after=None)

    def of(who: str, like: Decision) -> Decision:
        return replace(like, key=like.key.model_copy(update={"recipient_id": who}))

    like = [going, refused]
    assert await stores.decisions.insert_page(["a", "b", "c"], [0, 1, 0], like)
    for expected in (of("a", going), of("b", refused), of("c", going)):
        assert await stores.decisions.read(expected.key) == expected
    assert not await stores.decisions.insert_page(["c", "d"], [1, 1], like)
    assert await stores.decisions.read(of("c", going).key) == of("c", going)
    assert await stores.decisions.read(of("d", going).key) is None


async def test_two_planners_at_once_agree_on_what_is_stored(stores: Stores, world: World) -> None:
    one = [decision(world, f"r{n:03}") for n in range(50)]
    other = [replace(d, channel=Channel.SMS) for d in reversed(one)]
    first, second = await asyncio.gather(
        stores.decisions.insert(one), stores.decisions.insert(other)
    )
    assert first == list(reversed(second))


async def test_a_move_applies_only_from_the_state_it_expects(stores: Stores, world: World) -> None:
    d = decision(world)
    await stores.decisions.insert([d])
    sent = move(d, R.SENT, attempt=1)
    assert await stores.decisions.move([sent]) == 1
    assert await stores.decisions.move([sent]) == 0
    stored = await stores.decisions.read(d.key)
    assert stored == replace(d, state=R.SENT, attempt=1)


async def test_a_page_is_moved_like_one_of_it(stores: Stores, world: World) -> None:
    first = decision(world, "r0")
    before = [
        replace(first, key=first.key.model_copy(update={"recipient_id": f"r{n}"})) for n in range(4)
    ]
    await stores.decisions.insert(before)
    await stores.decisions.move([move(before[0], R.REJECTED, reason="5.1.1")])
    like = replace(move(before[0], R.SENT), expect=frozenset({R.PENDING}))
    assert await stores.decisions.move_page(["r3", "r0", "r1", "nobody", "r1"], like) == 2
    assert await stores.decisions.move_page([], like) == 0
    after = [await stores.decisions.read(d.key) for d in before]
    assert [d.state for d in after if d is not None] == [R.REJECTED, R.SENT, R.PENDING, R.SENT]
    with pytest.raises(ValueError, match="one by one"):
        await stores.decisions.move_page(["r2"], replace(like, send_no=2))


async def test_a_move_of_a_decision_that_is_not_there_makes_none(
    stores: Stores, world: World
) -> None:
    d = decision(world)
    assert await stores.decisions.move([move(d, R.SENT)]) == 0
    assert await stores.decisions.read(d.key) is None


async def test_a_move_leaves_what_it_does_not_name_but_the_bucket_is_always_written(
    stores: Stores, world: World
) -> None:
    d = decision(world, not_after=NOW, due_at=NOW, reason="first")
    await stores.decisions.insert([d])
    await stores.decisions.move([move(d, R.PENDING, channel=Channel.SMS, rung=1, due_at=None)])
    stored = await stores.decisions.read(d.key)
    assert stored == replace(d, channel=Channel.SMS, rung=1, due_at=None)


async def test_many_moves_over_pages_are_each_judged_alone(stores: Stores, world: World) -> None:
    ds = [decision(world, f"r{n}") for n in range(6)]
    await stores.decisions.insert(ds)
    await stores.decisions.move([move(ds[0], R.SENT), move(ds[1], R.CANCELLED, R.PENDING)])
    moves = [move(d, R.FAILED, reason=f"why {n}", attempt=n) for n, d in enumerate(ds)]
    assert await stores.decisions.move(moves) == 4
    states = [d.state for d in [await stores.decisions.read(d.key) for d in ds] if d]
    assert states == [R.SENT, R.CANCELLED] + [R.FAILED] * 4


@pytest.mark.parametrize(
    ("old", "to", "cause"),
    [
        (R.SENT, R.FAILED, Cause.SENDER),
        (R.FAILED, R.PENDING, Cause.SENDER),
        (R.CANCELLED, R.PENDING, Cause.REPLAY),
        (R.SENT, R.PENDING, Cause.REPLAY),
    ],
)
async def test_what_the_table_does_not_allow_never_reaches_the_database(
    old: RecipientState, to: RecipientState, cause: Cause, stores: Stores, world: World
) -> None:
    d = decision(world, state=old)
    await stores.decisions.insert([d])
    with pytest.raises(ValueError, match="may not go"):
        await stores.decisions.move([move(d, to, old, cause=cause)])
    assert await stores.decisions.read(d.key) == d


async def test_of_two_movers_at_once_one_matches(stores: Stores, world: World) -> None:
    d = decision(world)
    await stores.decisions.insert([d])
    matched = await asyncio.gather(*(stores.decisions.move([move(d, R.FAILED)]) for _ in range(5)))
    assert sorted(matched) == [0, 0, 0, 0, 1]


# --- payloads -------------------------------------------------------------------------------------------------------


def delivery(d: Decision, payload: bytes = b'{"kind":"email"}', send_no: int = 1) -> DeliveryRow:
    key = DeliveryKey(**dict(d.key), channel=Channel.EMAIL, send_no=send_no)
    return DeliveryRow(key, b"a" * 16, payload)


async def test_a_payload_is_fixed_with_its_decision_and_sealed_at_rest(
    stores: Stores, world: World
) -> None:
    d = decision(world)
    row = delivery(d, b'{"code":"abcdefghijkl"}')
    await stores.decisions.insert([d], [row])
    await stores.decisions.insert([d], [delivery(d, b'{"other":true}')])
    assert await stores.decisions.delivery(row.key) == row
    raw = await stores.pool.fetchval(
        "SELECT payload FROM deliveries WHERE tenant = $1", world.tenant
    )
    assert b"abcdefghijkl" not in raw


async def test_a_payload_comes_with_its_decision_also_beside_caps_and_over_pages(
    stores: Stores, world: World
) -> None:
    await people(world, "r1")
    capped, one, two = decision(world), decision(world), decision(world, "r2")
    await stores.decisions.insert([capped], [delivery(capped)], [use("r1", 5, None)])
    await stores.decisions.insert([one, two], [delivery(one), delivery(two)])
    for d in (capped, one, two):
        assert await stores.decisions.read(d.key) == d
        assert await stores.decisions.delivery(delivery(d).key) == delivery(d)


async def test_a_page_with_a_decision_twice_is_a_mistake(stores: Stores, world: World) -> None:
    d = decision(world)
    with pytest.raises(ValueError, match="twice"):
        await stores.decisions.insert([d, d])
    with pytest.raises(ValueError, match="two moves"):
        await stores.decisions.move([move(d, R.SENT), move(d, R.FAILED)])


async def test_a_resend_adds_a_payload_and_a_repeat_gets_the_stored_one(
    stores: Stores, world: World
) -> None:
    d = decision(world)
    row = delivery(d, send_no=2)
    assert await stores.decisions.add_delivery(row) == row
    assert await stores.decisions.add_delivery(delivery(d, b"{}", send_no=2)) == row
    assert await stores.decisions.delivery(delivery(d, send_no=3).key) is None


async def test_a_payload_that_was_purged_is_gone_for_good(stores: Stores, world: World) -> None:
    row = delivery(decision(world))
    await stores.decisions.add_delivery(row)
    await stores.pool.execute(
        "UPDATE deliveries SET payload = NULL WHERE tenant = $1", world.tenant
    )
    assert await stores.decisions.delivery(row.key) is None
    with pytest.raises(Refusal, match="payload_gone"):
        await stores.decisions.add_delivery(row)


# --- caps -----------------------------------------------------------------------------------------------------------


def use(
    who: str, day: int | None, week: int | None, on: date = TODAY, scope: str = "marketing"
) -> CapUse:
    return CapUse(who, scope, on, day, week)


async def people(world: World, *ids: str) -> None:
    await world.stores.recipients.upsert(world.tenant, [RecipientWrite(id) for id in ids])


async def test_c74_a_full_cap_suppresses_before_the_decision_is_inserted(
    stores: Stores, world: World
) -> None:
    await people(world, "r1")
    one, two = decision(world), decision(world)
    assert await stores.decisions.insert([one], caps=[use("r1", 1, None)]) == [one]
    [stored] = await stores.decisions.insert([two], caps=[use("r1", 1, None)])
    assert (stored.state, stored.reason) == (R.SUPPRESSED, Reason.FREQUENCY_CAP)
    assert await stores.decisions.read(two.key) == stored
    tomorrow = decision(world)
    assert await stores.decisions.insert(
        [tomorrow], caps=[use("r1", 1, None, TODAY + timedelta(days=1))]
    ) == [tomorrow]


async def test_a_week_is_the_local_iso_week(stores: Stores, world: World) -> None:
    await people(world, "r1")
    monday = TODAY - timedelta(days=2)
    for day, state in (
        (monday, R.PENDING),
        (monday + timedelta(days=6), R.PENDING),
        (monday + timedelta(days=3), R.SUPPRESSED),
        (monday + timedelta(days=7), R.PENDING),
        (monday - timedelta(days=1), R.PENDING),
    ):
        [stored] = await stores.decisions.insert([decision(world)], caps=[use("r1", None, 2, day)])
        assert stored.state is state


async def test_a_repeat_uses_nothing_up_again(stores: Stores, world: World) -> None:
    await people(world, "r1")
    d = decision(world)
    for _ in range(3):
        assert await stores.decisions.insert([d], caps=[use("r1", 1, 1)]) == [d]
    assert (
        await stores.decisions.use_caps(world.tenant, d.key.campaign_id, [use("r1", 1, 1)])
        == frozenset()
    )


async def test_scopes_are_counted_apart_and_any_full_one_objects(
    stores: Stores, world: World
) -> None:
    await people(world, "r1")
    await stores.decisions.insert(
        [decision(world)], caps=[use("r1", 1, None, scope="channel:email")]
    )
    other = decision(world)
    assert await stores.decisions.insert(
        [other], caps=[use("r1", 1, None, scope="channel:sms")]
    ) == [other]
    [stored] = await stores.decisions.insert(
        [decision(world)],
        caps=[use("r1", None, 9), use("r1", 1, None, scope="channel:email")],
    )
    assert stored.state is R.SUPPRESSED


async def test_twenty_at_once_for_one_person_use_up_exactly_the_cap(
    stores: Stores, world: World
) -> None:
    await people(world, "r1", "r2")
    stored = await asyncio.gather(
        *(
            stores.decisions.insert(
                [decision(world, "r1"), replace(decision(world, "r2"))][:1],
                caps=[use("r1", 3, None)],
            )
            for _ in range(20)
        )
    )
    assert sum(1 for [d] in stored if d.state is R.PENDING) == 3


async def test_a_cap_is_judged_when_whoever_is_using_it_up_has_committed(
    stores: Stores, world: World
) -> None:
    """Twenty at once may by luck come one after another; here the other one is seen to be in the middle."""
    await people(world, "r1")
    other, mine = decision(world), decision(world)
    async with stores.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "SELECT FROM recipients WHERE tenant = $1 AND recipient_id = 'r1' FOR NO KEY UPDATE",
            world.tenant,
        )
        await connection.execute(
            "INSERT INTO cap_uses (tenant, recipient_id, scope, local_day, decision_id)"
            " VALUES ($1, 'r1', 'marketing', $2, $3)",
            world.tenant,
            TODAY,
            other.key.campaign_id,
        )
        inserting = asyncio.create_task(stores.decisions.insert([mine], caps=[use("r1", 1, None)]))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        pid = connection.get_server_pid()
        async with asyncio.timeout(30):
            while not inserting.done() and not await stores.pool.fetchval(waits, pid):
                pass
    [stored] = await inserting
    assert (stored.state, stored.reason) == (R.SUPPRESSED, Reason.FREQUENCY_CAP)


async def test_pages_with_people_in_common_in_other_orders_do_not_wait_for_each_other(
    stores: Stores, world: World
) -> None:
    ids = [f"r{n}" for n in range(20)]
    await people(world, *ids)

    async def page(order: list[str]) -> list[Decision]:
        campaign = uuid4()
        ds = [
            Decision(
                DecisionKey(
                    tenant=world.tenant, frozen_at=NOW, campaign_id=campaign, recipient_id=id
                ),
                R.PENDING,
            )
            for id in order
        ]
        return await stores.decisions.insert(ds, caps=[use(id, 2, None) for id in order])

    pages = await asyncio.gather(*(page(ids[:: 1 if n % 2 else -1]) for n in range(6)))
    for id in ids:
        taken = [d for page in pages for d in page if d.key.recipient_id == id]
        assert sum(1 for d in taken if d.state is R.PENDING) == 2


@pytest.mark.parametrize(
    ("to", "given_back"),
    [
        (R.CANCELLED, True),
        (R.EXPIRED, True),
        (R.FAILED, True),
        (R.REJECTED, True),
        (R.DEFERRED, True),
        (R.SENT, False),
        # It may have been sent.
        (R.UNKNOWN, False),
    ],
)
async def test_a_cap_is_given_back_when_nothing_is_sent(
    to: RecipientState, given_back: bool, stores: Stores, world: World
) -> None:
    await people(world, "r1", "r2")
    d, other = decision(world), decision(world, "r2")
    await stores.decisions.insert([d], caps=[use("r1", 1, None)])
    await stores.decisions.insert([other], caps=[use("r2", 1, None)])
    await stores.decisions.move([move(d, to)])
    [next_one] = await stores.decisions.insert([decision(world)], caps=[use("r1", 1, None)])
    assert (next_one.state is R.PENDING) == given_back
    [others] = await stores.decisions.insert([decision(world, "r2")], caps=[use("r2", 1, None)])
    assert others.state is R.SUPPRESSED


async def test_a_deferred_decision_uses_its_cap_when_it_leaves(
    stores: Stores, world: World
) -> None:
    await people(world, "r1", "r2")
    one, two = uuid4(), uuid4()
    caps = [use("r1", 1, None), use("r2", 1, None)]
    assert await stores.decisions.use_caps(world.tenant, one, caps[:1]) == frozenset()
    assert await stores.decisions.use_caps(world.tenant, two, caps) == {"r1"}
    assert await stores.decisions.use_caps(world.tenant, uuid4(), caps) == {"r1", "r2"}
