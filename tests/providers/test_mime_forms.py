"""A form is the plain way, done beforehand: byte for byte the same mail, or a word that these values need the plain way."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.rendering import CompiledTemplate, compile_template
from sendloom.providers.mime import Skeleton, Unmailable, stuff
from sendloom.providers.mime_forms import Form

WHEN = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)
MESSAGE_ID = "<0123456789abcdef@example.com>"
SKELETON = Skeleton(from_address="news@example.com", from_name="Example")
NAMES = ("a", "b", "c")

LITERAL = st.text(alphabet=list("x .\n\r\0=<&é-'\""), max_size=12)
VALUE = st.text(alphabet=list("v .\n\r<&=?ü\t"), max_size=8) | st.just("." + "x" * 990)


@st.composite
def sources(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.tuples(LITERAL, st.sampled_from(NAMES)), max_size=4))
    return "".join(f"{literal}{{{{{name}}}}}" for literal, name in parts) + draw(LITERAL) + "end"


def compiled(subject: str, text: str, html: str | None = None) -> CompiledTemplate:
    variables = {name: {"default": ""} for name in NAMES}
    return compile_template(
        Channel.EMAIL, subject=subject, text=text, html=html, variables=variables
    )


def by_form(template: CompiledTemplate, values: list[str]) -> bytes | None:
    return Form(template).fill(
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


@given(
    subject=sources(),
    text=sources(),
    html=st.none() | sources().map(lambda s: s.replace("<", "")),
    values=st.fixed_dictionaries(dict.fromkeys(NAMES, VALUE)),
)
@example(subject="s{{a}}", text="{{a}}.x", html=None, values={"a": "", "b": "v", "c": "v"})
@example(subject="s", text="{{a}} x", html=None, values={"a": ".v", "b": "v", "c": "v"})
@example(subject="s", text=".x\n.{{a}}\n{{b}}", html=None, values={"a": "v", "b": "v", "c": "v"})
def test_what_a_form_fills_is_what_the_plain_way_makes(
    subject: str, text: str, html: str | None, values: dict[str, str]
) -> None:
    template = compiled(subject, text, html)
    plain = template.values(values)
    filled = by_form(template, plain)
    assert filled is None or filled == plainly(template, plain)


@pytest.mark.parametrize("html", [None, "<p>Hello {{a}},</p>\n<p>.{{b}}</p>"])
def test_a_usual_mail_needs_no_plain_way(html: str | None) -> None:
    template = compiled("News for {{a}}", "Hello {{a}},\n\nyour {{b}} & more\n.\nbye", html)
    filled = by_form(template, template.values({"a": "Ann <3", "b": "plan"}))
    assert filled == plainly(template, ["Ann <3", "plan"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{a}} x", "Zoë"),
        ("Grüße {{a}}", "Ann"),
        ("{{a}} x", ".dot first"),
        ("a {{a}} x", ""),
        ("a {{a}} x", "two\nlines"),
        ("a {{a}} x", "x" * 1_000),
        ("y" * 999 + "\n{{a}}", "v"),
    ],
)
def test_what_could_need_another_encoding_or_a_stuffed_dot_goes_the_plain_way(
    text: str, value: str
) -> None:
    template = compiled("s", text)
    plain = template.values({"a": value})
    assert by_form(template, plain) is None


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
