"""Mail as bytes: ASCII on the wire, one header per header, the same text after decoding."""

import base64
from datetime import UTC, datetime, timedelta, timezone
from email import message_from_bytes
from email.header import decode_header, make_header
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import default
from email.utils import getaddresses, parsedate_to_datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.kinds import FaultScope
from schemas.messages import OutboundEmail
from sendloom.providers.mime import (
    END,
    LINE_MAX,
    Skeleton,
    Unmailable,
    base64_lines,
    build,
    envelope,
    mailbox,
    stuff,
    to_wire,
)

WHEN = datetime(2027, 3, 1, 9, 30, tzinfo=timezone(timedelta(hours=1)))
INJECTIONS = [
    "a\r\nBcc: x@example.com",
    "Hi\r\nBcc: x@example.com",
    "a\nX: y",
    "Hi\rX: y",
    "a\rX",
    "a\x00b",
    "a\u2028Bcc: x@example.com",
    "a\u0085Bcc: x@example.com",
    "a\x0bBcc: x@example.com",
    "=?utf-8?q?a=0D=0ABcc:_x?=",
    "A =?UTF-8?Q?=0A?=Bcc: x@example.com",
]


def a_mail(**changes: object) -> OutboundEmail:
    fields: dict[str, object] = {
        "reference": "dlv_AbC-1_2",
        "message_id": "<0123456789abcdef@example.com>",
        "date": WHEN,
        "from_address": "news@example.com",
        "from_name": "Example",
        "to_address": "alex@example.com",
        "subject": "Hello",
        "text": "Hello Alex,\n\nbye.\n",
        "envelope_from": "bounces+1@return.example.com",
    }
    return OutboundEmail.model_validate(fields | changes)


def skeleton_of(mail: OutboundEmail) -> bytes:
    skeleton = Skeleton(
        from_address=mail.from_address,
        from_name=mail.from_name,
        reply_to=mail.reply_to,
        auto_submitted=mail.auto_submitted,
    )
    return skeleton.fill(
        to_address=mail.to_address,
        message_id=mail.message_id,
        date=mail.date,
        reference=mail.reference,
        subject=mail.subject,
        text=mail.text,
        html=mail.html,
        list_unsubscribe_url=mail.list_unsubscribe_url,
    )


def parsed(raw: bytes) -> EmailMessage:
    message = message_from_bytes(raw, policy=default)
    assert isinstance(message, EmailMessage)
    return message


def text_of(message: EmailMessage) -> str:
    """Decoded, with LF lines: on the wire they are CRLF."""
    content: str = message.get_content()
    assert content.count("\r\n") == content.count("\n") == content.count("\r")
    return content.replace("\r\n", "\n")


def from_of(raw: bytes) -> tuple[str, str]:
    """(name, address). Python 3.11's newer parser leaves a space between two encoded-words of a phrase; this one does not."""
    [(name, address)] = getaddresses([str(message_from_bytes(raw)["From"])])
    return str(make_header(decode_header(name))), address


BOTH = pytest.mark.parametrize("make", [build, skeleton_of], ids=["build", "skeleton"])


@BOTH
def test_c77_non_ascii_subject_and_name_travel_as_ascii_and_come_back_exactly(make):
    raw = make(
        a_mail(subject="Prüfung – Code", from_name="Zoë, Support", text="Schöne Grüße\n", html=None)
    )
    assert raw.isascii()
    message = parsed(raw)
    assert message["Subject"] == "Prüfung – Code"
    assert message["From"].addresses == (Address("Zoë, Support", addr_spec="news@example.com"),)
    assert text_of(message) == "Schöne Grüße\n"


@BOTH
@pytest.mark.parametrize("value", INJECTIONS)
@pytest.mark.parametrize("field", ["subject", "from_name"])
def test_c12_a_line_break_in_a_value_never_makes_a_header(make, field, value):
    mail = a_mail(**{field: value})
    plain = parsed(make(a_mail()))
    raw = make(mail)
    message = parsed(raw)
    assert message.keys() == plain.keys()
    assert "Bcc" not in message
    assert "X" not in message
    assert envelope(mail)[1] == "alex@example.com"
    assert len(message["From"].addresses) == 1
    assert [a.addr_spec for a in message["To"].addresses] == ["alex@example.com"]
    # also for a reader that breaks lines where Python's str.splitlines does
    head = raw.partition(b"\r\n\r\n")[0].decode("ascii")
    names = {line.partition(":")[0] for line in head.splitlines() if not line.startswith(" ")}
    assert names == set(message.keys())


@BOTH
def test_c12_an_encoded_line_break_stays_the_text_it_was(make):
    value = "=?utf-8?q?a=0D=0ABcc:_x?="
    message = parsed(make(a_mail(subject=value, from_name=value)))
    assert message["Subject"] == value
    assert message["From"].addresses[0].display_name == value


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        {"to_address": "a@example.com\r\nBcc: x@example.com"},
        {"to_address": "a@example.com, b@example.com"},
        {"to_address": "a@example.com>\r\nRCPT TO:<b@example.com"},
        {"to_address": "Alex <a@example.com>"},
        {"to_address": "a b@example.com"},
        {"to_address": "a\u2028@example.com"},
        {"to_address": "@example.com"},
        {"to_address": "a@"},
        {"to_address": "a@exam ple.com"},
        {"to_address": "a@-example.com"},
        {"to_address": "a" * 65 + "@example.com"},
        {"to_address": "a@" + ".".join(["a" * 60] * 5)},
        {"from_address": "a@example.com\nX: y"},
        {"reply_to": "a@example.com\nX: y"},
        {"message_id": "<a@example.com>\r\nX: y"},
        {"message_id": "<a b@example.com>"},
        {"message_id": "a@example.com"},
        {"reference": "a\r\nX: y"},
        {"reference": ""},
        {"list_unsubscribe_url": "https://example.com/\r\nX: y"},
        {"list_unsubscribe_url": "https://example.com/>,<mailto:x@example.com"},
        {"list_unsubscribe_url": "javascript:alert(1)"},
        {"list_unsubscribe_url": "https://example.com/ü"},
        {"list_unsubscribe_url": "https://example.com/" + "a" * 1_000},
    ],
    ids=str,
)
def test_what_must_be_exact_is_refused_when_it_is_not(make, change):
    with pytest.raises(Unmailable):
        make(a_mail(**change))


@BOTH
@pytest.mark.parametrize(
    "name",
    [
        'Al "the" Pal',
        "back\\slash",
        'both \\" of them',
        "O'Neil & Sons",
        "a@b.example",
        "Example, Inc.",
        "Zoë (Support)",
        "Ω" * 90,
        "long " * 60,
        "=?x?=",
        "",
    ],
    ids=lambda name: name[:20],
)
def test_a_name_comes_back_exactly_and_makes_one_mailbox(make, name):
    raw = make(a_mail(from_name=name))
    assert from_of(raw) == (name.strip(), "news@example.com")
    assert [a.addr_spec for a in parsed(raw)["From"].addresses] == ["news@example.com"]


@BOTH
@pytest.mark.parametrize(
    "subject",
    ["ü" * 200, "日本語の件名" * 30, "😀" * 60, "a😀" * 70, "a" * 2_000],
    ids=lambda s: s[:4],
)
def test_encoded_words_are_short_and_never_cut_a_character(make, subject):
    raw = make(a_mail(subject=subject))
    lines = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")
    for line in (line for line in lines if b"=?utf-8?" in line):
        assert len(line) <= 76
        assert len(line.split()[-1]) <= 75
        word = line.split()[-1].decode("ascii")
        assert str(parsed(f"Subject: {word}\r\n\r\n".encode())["Subject"]).isprintable()
        assert "\ufffd" not in parsed(f"Subject: {word}\r\n\r\n".encode())["Subject"]
    assert parsed(raw)["Subject"] == subject


@BOTH
def test_a_long_ascii_subject_is_folded_at_spaces_and_comes_back(make):
    subject = "word and  another " * 20 + "end"
    raw = make(a_mail(subject=subject))
    head = raw.partition(b"\r\n\r\n")[0]
    assert max(map(len, head.split(b"\r\n"))) <= 78
    assert parsed(raw)["Subject"] == subject


@BOTH
def test_list_unsubscribe_is_exact_and_never_an_encoded_word(make):
    url = "https://example.com/u/" + "t" * 600
    raw = make(a_mail(list_unsubscribe_url=url))
    assert f"\r\nList-Unsubscribe: <{url}>\r\n".encode() in raw
    assert b"\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in raw


@BOTH
def test_without_an_unsubscribe_url_there_is_no_such_header(make):
    assert b"List-Unsubscribe" not in make(a_mail())


@BOTH
def test_ids_and_marks_are_there_once_and_exact(make):
    message = parsed(make(a_mail(reply_to="help@example.com")))
    assert message["Message-ID"] == "<0123456789abcdef@example.com>"
    assert message["X-Sendloom-Delivery"] == "dlv_AbC-1_2"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Reply-To"] == "help@example.com"
    assert message["To"] == "alex@example.com"
    assert parsedate_to_datetime(message["Date"]) == WHEN
    assert all(len(message.get_all(name, [])) == 1 for name in message)


@BOTH
def test_auto_submitted_can_be_left_out(make):
    assert "Auto-Submitted" not in parsed(make(a_mail(auto_submitted=False)))


@BOTH
def test_text_comes_before_html(make):
    message = parsed(make(a_mail(text="plain\n", html="<p>rich</p>\n")))
    assert message.get_content_type() == "multipart/alternative"
    assert [p.get_content_type() for p in message.iter_parts()] == ["text/plain", "text/html"]


@BOTH
def test_the_same_message_is_the_same_bytes_every_time(make):
    """SEND-2: a resend is byte for byte."""
    mail = a_mail(text="ü\n", html="<p>ü</p>\n")
    assert make(mail) == make(mail)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_base64_is_the_standard_librarys(data: bytes) -> None:
    encoded = base64.encodebytes(data.replace(b"\n", b"\r\n"))
    assert base64_lines(data) == encoded.decode().replace("\n", "\r\n")


@BOTH
def test_a_body_cannot_close_its_own_part(make):
    mail = a_mail(text="x\n", html="<p>x</p>\n")
    boundary = parsed(make(mail)).get_boundary()
    evil = a_mail(
        text=f"x\n--{boundary}--\n--{boundary}\nContent-Type: text/html\n\nevil\n", html="<p>x</p>"
    )
    message = parsed(make(evil))
    assert [p.get_content_type() for p in message.iter_parts()] == ["text/plain", "text/html"]


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "a" * 5_000,
        "ü" * 5_000,
        "line\n" * 1_000,
        "trailing space \nand tab\t\n",
        ".\n..\n.x\n",
        "From here\n",
        "Zażółć gęślą jaźń\n",
        "日本語\n" * 100,
        "",
        "no end",
        "a\r\nb\rc\n",
        "= = =3D ü\n",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_bodies_come_back_and_lines_stay_short(make, text):
    raw = make(a_mail(text=text))
    assert raw.isascii()
    assert max(map(len, raw.split(b"\r\n"))) <= LINE_MAX
    assert b"\r" not in raw.replace(b"\r\n", b"")
    assert b"\n" not in raw.replace(b"\r\n", b"")
    want = text.replace("\r\n", "\n").replace("\r", "\n")
    got = text_of(parsed(raw))
    assert got.removesuffix("\n") == want.removesuffix("\n")


def test_domains_become_a_labels_and_the_envelope_follows():
    mail = a_mail(
        to_address="alex@bücher.example",
        from_address="news@Straße.example",
        envelope_from="b@bücher.example",
    )
    assert envelope(mail) == ("b@xn--bcher-kva.example", "alex@xn--bcher-kva.example")
    message = parsed(build(mail))
    assert message["To"].addresses[0].domain == "xn--bcher-kva.example"
    assert message["From"].addresses[0].domain == "xn--strae-oqa.example"


def test_a_local_part_outside_ascii_is_refused_here_with_5_6_7():
    with pytest.raises(Unmailable) as refused:
        envelope(a_mail(to_address="jörg@example.com"))
    assert refused.value.code == "5.6.7"
    assert refused.value.scope is FaultScope.RECIPIENT


def test_a_bad_sender_is_the_senders_fault():
    with pytest.raises(Unmailable) as refused:
        build(a_mail(from_address="no address"))
    assert refused.value.scope is FaultScope.SENDER


def test_an_empty_envelope_sender_is_the_null_path():
    assert envelope(a_mail(envelope_from=""))[0] == ""


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("a.b+c@example.com", "a.b+c@example.com"),
        ("a..b@example.com", '"a..b"@example.com'),
        (".a@example.com", '".a"@example.com'),
        ('"a b"@example.com', '"a b"@example.com'),
        ("A@EXAMPLE.com", "A@EXAMPLE.com"),
    ],
)
def test_odd_but_real_local_parts_are_quoted(address, written):
    assert mailbox(address) == written


def test_a_bad_domain_is_refused_with_5_1_2():
    with pytest.raises(Unmailable) as refused:
        mailbox("a@exa_mple..com")
    assert refused.value.code == "5.1.2"


@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        (b"a\r\n.b\r\n", b"a\r\n..b\r\n"),
        (b".\r\n", b"..\r\n"),
        (b"a\n.\nb", b"a\r\n..\r\nb\r\n"),
        (b"a\r.\rb\r\n", b"a\r\n..\r\nb\r\n"),
        (b"a\r\r\n\n", b"a\r\n\r\n\r\n"),
        (b"", b"\r\n"),
        (b"a", b"a\r\n"),
    ],
)
def test_the_wire_form_has_crlf_only_and_stuffed_dots(raw, wire):
    assert to_wire(raw) == wire


@given(st.binary(max_size=200).map(lambda b: b.replace(b"x", b"\r\n.").replace(b"y", b"\n")))
def test_no_bytes_can_end_data_early(raw):
    wire = to_wire(raw)
    assert wire.endswith(b"\r\n")
    assert b"\r\n.\r\n" not in b"\r\n" + wire
    assert b"\n" not in wire.replace(b"\r\n", b"")
    assert b"\r" not in wire.replace(b"\r\n", b"")
    assert (wire + END).index(b"\r\n" + END) == len(wire) - 2


# Text as people write it: any character but halves of surrogate pairs, which no UTF-8 can hold.
WORDS = st.text(
    st.characters(codec="utf-8") | st.sampled_from('\r\n\t .=?"\\,<>\u2028\u0085éß😀'), max_size=120
)
ASCII_WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=120)
BODIES = st.one_of(
    WORDS,
    ASCII_WORDS,
    st.lists(st.one_of(WORDS, ASCII_WORDS), max_size=30).map("\n".join),
    st.lists(ASCII_WORDS, max_size=30).map(".\r\n.".join),
    st.integers(990, 1_010).map(lambda n: "a" * n),
)


@settings(max_examples=300, deadline=None)
@given(
    subject=st.one_of(WORDS, ASCII_WORDS),
    name=st.one_of(WORDS, ASCII_WORDS),
    text=BODIES,
    html=st.none() | BODIES,
    url=st.none() | st.just("https://example.com/u/" + "x" * 200),
    reply_to=st.none() | st.just("help@bücher.example"),
)
@example(subject="", name="", text="", html="", url=None, reply_to=None)
@example(subject="a" * 999, name="b" * 999, text="é" * 999, html="\n", url=None, reply_to=None)
def test_a_filled_skeleton_means_what_build_means(subject, name, text, html, url, reply_to):
    mail = a_mail(
        subject=subject,
        from_name=name,
        text=text,
        html=html,
        list_unsubscribe_url=url,
        reply_to=reply_to,
    )
    built, filled = build(mail), skeleton_of(mail)
    slow, fast = parsed(built), parsed(filled)
    assert built.isascii()
    assert filled.isascii()
    own = ("Content-Type", "Content-Transfer-Encoding", "MIME-Version")
    assert {n: str(v) for n, v in slow.items() if n not in own} == {
        n: str(v) for n, v in fast.items() if n not in own
    }
    assert fast["MIME-Version"] == slow["MIME-Version"] == "1.0"
    leaves_of_slow = [p for p in slow.walk() if not p.is_multipart()]
    leaves_of_fast = [p for p in fast.walk() if not p.is_multipart()]
    assert [p.get_content_type() for p in leaves_of_slow] == [
        p.get_content_type() for p in leaves_of_fast
    ]
    assert [p.get_payload(decode=True) for p in leaves_of_slow] == [
        p.get_payload(decode=True) for p in leaves_of_fast
    ]
    assert not any(part.defects for part in fast.walk())
    # and neither lost anything: what was put in comes out, but for line breaks and NUL
    visible = _visible(subject)
    assert fast["Subject"] == visible
    got = text_of(leaves_of_fast[0])
    want = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    assert got == (want if want.endswith("\n") else want + "\n")
    for line in (*built.split(b"\r\n"), *filled.split(b"\r\n")):
        assert len(line) <= LINE_MAX
        assert b"\r" not in line
        assert b"\n" not in line


def _visible(text: str) -> str:
    """Any run of control characters and line separators as one space, ends stripped."""
    out: list[str] = []
    gap = False
    for char in text:
        if ord(char) < 32 or 127 <= ord(char) < 160 or char in "\u2028\u2029":
            gap = True
            continue
        if gap:
            out.append(" ")
            gap = False
        out.append(char)
    return "".join(out + [" "] * gap).strip()


def test_stuffing_is_all_that_a_built_message_needs():
    raw = build(a_mail(text=".a\n..\n.\nb\n"))
    assert stuff(raw) == to_wire(raw)


def test_the_date_is_the_messages_own_whatever_zone_it_was_given_in():
    utc = parsed(build(a_mail(date=WHEN.astimezone(UTC))))
    assert parsedate_to_datetime(utc["Date"]) == WHEN


def test_halves_of_surrogate_pairs_do_not_break_a_batch():
    skeleton = Skeleton(from_address="news@example.com")
    raw = skeleton.fill(
        to_address="a@example.com",
        message_id="<a@example.com>",
        date=WHEN,
        reference="r",
        subject="x\ud800",
        text="x\ud800",
    )
    assert parsed(raw)["Subject"] == "x?"
    assert text_of(parsed(raw)) == "x?\n"
