"""One notification, from start to its final state, on a server that skips time."""

import asyncio
from datetime import datetime, timedelta

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from schemas.kinds import Channel, ClaimState, FaultScope, RecipientState
from schemas.notifications import CancelRequest, NotificationInput
from schemas.outcomes import Failed, Rejected, Unknown
from sendloom.domain.budgets import RETRIES
from sendloom.ports import AcceptedRow, DeadLetter
from tests.builders import (
    MARKETING,
    SECURITY,
    TENANT,
    TRANSACTIONAL,
    World,
    a_notification,
    a_person,
    a_tenant,
)
from tests.fakes import ScriptedProvider
from tests.workflows.running import eventually, running, skipping
from workflows.notification import NotificationWorkflow
from workflows.starting import start

pytestmark = pytest.mark.asyncio(loop_scope="module")

REFUSED = Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT)
SOON = 1e-5
"""Full jitter's luckiest draw: the server skips time for timers, not while an activity waits to be tried again."""

DOWN = Failed(provider="smtp", code="421")
HANG = Unknown(provider="smtp", code="final_reply")


def row_of(world: World, n: NotificationInput) -> AcceptedRow:
    return world.accepted.rows[n.tenant, n.notification_id]


def letter_of(world: World) -> DeadLetter:
    [letter] = world.dead_letters.letters.values()
    return letter


async def test_a_notification_is_sent_and_its_row_closed(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        n = a_notification(accepted_at=await r.now())
        view = await r.ended(await r.start(n))
    assert view.state is RecipientState.SENT
    [channel] = view.channels
    assert (channel.channel, channel.provider, channel.state) == (Channel.EMAIL, "smtp", "sent")
    assert len(world.email.sent) == 1
    assert row_of(world, n).outcome == {
        "kind": "accepted",
        "provider": "smtp",
        "provider_message_id": "m-1",
    }
    assert world.decisions.only().state is RecipientState.SENT
    assert world.dead_letters.letters == {}


async def test_a_rejection_falls_to_the_next_rung(env: WorkflowEnvironment):
    world = World(email=ScriptedProvider(REFUSED))
    async with skipping(env, world, TRANSACTIONAL) as r:
        view = await r.ended(await r.start(a_notification(accepted_at=await r.now())))
    assert view.state is RecipientState.SENT
    assert (len(world.email.sent), len(world.sms.sent)) == (1, 1)
    decision = world.decisions.only()
    assert (decision.state, decision.channel, decision.rung) == (
        RecipientState.SENT,
        Channel.SMS,
        1,
    )


async def test_rejected_everywhere_is_a_dead_letter(env: WorkflowEnvironment):
    world = World(
        email=ScriptedProvider(REFUSED),
        sms=ScriptedProvider(Rejected(provider="twilio", code="21211", detail="not a number")),
    )
    async with skipping(env, world, TRANSACTIONAL) as r:
        n = a_notification(accepted_at=await r.now())
        view = await r.ended(await r.start(n))
    assert (view.state, view.reason) == (RecipientState.REJECTED, "21211")
    letter = letter_of(world)
    assert (letter.ref_id, letter.channel, letter.state, letter.code, letter.last_error) == (
        n.notification_id,
        Channel.SMS,
        "rejected",
        "21211",
        "not a number",
    )
    decision = world.decisions.only()
    assert (decision.state, decision.reason) == (RecipientState.REJECTED, "21211")
    assert (row_of(world, n).outcome or {})["kind"] == "rejected"


async def test_retries_wait_and_then_it_is_sent(env: WorkflowEnvironment):
    world = World(email=ScriptedProvider(DOWN, DOWN, DOWN), rng=SOON)
    async with skipping(env, world, TRANSACTIONAL) as r:
        view = await r.ended(await r.start(a_notification(accepted_at=await r.now())))
    assert view.state is RecipientState.SENT
    assert world.ledger.only().attempt == 4


async def test_a_provider_that_stays_down_ends_as_a_dead_letter(env: WorkflowEnvironment):
    world = World(email=ScriptedProvider(*[DOWN] * 50), rng=SOON)
    world.set_category(TRANSACTIONAL, ladder=(Channel.EMAIL,))
    async with skipping(env, world, TRANSACTIONAL) as r:
        view = await r.ended(await r.start(a_notification(accepted_at=await r.now())))
    assert view.state is RecipientState.FAILED
    assert len(world.email.sent) == RETRIES[TRANSACTIONAL].attempts
    assert letter_of(world).code == "421"


async def test_known_not_sent_on_one_rung_may_go_on_the_next(env: WorkflowEnvironment):
    world = World(email=ScriptedProvider(*[DOWN] * 50), rng=SOON)
    async with skipping(env, world, TRANSACTIONAL) as r:
        view = await r.ended(await r.start(a_notification(accepted_at=await r.now())))
    assert view.state is RecipientState.SENT
    assert len(world.sms.sent) == 1


async def test_an_unknown_outcome_stops_and_waits_for_an_operator(env: WorkflowEnvironment):
    world = World(email=ScriptedProvider(HANG))
    async with skipping(env, world, TRANSACTIONAL) as r:
        view = await r.ended(await r.start(a_notification(accepted_at=await r.now())))
    assert view.state is RecipientState.UNKNOWN
    assert (len(world.email.sent), len(world.sms.sent)) == (1, 0)
    assert letter_of(world).state == "unknown"


async def test_what_expires_between_retries_is_expired_and_no_dead_letter(env: WorkflowEnvironment):
    world = World(email=ScriptedProvider(*[DOWN] * 50), rng=1.0)
    world.set_category(TRANSACTIONAL, ladder=(Channel.EMAIL,))
    async with skipping(env, world, TRANSACTIONAL) as r:
        at = await r.now()
        n = a_notification(accepted_at=at, expires_at=at + timedelta(seconds=5))
        view = await r.ended(await r.start(n))
    assert view.state is RecipientState.EXPIRED
    assert world.dead_letters.letters == {}
    assert world.decisions.only().state is RecipientState.EXPIRED


async def test_an_objection_ends_it_and_says_why(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, MARKETING) as r:
        n = a_notification(message_class=MARKETING, accepted_at=await r.now())
        view = await r.ended(await r.start(n))
    assert (view.state, view.reason) == (RecipientState.SUPPRESSED, "no_consent")
    assert row_of(world, n).outcome == {"kind": "suppressed", "reason": "no_consent"}
    assert world.dead_letters.letters == {}


async def test_nothing_left_for_security_is_undeliverable(env: WorkflowEnvironment):
    world = World()
    world.person = a_person(world.sealer, addresses={})
    async with skipping(env, world, SECURITY) as r:
        n = a_notification(message_class=SECURITY, accepted_at=await r.now())
        view = await r.ended(await r.start(n))
    assert (view.state, view.reason) == (RecipientState.SUPPRESSED, "no_address")
    assert letter_of(world).state == "undeliverable"


# --- deferring and cancelling -------------------------------------------------------------------------------------------


def asleep(world: World, at: datetime) -> None:
    """Quiet hours from an hour ago for two hours, for whoever is asked."""
    world.set_category(TRANSACTIONAL, quiet_hours=True, ladder=(Channel.EMAIL,))
    start = (at - timedelta(hours=1)).time().replace(microsecond=0)
    end = (at + timedelta(hours=1)).time().replace(microsecond=0)
    world.catalog.tenants[TENANT] = a_tenant(quiet_start=start, quiet_end=end)


async def test_quiet_hours_are_waited_out(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        at = await r.now()
        asleep(world, at)
        view = await r.ended(await r.start(a_notification(accepted_at=at)))
        assert await r.now() >= at + timedelta(minutes=59)
    assert view.state is RecipientState.SENT
    assert len(world.email.sent) == 1


async def test_what_waits_can_be_cancelled_and_then_is_not_sent(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        at = await r.now()
        asleep(world, at)
        n = a_notification(accepted_at=at)
        handle = await r.start(n)
        await _deferred(world)
        waiting = await handle.query(NotificationWorkflow.view)
        assert waiting.state is RecipientState.DEFERRED
        assert waiting.deferred_until is not None
        view = await handle.execute_update(
            NotificationWorkflow.cancel, CancelRequest(reason="changed my mind")
        )
        assert (view.state, view.reason) == (RecipientState.CANCELLED, "changed my mind")
        await r.ended(handle)
    assert world.email.sent == []
    assert row_of(world, n).outcome == {"kind": "cancelled", "reason": "changed my mind"}
    assert world.decisions.only().state is RecipientState.CANCELLED


async def _deferred(world: World) -> None:
    await eventually(
        lambda: [d.state for d in world.decisions.decisions.values()] == [RecipientState.DEFERRED]
    )


async def test_what_waits_for_a_retry_can_be_cancelled(env: WorkflowEnvironment):
    hours = Failed(provider="smtp", code="421", retry_after=timedelta(hours=2))
    world = World(email=ScriptedProvider(hours))
    async with skipping(env, world, TRANSACTIONAL) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await eventually(lambda: bool(world.ledger.records))
        view = await handle.execute_update(NotificationWorkflow.cancel, CancelRequest())
        assert view.state is RecipientState.CANCELLED
        await r.ended(handle)
    assert len(world.email.sent) == 1
    assert world.ledger.only().state is ClaimState.FAILED
    assert world.decisions.only().state is RecipientState.CANCELLED


async def test_a_cancel_during_the_call_waits_for_the_truth(temporal_client: Client):
    """On a real server: the one that skips time loses a task that cancels an activity which has just ended."""
    world = World()
    world.email.holds = asyncio.Event()
    async with running(temporal_client, world, TRANSACTIONAL) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await world.email.called.wait()
        cancelling = asyncio.create_task(
            handle.execute_update(NotificationWorkflow.cancel, CancelRequest())
        )
        world.email.holds.set()
        with pytest.raises((WorkflowUpdateFailedError, RPCError)) as e:
            await cancelling
        if isinstance(e.value, RPCError):
            # It reached the server in the instant in which the workflow closed; the API reads that as `Gone`.
            assert e.value.status is RPCStatusCode.NOT_FOUND
            assert "closing workflow" in e.value.message
        else:
            assert isinstance(e.value.cause, ApplicationError)
            assert e.value.cause.type in ("TooLate", "AcceptedUpdateCompletedWorkflow")
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT


async def test_a_workflow_cancelled_in_temporals_own_ui_ends_with_the_truth(
    env: WorkflowEnvironment,
):
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        at = await r.now()
        asleep(world, at)
        n = a_notification(accepted_at=at)
        handle = await r.start(n)
        await _deferred(world)
        await handle.cancel()
        view = await r.ended(handle)
    assert (view.state, view.reason) == (RecipientState.CANCELLED, "workflow_cancelled")
    assert row_of(world, n).outcome == {"kind": "cancelled", "reason": "workflow_cancelled"}


# --- what is unrecorded or lost -----------------------------------------------------------------------------------------


async def test_c65_ten_minutes_without_recording_make_one_message(env: WorkflowEnvironment):
    world = World()
    world.ledger.down_for.add("record")
    looks = iter(range(10**6))
    world.clock.monotonic = lambda: float(next(looks))  # type: ignore[method-assign]
    async with skipping(env, world, TRANSACTIONAL) as r:
        n = a_notification(accepted_at=await r.now())
        handle = await r.start(n)
        await eventually(lambda: world.ledger.calls.count("record") > 3)
        await env.sleep(timedelta(minutes=10))
        assert row_of(world, n).closed_at is None
        world.ledger.down_for.clear()
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT
    assert len(world.email.sent) == 1
    assert world.ledger.only().state is ClaimState.SENT


async def test_a_failure_that_could_not_be_recorded_is_recorded_before_the_next_call(
    env: WorkflowEnvironment,
):
    world = World(email=ScriptedProvider(DOWN), rng=SOON)
    world.ledger.down_for.add("record")
    looks = iter(range(10**6))
    world.clock.monotonic = lambda: float(next(looks))  # type: ignore[method-assign]
    async with skipping(env, world, TRANSACTIONAL) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await eventually(lambda: world.ledger.calls.count("record") > 1)
        world.ledger.down_for.clear()
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT
    assert [record.state for record in world.ledger.records] == [ClaimState.FAILED, ClaimState.SENT]
    assert len(world.email.sent) == 2


async def test_a_store_that_is_down_is_waited_for(env: WorkflowEnvironment):
    world = World()
    world.people.down = True
    async with skipping(env, world, TRANSACTIONAL) as r:
        handle = await r.start(a_notification(accepted_at=await r.now()))
        await eventually(lambda: world.people.calls.count("people") > 2)
        world.people.down = False
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT


async def test_a_loss_of_temporal_sends_nothing_twice(env: WorkflowEnvironment):
    """The rows are started again on a server that has forgotten everything."""
    world = World()
    async with skipping(env, world, TRANSACTIONAL) as r:
        n = a_notification(accepted_at=await r.now())
        await r.ended(await r.start(n))
        assert await start(env.client, row_of(world, n), again=True)
        view = await r.ended(await r.start_row(row_of(world, n)))
    assert view.state is RecipientState.SENT
    assert len(world.email.sent) == 1


# --- starting -----------------------------------------------------------------------------------------------------------


async def test_c06_twenty_starts_at_once_are_one_message(temporal_client: Client):
    world = World()
    async with running(temporal_client, world, TRANSACTIONAL) as r:
        n = a_notification(key="c06-k-001", accepted_at=await r.now())
        row = await world.accept(n)
        started = await asyncio.gather(*(start(temporal_client, row) for _ in range(20)))
        assert sum(started) == 1
        handle = temporal_client.get_workflow_handle(f"notification/{n.notification_id}")
        await r.ended(handle)
        # Also after it has ended.
        assert await start(temporal_client, row) is False
    assert len(world.email.sent) == 1


async def test_a_workflow_carries_ids_and_enums_only(temporal_client: Client):
    world = World()
    async with running(temporal_client, world, TRANSACTIONAL, cached=100) as r:
        handle = await r.start(a_notification(key="attributes", accepted_at=await r.now()))
        await r.ended(handle)
        described = await handle.describe()
    attributes = {
        pair.key.name: pair.value for pair in described.typed_search_attributes.search_attributes
    }
    assert attributes["SendloomTenant"] == TENANT
    assert attributes["SendloomCategory"] == "orders.shipped"
    assert "ada" not in str(attributes) + await described.static_summary()  # type: ignore[operator]
