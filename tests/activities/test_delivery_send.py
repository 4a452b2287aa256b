"""`delivery.send`, `delivery.record` and `delivery.settle`: one call, whatever happens around it."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from schemas.kinds import Channel, ClaimState, FaultScope, Mode, RecipientState
from schemas.messages import OutboundEmail, OutboundSms
from schemas.outcomes import (
    Accepted,
    Deferred,
    Expired,
    Failed,
    Rejected,
    Suppressed,
    Unknown,
)
from sendloom.domain.budgets import RETRIES, lease, provider_timeout
from sendloom.domain.outcomes import Cause
from sendloom.errors import StoreUnavailable
from sendloom.ports import Move
from sendloom.providers.test_mode import TestModeProvider
from tests.activities.running import Sender, environment, plan, planned, record
from tests.builders import (
    EMAIL,
    MARKETING,
    PHONE,
    SECURITY,
    TENANT,
    TRANSACTIONAL,
    World,
    a_notification,
    a_passcode,
    a_person,
    an_address,
)
from tests.fakes import ScriptedProvider

BUSY = Failed(provider="smtp", code="451", retry_after=timedelta(seconds=90))
HANG = Unknown(provider="smtp", code="final_reply")


def addressees(provider: ScriptedProvider) -> list[str]:
    return [m.to if isinstance(m, OutboundSms) else m.to_address for m in provider.sent]


async def settle(world: World, s):
    return await environment().run(world.delivery().settle, s)


# --- the plain way ------------------------------------------------------------------------------------------------------


async def test_a_send_is_claimed_called_recorded_and_remembered():
    world = World()
    s = await planned(world, a_notification())
    recorded = await Sender(world, s).send()
    assert recorded.outcome == Accepted(provider="smtp", provider_message_id="m-1")
    assert (recorded.attempt, recorded.recorded) == (1, True)
    assert addressees(world.email) == [EMAIL]
    claim = world.ledger.only()
    assert (claim.state, claim.provider_message_id) == (ClaimState.SENT, "m-1")
    decision = world.decisions.only()
    assert (decision.state, decision.channel, decision.attempt) == (
        RecipientState.SENT,
        Channel.EMAIL,
        1,
    )
    assert list(world.cache.remembered.values()) == ["m-1"]


async def test_the_claim_is_there_before_the_call():
    world = World()
    seen = []
    world.email = ScriptedProvider(lambda: seen.append(world.ledger.only().state))
    await Sender(world, await planned(world, a_notification())).send()
    assert seen == [ClaimState.CLAIMED]


async def test_a_busy_provider_sets_the_retry_delay():
    world = World(email=ScriptedProvider(BUSY))
    sender = Sender(world, await planned(world, a_notification()))
    with pytest.raises(ApplicationError) as e:
        await sender.send()
    assert e.value.next_retry_delay == timedelta(seconds=90)
    assert e.value.category is ApplicationErrorCategory.BENIGN
    assert world.ledger.only().state is ClaimState.FAILED
    assert world.decisions.only().state is RecipientState.PENDING


async def test_a_retry_claims_the_next_attempt_with_the_same_payload():
    world = World(email=ScriptedProvider(BUSY))
    sender = Sender(world, await planned(world, a_notification()))
    recorded = await sender.send_on()
    assert recorded.attempt == 2
    assert world.email.sent[0] == world.email.sent[1]
    assert world.ledger.only().attempt == 2


async def test_delays_grow_with_full_jitter():
    world = World(email=ScriptedProvider(*[Failed(provider="smtp", code="421")] * 4), rng=1.0)
    sender = Sender(world, await planned(world, a_notification()))
    await sender.send_on()
    assert sender.delays == [timedelta(seconds=2**n) for n in (1, 2, 3, 4)]


async def test_known_failures_end_after_the_classs_attempts():
    world = World(email=ScriptedProvider(*[Failed(provider="smtp", code="421")] * 99), rng=0.01)
    sender = Sender(world, await planned(world, a_notification()))
    recorded = await sender.send_on()
    assert recorded.outcome == Failed(provider="smtp", code="421")
    assert len(world.email.sent) == RETRIES[TRANSACTIONAL].attempts
    assert world.ledger.only().state is ClaimState.FAILED


async def test_a_retry_that_would_come_after_the_end_has_expired():
    world = World(email=ScriptedProvider(BUSY))
    n = a_notification(expires_at=World().clock.at + timedelta(seconds=30))
    world.set_category(TRANSACTIONAL, ladder=(Channel.EMAIL,))
    recorded = await Sender(world, await planned(world, n)).send()
    assert recorded.outcome == Expired(reason="expired")


async def test_with_another_rung_left_it_is_a_failure_that_may_fall():
    world = World(email=ScriptedProvider(BUSY))
    n = a_notification(expires_at=World().clock.at + timedelta(seconds=30))
    recorded = await Sender(world, await planned(world, n)).send()
    assert recorded.outcome == BUSY


async def test_our_own_configuration_burns_no_attempts():
    refused = Failed(provider="smtp", code="535", scope=FaultScope.SENDER)
    budget = RETRIES[TRANSACTIONAL]
    world = World(email=ScriptedProvider(*[refused] * (budget.attempts + 5)))
    sender = Sender(world, await planned(world, a_notification()))
    recorded = await sender.send_on()
    assert recorded.outcome.kind == "accepted"
    assert set(sender.delays) == {timedelta(seconds=60)}


async def test_a_rejection_is_final_and_kills_the_address_only_if_it_is_its_fault():
    dead = Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT, suppress=True)
    world = World(email=ScriptedProvider(dead))
    recorded = await Sender(world, await planned(world, a_notification())).send()
    assert recorded.outcome == dead
    hashed = world.sealer.address_hash(TENANT, Channel.EMAIL, EMAIL)
    assert world.ledger.suppressions == {(TENANT, Channel.EMAIL, hashed): "hard_bounce"}

    world = World(email=ScriptedProvider(Rejected(provider="smtp", code="5.7.1")))
    await Sender(world, await planned(world, a_notification())).send()
    assert world.ledger.suppressions == {}


async def test_a_stop_is_remembered_as_one():
    stop = Rejected(
        provider="twilio",
        code="21610",
        scope=FaultScope.RECIPIENT,
        suppress=True,
        opted_out=True,
    )
    world = World(sms=ScriptedProvider(stop))
    await Sender(world, await planned(world, a_passcode())).send()
    assert list(world.ledger.suppressions.values()) == ["stop"]


async def test_an_adapter_that_raises_leaves_it_unknown():
    """C16: a transport's errors are never swallowed as success."""
    world = World(email=ScriptedProvider(RuntimeError("bug")))
    recorded = await Sender(world, await planned(world, a_notification())).send()
    assert recorded.outcome == Unknown(provider="acme", code="adapter_raised")
    assert world.ledger.only().state is ClaimState.UNKNOWN


async def test_c16_a_lane_without_a_provider_says_that_it_is_not_configured():
    world = World()
    s = await planned(world, a_notification())
    lane = world.delivery()
    lane._providers = {}
    recorded = await environment().run(lane.send, s)
    assert isinstance(recorded.outcome, Failed)
    assert recorded.outcome.code == "channel_not_configured"
    assert world.ledger.claims == {}


# --- the last look ------------------------------------------------------------------------------------------------------


async def test_a_suppression_since_the_plan_wins():
    world = World()
    s = await planned(world, a_notification())
    hashed = world.sealer.address_hash(TENANT, Channel.EMAIL, EMAIL)
    await world.ledger.suppress(TENANT, Channel.EMAIL, hashed, "complaint", "feedback")
    recorded = await Sender(world, s).send()
    assert recorded.outcome == Suppressed(reason="suppressed_complaint")
    assert world.email.sent == []
    assert world.ledger.claims == {}


@pytest.mark.parametrize("of", ["*", "email"])
async def test_an_opt_out_since_the_plan_stops_marketing_and_not_security(of: str):
    world = World()
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    marketing = await planned(world, a_notification("news", message_class=MARKETING))
    otp = await planned(world, a_passcode("otp"))
    world.person = a_person(world.sealer, opted_out=frozenset({of}))
    assert (await Sender(world, marketing).send()).outcome == Suppressed(reason="opted_out")
    assert (await Sender(world, otp).send()).outcome.kind == "accepted"


async def test_a_kill_switch_stops_what_was_planned():
    world = World()
    s = await planned(world, a_notification())
    world.catalog.switched_off["send-email-transactional"] = "incident"
    assert (await Sender(world, s).send()).outcome == Suppressed(reason="killed")
    assert world.email.sent == []


async def test_what_expired_between_retries_is_not_sent():
    world = World(email=ScriptedProvider(BUSY))
    n = a_notification(expires_at=World().clock.at + timedelta(minutes=3))
    sender = Sender(world, await planned(world, n))
    with pytest.raises(ApplicationError):
        await sender.send()
    world.clock.at = n.expires_at
    assert (await sender.send()).outcome == Expired(reason="expired")
    assert len(world.email.sent) == 1


async def test_a_window_that_closed_since_the_plan_is_planned_again():
    world = World()
    s = await planned(world, a_notification())
    s = s.model_copy(update={"not_after": world.clock.at})
    recorded = await Sender(world, s).send()
    assert isinstance(recorded.outcome, Deferred)
    assert world.email.sent == []


async def test_a_payload_that_was_purged_is_not_made_up():
    world = World()
    s = await planned(world, a_notification())
    world.decisions.deliveries.clear()
    with pytest.raises(ApplicationError) as e:
        await Sender(world, s).send()
    assert e.value.non_retryable


# --- others in between --------------------------------------------------------------------------------------------------


async def test_c81_eight_workers_with_one_message_make_one_call():
    world = World()
    n = a_notification()
    s = await planned(world, n)
    results = await asyncio.gather(
        *(Sender(world, s, activity_id=str(i)).send() for i in range(8)), return_exceptions=True
    )
    assert len(world.email.sent) == 1
    accepted = [r for r in results if not isinstance(r, BaseException)]
    assert {r.outcome.kind for r in accepted} == {"accepted"}
    others = [r for r in results if isinstance(r, ApplicationError)]
    assert {e.type for e in others} <= {"InFlight"}
    # The same job again, after it is done: not pending, no send, no error.
    late = await Sender(world, s, activity_id="late").send()
    assert late.outcome == Accepted(provider="smtp", provider_message_id="m-1")
    assert len(world.email.sent) == 1
    assert (await plan(world, n)).kind == "settled"


async def test_c90_a_retry_while_the_first_attempt_still_runs_does_not_call():
    """The server gives an attempt up and starts another, on another worker, while the provider is still thinking."""
    world = World()
    world.email.holds = asyncio.Event()
    sender = Sender(world, await planned(world, a_notification()))
    first = asyncio.create_task(sender.send())
    await world.email.called.wait()
    with pytest.raises(ApplicationError) as e:
        await sender.send()
    assert e.value.type == "InFlight"
    assert e.value.next_retry_delay is not None
    assert timedelta(0) < e.value.next_retry_delay <= lease(TRANSACTIONAL) + timedelta(seconds=1)
    world.email.holds.set()
    await first
    world.clock.advance(e.value.next_retry_delay)
    third = await sender.send()
    assert third.outcome == Accepted(provider="smtp", provider_message_id="m-1")
    assert len(world.email.sent) == 1


async def test_a_claim_whose_owner_died_is_settled_and_stops_for_transactional():
    world = World()
    world.email.holds = asyncio.Event()
    s = await planned(world, a_notification())
    killed = asyncio.create_task(Sender(world, s, activity_id="killed").send())
    await world.email.called.wait()
    world.clock.advance(lease(TRANSACTIONAL) + timedelta(seconds=1))
    recorded = await Sender(world, s, activity_id="next").send()
    assert isinstance(recorded.outcome, Unknown)
    assert len(world.email.sent) == 1
    assert world.ledger.only().state is ClaimState.UNKNOWN
    killed.cancel()
    world.email.holds.set()
    # The zombie finishes after all: it was sent, and sent wins over everything.
    assert (await killed).outcome.kind == "accepted"
    assert world.ledger.only().state is ClaimState.SENT
    assert world.decisions.only().state is RecipientState.SENT


async def test_a_claim_whose_owner_died_is_sent_again_for_security_with_the_same_payload():
    world = World()
    world.sms.holds = held = asyncio.Event()
    s = await planned(world, a_passcode())
    killed = asyncio.create_task(Sender(world, s, activity_id="killed").send())
    await world.sms.called.wait()
    world.clock.advance(lease(SECURITY) + timedelta(seconds=1))
    world.sms.holds = None
    recorded = await Sender(world, s, activity_id="next").send()
    held.set()
    await killed
    assert recorded.outcome.kind == "accepted"
    assert recorded.attempt == 2
    assert world.sms.sent[0] == world.sms.sent[1]


async def test_a_call_that_could_outlast_its_lease_is_not_made():
    world = World()
    slow = lease(TRANSACTIONAL) - provider_timeout(TRANSACTIONAL) + timedelta(seconds=1)
    world.ledger.slow_claim = lambda: world.clock.advance(slow)
    sender = Sender(world, await planned(world, a_notification()))
    with pytest.raises(ApplicationError) as e:
        await sender.send()
    assert e.value.type == "Failed"
    assert world.email.sent == []
    claim = world.ledger.only()
    assert (claim.state, claim.code) == (ClaimState.FAILED, "not_called")
    world.ledger.slow_claim = lambda: None
    assert (await sender.send()).outcome.kind == "accepted"


async def test_a_cancelled_send_finishes_its_call_and_tells_the_truth():
    world = World()
    world.email.holds = asyncio.Event()
    s = await planned(world, a_notification())
    env = environment()
    sending = asyncio.create_task(env.run(world.delivery().send, s))
    await world.email.called.wait()
    env.cancel()
    await asyncio.sleep(0)
    world.email.holds.set()
    assert (await sending).outcome.kind == "accepted"
    assert world.ledger.only().state is ClaimState.SENT


async def test_a_send_cancelled_before_its_claim_claims_nothing():
    world = World()
    s = await planned(world, a_notification())
    env = environment()
    killed = world.catalog.killed

    async def cancelled_meanwhile(*args):
        env.cancel()
        return await killed(*args)

    world.catalog.killed = cancelled_meanwhile  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await env.run(world.delivery().send, s)
    assert world.ledger.claims == {}


# --- unknown ------------------------------------------------------------------------------------------------------------


async def test_c14_an_unknown_outcome_stops_where_the_policy_says_so():
    world = World(email=ScriptedProvider(HANG))
    s = await planned(world, a_notification())
    recorded = await Sender(world, s).send()
    assert recorded.outcome == HANG
    again = await Sender(world, s, activity_id="again").send()
    assert again.outcome.kind == "unknown"
    assert len(world.email.sent) == 1


async def test_c14_security_resends_an_unknown_outcome_with_the_same_message_id():
    world = World(email=ScriptedProvider(HANG))
    world.set_category(SECURITY, ladder=(Channel.EMAIL,))
    sender = Sender(world, await planned(world, a_passcode()))
    recorded = await sender.send_on()
    assert recorded.outcome.kind == "accepted"
    first, second = world.email.sent
    assert isinstance(first, OutboundEmail)
    assert first == second
    assert first.message_id.endswith("@example.com>")


async def test_unknown_is_resent_only_as_often_as_the_class_allows():
    world = World(sms=ScriptedProvider(*[Unknown(provider="twilio", code="read")] * 99), rng=0.01)
    sender = Sender(world, await planned(world, a_passcode()))
    recorded = await sender.send_on()
    assert recorded.outcome == Unknown(provider="twilio", code="read")
    assert len(world.sms.sent) == RETRIES[SECURITY].attempts


async def test_an_operator_may_release_an_unknown_one():
    world = World(email=ScriptedProvider(HANG))
    s = await planned(world, a_notification())
    await Sender(world, s).send()
    key = world.decisions.only().key
    ended = Move(
        key=key,
        expect=frozenset({RecipientState.PENDING}),
        to=RecipientState.UNKNOWN,
        cause=Cause.SENDER,
        attempt=1,
    )
    await world.decisions.move([ended])
    await world.decisions.move(
        [
            replace(
                ended,
                expect=frozenset({RecipientState.UNKNOWN}),
                to=RecipientState.PENDING,
                cause=Cause.REPLAY,
            )
        ]
    )
    recorded = await Sender(world, s, activity_id="replay").send()
    assert recorded.outcome.kind == "accepted"
    assert recorded.attempt == 2


# --- recording ----------------------------------------------------------------------------------------------------------


async def test_c65_when_recording_fails_only_the_marking_is_repeated():
    world = World()
    s = await planned(world, a_notification())
    world.ledger.down_for.add("record")
    monotonic = world.clock.monotonic
    looks = iter(range(1000))
    world.clock.monotonic = lambda: monotonic() + 0.2 * next(looks)  # type: ignore[method-assign]
    recorded = await Sender(world, s).send()
    assert (recorded.outcome.kind, recorded.recorded) == ("accepted", False)
    tried = world.ledger.calls.count("record")
    assert tried > 1
    for attempt in range(1, 11):  # ten minutes of it
        world.clock.advance(timedelta(minutes=1))
        with pytest.raises(StoreUnavailable):
            await record(world, s, recorded, attempt)
    world.ledger.down_for.clear()
    await record(world, s, recorded, 11)
    assert world.ledger.only().state is ClaimState.SENT
    assert world.decisions.only().state is RecipientState.SENT
    assert len(world.email.sent) == 1


async def test_a_claim_whose_answer_was_lost_is_asked_for_again_and_not_waited_out():
    world = World()
    s = await planned(world, a_notification())
    answers = iter([StoreUnavailable("killed before it answered")])

    def answer() -> None:
        for lost in answers:
            raise lost

    world.ledger.slow_claim = answer
    recorded = await Sender(world, s).send()
    assert (recorded.outcome.kind, recorded.attempt, world.ledger.won) == ("accepted", 1, 1)
    assert addressees(world.email) == [EMAIL]


async def test_pol7_a_claims_table_that_is_down_makes_transactional_wait():
    world = World()
    s = await planned(world, a_notification())
    world.ledger.down_for.add("claim")
    sender = Sender(world, s)
    with pytest.raises(ApplicationError) as e:
        await sender.send()
    assert e.value.type == "StoreUnavailable"
    assert world.email.sent == []
    world.ledger.down_for.clear()
    assert (await sender.send()).outcome.kind == "accepted"


@pytest.mark.parametrize("hangs", [False, True])
async def test_pol7_without_claims_security_sends_after_two_seconds_and_records_later(hangs):
    world = World()
    s = await planned(world, a_passcode())
    world.ledger.down_for |= {"claim", "record"}
    world.ledger.hangs = hangs
    real = asyncio.get_running_loop().time
    began = real()
    world.clock.monotonic = real  # type: ignore[method-assign]
    recorded = await Sender(world, s).send()
    assert real() - began >= 1.8
    assert (recorded.outcome.kind, recorded.recorded) == ("accepted", False)
    assert len(world.sms.sent) == 1
    world.ledger.down_for.clear()
    await record(world, s, recorded)
    assert world.ledger.only().state is ClaimState.SENT


async def test_pol7_a_repeat_without_claims_does_not_send_what_the_cache_saw_sent():
    world = World()
    s = await planned(world, a_passcode())
    world.ledger.down_for |= {"claim", "record"}
    world.clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign]
    first = await Sender(world, s).send()
    second = await Sender(world, s, activity_id="again").send()
    assert second.outcome == Accepted(provider="twilio", provider_message_id="m-1")
    assert (first.recorded, second.recorded) == (False, False)
    assert len(world.sms.sent) == 1


@pytest.mark.parametrize("message_class", [SECURITY, TRANSACTIONAL])
async def test_pol7_without_redis_nothing_changes(message_class):
    world = World()
    world.cache.down = True
    given = a_passcode() if message_class is SECURITY else a_notification()
    recorded = await Sender(world, await planned(world, given)).send()
    assert (recorded.outcome.kind, recorded.recorded) == ("accepted", True)


async def test_pol7_a_last_look_that_cannot_be_taken_holds_transactional_and_not_security():
    world = World()
    order = await planned(world, a_notification("order"))
    otp = await planned(world, a_passcode("otp"))
    world.ledger.down_for.add("suppression")
    world.catalog.down_for.add("killed")
    with pytest.raises(ApplicationError) as e:
        await Sender(world, order).send()
    assert e.value.type == "StoreUnavailable"
    assert (await Sender(world, otp).send()).outcome.kind == "accepted"


# --- settle -------------------------------------------------------------------------------------------------------------


async def test_settling_reads_the_claim_before_it_names_an_outcome():
    world = World(email=ScriptedProvider(BUSY))
    n = a_notification()
    s = await planned(world, n)
    assert (await settle(world, s)).outcome == Failed(provider="", code="not_called", counts=False)
    with pytest.raises(ApplicationError):
        await Sender(world, s).send()
    assert (await settle(world, s)).outcome == Failed(provider="smtp", code="451")
    world.clock.at = n.expires_at
    assert (await settle(world, s)).outcome == Expired(reason="expired")


async def test_settling_waits_for_a_call_that_may_still_be_going_on():
    world = World()
    world.email.holds = asyncio.Event()
    s = await planned(world, a_notification())
    sending = asyncio.create_task(Sender(world, s).send())
    await world.email.called.wait()
    with pytest.raises(ApplicationError) as e:
        await settle(world, s)
    assert e.value.type == "InFlight"
    world.clock.advance(lease(TRANSACTIONAL))
    assert isinstance((await settle(world, s)).outcome, Unknown)
    world.email.holds.set()
    await sending
    assert (await settle(world, s)).outcome.kind == "accepted"


async def test_settling_what_was_rejected_says_so():
    world = World(email=ScriptedProvider(Rejected(provider="smtp", code="5.7.1")))
    s = await planned(world, a_notification())
    await Sender(world, s).send()
    assert (await settle(world, s)).outcome == Rejected(provider="smtp", code="5.7.1")


# --- test mode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("anybody@example.com", "accepted"),
        ("rejected@example.com", "rejected"),
        ("bounced@example.com", "rejected"),
        ("unknown@example.com", "unknown"),
        ("busy@example.com", "accepted"),
        ("failed@example.com", "failed"),
    ],
)
async def test_pass6_a_test_key_gets_every_outcome_and_nothing_leaves(address, kind):
    world = World(test_mode=TestModeProvider(), rng=0.01)  # type: ignore[arg-type]
    world.set_category(TRANSACTIONAL, ladder=(Channel.EMAIL,))
    sealed = an_address(world.sealer, Channel.EMAIL, address)
    world.person = a_person(world.sealer, addresses={Channel.EMAIL: sealed})
    s = await planned(world, a_notification(mode=Mode.TEST))
    recorded = await Sender(world, s).send_on()
    assert recorded.outcome.kind == kind
    assert world.email.sent == []
    # A rehearsal must not silence a real person.
    assert world.ledger.suppressions == {}


async def test_the_text_goes_to_the_number():
    world = World()
    await Sender(world, await planned(world, a_passcode())).send()
    assert addressees(world.sms) == [PHONE]
