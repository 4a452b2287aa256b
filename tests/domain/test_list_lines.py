"""Lists line by line: whatever the chunks, whatever the errors, nothing stops the rest."""

import codecs
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendloom.domain.csv_lines import CsvParser
from sendloom.domain.list_lines import (
    LINE_MAX,
    LineError,
    LineSplitter,
    ListConsent,
    ListRow,
    NdjsonParser,
    Reading,
    check_recipient_id,
    parse_ndjson_line,
)
from sendloom.errors import Refusal

READING = Reading(default_region="US", consent_categories=("offers.weekly",))


def ndjson(*rows: Any) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def read_ndjson(data: bytes, size: int = 1 << 20) -> list[ListRow | LineError]:
    parser = NdjsonParser(READING)
    found = [item for at in range(0, len(data), size) for item in parser.feed(data[at : at + size])]
    return found + list(parser.close())


def read_csv(data: bytes, size: int = 1 << 20) -> list[ListRow | LineError]:
    parser = CsvParser(READING)
    found = [item for at in range(0, len(data), size) for item in parser.feed(data[at : at + size])]
    return found + list(parser.close())


def errors(items: list[ListRow | LineError]) -> list[tuple[int, str, str | None]]:
    return [(i.line, i.code, i.column) for i in items if isinstance(i, LineError)]


def rows(items: list[ListRow | LineError]) -> list[ListRow]:
    return [item for item in items if isinstance(item, ListRow)]


# --- NDJSON ---------------------------------------------------------------------------------------------------------------


def test_a_full_line_is_read_and_normalised():
    [row] = read_ndjson(
        ndjson(
            {
                "recipient_id": "r-1",
                "email": "User@Example.COM",
                "phone": "(202) 555-0144",
                "locale": "pt_br",
                "zone": "America/Sao_Paulo",
                "consent": {
                    "source": "web form",
                    "at": "2026-01-15T09:00:00Z",
                    "wording": "Yes, write to me",
                    "categories": ["offers.weekly", "news"],
                },
                "variables": {"first_name": "Ana", "points": 3},
            }
        )
    )
    assert row == ListRow(
        line=1,
        recipient_id="r-1",
        email="User@example.com",
        email_lookup="user@example.com",
        phone="+12025550144",
        locale="pt-BR",
        zone="America/Sao_Paulo",
        consent=ListConsent(
            "web form",
            datetime(2026, 1, 15, 9, tzinfo=UTC),
            "Yes, write to me",
            ("offers.weekly", "news"),
        ),
        variables={"first_name": "Ana", "points": 3},
    )


def test_a_line_needs_only_one_way_to_know_the_person():
    found = rows(
        read_ndjson(
            ndjson({"recipient_id": 42}, {"email": "a@example.com"}, {"phone": "+12025550143"})
        )
    )
    assert [(r.recipient_id, r.email, r.phone) for r in found] == [
        ("42", None, None),
        (None, "a@example.com", None),
        (None, None, "+12025550143"),
    ]


def test_consent_without_categories_is_for_the_lists():
    [row] = rows(
        read_ndjson(
            ndjson(
                {
                    "email": "a@example.com",
                    "consent": {"source": "shop", "at": "2026-01-15T09:00:00+01:00"},
                }
            )
        )
    )
    assert row.consent is not None
    assert row.consent.categories == ("offers.weekly",)


@pytest.mark.parametrize(
    ("line", "code", "column"),
    [
        (b"{", "bad_json", None),
        (b"[1]", "bad_json", None),
        (b'"x"', "bad_json", None),
        (b"\xff\xfe", "bad_json", None),
        (b"{}", "no_address", "email"),
        (b'{"email":""}', "no_address", "email"),
        (b'{"email":"us er@example.com"}', "bad_address", "email"),
        (b'{"email":["a@example.com"]}', "bad_address", "email"),
        (b'{"phone":"202-555-01"}', "bad_address", "phone"),
        (b'{"phone":"+18005550199"}', "blocked_number", "phone"),
        (b'{"email":"a@example.com","phone":"nope"}', "bad_address", "phone"),
        (b'{"email":"a@example.com","zone":"Mars/Phobos"}', "bad_zone", "zone"),
        (b'{"email":"a@example.com","zone":["UTC"]}', "bad_zone", "zone"),
        (b'{"email":"a@example.com","locale":"english"}', "bad_locale", "locale"),
        (b'{"email":"a@example.com","locale":7}', "bad_locale", "locale"),
        (b'{"email":"a@example.com","variables":[1]}', "bad_variables", "variables"),
        (b'{"email":"a@example.com","frist_name":"Ana"}', "unknown_field", "frist_name"),
        (b'{"recipient_id":"a@example.com"}', "bad_recipient_id", "recipient_id"),
        (b'{"recipient_id":"+12025550143"}', "bad_recipient_id", "recipient_id"),
        (b'{"recipient_id":true}', "bad_recipient_id", "recipient_id"),
        (b'{"recipient_id":"r","consent":"yes"}', "bad_consent", "consent"),
        (
            b'{"recipient_id":"r","consent":{"at":"2026-01-15T09:00:00Z"}}',
            "bad_consent",
            "consent.source",
        ),
        (
            b'{"recipient_id":"r","consent":{"source":"x","at":"2026-01-15T09:00:00"}}',
            "bad_consent",
            "consent.at",
        ),
        (b'{"recipient_id":"r","consent":{"source":"x"}}', "bad_consent", "consent.at"),
        (b'{"recipient_id":"r","consent":{"source":"x","at":5}}', "bad_consent", "consent.at"),
        (
            b'{"recipient_id":"r","consent":{"source":"x","at":"2026-01-15T09:00:00Z","categories":"all"}}',
            "bad_consent",
            "consent.categories",
        ),
    ],
)
def test_a_bad_line_is_an_error_with_its_number_and_the_rest_goes_on(line, code, column):
    good = ndjson({"email": "a@example.com"})
    found = read_ndjson(good + line + b"\n" + good)
    assert errors(found) == [(2, code, column)]
    assert [row.line for row in rows(found)] == [1, 3]


def test_no_error_quotes_an_address():
    found = read_ndjson(
        b'{"email":"us er@example.com"}\n{"phone":"202-555-01"}\n{"recipient_id":"x@example.com"}\n'
    )
    for item in found:
        assert isinstance(item, LineError)
        assert "example.com" not in item.detail
        assert "202" not in item.detail


def test_blank_lines_are_counted_and_passed_over():
    found = read_ndjson(b'\n  \n{"email":"a@example.com"}\r\n\n{')
    assert [row.line for row in rows(found)] == [3]
    assert errors(found) == [(5, "bad_json", None)]


def test_a_line_that_is_too_long_is_one_error_and_does_not_grow_memory():
    parser = NdjsonParser(READING)
    for _ in range(100):
        assert list(parser.feed(b"x" * LINE_MAX)) == []
        assert len(parser.carry) <= LINE_MAX
    found = list(parser.feed(b'\n{"email":"a@example.com"}\n'))
    assert errors(found) == [(1, "line_too_long", None)]
    assert [row.line for row in rows(found)] == [2]


def test_one_line_can_be_read_on_its_own():
    row = parse_ndjson_line(7, b'{"email":"a@example.com"}\n', READING)
    assert isinstance(row, ListRow)
    assert row.line == 7
    assert parse_ndjson_line(7, b" \n", READING) is None


MIXED = (
    codecs.BOM_UTF8
    + ndjson({"email": "zoë@example.com"}, {"email": "b@example.com", "variables": {"n": "é😀"}})
    + b"{broken\n\r\n"
    + ndjson({"phone": "+12025550143"})
    + b'{"recipient_id":"last"}'
)


@given(st.lists(st.integers(0, len(MIXED)), max_size=12))
def test_where_the_chunks_are_cut_makes_no_difference(cuts):
    at = [0, *sorted(cuts), len(MIXED)]
    parser = NdjsonParser(READING)
    found = [item for start, end in pairwise(at) for item in parser.feed(MIXED[start:end])]
    assert found + list(parser.close()) == read_ndjson(MIXED)
    assert len(read_ndjson(MIXED)) == 5


@given(st.integers(0, len(MIXED)))
def test_another_process_can_go_on_from_line_and_carry(cut):
    first = NdjsonParser(READING)
    found = list(first.feed(MIXED[:cut]))
    second = NdjsonParser(READING, carry=first.carry, line=first.line)
    found += [*second.feed(MIXED[cut:]), *second.close()]
    assert found == read_ndjson(MIXED)


@given(st.binary(max_size=200))
def test_any_bytes_are_lines_of_rows_and_errors(data):
    for item in read_ndjson(data):
        assert isinstance(item, ListRow | LineError)


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))),
    st.integers(1, 7),
)
def test_the_splitter_gives_back_every_line(lines, size):
    data = b"\r\n".join(lines)
    splitter = LineSplitter()
    found = [
        line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])
    ]
    found += list(splitter.close())
    expected = lines if lines and lines[-1] else lines[:-1]
    if expected and expected[0].startswith(codecs.BOM_UTF8):
        expected = [expected[0][3:], *expected[1:]]
    assert found == [(n, line) for n, line in enumerate(expected, start=1)]


@pytest.mark.parametrize("value", ["r-1", "A.b:c_d", "x" * 128, 7, "20250000000000000001"])
def test_opaque_ids_are_taken(value):
    assert check_recipient_id(value) == str(value)


@pytest.mark.parametrize(
    "value", ["", "a b", "a@example.com", "+12025550143", "x" * 129, "é", None, 1.5, "-x", "a/b"]
)
def test_ids_that_are_addresses_or_odd_are_refused(value):
    with pytest.raises(Refusal, match="bad_recipient_id"):
        check_recipient_id(value)


# --- CSV ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [";", ",", "\t"])
@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, b""])
@pytest.mark.parametrize("end", ["\r\n", "\n"])
@pytest.mark.parametrize("header", ["email", "EMAIL", " Email ", "E-Mail"])
def test_c19_a_spreadsheets_csv_is_read_first_row_included(separator, mark, end, header):
    text = separator.join([header, "First Name"]) + end
    text += separator.join(["a@example.com", "Ana"]) + end
    text += separator.join(["b@example.com", "Björn"]) + end
    found = read_csv(mark + text.encode())
    assert [(r.line, r.email, r.variables) for r in rows(found)] == [
        (2, "a@example.com", {"First_Name": "Ana"}),
        (3, "b@example.com", {"First_Name": "Björn"}),
    ]
    assert not errors(found)


def test_c19_one_column_needs_no_separator():
    found = read_csv(b"\xef\xbb\xbfemail\r\na@example.com\r\n")
    assert [r.email for r in rows(found)] == ["a@example.com"]


def test_c52_a_bad_number_is_reported_by_row_and_the_job_goes_on():
    found = read_csv(
        "phone\n+1\u00a0202\u00a0555\u00a00143\n(202) 555-0144\n202-555-01\n+12025550145\n".encode()
    )
    assert [r.phone for r in rows(found)] == ["+12025550143", "+12025550144", "+12025550145"]
    assert errors(found) == [(4, "bad_address", "phone")]


def test_quoted_cells_may_hold_separators_quotes_and_lines():
    found = read_csv(
        b'email,note,n\na@example.com,"x, ""y""\nz",1\nb@example.com,plain 5" pipe,2\n'
    )
    assert [(r.line, r.variables) for r in rows(found)] == [
        (2, {"note": 'x, "y"\nz', "n": "1"}),
        (4, {"note": 'plain 5" pipe', "n": "2"}),
    ]


def test_consent_has_columns_of_its_own():
    [row] = rows(
        read_csv(
            b"email,consent_source,consent_at,consent_categories,timezone,language\n"
            b"a@example.com,shop,2026-01-15T09:00:00Z,offers.weekly|news,Europe/Paris,fr\n"
        )
    )
    assert row.consent == ListConsent(
        "shop", datetime(2026, 1, 15, 9, tzinfo=UTC), "", ("offers.weekly", "news")
    )
    assert (row.zone, row.locale, row.variables) == ("Europe/Paris", "fr", {})


def test_errors_of_consent_name_the_column():
    found = read_csv(b"email,consent_source,consent_at\na@example.com,shop,yesterday\n")
    assert errors(found) == [(2, "bad_consent", "consent_at")]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"a@example.com", "wrong_columns"),
        (b"a@example.com,Ana,extra", "wrong_columns"),
        (b"a@example.com,\xff", "bad_encoding"),
        (b"x" * (LINE_MAX + 1), "line_too_long"),
        (b",Ana", "no_address"),
    ],
)
def test_a_broken_csv_line_is_an_error_with_its_number(line, code):
    found = read_csv(b"email,name\na@example.com,Ana\n" + line + b"\nb@example.com,Bo\n")
    assert [(n, c) for n, c, _ in errors(found)] == [(3, code)]
    assert [r.line for r in rows(found)] == [2, 4]


def test_empty_cells_at_the_end_are_a_spreadsheets_habit():
    found = read_csv(b"email,name,,\na@example.com,Ana,,\nb@example.com,Bo\n")
    assert [r.variables for r in rows(found)] == [{"name": "Ana"}, {"name": "Bo"}]


def test_a_quote_left_open_costs_one_line_not_the_list():
    body = b'"oops,Ana\n' + b"".join(b"u%d@example.com,Bo\n" % n for n in range(200))
    found = read_csv(b"email,name\n" + body)
    assert errors(found) == [(2, "open_quote", None)]
    assert [r.line for r in rows(found)] == list(range(3, 203))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"name,city\nAna,Rome\n",
        b"email,email\n",
        b"email,E-Mail\n",
        b"email,Name,name\n",
        b"email,\xc3\xa9t\xc3\xa9\n",
        b"email,,name\n",
        b"email," + b",".join(b"c%d" % n for n in range(300)) + b"\n",
        codecs.BOM_UTF16_LE + "email\n".encode("utf-16-le"),
    ],
)
def test_a_list_whose_columns_cannot_be_known_is_refused(data):
    with pytest.raises(Refusal) as refused:
        read_csv(data)
    assert refused.value.code == "bad_header"


CSV = (
    b'\xef\xbb\xbfEmail;note\r\na@example.com;"one\r\ntwo; ""q"""\r\nb@example.com;\xc3\xa9\r\n'
    b'bad;x\r\n"c@example.com";"never closed\r\nd@example.com;y\r\n'
)


@given(st.lists(st.integers(0, len(CSV)), max_size=12))
def test_where_a_csv_is_cut_makes_no_difference(cuts):
    at = [0, *sorted(cuts), len(CSV)]
    parser = CsvParser(READING)
    found = [item for start, end in pairwise(at) for item in parser.feed(CSV[start:end])]
    found += list(parser.close())
    assert found == read_csv(CSV)
    assert errors(found) == [(5, "bad_address", "email"), (6, "open_quote", None)]
    assert [r.line for r in rows(found)] == [2, 4, 7]


@given(st.integers(0, len(CSV)))
def test_another_process_can_go_on_with_a_csv(cut):
    first = CsvParser(READING)
    found = list(first.feed(CSV[:cut]))
    second = CsvParser(READING, header=first.header, carry=first.carry, line=first.line)
    found += [*second.feed(CSV[cut:]), *second.close()]
    assert found == read_csv(CSV)


@given(st.text(alphabet='a@,;"\n\r x', max_size=60))
def test_any_text_under_a_header_is_rows_and_errors(text):
    for item in read_csv(b"email,name\n" + text.encode()):
        assert isinstance(item, ListRow | LineError)
