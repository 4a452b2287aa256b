"""The order of the gates, and what each one objects to (POL-1 to POL-5)."""

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import outcomes
from schemas.kinds import Channel, MessageClass
from sendloom.domain.frequency import Caps, read_caps
from sendloom.domain.gates import (
    AddressState,
    Chosen,
    Deferred,
    Expired,
    Facts,
    NoRung,
    Policy,
    Suppressed,
    decide,
    last_look,
    quiet_window,
    to_outcome,
)
from sendloom.domain.ladder import read_ladder
from sendloom.domain.quiet_hours import Window
from sendloom.domain.reasons import EXPLANATIONS, Reason, explain, suppression_reason
from sendloom.domain.wall_time import resolve
from sendloom.domain.zones import load
from sendloom.errors import Refusal

EMAIL, SMS, APNS, FCM = Channel.EMAIL, Channel.SMS, Channel.APNS, Channel.FCM
SECURITY, TRANSACTIONAL, MARKETING = (
    MessageClass.SECURITY,
    MessageClass.TRANSACTIONAL,
    MessageClass.MARKETING,
)
VERIFIED, UNVERIFIED, DEAD, VERIFYING = AddressState
NIGHT = Window(time(22), time(8))
CHICAGO = load("America/Chicago")
NOON = datetime(2026, 1, 15, 18, 0, tzinfo=UTC)
"""Midday in Chicago."""


def chicago(text: str) -> datetime:
    return resolve(datetime.fromisoformat(text), CHICAGO)


def a_policy(message_class: MessageClass = MARKETING, **changes: Any) -> Policy:
    return replace(
        Policy(message_class, (EMAIL, SMS), quiet=quiet_window(message_class, False, NIGHT)),
        **changes,
    )


def facts(policy: Policy | None = None, **changes: Any) -> Facts:
    """Somebody who may be written to at noon on both channels."""
    now = changes.pop("now", NOON)
    return replace(
        Facts(
            now=now,
            policy=policy or a_policy(),
            not_after=now + timedelta(days=2),
            zone=CHICAGO,
            addresses={EMAIL: VERIFIED, SMS: VERIFIED},
            consented=frozenset({"*"}),
        ),
        **changes,
    )


def test_with_nothing_in_the_way_the_first_rung_is_chosen():
    assert decide(facts()) == Chosen(EMAIL, 0, NOON, chicago("2026-01-15T22:00"))


def test_what_was_chosen_must_leave_before_the_next_silence_or_its_own_end():
    end = NOON + timedelta(hours=1)
    assert decide(facts(not_after=end)) == Chosen(EMAIL, 0, NOON, end)


def test_channels_are_looked_up_by_value_as_stores_bring_them():
    """`'email' in {...}` and `Channel.EMAIL in {...}` must be one question."""
    assert decide(facts(opted_out=frozenset({"email"}))) == decide(
        facts(opted_out=frozenset({Channel.EMAIL}))
    )


# --- one gate at a time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"killed": frozenset({"*"})}, Reason.KILLED),
        ({"killed": frozenset({"email", "sms"})}, Reason.KILLED),
        ({"suppressed": {EMAIL: "hard_bounce", SMS: "stop"}}, Reason.SUPPRESSED_HARD_BOUNCE),
        ({"suppressed": {EMAIL: "complaint", SMS: "stop"}}, Reason.SUPPRESSED_COMPLAINT),
        ({"suppressed": {EMAIL: "manual", SMS: "stop"}}, Reason.SUPPRESSED_MANUAL),
        ({"opted_out": frozenset({"*"})}, Reason.OPTED_OUT),
        ({"opted_out": frozenset({"email", "sms"})}, Reason.OPTED_OUT),
        ({"addresses": {}}, Reason.NO_ADDRESS),
        ({"addresses": {EMAIL: UNVERIFIED, SMS: UNVERIFIED}}, Reason.UNVERIFIED),
        ({"addresses": {EMAIL: VERIFYING}}, Reason.UNVERIFIED),
        ({"addresses": {EMAIL: DEAD, SMS: DEAD}}, Reason.ADDRESS_DEAD),
        ({"consented": frozenset()}, Reason.NO_CONSENT),
    ],
)
def test_marketing_is_suppressed_with_the_reason(changes, reason):
    assert decide(facts(**changes)) == Suppressed(reason)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"opted_out": frozenset({"email"})}, (SMS, 1)),
        ({"suppressed": {EMAIL: "hard_bounce"}}, (SMS, 1)),
        ({"addresses": {SMS: VERIFIED}}, (SMS, 1)),
        ({"addresses": {EMAIL: DEAD, SMS: VERIFIED}}, (SMS, 1)),
        ({"consented": frozenset({"sms"})}, (SMS, 1)),
        ({"killed": frozenset({"email"})}, (SMS, 1)),
        ({"opted_out": frozenset({"sms"})}, (EMAIL, 0)),
    ],
)
def test_an_objection_to_one_channel_leaves_the_next(changes, expected):
    verdict = decide(facts(**changes))
    assert isinstance(verdict, Chosen)
    assert (verdict.channel, verdict.rung) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # Each pair of objections, one per channel: the earlier gate's is the one that is told.
        (
            {"opted_out": frozenset({"email"}), "suppressed": {SMS: "stop"}},
            Reason.SUPPRESSED_STOP,
        ),
        ({"addresses": {EMAIL: VERIFIED}, "opted_out": frozenset({"email"})}, Reason.OPTED_OUT),
        ({"addresses": {SMS: VERIFIED}, "consented": frozenset()}, Reason.NO_ADDRESS),
        ({"killed": frozenset({"sms"}), "opted_out": frozenset({"*"})}, Reason.KILLED),
    ],
)
def test_the_first_objection_is_the_one_recorded(changes, reason):
    assert decide(facts(**changes)) == Suppressed(reason)


def test_what_will_never_be_sent_is_not_parked_until_morning():
    night = chicago("2026-01-15T23:00")
    assert decide(facts(now=night, opted_out=frozenset({"*"}))) == Suppressed(Reason.OPTED_OUT)


def test_what_is_parked_does_not_use_up_a_cap():
    night = chicago("2026-01-15T23:00")
    caps = read_caps("news", [{"scope": "category", "per": "day", "limit": 1}])
    verdict = decide(
        facts(a_policy(caps=caps), now=night, cap_uses={"category:news": [date(2026, 1, 15)]})
    )
    assert isinstance(verdict, Deferred)
    assert verdict.reason is Reason.QUIET_HOURS


def test_past_its_end_it_is_expired_whatever_else_is_true():
    assert decide(facts(not_after=NOON, opted_out=frozenset({"*"}))) == Expired(Reason.EXPIRED)


# --- consent ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (a_policy(MARKETING), None),
        (a_policy(TRANSACTIONAL), EMAIL),
        (a_policy(TRANSACTIONAL, consent_required=True), None),
        (a_policy(TRANSACTIONAL, ladder=(SMS, EMAIL), sms_consent_required=True), EMAIL),
        (a_policy(SECURITY, consent_required=True, sms_consent_required=True), EMAIL),
        (a_policy(SECURITY, ladder=(SMS,), sms_consent_required=True), SMS),
    ],
)
def test_without_recorded_consent(policy, chosen):
    verdict = decide(facts(policy, consented=frozenset()))
    if chosen is None:
        assert verdict == Suppressed(Reason.NO_CONSENT)
    else:
        assert isinstance(verdict, Chosen)
        assert verdict.channel is chosen


# --- security (POL-5) -----------------------------------------------------------------------------------------------------


def test_c71_security_goes_though_its_reader_opted_out_of_everything():
    verdict = decide(facts(a_policy(SECURITY), opted_out=frozenset({"*"}), consented=frozenset()))
    assert verdict == Chosen(EMAIL, 0, NOON, NOON + timedelta(days=2))


def test_c71_after_a_hard_bounce_security_does_not_use_that_address_and_says_why():
    only_email = {"addresses": {EMAIL: VERIFIED}, "suppressed": {EMAIL: "hard_bounce"}}
    verdict = decide(facts(a_policy(SECURITY), **only_email))
    assert verdict == NoRung(Reason.SUPPRESSED_HARD_BOUNCE)
    assert to_outcome(verdict) == outcomes.Undeliverable(reason="suppressed_hard_bounce")


def test_security_falls_back_to_another_verified_channel():
    verdict = decide(facts(a_policy(SECURITY), suppressed={EMAIL: "complaint"}))
    assert isinstance(verdict, Chosen)
    assert verdict.channel is SMS


def test_security_knows_no_quiet_hours_windows_or_caps():
    policy = a_policy(
        SECURITY,
        quiet=NIGHT,
        send_window=Window(time(9), time(20)),
        caps=read_caps("otp", [{"scope": "category", "per": "day", "limit": 0}]),
    )
    night = chicago("2026-01-15T23:00")
    end = night + timedelta(minutes=10)
    assert decide(facts(policy, now=night, not_after=end)) == Chosen(EMAIL, 0, night, end)


def test_the_passcode_that_verifies_an_address_may_go_to_it_unverified():
    verifying = {"addresses": {EMAIL: VERIFYING}}
    assert isinstance(decide(facts(a_policy(SECURITY), **verifying)), Chosen)
    unverified = {"addresses": {EMAIL: UNVERIFIED, SMS: UNVERIFIED}}
    assert decide(facts(a_policy(SECURITY), **unverified)) == NoRung(Reason.UNVERIFIED)


def test_a_kill_switch_stops_security_too():
    assert decide(facts(a_policy(SECURITY), killed=frozenset({"*"}))) == NoRung(Reason.KILLED)


# --- later rungs ----------------------------------------------------------------------------------------------------------


def test_the_walk_goes_on_from_the_asked_rung():
    verdict = decide(facts(), from_rung=1)
    assert isinstance(verdict, Chosen)
    assert (verdict.channel, verdict.rung) == (SMS, 1)


def test_a_ladder_that_is_used_up_says_so():
    assert decide(facts(), from_rung=2) == NoRung(Reason.LADDER_EXHAUSTED)


def test_a_later_rung_that_is_unusable_is_no_rung_with_the_reason():
    verdict = decide(facts(opted_out=frozenset({"sms"})), from_rung=1)
    assert verdict == NoRung(Reason.OPTED_OUT)


@pytest.mark.parametrize("ladder", [[], ["email", "email"], ["pigeon"]])
def test_a_ladder_that_is_none_is_refused(ladder):
    with pytest.raises(Refusal, match="bad_ladder"):
        read_ladder(ladder)


# --- time -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "waits"),
    [
        ("2026-01-15T21:59", False),
        ("2026-01-15T22:00", True),
        ("2026-01-15T23:00", True),
        ("2026-01-16T07:59", True),
        ("2026-01-16T08:00", False),
    ],
)
@pytest.mark.parametrize("spread", [timedelta(0), timedelta(minutes=2), timedelta(minutes=4)])
def test_c55_quiet_hours_hold_until_eight_and_a_little(now, waits, spread):
    verdict = decide(facts(now=chicago(now), spread=spread))
    if not waits:
        assert isinstance(verdict, Chosen)
        assert verdict.not_before == chicago(now)
        return
    assert verdict == Deferred(
        chicago("2026-01-16T08:00") + spread, Reason.QUIET_HOURS, channel=EMAIL, rung=0
    )
    assert isinstance(decide(facts(now=chicago("2026-01-16T08:05"))), Chosen)


@pytest.mark.parametrize(
    ("message_class", "keeps", "window"),
    [
        (MARKETING, False, NIGHT),
        (MARKETING, True, NIGHT),
        (TRANSACTIONAL, False, None),
        (TRANSACTIONAL, True, NIGHT),
        (SECURITY, True, None),
    ],
)
def test_who_keeps_quiet_hours(message_class, keeps, window):
    assert quiet_window(message_class, keeps, NIGHT) == window


def test_marketing_without_a_zone_skips_quiet_hours_and_says_so():
    night = chicago("2026-01-15T23:00")
    verdict = decide(facts(now=night, zone_known=False))
    assert isinstance(verdict, Chosen)
    assert verdict.zone_unknown


def test_transactional_without_a_zone_keeps_the_tenants():
    night = chicago("2026-01-15T23:00")
    policy = a_policy(TRANSACTIONAL, quiet=NIGHT)
    assert isinstance(decide(facts(policy, now=night, zone_known=False)), Deferred)


def test_a_known_zone_is_not_counted_as_unknown():
    verdict = decide(facts())
    assert isinstance(verdict, Chosen)
    assert not verdict.zone_unknown


def test_c95_a_send_window_holds_also_who_has_no_zone():
    policy = a_policy(send_window=Window(time(9), time(20)))
    verdict = decide(facts(policy, now=chicago("2026-01-15T20:00"), zone_known=False))
    assert verdict == Deferred(chicago("2026-01-16T09:00"), Reason.WINDOW, EMAIL, 0)


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("19:55", None),
        ("19:59:59", None),
        ("20:00", "2026-01-16T09:00"),
        ("08:59", "2026-01-15T09:00"),
    ],
)
def test_c95_nothing_leaves_outside_the_send_window(now, until):
    policy = a_policy(send_window=Window(time(9), time(20)))
    verdict = decide(facts(policy, now=chicago(f"2026-01-15T{now}")))
    if until is None:
        assert isinstance(verdict, Chosen)
        assert verdict.not_after == chicago("2026-01-15T20:00")
    else:
        assert isinstance(verdict, Deferred)
        assert verdict.until == chicago(until)


def test_a_message_asked_for_later_waits_and_then_for_the_window():
    later = NOON + timedelta(hours=1)
    assert decide(facts(not_before=later)) == Deferred(later, Reason.SCHEDULED, EMAIL, 0)
    at_night = chicago("2026-01-15T23:00")
    assert decide(facts(not_before=at_night)) == Deferred(
        chicago("2026-01-16T08:00"), Reason.QUIET_HOURS, EMAIL, 0
    )


def test_what_cannot_leave_before_its_end_is_expired_with_what_held_it():
    night = chicago("2026-01-15T23:00")
    verdict = decide(facts(now=night, not_after=night + timedelta(hours=1)))
    assert verdict == Expired(Reason.QUIET_HOURS)
    assert to_outcome(verdict) == outcomes.Expired(reason="quiet_hours")


def test_the_spread_does_not_carry_past_the_end_or_out_of_a_short_window():
    night = chicago("2026-01-15T23:00")
    eight = chicago("2026-01-16T08:00")
    end = eight + timedelta(minutes=1)
    assert decide(facts(now=night, not_after=end, spread=timedelta(minutes=3))) == Deferred(
        eight, Reason.QUIET_HOURS, EMAIL, 0
    )
    short = a_policy(quiet=None, send_window=Window(time(9), time(9, 2)))
    verdict = decide(facts(short, spread=timedelta(minutes=3)))
    assert verdict == Deferred(chicago("2026-01-16T09:00"), Reason.WINDOW, EMAIL, 0)


def test_windows_that_leave_no_moment_expire_rather_than_wait_for_ever():
    never = a_policy(send_window=Window(time(23), time(7)))
    assert decide(facts(never, not_after=NOON + timedelta(days=90))) == Expired(Reason.WINDOW)


# --- caps -----------------------------------------------------------------------------------------------------------------

TODAY = date(2026, 1, 15)


def caps(*rules: tuple[str, str, int]) -> Caps:
    return read_caps("news", [{"scope": s, "per": p, "limit": n} for s, p, n in rules])


def test_under_the_cap_it_goes_and_says_what_it_consumes():
    policy = a_policy(caps=caps(("category", "day", 2), ("channel", "week", 5)))
    verdict = decide(facts(policy, cap_uses={"category:news": [TODAY]}))
    assert isinstance(verdict, Chosen)
    assert [rule.scope for rule in verdict.caps] == ["category:news", "channel:email"]
    assert verdict.local_day == TODAY


def test_the_day_is_the_recipients():
    policy = a_policy(quiet=None, caps=caps(("category", "day", 1)))
    late = chicago("2026-01-15T23:30")
    assert late.date() == date(2026, 1, 16)
    uses = {"category:news": [TODAY]}
    assert decide(facts(policy, now=late, cap_uses=uses)) == Suppressed(Reason.FREQUENCY_CAP)
    goes = decide(facts(policy, now=late))
    assert isinstance(goes, Chosen)
    assert goes.local_day == TODAY, "the day that is used up is theirs too"
    after_midnight = chicago("2026-01-16T00:00")
    assert isinstance(decide(facts(policy, now=after_midnight, cap_uses=uses)), Chosen)


def test_over_the_cap_it_is_suppressed_or_waits_as_the_category_says():
    uses = {"marketing": [TODAY, TODAY]}
    rules = caps(("marketing", "day", 2))
    assert decide(facts(a_policy(caps=rules), cap_uses=uses)) == Suppressed(Reason.FREQUENCY_CAP)
    waits = decide(facts(a_policy(caps=rules, defer_over_cap=True), cap_uses=uses))
    # From midnight, but that is inside quiet hours.
    assert waits == Deferred(chicago("2026-01-16T08:00"), Reason.FREQUENCY_CAP, EMAIL, 0)


def test_a_full_week_waits_until_monday():
    policy = a_policy(caps=caps(("marketing", "week", 1)), defer_over_cap=True)
    verdict = decide(
        facts(
            policy, not_after=NOON + timedelta(days=9), cap_uses={"marketing": [date(2026, 1, 12)]}
        )
    )
    assert verdict == Deferred(chicago("2026-01-19T08:00"), Reason.FREQUENCY_CAP, EMAIL, 0)


def test_c74_a_cap_of_nought_is_never_queued():
    policy = a_policy(caps=caps(("category", "day", 0)), defer_over_cap=True)
    assert decide(facts(policy)) == Suppressed(Reason.FREQUENCY_CAP)


def test_a_full_channel_leaves_the_next_one():
    policy = a_policy(caps=caps(("channel", "day", 1)))
    verdict = decide(facts(policy, cap_uses={"channel:email": [TODAY]}))
    assert isinstance(verdict, Chosen)
    assert (verdict.channel, verdict.rung) == (SMS, 1)
    assert [rule.scope for rule in verdict.caps] == ["channel:sms"]
    both = {"channel:email": [TODAY], "channel:sms": [TODAY]}
    assert decide(facts(policy, cap_uses=both)) == Suppressed(Reason.FREQUENCY_CAP)


def test_a_wait_for_room_that_outlives_the_message_is_expired():
    policy = a_policy(caps=caps(("category", "day", 1)), defer_over_cap=True)
    verdict = decide(
        facts(policy, not_after=NOON + timedelta(hours=3), cap_uses={"category:news": [TODAY]})
    )
    assert verdict == Expired(Reason.FREQUENCY_CAP)


# --- the last look ----------------------------------------------------------------------------------------------------------


def look(now: datetime = NOON, policy: Policy | None = None, **changes: Any):
    arguments: dict[str, Any] = {
        "channel": EMAIL,
        "expires_at": NOON + timedelta(days=2),
        "not_before": NOON - timedelta(hours=1),
        "not_after": NOON + timedelta(hours=8),
    }
    return last_look(now=now, policy=policy or a_policy(), **{**arguments, **changes})


def test_with_nothing_changed_since_the_plan_the_call_is_made():
    assert look() is None
    assert look(zone=CHICAGO) is None


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"expires_at": NOON}, Expired()),
        ({"killed": True}, Suppressed(Reason.KILLED)),
        ({"suppressed": "complaint"}, Suppressed(Reason.SUPPRESSED_COMPLAINT)),
        ({"opted_out": True}, Suppressed(Reason.OPTED_OUT)),
        (
            {"not_before": NOON + timedelta(minutes=1)},
            Deferred(NOON + timedelta(minutes=1), Reason.SCHEDULED, EMAIL, 0),
        ),
        ({"not_after": NOON}, Deferred(NOON, Reason.WINDOW, EMAIL, 0)),
        (
            {"not_before": NOON + timedelta(days=3), "not_after": None},
            Expired(Reason.SCHEDULED),
        ),
    ],
)
def test_the_last_look_objects(changes, verdict):
    assert look(**changes) == verdict


def test_c95_the_window_is_looked_at_for_each_message():
    policy = a_policy(send_window=Window(time(9), time(20)))
    eight = chicago("2026-01-15T20:00")
    assert look(eight - timedelta(seconds=1), policy, zone=CHICAGO) is None
    assert look(eight, policy, zone=CHICAGO) == Deferred(
        chicago("2026-01-16T09:00"), Reason.WINDOW, EMAIL, 0
    )


def test_an_opt_out_after_the_plan_wins_except_over_security():
    assert look(opted_out=True, policy=a_policy(SECURITY)) is None
    assert look(suppressed="stop", policy=a_policy(SECURITY)) == Suppressed(Reason.SUPPRESSED_STOP)


# --- reasons ----------------------------------------------------------------------------------------------------------------


def test_every_reason_has_one_sentence_of_its_own():
    assert set(EXPLANATIONS) == set(Reason)
    assert len(set(EXPLANATIONS.values())) == len(Reason)
    for sentence in EXPLANATIONS.values():
        assert sentence.endswith(".")
        assert sentence.count(".") == 1


def test_a_code_from_elsewhere_is_shown_as_it_is():
    assert "30003" in explain("30003")
    assert explain("opted_out") == EXPLANATIONS[Reason.OPTED_OUT]


def test_an_unknown_suppression_is_still_one():
    assert suppression_reason("spamtrap") is Reason.SUPPRESSED_MANUAL


def test_objections_have_a_wire_form():
    assert to_outcome(Suppressed(Reason.OPTED_OUT)) == outcomes.Suppressed(reason="opted_out")
    assert to_outcome(Deferred(NOON, Reason.WINDOW, EMAIL, 0)) == outcomes.Deferred(
        until=NOON, reason="window"
    )


# --- properties -------------------------------------------------------------------------------------------------------------

channels = st.frozensets(st.sampled_from(["*", *Channel]), max_size=3)
zones = st.sampled_from(["America/Chicago", "Europe/London", "Africa/Cairo", "Asia/Kathmandu"]).map(
    load
)
edges = st.integers(0, 95).map(lambda n: time(n // 4, n % 4 * 15))
windows = st.none() | st.builds(Window, edges, edges)
all_caps = st.lists(
    st.tuples(
        st.sampled_from(["category", "channel", "marketing"]),
        st.sampled_from(["day", "week"]),
        st.integers(0, 3),
    ),
    max_size=4,
    unique_by=lambda rule: rule[:2],
).map(lambda rules: caps(*rules))
days = st.lists(st.integers(0, 9).map(lambda n: date(2027, 3, 10) + timedelta(days=n)), max_size=4)


@st.composite
def people(draw: st.DrawFn, message_class: MessageClass | None = None) -> Facts:
    cls = message_class or draw(st.sampled_from(MessageClass))
    ladder = draw(
        st.permutations(list(Channel)).flatmap(
            lambda p: st.integers(1, 4).map(lambda n: tuple(p[:n]))
        )
    )
    now = datetime(2027, 3, 12, tzinfo=UTC) + timedelta(minutes=draw(st.integers(0, 6 * 1440)))
    policy = Policy(
        cls,
        ladder,
        quiet=draw(windows),
        send_window=draw(windows),
        consent_required=draw(st.booleans()),
        sms_consent_required=draw(st.booleans()),
        caps=draw(all_caps),
        defer_over_cap=draw(st.booleans()),
    )
    return Facts(
        now=now,
        policy=policy,
        not_after=now + timedelta(minutes=draw(st.integers(-60, 5000))),
        zone=draw(zones),
        zone_known=draw(st.booleans()),
        addresses=draw(st.dictionaries(st.sampled_from(Channel), st.sampled_from(AddressState))),
        suppressed=draw(
            st.dictionaries(
                st.sampled_from(Channel),
                st.sampled_from(["hard_bounce", "complaint", "stop", "manual"]),
                max_size=2,
            )
        ),
        opted_out=draw(channels),
        consented=draw(channels),
        killed=draw(st.frozensets(st.sampled_from(["*", *Channel]), max_size=1)),
        cap_uses=draw(
            st.dictionaries(
                st.sampled_from(["category:news", "marketing", *(f"channel:{c}" for c in Channel)]),
                days,
            )
        ),
        not_before=draw(
            st.none() | st.just(now + timedelta(minutes=draw(st.integers(-600, 3000))))
        ),
        spread=timedelta(seconds=draw(st.integers(0, 239))),
    )


def within(sets: frozenset[str], channel: Channel) -> bool:
    return channel in sets or "*" in sets


@given(people())
def test_what_is_chosen_offends_no_rule(f: Facts):
    verdict = decide(f)
    if not isinstance(verdict, Chosen):
        return
    channel, security = verdict.channel, f.policy.security
    assert f.policy.ladder[verdict.rung] is channel
    assert verdict.not_before == f.now < verdict.not_after <= f.not_after
    assert channel not in f.suppressed
    assert not within(f.killed, channel)
    assert f.addresses[channel] is VERIFIED or (security and f.addresses[channel] is VERIFYING)
    if security:
        return
    assert not within(f.opted_out, channel)
    if f.policy.message_class is MARKETING or f.policy.consent_required:
        assert within(f.consented, channel)
    assert f.not_before is None or f.not_before <= f.now
    today = f.now.astimezone(f.zone).date()
    assert verdict.local_day == (today if f.policy.caps else None)
    for rule in verdict.caps:
        uses = f.cap_uses.get(rule.scope, [])
        in_week = sum(d.isocalendar()[:2] == today.isocalendar()[:2] for d in uses)
        assert rule.limit_day is None or sum(d == today for d in uses) < rule.limit_day
        assert rule.limit_week is None or in_week < rule.limit_week
    assert {r.scope for r in f.policy.caps.consumed_on(channel)} == {r.scope for r in verdict.caps}


@given(people())
def test_earlier_rungs_were_passed_over_for_a_reason(f: Facts):
    verdict = decide(f)
    if isinstance(verdict, Chosen):
        for channel in f.policy.ladder[: verdict.rung]:
            alone = replace(f, policy=replace(f.policy, ladder=(channel,)))
            assert not isinstance(decide(alone), Chosen)


@given(people())
def test_what_waits_waits_for_a_later_moment_before_its_end_and_can_leave_then(f: Facts):
    verdict = decide(f)
    if not isinstance(verdict, Deferred):
        return
    assert f.now < verdict.until < f.not_after
    then = decide(replace(f, now=verdict.until))
    # Only a cap can still hold it: another counter, or the day's that was not yet full.
    if not isinstance(then, Chosen):
        assert then == Suppressed(Reason.FREQUENCY_CAP) or (
            isinstance(then, Deferred | Expired) and then.reason is Reason.FREQUENCY_CAP
        )


@given(people(), channels)
def test_opting_out_never_gets_anybody_a_message_they_would_not_have_got(
    f: Facts, more: frozenset[str]
):
    before, after = decide(f), decide(replace(f, opted_out=f.opted_out | more))
    if isinstance(before, Suppressed):
        assert not isinstance(after, Chosen)


@given(people(SECURITY), channels)
def test_no_opt_out_changes_what_security_does(f: Facts, more: frozenset[str]):
    assert decide(f) == decide(replace(f, opted_out=more, consented=frozenset()))


@given(people(SECURITY))
def test_security_with_one_clean_verified_channel_always_goes_now(f: Facts):
    channel = f.policy.ladder[-1]
    f = replace(
        f,
        addresses={channel: VERIFIED},
        suppressed={},
        killed=frozenset(),
        not_before=None,
        not_after=f.now + timedelta(minutes=10),
    )
    assert isinstance(decide(f), Chosen)


@given(people())
def test_a_plan_that_chose_passes_the_last_look_at_the_same_moment(f: Facts):
    verdict = decide(f)
    if not isinstance(verdict, Chosen):
        return
    for zone in (None, f.zone):
        assert (
            last_look(
                now=f.now,
                policy=f.policy,
                channel=verdict.channel,
                expires_at=f.not_after,
                not_before=verdict.not_before,
                not_after=verdict.not_after,
                suppressed=f.suppressed.get(verdict.channel),
                opted_out=within(f.opted_out, verdict.channel),
                zone=zone,
                zone_known=f.zone_known,
            )
            is None
        )
