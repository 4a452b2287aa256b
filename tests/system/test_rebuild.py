"""Temporal's database deleted under a running campaign: one command, and everybody gets everything once (STORE-5)."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg
import httpx
import pytest

from schemas import api
from schemas.kinds import CampaignPhase, Channel, ControlState, MessageClass, RecipientState
from schemas.schedules import Overlap
from sendloom.client import SendloomClient
from sendloom.settings import Settings
from tests.system.running import Stack, eventually

TENANT = "rebuilt"
READERS = 1_500
RATE = 150.0
CODE = "246810"


async def allow_short_intervals(settings: Settings) -> None:
    connection = await asyncpg.connect(settings.postgres_dsn)
    try:
        await connection.execute(
            "UPDATE tenants SET settings = settings || '{\"schedule_min_seconds\": 1}' WHERE tenant = $1",
            TENANT,
        )
    finally:
        await connection.close()


def is_sent(client: SendloomClient, reminder: UUID) -> bool:
    return client.reminder(reminder).state == "sent"


class World:
    """One tenant with a list, and what is promised to it."""

    def __init__(self, client: SendloomClient, inbox: httpx.Client) -> None:
        self.client = client
        self.inbox = inbox

    def mails(self, **selector: str) -> int:
        found = self.inbox.get("/api/counts", params=selector).raise_for_status().json()
        return int(found["count"])

    def catalog(self) -> None:
        for name, message_class, ladder in (
            ("news", MessageClass.MARKETING, [Channel.EMAIL]),
            ("orders", MessageClass.TRANSACTIONAL, [Channel.EMAIL]),
            ("otp", MessageClass.SECURITY, [Channel.SMS]),
        ):
            request = api.CategoryRequest(
                message_class=message_class, ladder=ladder, ttl_seconds=86_400
            )
            if message_class is MessageClass.SECURITY:
                request = request.model_copy(update={"ttl_seconds": 600})
            self.client.put_category(name, request)
        for name, channel, text in (
            ("letter", Channel.EMAIL, "Hello"),
            ("code", Channel.SMS, "{{code}} is your code"),
        ):
            part = api.TemplatePartBody(
                channel=channel,
                locale="en",
                subject="Hello" if channel is Channel.EMAIL else None,
                text=text,
            )
            self.client.create_template_version(
                name,
                api.TemplateVersionRequest(
                    parts=[part],
                    variables={"code": api.VariableBody()} if name == "code" else {},
                    publish=True,
                ),
                key=name,
            )
        for person in ("early", "shifted", "often"):
            self.client.put_recipient(
                person,
                api.RecipientRequest(
                    email=api.AddressBody(address=f"{person}@example.com", verified=True),
                    phone=api.AddressBody(address="+12025550123", verified=True)
                    if person == "early"
                    else None,
                ),
            )

    def audience(self, list_id: str, count: int) -> None:
        consent = {
            "source": "form",
            "at": "2026-01-15T10:00:00Z",
            "wording": "Yes.",
            "categories": ["news"],
        }
        # Nobody has a zone, so that no hour of the day is anybody's quiet one.
        lines = b"".join(
            json.dumps(
                {
                    "recipient_id": f"{list_id}-{n}",
                    "email": f"{list_id}{n}@example.com",
                    "locale": "en",
                    "consent": consent,
                }
            ).encode()
            + b"\n"
            for n in range(count)
        )
        self.client.put_list(list_id, list_id)
        version = self.client.start_upload(list_id, key=list_id)
        answer = self.client.put_chunk(list_id, version.version_id, 0, lines, first_line=1)
        assert answer.accepted == count, answer.errors[:3]
        self.client.make_ready(list_id, version.version_id)

    def campaign(self, list_id: str, rate: float) -> UUID:
        request = api.CampaignRequest(
            name=list_id,
            category="news",
            template_id="letter",
            list_id=list_id,
            rate_per_second=rate,
        )
        return self.client.create_campaign(request, key=list_id).id

    def reminder(self, person: str, due: datetime) -> UUID:
        request = api.ReminderRequest(
            recipient_id=person, category="orders", template_id="letter", due=api.DueBody(at=due)
        )
        return self.client.send_reminder(request, key=person).id

    def schedule(self) -> UUID:
        run = api.NotificationRun(recipient_id="often", template_id="letter")
        request = api.ScheduleRequest(
            category="orders", every_seconds=3, overlap=Overlap.ALLOW, notification=run
        )
        return self.client.create_schedule(request, key="often").id


@pytest.mark.timeout(600)
async def test_after_the_loss_of_temporal_everybody_gets_everything_once(stack: Stack) -> None:
    urls = json.loads(stack.sendloom("up", "--detach", "--json"))
    stack.sendloom(
        "tenant", "create", TENANT, "--email-from", "a@example.com", "--sms-from", "+12025550100"
    )
    key = json.loads(stack.sendloom("key", "create", TENANT, "--json"))["key"]
    await allow_short_intervals(stack.settings)
    with (
        SendloomClient(urls["api_url"], key) as client,
        httpx.Client(base_url=urls["inbox_url"], timeout=30) as inbox,
    ):
        world = World(client, inbox)
        world.catalog()
        world.audience("running", READERS)
        world.audience("paused", 20)
        paused = world.campaign("paused", rate=0.2)
        client.pause_campaign(paused, "to see whether it stays so")
        now = datetime.now(UTC)
        early = world.reminder("early", now + timedelta(seconds=45))
        moved = world.reminder("shifted", now + timedelta(days=300))
        client.reschedule_reminder(moved, api.DueBody(at=now + timedelta(seconds=45)))
        passcode = client.send_passcode(
            api.PasscodeRequest(
                recipient_id="early", category="otp", template_id="code", code=CODE
            ),
            key="p",
        ).id
        recurring = world.schedule()
        campaign = world.campaign("running", rate=RATE)
        eventually(
            lambda: world.mails(channel="email") > READERS // 5, "the campaign to be in the middle"
        )
        eventually(lambda: world.mails(to="often@example.com") >= 1, "the schedule's first run")
        eventually(lambda: client.passcode(passcode).state == "sent", "the passcode")

        stack.lose_temporal()
        assert world.mails(channel="email") < READERS, "it was to be lost in the middle"
        told = json.loads(stack.sendloom("temporal", "rebuild", "--json"))
        rebuilt_at = datetime.now(UTC)
        assert told["campaign"] == 2, told
        assert told["passcode"] == 1, told
        assert told["schedules"] == 1, told
        assert told.get("failed", 0) == 0, told
        again = json.loads(stack.sendloom("temporal", "rebuild", "--json"))
        assert again.get("campaign", 0) == 0, again
        assert again.get("failed", 0) == 0, again

        def completed() -> bool:
            return client.campaign(campaign).phase is CampaignPhase.COMPLETED

        # Whatever was being claimed at that moment waits for its lease.
        eventually(completed, "the campaign to be completed", seconds=360)
        status = client.campaign(campaign)
        assert sum(status.counts.values()) == READERS
        assert status.adds_up
        sent = status.counts.get(RecipientState.SENT, 0)
        unknown = status.counts.get(RecipientState.UNKNOWN, 0)
        assert sent + unknown == READERS, status
        arrived = [world.mails(to=f"running{n}@example.com") for n in range(READERS)]
        assert max(arrived) == 1, "somebody got it twice"
        assert arrived.count(1) >= sent
        assert unknown <= 200

        held = client.campaign(paused)
        assert held.control is ControlState.PAUSED
        before = sum(world.mails(to=f"paused{n}@example.com") for n in range(20))
        assert before <= 2, "it was paused at once"
        client.set_campaign_rate(paused, 100)
        client.resume_campaign(paused)
        eventually(
            lambda: client.campaign(paused).phase is CampaignPhase.COMPLETED,
            "the paused campaign",
            seconds=240,
        )
        assert [world.mails(to=f"paused{n}@example.com") for n in range(20)] == [1] * 20

        for person, reminder in (("early", early), ("shifted", moved)):
            eventually(partial(is_sent, client, reminder), f"{person}'s reminder")
            assert world.mails(to=f"{person}@example.com") == 1
        assert client.passcode(passcode).passcode in ("open", "expired")
        if client.passcode(passcode).passcode == "open":
            assert client.check_passcode(passcode, CODE).approved
        assert world.mails(to="+12025550123") == 1

        def fires_again() -> bool:
            lines = client.schedule_triggers(recurring, 1000).items
            return any(
                line.status == "fired" and line.by == "schedule" and line.scheduled_for > rebuilt_at
                for line in lines
            )

        eventually(fires_again, "Temporal to wake the schedule again")
        client.pause_schedule(recurring)
        lines = client.schedule_triggers(recurring, 1000).items
        fired = [line for line in lines if line.status == "fired"]
        assert len({line.scheduled_for for line in fired}) == len(fired)
        eventually(
            lambda: world.mails(to="often@example.com") == len(fired), "one mail for each run"
        )
