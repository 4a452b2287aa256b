"""A compiled template as mails: what does not depend on the recipient already is as the wire wants it.

`Form.fill` is `mime.Skeleton.fill` of the rendered template, stuffed, for the values that most recipients have: printable ASCII in
an ASCII template. For any others it says None, and the plain way is gone.
"""

from dataclasses import dataclass
from datetime import datetime

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
    boundary_between,
    date_line,
    leaf_head,
    names_are_writable,
    subject_line,
    unsubscribe_lines,
)


@dataclass(slots=True)
class _Leaf:
    """One part in 7bit: CRLF lines, dots stuffed, its headers before it."""

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


class Form:
    """One channel and locale of one template version. Kept as long as the template is."""

    __slots__ = ("_fields", "_html", "_subject", "_template", "_text")

    def __init__(self, template: CompiledTemplate) -> None:
        self._template = template
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
        template, text_leaf = self._template, self._text
        if text_leaf is None or self._subject is None:
            return None
        size = 0
        for value in values:
            # One that is empty could join what stands before it and behind it to something with a meaning of its own.
            if not value or not value.isascii() or not value.isprintable():
                return None
            size += len(value)
        size *= self._fields
        text = text_leaf.fill(values, size)
        if text is None:
            return None
        names_are_writable(message_id, reference, list_unsubscribe_url)
        if template.html is None:
            body = text
        else:
            marked = escaped(values)
            if self._html is None:
                return None
            html = self._html.fill(marked, sum(map(len, marked)) * self._fields)
            if html is None:
                return None
            body = _alternatives(message_id, text, html)
        subject = one_line(self._subject.fill(values))
        if len(subject) > SUBJECT_MAX or len(body) * 4 > EMAIL_MAX:
            return None
        return (
            f"{skeleton.fixed}To: {to}\r\n{subject_line(subject)}{date_line(date)}"
            f"Message-ID: {message_id}\r\nX-Sendloom-Delivery: {reference}\r\n"
            f"{unsubscribe_lines(list_unsubscribe_url)}{body}"
        ).encode("ascii")


def _alternatives(message_id: str, text: str, html: str) -> str:
    boundary = boundary_between(message_id, text, html)
    return (
        f'Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'
        f"--{boundary}\r\n{text}\r\n--{boundary}\r\n{html}\r\n--{boundary}--\r\n"
    )


def _laid(subtype: str, part: Part) -> _Leaf | None:
    """None: not ASCII, or a line of it is too long already."""
    literals = part.pieces[::2]
    if not all(literal.isascii() for literal in literals):
        return None
    literals = [
        literal.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "") for literal in literals
    ]
    if not literals[-1].endswith("\n"):
        literals[-1] += "\n"
    room = LINE_MAX - max(map(len, "".join(literals).split("\n")))
    if room < 0:
        return None
    first_of_line = tuple(
        gap
        for n, (gap, before) in enumerate(zip(part.gaps, literals, strict=False))
        if before.endswith("\n") or (n == 0 and not before)
    )
    laid = [literal.replace("\n.", "\n..").replace("\n", "\r\n") for literal in literals]
    if laid[0].startswith("."):
        laid[0] = "." + laid[0]
    laid[0] = leaf_head(subtype, "7bit") + laid[0]
    pieces = part.pieces.copy()
    pieces[::2] = laid
    return _Leaf(Part(pieces, part.gaps), first_of_line, room)
