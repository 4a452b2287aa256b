"""What a text costs, and how it is split. Vectors from 3GPP TS 23.038 practice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendloom.domain.sms import (
    PART,
    SINGLE,
    Encoding,
    OriginBound,
    characters,
    check_length,
    cost,
    count,
    encoding_of,
    parse_passcode_text,
    passcode_text,
    segments,
)
from sendloom.errors import Refusal

GSM7, UCS2 = Encoding.GSM7, Encoding.UCS2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a" * 160, (GSM7, 160, 1)),
        ("a" * 161, (GSM7, 161, 2)),
        ("a" * 306, (GSM7, 306, 2)),
        ("a" * 307, (GSM7, 307, 3)),
        ("a" * 158 + "€", (GSM7, 160, 1)),
        ("a" * 159 + "€", (GSM7, 161, 2)),
        ("€" * 80, (GSM7, 160, 1)),
        ("€" * 81, (GSM7, 162, 2)),
        ("a" * 152 + "€" + "a" * 152, (GSM7, 306, 3)),
        ("a" * 152 + "€" + "a" * 151, (GSM7, 305, 2)),
        ("a\r\nb", (GSM7, 4, 1)),
        ("中" * 70, (UCS2, 70, 1)),
        ("中" * 71, (UCS2, 71, 2)),
        ("中" * 134, (UCS2, 134, 2)),
        ("中" * 135, (UCS2, 135, 3)),
        ("😀" * 35, (UCS2, 70, 1)),
        ("😀" * 36, (UCS2, 72, 2)),
        ("中" * 69 + "😀", (UCS2, 71, 2)),
        ("中" * 66 + "😀" + "中" * 66, (UCS2, 134, 3)),
        ("👨\u200d👩\u200d👧\u200d👦", (UCS2, 11, 1)),
        ("", (GSM7, 0, 1)),
    ],
)
def test_texts_are_counted_as_a_network_counts_them(text, expected):
    assert count(text) == expected


@pytest.mark.parametrize(
    ("text", "parts"),
    [("Ŵ" * 69 + "{", 1), ("a" * 69 + "ŷ", 1), ("ŷ" * 70, 1), ("😀" * 35, 1), ("😀" * 36, 2)],
)
def test_c22_ucs2_counts_utf16_units_not_bytes_and_braces_once(text, parts):
    assert count(text).encoding is UCS2
    assert count(text).segments == len(segments(text)) == parts


@pytest.mark.parametrize(
    ("text", "units", "parts"),
    [
        ("a" * 158 + "€", 160, 1),
        ("a" * 159 + "€", 161, 2),
        (" " * 160, 160, 1),
        ("æ" * 160, 160, 1),
    ],
)
def test_c48_extension_characters_cost_two_and_nothing_is_counted_url_encoded(text, units, parts):
    assert count(text) == (GSM7, units, parts)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("garçon", UCS2),
        ("GARÇON", GSM7),
        ("mañana", GSM7),
        ("más", UCS2),
        ("It’s", UCS2),
        ("a\tb", UCS2),
        ("`", UCS2),
        ("a\u00a0b", UCS2),
        ("e\u0301", UCS2),
        ("@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./:;<=>?¡ÄÖÑÜ§¿äöñüà", GSM7),
        ("\f^{}\\[~]|€", GSM7),
    ],
)
def test_one_character_without_a_place_makes_it_ucs2(text, encoding):
    assert encoding_of(text) is encoding


ALPHABET = st.sampled_from("ab é€{}[]\\^~|@Δ") | st.sampled_from("ŷ中😀👩\u200d")


@given(st.text(ALPHABET, max_size=700))
def test_segments_lose_nothing_fit_and_are_full(text):
    encoding, parts = encoding_of(text), segments(text)
    assert "".join(parts) == text
    assert count(text).segments == len(parts)
    if len(parts) == 1:
        assert cost(text, encoding) <= SINGLE[encoding]
        return
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        assert 0 < cost(part, encoding) <= PART[encoding]
        # The next character did not fit: nothing is split earlier than it must be.
        assert not following or cost(part + following[0], encoding) > PART[encoding]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_ucs2_units_are_what_utf16_says(text):
    assert characters(text) == len(text.encode("utf-16-le")) // 2


def test_a_body_over_what_providers_take_is_refused():
    check_length("a" * 1600)
    check_length("😀" * 800)
    for text in ("a" * 1601, "😀" * 801):
        with pytest.raises(Refusal, match="too_large"):
            check_length(text)


# --- origin-bound passcodes -----------------------------------------------------------------------------------------------

EXAMPLE = "747723 is your ExampleCo authentication code.\n\n@example.com #747723"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (EXAMPLE, OriginBound("example.com", "747723", None)),
        ("@example.com #747723", OriginBound("example.com", "747723", None)),
        (
            "@example.com #747723 @ecommerce.example $future",
            OriginBound("example.com", "747723", "ecommerce.example"),
        ),
        (EXAMPLE + "\n", None),
        ("something @example.com #747723", None),
        ("@example.com code #747723", None),
        ("#747723 @example.com", None),
        ("@example.com  #747723", None),
        ("@example.com #747723 future", OriginBound("example.com", "747723", None)),
        ("@example.com #747723  @other.example", OriginBound("example.com", "747723", None)),
        ("Code\r\n@example.com #747723", OriginBound("example.com", "747723", None)),
        ("@ #1", None),
        ("@example.com #", None),
        ("", None),
    ],
)
def test_the_last_line_is_read_as_a_browser_reads_it(text, parsed):
    assert parse_passcode_text(text) == parsed


def test_the_built_text_is_the_example_and_one_segment():
    text = passcode_text("747723 is your ExampleCo authentication code.\n", "example.com", "747723")
    assert text == EXAMPLE
    assert count(text) == (GSM7, 67, 1)


def test_an_embedded_host_is_named_after_the_code():
    text = passcode_text("", "example.com", "000123", embedded_host="shop.example")
    assert parse_passcode_text(text) == OriginBound("example.com", "000123", "shop.example")


@pytest.mark.parametrize(
    "host",
    ["", "https://example.com", "example.com:443", "example.com/x", "exa mple.com", "-x.com"],
)
def test_a_host_with_more_than_a_name_is_refused(host):
    with pytest.raises(Refusal, match="bad_host"):
        passcode_text("Your code", host, "123456")


@pytest.mark.parametrize("code", ["", "123 456", "123\n456"])
def test_a_code_that_would_break_the_line_is_refused(code):
    with pytest.raises(Refusal, match="bad_code"):
        passcode_text("Your code", "example.com", code)


@given(st.text(max_size=80), st.from_regex(r"[0-9A-Za-z]{6,12}", fullmatch=True))
def test_whatever_stands_above_the_code_is_found(human, code):
    assert parse_passcode_text(passcode_text(human, "example.com", code)) == OriginBound(
        "example.com", code, None
    )
