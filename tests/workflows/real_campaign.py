"""A campaign's workers on a real Temporal over a `CampaignStage`, and what its API would do."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from schemas.campaigns import CampaignInput, CampaignProgress, ControlSignal
from schemas.kinds import Channel, ControlState, MessageClass, Mode
from sendloom.domain.ids import campaign_workflow_id
from sendloom.domain.lanes import flow_queue, lane_for
from tests.campaign_fakes import TENANT, CampaignStage
from workers.sandbox import fast_runner
from workflows.campaign import CampaignWorkflow
from workflows.catch_up import CatchUpWorkflow
from workflows.due import DueWorkflow
from workflows.shard import ShardWorkflow

MARKETING = MessageClass.MARKETING
EMAIL_LANE = lane_for(Channel.EMAIL, MARKETING)


async def no_quiet_hours(stage: CampaignStage) -> None:
    await stage.pool.execute("UPDATE tenants SET quiet_start = '00:00', quiet_end = '00:00'")


@contextlib.asynccontextmanager
async def campaign_workers(
    client: Client, stage: CampaignStage, planning: Any = None, **ports: Any
) -> AsyncIterator[None]:
    planning, sending = stage.plan_activities(**(planning or {})), stage.send_activities(**ports)
    flow = Worker(
        client,
        task_queue=flow_queue(MARKETING),
        workflows=[CampaignWorkflow, ShardWorkflow, DueWorkflow, CatchUpWorkflow],
        activities=[
            planning.freeze,
            planning.preflight,
            planning.approval,
            planning.show_phase,
            planning.write_control,
            planning.control,
            planning.plan,
            planning.due,
            planning.progress,
            planning.settle,
            planning.guard_rails,
            planning.cancel_rest,
            planning.close,
        ],
        workflow_runner=fast_runner(),
        graceful_shutdown_timeout=timedelta(seconds=10),
    )
    lane = Worker(
        client,
        task_queue=EMAIL_LANE.queue,
        activities=[sending.send, sending.send_due],
        max_concurrent_activities=EMAIL_LANE.activity_slots,
        graceful_shutdown_timeout=timedelta(seconds=10),
    )
    async with flow, lane:
        yield


async def start_campaign(
    client: Client, stage: CampaignStage
) -> "WorkflowHandle[CampaignWorkflow, CampaignProgress]":
    return await client.start_workflow(
        CampaignWorkflow.run,
        CampaignInput(
            tenant=TENANT,
            mode=Mode.LIVE,
            campaign_id=stage.campaign_id,
            accepted_at=datetime.now(UTC),
        ),
        id=campaign_workflow_id(stage.campaign_id),
        task_queue=flow_queue(MARKETING),
    )


async def control(stage: CampaignStage, state: ControlState) -> ControlSignal:
    written = await stage.campaigns.set_control(
        TENANT, stage.campaign_id, state, None, "asked", "ops"
    )
    return ControlSignal(version=written.version, reason="asked", by="ops")
