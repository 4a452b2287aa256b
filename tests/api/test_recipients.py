"""Recipients and what belongs to them: an address goes in and never comes out (ACC-11)."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.conftest import Account, code_of, notification


async def test_an_address_is_stored_recognisable_and_not_told(account: Account):
    said = (await account.get("/v1/recipients/r-1")).json()
    assert [(a["channel"], a["hint"], a["verified"]) for a in said["addresses"]] == [
        ("email", "a…@e….com", True),
        ("sms", "+1…43", True),
    ]
    assert "ada@example.com" not in str(said)
    assert "2025550143" not in str(said)
    assert (said["locale"], said["zone"]) == ("en", "Europe/Berlin")


async def test_what_is_not_given_stays_as_it_is(account: Account):
    await account.put("/v1/recipients/r-1", {"attributes": {"plan": "pro"}, "internal": True})
    said = (await account.put("/v1/recipients/r-1", {"locale": "pt_br"})).json()
    assert (said["locale"], said["zone"], said["internal"]) == ("pt-BR", "Europe/Berlin", True)
    assert said["attributes"] == {"plan": "pro"}
    assert len(said["addresses"]) == 2


@pytest.mark.parametrize(
    ("id", "body", "code", "field"),
    [
        ("r-9", {"zone": "GMT+25"}, "bad_zone", "zone"),
        ("r-9", {"zone": "europe/berlin"}, "bad_zone", "zone"),
        ("r-9", {"locale": "english please"}, "invalid_body", "locale"),
        ("r-9", {"email": {"address": "no address"}}, "bad_address", "email.address"),
        ("r-9", {"phone": {"address": "202-555-01"}}, "bad_address", "phone.address"),
        ("x@example.com", {}, "bad_recipient_id", "recipient_id"),
        ("+12025550143", {}, "bad_recipient_id", "recipient_id"),
    ],
)
async def test_bad_recipients_are_refused(
    id: str, body: dict[str, Any], code: str, field: str, account: Account
):
    answer = await account.put(f"/v1/recipients/{id}", body)
    assert code_of(answer) == (422, code)
    assert answer.json()["field"] == field
    assert (await account.get(f"/v1/recipients/{id}")).status_code == 404


async def test_an_opt_out_and_a_consent_are_kept_with_their_source(account: Account):
    out = [{"category": "offers", "channel": "email", "opted_out": True, "source": "page"}]
    said = await account.put("/v1/recipients/r-1/preferences", {"preferences": out})
    assert [(p["category"], p["opted_out"], p["source"]) for p in said.json()["items"]] == [
        ("offers", True, "page")
    ]
    out[0]["opted_out"] = False
    await account.put("/v1/recipients/r-1/preferences", {"preferences": out})
    [now] = (await account.get("/v1/recipients/r-1/preferences")).json()["items"]
    assert now["opted_out"] is False

    consent = {"category": "offers", "source": "signup", "wording": "Send me offers"}
    await account.put("/v1/recipients/r-1/consents", {"consents": [consent]})
    [given] = (await account.get("/v1/recipients/r-1/consents")).json()["items"]
    assert (given["granted"], given["wording"]) == (True, "Send me offers")
    missing = await account.put(
        "/v1/recipients/r-1/consents", {"consents": [{"category": "offers", "source": "x"}]}
    )
    assert code_of(missing) == (422, "invalid_body")
    nobody = await account.put("/v1/recipients/nobody/consents", {"consents": [consent]})
    assert code_of(nobody) == (404, "not_found")


async def test_a_device_moves_with_its_owner_and_leaves_on_log_out(account: Account):
    await account.put("/v1/recipients/r-2", {})
    device = {"channel": "fcm", "token": "token-abcdefgh"}
    assert (await account.put("/v1/recipients/r-1/devices/phone", device)).status_code == 200
    assert (await account.put("/v1/recipients/r-2/devices/phone", device)).status_code == 200
    one = (await account.get("/v1/recipients/r-1")).json()
    two = (await account.get("/v1/recipients/r-2")).json()
    assert (len(one["devices"]), len(two["devices"])) == (0, 1)
    assert "token-abcdefgh" not in str(two)
    assert (await account.delete("/v1/recipients/r-2/devices/phone")).status_code == 204
    assert code_of(await account.delete("/v1/recipients/r-2/devices/phone")) == (404, "not_found")
    assert code_of(await account.put("/v1/recipients/nobody/devices/phone", device)) == (
        404,
        "not_found",
    )


async def test_an_address_can_be_taken_away(account: Account):
    assert (await account.delete("/v1/recipients/r-1/addresses/email")).status_code == 204
    said = (await account.get("/v1/recipients/r-1")).json()
    assert [a["channel"] for a in said["addresses"]] == ["sms"]
    assert code_of(await account.delete("/v1/recipients/r-1/addresses/email")) == (404, "not_found")
    refused = await account.post("/v1/notifications", notification(), key="k")
    assert code_of(refused) == (422, "no_usable_channel")


async def test_the_erased_are_gone_and_a_suppression_outlives_them(account: Account):
    address = {"channel": "email", "address": "ADA@example.com"}
    made = await account.post("/v1/suppressions", address)
    assert made.status_code == 201
    shown = (await account.get("/v1/recipients/r-1")).json()
    assert shown["addresses"][0]["suppressed"] == "manual"
    assert (await account.delete("/v1/recipients/r-1")).status_code == 204
    erased = (await account.get("/v1/recipients/r-1")).json()
    assert (erased["addresses"], erased["locale"]) == ([], None)
    assert erased["erased_at"] is not None
    await account.put("/v1/recipients/r-1b", {"email": {"address": "ada@example.com"}})
    again = (await account.get("/v1/recipients/r-1b")).json()
    assert again["addresses"][0]["suppressed"] == "manual"
    actions = [e["action"] for e in (await account.get("/v1/audit")).json()["items"]]
    assert {"recipient.erase", "suppression.add"} <= set(actions)


async def test_suppressions_are_listed_as_hashes_page_by_page_and_lifted(
    account: Account, new_account: Callable[..., Any]
):
    for n in range(3):
        body = {"channel": "sms", "address": f"+1202555014{n}", "reason": "stop"}
        assert (await account.post("/v1/suppressions", body)).json()["reason"] == "stop"
    first = (await account.get("/v1/suppressions", limit=2)).json()
    rest = (await account.get("/v1/suppressions", limit=2, after=first["next"])).json()
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (2, 1, None)
    assert "2025550" not in str(first) + str(rest)
    other: Account = await new_account()
    assert (await other.get("/v1/suppressions")).json()["items"] == []
    ref = {"channel": "sms", "address": "(202) 555-0140"}
    assert code_of(await other.post("/v1/suppressions/remove", ref)) == (404, "not_found")
    assert (await account.post("/v1/suppressions/remove", ref)).status_code == 204
    assert len((await account.get("/v1/suppressions")).json()["items"]) == 2
    assert code_of(await account.get("/v1/suppressions", after="sms/abc")) == (
        422,
        "invalid_parameter",
    )


async def test_a_graver_reason_stays_on_a_suppression(account: Account):
    body = {"channel": "email", "address": "x@example.com"}
    await account.post("/v1/suppressions", {**body, "reason": "complaint"})
    again = await account.post("/v1/suppressions", {**body, "reason": "manual"})
    assert again.json()["reason"] == "complaint"
