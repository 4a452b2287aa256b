"""CSV as spreadsheets write it: a byte-order mark, CRLF, `;` or a tab between columns, quotes around line breaks.

The first line names the columns, in any case. Known ones are recipient_id, email, phone, locale, zone, and consent_source,
consent_at, consent_wording, consent_categories (with `|` between); every other column is a variable, named as in the header
with spaces and hyphens as underscores.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sendloom.domain.list_lines import (
    LINE_MAX,
    LineError,
    LineSplitter,
    Parsed,
    Reading,
    read_row,
    row_or_error,
    too_long,
)
from sendloom.errors import Refusal

SEPARATORS = (",", ";", "\t")
RECORD_LINES_MAX = 50
"""A quote left open must not swallow the rest of the list."""

_ADDRESS_COLUMNS = frozenset({"recipient_id", "email", "phone"})
_PLAIN_COLUMNS = _ADDRESS_COLUMNS | {"locale", "zone"}
_SAME = {
    "e_mail": "email",
    "email_address": "email",
    "mobile": "phone",
    "phone_number": "phone",
    "time_zone": "zone",
    "timezone": "zone",
    "language": "locale",
}
_CONSENT_COLUMNS = {
    "consent_source": "source",
    "consent_at": "at",
    "consent_wording": "wording",
    "consent_categories": "categories",
}
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
COLUMNS_MAX = 200


class CsvParser:
    """Rows out of bytes as they come. Made with `header=None` for the start of a list, or with what `header` said to go on."""

    def __init__(
        self,
        reading: Reading,
        *,
        header: tuple[str, tuple[str, ...]] | None = None,
        carry: bytes = b"",
        line: int = 0,
    ) -> None:
        self._reading = reading
        self._lines = LineSplitter(b"", line)
        self._waiting: list[tuple[int, str]] = []
        """Lines of a record whose quotes are still open."""
        self.header = header
        """(separator, column names), once the first line is in."""
        # A carried record is read again from its first line.
        self._replay = carry

    @property
    def carry(self) -> bytes:
        """The unfinished record, whole lines included."""
        held = "".join(text + "\n" for _, text in self._waiting).encode()
        return self._replay or held + self._lines.carry

    @property
    def line(self) -> int:
        """The last line before the unfinished record."""
        return self._waiting[0][0] - 1 if self._waiting else self._lines.line

    def feed(self, chunk: bytes) -> Iterator[Parsed]:
        """Every record that the chunk completes.

        Raises:
            Refusal: `bad_header`; nothing of such a list can be used.
        """
        chunk, self._replay = self._replay + chunk, b""
        return self._records(self._lines.feed(chunk), last=False)

    def close(self) -> Iterator[Parsed]:
        """What is left when the list is over.

        Raises:
            Refusal: `bad_header`: there was none.
        """
        if self._replay:
            yield from self.feed(b"")
        yield from self._records(self._lines.close(), last=True)
        if self.header is None:
            raise _bad_header("the list is empty", None)

    def _records(
        self, lines: Iterator[tuple[int, bytes | None]], *, last: bool
    ) -> Iterator[Parsed]:
        for number, raw in lines:
            if raw is None:
                yield from self._give_up()
                yield too_long(number)
                continue
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                if self.header is None:
                    raise _bad_header("the list is not UTF-8", None) from None
                yield from self._give_up()
                yield LineError(number, "bad_encoding", None, "the line is not UTF-8")
                continue
            yield from self._line(number, text)
        if last:
            yield from self._give_up()

    def _line(self, number: int, text: str) -> Iterator[Parsed]:
        if not self._waiting:
            if not text or text.isspace():
                return
            if self.header is None:
                self.header = _read_header(number, text)
                return
        assert self.header is not None
        separator, _ = self.header
        if not self._waiting and '"' not in text:
            yield self._row(number, text.split(separator))
            return
        self._waiting.append((number, text))
        if not _open_quote([text for _, text in self._waiting], separator):
            first = self._waiting[0][0]
            record = "\n".join(text for _, text in self._waiting)
            self._waiting = []
            try:
                cells = _cells(record, separator)
            except csv.Error:
                yield LineError(first, "bad_csv", None, "the line is not CSV")
            else:
                yield self._row(first, cells)
        elif (
            len(self._waiting) >= RECORD_LINES_MAX
            or sum(len(text) for _, text in self._waiting) > LINE_MAX
        ):
            yield from self._give_up()

    def _give_up(self) -> Iterator[Parsed]:
        """The record's first line is the bad one; the others are read as if it were not there."""
        while self._waiting:
            (first, _), *others = self._waiting
            self._waiting = []
            yield LineError(first, "open_quote", None, "a quote is opened and never closed")
            for number, text in others:
                yield from self._line(number, text)

    def _row(self, line: int, cells: list[str]) -> Parsed:
        assert self.header is not None
        columns = self.header[1]
        if len(cells) != len(columns):
            # A spreadsheet may leave off, or add, empty cells at the end.
            while len(cells) > len(columns) and not cells[-1].strip():
                cells.pop()
            if len(cells) != len(columns):
                return LineError(
                    line,
                    "wrong_columns",
                    None,
                    f"{len(cells)} columns where the header has {len(columns)}",
                )
        given: dict[str, Any] = {}
        variables: dict[str, Any] = {}
        consent: dict[str, Any] = {}
        for column, cell in zip(columns, cells, strict=True):
            if column in _PLAIN_COLUMNS:
                given[column] = cell.strip()
            elif column in _CONSENT_COLUMNS:
                if cell.strip():
                    consent[_CONSENT_COLUMNS[column]] = cell.strip()
            else:
                variables[column] = cell
        given["variables"] = variables
        if consent:
            if "categories" in consent:
                consent["categories"] = [c.strip() for c in consent["categories"].split("|")]
            given["consent"] = consent
        return row_or_error(line, given, self._reading, _read_csv_row)


def _read_csv_row(line: int, given: Mapping[str, Any], reading: Reading) -> Any:
    try:
        return read_row(line, given, reading)
    except Refusal as refusal:
        # Errors name the column as the header does.
        if refusal.field and refusal.field.startswith("consent."):
            refusal.field = refusal.field.replace(".", "_")
        raise


def _read_header(line: int, text: str) -> tuple[str, tuple[str, ...]]:
    outside = re.sub(r"\"[^\"]*\"", "", text)
    separator = max(SEPARATORS, key=outside.count)
    try:
        names = _cells(text, separator)
    except csv.Error:
        raise _bad_header("the line is not CSV", None) from None
    # A trailing separator is a column without a name; empty ones at the end are dropped.
    while names and not names[-1].strip():
        names.pop()
    if len(names) > COLUMNS_MAX:
        raise _bad_header(f"more than {COLUMNS_MAX} columns", None)
    columns: list[str] = []
    for n, name in enumerate(names, start=1):
        spelled = re.sub(r"[\s\u00a0-]+", "_", name.strip())
        lowered = spelled.lower()
        known = _SAME.get(lowered, lowered)
        column = known if known in _PLAIN_COLUMNS or known in _CONSENT_COLUMNS else spelled
        if not _VARIABLE.fullmatch(column):
            raise _bad_header(f"column {n} has no usable name", None)
        if column.lower() in (earlier.lower() for earlier in columns):
            raise _bad_header("two columns have the same name", column)
        columns.append(column)
    if not _ADDRESS_COLUMNS & set(columns):
        raise _bad_header("there is no column recipient_id, email or phone", None)
    return separator, tuple(columns)


def _bad_header(why: str, column: str | None) -> Refusal:
    return Refusal(
        "bad_header",
        f"line 1: {why}",
        field=column,
        fix="name the columns in the first line, for example email;first_name, in UTF-8",
    )


def _cells(record: str, separator: str) -> list[str]:
    return next(csv.reader([record], delimiter=separator))


def _open_quote(lines: list[str], separator: str) -> bool:
    """Whether a quoted cell is still open at the end. A quote inside an unquoted cell is a character like any other."""
    text = "\n".join(lines)
    at, end = 0, len(text)
    while at < end:
        if text[at] != '"':
            at = text.find(separator, at)
            if at < 0:
                return False
            at += 1
            continue
        at = text.find('"', at + 1)
        while at >= 0 and text[at + 1 : at + 2] == '"':
            at = text.find('"', at + 2)
        if at < 0:
            return True
        # Whatever follows the closing quote belongs to the cell, up to the separator.
        at = text.find(separator, at + 1)
        if at < 0:
            return False
        at += 1
    return False
