"""How many processes a class gets (LANE-8)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import MessageClass
from sendloom.domain.capacity import (
    PATIENCE,
    SECURITY_PER_PROCESS,
    Bounds,
    bounds,
    security_least,
    wanted,
)

SECURITY, TRANSACTIONAL, MARKETING = (
    MessageClass.SECURITY,
    MessageClass.TRANSACTIONAL,
    MessageClass.MARKETING,
)


def of(message_class: MessageClass, worst_hour: int = 1, marketing_most: int = 4) -> Bounds:
    return bounds(message_class, worst_hour=worst_hour, marketing_most=marketing_most)


@given(st.integers(0, 100_000_000))
def test_security_is_sized_for_twice_its_worst_hour_and_not_for_more(worst_hour: int) -> None:
    processes, needed = security_least(worst_hour), 2 * worst_hour / 3600
    assert processes * SECURITY_PER_PROCESS >= needed
    assert processes == 1 or (processes - 1) * SECURITY_PER_PROCESS < needed


@given(st.integers(0, 50), st.integers(0, 3600), st.integers(0, 1_000_000))
def test_security_is_never_nothing_however_calm_it_is(running: int, age: int, hour: int) -> None:
    aim = wanted(SECURITY, running, timedelta(seconds=age), of(SECURITY, hour))
    assert aim >= max(1, security_least(hour))


@given(st.integers(0, 50), st.integers(0, 10**6), st.integers(1, 20))
def test_marketing_never_goes_over_its_ceiling_however_long_it_waits(
    running: int, age: int, most: int
) -> None:
    within = of(MARKETING, marketing_most=most)
    assert wanted(MARKETING, running, timedelta(seconds=age), within) <= most


@pytest.mark.parametrize("message_class", MessageClass)
def test_an_old_item_calls_for_more_and_a_young_one_for_one_fewer(
    message_class: MessageClass,
) -> None:
    patience, within = PATIENCE[message_class], of(message_class, marketing_most=100)
    assert wanted(message_class, 4, patience * 1.01, within) == 5
    assert wanted(message_class, 4, patience * 1.5, within) == 6
    assert wanted(message_class, 4, patience * 100, within) == 8
    assert wanted(message_class, 4, patience * 0.5, within) == 4
    assert wanted(message_class, 4, timedelta(0), within) == 3


def test_nobody_who_waits_is_left_without_a_process() -> None:
    assert wanted(MARKETING, 0, timedelta(minutes=1), of(MARKETING)) == 1
    assert wanted(MARKETING, 0, timedelta(0), of(MARKETING)) == 0
    assert wanted(TRANSACTIONAL, 1, timedelta(0), of(TRANSACTIONAL)) == 1
