"""The whole product in a home of its own, driven by its own commands."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx

from schemas import api
from schemas.kinds import Channel, MessageClass
from sendloom.client import SendloomClient
from sendloom.embedded.parts import tail
from sendloom.embedded.state import read_state
from sendloom.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


class Stack:
    """The whole product in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env: dict[str, str] = {}
        """Of every command, besides the home."""

    def sendloom(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sendloom.cli", *words],
            env={**os.environ, **self.env, "SENDLOOM_HOME": str(self.home)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=360,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def logs(self, lines: int = 8) -> str:
        files = sorted((self.home / "logs").glob("*.log"))
        return "\n".join(f"== {f.name}\n{tail(f, lines)}" for f in files)

    def state(self, lines: int = 25) -> str:
        """Parts and the ends of their logs, for whoever reads why a test failed."""
        parts = read_state(self.home).parts.items()
        running = "\n".join(
            f"{name}: {part.state}, {part.restarts} restarts, last exit {part.last_exit}"
            for name, part in parts
        )
        return f"{running}\n{self.logs(lines)}"

    @property
    def settings(self) -> Settings:
        return load_settings({"SENDLOOM_HOME": str(self.home)})

    def lose_temporal(self, at_loss: Callable[[], T]) -> T:
        """Its database is gone, and then it is; the supervisor starts it on nothing. What was so in that moment."""
        before = read_state(self.home).parts["temporal"].restarts
        for file in (self.home / "temporal").glob("temporal.db*"):
            file.unlink()
        process = read_state(self.home).parts["temporal"].process()
        assert process is not None
        process.kill()
        lost = at_loss()

        def is_back() -> bool:
            state = read_state(self.home)
            return state.parts["temporal"].restarts > before and state.ready

        eventually(is_back, "Temporal to be started again")
        return lost


CONSENT = {
    "source": "form",
    "at": "2026-01-15T10:00:00Z",
    "wording": "Yes.",
    "categories": ["news"],
}


class Tenant:
    """A tenant of a running stack: what it has is made over the API, what reached anybody is counted at the simulators."""

    def __init__(self, urls: dict[str, str], client: SendloomClient, inbox: httpx.Client) -> None:
        self.urls = urls
        self.client = client
        self.inbox = inbox

    def category(self, name: str, message_class: MessageClass, *ladder: Channel) -> None:
        seconds = 600 if message_class is MessageClass.SECURITY else 86_400
        self.client.put_category(
            name,
            api.CategoryRequest(
                message_class=message_class, ladder=list(ladder), ttl_seconds=seconds
            ),
        )

    def template(self, name: str, variable: str | None = None, **texts: str) -> None:
        """Published, with a text a channel; a mail's subject is the template's name."""
        parts = [
            api.TemplatePartBody(
                channel=Channel(channel),
                locale="en",
                subject=name if channel == Channel.EMAIL else None,
                text=text,
            )
            for channel, text in texts.items()
        ]
        self.client.create_template_version(
            name,
            api.TemplateVersionRequest(
                parts=parts,
                variables={variable: api.VariableBody()} if variable else {},
                publish=True,
            ),
            key=name,
        )

    def person(self, id: str, *, email: str | None = None, phone: str | None = None) -> None:
        self.client.put_recipient(
            id,
            api.RecipientRequest(
                email=api.AddressBody(address=email, verified=True) if email else None,
                phone=api.AddressBody(address=phone, verified=True) if phone else None,
            ),
        )

    def readers(self, list_id: str, count: int, address: Callable[[int], str]) -> None:
        """Uploads a list of people who agreed to `news`.

        Nobody has a zone, and marketing then keeps no quiet hours: the hour of the day changes nothing.
        """
        lines = b"".join(
            json.dumps(
                {
                    "recipient_id": f"{list_id}-{n}",
                    "email": address(n),
                    "consent": CONSENT,
                    "variables": {"name": f"N{n}"},
                }
            ).encode()
            + b"\n"
            for n in range(count)
        )
        self.client.put_list(list_id)
        version = self.client.start_upload(list_id, key=list_id)
        answer = self.client.put_chunk(list_id, version.version_id, 0, lines, first_line=1)
        assert answer.accepted == count, answer.errors[:3]
        self.client.make_ready(list_id, version.version_id)

    def campaign(self, list_id: str, template_id: str, rate: float) -> UUID:
        request = api.CampaignRequest(
            name=list_id,
            category="news",
            template_id=template_id,
            list_id=list_id,
            rate_per_second=rate,
        )
        return self.client.create_campaign(request, key=list_id).id

    def mails(self, **selector: str) -> int:
        """To anybody, or to whom the selector says."""
        asked = selector or {"channel": "email"}
        answer = self.inbox.get("/api/counts", params=asked).raise_for_status().json()
        return int(answer["count"])

    def arrives(self, to: str, seconds: int = 60) -> bool:
        answer = self.inbox.get("/api/wait", params={"to": to, "count": 1, "timeout": seconds})
        return bool(answer.raise_for_status().json()["reached"])


@contextmanager
def tenant_on(stack: Stack, name: str) -> Iterator[Tenant]:
    """The stack is brought up, and has a tenant of this name."""
    urls = json.loads(stack.sendloom("up", "--detach", "--json"))
    stack.sendloom(
        *("tenant", "create", name),
        *("--email-from", "hello@example.com", "--sms-from", "+12025550100"),
    )
    key = json.loads(stack.sendloom("key", "create", name, "--json"))["key"]
    with (
        SendloomClient(urls["api_url"], key) as client,
        httpx.Client(base_url=urls["inbox_url"], timeout=90) as inbox,
    ):
        yield Tenant(urls, client, inbox)


def eventually(
    check: Callable[[], Any],
    what: str,
    seconds: float = 120,
    *,
    state: Callable[[], str] = str,
) -> None:
    """`state` says how things stood when it never came true."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:.0f} s for {what}\n{state()}")
        time.sleep(0.1)
