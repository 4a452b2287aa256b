"""What every ledger must do. Another implementation adds itself to the `bench` fixture's params and to nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from schemas.kinds import Channel, ClaimState
from sendloom.errors import Fenced
from sendloom.ports import (
    ClaimResult,
    ClaimScope,
    Done,
    InDoubt,
    InFlight,
    Ledger,
    Want,
    Won,
)
from tests.stores.conftest import NOW, Stores

MINUTE = timedelta(minutes=1)
ENDED = timedelta(0)
"""A lease that is over as soon as it is written."""


@dataclass
class Bench:
    """A ledger, and how its epochs are taken."""

    ledger: Ledger
    take_epoch: Callable[[ClaimScope], Awaitable[int]]

    def scope(self, **changes: object) -> ClaimScope:
        scope = ClaimScope(f"t-{uuid4().hex[:8]}", NOW, uuid4(), 0, 0, Channel.EMAIL)
        return replace(scope, **changes)  # type: ignore[arg-type]


@pytest.fixture(params=["postgres"])
def bench(request: pytest.FixtureRequest, stores: Stores) -> Bench:
    async def take_epoch(scope: ClaimScope) -> int:
        return await stores.campaigns.take_epoch(
            scope.tenant, scope.campaign_id, scope.shard, scope.channel
        )

    return Bench({"postgres": stores.ledger}[request.param], take_epoch)


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
