"""Wins a chunk's rows from the ledger, and judges by what others left there those that it does not win."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from temporalio import activity

from activities.campaign_ground import Ground
from activities.stretch.lane import REPEAT_LONGEST, SendingLane
from activities.stretch.rows import Objection, Ready, Result, Row, in_flight
from activities.stretch.standing import Standing
from schemas.kinds import ClaimState
from schemas.outcomes import Rejected
from sendloom.domain.budgets import lease
from sendloom.domain.reasons import Reason
from sendloom.errors import Fenced, StoreUnavailable
from sendloom.ports import (
    ClaimAnswer,
    ClaimResult,
    ClaimScope,
    Done,
    InDoubt,
    InFlight,
    Want,
    Won,
)


class Claims:
    """One for a stretch."""

    def __init__(
        self, lane: SendingLane, ground: Ground, provider: str, standing: Standing
    ) -> None:
        self._lane = lane
        self._provider = provider
        self._standing = standing
        self._length = lease(ground.category.message_class)

    async def win(
        self, ready: Sequence[Ready], result: Result, owner: UUID
    ) -> tuple[list[tuple[Ready, Won]], float]:
        """What was won, and a moment before the first of its leases began."""
        scope = result.at
        began, answers = await self._ask(
            scope, [Want(one.row.recipient_id, one.row.send_no) for one in ready], owner
        )
        won: list[tuple[Ready, Won]] = []
        again: list[tuple[Ready, Want]] = []
        settled = False
        for one, answer in zip(ready, answers, strict=True):
            match answer:
                case Won():
                    won.append((one, answer))
                case Done(state=ClaimState.FAILED, attempt=attempt):
                    # Still pending, so nobody has judged that failure: not called, a sender's fault, or a crash since.
                    again.append(
                        (one, Want(one.row.recipient_id, one.row.send_no, retry_of=attempt))
                    )
                case Done(state=ClaimState.UNKNOWN, attempt=doubt) if one.row.attempt >= doubt:
                    # The decision has seen this very doubt and is pending again: an operator replayed it.
                    again.append(
                        (
                            one,
                            Want(
                                one.row.recipient_id,
                                one.row.send_no,
                                resume_unknown_of=doubt,
                            ),
                        )
                    )
                case InDoubt() if not settled:
                    settled = True
                    await self._lane.ledger.settle(scope)
                    _judge_found(one, answer, result)
                case _:
                    _judge_found(one, answer, result)
        if again:
            _, second = await self._ask(scope, [want for _, want in again], owner)
            for (one, _), answer in zip(again, second, strict=True):
                if isinstance(answer, Won):
                    won.append((one, answer))
                else:
                    _judge_found(one, answer, result)
        return won, began

    async def believe(self, objections: Sequence[Objection], result: Result) -> None:
        """What an earlier attempt did to a provider is true whatever the gates say now, so it is looked at first."""
        if not objections:
            return
        ledger, scope = self._lane.ledger, result.at
        wants = [Want(one.row.recipient_id, one.row.send_no) for one in objections]
        found = await ledger.read(scope, wants)
        if any(c is not None and c.state is ClaimState.CLAIMED and c.lease_over for c in found):
            await ledger.settle(scope)
            found = await ledger.read(scope, wants)
        for one, claim in zip(objections, found, strict=True):
            if claim is None or claim.state is ClaimState.FAILED:
                result.object(one)
            elif claim.state is ClaimState.CLAIMED:
                result.moves.append(in_flight(one.key, claim.lease_until))
            elif claim.state is ClaimState.SENT:
                result.sent.append(one.row.recipient_id)
            elif claim.state is ClaimState.REJECTED:
                code = claim.code or "rejected"
                result.rejected.append((one, Rejected(provider=claim.provider or "", code=code)))
            elif one.row.attempt >= claim.attempt:
                # Replayed after this very doubt, and then objected to.
                result.object(one)
            else:
                result.end_unknown(one, claim.attempt, claim.code or "unknown")

    async def _ask(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID
    ) -> tuple[float, list[ClaimAnswer]]:
        """A claim whose answer was lost is asked for again by the same owner, who recognises it and renews its lease. To
        everybody else, also the next attempt, these rows would be somebody's until the lease is over, which is minutes."""
        lane = self._lane
        delay, lost = 0.1, False
        while True:
            began = lane.monotonic()
            try:
                return began, await lane.ledger.claim(scope, wants, owner, self._length)
            except StoreUnavailable:
                lost = True
                if self._standing.interrupted or activity.is_worker_shutdown():
                    await self._give_back(scope, wants, owner)
                    raise
            except Fenced:
                if lost:
                    await self._give_back(scope, wants, owner)
                raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, REPEAT_LONGEST)

    async def _give_back(self, scope: ClaimScope, wants: Sequence[Want], owner: UUID) -> None:
        """Whatever was won of it unheard: only we know that nobody was called."""
        results = [
            ClaimResult(
                want.recipient_id,
                want.attempt,
                owner,
                ClaimState.FAILED,
                send_no=want.send_no,
                provider=self._provider,
                code=Reason.NOT_CALLED,
            )
            for want in wants
        ]
        await self._lane.insist(lambda: self._lane.ledger.record(scope, results))


def _judge_found(one: Row, answer: ClaimAnswer, result: Result) -> None:
    """Somebody was there before us; what they left says what this row is."""
    match answer:
        case InFlight(until=until):
            result.moves.append(in_flight(one.key, until))
        case Done(state=ClaimState.SENT):
            result.sent.append(one.row.recipient_id)
        case Done(state=ClaimState.REJECTED, code=code):
            rejected = Rejected(provider=answer.provider or "", code=code or "rejected")
            result.rejected.append((one, rejected))
        case Done(state=ClaimState.UNKNOWN):
            result.end_unknown(one, answer.attempt, answer.code or "unknown")
        case InDoubt():
            result.end_unknown(one, answer.attempt, "lease_over")
        case _:
            # It changed between two statements; the next read shows as what.
            result.left += 1
