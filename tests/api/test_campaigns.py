"""Campaigns through the API: accepted in no time, controlled by a row, counted so that it adds up (CAMP-1, CAMP-5, CAMP-10)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import time_machine

from api.deps import Parts
from schemas.campaigns import CampaignInput
from schemas.kinds import CampaignPhase, Channel, Kind, RecipientState
from schemas.notifications import DecisionKey
from sendloom.domain.ids import dead_letter_id
from sendloom.ports import DeadLetter, Decision
from tests.api.conftest import Account, code_of
from tests.api.fakes import FakeWorkflows
from tests.api.test_lists import lines, put, start


def campaign(**changes: Any) -> dict[str, Any]:
    return {
        "name": "Week 3",
        "category": "offers",
        "template_id": "placed",
        "list_id": "all",
        "variables": {"order": "1"},
        **changes,
    }


async def with_list(account: Account, size: int = 3) -> None:
    url = await start(account)
    rows = [{"recipient_id": f"c-{n:03}", "email": f"c{n}@example.com"} for n in range(size)]
    assert (await put(account, url, 0, lines(*rows))).status_code == 200
    assert (await account.post(f"{url}/ready")).json()["state"] == "ready"


async def test_it_is_accepted_with_its_version_and_started_once(
    account: Account, workflows: FakeWorkflows
):
    await with_list(account)
    answer = await account.post("/v1/campaigns", campaign(rate_per_second=5), key="c")
    assert answer.status_code == 202, answer.text
    id = answer.json()["id"]
    again = await account.post("/v1/campaigns", campaign(rate_per_second=5), key="c")
    assert again.json() == {**answer.json(), "replayed": True}
    [row] = workflows.started
    assert CampaignInput.model_validate_json(row.workflow_input).campaign_id == UUID(id)
    said = (await account.get(f"/v1/campaigns/{id}")).json()
    assert (said["phase"], said["template_version"], said["rate_per_second"]) == ("accepted", 1, 5)
    assert (said["size"], said["counts"], said["adds_up"]) == (None, {}, True)
    assert [c["id"] for c in (await account.get("/v1/campaigns")).json()["items"]] == [id]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"category": "orders"}, 422, "marketing_only"),
        ({"category": "security.otp"}, 422, "marketing_only"),
        ({"category": "nope"}, 422, "unknown_category"),
        ({"template_id": "nope"}, 422, "unknown_template"),
        ({"list_id": "nope"}, 422, "unknown_list"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, 422, "ttl_expired"),
        ({"send_at": "2035-01-01T09:00:00"}, 422, "invalid_body"),
        ({"rate_per_second": 0}, 422, "invalid_body"),
        ({"window": "nonsense"}, 422, "bad_window"),
        ({"local_time": "2035-13-01T09:00"}, 422, "bad_local_time"),
        ({"audience": ["c-1"]}, 422, "audience_refused"),
        ({"html": "<p>Hi</p>"}, 422, "content_refused"),
    ],
)
async def test_bad_campaigns_are_refused_with_nothing_started(
    changes: dict[str, Any],
    status: int,
    code: str,
    account: Account,
    workflows: FakeWorkflows,
):
    await with_list(account)
    answer = await account.post("/v1/campaigns", campaign(**changes), key="c")
    assert code_of(answer) == (status, code)
    assert workflows.started == []
    assert (await account.get("/v1/campaigns")).json()["items"] == []


async def test_c94_two_hundred_thousand_inline_recipients_are_refused_with_the_way_to_do_it(
    account: Account, workflows: FakeWorkflows
):
    body = campaign(recipients=[f"r-{n:07}" for n in range(200_000)])
    answer = await account.post("/v1/campaigns", body, key="c")
    assert code_of(answer) == (413, "body_too_large")
    assert "chunks" in answer.json()["fix"]
    assert workflows.started == []


async def running(account: Account, parts: Parts, size: int = 3) -> UUID:
    """A frozen campaign, without its workflow."""
    await with_list(account, size)
    id = UUID((await account.post("/v1/campaigns", campaign(), key="c")).json()["id"])
    await parts.campaigns.freeze(account.tenant, id, datetime.now(UTC), (Channel.EMAIL,))
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.RUNNING)
    return id


async def test_pause_resume_and_rate_write_the_row_first_and_then_tell_the_workflow(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    id = await running(account, parts)
    url = f"/v1/campaigns/{id}"
    paused = (await account.post(f"{url}/pause", {"reason": "typo"})).json()
    assert paused["control"] == "paused"
    control = await parts.campaigns.control(account.tenant, id)
    assert (control.version, control.state, control.reason) == (1, "paused", "typo")
    # A repeat changes nothing, but tells again: the first telling may have been lost.
    assert (await account.post(f"{url}/pause", {})).json()["control"] == "paused"
    assert (await parts.campaigns.control(account.tenant, id)).version == 1
    assert (await account.post(f"{url}/rate", {"rate_per_second": 7})).json()[
        "rate_per_second"
    ] == 7
    assert (await account.post(f"{url}/resume", {})).json()["control"] == "running"
    assert [(name, signal.version) for _, name, signal in workflows.signals] == [
        ("pause", 1),
        ("pause", 1),
        ("set_rate", 2),
        ("resume", 3),
    ]
    audit = (await account.get("/v1/audit")).json()["items"]
    assert [entry["action"] for entry in audit[:3]] == [
        "campaign.resume",
        "campaign.set_rate",
        "campaign.pause",
    ]


async def test_what_is_cancelled_stays_cancelled(account: Account, parts: Parts):
    id = await running(account, parts)
    url = f"/v1/campaigns/{id}"
    assert (await account.post(f"{url}/cancel", {})).json()["control"] == "cancelled"
    assert (await account.post(f"{url}/cancel", {})).json()["control"] == "cancelled"
    assert code_of(await account.post(f"{url}/resume", {})) == (409, "campaign_closed")


async def test_what_has_ended_cannot_be_controlled(account: Account, parts: Parts):
    id = await running(account, parts)
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.COMPLETED)
    for what in ("pause", "resume", "cancel"):
        answer = await account.post(f"/v1/campaigns/{id}/{what}", {})
        assert code_of(answer) == (409, "campaign_closed")


GROUPS = {
    (RecipientState.SENT, None): 80,
    (RecipientState.SUPPRESSED, "suppressed_hard_bounce"): 5,
    (RecipientState.SUPPRESSED, "opted_out"): 5,
    (RecipientState.SUPPRESSED, "unverified"): 4,
    (RecipientState.SUPPRESSED, "frequency_cap"): 3,
    (RecipientState.FAILED, "timeout"): 3,
}


async def decided(
    account: Account,
    parts: Parts,
    id: UUID,
    groups: Mapping[tuple[RecipientState, str | None], int] = GROUPS,
) -> None:
    """Everybody's decision, as the groups say."""
    row = await parts.campaigns.get(account.tenant, id)
    assert row is not None
    assert row.frozen_at is not None
    states = [group for group, n in groups.items() for _ in range(n)]
    pool = parts.lists._pool  # type: ignore[attr-defined]
    places = await pool.fetch(
        "SELECT shard, page, recipient_id FROM list_rows WHERE tenant = $1 AND version_id = $2",
        account.tenant,
        row.version_id,
    )
    pages = {(place["shard"], place["page"]) for place in places}
    await parts.decisions.insert(
        [
            Decision(
                key=DecisionKey(
                    tenant=account.tenant,
                    frozen_at=row.frozen_at,
                    campaign_id=id,
                    shard=place["shard"],
                    page=place["page"],
                    recipient_id=place["recipient_id"],
                ),
                state=state,
                reason=reason,
                channel=Channel.EMAIL,
            )
            for place, (state, reason) in zip(places, states, strict=True)
        ]
    )
    await parts.campaigns.summarise(account.tenant, row.frozen_at, id, sorted(pages))


async def test_c47_each_number_is_shown_they_add_up_and_each_group_can_be_listed(
    account: Account, parts: Parts
):
    id = await running(account, parts, size=100)
    before = (await account.get(f"/v1/campaigns/{id}")).json()
    assert (before["size"], before["counts"], before["adds_up"]) == (100, {"pending": 100}, True)
    await decided(account, parts, id)
    said = (await account.get(f"/v1/campaigns/{id}")).json()
    assert said["counts"] == {"sent": 80, "suppressed": 17, "failed": 3}
    assert said["adds_up"] is True
    assert said["reasons"] == {
        "suppressed_hard_bounce": 5,
        "opted_out": 5,
        "unverified": 4,
        "frequency_cap": 3,
        "timeout": 3,
    }
    seen = 0
    for (state, reason), n in GROUPS.items():
        params = {"state": state, "limit": 50} | ({"reason": reason} if reason else {})
        found: list[str] = []
        after: str | None = None
        while True:
            page = (
                await account.get(
                    f"/v1/campaigns/{id}/recipients",
                    **params,
                    **({"after": after} if after else {}),
                )
            ).json()
            found += [item["recipient_id"] for item in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert len(set(found)) == n
        seen += n
    assert seen == 100


async def test_replay_takes_the_failed_only_and_wakes_the_due_loop(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    id = await running(account, parts, size=100)
    await decided(account, parts, id)
    answer = await account.post(f"/v1/campaigns/{id}/replay", {"states": ["failed"]})
    assert answer.json() == {"count": 3}
    [due] = workflows.due
    # The campaign's own loop goes on: one that ends when nothing waits would leave who is put off later to nobody.
    assert (due.campaign_id, due.channels, due.closing) == (id, [Channel.EMAIL], False)
    said = (await account.get(f"/v1/campaigns/{id}")).json()
    assert said["counts"] == {"sent": 80, "suppressed": 17, "pending": 3}
    none = await account.post(f"/v1/campaigns/{id}/replay", {"states": ["failed"]})
    assert none.json() == {"count": 0}
    assert len(workflows.due) == 1
    bad = await account.post(f"/v1/campaigns/{id}/replay", {"states": ["sent"]})
    assert code_of(bad) == (422, "invalid_body")


@pytest.mark.parametrize(
    ("pinned", "ladder", "worked"),
    [
        (True, ["apns", "sms"], [[Channel.EMAIL]]),
        (False, ["apns", "sms"], [[Channel.SMS]]),
        (False, ["apns"], []),
    ],
)
async def test_a_replay_is_worked_where_the_campaign_sends(
    pinned: bool,
    ladder: list[str],
    worked: list[list[Channel]],
    account: Account,
    parts: Parts,
    workflows: FakeWorkflows,
):
    """Whatever its category's ladder has become since the freeze; that counts for what was frozen without its channels.

    A channel that no campaign is sent on would hold the loop for ever, and every later replay with it.
    """
    part = {"channel": "sms", "locale": "en", "text": "Hello"}
    made = await account.post(
        "/v1/templates/both/versions",
        {"parts": [part, {**part, "channel": "email", "subject": "Hi"}], "publish": True},
        key="both",
    )
    assert made.is_success, made.text
    await with_list(account)
    created = await account.post(
        "/v1/campaigns", campaign(template_id="both", variables={}), key="c"
    )
    id = UUID(created.json()["id"])
    await parts.campaigns.freeze(account.tenant, id, datetime.now(UTC), (Channel.EMAIL,))
    await parts.campaigns.set_phase(account.tenant, id, CampaignPhase.COMPLETED)
    await decided(account, parts, id, {(RecipientState.FAILED, "timeout"): 3})
    pool = parts.lists._pool  # type: ignore[attr-defined]
    await pool.execute(
        "UPDATE categories SET ladder = $2 WHERE tenant = $1 AND category = 'offers'",
        account.tenant,
        ladder,
    )
    if not pinned:
        forget = "UPDATE campaigns SET channels = NULL WHERE tenant = $1"
        await pool.execute(forget, account.tenant)
    answer = await account.post(f"/v1/campaigns/{id}/replay", {"states": ["failed"]})
    assert answer.json() == {"count": 3}
    assert [due.channels for due in workflows.due] == worked
    assert all(due.closing for due in workflows.due)


async def test_an_expired_campaign_is_never_replayed(account: Account, parts: Parts):
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    await with_list(account)
    created = await account.post("/v1/campaigns", campaign(expires_at=soon), key="c")
    id = UUID(created.json()["id"])
    not_yet = await account.post(f"/v1/campaigns/{id}/replay", {"states": ["failed"]})
    assert code_of(not_yet) == (409, "campaign_not_frozen")
    await parts.campaigns.freeze(account.tenant, id, datetime.now(UTC), (Channel.EMAIL,))

    with time_machine.travel(datetime.now(UTC) + timedelta(hours=1)):
        late = await account.post(f"/v1/campaigns/{id}/replay", {"states": ["failed"]})
        assert code_of(late) == (409, "not_replayable")


@pytest.mark.parametrize("expired", [False, True])
async def test_one_recipient_of_a_campaign_is_replayed_from_the_list_until_it_expires(
    expired: bool, account: Account, parts: Parts, workflows: FakeWorkflows
):
    id = await running(account, parts, size=100)
    await decided(account, parts, id)
    failed = await account.get(f"/v1/campaigns/{id}/recipients", state="failed", limit=1)
    [who] = [item["recipient_id"] for item in failed.json()["items"]]
    [decision] = await parts.decisions.by_recipient(account.tenant, who, 10)
    row = await parts.campaigns.get(account.tenant, id)
    assert row is not None
    assert row.expires_at is not None
    letter = DeadLetter(
        id=dead_letter_id(decision.key),
        kind=Kind.CAMPAIGN,
        ref_id=id,
        decision=decision.key,
        category=row.category,
        channel=Channel.EMAIL,
        state=decision.state,
        code="4.2.1",
        last_error="451 4.2.1 try again later",
    )
    await parts.dead_letters.add([letter])
    with time_machine.travel(row.expires_at if expired else datetime.now(UTC)):
        answer = await account.post(f"/v1/dead-letters/{letter.id}/replay")
    after = await parts.decisions.read(decision.key)
    assert after is not None
    if expired:
        assert code_of(answer) == (409, "not_replayable")
        assert after == decision
        assert workflows.due == []
    else:
        assert answer.json()["status"] == "replayed"
        assert (after.state, after.reason) == (RecipientState.PENDING, "replay")
        # The cursor has passed it: only a bucket brings it up again.
        assert after.due_at is not None
        assert [due.campaign_id for due in workflows.due] == [id]


async def test_c11_a_campaign_of_one_tenant_never_reaches_anothers_list(
    account: Account, new_account: Any, parts: Parts
):
    other: Account = await new_account()
    await other.set_up()
    await with_list(other)
    answer = await account.post("/v1/campaigns", campaign(), key="c")
    assert code_of(answer) == (422, "unknown_list")
    await with_list(account, size=2)
    id = UUID((await account.post("/v1/campaigns", campaign(), key="c")).json()["id"])
    frozen = await parts.campaigns.freeze(account.tenant, id, datetime.now(UTC), (Channel.EMAIL,))
    assert frozen.size == 2
    assert (await other.get("/v1/campaigns")).json()["items"] == []
