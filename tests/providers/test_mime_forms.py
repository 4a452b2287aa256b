"""A form is the plain way, done beforehand: byte for byte the same mail, or a word that these values need the plain way."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.rendering import CompiledTemplate, TooLarge, compile_template
from sendloom.providers.mime import Skeleton, Unmailable, boundary_between, stuff
from sendloom.providers.mime_forms import Form

WHEN = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)
MESSAGE_ID = "<0123456789abcdef@example.com>"
SKELETON = Skeleton(from_address="news@example.com", from_name="Example")
NAMES = ("a", "b", "c")

BOUNDARY = boundary_between(MESSAGE_ID)
ODD = [
    *["Zoë", "e\u0308", "Γιώργος", "שלום", "𐍈", "👩\u200d👧", "\u202ex\u202c", "\u2066x\u2069"],
    *[".", "..", ".x", "\n.", " ", "x ", "x\t", "=", "=20", "=?utf-8?q?x?=", "<&>\"'", BOUNDARY],
    *["\n", "\r", "\r\n", "\n\r", "\0", "\r\0\n", "\x0b", "\x0c", "\x85", "\u2028", "\xa0"],
    *["x" * 73, "x" * 76, "ü" * 25, "." * 80, "x" * 990, "." + "x" * 990, "€" * 400],
]
"""What some rule of a line, of an encoding or of a header is about."""

TEXT = st.lists(st.sampled_from(ODD) | st.text(max_size=12), max_size=4).map("".join)
VALUE = TEXT | st.text(alphabet=st.characters(), max_size=8)
LITERAL = TEXT.map(lambda text: text.translate({ord("{"): "(", ord("}"): ")"}))


def sources(literal: st.SearchStrategy[str] = LITERAL) -> st.SearchStrategy[str]:
    pieces = st.tuples(literal, st.sampled_from(NAMES)).map(lambda two: f"{two[0]}{{{{{two[1]}}}}}")
    return st.lists(pieces, max_size=4).flatmap(
        lambda begun: literal.map(lambda rest: "".join(begun) + rest + "end")
    )


SUBJECT = sources(LITERAL.map(lambda text: text[:20]))
MARKUP = sources(LITERAL.map(lambda text: text.replace("<", "")))

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The machine may do other work at the same time."""


def compiled(subject: str, text: str, html: str | None = None) -> CompiledTemplate:
    variables = {name: {"default": ""} for name in NAMES}
    return compile_template(
        Channel.EMAIL, subject=subject, text=text, html=html, variables=variables
    )


def by_form(
    template: CompiledTemplate, values: list[str], form: Form | None = None
) -> bytes | None:
    return (form or Form(template)).fill(
        SKELETON,
        values,
        to="alex@example.com",
        message_id=MESSAGE_ID,
        date=WHEN,
        reference="dlv_AbC-1_2",
        list_unsubscribe_url="https://example.com/u/x",
    )


def plainly(template: CompiledTemplate, values: list[str]) -> bytes:
    rendered = template.filled(values)
    return stuff(
        SKELETON.fill(
            to_address="alex@example.com",
            message_id=MESSAGE_ID,
            date=WHEN,
            reference="dlv_AbC-1_2",
            subject=rendered.subject or "",
            text=rendered.text,
            html=rendered.html,
            list_unsubscribe_url="https://example.com/u/x",
        )
    )


@UNHURRIED
@given(
    subject=SUBJECT,
    text=sources(),
    html=st.none() | MARKUP,
    values=st.tuples(VALUE, VALUE, VALUE),
)
@example(subject="s{{a}}", text="{{a}}.x", html=None, values=("", "v", "v"))
@example(subject="s", text="\r{{a}}\né", html=None, values=("", "v", "v"))
@example(subject="s", text="{{a}} x", html=None, values=(".v", "v", "v"))
@example(subject="s", text="{{a}} é", html=None, values=("\ud800", "v", "v"))
@example(subject="s", text=".x\n.{{a}}\n{{b}}", html=None, values=("v", "v", "v"))
@example(subject="s", text="{{a}}", html="é{{a}}", values=(BOUNDARY, "v", "v"))
@example(subject="s", text="é{{a}}", html="{{a}}", values=(BOUNDARY, "v", "v"))
def test_what_a_form_fills_is_what_the_plain_way_makes(
    subject: str, text: str, html: str | None, values: tuple[str, str, str]
) -> None:
    template = compiled(subject, text, html)
    plain = [values[NAMES.index(variable.name)] for variable in template.variables]
    filled = by_form(template, plain)
    try:
        expected = plainly(template, plain)
    except TooLarge:
        assert filled is None
    else:
        assert filled in (None, expected)


ONE_LINE = TEXT.map(lambda text: re.sub(r"[\r\n\0]", "", text)[:400] or "v")


@UNHURRIED
@given(
    subject=st.sampled_from(["s", "Für {{a}}", "{{b}}: νέα"]),
    text=sources().map(lambda text: text + "é"),
    html=st.none() | MARKUP.map(lambda text: text + "é"),
    values=st.tuples(ONE_LINE, ONE_LINE, ONE_LINE),
)
def test_no_value_of_one_line_takes_a_template_that_is_not_ascii_off_the_fast_way(
    subject: str, text: str, html: str | None, values: tuple[str, str, str]
) -> None:

    template = compiled(subject, text, html)
    plain = [values[NAMES.index(variable.name)] for variable in template.variables]
    assert by_form(template, plain) == plainly(template, plain)


@pytest.mark.parametrize("value", ["v", "Zoë", "=", ".", "👩", " ", "e\u0308", "x" * 80])
def test_a_value_may_stand_wherever_a_line_of_quoted_printable_is_broken(value: str) -> None:
    for column in range(80):
        for after in ("", " ", ".", "y" * 80):
            template = compiled("s", f"é{'x' * 200}\n{'.' * column}{{{{a}}}}{after}\nend")
            filled = by_form(template, [value])
            assert filled == plainly(template, [value])
            assert b"quoted-printable" in filled


@pytest.mark.parametrize("value", ["ü", "€", "👩"])
@pytest.mark.parametrize("rest", ["x", "é"])
def test_values_bring_a_part_from_quoted_printable_to_base64_where_they_do_the_plain_way(
    value: str, rest: str
) -> None:
    template = compiled("s", f"{rest * 10}{'x' * 200}\r\n{{{{a}}}}\r{{{{b}}}}{{{{a}}}}")
    form = Form(template)
    # An astral character more in `a` is worth 40 ASCII ones in `b`, so the edge itself is among these.
    for padding in range(40):
        seen = []
        for times in range(1, 40):
            values = [value * times, f"v{value}{'x' * padding}"]
            filled = by_form(template, values, form)
            assert filled == plainly(template, values)
            seen.append(b"base64" in filled)
        assert seen == sorted(seen)
        assert set(seen) == {False, True}


@pytest.mark.parametrize("html", [None, "<p>Hello {{a}},</p>\n<p>.{{b}}</p>"])
@pytest.mark.parametrize("text", ["your {{b}} & more", "schöne Grüße", "y" * 999, "γεια σου " * 9])
@pytest.mark.parametrize("name", ["Ann <3", "Jürgen", "Γιώργος", "1\u00a0234,50\u202f€"])
def test_a_usual_mail_needs_no_plain_way(html: str | None, text: str, name: str) -> None:
    template = compiled("News for {{a}}", f"Hello {{{{a}}}},\n\n{text}{{{{b}}}}\n.\nbye", html)
    assert by_form(template, [name, "plan"]) == plainly(template, [name, "plan"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{a}} x", ".dot first"),
        ("a {{a}} x", ""),
        ("a {{a}} x", "two\nlines"),
        ("a {{a}} x", "x" * 1_000),
        ("Grüße {{a}}", ""),
        ("Grüße {{a}}", "two\rlines"),
        ("Grüße {{a}}", "half \ud800"),
    ],
)
def test_what_could_need_another_line_or_encoding_or_a_stuffed_dot_goes_the_plain_way(
    text: str, value: str
) -> None:
    assert by_form(compiled("s", text), [value]) is None


def test_a_name_that_would_end_its_line_is_refused() -> None:
    template = compiled("s", "Hello {{a}}")
    with pytest.raises(Unmailable):
        Form(template).fill(
            SKELETON,
            ["v"],
            to="alex@example.com",
            message_id=MESSAGE_ID,
            date=WHEN,
            reference="dlv\r\nBcc: x@example.com",
            list_unsubscribe_url=None,
        )
