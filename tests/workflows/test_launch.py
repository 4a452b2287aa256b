"""Between the freeze and the first send: preflight, the second person, and what may cut them short (CAMP-8, CAMP-15)."""

import asyncio
from datetime import timedelta

from temporalio.client import Client

from schemas.campaigns import ControlSignal, PreflightReport
from schemas.kinds import CampaignPhase, ControlState
from tests.conftest import TimeSkipping
from tests.workflows.campaign_world import CampaignWorld, ended, serving, skipping
from tests.workflows.running import PATIENCE, eventually
from tests.workflows.short_campaign import ShortCampaign
from workflows.campaign import CampaignWorkflow

APPROVAL = PreflightReport(ok=True, approval_needed=True)


async def test_a_preflight_that_fails_ends_it_and_nobody_is_planned(temporal_client: Client):
    world = CampaignWorld()
    world.report = PreflightReport(ok=False, code="preflight_failed", reason="no name")
    async with serving(temporal_client, world):
        progress = await (await world.start(temporal_client)).result()
    assert (progress.phase, progress.reason) == (CampaignPhase.FAILED, "preflight_failed")
    assert not world.sent
    assert not world.planned


async def test_cancelled_during_preflight_it_ends_cancelled_and_adds_up(temporal_client: Client):
    world = CampaignWorld()
    world.before_report = asyncio.Event()
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_preflight.wait()
        signal = world.write_control(ControlState.CANCELLED, "typo")
        await handle.signal(CampaignWorkflow.cancel, signal)
        world.before_report.set()
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert progress.phase is CampaignPhase.CANCELLED
    assert (sum(world.sent.values()), world.cancelled_rest) == (0, world.size)


async def test_it_waits_for_the_second_person_and_the_row_decides_not_the_signal(
    temporal_client: Client,
):
    world = CampaignWorld(shards=1)
    world.report = APPROVAL
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await eventually(lambda: (CampaignPhase.AWAITING_APPROVAL, "") in world.phases)
        await eventually(lambda: world.approval_looks == 1)
        # From Temporal's own UI, by somebody whom nobody has checked.
        await handle.signal(CampaignWorkflow.approve, ControlSignal())
        await eventually(lambda: world.approval_looks == 2)
        assert not world.planned
        world.approved = True
        await handle.signal(CampaignWorkflow.approve, ControlSignal(by="key:two"))
        await handle.signal(CampaignWorkflow.approve, ControlSignal(by="key:two"))
        await asyncio.wait_for(handle.result(), PATIENCE)
    assert world.everybody_once


async def test_an_approval_whose_signal_was_lost_is_found(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1)
        world.report = APPROVAL
        async with skipping(env, world):
            handle = await world.start(env.client)
            await eventually(lambda: world.approval_looks == 1)
            world.approved = True
            await ended(handle)
    assert world.everybody_once


async def test_a_week_without_an_approval_costs_little_history_and_ends_failed(
    time_skipping: TimeSkipping,
):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1)
        world.report = APPROVAL
        async with skipping(env, world, cached=100):
            handle = await world.start(env.client)
            await eventually(lambda: world.approval_looks == 1)
            await env.sleep(timedelta(hours=6))
            assert world.approval_looks < 40
            world.not_approved = "not_approved"
            progress = await ended(handle)
    assert (progress.phase, progress.reason) == (CampaignPhase.FAILED, "not_approved")
    assert not world.sent


async def test_cancelled_while_it_waits_for_approval(temporal_client: Client):
    world = CampaignWorld()
    world.report = APPROVAL
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await eventually(lambda: world.approval_looks == 1)
        await handle.signal(CampaignWorkflow.cancel, world.write_control(ControlState.CANCELLED))
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert progress.phase is CampaignPhase.CANCELLED
    assert world.cancelled_rest == world.size
    assert not world.sent


async def test_cancelled_while_it_waits_for_approval_and_the_signal_was_lost(
    time_skipping: TimeSkipping,
):
    async with time_skipping() as env:
        world = CampaignWorld()
        world.report = APPROVAL
        async with skipping(env, world):
            handle = await world.start(env.client)
            await eventually(lambda: world.approval_looks == 1)
            world.write_control(ControlState.CANCELLED)
            progress = await ended(handle)
    assert progress.phase is CampaignPhase.CANCELLED
    assert not world.sent


async def test_c75_a_flood_while_it_waits_for_approval_approves_nothing(temporal_client: Client):
    """A run that continues as new has not passed what it was in."""
    world = CampaignWorld(shards=1)
    world.report = APPROVAL
    async with serving(temporal_client, world, cached=100, campaign=ShortCampaign):
        handle = await world.start(temporal_client)
        await eventually(lambda: world.approval_looks == 1)
        async with asyncio.timeout(PATIENCE):
            while (await handle.describe()).run_id == handle.first_execution_run_id:
                await handle.signal(CampaignWorkflow.approve, ControlSignal())
        # The next run asks again, or sends.
        await eventually(lambda: world.preflights == 2 or bool(world.planned))
        looks = world.approval_looks
        await eventually(lambda: world.approval_looks > looks or bool(world.planned))
        assert not world.planned
        assert {phase for phase, _ in world.phases} == {
            CampaignPhase.PREFLIGHT,
            CampaignPhase.AWAITING_APPROVAL,
        }
        world.approved = True
        await handle.signal(CampaignWorkflow.approve, ControlSignal(by="key:two"))
        await asyncio.wait_for(handle.result(), PATIENCE)
    assert world.everybody_once


async def test_started_again_in_mid_flight_it_is_not_looked_over_again(temporal_client: Client):
    """After the loss of Temporal's data a deadline that has come closer must not end what has begun."""
    world = CampaignWorld(shards=1)
    world.under_way = True
    world.report = PreflightReport(ok=False, code="deadline_infeasible")
    async with serving(temporal_client, world):
        progress = await asyncio.wait_for((await world.start(temporal_client)).result(), PATIENCE)
    assert progress.phase is CampaignPhase.COMPLETED
    assert world.preflights == 0


async def test_a_pause_during_preflight_holds_it_before_the_first_send(temporal_client: Client):
    world = CampaignWorld(shards=1)
    world.before_report = asyncio.Event()
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_preflight.wait()
        await handle.signal(CampaignWorkflow.pause, world.write_control(ControlState.PAUSED, "hm"))
        world.before_report.set()
        await eventually(lambda: (CampaignPhase.PAUSED, "hm") in world.phases)
        assert not world.sent
        await handle.signal(CampaignWorkflow.resume, world.write_control(ControlState.RUNNING))
        await asyncio.wait_for(handle.result(), PATIENCE)
    assert world.everybody_once
