"""What nobody should ask of a campaign, and what somebody will: each gets a stable code or the right thing, and loses nothing."""

import asyncio
from uuid import UUID

import pytest

from api.deps import Parts
from schemas.content import CampaignContent
from schemas.kinds import CampaignPhase, ControlState
from tests.api.conftest import TEMPLATES, Account, code_of
from tests.api.fakes import FakeWorkflows
from tests.api.test_campaigns import campaign, running, with_list
from tests.api.test_lists import lines, put, start

ROW = {"recipient_id": "c-1", "email": "c1@example.com"}

# --- the list -----------------------------------------------------------------------------------------------------------


async def test_a_list_still_uploading_is_refused_and_the_same_key_works_once_it_is_ready(
    account: Account, workflows: FakeWorkflows
):
    url = await start(account)
    await put(account, url, 0, lines(ROW))
    assert code_of(await account.post("/v1/campaigns", campaign(), key="c")) == (
        409,
        "list_not_ready",
    )
    assert workflows.started == []
    assert (await account.post(f"{url}/ready")).json()["size"] == 1
    assert (await account.post("/v1/campaigns", campaign(), key="c")).status_code == 202
    assert len(workflows.started) == 1


async def test_a_list_nobody_is_on_says_that_it_is_empty(
    account: Account, workflows: FakeWorkflows
):
    url = await start(account)
    assert (await account.post(f"{url}/ready")).json()["state"] == "failed"
    assert code_of(await account.post("/v1/campaigns", campaign(), key="c")) == (409, "list_empty")
    assert workflows.started == []


async def test_a_failed_list_says_why_and_a_new_upload_mends_it(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    url = await start(account)
    await put(account, url, 0, lines(ROW))
    version = UUID(url.rpartition("/")[2])
    assert await parts.lists.fail(account.tenant, version, "abandoned")  # type: ignore[attr-defined]
    refused = await account.post("/v1/campaigns", campaign(), key="c")
    assert code_of(refused) == (409, "list_failed")
    assert "abandoned" in refused.json()["detail"]
    again = await start(account, key="again")
    await put(account, again, 0, lines(ROW))
    await account.post(f"{again}/ready")
    assert (await account.post("/v1/campaigns", campaign(), key="c")).status_code == 202


async def test_an_upload_that_fails_leaves_the_version_that_is_ready(account: Account):
    await with_list(account)
    worse = await start(account, key="worse")
    await put(account, worse, 0, "{broken\n")
    assert (await account.post(f"{worse}/ready")).json()["state"] == "failed"
    assert (await account.post("/v1/campaigns", campaign(), key="c")).status_code == 202


# --- the template -------------------------------------------------------------------------------------------------------


async def test_a_template_that_changes_does_not_change_a_campaign_that_was_accepted(
    account: Account, workflows: FakeWorkflows
):
    await with_list(account)
    first = (await account.post("/v1/campaigns", campaign(), key="c")).json()
    changed = {**TEMPLATES["placed"], "variables": {"order": {}, "name": {}, "gift": {}}}
    published = await account.post("/v1/templates/placed/versions", changed, key="t2")
    assert published.status_code == 201, published.text
    again = (await account.post("/v1/campaigns", campaign(), key="c")).json()
    assert again == {**first, "replayed": True}
    shown = (await account.get(f"/v1/campaigns/{first['id']}")).json()
    assert shown["template_version"] == 1
    [row] = workflows.started
    assert CampaignContent.model_validate_json(row.content).template_version == 1
    values = {"order": "1", "name": "Ada", "gift": "tea"}
    second = (await account.post("/v1/campaigns", campaign(variables=values), key="d")).json()
    assert (await account.get(f"/v1/campaigns/{second['id']}")).json()["template_version"] == 2


# --- twice, and after the end -------------------------------------------------------------------------------------------


async def test_two_launches_at_once_with_one_key_are_one_campaign(
    account: Account, workflows: FakeWorkflows
):
    await with_list(account)
    answers = await asyncio.gather(
        *(account.post("/v1/campaigns", campaign(), key="c") for _ in range(8))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len({row.id for row in workflows.started}) == 1
    assert len((await account.get("/v1/campaigns")).json()["items"]) == 1


async def test_one_key_for_another_campaign_is_refused_and_the_first_stands(account: Account):
    await with_list(account)
    first = (await account.post("/v1/campaigns", campaign(), key="c")).json()
    other = await account.post("/v1/campaigns", campaign(name="Week 4"), key="c")
    assert code_of(other) == (409, "key_reused")
    [shown] = (await account.get("/v1/campaigns")).json()["items"]
    assert (shown["id"], shown["name"]) == (first["id"], "Week 3")


@pytest.mark.parametrize(
    "ended", [CampaignPhase.COMPLETED, CampaignPhase.CANCELLED, CampaignPhase.FAILED]
)
@pytest.mark.parametrize(
    ("what", "body"),
    [("resume", {}), ("pause", {}), ("cancel", {}), ("rate", {"rate_per_second": 5})],
)
async def test_what_has_ended_is_left_alone(
    account: Account,
    parts: Parts,
    workflows: FakeWorkflows,
    ended: CampaignPhase,
    what: str,
    body: dict[str, float],
):
    id = await running(account, parts)
    await parts.campaigns.set_phase(account.tenant, id, ended, "why")
    answer = await account.post(f"/v1/campaigns/{id}/{what}", body)
    assert code_of(answer) == (409, "campaign_closed")
    assert workflows.signals == []
    control = await parts.campaigns.control(account.tenant, id)
    assert (control.version, control.state) == (0, ControlState.RUNNING)
    shown = (await account.get(f"/v1/campaigns/{id}")).json()
    assert (shown["phase"], shown["reason"]) == (ended, "why")


@pytest.mark.parametrize("rate", [0, -1, "fast", None, 1e400])
async def test_a_rate_that_is_none_changes_nothing(
    account: Account, parts: Parts, workflows: FakeWorkflows, rate: object
):
    id = await running(account, parts)
    await account.post(f"/v1/campaigns/{id}/rate", {"rate_per_second": 7})
    workflows.signals.clear()
    answer = await account.raw(
        "POST",
        f"/v1/campaigns/{id}/rate",
        f'{{"rate_per_second": {"1e400" if rate == 1e400 else _json(rate)}}}'.encode(),
        Content_Type="application/json",
    )
    assert code_of(answer) == (422, "invalid_body")
    assert workflows.signals == []
    assert (await parts.campaigns.control(account.tenant, id)).rate_per_second == 7


def _json(value: object) -> str:
    return {None: "null", "fast": '"fast"'}.get(value, str(value))  # type: ignore[call-overload, no-any-return]


# --- cancelled before anything is sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "phase",
    [
        CampaignPhase.ACCEPTED,
        CampaignPhase.FREEZING,
        CampaignPhase.PREFLIGHT,
        CampaignPhase.AWAITING_APPROVAL,
        CampaignPhase.WAITING,
    ],
)
async def test_a_cancel_before_the_first_send_is_written_and_told_and_nobody_undoes_it(
    account: Account, parts: Parts, workflows: FakeWorkflows, phase: CampaignPhase
):
    """A segment is written while it freezes. What the workflow makes of it: `tests/workflows/test_launch.py` and
    `tests/activities/test_launch_activities.py`."""
    await with_list(account)
    id = UUID((await account.post("/v1/campaigns", campaign(), key="c")).json()["id"])
    await parts.campaigns.set_phase(account.tenant, id, phase)
    answer = await account.post(f"/v1/campaigns/{id}/cancel", {"reason": "typo"})
    assert (answer.status_code, answer.json()["control"]) == (200, "cancelled")
    assert [(told, name) for told, name, _ in workflows.signals] == [(id, "cancel")]
    second = await account.key()
    for what in ("approve", "resume", "pause"):
        refused = await second.post(f"/v1/campaigns/{id}/{what}", {})
        assert code_of(refused) == (409, "campaign_closed"), what
    control = await parts.campaigns.control(account.tenant, id)
    assert (control.state, control.reason) == (ControlState.CANCELLED, "typo")


async def test_a_campaign_that_reached_nobody_says_why(account: Account, parts: Parts):
    id = await running(account, parts)
    await parts.campaigns.set_phase(
        account.tenant, id, CampaignPhase.COMPLETED, "nobody was sent to: no_consent 3"
    )
    shown = (await account.get(f"/v1/campaigns/{id}")).json()
    assert (shown["phase"], shown["reason"]) == ("completed", "nobody was sent to: no_consent 3")
