"""Logic-less templates: `{{name}}` and nothing else. What a variable holds is data and is never read as markup.

A template is compiled once, when it is saved, and refused then if anything in it could go wrong later. Rendering is then
filling in blanks. Rules for values:

- text is shown as it is; in the HTML part it is escaped, once;
- a whole or decimal number is shown in its shortest form (`3`, `12.5`); a caller who wants `12.50` sends text;
- missing, null, empty or blank means the declared default, or `MissingVariable` for that one recipient;
- anything else (true, false, lists, objects, NaN) is `BadVariable`: there is no form of it that is right for every reader;
- control characters are dropped; in a subject line breaks of every kind become a space, and an encoded-word is defused.
"""

import html
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, NamedTuple

from schemas.kinds import Channel
from sendloom.domain import sms
from sendloom.errors import Refusal

SUBJECT_MAX = 500
"""Characters, in the source and rendered. Mail clients show some 70."""
TEXT_MAX = 100_000
HTML_MAX = 400_000
"""Bytes of source. Gmail clips a mail at 102 kB."""
EMAIL_MAX = 1_000_000
"""Bytes rendered, all parts."""
PUSH_MAX = 3_000
"""Bytes rendered, title and body as JSON; APNs and FCM take 4,096 with everything around it."""
VARIABLES_MAX = 100
VALUE_MAX = 20_000
"""Characters of one value."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_FIELD = re.compile(r"\{\{[ \t]{0,8}([A-Za-z][A-Za-z0-9_]{0,63})[ \t]{0,8}\}\}", re.ASCII)
_BRACES = re.compile(r"\{\{|\{%|\{#|\}\}")

_ODD = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_OLD_BREAKS = {0x0B: "\n", 0x0C: "\n"}
_NOT_IN_A_HEADER = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_NEEDS_ESCAPE = re.compile("[&<>\"']")
_SAFE_URL = re.compile(r"(?:https?://|mailto:|tel:)[^\s]", re.IGNORECASE)

Values = Mapping[str, Any]


class RenderError(Refusal):
    """One recipient's message cannot be rendered; the others go on. `code` is also the reason that is recorded."""


class MissingVariable(RenderError):
    """A variable is missing, null or empty, and has no default."""

    def __init__(self, name: str) -> None:
        super().__init__(
            "missing_variable",
            f"the variable {name!r} is missing or empty and has no default",
            field=f"variables.{name}",
            fix="send a value, or declare a default in the template",
        )


class BadVariable(RenderError):
    """A variable's value has no rendering that would be right."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__("bad_variable", f"the variable {name!r} {why}", field=f"variables.{name}")


class TooLarge(RenderError):
    """The rendered message is over the channel's limit."""

    def __init__(self, part: str, why: str) -> None:
        super().__init__("too_large", why, field=part, fix="shorten it")


class Rendered(NamedTuple):
    """One message's content. `subject` is a push title on push channels, None for SMS."""

    subject: str | None
    text: str
    html: str | None


class Preview(NamedTuple):
    """What a real recipient would get, with its size; `sms` for SMS only."""

    rendered: Rendered
    bytes: int
    sms: sms.SmsCount | None


class Part(NamedTuple):
    """Literal pieces with a gap between each two (`pieces[1::2]`), and which variable (by position) fills each gap.

    Joined, never formatted: nothing in a value is ever parsed, and 2 kB cost less than a microsecond.
    """

    pieces: list[str]
    gaps: tuple[int, ...]

    def fill(self, values: list[str]) -> str:
        pieces = self.pieces.copy()
        at = 1
        for gap in self.gaps:
            pieces[at] = values[gap]
            at += 2
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str
    default: str | None
    url: bool
    """Starts a link in the HTML part."""


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """One channel and locale of one version, ready to be filled in."""

    channel: Channel
    variables: tuple[_Variable, ...]
    """The used ones, in the order the parts refer to them."""
    subject: Part | None
    text: Part
    html: Part | None

    @property
    def required(self) -> frozenset[str]:
        """What every recipient must bring."""
        return frozenset(v.name for v in self.variables if v.default is None)

    def missing(self, values: Values) -> list[str]:
        """Required variables without a value, all at once; for refusing at accept."""
        return [v.name for v in self.variables if v.default is None and not _shown(v.name, values)]

    def render(self, values: Values) -> Rendered:
        """
        Raises:
            MissingVariable, BadVariable, TooLarge: for this recipient; each is a `RenderError`.
        """
        return self.filled(self.values(values))

    def values(self, values: Values) -> list[str]:
        """What one recipient's variables show, in the order of `variables`.

        Raises:
            MissingVariable, BadVariable: for this recipient.
        """
        plain: list[str] = []
        for variable in self.variables:
            value = _shown(variable.name, values)
            if not value:
                if variable.default is None:
                    raise MissingVariable(variable.name)
                value = variable.default
            if variable.url and not _SAFE_URL.match(value):
                raise BadVariable(
                    variable.name, "starts a link but is not an http or https address"
                )
            plain.append(value)
        return plain

    def filled(self, plain: list[str]) -> Rendered:
        """The message with what `values` made of one recipient's.

        Raises:
            TooLarge: for this recipient.
        """
        subject = None
        if self.subject is not None:
            subject = one_line(self.subject.fill(plain))
        text = self.text.fill(plain)
        markup = None
        if self.html is not None:
            markup = self.html.fill(escaped(plain))
        return self._checked(subject, text, markup)

    def _checked(self, subject: str | None, text: str, markup: str | None) -> Rendered:
        if subject is not None and len(subject) > SUBJECT_MAX:
            raise TooLarge("subject", f"the subject is over {SUBJECT_MAX} characters")
        if self.channel is Channel.EMAIL:
            # Four bytes a character at most, so most mails need not be encoded to be measured.
            characters = len(text) + len(markup or "")
            if characters * 4 > EMAIL_MAX and _bytes(text) + _bytes(markup or "") > EMAIL_MAX:
                raise TooLarge("text", f"the mail is over {EMAIL_MAX} bytes")
        elif self.channel is Channel.SMS:
            if not text.isascii():
                # A decomposed é would make the whole text UCS-2 and twice the price.
                text = unicodedata.normalize("NFC", text)
            if len(text) * 2 > sms.CHARACTERS_MAX and sms.characters(text) > sms.CHARACTERS_MAX:
                raise TooLarge("text", f"the text is over {sms.CHARACTERS_MAX} characters")
        elif _push_bytes(subject, text) > PUSH_MAX:
            raise TooLarge("text", f"title and body are over {PUSH_MAX} bytes")
        return Rendered(subject, text, markup)

    def preview(self, values: Values) -> Preview:
        """The same rendering, with bytes and SMS parts.

        Raises:
            RenderError: as `render`.
        """
        rendered = self.render(values)
        if self.channel is Channel.SMS:
            return Preview(rendered, _bytes(rendered.text), sms.count(rendered.text))
        if self.channel is Channel.EMAIL:
            size = sum(_bytes(part) for part in rendered if part is not None)
        else:
            size = _push_bytes(rendered.subject, rendered.text)
        return Preview(rendered, size, None)


def problems(rendered: Rendered, channel: Channel) -> list[str]:
    """What must not reach anybody though it rendered: codes, for the check before launch (CAMP-8)."""
    found = []
    if channel is Channel.EMAIL and not (rendered.subject or "").strip():
        found.append("empty_subject")
    if not rendered.text.strip():
        found.append("empty_body")
    if any(part is not None and _FIELD.search(part) for part in rendered):
        found.append("literal_braces")
    return found


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _push_bytes(title: str | None, body: str) -> int:
    return len(json.dumps({"title": title or "", "body": body}, ensure_ascii=False).encode())


def _shown(name: str, values: Values) -> str:
    """A variable's value as text without control characters; empty when there is nothing in it to see."""
    value = values.get(name)
    if type(value) is not str:
        value = _as_text(name, value)
    if len(value) > VALUE_MAX:
        raise BadVariable(name, f"is longer than {VALUE_MAX} characters")
    # Printable is what nearly every value is, and the quickest thing to ask of a text.
    if not value.isprintable():
        value = _ODD.sub("", value).translate(_OLD_BREAKS)
        if not any(c.isprintable() and not c.isspace() for c in value):
            return ""
    return "" if value.isspace() else value


def _as_text(name: str, value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            raise BadVariable(name, "is true or false; send the words to show")
        case str():
            return value
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case float():
            raise BadVariable(name, "is not a finite number")
        case _:
            raise BadVariable(name, "is not text or a number")


def one_line(value: str) -> str:
    """As a header's value may be."""
    if not value.isprintable():
        value = _NOT_IN_A_HEADER.sub(" ", value)
    # Some mail libraries decode this even in a value, and what it decodes to may be a line break (case C12).
    return value.replace("=?", "= ?") if "=?" in value else value


def escaped(plain: list[str]) -> list[str]:
    """As text of an HTML part."""
    return [html.escape(v) if _NEEDS_ESCAPE.search(v) else v for v in plain]


# --- compiling --------------------------------------------------------------------------------------------------------


def compile_template(
    channel: Channel,
    *,
    subject: str | None,
    text: str,
    html: str | None = None,
    variables: Mapping[str, Mapping[str, str]],
) -> CompiledTemplate:
    """Checks everything that can be checked without a recipient. `variables` is `{name: {default?: text}}`.

    Raises:
        Refusal: `bad_template`, `undeclared_variable`, `bad_variable_name`, `bad_default`, `unsafe_placeholder`,
            `empty_subject`, `empty_body`, `unexpected_part` or `too_large`, with the part as field.
    """
    declared = _declared(variables)
    if channel is Channel.EMAIL:
        if not (subject or "").strip():
            raise Refusal("empty_subject", "an email has a subject", field="subject")
    elif html is not None:
        raise Refusal("unexpected_part", f"{channel} has no HTML part", field="html")
    if channel is Channel.SMS and subject is not None:
        raise Refusal("unexpected_part", "a text message has no subject", field="subject")
    if not text.strip():
        raise Refusal("empty_body", "a message has a text", field="text")
    if html is not None and not html.strip():
        raise Refusal("empty_body", "the HTML part is empty", field="html", fix="leave it out")

    limits = {
        "subject": SUBJECT_MAX,
        "text": sms.CHARACTERS_MAX if channel is Channel.SMS else TEXT_MAX,
        "html": HTML_MAX,
    }
    order: dict[str, int] = {}
    parts: dict[str, Part | None] = {"subject": None, "text": None, "html": None}
    for name, source in (("subject", subject), ("text", text), ("html", html)):
        if source is None:
            continue
        if _source_bytes(source, name) > limits[name]:
            raise Refusal("too_large", f"the {name} is over {limits[name]} bytes", field=name)
        parts[name] = _compile(source, name, declared, order)
    links = _links(html) if html is not None else frozenset()
    for name in links:
        default = declared[name]
        if default is not None and not _SAFE_URL.match(default):
            raise Refusal(
                "bad_default",
                f"the variable {name!r} starts a link, and its default is not an http or https address",
                field=f"variables.{name}",
            )
    compiled_text = parts["text"]
    assert compiled_text is not None
    return CompiledTemplate(
        channel=channel,
        variables=tuple(_Variable(name, declared[name], name in links) for name in order),
        subject=parts["subject"],
        text=compiled_text,
        html=parts["html"],
    )


def _source_bytes(source: str, part: str) -> int:
    try:
        return _bytes(source)
    except UnicodeEncodeError:
        raise Refusal("bad_template", f"the {part} is not valid text", field=part) from None


def _declared(variables: Mapping[str, Mapping[str, str]]) -> dict[str, str | None]:
    if len(variables) > VARIABLES_MAX:
        raise Refusal("too_large", f"more than {VARIABLES_MAX} variables", field="variables")
    declared: dict[str, str | None] = {}
    for name, about in variables.items():
        if not _NAME.fullmatch(name):
            raise Refusal(
                "bad_variable_name",
                "a variable's name has letters, digits and underscores, and begins with a letter",
                field="variables",
            )
        default = about.get("default")
        if default is not None and (not isinstance(default, str) or len(default) > VALUE_MAX):
            raise Refusal("bad_default", "a default is a text", field=f"variables.{name}")
        declared[name] = default
    return declared


def _compile(
    source: str, part: str, declared: Mapping[str, str | None], order: dict[str, int]
) -> Part:
    literals: list[str] = []
    positions: list[int] = []
    at = start = 0
    while found := _BRACES.search(source, at):
        if found[0] == "}}" and part == "html":
            # Ends two nested blocks of a style sheet.
            at = found.start() + 1
            continue
        placeholder = _FIELD.match(source, found.start()) if found[0] == "{{" else None
        if placeholder is None or source[placeholder.end() : placeholder.end() + 1] == "}":
            raise Refusal(
                "bad_template",
                f"line {source.count(chr(10), 0, found.start()) + 1} has braces that are no placeholder",
                field=part,
                fix="only {{name}} is understood; in style sheets put a space between braces",
            )
        name = placeholder[1]
        if name not in declared:
            raise Refusal(
                "undeclared_variable",
                f"the variable {name!r} is used but not declared",
                field=part,
                fix="declare it under variables, with a default if it may be missing",
            )
        positions.append(order.setdefault(name, len(order)))
        literals.append(source[start : found.start()])
        at = start = placeholder.end()
    literals.append(source[start:])
    pieces = [""] * (2 * len(literals) - 1)
    pieces[::2] = literals
    return Part(pieces, tuple(positions))


# --- where in the HTML a placeholder stands -----------------------------------------------------------------------------

_URL_ATTRIBUTES = frozenset(
    [
        "href",
        "src",
        "action",
        "formaction",
        "background",
        "cite",
        "poster",
        "data",
        "longdesc",
        "srcset",
        "xlink:href",
    ]
)
_STAND_IN = "zqxplaceholder"
_STOOD_IN = re.compile(rf"{_STAND_IN}([a-z0-9_]+)x{_STAND_IN}")


def _links(source: str) -> frozenset[str]:
    """The variables that start a link. Refuses places where escaping is not enough to keep a value data.

    Raises:
        Refusal: `unsafe_placeholder`.
    """
    names: list[str] = []

    def stand_in(found: re.Match[str]) -> str:
        names.append(found[1])
        return f"{_STAND_IN}{len(names) - 1}x{_STAND_IN}"

    places = _Places(names)
    places.feed(_FIELD.sub(stand_in, source))
    places.close()
    return frozenset(places.links)


class _Places(HTMLParser):
    def __init__(self, names: list[str]) -> None:
        super().__init__(convert_charrefs=True)
        self._names = names
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if _STAND_IN in tag:
            raise _unsafe("in the name of a tag")
        raw = self.get_starttag_text() or ""
        if re.search(rf"=\s*[^\s\"'>]*{_STAND_IN}", _QUOTED.sub('""', raw)):
            raise _unsafe("in an attribute without quotes")
        for name, value in attrs:
            if _STAND_IN in name:
                raise _unsafe("in the name of an attribute")
            if not value or _STAND_IN not in value:
                continue
            if name.startswith("on") or name in ("style", "srcdoc"):
                raise _unsafe(f"in the attribute {name}")
            first = _STOOD_IN.match(value.strip())
            if name in _URL_ATTRIBUTES and first:
                self.links.add(self._names[int(first[1])])

    def handle_comment(self, data: str) -> None:
        # Outlook reads what is inside `<!--[if mso]>…<![endif]-->`.
        if _STAND_IN in data:
            inner = _Places(self._names)
            inner.feed(data.partition("]>")[2] if data.startswith("[if") else data)
            inner.close()
            self.links |= inner.links

    def handle_decl(self, decl: str) -> None:
        if _STAND_IN in decl:
            raise _unsafe("inside a declaration")

    def unknown_decl(self, data: str) -> None:
        self.handle_decl(data)

    def handle_pi(self, data: str) -> None:
        self.handle_decl(data)

    def handle_data(self, data: str) -> None:
        if self.cdata_elem and _STAND_IN in data:
            raise _unsafe(f"inside <{self.cdata_elem}>")


_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")


def _unsafe(where: str) -> Refusal:
    return Refusal(
        "unsafe_placeholder",
        f"a placeholder stands {where}, where a value could become markup",
        field="html",
        fix="put it into text or into a quoted attribute such as href",
    )
