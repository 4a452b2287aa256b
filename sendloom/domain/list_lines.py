"""Lists, a line at a time: NDJSON here, CSV in `csv_lines`. A bad line is an error with its number; the rest goes on.

Parsers are fed bytes as they come and keep only an unfinished line between feeds, so a list of any size is read in constant
memory. `carry` is that line: with `line` it is all there is to keep to go on in another process.

No error quotes a value: error lists are read by people who need not see addresses.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson

from sendloom.domain.addresses import e164_of, normalise_email
from sendloom.domain.locales import validate_locale
from sendloom.domain.zones import NAMES, validate_zone
from sendloom.errors import Refusal

LINE_MAX = 65_536
"""Bytes of one line; more is an error of that line."""
RECIPIENT_ID_MAX = 128
WORDING_MAX = 2_000

_RECIPIENT_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{RECIPIENT_ID_MAX - 1}}}", re.ASCII)
_CATEGORY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)


@dataclass(slots=True)
class ListConsent:
    """Consent as the list brings it: when, where from, to which words, for which categories."""

    source: str
    at: datetime
    wording: str
    categories: tuple[str, ...]


@dataclass(slots=True)
class ListRow:
    """One good line. Without a recipient id the caller derives one."""

    line: int
    recipient_id: str | None
    email: str | None
    """Deliverable form."""
    email_lookup: str | None
    phone: str | None
    """E.164; also the lookup form."""
    locale: str | None
    zone: str | None
    consent: ListConsent | None
    variables: dict[str, Any]


@dataclass(slots=True)
class LineError:
    """What is wrong with one line."""

    line: int
    code: str
    column: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a parser needs to know of the tenant."""

    default_region: str | None = None
    consent_categories: tuple[str, ...] = field(default=())
    """For lines whose consent names none; usually the list's."""


KNOWN = frozenset({"recipient_id", "email", "phone", "locale", "zone", "consent", "variables"})
_CONSENT_KNOWN = frozenset({"source", "at", "wording", "categories"})


def check_recipient_id(value: object, *, field: str = "recipient_id") -> str:
    """An opaque id. One that is an address would carry it into workflow ids and logs (TEN-4).

    Raises:
        Refusal: `bad_recipient_id`.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _RECIPIENT_ID.fullmatch(text):
        raise Refusal(
            "bad_recipient_id",
            f"an id has 1 to {RECIPIENT_ID_MAX} letters, digits and . _ : -, and is no address",
            field=field,
            fix="use the id your own systems know the person by",
        )
    return text


def read_row(line: int, given: Mapping[str, Any], reading: Reading) -> ListRow:
    """Checks and normalises one line's fields.

    Raises:
        Refusal: with the column as field.
    """
    if not given.keys() <= KNOWN:
        unknown = sorted(given.keys() - KNOWN)[0]
        raise Refusal(
            "unknown_field",
            "the line has a field that lists do not have",
            field=unknown[:64],
            fix="put what templates need under variables",
        )
    get = given.get
    recipient_id, email, phone = get("recipient_id"), get("email"), get("phone")
    if recipient_id is not None and recipient_id != "":
        recipient_id = check_recipient_id(recipient_id)
    else:
        recipient_id = None
    deliverable = lookup = None
    if email:
        address = normalise_email(email)
        deliverable, lookup = address.deliverable, address.lookup
    if phone:
        phone = e164_of(str(phone) if type(phone) is int else phone, reading.default_region)
    if recipient_id is None and not deliverable and not phone:
        raise Refusal("no_address", "the line has no recipient_id, email or phone", field="email")
    locale, zone, variables = get("locale"), get("zone"), get("variables")
    if zone and (type(zone) is not str or zone not in NAMES):
        validate_zone(zone if isinstance(zone, str) else "")
    if variables is None:
        variables = {}
    elif type(variables) is not dict:
        raise Refusal("bad_variables", "variables is an object", field="variables")
    consent = get("consent")
    return ListRow(
        line,
        recipient_id,
        deliverable,
        lookup,
        phone or None,
        _locale(locale) if locale else None,
        zone or None,
        _consent(consent, reading) if consent else None,
        variables,
    )


@lru_cache(maxsize=1024)
def _known_locale(tag: str) -> str:
    return validate_locale(tag)


def _locale(tag: object) -> str:
    return _known_locale(tag) if isinstance(tag, str) else validate_locale("")


def _consent(given: object, reading: Reading) -> ListConsent:
    if not isinstance(given, dict) or not given.keys() <= _CONSENT_KNOWN:
        raise _bad_consent("consent", "consent has source, at, wording and categories")
    source, wording = given.get("source"), given.get("wording", "")
    if not isinstance(source, str) or not source.strip() or len(source) > 200:
        raise _bad_consent("consent.source", "consent says where it was given")
    if not isinstance(wording, str) or len(wording) > WORDING_MAX:
        raise _bad_consent("consent.wording", f"wording has at most {WORDING_MAX} characters")
    try:
        at = datetime.fromisoformat(given.get("at") or "")
    except (TypeError, ValueError):
        at = None
    if at is None or at.tzinfo is None:
        raise _bad_consent("consent.at", "consent says when, with an offset: 2026-01-15T09:00:00Z")
    categories = given.get("categories") or reading.consent_categories
    if not isinstance(categories, list | tuple) or not all(
        isinstance(category, str) and _CATEGORY.fullmatch(category) for category in categories
    ):
        raise _bad_consent("consent.categories", "categories is a list of category names")
    if not categories:
        raise _bad_consent("consent.categories", "consent says for which categories")
    return ListConsent(source.strip(), at, wording, tuple(categories))


def _bad_consent(column: str, why: str) -> Refusal:
    return Refusal("bad_consent", why, field=column)


class LineSplitter:
    """Bytes in, whole lines out, numbered from 1. Knows LF and CRLF and drops a byte-order mark."""

    def __init__(self, carry: bytes = b"", line: int = 0) -> None:
        self.carry = carry
        self.line = line
        """The number of the last whole line that came out."""
        self._overlong = False

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Whole lines without their end. None stands for one that was too long."""
        if b"\n" not in chunk:
            self._keep(self.carry + chunk)
            return
        lines = chunk.split(b"\n")
        lines[0] = self.carry + lines[0]
        # Kept before anything is handed out, so that a caller who stops half-way can still see where it is.
        self.carry = b""
        rest = lines.pop()
        for line in lines:
            yield self._whole(line)
        self._keep(rest)

    def close(self) -> Iterator[tuple[int, bytes | None]]:
        """The last line, if it has no end of its own."""
        if self.carry or self._overlong:
            line, self.carry = self.carry, b""
            yield self._whole(line)

    def _keep(self, rest: bytes) -> None:
        # Of a line that is already too long only that fact is kept.
        if self._overlong or len(rest) > LINE_MAX:
            self._overlong, rest = True, b""
        self.carry = rest

    def _whole(self, line: bytes) -> tuple[int, bytes | None]:
        self.line += 1
        if self._overlong or len(line) > LINE_MAX:
            self._overlong = False
            return self.line, None
        if self.line == 1 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
        return self.line, line[:-1] if line.endswith(b"\r") else line


Parsed = ListRow | LineError


class NdjsonParser:
    """One JSON object a line: `{"recipient_id", "email", "phone", "locale", "zone", "consent", "variables"}`."""

    def __init__(self, reading: Reading, *, carry: bytes = b"", line: int = 0) -> None:
        self._reading = reading
        self._lines = LineSplitter(carry, line)

    @property
    def carry(self) -> bytes:
        return self._lines.carry

    @property
    def line(self) -> int:
        return self._lines.line

    def feed(self, chunk: bytes) -> Iterator[Parsed]:
        """Every line that the chunk completes; blank ones are passed over."""
        return self._parse(self._lines.feed(chunk))

    def close(self) -> Iterator[Parsed]:
        """The last line, when the list does not end with a newline."""
        return self._parse(self._lines.close())

    def _parse(self, lines: Iterator[tuple[int, bytes | None]]) -> Iterator[Parsed]:
        reading = self._reading
        for number, line in lines:
            if line is None:
                yield too_long(number)
                continue
            if not line or line.isspace():
                continue
            try:
                given = orjson.loads(line)
            except orjson.JSONDecodeError as e:
                yield LineError(number, "bad_json", None, f"not JSON, at character {e.colno}")
                continue
            if type(given) is not dict:
                yield LineError(number, "bad_json", None, "a line is one JSON object")
                continue
            yield row_or_error(number, given, reading, read_row)


def row_or_error(
    line: int,
    given: Mapping[str, Any],
    reading: Reading,
    read: Callable[[int, Mapping[str, Any], Reading], ListRow],
) -> Parsed:
    """The row, or what is wrong with it."""
    try:
        return read(line, given, reading)
    except Refusal as refusal:
        return LineError(line, refusal.code, refusal.field, refusal.detail)


def too_long(line: int) -> LineError:
    return LineError(line, "line_too_long", None, f"a line has at most {LINE_MAX} bytes")


def parse_ndjson_line(line: int, text: bytes, reading: Reading) -> Parsed | None:
    """One line on its own; None when it is blank."""
    return next(NdjsonParser(reading, line=line - 1).feed(text.rstrip(b"\n") + b"\n"), None)
