"""A provider's pace, found out by what it says to a chunk of calls."""

from activities.stretch.pace import ProviderPace
from schemas.kinds import FaultScope
from schemas.outcomes import Accepted, CallOutcome, Failed
from sendloom.stores.tokens import LocalTokens

TOO_FAST = Failed(provider="relay", code="429", scope=FaultScope.PROVIDER, throttled=True)
TAKEN = Accepted(provider="relay", provider_message_id="1")


async def after(*called: CallOutcome) -> float:
    pace = ProviderPace("provider:relay", LocalTokens(share=1), None, lambda: 100.0)
    await pace.learn(called)
    [(_, rate)] = pace.buckets()
    return rate


async def test_c17_it_comes_down_from_what_the_provider_took_before_it_said_no():
    assert await after(*[TAKEN] * 60, *[TOO_FAST] * 40) == 30


async def test_c17_when_nothing_came_through_it_comes_down_from_what_was_asked_for():
    """The first chunk to end may be all refused; from 1 a second a campaign would climb for minutes."""
    assert await after(*[TOO_FAST] * 100) == 50
