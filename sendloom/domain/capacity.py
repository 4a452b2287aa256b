"""How many worker processes a class should have (LANE-8). Security by its worst hour and never nothing, all by the age of their
oldest item, marketing never over its ceiling."""

import math
from dataclasses import dataclass
from datetime import timedelta

from schemas.kinds import MessageClass

HEADROOM = 2
"""Security is sized for this many times its worst hour."""

SECURITY_PER_PROCESS = 7.0
"""Passcodes a second that one process and its share of Temporal carry: half of what two shared cores did (docs/capacity.md)."""

PATIENCE = {
    # A passcode has one second in all, and a process takes seconds to start.
    MessageClass.SECURITY: timedelta(milliseconds=250),
    MessageClass.TRANSACTIONAL: timedelta(seconds=2),
    # A campaign is paced; a short wait says nothing.
    MessageClass.MARKETING: timedelta(seconds=30),
}
"""Something that waits longer than this asks for more processes."""

CALM = 0.25
"""Of the patience. Only below it a process is given up, so that the number does not flap."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How few and how many processes of a class there may be."""

    least: int
    most: int | None = None
    """None: as many as it takes."""


def security_least(worst_hour: int) -> int:
    """The fewest security processes, for `worst_hour` messages in the worst hour seen or expected."""
    return max(1, math.ceil(HEADROOM * worst_hour / 3600 / SECURITY_PER_PROCESS))


def bounds(message_class: MessageClass, *, worst_hour: int, marketing_most: int) -> Bounds:
    match message_class:
        case MessageClass.SECURITY:
            return Bounds(security_least(worst_hour))
        case MessageClass.MARKETING:
            return Bounds(0, marketing_most)
        case _:
            return Bounds(1)


def wanted(message_class: MessageClass, running: int, oldest: timedelta, within: Bounds) -> int:
    """The number of processes to have next: at most twice as many as now, at most one fewer."""
    patience = PATIENCE[message_class]
    if oldest > patience:
        aim = max(running + 1, math.ceil(running * min(2.0, oldest / patience)))
    elif oldest < patience * CALM:
        aim = running - 1
    else:
        aim = running
    aim = max(aim, within.least)
    return aim if within.most is None else min(aim, within.most)
