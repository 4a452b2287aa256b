"""With real workflows behind it: updates are answered by them, and what they do is seen in our own rows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest_asyncio
from fastapi import FastAPI
from temporalio.client import Client, WorkflowExecutionStatus

from api.app import create_app
from api.auth import KeyKind
from api.deps import Parts
from schemas.api import TEST_CODE
from schemas.kinds import Channel, Kind, MessageClass
from sendloom.domain.ids import reminder_workflow_id
from sendloom.domain.lanes import lane_for
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.platform.temporal import connect
from sendloom.platform.temporal_setup import set_up
from sendloom.settings import Settings
from tests.api.conftest import ON_A_BUSY_MACHINE, Account, code_of, notification, shared
from tests.conftest import MakeSettings
from workers import wiring
from workers.fleet import flow_worker, lane_worker

SERVED = (MessageClass.SECURITY, MessageClass.TRANSACTIONAL)


@shared
async def namespace(make_settings: MakeSettings, temporal_server: str) -> str:
    """One of this module's own: queues have fixed names, and other tests' workers must not serve them."""
    name = f"api-{uuid4().hex[:8]}"
    await set_up(make_settings(temporal={"address": temporal_server, "namespace": name}), None)
    return name


@shared
async def api_settings(
    make_settings: MakeSettings,
    database: str,
    valkey_server: EmbeddedValkey,
    temporal_server: str,
    namespace: str,
) -> Settings:
    return make_settings(
        postgres=database,
        redis=valkey_server.url,
        temporal={"address": temporal_server, "namespace": namespace},
    )


@shared
async def app(api_settings: Settings) -> AsyncIterator[FastAPI]:
    app = create_app(api_settings, answer_within=ON_A_BUSY_MACHINE)
    async with app.router.lifespan_context(app):
        yield app


@shared
async def temporal(api_settings: Settings) -> Client:
    return await connect(api_settings)


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(api_settings: Settings, temporal: Client) -> AsyncIterator[None]:
    """Workers for what these tests send, as the product runs them."""
    async with AsyncExitStack() as running:
        common = await running.enter_async_context(wiring.shared(api_settings))
        for message_class in SERVED:
            flow = await running.enter_async_context(
                wiring.flow(api_settings, message_class, temporal, common)
            )
            await running.enter_async_context(flow_worker(temporal, message_class, flow, None))
            for channel in (Channel.SMS, Channel.EMAIL):
                lane = lane_for(channel, message_class)
                sends = await running.enter_async_context(wiring.lane(api_settings, lane, common))
                await running.enter_async_context(lane_worker(temporal, lane, sends, None))
        yield


@pytest_asyncio.fixture(loop_scope="module")
async def testing(account: Account) -> Account:
    """A key with which nothing leaves."""
    return await account.key(KeyKind.TEST)


async def until(get: Callable[[], Any], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first answer of which it holds; a bounded wait for what workers do."""
    async with asyncio.timeout(60):
        said: dict[str, Any] = (await get()).json()
        while not holds(said):
            await asyncio.sleep(0.02)
            said = (await get()).json()
    return said


async def test_readiness_asks_temporal(account: Account):
    ready = await account.http.get("/readyz")
    assert ready.json()["checks"]["temporal"] == "ok", ready.text


async def test_a_passcode_is_accepted_by_the_provider_checked_resent_and_used_once(
    testing: Account, fleet: None
):
    body = {"recipient_id": "r-1", "category": "security.otp", "template_id": "otp"}
    answer = await testing.post("/v1/passcodes?wait=2", body, key="p")
    assert answer.status_code == 202, answer.text
    status = answer.json()["status"]
    url = f"/v1/passcodes/{answer.json()['id']}"
    if not status["channels"] or status["channels"][0]["state"] != "sent":
        # A busy machine: the wait ended first, and said the truth so far.
        status = await until(
            lambda: testing.get(url), lambda s: [c["state"] for c in s["channels"]] == ["sent"]
        )
    [channel] = status["channels"]
    assert (channel["channel"], channel["provider"]) == ("sms", "test")

    wrong = (await testing.post(f"{url}/check", {"code": "999999"})).json()
    assert wrong == {"result": "wrong", "approved": False, "attempts_left": 4}
    first = await testing.post(f"{url}/resend", key="r")
    again = await testing.post(f"{url}/resend", key="r")
    assert first.json() == again.json() == {"send_no": 2}
    sent = await until(
        lambda: testing.get(url),
        lambda s: sorted(c["state"] for c in s["channels"]) == ["sent", "sent"],
    )
    assert (sent["attempts_left"], sent["send_no"]) == (4, 2)
    right = (await testing.post(f"{url}/check", {"code": TEST_CODE})).json()
    assert (right["result"], right["attempts_left"]) == ("approved", 3)
    assert (await testing.post(f"{url}/check", {"code": TEST_CODE})).json()["result"] == "used"
    assert code_of(await testing.post(f"{url}/cancel", {})) == (409, "too_late")
    assert code_of(await testing.post(f"{url}/resend", key="r2")) == (409, "too_late")
    assert (await testing.get(url)).json()["passcode"] == "used"


async def test_a_passcode_that_is_cancelled_in_time_is_not_approved_any_more(
    testing: Account, fleet: None
):
    body = {"recipient_id": "r-1", "category": "security.otp", "template_id": "otp"}
    url = (await testing.post("/v1/passcodes", body, key="p")).json()["status_url"]
    cancelled = await testing.post(f"{url}/cancel", {})
    assert (cancelled.status_code, cancelled.json()["passcode"]) == (200, "cancelled")
    said = (await testing.post(f"{url}/check", {"code": TEST_CODE})).json()
    assert said["result"] == "cancelled"


async def test_a_notification_is_sent_and_then_too_late_to_cancel(testing: Account, fleet: None):
    made = (await testing.post("/v1/notifications", notification(), key="n")).json()
    said = await until(
        lambda: testing.get(made["status_url"]), lambda s: s["closed_at"] is not None
    )
    assert said["state"] == "sent"
    assert [(c["channel"], c["state"]) for c in said["channels"]] == [("email", "sent")]
    late = await testing.post(f"{made['status_url']}/cancel", {})
    assert code_of(late) == (409, "too_late")


async def test_reminders_are_moved_sent_now_and_cancelled_by_their_workflows(
    testing: Account, fleet: None, temporal: Client, parts: Parts
):
    made = [
        (
            await testing.post(
                "/v1/reminders",
                {**notification(), "due": {"local": "2035-01-15T09:00"}, "correlation_id": "c"},
                key=f"r-{n}",
            )
        ).json()
        for n in range(6)
    ]
    urls = [one["status_url"] for one in made]
    moved = await testing.post(f"{urls[0]}/reschedule", {"due": {"at": "2035-02-01T00:00:00Z"}})
    assert (moved.status_code, moved.json()["due_at"]) == (200, "2035-02-01T00:00:00Z")
    past = await testing.post(f"{urls[0]}/reschedule", {"due": {"at": "2020-02-01T00:00:00Z"}})
    assert code_of(past) == (422, "due_past")

    assert (await testing.post(f"{urls[1]}/send-now")).status_code == 200
    sent = await until(lambda: testing.get(urls[1]), lambda s: s["state"] == "sent")
    assert sent["notification"]["channels"][0]["state"] == "sent"
    assert code_of(await testing.post(f"{urls[1]}/cancel", {})) == (409, "too_late")
    fired = f"/v1/notifications/{sent['notification']['id']}"
    assert code_of(await testing.post(f"{fired}/cancel", {})) == (409, "too_late")

    one = await testing.post(f"{urls[2]}/cancel", {"reason": "booking"})
    assert (one.json()["state"], one.json()["reason"]) == ("cancelled", "booking")
    # That it was sent is known a moment before it is closed.
    await until(lambda: testing.get(urls[1]), lambda s: s["closed_at"] is not None)
    many = (await testing.post("/v1/reminders/cancel?correlation_id=c", {})).json()
    assert many == {"cancelled": 4, "already_closed": 2, "too_late": []}
    for n in (0, 2, 3, 4, 5):
        handle = temporal.get_workflow_handle(reminder_workflow_id(UUID(made[n]["id"])))
        await handle.result()
        assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED
        row = await parts.accepted.get(testing.tenant, UUID(made[n]["id"]))
        assert row is not None
        assert (row.outcome or {})["kind"] == "cancelled"
    rows = await parts.accepted.by_recipient(testing.tenant, "r-1", 50)
    assert len([row for row in rows if row.kind is Kind.NOTIFICATION]) == 1


async def test_with_no_worker_a_check_is_503_within_its_budget_and_an_accept_is_not(
    testing: Account,
):
    body = {"recipient_id": "r-1", "category": "security.otp", "template_id": "otp"}
    made = await testing.post("/v1/passcodes", body, key="p")
    assert made.status_code == 202
    answer = await testing.post(f"/v1/passcodes/{made.json()['id']}/check", {"code": TEST_CODE})
    assert code_of(answer) == (503, "temporal_unavailable")
