"""Claims and decisions on real servers, driven at random against a model of `domain.outcomes`: crashes (claims that are
never recorded), zombies (older owners and epochs that record late), late and repeated records, replays, settling, cancelling
and leases that end. Nothing sleeps: a lease is either long or already over when it is written."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from schemas.kinds import Channel, ClaimState, RecipientState
from schemas.notifications import DecisionKey
from sendloom.domain.outcomes import CLAIM_MOVES, Cause, decision_may, merge
from sendloom.errors import Fenced
from sendloom.platform.sealing import KeyRing
from sendloom.ports import (
    ClaimResult,
    ClaimScope,
    Done,
    FullLedger,
    InDoubt,
    InFlight,
    Move,
    Want,
    Won,
)
from sendloom.stores.cassandra import Address, Requests, connection
from sendloom.stores.pool import open_pool
from tests.stores.conftest import NOW, RingSealer, Stores, a_cassandra_ledger, a_decision

R = RecipientState
LONG = timedelta(hours=1)
BUCKET = NOW - timedelta(minutes=1)
PEOPLE = ["r000", "r001", "r002"]
OUTCOME = {
    ClaimState.SENT: R.SENT,
    ClaimState.REJECTED: R.REJECTED,
    ClaimState.FAILED: R.FAILED,
    ClaimState.UNKNOWN: R.UNKNOWN,
}
T = TypeVar("T")


@dataclass
class ClaimModel:
    state: ClaimState
    attempt: int
    owner: UUID
    live: bool


@dataclass
class DecisionModel:
    state: RecipientState = R.PENDING
    attempt: int = 0
    send_no: int = 1
    waiting: bool = False


@dataclass(frozen=True)
class Holder:
    """Who once won a claim. It may call, record, record again, or never be heard of."""

    recipient_id: str
    attempt: int
    send_no: int
    owner: UUID = field(default_factory=uuid4)


class Machine(RuleBasedStateMachine):
    runner: asyncio.Runner
    stores: Stores
    ledger: FullLedger
    end_lease: Callable[[ClaimScope, str, int, UUID], Coroutine[Any, Any, object]]

    holders = Bundle("holders")
    people = st.sampled_from(PEOPLE)

    def __init__(self) -> None:
        super().__init__()
        self.world = self.run(self.stores.world())
        self.campaign = self.run(self.world.campaign(len(PEOPLE)))
        assert self.campaign.frozen_at is not None
        self.scope = ClaimScope(
            self.world.tenant,
            self.campaign.frozen_at,
            self.campaign.campaign_id,
            0,
            0,
            Channel.EMAIL,
        )
        self.epoch = self.run(self._next_epoch())
        self.cursor = 0
        self.claims: dict[tuple[str, int], ClaimModel] = {}
        self.decisions: dict[str, DecisionModel] = {}
        self.once_sent: set[tuple[str, int]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    # --- what senders do --------------------------------------------------------------------------------------------

    @rule(who=people)
    def plan(self, who: str) -> None:
        [stored] = self.run(self.stores.decisions.insert([a_decision(self.campaign, 0, 0, who)]))
        model = self.decisions.setdefault(who, DecisionModel())
        assert (stored.state, stored.attempt) == (model.state, model.attempt)

    @rule(
        target=holders,
        who=people,
        stale=st.sampled_from([None, None, None, False, True]),
        live=st.booleans(),
        by=st.sampled_from(["first", "retry", "resume", "either", "wrong"]),
    )
    def claim(self, who: str, stale: bool | None, live: bool, by: str) -> Any:
        """`stale`: an older epoch; None: due work, which carries none."""
        send_no = self.decisions.get(who, DecisionModel()).send_no
        model = self.claims.get((who, send_no))
        known = model.attempt if model else 1
        want = Want(
            who,
            send_no,
            retry_of=known if by in ("retry", "either") else known + 1 if by == "wrong" else None,
            resume_unknown_of=known if by in ("resume", "either") else None,
        )
        epoch = None if stale is None else self.epoch - stale
        holder = Holder(who, 0, send_no)
        try:
            [answer] = self.run(
                self.ledger.claim(
                    replace(self.scope, epoch=epoch),
                    [want],
                    holder.owner,
                    LONG if live else timedelta(0),
                )
            )
        except Fenced:
            assert stale
            return multiple()
        assert not stale, "a fenced claim won something"
        follows = (want.retry_of or want.resume_unknown_of or 0) + 1
        before = model.state if model else None
        may_win = model is None or (
            model.attempt + 1 == follows
            and (
                (model.state is ClaimState.FAILED and want.retry_of is not None)
                or (model.state is ClaimState.UNKNOWN and want.resume_unknown_of is not None)
            )
        )
        if may_win:
            assert isinstance(answer, Won)
            assert answer.attempt == follows
            assert (before, ClaimState.CLAIMED) in CLAIM_MOVES
            self.claims[who, send_no] = ClaimModel(ClaimState.CLAIMED, follows, holder.owner, live)
            return replace(holder, attempt=follows)
        assert model is not None
        match answer:
            case InFlight(attempt=attempt):
                assert (model.state, model.live) == (ClaimState.CLAIMED, True)
            case InDoubt(attempt=attempt, owner=owner):
                assert (model.state, model.live, model.owner) == (
                    ClaimState.CLAIMED,
                    False,
                    owner,
                )
            case Done(state=state, attempt=attempt):
                assert state is model.state
            case Won():
                raise AssertionError("a second win")
        assert attempt == model.attempt
        return multiple()

    @rule(holder=holders, live=st.booleans())
    def claim_again_after_a_lost_reply(self, holder: Holder, live: bool) -> None:
        """Only before it called anybody, so its claim is as it was: or somebody settled it, or recorded for it."""
        before = self.claims[holder.recipient_id, holder.send_no]
        want = Want(
            holder.recipient_id,
            holder.send_no,
            retry_of=holder.attempt - 1 or None,
        )
        [answer] = self.run(
            self.ledger.claim(self.scope, [want], holder.owner, LONG if live else timedelta(0))
        )
        ours = before.owner == holder.owner and before.state is ClaimState.CLAIMED
        if ours:
            assert isinstance(answer, Won)
            assert answer.attempt == holder.attempt
            before.live = live
        elif isinstance(answer, Won):
            # The attempt it follows failed again under somebody else? Then attempts would differ.
            assert before.state is ClaimState.FAILED
            assert before.attempt == want.retry_of
            self.claims[holder.recipient_id, holder.send_no] = ClaimModel(
                ClaimState.CLAIMED, before.attempt + 1, holder.owner, live
            )

    @rule(holder=holders, state=st.sampled_from(sorted(OUTCOME)), crowd=st.booleans())
    def record(self, holder: Holder, state: ClaimState, crowd: bool) -> None:
        """In time, late, again, or by somebody thought dead; alone or with a chunk of others, which is another statement."""
        result = ClaimResult(
            holder.recipient_id, holder.attempt, holder.owner, state, send_no=holder.send_no
        )
        others = [ClaimResult(f"x{n}", 1, holder.owner, state) for n in range(12 * crowd)]
        self.run(self.ledger.record(self.scope, [result, *others]))
        self._merge(holder, state)

    @rule(who=people, state=st.sampled_from(sorted(OUTCOME)))
    def record_without_a_claim(self, who: str, state: ClaimState) -> None:
        holder = Holder(who, 1, 1)
        self.run(self.ledger.record(self.scope, [ClaimResult(who, 1, holder.owner, state)]))
        self._merge(holder, state)

    def _merge(self, holder: Holder, state: ClaimState) -> None:
        key = (holder.recipient_id, holder.send_no)
        model = self.claims.get(key)
        if model is None:
            self.claims[key] = ClaimModel(state, holder.attempt, holder.owner, False)
        elif model.owner == holder.owner or state is ClaimState.SENT:
            model.state = merge(model.state, model.attempt, state, holder.attempt)
        if state is ClaimState.SENT:
            self.once_sent.add(key)

    @rule(holder=consumes(holders))
    def crash(self, holder: Holder) -> None:
        """Never heard of again; its lease ends, if it had not."""
        claim = self.claims[holder.recipient_id, holder.send_no]
        if claim.state is ClaimState.CLAIMED and claim.owner == holder.owner:
            self.run(self.end_lease(self.scope, holder.recipient_id, holder.send_no, holder.owner))
            claim.live = False

    @rule(holder=holders, state=st.sampled_from([R.SENT, R.REJECTED, R.FAILED, R.UNKNOWN]))
    def tell_the_decision(self, holder: Holder, state: RecipientState) -> None:
        """The sender's own compare-and-set, in time or late. That it was sent is proof against everything."""
        model = self.decisions.get(holder.recipient_id)
        cause = Cause.PROOF if state is R.SENT else Cause.SENDER
        expect = frozenset(old for old in R if decision_may(old, state, cause))
        if state is not R.SENT:
            expect &= {R.PENDING}
        matched = self.run(
            self.stores.decisions.move(
                [
                    Move(
                        self.key(holder.recipient_id),
                        expect,
                        state,
                        cause,
                        attempt=holder.attempt,
                    )
                ]
            )
        )
        may = model is not None and model.state in expect
        assert matched == may
        if may:
            assert model is not None
            model.state, model.attempt, model.waiting = state, holder.attempt, False

    # --- what everybody else does -----------------------------------------------------------------------------------

    @rule()
    def take_over(self) -> None:
        """A new attempt of the shard's main pass; the old one lives on as a zombie."""
        self.epoch = self.run(self._next_epoch())

    @rule()
    def finish_the_page(self) -> None:
        self.run(
            self.stores.campaigns.advance(
                self.world.tenant,
                self.campaign.campaign_id,
                0,
                Channel.EMAIL,
                self.epoch,
                1,
                True,
            )
        )
        self.cursor = 1

    @rule()
    def settle(self) -> None:
        result = self.run(self.stores.campaigns.settle(self.campaign, self.ledger, BUCKET))
        unknown = rebucketed = 0
        open_sends = {who: d for who, d in self.decisions.items() if d.state is R.PENDING}
        if open_sends:
            # The partition of every page that has a pending decision is settled, whoever's claims they are.
            unknown = self._end_leases()
        for who, decision in open_sends.items():
            claim = self.claims.get((who, decision.send_no))
            if claim is not None and claim.state is ClaimState.CLAIMED:
                continue
            resumed = (
                claim is not None
                and claim.state is ClaimState.UNKNOWN
                and claim.attempt <= decision.attempt
            )
            if claim is None or claim.state is ClaimState.FAILED or resumed:
                if self.cursor and not decision.waiting:
                    decision.waiting = True
                    decision.attempt = max(decision.attempt, claim.attempt if claim else 0)
                    rebucketed += 1
            else:
                decision.state, decision.waiting = OUTCOME[claim.state], False
                decision.attempt = claim.attempt
        assert (result.made_unknown, result.rebucketed) == (unknown, rebucketed)
        planned = [d for d in self.decisions.values() if d.state in (R.PENDING, R.DEFERRED)]
        assert result.open_rows == len(planned) + len(PEOPLE) - len(self.decisions)

    @rule()
    def settle_the_ledger(self) -> None:
        assert self.run(self.ledger.settle(self.scope)) == self._end_leases()

    def _end_leases(self) -> int:
        ended = [
            claim
            for claim in self.claims.values()
            if claim.state is ClaimState.CLAIMED and not claim.live
        ]
        for claim in ended:
            claim.state = ClaimState.UNKNOWN
        return len(ended)

    @rule(states=st.sets(st.sampled_from([R.FAILED, R.UNKNOWN, R.REJECTED]), min_size=1))
    def replay(self, states: set[RecipientState]) -> None:
        replayed = self.run(self.stores.campaigns.replay(self.campaign, sorted(states), BUCKET))
        expected = 0
        for decision in self.decisions.values():
            if decision.state in states:
                expected += 1
                if decision.state is R.REJECTED:
                    decision.send_no += 1
                    decision.attempt = 0
                decision.state, decision.waiting = R.PENDING, True
        assert replayed == expected

    @rule()
    def cancel_the_rest(self) -> None:
        self.run(
            self.stores.campaigns.cancel_rest(self.campaign, None, "stopped", ledger=self.ledger)
        )
        planned = set(self.decisions)
        for who in PEOPLE:
            decision = self.decisions.setdefault(who, DecisionModel())
            if decision.state is R.DEFERRED:
                decision.state = R.CANCELLED
            if decision.state is not R.PENDING:
                continue
            claim = self.claims.get((who, decision.send_no))
            if who not in planned:
                # Nobody claims before there is a decision; here it happens, and nobody looks.
                claim = None
            if claim is None or claim.state is ClaimState.FAILED:
                decision.state, decision.waiting = R.CANCELLED, False
            elif claim.state is not ClaimState.CLAIMED:
                decision.state, decision.waiting = OUTCOME[claim.state], False
                decision.attempt = claim.attempt

    # --- what must always hold --------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_is_as_the_rules_say(self) -> None:
        rows = self.run(
            self.ledger.of_campaign(self.world.tenant, self.scope.frozen_at, self.scope.campaign_id)
        )
        ours = [row for row in rows if row.key.recipient_id in PEOPLE]
        stored = {(row.key.recipient_id, row.key.send_no): row for row in ours}
        assert len(stored) == len(ours), "two claims of one delivery"
        assert stored.keys() == self.claims.keys()
        for key, row in stored.items():
            model = self.claims[key]
            assert (row.state, row.attempt) == (model.state, model.attempt)
            if row.state is ClaimState.CLAIMED:
                assert (row.owner, row.lease_over) == (model.owner, not model.live)

    @invariant()
    def sent_is_never_undone(self) -> None:
        for key in self.once_sent:
            assert self.claims[key].state is ClaimState.SENT

    @invariant()
    def decisions_are_as_the_rules_say(self) -> None:
        for who, model in self.decisions.items():
            stored = self.run(self.stores.decisions.read(self.key(who)))
            assert stored is not None
            assert (stored.state, stored.attempt, stored.send_no) == (
                model.state,
                model.attempt,
                model.send_no,
            )
            assert (stored.due_at is not None) == model.waiting

    @invariant()
    def the_counts_add_up(self) -> None:
        self.run(
            self.stores.campaigns.summarise(
                self.world.tenant, self.scope.frozen_at, self.scope.campaign_id, [(0, 0)]
            )
        )
        counts = self.run(
            self.stores.campaigns.counts(self.world.tenant, self.campaign.campaign_id)
        )
        assert sum(counts.values()) == len(PEOPLE)
        for state in R:
            here = sum(1 for model in self.decisions.values() if model.state is state)
            if state is R.PENDING:
                here += len(PEOPLE) - len(self.decisions)
            assert counts[state] == here

    def key(self, who: str) -> DecisionKey:
        return a_decision(self.campaign, 0, 0, who).key

    def _next_epoch(self) -> Coroutine[Any, Any, int]:
        return self.stores.campaigns.take_epoch(
            self.world.tenant, self.campaign.campaign_id, 0, Channel.EMAIL
        )


def drive(runner: asyncio.Runner, examples: int, **parts: Any) -> None:
    run_state_machine_as_test(
        type("Bound", (Machine,), {"runner": runner, **parts}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_claims_and_decisions_keep_their_promises_whatever_happens(
    database: str, ring: KeyRing
) -> None:
    with asyncio.Runner() as runner:
        pool = runner.run(open_pool(database, 2, "machine"))
        stores = Stores(pool, RingSealer(ring))

        async def end_lease(scope: ClaimScope, who: str, send_no: int, owner: UUID) -> None:
            await pool.execute(
                "UPDATE claims SET lease_until = now() WHERE tenant = $1 AND owner = $2",
                scope.tenant,
                owner,
            )

        try:
            drive(
                runner,
                25,
                stores=stores,
                ledger=stores.ledger,
                end_lease=staticmethod(end_lease),
            )
        finally:
            runner.run(pool.close())


@pytest.mark.cassandra
def test_they_keep_them_with_claims_on_cassandra(
    database: str, ring: KeyRing, cassandra_address: Address
) -> None:
    with asyncio.Runner() as runner:
        pool = runner.run(open_pool(database, 2, "machine"))
        opened = AsyncExitStack()
        try:
            connected = runner.run(opened.enter_async_context(connection(cassandra_address)))
            ledger = a_cassandra_ledger(connected, pool)

            async def end_lease(scope: ClaimScope, who: str, send_no: int, owner: UUID) -> None:
                requests = Requests(connected)
                update = await requests.prepare(
                    "UPDATE claims SET lease_until = ? WHERE tenant = ? AND campaign_id = ? AND shard = ? AND page = ?"
                    " AND channel = ? AND recipient_id = ? AND send_no = ? AND device = '' IF owner = ?"
                )
                ended = datetime.now(UTC) - timedelta(minutes=1)
                where = (scope.tenant, scope.campaign_id, scope.shard, scope.page, scope.channel)
                await requests.change(update.bind((ended, *where, who, send_no, owner)))

            drive(
                runner,
                8,
                stores=Stores(pool, RingSealer(ring)),
                ledger=ledger,
                end_lease=staticmethod(end_lease),
            )
        finally:
            runner.run(opened.aclose())
            runner.run(pool.close())
