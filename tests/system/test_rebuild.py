"""Temporal's database deleted under a running campaign: one command, and everybody gets everything once (STORE-5)."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg
import pytest

from schemas import api
from schemas.kinds import CampaignPhase, Channel, ControlState, MessageClass, RecipientState
from schemas.schedules import Overlap
from sendloom.client import SendloomClient
from sendloom.settings import Settings
from tests.system.running import Stack, Tenant, eventually, tenant_on

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

    def __init__(self, tenant: Tenant) -> None:
        self.client = tenant.client
        self.mails = tenant.mails
        self._tenant = tenant

    def catalog(self) -> None:
        tenant = self._tenant
        tenant.category("news", MessageClass.MARKETING, Channel.EMAIL)
        tenant.category("orders", MessageClass.TRANSACTIONAL, Channel.EMAIL)
        tenant.category("otp", MessageClass.SECURITY, Channel.SMS)
        tenant.template("letter", email="Hello")
        tenant.template("code", "code", sms="{{code}} is your code")
        for person in ("early", "shifted", "often"):
            phone = "+12025550123" if person == "early" else None
            tenant.person(person, email=f"{person}@example.com", phone=phone)

    def campaign(self, list_id: str, count: int, rate: float) -> UUID:
        self._tenant.readers(list_id, count, lambda n: f"{list_id}{n}@example.com")
        return self._tenant.campaign(list_id, "letter", rate)

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
    with tenant_on(stack, TENANT) as tenant:
        await allow_short_intervals(stack.settings)
        world, client = World(tenant), tenant.client
        world.catalog()
        paused = world.campaign("paused", 20, rate=0.2)
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
        eventually(lambda: world.mails(to="often@example.com") >= 1, "the schedule's first run")
        eventually(lambda: client.passcode(passcode).state == "sent", "the passcode")
        campaign = world.campaign("running", READERS, rate=RATE)
        eventually(
            lambda: world.mails(channel="email") > READERS // 5, "the campaign to be in the middle"
        )

        # Whoever is sending goes on, so it is asked in the moment of the loss and not when Temporal is back.
        so_far = stack.lose_temporal(lambda: world.mails(channel="email"))
        assert so_far < READERS, "it was to be lost in the middle"
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

        def one_mail_each() -> bool:
            """Also for a run that was owed when it was paused."""
            lines = client.schedule_triggers(recurring, 1000).items
            fired = [line.scheduled_for for line in lines if line.status == "fired"]
            assert len(set(fired)) == len(fired)
            owed = any(line.status == "owed" for line in lines)
            return not owed and world.mails(to="often@example.com") == len(fired)

        eventually(one_mail_each, "one mail for each run")
