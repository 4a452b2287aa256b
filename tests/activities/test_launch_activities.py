"""Preflight and approval over a real database: what they read, what they write, whom they look at."""

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from schemas.campaigns import PreflightReport
from schemas.kinds import CampaignPhase, ControlState
from tests.campaign_fakes import CATEGORY, TENANT, CampaignStage, a_stage


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        yield stage


async def preflight(stage: CampaignStage) -> PreflightReport:
    return await stage.run(stage.plan_activities().preflight, stage.ref)


async def test_a_hundred_are_looked_at_evenly_over_the_frozen_audience(stage: CampaignStage):
    await stage.set_up(1_037, page_size=50, pages_a_shard=4)
    frozen = await stage.launch()
    row = await stage.row()
    assert row.version_id is not None
    sample = await stage.campaigns.sample(TENANT, CATEGORY, row.version_id, 100)
    numbers = sorted(int(member.recipient_id[1:]) for member in sample)
    assert len(numbers) == len(set(numbers)) == 100
    gaps = [b - a for a, b in itertools.pairwise(numbers)]
    assert numbers[0] == 0
    assert max(gaps) <= 3 * frozen.size / 100
    report = await preflight(stage)
    assert (report.ok, report.checked, report.size) == (True, 100, 1_037)


@pytest.mark.parametrize("size", [1, 2, 99, 100, 101])
async def test_an_audience_of_few_is_looked_at_whole(stage: CampaignStage, size: int):
    await stage.set_up(size, page_size=7, pages_a_shard=3)
    await stage.launch()
    report = await preflight(stage)
    assert report.ok
    assert report.checked <= 100
    assert report.checked >= min(size, 90)


async def test_a_missing_name_refuses_the_launch_with_examples_and_without_addresses(
    stage: CampaignStage,
):
    def variables(n: int) -> dict[str, Any]:
        return {} if n % 10 == 3 else {"first_name": "{{name}}" if n == 5 else "Ana"}

    await stage.set_up(40, variables=variables)
    await stage.launch()
    report = await preflight(stage)
    assert (report.ok, report.code) == (False, "preflight_failed")
    assert "r000003: missing_variable first_name (email)" in report.examples
    assert "r000005: literal_braces (email)" in report.examples
    assert "@" not in report.model_dump_json()
    row = await stage.row()
    assert (row.phase, row.reason) == (CampaignPhase.FAILED, "preflight_failed")


async def test_who_cannot_be_reached_at_all_is_not_rendered(stage: CampaignStage):
    await stage.set_up(10, variables=lambda n: {} if n == 4 else {"first_name": "Ana"})
    await stage.pool.execute("DELETE FROM addresses WHERE recipient_id = 'r000004'")
    await stage.launch()
    report = await preflight(stage)
    assert (report.ok, report.checked) == (True, 9)


async def test_a_deadline_beyond_the_agreed_rate_refuses_the_launch(stage: CampaignStage):
    await stage.set_up(100)
    await stage.pool.execute("""UPDATE tenants SET settings = '{"rates": {"email": 1}}'""")
    deadline = stage.clock.now() + timedelta(seconds=60)
    await stage.launch(deadline=deadline.isoformat())
    report = await preflight(stage)
    assert report.code == "deadline_infeasible"
    assert report.finish_at == stage.clock.now() + timedelta(seconds=100)
    assert (await stage.row()).phase is CampaignPhase.FAILED


async def test_a_phase_shown_late_does_not_open_again_what_has_ended(stage: CampaignStage):
    await stage.set_up(1)
    await stage.launch()
    for phase in (CampaignPhase.FAILED, CampaignPhase.PREFLIGHT):
        await stage.campaigns.set_phase(TENANT, stage.campaign_id, phase, phase.value)
    row = await stage.row()
    assert (row.phase, row.reason) == (CampaignPhase.FAILED, "failed")
    assert row.closed_at is not None


async def test_a_cancelled_campaign_is_not_failed_by_its_preflight(stage: CampaignStage):
    await stage.set_up(3, variables=lambda n: {})
    await stage.launch()
    await stage.campaigns.set_control(
        TENANT, stage.campaign_id, ControlState.CANCELLED, None, "typo", "ops"
    )
    assert (await preflight(stage)).code == "preflight_failed"
    assert (await stage.row()).closed_at is None


async def test_only_somebody_else_may_approve_and_only_while_it_is_awaited(stage: CampaignStage):
    await stage.set_up(3)
    await stage.pool.execute("""UPDATE tenants SET settings = '{"approval_over": 2}'""")
    await stage.launch()
    await stage.pool.execute("UPDATE campaigns SET created_by = 'key:one'")
    assert (await preflight(stage)).approval_needed
    asked = stage.plan_activities().approval

    async def approve(by: str) -> bool:
        return await stage.campaigns.approve(TENANT, stage.campaign_id, by)

    assert not await approve("key:two")
    await stage.campaigns.set_phase(TENANT, stage.campaign_id, CampaignPhase.AWAITING_APPROVAL)
    assert not await approve("key:one")
    assert not (await stage.run(asked, stage.ref)).approved
    assert await approve("key:two")
    assert not await approve("key:three")
    assert (await stage.run(asked, stage.ref)).approved
    assert (await stage.row()).approved_by == "key:two"


async def test_what_nobody_approves_before_it_expires_fails(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    stage.pass_time(timedelta(days=8))
    said = await stage.run(stage.plan_activities().approval, stage.ref)
    assert (said.approved, said.refused) == (False, "not_approved")
    assert (await stage.row()).reason == "not_approved"
