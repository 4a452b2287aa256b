"""The accepted row's end."""

from temporalio import activity

from activities.delivery import delivery_key
from activities.reminders import outcome_of
from schemas.kinds import RecipientState
from schemas.notifications import CloseRequest, DecisionKey
from sendloom.domain.ids import dead_letter_id
from sendloom.domain.outcomes import MEANING, OPEN, Cause
from sendloom.platform.metrics import delivery as metrics
from sendloom.ports import (
    AcceptedStore,
    DeadLetter,
    DeadLetterStore,
    Decision,
    DecisionStore,
    Move,
)

ERROR_MAX = 500
"""Characters of a provider's words kept with a dead letter."""


class AcceptedActivities:
    def __init__(
        self, *, accepted: AcceptedStore, decisions: DecisionStore, dead_letters: DeadLetterStore
    ) -> None:
        self._accepted = accepted
        self._decisions = decisions
        self._dead_letters = dead_letters

    @activity.defn(name="accepted.close")
    async def close(self, request: CloseRequest) -> None:
        """Decision first, dead letter next, the row last: a row that is closed leaves nothing to do."""
        if MEANING[request.outcome.kind].recipient is not RecipientState.SENT:
            await self._end_decision(request)
            if request.dead_letter:
                await self._dead_letters.add([self._letter(request)])
                if request.channel is not None:
                    metrics.record_dead_letter(request.channel, request.message_class)
        await self._accepted.close(
            request.tenant, request.id, request.outcome.model_dump(mode="json")
        )
        if (reminder := request.reminder) is not None:
            await self._accepted.close(reminder.tenant, reminder.id, outcome_of(reminder.view))

    async def _end_decision(self, request: CloseRequest) -> None:
        """Whatever ended it, also a cancel before anything was resolved, is there to be seen."""
        key = _decision(request)
        state = MEANING[request.outcome.kind].recipient
        reason = _code(request)
        [stored] = await self._decisions.insert(
            [
                Decision(
                    key=key,
                    state=state,
                    channel=request.channel,
                    rung=request.rung,
                    send_no=request.send_no,
                    attempt=request.attempt,
                    reason=reason,
                )
            ]
        )
        if stored.state in OPEN:
            await self._decisions.move(
                [
                    Move(
                        key=key,
                        expect=frozenset({stored.state}),
                        to=state,
                        cause=Cause.SENDER,
                        reason=reason,
                        channel=request.channel,
                        rung=request.rung,
                        send_no=request.send_no,
                        attempt=request.attempt,
                    )
                ]
            )

    def _letter(self, request: CloseRequest) -> DeadLetter:
        key = _decision(request)
        if request.channel is not None:
            key = delivery_key(key, request.channel, request.send_no)
        detail = getattr(request.outcome, "detail", "")
        return DeadLetter(
            id=dead_letter_id(key),
            kind=request.kind,
            ref_id=request.id,
            decision=key,
            category=request.category,
            channel=request.channel,
            state=MEANING[request.outcome.kind].api,
            code=_code(request),
            last_error=detail[:ERROR_MAX],
        )


def _decision(request: CloseRequest) -> DecisionKey:
    return DecisionKey(
        tenant=request.tenant,
        frozen_at=request.accepted_at,
        campaign_id=request.id,
        recipient_id=request.recipient_id,
    )


def _code(request: CloseRequest) -> str:
    outcome = request.outcome
    return str(getattr(outcome, "code", None) or getattr(outcome, "reason", None) or outcome.kind)
