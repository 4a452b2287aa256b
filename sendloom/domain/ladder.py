"""The order in which a category tries channels."""

from collections.abc import Iterable

from schemas.kinds import Channel
from sendloom.errors import Refusal

Ladder = tuple[Channel, ...]


def read_ladder(channels: Iterable[str], *, field: str = "ladder") -> Ladder:
    """A category's ladder as asked for, first tried first.

    Raises:
        Refusal: `bad_ladder`: empty, unknown, or one channel twice.
    """
    try:
        ladder = tuple(Channel(channel) for channel in channels)
    except ValueError:
        ladder = ()
    if not ladder or len(set(ladder)) != len(ladder):
        raise Refusal(
            "bad_ladder",
            "a ladder names one or more different channels",
            field=field,
            fix=f"choose from {', '.join(Channel)}",
        )
    return ladder


def rungs(ladder: Ladder, from_rung: int = 0) -> list[tuple[int, Channel]]:
    """The rungs at or after one, numbered from the ladder's start."""
    return [(n, channel) for n, channel in enumerate(ladder) if n >= from_rung]
