"""With PIPELINING a relay answers one mail's dot and the next mail's commands together; whatever the mixture, each mail has its own."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from schemas.kinds import MessageClass
from sendloom.ports import WireMail
from sendloom.providers.smtp_pipeline import PipelineMailer
from sendloom.providers.smtp_session import SmtpAccount

MAILS = 40
PHASES = ("mail", "rcpt", "data", "dot")
YES = {
    "mail": "250 2.1.0 Ok",
    "rcpt": "250 2.1.5 Ok",
    "data": "354 End data with <CR><LF>.<CR><LF>",
    "dot": "250 2.0.0 Ok: queued as {id}",
}


@dataclass
class BurstRelay:
    """Reads all there is, then answers all of it in one write. `script`: what it says instead, by mail and phase."""

    script: dict[tuple[str, str], str]
    took: list[str] = field(default_factory=list)
    writes: int = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 relay.example.com\r\n")
        to, refused, pending = "", False, b""
        body: list[bytes] | None = None
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                pending += data
                replies: list[str] = []
                while b"\r\n" in pending:
                    line, pending = pending.split(b"\r\n", 1)
                    if body is not None:
                        if line != b".":
                            body.append(line)
                            continue
                        if self.say(replies, to, "dot", f"queue{len(self.took):04}"):
                            self.took.append(to)
                        body = None
                        continue
                    word = line[:4].upper()
                    if word == b"EHLO":
                        replies += ["250-relay.example.com", "250 PIPELINING"]
                    elif word == b"MAIL":
                        # Its recipient names the mail, and comes with it.
                        name = pending.partition(b"RCPT TO:<")[2].partition(b">")[0].decode()
                        to = name or to
                        refused = not self.say(replies, to, "mail")
                    elif word == b"RCPT":
                        if refused:
                            replies.append("503 5.5.1 no sender")
                        else:
                            refused = not self.say(replies, to, "rcpt")
                    elif word == b"DATA":
                        if refused:
                            replies.append("554 5.5.1 no valid recipients")
                        elif self.say(replies, to, "data"):
                            body = []
                    elif word == b"QUIT":
                        replies.append("221 bye")
                    else:
                        replies.append("250 Ok")
                if replies:
                    self.writes += 1
                    writer.write("".join(f"{reply}\r\n" for reply in replies).encode())
                    await writer.drain()
        writer.close()

    def say(self, replies: list[str], to: str, phase: str, id: str = "") -> bool:
        reply = self.script.get((to, phase), YES[phase]).format(id=id)
        replies += reply.split("\n")
        return reply[0] in "23"


@contextlib.asynccontextmanager
async def serving(relay: BurstRelay) -> AsyncIterator[PipelineMailer]:
    server = await asyncio.start_server(relay.talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    mailer = PipelineMailer(SmtpAccount(host="127.0.0.1", port=port), connections=2)
    try:
        yield mailer
    finally:
        await mailer.close()
        server.close()
        await server.wait_closed()


def mails(count: int) -> list[WireMail]:
    return [
        WireMail(f"dlv_{n}", "news@example.com", f"r{n}@example.com", b"Subject: x\r\n\r\nx\r\n")
        for n in range(count)
    ]


async def test_rounds_that_are_all_yes_name_each_mails_own_queue_id() -> None:
    relay = BurstRelay({})
    async with serving(relay) as mailer:
        outcomes = await mailer.send_batch(
            mails(MAILS), MessageClass.MARKETING, may_call=lambda: True
        )
    assert [o.kind for o in outcomes] == ["accepted"] * MAILS
    named = {
        to: o.provider_message_id  # type: ignore[union-attr]
        for to, o in zip((m.envelope_to for m in mails(MAILS)), outcomes, strict=True)
    }
    assert named == {to: f"queue{n:04}" for n, to in enumerate(relay.took)}
    # One write a mail: they really were answered in rounds.
    assert relay.writes < 2 * MAILS


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_differs_in_a_round_is_the_mails_it_was_said_to(seed: int) -> None:
    rng = random.Random(seed)
    no = ["450 4.2.0 later", "550 5.1.1 nobody", "451-first\n451 4.3.0 last"]
    yes = {
        "mail": ["250 Sender ok", "250-Sender\n250 ok"],
        "rcpt": ["250 Recipient ok", "251 will forward"],
        "data": ["354 go"],
        "dot": ["250-taken\n250 2.0.0 Ok: queued as {id}"],
    }
    script: dict[tuple[str, str], str] = {}
    expected: dict[str, str] = {}
    for n in range(MAILS):
        to = f"r{n}@example.com"
        expected[to] = "accepted"
        if rng.random() < 0.3:
            phase = rng.choice(PHASES)
            script[to, phase] = rng.choice(no)
            expected[to] = "rejected" if script[to, phase][0] == "5" else "failed"
        elif rng.random() < 0.3:
            phase = rng.choice(PHASES)
            script[to, phase] = rng.choice(yes[phase])
    relay = BurstRelay(script)
    async with serving(relay) as mailer:
        outcomes = await mailer.send_batch(
            mails(MAILS), MessageClass.MARKETING, may_call=lambda: True
        )
    said = {m.envelope_to: o.kind for m, o in zip(mails(MAILS), outcomes, strict=True)}
    assert said == expected
    assert sorted(relay.took) == sorted(to for to, kind in expected.items() if kind == "accepted")


async def test_a_pause_between_two_rounds_stops_the_next_body() -> None:
    relay = BurstRelay({})
    async with serving(relay) as mailer:
        outcomes = await mailer.send_batch(
            mails(MAILS), MessageClass.MARKETING, may_call=lambda: len(relay.took) < 5
        )
    taken = [o for o in outcomes if o.kind == "accepted"]
    assert 5 <= len(relay.took) == len(taken) < 10
    assert {o.code for o in outcomes if o.kind == "failed"} == {"not_called"}
