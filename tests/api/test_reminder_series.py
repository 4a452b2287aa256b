"""Reminder series through the API (REM-4)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities.reminders import FIRE
from api.deps import Parts
from schemas.kinds import Kind
from schemas.notifications import Due, ReminderInput
from sendloom.domain.ids import child_id
from tests.api.conftest import Account, code_of
from tests.api.fakes import FakeWorkflows

OFFSETS = ["P7D", "P1D", "PT1H"]


def in_days(days: float) -> str:
    return (datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)).isoformat()


def series(event: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "recipient_id": "r-1",
        "category": "orders",
        "template_id": "placed",
        "variables": {"order": "17"},
        "event": event,
        "offsets": OFFSETS,
        **changes,
    }


async def made(account: Account, event: dict[str, Any], **changes: Any) -> dict[str, Any]:
    answer = await account.post("/v1/reminder-series", series(event, **changes), key=uuid4().hex)
    assert answer.status_code == 202, answer.text
    said: dict[str, Any] = answer.json()
    return said


def states(said: dict[str, Any]) -> dict[str, str]:
    return {member["before"]: member["state"] for member in said["members"]}


def id_of(said: dict[str, Any], before: str) -> UUID:
    return UUID(next(m["id"] for m in said["members"] if m["before"] == before))


async def test_each_offset_is_a_reminder_before_the_event_in_the_recipients_time(
    account: Account, workflows: FakeWorkflows
):
    # Berlin: clocks go forward on 25 March 2035.
    said = await made(account, {"local": "2035-03-26T09:00"})
    assert said["event_at"] == "2035-03-26T07:00:00Z"
    due = {member["before"]: member["due_at"] for member in said["members"]}
    assert due == {
        "P7D": "2035-03-19T08:00:00Z",
        "P1D": "2035-03-25T07:00:00Z",
        "PT1H": "2035-03-26T06:00:00Z",
    }
    assert set(states(said).values()) == {"scheduled"}
    assert {row.correlation_id for row in workflows.started} == {said["correlation_id"]}
    given = {ReminderInput.model_validate_json(row.workflow_input).due for row in workflows.started}
    assert Due(local="2035-03-19T09:00:00") in given


async def test_the_same_key_makes_one_series_and_finishes_what_was_left(
    account: Account, workflows: FakeWorkflows
):
    body = series({"at": in_days(30)})
    workflows.away = True
    assert (await account.post("/v1/reminder-series", body, key="s")).status_code == 503
    workflows.away = False
    first = await account.post("/v1/reminder-series", body, key="s")
    again = await account.post("/v1/reminder-series", body, key="s")
    assert first.status_code == again.status_code == 202
    assert again.json() == first.json()
    assert len(set(workflows.ids)) == len(workflows.started) == 3
    other = await account.post("/v1/reminder-series", {**body, "offsets": ["P1D"]}, key="s")
    assert code_of(other) == (409, "key_reused")


async def test_what_is_past_already_is_left_out_and_said(
    account: Account, workflows: FakeWorkflows
):
    said = await made(account, {"at": in_days(3)})
    assert states(said) == {"P7D": "left_out", "P1D": "scheduled", "PT1H": "scheduled"}
    assert len(workflows.started) == 2


async def test_an_offset_may_say_something_else(account: Account, workflows: FakeWorkflows):
    said = await made(
        account,
        {"at": in_days(30)},
        offsets=["P1D", {"before": "PT1H", "template_id": "otp"}],
        variables={"order": "17", "code": "x"},
    )
    assert {m["before"]: m["template_id"] for m in said["members"]} == {
        "P1D": "placed",
        "PT1H": "otp",
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offsets": []}, "invalid_body"),
        ({"offsets": ["7 days"]}, "bad_offset"),
        ({"offsets": ["P7D", "P1W"]}, "bad_offset"),
        ({"event": {"at": "2020-01-01T09:00:00Z"}}, "due_past"),
        ({"event": {}}, "invalid_body"),
        ({"variables": {}}, "missing_variable"),
        ({"offsets": ["P1D", {"before": "PT1H", "template_id": "gone"}]}, "unknown_template"),
    ],
)
async def test_what_could_not_be_sent_is_refused_and_nothing_is_left_behind(
    changes: dict[str, Any], code: str, account: Account, workflows: FakeWorkflows
):
    answer = await account.post(
        "/v1/reminder-series", {**series({"at": in_days(30)}), **changes}, key="s"
    )
    assert code_of(answer) == (422, code), answer.text
    assert workflows.started == []


async def test_a_new_date_moves_the_open_ones_and_leaves_the_sent_one_sent(
    account: Account, workflows: FakeWorkflows, parts: Parts
):
    said = await made(account, {"at": in_days(30)})
    sent = id_of(said, "P7D")
    await pretend_sent(parts, account.tenant, sent)
    path = f"/v1/reminder-series/{said['id']}"
    later = in_days(60)
    moved = await account.put(path, {"event": {"at": later}})
    assert moved.status_code == 200, moved.text
    event = datetime.fromisoformat(later)
    assert dict(workflows.rescheduled) == {
        id_of(said, "P1D"): Due(at=event - timedelta(days=1)),
        id_of(said, "PT1H"): Due(at=event - timedelta(hours=1)),
    }
    assert id_of(moved.json(), "P7D") == sent
    assert len(workflows.started) == 3


async def test_a_nearer_date_takes_back_what_would_be_past_and_a_later_one_brings_it_again(
    account: Account, workflows: FakeWorkflows
):
    said = await made(account, {"at": in_days(30)})
    path = f"/v1/reminder-series/{said['id']}"
    nearer = (await account.put(path, {"event": {"at": in_days(2)}})).json()
    assert workflows.cancelled == [id_of(said, "P7D")]
    assert states(nearer) == {"P7D": "left_out", "P1D": "scheduled", "PT1H": "scheduled"}
    again = (await account.put(path, {"event": {"at": in_days(40)}})).json()
    assert states(again)["P7D"] == "scheduled"
    assert id_of(again, "P7D") != id_of(said, "P7D")
    assert id_of(again, "P1D") == id_of(said, "P1D")


async def test_one_that_somebody_took_back_does_not_come_again(
    account: Account, workflows: FakeWorkflows
):
    said = await made(account, {"at": in_days(30)})
    one = id_of(said, "P1D")
    await account.post(f"/v1/reminders/{one}/cancel", {"reason": "asked for"})
    moved = (
        await account.put(f"/v1/reminder-series/{said['id']}", {"event": {"at": in_days(40)}})
    ).json()
    assert states(moved)["P1D"] == "cancelled"
    assert len(workflows.started) == 3


async def test_cancelling_takes_back_all_that_are_open_and_says_what_was_too_late(
    account: Account, workflows: FakeWorkflows, parts: Parts
):
    said = await made(account, {"at": in_days(30)})
    await pretend_sent(parts, account.tenant, id_of(said, "P7D"))
    workflows.firing.add(id_of(said, "P1D"))
    path = f"/v1/reminder-series/{said['id']}"
    gone = (await account.delete(path)).json()
    assert gone["state"] == "cancelled"
    assert workflows.cancelled == [id_of(said, "PT1H")]
    assert states(gone)["PT1H"] == "cancelled"
    assert states(gone)["P1D"] == "scheduled"
    assert (await account.delete(path)).json()["state"] == "cancelled"
    refused = await account.put(path, {"event": {"at": in_days(40)}})
    assert code_of(refused) == (409, "series_cancelled")


async def test_c62_another_tenant_sees_nothing_of_it(account: Account, new_account: Any):
    said = await made(account, {"at": in_days(30)})
    stranger: Account = await new_account()
    path = f"/v1/reminder-series/{said['id']}"
    for answer in (
        await stranger.get(path),
        await stranger.delete(path),
        await stranger.put(path, {"event": {"at": in_days(9)}}),
    ):
        assert code_of(answer) == (404, "not_found")


async def pretend_sent(parts: Parts, tenant: str, reminder: UUID) -> None:
    """As its workflow does: the notification it became, and its own end."""
    row = await parts.accepted.get(tenant, reminder)
    assert row is not None
    child = replace(row, id=child_id(reminder, FIRE), kind=Kind.NOTIFICATION, due_at=None)
    await parts.accepted.insert_or_match(child)
    await parts.accepted.close(tenant, reminder, {"kind": "accepted", "state": "sent"})
