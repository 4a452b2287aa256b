"""Who is asking, and that nobody sees or touches another's (TEN-1, TEN-2)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from api.auth import KeyKind, Scope
from api.deps import Parts
from tests.api.conftest import Account, code_of, notification
from tests.api.fakes import FakeWorkflows


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "credentials_missing"),
        ("Bearer nonsense", "credentials_invalid"),
        ("Basic c2w6eA==", "credentials_invalid"),
        ("Bearer sl_live_t_k", "credentials_invalid"),
        ("Bearer sl_live_t_k_s", "credentials_invalid"),
        ("Bearer sl_live__k_s", "credentials_invalid"),
    ],
)
async def test_without_a_key_that_exists_nothing_is_answered(
    account: Account, header: str | None, code: str
):
    headers = {} if header is None else {"Authorization": header}
    answer = await account.http.get("/v1/recipients/r-1", headers=headers)
    assert code_of(answer) == (401, code)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_key_with_one_letter_changed_is_refused(account: Account):
    header = account.headers["Authorization"]
    last = "A" if header[-1] != "A" else "B"
    answer = await account.http.get(
        "/v1/recipients/r-1", headers={"Authorization": header[:-1] + last}
    )
    assert code_of(answer) == (401, "credentials_invalid")


async def test_a_live_secret_does_not_work_as_a_test_key(account: Account):
    header = account.headers["Authorization"].replace("sl_live_", "sl_test_")
    answer = await account.http.get("/v1/recipients/r-1", headers={"Authorization": header})
    assert code_of(answer) == (401, "credentials_invalid")


async def test_a_key_ends_when_it_says_and_when_it_is_revoked_at_once(
    account: Account, parts: Parts
):
    ended = await account.key(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert code_of(await ended.get("/v1/recipients/r-1")) == (401, "key_expired")
    soon = await account.key(expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert (await soon.get("/v1/recipients/r-1")).status_code == 200
    key_id = soon.headers["Authorization"].split("_")[3]
    assert await parts.catalog.revoke_key(account.tenant, key_id)  # type: ignore[attr-defined]
    assert code_of(await soon.get("/v1/recipients/r-1")) == (401, "key_revoked")


async def test_c36_a_key_of_one_tenant_naming_another_is_refused_warm_and_cold(
    account: Account, new_account: Callable[..., Any]
):
    other: Account = await new_account()
    await other.set_up()
    crossed = {
        "Authorization": account.headers["Authorization"].replace(account.tenant, other.tenant)
    }
    cold = await account.http.get("/v1/recipients/r-1", headers=crossed)
    assert (await account.get("/v1/recipients/r-1")).status_code == 200
    warm = await account.http.get("/v1/recipients/r-1", headers=crossed)
    assert code_of(cold) == code_of(warm) == (401, "credentials_invalid")


async def test_c62_no_parameter_or_body_field_outranks_the_credential(
    account: Account, new_account: Callable[..., Any]
):
    other: Account = await new_account()
    await other.set_up()
    await other.post("/v1/notifications", notification(), key="theirs")
    await account.post("/v1/notifications", notification(), key="ours")
    for params in ({}, {"tenant": ""}, {"tenant_id": other.tenant}, {"tenant": other.tenant}):
        page = (await account.get("/v1/recipients/r-1/messages", **params)).json()
        assert len(page["items"]) == 1
        assert (await account.get("/v1/categories", **params)).status_code == 200
    for name in ("tenant", "tenant_id"):
        answer = await account.post(
            "/v1/notifications", notification(**{name: other.tenant}), key=f"k-{name}"
        )
        assert code_of(answer) == (422, "invalid_body")
    assert len((await other.get("/v1/recipients/r-1/messages")).json()["items"]) == 1


async def test_another_tenants_ids_are_not_found_rather_than_forbidden(
    account: Account, new_account: Callable[..., Any], workflows: FakeWorkflows
):
    other: Account = await new_account()
    await other.set_up()
    theirs = (await other.post("/v1/notifications", notification(), key="k")).json()["id"]
    reminder = (
        await other.post(
            "/v1/reminders", {**notification(), "due": {"at": "2035-01-01T09:00:00Z"}}, key="k"
        )
    ).json()["id"]
    passcode = (
        await other.post(
            "/v1/passcodes",
            {"recipient_id": "r-1", "category": "security.otp", "template_id": "otp"},
            key="k",
        )
    ).json()["id"]
    await other.put("/v1/lists/all", {"name": "All"})
    version = (await other.post("/v1/lists/all/versions", {"format": "ndjson"}, key="v")).json()[
        "version_id"
    ]

    tries = [
        await account.get(f"/v1/notifications/{theirs}"),
        await account.post(f"/v1/notifications/{theirs}/cancel", {}),
        await account.get(f"/v1/reminders/{reminder}"),
        await account.post(f"/v1/reminders/{reminder}/cancel", {}),
        await account.post(f"/v1/reminders/{reminder}/send-now"),
        await account.get(f"/v1/passcodes/{passcode}"),
        await account.post(f"/v1/passcodes/{passcode}/check", {"code": "123456"}),
        await account.post(f"/v1/passcodes/{passcode}/resend", key="r"),
        await account.get("/v1/lists/all"),
        await account.get(f"/v1/lists/all/versions/{version}"),
        await account.post(f"/v1/lists/all/versions/{version}/ready"),
        await account.get(f"/v1/campaigns/{theirs}"),
        await account.post(f"/v1/campaigns/{theirs}/pause", {}),
        await account.get(f"/v1/dead-letters/{theirs}"),
    ]
    assert {code_of(answer) for answer in tries} == {(404, "not_found")}
    assert workflows.cancelled == []
    many = await account.post("/v1/reminders/cancel?correlation_id=c", {})
    assert many.json() == {"cancelled": 0, "already_closed": 0, "too_late": []}


async def test_the_same_key_in_two_tenants_is_two_requests(
    account: Account, new_account: Callable[..., Any]
):
    other: Account = await new_account()
    await other.set_up()
    one = (await account.post("/v1/notifications", notification(), key="k")).json()["id"]
    two = (await other.post("/v1/notifications", notification(), key="k")).json()["id"]
    assert UUID(one) != UUID(two)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/notifications", Scope.SEND),
        ("POST", "/v1/passcodes", Scope.SEND),
        ("POST", "/v1/campaigns", Scope.CAMPAIGNS),
        ("PUT", "/v1/lists/x", Scope.CAMPAIGNS),
        ("PUT", "/v1/categories/x", Scope.ADMIN),
        ("POST", "/v1/templates/x/versions", Scope.ADMIN),
        ("DELETE", "/v1/recipients/r-1", Scope.ADMIN),
        ("POST", "/v1/suppressions", Scope.OPS),
        ("GET", "/v1/dead-letters", Scope.SUPPORT),
        ("GET", "/v1/audit", Scope.SUPPORT),
    ],
)
async def test_a_key_may_do_what_its_scopes_say_and_nothing_else(
    account: Account, method: str, path: str, scope: Scope
):
    without = await account.key(scopes=set(Scope) - {scope, Scope.ADMIN, _also(scope)})
    headers = {**without.headers, "Idempotency-Key": "k"}
    refused = await account.http.request(method, path, json={}, headers=headers)
    assert code_of(refused) == (403, "scope_missing")
    having = await account.key(scopes={scope})
    headers = {**having.headers, "Idempotency-Key": "k"}
    answer = await account.http.request(method, path, json={}, headers=headers)
    assert answer.status_code != 403, answer.text


def _also(scope: Scope) -> Scope:
    """Support's views are open to operations too."""
    return Scope.OPS if scope is Scope.SUPPORT else scope


async def test_a_key_limited_to_categories_sends_no_others(account: Account):
    limited = await account.key(categories={"security.otp"})
    answer = await limited.post("/v1/notifications", notification(), key="k")
    assert code_of(answer) == (403, "category_not_allowed")


async def test_a_team_key_reaches_internal_recipients_only(account: Account):
    team = await account.key(KeyKind.TEAM)
    answer = await team.post("/v1/notifications", notification(), key="k")
    assert code_of(answer) == (403, "recipient_not_internal")
    await account.put("/v1/recipients/r-1", {"internal": True})
    assert (await team.post("/v1/notifications", notification(), key="k")).status_code == 202


async def test_a_test_key_sees_nothing_live(account: Account):
    live = (await account.post("/v1/notifications", notification(), key="k")).json()["id"]
    test = await account.key(KeyKind.TEST)
    assert code_of(await test.get(f"/v1/notifications/{live}")) == (404, "not_found")
    mine = (await test.post("/v1/notifications", notification(), key="k")).json()["id"]
    said = (await test.get(f"/v1/notifications/{mine}")).json()
    assert said["mode"] == "test"
    assert (await account.get(f"/v1/notifications/{mine}")).status_code == 200


async def test_too_many_requests_are_told_when_to_come_back_before_anything_is_written(
    new_account: Callable[..., Any], workflows: FakeWorkflows
):
    account: Account = await new_account(requests_per_second=10)
    await account.set_up()
    answers = [
        await account.post("/v1/notifications", notification(), key=f"k-{n}") for n in range(25)
    ]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert {code_of(answer) for answer in refused} == {(429, "rate_limited")}
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert refused[0].headers["RateLimit"].startswith('"key";r=0;t=')
    assert len(workflows.started) == len(answers) - len(refused)
