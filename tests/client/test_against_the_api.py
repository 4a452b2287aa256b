"""Every operation of the client is one that the API has; and the whole way through, with real stores."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from api.app import describe
from schemas import api as wire
from schemas.kinds import Channel, MessageClass, RecipientState
from sendloom.client import AsyncSendloomClient, SendloomError, calls
from tests.api.conftest import Account

# The API's own fixtures: real stores, Temporal faked.
from tests.api.conftest import account as account
from tests.api.conftest import api_settings as api_settings
from tests.api.conftest import app as app
from tests.api.conftest import faked as faked
from tests.api.conftest import http as http
from tests.api.conftest import new_account as new_account
from tests.api.conftest import parts as parts


def recurring() -> wire.ScheduleRequest:
    run = wire.NotificationRun(recipient_id="r", template_id="t")
    return wire.ScheduleRequest(category="c", cron="0 9 * * *", notification=run)


def every_call() -> list[calls.Call[Any]]:
    id, due = uuid4(), wire.DueBody(at=datetime(2035, 1, 1, tzinfo=UTC))
    message = wire.NotificationRequest(recipient_id="r", category="c", template_id="t")
    part = wire.TemplatePartBody(channel=Channel.SMS, locale="en", text="x")
    return [
        calls.send_notification(message, key="k"),
        calls.notification(id),
        calls.cancel_notification(id),
        calls.delivery("dlv_x"),
        calls.send_passcode(
            wire.PasscodeRequest(recipient_id="r", category="c", template_id="t"), key="k"
        ),
        calls.passcode(id),
        calls.check_passcode(id, "123456"),
        calls.resend_passcode(id, key="k"),
        calls.cancel_passcode(id),
        calls.send_reminder(
            wire.ReminderRequest(recipient_id="r", category="c", template_id="t", due=due), key="k"
        ),
        calls.reminder(id),
        calls.reschedule_reminder(id, due),
        calls.send_reminder_now(id),
        calls.cancel_reminder(id),
        calls.cancel_reminders("c"),
        calls.create_schedule(recurring(), key="k"),
        calls.schedule(id),
        calls.schedules(after=id),
        calls.change_schedule(id, recurring()),
        calls.delete_schedule(id),
        calls.pause_schedule(id),
        calls.resume_schedule(id),
        calls.schedule_triggers(id),
        calls.triggers(datetime(2035, 1, 1, tzinfo=UTC), datetime(2035, 1, 2, tzinfo=UTC)),
        calls.create_series(
            wire.SeriesRequest(
                recipient_id="r", category="c", template_id="t", event=due, offsets=["P1D"]
            ),
            key="k",
        ),
        calls.series(id),
        calls.move_series(id, due),
        calls.cancel_series(id),
        calls.create_campaign(
            wire.CampaignRequest(name="n", category="c", template_id="t", list_id="l"), key="k"
        ),
        calls.preflight_campaign(
            wire.CampaignRequest(
                name="n", category="c", template_id="t", audience=wire.AudienceOf(sent_of=id)
            )
        ),
        calls.test_campaign(
            wire.TestSendRequest(category="c", template_id="t", recipient_ids=["r"]), key="k"
        ),
        calls.approve_campaign(id),
        calls.campaign(id),
        calls.campaigns(),
        calls.campaign_recipients(id, RecipientState.SENT),
        calls.pause_campaign(id),
        calls.resume_campaign(id),
        calls.cancel_campaign(id),
        calls.set_campaign_rate(id, 1),
        calls.replay_campaign(id, [RecipientState.FAILED]),
        calls.put_list("l"),
        calls.get_list("l"),
        calls.start_upload("l", key="k"),
        calls.put_chunk("l", id, 0, b""),
        calls.make_ready("l", id),
        calls.list_version("l", id),
        calls.put_segment("s", {"zone": "UTC"}),
        calls.get_segment("s"),
        calls.segments(after="s"),
        calls.delete_segment("s"),
        calls.preview_segment({"zone": "UTC"}),
        calls.put_recipient("r", wire.RecipientRequest()),
        calls.recipient("r"),
        calls.erase_recipient("r"),
        calls.remove_address("r", "email"),
        calls.recipient_messages("r"),
        calls.set_preferences("r", [wire.PreferenceBody(opted_out=True)]),
        calls.preferences("r"),
        calls.record_consents("r", [wire.ConsentBody(category="c", source="s", wording="w")]),
        calls.consents("r"),
        calls.put_device("r", "d", wire.DeviceBody(channel=Channel.FCM, token="12345678")),
        calls.remove_device("r", "d"),
        calls.create_template_version("t", wire.TemplateVersionRequest(parts=[part]), key="k"),
        calls.publish_template("t", 1),
        calls.template("t"),
        calls.preview_template("t", wire.PreviewRequest(recipient_id="r", channel=Channel.SMS)),
        calls.put_category(
            "c",
            wire.CategoryRequest(
                message_class=MessageClass.SECURITY, ladder=[Channel.SMS], ttl_seconds=1
            ),
        ),
        calls.category("c"),
        calls.categories(),
        calls.suppress(wire.SuppressionBody(channel=Channel.SMS, address="+12025550143")),
        calls.unsuppress(wire.SuppressionRef(channel=Channel.SMS, address="+12025550143")),
        calls.suppressions(),
        calls.dead_letters(),
        calls.dead_letter(id),
        calls.replay_dead_letter(id),
        calls.discard_dead_letter(id),
        calls.audit(),
        calls.health(),
    ]


def served() -> dict[tuple[str, str], re.Pattern[str]]:
    return {
        (method.upper(), path): re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
        for path, operations in describe()["paths"].items()
        for method in operations
    }


def test_the_client_has_every_operation_of_the_api_and_no_other():
    routes = served()
    met = set()
    for call in every_call():
        matching = [
            route
            for route, pattern in routes.items()
            if route[0] == call.method and pattern.fullmatch(call.path)
        ]
        assert matching, f"the API has no {call.method} {call.path}"
        # The most literal one is the one a router takes.
        met.add(min(matching, key=lambda route: route[1].count("{")))
    assert {route for route in routes if route[1] != "/healthz"} == met


@pytest_asyncio.fixture(loop_scope="module")
async def client(app: FastAPI, account: Account) -> AsyncIterator[AsyncSendloomClient]:
    key = account.headers["Authorization"].removeprefix("Bearer ")
    async with AsyncSendloomClient(
        "http://api.test", key, transport=httpx.ASGITransport(app)
    ) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
async def test_a_message_its_recipient_and_its_list_through_typed_models(
    client: AsyncSendloomClient,
):
    await client.put_recipient(
        "c-1",
        wire.RecipientRequest(
            zone="Asia/Tokyo", email=wire.AddressBody(address="c@example.com", verified=True)
        ),
    )
    accepted = await client.send_notification(
        wire.NotificationRequest(
            recipient_id="c-1", category="orders", template_id="placed", variables={"order": "1"}
        ),
        key="k",
    )
    status = await client.notification(accepted.id)
    assert (status.state, status.recipient_id) == ("pending", "c-1")
    page = await client.recipient_messages("c-1")
    assert [message.id for message in page.items] == [accepted.id]

    due = wire.DueBody(local="2035-01-15T09:00")
    reminder = await client.send_reminder(
        wire.ReminderRequest(
            recipient_id="c-1",
            category="orders",
            template_id="placed",
            variables={"order": "1"},
            due=due,
        ),
        key="k",
    )
    assert reminder.due_at == datetime(2035, 1, 15, tzinfo=UTC)

    await client.put_list("all")
    version = await client.start_upload("all", key="v")
    chunk = await client.put_chunk("all", version.version_id, 0, b'{"recipient_id": "c-1"}\nx\n')
    assert (chunk.accepted, [error.line for error in chunk.errors]) == (1, [2])
    ready = await client.make_ready("all", version.version_id)
    assert (ready.state, ready.size) == ("ready", 1)
    campaign = await client.create_campaign(
        wire.CampaignRequest(
            name="n",
            category="offers",
            template_id="placed",
            list_id="all",
            variables={"order": "1"},
        ),
        key="k",
    )
    assert (await client.pause_campaign(campaign.id)).control == "paused"
    await client.remove_address("c-1", "email")
    with pytest.raises(SendloomError) as refused:
        await client.remove_address("c-1", "email")
    assert (refused.value.code, refused.value.status) == ("not_found", 404)
