"""A campaign that hurts or hangs pauses itself and says why (CAMP-9)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from activities.guard_rails import watch_over
from schemas.campaigns import Control
from schemas.kinds import CampaignPhase, ControlState
from tests.campaign_fakes import TENANT, CampaignStage, a_stage, until


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        yield stage


async def sent(stage: CampaignStage, people: int) -> None:
    await stage.set_up(people)
    await stage.launch()
    await stage.plan()
    await stage.send()
    await stage.campaigns.set_phase(TENANT, stage.campaign_id, CampaignPhase.RUNNING)


async def receipts(stage: CampaignStage, column: str, people: int) -> None:
    """As receipts will write them."""
    await stage.pool.execute(
        f"UPDATE claims SET {column} = now() WHERE recipient_id < $1", f"r{people:06d}"
    )


async def control(stage: CampaignStage) -> Control:
    return await stage.campaigns.control(TENANT, stage.campaign_id)


async def look(stage: CampaignStage) -> Control:
    await stage.run(stage.plan_activities().guard_rails, stage.ref)
    return await control(stage)


@pytest.mark.parametrize(
    ("column", "fine", "too_many", "reason"),
    [
        ("bounced_at", 6, 7, "bounce_rate 7 of 200"),
        ("complained_at", 1, 2, "complaint_rate 2 of 200"),
    ],
)
async def test_receipts_over_the_limit_pause_it_and_what_was_looked_at_does_not_again(
    stage: CampaignStage, column: str, fine: int, too_many: int, reason: str
):
    await sent(stage, 200)
    await receipts(stage, column, fine)
    assert (await look(stage)).state is ControlState.RUNNING
    await receipts(stage, column, too_many)
    paused = await look(stage)
    assert (paused.state, paused.by) == (ControlState.PAUSED, "sendloom")
    assert paused.reason.startswith(reason)
    await stage.campaigns.set_control(
        TENANT, stage.campaign_id, ControlState.RUNNING, None, "looked", "ops"
    )
    assert (await look(stage)).state is ControlState.RUNNING


async def test_nothing_leaving_for_long_pauses_it(
    stage: CampaignStage,
):
    await stage.set_up(10)
    await stage.launch()
    await stage.plan()
    await stage.campaigns.set_phase(TENANT, stage.campaign_id, CampaignPhase.RUNNING)
    row = await stage.row()
    assert row.frozen_at is not None
    later = max(row.frozen_at, datetime.now(UTC)) + timedelta(minutes=14)
    assert await watch_over(stage.campaigns, row, stalled_at=later) is None
    paused = await watch_over(stage.campaigns, row, stalled_at=later + timedelta(minutes=2))
    assert paused is not None
    assert paused.reason.startswith("stalled")
    assert "10 could go" in paused.reason


async def test_a_stretch_that_is_sending_stops_within_seconds_of_the_bounces(
    stage: CampaignStage,
):
    await stage.set_up(600, page_size=100)
    await stage.launch()
    await stage.plan()
    await stage.send(max_recipients=300)
    await receipts(stage, "bounced_at", 60)
    sending = stage.send_activities()

    async def slow(mails: object) -> None:
        await until(lambda: sending.lane.watch.look(TENANT, stage.campaign_id).version > 0)

    stage.mailer.before_batch = slow
    result = await stage.send(sending)
    assert result.control is ControlState.PAUSED
    assert (await stage.states())["pending"] > 0
    assert (await control(stage)).reason.startswith("bounce_rate 60 of")
