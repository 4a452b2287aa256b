"""Vectors of Twilio's documents and SDKs (account token 12345)."""

import hashlib

import pytest

from sendloom.providers.twilio_signature import sign, url_variants, verify

TOKEN = "12345"


def call(number: str) -> list[tuple[str, str]]:
    return [
        ("CallSid", "CA1234567890ABCDE"),
        ("Caller", number),
        ("Digits", "1234"),
        ("From", number),
        ("To", "+18005551212"),
    ]


P09 = call("+14158675309")
BASE = "https://mycompany.com/myapp.php?foo=1&bar=2"
JSON_BODY = b'{"property": "value", "boolean": true}'
JSON_URL = f"{BASE}&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
EMPTY_JSON = "&bodySHA256=44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

VECTORS = [
    (
        "1",
        "https://example.com/myapp.php?foo=1&bar=2",
        call("+14158675310"),
        "L/OH5YylLD5NRKLltdqwSvS0BnU=",
    ),
    ("2", BASE, P09, "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
    ("3", BASE, call("+12349013030"), "0/KCTR6DLpKmkAf8muzZqo1nDgQ="),
    ("4", "https://mycompany.com:443/myapp.php?foo=1&bar=2", P09, "kvajT1Ptam85bY51eRf/AJRuM3w="),
    ("5", "http://mycompany.com:1234/myapp.php?foo=1&bar=2", P09, "Zmvh+3yNM1Phv2jhDCwEM3q5ebU="),
    ("6", "http://mycompany.com:80/myapp.php?foo=1&bar=2", P09, "0ZXoZLH/DfblKGATFgpif+LLRf4="),
    (
        "7",
        BASE,
        [
            ("Sid", "CA123"),
            ("SidAccount", "AC123"),
            ("Digits", "5678"),
            ("Digits", "1234"),
            ("Digits", "1234"),
        ],
        "IK+Dwps556ElfBT0I3Rgjkr1wJU=",
    ),
    (
        "8",
        BASE,
        [
            ("MessagingBinding.Address", "+1325xxxxxxx"),
            ("MessagingBinding.Address", "+1415xxxxxxx"),
        ],
        "83O6e2vORAoJHUNzJjDWN1jz+BA=",
    ),
    ("9", JSON_URL, [], "a9nBmqA0ju/hNViExpshrM61xv4="),
    (
        "10",
        f"https://mycompany.com:443/myapp.php?foo=1&bar=2{EMPTY_JSON}",
        [],
        "Ldidvp12m26NI7eqEvxnEpkd9Hc=",
    ),
    ("10 bare", f"{BASE}{EMPTY_JSON}", [], "rw/jVviOgicj2+kHZULvebnA4ag="),
    (
        "11",
        "https://user:pass@mycompany.com/myapp.php?foo=1&bar=2",
        P09,
        "CukzLTc1tT5dXEDIHm/tKBanW10=",
    ),
    (
        "11 port",
        "https://user:pass@mycompany.com:443/myapp.php?foo=1&bar=2",
        P09,
        "ZQFR1PTIZXF2MXB8ZnKCvnnA+rI=",
    ),
    (
        "11 user",
        "https://user@mycompany.com/myapp.php?foo=1&bar=2",
        P09,
        "2YRLlVAflCqxaNicjMpJcSTgzSs=",
    ),
    ("12", f"{BASE}&Body=It%27s+amazing", P09, "TfZzewPq8wqrGlMfyAud8+/IvJ0="),
    ("12 raw", f"{BASE}&Body=It's+amazing", P09, "dsq4Ehbj6cs+KdTkpF5sSSplOWw="),
    (
        "13",
        "https://example.com/myapp.php?foo=1&bar=2",
        [("Body", "hello")],
        "auPCBlqYuOXiaJO3vsvFsrY0XQU=",
    ),
]


@pytest.mark.parametrize(("name", "url", "form", "signature"), VECTORS, ids=[v[0] for v in VECTORS])
def test_a_published_signature_is_reproduced(name, url, form, signature):
    assert sign(TOKEN, url, form) == signature


@pytest.mark.parametrize(
    ("name", "url", "form", "signature"),
    [v for v in VECTORS if "bodySHA256" not in v[1]],
    ids=[v[0] for v in VECTORS if "bodySHA256" not in v[1]],
)
def test_a_published_signature_is_accepted_for_its_form(name, url, form, signature):
    assert verify(TOKEN, signature, url, form=form)
    assert verify(TOKEN, signature, url, form=reversed(form)), (
        "the order of parameters carries no meaning"
    )


@pytest.mark.parametrize(
    ("configured", "signature"),
    [
        (BASE, "kvajT1Ptam85bY51eRf/AJRuM3w="),
        ("https://mycompany.com:443/myapp.php?foo=1&bar=2", "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
        ("http://mycompany.com/myapp.php?foo=1&bar=2", "0ZXoZLH/DfblKGATFgpif+LLRf4="),
        ("https://user:pass@mycompany.com/myapp.php?foo=1&bar=2", "ZQFR1PTIZXF2MXB8ZnKCvnnA+rI="),
        (
            "https://user:pass@mycompany.com:443/myapp.php?foo=1&bar=2",
            "CukzLTc1tT5dXEDIHm/tKBanW10=",
        ),
        (f"{BASE}&Body=It's+amazing", "TfZzewPq8wqrGlMfyAud8+/IvJ0="),
        (f"{BASE}#rc=5&rp=all", "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
    ],
    ids=[
        "with port",
        "port stripped",
        "http with port",
        "user and port",
        "user, no port",
        "apostrophe",
        "fragment",
    ],
)
def test_c10_a_url_that_differs_only_in_twilios_own_quirks_is_accepted(configured, signature):
    assert verify(TOKEN, signature, configured, form=P09)


def test_the_set_of_url_variants_is_small_and_fixed():
    assert url_variants("https://a.example.com:8443/x?q='") == (
        "https://a.example.com:8443/x?q='",
        "https://a.example.com/x?q='",
        "https://a.example.com:443/x?q='",
        "https://a.example.com:8443/x?q=%27",
        "https://a.example.com/x?q=%27",
        "https://a.example.com:443/x?q=%27",
    )
    assert url_variants("http://[::1]:9/x") == (
        "http://[::1]:9/x",
        "http://[::1]/x",
        "http://[::1]:80/x",
    )


GOOD = "RSOYDt4T1cUTdK1PDd93/VVr8B8="


@pytest.mark.parametrize(
    ("url", "form", "signature"),
    [
        (BASE.replace("bar=2", "bar=3"), P09, GOOD),
        (BASE, P09[:-1], GOOD),
        (BASE, [*P09, ("Extra", "")], GOOD),
        (BASE.replace("mycompany.com", "MyCompany.com"), P09, GOOD),
        (BASE.replace("https", "http"), P09, GOOD),
        (BASE, P09, None),
        (BASE, P09, ""),
        (BASE, P09, GOOD[:-1]),
        (BASE, P09, GOOD + "="),
        (BASE, P09, "é" * 28),
        (BASE, P09, GOOD.swapcase()),
    ],
    ids=[
        "query",
        "dropped",
        "added",
        "host case",
        "scheme",
        "missing",
        "empty",
        "short",
        "long",
        "not ascii",
        "case",
    ],
)
def test_anything_that_differs_is_refused(url, form, signature):
    assert not verify(TOKEN, signature, url, form=form)


def test_another_accounts_token_is_refused():
    assert not verify("54321", GOOD, BASE, form=P09)
    assert not verify("", sign("", BASE, P09), BASE, form=P09), (
        "an unset token must not verify everything"
    )


def test_a_json_body_must_match_the_hash_that_the_url_promises():
    signature = "a9nBmqA0ju/hNViExpshrM61xv4="
    assert verify(TOKEN, signature, JSON_URL, body=JSON_BODY)
    assert not verify(TOKEN, signature, JSON_URL, body=JSON_BODY.replace(b"true", b"tru3"))
    assert not verify(TOKEN, signature, JSON_URL, body=JSON_BODY.replace(b" ", b""))


def test_a_body_without_a_promised_hash_is_refused_because_nothing_signs_it():
    assert not verify(TOKEN, sign(TOKEN, BASE), BASE, body=JSON_BODY)
    assert verify(TOKEN, sign(TOKEN, BASE), BASE), "a GET has no body to protect"


def test_a_form_together_with_a_body_hash_is_refused():
    url = f"https://mycompany.com:443/myapp.php?foo=1&bar=2{EMPTY_JSON}"
    assert verify(TOKEN, "Ldidvp12m26NI7eqEvxnEpkd9Hc=", url, body=b"{}")
    assert verify(TOKEN, "rw/jVviOgicj2+kHZULvebnA4ag=", url, body=b"{}"), "signed without the port"
    assert not verify(TOKEN, "Ldidvp12m26NI7eqEvxnEpkd9Hc=", url, form=[], body=b"{}")
    assert not verify(TOKEN, sign(TOKEN, url, P09), url, form=P09, body=b"{}")


def test_two_promised_hashes_are_refused():
    other = hashlib.sha256(b"{}").hexdigest()
    url = f"{JSON_URL}&bodySHA256={other}"
    assert not verify(TOKEN, sign(TOKEN, url), url, body=JSON_BODY)


def test_a_shared_key_is_used_only_when_key_and_algorithm_are_known():
    signature = sign("shared", BASE, P09, algorithm="HMAC_SHA256")
    keys = {"SK1": "shared"}

    def accepted(settings: str | None) -> bool:
        return verify(TOKEN, signature, BASE, form=P09, settings=settings, shared_keys=keys)

    assert accepted("key=SK1,algorithm=HMAC_SHA256")
    assert not accepted("key=SK2,algorithm=HMAC_SHA256")
    assert not accepted("key=SK1,algorithm=HMAC_MD5")
    assert not accepted("key=SK1,algorithm=HMAC_SHA1")
    assert not accepted("key=SK1")
    assert not accepted("")
    assert not accepted(None)
