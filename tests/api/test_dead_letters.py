"""What ended without success: seen, sent again by the rules, or let go (SEND-5)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import time_machine

from api.deps import Parts
from api.views import decision_key
from schemas.kinds import Channel, Kind, RecipientState
from sendloom.domain.ids import dead_letter_id
from sendloom.ports import DeadLetter, Decision
from tests.api.conftest import Account, code_of, notification
from tests.api.fakes import FakeWorkflows


async def dead(
    account: Account,
    parts: Parts,
    state: RecipientState = RecipientState.FAILED,
    *,
    kind: str = "notifications",
    body: dict[str, Any] | None = None,
    key: str = "k",
) -> tuple[str, UUID]:
    """A message that ended so, closed and in the list; (letter's URL, message id)."""
    made = await account.post(f"/v1/{kind}", body or notification(), key=key)
    row = await parts.accepted.get(account.tenant, UUID(made.json()["id"]))
    assert row is not None
    decision = decision_key(row)
    await parts.decisions.insert(
        [Decision(key=decision, state=state, channel=Channel.EMAIL, attempt=3, reason="timeout")]
    )
    letter = DeadLetter(
        id=dead_letter_id(decision),
        kind=row.kind,
        ref_id=row.id,
        decision=decision,
        category=row.category,
        channel=Channel.EMAIL,
        state=state,
        code="timeout",
        last_error="421 try again later",
    )
    await parts.dead_letters.add([letter])
    await parts.accepted.close(account.tenant, row.id, {"kind": state, "code": "timeout"})
    return f"/v1/dead-letters/{letter.id}", row.id


async def test_it_is_listed_with_its_last_error_and_can_be_let_go(account: Account, parts: Parts):
    url, id = await dead(account, parts)
    [listed] = (await account.get("/v1/dead-letters")).json()["items"]
    assert (listed["ref_id"], listed["state"], listed["last_error"]) == (
        str(id),
        "failed",
        "421 try again later",
    )
    assert (await account.post(f"{url}/discard")).json()["status"] == "discarded"
    assert (await account.post(f"{url}/discard")).json()["status"] == "discarded"
    assert (await account.get("/v1/dead-letters")).json()["items"] == []
    assert code_of(await account.post(f"{url}/replay")) == (409, "dead_letter_closed")


@pytest.mark.parametrize("state", [RecipientState.FAILED, RecipientState.UNKNOWN])
async def test_a_replay_puts_the_decision_back_and_starts_the_same_message_again(
    state: RecipientState, account: Account, parts: Parts, workflows: FakeWorkflows
):
    url, id = await dead(account, parts, state)
    assert (await account.post(f"{url}/replay")).json()["status"] == "replayed"
    [row] = workflows.again
    assert row.id == id
    decision = await parts.decisions.read(decision_key(row))
    assert decision is not None
    # Its attempt stays: that is how a sender knows that this unknown one was released.
    assert (decision.state, decision.send_no, decision.attempt) == ("pending", 1, 3)
    assert code_of(await account.post(f"{url}/replay")) == (409, "dead_letter_closed")
    assert len(workflows.again) == 1
    actions = [e["action"] for e in (await account.get("/v1/audit")).json()["items"]]
    assert "dead_letter.replay" in actions


async def test_a_rejected_one_is_asked_again_as_a_new_send(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    url, id = await dead(account, parts, RecipientState.REJECTED)
    assert (await account.post(f"{url}/replay")).status_code == 200
    row = await parts.accepted.get(account.tenant, id)
    assert row is not None
    decision = await parts.decisions.read(decision_key(row))
    assert decision is not None
    assert (decision.state, decision.send_no, decision.attempt) == ("pending", 2, 0)


async def test_a_replay_that_temporal_did_not_take_can_be_repeated(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    url, _ = await dead(account, parts)
    workflows.away = True
    assert code_of(await account.post(f"{url}/replay")) == (503, "temporal_unavailable")
    assert (await account.get(url)).json()["status"] == "open"
    workflows.away = False
    assert (await account.post(f"{url}/replay")).json()["status"] == "replayed"
    assert len(workflows.again) == 1


async def test_what_was_suppressed_is_not_replayed(account: Account, parts: Parts):
    url, _ = await dead(account, parts, RecipientState.SUPPRESSED)
    assert code_of(await account.post(f"{url}/replay")) == (409, "not_replayable")
    assert (await account.get(url)).json()["status"] == "open"


async def test_an_expired_passcode_is_never_replayed(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    body = {"recipient_id": "r-1", "category": "security.otp", "template_id": "otp"}
    url, _ = await dead(account, parts, kind="passcodes", body=body)
    with time_machine.travel(datetime.now(UTC) + timedelta(minutes=6)):
        answer = await account.post(f"{url}/replay")
    assert code_of(answer) == (409, "not_replayable")
    assert "expired" in answer.json()["detail"]
    assert workflows.again == []


async def test_they_are_listed_newest_first_page_by_page(account: Account, parts: Parts):
    urls = [(await dead(account, parts, key=f"k-{n}"))[0] for n in range(3)]
    first = (await account.get("/v1/dead-letters", limit=2)).json()
    rest = (await account.get("/v1/dead-letters", limit=2, after=first["next"])).json()
    found = [item["id"] for item in first["items"] + rest["items"]]
    assert found == [url.rpartition("/")[2] for url in reversed(urls)]
    assert rest["next"] is None
    assert first["items"][0]["kind"] == Kind.NOTIFICATION
