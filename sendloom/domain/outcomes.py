"""The one table: call outcome → claim state → recipient state → API word → what happens next; and every allowed transition.

The stores' SQL and the Cassandra batches implement `merge` and the two `…_MOVES` tables; a stateful property test drives
a real ledger against them with crashes, zombies, late records and replays.
"""

from dataclasses import dataclass
from enum import StrEnum

from schemas.kinds import ClaimState, RecipientState


class Next(StrEnum):
    """What follows an outcome."""

    DONE = "done"
    NEXT_RUNG = "next_rung"
    RETRY = "retry"
    POLICY = "policy"
    WAIT = "wait"
    CALLER = "caller"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table."""

    claim: ClaimState | None
    recipient: RecipientState
    api: str
    next: Next
    dead_letter: bool
    """When this is how it ends, somebody must be able to see and replay it."""


MEANING: dict[str, Meaning] = {
    "accepted": Meaning(ClaimState.SENT, RecipientState.SENT, "sent", Next.DONE, False),
    "rejected": Meaning(
        ClaimState.REJECTED, RecipientState.REJECTED, "rejected", Next.NEXT_RUNG, True
    ),
    "failed": Meaning(ClaimState.FAILED, RecipientState.FAILED, "failed", Next.RETRY, True),
    "unknown": Meaning(ClaimState.UNKNOWN, RecipientState.UNKNOWN, "unknown", Next.POLICY, True),
    "suppressed": Meaning(None, RecipientState.SUPPRESSED, "suppressed", Next.DONE, False),
    "deferred": Meaning(None, RecipientState.DEFERRED, "deferred", Next.WAIT, False),
    "expired": Meaning(None, RecipientState.EXPIRED, "expired", Next.DONE, False),
    "cancelled": Meaning(None, RecipientState.CANCELLED, "cancelled", Next.DONE, False),
    "undeliverable": Meaning(None, RecipientState.SUPPRESSED, "undeliverable", Next.CALLER, True),
}

CLAIM_RANK = {
    # Stored as this number: within one attempt the higher one wins, and 4 wins over everything.
    ClaimState.CLAIMED: 0,
    ClaimState.FAILED: 1,
    ClaimState.UNKNOWN: 2,
    ClaimState.REJECTED: 3,
    ClaimState.SENT: 4,
}
CLAIM_OF_RANK = {rank: state for state, rank in CLAIM_RANK.items()}

RECIPIENT_CODE = {
    RecipientState.PENDING: 0,
    RecipientState.DEFERRED: 1,
    RecipientState.SENT: 2,
    RecipientState.REJECTED: 3,
    RecipientState.FAILED: 4,
    RecipientState.UNKNOWN: 5,
    RecipientState.SUPPRESSED: 6,
    RecipientState.EXPIRED: 7,
    RecipientState.CANCELLED: 8,
    RecipientState.ERASED: 9,
}
RECIPIENT_OF_CODE = {code: state for state, code in RECIPIENT_CODE.items()}

OPEN = frozenset({RecipientState.PENDING, RecipientState.DEFERRED})


class Cause(StrEnum):
    """Why a decision or a claim changes."""

    SENDER = "sender"
    """The ordinary path: plan, gates, the sender's own outcome."""
    POLICY = "policy"
    """The category's policy for retries and unknown outcomes."""
    REPLAY = "replay"
    """An operator."""
    PROOF = "proof"
    """The claim's owner, or a receipt, shows that it was sent."""
    SETTLE = "settle"
    """A lease ended without a record."""
    DEADLINE = "deadline"
    """A passcode's receipt deadline moved it to the next rung."""
    ERASURE = "erasure"
    """The recipient was erased."""


def _decision_moves() -> dict[tuple[RecipientState, RecipientState], frozenset[Cause]]:
    r = RecipientState
    moves: dict[tuple[RecipientState, RecipientState], set[Cause]] = {}

    def allow(old: RecipientState, new: RecipientState, *causes: Cause) -> None:
        moves.setdefault((old, new), set()).update(causes)

    for state in r:
        if state is not r.PENDING:
            allow(r.PENDING, state, Cause.SENDER, Cause.SETTLE)
    # Another rung, a new window: still pending.
    allow(r.PENDING, r.PENDING, Cause.SENDER)
    for state in (r.PENDING, r.DEFERRED, r.SUPPRESSED, r.EXPIRED, r.CANCELLED, r.ERASED):
        allow(r.DEFERRED, state, Cause.SENDER)
    for state in (r.FAILED, r.UNKNOWN):
        allow(state, r.PENDING, Cause.POLICY, Cause.REPLAY)
    allow(r.REJECTED, r.PENDING, Cause.REPLAY)
    for state in r:
        if state is not r.SENT:
            allow(state, r.SENT, Cause.PROOF)
    allow(r.SENT, r.PENDING, Cause.DEADLINE)
    for state in (r.PENDING, r.DEFERRED):
        allow(state, r.ERASED, Cause.ERASURE)
    return {pair: frozenset(causes) for pair, causes in moves.items()}


DECISION_MOVES = _decision_moves()


def decision_may(old: RecipientState, new: RecipientState, cause: Cause) -> bool:
    """Whether a decision may change so. A decision is changed only by compare-and-set on `old`."""
    return cause in DECISION_MOVES.get((old, new), frozenset())


CLAIM_MOVES: dict[tuple[ClaimState | None, ClaimState], frozenset[Cause]] = {
    (None, ClaimState.CLAIMED): frozenset({Cause.SENDER}),
    (ClaimState.CLAIMED, ClaimState.SENT): frozenset({Cause.SENDER}),
    (ClaimState.CLAIMED, ClaimState.REJECTED): frozenset({Cause.SENDER}),
    (ClaimState.CLAIMED, ClaimState.FAILED): frozenset({Cause.SENDER}),
    (ClaimState.CLAIMED, ClaimState.UNKNOWN): frozenset({Cause.SENDER, Cause.SETTLE}),
    # The next attempt, claimed in the same statement that finds the failure.
    (ClaimState.FAILED, ClaimState.CLAIMED): frozenset({Cause.SENDER, Cause.POLICY, Cause.REPLAY}),
    (ClaimState.UNKNOWN, ClaimState.CLAIMED): frozenset({Cause.POLICY, Cause.REPLAY}),
}
"""What may happen to a claim, besides `merge` of late records and the claimless security send (POL-7: nothing → its outcome)."""


def merge(
    current: ClaimState, current_attempt: int, incoming: ClaimState, incoming_attempt: int
) -> ClaimState:
    """What a claim becomes when a record arrives, in whatever order.

    Sent wins over everything. Within one attempt sent > rejected > unknown > failed > claimed.
    From an older attempt only `sent` is merged.
    """
    if incoming is ClaimState.SENT:
        return ClaimState.SENT
    if incoming_attempt == current_attempt and CLAIM_RANK[incoming] > CLAIM_RANK[current]:
        return incoming
    return current
