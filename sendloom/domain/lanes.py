"""Which queue a send waits in, and how much of everything a lane may use. Queue names are part of our contract with running workflows."""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.kinds import Channel, MessageClass


@dataclass(frozen=True, slots=True)
class Lane:
    """One (channel, class): a task queue, its workers, provider calls and database connections."""

    channel: Channel
    message_class: MessageClass
    queue: str
    activity_slots: int
    """How many activities at once, in one process. A campaign's stretches fill the in-doubt budget three at a time; with many
    more places one process takes two thirds of the last shards, and the other looks on while they end."""
    calls_in_flight: int
    """How many provider calls at once, over all of them, in one process. Also the in-doubt budget."""
    pool_size: int
    """Database connections of the lane in one process."""


IN_DOUBT_MAX = 200
"""Claimed and not recorded, a lane and process (CAMP-4)."""


def _lane(channel: Channel, message_class: MessageClass, slots: int, calls: int, pool: int) -> Lane:
    assert calls <= IN_DOUBT_MAX
    return Lane(channel, message_class, f"send-{channel}-{message_class}", slots, calls, pool)


_SECURITY, _TRANSACTIONAL, _MARKETING = (
    MessageClass.SECURITY,
    MessageClass.TRANSACTIONAL,
    MessageClass.MARKETING,
)

LANES: dict[tuple[Channel, MessageClass], Lane] = {
    (lane.channel, lane.message_class): lane
    for lane in (
        _lane(Channel.EMAIL, _SECURITY, slots=100, calls=100, pool=4),
        _lane(Channel.EMAIL, _TRANSACTIONAL, slots=100, calls=100, pool=4),
        _lane(Channel.EMAIL, _MARKETING, slots=5, calls=200, pool=4),
        _lane(Channel.SMS, _SECURITY, slots=100, calls=100, pool=4),
        _lane(Channel.SMS, _TRANSACTIONAL, slots=100, calls=100, pool=4),
        _lane(Channel.SMS, _MARKETING, slots=8, calls=50, pool=3),
        _lane(Channel.APNS, _SECURITY, slots=100, calls=100, pool=2),
        _lane(Channel.APNS, _TRANSACTIONAL, slots=100, calls=100, pool=2),
        _lane(Channel.APNS, _MARKETING, slots=4, calls=100, pool=2),
        _lane(Channel.FCM, _SECURITY, slots=100, calls=100, pool=2),
        _lane(Channel.FCM, _TRANSACTIONAL, slots=100, calls=100, pool=2),
        _lane(Channel.FCM, _MARKETING, slots=4, calls=100, pool=2),
    )
}


def lane_for(channel: Channel, message_class: MessageClass) -> Lane:
    return LANES[channel, message_class]


def lanes_of(message_class: MessageClass) -> Iterator[Lane]:
    """The four lanes one class process serves."""
    return (lane for lane in LANES.values() if lane.message_class is message_class)


def flow_queue(message_class: MessageClass) -> str:
    """Where the class's workflows, and the activities that call no provider, run."""
    return f"flow-{message_class}"


OPS_QUEUE = "ops"
"""What no class is responsible for: wake-ups of schedules."""
