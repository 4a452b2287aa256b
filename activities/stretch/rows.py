"""A page's rows on their way: fit to go, objected to, or ended, with the moves and letters that say so."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from activities.campaign_carriers import Parcel
from activities.campaign_plan import letter
from schemas.kinds import RecipientState
from schemas.notifications import DecisionKey, trusted_decision_key
from schemas.outcomes import Rejected
from sendloom.domain.backoff import bucket_of
from sendloom.domain.outcomes import Cause
from sendloom.domain.reasons import Reason
from sendloom.ports import (
    REPLAYED,
    CampaignRow,
    ClaimResult,
    ClaimScope,
    DeadLetter,
    Move,
    PageSend,
)

PENDING = frozenset({RecipientState.PENDING})
"""What a sender moves away from, but for proof that somebody has it."""
IN_FLIGHT = "in_flight"
UNTRIED = frozenset[str](Reason) | {REPLAYED, IN_FLIGHT}
"""Reasons of rows that wait for something else than a retry."""


@dataclass(slots=True)
class Row:
    """One row of a page."""

    row: PageSend
    at: ClaimScope

    @property
    def key(self) -> DecisionKey:
        """Made when it is asked for: most rows are sent, and those are named by their page and id."""
        return key_of(self.at, self.row.recipient_id)


@dataclass(slots=True)
class Ready(Row):
    """It may go, dressed for the wire."""

    parcel: Parcel


@dataclass(slots=True)
class Objection(Row):
    """It may not go, or not yet."""

    move: Move
    letter: DeadLetter | None = None


@dataclass(slots=True)
class Result:
    """What a chunk leads to, gathered and then written in a few statements."""

    campaign: CampaignRow
    at: ClaimScope
    sent: list[str] = field(default_factory=list)
    """Whose message is proven to be with the provider, and whose decision does not say so yet."""
    claims: list[ClaimResult] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    suppress: list[tuple[bytes, str]] = field(default_factory=list)
    rejected: list[tuple[Row, Rejected]] = field(default_factory=list)
    left: int = 0
    """Rows that are still pending and could go now."""

    def object(self, one: Objection) -> None:
        self.moves.append(one.move)
        if one.letter is not None:
            self.letters.append(one.letter)

    def end_badly(
        self,
        one: Row,
        state: RecipientState,
        code: str,
        error: str,
        *,
        attempt: int | None = None,
    ) -> None:
        key = one.key
        self.moves.append(Move(key, PENDING, state, Cause.SENDER, reason=code, attempt=attempt))
        self.letters.append(letter(self.campaign, key, self.at.channel, state, code, error or code))

    def end_unknown(self, one: Row, attempt: int, code: str) -> None:
        """Marketing never sends again what may have been sent. The decision keeps the doubtful attempt: should an operator
        replay it, that attempt and no later one is resumed."""
        self.end_badly(one, RecipientState.UNKNOWN, code, code, attempt=attempt)


def key_of(at: ClaimScope, recipient_id: str) -> DecisionKey:
    return trusted_decision_key(
        at.tenant, at.frozen_at, at.campaign_id, at.shard, at.page, recipient_id
    )


def final(key: DecisionKey, state: RecipientState, reason: str) -> Move:
    return Move(key, PENDING, state, Cause.SENDER, reason=reason)


def later(key: DecisionKey, until: datetime, reason: str) -> Move:
    """Back into a bucket."""
    return Move(
        key,
        PENDING,
        RecipientState.DEFERRED,
        Cause.SENDER,
        reason=reason,
        not_before=None,
        due_at=bucket_of(until),
    )


def in_flight(key: DecisionKey, until: datetime) -> Move:
    """Somebody else's lease runs until then."""
    return later(key, until + timedelta(seconds=1), IN_FLIGHT)
