"""Both simulators and the inbox in one process: SMTP on one port, the messages API and the inbox on another."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sendloom.errors import ConfigurationError
from sendloom.providers.simulators.behaviour import Behaviour
from sendloom.providers.simulators.inbox import Inbox
from sendloom.providers.simulators.smtp import SmtpOptions, SmtpSink
from sendloom.providers.simulators.twilio import TRANSPORT, TwilioApi, TwilioOptions
from sendloom.providers.simulators.web import InboxPages

log = logging.getLogger(__name__)

DRAIN_S = 2.0
"""How long a request under way may go on after the end was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """Port 0 takes any free one."""

    host: str = "127.0.0.1"
    smtp_port: int = 0
    http_port: int = 0
    log: Path | None = None
    """Every arrival as a line of JSON, written before it is acknowledged."""
    capacity: int = 20_000
    smtp: SmtpOptions = field(default_factory=SmtpOptions)
    twilio: TwilioOptions = field(default_factory=TwilioOptions)


class Simulators:
    """`async with Simulators() as sims:` listens on `sims.smtp_port` and `sims.http_port` until the block ends."""

    def __init__(
        self,
        settings: SimulatorSettings | None = None,
        *,
        smtp_port: int = 0,
        http_port: int = 0,
        log: Path | None = None,
        smtp: SmtpOptions | None = None,
        twilio: TwilioOptions | None = None,
    ) -> None:
        self.settings = settings or SimulatorSettings(
            smtp_port=smtp_port,
            http_port=http_port,
            log=log,
            smtp=smtp or SmtpOptions(),
            twilio=twilio or TwilioOptions(),
        )
        self.behaviour = Behaviour()
        self.smtp_port = self.http_port = 0
        self.inbox: Inbox
        self.smtp: SmtpSink
        self.twilio: TwilioApi
        self._open = contextlib.AsyncExitStack()

    @property
    def host(self) -> str:
        return self.settings.host

    @property
    def http_url(self) -> str:
        return f"http://{self.settings.host}:{self.http_port}"

    async def __aenter__(self) -> Self:
        s = self.settings
        async with contextlib.AsyncExitStack() as opening:
            smtp_socket = opening.enter_context(listening(s.host, s.smtp_port, "SMTP"))
            http_socket = opening.enter_context(listening(s.host, s.http_port, "HTTP"))
            self.smtp_port = smtp_socket.getsockname()[1]
            self.http_port = http_socket.getsockname()[1]
            self.inbox = Inbox(capacity=s.capacity, log=s.log)
            opening.callback(self.inbox.close)
            self.smtp = SmtpSink(self.inbox, self.behaviour, s.smtp)
            self.twilio = TwilioApi(self.inbox, self.behaviour, s.twilio)
            pages = InboxPages(self.inbox, self.behaviour, self.smtp, self.twilio)
            await self.smtp.start(smtp_socket)
            opening.push_async_callback(self.smtp.close)
            http = HttpServer(Starlette(routes=[*self.twilio.routes, *pages.routes]))
            await http.start(http_socket)
            opening.push_async_callback(http.stop)
            # Last in, first out: whoever hangs or waits is let go before the server waits for them.
            opening.push_async_callback(self.twilio.close)
            opening.push_async_callback(pages.close)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()


async def serve(settings: SimulatorSettings, *, ports_file: Path | None = None) -> None:
    """Run until SIGTERM or SIGINT. `ports_file` is written once both ports answer."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    async with Simulators(settings) as sims:
        ports = {"smtp_port": sims.smtp_port, "http_port": sims.http_port}
        if ports_file is not None:
            partial = ports_file.with_name(ports_file.name + ".partial")
            partial.write_bytes(orjson.dumps(ports))
            os.replace(partial, ports_file)
        log.info("simulators ready", extra=ports)
        await stop.wait()
    log.info("simulators stopped")


class HttpServer(uvicorn.Server):
    """Uvicorn inside somebody else's process: no signal handlers, no logging set-up, says when it is up, ends at once."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._up = asyncio.Event()
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def main_loop(self) -> None:
        """Renew the Date header once a second, as uvicorn does, but hear at once of the end."""
        while not self._stop.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        # Requests still being answered may end; connections that have not gone by then are cut.
        if self.server_state.tasks:
            _, late = await asyncio.wait(self.server_state.tasks, timeout=DRAIN_S)
            for task in late:
                task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for server in self.servers:
            await server.wait_closed()

    async def start(self, sock: socket.socket) -> None:
        self._running = asyncio.get_running_loop().create_task(self.serve([sock]))
        up = asyncio.get_running_loop().create_task(self._up.wait())
        await asyncio.wait({self._running, up}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if not self._up.is_set():
            await self._running

    async def stop(self) -> None:
        self._stop.set()
        if self._running is not None:
            await self._running


class _Protocol(HttpToolsProtocol):
    """Hands each request its transport, so that the messages API can break the line."""

    def on_headers_complete(self) -> None:
        # An extension is a dict for ASGI; this one stays within the process.
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]
        super().on_headers_complete()


@contextlib.contextmanager
def listening(host: str, port: int, name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as e:
            raise ConfigurationError(
                f"{name} simulator cannot listen on {host}:{port} ({e.strerror}); choose another port"
            ) from e
        yield sock
