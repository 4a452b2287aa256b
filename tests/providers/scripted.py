"""Servers that do exactly what a test says, over real sockets on ephemeral ports."""

import asyncio
import base64
import ipaddress
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

EXTENSIONS = ("PIPELINING", "SIZE 10000000", "ENHANCEDSTATUSCODES")


@dataclass(frozen=True)
class Received:
    """One message the relay took, with the dots unstuffed."""

    mail: str
    rcpt: str
    data: bytes
    connection: int


Script = Callable[["Peer"], Awaitable[None]]
Reply = str | Callable[["Peer"], str | Awaitable[str | None] | None]
"""What to answer to a verb; None: the callable has answered, or never will."""


class Hangup(Exception):
    """The client has gone, or the script ends the connection."""


@dataclass
class Relay:
    """What a server saw."""

    port: int = 0
    connections: int = 0
    open_now: int = 0
    messages: list[Received] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def verbs(self, verb: str) -> list[str]:
        return [c for c in self.commands if c.upper().startswith(verb)]

    async def until(self, true: Callable[["Relay"], bool]) -> None:
        """Waits for a condition over what was seen."""
        async with self.changed:
            await self.changed.wait_for(lambda: true(self))


class Peer:
    """One connection, from the server's side."""

    def __init__(
        self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: bool
    ) -> None:
        self.relay = relay
        self.n = relay.connections
        self.reader = reader
        self.writer = writer
        self.tls = tls
        self.taken = 0
        """Messages taken on this connection."""
        self.mail = ""
        self.rcpt = ""

    async def line(self) -> str:
        raw = await self.reader.readline()
        if not raw.endswith(b"\n"):
            raise Hangup
        text = raw.decode("ascii", "replace").rstrip("\r\n")
        await self._note(lambda: self.relay.commands.append(text))
        return text

    async def say(self, *lines: str) -> None:
        self.writer.write("".join(f"{line}\r\n" for line in lines).encode("utf-8"))
        await self.writer.drain()

    async def body(self) -> bytes:
        """Up to the final dot."""
        lines: list[bytes] = []
        while (line := await self.reader.readline()) != b".\r\n":
            if not line.endswith(b"\n"):
                raise Hangup
            lines.append(line[1:] if line.startswith(b".") else line)
        return b"".join(lines)

    async def take(self, data: bytes) -> None:
        received = Received(self.mail, self.rcpt, data, self.n)
        self.taken += 1
        await self._note(lambda: self.relay.messages.append(received))

    def reset(self) -> None:
        """RST: what the client has sent and we have not read is gone, and it will hear so."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        raise Hangup

    async def gone(self) -> None:
        """Until the client hangs up."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    async def greet(self, extensions: Iterable[str] = EXTENSIONS) -> None:
        await self.say("220 relay.example ready")
        await self.hello(extensions)

    async def hello(self, extensions: Iterable[str] = EXTENSIONS) -> None:
        await self.line()
        names = ["relay.example", *extensions]
        await self.say(*(f"250-{name}" for name in names[:-1]), f"250 {names[-1]}")

    async def serve(self, replies: dict[str, Reply] | None = None) -> None:
        """Answers every command well, but for those named in `replies` (`DOT`: after the final dot)."""
        answers = replies or {}

        async def answer(verb: str, well: str) -> str | None:
            reply = answers.get(verb, well)
            if isinstance(reply, str):
                said: str | None = reply
            else:
                result = reply(self)
                said = result if isinstance(result, str) or result is None else await result
            if said is not None:
                await self.say(*said.split("\n"))
            return said

        has_mail = has_rcpt = False
        while True:
            line = await self.line()
            verb = line.split(" ")[0].split(":")[0].upper()
            argument = line.partition("<")[2].partition(">")[0]
            match verb:
                case "MAIL" if has_mail:
                    await self.say("503 5.5.1 nested MAIL")
                case "MAIL":
                    self.mail = argument
                    has_mail = (await answer("MAIL", "250 2.1.0 ok") or "2").startswith("2")
                    has_rcpt = False
                case "RCPT" if not has_mail:
                    await self.say("503 5.5.1 MAIL first")
                case "RCPT":
                    self.rcpt = argument
                    has_rcpt = (await answer("RCPT", "250 2.1.5 ok") or "2").startswith("2")
                case "DATA" if not has_rcpt:
                    await self.say("503 5.5.1 RCPT first")
                case "DATA":
                    if not (await answer("DATA", "354 go on") or "").startswith("354"):
                        continue
                    data = await self.body()
                    said = await answer("DOT", "250 2.0.0 Ok: queued as 4F2A")
                    if said is not None and said.startswith("2"):
                        await self.take(data)
                    has_mail = has_rcpt = False
                case "RSET":
                    has_mail = has_rcpt = False
                    await answer("RSET", "250 2.0.0 ok")
                case "QUIT":
                    await answer("QUIT", "221 2.0.0 bye")
                    return
                case _:
                    await answer(verb, "502 5.5.2 what?")

    async def start_tls(self, context: ssl.SSLContext) -> None:
        await self.writer.start_tls(context)
        self.tls = True

    async def _note(self, change: Callable[[], None]) -> None:
        async with self.relay.changed:
            change()
            self.relay.changed.notify_all()


@asynccontextmanager
async def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Relay]:
    """Runs `script` for every connection."""
    relay = Relay()
    tasks: set[asyncio.Task[None]] = set()
    problems: list[BaseException] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        relay.connections += 1
        relay.open_now += 1
        peer = Peer(relay, reader, writer, tls is not None)
        try:
            await script(peer)
        except (Hangup, ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        except Exception as problem:  # a broken script must fail its test
            problems.append(problem)
        finally:
            relay.open_now -= 1
            async with relay.changed:
                relay.changed.notify_all()
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls, limit=2**20)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        if problems:
            raise problems[0]


@asynccontextmanager
async def relay_that(
    replies: dict[str, Reply] | None = None, *, extensions: Iterable[str] = EXTENSIONS
) -> AsyncIterator[Relay]:
    """A good relay, but for the given replies."""

    async def script(peer: Peer) -> None:
        await peer.greet(extensions)
        await peer.serve(replies)

    async with serving(script) as relay:
        yield relay


@contextmanager
def unused_port() -> Iterator[int]:
    """A port that refuses connections: bound, never listening."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


class Clock:
    """Moves a loop's time forward, so that a wait of a minute passes at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not isinstance(self._loop, asyncio.BaseEventLoop):
            pytest.skip("only the standard library's loop lets its clock be moved")
        self._real = self._loop.time
        self._skew = 0.0
        self._loop.time = self._now  # type: ignore[method-assign]

    def _now(self) -> float:
        return self._real() + self._skew

    async def skip(self, seconds: float) -> None:
        """Whatever was due by then has run when this returns."""
        self._skew += seconds
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


@dataclass(frozen=True)
class Certificates:
    server: ssl.SSLContext
    ca_file: Path


def certificates(folder: Path) -> Certificates:
    """A self-made authority and a server certificate for localhost and 127.0.0.1."""
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem, key_pem = folder / "ca.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key_pem)
    return Certificates(context, pem)


def login_of(line: str) -> tuple[str, str]:
    """(user, password) of an `AUTH PLAIN` with its initial response."""
    _, user, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")
    return user, password
