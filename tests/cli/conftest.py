"""The `sendloom` command against an API that is served on a real socket, in a thread of its own."""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from typer.testing import CliRunner, Result

from api.app import create_app
from sendloom.cli import build_app
from sendloom.settings import Settings
from tests.api.conftest import CATEGORIES, TEMPLATES
from tests.api.fakes import FakeWorkflows
from tests.conftest import MakeSettings


class Counting:
    """Remembers what was asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.asked.append((scope["method"], scope["path"]))
        await self._app(scope, receive, send)


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@dataclass
class Served:
    url: str
    counting: Counting
    workflows: FakeWorkflows


@pytest.fixture(scope="module")
def cli_settings(make_settings: MakeSettings, database: str, valkey_server: Any) -> Settings:
    return make_settings(postgres=database, redis=valkey_server.url)


@pytest.fixture(scope="module")
def served(cli_settings: Settings) -> Iterator[Served]:
    workflows = FakeWorkflows()
    counting = Counting(create_app(cli_settings, workflows))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = Server(uvicorn.Config(counting, log_config=None, lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        assert server.listening.wait(60)
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", counting, workflows)
        server.should_exit = True
        thread.join(60)


def environment(settings: Settings) -> dict[str, str]:
    """The variables that say what these settings say."""
    keys = settings.keys
    return {
        "SENDLOOM_POSTGRES": settings.postgres_dsn,
        "SENDLOOM_REDIS": settings.redis_url,
        "SENDLOOM_TEMPORAL__ADDRESS": settings.temporal.address,
        "SENDLOOM_KEYS__SEALING": keys.sealing.get_secret_value(),
        **{
            f"SENDLOOM_KEYS__{name.upper()}": base64.b64encode(
                getattr(keys, name).get_secret_value()
            ).decode()
            for name in ("address", "body", "passcode", "unsubscribe")
        },
        "SENDLOOM_SMTP__HOST": settings.smtp.host,
        "SENDLOOM_SMTP__SENDER": settings.smtp.sender,
        "SENDLOOM_TWILIO__ACCOUNT_SID": settings.twilio.account_sid,
        "SENDLOOM_TWILIO__AUTH_TOKEN": settings.twilio.auth_token.get_secret_value(),
        "SENDLOOM_TWILIO__SENDER": settings.twilio.sender,
        "SENDLOOM_API__PUBLIC_URL": settings.api.public_url,
    }


@dataclass
class Sendloom:
    """Runs commands."""

    env: dict[str, str]
    runner: CliRunner = field(default_factory=CliRunner)

    def __call__(self, *args: str, input: str | None = None) -> Result:
        return self.runner.invoke(build_app(), list(args), env=self.env, input=input)

    def json(self, *args: str) -> Any:
        done = self(*args, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def lines(self, *args: str) -> list[Any]:
        done = self(*args, "--json")
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def bare(cli_settings: Settings, served: Served, tmp_path: Path) -> Sendloom:
    """Knows where everything is, and has no key."""
    return Sendloom(
        {
            **environment(cli_settings),
            "SENDLOOM_HOME": str(tmp_path),
            "SENDLOOM_CLIENT__URL": served.url,
        }
    )


@pytest.fixture
def sendloom(bare: Sendloom, tmp_path: Path, new_tenant: Callable[[], str]) -> Sendloom:
    """A fresh tenant with everything needed to send, made by commands alone."""
    tenant = new_tenant()
    bare.json("tenant", "create", tenant, "--name", "Example", "--email-from", "news@example.com")
    key = bare.json("key", "create", tenant, "--label", "tests")["key"]
    made = Sendloom({**bare.env, "SENDLOOM_CLIENT__API_KEY": key, "TENANT": tenant})
    for kind, things in (("category", CATEGORIES), ("template", TEMPLATES)):
        for name, body in things.items():
            file = tmp_path / f"{name}.json"
            file.write_text(json.dumps(body))
            made.json(kind, "put" if kind == "category" else "push", name, str(file))
    made.json(
        "recipient", "put", "r-1", "--email", "ada@example.com", "--phone", "+12025550143",
        "--verified", "--zone", "Europe/Berlin",
    )  # fmt: skip
    return made


@pytest.fixture
def new_tenant() -> Callable[[], str]:
    from uuid import uuid4

    return lambda: f"t-{uuid4().hex[:12]}"
