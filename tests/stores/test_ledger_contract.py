"""What every ledger must do: each test here runs on a real Postgres and on a real Cassandra."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from schemas.kinds import Channel, ClaimState, RecipientState
from schemas.notifications import DecisionKey, DeliveryKey
from sendloom.errors import Fenced, StoreUnavailable
from sendloom.ports import (
    ClaimAnswer,
    ClaimResult,
    ClaimScope,
    Complaints,
    Decision,
    Done,
    FullLedger,
    InDoubt,
    InFlight,
    Receipt,
    ReceiptStatus,
    Want,
    Won,
)
from sendloom.stores.cassandra import Address, connection
from sendloom.stores.ledger.cassandra import CassandraLedger
from sendloom.stores.ledger.postgres import PostgresLedger
from tests.stores.conftest import NOW, Stores, a_cassandra_ledger

MINUTE = timedelta(minutes=1)
ENDED = timedelta(0)
"""A lease that is over as soon as it is written."""


@dataclass
class Bench:
    """A ledger, and how its epochs are taken."""

    ledger: FullLedger
    take_epoch: Callable[[ClaimScope], Awaitable[int]]
    decide: Callable[[ClaimScope, Sequence[str]], Awaitable[None]]
    another: Callable[[], FullLedger]
    """One of another process."""

    def scope(self, **changes: object) -> ClaimScope:
        scope = ClaimScope(f"t-{uuid4().hex[:8]}", NOW, uuid4(), 0, 0, Channel.EMAIL)
        return replace(scope, **changes)  # type: ignore[arg-type]


@pytest_asyncio.fixture(params=["postgres", pytest.param("cassandra", marks=pytest.mark.cassandra)])
async def bench(request: pytest.FixtureRequest, stores: Stores) -> AsyncIterator[Bench]:
    async def take_epoch(scope: ClaimScope) -> int:
        return await stores.campaigns.take_epoch(
            scope.tenant, scope.campaign_id, scope.shard, scope.channel
        )

    async def decide(scope: ClaimScope, recipients: Sequence[str]) -> None:
        await stores.decisions.insert([_decision(scope, who) for who in recipients])

    if request.param == "postgres":
        yield Bench(stores.ledger, take_epoch, decide, lambda: PostgresLedger(stores.pool))
        return
    address: Address = request.getfixturevalue("cassandra_address")
    async with connection(address) as connected:

        def another() -> CassandraLedger:
            # As a process of its own would: nothing shared but the cluster.
            return a_cassandra_ledger(connected, stores.pool)

        yield Bench(another(), take_epoch, decide, another)


def _decision(scope: ClaimScope, who: str) -> Decision:
    key = DecisionKey(
        tenant=scope.tenant,
        frozen_at=scope.frozen_at,
        campaign_id=scope.campaign_id,
        shard=scope.shard,
        page=scope.page,
        recipient_id=who,
    )
    return Decision(key, RecipientState.PENDING, scope.channel)


def outcome(
    recipient_id: str, owner: UUID, state: ClaimState, attempt: int = 1, **more: object
) -> ClaimResult:
    return ClaimResult(recipient_id, attempt, owner, state, **more)  # type: ignore[arg-type]


async def test_what_is_new_is_won_in_the_order_asked(bench: Bench) -> None:
    wants = [Want(f"r{n}") for n in (3, 1, 2)]
    before = datetime.now(UTC)
    answers = await bench.ledger.claim(bench.scope(), wants, uuid4(), MINUTE)
    assert len(answers) == 3
    for answer in answers:
        assert isinstance(answer, Won)
        assert answer.attempt == 1
        assert answer.lease_until > before + MINUTE / 2


async def test_of_many_at_once_one_wins_each(bench: Bench) -> None:
    scope = bench.scope()
    wants = [Want(f"r{n:03}") for n in range(40)]
    owners = [uuid4() for _ in range(6)]
    tried = await asyncio.gather(
        *(
            # In opposite orders, which must not make them wait for each other for ever.
            bench.ledger.claim(scope, wants[:: 1 if n % 2 else -1], owner, MINUTE)
            for n, owner in enumerate(owners)
        )
    )
    by_want = [answers[:: 1 if n % 2 else -1] for n, answers in enumerate(tried)]
    for answers in zip(*by_want, strict=True):
        assert sum(isinstance(answer, Won) for answer in answers) == 1
        assert sum(isinstance(answer, InFlight) for answer in answers) == len(owners) - 1


async def test_nothing_wanted_is_nothing_asked(bench: Bench) -> None:
    assert await bench.ledger.claim(bench.scope(), [], uuid4(), MINUTE) == []
    assert await bench.ledger.read(bench.scope(), []) == []
    await bench.ledger.record(bench.scope(), [])


async def test_what_a_provider_said_comes_back_as_it_said_it(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    said = ["<a@example.com>", None, "", 'ü,{}"\\', "\n"]
    names = [f"r{n}" for n in range(len(said))]
    await bench.ledger.claim(scope, [Want(r) for r in names], owner, MINUTE)
    results = [
        outcome(r, owner, ClaimState.SENT, provider_message_id=id)
        for r, id in zip(names, said, strict=True)
    ]
    await bench.ledger.record(scope, results)
    rows = await bench.ledger.read(scope, [Want(r) for r in names])
    assert [row.provider_message_id for row in rows if row] == said


async def test_an_id_that_would_pass_for_two_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="control character"):
        await bench.ledger.claim(bench.scope(), [Want("a\x1fb")], uuid4(), MINUTE)


async def test_some_new_and_some_taken_are_told_apart(bench: Bench) -> None:
    scope, first, second = bench.scope(), uuid4(), uuid4()
    await bench.ledger.claim(scope, [Want("flying")], first, MINUTE)
    await bench.ledger.claim(scope, [Want("doubtful"), Want("done")], first, ENDED)
    await bench.ledger.record(
        scope, [outcome("done", first, ClaimState.REJECTED, code="550", provider="smtp")]
    )
    answers = await bench.ledger.claim(
        scope, [Want("flying"), Want("new"), Want("doubtful"), Want("done")], second, MINUTE
    )
    assert isinstance(answers[0], InFlight)
    assert isinstance(answers[1], Won)
    assert answers[2] == InDoubt(1, first)
    assert answers[3] == Done(ClaimState.REJECTED, 1, "550", "smtp", None)


async def test_our_own_claim_whose_reply_was_lost_is_won_again_with_a_new_lease(
    bench: Bench,
) -> None:
    scope, owner = bench.scope(), uuid4()
    [first] = await bench.ledger.claim(scope, [Want("r")], owner, ENDED)
    [again] = await bench.ledger.claim(scope, [Want("r")], owner, MINUTE)
    assert isinstance(first, Won)
    assert isinstance(again, Won)
    assert again.attempt == 1
    assert again.lease_until > first.lease_until
    [other] = await bench.ledger.claim(scope, [Want("r")], uuid4(), MINUTE)
    assert isinstance(other, InFlight)


async def test_our_own_retry_whose_reply_was_lost_is_won_again_as_the_same_attempt(
    bench: Bench,
) -> None:
    scope, first, second = bench.scope(), uuid4(), uuid4()
    await bench.ledger.claim(scope, [Want("r")], first, MINUTE)
    await bench.ledger.record(scope, [outcome("r", first, ClaimState.FAILED)])
    for _ in range(2):
        [answer] = await bench.ledger.claim(scope, [Want("r", retry_of=1)], second, MINUTE)
        assert isinstance(answer, Won)
        assert answer.attempt == 2


async def test_a_failed_attempt_is_won_only_by_naming_it_and_only_once(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.claim(scope, [Want("r")], owner, MINUTE)
    await bench.ledger.record(scope, [outcome("r", owner, ClaimState.FAILED, code="450")])
    for want in (Want("r"), Want("r", retry_of=2), Want("r", resume_unknown_of=1)):
        [answer] = await bench.ledger.claim(scope, [want], uuid4(), MINUTE)
        assert answer == Done(ClaimState.FAILED, 1, "450", None, None)
    tried = await asyncio.gather(
        *(bench.ledger.claim(scope, [Want("r", retry_of=1)], uuid4(), MINUTE) for _ in range(5))
    )
    assert sum(isinstance(answers[0], Won) for answers in tried) == 1
    assert {answers[0].attempt for answers in tried} == {2}
    [row] = await bench.ledger.read(scope, [Want("r")])
    assert row is not None
    assert (row.state, row.attempt, row.code) == (ClaimState.CLAIMED, 2, None)


async def test_unknown_is_resumed_only_by_naming_it(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.claim(scope, [Want("r")], owner, ENDED)
    assert await bench.ledger.settle(scope) == 1
    for want in (Want("r"), Want("r", retry_of=1)):
        [answer] = await bench.ledger.claim(scope, [want], uuid4(), MINUTE)
        assert isinstance(answer, Done)
        assert answer.state is ClaimState.UNKNOWN
    [answer] = await bench.ledger.claim(scope, [Want("r", resume_unknown_of=1)], uuid4(), MINUTE)
    assert isinstance(answer, Won)
    assert answer.attempt == 2


async def test_who_does_not_know_which_it_was_may_name_both(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.claim(scope, [Want("failed"), Want("unknown")], owner, MINUTE)
    await bench.ledger.record(
        scope,
        [
            outcome("failed", owner, ClaimState.FAILED),
            outcome("unknown", owner, ClaimState.UNKNOWN),
        ],
    )
    answers = await bench.ledger.claim(
        scope,
        [Want(r, retry_of=1, resume_unknown_of=1) for r in ("failed", "unknown")],
        uuid4(),
        MINUTE,
    )
    assert [isinstance(answer, Won) for answer in answers] == [True, True]


async def test_settle_touches_only_ended_leases_of_its_own_partition(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    elsewhere = replace(scope, page=1)
    await bench.ledger.claim(scope, [Want("ended")], owner, ENDED)
    await bench.ledger.claim(scope, [Want("live")], owner, MINUTE)
    await bench.ledger.claim(elsewhere, [Want("ended")], owner, ENDED)
    assert await bench.ledger.settle(scope) == 1
    assert await bench.ledger.settle(scope) == 0
    ended, live = await bench.ledger.read(scope, [Want("ended"), Want("live")])
    [other] = await bench.ledger.read(elsewhere, [Want("ended")])
    assert ended is not None
    assert ended.state is ClaimState.UNKNOWN
    assert live is not None
    assert (live.state, live.lease_over) == (ClaimState.CLAIMED, False)
    assert other is not None
    assert (other.state, other.lease_over) == (ClaimState.CLAIMED, True)


async def test_c22_of_an_older_attempt_only_sent_is_merged(bench: Bench) -> None:
    scope, zombie, current = bench.scope(), uuid4(), uuid4()
    await bench.ledger.claim(scope, [Want("r")], zombie, ENDED)
    await bench.ledger.settle(scope)
    await bench.ledger.claim(scope, [Want("r", resume_unknown_of=1)], current, MINUTE)
    for state in (ClaimState.FAILED, ClaimState.UNKNOWN, ClaimState.REJECTED):
        await bench.ledger.record(scope, [outcome("r", zombie, state)])
        [row] = await bench.ledger.read(scope, [Want("r")])
        assert row is not None
        assert (row.state, row.attempt) == (ClaimState.CLAIMED, 2)
    await bench.ledger.record(
        scope, [outcome("r", zombie, ClaimState.SENT, provider_message_id="m1")]
    )
    await bench.ledger.record(scope, [outcome("r", current, ClaimState.REJECTED, attempt=2)])
    [row] = await bench.ledger.read(scope, [Want("r")])
    assert row is not None
    assert (row.state, row.attempt, row.provider_message_id) == (ClaimState.SENT, 2, "m1")


async def test_within_an_attempt_the_higher_outcome_stays_in_whatever_order(bench: Bench) -> None:
    order = [ClaimState.FAILED, ClaimState.UNKNOWN, ClaimState.REJECTED, ClaimState.SENT]
    for first in order:
        for second in order:
            scope, owner = bench.scope(), uuid4()
            await bench.ledger.claim(scope, [Want("r")], owner, MINUTE)
            await bench.ledger.record(scope, [outcome("r", owner, first)])
            await bench.ledger.record(scope, [outcome("r", owner, second)])
            [row] = await bench.ledger.read(scope, [Want("r")])
            assert row is not None
            assert row.state is max(first, second, key=order.index)


async def test_somebody_who_never_held_the_claim_cannot_end_it(bench: Bench) -> None:
    scope = bench.scope()
    await bench.ledger.claim(scope, [Want("r")], uuid4(), MINUTE)
    await bench.ledger.record(scope, [outcome("r", uuid4(), ClaimState.FAILED)])
    [row] = await bench.ledger.read(scope, [Want("r")])
    assert row is not None
    assert row.state is ClaimState.CLAIMED


async def test_a_send_without_a_claim_is_recorded_later(bench: Bench) -> None:
    """POL-7: security sends without one when claims are down."""
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.record(
        scope, [outcome("r", owner, ClaimState.SENT, provider="smtp", provider_message_id="m")]
    )
    [answer] = await bench.ledger.claim(scope, [Want("r")], uuid4(), MINUTE)
    assert answer == Done(ClaimState.SENT, 1, None, "smtp", "m")


async def test_recording_again_changes_nothing(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.claim(scope, [Want("r")], owner, MINUTE)
    await bench.ledger.record(scope, [outcome("r", owner, ClaimState.SENT)])
    first = await bench.ledger.read(scope, [Want("r")])
    await bench.ledger.record(scope, [outcome("r", owner, ClaimState.SENT)])
    assert await bench.ledger.read(scope, [Want("r")]) == first


async def test_a_chunk_of_results_is_merged_one_by_one(bench: Bench) -> None:
    """Some in time, some again, some late, some of somebody else, some never claimed."""
    scope, owner, other = bench.scope(), uuid4(), uuid4()
    names = [f"r{n:02}" for n in range(20)]
    await bench.ledger.claim(scope, [Want(r) for r in names[:15]], owner, MINUTE)
    await bench.ledger.claim(scope, [Want(r) for r in names[15:18]], other, MINUTE)
    await bench.ledger.record(scope, [outcome(r, owner, ClaimState.SENT) for r in names[:5]])
    chunk = [
        outcome(r, owner, ClaimState.REJECTED, code=f"code {r}", provider="smtp") for r in names
    ]
    await bench.ledger.record(scope, chunk[::-1])
    rows = await bench.ledger.read(scope, [Want(r) for r in names])
    states = [row.state for row in rows if row]
    assert states == (
        [ClaimState.SENT] * 5
        + [ClaimState.REJECTED] * 10
        + [ClaimState.CLAIMED] * 3
        + [ClaimState.REJECTED] * 2
    )
    assert [row.code for row in rows[5:15] if row] == [f"code {r}" for r in names[5:15]]
    assert {row.provider for row in rows[5:15] if row} == {"smtp"}


async def test_two_results_of_one_claim_in_one_call_are_both_merged(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.claim(scope, [Want("r")], owner, MINUTE)
    await bench.ledger.record(
        scope,
        [outcome("r", owner, ClaimState.UNKNOWN), outcome("r", owner, ClaimState.SENT)],
    )
    [row] = await bench.ledger.read(scope, [Want("r")])
    assert row is not None
    assert row.state is ClaimState.SENT


async def test_send_numbers_and_devices_are_claims_of_their_own(bench: Bench) -> None:
    scope, owner = bench.scope(channel=Channel.APNS), uuid4()
    wants = [Want("r"), Want("r", send_no=2), Want("r", device="phone"), Want("r", device="pad")]
    assert all(
        isinstance(answer, Won) for answer in await bench.ledger.claim(scope, wants, owner, MINUTE)
    )
    await bench.ledger.record(scope, [ClaimResult("r", 1, owner, ClaimState.SENT, device="phone")])
    rows = await bench.ledger.read(scope, wants)
    assert [row.state for row in rows if row] == [
        ClaimState.CLAIMED,
        ClaimState.CLAIMED,
        ClaimState.SENT,
        ClaimState.CLAIMED,
    ]
    assert len(await bench.ledger.of_campaign(scope.tenant, NOW, scope.campaign_id)) == 4


async def test_an_older_epoch_wins_nothing_and_a_current_one_does(bench: Bench) -> None:
    scope = bench.scope()
    old = await bench.take_epoch(scope)
    await bench.ledger.claim(replace(scope, epoch=old), [Want("mine")], uuid4(), MINUTE)
    new = await bench.take_epoch(scope)
    assert new > old
    for want in (Want("r"), Want("mine"), Want("mine", retry_of=1)):
        with pytest.raises(Fenced):
            await bench.ledger.claim(replace(scope, epoch=old), [want], uuid4(), MINUTE)
    assert await bench.ledger.read(scope, [Want("r")]) == [None]
    [answer] = await bench.ledger.claim(replace(scope, epoch=new), [Want("r")], uuid4(), MINUTE)
    assert isinstance(answer, Won)


async def test_an_epoch_nobody_took_wins_nothing(bench: Bench) -> None:
    scope = bench.scope(epoch=1)
    with pytest.raises(Fenced):
        await bench.ledger.claim(scope, [Want("r")], uuid4(), MINUTE)


async def test_c70_the_epoch_of_one_channel_fences_no_other_and_due_work_carries_none(
    bench: Bench,
) -> None:
    scope = bench.scope()
    epoch = await bench.take_epoch(scope)
    await bench.take_epoch(replace(scope, channel=Channel.SMS))
    assert await bench.ledger.claim(replace(scope, epoch=epoch), [Want("a")], uuid4(), MINUTE)
    assert await bench.ledger.claim(scope, [Want("b")], uuid4(), MINUTE)


async def test_claims_racing_a_new_epoch_are_won_before_it_or_not_at_all(bench: Bench) -> None:
    scope = bench.scope()
    epoch = await bench.take_epoch(scope)
    old = replace(scope, epoch=epoch)

    async def chunk(n: int) -> bool:
        try:
            answers = await bench.ledger.claim(
                old, [Want(f"r{n}-{m}") for m in range(20)], uuid4(), MINUTE
            )
        except Fenced:
            return False
        assert all(isinstance(answer, Won) for answer in answers)
        return True

    won = await asyncio.gather(
        *(chunk(n) for n in range(5)), bench.take_epoch(scope), *(chunk(n) for n in range(5, 10))
    )
    there = await bench.ledger.of_campaign(scope.tenant, NOW, scope.campaign_id)
    assert len(there) == 20 * sum(1 for answer in won if answer is True)
    with pytest.raises(Fenced):
        await bench.ledger.claim(old, [Want("late")], uuid4(), MINUTE)


async def test_the_same_delivery_twice_in_one_call_is_a_mistake(bench: Bench) -> None:
    with pytest.raises(ValueError, match="twice"):
        await bench.ledger.claim(bench.scope(), [Want("r"), Want("r")], uuid4(), MINUTE)


async def test_c96_complaint_and_stop_outrank_what_was_there_and_nothing_outranks_them(
    bench: Bench,
) -> None:
    tenant, ledger = bench.scope().tenant, bench.ledger
    for first, second, right in (
        ("hard_bounce", "manual", "hard_bounce"),
        ("hard_bounce", "complaint", "complaint"),
        ("manual", "stop", "stop"),
        ("complaint", "hard_bounce", "complaint"),
        ("stop", "complaint", "stop"),
    ):
        address = uuid4().bytes
        await ledger.suppress(tenant, Channel.EMAIL, address, first, "test")
        await ledger.suppress(tenant, Channel.EMAIL, address, second, "test")
        assert await ledger.suppression(tenant, Channel.EMAIL, [address]) == {address: right}


async def test_a_suppression_is_of_one_channel_and_can_be_lifted(bench: Bench) -> None:
    tenant, ledger, address = bench.scope().tenant, bench.ledger, uuid4().bytes
    await ledger.suppress(tenant, Channel.EMAIL, address, "manual", "ops")
    assert await ledger.suppression(tenant, Channel.SMS, [address]) == {}
    assert await ledger.suppression("t-other", Channel.EMAIL, [address]) == {}
    assert await ledger.unsuppress(tenant, Channel.EMAIL, address)
    assert not await ledger.unsuppress(tenant, Channel.EMAIL, address)
    assert await ledger.suppression(tenant, Channel.EMAIL, [address, b"x"]) == {}


# --- many at once, catching up ----------------------------------------------------------------------------------------


async def test_c81_of_fifty_claimers_in_fifty_processes_one_wins(bench: Bench) -> None:
    scope = bench.scope()
    ledgers = [bench.another() for _ in range(50)]

    async def insist(ledger: FullLedger) -> ClaimAnswer:
        owner = uuid4()
        while True:
            try:
                [answer] = await ledger.claim(scope, [Want("r")], owner, MINUTE)
                return answer
            except StoreUnavailable:
                # Too many at the same moment: nothing was decided, and a sender asks again.
                continue

    answers = await asyncio.gather(*map(insist, ledgers))
    assert sum(isinstance(answer, Won) for answer in answers) == 1
    assert sum(isinstance(answer, InFlight) for answer in answers) == 49


async def test_claiming_again_in_chunks_of_another_size_wins_nothing(bench: Bench) -> None:
    """A catch-up with another fetch size: partitions are pages, which were fixed with the list."""
    scope, first, second = bench.scope(), uuid4(), uuid4()
    names = [f"r{n:02}" for n in range(60)]
    for size, owner, kind in ((20, first, Won), (7, second, InFlight)):
        for n in range(0, len(names), size):
            wants = [Want(who) for who in names[n : n + size]]
            answers = await bench.ledger.claim(scope, wants, owner, MINUTE)
            assert {type(answer) for answer in answers} == {kind}
    assert len(await bench.ledger.of_shard(scope, [0])) == len(names)


async def test_a_chunk_with_everything_in_it_is_answered_one_by_one(bench: Bench) -> None:
    """New ones, retries, resumes and what may not be won, in one call under an epoch."""
    plain = bench.scope()
    scope = replace(plain, epoch=await bench.take_epoch(plain))
    before, owner = uuid4(), uuid4()
    told = {
        "failed": ClaimState.FAILED,
        "unknown": ClaimState.UNKNOWN,
        "sent": ClaimState.SENT,
        "failed-2": ClaimState.FAILED,
    }
    await bench.ledger.claim(scope, [Want(r) for r in (*told, "flying")], before, MINUTE)
    await bench.ledger.record(scope, [outcome(r, before, state) for r, state in told.items()])
    answers = await bench.ledger.claim(
        scope,
        [
            Want("new"),
            Want("failed", retry_of=1),
            Want("unknown", resume_unknown_of=1),
            Want("sent", retry_of=1, resume_unknown_of=1),
            Want("failed-2"),
            Want("flying", retry_of=1),
        ],
        owner,
        MINUTE,
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [Won, Won, Won, Done, Done, InFlight]
    assert [answer.attempt for answer in answers] == [1, 2, 2, 1, 1, 1]


# --- the delivery log -------------------------------------------------------------------------------------------------


def _delivery(scope: ClaimScope, who: str) -> DeliveryKey:
    return DeliveryKey(
        tenant=scope.tenant,
        frozen_at=scope.frozen_at,
        campaign_id=scope.campaign_id,
        shard=scope.shard,
        page=scope.page,
        channel=scope.channel,
        recipient_id=who,
    )


async def test_statuses_may_come_in_any_order_and_again(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    await bench.ledger.claim(scope, [Want("r"), Want("other")], owner, MINUTE)
    await bench.ledger.record(scope, [outcome("r", owner, ClaimState.SENT)])
    key = _delivery(scope, "r")
    for status, minutes in (
        (ReceiptStatus.OPENED, 9),
        (ReceiptStatus.DELIVERED, 3),
        (ReceiptStatus.OPENED, 5),
        (ReceiptStatus.COMPLAINED, 11),
        (ReceiptStatus.DELIVERED, 8),
        (ReceiptStatus.BOUNCED, 7),
    ):
        await bench.ledger.receive([Receipt(key, status, NOW + minutes * MINUTE)])
    row, other = await bench.ledger.read(scope, [Want("r"), Want("other")])
    assert row is not None
    assert row.state is ClaimState.SENT
    assert [row.delivered_at, row.opened_at, row.bounced_at, row.complained_at] == [
        NOW + minutes * MINUTE for minutes in (3, 5, 7, 11)
    ]
    assert other is not None
    assert other.delivered_at is None


async def test_complaints_are_counted_once_a_delivery(bench: Bench) -> None:
    scope, owner = bench.scope(), uuid4()
    names = [f"r{n}" for n in range(6)]
    await bench.ledger.claim(scope, [Want(r) for r in names], owner, MINUTE)
    for _ in range(2):
        await bench.ledger.receive(
            [
                *(Receipt(_delivery(scope, r), ReceiptStatus.BOUNCED, NOW) for r in names[:4]),
                Receipt(_delivery(scope, "r5"), ReceiptStatus.COMPLAINED, NOW),
                Receipt(_delivery(scope, "r4"), ReceiptStatus.DELIVERED, NOW),
            ]
        )
    about = (scope.tenant, scope.frozen_at)
    assert await bench.ledger.complaints(*about, scope.campaign_id) == Complaints(4, 1)
    assert await bench.ledger.complaints(*about, uuid4()) == Complaints(0, 0)
    assert await bench.ledger.complaints("t-other", NOW, scope.campaign_id) == Complaints(0, 0)


async def test_the_pages_of_a_shard_are_read_as_one(bench: Bench) -> None:
    scope, owner = bench.scope(shard=3), uuid4()
    for page in (0, 1, 4, 9):
        here = replace(scope, page=page)
        await bench.ledger.claim(here, [Want(f"b{page}"), Want(f"a{page}")], owner, MINUTE)
    await bench.ledger.claim(replace(scope, shard=2), [Want("elsewhere")], owner, MINUTE)
    rows = await bench.ledger.of_shard(scope, [4, 0, 1, 2])
    assert [(row.key.page, row.key.recipient_id) for row in rows] == [
        (0, "a0"), (0, "b0"), (1, "a1"), (1, "b1"), (4, "a4"), (4, "b4"),
    ]  # fmt: skip
    assert {row.key.frozen_at for row in rows} == {NOW}


async def test_what_was_done_for_a_person_on_a_day(bench: Bench) -> None:
    tenant, owner = bench.scope().tenant, uuid4()
    scopes = [
        bench.scope(tenant=tenant, page=2),
        bench.scope(tenant=tenant, channel=Channel.SMS),
        bench.scope(),
    ]
    answers = []
    for scope in scopes:
        await bench.decide(scope, ["r", "other"])
        answers += await bench.ledger.claim(scope, [Want("r"), Want("other")], owner, MINUTE)
    # By the ledger's clock, which may be on the next day by now.
    today, *_ = [(won.lease_until - MINUTE).date() for won in answers if isinstance(won, Won)]
    await bench.ledger.record(scopes[1], [outcome("r", owner, ClaimState.SENT)])
    await bench.ledger.receive([Receipt(_delivery(scopes[1], "r"), ReceiptStatus.DELIVERED, NOW)])
    rows = await bench.ledger.of_recipient(tenant, "r", today)
    assert [row.key.campaign_id for row in rows] == [scope.campaign_id for scope in scopes[:2]]
    assert [row.state for row in rows] == [ClaimState.CLAIMED, ClaimState.SENT]
    assert [row.delivered_at for row in rows] == [None, NOW]
    assert {row.key.recipient_id for row in rows} == {"r"}
    assert await bench.ledger.of_recipient(tenant, "r", today - timedelta(days=1)) == []
    assert await bench.ledger.of_recipient("t-other", "r", today) == []


async def test_orphans_of_every_tenant_are_settled_some_minutes_after_their_lease(
    bench: Bench,
) -> None:
    scopes, owner = [bench.scope(), bench.scope(channel=Channel.SMS, page=7)], uuid4()
    for scope in scopes:
        await bench.ledger.claim(scope, [Want("orphan")], owner, -8 * MINUTE)
        await bench.ledger.claim(scope, [Want("just-over")], owner, -4 * MINUTE)
        await bench.ledger.claim(scope, [Want("live")], owner, MINUTE)
    while await bench.ledger.settle_orphans(5 * MINUTE, 1):
        pass
    for scope in scopes:
        rows = await bench.ledger.read(scope, [Want("orphan"), Want("just-over"), Want("live")])
        assert [row.state for row in rows if row] == [
            ClaimState.UNKNOWN,
            ClaimState.CLAIMED,
            ClaimState.CLAIMED,
        ]
        [orphan] = await bench.ledger.read(scope, [Want("orphan")])
        assert orphan is not None
        assert orphan.code == "lease_over"


async def test_suppressions_are_listed_page_by_page(bench: Bench) -> None:
    tenant, ledger = bench.scope().tenant, bench.ledger
    stored = sorted(
        [(Channel.EMAIL, uuid4().bytes) for _ in range(7)]
        + [(Channel.SMS, uuid4().bytes) for _ in range(3)]
    )
    for channel, address in stored:
        await ledger.suppress(tenant, channel, address, "manual", "ops")
    await ledger.suppress("t-other", Channel.EMAIL, uuid4().bytes, "manual", "ops")
    seen: list[tuple[Channel, bytes]] = []
    while page := await ledger.suppressions(
        tenant, None, 4, (seen[-1][0].value, seen[-1][1]) if seen else None
    ):
        assert all((row.reason, row.source) == ("manual", "ops") for row in page)
        seen += [(row.channel, row.address_hash) for row in page]
    assert seen == stored
    only = await ledger.suppressions(tenant, Channel.SMS, 99)
    assert [(row.channel, row.address_hash) for row in only] == stored[7:]


# --- tenants ----------------------------------------------------------------------------------------------------------


async def test_c11_another_tenant_with_the_very_same_ids_sees_and_changes_nothing(
    bench: Bench,
) -> None:
    mine, owner = bench.scope(), uuid4()
    theirs = replace(mine, tenant=f"{mine.tenant}-other")
    await bench.ledger.claim(mine, [Want("r")], owner, ENDED)
    [before] = await bench.ledger.read(mine, [Want("r")])
    assert await bench.ledger.read(theirs, [Want("r")]) == [None]
    assert await bench.ledger.of_campaign(theirs.tenant, NOW, mine.campaign_id) == []
    assert await bench.ledger.of_shard(theirs, [0]) == []
    assert await bench.ledger.settle(theirs) == 0
    await bench.ledger.record(theirs, [outcome("r", owner, ClaimState.SENT)])
    await bench.ledger.receive([Receipt(_delivery(theirs, "r"), ReceiptStatus.DELIVERED, NOW)])
    assert await bench.ledger.read(mine, [Want("r")]) == [before]
    [own] = await bench.ledger.read(theirs, [Want("r")])
    assert own is not None
    assert own.key.tenant == theirs.tenant
