"""What callers are told of a campaign that cannot be told."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from api.errors import TemporalUnavailable
from api.nudges import Nudges
from api.ports import Gone
from schemas.campaigns import ControlSignal

ID = uuid4()
SOON = 60.0


class Campaign:
    """Somebody to tell, who may be busy or gone."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []
        self.tried = 0
        self.reached = asyncio.Event()
        self.busy = 0
        """Refuses so many times."""
        self.gone = False
        self.slow: asyncio.Event | None = None

    async def tell(self, id: UUID, name: str, signal: ControlSignal) -> None:
        self.tried += 1
        self.reached.set()
        if self.gone:
            raise Gone
        if self.busy:
            self.busy -= 1
            raise TemporalUnavailable("Temporal: RESOURCE_EXHAUSTED")
        if self.slow is not None:
            await self.slow.wait()
        self.told.append((name, signal.version))


@pytest.fixture
def campaign() -> Campaign:
    return Campaign()


@pytest_asyncio.fixture
async def nudges(campaign: Campaign) -> AsyncIterator[Nudges]:
    made = Nudges(campaign.tell, first_pause=0.001, longest_pause=0.004)
    yield made
    await made.close()


async def until_told(campaign: Campaign, *what: tuple[str, int | None]) -> None:
    async with asyncio.timeout(SOON):
        while campaign.told != list(what):  # noqa: ASYNC110 - somebody else does it
            await asyncio.sleep(0.001)


async def test_who_is_there_is_told_before_the_answer(campaign: Campaign, nudges: Nudges):
    await nudges.nudge(ID, "pause", ControlSignal(version=1), SOON)
    assert campaign.told == [("pause", 1)]


async def test_c75_a_refused_nudge_is_no_error_and_is_made_again_until_it_is_taken(
    campaign: Campaign, nudges: Nudges
):
    campaign.busy = 5
    await nudges.nudge(ID, "pause", ControlSignal(version=1), SOON)
    assert campaign.told == []
    await until_told(campaign, ("pause", 1))
    assert campaign.tried == 6


async def test_c75_of_a_flood_only_the_newest_of_each_is_told(campaign: Campaign, nudges: Nudges):
    campaign.slow = asyncio.Event()
    flood = [
        asyncio.create_task(nudges.nudge(ID, name, ControlSignal(version=n), SOON))
        for n in range(1, 20_001)
        for name in ("pause" if n % 2 else "resume",)
    ]
    await campaign.reached.wait()
    campaign.slow.set()
    await asyncio.wait_for(asyncio.gather(*flood), SOON)
    assert ("pause", 19_999) in campaign.told
    assert campaign.told[-1] == ("resume", 20_000)
    assert len(campaign.told) <= 4


async def test_an_older_row_does_not_take_a_newer_ones_place(campaign: Campaign):
    nudges = Nudges(campaign.tell, first_pause=3600.0, longest_pause=3600.0)
    campaign.busy = 1
    await nudges.nudge(ID, "set_rate", ControlSignal(version=7), SOON)
    await nudges.nudge(ID, "set_rate", ControlSignal(version=6), SOON)
    await until_told(campaign, ("set_rate", 7))
    await nudges.close()


async def test_whoever_asks_while_it_is_busy_has_it_tried_at_once(campaign: Campaign):
    nudges = Nudges(campaign.tell, first_pause=3600.0, longest_pause=3600.0)
    campaign.busy = 1
    await nudges.nudge(ID, "pause", ControlSignal(version=1), SOON)
    await nudges.nudge(ID, "resume", ControlSignal(version=2), SOON)
    await until_told(campaign, ("pause", 1), ("resume", 2))
    await nudges.close()


async def test_who_hangs_is_not_waited_for_longer_than_a_caller_waits(
    campaign: Campaign, nudges: Nudges
):
    campaign.slow = asyncio.Event()
    await nudges.nudge(ID, "cancel", ControlSignal(version=1), 0.01)
    assert campaign.told == []
    campaign.slow.set()
    await until_told(campaign, ("cancel", 1))


async def test_who_is_gone_is_not_told_again(campaign: Campaign, nudges: Nudges):
    campaign.gone = True
    await nudges.nudge(ID, "pause", ControlSignal(version=1), SOON)
    campaign.gone = False
    await nudges.nudge(ID, "resume", ControlSignal(version=2), SOON)
    assert campaign.told == [("resume", 2)]


async def test_it_is_given_up_after_a_while_and_told_of_the_next(campaign: Campaign):
    nudges = Nudges(campaign.tell, first_pause=0.001, give_up_after=0.0)
    campaign.busy = 1
    await nudges.nudge(ID, "pause", ControlSignal(version=1), SOON)
    await nudges.nudge(ID, "resume", ControlSignal(version=2), SOON)
    await until_told(campaign, ("resume", 2))
