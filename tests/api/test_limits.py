"""The limiter's rule, with a clock of the test's own."""

import pytest

from api.errors import Limited
from api.limits import Limiter
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
