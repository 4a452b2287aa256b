"""An SMTP server that stores what it takes and misbehaves on demand (RFC 5321 and the extensions named in `SmtpOptions`)."""

import asyncio
import base64
import binascii
import logging
import re
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, cast

from schemas.kinds import Channel
from sendloom.providers.simulators.behaviour import Behaviour, EveryNth, FirstTime, RateLimit
from sendloom.providers.simulators.inbox import Inbox
from sendloom.providers.simulators.magic import Act, At, MailMagic, mail_magic, seconds_for

log = logging.getLogger(__name__)

REFERENCE_HEADER = "X-Sendloom-Delivery"

LONGEST_LINE = 4096
"""RFC 5321 asks for 512; AUTH and SMTPUTF8 need more."""
MOST_RECIPIENTS = 100
READ_AHEAD = 1024 * 1024
"""What a client may pipeline behind a reply that we are sitting on."""
LINGER_S = 2.0
"""How long we go on reading after our own FIN, so that replies already sent are not lost to a reset."""

_MAIL = re.compile(rb"MAIL FROM:[ \t]*<([^<>]*)>((?:[ \t]+[^ \t]+)*)[ \t]*", re.I)
_RCPT = re.compile(rb"RCPT TO:[ \t]*<([^<>]+)>((?:[ \t]+[^ \t]+)*)[ \t]*", re.I)
_ENHANCED = re.compile(rb"^(\d\d\d[ -])\d\.\d+\.\d+ ?", re.M)
_FOLDED = rb":([^\r\n]*(?:\r\n[ \t][^\r\n]*)*)"
_MESSAGE_ID = re.compile(rb"^message-id" + _FOLDED, re.I | re.M)
_REFERENCE = re.compile(rb"^" + REFERENCE_HEADER.encode() + _FOLDED, re.I | re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpOptions:
    """What the server offers. `credentials` None means no AUTH; with them, and `auth_required`, no mail without login."""

    hostname: str = "sink.example.com"
    pipelining: bool = True
    size: int | None = 10 * 1024 * 1024
    eight_bit_mime: bool = True
    smtputf8: bool = True
    enhanced_status_codes: bool = True
    tls: ssl.SSLContext | None = None
    credentials: Mapping[str, str] | None = None
    auth_required: bool = False
    auth_needs_tls: bool = False


@dataclass(slots=True)
class SmtpStats:
    connections: int = 0
    messages: int = 0
    """Transactions stored."""
    refused_recipients: int = 0
    refused_messages: int = 0
    throttled: int = 0
    dropped: int = 0
    closed_by_limit: int = 0
    auth_attempts: int = 0
    auth_successes: int = 0
    tls_sessions: int = 0


@dataclass(slots=True)
class _Transaction:
    sender: str
    options: str
    recipients: list[str] = field(default_factory=list)
    magic: tuple[MailMagic, str] | None = None
    """The first recipient's that has one, with that recipient."""
    doomed: bool = False
    """Chosen by `drop_every`."""


class SmtpSink:
    """The listening side: what all sessions share."""

    def __init__(self, inbox: Inbox, behaviour: Behaviour, options: SmtpOptions) -> None:
        self.inbox = inbox
        self.behaviour = behaviour
        self.options = options
        self.stats = SmtpStats()
        self.sessions: set[SmtpSession] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.rate = RateLimit()
        self.every = EveryNth()
        self.first_time = FirstTime()
        self._server: asyncio.Server | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def start(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: SmtpSession(self), sock=sock, backlog=1024)

    async def close(self) -> None:
        """Stop listening, cut every session, forget what was still to be answered."""
        if self._server is not None:
            self._server.close()
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        for session in list(self.sessions):
            session.cut()
        if self.sessions:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=LINGER_S)
        if self._server is not None:
            await self._server.wait_closed()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it later, unless the server has been closed by then."""

        def fire() -> None:
            self.timers.discard(timer)
            action()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self.timers.add(timer)

    def left(self, session: "SmtpSession") -> None:
        self.sessions.discard(session)
        if not self.sessions and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def report(self) -> dict[str, int]:
        return {**asdict(self.stats), "open": len(self.sessions)}


class SmtpSession(asyncio.Protocol):
    """One connection. Commands are worked in order; replies to one read go out in one write."""

    def __init__(self, sink: SmtpSink) -> None:
        self._sink = sink
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._at = 0
        """How much of the buffer is worked off."""
        self._scanned = 0
        """How much of it is known to hold no end of body."""
        self._out: list[bytes] = []
        self._waiting = False
        """A reply is being held back; commands queue up behind it."""
        self._over = False
        """Nothing will be answered any more; input is thrown away."""
        self._in_body = False
        self._too_big = False
        self._greeted = False
        self._tls = False
        self._user: str | None = None
        self._messages = 0
        self._hang_on_quit = False
        self._transaction: _Transaction | None = None
        self._prompted: Callable[[bytes], None] | None = None
        self._upgrade: asyncio.Task[None] | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._sink.sessions.add(self)
        self._sink.stats.connections += 1
        mail = self._sink.behaviour.mail
        if mail.hang == "greeting":
            self._waiting = True
        elif mail.greeting is not None:
            self._say(mail.greeting.encode())
            self._finish_line()
        else:
            self._say(b"220 " + self._sink.options.hostname.encode() + b" ESMTP simulator")
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._sink.left(self)
        if self._upgrade is not None:
            self._upgrade.cancel()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._buffer += data
        if not self._waiting:
            self._work()
        elif len(self._buffer) > READ_AHEAD:
            self._transport.pause_reading()

    def cut(self) -> None:
        """End it without a word."""
        self._over = True
        self._transport.abort()

    def _reset(self) -> None:
        """The line breaks: the client sees a reset, after whatever was already said."""
        self._flush()
        self._over = True
        self._sink.stats.dropped += 1
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _finish_line(self) -> None:
        """Say what is due and close in order. Goes on reading for a moment: closing with unread input would send a reset
        that can overtake our last replies."""
        self._flush()
        self._over = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._sink.after(LINGER_S, self._transport.close)
        else:
            self._transport.close()

    # Input

    def _work(self) -> None:
        buffer = self._buffer
        while not self._waiting and not self._over:
            if self._in_body:
                if not self._take_body():
                    break
                continue
            end = buffer.find(b"\r\n", self._at)
            if end < 0:
                if len(buffer) - self._at > LONGEST_LINE:
                    self._say(b"500 5.5.2 Line too long")
                    self._finish_line()
                break
            line = bytes(buffer[self._at : end])
            self._at = end + 2
            if self._prompted is not None:
                prompted, self._prompted = self._prompted, None
                prompted(line)
            else:
                self._command(line)
        if self._at:
            del buffer[: self._at]
            self._scanned = max(0, self._scanned - self._at)
            self._at = 0
        self._flush()

    def _take_body(self) -> bool:
        """Take one message off the buffer, which starts with the CRLF of the DATA line; False if its end is not there yet."""
        buffer, start = self._buffer, self._at
        transaction = self._transaction
        assert transaction is not None
        if len(buffer) - start > 2 and self._resets_in_body(transaction):
            self._reset()
            return False
        end = buffer.find(b"\r\n.\r\n", max(start, self._scanned))
        limit = self._sink.options.size
        if end < 0:
            self._scanned = max(start, len(buffer) - 4)
            if limit is not None and len(buffer) - start > limit + LONGEST_LINE:
                self._too_big = True
                del buffer[start : len(buffer) - 4]
                self._scanned = start
            return False
        self._at = end + 5
        self._scanned = 0
        self._in_body = False
        body = bytes(buffer[start : end + 2])
        if b"\r\n." in body:
            body = body.replace(b"\r\n.", b"\r\n")
        content = body[2:]
        too_big, self._too_big = self._too_big, False
        self._transaction = None
        self._end_of_message(
            transaction, content, too_big or (limit is not None and len(content) > limit)
        )
        return True

    def _resets_in_body(self, transaction: _Transaction) -> bool:
        if transaction.doomed and self._sink.behaviour.mail.drop_at == "body":
            return True
        return transaction.magic is not None and transaction.magic[0].at is At.BODY

    # Output

    def _say(self, reply: bytes) -> None:
        if not self._sink.options.enhanced_status_codes:
            reply = _ENHANCED.sub(rb"\1", reply)
        self._out.append(reply + b"\r\n")

    def _flush(self) -> None:
        self._sink.inbox.flush()
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _say_after(
        self, seconds: float, reply: bytes, first: Callable[[], None] | None = None
    ) -> None:
        """Hold this reply, and everything behind it, back. `first` is done even if the client has left by then."""
        self._waiting = True

        def answer() -> None:
            if first is not None:
                first()
                self._sink.inbox.flush()
            if self._over:
                return
            self._waiting = False
            self._say(reply)
            self._transport.resume_reading()
            self._work()

        self._sink.after(seconds, answer)

    # Commands

    def _command(self, line: bytes) -> None:
        if b"\n" in line or b"\r" in line:
            self._say(b"500 5.5.2 Bare CR or LF in a command")
            return
        if len(line) > LONGEST_LINE:
            self._say(b"500 5.5.2 Line too long")
            return
        verb = line[:5].rstrip(b" \t:").upper()
        if verb == b"MAIL":
            self._mail(line)
        elif verb == b"RCPT":
            self._rcpt(line)
        elif line.upper() == b"DATA":
            self._data()
        else:
            verb, _, argument = line.partition(b" ")
            handler = self._OTHERS.get(verb.upper())
            if handler is None:
                self._say(b"500 5.5.2 Command not recognized")
            else:
                handler(self, argument.strip())

    def _ehlo(self, argument: bytes) -> None:
        if not argument:
            self._say(b"501 5.5.4 Whose host name?")
            return
        options = self._sink.options
        self._greeted = True
        self._transaction = None
        lines = [options.hostname]
        if options.pipelining:
            lines.append("PIPELINING")
        if options.size is not None:
            lines.append(f"SIZE {options.size}")
        if options.eight_bit_mime:
            lines.append("8BITMIME")
        if options.smtputf8:
            lines.append("SMTPUTF8")
        if options.enhanced_status_codes:
            lines.append("ENHANCEDSTATUSCODES")
        if options.tls is not None and not self._tls:
            lines.append("STARTTLS")
        if options.credentials is not None and (self._tls or not options.auth_needs_tls):
            lines.append("AUTH PLAIN LOGIN")
        last = len(lines) - 1
        for i, text in enumerate(lines):
            self._out.append(f"250{' ' if i == last else '-'}{text}\r\n".encode())

    def _helo(self, argument: bytes) -> None:
        if not argument:
            self._say(b"501 5.5.4 Whose host name?")
            return
        self._greeted = True
        self._transaction = None
        self._out.append(b"250 " + self._sink.options.hostname.encode() + b"\r\n")

    def _mail(self, line: bytes) -> None:
        options, mail = self._sink.options, self._sink.behaviour.mail
        found = _MAIL.fullmatch(line)
        if not self._greeted:
            self._say(b"503 5.5.1 EHLO first")
        elif self._transaction is not None:
            self._say(b"503 5.5.1 Nested MAIL command")
        elif options.auth_required and self._user is None:
            self._say(b"530 5.7.0 Authentication required")
        elif mail.close_after is not None and self._messages >= mail.close_after:
            self._sink.stats.closed_by_limit += 1
            self._say(b"421 4.7.0 Too many messages in this session, closing")
            self._finish_line()
        elif found is None:
            self._say(b"501 5.5.4 Syntax: MAIL FROM:<address>")
        elif problem := self._mail_problem(found[1], found[2]):
            self._say(problem)
        else:
            doomed = self._sink.every.due(mail.drop_every)
            if doomed and mail.drop_at == "mail":
                self._sink.stats.dropped += 1
                self._finish_line()
                return
            self._messages += 1
            self._transaction = _Transaction(
                _text(found[1]), found[2].decode("ascii", "replace").strip(), doomed=doomed
            )
            self._say(b"250 2.1.0 Sender ok")

    def _mail_problem(self, sender: bytes, parameters: bytes) -> bytes | None:
        options = self._sink.options
        utf8 = False
        for parameter in parameters.split():
            name, _, value = parameter.upper().partition(b"=")
            if name == b"SIZE" and options.size is not None and value.isdigit():
                if int(value) > options.size:
                    return b"552 5.3.4 Message too big for system"
            elif name == b"BODY" and options.eight_bit_mime and value in (b"7BIT", b"8BITMIME"):
                pass
            elif name == b"SMTPUTF8" and options.smtputf8 and not value:
                utf8 = True
            elif name == b"AUTH" and options.credentials is not None and value:
                pass
            else:
                return b"555 5.5.4 Parameters not recognized"
        if not sender.isascii() and not utf8:
            return b"553 5.6.7 Address needs SMTPUTF8"
        return None

    def _rcpt(self, line: bytes) -> None:
        transaction = self._transaction
        found = _RCPT.fullmatch(line)
        if transaction is None:
            self._say(b"503 5.5.1 MAIL first")
        elif found is None:
            self._say(b"501 5.5.4 Syntax: RCPT TO:<address>")
        elif found[2]:
            self._say(b"555 5.5.4 Parameters not recognized")
        elif not found[1].isascii() and b"SMTPUTF8" not in transaction.options.upper().encode():
            self._say(b"553 5.6.7 Address needs SMTPUTF8")
        elif len(transaction.recipients) >= MOST_RECIPIENTS:
            self._say(b"452 4.5.3 Too many recipients")
        else:
            self._recipient(transaction, _text(found[1]))

    def _recipient(self, transaction: _Transaction, recipient: str) -> None:
        magic = mail_magic(recipient)
        if magic is not None and magic.at is At.RCPT:
            sender = transaction.sender
            if magic.act is Act.SILENCE:
                self._waiting = True
                return
            if magic.act is Act.RESET:
                self._reset()
                return
            if magic.act is not Act.REPLY_ONCE or self._sink.first_time("rcpt", recipient, sender):
                self._sink.stats.refused_recipients += 1
                self._say(magic.reply.encode())
                if magic.act is Act.CLOSE:
                    self._finish_line()
                return
        elif magic is not None and transaction.magic is None:
            transaction.magic = (magic, recipient)
        transaction.recipients.append(recipient)
        self._say(b"250 2.1.5 Recipient ok")

    def _data(self) -> None:
        transaction = self._transaction
        if transaction is None:
            self._say(b"503 5.5.1 MAIL first")
            return
        if not transaction.recipients:
            self._say(b"554 5.5.1 No valid recipients")
            return
        if transaction.magic is not None and transaction.magic[0].at is At.DATA:
            magic = transaction.magic[0]
            if magic.act is Act.SILENCE:
                self._waiting = True
            elif magic.act is Act.RESET:
                self._reset()
            else:
                self._transaction = None
                self._sink.stats.refused_messages += 1
                self._say(magic.reply.encode())
            return
        self._in_body = True
        # The CRLF of the DATA line stays in front of the body, so the end of an empty body looks like any other.
        self._at -= 2
        self._scanned = self._at
        self._say(b"354 End data with <CR><LF>.<CR><LF>")

    def _rset(self, argument: bytes) -> None:
        self._transaction = None
        self._say(b"250 2.0.0 Ok")

    def _noop(self, argument: bytes) -> None:
        self._say(b"250 2.0.0 Ok")

    def _vrfy(self, argument: bytes) -> None:
        self._say(b"252 2.5.2 Send some mail, I'll try my best")

    def _quit(self, argument: bytes) -> None:
        if self._hang_on_quit:
            self._waiting = True
            return
        self._say(b"221 2.0.0 Bye")
        self._finish_line()

    # STARTTLS and AUTH

    def _starttls(self, argument: bytes) -> None:
        context, mode = self._sink.options.tls, self._sink.behaviour.mail.starttls
        if context is None or self._tls:
            self._say(b"502 5.5.1 STARTTLS not offered")
        elif argument:
            self._say(b"501 5.5.4 STARTTLS takes no parameters")
        elif mode == "refuse":
            self._say(b"454 4.7.0 TLS not available due to temporary reason")
        else:
            # From here the client's bytes are TLS: none may reach us before the upgrade has taken the transport over.
            self._transport.pause_reading()
            self._waiting = True
            self._say(b"220 2.0.0 Ready to start TLS")
            if mode == "inject":
                self._say(b"250 2.0.0 injected in plain text")
            # What was pipelined behind STARTTLS in clear must not be taken for something said under TLS.
            self._at = len(self._buffer)
            self._flush()
            self._upgrade = asyncio.get_running_loop().create_task(self._start_tls(context))

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport, self, context, server_side=True
            )
        except (OSError, asyncio.CancelledError):
            # The client gave up the handshake; the transport is closed with it.
            self._over = True
            self._sink.left(self)
            return
        if transport is None:
            return
        self._transport = transport
        self._upgrade = None
        self._tls = True
        self._sink.stats.tls_sessions += 1
        # RFC 3207: forget everything learned before.
        self._greeted = False
        self._user = None
        self._transaction = None
        self._waiting = False
        self._work()

    def _auth(self, argument: bytes) -> None:
        options = self._sink.options
        mechanism, _, initial = argument.partition(b" ")
        mechanism = mechanism.upper()
        if options.credentials is None:
            self._say(b"502 5.5.1 AUTH not offered")
        elif options.auth_needs_tls and not self._tls:
            self._say(b"538 5.7.11 Encryption required for requested authentication mechanism")
        elif not self._greeted or self._user is not None or self._transaction is not None:
            self._say(b"503 5.5.1 Not now")
        elif mechanism == b"PLAIN":
            if initial:
                self._auth_plain(initial)
            else:
                self._prompt(b"334 ", self._auth_plain)
        elif mechanism == b"LOGIN":
            if initial:
                self._auth_login_name(initial)
            else:
                self._prompt(b"334 VXNlcm5hbWU6", self._auth_login_name)
        else:
            self._say(b"504 5.5.4 Unrecognized authentication type")

    def _prompt(self, challenge: bytes, then: Callable[[bytes], None]) -> None:
        self._out.append(challenge + b"\r\n")
        self._prompted = then

    def _auth_plain(self, response: bytes) -> None:
        parts = _decoded(response)
        fields = parts.split(b"\0") if parts is not None else []
        if len(fields) != 3:
            self._say(b"501 5.5.2 Cannot decode response")
        else:
            self._login(fields[1], fields[2])

    def _auth_login_name(self, response: bytes) -> None:
        name = _decoded(response)
        if name is None:
            self._say(b"501 5.5.2 Cannot decode response")
            return

        def password_given(answer: bytes) -> None:
            password = _decoded(answer)
            if password is None:
                self._say(b"501 5.5.2 Cannot decode response")
            else:
                self._login(name, password)

        self._prompt(b"334 UGFzc3dvcmQ6", password_given)

    def _login(self, name: bytes, password: bytes) -> None:
        self._sink.stats.auth_attempts += 1
        credentials = self._sink.options.credentials or {}
        user = _text(name)
        if self._sink.behaviour.mail.auth_failure:
            self._say(b"454 4.7.0 Temporary authentication failure")
        elif user in credentials and credentials[user] == _text(password):
            self._user = user
            self._sink.stats.auth_successes += 1
            self._say(b"235 2.7.0 Authentication successful")
        else:
            self._say(b"535 5.7.8 Authentication credentials invalid")

    # The message

    def _end_of_message(self, transaction: _Transaction, content: bytes, too_big: bool) -> None:
        sink, mail = self._sink, self._sink.behaviour.mail
        message_id, reference = _ids(content)

        def store() -> None:
            self._store(transaction, content, message_id, reference)

        if problem := self._content_problem(content, too_big):
            sink.stats.refused_messages += 1
            self._say(problem)
            return
        if not sink.rate.allows(mail.throttle_per_s):
            sink.stats.throttled += 1
            self._say(b"454 Throttling failure: Maximum sending rate exceeded")
            return
        reply, magic, recipient = b"250 2.0.0 Ok: queued", None, ""
        if transaction.magic is not None:
            magic, recipient = transaction.magic
            reply = magic.reply.replace("\n", "\r\n").encode() or reply
            if magic.act is Act.REPLY_ONCE:
                if sink.first_time("final", recipient, message_id):
                    sink.stats.refused_messages += 1
                    self._say(reply)
                    return
                reply, magic = b"250 2.0.0 Ok: queued", None
            elif not magic.stored:
                sink.stats.refused_messages += 1
                self._say(reply)
                if magic.act is Act.CLOSE:
                    self._finish_line()
                return
            elif magic.act is Act.WAIT_THEN_STORE:
                self._say_after(seconds_for(magic, recipient), reply, first=store)
                return
        store()
        if mail.hang == "reply" or (
            magic is not None and magic.act is Act.SILENCE and magic.at is At.FINAL
        ):
            self._waiting = True
        elif (transaction.doomed and mail.drop_at == "reply") or (
            magic is not None and magic.act is Act.RESET
        ):
            self._reset()
        elif magic is not None and magic.act is Act.WAIT:
            self._say_after(mail.slow_s + seconds_for(magic, recipient), reply)
        elif mail.slow_s:
            self._say_after(mail.slow_s, reply)
        else:
            self._hang_on_quit |= magic is not None and magic.at is At.QUIT
            self._say(reply)

    def _content_problem(self, content: bytes, too_big: bool) -> bytes | None:
        if too_big:
            return b"552 5.3.4 Message too big for system"
        if not (content.count(b"\n") == content.count(b"\r\n") == content.count(b"\r")):
            return b"550 5.5.2 Bare CR or LF in message"
        if not self._sink.options.eight_bit_mime and not content.isascii():
            return b"554 5.6.1 Message has 8-bit content and 8BITMIME is not offered"
        return None

    def _store(
        self, transaction: _Transaction, content: bytes, message_id: str, reference: str
    ) -> None:
        self._sink.stats.messages += 1
        envelope = {"mail_from": transaction.sender}
        if transaction.options:
            envelope["options"] = transaction.options
        if self._tls:
            envelope["tls"] = "yes"
        if self._user is not None:
            envelope["user"] = self._user
        for position, recipient in enumerate(transaction.recipients):
            self._sink.inbox.record(
                Channel.EMAIL,
                to=recipient,
                sender=transaction.sender,
                message_id=message_id,
                reference=reference,
                content=content,
                envelope=envelope,
                further_recipient=position > 0,
            )

    _OTHERS: ClassVar[Mapping[bytes, Callable[["SmtpSession", bytes], None]]] = {
        b"EHLO": _ehlo,
        b"HELO": _helo,
        b"RSET": _rset,
        b"NOOP": _noop,
        b"VRFY": _vrfy,
        b"QUIT": _quit,
        b"STARTTLS": _starttls,
        b"AUTH": _auth,
    }


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _decoded(response: bytes) -> bytes | None:
    """A base64 answer; None if it is none, or the `*` that cancels."""
    try:
        return base64.b64decode(response.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _ids(content: bytes) -> tuple[str, str]:
    """Message-ID and our reference, unfolded; empty when absent."""
    end = content.find(b"\r\n\r\n")
    head = content if end < 0 else content[: end + 2]
    return _header(_MESSAGE_ID, head), _header(_REFERENCE, head)


def _header(pattern: re.Pattern[bytes], head: bytes) -> str:
    found = pattern.search(head)
    return _text(b" ".join(found[1].split())) if found else ""
