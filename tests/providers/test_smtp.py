"""Both SMTP clients against scripted relays: what each silence, refusal and hang-up comes to."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from schemas.kinds import FaultScope, MessageClass
from schemas.messages import OutboundEmail, OutboundSms
from schemas.outcomes import Accepted, CallOutcome, Failed, Rejected, Unknown
from sendloom.domain import budgets
from sendloom.errors import ConfigurationError
from sendloom.ports import BulkMailer, Provider, WireMail
from sendloom.providers.mime import Unmailable, build, envelope, stuff, to_wire
from sendloom.providers.smtp import SmtpProvider
from sendloom.providers.smtp_pipeline import PipelineMailer
from sendloom.providers.smtp_session import (
    Extensions,
    LoginGate,
    SmtpAccount,
    SmtpTimeouts,
    unmailable,
)
from tests.providers.scripted import (
    EXTENSIONS,
    Certificates,
    Clock,
    Peer,
    Relay,
    certificates,
    login_of,
    relay_that,
    serving,
    unused_port,
)

SECURITY, TRANSACTIONAL, MARKETING = (
    MessageClass.SECURITY,
    MessageClass.TRANSACTIONAL,
    MessageClass.MARKETING,
)
WHEN = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)
QUICK = SmtpTimeouts(connect=10, command=0.5, final_reply=dict.fromkeys(MessageClass, 0.5))
UNWRITABLE = SmtpTimeouts(connect=3, command=0.4, final_reply=dict.fromkeys(MessageClass, 0.4))
UNGREETED = SmtpTimeouts(connect=0.4, command=30)
UNANSWERED = SmtpTimeouts(connect=30, command=30, final_reply=dict.fromkeys(MessageClass, 0.4))
PATIENT = SmtpTimeouts(connect=30, command=30, final_reply=dict.fromkeys(MessageClass, 30.0))
"""For scripts in which nothing may time out, however busy the machine."""
HUGE = ("x" * 900 + "\n") * 20_000
"""More than all buffers between two sockets hold."""


def a_mail(n: int = 0, **changes: object) -> OutboundEmail:
    fields: dict[str, object] = {
        "reference": f"dlv_{n}",
        "message_id": f"<{n}@example.com>",
        "date": WHEN,
        "from_address": "news@example.com",
        "to_address": f"alex{n}@example.com",
        "subject": f"Hello {n}",
        "text": f"Hello {n}.\n.dot\n",
        "envelope_from": "bounces@example.com",
    }
    return OutboundEmail.model_validate(fields | changes)


@dataclass
class Client:
    """One of the two, behind one face."""

    kind: str
    account: SmtpAccount
    timeouts: SmtpTimeouts
    connections: int
    gate: LoginGate = field(default_factory=LoginGate)

    def __post_init__(self) -> None:
        self.provider: Provider | None = None
        self.mailer: BulkMailer | None = None
        if self.kind == "single":
            self.provider = SmtpProvider(
                self.account,
                pool_size=self.connections,
                timeouts=self.timeouts,
                login_gate=self.gate,
            )
        else:
            self.mailer = PipelineMailer(
                self.account,
                connections=self.connections,
                timeouts=self.timeouts,
                login_gate=self.gate,
            )

    async def send(
        self, mail: OutboundEmail, message_class: MessageClass = TRANSACTIONAL
    ) -> CallOutcome:
        if self.provider is not None:
            return await self.provider.send(mail, message_class)
        [outcome] = await self.send_all([mail], message_class)
        return outcome

    async def send_all(
        self, mails: Sequence[OutboundEmail], message_class: MessageClass = TRANSACTIONAL
    ) -> list[CallOutcome]:
        if self.provider is not None:
            return list(
                await asyncio.gather(*(self.provider.send(m, message_class) for m in mails))
            )
        assert self.mailer is not None
        wire: list[WireMail] = []
        for mail in mails:
            try:
                sender, recipient = envelope(mail)
                wire.append(WireMail(mail.reference, sender, recipient, stuff(build(mail))))
            except Unmailable as refused:
                return [unmailable(refused)]
        return await self.mailer.send_batch(wire, message_class, may_call=lambda: True)

    async def close(self) -> None:
        await (self.provider or self.mailer).close()  # type: ignore[union-attr]


@pytest.fixture(params=["single", "pipeline"])
async def connect(request):
    """Makes a client for a relay; closed at the end."""
    made: list[Client] = []

    def make(
        relay: Relay | int,
        *,
        timeouts: SmtpTimeouts = PATIENT,
        connections: int = 2,
        gate: LoginGate | None = None,
        **account: Any,
    ) -> Client:
        port = relay if isinstance(relay, int) else relay.port
        fields: dict[str, Any] = {"host": "127.0.0.1", "port": port} | account
        client = Client(
            request.param, SmtpAccount(**fields), timeouts, connections, gate or LoginGate()
        )
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()


Connect = Callable[..., Client]


@pytest.fixture(scope="session")
def tls(tmp_path_factory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


# --- the plain way -----------------------------------------------------------------------------------------------------


async def test_a_mail_arrives_whole_and_is_accepted_under_its_queue_id(connect: Connect):
    async with relay_that() as relay:
        outcome = await connect(relay).send(a_mail())
    assert outcome == Accepted(provider="smtp", provider_message_id="4F2A")
    [got] = relay.messages
    assert (got.mail, got.rcpt) == ("bounces@example.com", "alex0@example.com")
    assert got.data == build(a_mail())


async def test_a_relay_that_names_no_queue_id_leaves_our_own(connect: Connect):
    async with relay_that({"DOT": "250 fine"}) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Accepted)
    assert outcome.provider_message_id in ("<0@example.com>", "dlv_0")


async def test_one_connection_carries_many_mails(connect: Connect):
    async with relay_that() as relay:
        client = connect(relay, connections=1)
        outcomes = await client.send_all([a_mail(n) for n in range(20)])
        assert all(isinstance(o, Accepted) for o in outcomes)
        await client.send(a_mail(20))
    assert relay.connections == 1
    assert {m.rcpt for m in relay.messages} == {f"alex{n}@example.com" for n in range(21)}


async def test_no_more_connections_than_allowed(connect: Connect):
    most = 0

    async def slowly(peer: Peer) -> str:
        nonlocal most
        most = max(most, peer.relay.open_now)
        await asyncio.sleep(0)
        return "250 ok"

    async with relay_that({"RCPT": slowly}) as relay:
        await connect(relay, connections=3).send_all([a_mail(n) for n in range(40)])
    assert len(relay.messages) == 40
    assert most <= 3


async def test_c77_a_relay_without_8bitmime_and_smtputf8_gets_pure_ascii(connect: Connect):
    mail = a_mail(subject="Prüfung – Code", from_name="Zoë, Support", text="Grüße\n")
    async with relay_that(extensions=["SIZE"]) as relay:
        outcome = await connect(relay).send(mail)
    assert isinstance(outcome, Accepted)
    [got] = relay.messages
    assert got.data.isascii()
    assert message_from_bytes(got.data, policy=default)["Subject"] == "Prüfung – Code"


async def test_a_local_part_outside_ascii_is_refused_before_the_relay_is_asked(connect: Connect):
    async with relay_that() as relay:
        outcome = await connect(relay).send(a_mail(to_address="jörg@example.com"))
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.scope, outcome.suppress) == (
        "5.6.7",
        FaultScope.RECIPIENT,
        False,
    )
    assert relay.connections == 0


async def test_c12_an_envelope_that_would_break_out_is_refused(connect: Connect):
    async with relay_that() as relay:
        client = connect(relay)
        for address in ("a@example.com>\r\nRCPT TO:<b@example.com", "a b@example.com"):
            assert isinstance(await client.send(a_mail(to_address=address)), Rejected)
    assert relay.connections == 0


async def test_a_relay_that_knows_no_ehlo_is_greeted_with_helo(connect: Connect):
    async def script(peer: Peer) -> None:
        await peer.say("220 old.example")
        assert (await peer.line()).startswith("EHLO ")
        await peer.say("502 what?")
        assert (await peer.line()).startswith("HELO ")
        await peer.say("250 hello")
        await peer.serve()

    async with serving(script) as relay:
        outcomes = await connect(relay, connections=1).send_all([a_mail(1), a_mail(2)])
    assert all(isinstance(o, Accepted) for o in outcomes)
    assert relay.verbs("MAIL") == ["MAIL FROM:<bounces@example.com>"] * 2


async def test_without_pipelining_each_command_waits_for_its_reply(connect: Connect):
    """The server reads a command only when nothing else is buffered."""

    async def script(peer: Peer) -> None:
        async def alone(verb: str) -> None:
            line = await peer.line()
            assert line.upper().startswith(verb)
            assert not peer.reader._buffer  # type: ignore[attr-defined]

        await peer.greet(["SIZE 1000000"])
        for _ in range(3):
            await alone("MAIL")
            await peer.say("250 ok")
            await alone("RCPT")
            await peer.say("250 ok")
            await alone("DATA")
            await peer.say("354 go on")
            await peer.take(await peer.body())
            assert not peer.reader._buffer  # type: ignore[attr-defined]
            await peer.say("250 ok")
        await peer.gone()

    async with serving(script) as relay:
        outcomes = await connect(relay, connections=1).send_all([a_mail(n) for n in range(3)])
    assert all(isinstance(o, Accepted) for o in outcomes)
    assert len(relay.messages) == 3


async def test_size_is_said_and_a_mail_too_big_is_not_tried(connect: Connect):
    async with relay_that(extensions=["PIPELINING", "SIZE 2000"]) as relay:
        client = connect(relay, connections=1)
        small, big = await client.send_all([a_mail(1), a_mail(2, text="x" * 5_000)])
    assert isinstance(small, Accepted)
    assert isinstance(big, Rejected)
    assert (big.code, big.scope) == ("5.3.4", FaultScope.MESSAGE)
    [command] = relay.verbs("MAIL")
    assert command == f"MAIL FROM:<bounces@example.com> SIZE={len(stuff(build(a_mail(1))))}"


@pytest.mark.parametrize("code", [455, 555])
async def test_a_refused_parameter_is_left_out_once(connect: Connect, code):
    def mail(peer: Peer) -> str:
        return "250 ok" if "SIZE" not in peer.relay.commands[-1] else f"{code} parameters?"

    async with relay_that({"MAIL": mail}) as relay:
        outcome = await connect(relay, connections=1).send(a_mail())
    assert isinstance(outcome, Accepted)
    assert len(relay.verbs("MAIL")) == 2


async def test_a_parameter_refused_twice_is_a_rejection(connect: Connect):
    async with relay_that({"MAIL": "555 parameters?"}) as relay:
        outcome = await connect(relay, connections=1).send(a_mail())
    assert isinstance(outcome, Rejected)
    assert len(relay.verbs("MAIL")) == 2


# --- the scripts of the protocol notes ---------------------------------------------------------------------------------


async def test_script_1_a_reset_right_after_the_dot_is_unknown(connect: Connect):
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.serve({"DOT": lambda p: p.reset()})

    async with serving(script) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Unknown)
    assert outcome.code == "connection_lost"


async def test_script_2_a_reset_before_the_dot_is_failed(connect: Connect):
    """The body is larger than all buffers on the way, so the dot cannot have left."""

    async def data(peer: Peer) -> None:
        await peer.say("354 go on")
        await peer.reader.read(10_000)
        peer.reset()

    async with relay_that({"DATA": data}, extensions=["PIPELINING"]) as relay:
        outcome = await connect(relay).send(a_mail(text=HUGE))
    assert isinstance(outcome, Failed)
    assert (outcome.scope, outcome.code) == (FaultScope.PROVIDER, "connection_lost")
    assert relay.messages == []


async def test_script_3_each_recipient_has_an_answer_of_its_own(connect: Connect):
    def rcpt(peer: Peer) -> str:
        return "550 5.1.1 no such user" if "alex2@" in peer.rcpt else "250 ok"

    async with relay_that({"RCPT": rcpt}) as relay:
        client = connect(relay, connections=1)
        one, two, three = await client.send_all([a_mail(1), a_mail(2), a_mail(3)])
    assert isinstance(one, Accepted)
    assert isinstance(three, Accepted)
    assert isinstance(two, Rejected)
    assert (two.code, two.scope, two.suppress) == ("550 5.1.1", FaultScope.RECIPIENT, True)
    assert [m.rcpt for m in relay.messages] == ["alex1@example.com", "alex3@example.com"]
    assert relay.connections == 1


async def test_script_4_421_in_reply_to_the_dot_is_failed(connect: Connect):
    async with relay_that({"DOT": "421 4.3.0 closing"}) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Failed)
    assert outcome.code == "421 4.3.0"


async def test_script_5_multi_line_and_textless_replies_are_understood(connect: Connect):
    replies = {
        "MAIL": "250-first\n250-\n250 last",
        "RCPT": "250",
        "DATA": "354-go\n354 on",
        "DOT": "250-a\n250",
    }
    async with relay_that(replies) as relay:  # type: ignore[arg-type]
        outcomes = await connect(relay, connections=1).send_all([a_mail(1), a_mail(2)])
    assert all(isinstance(o, Accepted) for o in outcomes)
    assert len(relay.messages) == 2


async def test_script_6_replies_longer_than_512_octets_are_understood(connect: Connect):
    async with relay_that({"MAIL": "250 " + "x" * 3_000, "RCPT": "550 5.1.1 " + "y" * 3_000}) as r:
        outcome = await connect(r).send(a_mail())
    assert isinstance(outcome, Rejected)
    assert outcome.code == "550 5.1.1"


async def test_replies_cut_into_single_bytes_are_understood(connect: Connect):
    async def drip(peer: Peer, text: str) -> None:
        for byte in text.encode():
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)

    async def mail(peer: Peer) -> None:
        await drip(peer, "250-one\r\n250 two\r\n")

    async with relay_that({"MAIL": mail}) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Accepted)


async def test_script_7_a_policy_refusal_after_the_dot_leaves_the_address_alone(connect: Connect):
    async with relay_that({"DOT": "550 5.7.26 unauthenticated"}) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Rejected)
    assert (outcome.scope, outcome.suppress) == (FaultScope.MESSAGE, False)


@pytest.mark.parametrize(
    ("message_class", "kind"),
    [(TRANSACTIONAL, Accepted), (MARKETING, Accepted), (SECURITY, Unknown)],
)
async def test_script_8_the_final_reply_is_awaited_as_long_as_the_class_says(
    connect: Connect, message_class, kind
):
    """70 s after the dot: the usual library default of 60 s would make a duplicate (C14)."""
    clock = Clock()

    async def dot(peer: Peer) -> str:
        await clock.skip(70)
        return "250 late, but taken"

    async with relay_that({"DOT": dot}) as relay:
        outcome = await connect(relay, timeouts=SmtpTimeouts()).send(a_mail(), message_class)
    assert isinstance(outcome, kind)


async def test_script_9_plaintext_behind_the_starttls_reply_ends_the_session(
    connect: Connect, tls: Certificates
):
    async def script(peer: Peer) -> None:
        await peer.greet(["STARTTLS"])
        await peer.line()
        await peer.say("220 go ahead", "250 injected")
        await peer.gone()

    async with serving(script) as relay:
        client = connect(relay, tls="starttls", ca_file=tls.ca_file)
        outcome = await client.send(a_mail())
    assert isinstance(outcome, Failed)
    assert outcome.code == "plaintext_after_starttls"
    assert relay.verbs("MAIL") == []


# --- silence, by phase -------------------------------------------------------------------------------------------------


async def never(peer: Peer) -> None:
    await peer.gone()


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA"])
async def test_silence_before_the_body_is_failed(connect: Connect, verb):
    async with relay_that({verb: never}) as relay:
        outcome = await connect(relay, timeouts=QUICK).send(a_mail())
    assert isinstance(outcome, Failed)
    assert outcome.code == "reply_timeout"


async def test_c14_silence_after_the_dot_is_unknown(connect: Connect):
    async with relay_that({"DOT": never}) as relay:
        outcome = await connect(relay, timeouts=UNANSWERED).send(a_mail())
    assert isinstance(outcome, Unknown)
    assert outcome.code == "reply_timeout"


async def test_c14_a_relay_that_hangs_on_quit_has_still_taken_the_mail(connect: Connect):
    async with relay_that({"QUIT": never}) as relay:
        leaving = SmtpTimeouts(connect=30, command=2, final_reply=dict.fromkeys(MessageClass, 30.0))
        client = connect(relay, timeouts=leaving, messages_per_connection=1)
        outcome = await client.send(a_mail())
        assert isinstance(outcome, Accepted)
        await client.close()
    assert len(relay.messages) == 1


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA"])
async def test_a_hang_up_before_the_body_is_failed(connect: Connect, verb):
    async with relay_that({verb: lambda p: p.reset()}) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Failed)
    assert outcome.code == "connection_lost"


@pytest.mark.parametrize(
    ("verb", "kind"), [("MAIL", Failed), ("RCPT", Failed), ("DATA", Failed), ("DOT", Unknown)]
)
@pytest.mark.parametrize("reply", ["what is this", "2x0 ok"])
async def test_a_reply_that_is_none_counts_as_silence(connect: Connect, verb, reply, kind):
    async with relay_that({verb: reply}) as relay:
        outcome = await connect(relay, timeouts=QUICK).send(a_mail())
    assert isinstance(outcome, kind)


async def test_a_relay_that_speaks_in_the_middle_of_the_body_has_not_taken_it(connect: Connect):
    async def data(peer: Peer) -> None:
        await peer.say("354 go on")
        await peer.reader.read(1_000)
        await peer.say("552 5.3.4 too much")
        await peer.gone()

    async with relay_that({"DATA": data}, extensions=["PIPELINING"]) as relay:
        outcome = await connect(relay).send(a_mail(text=HUGE))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "552 5.3.4"


async def test_a_body_that_cannot_be_written_in_time_is_failed(connect: Connect):
    async def data(peer: Peer) -> None:
        await peer.say("354 go on")
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await peer.relay.until(lambda _: False)

    async with relay_that({"DATA": data}, extensions=["PIPELINING"]) as relay:
        client = connect(relay, timeouts=UNWRITABLE)
        outcome = await client.send(a_mail(text=HUGE))
    assert isinstance(outcome, Failed)
    assert outcome.code in ("write_timeout", "reply_timeout")


async def test_a_large_body_arrives_whole(connect: Connect):
    mail = a_mail(text=("y" * 900 + "\n") * 2_000)
    async with relay_that() as relay:
        outcomes = await connect(relay, connections=1).send_all([mail, a_mail(1), mail])
    assert all(isinstance(o, Accepted) for o in outcomes)
    assert [m.data for m in relay.messages] == [build(mail), build(a_mail(1)), build(mail)]


# --- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extensions", [EXTENSIONS, ["SIZE"]], ids=["pipelining", "lock-step"])
@pytest.mark.parametrize("closing", ["421", "silent"])
async def test_c50_a_relay_that_ends_a_session_after_three_mails_gets_all_ten(
    connect: Connect, extensions, closing
):
    def mail(peer: Peer) -> str | None:
        if peer.taken < 3:
            return "250 ok"
        if closing == "421":
            return "421 4.7.0 enough for one session"
        peer.reset()
        return None

    async with relay_that({"MAIL": mail}, extensions=extensions) as relay:
        client = connect(relay, connections=2)
        outcomes = await client.send_all([a_mail(n) for n in range(10)])
    assert [o.kind for o in outcomes] == ["accepted"] * 10
    assert sorted(m.rcpt for m in relay.messages) == [f"alex{n}@example.com" for n in range(10)]
    assert relay.connections >= 4


async def test_c50_a_relay_that_hangs_up_behind_its_answer_gets_all_ten(connect: Connect):
    async def dot(peer: Peer) -> str | None:
        if peer.taken < 2:
            return "250 ok"
        await peer.take(b"")
        await peer.say("250 ok", "421 enough")
        peer.writer.close()
        return None

    async with relay_that({"DOT": dot}) as relay:
        outcomes = await connect(relay, connections=1).send_all([a_mail(n) for n in range(10)])
    assert [o.kind for o in outcomes] == ["accepted"] * 10
    assert len(relay.messages) == 10


async def test_a_relay_that_refuses_every_session_is_asked_once_and_no_more(connect: Connect):
    async with relay_that({"MAIL": "421 4.3.2 shutting down"}) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.throttled) == ("421 4.3.2", True)
    assert relay.connections == 1


async def test_we_hang_up_ourselves_after_so_many(connect: Connect):
    async with relay_that() as relay:
        client = connect(relay, connections=1, messages_per_connection=3)
        outcomes = await client.send_all([a_mail(n) for n in range(9)])
        assert [o.kind for o in outcomes] == ["accepted"] * 9
        await relay.until(lambda r: len(r.verbs("QUIT")) == 3)
    assert relay.connections == 3


async def test_an_idle_connection_is_not_trusted_for_long(connect: Connect):
    clock = Clock()
    async with relay_that() as relay:
        client = connect(relay, connections=1, idle=timedelta(seconds=20))
        await client.send(a_mail(1))
        await clock.skip(10)
        await client.send(a_mail(2))
        assert relay.connections == 1
        await clock.skip(21)
        assert isinstance(await client.send(a_mail(3)), Accepted)
    assert relay.connections == 2


async def test_a_connection_closed_while_idle_is_replaced(connect: Connect):
    async def script(peer: Peer) -> None:
        await peer.greet()
        peers.append(peer)
        await peer.serve()

    peers: list[Peer] = []
    async with serving(script) as relay:
        client = connect(relay, connections=1)
        await client.send(a_mail(1))
        await peers[0].say("421 idle for too long")
        peers[0].writer.close()
        await relay.until(lambda r: r.open_now == 0)
        assert isinstance(await client.send(a_mail(2)), Accepted)
    assert relay.connections == 2


async def test_c13_a_mistyped_host_is_the_senders_fault(connect: Connect):
    client = connect(25, host="smtp.example.invalid", timeouts=UNGREETED)
    outcome = await client.send(a_mail())
    assert isinstance(outcome, Failed)
    assert outcome.code in ("host_not_found", "connect_timeout")  # a resolver may also hang
    if outcome.code == "host_not_found":
        assert outcome.scope is FaultScope.SENDER


async def test_a_refused_connection_is_failed_and_nobodys_address_is_touched(connect: Connect):
    with unused_port() as port:
        outcomes = await connect(port).send_all([a_mail(n) for n in range(5)])
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.scope) == ("connection_refused", FaultScope.PROVIDER)


@pytest.mark.parametrize(
    ("greeting", "code", "scope"),
    [
        ("554 no service", "554", FaultScope.PROVIDER),
        ("421 4.3.2 busy", "421 4.3.2", FaultScope.PROVIDER),
        ("521 takes no mail", "521", FaultScope.SENDER),
        ("what", "garbled_reply", FaultScope.PROVIDER),
    ],
)
async def test_a_greeting_that_is_none(connect: Connect, greeting, code, scope):
    async def script(peer: Peer) -> None:
        await peer.say(greeting)
        await peer.gone()

    async with serving(script) as relay:
        outcome = await connect(relay).send(a_mail())
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == (code, scope)


async def test_a_relay_that_accepts_and_never_greets_times_out(connect: Connect):
    async with serving(never) as relay:
        outcome = await connect(relay, timeouts=UNGREETED).send(a_mail())
    assert isinstance(outcome, Failed)
    assert outcome.code == "connect_timeout"


# --- TLS and AUTH ------------------------------------------------------------------------------------------------------


def protected(
    tls: Certificates, replies: dict[str, Any] | None = None, auth: str = "AUTH PLAIN LOGIN"
):
    async def script(peer: Peer) -> None:
        await peer.greet(["STARTTLS", "PIPELINING"])
        assert await peer.line() == "STARTTLS"
        await peer.say("220 go ahead")
        await peer.start_tls(tls.server)
        await peer.hello(["PIPELINING", auth])
        await peer.serve(replies)

    return script


def auth(peer: Peer) -> str:
    line = peer.relay.commands[-1]
    return "235 2.7.0 ok" if login_of(line) == ("app", "s3cret") else "535 5.7.8 bad credentials"


LOGIN = {"username": "app", "password": SecretStr("s3cret")}


async def test_starttls_and_login_and_then_mail(connect: Connect, tls: Certificates):
    async with serving(protected(tls, {"AUTH": auth})) as relay:
        client = connect(relay, tls="starttls", ca_file=tls.ca_file, connections=1, **LOGIN)
        outcomes = await client.send_all([a_mail(n) for n in range(5)])
    assert [o.kind for o in outcomes] == ["accepted"] * 5
    assert len(relay.verbs("EHLO")) == 2
    assert len(relay.verbs("AUTH")) == 1


async def test_implicit_tls(connect: Connect, tls: Certificates):
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.serve()

    async with serving(script, tls=tls.server) as relay:
        client = connect(relay, tls="implicit", ca_file=tls.ca_file)
        outcomes = await client.send_all([a_mail(n) for n in range(5)])
    assert [o.kind for o in outcomes] == ["accepted"] * 5


async def test_login_in_two_steps_when_plain_is_not_offered(connect: Connect, tls: Certificates):
    async def login(peer: Peer) -> str:
        if peer.relay.commands[-1] == "AUTH LOGIN":  # else the name came with it
            await peer.say("334 VXNlcm5hbWU6")
            assert await peer.line() == "YXBw"
        else:
            assert peer.relay.commands[-1] == "AUTH LOGIN YXBw"
        await peer.say("334 UGFzc3dvcmQ6")
        assert await peer.line() == "czNjcmV0"
        return "235 ok"

    async with serving(protected(tls, {"AUTH": login}, auth="AUTH LOGIN")) as relay:
        client = connect(relay, tls="starttls", ca_file=tls.ca_file, **LOGIN)
        assert isinstance(await client.send(a_mail()), Accepted)


async def test_login_by_challenge_when_nothing_else_is_offered(connect: Connect, tls: Certificates):
    async def login(peer: Peer) -> str:
        await peer.say("334 PDEyMzRAZXhhbXBsZS5jb20+")
        await peer.line()
        return "235 ok"

    async with serving(protected(tls, {"AUTH": login}, auth="AUTH CRAM-MD5")) as relay:
        client = connect(relay, tls="starttls", ca_file=tls.ca_file, **LOGIN)
        assert isinstance(await client.send(a_mail()), Accepted)


async def test_a_relay_without_starttls_never_sees_the_password(
    connect: Connect, tls: Certificates
):
    async with relay_that(extensions=["AUTH PLAIN"]) as relay:
        client = connect(relay, tls="starttls", ca_file=tls.ca_file, **LOGIN)
        outcome = await client.send(a_mail())
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == ("starttls_not_offered", FaultScope.SENDER)
    assert relay.verbs("AUTH") == []


async def test_454_to_starttls_is_failed(connect: Connect, tls: Certificates):
    async with relay_that({"STARTTLS": "454 4.7.0 not now"}, extensions=["STARTTLS"]) as relay:
        outcome = await connect(relay, tls="starttls", ca_file=tls.ca_file).send(a_mail())
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == ("454 4.7.0", FaultScope.PROVIDER)


async def test_a_certificate_nobody_we_know_signed_is_refused(connect: Connect, tls: Certificates):
    async with serving(protected(tls)) as relay:
        outcome = await connect(relay, tls="starttls").send(a_mail())
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == ("certificate_refused", FaultScope.SENDER)
    assert relay.verbs("MAIL") == []


async def test_a_relay_that_speaks_no_tls_is_failed(connect: Connect, tls: Certificates):
    async with relay_that() as relay:
        outcome = await connect(relay, tls="implicit", ca_file=tls.ca_file).send(a_mail())
    assert isinstance(outcome, Failed)


@pytest.mark.parametrize(
    "reply", ["454 4.7.0 Temporary authentication failure", "535 5.7.8 bad credentials"]
)
async def test_c69_a_refused_login_is_the_senders_and_is_tried_a_few_times_a_minute(
    connect: Connect, tls: Certificates, reply
):
    now = [1_000.0]
    gate = LoginGate(failures_per_minute=3, clock=lambda: now[0])
    async with serving(protected(tls, {"AUTH": reply})) as relay:
        client = connect(
            relay, tls="starttls", ca_file=tls.ca_file, connections=5, gate=gate, **LOGIN
        )
        for round_ in range(4):
            outcomes = await client.send_all([a_mail(n) for n in range(10)])
            for outcome in outcomes:
                assert isinstance(outcome, Failed)
                assert outcome.scope is FaultScope.SENDER
                assert outcome.retry_after is not None
                assert outcome.retry_after >= timedelta(seconds=1)
            assert len(relay.verbs("AUTH")) <= 3, round_
        assert relay.verbs("MAIL") == []
        before = len(relay.verbs("AUTH"))
        now[0] += 61
        await client.send(a_mail())
        assert len(relay.verbs("AUTH")) == before + 1


async def test_a_login_that_works_again_opens_the_gate(connect: Connect, tls: Certificates):
    wrong = [True]

    def sometimes(peer: Peer) -> str:
        return "454 4.7.0 later" if wrong[0] else "235 ok"

    async with serving(protected(tls, {"AUTH": sometimes})) as relay:
        client = connect(relay, tls="starttls", ca_file=tls.ca_file, connections=1, **LOGIN)
        assert isinstance(await client.send(a_mail()), Failed)
        wrong[0] = False
        outcomes = await client.send_all([a_mail(n) for n in range(10)])
    assert [o.kind for o in outcomes] == ["accepted"] * 10


async def test_c69_throttling_after_data_is_not_a_login_failure(connect: Connect):
    async with relay_that({"DOT": "454 Throttling failure: Maximum sending rate exceeded"}) as r:
        outcome = await connect(r).send(a_mail())
    assert isinstance(outcome, Failed)
    assert (outcome.scope, outcome.throttled) == (FaultScope.PROVIDER, True)


async def test_credentials_in_clear_text_are_refused_at_start():
    with pytest.raises(ConfigurationError):
        SmtpAccount(host="smtp.example.com", username="app", password=SecretStr("s3cret"))
    assert "s3cret" not in repr(SmtpAccount(host="127.0.0.1", **LOGIN))  # type: ignore[arg-type]


# --- being given up ----------------------------------------------------------------------------------------------------


async def test_a_call_cancelled_before_the_dot_is_not_called(connect: Connect):
    async with relay_that({"RCPT": never}) as relay:
        client = connect(relay, timeouts=QUICK)
        call = asyncio.create_task(client.send(a_mail()))
        await relay.until(lambda r: bool(r.verbs("RCPT")))
        call.cancel()
        outcome = await call
    assert isinstance(outcome, Failed)
    assert relay.messages == []


async def test_a_call_cancelled_after_the_dot_still_answers(connect: Connect):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def dot(peer: Peer) -> str:
        asked.set()
        await answer.wait()
        return "250 ok"

    async with relay_that({"DOT": dot}) as relay:
        call = asyncio.create_task(connect(relay).send(a_mail()))
        await asked.wait()
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        answer.set()
        assert isinstance(await call, Accepted)


async def test_a_time_out_around_a_call_that_was_taken_loses_nothing(connect: Connect):
    release = asyncio.Event()
    limits: list[asyncio.Timeout] = []

    async def dot(peer: Peer) -> str:
        """The time is up, and the answer comes in the same moment."""
        loop = asyncio.get_running_loop()
        over = loop.time() + 0.01
        limits[0].reschedule(over)
        loop.call_at(over, release.set)
        await release.wait()
        return "250 ok"

    async with relay_that({"DOT": dot}) as relay:
        client = connect(relay)

        async def under_a_time_out() -> CallOutcome:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                return await client.send(a_mail())

        assert isinstance(await under_a_time_out(), Accepted)


async def test_close_waits_for_what_is_in_flight(connect: Connect):
    asked, answer = asyncio.Event(), asyncio.Event()

    async def dot(peer: Peer) -> str:
        asked.set()
        await answer.wait()
        return "250 ok"

    async with relay_that({"DOT": dot}) as relay:
        client = connect(relay)
        call = asyncio.create_task(client.send(a_mail()))
        await asked.wait()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        answer.set()
        await closing
        assert isinstance(await call, Accepted)
        await relay.until(lambda r: r.open_now == 0)


# --- only the one-at-a-time client -------------------------------------------------------------------------------------


@asynccontextmanager
async def single(relay: Relay, **options: Any):
    provider = SmtpProvider(
        SmtpAccount(host="127.0.0.1", port=relay.port),
        timeouts=options.pop("timeouts", PATIENT),
        **options,
    )
    yield provider
    await provider.close()


async def test_c49_waiting_for_a_connection_is_never_a_failure():
    """A pool of 2, 50 callers who wait 3 s and then look after something else, 200 mails, and 5 s for each on the wire."""
    clock = Clock()
    on_the_wire: list[asyncio.Future[None]] = []

    async def dot(peer: Peer) -> str:
        """Both places are taken, and then five seconds pass."""
        here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        on_the_wire.append(here)
        if len(on_the_wire) == 2:
            await clock.skip(5)
            while on_the_wire:
                on_the_wire.pop().set_result(None)
        await here
        return "250 ok"

    async with (
        relay_that({"DOT": dot}) as relay,
        single(relay, pool_size=2, timeouts=SmtpTimeouts()) as provider,
    ):
        left = list(range(200))
        outcomes: list[CallOutcome] = []
        waited = 0

        async def worker() -> None:
            nonlocal waited
            while left:
                n = left.pop()
                async with asyncio.timeout(3):
                    outcome = await provider.send(a_mail(n), TRANSACTIONAL)
                if outcome == Failed(provider="smtp", code="not_called", counts=False):
                    # Nobody's failure, and no attempt of the recipient's.
                    waited += 1
                    left.append(n)
                else:
                    outcomes.append(outcome)

        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(worker() for _ in range(50)))
        assert asyncio.get_running_loop().time() - started >= 200 / 2 * 5
    assert [o.kind for o in outcomes] == ["accepted"] * 200
    assert waited >= 48
    assert sorted(message.rcpt for message in relay.messages) == sorted(
        f"alex{n}@example.com" for n in range(200)
    )
    assert relay.connections == 2


async def test_c49_a_caller_without_a_deadline_waits_for_a_connection_as_long_as_it_takes():
    """Longer than any time-out of the call itself: the last of 50 waits two minutes."""
    clock = Clock()
    limits = SmtpTimeouts(connect=10, command=10, final_reply=dict.fromkeys(MessageClass, 10.0))

    async def dot(peer: Peer) -> str:
        await clock.skip(5)
        return "250 ok"

    async with (
        relay_that({"DOT": dot}) as relay,
        single(relay, pool_size=1, timeouts=limits) as provider,
    ):
        outcomes = await asyncio.gather(
            *(provider.send(a_mail(n), TRANSACTIONAL) for n in range(50))
        )
    assert [o.kind for o in outcomes] == ["accepted"] * 50
    assert relay.connections == 1


async def test_a_deadline_that_passes_while_waiting_for_a_connection_is_not_called():
    async with relay_that({"DOT": never}) as relay, single(relay, pool_size=1) as provider:
        first = asyncio.create_task(provider.send(a_mail(1), TRANSACTIONAL))
        await relay.until(lambda r: bool(r.verbs("DATA")))
        async with asyncio.timeout(0.05):
            outcome = await provider.send(a_mail(2), TRANSACTIONAL)
        assert outcome == Failed(provider="smtp", code="not_called", counts=False)
        assert len(relay.verbs("MAIL")) == 1
        first.cancel()
    assert isinstance(await first, Unknown)


async def test_no_class_waits_for_another_ones_connections():
    stuck = asyncio.Event()

    async def dot(peer: Peer) -> str | None:
        if "alex1@" in peer.rcpt:
            stuck.set()
            await peer.gone()
            return None
        return "250 ok"

    async with relay_that({"DOT": dot}) as relay, single(relay, pool_size=1) as provider:
        marketing = asyncio.create_task(provider.send(a_mail(1), MARKETING))
        await stuck.wait()
        assert isinstance(await provider.send(a_mail(2), SECURITY), Accepted)
        assert not marketing.done()
        marketing.cancel()


async def test_only_email_is_carried():
    async with relay_that() as relay, single(relay) as provider:
        sms = OutboundSms(reference="r", to="+12025550123", sender="+12025550100", body="x")
        with pytest.raises(TypeError):
            await provider.send(sms, SECURITY)


def test_the_time_outs_of_a_call_add_up_to_no_more_than_its_lease_is_made_for():
    limits = SmtpTimeouts()
    for message_class in MessageClass:
        longest = limits.before_dot + limits.final_reply[message_class]
        assert longest <= budgets.provider_timeout(message_class).total_seconds()


# --- only the pipelined client -----------------------------------------------------------------------------------------


def wire(n: int, data: bytes | None = None) -> WireMail:
    return WireMail(
        f"dlv_{n}",
        "bounces@example.com",
        f"alex{n}@example.com",
        data or to_wire(f"Subject: {n}\r\n\r\n{n}\r\n".encode()),
    )


@asynccontextmanager
async def bulk(relay: Relay | int, **options: Any):
    port = relay if isinstance(relay, int) else relay.port
    mailer = PipelineMailer(
        SmtpAccount(host="127.0.0.1", port=port, **options.pop("account", {})),
        timeouts=options.pop("timeouts", PATIENT),
        **options,
    )
    yield mailer
    await mailer.close()


def always() -> bool:
    return True


async def test_the_next_mails_commands_come_right_behind_the_dot():
    """Its commands are here before the first mail is answered."""
    seen: list[str] = []

    async def dot(peer: Peer) -> str:
        if not peer.taken:
            for _ in range(3):
                seen.append(await peer.line())
            await peer.take(b"")
            await peer.say("250 first", "250 mail", "250 rcpt", "354 go on")
            await peer.take(await peer.body())
        return "250 second"

    async with relay_that({"DOT": dot}) as relay, bulk(relay, connections=1) as mailer:
        outcomes = await mailer.send_batch([wire(1), wire(2)], MARKETING, may_call=always)
    assert [o.kind for o in outcomes] == ["accepted"] * 2
    assert [line.split(":")[0] for line in seen] == ["MAIL FROM", "RCPT TO", "DATA"]


async def test_a_354_to_a_refused_recipient_is_answered_with_just_the_dot():
    """RFC 2920 lets a relay say 354 although nobody is left to take the mail."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        for reply in ("250 ok", "550 5.1.1 no", "354 go on"):
            await peer.line()
            await peer.say(reply)
        assert await peer.body() == b""
        await peer.say("554 no valid recipients")
        await peer.serve()

    async with serving(script) as relay, bulk(relay, connections=1) as mailer:
        refused, taken = await mailer.send_batch([wire(1), wire(2)], MARKETING, may_call=always)
    assert isinstance(refused, Rejected)
    assert isinstance(taken, Accepted)
    assert [m.rcpt for m in relay.messages] == ["alex2@example.com"]


async def test_what_stands_behind_a_dot_that_is_lost_goes_to_another_connection():
    """The first is unknown; the second was never taken, so it is sent, once."""

    async def dot(peer: Peer) -> str:
        if peer.n == 1:
            while len(peer.relay.verbs("MAIL")) < 2:
                await peer.line()
            peer.reset()
        return "250 ok"

    async with relay_that({"DOT": dot}) as relay, bulk(relay, connections=1) as mailer:
        first, second = await mailer.send_batch([wire(1), wire(2)], MARKETING, may_call=always)
    assert isinstance(first, Unknown)
    assert isinstance(second, Accepted)
    assert [m.rcpt for m in relay.messages] == ["alex2@example.com"]


async def test_a_mix_of_answers_keeps_every_mail_with_its_own():
    def rcpt(peer: Peer) -> str:
        n = int(peer.rcpt.removeprefix("alex").partition("@")[0])
        return ("250 ok", "550 5.1.1 no", "450 4.2.0 greylisted")[n % 3]

    def dot(peer: Peer) -> str:
        n = int(peer.rcpt.removeprefix("alex").partition("@")[0])
        return "554 5.6.0 no" if n % 6 == 0 else f"250 queued as Q{n:04}"

    async with relay_that({"RCPT": rcpt, "DOT": dot}) as relay, bulk(relay) as mailer:
        outcomes = await mailer.send_batch(
            [wire(n) for n in range(300)], MARKETING, may_call=always
        )
    for n, outcome in enumerate(outcomes):
        match n % 6:
            case 0:
                assert isinstance(outcome, Rejected)
                assert outcome.code == "554 5.6.0"
            case 3:
                assert outcome == Accepted(provider="smtp", provider_message_id=f"Q{n:04}")
            case 1 | 4:
                assert isinstance(outcome, Rejected)
                assert outcome.suppress
            case _:
                assert isinstance(outcome, Failed)
                assert outcome.scope is FaultScope.RECIPIENT
    assert len(relay.messages) == 50


async def test_several_batches_share_the_connections():
    async with relay_that() as relay, bulk(relay, connections=3) as mailer:
        results = await asyncio.gather(
            *(
                mailer.send_batch(
                    [wire(b * 100 + n) for n in range(50)], MARKETING, may_call=always
                )
                for b in range(4)
            )
        )
    assert all(o.kind == "accepted" for outcomes in results for o in outcomes)
    assert len({m.rcpt for m in relay.messages}) == 200
    assert relay.connections <= 3


async def test_may_call_is_looked_at_before_each_call():
    async with relay_that() as relay, bulk(relay, connections=1) as mailer:
        outcomes = await mailer.send_batch(
            [wire(n) for n in range(50)], MARKETING, may_call=lambda: len(relay.messages) < 5
        )
        sent = [o for o in outcomes if isinstance(o, Accepted)]
        assert len(sent) == len(relay.messages) <= 6
        rest = [o for o in outcomes if not isinstance(o, Accepted)]
        assert rest == [Failed(provider="smtp", code="not_called", counts=False)] * len(rest)
        again = await mailer.send_batch([wire(99)], MARKETING, may_call=always)
    assert again[0].kind == "accepted"


async def test_a_mail_stopped_between_its_commands_and_its_body_is_not_called():
    open_ = [True]

    def data(peer: Peer) -> str:
        open_[0] = False
        return "354 go on"

    async with relay_that({"DATA": data}) as relay, bulk(relay, connections=1) as mailer:
        outcomes = await mailer.send_batch([wire(1)], MARKETING, may_call=lambda: open_[0])
    assert outcomes == [Failed(provider="smtp", code="not_called", counts=False)]
    assert relay.messages == []


async def test_nothing_is_opened_for_mails_that_may_not_be_called():
    async with relay_that() as relay, bulk(relay) as mailer:
        outcomes = await mailer.send_batch([wire(1), wire(2)], MARKETING, may_call=lambda: False)
    assert {o.kind for o in outcomes} == {"failed"}
    assert relay.connections == 0


async def test_a_look_that_fails_stops_the_calls_and_nothing_else():
    def broken() -> bool:
        raise RuntimeError("no look")

    async with relay_that() as relay, bulk(relay) as mailer:
        outcomes = await mailer.send_batch([wire(1)], MARKETING, may_call=broken)
    assert outcomes == [Failed(provider="smtp", code="not_called", counts=False)]
    assert relay.messages == []


async def test_an_8_bit_body_goes_only_where_it_is_welcome():
    data = to_wire("Subject: x\r\n\r\nGrüße\r\n".encode())
    async with relay_that(extensions=["PIPELINING"]) as relay, bulk(relay) as mailer:
        [refused] = await mailer.send_batch([wire(1, data)], MARKETING, may_call=always)
    assert isinstance(refused, Rejected)
    assert refused.code == "5.6.3"
    async with relay_that(extensions=["PIPELINING", "8BITMIME"]) as relay, bulk(relay) as mailer:
        [taken] = await mailer.send_batch([wire(1, data)], MARKETING, may_call=always)
    assert isinstance(taken, Accepted)
    assert relay.verbs("MAIL") == ["MAIL FROM:<bounces@example.com> BODY=8BITMIME"]


async def test_a_bad_envelope_is_refused_and_the_rest_goes():
    bad = WireMail("r", "bounces@example.com", "a@example.com>\r\nRSET", b"x\r\n")
    async with relay_that() as relay, bulk(relay) as mailer:
        outcomes = await mailer.send_batch([wire(1), bad, wire(2)], MARKETING, may_call=always)
    assert [o.kind for o in outcomes] == ["accepted", "rejected", "accepted"]
    assert len(relay.messages) == 2


async def test_an_empty_batch_needs_no_relay():
    with unused_port() as port:
        async with bulk(port) as mailer:
            assert await mailer.send_batch([], MARKETING, may_call=always) == []


async def test_a_relay_that_allows_fewer_connections_than_we_want_gets_everything():
    async def script(peer: Peer) -> None:
        if peer.relay.open_now > 2:
            await peer.say("421 4.7.0 too many connections from you")
            return
        await peer.greet()
        await peer.serve()

    async with serving(script) as relay, bulk(relay, connections=8) as mailer:
        outcomes = await mailer.send_batch(
            [wire(n) for n in range(100)], MARKETING, may_call=always
        )
    assert [o.kind for o in outcomes] == ["accepted"] * 100
    assert len(relay.messages) == 100


async def test_a_relay_that_never_answers_a_dot_does_not_draw_a_whole_batch_into_doubt():
    async with relay_that({"DOT": lambda p: p.reset()}) as relay:
        async with bulk(relay, connections=4) as mailer:
            outcomes = await mailer.send_batch(
                [wire(n) for n in range(100)], MARKETING, may_call=always
            )
    unknown = [o for o in outcomes if isinstance(o, Unknown)]
    assert 10 <= len(unknown) <= 14
    assert all(isinstance(o, Failed) for o in outcomes if not isinstance(o, Unknown))


async def test_a_batch_cancelled_in_the_middle_answers_for_every_mail():
    reached = asyncio.Event()
    release = asyncio.Event()

    async def dot(peer: Peer) -> str:
        if len(peer.relay.messages) == 10:
            reached.set()
            await release.wait()
        return "250 ok"

    async with relay_that({"DOT": dot}) as relay, bulk(relay, connections=1) as mailer:
        call = asyncio.create_task(
            mailer.send_batch([wire(n) for n in range(50)], MARKETING, may_call=always)
        )
        await reached.wait()
        call.cancel()
        await asyncio.sleep(0)
        release.set()
        outcomes = await call
    sent = [o for o in outcomes if isinstance(o, Accepted)]
    assert len(sent) == len(relay.messages) == 11
    assert all(o.kind == "failed" for o in outcomes[11:])


async def test_a_closed_mailer_calls_nobody():
    async with relay_that() as relay, bulk(relay) as mailer:
        await mailer.close()
        outcomes = await mailer.send_batch([wire(1)], MARKETING, may_call=always)
    assert outcomes == [Failed(provider="smtp", code="not_called", counts=False)]
    assert relay.connections == 0


# --- parsing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "extensions"),
    [
        ("relay.example", Extensions()),
        ("relay.example\nPIPELINING", Extensions(pipelining=True)),
        ("r\nSIZE 1000\n8BITMIME", Extensions(size_offered=True, size_max=1000, eightbit=True)),
        ("r\nSIZE", Extensions(size_offered=True)),
        ("r\nsize 0\nstarttls", Extensions(size_offered=True, starttls=True)),
        ("r\nAUTH=PLAIN LOGIN", Extensions(auth=frozenset({"PLAIN", "LOGIN"}))),
        ("r\nAUTH PLAIN\nAUTH=LOGIN", Extensions(auth=frozenset({"PLAIN", "LOGIN"}))),
        ("PIPELINING", Extensions()),
        ("r\n\nSIZE x", Extensions(size_offered=True)),
    ],
)
def test_ehlo_is_read(reply, extensions):
    assert Extensions.parse(reply) == extensions


def test_the_login_gate_says_when_to_come_back():
    now = [0.0]
    gate = LoginGate(failures_per_minute=2, clock=lambda: now[0])
    refused = Failed(provider="smtp", code="535", scope=FaultScope.SENDER)

    async def fail() -> Failed:
        return refused

    async def run() -> None:
        assert await gate.attempt(fail) == refused
        now[0] = 10
        assert await gate.attempt(fail) == refused
        blocked = gate.blocked()
        assert blocked is not None
        assert blocked.retry_after == timedelta(seconds=50)
        now[0] = 61
        assert gate.blocked() is None

    asyncio.run(run())


def test_a_ca_file_that_is_missing_is_said_at_start(tmp_path: Path):
    account = SmtpAccount(host="smtp.example.com", tls="starttls", ca_file=tmp_path / "none.pem")
    with pytest.raises(FileNotFoundError):
        SmtpProvider(account)
