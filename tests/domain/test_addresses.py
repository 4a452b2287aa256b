"""Two spellings of one address look up the same; what cannot be written to is refused with a code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.domain.addresses import (
    e164_of,
    lookup_form,
    normalise,
    normalise_email,
    normalise_phone,
    region_of,
)
from sendloom.errors import Refusal

EMAIL, SMS = Channel.EMAIL, Channel.SMS


@pytest.mark.parametrize(
    "raw",
    [
        "user\u200b@exam\u200bple.com",
        " user@example.com\u00a0",
        "\ufeffuser@example.com",
        "\u202auser@example.com\u202c",
    ],
)
def test_c23_invisible_characters_and_spaces_around_are_dropped(raw):
    assert normalise_email(raw).deliverable == "user@example.com"


@pytest.mark.parametrize(
    "raw",
    ["us er@example.com", "user@exa mple.com", "us\u00a0er@example.com", "us\ter@example.com"],
)
def test_c23_a_space_inside_is_refused(raw):
    with pytest.raises(Refusal) as refused:
        normalise_email(raw)
    assert refused.value.code == "bad_address"
    assert refused.value.field == "email"


def test_c26_a_capital_makes_no_other_address():
    shouted = normalise_email("USER@Example.com")
    assert shouted.deliverable == "USER@example.com"
    assert shouted.lookup == normalise_email("user@example.com").lookup == "user@example.com"


@pytest.mark.parametrize(
    ("raw", "deliverable", "lookup"),
    [
        ("Ana.B+news@example.com", "Ana.B+news@example.com", "ana.b+news@example.com"),
        ("user@bücher.example", "user@xn--bcher-kva.example", "user@xn--bcher-kva.example"),
        ("user@BÜCHER.example", "user@xn--bcher-kva.example", "user@xn--bcher-kva.example"),
        ("user@xn--bcher-kva.example", "user@xn--bcher-kva.example", "user@xn--bcher-kva.example"),
        ("user@XN--BCHER-KVA.example", "user@xn--bcher-kva.example", "user@xn--bcher-kva.example"),
        ("u@faß.example", "u@xn--fa-hia.example", "u@xn--fa-hia.example"),
        ("Jos\u0065\u0301@example.com", "Jos\u00e9@example.com", "jos\u00e9@example.com"),
        ("o'brien@example.com", "o'brien@example.com", "o'brien@example.com"),
        ("u@sub.example.co.uk", "u@sub.example.co.uk", "u@sub.example.co.uk"),
        ("u@1.example", "u@1.example", "u@1.example"),
    ],
)
def test_an_email_has_a_deliverable_and_a_lookup_form(raw, deliverable, lookup):
    address = normalise_email(raw)
    assert (address.deliverable, address.lookup) == (deliverable, lookup)


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "user",
        "@example.com",
        "user@",
        "user@example",
        "user@example.com.",
        "user@.example.com",
        "user@exa..mple.com",
        "user@-example.com",
        "user@exa_mple.com",
        "user@[192.0.2.1]",
        "user@192.0.2.1",
        ".user@example.com",
        "us..er@example.com",
        "a@b@example.com",
        '"quoted"@example.com',
        "Ana <user@example.com>",
        "user@example.com, other@example.com",
        "user@example.com\r\nBcc: x@example.com",
        "user\x00@example.com",
        "user\u2028@example.com",
        "user\ud800@example.com",
        "user＠example.com",
        "x" * 65 + "@example.com",
        "user@" + "x" * 64 + ".com",
        "user@" + "x." * 130 + "com",
        None,
        5,
    ],
)
def test_what_is_no_email_address_is_refused_without_quoting_it(raw):
    with pytest.raises(Refusal) as refused:
        normalise_email(raw)
    assert refused.value.code == "bad_address"
    if raw and raw != "user" and isinstance(raw, str):
        assert raw not in str(refused.value)


def test_joiners_stay_where_they_mean_something():
    persian = "user@نامه\u200cای.example"
    assert normalise_email(persian).deliverable == "user@xn--mgba3gch31f060k.example"
    assert normalise_email("us\u200der@example.com").deliverable == "user@example.com"


locals_ = st.from_regex(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,12}(\.[A-Za-z0-9ßéİΣŒ]{1,8}){0,2}", fullmatch=True
)
domains = st.from_regex(
    r"[A-Za-z0-9]([A-Za-z0-9]{0,8}[A-Za-z0-9])?\.(com|example|Co\.UK)", fullmatch=True
)
noise = st.text(alphabet=" \u00a0\u200b\ufeff\t\u2003", max_size=3)


@given(locals_, domains, noise, noise)
def test_a_lookup_form_is_stable_under_case_noise_and_itself(local, domain, before, after):
    plain = normalise_email(f"{local}@{domain}")
    for spelling in (
        f"{before}{local}@{domain}{after}",
        f"{local}\u200b@{domain}",
        f"{local}@{domain.swapcase()}",
    ):
        assert normalise_email(spelling) == plain
    assert lookup_form(EMAIL, plain.deliverable) == plain.lookup
    assert lookup_form(EMAIL, plain.lookup) == plain.lookup
    if local.isascii():
        assert lookup_form(EMAIL, f"{local.swapcase()}@{domain}") == plain.lookup


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_refusal(text):
    try:
        address = normalise_email(text)
    except Refusal:
        return
    assert not any(c.isspace() for c in address.deliverable)
    assert address.deliverable.rpartition("@")[2].isascii()


# --- numbers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "e164"),
    [("+1\u00a0202\u00a0555\u00a00143", "+12025550143"), ("(202) 555-0144", "+12025550144")],
)
def test_c52_no_break_spaces_and_national_spelling_are_accepted(raw, e164):
    assert normalise_phone(raw, "US").deliverable == e164


def test_c52_a_number_that_is_too_short_is_refused():
    with pytest.raises(Refusal) as refused:
        normalise_phone("202-555-01", "US")
    assert (refused.value.code, refused.value.field) == ("bad_address", "phone")


@pytest.mark.parametrize(
    ("raw", "default", "e164", "region"),
    [
        ("+14155552671", None, "+14155552671", "US"),
        ("+15555550100", None, "+15555550100", None),
        ("+447911123456", None, "+447911123456", "GG"),
        ("+447400123456", None, "+447400123456", "GB"),
        ("+4407911123456", None, "+447911123456", "GG"),
        ("07911 123456", "GB", "+447911123456", "GG"),
        ("011 15-2345-6789", "AR", "+5491123456789", "AR"),
        ("+390612345678", None, "+390612345678", "IT"),
        ("+12684641234", None, "+12684641234", "AG"),
        ("+18762101234", None, "+18762101234", "JM"),
        ("+٤٤٧٤٠٠١٢٣٤٥٦", None, "+447400123456", "GB"),
        ("\u202a+12025550143\u202c", None, "+12025550143", "US"),
        ("+5215512345678", None, "+525512345678", "MX"),
        ("+525512345678", None, "+525512345678", "MX"),
    ],
)
def test_numbers_become_e164_with_their_own_region(raw, default, e164, region):
    address = normalise_phone(raw, default)
    assert (address.deliverable, address.lookup, address.region) == (e164, e164, region)
    assert e164_of(raw, default) == e164
    assert region_of(e164) == region


@pytest.mark.parametrize(
    "raw",
    [
        "+18005550199",
        "+19005550199",
        "+881612345678",
        "+88216555555",
        "+448712345678",
        "+447012345678",
    ],
)
def test_kinds_of_number_that_are_never_written_to_are_blocked(raw):
    with pytest.raises(Refusal) as refused:
        normalise_phone(raw)
    assert refused.value.code == "blocked_number"
    assert lookup_form(SMS, raw).startswith("+")


@pytest.mark.parametrize(
    ("raw", "default"),
    [
        ("+14155552671 ext. 5", None),
        ("+14155552671;ext=5", None),
        ("(202) 555-0143 x12", "US"),
        ("1-800-FLOWERS", "US"),
        ("2025550143", None),
        ("+999123456789", None),
        ("+1234567890123456", None),
        ("555-0143", "US"),
        ("", "US"),
        ("nobody", "US"),
        (None, "US"),
    ],
)
def test_what_cannot_be_sent_a_text_is_refused(raw, default):
    with pytest.raises(Refusal) as refused:
        normalise_phone(raw, default)
    assert refused.value.code == "bad_address"
    if raw:
        assert raw not in str(refused.value)


def test_old_and_new_mexican_spellings_look_up_the_same():
    assert lookup_form(SMS, "+5215512345678") == lookup_form(SMS, "+52 55 1234 5678")


@given(st.integers(200, 999), st.integers(0, 99))
def test_every_spelling_of_a_number_looks_up_the_same(area, last):
    e164 = f"+1{area}55501{last:02d}"
    for spelling in (
        e164,
        f"({area}) 555-01{last:02d}",
        f"{area}.555.01{last:02d}",
        f" +1 {area}\u00a0555 01{last:02d}\u200b",
        f"001{area}55501{last:02d}"[2:],
    ):
        assert lookup_form(SMS, spelling, default_region="US") == e164


# --- devices --------------------------------------------------------------------------------------------------------------


def test_device_tokens_are_kept_and_only_hexadecimal_ones_are_folded():
    apns = normalise(Channel.APNS, " ABCDEF0123 ")
    assert (apns.deliverable, apns.lookup) == ("ABCDEF0123", "abcdef0123")
    fcm = normalise(Channel.FCM, "AbC:dEf")
    assert fcm.lookup == "AbC:dEf"
    with pytest.raises(Refusal, match="bad_address"):
        normalise(Channel.FCM, "two tokens")


def test_channels_find_their_own_rules():
    assert normalise(EMAIL, "User@Example.com").lookup == "user@example.com"
    assert normalise(SMS, "(202) 555-0143", default_region="US").lookup == "+12025550143"
