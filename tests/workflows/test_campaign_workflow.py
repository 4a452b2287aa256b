"""A campaign's workflows: time skips, and no workflow is cached."""

import asyncio
import contextlib
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowHistoryEventFilterType,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from schemas.campaigns import (
    CampaignProgress,
    ControlSignal,
    DueInput,
    DueResult,
    LookAgain,
    Refused,
    SettleResult,
)
from schemas.kinds import CampaignPhase, Channel, ControlState, Mode
from sendloom.domain.ids import (
    catch_up_workflow_id,
    due_workflow_id,
    shard_workflow_id,
)
from sendloom.domain.lanes import flow_queue
from tests.conftest import TimeSkipping
from tests.workflows.campaign_world import MARKETING, CampaignWorld, ended, serving, skipping
from tests.workflows.running import PATIENCE, eventually
from tests.workflows.short_campaign import ShortCampaign
from workflows.campaign import ROLL_AT, WINDOW, CampaignWorkflow
from workflows.due import ROLL_AFTER, DueWorkflow

BOTH = (Channel.EMAIL, Channel.SMS)


async def test_a_campaign_sends_every_page_of_every_shard_once(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=5, channels=BOTH)
        async with skipping(env, world):
            progress = await ended(await world.start(env.client))
    assert progress.phase is CampaignPhase.COMPLETED
    assert world.everybody_once
    assert world.closed is CampaignPhase.COMPLETED


async def test_a_refused_launch_ends_failed_with_its_code(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld()
        world.refused = Refused(code="list_not_ready", reason="it is still uploading")
        async with skipping(env, world):
            progress = await ended(await world.start(env.client))
    assert (progress.phase, progress.reason) == (CampaignPhase.FAILED, "list_not_ready")
    assert not world.sent


async def test_nothing_leaves_before_its_send_time(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld()
        async with skipping(env, world):
            start = await env.get_current_time()
            handle = await world.start(env.client, send_at=start + timedelta(hours=9))
            await ended(handle)
            assert world.settles[0] >= start + timedelta(hours=9)
    assert world.everybody_once


async def test_started_again_after_its_end_it_does_nothing(time_skipping: TimeSkipping):
    """What a rebuild does with a campaign whose accepted row was not closed in time."""
    async with time_skipping() as env:
        world = CampaignWorld()
        async with skipping(env, world):
            await ended(await world.start(env.client))
            again = await ended(await world.start(env.client))
    assert again.phase is CampaignPhase.COMPLETED
    assert world.everybody_once


async def test_a_hanging_channel_does_not_hold_the_other(temporal_client: Client):
    world = CampaignWorld(shards=1, pages=6, channels=BOTH)
    hang = world.gate(0, 0, Channel.SMS)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await eventually(lambda: world.cursors[0, Channel.EMAIL] == 6)
        assert world.cursors[0, Channel.SMS] == 0
        world.gates[hang].set()
        await handle.result()
    assert world.everybody_once


async def test_while_a_stretch_is_sent_the_next_is_planned_and_no_more(temporal_client: Client):
    world = CampaignWorld(shards=1, pages=8)
    gate = world.gate(0, 0)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        await eventually(lambda: world.planned[0] == 4)
        assert world.planned[0] == 4
        world.gates[gate].set()
        await handle.result()
    assert world.everybody_once


# --- control --------------------------------------------------------------------------------------------------------------


async def _paused_at_page_one(
    client: Client, world: CampaignWorld
) -> "WorkflowHandle[CampaignWorkflow, CampaignProgress]":
    gate = world.gate(0, 1)
    handle = await world.start(client)
    await world.at_gate[gate].wait()
    await handle.signal(CampaignWorkflow.pause, world.write_control(ControlState.PAUSED, "asked"))
    world.gates[gate].set()
    return handle


async def test_a_pause_stops_it_and_a_resume_goes_on_at_once(temporal_client: Client):
    world = CampaignWorld(shards=1)
    async with serving(temporal_client, world):
        handle = await _paused_at_page_one(temporal_client, world)
        await eventually(lambda: (CampaignPhase.PAUSED, "asked") in world.phases)
        await eventually(lambda: world.looks_while_paused > 0)
        assert sum(world.sent.values()) == 1
        await handle.signal(CampaignWorkflow.resume, world.write_control(ControlState.RUNNING))
        await asyncio.wait_for(handle.result(), PATIENCE)
    assert world.everybody_once


async def test_a_long_pause_costs_little_history(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=2)
        async with skipping(env, world, cached=100):
            handle = await _paused_at_page_one(env.client, world)
            for _ in range(3):
                await env.sleep(timedelta(minutes=10))
            shard = env.client.get_workflow_handle(shard_workflow_id(world.id, 0))
            looks = world.looks_while_paused
            # Once a minute, for each loop of each shard.
            assert 10 < looks < 2 * 45
            assert (await shard.describe()).history_length < 900
            await handle.signal(CampaignWorkflow.resume, world.write_control(ControlState.RUNNING))
            await ended(handle)
    assert world.everybody_once


async def test_c51_five_pauses_and_resumes_within_a_second_leave_it_running(
    temporal_client: Client,
):
    world = CampaignWorld(shards=2, pages=6)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        for _ in range(5):
            await handle.signal(CampaignWorkflow.pause, world.write_control(ControlState.PAUSED))
            await handle.signal(CampaignWorkflow.resume, world.write_control(ControlState.RUNNING))
        world.gates[gate].set()
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert progress.phase is CampaignPhase.COMPLETED
    assert world.everybody_once
    assert world.writes == 0, "the API had written the row"


async def test_signals_that_overtake_each_other_end_as_the_row_says(temporal_client: Client):
    world = CampaignWorld(shards=1)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        pause = world.write_control(ControlState.PAUSED)
        resume = world.write_control(ControlState.RUNNING)
        await handle.signal(CampaignWorkflow.resume, resume)
        await handle.signal(CampaignWorkflow.pause, pause)
        assert (await handle.query(CampaignWorkflow.progress)).control is ControlState.RUNNING
        world.gates[gate].set()
        await handle.result()


async def test_a_pause_from_temporals_own_ui_writes_the_row(temporal_client: Client):
    world = CampaignWorld(shards=1)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        await handle.signal("pause")
        await eventually(lambda: world.control.state is ControlState.PAUSED)
        # Senseless ones change nothing: it is paused, nobody names a rate, and this rate is none.
        await handle.signal("pause")
        await handle.signal("set_rate")
        await handle.signal("set_rate", ControlSignal(rate_per_second=-1))
        await handle.signal("set_rate", ControlSignal(rate_per_second=50))
        await eventually(lambda: world.control.rate_per_second == 50)
        await handle.signal("resume", ControlSignal(reason="fixed"))
        world.gates[gate].set()
        await handle.result()
        assert world.writes == 3
    assert world.everybody_once


async def test_a_signal_that_comes_before_the_row_was_read_is_not_lost(temporal_client: Client):
    """A run that has just continued as new does not know yet that it is paused."""
    world = CampaignWorld(shards=1)
    world.write_control(ControlState.PAUSED)
    world.before_freeze = asyncio.Event()
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await handle.signal("resume")
        world.before_freeze.set()
        await asyncio.wait_for(handle.result(), PATIENCE)
        assert world.writes == 1
    assert world.everybody_once


async def test_c75_a_flood_of_signals_loses_none_and_keeps_the_history_bounded(
    temporal_client: Client,
):
    world = CampaignWorld(shards=3, pages=6)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world, cached=100, campaign=ShortCampaign):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()

        async def flood() -> None:
            for n in range(200):
                await handle.signal("set_rate", ControlSignal(rate_per_second=1_000 + n % 7))

        flooding = [asyncio.create_task(flood()) for _ in range(5)]
        await asyncio.sleep(0)
        await handle.signal("pause", ControlSignal(reason="stop"))
        await eventually(lambda: world.control.state is ControlState.PAUSED)
        world.gates[gate].set()
        await asyncio.gather(*flooding)
        newest = await handle.describe()
        async with asyncio.timeout(PATIENCE):
            while newest.run_id == handle.first_execution_run_id:
                newest = await handle.describe()
        first = temporal_client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        # All the signals that came while its children ended, and no more.
        assert (await first.describe()).history_length < 3_000
        await handle.signal("resume")
        progress = await asyncio.wait_for(handle.result(), 60)
    assert progress.phase is CampaignPhase.COMPLETED
    assert world.everybody_once
    # Far fewer than signals: what came together was acted on together.
    assert world.writes < 200


TOO_MANY = "exceeded workflow execution limit for signal events"
"""What the server says after 10,000 signals of one run."""


async def _tell(
    handle: "WorkflowHandle[Any, Any]", name: str, signal: ControlSignal | None = None
) -> None:
    """Until it is taken. While a run closes the server says that it is busy; "not found" would be a loss."""
    given = [] if signal is None else [signal]
    while True:
        try:
            await handle.signal(name, args=given)
        except RPCError as e:
            if e.status is not RPCStatusCode.RESOURCE_EXHAUSTED and e.message != TOO_MANY:
                raise
            # Whoever floods backs off no more than this.
            await asyncio.sleep(0.05)
        else:
            return


def _rate_is(world: CampaignWorld, rate: float) -> bool:
    return world.control.rate_per_second == rate


async def _runs(
    client: Client, handle: "WorkflowHandle[Any, Any]"
) -> list[WorkflowExecutionDescription]:
    """Each run of the campaign, from the first to the newest."""
    runs = []
    run_id = handle.first_execution_run_id
    while run_id is not None:
        run = client.get_workflow_handle(handle.id, run_id=run_id)
        runs.append(await run.describe())
        last = [
            e
            async for e in run.fetch_history_events(
                event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
            )
        ][-1]
        run_id = (
            last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
        )
    return runs


async def test_c75_twelve_thousand_signals_over_several_runs_lose_none_and_apply_none_twice(
    temporal_client: Client,
):
    """More than the server takes in one run, so a run that does not make place in time is deaf for ever.

    The case says 20,000: that is a minute and shows the same, only more often. Beside them somebody always asks for another rate and
    waits until the row says it, so also during every switch.
    """
    world = CampaignWorld(shards=3, pages=6)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world, cached=100):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        rest = iter(range(12_000))

        async def flood() -> None:
            for _ in rest:
                await _tell(handle, "approve")

        flooding = asyncio.gather(*(flood() for _ in range(20)))
        asked = 0
        while not flooding.done():
            asked += 1
            await _tell(handle, "set_rate", ControlSignal(rate_per_second=100.0 + asked))
            await eventually(partial(_rate_is, world, 100.0 + asked))
            if asked == 1:
                await _tell(handle, "pause", ControlSignal(reason="stop"))
                await eventually(lambda: world.control.state is ControlState.PAUSED)
                sent = sum(world.sent.values())
                world.gates[gate].set()
        await flooding
        assert sum(world.sent.values()) == sent < 18, "paused through all of it"
        assert world.writes == asked + 1, "each is written, and once"
        await _tell(handle, "resume")
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
        runs = await _runs(temporal_client, handle)
    assert progress.phase is CampaignPhase.COMPLETED
    assert world.everybody_once
    assert len(runs) > 2
    assert max(run.history_length for run in runs) < ROLL_AT


async def test_the_phase_is_shown_when_it_begins_however_short_the_one_before(
    temporal_client: Client,
):
    """In the second for which control signals are collected a campaign of some thousands is half sent."""
    world = CampaignWorld(shards=1)
    world.before_report = asyncio.Event()
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await eventually(lambda: (CampaignPhase.PREFLIGHT, "") in world.phases)
        async with asyncio.timeout(PATIENCE):
            while not _of_kind(await handle.fetch_history(), EventType.EVENT_TYPE_TIMER_STARTED):
                pass
        world.before_report.set()
        await asyncio.wait_for(handle.result(), PATIENCE)
        history = await handle.fetch_history()
    shown = [
        scheduled.workflow_task_completed_event_id
        for e in _of_kind(history, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
        if (scheduled := e.activity_task_scheduled_event_attributes).activity_type.name
        == "campaign.show_phase"
    ]
    begun = [
        e.start_child_workflow_execution_initiated_event_attributes.workflow_task_completed_event_id
        for e in _of_kind(history, EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED)
    ]
    assert world.phases[1] == (CampaignPhase.RUNNING, "")
    assert shown[1] == begun[0], "in the workflow task that starts the sending"


def _of_kind(history: WorkflowHistory, kind: "EventType.ValueType") -> list[HistoryEvent]:
    return [event for event in history.events if event.event_type == kind]


async def test_a_senders_fault_pauses_it_and_says_why(temporal_client: Client):
    world = CampaignWorld(shards=2)
    world.faults[0, 1, Channel.EMAIL] = "smtp: unknown_host"
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await eventually(lambda: (CampaignPhase.PAUSED, "smtp: unknown_host") in world.phases)
        view = await handle.query(CampaignWorkflow.progress)
        assert (view.phase, view.reason) == (CampaignPhase.PAUSED, "smtp: unknown_host")
        await handle.signal("resume", world.write_control(ControlState.RUNNING))
        await asyncio.wait_for(handle.result(), PATIENCE)
    assert world.everybody_once


# --- cancel, from everywhere (C79) ----------------------------------------------------------------------------------------


async def test_c79_cancelled_while_it_waits_for_its_time(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld()
        async with skipping(env, world):
            now = await env.get_current_time()
            handle = await world.start(env.client, send_at=now + timedelta(days=3))
            await env.sleep(timedelta(hours=1))
            await handle.signal("cancel", world.write_control(ControlState.CANCELLED))
            progress = await ended(handle)
    assert world.settles[0] < now + timedelta(hours=2)
    assert progress.phase is CampaignPhase.CANCELLED
    assert world.cancelled_rest == world.size


async def test_c79_cancelled_while_it_waits_and_the_signal_was_lost(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld()
        async with skipping(env, world):
            now = await env.get_current_time()
            handle = await world.start(env.client, send_at=now + timedelta(days=3))
            await env.sleep(timedelta(minutes=10))
            world.write_control(ControlState.CANCELLED)
            progress = await ended(handle)
    assert world.settles[0] < now + timedelta(hours=2)
    assert progress.phase is CampaignPhase.CANCELLED


async def test_c79_cancelled_in_mid_flight_and_from_a_pause(temporal_client: Client):
    for state in (ControlState.RUNNING, ControlState.PAUSED):
        world = CampaignWorld(shards=3, pages=6)
        gate = world.gate(0, 1)
        async with serving(temporal_client, world):
            handle = await world.start(temporal_client)
            await world.at_gate[gate].wait()
            if state is ControlState.PAUSED:
                await handle.signal("pause", world.write_control(ControlState.PAUSED))
            await handle.signal("cancel", world.write_control(ControlState.CANCELLED))
            world.gates[gate].set()
            progress = await asyncio.wait_for(handle.result(), PATIENCE)
        assert progress.phase is CampaignPhase.CANCELLED
        assert progress.adds_up
        assert set(world.sent.values()) <= {1}
        assert world.cancelled_rest > 0


async def test_c79_cancelled_while_only_deferred_rows_are_left(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1)
        async with skipping(env, world):
            now = await env.get_current_time()
            world.waiting = [(now + timedelta(hours=20), Channel.EMAIL)]
            handle = await world.start(env.client)
            await env.sleep(timedelta(hours=1))
            assert len(world.sent) == 4
            await handle.signal("cancel", world.write_control(ControlState.CANCELLED))
            progress = await ended(handle)
    assert world.settles[-1] < now + timedelta(hours=2)
    assert progress.phase is CampaignPhase.CANCELLED


async def test_a_cancelled_row_whose_signal_was_lost_still_ends_it(temporal_client: Client):
    world = CampaignWorld(shards=2, pages=6)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        world.write_control(ControlState.CANCELLED)
        world.gates[gate].set()
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert progress.phase is CampaignPhase.CANCELLED


async def test_temporals_own_cancellation_is_a_cancel(temporal_client: Client):
    world = CampaignWorld(shards=2, pages=6)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        await handle.cancel()
        await eventually(lambda: world.control.state is ControlState.CANCELLED)
        world.gates[gate].set()
        progress = await asyncio.wait_for(handle.result(), PATIENCE)
    assert progress.phase is CampaignPhase.CANCELLED
    assert progress.adds_up


# --- due, settle, catch-up ------------------------------------------------------------------------------------------------


async def test_it_waits_for_what_is_deferred_until_the_morning(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1, channels=BOTH)
        # A round every five minutes for nine hours: replaying each from the start would take minutes.
        async with skipping(env, world, cached=100):
            morning = (await env.get_current_time()) + timedelta(hours=9)
            world.waiting = [(morning, Channel.EMAIL), (morning, Channel.SMS)]
            progress = await ended(await world.start(env.client))
    assert progress.phase is CampaignPhase.COMPLETED
    assert [at >= morning for at, _ in world.sent_due] == [True, True]
    assert all(at < morning + timedelta(minutes=2) for at, _ in world.sent_due)


async def test_it_waits_for_the_leases_of_a_crashed_worker(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1)
        async with skipping(env, world):
            lease_end = (await env.get_current_time()) + timedelta(minutes=3)
            world.settle_says = [SettleResult(open_rows=2, next_lease_end=lease_end)]
            await ended(await world.start(env.client))
    assert len(world.settles) == 2
    assert world.settles[1] >= lease_end


async def test_every_five_minutes_who_is_missing_is_handed_to_the_due_loop_at_half_rate(
    temporal_client: Client,
):
    world = CampaignWorld(shards=1)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        # By itself it looks again after a minute.
        await eventually(lambda: world.due_looks == 1)
        world.waiting = [(await world.now(), Channel.EMAIL)]
        world.settle_says = [SettleResult(open_rows=1, rebucketed=1)]
        # On demand; the clock asks for the same.
        await temporal_client.get_workflow_handle(catch_up_workflow_id(world.id)).signal("now")
        await eventually(lambda: len(world.sent_due) == 1)
        assert world.sent_due[0][1], "at half rate"
        world.gates[gate].set()
        await handle.result()


async def test_catch_up_looks_every_five_minutes_while_in_flight(time_skipping: TimeSkipping):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1)
        async with skipping(env, world):
            now = await env.get_current_time()
            world.waiting = [(now + timedelta(minutes=32), Channel.EMAIL)]
            await ended(await world.start(env.client))
    gaps = [b - a for a, b in zip(world.settles, world.settles[1:], strict=False)]
    assert len([gap for gap in gaps if gap >= timedelta(minutes=5)]) >= 5
    assert world.guard_looks >= 5, "each round looks at the guard rails too"


async def test_half_the_rate_lasts_over_a_roll_of_the_due_loop_and_until_nothing_waits(
    time_skipping: TimeSkipping,
):
    async with time_skipping() as env:
        world = CampaignWorld(shards=1)
        async with skipping(env, world, cached=100):
            # It looks once a minute, and continues as new before it comes to that row.
            late = timedelta(minutes=ROLL_AFTER + 10)
            world.waiting = [(await world.now() + late, Channel.EMAIL)]
            handle: WorkflowHandle[DueWorkflow, DueResult] = await env.client.start_workflow(
                DueWorkflow.run,
                DueInput(
                    tenant="acme",
                    mode=Mode.LIVE,
                    campaign_id=world.id,
                    frozen_at=await world.now(),
                    message_class=MARKETING,
                    channels=[Channel.EMAIL],
                ),
                id=due_workflow_id(world.id),
                task_queue=flow_queue(MARKETING),
                start_signal="look_again",
                start_signal_args=[LookAgain(catch_up=True)],
            )
            await env.sleep(late + timedelta(minutes=2))
            await eventually(lambda: len(world.sent_due) == 1)
            now = env.client.get_workflow_handle(due_workflow_id(world.id))
            assert (await now.describe()).run_id != handle.first_execution_run_id
            looks = world.due_looks
            await now.signal(DueWorkflow.look_again)
            await eventually(lambda: world.due_looks > looks)
            world.waiting = [(await world.now(), Channel.EMAIL)]
            await now.signal(DueWorkflow.look_again)
            await eventually(lambda: len(world.sent_due) == 2)
            await now.signal(DueWorkflow.shards_ended)
            await asyncio.wait_for(now.result(), PATIENCE)
    assert [half for _, half in world.sent_due] == [True, False]


@pytest.mark.parametrize("closing", [True, False], ids=["after it", "just before it"])
async def test_a_replay_around_the_close_is_worked_by_a_due_loop_of_its_own_that_ends(
    temporal_client: Client, closing: bool
):
    world = CampaignWorld(shards=1)
    async with serving(temporal_client, world):
        await (await world.start(temporal_client)).result()
        world.waiting = [(await world.now(), Channel.EMAIL)]
        handle: WorkflowHandle[DueWorkflow, DueResult] = await temporal_client.start_workflow(
            DueWorkflow.run,
            DueInput(
                tenant="acme",
                mode=Mode.LIVE,
                campaign_id=world.id,
                frozen_at=await world.now(),
                message_class=MARKETING,
                channels=[Channel.EMAIL],
                closing=closing,
            ),
            id=due_workflow_id(world.id),
            task_queue=flow_queue(MARKETING),
            start_signal="look_again",
            start_signal_args=[LookAgain()],
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        await eventually(lambda: len(world.sent_due) == 1)
        # By itself it looks again when the next minute begins, which may be now.
        with contextlib.suppress(RPCError):
            await handle.signal(DueWorkflow.look_again, LookAgain())
        result = await asyncio.wait_for(handle.result(), PATIENCE)
    assert result.waiting == 0
    assert len(world.sent_due) == 1


# --- crashes --------------------------------------------------------------------------------------------------------------


async def test_a_shard_that_somebody_terminates_is_started_again(temporal_client: Client):
    world = CampaignWorld(shards=2)
    gate = world.gate(0, 1)
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
        await temporal_client.get_workflow_handle(shard_workflow_id(world.id, 0)).terminate()
        world.gates[gate].set()
        progress = await asyncio.wait_for(handle.result(), 60)
    assert progress.phase is CampaignPhase.COMPLETED
    assert sum(world.sent.values()) >= 8


async def test_c93_workers_that_shut_down_and_come_back_finish_the_campaign(
    temporal_client: Client,
):
    world = CampaignWorld(shards=2, pages=6)
    gate = world.gate_until_stopped(0, 2)
    async with serving(temporal_client, world, grace=timedelta(seconds=30)):
        handle = await world.start(temporal_client)
        await world.at_gate[gate].wait()
    assert world.closed is None
    assert world.sent[gate] == 1, "what was in hand was finished"
    world.gates.clear()
    async with serving(temporal_client, world):
        progress = await asyncio.wait_for(handle.result(), 60)
    assert progress.phase is CampaignPhase.COMPLETED
    assert world.everybody_once


@pytest.mark.parametrize(("rate", "most"), [(20.0, 2), (None, 8)])
async def test_a_slow_campaign_opens_few_shards(
    temporal_client: Client, rate: float | None, most: int
):
    world = CampaignWorld(shards=8, pages=1)
    world.rate = rate
    places = [world.gate(shard, 0) for shard in range(8)]
    async with serving(temporal_client, world):
        handle = await world.start(temporal_client)
        await eventually(lambda: world.running[Channel.EMAIL] == most)
        assert world.running[Channel.EMAIL] == most
        for place in places:
            world.gates[place].set()
        await asyncio.wait_for(handle.result(), 60)
    assert world.everybody_once


async def test_however_many_shards_only_a_window_of_them_is_in_flight_at_once(
    temporal_client: Client,
):
    """CAMP-13: bounded pending children, so that the parent's history and the server's work are too."""
    assert WINDOW == CampaignWorkflow.window == 100
    world = CampaignWorld(shards=8, pages=1)
    places = [world.gate(shard, 0) for shard in range(8)]
    async with serving(temporal_client, world, cached=100, campaign=ShortCampaign):
        handle = await world.start(temporal_client)
        await eventually(lambda: world.running[Channel.EMAIL] == ShortCampaign.window)
        # Each child plans before it sends, and nothing holds that up.
        assert sorted(world.planned) == [0, 1, 2]
        world.gates[places[0]].set()
        await eventually(lambda: len(world.planned) > ShortCampaign.window)
        assert sorted(world.planned) == [0, 1, 2, 3]
        for place in places:
            world.gates[place].set()
        await asyncio.wait_for(handle.result(), 60)
    assert world.everybody_once
