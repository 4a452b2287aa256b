"""Accepting a notification: once, or not at all (ACC-1 to ACC-6)."""

import asyncio
import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from api.auth import KeyKind
from api.deps import Parts
from api.views import decision_key
from schemas.content import Content
from schemas.kinds import Channel, ClaimState, Kind, Mode, RecipientState
from schemas.notifications import NotificationInput
from sendloom.domain.ids import derived_id
from sendloom.ports import ClaimResult, ClaimScope, Decision, Want
from tests.api.conftest import Account, code_of, notification
from tests.api.fakes import FakeWorkflows


async def test_it_is_accepted_with_an_id_derived_from_its_key_and_started_once(
    account: Account, workflows: FakeWorkflows, parts: Parts
):
    answer = await account.post("/v1/notifications", notification(), key="k-1")
    assert answer.status_code == 202
    said = answer.json()
    assert said["id"] == str(derived_id(Kind.NOTIFICATION, account.tenant, Mode.LIVE, "k-1"))
    assert said["status_url"] == f"/v1/notifications/{said['id']}"
    assert said["replayed"] is False
    assert "Idempotent-Replay" not in answer.headers
    [row] = workflows.started
    given = NotificationInput.model_validate_json(row.workflow_input)
    assert (given.recipient_id, given.category) == ("r-1", "orders")
    content = Content.model_validate_json(row.content)
    assert (content.template_id, content.template_version) == ("placed", 1)
    stored = await parts.accepted.get(account.tenant, row.id)
    assert stored is not None
    assert stored.started_at is not None


async def test_c06_twenty_at_once_with_one_key_end_with_one_id_and_one_start(
    account: Account, workflows: FakeWorkflows
):
    answers = await asyncio.gather(
        *(account.post("/v1/notifications", notification(), key="k-001") for _ in range(20))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum(not answer.json()["replayed"] for answer in answers) == 1
    assert len(workflows.started) == 1


async def test_c31_a_key_with_another_body_is_refused_and_the_first_body_in_other_clothes_replays(
    account: Account, workflows: FakeWorkflows
):
    first = await account.post("/v1/notifications", notification(), key="k-002")
    other = await account.post(
        "/v1/notifications", notification(variables={"order": "18"}), key="k-002"
    )
    assert code_of(other) == (409, "key_reused")
    body = notification()
    dressed = json.dumps(dict(reversed(body.items())), indent=4).encode()
    again = await account.raw(
        "POST",
        "/v1/notifications",
        dressed,
        Idempotency_Key="k-002",
        Content_Type="application/json",
    )
    assert again.status_code == 202
    assert again.json() == {**first.json(), "replayed": True}
    assert again.headers["Idempotent-Replay"] == "true"
    assert len(workflows.started) == 1


async def test_a_replay_needs_neither_the_template_nor_the_recipient(account: Account):
    first = await account.post("/v1/notifications", notification(), key="k")
    assert (await account.delete("/v1/recipients/r-1")).status_code == 204
    again = await account.post("/v1/notifications", notification(), key="k")
    assert again.json() == {**first.json(), "replayed": True}
    new = await account.post("/v1/notifications", notification(), key="k-new")
    assert code_of(new) == (422, "unknown_recipient")


async def test_the_same_key_is_another_request_in_test_mode_and_for_another_kind(
    account: Account, workflows: FakeWorkflows
):
    test = await account.key(KeyKind.TEST)
    one = await account.post("/v1/notifications", notification(), key="k")
    two = await test.post("/v1/notifications", notification(), key="k")
    three = await account.post(
        "/v1/reminders",
        {**notification(), "due": {"at": "2035-01-01T09:00:00Z"}},
        key="k",
    )
    assert {r.status_code for r in (one, two, three)} == {202}
    assert len({r.json()["id"] for r in (one, two, three)}) == 3
    assert [row.mode for row in workflows.started] == ["live", "test", "live"]


REFUSED: dict[str, tuple[dict[str, object], int, str, str | None]] = {
    "an unknown template": ({"template_id": "nope"}, 422, "unknown_template", "template_id"),
    "an unknown category": ({"category": "nope"}, 422, "unknown_category", "category"),
    "an unknown recipient": ({"recipient_id": "nope"}, 422, "unknown_recipient", "recipient_id"),
    "a missing variable": ({"variables": {}}, 422, "missing_variable", "variables.order"),
    "an empty variable": (
        {"variables": {"order": " "}},
        422,
        "missing_variable",
        "variables.order",
    ),
    "a variable that is no text": (
        {"variables": {"order": [1]}},
        422,
        "bad_variable",
        "variables.order",
    ),
    "an address as a field": (
        {"email": "x@example.com"},
        422,
        "raw_address_refused",
        "email",
    ),
    "an address as a recipient": (
        {"recipient_id": "x@example.com"},
        422,
        "raw_address_refused",
        "recipient_id",
    ),
    "a number as a recipient": (
        {"recipient_id": "+12025550143"},
        422,
        "raw_address_refused",
        "recipient_id",
    ),
    "a body": ({"body": "Hello"}, 422, "content_refused", "body"),
    "a template in place": (
        {"template_id": {"text": "Hello"}},
        422,
        "content_refused",
        "template_id",
    ),
    "an inline audience": ({"recipients": ["r-1"]}, 422, "audience_refused", "recipients"),
    "a misspelt field": ({"tempalte": "x"}, 422, "invalid_body", "tempalte"),
    "a time to live of zero": ({"ttl_seconds": 0}, 422, "ttl_expired", "ttl_seconds"),
    "a time to live below zero": ({"ttl_seconds": -5}, 422, "ttl_expired", "ttl_seconds"),
    "a time to live of years": ({"ttl_seconds": 10**9}, 422, "bad_ttl", "ttl_seconds"),
    "variables that are no object": ({"variables": "x"}, 422, "invalid_body", "variables"),
}


@pytest.mark.parametrize("case", REFUSED, ids=REFUSED)
async def test_bad_input_has_a_stable_code_and_leaves_nothing_behind(
    case: str, account: Account, workflows: FakeWorkflows, parts: Parts
):
    changes, status, code, field = REFUSED[case]
    answer = await account.post("/v1/notifications", notification(**changes), key="bad")
    assert code_of(answer) == (status, code)
    problem = answer.json()
    assert problem.get("field") == field
    assert problem["fix"]
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert "x@example.com" not in answer.text
    assert workflows.started == []
    id = derived_id(Kind.NOTIFICATION, account.tenant, Mode.LIVE, "bad")
    assert await parts.accepted.get(account.tenant, id) is None
    # The key is not used up: the corrected request goes through.
    good = await account.post("/v1/notifications", notification(), key="bad")
    assert good.status_code == 202


async def test_without_an_idempotency_key_or_with_a_bad_one_nothing_is_created(
    account: Account, workflows: FakeWorkflows
):
    missing = await account.post("/v1/notifications", notification())
    assert code_of(missing) == (400, "idempotency_key_missing")
    for bad in ("k" * 256, "k\tk"):
        refused = await account.post("/v1/notifications", notification(), key=bad)
        assert code_of(refused) == (400, "idempotency_key_invalid")
    assert workflows.started == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"[" * 5000])
async def test_what_is_not_a_json_object_is_refused(body: bytes, account: Account):
    answer = await account.raw(
        "POST", "/v1/notifications", body, Idempotency_Key="k", Content_Type="application/json"
    )
    assert code_of(answer) == (422, "invalid_body")


async def test_a_recipient_whom_no_channel_reaches_is_refused_at_accept(account: Account):
    await account.put("/v1/recipients/r-2", {"phone": {"address": "+12025550144"}})
    # The template has only an email part.
    answer = await account.post("/v1/notifications", notification(recipient_id="r-2"), key="k")
    assert code_of(answer) == (422, "no_usable_channel")


async def test_what_comes_of_it_is_told_from_the_first_moment_by_our_own_rows(
    account: Account, parts: Parts
):
    made = (await account.post("/v1/notifications", notification(), key="k")).json()
    url = made["status_url"]
    said = (await account.get(url)).json()
    assert (said["state"], said["channels"]) == ("pending", [])

    row = await parts.accepted.get(account.tenant, UUID(made["id"]))
    assert row is not None
    key = decision_key(row)
    await parts.decisions.insert(
        [Decision(key=key, state=RecipientState.PENDING, channel=Channel.EMAIL)]
    )
    said = (await account.get(url)).json()
    assert [(c["channel"], c["state"]) for c in said["channels"]] == [("email", "accepted")]

    scope = ClaimScope(account.tenant, row.accepted_at, row.id, 0, 0, Channel.EMAIL)
    owner = uuid4()
    await parts.ledger.claim(scope, [Want("r-1")], owner, timedelta(minutes=1))
    said = (await account.get(url)).json()
    assert [c["state"] for c in said["channels"]] == ["sending"]

    await parts.ledger.record(
        scope,
        [
            ClaimResult(
                recipient_id="r-1",
                attempt=1,
                owner=owner,
                state=ClaimState.SENT,
                provider="smtp",
                provider_message_id="m-1",
            )
        ],
    )
    said = (await account.get(url)).json()
    [channel] = said["channels"]
    assert (channel["state"], channel["provider_message_id"]) == ("sent", "m-1")
    assert channel["sent_at"] is not None
    delivery = (await account.get(f"/v1/deliveries/{channel['delivery_id']}")).json()
    assert delivery["state"] == "sent"
    assert delivery["notification_id"] == made["id"]


async def test_a_suppressed_message_says_why(account: Account, parts: Parts):
    made = (await account.post("/v1/notifications", notification(), key="k")).json()
    row = await parts.accepted.get(account.tenant, UUID(made["id"]))
    assert row is not None
    await parts.decisions.insert(
        [
            Decision(
                key=decision_key(row),
                state=RecipientState.SUPPRESSED,
                reason="suppressed_hard_bounce",
            )
        ]
    )
    await parts.accepted.close(
        account.tenant, row.id, {"kind": "suppressed", "reason": "suppressed_hard_bounce"}
    )
    said = (await account.get(made["status_url"])).json()
    assert (said["state"], said["reason"]) == ("suppressed", "suppressed_hard_bounce")
    assert said["closed_at"] is not None


async def test_what_a_recipient_got_lately_is_listed_newest_first(account: Account):
    ids = [
        (await account.post("/v1/notifications", notification(), key=f"k-{n}")).json()["id"]
        for n in range(3)
    ]
    page = (await account.get("/v1/recipients/r-1/messages", limit=2)).json()
    assert [item["id"] for item in page["items"]] == [ids[2], ids[1]]
    rest = (await account.get("/v1/recipients/r-1/messages", limit=2, before=page["next"])).json()
    assert [item["id"] for item in rest["items"]] == [ids[0]]
    assert rest["next"] is None


async def test_c94_three_megabytes_of_a_variable_are_refused_with_the_limit(
    account: Account, workflows: FakeWorkflows
):
    answer = await account.post(
        "/v1/notifications", notification(variables={"order": "x" * 3_000_000}), key="k"
    )
    assert code_of(answer) == (413, "body_too_large")
    assert "1024 KiB" in answer.json()["detail"]
    assert workflows.started == []
