"""Many mails over a few kept connections: the campaign's SMTP client, on a bare asyncio Protocol.

With PIPELINING, a mail costs one write and one read: behind the final dot of one go MAIL, RCPT and DATA of the next (RFC 2920).
Without it the same state machine goes in lock-step. Either way each mail's phase is exact: what the relay's silence means
depends on it, and on nothing else.
"""

import asyncio
import base64
import hmac
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from schemas.kinds import FaultScope, MessageClass
from schemas.outcomes import CallOutcome, Failed
from sendloom.ports import WireMail
from sendloom.providers.mime import END
from sendloom.providers.smtp_replies import (
    PROVIDER,
    Phase,
    accepted,
    classify,
    enhanced_of,
    unanswered,
    unreachable,
)
from sendloom.providers.smtp_session import (
    Extensions,
    LoginGate,
    SmtpAccount,
    SmtpTimeouts,
    path_refusal,
)
from sendloom.providers.verdicts import not_called

log = logging.getLogger(__name__)

STAGED: Final = 64 * 1024
"""A longer body is written first and its dot only when the body has left, so that a loss on the way is a known failure."""
REPLY_MAX: Final = 64 * 1024
NUL: Final = "\0"
QUIT_SECONDS: Final = 1.0
BARREN_MAX: Final = 3
"""One mail may break a connection (a poisonous recipient); three new ones in a row say that it is the relay."""
DOUBTS_MAX: Final = 10
"""So many unanswered dots in a row, and what is still queued is better not sent now."""
TICK_SECONDS: Final = 1.0
"""How often a busy connection looks at its deadline: one timer, not one a reply."""
_REOPEN_SECONDS: Final = (1.0, 30.0)
"""After a failed opening, while other connections carry on: first and longest pause."""

_ROUND: Final = 5
"""Lines of four replies, the empty one behind them too."""
_NO_LINES: Final[list[bytes]] = []
# Looked up in an enum's class on every reply they would cost more than the comparison.
_MAIL, _RCPT, _DATA, _BODY, _DOT = Phase.MAIL, Phase.RCPT, Phase.DATA, Phase.BODY, Phase.DOT


class PipelineMailer:
    """A relay account for one lane: up to `connections` kept connections, shared by all its batches.

    `may_call` must be a mere look, cheap and repeatable: it is asked before a mail's commands and again before its body.
    A cancelled `send_batch` still answers: what has not been called is `not_called`.
    """

    def __init__(
        self,
        account: SmtpAccount,
        *,
        connections: int = 10,
        timeouts: SmtpTimeouts | None = None,
        name: str = PROVIDER,
        login_gate: LoginGate | None = None,
    ) -> None:
        self.name = name
        self.account = account
        self.timeouts = timeouts or SmtpTimeouts()
        self.gate = login_gate or LoginGate()
        self._ssl = account.ssl_context() if account.tls != "none" else None
        self._most = connections
        self._queue: deque[_Job] = deque()
        self._live: set[_Connection] = set()
        self._idle: set[_Connection] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self._batches: set[_Batch] = set()
        self._reopen_at = 0.0
        self._reopen_pause = _REOPEN_SECONDS[0]
        self._closed = False
        self.doubts = 0
        """Mails in a row whose dot was not answered."""
        self.barren = 0
        """New connections in a row that broke under their first mail."""

    async def send_batch(
        self,
        mails: Sequence[WireMail],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        """One outcome per mail, in order."""
        if not mails:
            return []
        batch = _Batch(len(mails), self.timeouts.final_reply[message_class], may_call)
        self._batches.add(batch)
        for index, mail in enumerate(mails):
            if (refusal := path_refusal(mail, self.name)) is not None:
                batch.settle(index, refusal)
            else:
                self._queue.append(_Job(mail, index, batch))
        if self._closed:
            self._forget(lambda job: True)
        self._pump()
        while not batch.done.done():
            try:
                await asyncio.shield(batch.done)
            except asyncio.CancelledError:
                # Whoever cancels wants to stop soon, and to know: what is in flight is finished, nothing else is begun.
                batch.cancelled = True
                self._forget(lambda job: job.batch.cancelled)
        self._batches.discard(batch)
        return [outcome or not_called(self.name) for outcome in batch.outcomes]

    async def close(self) -> None:
        """Begins nothing more, waits for what is in flight, says goodbye."""
        self._closed = True
        self._forget(lambda job: True)
        await asyncio.gather(*(asyncio.shield(batch.done) for batch in self._batches))
        for opening in list(self._openings):
            opening.cancel()
        await asyncio.gather(*self._openings, return_exceptions=True)
        await asyncio.gather(*(connection.quit() for connection in list(self._live)))

    # --- what connections call

    def take(self, connection: "_Connection") -> "_Job | None":
        """The next mail that may be called and that this connection can carry."""
        queue = self._queue
        while queue:
            job = queue.popleft()
            if not job.batch.may_begin():
                job.settle(not_called(self.name))
            elif (refusal := connection.extensions.refusal(job.mail, self.name)) is not None:
                job.settle(refusal)
            else:
                return job
        return None

    def put_back(self, job: "_Job") -> None:
        """Nothing of it was taken; it goes first on whatever connection is next."""
        self._queue.appendleft(job)

    def resting(self, connection: "_Connection") -> None:
        self._idle.add(connection)

    def gone(self, connection: "_Connection", fault: CallOutcome | None) -> None:
        """`fault`: it broke under its first mail, before that was taken."""
        self._live.discard(connection)
        self._idle.discard(connection)
        if fault is not None:
            self.barren += 1
        if fault is not None and self.barren >= BARREN_MAX:
            self.barren = 0
            self._unopened(fault)
        elif self.doubts >= DOUBTS_MAX:
            # It takes mails and never says so. What waits must not follow them into doubt.
            self.doubts = 0
            self._settle_all(unanswered(Phase.MAIL, "relay_unstable", provider=self.name))
        self._pump()

    # ---

    def _pump(self) -> None:
        """Gives queued mails to idle connections, and opens more while there are mails for them."""
        now = asyncio.get_running_loop().time()
        while self._queue and self._idle:
            connection = self._idle.pop()
            if now - connection.used < self.account.idle.total_seconds():
                connection.begin()
            else:
                connection.drop()  # its own `gone` comes back here
        while self._queue and not self._queue[0].batch.may_begin():
            self._queue.popleft().settle(not_called(self.name))
        room = self._most - len(self._live) - len(self._openings)
        if self._closed or (now < self._reopen_at and (self._live or self._openings)):
            return  # one opening has just failed: those that carry, or still open, go on alone
        for _ in range(min(room, len(self._queue) - len(self._openings))):
            opening = asyncio.create_task(self._open())
            self._openings.add(opening)
            opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._openings.discard(opening)
        if not opening.cancelled() and (bug := opening.exception()) is not None:
            log.error("opening an SMTP connection failed unexpectedly", exc_info=bug)
            self._unopened(unanswered(Phase.CONNECT, type(bug).__name__, provider=self.name))
        self._pump()

    async def _open(self) -> None:
        outcome = self.gate.blocked()
        connection = _Connection(self, self._ssl)
        if outcome is None:
            outcome = await connection.open()
        if outcome is None:
            self._reopen_pause = _REOPEN_SECONDS[0]
            self._live.add(connection)
            connection.begin()
            return
        log.warning("no SMTP connection", extra={"provider": self.name, "code": outcome.code})
        connection.drop()
        task = asyncio.current_task()
        assert task is not None
        self._openings.discard(task)
        self._unopened(outcome)

    def _unopened(self, outcome: CallOutcome) -> None:
        """With nobody left to carry them, all waiting mails share the reason. Whoever sent them decides when to try again."""
        self._reopen_at = asyncio.get_running_loop().time() + self._reopen_pause
        self._reopen_pause = min(self._reopen_pause * 2, _REOPEN_SECONDS[1])
        if not self._live and not self._openings:
            self._settle_all(outcome)

    def _settle_all(self, outcome: CallOutcome) -> None:
        while self._queue:
            self._queue.popleft().settle(outcome)

    def _forget(self, which: "Callable[[_Job], bool]") -> None:
        kept = deque[_Job]()
        for job in self._queue:
            if which(job):
                job.settle(not_called(self.name))
            else:
                kept.append(job)
        self._queue = kept


class _Batch:
    """One `send_batch` in progress."""

    __slots__ = (
        "_allowed_at",
        "_left",
        "_loop",
        "_may_call",
        "cancelled",
        "done",
        "final_reply",
        "outcomes",
    )

    def __init__(self, size: int, final_reply: float, may_call: Callable[[], bool]) -> None:
        self.outcomes: list[CallOutcome | None] = [None] * size
        self.final_reply = final_reply
        self._loop = asyncio.get_running_loop()
        self.done = self._loop.create_future()
        self.cancelled = False
        self._allowed_at = -1.0
        self._left = size
        self._may_call = may_call

    def may_go(self) -> bool:
        """Asked before a body."""
        if self.cancelled:
            return False
        try:
            if self._may_call():
                self._allowed_at = self._loop.time()
                return True
        except Exception:
            log.exception("may_call failed; nothing is called")
        return False

    def may_begin(self) -> bool:
        """Asked before a mail's commands, which its body's question follows: a yes of this very round of events will do."""
        return not self.cancelled and (self._loop.time() == self._allowed_at or self.may_go())

    def settle(self, index: int, outcome: CallOutcome) -> None:
        self.outcomes[index] = outcome
        self._left -= 1
        if not self._left:
            self.done.set_result(None)


class _Job:
    """One mail on its way through one transaction. Another try is another job."""

    __slots__ = ("batch", "index", "live", "mail", "phase", "plain")

    def __init__(self, mail: WireMail, index: int, batch: _Batch, *, plain: bool = False) -> None:
        self.mail = mail
        self.index = index
        self.batch = batch
        self.plain = plain
        """Without ESMTP parameters: the relay did not like them."""
        self.phase = _MAIL
        self.live = True
        """No outcome yet, and not put back."""

    def settle(self, outcome: CallOutcome) -> None:
        self.live = False
        self.batch.settle(self.index, outcome)

    def again(self, *, plain: bool) -> "_Job":
        self.live = False
        return _Job(self.mail, self.index, self.batch, plain=plain)


_Step = tuple[Phase, _Job | None]
"""A reply that is due: what it answers, and for which mail. None: for none, it only has to come."""


class _Connection(asyncio.Protocol):
    """One connection. Opens with questions and answers; then replies drive it, without a task of its own."""

    def __init__(self, mailer: PipelineMailer, context: ssl.SSLContext | None) -> None:
        self.extensions = Extensions()
        self.used = 0.0
        self._mailer = mailer
        self._ssl = context
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._lines: list[bytes] = []
        self._usual = b""
        """How this relay last said yes to MAIL, RCPT and DATA that went out behind a dot. Most mails are answered so."""
        self._asked: asyncio.Future[tuple[int, str]] | None = None
        self._unasked: deque[tuple[int, str]] = deque()
        """Replies that nobody waits for yet: the greeting may be early, anything else is amiss."""
        self._carrying = False
        """Open and in the mailer's hands."""
        self._count = 0
        """Mails whose dot was answered here."""
        self._due: deque[_Step] = deque()
        self._dirty = False
        """The relay still holds an unfinished transaction."""
        self._behind_dot = 0
        """Octets written after the last dot."""
        self._paused = False
        self._staged: _Job | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._quitting = False
        self._said_goodbye = False
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by class

    def connection_lost(self, exc: Exception | None) -> None:
        self._break("connection_lost")
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._staged is not None:
            job, self._staged = self._staged, None
            self._write_dot(job, b"")

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if not data.endswith(b"\n"):
            end = data.rfind(b"\n") + 1
            self._buffer = data[end:]
            data = data[:end]
            if len(self._buffer) > REPLY_MAX:
                self._break("garbled_reply")
                return
        lines = data.split(b"\n")
        if len(lines) == _ROUND and self._is_a_round():
            if data.endswith(self._usual) and self._takes_as_usual(lines[0]):
                self._expect()
                return
            if [line[:4] for line in lines[1:4]] == [b"250 ", b"250 ", b"354 "]:
                self._usual = b"\n".join(lines[1:])
        for line in lines:
            if self._transport is None:
                return
            if not line:
                continue
            if line[3:4] == b"-":
                self._lines.append(line)
                if len(self._lines) > 1_000:
                    self._break("garbled_reply")
                continue
            if not line[:3].isdigit():
                self._break("garbled_reply")
                return
            self._reply(int(line[:3]), line)
        if self._carrying and self._transport is not None:
            self._expect()

    def _is_a_round(self) -> bool:
        """What is due answers one mail's dot and the next mail's MAIL, RCPT and DATA."""
        due = self._due
        if len(due) != 4 or self._lines or self._said_goodbye or not self._carrying:
            return False
        (phase, job), (_, following) = due[0], due[1]
        return (
            phase is _DOT
            and job is not None
            and job.live
            and following is not None
            and following.live
            and due[3] == (_DATA, following)
        )

    def _takes_as_usual(self, line: bytes) -> bool:
        """The four replies of a round of which only the first may differ. False: it does not say that the mail was taken."""
        if line[:4] != b"250 " or not self._usual:
            return False
        due = self._due
        taken, following = due[0][1], due[1][1]
        assert taken is not None
        assert following is not None
        due.clear()
        self._count += 1
        self._mailer.doubts = self._mailer.barren = 0
        taken.settle(
            accepted(
                _text(_NO_LINES, line), provider=self._mailer.name, else_id=taken.mail.reference
            )
        )
        following.phase = _DATA
        self._dirty = True
        self._content(following)
        return True

    def _expect(self) -> None:
        """After replies: the next mail, or until when the next reply may take."""
        if self._transport is None:
            return
        if not self._due:
            self.begin()
            return
        phase, job = self._due[0]
        wait = self._mailer.timeouts.command
        if phase is _DOT and job is not None:
            wait = job.batch.final_reply
        elif phase is _BODY:
            wait *= 2
        self._deadline = self._loop.time() + wait

    # --- opening

    async def open(self) -> Failed | None:
        """Greeted, protected and logged in; or why not, which is never a recipient's fault."""
        mailer, account = self._mailer, self._mailer.account
        phase = Phase.CONNECT
        try:
            async with asyncio.timeout(mailer.timeouts.connect):
                await self._loop.create_connection(
                    lambda: self,
                    account.host,
                    account.port,
                    ssl=self._ssl if account.tls == "implicit" else None,
                )
                phase = Phase.GREETING
                code, text = await self._ask(None)
                if code != 220:
                    return self._refused(phase, code, text)
                phase = Phase.EHLO
                if (failed := await self._hello()) is not None:
                    return failed
                if account.tls == "starttls":
                    phase = Phase.STARTTLS
                    if (failed := await self._start_tls()) is not None:
                        return failed
                    phase = Phase.EHLO
                    if (failed := await self._hello()) is not None:
                        return failed
            if account.username is not None:
                # While the password is unproven connections take turns, so this has its own time.
                phase = Phase.AUTH
                async with asyncio.timeout(3 * mailer.timeouts.command):
                    if (failed := await mailer.gate.attempt(self._login)) is not None:
                        return failed
        except _Unanswered as lost:
            return unanswered_session(phase, lost.code, mailer.name)
        except OSError as error:
            return unreachable(error, provider=mailer.name)
        if self._transport is None:
            return unanswered_session(phase, "connection_lost", mailer.name)
        self._carrying = True
        return None

    async def _ask(self, line: str | None) -> tuple[int, str]:
        """The reply to one command, or to nothing: the greeting."""
        if self._transport is None:
            raise _Unanswered("connection_lost")
        if line is None and self._unasked:
            return self._unasked.popleft()
        if self._unasked:
            raise _Unanswered("unexpected_reply")
        self._asked = self._loop.create_future()
        if line is not None:
            self._transport.write(line.encode("ascii") + b"\r\n")
        return await self._asked

    async def _hello(self) -> Failed | None:
        name = self._mailer.account.local_hostname
        code, text = await self._ask(f"EHLO {name}")
        if code in (500, 502):
            code, text = await self._ask(f"HELO {name}")
            text = ""
        if code != 250:
            return self._refused(Phase.EHLO, code, text)
        self.extensions = Extensions.parse(text)
        return None

    async def _start_tls(self) -> Failed | None:
        if not self.extensions.starttls:
            return self._misconfigured("starttls_not_offered")
        code, text = await self._ask("STARTTLS")
        if code != 220:
            return self._refused(Phase.STARTTLS, code, text)
        if self._unasked or self._buffer or self._lines:
            # What came in clear behind the 220 could be anybody's words.
            raise _Unanswered("plaintext_after_starttls")
        transport = self._transport
        if transport is None or self._ssl is None:
            raise _Unanswered("connection_lost")
        protected = await self._loop.start_tls(
            transport, self, self._ssl, server_hostname=self._mailer.account.host
        )
        if protected is None:
            raise _Unanswered("connection_lost")
        self._transport = protected
        self.extensions = Extensions()
        return None

    async def _login(self) -> Failed | None:
        """One try with one mechanism: trying all of them would be several failed logins."""
        account = self._mailer.account
        user = account.username or ""
        password = account.password.get_secret_value() if account.password else ""
        offered = self.extensions.auth
        if "PLAIN" in offered:
            code, text = await self._ask(f"AUTH PLAIN {_b64(NUL + user + NUL + password)}")
        elif "LOGIN" in offered:
            code, text = await self._ask("AUTH LOGIN")
            for answer in (user, password):
                if code == 334:
                    code, text = await self._ask(_b64(answer))
        elif "CRAM-MD5" in offered:
            code, text = await self._ask("AUTH CRAM-MD5")
            if code == 334:
                challenge = base64.b64decode(text)
                digest = hmac.new(password.encode(), challenge, "md5").hexdigest()
                code, text = await self._ask(_b64(f"{user} {digest}"))
        else:
            return self._misconfigured("auth_not_offered")
        return None if code == 235 else self._refused(Phase.AUTH, code, text)

    def _refused(self, phase: Phase, code: int, text: str) -> Failed:
        outcome = classify(phase, code, enhanced_of(code, text), text, provider=self._mailer.name)
        assert isinstance(outcome, Failed)  # no row of a session's phases rejects
        return outcome

    def _misconfigured(self, code: str) -> Failed:
        return Failed(provider=self._mailer.name, code=code, scope=FaultScope.SENDER)

    # --- carrying mails

    def begin(self) -> None:
        """Starts the next mail, or rests."""
        transport = self._transport
        if transport is None:
            return
        if self._quitting or self._count >= self._mailer.account.messages_per_connection:
            self._say_goodbye()
            return
        if self._dirty and not self.extensions.pipelining:
            self._dirty = False
            self._due.append((_MAIL, None))
            self._deadline = self._loop.time() + self._mailer.timeouts.command
            transport.write(b"RSET\r\n")
            self._watch()
            return
        job = self._mailer.take(self)
        if job is None:
            self.used = self._loop.time()
            self._mailer.resting(self)
            return
        self._deadline = self._loop.time() + self._mailer.timeouts.command
        transport.write(self._commands(job))
        self._watch()

    def _commands(self, job: _Job) -> bytes:
        """All that may go in one write for a new transaction; its replies are then due."""
        mail = job.mail
        parameters = "" if job.plain else self.extensions.mail_parameters(mail)
        due = self._due
        reset = ""
        if self._dirty:
            self._dirty = False
            reset = "RSET\r\n"
            due.append((_MAIL, None))
        due.append((_MAIL, job))
        if not self.extensions.pipelining:
            return f"{reset}MAIL FROM:<{mail.envelope_from}>{parameters}\r\n".encode("ascii")
        due.append((_RCPT, job))
        due.append((_DATA, job))
        return (
            f"{reset}MAIL FROM:<{mail.envelope_from}>{parameters}\r\n"
            f"RCPT TO:<{mail.envelope_to}>\r\nDATA\r\n"
        ).encode("ascii")

    def _reply(self, code: int, line: bytes) -> None:
        """One whole reply, `line` its last line."""
        if not self._carrying or self._said_goodbye:
            self._answer(code, line)
            return
        lines, self._lines = self._lines, []
        if not self._due:
            # 421 of an idle relay; anything else would answer nothing, so the dialogue is out of step.
            self._break("421" if code == 421 else "unexpected_reply")
            return
        phase, job = self._due.popleft()
        if code == 421:
            self._closing(phase, job, _text(lines, line))
            return
        if job is None:
            if code // 100 != 2:
                self._break("unexpected_reply")
                return
        elif phase is _DOT:
            if job.live:
                self._count += 1
                self._mailer.doubts = self._mailer.barren = 0
                if 200 <= code < 300:
                    outcome: CallOutcome = accepted(
                        _text(lines, line), provider=self._mailer.name, else_id=job.mail.reference
                    )
                    job.settle(outcome)
                else:
                    self._refuse(job, phase, code, _text(lines, line))
        elif not job.live:
            if phase is _DATA and code == 354:
                # Every recipient was refused, yet it waits for a body: just the dot (RFC 2920).
                self._dirty = False
                self._due.append((_DOT, job))
                self._write(END)
        elif phase is _MAIL:
            if code // 100 == 2:
                job.phase = _RCPT
                self._dirty = True
                if not self.extensions.pipelining:
                    self._due.append((_RCPT, job))
                    self._write(f"RCPT TO:<{job.mail.envelope_to}>\r\n".encode("ascii"))
            elif code in (455, 555) and not job.plain and job.mail.data.isascii():
                self._mailer.put_back(job.again(plain=True))
            else:
                self._refuse(job, phase, code, _text(lines, line))
        elif phase is _RCPT:
            if code // 100 == 2:
                job.phase = _DATA
                if not self.extensions.pipelining:
                    self._due.append((_DATA, job))
                    self._write(b"DATA\r\n")
            else:
                self._refuse(job, phase, code, _text(lines, line))
        elif phase is _DATA:
            if code == 354:
                self._content(job)
            else:
                self._refuse(job, phase, code, _text(lines, line))
        else:  # BODY: it spoke before our dot, so it has not taken the mail, and the dialogue is out of step
            self._refuse(job, phase, code, _text(lines, line))
            self._break("unexpected_reply")

    def _content(self, job: _Job) -> None:
        """The body, the dot, and the next mail's commands, in one write."""
        if not job.batch.may_go():
            # The relay waits for a body; only hanging up takes the DATA back.
            job.settle(not_called(self._mailer.name))
            self._break("not_called")
            return
        data = job.mail.data
        transport = self._transport
        if transport is None or len(data) < STAGED:
            self._write_dot(job, data)
            return
        job.phase = _BODY
        self._due.append((_BODY, job))
        transport.set_write_buffer_limits(high=0)
        transport.write(data)
        if self._paused:
            self._staged = job
        elif transport.is_closing():
            self._break("connection_lost")
        else:
            self._write_dot(job, b"")

    def _write_dot(self, job: _Job, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if job.phase is _BODY:
            self._due.popleft()
        job.phase = _DOT
        self._due.append((_DOT, job))
        self._dirty = False
        behind = b""
        if (
            self.extensions.pipelining
            and self._count + 1 < self._mailer.account.messages_per_connection
            and not self._quitting
            and (following := self._mailer.take(self)) is not None
        ):
            behind = self._commands(following)
        self._behind_dot = len(behind)
        self._deadline = self._loop.time() + job.batch.final_reply
        transport.write(b"".join((data, END, behind)))
        if self._ssl is None and transport.is_closing():
            job.phase = _BODY  # the kernel would not take it
            self._break("connection_lost")

    def _refuse(self, job: _Job, phase: Phase, code: int, text: str) -> None:
        outcome = classify(phase, code, enhanced_of(code, text), text, provider=self._mailer.name)
        job.settle(outcome)
        if not 400 <= code < 600:
            self._break("unexpected_reply")

    # --- ending

    def _closing(self, phase: Phase, job: _Job | None, text: str) -> None:
        """421: an answer for the mail it answers, if that was more than `you have had your share` (C50)."""
        fault = None
        if job is not None and job.live and (phase in (_BODY, _DOT) or not self._count):
            outcome = classify(phase, 421, enhanced_of(421, text), text, provider=self._mailer.name)
            job.settle(outcome)
            fault = None if self._count else outcome
        self._due.appendleft((phase, job))
        self._break("421", fault)

    def _break(self, code: str, fault: CallOutcome | None = None) -> None:
        """The dialogue is over: every mail in flight gets its outcome, or another connection."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        unsent = self._ssl is None and transport.get_write_buffer_size() > self._behind_dot
        transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._staged = None
        self._buffer = b""
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(_Unanswered(code))
        provider = self._mailer.name
        for _, job in reversed(self._due):
            if job is None or not job.live:
                continue
            if job.phase is _DOT and not (unsent and code == "reply_timeout"):
                self._mailer.doubts += 1
                job.settle(unanswered(_DOT, code, provider=provider))
            elif job.phase in (_DOT, _BODY):
                job.settle(unanswered(_BODY, code, provider=provider))
            elif (self._count and code != "reply_timeout") or self._behind(job):
                # The relay has hung up between mails. Nothing was taken: another connection, at once.
                self._mailer.put_back(job.again(plain=job.plain))
            else:
                fault = unanswered(job.phase, code, provider=provider)
                job.settle(fault)
        self._due.clear()
        if self._carrying:
            self._carrying = False
            self._mailer.gone(self, fault if not self._count else None)

    def _behind(self, job: _Job) -> bool:
        """Its commands stand behind another mail's dot, so it was never its turn."""
        return any(phase is _DOT for phase, _ in self._due) and job.phase is _MAIL

    def drop(self) -> None:
        """Hangs up."""
        self._break("dropped")

    def _say_goodbye(self) -> None:
        self._quitting = self._said_goodbye = True
        self._write(b"QUIT\r\n")
        self._deadline = self._loop.time() + QUIT_SECONDS
        self._due.append((_MAIL, None))
        self._watch()

    async def quit(self) -> None:
        """A polite goodbye; what was taken stays taken whatever comes of it (C14)."""
        if self._transport is None:
            return
        self._quitting = True
        if not self._due:
            self._say_goodbye()
        await self._closed

    def _answer(self, code: int, line: bytes) -> None:
        """A reply outside of the carrying of mails: to a question of the opening, or to QUIT."""
        lines, self._lines = self._lines, []
        if self._said_goodbye:
            self._due.clear()
            self._break("quit")
        elif self._asked is not None and not self._asked.done():
            self._asked.set_result((code, _text(lines, line)))
        else:
            self._unasked.append((code, _text(lines, line)))

    # --- small things

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _watch(self) -> None:
        """Looks at the deadline now and then, while a reply is due."""
        if self._timer is None:
            tick = min(TICK_SECONDS, self._mailer.timeouts.command)
            self._timer = self._loop.call_later(tick, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._due:
            return
        if self._loop.time() < self._deadline:
            self._watch()
        else:
            self._break("reply_timeout")


class _Unanswered(Exception):
    """The relay did not answer a question of the opening."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def unanswered_session(phase: Phase, code: str, provider: str) -> Failed:
    outcome = unanswered(phase, code, provider=provider)
    assert isinstance(outcome, Failed)  # only the dot makes it unknown
    return outcome


def _text(lines: list[bytes], last: bytes) -> str:
    """All lines of a reply without their codes."""
    if not lines:
        return last[4:].decode("ascii", "replace").rstrip()
    return "\n".join(part[4:].decode("ascii", "replace").rstrip() for part in (*lines, last))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8")).decode("ascii")
