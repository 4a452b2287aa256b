"""`sendloom demo`: real messages through real servers, checked as it goes. Exits with 1 when anything is not as promised."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import httpx
    from rich.console import Console

    from schemas.api import CampaignStatus
    from sendloom.client import SendloomClient

RECIPIENTS = 2_000
TENANT = "demo"
LIST = "newsletter"
LOCALES = {
    "en": "Hello", "de": "Guten Tag", "fr": "Bonjour", "pt-BR": "Olá", "es": "Hola", "ja": "こんにちは",
}  # fmt: skip
ZONES = (
    "Europe/London", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Tokyo", "Asia/Kolkata",
    "Australia/Lord_Howe", "Pacific/Auckland", "Africa/Cairo", "America/Los_Angeles", "Asia/Kathmandu",
    "Pacific/Honolulu",
)  # fmt: skip
RATE = 300.0
FINAL_OR_WAITING = {"sent", "rejected", "failed", "unknown", "suppressed", "expired", "erased"}


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo() -> None:
    """Start everything, send one of each kind, and run a campaign to 2,000 people with a pause in the middle."""
    import httpx
    from rich.console import Console

    from sendloom.client import SendloomClient
    from sendloom.embedded.state import read_state
    from sendloom.settings import settings_home

    console = Console(highlight=False)
    home = settings_home()
    if not read_state(home).supervised():
        console.print("Starting Temporal, Postgres, Valkey, simulators, API and workers …")
    urls = json.loads(_sendloom("up", "--detach", "--json"))
    key = _key(home)
    with (
        SendloomClient(urls["api_url"], key) as client,
        httpx.Client(base_url=urls["inbox_url"], timeout=20) as inbox,
    ):
        demonstration = Demonstration(console, client, inbox, run=secrets.token_hex(3))
        demonstration.play()
    console.print()
    console.print(f"inbox        {urls['inbox_url']}")
    console.print(f"Temporal UI  {urls['temporal_ui_url']}")
    console.print(f"API          {urls['api_url']}/docs")
    console.print("Everything keeps running; `make down` stops it.")
    if demonstration.failures:
        for failure in demonstration.failures:
            console.print(f"[red]not so:[/red] {failure}")
        raise typer.Exit(1)


def _sendloom(*args: str) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "sendloom.cli", *args],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise typer.Exit(done.returncode)
    return done.stdout


def _key(home: Path) -> str:
    """The demo tenant's key; made once and kept beside the stack's own secrets."""
    path = home / "demo.key"
    if not path.exists():
        _sendloom(
            "tenant", "create", TENANT, "--name", "Demo", "--email-from", "hello@example.com",
            "--sms-from", "+12025550100", "--json",
        )  # fmt: skip
        key = json.loads(_sendloom("key", "create", TENANT, "--label", "demo", "--json"))["key"]
        path.touch(mode=0o600)
        path.write_text(key)
    return path.read_text()


@dataclass
class Demonstration:
    """What is shown, in order. Each step waits for its result and checks it."""

    console: "Console"
    client: "SendloomClient"
    inbox: "httpx.Client"
    run: str
    failures: list[str] = field(default_factory=list)

    def play(self) -> None:
        self.catalog()
        self.audience()
        self.passcode()
        self.order()
        self.reminder()
        self.campaign()

    def check(self, what: str, holds: bool, detail: object = "") -> None:
        mark = "[green]✓[/green]" if holds else "[red]✗[/red]"
        self.console.print(f"  {mark} {what}" + (f" [dim]{detail}[/dim]" if detail else ""))
        if not holds:
            self.failures.append(f"{what} {detail}")

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/bold]")

    # --- set-up -----------------------------------------------------------------------------------------------------

    def catalog(self) -> None:
        from schemas.api import CategoryRequest, TemplateVersionRequest

        for name, body in CATEGORIES.items():
            self.client.put_category(name, CategoryRequest.model_validate(body))
        for name, body in TEMPLATES.items():
            self.client.create_template_version(
                name, TemplateVersionRequest.model_validate(body), key=f"{name}-{self.run}"
            )

    def audience(self) -> None:
        from schemas.api import PreferenceBody, SuppressionBody
        from schemas.kinds import Channel

        self.title(
            f"A list of {RECIPIENTS:,} recipients in {len(LOCALES)} locales and {len(ZONES)} zones"
        )
        for n in range(RECIPIENTS):
            if kind_of(n) == "suppressed":
                self.client.suppress(
                    SuppressionBody(channel=Channel.EMAIL, address=f"r{n}@example.com")
                )
        self.client.put_list(LIST, "Weekly newsletter")
        version = self.client.start_upload(LIST, key=f"{LIST}-{self.run}")
        lines = list(audience())
        accepted = 0
        for chunk in range(0, len(lines), 500):
            answer = self.client.put_chunk(
                LIST, version.version_id, chunk // 500, b"".join(lines[chunk : chunk + 500]),
                first_line=chunk + 1,
            )  # fmt: skip
            accepted += answer.accepted
        ready = self.client.make_ready(LIST, version.version_id)
        for n in range(RECIPIENTS):
            if kind_of(n) == "opted_out":
                self.client.set_preferences(
                    f"r{n:04d}", [PreferenceBody(category="offers.weekly", opted_out=True)]
                )
        self.check(
            "uploaded in chunks", accepted == RECIPIENTS, f"{accepted} lines, state {ready.state}"
        )

    # --- one message each -------------------------------------------------------------------------------------------

    def passcode(self) -> None:
        from schemas.api import AddressBody, PasscodeRequest, RecipientRequest

        self.title("A passcode")
        phone = "+12025550123"
        self.client.put_recipient(
            "ana",
            RecipientRequest(phone=AddressBody(address=phone, verified=True), zone="Europe/London"),
        )
        before = self._arrived(to=phone)
        answer = self.client.send_passcode(
            PasscodeRequest(recipient_id="ana", category="security.otp", template_id="passcode"),
            key=f"passcode-{self.run}", wait=2.0,
        )  # fmt: skip
        message = self._wait(to=phone, count=before + 1)
        code = "".join(c for c in message["text"].split(" ")[0] if c.isdigit())
        self.check(
            "arrived by SMS",
            len(code) >= 6,
            message["text"].splitlines()[0].replace(code, "••••••"),
        )
        wrong = self.client.check_passcode(answer.id, "000000" if code != "000000" else "111111")
        self.check(
            "a wrong code is refused", wrong.result == "wrong", f"{wrong.attempts_left} checks left"
        )
        right = self.client.check_passcode(answer.id, code)
        self.check("the right code is approved", right.approved)
        again = self.client.check_passcode(answer.id, code)
        self.check("and only once", again.result == "used")

    def order(self) -> None:
        from schemas.api import AddressBody, NotificationRequest, RecipientRequest

        self.title("An order: placed, then shipped")
        self.client.put_recipient(
            "bo",
            RecipientRequest(
                email=AddressBody(address="bo@example.com", verified=True), locale="de"
            ),
        )
        before = self._arrived(to="bo@example.com")
        for n, event in enumerate(("placed", "shipped"), 1):
            request = NotificationRequest(
                recipient_id="bo", category=f"orders.{event}", template_id=f"order.{event}",
                variables={"order": f"A-{self.run}"},
            )  # fmt: skip
            first = self.client.send_notification(request, key=f"order-{event}-{self.run}")
            repeat = self.client.send_notification(request, key=f"order-{event}-{self.run}")
            message = self._wait(to="bo@example.com", count=before + n)
            self.check(f"“{event}” arrived", self.run in message["subject"], message["subject"])
            self.check(
                "the same key again starts nothing", repeat.replayed and repeat.id == first.id
            )
        self.check("two mails in all", self._arrived(to="bo@example.com") == before + 2)

    def reminder(self) -> None:
        from schemas.api import DueBody, ReminderRequest

        self.title("A reminder, three seconds ahead")
        before = self._arrived(to="bo@example.com")
        due = datetime.now(UTC) + timedelta(seconds=3)
        answer = self.client.send_reminder(
            ReminderRequest(
                recipient_id="bo", category="orders.reminder", template_id="reminder", due=DueBody(at=due),
                variables={"order": f"A-{self.run}"},
            ),
            key=f"reminder-{self.run}",
        )  # fmt: skip
        message = self._wait(to="bo@example.com", count=before + 1)
        late = message["received_ns"] / 1e9 - due.timestamp()
        self.check("sent when it was due, not before", 0 <= late < 5, f"{late * 1000:.0f} ms after")
        self._until(
            lambda: self.client.reminder(answer.id).state == "sent", "the reminder to close"
        )

    # --- the campaign -----------------------------------------------------------------------------------------------

    def campaign(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from schemas.api import CampaignRequest
        from schemas.kinds import RecipientState

        self.title(
            f"A campaign to {RECIPIENTS:,}, paced at {RATE:.0f} a second, paused in the middle"
        )
        base = self._counts()
        answer = self.client.create_campaign(
            CampaignRequest(
                name=f"Demo {self.run}", category="offers.weekly", template_id="weekly", list_id=LIST,
                rate_per_second=RATE,
            ),
            key=f"campaign-{self.run}",
        )  # fmt: skip
        with Progress(
            TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(), console=self.console,
        ) as bar:  # fmt: skip
            task = bar.add_task("decided", total=RECIPIENTS)

            def decided() -> "CampaignStatus":
                status = self.client.campaign(answer.id)
                pending = status.counts.get(
                    RecipientState.PENDING, 0 if status.counts else RECIPIENTS
                )
                bar.update(task, completed=RECIPIENTS - pending)
                return status

            self._until(lambda: decided() and self._counts() - base >= 300, "300 mails")
            self.client.pause_campaign(answer.id, "to show it")
            time.sleep(
                1.0
            )  # What is promised: nothing leaves later than a second after the answer.
            at_pause = self._counts()
            time.sleep(1.0)
            still = self._counts()
            self.client.resume_campaign(answer.id)
            self._until(
                lambda: not decided().counts.get(RecipientState.PENDING),
                "everybody to be decided", seconds=120,
            )  # fmt: skip
        status = self.client.campaign(answer.id)
        self.check(
            "paused within a second, nothing left while paused",
            at_pause == still,
            f"{at_pause - base} mails",
        )
        self._report(status)
        sent = status.counts.get(RecipientState.SENT, 0)
        self._until(lambda: self._counts() - base >= sent, "the last mails")
        self.check(f"the inbox got each of the {sent:,} once", self._counts() - base == sent)
        self.check(
            f"the states add up to {RECIPIENTS:,}", sum(status.counts.values()) == RECIPIENTS
        )
        expected = {kind for n in range(RECIPIENTS) if (kind := kind_of(n)) != "ordinary"}
        reasons = set(status.reasons)
        self.check(
            "each skipped one has its reason",
            {"opted_out", "no_consent", "suppressed_manual"} <= reasons and len(expected) == 3,
            ", ".join(sorted(reasons)),
        )
        self.check("those in quiet hours wait", status.counts.get(RecipientState.DEFERRED, 0) > 0)

    def _report(self, status: "CampaignStatus") -> None:
        from rich.table import Table

        table = Table("state", "recipients", "why")
        why = dict(status.reasons)
        for state, count in status.counts.items():
            if not count:
                continue
            reasons = {
                reason: n for reason, n in why.items() if _belongs(reason, str(state))
            }  # fmt: skip
            table.add_row(
                str(state),
                f"{count:,}",
                ", ".join(f"{r} {n:,}" for r, n in sorted(reasons.items())),
            )
        table.add_section()
        table.add_row("in all", f"{sum(status.counts.values()):,}", "")
        self.console.print(table)

    # --- the inbox --------------------------------------------------------------------------------------------------

    def _counts(self) -> int:
        """Mails the simulator has ever got."""
        return self._count(channel="email")

    def _arrived(self, to: str) -> int:
        return self._count(to=to)

    def _count(self, **selector: str) -> int:
        found = self.inbox.get("/api/counts", params=selector).raise_for_status().json()
        return int(found["count"])

    def _wait(self, to: str, count: int) -> dict[str, Any]:
        """The newest message to `to` once `count` have arrived. Exits when they do not come in 15 s."""
        params: dict[str, str | int] = {"to": to, "count": count, "timeout": 15}
        if not self.inbox.get("/api/wait", params=params).raise_for_status().json()["reached"]:
            self.check(f"message {count} to this recipient arrived in 15 s", False)
            raise typer.Exit(1)
        found = self.inbox.get("/api/messages", params={"to": to, "limit": 1}).raise_for_status()
        message: dict[str, Any] = found.json()["messages"][0]
        return message

    def _until(self, holds: Callable[[], object], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                self.check(f"waited for {what}", False, f"{seconds:.0f} s")
                return
            time.sleep(0.1)


def _belongs(reason: str, state: str) -> bool:
    if state == "deferred":
        return reason in ("quiet_hours", "window", "retry")
    if state == "suppressed":
        return reason not in ("quiet_hours", "window", "retry")
    return False


def kind_of(n: int) -> str:
    """What is particular about the n-th recipient."""
    if n % 25 == 3:
        return "opted_out"
    if n % 40 == 5:
        return "suppressed"
    if n % 50 == 7:
        return "no_consent"
    return "ordinary"


def audience() -> Iterator[bytes]:
    """The sample list, as NDJSON lines."""
    locales = tuple(LOCALES)
    for n in range(RECIPIENTS):
        row: dict[str, Any] = {
            "recipient_id": f"r{n:04d}",
            "email": f"r{n}@example.com",
            "locale": locales[n % len(locales)],
            "zone": ZONES[n % len(ZONES)],
            "variables": {"name": f"Reader {n}", "plan": ("free", "plus")[n % 2]},
        }
        agreed_to = "offers.events" if kind_of(n) == "no_consent" else "offers.weekly"
        row["consent"] = {
            "source": "sign-up form",
            "at": "2026-01-15T10:00:00Z",
            "wording": "Yes, send me this letter.",
            "categories": [agreed_to],
        }
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


CATEGORIES: dict[str, dict[str, Any]] = {
    "security.otp": {"message_class": "security", "ladder": ["sms", "email"], "ttl_seconds": 600},
    "orders.placed": {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 86_400},
    "orders.shipped": {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 86_400},
    "orders.reminder": {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 86_400},
    "offers.weekly": {
        "message_class": "marketing", "ladder": ["email"], "ttl_seconds": 172_800, "consent_required": True,
    },
}  # fmt: skip


def _mail(
    subject: dict[str, str], text: dict[str, str], variables: dict[str, Any]
) -> dict[str, Any]:
    return {
        "parts": [
            {"channel": "email", "locale": locale, "subject": subject[locale], "text": text[locale]}
            for locale in subject
        ],
        "variables": variables,
        "publish": True,
    }


TEMPLATES: dict[str, dict[str, Any]] = {
    "passcode": {
        "parts": [
            {"channel": "sms", "locale": "en", "text": "{{code}} is your Demo code."},
            {"channel": "email", "locale": "en", "subject": "Your Demo code", "text": "{{code}} is your Demo code."},
        ],
        "variables": {"code": {}},
        "publish": True,
    },
    "order.placed": _mail(
        {"en": "We have your order {{order}}", "de": "Bestellung {{order}} ist eingegangen"},
        {"en": "Thank you for order {{order}}.", "de": "Danke für die Bestellung {{order}}."},
        {"order": {}},
    ),
    "order.shipped": _mail(
        {"en": "Order {{order}} is on its way", "de": "Bestellung {{order}} ist unterwegs"},
        {"en": "Order {{order}} has left us.", "de": "Bestellung {{order}} hat uns verlassen."},
        {"order": {}},
    ),
    "reminder": _mail(
        {"en": "Will you be at home for {{order}}?"},
        {"en": "Your order {{order}} comes today."},
        {"order": {}},
    ),
    "weekly": {
        "parts": [
            {
                "channel": "email", "locale": locale, "subject": f"{hello} {{{{name}}}}",
                "text": f"{hello} {{{{name}}}},\n\nthis is the weekly letter for the {{{{plan}}}} plan.\n",
                "html": f"<p>{hello} {{{{name}}}},</p><p>this is the weekly letter for the {{{{plan}}}} plan.</p>",
            }
            for locale, hello in LOCALES.items()
        ],
        "variables": {"name": {"default": "reader"}, "plan": {}},
        "publish": True,
    },
}  # fmt: skip
