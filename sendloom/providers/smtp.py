"""One mail at a time over SMTP, on aiosmtplib, for notifications and passcodes. Campaigns use `smtp_pipeline`.

The dialogue is driven command by command, because what silence means depends on how far it came: nothing is taken until the
final dot may have left, and from then on nobody knows until the relay says so.
"""

import asyncio
import logging
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import aiosmtplib
from aiosmtplib.errors import (
    SMTPAuthenticationError,
    SMTPConnectResponseError,
    SMTPException,
    SMTPHeloError,
    SMTPResponseException,
    SMTPTimeoutError,
)
from aiosmtplib.protocol import SMTPProtocol

from schemas.kinds import FaultScope, MessageClass
from schemas.messages import Outbound, OutboundEmail
from schemas.outcomes import Accepted, CallOutcome, Failed
from sendloom.ports import WireMail
from sendloom.providers.mime import END, Unmailable, build, envelope, stuff
from sendloom.providers.smtp_replies import (
    PROVIDER,
    Phase,
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
    unmailable,
)
from sendloom.providers.verdicts import not_called

log = logging.getLogger(__name__)

_UNSAID: Final = frozenset({Phase.MAIL, Phase.RCPT, Phase.DATA})
"""Not a byte of the message has been sent yet."""
QUIT_SECONDS: Final = 1.0
"""A polite goodbye; what was taken stays taken whatever comes of it (C14)."""


class _Lost(Exception):
    """No usable reply: the connection, the time or the relay's grammar ran out."""

    def __init__(self, phase: Phase, code: str) -> None:
        super().__init__(code)
        self.phase = phase
        self.code = code


class _NoSession(Exception):
    """A connection could not be made ready; says why."""

    def __init__(self, outcome: CallOutcome) -> None:
        super().__init__(outcome.kind)
        self.outcome = outcome


@dataclass(slots=True)
class _Call:
    """How far one call has come, for whoever has to give it up."""

    deadline: float
    """For everything before the final dot."""
    dot: bool = False


class SmtpProvider:
    """A relay account with kept connections, a bounded number for each class, so no class waits for another's.

    Waiting for a connection is nobody's failure and has no time-out (C49): a caller with a deadline cancels. A cancelled `send`
    still answers: `not_called` if the dot has not left, else what the relay says within its class's time.
    """

    def __init__(
        self,
        account: SmtpAccount,
        *,
        pool_size: int = 10,
        timeouts: SmtpTimeouts | None = None,
        name: str = PROVIDER,
        login_gate: LoginGate | None = None,
    ) -> None:
        self.name = name
        self._account = account
        self._timeouts = timeouts or SmtpTimeouts()
        self._ssl = account.ssl_context() if account.tls != "none" else None
        self._gate = login_gate or LoginGate()
        self._slots = {c: asyncio.Semaphore(pool_size) for c in MessageClass}
        self._idle: dict[MessageClass, deque[_Session]] = {c: deque() for c in MessageClass}
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._closed = False

    async def send(self, message: Outbound, message_class: MessageClass) -> CallOutcome:
        """One mail, one envelope recipient, one outcome."""
        if not isinstance(message, OutboundEmail):
            raise TypeError("SMTP carries email only")
        try:
            sender, recipient = envelope(message)
            mail = WireMail(message.reference, sender, recipient, stuff(build(message)))
        except Unmailable as refused:
            return unmailable(refused, self.name)
        call = _Call(deadline=0.0)
        task = asyncio.create_task(self._call(mail, message_class, call))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                # Whoever cancels wants to stop soon, and to know. Only before the dot can the call be taken back.
                if not call.dot:
                    task.cancel()
        outcome = not_called(self.name) if task.cancelled() else task.result()
        if isinstance(outcome, Accepted) and not outcome.provider_message_id:
            return outcome.model_copy(update={"provider_message_id": message.message_id})
        return outcome

    async def close(self) -> None:
        """Says goodbye on every idle connection; those in a call follow when it ends."""
        self._closed = True
        for sessions in self._idle.values():
            while sessions:
                self._retire(sessions.pop())
        await asyncio.gather(*self._goodbyes)

    async def _call(self, mail: WireMail, message_class: MessageClass, call: _Call) -> CallOutcome:
        if (refused := path_refusal(mail, self.name)) is not None:
            return refused
        try:
            async with self._slots[message_class]:
                call.deadline = asyncio.get_running_loop().time() + self._timeouts.before_dot
                return await self._deliver(mail, message_class, call)
        except asyncio.CancelledError:
            if call.dot:
                return unanswered(Phase.DOT, "cancelled", provider=self.name)
            return not_called(self.name)

    async def _deliver(
        self, mail: WireMail, message_class: MessageClass, call: _Call
    ) -> CallOutcome:
        kept = self._kept(message_class)
        try:
            session = kept or await self._open(call)
            try:
                return await self._transact(session, mail, message_class, call)
            except _Lost as lost:
                if kept is None or lost.phase not in _UNSAID or lost.code == "reply_timeout":
                    return unanswered(lost.phase, lost.code, provider=self.name)
            # The relay ends a session after so many messages, with 421 or without a word (C50). Nothing was taken: once
            # more, at once, on a new connection.
            session = await self._open(call)
            return await self._transact(session, mail, message_class, call)
        except _NoSession as none:
            return none.outcome
        except _Lost as lost:
            return unanswered(lost.phase, lost.code, provider=self.name)

    def _kept(self, message_class: MessageClass) -> "_Session | None":
        """The most recently used one that can still be trusted."""
        now = asyncio.get_running_loop().time()
        sessions = self._idle[message_class]
        while sessions:
            session = sessions.pop()
            if session.alive and now - session.used < self._account.idle.total_seconds():
                return session
            self._retire(session)
        return None

    async def _open(self, call: _Call) -> "_Session":
        if (blocked := self._gate.blocked()) is not None:
            raise _NoSession(blocked)
        session = _Session(self._account, self._timeouts, self._ssl, self.name)
        try:
            await session.open(self._gate, call.deadline)
        except BaseException:
            session.drop()
            raise
        return session

    async def _transact(
        self, session: "_Session", mail: WireMail, message_class: MessageClass, call: _Call
    ) -> CallOutcome:
        """One transaction, after which the connection is kept if it is still good."""
        try:
            outcome = await session.transact(mail, call, self._timeouts.final_reply[message_class])
        except BaseException:
            session.drop()
            raise
        session.used = asyncio.get_running_loop().time()
        worn = session.count >= self._account.messages_per_connection
        if session.alive and not worn and not self._closed:
            session.kept = True
            self._idle[message_class].append(session)
        else:
            self._retire(session)
        return outcome

    def _retire(self, session: "_Session") -> None:
        goodbye = asyncio.create_task(session.quit())
        self._goodbyes.add(goodbye)
        goodbye.add_done_callback(self._goodbyes.discard)


class _Session:
    """One connection: greeted, protected, logged in; then one transaction after another."""

    def __init__(
        self,
        account: SmtpAccount,
        timeouts: SmtpTimeouts,
        context: ssl.SSLContext | None,
        provider: str,
    ) -> None:
        self._account = account
        self._timeouts = timeouts
        self._ssl = context
        self._provider = provider
        self._client = aiosmtplib.SMTP(
            hostname=account.host,
            port=account.port,
            local_hostname=account.local_hostname,
            use_tls=account.tls == "implicit",
            start_tls=False,
            tls_context=context,
            timeout=timeouts.command,
        )
        self._extensions = Extensions()
        self._phase = Phase.CONNECT
        self._stale_transaction = False
        self.count = 0
        self.kept = False
        """It has been through a transaction: the relay may have had enough of it."""
        self.used = 0.0

    @property
    def alive(self) -> bool:
        return self._client.is_connected

    def drop(self) -> None:
        transport = self._client.transport
        self._client.close()
        if transport is not None:
            cast(asyncio.Transport, transport).abort()  # uvloop's are none by class

    async def quit(self) -> None:
        if self.alive:
            try:
                await self._client.quit(timeout=QUIT_SECONDS)
            except (SMTPException, OSError):
                log.debug("smtp connection closed without a goodbye")
        self.drop()

    # --- opening

    async def open(self, gate: LoginGate, deadline: float) -> None:
        """Raises:
        _NoSession: with the outcome, which is never a recipient's fault.
        """
        loop = asyncio.get_running_loop()
        within = min(self._timeouts.connect, max(deadline - loop.time(), 0.0))
        try:
            async with asyncio.timeout(within):
                self._phase = Phase.CONNECT
                await self._client.connect(timeout=None)
                await self._hello()
                if self._account.tls == "starttls":
                    await self._start_tls()
                    await self._hello()
        except SMTPConnectResponseError as refused:
            raise self._refused(Phase.GREETING, refused.code, refused.message) from refused
        except SMTPResponseException as garbled:
            raise _NoSession(
                unanswered(self._phase, "garbled_reply", provider=self._provider)
            ) from garbled
        except (SMTPException, OSError) as error:
            raise _NoSession(unreachable(error, provider=self._provider)) from error
        if self._account.username is not None:
            # Not under the time-out above: while the password is unproven, connections take turns.
            self._phase = Phase.AUTH
            try:
                async with asyncio.timeout_at(deadline):
                    failed = await gate.attempt(self._login)
            except TimeoutError as late:
                raise _NoSession(unreachable(late, provider=self._provider)) from late
            if failed is not None:
                raise _NoSession(failed)

    async def _hello(self) -> None:
        self._phase = Phase.EHLO
        self._extensions = Extensions()
        try:
            reply = await self._client.ehlo()
        except SMTPHeloError as refused:
            if refused.code not in (500, 502):
                raise self._refused(Phase.EHLO, refused.code, refused.message) from refused
            try:
                await self._client.helo()
            except SMTPHeloError as again:
                raise self._refused(Phase.EHLO, again.code, again.message) from again
        else:
            self._extensions = Extensions.parse(reply.message)

    async def _start_tls(self) -> None:
        self._phase = Phase.STARTTLS
        if not self._extensions.starttls:
            raise self._misconfigured("starttls_not_offered")
        reply = await self._client.execute_command(b"STARTTLS")
        if reply.code != 220:
            raise self._refused(Phase.STARTTLS, reply.code, reply.message)
        protocol = self._client.protocol
        transport = cast("asyncio.Transport | None", self._client.transport)
        if protocol is None or transport is None or self._ssl is None:
            raise _NoSession(unanswered(Phase.STARTTLS, "connection_lost", provider=self._provider))
        # aiosmtplib's own starttls throws such bytes away and goes on; RFC 3207 would have us hang up on an injection.
        if protocol._buffer:
            raise _NoSession(
                unanswered(Phase.STARTTLS, "plaintext_after_starttls", provider=self._provider)
            )
        protected = await asyncio.get_running_loop().start_tls(
            transport, protocol, self._ssl, server_hostname=self._account.host
        )
        if protected is None:
            raise ConnectionResetError("connection lost in the TLS handshake")
        self._client.transport = protocol.transport = protected

    async def _login(self) -> Failed | None:
        """One try with one mechanism: trying all of them would be several failed logins."""
        username = self._account.username or ""
        password = self._account.password.get_secret_value() if self._account.password else ""
        offered = self._extensions.auth
        timeout = self._timeouts.command
        try:
            if "PLAIN" in offered:
                await self._client.auth_plain(username, password, timeout=timeout)
            elif "LOGIN" in offered:
                await self._client.auth_login(username, password, timeout=timeout)
            elif "CRAM-MD5" in offered:
                await self._client.auth_crammd5(username, password, timeout=timeout)
            else:
                outcome = self._misconfigured("auth_not_offered").outcome
                assert isinstance(outcome, Failed)
                return outcome
        except SMTPAuthenticationError as refused:
            outcome = self._refused(Phase.AUTH, refused.code, refused.message).outcome
            assert isinstance(outcome, Failed)
            return outcome
        except (SMTPException, OSError) as error:
            return unreachable(error, provider=self._provider)
        return None

    def _refused(self, phase: Phase, code: int, text: str) -> _NoSession:
        return _NoSession(
            classify(phase, code, enhanced_of(code, text), text, provider=self._provider)
        )

    def _misconfigured(self, code: str) -> _NoSession:
        return _NoSession(Failed(provider=self._provider, code=code, scope=FaultScope.SENDER))

    # --- sending

    async def transact(self, mail: WireMail, call: _Call, final_reply: float) -> CallOutcome:
        """Raises:
        _Lost: no usable reply. A 421 to a command is one too: the relay has hung up.
        """
        if (refusal := self._extensions.refusal(mail, self._provider)) is not None:
            return refusal
        if self._stale_transaction:
            await self._command(Phase.MAIL, "RSET", call)
            self._stale_transaction = False
        sender = f"MAIL FROM:<{mail.envelope_from}>"
        parameters = self._extensions.mail_parameters(mail)
        code, text = await self._command(Phase.MAIL, sender + parameters, call)
        if code in (455, 555) and parameters and mail.data.isascii():
            code, text = await self._command(Phase.MAIL, sender, call)
        if code // 100 != 2:
            return self._settled(Phase.MAIL, code, text)
        self._stale_transaction = True
        code, text = await self._command(Phase.RCPT, f"RCPT TO:<{mail.envelope_to}>", call)
        if code // 100 != 2:
            return self._settled(Phase.RCPT, code, text)
        code, text = await self._command(Phase.DATA, "DATA", call)
        if code != 354:
            return self._settled(Phase.DATA, code, text)
        outcome = await self._content(mail, call, final_reply)
        self._stale_transaction = False
        self.count += 1
        return outcome

    async def _command(self, phase: Phase, line: str, call: _Call) -> tuple[int, str]:
        left = call.deadline - asyncio.get_running_loop().time()
        try:
            reply = await self._client.execute_command(
                line.encode("ascii"), timeout=max(min(self._timeouts.command, left), 0.0)
            )
        except SMTPTimeoutError as error:
            raise _Lost(phase, "reply_timeout") from error
        except SMTPResponseException as error:
            raise _Lost(phase, "garbled_reply") from error
        except (SMTPException, OSError) as error:
            raise _Lost(phase, "connection_lost") from error
        if reply.code == 421 and self.kept:
            raise _Lost(phase, "421")
        return reply.code, reply.message

    def _settled(self, phase: Phase, code: int, text: str) -> CallOutcome:
        outcome = classify(phase, code, enhanced_of(code, text), text, provider=self._provider)
        if code == 421 or not 400 <= code < 600:
            self.drop()
        return outcome

    async def _content(self, mail: WireMail, call: _Call, final_reply: float) -> CallOutcome:
        """The body and the dot, apart: only when all of the body has gone is the dot written, and the reply awaited."""
        loop = asyncio.get_running_loop()
        protocol = self._client.protocol
        transport = cast("asyncio.Transport | None", self._client.transport)
        if protocol is None or transport is None:
            raise _Lost(Phase.BODY, "connection_lost")
        transport.set_write_buffer_limits(high=0)
        reply = asyncio.create_task(protocol.read_response(timeout=None))
        try:
            transport.write(mail.data)
            drained = asyncio.create_task(_drained(protocol))
            await asyncio.wait(
                {drained, reply},
                timeout=max(call.deadline - loop.time(), 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            drained.cancel()
            if reply.done():
                return self._early(reply)
            if not drained.done():
                raise _Lost(Phase.BODY, "write_timeout")
            if transport.is_closing():
                raise _Lost(Phase.BODY, "connection_lost")
            call.dot = True
            transport.write(END)
            if self._ssl is None and transport.is_closing():
                raise _Lost(Phase.BODY, "connection_lost")  # the kernel would not take it
            await asyncio.wait({reply}, timeout=final_reply)
            if not reply.done():
                left = self._ssl is not None or transport.get_write_buffer_size() == 0
                raise _Lost(Phase.DOT if left else Phase.BODY, "reply_timeout")
            return self._final(reply)
        finally:
            if not reply.done():
                reply.cancel()
                self.drop()

    def _early(self, reply: "asyncio.Task[aiosmtplib.SMTPResponse]") -> CallOutcome:
        """The relay spoke before our dot: it has not taken the message, and the dialogue is out of step."""
        try:
            code, text = reply.result()
        except SMTPResponseException as error:
            raise _Lost(Phase.BODY, "garbled_reply") from error
        except (SMTPException, OSError) as error:
            raise _Lost(Phase.BODY, "connection_lost") from error
        outcome = self._settled(Phase.BODY, code, text)
        self.drop()
        return outcome

    def _final(self, reply: "asyncio.Task[aiosmtplib.SMTPResponse]") -> CallOutcome:
        try:
            code, text = reply.result()
        except SMTPResponseException as error:
            raise _Lost(Phase.DOT, "garbled_reply") from error
        except (SMTPException, OSError) as error:
            raise _Lost(Phase.DOT, "connection_lost") from error
        if code // 100 == 2:
            return classify(Phase.DOT, code, "", text, provider=self._provider)
        return self._settled(Phase.DOT, code, text)


async def _drained(protocol: SMTPProtocol) -> None:
    with suppress(OSError):  # the reply says it, too
        await protocol._drain_helper()
    # One turn of the loop, so that a connection that is already reset is seen before the dot is written.
    await asyncio.sleep(0)
