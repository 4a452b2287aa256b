"""Carries chunks: what is fit to go is claimed, called and recorded, then what came of every row is written."""

import itertools
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID, uuid5

from activities.campaign_carriers import Carrier
from activities.campaign_ground import Ground
from activities.stretch.allowance import Allowance
from activities.stretch.claims import Claims
from activities.stretch.lane import SendingLane
from activities.stretch.rows import PENDING, UNTRIED, Objection, Ready, Result, Row
from activities.stretch.standing import Standing
from schemas.kinds import ClaimState, FaultScope, RecipientState
from schemas.outcomes import Accepted, CallOutcome, Failed, Rejected, Unknown
from sendloom.domain.backoff import bucket_of, exhausted, retry_bucket
from sendloom.domain.budgets import LEASE_MARGIN, RETRIES
from sendloom.domain.outcomes import Cause
from sendloom.errors import Fenced
from sendloom.platform.metrics import campaign as metrics
from sendloom.ports import ClaimResult, ClaimScope, Move, Won

log = logging.getLogger(__name__)

NOTE_EVERY = 5.0


class Chunks:
    """One for a stretch."""

    def __init__(
        self,
        lane: SendingLane,
        ground: Ground,
        carrier: Carrier,
        standing: Standing,
        allowance: Allowance,
        owner: UUID,
    ) -> None:
        self._lane = lane
        self._ground = ground
        self._carrier = carrier
        self._standing = standing
        self._allowance = allowance
        self._claims = Claims(lane, ground, carrier.name, standing)
        self._owner = owner
        self._numbers = itertools.count(1)
        self._noted_at = float("-inf")

    async def believe(self, objections: Sequence[Objection], result: Result) -> None:
        """An objection stands unless the ledger knows better."""
        await self._claims.believe(objections, result)

    async def object(self, scope: ClaimScope, objections: Sequence[Objection]) -> None:
        """Writes why these may not go."""
        result = Result(self._ground.row, scope)
        await self.believe(objections, result)
        self._standing.handled += len(objections)
        await self._finish(result)

    async def close(self, result: Result) -> int:
        """Of a chunk of which nobody may go. How many of its rows could still go now."""
        self._standing.handled += len(result.sent) + len(result.moves) + len(result.rejected)
        await self._finish(result)
        return result.left

    async def carry(self, ready: Sequence[Ready], result: Result) -> int:
        """Claim, call, record: the rows are in doubt only in between. How many of them could still go now. Their places in
        the budget are the caller's until then, and given back here."""
        held = len(ready)
        try:
            owner = uuid5(self._owner, str(next(self._numbers)))
            won, began = await self._claims.win(ready, result, owner)
            outcomes = await self._call(won, result, began, owner) if won else []
        except Fenced:
            self._standing.fenced = True
            return held
        except Exception as e:
            self._standing.broke(e)
            raise
        finally:
            self._lane.budget.release(held)
        self._count(outcomes)
        await self._allowance.learn(outcomes, began)
        await self._note_sent(outcomes)
        await self._finish(result)
        self._standing.handled += held - result.left
        return result.left

    # --- the call -----------------------------------------------------------------------------------------------------

    async def _call(
        self,
        won: Sequence[tuple[Ready, Won]],
        result: Result,
        began: float,
        owner: UUID,
    ) -> list[CallOutcome]:
        lane, row, standing, scope = self._lane, self._ground.row, self._standing, result.at
        call_by = began + LEASE_MARGIN.total_seconds()

        def may_call() -> bool:
            return (
                not standing.interrupted
                and standing.fault is None
                and standing.killed is None
                # A call must end, at its longest, before the lease does.
                and lane.monotonic() < call_by
                and lane.watch.may_call(row.tenant, row.campaign_id)
            )

        try:
            outcomes = await self._carrier.carry(
                [one.parcel for one, _ in won],
                self._ground.category.message_class,
                may_call=may_call,
            )
        except Exception as e:
            # A provider never raises; should one, nobody knows what it had done by then.
            log.exception("a provider raised")
            outcomes = [Unknown(provider=self._carrier.name, code=type(e).__name__) for _ in won]
        # Nearly everything is a first attempt that is taken: recorded by columns, not by objects.
        taken: dict[str, str] = {}
        provider = self._carrier.name
        for (one, claim), outcome in zip(won, outcomes, strict=True):
            if (
                type(outcome) is Accepted
                and claim.attempt == 1
                and one.row.send_no == 1
                and outcome.provider == provider
            ):
                taken[one.row.recipient_id] = outcome.provider_message_id
            else:
                self._judge(one, claim, outcome, owner, result)
        try:
            if taken:
                await lane.insist(lambda: lane.sent.write(scope, owner, provider, taken))
        finally:
            if result.claims:
                await lane.insist(lambda: lane.ledger.record(scope, result.claims))
        return outcomes

    def _judge(
        self, one: Ready, claim: Won, outcome: CallOutcome, owner: UUID, result: Result
    ) -> None:
        """The one table of outcomes, for a campaign's row."""
        row = one.row
        state, message_id, code = ClaimState.SENT, None, None
        match outcome:
            case Accepted():
                message_id = outcome.provider_message_id
                result.sent.append(row.recipient_id)
            case Rejected():
                state, code = ClaimState.REJECTED, outcome.code
                if row.address is not None and (outcome.suppress or outcome.opted_out):
                    result.suppress.append(
                        (
                            row.address.address_hash,
                            "stop" if outcome.opted_out else "hard_bounce",
                        )
                    )
                result.rejected.append((one, outcome))
            case Failed():
                state, code = ClaimState.FAILED, outcome.code
                self._judge_failed(one, outcome, result)
            case Unknown():
                state, code = ClaimState.UNKNOWN, outcome.code
                result.end_unknown(one, claim.attempt, code)
        result.claims.append(
            ClaimResult(
                row.recipient_id,
                claim.attempt,
                owner,
                state,
                send_no=row.send_no,
                provider=outcome.provider,
                provider_message_id=message_id,
                code=code,
            )
        )

    def _judge_failed(self, one: Row, outcome: Failed, result: Result) -> None:
        row = one.row
        if outcome.scope is FaultScope.SENDER:
            # Nothing is wrong with the recipient: the row stays as it is and goes on after the resume.
            self._standing.blame_sender(outcome.code)
            result.left += 1
            return
        if not outcome.counts:
            result.left += 1
            return
        ground, now = self._ground, self._lane.now()
        budget = RETRIES[ground.category.message_class]
        # Being asked to slow down says nothing about this recipient, so it burns no attempt; time still bounds it.
        attempt = row.attempt + (0 if outcome.throttled else 1)
        # The time of a class runs from a row's first failure, not from the freeze: before it there may have been days of
        # waiting for a second person, a pause, or half of a slow campaign. The row keeps that moment as its `not_before`.
        first = row.reason is None or row.reason in UNTRIED
        since = now if first else (row.not_before or ground.frozen_at)
        bucket = retry_bucket(max(attempt, 1), now, outcome.retry_after)
        if exhausted(budget, attempt, since, now) or bucket >= ground.ends_at:
            result.end_badly(
                one, RecipientState.FAILED, outcome.code, outcome.detail, attempt=attempt
            )
            return
        result.moves.append(
            Move(
                one.key,
                PENDING,
                RecipientState.DEFERRED,
                Cause.SENDER,
                reason=outcome.code,
                attempt=attempt,
                not_before=since,
                due_at=bucket,
            )
        )

    # --- after the record ---------------------------------------------------------------------------------------------

    def _count(self, outcomes: Iterable[CallOutcome]) -> None:
        kinds: dict[str, int] = {}
        for outcome in outcomes:
            kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
        for kind, count in kinds.items():
            metrics.record_sent(self._lane.channel, kind, count)

    async def _note_sent(self, outcomes: Sequence[CallOutcome]) -> None:
        """Keeps the age of the last send visible (case C51)."""
        lane, row = self._lane, self._ground.row
        now = lane.monotonic()
        if now - self._noted_at < NOTE_EVERY or not any(isinstance(o, Accepted) for o in outcomes):
            return
        self._noted_at = now
        await lane.insist(partial(lane.campaigns.sent_now, row.tenant, row.campaign_id))

    async def _finish(self, result: Result) -> None:
        await self._rungs(result)
        await self._write(result)

    async def _rungs(self, result: Result) -> None:
        """Who was refused on this channel goes on to the next rung that is open to them, in its own lane and time."""
        if not result.rejected:
            return
        ground, lane = self._ground, self._lane
        ladder = ground.policy.ladder
        rung = ladder.index(lane.channel) if lane.channel in ladder else len(ladder)
        people = {}
        if rung + 1 < len(ladder):
            ids = [one.row.recipient_id for one, _ in result.rejected]
            found = await lane.insist(
                lambda: lane.people.people(
                    ground.row.tenant,
                    ground.row.category,
                    ids,
                    bool(ground.policy.caps),
                    channels=ladder,
                )
            )
            people = {person.recipient_id: person for person in found}
        now = lane.now()
        for one, rejected in result.rejected:
            person = people.get(one.row.recipient_id)
            next_rung = None
            if person is not None:
                # Its own use of a cap is given back by the move and taken again when the next rung leaves.
                person.cap_uses = {}
                next_rung = ground.decide(one.key, person, now, rung + 1, again=True)[0]
            if next_rung is not None and next_rung.channel is not None:
                result.moves.append(
                    Move(
                        one.key,
                        PENDING,
                        RecipientState.DEFERRED,
                        Cause.SENDER,
                        reason=rejected.code,
                        channel=next_rung.channel,
                        rung=next_rung.rung,
                        attempt=0,
                        not_before=next_rung.not_before or now,
                        due_at=next_rung.due_at or bucket_of(now),
                    )
                )
            else:
                result.end_badly(one, RecipientState.REJECTED, rejected.code, rejected.detail)

    async def _write(self, result: Result) -> None:
        """After the record. Letters come before the moves, so that nobody ends badly without one."""
        lane, tenant = self._lane, self._ground.row.tenant
        for address_hash, reason in result.suppress:
            await lane.insist(
                partial(
                    lane.ledger.suppress,
                    tenant,
                    lane.channel,
                    address_hash,
                    reason,
                    self._carrier.name,
                )
            )
        if result.letters:
            await lane.insist(partial(lane.dead_letters.add, result.letters))
        if result.sent:
            like = Move.proven(result.at)
            await lane.insist(partial(lane.decisions.move_page, result.sent, like))
        if result.moves:
            await lane.insist(partial(lane.decisions.move, result.moves))
        result.sent.clear()
        result.moves.clear()
        result.letters.clear()
        result.suppress.clear()
