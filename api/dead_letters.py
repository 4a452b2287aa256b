"""What ended without success, until somebody has looked at it: send again, or let go."""

from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query

from api.auditing import audited
from api.auth import Caller
from api.campaigns import current_bucket, work_due
from api.deps import Operator, Parts, PartsDep, Supporter
from api.paging import page_of
from api.timing import timely
from schemas.api import DeadLetterAnswer, Page
from schemas.kinds import Kind, RecipientState
from schemas.notifications import DecisionKey
from sendloom.domain.outcomes import Cause, decision_may
from sendloom.errors import Refusal
from sendloom.ports import DeadLetter, Decision, Move

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])


@router.get("")
@timely
async def every(
    caller: Supporter,
    parts: PartsDep,
    status: Literal["open", "replayed", "discarded"] = "open",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: UUID | None = None,
) -> Page[DeadLetterAnswer]:
    """Newest first."""
    letters = await parts.dead_letters.by_status(caller.id, status, limit, after)
    return page_of(letters, limit, _shown, lambda letter: letter.id)


@router.get("/{id}")
@timely
async def show(id: UUID, caller: Supporter, parts: PartsDep) -> DeadLetterAnswer:
    """One, with its last error."""
    return _shown(await _find(parts, caller, id))


async def _find(parts: Parts, caller: Caller, id: UUID) -> DeadLetter:
    letter = await parts.dead_letters.get(caller.id, id)
    if letter is None:
        raise Refusal("not_found", f"there is no dead letter {id}", status=404)
    return letter


@router.post("/{id}/replay")
@timely
async def replay(id: UUID, caller: Operator, parts: PartsDep) -> DeadLetterAnswer:
    """Send it again. Refused when it could no longer help; an expired passcode is never sent again."""
    letter = await _find(parts, caller, id)
    _require_open(letter)
    # Everything up to the last line may be repeated: the move is a compare-and-set, the start knows its id.
    if letter.kind is Kind.CAMPAIGN:
        await _replay_member(parts, caller, letter)
    else:
        await _replay_message(parts, caller, letter)
    await parts.dead_letters.resolve(caller.id, id, "replayed", caller.actor)
    await audited(parts, caller, "dead_letter.replay", str(id))
    return _shown(await _find(parts, caller, id))


async def _replay_message(parts: Parts, caller: Caller, letter: DeadLetter) -> None:
    row = await parts.accepted.get(caller.id, letter.ref_id)
    if row is None:
        raise _not_replayable("what was accepted has been purged")
    if row.expires_at <= datetime.now(UTC):
        raise _not_replayable(f"this {row.kind} has expired")
    await _reopen(parts, _decision_key(letter), due_at=None)
    await parts.workflows.start(row, again=True)


async def _replay_member(parts: Parts, caller: Caller, letter: DeadLetter) -> None:
    campaign = await parts.campaigns.get(caller.id, letter.ref_id)
    if campaign is None or campaign.frozen_at is None:
        raise _not_replayable("the campaign is gone")
    now = datetime.now(UTC)
    if campaign.expires_at is not None and campaign.expires_at <= now:
        raise _not_replayable("the campaign has expired")
    key = _decision_key(letter)
    await _reopen(parts, key, due_at=current_bucket(now))
    await parts.campaigns.summarise(
        caller.id, campaign.frozen_at, campaign.campaign_id, [(key.shard, key.page)]
    )
    await work_due(parts, campaign)


async def _reopen(parts: Parts, key: DecisionKey, due_at: datetime | None) -> None:
    """Back to pending, by an operator. A rejected one is asked again as a new send: its old claim is final."""
    decision = await parts.decisions.read(key)
    if decision is None:
        raise _not_replayable("nothing was resolved for it")
    if decision.state is RecipientState.PENDING:
        return  # a repeat of this request, or somebody was quicker
    if not decision_may(decision.state, RecipientState.PENDING, Cause.REPLAY):
        raise _not_replayable(f"it is {decision.state}")
    moved = await parts.decisions.move([_move(decision, due_at)])
    if not moved:
        raise _not_replayable("it has changed just now")


def _move(decision: Decision, due_at: datetime | None) -> Move:
    rejected = decision.state is RecipientState.REJECTED
    return Move(
        key=decision.key,
        expect=frozenset({decision.state}),
        to=RecipientState.PENDING,
        cause=Cause.REPLAY,
        reason="replay",
        send_no=decision.send_no + 1 if rejected else None,
        attempt=0 if rejected else None,
        due_at=due_at,
    )


def _decision_key(letter: DeadLetter) -> DecisionKey:
    """Without the channel that a letter's key may carry."""
    fields = {name: getattr(letter.decision, name) for name in DecisionKey.model_fields}
    return DecisionKey(**fields)


@router.post("/{id}/discard")
@timely
async def discard(id: UUID, caller: Operator, parts: PartsDep) -> DeadLetterAnswer:
    """Looked at, and let go."""
    letter = await _find(parts, caller, id)
    if letter.status != "discarded":
        _require_open(letter)
        await parts.dead_letters.resolve(caller.id, id, "discarded", caller.actor)
        await audited(parts, caller, "dead_letter.discard", str(id))
    return _shown(await _find(parts, caller, id))


def _require_open(letter: DeadLetter) -> None:
    if letter.status != "open":
        raise Refusal("dead_letter_closed", f"it is {letter.status}", status=409)


def _not_replayable(why: str) -> Refusal:
    return Refusal("not_replayable", why, status=409)


def _shown(letter: DeadLetter) -> DeadLetterAnswer:
    return DeadLetterAnswer(
        id=letter.id,
        kind=letter.kind,
        ref_id=letter.ref_id,
        recipient_id=letter.decision.recipient_id,
        category=letter.category,
        channel=letter.channel,
        state=letter.state,
        code=letter.code,
        last_error=letter.last_error,
        status=letter.status,
        replays=letter.replays,
        created_at=letter.created_at,
    )
