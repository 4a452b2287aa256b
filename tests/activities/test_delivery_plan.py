"""What `delivery.plan` resolves, and that it resolves it once."""

from datetime import UTC, datetime, time, timedelta

import pytest
from prometheus_client import REGISTRY

from activities.delivery import decision_key
from activities.facts import RecentCatalog
from schemas.kinds import Channel, Mode, RecipientState
from schemas.messages import OutboundEmail, OutboundSms
from schemas.notifications import NoRung, Objection, Sendable, Settled
from schemas.outcomes import Accepted, Cancelled, Deferred, Expired, Failed, Suppressed
from sendloom.domain.budgets import DEFERRAL_SPREAD
from sendloom.domain.outcomes import Cause
from sendloom.errors import StoreUnavailable
from sendloom.ports import Device, Move
from tests.activities.running import Sender, plan, planned
from tests.builders import (
    CODE,
    EMAIL,
    MARKETING,
    PHONE,
    TENANT,
    TRANSACTIONAL,
    World,
    a_content,
    a_notification,
    a_passcode,
    a_person,
    a_tenant,
    an_address,
)


def payload_of(world: World, s: Sendable) -> OutboundEmail | OutboundSms:
    row = world.decisions.deliveries[s.delivery]
    model = OutboundSms if s.delivery.channel is Channel.SMS else OutboundEmail
    return model.model_validate_json(row.payload)


def failure_of(step: object) -> str:
    assert isinstance(step, Objection)
    assert isinstance(step.outcome, Failed)
    return step.outcome.code


async def test_the_first_rung_is_planned_with_its_payload_fixed():
    world = World()
    n = a_notification()
    s = await planned(world, n)
    assert (s.delivery.channel, s.rung, s.rungs) == (Channel.EMAIL, 0, 2)
    assert (s.expires_at, s.not_after, s.category) == (n.expires_at, n.expires_at, n.category)
    mail = payload_of(world, s)
    assert isinstance(mail, OutboundEmail)
    assert (mail.to_address, mail.subject, mail.text) == (EMAIL, "Hello Ada", "Dear Ada, none")
    assert mail.from_address == "hello@example.com"
    assert mail.message_id.endswith("@example.com>")
    assert mail.date == n.accepted_at
    assert mail.list_unsubscribe_url is None
    assert world.decisions.only().state is RecipientState.PENDING


async def test_planning_again_returns_the_stored_payload_message_id_and_date():
    world = World()
    n = a_notification()
    first = await planned(world, n)
    before = payload_of(world, first)
    world.person = a_person(world.sealer, locale="pt")
    world.clock.advance(timedelta(minutes=5))
    again = await plan(world, n)
    assert again == first
    assert payload_of(world, again) == before
    assert len(world.decisions.deliveries) == 1


async def test_the_template_is_in_the_recipients_language_with_fallback():
    world = World()
    world.person = a_person(world.sealer, locale="pt-BR")
    s = await planned(world, a_notification())
    mail = payload_of(world, s)
    assert isinstance(mail, OutboundEmail)
    assert mail.subject == "Olá Ada"


async def test_a_later_rung_moves_the_decision_to_it():
    world = World()
    n = a_notification()
    await planned(world, n)
    step = await plan(world, n, rung=1)
    assert isinstance(step, Sendable)
    assert (step.delivery.channel, step.rung) == (Channel.SMS, 1)
    decision = world.decisions.only()
    assert (decision.state, decision.channel, decision.rung) == (
        RecipientState.PENDING,
        Channel.SMS,
        1,
    )


async def test_below_the_last_rung_there_is_none():
    world = World()
    n = a_notification()
    await planned(world, n)
    assert isinstance(await plan(world, n, rung=2), NoRung)
    assert world.decisions.only().state is RecipientState.PENDING


async def test_a_workflow_that_starts_over_goes_on_from_the_stored_rung():
    world = World()
    n = a_notification()
    await planned(world, n)
    second = await plan(world, n, rung=1)
    assert await plan(world, n, rung=0) == second


async def test_a_suppressed_address_leaves_the_next_rung():
    world = World()
    world.person = a_person(world.sealer, suppressed={Channel.EMAIL: "hard_bounce"})
    s = await planned(world, a_notification())
    assert s.delivery.channel is Channel.SMS


async def test_an_objection_is_stored_with_its_reason():
    world = World()
    world.person = a_person(world.sealer, opted_out=frozenset({"*"}))
    n = a_notification(message_class=MARKETING)
    await world.accept(n)
    step = await plan(world, n)
    assert step == Objection(outcome=Suppressed(reason="opted_out"))
    decision = world.decisions.only()
    assert (decision.state, decision.reason) == (RecipientState.SUPPRESSED, "opted_out")
    assert await plan(world, n) == Settled(outcome=Suppressed(reason="opted_out"))


async def test_marketing_carries_a_one_click_unsubscribe_address():
    world = World()
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    s = await planned(world, a_notification(message_class=MARKETING))
    mail = payload_of(world, s)
    assert isinstance(mail, OutboundEmail)
    assert mail.list_unsubscribe_url is not None
    assert mail.list_unsubscribe_url.startswith("https://notify.example.com/u/")
    assert EMAIL not in mail.list_unsubscribe_url


async def test_quiet_hours_defer_and_the_next_plan_sends():
    world = World()
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    world.clock.at = datetime(2026, 3, 2, 23, 0, tzinfo=UTC)
    n = a_notification(message_class=MARKETING, accepted_at=world.clock.at)
    await world.accept(n)
    step = await plan(world, n)
    assert isinstance(step, Objection)
    assert isinstance(step.outcome, Deferred)
    morning = datetime(2026, 3, 3, 8, 0, tzinfo=UTC)
    assert morning <= step.outcome.until < morning + timedelta(minutes=4)
    assert world.decisions.only().state is RecipientState.DEFERRED
    world.clock.at = step.outcome.until
    again = await plan(world, n)
    assert isinstance(again, Sendable)
    assert again.not_after == datetime(2026, 3, 3, 22, 0, tzinfo=UTC)
    assert world.decisions.only().state is RecipientState.PENDING


async def test_what_quiet_hours_hold_back_is_spread_over_some_minutes():
    world = World()
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    world.clock.at = datetime(2026, 3, 2, 23, 0, tzinfo=UTC)
    moments = set()
    for n in range(10):
        message = a_notification(f"n{n}", message_class=MARKETING, accepted_at=world.clock.at)
        await world.accept(message)
        step = await plan(world, message)
        assert isinstance(step, Objection)
        assert isinstance(step.outcome, Deferred)
        moments.add(step.outcome.until)
    morning = datetime(2026, 3, 3, 8, 0, tzinfo=UTC)
    assert len(moments) > 1
    assert all(morning <= moment < morning + DEFERRAL_SPREAD for moment in moments)


@pytest.mark.parametrize(("zone", "counted"), [(None, 1), ("UTC", 0)])
async def test_marketing_without_a_zone_goes_at_night_and_is_counted(
    zone: str | None, counted: int
):
    world = World()
    world.person = a_person(world.sealer, consented=frozenset({"*"}), zone=zone)
    world.clock.at = datetime(2026, 3, 2, 12 if zone else 23, 0, tzinfo=UTC)
    n = a_notification(message_class=MARKETING, accepted_at=world.clock.at)
    await world.accept(n)
    before = REGISTRY.get_sample_value("sendloom_zone_unknown_total") or 0
    assert isinstance(await plan(world, n), Sendable)
    assert (REGISTRY.get_sample_value("sendloom_zone_unknown_total") or 0) == before + counted


@pytest.mark.parametrize("keeps", [False, True])
async def test_c67_at_bedtime_it_leaves_at_once_where_the_category_keeps_no_quiet_hours(
    keeps: bool,
):
    """Half past ten, quiet from ten to seven. Where it would wait, it is refused when it is set up (`test_schedules`)."""
    world = World()
    world.catalog.tenants[TENANT] = a_tenant(quiet_start=time(22), quiet_end=time(7))
    world.set_category(TRANSACTIONAL, quiet_hours=keeps)
    world.clock.at = datetime(2026, 3, 2, 22, 30, tzinfo=UTC)
    n = a_notification("bedtime", accepted_at=world.clock.at)
    await world.accept(n)
    step = await plan(world, n)
    if not keeps:
        assert isinstance(step, Sendable)
        assert (await Sender(world, step).send()).outcome.kind == "accepted"
        assert len(world.email.sent) == 1
        return
    assert isinstance(step, Objection)
    assert isinstance(step.outcome, Deferred)
    assert step.outcome.until >= datetime(2026, 3, 3, 7, 0, tzinfo=UTC)


async def test_a_deferred_message_uses_its_cap_only_when_it_leaves():
    world = World()
    caps = ({"scope": "marketing", "per": "day", "limit": 1},)
    world.set_category(MARKETING, caps=caps)
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    world.clock.at = datetime(2026, 3, 2, 23, 0, tzinfo=UTC)
    n = a_notification(message_class=MARKETING, accepted_at=world.clock.at)
    await world.accept(n)
    await plan(world, n)
    assert world.decisions.caps == []
    world.clock.at = datetime(2026, 3, 3, 8, 30, tzinfo=UTC)
    assert isinstance(await plan(world, n), Sendable)
    assert [use.scope for use in world.decisions.caps] == ["marketing"]


async def test_a_cap_found_full_while_it_waited_suppresses():
    world = World()
    world.set_category(MARKETING, caps=({"scope": "marketing", "per": "day", "limit": 1},))
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    world.clock.at = datetime(2026, 3, 2, 23, 0, tzinfo=UTC)
    n = a_notification(message_class=MARKETING, accepted_at=world.clock.at)
    await world.accept(n)
    await plan(world, n)
    world.clock.at = datetime(2026, 3, 3, 8, 30, tzinfo=UTC)
    world.decisions.full_caps.add("marketing")
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="frequency_cap"))
    assert world.decisions.only().reason == "frequency_cap"


async def test_a_cap_found_full_by_the_store_suppresses():
    world = World()
    world.set_category(MARKETING, caps=({"scope": "marketing", "per": "day", "limit": 1},))
    world.person = a_person(world.sealer, consented=frozenset({"*"}))
    world.decisions.full_caps.add("marketing")
    n = a_notification(message_class=MARKETING)
    await world.accept(n)
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="frequency_cap"))


async def test_what_has_expired_is_not_planned():
    world = World()
    n = a_notification()
    await world.accept(n)
    world.clock.at = n.expires_at
    step = await plan(world, n)
    assert isinstance(step, Objection)
    assert isinstance(step.outcome, Expired)


async def test_c44_a_row_cancelled_in_our_own_store_is_not_sent():
    world = World()
    n = a_notification()
    await world.accept(n)
    await world.accepted.close(n.tenant, n.notification_id, {"kind": "cancelled", "reason": "no"})
    assert await plan(world, n) == Settled(outcome=Cancelled(reason="no"))
    assert world.decisions.decisions == {}


async def test_c16_nobody_to_send_to_is_said_with_its_reason():
    """User with no device: skipped(no device); channel not configured: skipped(config); one good: sent."""
    world = World()
    world.set_category(TRANSACTIONAL, ladder=(Channel.FCM,))
    n = a_notification("no-device")
    await world.accept(n)
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="no_device"))

    device = Device("d", Channel.FCM, world.sealer.seal("device", TENANT, b"token"))
    world.person = a_person(world.sealer, devices=[device])
    n = a_notification("not-configured")
    await world.accept(n)
    assert failure_of(await plan(world, n)) == "channel_not_configured"
    decision = await world.decisions.read(decision_key(n))
    assert decision is not None
    assert decision.state is RecipientState.FAILED

    world.set_category(TRANSACTIONAL, ladder=(Channel.FCM, Channel.EMAIL))
    s = await planned(world, a_notification("good"))
    assert s.delivery.channel is Channel.EMAIL


async def test_c16_a_person_without_an_address_is_skipped_with_no_address():
    world = World()
    world.person = a_person(world.sealer, addresses={})
    n = a_notification()
    await world.accept(n)
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="no_address"))


async def test_security_with_nothing_left_is_undeliverable():
    world = World()
    world.person = a_person(
        world.sealer, suppressed={Channel.EMAIL: "complaint", Channel.SMS: "stop"}
    )
    p = a_passcode()
    await world.accept(p)
    assert isinstance(await plan(world, p), NoRung)
    assert world.decisions.only().state is RecipientState.SUPPRESSED


async def test_c71_leaving_the_newsletter_does_not_block_a_passcode():
    world = World()
    world.person = a_person(world.sealer, opted_out=frozenset({"*"}), consented=frozenset({"*"}))
    news = a_notification("news", message_class=MARKETING)
    await world.accept(news)
    assert await plan(world, news) == Objection(outcome=Suppressed(reason="opted_out"))
    assert (await planned(world, a_passcode("otp"))).delivery.channel is Channel.SMS
    world.person = a_person(world.sealer, suppressed={Channel.SMS: "hard_bounce"})
    after_bounce = await planned(world, a_passcode("after-bounce"))
    assert after_bounce.delivery.channel is Channel.EMAIL


async def test_a_recipient_that_vanished_is_not_written_to():
    world = World()
    n = a_notification(recipient_id="nobody")
    await world.accept(n)
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="unknown_recipient"))
    world.person = a_person(world.sealer, erased=True)
    n = a_notification("erased")
    await world.accept(n)
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="erased"))


async def test_a_value_that_does_not_fit_the_template_is_a_reason_not_a_crash():
    world = World()
    n = a_notification()
    await world.accept(n, a_content(variables={"name": True}))
    assert failure_of(await plan(world, n)) == "bad_variable"
    decision = world.decisions.only()
    assert (decision.state, decision.reason) == (RecipientState.FAILED, "bad_variable")


async def test_what_failed_for_a_fault_of_ours_can_be_replayed_when_it_is_mended():
    world = World(configured=frozenset())
    n = a_notification()
    await world.accept(n)
    assert failure_of(await plan(world, n)) == "channel_not_configured"
    replayed = Move(
        key=world.decisions.only().key,
        expect=frozenset({RecipientState.FAILED}),
        to=RecipientState.PENDING,
        cause=Cause.REPLAY,
    )
    await world.decisions.move([replayed])
    world.configured = frozenset({Channel.EMAIL})
    assert isinstance(await plan(world, n), Sendable)


async def test_a_payload_that_was_purged_is_not_made_up_again():
    world = World()
    n = a_notification()
    await planned(world, n)
    world.decisions.purged = True
    assert await plan(world, n, rung=1) == Settled(outcome=Expired(reason="purged"))


async def test_a_passcode_carries_its_secret_and_ends_with_the_bound_line():
    world = World()
    s = await planned(world, a_passcode(), a_content(secret=CODE, origin="example.com"))
    text = payload_of(world, s)
    assert isinstance(text, OutboundSms)
    assert text.body == f"Ada: {CODE}\n\n@example.com #{CODE}"
    assert (text.to, text.sender, text.intent) == (PHONE, "+12025550100", "otp")
    assert text.validity_seconds == 600


async def test_a_resend_is_a_delivery_of_its_own_with_the_same_secret():
    world = World()
    p = a_passcode()
    first = await planned(world, p)
    await Sender(world, first).send()
    second = await plan(world, p, send_no=2)
    assert isinstance(second, Sendable)
    assert second.delivery.send_no == 2
    one, two = payload_of(world, first), payload_of(world, second)
    assert isinstance(one, OutboundSms)
    assert isinstance(two, OutboundSms)
    assert one.body == two.body
    assert one.reference != two.reference


async def test_verifying_an_address_goes_there_and_nowhere_else():
    world = World()
    p = a_passcode(recipient_id="stranger")
    content = a_content(secret=CODE, verify_channel=Channel.EMAIL, verify_address="new@example.com")
    s = await planned(world, p, content)
    mail = payload_of(world, s)
    assert isinstance(mail, OutboundEmail)
    assert mail.to_address == "new@example.com"
    assert s.rung == 1  # the ladder's own number


async def test_an_address_to_verify_that_is_suppressed_is_not_used():
    world = World()
    hashed = world.sealer.address_hash(TENANT, Channel.EMAIL, "new@example.com")
    await world.ledger.suppress(TENANT, Channel.EMAIL, hashed, "complaint", "test")
    p = a_passcode()
    content = a_content(secret=CODE, verify_channel=Channel.EMAIL, verify_address="new@example.com")
    await world.accept(p, content)
    assert await plan(world, p) == NoRung(reason="suppressed_complaint")


async def test_an_unverified_address_is_skipped():
    world = World()
    address = an_address(world.sealer, Channel.EMAIL, EMAIL, verified=False)
    world.person = a_person(world.sealer, addresses={Channel.EMAIL: address})
    n = a_notification()
    await world.accept(n)
    assert await plan(world, n) == Objection(outcome=Suppressed(reason="unverified"))


async def test_what_was_sent_is_settled_with_who_took_it():
    world = World()
    n = a_notification()
    await Sender(world, await planned(world, n)).send()
    assert await plan(world, n) == Settled(
        outcome=Accepted(provider="smtp", provider_message_id="m-1")
    )


async def test_an_operators_replay_of_a_rejected_one_gets_a_new_send_number():
    world = World()
    n = a_notification()
    s = await planned(world, n)
    key = world.decisions.only().key
    pending, rejected = RecipientState.PENDING, RecipientState.REJECTED
    ended = Move(key=key, expect=frozenset({pending}), to=rejected, cause=Cause.SENDER)
    replayed = Move(
        key=key, expect=frozenset({rejected}), to=pending, cause=Cause.REPLAY, send_no=2
    )
    await world.decisions.move([ended])
    await world.decisions.move([replayed])
    again = await plan(world, n)
    assert isinstance(again, Sendable)
    assert again.delivery == s.delivery.model_copy(update={"send_no": 2})


async def test_a_purged_row_is_over():
    world = World()
    assert await plan(world, a_notification()) == Settled(outcome=Expired(reason="purged"))


async def test_the_other_of_two_plans_at_once_takes_the_first_ones_decision():
    world = World()
    n = a_notification()
    await world.accept(n)
    read = world.decisions.read

    async def nobody_yet(key):  # both looked before either had stored
        await read(key)
        return None

    first = await plan(world, n)
    world.person = a_person(world.sealer, suppressed={Channel.EMAIL: "complaint"})
    world.decisions.read = nobody_yet  # type: ignore[method-assign]
    assert await plan(world, n) == first


# --- POL-7: what each class does when a store is down -------------------------------------------------------------------


@pytest.mark.parametrize("message_class", [MARKETING, TRANSACTIONAL])
async def test_pol7_without_profiles_marketing_and_transactional_wait(message_class):
    world = World()
    world.people.down = True
    n = a_notification(message_class=message_class)
    await world.accept(n)
    with pytest.raises(StoreUnavailable):
        await plan(world, n)
    assert world.decisions.decisions == {}


async def test_pol7_without_profiles_security_uses_what_was_verified_at_accept():
    world = World()
    world.people.down = True
    content = a_content(
        secret=CODE,
        verified_channels=[Channel.SMS],
        verified_addresses={Channel.SMS: PHONE},
        locale="en",
    )
    s = await planned(world, a_passcode(), content)
    text = payload_of(world, s)
    assert isinstance(text, OutboundSms)
    assert text.to == PHONE


async def test_pol7_without_suppressions_security_goes_on_by_what_was_verified_at_accept():
    world = World()
    world.people.down = world.ledger.down = True
    content = a_content(
        secret=CODE, verified_channels=[Channel.SMS], verified_addresses={Channel.SMS: PHONE}
    )
    assert (await planned(world, a_passcode(), content)).delivery.channel is Channel.SMS


async def test_test_mode_plans_like_live():
    world = World(configured=frozenset())
    s = await planned(world, a_notification(mode=Mode.TEST))
    assert s.mode is Mode.TEST


async def test_the_tenants_quiet_hours_are_kept_only_where_the_category_says_so():
    world = World()
    world.catalog.tenants[TENANT] = a_tenant(quiet_start=time(0), quiet_end=time(23))
    s = await planned(world, a_notification())
    assert s.delivery.channel is Channel.EMAIL
    world.set_category(TRANSACTIONAL, quiet_hours=True)
    n = a_notification("quiet")
    await world.accept(n)
    step = await plan(world, n)
    assert isinstance(step, Objection)
    assert isinstance(step.outcome, Deferred)
    assert step.outcome.reason == "quiet_hours"


# --- categories and tenants ---------------------------------------------------------------------------------------------


async def test_a_category_is_remembered_for_a_second_and_through_an_outage():
    world = World()
    recent = RecentCatalog(world.catalog, world.clock.monotonic)
    first = await recent.category(TENANT, "orders.shipped")
    assert first is not None
    world.set_category(TRANSACTIONAL, priority=1)
    assert await recent.category(TENANT, "orders.shipped") == first
    world.clock.advance(timedelta(seconds=1))
    changed = await recent.category(TENANT, "orders.shipped")
    assert changed is not None
    assert changed.priority == 1
    world.catalog.down = True
    world.clock.advance(timedelta(hours=1))
    assert await recent.category(TENANT, "orders.shipped") == changed
    with pytest.raises(StoreUnavailable):
        await recent.tenant(TENANT)


async def test_what_is_not_there_yet_is_asked_for_again_and_switches_always_are():
    world = World()
    recent = RecentCatalog(world.catalog, world.clock.monotonic)
    del world.catalog.tenants[TENANT]
    assert await recent.tenant(TENANT) is None
    world.catalog.tenants[TENANT] = a_tenant()
    assert await recent.tenant(TENANT) is not None
    n = a_notification()
    assert await recent.killed(TENANT, n.category, "lane", n.notification_id) is None
    world.catalog.switched_off["lane"] = "incident"
    assert await recent.killed(TENANT, n.category, "lane", n.notification_id) == "incident"
