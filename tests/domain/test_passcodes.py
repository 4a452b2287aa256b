"""Passcodes: one secret, counted checks, single use, a short life."""

import hmac
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas.kinds import Channel, FaultScope
from schemas.outcomes import Accepted, Failed, Rejected, Unknown
from sendloom.domain.passcodes import (
    Challenge,
    code_hmac,
    draw_code,
    entered,
    fixed_code,
    judge,
    magic_outcome,
    magic_recipients,
    may_resend,
    take_check,
    validate_code,
    validate_ttl,
)
from sendloom.errors import Refusal

KEY = b"k" * 32
ID = UUID("6d6f6f6c-7365-6e64-8c0a-0000000000aa")
START = datetime(2026, 1, 15, 12, 0, tzinfo=UTC)
LIFE = timedelta(minutes=10)


def a_challenge(code: str = "000123", checks: int = 5) -> Challenge:
    return Challenge(code_hmac(KEY, "acme", ID, code), checks, START + LIFE)


def check(challenge: Challenge, code: str, now: datetime = START) -> tuple[Challenge, str]:
    """What the workflow does: count durably, judge, mark used."""
    taken = take_check(challenge)
    result = judge(taken, code_hmac(KEY, "acme", ID, code), now).result
    return (replace(taken, used=True) if result == "approved" else taken), result


def test_a_drawn_code_keeps_its_leading_zeros():
    assert draw_code(6, lambda below: 123) == "000123"
    assert draw_code(6, lambda below: below - 1) == "999999"


@given(st.integers(6, 10))
def test_a_drawn_code_has_the_digits_asked_for(digits):
    code = draw_code(digits, secrets.randbelow)
    assert len(code) == digits
    assert code.isdigit()


@pytest.mark.parametrize("digits", [0, 5, 11])
def test_too_few_or_too_many_digits_are_refused(digits):
    with pytest.raises(Refusal, match="bad_digits"):
        draw_code(digits, secrets.randbelow)


@pytest.mark.parametrize("code", ["", "12345", "123 456", "x" * 33, "12345\n", "١٢٣٤٥٦"])
def test_a_brought_code_that_is_none_is_refused_without_quoting_it(code):
    with pytest.raises(Refusal, match="bad_code") as refused:
        validate_code(code)
    assert not code or code not in str(refused.value)


def test_a_brought_code_of_letters_is_taken():
    assert validate_code("QWERTYUIOPAS") == "QWERTYUIOPAS"


@pytest.mark.parametrize("seconds", [0, -1, 601])
def test_a_life_that_is_too_long_or_none_is_refused(seconds):
    with pytest.raises(Refusal, match="bad_ttl"):
        validate_ttl(timedelta(seconds=seconds))


def test_the_stored_form_is_bound_to_key_tenant_and_passcode():
    base = code_hmac(KEY, "acme", ID, "123456")
    others = {
        code_hmac(b"x" * 32, "acme", ID, "123456"),
        code_hmac(KEY, "acm", ID, "123456"),
        code_hmac(KEY, "acme", UUID(int=1), "123456"),
        code_hmac(KEY, "acme", ID, "123457"),
    }
    assert len(others) == 4
    assert base not in others
    assert b"123456" not in base


@pytest.mark.parametrize(
    "typed", ["000123", " 000123 ", "000 123", "000-123", "٠٠٠١٢٣", "０００１２３", "000\u00a0123"]
)
def test_what_people_type_is_the_code_they_meant(typed):
    assert entered(typed) == "000123"
    assert check(a_challenge(), typed)[1] == "approved"


def test_letters_keep_their_case():
    assert check(a_challenge("QWERTY"), "qwerty")[1] == "wrong"


# --- behaviour ------------------------------------------------------------------------------------------------------------


def test_c88_after_five_wrong_codes_the_right_one_is_refused():
    challenge = a_challenge()
    for left in (4, 3, 2, 1, 0):
        challenge, result = check(challenge, "999999")
        assert (result, challenge.checks_left) == ("wrong", left)
    assert check(challenge, "000123")[1] == "max_attempts"


def test_five_wrong_a_resend_and_one_wrong_is_still_locked():
    challenge = a_challenge()
    for _ in range(5):
        challenge, _ = check(challenge, "999999")
    refused = may_resend(challenge, START)
    assert refused is not None
    assert refused.result == "max_attempts"
    assert check(challenge, "999999")[1] == "max_attempts"


def test_a_code_used_twice_is_refused_the_second_time():
    challenge, first = check(a_challenge(), "000123")
    assert first == "approved"
    assert check(challenge, "000123")[1] == "used"


@pytest.mark.parametrize(
    ("seconds", "result"),
    [(599, "approved"), (599.999, "approved"), (600, "expired"), (601, "expired")],
)
def test_ten_minutes_end_at_ten_minutes(seconds, result):
    assert check(a_challenge(), "000123", START + timedelta(seconds=seconds))[1] == result


def test_two_parallel_wrong_checks_cost_two():
    """Both are counted before either is compared."""
    challenge = take_check(take_check(a_challenge(checks=2)))
    assert judge(challenge, b"x", START).attempts_left == 0
    assert judge(take_check(challenge), b"x", START).result == "max_attempts"


def test_a_cancelled_passcode_says_so():
    assert check(replace(a_challenge(), cancelled=True), "000123")[1] == "cancelled"


@pytest.mark.parametrize(
    ("changes", "now", "result"),
    [
        ({}, START, None),
        ({"used": True}, START, "used"),
        ({"cancelled": True}, START, "cancelled"),
        ({}, START + LIFE, "expired"),
        ({"checks_left": 0}, START, "max_attempts"),
        ({"checks_left": 1}, START, None),
    ],
)
def test_a_resend_is_allowed_only_while_the_code_could_still_be_used(changes, now, result):
    refused = may_resend(replace(a_challenge(), **changes), now)
    assert (refused.result if refused else None) == result


class Guessing(RuleBasedStateMachine):
    """Whatever is tried in whatever order: at most five comparisons count, one success, none when it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.challenge = a_challenge()
        self.now = START
        self.compared = 0
        self.approved = 0

    @rule(code=st.sampled_from(["000123", "999999", "000124", ""]))
    def try_code(self, code: str) -> None:
        self.challenge, result = check(self.challenge, code, self.now)
        self.compared += result in ("wrong", "approved")
        self.approved += result == "approved"
        if result == "approved":
            assert code == "000123"
            assert self.now < START + LIFE

    @rule(seconds=st.integers(1, 200))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: not self.challenge.used)
    @rule()
    def resend(self) -> None:
        before = self.challenge
        may_resend(self.challenge, self.now)
        assert self.challenge == before

    @invariant()
    def never_more_than_allowed(self) -> None:
        assert self.compared <= 5
        assert self.approved <= 1


test_guessing_is_bounded = Guessing.TestCase


def test_the_comparison_is_the_constant_time_one():
    """`compare_digest` refuses text that is not ASCII; `==` would not, so this tells them apart."""
    with pytest.raises(TypeError):
        hmac.compare_digest("é", "é")
    with pytest.raises(TypeError):
        judge(Challenge("é", 5, START + LIFE), "é", START)  # type: ignore[arg-type]


# --- test mode --------------------------------------------------------------------------------------------------------------


def test_test_keys_have_a_fixed_code():
    assert fixed_code() == "012345"
    assert fixed_code(10) == "0123456789"
    assert validate_code(fixed_code()) == fixed_code()


@pytest.mark.parametrize("channel", [Channel.EMAIL, Channel.SMS])
def test_every_outcome_has_a_magic_recipient_on_each_channel(channel):
    kinds = [magic_outcome(address, "ref", 2) for address in magic_recipients(channel)]
    assert {type(kind) for kind in kinds} == {Accepted, Rejected, Failed, Unknown}
    scopes = {k.scope for k in kinds if isinstance(k, Failed | Rejected)}
    assert {
        FaultScope.MESSAGE,
        FaultScope.RECIPIENT,
        FaultScope.SENDER,
        FaultScope.PROVIDER,
    } == scopes


def test_a_busy_recipient_accepts_the_second_time():
    first = magic_outcome("busy@example.com", "ref", 1)
    assert isinstance(first, Failed)
    assert first.throttled
    assert isinstance(magic_outcome("busy@example.com", "ref", 2), Accepted)


def test_anybody_else_accepts():
    assert magic_outcome("user@example.com", "dlv_1", 1) == Accepted(
        provider="test", provider_message_id="test-dlv_1"
    )
