"""What is refused first when there is too much: marketing, then low-priority transactional, then transactional, never security (LANE-4)."""

from schemas.kinds import MessageClass

LOW_PRIORITY = 4
"""Priorities run from 1 (first) to 5; the default is 3."""

SHED_AT = {
    MessageClass.MARKETING: 0.6,
    MessageClass.TRANSACTIONAL: 1.0,
}
SHED_LOW_AT = 0.8
"""For transactional of low priority."""

WAITS = (1, 30)
"""Seconds a caller is asked to wait: the least, and the most."""


def load(in_flight: int, room: int, seconds: float, bearable: float) -> float:
    """How full a process is: 1 when it answers as many at once, or as slowly, as it can bear."""
    return max(in_flight / room, seconds / bearable)


def shed_at(message_class: MessageClass, priority: int) -> float | None:
    """The load from which messages like this are refused; None: never."""
    if message_class is MessageClass.TRANSACTIONAL and priority >= LOW_PRIORITY:
        return SHED_LOW_AT
    return SHED_AT.get(message_class)


def sheds(now: float, message_class: MessageClass, priority: int) -> bool:
    """Whether it is refused under this load."""
    at = shed_at(message_class, priority)
    return at is not None and now >= at


def wait(now: float, message_class: MessageClass, priority: int) -> int:
    """Whole seconds before asking again: the further over, the longer, and what is shed first comes back last."""
    least, most = WAITS
    at = shed_at(message_class, priority)
    if at is None or now < at:
        return least
    return max(least, min(most, round(4 * now / at**2)))
