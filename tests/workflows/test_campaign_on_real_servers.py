"""A whole campaign on a real Temporal and a real Postgres, with workers that come and go; only the mailer is scripted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest_asyncio
from temporalio.client import Client, WorkflowExecutionStatus

from schemas.campaigns import ControlSignal
from schemas.kinds import CampaignPhase, ControlState, RecipientState
from sendloom.domain.ids import campaign_workflow_id
from sendloom.ports import Move
from sendloom.stores.decisions import PostgresDecisions
from tests.campaign_fakes import TENANT, CampaignStage, a_stage, address_of, until
from tests.workflows.real_campaign import (
    campaign_workers,
    control,
    no_quiet_hours,
    start_campaign,
)
from tests.workflows.running import PATIENCE
from workflows.campaign import CampaignWorkflow


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        # Nothing here waits for anything but the servers, so ours is everybody's time. No hour of it is a quiet one.
        stage.clock.now = lambda: datetime.now(UTC)
        yield stage


async def test_c39_c21_paused_crashed_and_resumed_5001_get_exactly_one(
    temporal_client: Client, stage: CampaignStage
):
    await stage.set_up(5_001, page_size=250, pages_a_shard=6)
    await no_quiet_hours(stage)
    await stage.insert()

    class CrashesTwice(PostgresDecisions):
        """After the outcomes are recorded and before the decisions know."""

        crashes = 2

        async def move(self, moves: Sequence[Move]) -> int:
            if self.crashes and len(stage.mailer.mails) > 600:
                self.crashes -= 1
                raise RuntimeError("crashed")
            return await super().move(moves)

    reached = asyncio.Event()

    async def notice(count: int) -> None:
        if count == 1_500:
            reached.set()
            # Somebody pauses, and the pause is heard, before this batch goes on.
            handle = temporal_client.get_workflow_handle(campaign_workflow_id(stage.campaign_id))
            await handle.signal("pause", await control(stage, ControlState.PAUSED))

    stage.mailer.after_mail = notice
    async with campaign_workers(
        temporal_client, stage, decisions=CrashesTwice(stage.pool, stage.sealer)
    ):
        handle = await start_campaign(temporal_client, stage)
        await asyncio.wait_for(reached.wait(), 60)
        paused_at = 0
        # Whatever was in flight ends; then nothing moves.
        async with asyncio.timeout(PATIENCE):
            while paused_at != len(stage.mailer.mails) or (await stage.row()).phase != "paused":
                paused_at = len(stage.mailer.mails)
                await asyncio.sleep(0.3)
        assert 1_500 <= paused_at < 5_001
        counts = await stage.campaigns.counts(TENANT, stage.campaign_id)
        assert sum(counts.values()) == 5_001
    # All workers are gone; others come, and find the campaign paused.
    async with campaign_workers(temporal_client, stage):
        await handle.signal("resume", await control(stage, ControlState.RUNNING))
        await until(lambda: len(stage.mailer.mails) > paused_at)
        progress = await asyncio.wait_for(handle.result(), 90)
    assert progress.phase is CampaignPhase.COMPLETED
    assert progress.adds_up
    assert progress.counts[RecipientState.SENT] == 5_001
    assert stage.mailer.took == {address_of(f"r{n:06d}"): 1 for n in range(5_001)}
    row = await stage.row()
    assert (row.phase, row.size) == (CampaignPhase.COMPLETED, 5_001)
    assert row.closed_at is not None


async def test_c93_workers_told_to_stop_at_40_percent_leave_it_running_and_it_ends_at_100(
    temporal_client: Client, stage: CampaignStage
):
    """What SIGTERM leads to (`test_worker_process` sends a real one), in the middle of a batch: drained, and nobody is told
    that it is finished."""
    await stage.set_up(2_000, page_size=100, pages_a_shard=5)
    await no_quiet_hours(stage)
    await stage.insert()
    at_40_percent, stopping = asyncio.Event(), asyncio.Event()

    async def notice(count: int) -> None:
        if count >= 800:
            at_40_percent.set()
            # This batch is still on the wire when the process is told to stop, and any beside it.
            await stopping.wait()

    stage.mailer.after_mail = notice
    workers = contextlib.AsyncExitStack()
    await workers.enter_async_context(campaign_workers(temporal_client, stage))
    handle = await start_campaign(temporal_client, stage)
    await asyncio.wait_for(at_40_percent.wait(), 90)
    # On a fast machine it gets here before its phase is written to the row, which happens beside the sending.
    async with asyncio.timeout(PATIENCE):
        while (await stage.row()).phase is not CampaignPhase.RUNNING:  # noqa: ASYNC110 - a worker writes it
            await asyncio.sleep(0.05)
    drained = asyncio.create_task(workers.aclose())
    await asyncio.sleep(0)
    stopping.set()
    await asyncio.wait_for(drained, 60)

    stopped_at = len(stage.mailer.mails)
    assert 800 <= stopped_at < 1_600
    row = await stage.row()
    assert (row.phase, row.closed_at) == (CampaignPhase.RUNNING, None)
    described = await handle.describe()
    assert described.status is WorkflowExecutionStatus.RUNNING
    # Drained, so nothing is in doubt, and what is counted as sent is what left.
    assert await stage.claims() == {"sent": stopped_at}
    counts = await stage.campaigns.counts(TENANT, stage.campaign_id)
    assert sum(counts.values()) == 2_000
    assert (await stage.states())["sent"] == stopped_at

    async with campaign_workers(temporal_client, stage):
        progress = await asyncio.wait_for(handle.result(), 90)
    assert progress.phase is CampaignPhase.COMPLETED
    assert progress.counts[RecipientState.SENT] == 2_000
    assert stage.mailer.took == {address_of(f"r{n:06d}"): 1 for n in range(2_000)}
    row = await stage.row()
    assert row.phase is CampaignPhase.COMPLETED
    assert row.closed_at is not None


async def test_c79_a_cancel_from_the_api_leaves_true_counts(
    temporal_client: Client, stage: CampaignStage
):
    await stage.set_up(2_000, page_size=100, pages_a_shard=5)
    await no_quiet_hours(stage)
    await stage.insert()
    reached = asyncio.Event()

    async def cancel(count: int) -> None:
        if count == 300:
            handle = temporal_client.get_workflow_handle(campaign_workflow_id(stage.campaign_id))
            await handle.signal("cancel", await control(stage, ControlState.CANCELLED))
            reached.set()

    stage.mailer.after_mail = cancel
    async with campaign_workers(temporal_client, stage):
        handle = await start_campaign(temporal_client, stage)
        progress = await asyncio.wait_for(handle.result(), 60)
    assert reached.is_set()
    assert progress.phase is CampaignPhase.CANCELLED
    sent = len(stage.mailer.mails)
    assert 300 <= sent < 2_000
    assert await stage.counts() == {
        RecipientState.SENT: sent,
        RecipientState.CANCELLED: 2_000 - sent,
    }
    assert max(stage.mailer.took.values()) == 1


async def test_a_launch_for_one_person_waits_for_the_second_person_and_is_sent(
    temporal_client: Client, stage: CampaignStage
):
    await stage.set_up(1)
    await no_quiet_hours(stage)
    await stage.pool.execute("""UPDATE tenants SET settings = '{"approval_over": 0}'""")
    await stage.insert()
    await stage.pool.execute("UPDATE campaigns SET created_by = 'key:one'")
    async with campaign_workers(temporal_client, stage):
        handle = await start_campaign(temporal_client, stage)
        async with asyncio.timeout(PATIENCE):
            while not await stage.campaigns.approve(TENANT, stage.campaign_id, "key:two"):  # noqa: ASYNC110 - it is outside of us
                await asyncio.sleep(0.05)
        assert stage.mailer.took == {}
        await handle.signal(CampaignWorkflow.approve, ControlSignal(by="key:two"))
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert (progress.phase, progress.counts[RecipientState.SENT]) == (CampaignPhase.COMPLETED, 1)
    assert stage.mailer.took == {address_of("r000000"): 1}


async def test_all_suppressed_completes_with_nobody_sent_and_says_why(
    temporal_client: Client, stage: CampaignStage
):
    await stage.set_up(20)
    await no_quiet_hours(stage)
    await stage.pool.execute("UPDATE consents SET granted = false")
    await stage.insert()
    async with campaign_workers(temporal_client, stage):
        handle = await start_campaign(temporal_client, stage)
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert progress.phase is CampaignPhase.COMPLETED
    assert progress.counts[RecipientState.SUPPRESSED] == 20
    assert progress.reason.startswith("nobody was sent to: ")
    assert stage.mailer.took == {}


async def test_a_launch_whose_messages_are_wrong_fails_with_examples_and_sends_nothing(
    temporal_client: Client, stage: CampaignStage
):
    await stage.set_up(20, variables=lambda n: {})
    await no_quiet_hours(stage)
    await stage.insert()
    async with campaign_workers(temporal_client, stage):
        handle = await start_campaign(temporal_client, stage)
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert (progress.phase, progress.reason) == (CampaignPhase.FAILED, "preflight_failed")
    row = await stage.row()
    assert (row.phase, row.reason) == (CampaignPhase.FAILED, "preflight_failed")
    assert row.closed_at is not None
    assert stage.mailer.took == {}
