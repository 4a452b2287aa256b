"""Before a launch: what it would be told, colleagues first, the second person; and corrections (CAMP-7, CAMP-8, CAMP-12, CAMP-15)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from api.auth import KeyKind, Scope
from api.deps import Parts
from schemas.campaigns import CampaignSpec
from schemas.kinds import CampaignPhase, Channel, RecipientState
from schemas.notifications import DecisionKey
from sendloom.ports import Decision
from tests.api.conftest import RECIPIENT, Account, code_of
from tests.api.fakes import FakeWorkflows
from tests.api.test_campaigns import campaign, running, with_list


def in_(**time: float) -> str:
    return (datetime.now(UTC) + timedelta(**time)).isoformat()


async def settings(account: Account, **given: Any) -> None:
    pool = account.parts.catalog._pool  # type: ignore[attr-defined]
    await pool.execute(
        "UPDATE tenants SET settings = settings || $2 WHERE tenant = $1", account.tenant, given
    )


# --- preflight ------------------------------------------------------------------------------------------------------------


async def test_preflight_tells_what_a_launch_would_be_told_and_creates_nothing(
    account: Account, workflows: FakeWorkflows
):
    await with_list(account, 3)
    await settings(account, rates={"email": 2}, approval_over=2)
    report = (await account.post("/v1/campaigns/preflight", campaign())).json()
    assert (report["ok"], report["checked"], report["size"]) == (True, 3, 3)
    assert (report["rate_per_second"], report["approval_needed"]) == (2, True)
    bad = (await account.post("/v1/campaigns/preflight", campaign(variables={}))).json()
    assert (bad["ok"], bad["code"]) == (False, "preflight_failed")
    assert "c-000: missing_variable order (email)" in bad["examples"]
    late = campaign(deadline=in_(seconds=1.2), rate_per_second=0.5)
    assert (await account.post("/v1/campaigns/preflight", late)).json()["code"] == (
        "deadline_infeasible"
    )
    assert workflows.started == []
    assert (await account.get("/v1/campaigns")).json()["items"] == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"list_id": "nope"}, "unknown_list"),
        ({"category": "orders"}, "marketing_only"),
        ({"template_id": "nope"}, "unknown_template"),
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline_infeasible"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "ttl_expired"),
    ],
)
async def test_preflight_refuses_what_a_launch_refuses(
    account: Account, changes: dict[str, Any], code: str
):
    await with_list(account)
    for path, key in (("/v1/campaigns/preflight", None), ("/v1/campaigns", "c")):
        assert code_of(await account.post(path, campaign(**changes), key=key)) == (422, code)


# --- when -----------------------------------------------------------------------------------------------------------------


async def test_a_local_time_and_what_happens_when_it_has_passed_are_kept(
    account: Account, workflows: FakeWorkflows
):
    await with_list(account)
    body = campaign(local_time="2035-03-25T02:30", missed="next_day", window="09:00-20:00")
    answer = await account.post("/v1/campaigns", body, key="c")
    assert answer.status_code == 202, answer.text
    shown = (await account.get(f"/v1/campaigns/{answer.json()['id']}")).json()
    assert shown["local_time"] == "2035-03-25T02:30:00"
    [row] = workflows.started
    assert b'"missed":"next_day"' in row.content


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"local_time": "2020-01-15T09:00", "missed": "skip"}, "due_past"),
        ({"local_time": "2035-01-15T09:00", "missed": "whenever"}, "invalid_body"),
        ({"local_time": "2035-01-15T09:00+01:00"}, "invalid_body"),
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline_infeasible"),
        ({"send_at": "2035-01-02T00:00:00Z", "deadline": "2035-01-01T00:00:00Z"}, "deadline_infeasible"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "ttl_expired"),
        ({"send_at": "2035-01-02T00:00:00Z", "expires_at": "2035-01-02T00:00:00Z"}, "ttl_expired"),
        # 14 hours ahead of UTC it is nine first.
        ({"local_time": "2035-01-15T09:00", "expires_at": "2035-01-14T19:00:00Z"}, "ttl_expired"),
        ({"rate_per_second": 0}, "invalid_body"),
        ({"audience": {"sent_of": "00000000-0000-0000-0000-000000000000"}}, "invalid_body"),
        ({"list_id": None}, "invalid_body"),
        ({"list_id": None, "audience": ["c-1"]}, "audience_refused"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_with_nothing_started(
    account: Account, workflows: FakeWorkflows, changes: dict[str, Any], code: str
):
    await with_list(account)
    body = {k: v for k, v in campaign(**changes).items() if v is not None}
    assert code_of(await account.post("/v1/campaigns", body, key="c")) == (422, code)
    assert workflows.started == []


async def test_a_local_time_that_has_passed_is_taken_unless_everybody_would_be_skipped(
    account: Account,
):
    await with_list(account)
    for missed in ("send", "next_day"):
        body = campaign(local_time="2020-01-15T09:00", missed=missed)
        assert (await account.post("/v1/campaigns", body, key=missed)).status_code == 202
    # What it is now in UTC has passed in the east, and is to come in the west.
    here = campaign(local_time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M"), missed="skip")
    assert (await account.post("/v1/campaigns", here, key="skip")).status_code == 202


@pytest.mark.parametrize("missed", ["send", "next_day"])
async def test_the_time_of_a_category_counts_from_the_last_zones_moment(
    account: Account, parts: Parts, missed: str
):
    """Else a wave of next week would be over before it."""
    await with_list(account)
    category = await parts.catalog.category(account.tenant, "offers")
    assert category is not None
    ttl = timedelta(seconds=category.ttl_seconds)
    wave = campaign(local_time="2035-01-15T09:00", missed=missed)
    id = (await account.post("/v1/campaigns", wave, key="wave")).json()["id"]
    row = await parts.campaigns.get(account.tenant, UUID(id))
    assert row is not None
    # Twelve hours behind UTC it is nine last.
    assert row.expires_at == datetime(2035, 1, 15, 21, tzinfo=UTC) + ttl
    passed = campaign(local_time="2020-01-15T09:00", missed=missed)
    id = (await account.post("/v1/campaigns", passed, key="passed")).json()["id"]
    row = await parts.campaigns.get(account.tenant, UUID(id))
    assert row is not None
    assert row.expires_at == row.created_at + ttl + timedelta(days=missed == "next_day")


# --- colleagues first -----------------------------------------------------------------------------------------------------


def colleagues(*ids: str, **changes: Any) -> dict[str, Any]:
    return {
        "category": "offers",
        "template_id": "placed",
        "variables": {"order": "1"},
        "recipient_ids": list(ids),
        **changes,
    }


async def test_a_test_goes_to_each_named_colleague_once_however_often_it_is_asked(
    account: Account, workflows: FakeWorkflows
):
    for id in ("co-1", "co-2"):
        body = {**RECIPIENT, "internal": True, "email": {"address": f"{id}@example.com"}}
        body.pop("phone")
        assert (await account.put(f"/v1/recipients/{id}", body)).is_success
    for replayed in (False, True):
        answer = await account.post(
            "/v1/campaigns/test", colleagues("co-1", "co-2", "co-1"), key="t"
        )
        assert answer.status_code == 202, answer.text
        assert [item["replayed"] for item in answer.json()["items"]] == [replayed] * 2
    assert [row.recipient_id for row in workflows.started] == ["co-1", "co-2"]
    other = colleagues("co-1", "co-2", variables={"order": "2"})
    assert code_of(await account.post("/v1/campaigns/test", other, key="t")) == (409, "key_reused")


async def test_a_test_reaches_nobody_who_is_not_a_colleague(
    account: Account, workflows: FakeWorkflows
):
    assert (await account.put("/v1/recipients/co-1", {**RECIPIENT, "internal": True})).is_success
    for stranger in ("r-1", "nobody"):
        answer = await account.post("/v1/campaigns/test", colleagues("co-1", stranger), key="t")
        assert code_of(answer) == (403, "recipient_not_internal")
    assert workflows.started == []


# --- the second person ----------------------------------------------------------------------------------------------------


async def awaiting(account: Account, parts: Parts) -> UUID:
    id = await running(account, parts)
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.AWAITING_APPROVAL)
    return id


async def test_a_second_key_approves_once_and_the_first_never(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    id = await awaiting(account, parts)
    url = f"/v1/campaigns/{id}/approve"
    assert code_of(await account.post(url)) == (403, "same_person")
    assert workflows.signals == []
    second = await account.key(scopes=[Scope.CAMPAIGNS])
    said = (await second.post(url)).json()
    assert said["approved_by"] not in (None, said["created_by"])
    third = await account.key(scopes=[Scope.OPS])
    assert (await third.post(url)).json()["approved_by"] == said["approved_by"]
    assert [(told, name) for told, name, _ in workflows.signals] == [(id, "approve")] * 2
    entries = (await account.get("/v1/audit", target=str(id))).json()["items"]
    assert [e["action"] for e in entries].count("campaign.approve") == 1


async def test_what_waits_for_nobody_cannot_be_approved(account: Account, parts: Parts):
    id = await running(account, parts)
    second = await account.key()
    answer = await second.post(f"/v1/campaigns/{id}/approve")
    assert code_of(answer) == (409, "not_awaiting_approval")
    await account.post(f"/v1/campaigns/{id}/cancel", {})
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.CANCELLED)
    for what in ("approve", "resume"):
        answer = await second.post(f"/v1/campaigns/{id}/{what}", {})
        assert code_of(answer) == (409, "campaign_closed")


async def test_a_key_that_only_sends_may_not_approve(account: Account, parts: Parts):
    id = await awaiting(account, parts)
    sender = await account.key(scopes=[Scope.SEND])
    assert code_of(await sender.post(f"/v1/campaigns/{id}/approve")) == (403, "scope_missing")


# --- corrections ----------------------------------------------------------------------------------------------------------


async def sent_to(account: Account, parts: Parts, *who: str) -> UUID:
    id = await running(account, parts)
    row = await parts.campaigns.get(account.tenant, id)
    assert row is not None
    assert row.frozen_at is not None
    states = [
        RecipientState.SENT if f"c-{n:03}" in who else RecipientState.SUPPRESSED for n in range(3)
    ]
    keys = [
        DecisionKey(
            tenant=account.tenant,
            frozen_at=row.frozen_at,
            campaign_id=id,
            shard=0,
            page=0,
            recipient_id=f"c-{n:03}",
        )
        for n in range(3)
    ]
    await parts.decisions.insert(
        [Decision(k, s, channel=Channel.EMAIL) for k, s in zip(keys, states, strict=True)]
    )
    await parts.campaigns.summarise(account.tenant, row.frozen_at, id, [(0, 0)])
    return id


async def test_a_correction_names_a_campaign_that_has_ended(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    id = await sent_to(account, parts, "c-001")
    body = campaign(name="Sorry", audience={"sent_of": str(id)})
    del body["list_id"]
    assert code_of(await account.post("/v1/campaigns", body, key="x")) == (409, "campaign_open")
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.COMPLETED)
    # What really went out is nothing that a trial could follow, and the reverse.
    test = await account.key(KeyKind.TEST)
    assert code_of(await test.post("/v1/campaigns", body, key="x")) == (404, "unknown_campaign")
    answer = await account.post("/v1/campaigns", body, key="x")
    assert answer.status_code == 202, answer.text
    again = await account.post("/v1/campaigns", body, key="x")
    assert again.json()["id"] == answer.json()["id"]
    row = await parts.campaigns.get(account.tenant, UUID(answer.json()["id"]))
    assert row is not None
    assert CampaignSpec.model_validate(dict(row.spec)).sent_of == id
    assert (await account.post("/v1/campaigns/preflight", body)).json()["size"] == 1


async def test_nobody_to_correct_is_refused(account: Account, parts: Parts):
    body = campaign(audience={"sent_of": "00000000-0000-0000-0000-000000000000"})
    del body["list_id"]
    assert code_of(await account.post("/v1/campaigns", body, key="x")) == (404, "unknown_campaign")
    id = await sent_to(account, parts)
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.COMPLETED)
    body = campaign(audience={"sent_of": str(id)})
    del body["list_id"]
    assert code_of(await account.post("/v1/campaigns", body, key="x")) == (422, "nobody_sent")
