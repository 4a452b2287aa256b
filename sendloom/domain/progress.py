"""What a campaign's counts say."""

from collections.abc import Mapping

from schemas.kinds import RecipientState
from sendloom.domain.outcomes import OPEN

_REASONS_NAMED = 5


def total(counts: Mapping[RecipientState, int]) -> int:
    return sum(counts.values())


def still_open(counts: Mapping[RecipientState, int]) -> int:
    """Recipients without a final state."""
    return sum(counts.get(state, 0) for state in OPEN)


def adds_up(counts: Mapping[RecipientState, int], size: int) -> bool:
    """Whether everybody of the frozen audience is in exactly one state."""
    return total(counts) == size and all(count >= 0 for count in counts.values())


def nobody_sent(counts: Mapping[RecipientState, int], reasons: Mapping[str, int]) -> str:
    """Why a campaign ended with nothing sent; empty when something was."""
    if counts.get(RecipientState.SENT, 0):
        return ""
    named = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:_REASONS_NAMED]
    why = ", ".join(f"{reason} {count}" for reason, count in named)
    return f"nobody was sent to: {why}" if why else "nobody was sent to"
