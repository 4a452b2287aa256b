"""One passcode: sent down its ladder, checked, sent again, over when it expires."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from schemas.kinds import Channel, ClaimState, FaultScope, RecipientState
from schemas.messages import OutboundEmail, OutboundSms
from schemas.notifications import (
    CancelRequest,
    CheckRequest,
    CheckResult,
    NotificationView,
    ResendRequest,
)
from schemas.outcomes import Failed, Rejected, Unknown
from tests.builders import CODE, PHONE, SECURITY, World, a_content, a_passcode
from tests.fakes import ScriptedProvider, texts
from tests.workflows.running import eventually, skipping
from workflows.passcode import PasscodeWorkflow

pytestmark = pytest.mark.asyncio(loop_scope="module")

LANDLINE = Rejected(provider="twilio", code="21614", scope=FaultScope.RECIPIENT)
SOON = 1e-5


Handle = WorkflowHandle[Any, NotificationView]


async def check(handle: Handle, code: str) -> CheckResult:
    return await handle.execute_update(PasscodeWorkflow.check, CheckRequest(code=code))


async def resend(handle: Handle, key: str) -> int:
    result = await handle.execute_update(PasscodeWorkflow.resend, ResendRequest(key=key))
    return result.send_no


def refusal(e: pytest.ExceptionInfo[WorkflowUpdateFailedError]) -> str | None:
    assert isinstance(e.value.cause, ApplicationError)
    return e.value.cause.type


async def test_a_passcode_is_sent_checked_and_closed_when_it_expires(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, SECURITY) as r:
        p = a_passcode(accepted_at=await r.now())
        handle = await r.start(p)
        await world.sms.called.wait()
        assert await check(handle, "000000") == CheckResult(result="wrong", attempts_left=4)
        assert await check(handle, CODE) == CheckResult(result="approved", attempts_left=3)
        assert (await check(handle, CODE)).result == "used"
        view: NotificationView = await r.ended(handle)
        assert await r.now() >= p.expires_at
    assert view.state is RecipientState.SENT
    assert texts(world.sms.sent) == [f"Ada: {CODE}"]
    outcome = world.accepted.rows[p.tenant, p.notification_id].outcome
    assert outcome is not None
    assert outcome["kind"] == "accepted"


async def test_a_permanent_failure_moves_to_email_with_the_same_secret(env: WorkflowEnvironment):
    world = World(sms=ScriptedProvider(LANDLINE))
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await world.email.called.wait()
        assert (await check(handle, CODE)).result == "approved"
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT
    [mail] = world.email.sent
    assert isinstance(mail, OutboundEmail)
    assert CODE in mail.text
    assert world.decisions.only().channel is Channel.EMAIL


async def test_a_resend_sends_the_same_secret_and_does_not_reset_the_checks(
    env: WorkflowEnvironment,
):
    world = World()
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await world.sms.called.wait()
        for left in (4, 3, 2, 1):
            assert await check(handle, "000000") == CheckResult(result="wrong", attempts_left=left)
        assert await resend(handle, "again") == 2
        assert await check(handle, "000000") == CheckResult(result="wrong", attempts_left=0)
        assert (await check(handle, CODE)).result == "max_attempts"
        with pytest.raises(WorkflowUpdateFailedError) as e:
            await resend(handle, "of no use any more")
        assert refusal(e) == "TooLate"
        await r.ended(handle)
    assert texts(world.sms.sent) == [f"Ada: {CODE}"] * 2


async def test_a_resend_key_sends_once_however_often_it_is_asked(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await world.sms.called.wait()
        numbers = await asyncio.gather(*(resend(handle, "again") for _ in range(3)))
        assert set(numbers) == {2}
        assert await resend(handle, "and again") == 3
        await eventually(lambda: len(world.sms.sent) == 3)
        assert await check(handle, CODE) == CheckResult(result="approved", attempts_left=4)
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT
    assert texts(world.sms.sent) == [f"Ada: {CODE}"] * 3
    assert len({m.reference for m in world.sms.sent}) == 3
    assert world.passcodes.resends


async def test_an_unknown_outcome_is_sent_again_byte_for_byte(env: WorkflowEnvironment):
    world = World(sms=ScriptedProvider(Unknown(provider="twilio", code="read")), rng=SOON)
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT
    first, second = world.sms.sent
    assert first == second
    assert world.ledger.only().attempt == 2


async def test_a_hanging_provider_does_not_hold_up_a_check_or_a_resend(env: WorkflowEnvironment):
    world = World()
    world.sms.holds = held = asyncio.Event()
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await world.sms.called.wait()
        world.sms.holds = None
        assert await resend(handle, "impatient") == 2
        await eventually(lambda: len(world.sms.sent) == 2)
        assert (await check(handle, CODE)).result == "approved"
        held.set()
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT


async def test_a_passcode_nobody_could_be_sent_is_a_dead_letter_and_not_for_ever_open(
    env: WorkflowEnvironment,
):
    world = World(
        sms=ScriptedProvider(LANDLINE),
        email=ScriptedProvider(*[Failed(provider="smtp", code="421")] * 20),
        rng=SOON,
    )
    async with skipping(env, world, SECURITY) as r:
        p = a_passcode(accepted_at=await r.now())
        view = await r.ended(await r.start(p))
    assert view.state is RecipientState.FAILED
    [letter] = world.dead_letters.letters.values()
    assert (letter.kind, letter.code) == ("passcode", "421")
    outcome = world.accepted.rows[p.tenant, p.notification_id].outcome
    assert outcome is not None
    assert outcome["kind"] == "failed"


async def test_a_cancelled_code_stops_working_and_is_not_sent_again(env: WorkflowEnvironment):
    hours = Failed(provider="twilio", code="20429", retry_after=timedelta(minutes=5))
    world = World(sms=ScriptedProvider(hours))
    async with skipping(env, world, SECURITY) as r:
        p = a_passcode(accepted_at=await r.now())
        handle = await r.start(p)
        await eventually(lambda: bool(world.ledger.records))
        await handle.execute_update(PasscodeWorkflow.cancel, CancelRequest(reason="new number"))
        assert (await check(handle, CODE)).result == "cancelled"
        with pytest.raises(WorkflowUpdateFailedError) as e:
            await resend(handle, "again")
        assert refusal(e) == "TooLate"
        view = await r.ended(handle)
    assert (view.state, view.reason) == (RecipientState.CANCELLED, "new number")
    assert len(world.sms.sent) == 1
    assert world.ledger.only().state is ClaimState.FAILED


async def test_a_used_code_cannot_be_cancelled(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await world.sms.called.wait()
        await check(handle, CODE)
        with pytest.raises(WorkflowUpdateFailedError) as e:
            await handle.execute_update(PasscodeWorkflow.cancel, CancelRequest())
        assert refusal(e) == "TooLate"
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT


async def test_pol7_without_claims_a_passcode_goes_out_and_is_recorded_later(
    env: WorkflowEnvironment,
):
    world = World()
    loop = asyncio.get_running_loop()
    world.clock.monotonic = loop.time  # type: ignore[method-assign]
    world.ledger.down_for |= {"claim", "record"}
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(a_passcode(accepted_at=await r.now()))
        await world.sms.called.wait()
        # It has been sent, and nothing of what the caller does waits for the ledger.
        assert (await check(handle, CODE)).result == "approved"
        await eventually(lambda: world.ledger.calls.count("record") > 5)
        world.ledger.down_for.clear()
        view = await r.ended(handle)
    assert view.state is RecipientState.SENT
    assert len(world.sms.sent) == 1
    assert world.ledger.only().state is ClaimState.SENT


async def test_the_last_line_is_bound_to_its_origin(env: WorkflowEnvironment):
    world = World()
    async with skipping(env, world, SECURITY) as r:
        content = a_content(secret=CODE, origin="login.example.com")
        handle = await r.start(a_passcode(accepted_at=await r.now()), content=content)
        await r.ended(handle)
    [text] = world.sms.sent
    assert isinstance(text, OutboundSms)
    assert (text.to, text.body.splitlines()[-1]) == (PHONE, f"@login.example.com #{CODE}")


async def test_pass5_the_code_is_nowhere_in_the_history_in_clear(env: WorkflowEnvironment):
    world = World()
    secret = "OpenSesame42"
    async with skipping(env, world, SECURITY) as r:
        handle = await r.start(
            a_passcode(accepted_at=await r.now()), content=a_content(secret=secret)
        )
        await world.sms.called.wait()
        await check(handle, secret)
        await r.ended(handle)
        history = (await handle.fetch_history()).to_json()
    assert secret in texts(world.sms.sent)[0]
    assert secret not in history
    assert PHONE not in history
