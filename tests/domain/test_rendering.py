"""Templates: one kind of blank, values that stay values, and nothing half-filled."""

import html as html_module
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.rendering import (
    EMAIL_MAX,
    HTML_MAX,
    PUSH_MAX,
    BadVariable,
    CompiledTemplate,
    MissingVariable,
    Rendered,
    TooLarge,
    compile_template,
    one_line,
    problems,
)
from sendloom.domain.sms import Encoding
from sendloom.errors import Refusal

EMAIL, SMS, FCM = Channel.EMAIL, Channel.SMS, Channel.FCM
NAME: dict[str, Mapping[str, str]] = {"name": {}}


def an_email(text: str = "Hello {{name}}", **changes: Any) -> CompiledTemplate:
    arguments: dict[str, Any] = {"subject": "For {{name}}", "html": None, "variables": NAME}
    return compile_template(EMAIL, text=text, **{**arguments, **changes})


def an_sms(text: str, variables: Mapping[str, Mapping[str, str]] = NAME) -> CompiledTemplate:
    return compile_template(SMS, subject=None, text=text, variables=variables)


# --- values are data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "[Reset your password](https://evil.example)",
        "# Big",
        "<b>x</b>",
        "[docs]()",
        "{{name}}",
        "%s %(x)s",
        "{0}",
        "\\1",
    ],
)
def test_c07_a_value_is_shown_as_it_is_and_never_read(name):
    rendered = an_email(html="<p>Hello {{name}}</p>").render({"name": name})
    assert rendered.text == f"Hello {name}"
    assert rendered.html == f"<p>Hello {html_module.escape(name)}</p>"
    assert "<b>" not in (rendered.html or "")


def test_c82_entities_only_in_html_and_only_once():
    name = "O'Brien & Sons <VIP>"
    mail = an_email(html="<p>{{name}}</p><a title='{{name}}'>&amp;</a>").render({"name": name})
    assert mail.subject == f"For {name}"
    assert mail.text == f"Hello {name}"
    escaped = "O&#x27;Brien &amp; Sons &lt;VIP&gt;"
    assert mail.html == f"<p>{escaped}</p><a title='{escaped}'>&amp;</a>"
    assert an_sms("Hello {{name}}").render({"name": name}).text == f"Hello {name}"
    push = compile_template(FCM, subject="{{name}}", text="{{name}}", variables=NAME)
    assert push.render({"name": name}) == Rendered(name, name, None)


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("Hi\r\nBcc: x@example.com", "For Hi Bcc: x@example.com"),
        ("Hi\rX: y", "For Hi X: y"),
        ("a\u2028b\u2029c\u0085d\x0be\x0cf", "For a b c d e f"),
        ("A =?UTF-8?Q?=0A?=Bcc: x@example.com", "For A = ?UTF-8?Q?=0A?=Bcc: x@example.com"),
        ("a\tb", "For a b"),
    ],
)
def test_c12_no_value_breaks_the_line_of_a_subject(name, subject):
    assert an_email().render({"name": name}).subject == subject


def test_c12_an_encoded_word_is_not_put_together_from_a_literal_and_a_value():
    template = an_email(subject="x ={{name}}")
    assert "=?" not in (template.render({"name": "?utf-8?q?a=0ABcc:_x?="}).subject or "")


def test_c12_the_same_flattening_is_there_for_display_names():
    assert one_line("Zoë\r\nBcc: x@example.com") == "Zoë Bcc: x@example.com"


def test_control_characters_are_dropped_and_line_breaks_kept_in_text():
    assert an_email().render({"name": "a\x00b\x1b[31m\nc\ud800"}).text == "Hello ab[31m\nc"


# --- missing and odd values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"first_name": None},
        {"first_name": ""},
        {"first_name": "  \u00a0"},
        {"first_name": "\u200b"},
        {"first_name": "\x00"},
    ],
)
def test_c32_nothing_to_show_means_the_default_or_a_refusal_for_that_one(values):
    text = "Hi {{first_name}},"
    with_default = an_sms(text, {"first_name": {"default": "there"}})
    assert with_default.render(values).text == "Hi there,"
    required = an_sms(text, {"first_name": {}})
    with pytest.raises(MissingVariable) as missing:
        required.render(values)
    assert missing.value.code == "missing_variable"
    assert missing.value.field == "variables.first_name"
    assert required.missing(values) == ["first_name"]
    assert with_default.missing(values) == []


def test_c32_the_others_get_theirs():
    template = an_sms("Hi {{first_name}},", {"first_name": {"default": "there"}})
    assert template.render({"first_name": "Ana"}).text == "Hi Ana,"


def test_every_missing_variable_is_named_at_once():
    template = an_sms("{{a}} {{b}} {{c}}", {"a": {}, "b": {"default": "x"}, "c": {}})
    assert template.missing({}) == ["a", "c"]
    assert template.required == {"a", "c"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "3"),
        (-7, "-7"),
        (12.5, "12.5"),
        (3.0, "3"),
        (0.1, "0.1"),
        (0, "0"),
        (1e21, "1e+21"),
        ("12.50", "12.50"),
    ],
)
def test_numbers_are_shown_in_their_shortest_form(value, shown):
    assert an_sms("{{name}}").render({"name": value}).text == shown


@pytest.mark.parametrize(
    "value", [True, False, [1], {"a": 1}, float("nan"), float("inf"), "x" * 20_001]
)
def test_what_has_no_right_form_is_refused_for_that_recipient(value):
    with pytest.raises(BadVariable) as bad:
        an_sms("{{name}}").render({"name": value})
    assert bad.value.code == "bad_variable"


def test_variables_that_the_template_does_not_use_do_not_matter():
    assert an_sms("Hi {{name}}").render({"name": "Ana", "other": [1]}).text == "Hi Ana"


# --- compiling ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x'*10**9 }}",
        "{# comment #}",
        "{{name",
        "{{}}",
        "{{ }}",
        "{{name|upper}}",
        "{{name.first}}",
        "{{{name}}}",
        "{{ {{name}} }}",
        "{{name}}}",
        "name}}",
        "{{1name}}",
        "{{na me}}",
        "{{name\n}}",
        "{{nаme}}",  # a Cyrillic а
        "{{#if name}}x{{/if}}",
        "{{&name}}",
        "{{>partial}}",
    ],
)
@pytest.mark.parametrize("part", ["subject", "text", "html"])
def test_c63_anything_but_a_name_between_braces_is_refused_at_save(source, part):
    if source == "name}}" and part == "html":
        part = "text"  # in HTML two closing braces end nested blocks of a style sheet
    with pytest.raises(Refusal) as refused:
        an_email(**{part: source})
    assert refused.value.code == "bad_template"
    assert refused.value.field == part


def test_a_style_sheet_may_have_braces_of_its_own():
    css = "<style>@media print{p{color:red}}</style><p>{{name}}</p>"
    assert (an_email(html=css).render({"name": "Ana"}).html or "").endswith("}}</style><p>Ana</p>")


def test_spaces_inside_the_braces_and_percent_signs_outside_are_fine():
    assert an_sms("100% {{ name }} %s").render({"name": "Ana"}).text == "100% Ana %s"


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"text": "{{nmae}}"}, "undeclared_variable", "text"),
        ({"subject": ""}, "empty_subject", "subject"),
        ({"subject": None}, "empty_subject", "subject"),
        ({"text": " \n"}, "empty_body", "text"),
        ({"html": ""}, "empty_body", "html"),
        ({"subject": "x" * 501}, "too_large", "subject"),
        ({"text": "x" * 100_001}, "too_large", "text"),
        ({"html": "x" * (HTML_MAX + 1)}, "too_large", "html"),
        ({"text": "\ud800"}, "bad_template", "text"),
        ({"variables": {"name": {}, "__class__": {}}}, "bad_variable_name", "variables"),
        ({"variables": {f"v{n}": {} for n in range(101)}}, "too_large", "variables"),
        ({"variables": {"name": {"default": 3}}}, "bad_default", "variables.name"),
    ],
)
def test_a_template_that_could_go_wrong_later_is_refused_now(changes, code, field):
    with pytest.raises(Refusal) as refused:
        an_email(**changes)
    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.parametrize(
    ("channel", "changes"),
    [(SMS, {"subject": "x"}), (SMS, {"html": "x"}), (FCM, {"html": "x"})],
)
def test_parts_a_channel_does_not_have_are_refused(channel, changes):
    with pytest.raises(Refusal, match="unexpected_part"):
        compile_template(channel, **{"subject": None, "text": "x", "variables": {}, **changes})


def test_a_text_message_template_is_limited_as_providers_limit_it():
    with pytest.raises(Refusal, match="too_large"):
        an_sms("x" * 1601, {})


@pytest.mark.parametrize(
    "source",
    [
        "<script>var a = '{{name}}'</script>",
        "<style>p{color:{{name}} }</style>",
        "<a href={{name}}>x</a>",
        "<a href=x{{name}}>x</a>",
        "<a onclick='{{name}}'>x</a>",
        "<p style='color:{{name}}'>x</p>",
        "<{{name}}>x</p>",
        "<p {{name}}>x</p>",
        "<p {{name}}='x'>x</p>",
        "<iframe srcdoc='{{name}}'></iframe>",
        "<!doctype {{name}}>",
        "<!--[if mso]><a onclick='{{name}}'>x</a><![endif]-->",
    ],
)
def test_a_placeholder_where_escaping_is_not_enough_is_refused(source):
    with pytest.raises(Refusal) as refused:
        an_email(html=source)
    assert refused.value.code == "unsafe_placeholder"


LINK: dict[str, Mapping[str, str]] = {"url": {}, "name": {"default": "you"}}


@pytest.mark.parametrize(
    "url", ["https://example.com/?a=1&b=2", "HTTP://example.com", "mailto:a@example.com"]
)
def test_a_link_may_be_a_value(url):
    template = an_email(
        text="x", subject="x", html='<a href="{{url}}">{{name}}</a>', variables=LINK
    )
    rendered = template.render({"url": url}).html
    assert rendered == f'<a href="{html_module.escape(url)}">you</a>'


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        " javascript:x",
        "data:text/html,x",
        "//example.com",
        "https:// x",
        "x",
    ],
)
@pytest.mark.parametrize(
    "source",
    [
        '<a href="{{url}}">x</a>',
        "<img src=' {{url}}/x.png'>",
        '<!--[if mso]><a href="{{url}}">x</a><![endif]-->',
    ],
)
def test_a_value_that_starts_a_link_is_a_web_address(url, source):
    template = an_email(text="x", subject="x", html=source, variables=LINK)
    with pytest.raises(BadVariable):
        template.render({"url": url})


def test_a_value_inside_a_link_need_not_be_one():
    template = an_email(
        text="x", subject="x", html='<a href="https://example.com/{{name}}">x</a>', variables=LINK
    )
    assert "com/you" in (template.render({}).html or "")


def test_a_default_that_is_no_link_is_refused_where_one_is_needed():
    with pytest.raises(Refusal, match="bad_default"):
        an_email(
            text="x",
            subject="x",
            html='<a href="{{url}}">x</a>',
            variables={"url": {"default": "soon"}},
        )


# --- sizes and previews ---------------------------------------------------------------------------------------------------


def test_what_grows_over_the_channels_limit_is_refused_for_that_recipient():
    many = "{{name}}" * 60
    with pytest.raises(TooLarge) as large:
        an_email(text=many).render({"name": "é" * 10_000})
    assert large.value.code == "too_large"
    assert an_email(text=many, subject="x").render({"name": "e" * (EMAIL_MAX // 60)}).text
    with pytest.raises(TooLarge):
        an_email().render({"name": "x" * 600})
    with pytest.raises(TooLarge):
        an_sms("{{name}}").render({"name": "😀" * 801})
    assert an_sms("{{name}}").render({"name": "😀" * 800})
    push = compile_template(FCM, subject=None, text="{{name}}", variables=NAME)
    with pytest.raises(TooLarge):
        push.render({"name": "x" * PUSH_MAX})


def test_a_preview_says_what_it_costs():
    preview = an_sms("Hi {{name}}").preview({"name": "Ŵ" * 70})
    assert preview.sms == (Encoding.UCS2, 73, 2)
    assert preview.bytes == 143
    mail = an_email(html="<p>{{name}}</p>").preview({"name": "é"})
    assert mail.bytes == len("For ééHello é<p>é</p>".encode()) - 2
    assert mail.sms is None


def test_a_decomposed_letter_does_not_double_the_price_of_a_text():
    preview = an_sms("Hi {{name}}").preview({"name": "Jose\u0301"})
    assert preview.sms is not None
    assert preview.sms.encoding is Encoding.GSM7


def test_problems_before_launch_are_named():
    assert problems(Rendered(" ", "x", None), EMAIL) == ["empty_subject"]
    assert problems(Rendered("x", " ", "{{name}}"), EMAIL) == ["empty_body", "literal_braces"]
    assert problems(Rendered(None, "Hi Ana", None), SMS) == []


# --- properties -----------------------------------------------------------------------------------------------------------

anything = st.text(max_size=30) | st.none() | st.integers() | st.floats() | st.booleans()


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), anything))
def test_a_render_is_whole_or_an_error(values):
    template = compile_template(
        EMAIL,
        subject="{{a}}!",
        text="[{{a}}|{{b}}|{{c}}|{{a}}]",
        html="<i>{{c}}</i>",
        variables={"a": {}, "b": {"default": "B"}, "c": {"default": "<C>"}},
    )
    try:
        rendered = template.render(values)
    except (MissingVariable, BadVariable):
        return
    assert rendered.subject is not None
    assert rendered.html is not None
    if not any(isinstance(v, str) and ("None" in v or "{{" in v) for v in values.values()):
        assert "None" not in rendered.text
        assert "{{" not in rendered.text
    assert "||" not in rendered.text or any("|" in str(v) for v in values.values())
    assert len(rendered.subject.splitlines()) == 1
    assert "<" not in rendered.html.removeprefix("<i>").removesuffix("</i>")
    rendered.text.encode()


@given(st.text(alphabet="{}%# nameé\n", max_size=30))
def test_any_source_compiles_or_is_refused(source):
    try:
        template = an_sms("x" + source)
    except Refusal:
        assert "{" in source or "}}" in source
        return
    text = template.render({"name": "V"}).text
    assert "{{" not in text
    assert "}}" not in text
