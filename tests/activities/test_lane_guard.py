"""Marketing gives way while security waits, and goes on by itself (LANE-3)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest_asyncio

from activities.lane_guard import APART, TOGETHER, LaneGuard
from sendloom.errors import StoreUnavailable
from tests.campaign_fakes import CampaignStage, a_stage, until
from tests.fakes import FakeClock


class Backlog:
    """What security waits for, as a test says."""

    def __init__(self) -> None:
        self.age: timedelta | None = None
        self.away = False
        self.looks = 0

    async def oldest_waiting_security(self, at_least: timedelta) -> timedelta | None:
        self.looks += 1
        if self.away:
            raise StoreUnavailable("Postgres")
        return self.age if self.age is not None and self.age >= at_least else None


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        yield stage


async def test_it_yields_over_two_seconds_and_resumes_under_one():
    backlog, clock = Backlog(), FakeClock()
    guard = LaneGuard(backlog, monotonic=clock.monotonic)
    seen = []
    for seconds in (None, 1.9, 2.1, 1.5, 1.1, 0.9, 1.5, 2.0, 2.5, None):
        backlog.age = None if seconds is None else timedelta(seconds=seconds)
        await guard.look()
        seen.append(guard.yields)
    assert seen == [False, False, True, True, True, False, False, False, True, False]


async def test_on_the_same_cores_it_yields_before_anybody_notices():
    backlog, clock = Backlog(), FakeClock()
    guard = LaneGuard(backlog, patience=TOGETHER, monotonic=clock.monotonic)
    seen = []
    for milliseconds in (150, 250, 150, 90, 150):
        backlog.age = timedelta(milliseconds=milliseconds)
        await guard.look()
        seen.append(guard.yields)
    assert seen == [False, True, True, False, False]


async def test_what_it_heard_long_ago_holds_nobody_up():
    backlog, clock = Backlog(), FakeClock()
    guard = LaneGuard(backlog, monotonic=clock.monotonic)
    backlog.age = timedelta(seconds=9)
    await guard.look()
    backlog.away = True
    clock.advance(timedelta(seconds=4))
    await guard.look()
    assert guard.yields
    clock.advance(timedelta(seconds=2))
    await guard.look()
    assert not guard.yields


async def test_it_looks_only_while_something_is_sent():
    backlog = Backlog()
    guard = LaneGuard(backlog, patience=replace(APART, every=0.001))
    async with guard.watching():
        async with guard.watching():
            await until(lambda: backlog.looks > 2)
        looks = backlog.looks
        await until(lambda: backlog.looks > looks)
    looks = backlog.looks
    for _ in range(20):
        await asyncio.sleep(0)
    assert backlog.looks == looks


async def test_a_stretch_gives_way_in_mid_flight_and_goes_on_by_itself(stage: CampaignStage):
    await stage.set_up(400, page_size=100)
    await stage.launch()
    await stage.plan()
    backlog = Backlog()
    guard = LaneGuard(backlog, patience=replace(APART, every=0.01))
    sending = stage.send_activities(guard=guard)

    async def security_falls_behind(mails: object) -> None:
        backlog.age = timedelta(seconds=3)
        await until(lambda: guard.yields)

    stage.mailer.before_batch = security_falls_behind
    stretch = asyncio.create_task(stage.send(sending))
    await until(lambda: guard.yields and sending.lane.budget.in_doubt == 0)
    held = len(stage.mailer.mails)
    looks = backlog.looks
    await until(lambda: backlog.looks > looks + 20)
    assert 0 < held < 400
    assert len(stage.mailer.mails) == held
    assert not stretch.done()
    stage.mailer.before_batch = None
    backlog.age = None
    assert (await stretch).done
    assert (await stage.states()) == {"sent": 400}
