"""The order in which messages are refused under load (LANE-4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import MessageClass
from sendloom.domain.shedding import WAITS, load, sheds, wait

ORDER = [
    (MessageClass.MARKETING, 1),
    (MessageClass.TRANSACTIONAL, 5),
    (MessageClass.TRANSACTIONAL, 3),
    (MessageClass.SECURITY, 5),
]
LOADS = st.floats(0, 1000)
ANY = st.sampled_from(ORDER)


@given(LOADS)
def test_what_comes_later_in_the_order_is_never_refused_before_what_comes_earlier(now: float):
    refused = [sheds(now, *kind) for kind in ORDER]
    assert refused == sorted(refused, reverse=True)


@given(LOADS, st.integers(1, 5))
def test_security_is_never_refused(now: float, priority: int):
    assert not sheds(now, MessageClass.SECURITY, priority)


@given(LOADS, LOADS, ANY)
def test_more_load_never_refuses_less(one: float, other: float, kind: tuple[MessageClass, int]):
    low, high = sorted((one, other))
    assert sheds(high, *kind) or not sheds(low, *kind)
    assert wait(low, *kind) <= wait(high, *kind)
    assert WAITS[0] <= wait(high, *kind) <= WAITS[1]


@pytest.mark.parametrize(("now", "refused"), [(0.5, 0), (0.7, 1), (0.9, 2), (1.0, 3), (50.0, 3)])
def test_one_after_the_other_is_refused_as_load_rises(now: float, refused: int):
    assert sum(sheds(now, *kind) for kind in ORDER) == refused


def test_either_too_many_at_once_or_too_slow_is_load():
    assert load(10, 10, 0.0, 1.0) == 1.0
    assert load(0, 10, 2.0, 1.0) == 2.0
