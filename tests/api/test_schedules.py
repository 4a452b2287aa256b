"""What recurs, through the API (REM-5, REM-6), and what is refused when it is set up."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from api.auth import KeyKind, Scope
from api.deps import Parts
from schemas.schedules import ScheduleState, TriggerStatus
from sendloom.ports import Fire
from tests.api.conftest import Account, code_of
from tests.api.fakes import FakeWorkflows

RUN = {"recipient_id": "r-1", "template_id": "placed", "variables": {"order": "17"}}


def schedule(**changes: Any) -> dict[str, Any]:
    return {
        "name": "morning digest",
        "category": "orders",
        "cron": "0 9 * * *",
        "zone": "Europe/Berlin",
        "notification": RUN,
        **changes,
    }


def weekly(**audience: Any) -> dict[str, Any]:
    """What makes a campaign of it."""
    campaign = {"name": "weekly", "template_id": "placed", **audience}
    return {"notification": None, "category": "offers", "campaign": campaign}


async def made(account: Account, **changes: Any) -> dict[str, Any]:
    answer = await account.post("/v1/schedules", schedule(**changes), key=uuid4().hex)
    assert answer.status_code == 201, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def test_a_schedule_says_when_it_is_next_and_temporal_is_told(
    account: Account, workflows: FakeWorkflows
):
    said = await made(account)
    next_at = datetime.fromisoformat(said["next_at"])
    assert next_at - datetime.now(UTC) <= timedelta(days=1, hours=1)
    assert (said["state"], said["kind"], said["zone"]) == (
        "active",
        "notification",
        "Europe/Berlin",
    )
    [told] = workflows.schedules
    assert (str(told.id), told.state) == (said["id"], ScheduleState.ACTIVE)
    shown = (await account.get(f"/v1/schedules/{said['id']}")).json()
    assert shown == said
    listed = (await account.get("/v1/schedules")).json()
    assert [one["id"] for one in listed["items"]] == [said["id"]]


async def test_the_same_key_makes_one_schedule(account: Account, workflows: FakeWorkflows):
    first = await account.post("/v1/schedules", schedule(), key="s")
    again = await account.post("/v1/schedules", schedule(), key="s")
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["Idempotent-Replay"] == "true"
    assert len(workflows.schedules) == 1
    other = await account.post("/v1/schedules", schedule(cron="0 8 * * *"), key="s")
    assert code_of(other) == (409, "key_reused")


async def test_while_temporal_is_away_the_schedule_stands_and_is_known_to_be_untold(
    account: Account, workflows: FakeWorkflows, parts: Parts
):
    workflows.away = True
    said = await made(account)
    untold = await parts.schedules.unapplied(timedelta(0), 1000)
    assert UUID(said["id"]) in {row.id for row in untold}
    workflows.away = False
    await account.post(f"/v1/schedules/{said['id']}/pause")
    untold = await parts.schedules.unapplied(timedelta(0), 1000)
    assert UUID(said["id"]) not in {row.id for row in untold}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cron": "every day"}, "bad_cron"),
        ({"cron": "0 0 31 2 *"}, "bad_cron"),
        ({"cron": None}, "invalid_body"),
        ({"every_seconds": 3600}, "invalid_body"),
        ({"notification": None}, "invalid_body"),
        ({"zone": "CET+1"}, "bad_zone"),
        ({"cron": None, "every_seconds": 5}, "too_often"),
        ({"category": "nothing"}, "unknown_category"),
        ({"notification": {**RUN, "recipient_id": "nobody"}}, "unknown_recipient"),
        ({"notification": {**RUN, "variables": {}}}, "missing_variable"),
        ({"notification": {**RUN, "address": "ada@example.com"}}, "raw_address_refused"),
        (
            {"category": "security.otp", "notification": {**RUN, "template_id": "otp"}},
            "cannot_recur",
        ),
        (
            {
                "notification": None,
                "category": "offers",
                "campaign": {"name": "weekly", "template_id": "placed", "list_id": "nobody"},
            },
            "unknown_list",
        ),
        (weekly(audience={"segment": "nothing"}), "unknown_segment"),
        (weekly(), "invalid_body"),
        (weekly(list_id="x", audience={"segment": "pro"}), "invalid_body"),
        (weekly(audience={}), "invalid_body"),
        (weekly(audience={"sent_of": str(uuid4())}), "invalid_body"),
    ],
)
async def test_what_could_not_run_is_refused(
    changes: dict[str, Any], code: str, account: Account, workflows: FakeWorkflows
):
    answer = await account.post("/v1/schedules", schedule(**changes), key="s")
    assert code_of(answer)[1] == code, answer.text
    assert workflows.schedules == []


async def test_c67_a_daily_reminder_that_always_lies_in_quiet_hours_is_refused_with_that_reason(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    tenant = await parts.catalog.tenant(account.tenant)
    assert tenant is not None
    await parts.catalog.put_tenant(replace(tenant, quiet_end=time(7)))  # type: ignore[attr-defined]
    quiet = {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 3600}
    await account.put("/v1/categories/bedtime", {**quiet, "quiet_hours": True})
    asked = schedule(category="bedtime", cron="30 22 * * *")
    answer = await account.post("/v1/schedules", asked, key="s")
    assert code_of(answer) == (422, "always_quiet")
    assert "22:00-07:00 in Europe/Berlin" in answer.json()["detail"]
    assert workflows.schedules == []
    assert (await account.get("/v1/schedules")).json()["items"] == []
    # The first minute that is not quiet is taken.
    assert (await made(account, category="bedtime", cron="0 7 * * *"))["warnings"] == []


async def test_c67_in_a_category_that_keeps_no_quiet_hours_it_fires_at_bedtime(account: Account):
    said = await made(account, cron="30 22 * * *")
    assert said["warnings"] == []


async def test_c67_quiet_hours_are_the_recipients_and_runs_that_sometimes_wait_are_named(
    account: Account,
):
    quiet = {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 3600}
    await account.put("/v1/categories/bedtime", {**quiet, "quiet_hours": True})
    # 22:30 in New York is half past four in Berlin, where the person sleeps.
    asked = schedule(category="bedtime", cron="30 22 * * *", zone="America/New_York")
    assert code_of(await account.post("/v1/schedules", asked, key="s"))[1] == "always_quiet"
    said = await made(account, category="bedtime", cron="0 */6 * * *")
    [warning] = said["warnings"]
    assert "of the next 60 runs fall into quiet hours" in warning


async def test_a_change_counts_from_now_and_a_repeat_of_it_changes_nothing(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    said = await made(account)
    path = f"/v1/schedules/{said['id']}"
    changed = await account.put(path, schedule(cron="0 10 * * *"))
    assert changed.status_code == 200, changed.text
    before = await parts.schedules.get(account.tenant, UUID(said["id"]))
    await account.put(path, schedule(cron="0 10 * * *"))
    assert await parts.schedules.get(account.tenant, UUID(said["id"])) == before
    assert workflows.schedules[-1].cron == "0 10 * * *"
    assert changed.json()["created_at"] == said["created_at"]


async def test_what_was_due_while_it_was_paused_is_not_owed_when_it_is_resumed(
    account: Account, parts: Parts
):
    said = await made(account)
    id = UUID(said["id"])
    path = f"/v1/schedules/{id}"
    paused = (await account.post(f"{path}/pause")).json()
    assert (paused["state"], paused["next_at"]) == ("paused", None)
    before = await parts.schedules.get(account.tenant, id)
    assert before is not None
    resumed = (await account.post(f"{path}/resume")).json()
    assert resumed["state"] == "active"
    row = await parts.schedules.get(account.tenant, id)
    assert row is not None
    # What it was handled until moves to the resumption: the stretch of the pause is owed to nobody.
    assert row.handled_until > before.handled_until


async def test_one_that_was_deleted_fires_no_more_keeps_its_log_and_cannot_be_changed(
    account: Account, workflows: FakeWorkflows
):
    said = await made(account)
    path = f"/v1/schedules/{said['id']}"
    assert (await account.delete(path)).json()["state"] == "deleted"
    assert (await account.delete(path)).status_code == 200
    assert workflows.schedules[-1].state is ScheduleState.DELETED
    assert code_of(await account.put(path, schedule())) == (409, "schedule_deleted")
    assert code_of(await account.post(f"{path}/resume")) == (409, "schedule_deleted")
    assert (await account.get("/v1/schedules")).json()["items"] == []
    assert (await account.get(f"{path}/triggers")).status_code == 200


async def test_what_did_we_fire_last_tuesday_at_nine(account: Account, parts: Parts):
    said = await made(account)
    row = await parts.schedules.get(account.tenant, UUID(said["id"]))
    assert row is not None
    tuesday = datetime(2026, 5, 5, 9, tzinfo=UTC)
    day = timedelta(days=1)
    lines = [
        Fire(tuesday - 2 * day, TriggerStatus.MISSED, "sweeper", 2, tuesday - day),
        Fire(tuesday, TriggerStatus.OWED, "schedule"),
    ]
    assert await parts.schedules.judge(row, row.handled_until, row.next_at, lines)
    ref = uuid4()
    await parts.schedules.settle(account.tenant, row.id, tuesday, TriggerStatus.FIRED, ref)
    hour = {"since": tuesday.isoformat(), "until": (tuesday + timedelta(hours=1)).isoformat()}
    [line] = (await account.get("/v1/triggers", **hour)).json()["items"]
    assert (line["status"], line["by"], line["scheduled_for"]) == (
        "fired",
        "schedule",
        "2026-05-05T09:00:00Z",
    )
    assert (line["id"], line["status_url"]) == (str(ref), f"/v1/notifications/{ref}")
    page = (await account.get(f"/v1/schedules/{row.id}/triggers")).json()["items"]
    assert [(one["status"], one["missed"]) for one in page] == [("fired", 0), ("missed", 2)]


async def test_c62_another_tenant_and_a_test_key_see_nothing_of_it(
    account: Account, new_account: Callable[..., Any]
):
    said = await made(account)
    path = f"/v1/schedules/{said['id']}"
    stranger: Account = await new_account()
    tester = await account.key(KeyKind.TEST)
    for other in (stranger, tester):
        assert code_of(await other.get(path)) == (404, "not_found")
        assert code_of(await other.delete(path)) == (404, "not_found")
        assert code_of(await other.get(f"{path}/triggers")) == (404, "not_found")
        assert (await other.get("/v1/schedules")).json()["items"] == []
    assert (await account.get(path)).json()["state"] == "active"


async def test_a_campaign_to_a_segment_recurs_and_its_schedule_says_which(
    account: Account, parts: Parts
):
    definition = {"attribute": "plan", "eq": "pro"}
    await account.put("/v1/segments/pro", {"definition": definition})
    await account.put("/v1/segments/free", {"definition": {"not": definition}})
    said = await made(account, **weekly(audience={"segment": "pro"}))
    path = f"/v1/schedules/{said['id']}"
    shown = (await account.get(path)).json()
    assert (shown["kind"], shown["segment"], shown["list_id"]) == ("campaign", "pro", None)
    row = await parts.schedules.get(account.tenant, UUID(said["id"]))
    assert row is not None
    assert row.content.segment_id == "pro"
    changed = await account.put(path, schedule(**weekly(audience={"segment": "free"})))
    assert changed.json()["segment"] == "free"
    await parts.lists.create(account.tenant, "everyone")
    to_a_list = (await account.put(path, schedule(**weekly(list_id="everyone")))).json()
    assert (to_a_list["segment"], to_a_list["list_id"]) == (None, "everyone")


async def test_a_change_to_a_segment_that_is_not_there_is_refused_and_changes_nothing(
    account: Account, new_account: Callable[..., Any]
):
    await account.put("/v1/segments/pro", {"definition": {"zone": "UTC"}})
    stranger: Account = await new_account()
    await stranger.set_up()
    await stranger.put("/v1/segments/theirs", {"definition": {"zone": "UTC"}})
    said = await made(account, **weekly(audience={"segment": "pro"}))
    path = f"/v1/schedules/{said['id']}"
    for name in ("nothing", "theirs"):
        refused = await account.put(path, schedule(**weekly(audience={"segment": name})))
        assert code_of(refused) == (422, "unknown_segment")
        assert refused.json()["field"] == "campaign.audience.segment"
    assert (await account.get(path)).json()["segment"] == "pro"


async def test_who_may_not_send_campaigns_may_not_make_them_recur(account: Account):
    sender = await account.key(scopes=[Scope.SEND])
    campaign = {"name": "weekly", "template_id": "placed", "list_id": "x"}
    asked = schedule(notification=None, campaign=campaign, category="offers")
    assert code_of(await sender.post("/v1/schedules", asked, key="s")) == (403, "scope_missing")
    reader = await account.key(scopes=[Scope.SUPPORT])
    assert code_of(await reader.post("/v1/schedules", schedule(), key="s"))[0] == 403
