"""The in-doubt budget, and what a process knows of control rows."""

import asyncio
from datetime import datetime
from uuid import UUID, uuid4

import pytest

from activities.campaign_control import CampaignKey, ControlWatch, InDoubtBudget
from schemas.campaigns import Control
from schemas.kinds import ControlState
from tests.campaign_fakes import until


async def test_the_budget_is_given_in_the_order_it_was_asked_for():
    budget = InDoubtBudget(200)
    order: list[str] = []

    async def ask(name: str, rows: int) -> None:
        await budget.acquire(rows)
        order.append(name)

    await ask("first", 150)
    # The small one would fit, but then the big one might wait for ever.
    waiting = [asyncio.create_task(ask("big", 100)), asyncio.create_task(ask("small", 10))]
    await asyncio.sleep(0)
    assert order == ["first"]
    budget.release(150)
    await asyncio.gather(*waiting)
    assert order == ["first", "big", "small"]
    assert budget.in_doubt == 110


async def test_who_gives_up_waiting_leaves_no_hole():
    budget = InDoubtBudget(10)
    await budget.acquire(10)
    gives_up = asyncio.create_task(budget.acquire(5))
    waits = asyncio.create_task(budget.acquire(5))
    await asyncio.sleep(0)
    gives_up.cancel()
    await asyncio.gather(gives_up, return_exceptions=True)
    budget.release(10)
    await waits
    assert budget.in_doubt == 5


async def test_cancelled_in_the_moment_it_was_served_the_rows_are_given_back():
    budget = InDoubtBudget(10)
    await budget.acquire(10)
    served = asyncio.create_task(budget.acquire(5))
    await asyncio.sleep(0)
    budget.release(10)
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)
    assert budget.in_doubt == 0


async def test_everybody_who_waits_may_give_up_in_the_same_moment():
    """A stretch that is cancelled while several of its pages wait: each hears that it was cancelled, and nothing else."""
    budget = InDoubtBudget(10)
    await budget.acquire(5)
    waiting = [asyncio.create_task(budget.acquire(rows)) for rows in (6, 1, 1)]
    await asyncio.sleep(0)
    for one in waiting:
        one.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(e) for e in ended] == [asyncio.CancelledError] * 3
    assert budget.in_doubt == 5
    await budget.acquire(5)


async def test_more_than_the_budget_is_refused_at_once():
    with pytest.raises(ValueError, match="never"):
        await InDoubtBudget(10).acquire(11)


class Rows:
    """Control rows in memory."""

    def __init__(self) -> None:
        self.controls: dict[CampaignKey, Control] = {}
        self.polls = 0

    async def control(self, tenant: str, campaign_id: UUID) -> Control:
        return self.controls[tenant, campaign_id]

    async def controls_changed_since(self, at: datetime) -> dict[CampaignKey, Control]:
        self.polls += 1
        return dict(self.controls)


async def test_a_change_is_heard_and_an_older_version_is_not():
    rows, id = Rows(), uuid4()
    rows.controls["acme", id] = Control(version=4, state=ControlState.RUNNING)
    watch = ControlWatch(rows, every=0.01)
    await watch.follow("acme", id)
    assert watch.may_call("acme", id)
    rows.controls["acme", id] = Control(version=5, state=ControlState.PAUSED)
    await until(lambda: not watch.may_call("acme", id))
    rows.controls["acme", id] = Control(version=3, state=ControlState.RUNNING)
    polls = rows.polls
    await until(lambda: rows.polls > polls + 2)
    assert not watch.may_call("acme", id)
    await watch.close()


async def test_nobody_is_watched_for_once_the_last_has_left():
    rows, id = Rows(), uuid4()
    rows.controls["acme", id] = Control(version=1, state=ControlState.RUNNING)
    watch = ControlWatch(rows, every=0.01)
    await watch.follow("acme", id)
    await watch.follow("acme", id)
    watch.leave("acme", id)
    assert watch.may_call("acme", id)
    watch.leave("acme", id)
    assert not watch.may_call("acme", id)
    await watch.follow("acme", id)
    assert watch.may_call("acme", id)
    await watch.close()
