"""Reminders through the API: when they are due, how they are moved and taken back (REM-1 to REM-3)."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities.reminders import FIRE
from api.deps import Parts
from schemas.notifications import ReminderInput
from sendloom.domain.ids import child_id
from tests.api.conftest import Account, code_of, notification
from tests.api.fakes import FakeWorkflows

FAR = "2035-01-15T09:00"


def reminder(due: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**notification(), "due": due, **changes}


async def test_a_wall_time_is_read_in_the_recipients_zone(
    account: Account, workflows: FakeWorkflows
):
    answer = await account.post("/v1/reminders", reminder({"local": FAR}), key="r")
    assert answer.status_code == 202, answer.text
    said = answer.json()
    assert said["due_at"] == "2035-01-15T08:00:00Z"
    assert said["due_moved"] is False
    [row] = workflows.started
    given = ReminderInput.model_validate_json(row.workflow_input)
    assert given.due.local == FAR
    shown = (await account.get(said["status_url"])).json()
    assert (shown["state"], shown["due_at"]) == ("scheduled", "2035-01-15T08:00:00Z")


async def test_a_wall_time_that_clocks_skip_is_moved_and_the_answer_says_so(account: Account):
    # Berlin, 25 March 2035: 02:00 to 03:00 does not exist.
    body = reminder({"local": "2035-03-25T02:30"})
    answer = await account.post("/v1/reminders", body, key="gap")
    assert answer.status_code == 202
    assert answer.json()["due_at"] == "2035-03-25T01:00:00Z"
    assert answer.json()["due_moved"] is True
    again = await account.post("/v1/reminders", body, key="gap")
    assert again.json() == {**answer.json(), "replayed": True}
    assert (await account.get(answer.json()["status_url"])).json()["due_moved"] is True


async def test_a_wall_time_that_happens_twice_is_the_first(account: Account):
    answer = await account.post("/v1/reminders", reminder({"local": "2035-10-28T02:30"}), key="r")
    assert answer.json()["due_at"] == "2035-10-28T00:30:00Z"
    assert answer.json()["due_moved"] is False


@pytest.mark.parametrize(
    ("due", "code"),
    [
        ({}, "invalid_body"),
        ({"at": "2035-01-01T09:00:00Z", "local": FAR}, "invalid_body"),
        ({"at": "2035-01-01T09:00:00"}, "invalid_body"),
        ({"local": "2035-01-15T09:00+01:00"}, "invalid_body"),
        ({"local": "2035-13-15T09:00"}, "bad_local_time"),
        ({"local": "tomorrow"}, "invalid_body"),
    ],
)
async def test_a_due_time_that_means_nothing_is_refused(
    due: dict[str, Any], code: str, account: Account, workflows: FakeWorkflows
):
    answer = await account.post("/v1/reminders", reminder(due), key="r")
    assert code_of(answer) == (422, code)
    assert workflows.started == []


async def test_a_moment_that_has_passed_is_refused_when_the_policy_is_to_skip(account: Account):
    past = {"at": "2020-01-01T09:00:00Z"}
    skip = await account.post("/v1/reminders", reminder(past, lateness="skip"), key="r")
    assert code_of(skip) == (422, "due_past")
    assert (await account.post("/v1/reminders", reminder(past), key="r2")).status_code == 202


async def test_one_that_is_late_already_is_good_from_now(account: Account):
    late = await account.post("/v1/reminders", reminder({"at": "2020-01-01T09:00:00Z"}), key="r")
    assert late.status_code == 202
    said = late.json()
    ttl = (await account.post("/v1/notifications", notification(), key="n")).json()
    expires = datetime.fromisoformat(said["expires_at"])
    assert said["due_at"] == "2020-01-01T09:00:00Z"
    assert abs(expires - datetime.fromisoformat(ttl["expires_at"])) < timedelta(minutes=1)


@pytest.mark.parametrize("zone", ["", None, "Mars/Phobos", "GMT+25"])
async def test_c68_a_bad_zone_is_refused_when_written_and_a_stored_one_uses_the_tenants(
    zone: str | None, account: Account, parts: Parts
):
    written = await account.put("/v1/recipients/r-9", {"zone": zone})
    if zone is None:
        assert written.status_code == 200
    else:
        assert code_of(written) == (422, "bad_zone")
    # Past the API: an import of long ago.
    pool = parts.accepted._pool  # type: ignore[attr-defined]
    await pool.execute(
        "UPDATE recipients SET zone = $1 WHERE tenant = $2 AND recipient_id = 'r-1'",
        zone,
        account.tenant,
    )
    answer = await account.post("/v1/reminders", reminder({"local": FAR}), key="r")
    assert answer.status_code == 202
    assert answer.json()["due_at"] == "2035-01-15T09:00:00Z"


async def test_it_can_be_moved_sent_now_and_cancelled_until_it_fires(
    account: Account, workflows: FakeWorkflows
):
    said = (await account.post("/v1/reminders", reminder({"local": FAR}), key="r")).json()
    id, url = UUID(said["id"]), said["status_url"]
    moved = await account.post(f"{url}/reschedule", {"due": {"at": "2035-02-01T00:00:00Z"}})
    assert moved.status_code == 200
    assert [(i, due.at and due.at.isoformat()) for i, due in workflows.rescheduled] == [
        (id, "2035-02-01T00:00:00+00:00")
    ]
    assert (await account.post(f"{url}/send-now")).status_code == 200

    workflows.firing.add(id)
    for path, body in (("cancel", {}), ("send-now", None), ("reschedule", {"due": {"local": FAR}})):
        assert code_of(await account.post(f"{url}/{path}", body)) == (409, "too_late")
    workflows.firing.clear()

    cancelled = await account.post(f"{url}/cancel", {"reason": "booking cancelled"})
    assert cancelled.json()["state"] == "cancelled"
    assert cancelled.json()["reason"] == "booking cancelled"
    assert (await account.post(f"{url}/cancel", {})).json()["state"] == "cancelled"
    assert code_of(await account.post(f"{url}/send-now")) == (409, "too_late")


async def test_c44_of_150_half_cancelled_one_by_one_and_half_at_once_none_is_left_open(
    account: Account, workflows: FakeWorkflows, parts: Parts
):
    made = [
        (
            await account.post(
                "/v1/reminders",
                reminder({"local": FAR}, correlation_id="one" if n < 75 else "all"),
                key=f"r-{n}",
            )
        ).json()
        for n in range(150)
    ]
    for one in made[:75]:
        assert (await account.post(f"{one['status_url']}/cancel", {})).status_code == 200
    many = await account.post("/v1/reminders/cancel?correlation_id=all", {"reason": "off"})
    assert many.json() == {"cancelled": 75, "already_closed": 0, "too_late": []}
    again = await account.post("/v1/reminders/cancel?correlation_id=all", {})
    assert again.json() == {"cancelled": 0, "already_closed": 75, "too_late": []}
    assert sorted(workflows.cancelled, key=str) == sorted((UUID(o["id"]) for o in made), key=str)
    # What a sender asks last is our own store, and it says cancelled for every one.
    for one in made:
        row = await parts.accepted.get(account.tenant, UUID(one["id"]))
        assert row is not None
        assert row.closed_at is not None
        assert (row.outcome or {})["kind"] == "cancelled"


async def test_cancelling_by_correlation_names_what_was_too_late(
    account: Account, workflows: FakeWorkflows
):
    ids = [
        UUID(
            (
                await account.post(
                    "/v1/reminders", reminder({"local": FAR}, correlation_id="c"), key=f"r-{n}"
                )
            ).json()["id"]
        )
        for n in range(3)
    ]
    workflows.firing.add(ids[1])
    many = (await account.post("/v1/reminders/cancel?correlation_id=c", {})).json()
    assert many == {"cancelled": 2, "already_closed": 0, "too_late": [str(ids[1])]}


async def test_one_that_temporal_lost_is_cancelled_in_our_own_store(
    account: Account, workflows: FakeWorkflows
):
    said = (await account.post("/v1/reminders", reminder({"local": FAR}), key="r")).json()
    workflows.ended.add(UUID(said["id"]))
    cancelled = await account.post(f"{said['status_url']}/cancel", {})
    assert cancelled.json()["state"] == "cancelled"


async def test_once_it_has_become_a_notification_it_tells_what_became_of_that(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    from dataclasses import replace

    from schemas.kinds import Kind

    said = (await account.post("/v1/reminders", reminder({"local": FAR}), key="r")).json()
    row = await parts.accepted.get(account.tenant, UUID(said["id"]))
    assert row is not None
    child = replace(row, id=child_id(row.id, FIRE), kind=Kind.NOTIFICATION, parent_id=row.id)
    await parts.accepted.insert_or_match(child)
    shown = (await account.get(said["status_url"])).json()
    assert (shown["state"], shown["notification"]["state"]) == ("firing", "pending")
    await parts.accepted.close(account.tenant, child.id, {"kind": "expired", "reason": "ttl"})
    shown = (await account.get(said["status_url"])).json()
    assert (shown["state"], shown["reason"]) == ("expired", "ttl")
    # Nobody runs the notification by itself: the reminder's workflow sends it, and takes it back.
    url = f"/v1/notifications/{child.id}/cancel"
    assert (await account.post(url, {"reason": "wrong day"})).status_code == 200
    assert (workflows.taken_back, workflows.cancelled) == ([row.id], [])
    workflows.ended.add(row.id)
    assert code_of(await account.post(url, {})) == (409, "too_late")
    assert code_of(await account.post(f"{said['status_url']}/cancel", {})) == (409, "too_late")


async def test_only_a_reminders_notification_is_asked_of_its_parent(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    """A schedule's is not: a workflow of the schedule's id would be somebody else's."""
    from dataclasses import replace

    from schemas.kinds import Kind

    said = (await account.post("/v1/reminders", reminder({"local": FAR}), key="r")).json()
    row = await parts.accepted.get(account.tenant, UUID(said["id"]))
    assert row is not None
    other = replace(row, id=child_id(row.id, "other"), kind=Kind.NOTIFICATION, parent_id=row.id)
    await parts.accepted.insert_or_match(replace(other, idempotency_key="other"))
    refused = await account.post(f"/v1/notifications/{other.id}/cancel", {})
    assert code_of(refused) == (409, "too_late")
    assert workflows.taken_back == []
