"""The limiter's rule, with a clock of the test's own."""

import pytest

from api.errors import Limited
from api.limits import BEARABLE, IN_FLIGHT_ROOM, Limiter, Load
from schemas.kinds import MessageClass


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def take_all(limiter: Limiter, per_second: float) -> int:
    taken = 0
    while True:
        try:
            limiter.take("t", "k", per_second)
        except Limited:
            return taken
        taken += 1


def test_a_key_has_two_seconds_of_its_rate_at_once_and_then_its_rate():
    clock = Clock()
    limiter = Limiter(clock)
    assert take_all(limiter, 10) == 20
    clock.now = 0.5
    assert take_all(limiter, 10) == 5


def test_marketing_is_refused_first_and_security_never_before_the_bucket_is_empty():
    limiter = Limiter(Clock())

    def refused() -> set[MessageClass]:
        found = set()
        for message_class in MessageClass:
            try:
                limiter.leave_room("t", "k", 10, message_class)
            except Limited:
                found.add(message_class)
        return found

    limiter.take("t", "k", 10)
    assert refused() == set()
    for _ in range(10):
        limiter.take("t", "k", 10)
    assert refused() == {MessageClass.MARKETING}
    for _ in range(8):
        limiter.take("t", "k", 10)
    assert refused() == {MessageClass.MARKETING, MessageClass.TRANSACTIONAL}


def test_one_keys_flood_is_not_anothers():
    limiter = Limiter(Clock())
    take_all(limiter, 10)
    limiter.take("t", "other", 10)
    with pytest.raises(Limited) as refused:
        limiter.take("t", "k", 10)
    assert refused.value.headers["Retry-After"] == "1"


# --- load -----------------------------------------------------------------------------------------------------------------


def shed(load: Load) -> list[tuple[MessageClass, int]]:
    found = []
    for kind in (
        (MessageClass.MARKETING, 1),
        (MessageClass.TRANSACTIONAL, 4),
        (MessageClass.TRANSACTIONAL, 3),
        (MessageClass.SECURITY, 3),
    ):
        try:
            load.leave_room(*kind)
        except Limited:
            found.append(kind)
    return found


def test_under_load_marketing_goes_first_then_low_priority_then_transactional_never_security():
    load = Load(Clock())
    order = []
    for _ in range(3 * IN_FLIGHT_ROOM):
        load.began()
        for kind in shed(load):
            if kind not in order:
                order.append(kind)
    assert order == [
        (MessageClass.MARKETING, 1),
        (MessageClass.TRANSACTIONAL, 4),
        (MessageClass.TRANSACTIONAL, 3),
    ]
    for _ in range(3 * IN_FLIGHT_ROOM):
        load.ended(200, 0.01)
    assert shed(load) == []


def test_slow_accepts_shed_and_are_forgotten_when_none_follow():
    clock = Clock()
    load = Load(clock)
    for _ in range(50):
        load.began()
        load.ended(202, 3 * BEARABLE)
    assert len(shed(load)) == 3
    clock.now += 60
    assert shed(load) == []


def test_what_is_no_accept_says_nothing_of_how_accepts_fare():
    load = Load(Clock())
    for _ in range(50):
        load.began()
        load.ended(503, 100.0)
    assert shed(load) == []
