"""Passcodes through the API: the code is brought or drawn, checked against our own row, never told (PASS-1, PASS-2, PASS-6)."""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import time_machine

from api.auth import KeyKind
from api.deps import Parts
from api.views import decision_key
from schemas.api import TEST_CODE
from schemas.content import Content
from schemas.kinds import Channel, ClaimState, RecipientState
from schemas.notifications import PasscodeInput
from sendloom.domain.passcodes import fixed_code
from sendloom.ports import ClaimResult, ClaimScope, Decision, Want
from tests.api.conftest import Account, code_of
from tests.api.fakes import FakeWorkflows


def passcode(**changes: Any) -> dict[str, Any]:
    return {
        "recipient_id": "r-1",
        "category": "security.otp",
        "template_id": "otp",
        **changes,
    }


async def stored_code(parts: Parts, account: Account, id: str) -> str:
    row = await parts.accepted.get(account.tenant, UUID(id))
    assert row is not None
    secret = Content.model_validate_json(row.content).secret
    assert secret is not None
    return secret


async def test_a_drawn_code_is_sealed_kept_over_replays_and_approved_once(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    answer = await account.post("/v1/passcodes", passcode(), key="p")
    assert answer.status_code == 202
    id = answer.json()["id"]
    code = await stored_code(parts, account, id)
    assert re.fullmatch(r"\d{6}", code)
    again = await account.post("/v1/passcodes", passcode(), key="p")
    assert again.json()["id"] == id
    assert await stored_code(parts, account, id) == code
    assert code not in answer.text + again.text
    [row] = workflows.started
    assert code.encode() not in row.workflow_input
    given = PasscodeInput.model_validate_json(row.workflow_input)
    assert given.expires_at - given.accepted_at == timedelta(seconds=300)

    wrong = "000000" if code != "000000" else "111111"
    first = (await account.post(f"/v1/passcodes/{id}/check", {"code": wrong})).json()
    assert first == {"result": "wrong", "approved": False, "attempts_left": 4}
    right = (
        await account.post(f"/v1/passcodes/{id}/check", {"code": f" {code[:3]} {code[3:]}"})
    ).json()
    assert right == {"result": "approved", "approved": True, "attempts_left": 3}
    used = (await account.post(f"/v1/passcodes/{id}/check", {"code": code})).json()
    assert used["result"] == "used"
    said = (await account.get(f"/v1/passcodes/{id}")).json()
    assert said["passcode"] == "used"
    assert code not in str(said)


async def test_of_parallel_right_answers_exactly_one_is_approved(account: Account):
    id = (await account.post("/v1/passcodes", passcode(code="abc123XYZ789"), key="p")).json()["id"]
    results = await asyncio.gather(
        *(account.post(f"/v1/passcodes/{id}/check", {"code": "abc123XYZ789"}) for _ in range(5))
    )
    assert sorted(r.json()["result"] for r in results) == [
        "approved",
        "used",
        "used",
        "used",
        "used",
    ]


async def test_parallel_guesses_cost_one_each_and_the_last_ends_it(account: Account):
    id = (
        await account.post("/v1/passcodes", passcode(code="654321", max_checks=3), key="p")
    ).json()["id"]
    results = await asyncio.gather(
        *(account.post(f"/v1/passcodes/{id}/check", {"code": f"{n:06}"}) for n in range(6))
    )
    said = sorted(r.json()["result"] for r in results)
    assert said == ["max_attempts"] * 3 + ["wrong"] * 3
    late = (await account.post(f"/v1/passcodes/{id}/check", {"code": "654321"})).json()
    assert late["result"] == "max_attempts"
    assert (await account.get(f"/v1/passcodes/{id}")).json()["passcode"] == "max_attempts"


async def test_a_test_key_has_a_fixed_code(account: Account):
    assert fixed_code() == TEST_CODE
    test = await account.key(KeyKind.TEST)
    id = (await test.post("/v1/passcodes", passcode(), key="p")).json()["id"]
    answer = (await test.post(f"/v1/passcodes/{id}/check", {"code": TEST_CODE})).json()
    assert answer["approved"] is True


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"code": "12345"}, "bad_code", "code"),
        ({"code": "12345é"}, "bad_code", "code"),
        ({"code": "x" * 33}, "bad_code", "code"),
        ({"ttl_seconds": 601}, "bad_ttl", "ttl_seconds"),
        ({"ttl_seconds": 0}, "ttl_expired", "ttl_seconds"),
        ({"category": "orders"}, "security_only", "category"),
        ({"email": "x@example.com"}, "raw_address_refused", "email"),
        ({"recipient_id": None}, "invalid_body", None),
        ({"max_checks": 0}, "invalid_body", "max_checks"),
    ],
)
async def test_bad_passcodes_are_refused_with_nothing_started(
    changes: dict[str, Any],
    code: str,
    field: str | None,
    account: Account,
    workflows: FakeWorkflows,
):
    answer = await account.post("/v1/passcodes", passcode(**changes), key="p")
    assert code_of(answer) == (422, code)
    assert answer.json().get("field") == field
    assert "12345" not in answer.text
    assert workflows.started == []


async def test_a_cancelled_code_stops_working(account: Account, parts: Parts):
    id = (await account.post("/v1/passcodes", passcode(), key="p")).json()["id"]
    code = await stored_code(parts, account, id)
    cancelled = (await account.post(f"/v1/passcodes/{id}/cancel", {})).json()
    assert cancelled["passcode"] == "cancelled"
    said = (await account.post(f"/v1/passcodes/{id}/check", {"code": code})).json()
    assert said["result"] == "cancelled"


async def test_a_resend_needs_a_key_and_ends_with_the_passcode(
    account: Account, workflows: FakeWorkflows
):
    id = (await account.post("/v1/passcodes", passcode(), key="p")).json()["id"]
    assert code_of(await account.post(f"/v1/passcodes/{id}/resend")) == (
        400,
        "idempotency_key_missing",
    )
    sent = await account.post(f"/v1/passcodes/{id}/resend", key="r")
    assert sent.json() == {"send_no": 2}
    workflows.ended.add(UUID(id))
    late = await account.post(f"/v1/passcodes/{id}/resend", key="r2")
    assert code_of(late) == (409, "too_late")


async def test_wait_returns_the_providers_acceptance_with_the_answer(
    account: Account, parts: Parts
):
    async def provider_accepts() -> None:
        while True:
            rows = await parts.accepted.by_recipient(account.tenant, "r-1", 1)
            if rows:
                break
            await asyncio.sleep(0.01)
        row = rows[0]
        await parts.decisions.insert(
            [Decision(key=decision_key(row), state=RecipientState.PENDING, channel=Channel.SMS)]
        )
        scope = ClaimScope(account.tenant, row.accepted_at, row.id, 0, 0, Channel.SMS)
        owner = uuid4()
        await parts.ledger.claim(scope, [Want("r-1")], owner, timedelta(minutes=1))
        accepted = ClaimResult(
            "r-1", 1, owner, ClaimState.SENT, provider="sms", provider_message_id="m"
        )
        await parts.ledger.record(scope, [accepted])

    sending = asyncio.create_task(provider_accepts())
    answer = await account.post("/v1/passcodes?wait=2", passcode(), key="p")
    await sending
    [channel] = answer.json()["status"]["channels"]
    assert (channel["state"], channel["provider"]) == ("sent", "sms")


async def test_wait_ends_with_what_there_is(account: Account):
    answer = await account.post("/v1/passcodes?wait=0.1", passcode(), key="p")
    assert answer.status_code == 202
    assert answer.json()["status"]["state"] == "pending"
    assert code_of(await account.post("/v1/passcodes?wait=3", passcode(), key="q")) == (
        422,
        "invalid_parameter",
    )


# --- verifying an address -------------------------------------------------------------------------------------------


def verify(address: str, channel: str = "sms", **changes: Any) -> dict[str, Any]:
    return passcode(recipient_id=None, verify={"channel": channel, "address": address}, **changes)


async def test_whoever_reads_the_code_verifies_the_address(account: Account, parts: Parts):
    await account.put("/v1/recipients/r-2", {"phone": {"address": "+1 202 555 0144"}})
    body = {**verify("(202) 555-0144"), "recipient_id": "r-2"}
    id = (await account.post("/v1/passcodes", body, key="v")).json()["id"]
    before = (await account.get("/v1/recipients/r-2")).json()
    assert [a["verified"] for a in before["addresses"]] == [False]
    code = await stored_code(parts, account, id)
    await account.post(f"/v1/passcodes/{id}/check", {"code": code})
    after = (await account.get("/v1/recipients/r-2")).json()
    assert [a["verified"] for a in after["addresses"]] == [True]


async def test_a_stranger_can_be_verified_and_is_the_same_stranger_next_time(
    account: Account, workflows: FakeWorkflows
):
    for n, address in enumerate(("ADA@example.com", "ada@EXAMPLE.com")):
        answer = await account.post("/v1/passcodes", verify(address, "email"), key=f"v-{n}")
        assert answer.status_code == 202, answer.text
    one, two = (row.recipient_id for row in workflows.started)
    assert one == two
    assert one is not None
    assert "ada" not in one.lower()


async def in_one_window(parts: Parts, window: timedelta = timedelta(hours=1)) -> None:
    """Not in the last seconds of one: windows start on whole multiples of their length."""
    left = "SELECT date_bin($1::interval, now(), 'epoch') + $1::interval - now()"
    pool = parts.catalog._pool  # type: ignore[attr-defined]
    if (rest := await pool.fetchval(left, window)) < timedelta(seconds=10):
        await asyncio.sleep(rest.total_seconds())


async def test_an_address_is_not_flooded_with_codes_whatever_the_spelling(
    account: Account, parts: Parts, workflows: FakeWorkflows
):
    await in_one_window(parts)
    spellings = ["+12025550145", "+1 202 555 0145", "(202) 555-0145", "202.555.0145", "2025550145"]
    for n, spelling in enumerate(spellings):
        answer = await account.post("/v1/passcodes", verify(spelling), key=f"v-{n}")
        assert answer.status_code == 202, answer.text
    refused = await account.post("/v1/passcodes", verify("+12025550145"), key="one-more")
    assert code_of(refused) == (429, "verify_rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 3600
    assert len(workflows.started) == 5
    # A replay is not one more, and another number is another matter.
    assert (await account.post("/v1/passcodes", verify(spellings[0]), key="v-0")).json()["replayed"]
    assert (await account.post("/v1/passcodes", verify("+12025550146"), key="o")).status_code == 202


async def test_a_tenant_has_a_limit_of_its_own(new_account: Callable[..., Any], parts: Parts):
    await in_one_window(parts)
    account: Account = await new_account(verify_per_tenant=2)
    await account.set_up()
    codes = [
        (await account.post("/v1/passcodes", verify(f"+120255501{n}"), key=f"v-{n}")).status_code
        for n in (47, 48, 49)
    ]
    assert codes == [202, 202, 429]


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("+14165550143", "region_not_allowed"),  # the same calling code, another country
        ("+442071838750", "region_not_allowed"),
        ("123", "bad_address"),
        ("+1900 555 0143", "blocked_number"),
    ],
)
async def test_countries_are_an_allow_list_by_region(
    address: str, code: str, account: Account, workflows: FakeWorkflows
):
    answer = await account.post("/v1/passcodes", verify(address), key="v")
    assert code_of(answer) == (422, code)
    assert address.replace(" ", "")[-4:] not in answer.text
    assert workflows.started == []


async def test_a_tenant_may_allow_more_regions(new_account: Callable[..., Any]):
    account: Account = await new_account(sms_regions=["US", "GB"])
    await account.set_up()
    answer = await account.post("/v1/passcodes", verify("+447400123456"), key="v")
    assert answer.status_code == 202, answer.text


async def test_an_expired_code_says_so_by_the_row_alone(account: Account, parts: Parts):
    id = (await account.post("/v1/passcodes", passcode(), key="p")).json()["id"]
    code = await stored_code(parts, account, id)
    with time_machine.travel(datetime.now(UTC) + timedelta(seconds=301)):
        said = (await account.post(f"/v1/passcodes/{id}/check", {"code": code})).json()
        assert said["result"] == "expired"
        assert (await account.get(f"/v1/passcodes/{id}")).json()["passcode"] == "expired"
