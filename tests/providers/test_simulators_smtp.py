"""The SMTP sink over real sockets: the protocol, every magic recipient, every switch."""

import asyncio
import base64
import inspect
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiosmtplib
import pytest
import uvloop

from sendloom.providers.simulators import Simulators, SmtpOptions
from sendloom.providers.simulators.certificates import server_context, write_self_signed
from sendloom.providers.simulators.magic import MAIL, Act, At

BODY = (
    b"From: a@example.com\r\nTo: b@example.com\r\nSubject: Hello\r\n"
    b"Message-ID: <%s@example.com>\r\nX-Sendloom-Delivery: %s\r\n\r\nHello\r\n"
)
SILENCE_S = 0.15


def a_mail(key: str = "m1") -> bytes:
    return BODY % (key.encode(), f"d-{key}".encode())


class Line:
    """A client that says exactly what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def reply(self) -> str:
        lines = []
        async with asyncio.timeout(30):
            while True:
                line = (await self.reader.readuntil(b"\r\n")).decode()[:-2]
                lines.append(line)
                if line[3:4] != "-":
                    return "\n".join(lines)

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def say(self, line: str) -> str:
        self.write(line.encode() + b"\r\n")
        return await self.reply()

    async def envelope(self, *recipients: str, sender: str = "a@example.com") -> list[str]:
        return [
            await self.say(f"MAIL FROM:<{sender}>"),
            *[await self.say(f"RCPT TO:<{recipient}>") for recipient in recipients],
        ]

    async def send(self, recipient: str, content: bytes | None = None) -> str:
        """The last reply."""
        _, answer = await self.envelope(recipient)
        if not answer.startswith("250"):
            return answer
        answer = await self.say("DATA")
        if not answer.startswith("354"):
            return answer
        self.write((content if content is not None else a_mail()) + b".\r\n")
        return await self.reply()

    async def ended(self) -> str:
        """How the other side ends the line: `closed` in order or `reset`; the test fails when it does not."""
        async with asyncio.timeout(30):
            try:
                rest = await self.reader.read()
            except ConnectionResetError:
                return "reset"
        assert rest == b""
        return "closed"

    async def is_silent(self) -> bool:
        try:
            async with asyncio.timeout(SILENCE_S):
                return not await self.reader.read(1)
        except TimeoutError:
            return True


@asynccontextmanager
async def connected(sims: Simulators, *, ehlo: bool = True) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", sims.smtp_port)
    line = Line(reader, writer)
    try:
        if ehlo:
            assert (await line.reply()).startswith("220 ")
            await line.say("EHLO client.example.com")
        yield line
    finally:
        writer.transport.abort()


@pytest.fixture
async def sims() -> AsyncIterator[Simulators]:
    async with Simulators() as running:
        yield running


# Magic recipients

REPLIES = {
    "reject": "550 5.1.1 ",
    "bare": "550 No such",
    "nodomain": "550 5.1.2 ",
    "badsyntax": "553 5.1.3 ",
    "moved": "550 5.1.6 ",
    "notlocal": "551 5.1.6 ",
    "nullmx": "556 5.1.10 ",
    "disabled": "550 5.2.1 ",
    "noroute": "550 5.4.4 ",
    "syntax": "501 5.5.4 ",
    "params": "555 5.5.4 ",
    "policy-rcpt": "550 5.7.1 ",
    "greylist": "450 4.7.1 ",
    "full": "452 4.2.2 ",
    "toomany": "452 4.5.3 ",
    "toomany-552": "552 5.5.3 ",
    "disagree": "450 5.1.1 ",
    "closing-rcpt": "421 4.3.2 ",
    "busy-data": "451 4.3.0 ",
    "policy": "550 5.7.1 ",
    "unauthenticated": "550 5.7.26 ",
    "content": "554 5.6.0 ",
    "refused": "554 Transaction failed",
    "toobig": "552 5.3.4 ",
    "odd5": "599 ",
    "odd4": "499 ",
    "overquota": "552 5.2.2 ",
    "storage": "452 4.3.1 ",
    "busy": "451 4.3.0 ",
    "fail": "451 4.3.0 ",
    "throttle": "454 Throttling failure: Maximum sending rate exceeded",
    "throttle-always": "454 Throttling failure: Maximum sending rate exceeded",
    "closing": "421 4.3.2 ",
    "garble": "?! 250 what",
    "slow": "250 ",
    "late": "250 ",
    "multiline": "250-2.0.0 Ok\n250-2.0.0 and well\n250 2.0.0 queued",
    "terse": "250",
    "long": "250 2.0.0 ok ok ",
    "hang-quit": "250 ",
}
NO_REPLY = {
    "drop-rcpt": "reset",
    "hang-rcpt": "silence",
    "drop-data": "reset",
    "hang-data": "silence",
    "drop-before": "reset",
    "hang": "silence",
    "drop-after": "reset",
}
STORED = {"hang", "drop-after", "garble", "slow", "late", "multiline", "terse", "long", "hang-quit"}


def test_every_magic_recipient_is_tested():
    assert REPLIES.keys() | NO_REPLY.keys() == {row.name for row in MAIL}
    assert {row.name for row in MAIL if row.stored} == STORED


@pytest.mark.parametrize("name", REPLIES)
async def test_a_magic_recipient_gets_its_reply_at_its_moment(sims, name):
    row = next(row for row in MAIL if row.name == name)
    tag = "+20ms" if row.act in (Act.WAIT, Act.WAIT_THEN_STORE) else "+anything"
    recipient = f"{name}{tag}@example.com"
    async with connected(sims) as line:
        answers = await line.envelope(recipient)
        if row.at is not At.RCPT:
            assert answers[-1].startswith("250 ")
            answers.append(await line.say("DATA"))
        if row.at not in (At.RCPT, At.DATA):
            assert answers[-1].startswith("354 ")
            line.write(a_mail() + b".\r\n")
            answers.append(await line.reply())
        assert answers[-1].startswith(REPLIES[name])
    assert sims.inbox.count("to", recipient) == (1 if name in STORED else 0)


@pytest.mark.parametrize("name", NO_REPLY)
async def test_a_magic_recipient_that_never_answers_does_so_at_its_moment(sims, name):
    row = next(row for row in MAIL if row.name == name)
    recipient = f"{name}@example.com"
    async with connected(sims) as line:
        await line.say("MAIL FROM:<a@example.com>")
        line.write(f"RCPT TO:<{recipient}>\r\n".encode())
        if row.at is not At.RCPT:
            assert (await line.reply()).startswith("250 ")
            line.write(b"DATA\r\n")
        if row.at not in (At.RCPT, At.DATA):
            assert (await line.reply()).startswith("354 ")
            line.write(a_mail() + (b".\r\n" if row.at is At.FINAL else b""))
        if NO_REPLY[name] == "reset":
            assert await line.ended() == "reset"
        else:
            if name in STORED:
                await sims.inbox.wait(1, "to", recipient)
            assert await line.is_silent()
    assert sims.inbox.count("to", recipient) == (1 if name in STORED else 0)


@pytest.mark.parametrize("name", ["busy", "throttle"])
async def test_a_busy_recipient_takes_the_same_message_the_second_time(sims, name):
    recipient = f"{name}+x@example.com"
    async with connected(sims) as line:
        assert (await line.send(recipient, a_mail("m1"))).startswith("45")
        assert (await line.send(recipient, a_mail("m2"))).startswith("45"), "another Message-ID"
        assert (await line.send(recipient, a_mail("m1"))).startswith("250 ")
        assert (await line.send(recipient, a_mail("m1"))).startswith("250 ")
        other = f"{name}+y@example.com"
        assert (await line.send(other, a_mail("m1"))).startswith("45"), "another recipient"
    assert sims.inbox.count("message_id", "<m1@example.com>") == 2


async def test_a_greylisted_recipient_is_taken_the_second_time(sims):
    async with connected(sims) as line:
        assert (await line.send("greylist+1@example.com")).startswith("450 4.7.1")
        await line.say("RSET")
        assert (await line.send("greylist+1@example.com")).startswith("250 ")
        assert (await line.send("greylist+2@example.com")).startswith("450 4.7.1")


@pytest.mark.parametrize("name", ["closing", "closing-rcpt"])
async def test_421_ends_the_line_in_order(sims, name):
    async with connected(sims) as line:
        assert (await line.send(f"{name}@example.com")).startswith("421 ")
        assert await line.ended() == "closed"


async def test_a_slow_recipient_is_stored_at_once_and_answered_after_its_seconds(sims):
    async with connected(sims) as line:
        await line.envelope("slow+1.2s+tag@example.com")
        await line.say("DATA")
        began = time.monotonic()
        line.write(a_mail() + b".\r\n")
        answer = asyncio.create_task(line.reply())
        assert await sims.inbox.wait(1) == 1
        assert not answer.done()
        assert (await answer).startswith("250 ")
        assert time.monotonic() - began >= 1.2


async def test_c90_a_late_recipient_stores_even_when_the_client_has_left(sims):
    async with connected(sims) as line:
        await line.envelope("late+700ms@example.com")
        await line.say("DATA")
        line.write(a_mail() + b".\r\n")
        await line.writer.drain()
        assert await line.is_silent()
        assert sims.inbox.count() == 0
    assert await sims.inbox.wait(1) == 1


async def test_c14_a_session_that_hangs_on_quit_had_already_answered(sims):
    async with connected(sims) as line:
        assert (await line.send("hang-quit@example.com")).startswith("250 ")
        line.write(b"QUIT\r\n")
        assert await line.is_silent()
    assert sims.inbox.count("to", "hang-quit@example.com") == 1


async def test_an_address_that_only_begins_like_a_magic_one_is_ordinary(sims):
    async with connected(sims) as line:
        assert (await line.send("rejected@example.com")).startswith("250 ")
        assert (await line.send("a+reject@example.com")).startswith("250 ")
        assert (await line.send("REJECT@EXAMPLE.COM")).startswith("550 ")


async def test_one_refused_recipient_does_not_hold_up_the_other(sims):
    async with connected(sims) as line:
        answers = await line.envelope("b@example.com", "reject@example.com")
        assert [a[:3] for a in answers] == ["250", "250", "550"]
        await line.say("DATA")
        line.write(a_mail() + b".\r\n")
        assert (await line.reply()).startswith("250 ")
    assert [a.to for a in sims.inbox.messages()] == ["b@example.com"]


# The protocol


async def test_what_arrives_is_kept_exactly_with_its_ids(sims):
    content = (
        b"message-id:\r\n <folded@example.com>\r\nX-SENDLOOM-DELIVERY:  d-77 \r\n"
        b"Subject: x\r\n\r\nMessage-ID: <not-this@example.com>\r\n"
    )
    async with connected(sims) as line:
        await line.send("b@example.com", content)
    (arrival,) = sims.inbox.messages()
    assert arrival.content == content
    assert arrival.message_id == "<folded@example.com>"
    assert arrival.reference == "d-77"
    assert (arrival.to, arrival.sender) == ("b@example.com", "a@example.com")
    assert abs(time.time_ns() - arrival.received_ns) < 10e9
    assert 0 < time.monotonic_ns() - arrival.monotonic_ns < 10e9


@pytest.mark.parametrize(
    ("wire", "content"),
    [
        (b"..\r\n", b".\r\n"),
        (b"a\r\n..b\r\n...\r\n", b"a\r\n.b\r\n..\r\n"),
        (b"a.\r\nb\r\n", b"a.\r\nb\r\n"),
        (b"", b""),
    ],
    ids=["leading dot", "inner dots", "dot at end of line", "empty"],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
async def test_dots_are_unstuffed_however_the_bytes_are_cut(sims, wire, content, at_once):
    async with connected(sims) as line:
        await line.envelope("b@example.com")
        await line.say("DATA")
        stream = wire + b".\r\n"
        for piece in [stream] if at_once else [bytes([b]) for b in stream]:
            line.write(piece)
            await line.writer.drain()
            await asyncio.sleep(0)
        assert (await line.reply()).startswith("250 ")
        assert (await line.say("NOOP")).startswith("250 ")
    assert sims.inbox.messages()[0].content == content


async def test_pipelined_commands_and_messages_are_worked_in_order(sims):
    burst = b""
    for i in range(50):
        burst += b"MAIL FROM:<a@example.com>\r\nRCPT TO:<%d@example.com>\r\nDATA\r\n" % i
        burst += a_mail(f"p{i}") + b".\r\n"
    async with connected(sims) as line:
        line.write(burst + b"QUIT\r\n")
        codes = [(await line.reply())[:3] for _ in range(201)]
        assert codes == ["250", "250", "354", "250"] * 50 + ["221"]
        assert await line.ended() == "closed"
    assert [a.to for a in sims.inbox.messages()] == [
        f"{i}@example.com" for i in reversed(range(50))
    ]


async def test_a_held_back_reply_holds_back_what_is_pipelined_behind_it(sims):
    async with connected(sims) as line:
        await line.envelope("slow+700ms@example.com")
        await line.say("DATA")
        line.write(a_mail() + b".\r\nNOOP\r\nMAIL FROM:<a@example.com>\r\n")
        assert await line.is_silent()
        answers = [await line.reply() for _ in range(3)]
    assert answers[0].startswith("250 2.0.0 Ok: queued")
    assert answers[2] == "250 2.1.0 Sender ok"


async def test_data_after_only_refused_recipients_is_refused(sims):
    async with connected(sims) as line:
        line.write(b"MAIL FROM:<a@example.com>\r\nRCPT TO:<reject@example.com>\r\nDATA\r\nRSET\r\n")
        assert [(await line.reply())[:3] for _ in range(4)] == ["250", "550", "554", "250"]


async def test_ehlo_offers_what_is_configured_and_nothing_else():
    async with Simulators(smtp=SmtpOptions(size=1000, credentials={"u": "p"})) as sims:
        async with connected(sims, ehlo=False) as line:
            await line.reply()
            assert (await line.say("EHLO c.example.com")).split("\n") == [
                "250-sink.example.com",
                "250-PIPELINING",
                "250-SIZE 1000",
                "250-8BITMIME",
                "250-SMTPUTF8",
                "250-ENHANCEDSTATUSCODES",
                "250 AUTH PLAIN LOGIN",
            ]
    bare = SmtpOptions(
        pipelining=False,
        size=None,
        eight_bit_mime=False,
        smtputf8=False,
        enhanced_status_codes=False,
    )
    async with Simulators(smtp=bare) as sims:
        async with connected(sims, ehlo=False) as line:
            await line.reply()
            assert await line.say("EHLO c.example.com") == "250 sink.example.com"
            assert await line.say("MAIL FROM:<a@example.com>") == "250 Sender ok"
            assert await line.say("RCPT TO:<reject@example.com>") == "550 No such user here"


async def test_eight_bit_mail_arrives_unchanged_where_it_is_offered(sims):
    content = "Subject: x\r\n\r\nPrüfung – Code 😀\r\n".encode()
    async with connected(sims) as line:
        assert (await line.say("MAIL FROM:<a@example.com> BODY=8BITMIME SIZE=60")).startswith("250")
        await line.say("RCPT TO:<b@example.com>")
        await line.say("DATA")
        line.write(content + b".\r\n")
        assert (await line.reply()).startswith("250 ")
    assert sims.inbox.messages()[0].content == content
    assert sims.inbox.messages()[0].envelope["options"] == "BODY=8BITMIME SIZE=60"


async def test_c77_eight_bit_is_refused_where_it_is_not_offered():
    async with Simulators(smtp=SmtpOptions(eight_bit_mime=False, smtputf8=False)) as sims:
        async with connected(sims) as line:
            assert (await line.send("b@example.com", "Subject: ü\r\n\r\n".encode())).startswith(
                "554 5.6.1"
            )
            assert (await line.say("MAIL FROM:<a@example.com> BODY=8BITMIME")).startswith("555 ")
            assert (await line.say("MAIL FROM:<a@example.com> SMTPUTF8")).startswith("555 ")
            assert (await line.say("MAIL FROM:<zoë@example.com>")).startswith("553 5.6.7")
        assert sims.inbox.count() == 0


async def test_a_non_ascii_address_needs_smtputf8_to_be_asked_for(sims):
    async with connected(sims) as line:
        await line.say("MAIL FROM:<a@example.com>")
        assert (await line.say("RCPT TO:<zoë@example.com>")).startswith("553 5.6.7")
        await line.say("RSET")
        await line.say("MAIL FROM:<a@example.com> SMTPUTF8")
        assert (await line.say("RCPT TO:<zoë@example.com>")).startswith("250 ")


async def test_a_message_over_the_size_limit_is_refused_before_and_after_the_transfer():
    async with Simulators(smtp=SmtpOptions(size=10_000)) as sims:
        async with connected(sims) as line:
            assert (await line.say("MAIL FROM:<a@example.com> SIZE=10001")).startswith("552 5.3.4")
            assert (await line.send("b@example.com", b"x" * 78 + b"\r\n" * 5000)).startswith(
                "552 5.3.4"
            )
            huge = (b"y" * 78 + b"\r\n") * 20_000
            assert (await line.send("b@example.com", huge)).startswith("552 5.3.4")
            assert (await line.send("b@example.com")).startswith("250 ")
        assert sims.inbox.count() == 1


@pytest.mark.parametrize(
    "content", [b"a\nb\r\n", b"a\rb\r\n", b"a\n.\nb\r\n", b"a\r\n.\nMAIL FROM:<x@example.com>\r\n"]
)
async def test_bare_line_breaks_are_refused_and_end_no_message(sims, content):
    async with connected(sims) as line:
        assert (await line.send("b@example.com", content)).startswith("550 5.5.2")
        assert (await line.say("NOOP")).startswith("250 ")
    assert sims.inbox.count() == 0


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        (["MAIL FROM:<a@example.com>", "MAIL FROM:<a@example.com>"], "503"),
        (["RCPT TO:<a@example.com>"], "503"),
        (["DATA"], "503"),
        (["MAIL FROM:<a@example.com>", "DATA"], "554"),
        (["MAIL FROM:a@example.com"], "501"),
        (["MAIL FROM:<a@example.com> FOO=1"], "555"),
        (["MAIL FROM:<a@example.com>", "RCPT TO:<>"], "501"),
        (["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com> NOTIFY=NEVER"], "555"),
        (["MAIL FROM:<>", "RCPT TO:<b@example.com>"], "250"),
        (["mail from: <a@example.com>", "rcpt to: <b@example.com>", "data"], "354"),
        (["EHLO"], "501"),
        (["HELO c.example.com"], "250"),
        (["VRFY b"], "252"),
        (["BDAT 3 LAST"], "500"),
        (["AUTH PLAIN AAAA"], "502"),
        (["STARTTLS"], "502"),
        (["x" * 5000], "500"),
        (["NO\nOP"], "500"),
    ],
)
async def test_commands_out_of_order_or_malformed_get_their_code(sims, commands, code):
    async with connected(sims) as line:
        answers = [await line.say(command) for command in commands]
    assert answers[-1].startswith(code)


async def test_mail_before_ehlo_is_refused(sims):
    async with connected(sims, ehlo=False) as line:
        await line.reply()
        assert (await line.say("MAIL FROM:<a@example.com>")).startswith("503 ")


async def test_the_hundred_and_first_recipient_is_too_many(sims):
    async with connected(sims) as line:
        answers = await line.envelope(*[f"{i}@example.com" for i in range(101)])
        assert answers[100].startswith("250 ")
        assert answers[101].startswith("452 4.5.3")


async def test_a_line_that_never_ends_is_cut_off(sims):
    async with connected(sims) as line:
        line.write(b"x" * 10_000)
        assert (await line.reply()).startswith("500 5.5.2")
        assert await line.ended() == "closed"


# AUTH and STARTTLS

LOGIN = SmtpOptions(credentials={"user": "pässword"}, auth_required=True)


def plain(user: str, password: str) -> str:
    return base64.b64encode(f"\0{user}\0{password}".encode()).decode()


async def test_nothing_is_taken_without_a_login_where_one_is_required():
    async with Simulators(smtp=LOGIN) as sims:
        async with connected(sims) as line:
            assert (await line.say("MAIL FROM:<a@example.com>")).startswith("530 5.7.0")
            assert (await line.say("AUTH PLAIN " + plain("user", "wrong"))).startswith("535 5.7.8")
            assert (await line.say("AUTH PLAIN " + plain("nobody", "pässword"))).startswith(
                "535 5.7.8"
            )
            assert (await line.say("AUTH PLAIN " + plain("user", "pässword"))).startswith(
                "235 2.7.0"
            )
            assert (await line.say("AUTH PLAIN " + plain("user", "pässword"))).startswith("503 ")
            assert (await line.send("b@example.com")).startswith("250 ")
        assert sims.inbox.messages()[0].envelope["user"] == "user"
        assert (sims.smtp.stats.auth_attempts, sims.smtp.stats.auth_successes) == (3, 1)


async def test_login_in_its_other_forms():
    name, password = (base64.b64encode(t.encode()).decode() for t in ("user", "pässword"))
    async with Simulators(smtp=LOGIN) as sims:
        async with connected(sims) as line:
            assert await line.say("AUTH LOGIN") == "334 VXNlcm5hbWU6"
            assert await line.say(name) == "334 UGFzc3dvcmQ6"
            assert (await line.say(password)).startswith("235 ")
        async with connected(sims) as line:
            assert await line.say("AUTH LOGIN " + name) == "334 UGFzc3dvcmQ6"
            assert (await line.say("*")).startswith("501 ")
            assert await line.say("AUTH PLAIN") == "334 "
            assert (await line.say("%%%")).startswith("501 ")
            assert (await line.say("AUTH CRAM-MD5")).startswith("504 ")
            assert await line.say("AUTH PLAIN") == "334 "
            assert (await line.say(plain("user", "pässword"))).startswith("235 ")


async def test_c69_a_login_can_fail_for_now_whatever_the_password():
    async with Simulators(smtp=LOGIN) as sims:
        sims.behaviour.mail.auth_failure = True
        async with connected(sims) as line:
            answer = await line.say("AUTH PLAIN " + plain("user", "pässword"))
            assert answer == "454 4.7.0 Temporary authentication failure"
        assert sims.smtp.stats.auth_attempts == 1


async def test_mail_goes_over_starttls_with_a_login_by_an_independent_client(tmp_path):
    certificate, key = write_self_signed(tmp_path)
    options = SmtpOptions(
        tls=server_context(certificate, key),
        credentials={"user": "secret"},
        auth_required=True,
        auth_needs_tls=True,
    )
    async with Simulators(smtp=options) as sims:
        async with connected(sims, ehlo=False) as line:
            await line.reply()
            offered = await line.say("EHLO c.example.com")
            assert "STARTTLS" in offered
            assert "AUTH" not in offered
            assert (await line.say("AUTH PLAIN " + plain("user", "secret"))).startswith("538 ")
        client = aiosmtplib.SMTP(
            hostname="127.0.0.1",
            port=sims.smtp_port,
            start_tls=True,
            tls_context=ssl.create_default_context(cafile=str(certificate)),
            username="user",
            password="secret",
        )
        async with client:
            for key_ in ("t1", "t2"):
                await client.sendmail("a@example.com", ["b@example.com"], a_mail(key_))
        kept = sims.inbox.messages()
        assert [a.reference for a in kept] == ["d-t2", "d-t1"]
        assert kept[0].envelope == {
            "mail_from": "a@example.com",
            "options": f"size={len(a_mail())}",
            "tls": "yes",
            "user": "user",
        }
        assert sims.smtp.stats.tls_sessions == 1


async def test_what_is_pipelined_behind_starttls_in_clear_is_never_obeyed(tmp_path):
    certificate, key = write_self_signed(tmp_path)
    async with Simulators(smtp=SmtpOptions(tls=server_context(certificate, key))) as sims:
        async with connected(sims) as line:
            line.write(b"STARTTLS\r\nNOOP\r\nEHLO evil.example.com\r\n")
            assert (await line.reply()).startswith("220 ")
            assert await line.is_silent()
            await line.writer.start_tls(
                ssl.create_default_context(cafile=str(certificate)), server_hostname="localhost"
            )
            assert (await line.say("MAIL FROM:<a@example.com>")).startswith("503 ")


async def test_starttls_can_be_refused_or_injected_into(tmp_path):
    certificate, key = write_self_signed(tmp_path)
    async with Simulators(smtp=SmtpOptions(tls=server_context(certificate, key))) as sims:
        sims.behaviour.mail.starttls = "refuse"
        async with connected(sims) as line:
            assert (await line.say("STARTTLS")).startswith("454 4.7.0")
        sims.behaviour.mail.starttls = "inject"
        async with connected(sims) as line:
            assert (await line.say("STARTTLS")).startswith("220 ")
            assert (await line.reply()).startswith("250 2.0.0 injected")


async def test_a_client_that_gives_up_the_handshake_leaves_nothing_behind(tmp_path):
    certificate, key = write_self_signed(tmp_path)
    async with Simulators(smtp=SmtpOptions(tls=server_context(certificate, key))) as sims:
        async with connected(sims) as line:
            await line.say("STARTTLS")
            line.write(b"this is not a ClientHello\r\n")
            await line.ended()
        async with connected(sims) as line:
            assert (await line.say("NOOP")).startswith("250 ")


# Switches


async def test_c50_the_line_closes_after_so_many_messages_and_a_new_one_goes_on(sims):
    sims.behaviour.mail.close_after = 3
    sent = lines = 0
    while sent < 10:
        lines += 1
        async with connected(sims) as line:
            while sent < 10:
                answer = await line.say("MAIL FROM:<a@example.com>")
                if answer.startswith("421 "):
                    assert await line.ended() == "closed"
                    break
                await line.say(f"RCPT TO:<{sent}@example.com>")
                await line.say("DATA")
                line.write(a_mail(f"c{sent}") + b".\r\n")
                assert (await line.reply()).startswith("250 ")
                sent += 1
    assert lines == 4
    assert sims.inbox.count() == 10
    assert sims.smtp.stats.closed_by_limit == 3


async def test_c17_only_so_many_messages_are_taken_in_any_second(sims):
    sims.behaviour.mail.throttle_per_s = 14
    refused = taken = 0
    async with connected(sims) as line, asyncio.timeout(60):
        while taken < 20:
            answer = await line.send("b@example.com", a_mail(f"r{taken}"))
            if answer.startswith("250 "):
                taken += 1
            else:
                assert answer == "454 Throttling failure: Maximum sending rate exceeded"
                refused += 1
    assert refused > 0
    assert (sims.inbox.count(), sims.smtp.stats.throttled) == (20, refused)
    times = sorted(a.monotonic_ns for a in sims.inbox.messages())
    assert all(later - first > 0.95e9 for first, later in zip(times, times[14:], strict=False))


@pytest.mark.parametrize("stage", ["mail", "body", "reply"])
async def test_c21_the_line_drops_every_so_many_messages_at_the_chosen_moment(sims, stage):
    sims.behaviour.change({"mail": {"drop_every": 5, "drop_at": stage}})
    drops = 0
    todo = list(range(12))
    while todo:
        async with connected(sims) as line:
            try:
                while todo:
                    await line.envelope(f"{todo[0]}@example.com")
                    await line.say("DATA")
                    line.write(a_mail(f"k{todo[0]}") + b".\r\n")
                    assert (await line.reply()).startswith("250 ")
                    todo.pop(0)
            except (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError):
                drops += 1
    assert drops == sims.smtp.stats.dropped == 2
    assert sims.inbox.count() == (14 if stage == "reply" else 12)
    assert sims.inbox.counts().duplicates == (2 if stage == "reply" else 0)


async def test_replies_already_given_arrive_before_the_line_drops(sims):
    sims.behaviour.mail.drop_every = 20
    burst = b"".join(
        b"MAIL FROM:<a@example.com>\r\nRCPT TO:<%d@example.com>\r\nDATA\r\n%s.\r\n"
        % (i, a_mail(f"q{i}"))
        for i in range(40)
    )
    async with connected(sims) as line:
        line.write(burst)
        codes = [(await line.reply())[:3] for _ in range(80)]
        assert codes == ["250", "250", "354", "250"] * 20
        assert await line.ended() == "closed"


async def test_the_whole_relay_can_hang_after_taking_messages_and_recover(sims):
    sims.behaviour.mail.hang = "reply"
    async with connected(sims) as line:
        await line.envelope("b@example.com")
        await line.say("DATA")
        line.write(a_mail() + b".\r\n")
        assert await sims.inbox.wait(1) == 1
        assert await line.is_silent()
        sims.behaviour.reset()
        assert await line.is_silent(), "what hangs stays hung"
    async with connected(sims) as line:
        assert (await line.send("b@example.com")).startswith("250 ")


async def test_the_whole_relay_can_hang_from_the_greeting_or_refuse_service(sims):
    sims.behaviour.mail.hang = "greeting"
    async with connected(sims, ehlo=False) as line:
        line.write(b"EHLO c.example.com\r\n")
        assert await line.is_silent()
    sims.behaviour.reset()
    sims.behaviour.mail.greeting = "554 5.3.2 No service here"
    async with connected(sims, ehlo=False) as line:
        assert await line.reply() == "554 5.3.2 No service here"
        assert await line.ended() == "closed"


async def test_the_whole_relay_can_be_slow(sims):
    sims.behaviour.mail.slow_s = 0.2
    async with connected(sims) as line:
        began = time.monotonic()
        assert (await line.send("b@example.com")).startswith("250 ")
        assert time.monotonic() - began >= 0.2


async def test_stopping_ends_every_session_hung_or_not(sims):
    async with Simulators() as other:
        async with connected(other) as idle, connected(other) as hung:
            await hung.envelope("hang@example.com")
            await hung.say("DATA")
            hung.write(a_mail() + b".\r\n")
            await other.inbox.wait(1)
            began = time.monotonic()
            await other.__aexit__(None, None, None)
            assert time.monotonic() - began < 20
            assert await hung.ended() in ("closed", "reset")
            assert await idle.ended() in ("closed", "reset")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", other.smtp_port)


# The process runs on uvloop, whose transports are not asyncio's

ON_UVLOOP = [
    *((test_a_magic_recipient_that_never_answers_does_so_at_its_moment, name) for name in NO_REPLY),
    *(
        (test_c21_the_line_drops_every_so_many_messages_at_the_chosen_moment, at)
        for at in ("mail", "body", "reply")
    ),
    (test_421_ends_the_line_in_order, "closing"),
    (test_c90_a_late_recipient_stores_even_when_the_client_has_left,),
    (test_pipelined_commands_and_messages_are_worked_in_order,),
    (test_replies_already_given_arrive_before_the_line_drops,),
    (test_a_message_over_the_size_limit_is_refused_before_and_after_the_transfer,),
    (test_stopping_ends_every_session_hung_or_not,),
    (test_mail_goes_over_starttls_with_a_login_by_an_independent_client,),
    (test_what_is_pipelined_behind_starttls_in_clear_is_never_obeyed,),
    (test_a_client_that_gives_up_the_handshake_leaves_nothing_behind,),
]


@pytest.mark.parametrize(
    "check", ON_UVLOOP, ids=lambda c: "-".join(getattr(p, "__name__", p) for p in c)
)
def test_the_same_holds_on_uvloop(check, tmp_path):
    test, *values = check
    wants = inspect.signature(test).parameters

    async def run() -> None:
        async with Simulators() as sims:
            offered = {"sims": sims, "tmp_path": tmp_path}
            await test(*(offered[name] if name in offered else values.pop(0) for name in wants))

    uvloop.run(run())
