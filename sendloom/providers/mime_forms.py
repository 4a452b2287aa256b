"""A compiled template as mails: what does not depend on the recipient already is as the wire wants it.

`Form.fill` is `mime.Skeleton.fill` of the rendered template, stuffed, for values of one line in any language. For any others,
and where a dot or a long line could need more than putting a value in its place, it says None, and the plain way is gone.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from sendloom.domain.rendering import (
    EMAIL_MAX,
    SUBJECT_MAX,
    CompiledTemplate,
    Part,
    escaped,
    one_line,
)
from sendloom.providers.mime import (
    LINE_MAX,
    Skeleton,
    alternatives,
    base64_lines,
    clean,
    date_line,
    excess,
    leaf_head,
    names_are_writable,
    quoted_line,
    subject_line,
    unsubscribe_lines,
)

_UNSURE = re.compile("[\r\n\0\ud800-\udfff]")
"""What would make another line in a value, would go, or cannot be encoded."""


@dataclass(slots=True)
class _SevenBit:
    """CRLF lines, dots stuffed: values only have to be put between."""

    part: Part
    first_of_line: tuple[int, ...]
    """The variables that begin a line: a dot there would have to be stuffed."""
    room: int
    """Characters that all its values may have together, wherever they stand, without a line getting too long."""

    def fill(self, values: list[str], size: int) -> str | None:
        if size > self.room:
            return None
        for gap in self.first_of_line:
            if values[gap].startswith("."):
                return None
        return self.part.fill(values)


@dataclass(slots=True)
class _QuotedPrintable:
    """Where a line is broken depends on all that stands in it, so lines with values are encoded whole, and only those."""

    pieces: list[str]
    """The other lines, encoded and stuffed, with a gap for a line with values between each two."""
    lines: tuple[Part, ...]

    def fill(self, values: list[str]) -> str:
        pieces = self.pieces.copy()
        at = 1
        for line in self.lines:
            pieces[at] = _stuffed(quoted_line(line.fill(values)))
            at += 2
        return "".join(pieces)


@dataclass(slots=True)
class _Base64:
    """A value moves all that follows it to other groups of three, so nothing is laid down but the head."""

    head: str
    part: Part
    """The template's own."""

    def fill(self, values: list[str]) -> str:
        return self.head + base64_lines(clean(self.part.fill(values)).encode())


@dataclass(slots=True)
class _Leaf:
    """One part, with its headers, in each encoding that values can bring about."""

    gaps: tuple[int, ...]
    seven_bit: _SevenBit | None
    """None: not ASCII, or a line of it is too long already."""
    quoted_printable: _QuotedPrintable
    base64: _Base64
    excess: int
    """Of what is not values; see `mime.excess`."""

    def fill(self, values: list[str], size: int, ascii_only: bool) -> str | None:
        if self.seven_bit and (ascii_only or all(values[gap].isascii() for gap in self.gaps)):
            return self.seven_bit.fill(values, size)
        over = self.excess
        for gap in self.gaps:
            value = values[gap]
            over += -len(value) if value.isascii() else excess(value.encode())
        return self.base64.fill(values) if over > 0 else self.quoted_printable.fill(values)


class Form:
    """One channel and locale of one template version. Kept as long as the template is."""

    __slots__ = ("_fields", "_html", "_subject", "_text")

    def __init__(self, template: CompiledTemplate) -> None:
        self._subject = template.subject
        self._text = _laid("plain", template.text)
        self._html = None if template.html is None else _laid("html", template.html)
        parts = (template.subject, template.text, template.html)
        self._fields = max(sum(map(len, (part.gaps for part in parts if part))), 1)

    def fill(
        self,
        skeleton: Skeleton,
        values: list[str],
        *,
        to: str,
        message_id: str,
        date: datetime,
        reference: str,
        list_unsubscribe_url: str | None,
    ) -> bytes | None:
        """One recipient's message, dot-stuffed. `to` is what `mime.mailbox` returned. None: these go the plain way.

        Raises:
            Unmailable: an id or URL in it cannot be written.
        """
        if self._subject is None:
            return None
        size, ascii_only = 0, True
        for value in values:
            # One that is empty could join what stands before it and behind it to something with a meaning of its own.
            if not value or (not value.isprintable() and _UNSURE.search(value)):
                return None
            if not value.isascii():
                ascii_only = False
            size += len(value)
        text = self._text.fill(values, size * self._fields, ascii_only)
        if text is None:
            return None
        names_are_writable(message_id, reference, list_unsubscribe_url)
        if self._html is None:
            body = text
        else:
            marked = escaped(values)
            size = sum(map(len, marked))
            html = self._html.fill(marked, size * self._fields, ascii_only)
            if html is None:
                return None
            body = alternatives(message_id, text, html)
        subject = one_line(self._subject.fill(values))
        if len(subject) > SUBJECT_MAX or len(body) * 4 > EMAIL_MAX:
            return None
        return (
            f"{skeleton.fixed}To: {to}\r\n{subject_line(subject)}{date_line(date)}"
            f"Message-ID: {message_id}\r\nX-Sendloom-Delivery: {reference}\r\n"
            f"{unsubscribe_lines(list_unsubscribe_url)}{body}"
        ).encode("ascii")


def _laid(subtype: str, part: Part) -> _Leaf:
    literals = [
        literal.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
        for literal in part.pieces[::2]
    ]
    if not literals[-1].endswith("\n"):
        literals[-1] += "\n"
    return _Leaf(
        gaps=part.gaps,
        seven_bit=_seven_bit(leaf_head(subtype, "7bit"), literals, part.gaps),
        quoted_printable=_quoted_printable(
            leaf_head(subtype, "quoted-printable"), literals, part.gaps
        ),
        base64=_Base64(leaf_head(subtype, "base64"), part),
        excess=excess("".join(literals).encode()),
    )


def _seven_bit(head: str, literals: list[str], gaps: tuple[int, ...]) -> _SevenBit | None:
    fixed = "".join(literals)
    room = LINE_MAX - max(map(len, fixed.split("\n")))
    if room < 0 or not fixed.isascii():
        return None
    first_of_line = tuple(
        gap
        for n, (gap, before) in enumerate(zip(gaps, literals, strict=False))
        if before.endswith("\n") or (n == 0 and not before)
    )
    laid = [literal.replace("\n.", "\n..").replace("\n", "\r\n") for literal in literals]
    laid[0] = head + (f".{laid[0]}" if laid[0].startswith(".") else laid[0])
    return _SevenBit(_part(laid, gaps), first_of_line, room)


def _quoted_printable(head: str, literals: list[str], gaps: tuple[int, ...]) -> _QuotedPrintable:
    encoded, lines, left = [], [], iter(gaps)
    # NUL stands for a value, then for a line with values: none is left in a literal.
    for line in "\0".join(literals).split("\n"):
        between = line.split("\0")
        if len(between) == 1:
            encoded.append(_stuffed(quoted_line(line)))
        else:
            encoded.append("\0")
            lines.append(_part(between, tuple(islice(left, len(between) - 1))))
    pieces = (head + "\r\n".join(encoded)).split("\0")
    return _QuotedPrintable(_part(pieces, ()).pieces, tuple(lines))


def _part(literals: list[str], gaps: tuple[int, ...]) -> Part:
    pieces = [""] * (2 * len(literals) - 1)
    pieces[::2] = literals
    return Part(pieces, gaps)


def _stuffed(lines: str) -> str:
    lines = lines.replace("\n.", "\n..")
    return f".{lines}" if lines.startswith(".") else lines
