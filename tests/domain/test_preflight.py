"""What refuses a launch, what only warns, and that the arithmetic of the deadline holds (CAMP-8, CAMP-15)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.preflight import (
    EXAMPLES,
    Plan,
    Specimen,
    agreed_rate,
    forecast,
    needs_second_person,
    rehearse,
)
from sendloom.domain.rendering import CompiledTemplate, compile_template

START = datetime(2026, 1, 15, 9, tzinfo=UTC)
EMAIL = [Channel.EMAIL]


def template(subject: str = "For {{name}}", text: str = "Hi {{name}}") -> CompiledTemplate:
    return compile_template(
        Channel.EMAIL, subject=subject, text=text, html=None, variables={"name": {}}
    )


def specimen(n: int, **variables: object) -> Specimen:
    return Specimen(f"r-{n}", "en", variables, EMAIL)


def faults(*specimens: Specimen, of: CompiledTemplate | None = None) -> dict[str, list[str]]:
    compiled = of or template()
    found = rehearse(specimens, lambda *_: compiled, {})
    return {code: [str(fault) for fault in some] for code, some in found.faults.items()}


def test_an_audience_with_all_its_values_passes():
    assert faults(*(specimen(n, name=f"Ana{n}") for n in range(100))) == {}


@pytest.mark.parametrize("name", [None, ""])
def test_c32_a_missing_variable_is_named_with_an_example(name: str | None):
    assert faults(specimen(1, name="Ana"), specimen(2, name=name)) == {
        "missing_variable": ["r-2: missing_variable name (email)"]
    }


def test_a_value_that_is_a_placeholder_itself_never_reaches_anybody():
    assert faults(specimen(1, name="{{first_name}}")) == {
        "literal_braces": ["r-1: literal_braces (email)"]
    }


def test_an_empty_subject_and_an_oversize_message_are_found():
    only_name = compile_template(
        Channel.EMAIL, subject="{{name}}", text="Hi", html=None, variables={"name": {"default": ""}}
    )
    assert set(faults(specimen(1), of=only_name)) == {"empty_subject"}
    long = "{{name}}" * 60
    big = compile_template(
        Channel.EMAIL, subject="Hi", text=long, html=None, variables={"name": {}}
    )
    assert set(faults(specimen(1, name="x" * 20_000), of=big)) == {"too_large"}


def test_no_more_than_a_few_examples_are_given_and_no_value_is_among_them():
    found = rehearse(
        [specimen(n, name="https://secret.example/{{x}}") for n in range(50)],
        lambda *_: template(),
        {},
    )
    assert (found.checked, found.faulty, len(found.examples)) == (50, 50, EXAMPLES)
    assert not any("secret" in example for example in found.examples)
    assert "50 of 50" in found.why()


def test_shared_values_fill_what_a_row_leaves_out_and_a_row_wins():
    compiled = template()
    assert not rehearse([specimen(1)], lambda *_: compiled, {"name": "you"}).faults
    assert rehearse([specimen(1, name="")], lambda *_: compiled, {"name": "you"}).faults


def test_a_deadline_that_the_agreed_rate_cannot_hold_is_refused():
    plan = Plan(3_601, START, agreed_rate=1.0, deadline=START + timedelta(hours=1))
    said = forecast(plan)
    assert said.refusal is not None
    assert "agreed with providers" in said.refusal
    assert said.finish_at == START + timedelta(seconds=3_601)


def test_a_rate_that_was_asked_for_and_is_too_slow_is_refused_too():
    deadline = START + timedelta(minutes=1)
    said = forecast(Plan(1_000, START, asked_rate=2.0, agreed_rate=100.0, deadline=deadline))
    assert said.refusal is not None
    assert "asked for" in said.refusal


def test_a_deadline_in_the_past_is_refused_whatever_the_rate():
    assert forecast(Plan(1, START, deadline=START)).refusal == "the deadline is not after the start"


def test_what_only_just_holds_or_was_never_agreed_is_warned_of():
    deadline = START + timedelta(seconds=105)
    tight = forecast(Plan(100, START, agreed_rate=1.0, deadline=deadline))
    assert tight.refusal is None
    assert len(tight.warnings) == 1
    unknown = forecast(Plan(100, START, deadline=deadline))
    assert (unknown.finish_at, unknown.refusal, len(unknown.warnings)) == (None, None, 1)
    assert forecast(Plan(100, START)).warnings == ()


def test_expiry_and_waves_after_the_end_are_warned_of():
    wave = START + timedelta(hours=10)
    said = forecast(
        Plan(
            10,
            START,
            asked_rate=10.0,
            deadline=START + timedelta(hours=5),
            expires_at=START + timedelta(hours=6),
            last_wave=wave,
        )
    )
    assert said.refusal is None
    assert said.finish_at == wave
    assert len(said.warnings) == 2


def test_waves_after_the_end_are_warned_of_also_when_no_rate_is_known():
    end = START + timedelta(hours=5)
    for plan in (Plan(10, START, deadline=end), Plan(10, START, expires_at=end)):
        before = forecast(replace(plan, last_wave=end))
        after = forecast(replace(plan, last_wave=end + timedelta(seconds=1)))
        assert (after.finish_at, after.refusal) == (None, None)
        assert len(after.warnings) == len(before.warnings) + 1


@given(
    size=st.integers(1, 50_000_000),
    rate=st.floats(0.01, 100_000),
    seconds=st.integers(1, 10_000_000),
)
def test_it_is_refused_exactly_when_the_arithmetic_says_so(size: int, rate: float, seconds: int):
    deadline = START + timedelta(seconds=seconds)
    said = forecast(Plan(size, START, agreed_rate=rate, deadline=deadline))
    assert said.finish_at is not None
    assert (said.refusal is not None) == (said.finish_at > deadline)


def test_only_live_campaigns_over_the_tenants_size_need_a_second_person():
    assert needs_second_person(101, 100, live=True)
    assert not needs_second_person(100, 100, live=True)
    assert not needs_second_person(101, 100, live=False)
    assert not needs_second_person(10**9, None, live=True)


def test_the_agreed_rate_is_the_first_rungs():
    rates = {"email": 500, "sms": 10}
    assert agreed_rate(rates, [Channel.EMAIL, Channel.SMS]) == 500
    assert agreed_rate(rates, [Channel.APNS]) is None
    assert agreed_rate(None, EMAIL) is None
