"""Templates and categories: refused when saved rather than when sent, published once, previewed for a real recipient (SEND-1)."""

from typing import Any

import pytest

from tests.api.conftest import CATEGORIES, Account, code_of, notification
from tests.api.fakes import FakeWorkflows


async def push(account: Account, body: dict[str, Any], name: str = "t", key: str = "t") -> Any:
    return await account.post(f"/v1/templates/{name}/versions", body, key=key)


def text(source: str, **more: Any) -> dict[str, Any]:
    return {
        "variables": {"name": {}},
        "parts": [{"channel": "sms", "locale": "en", "text": source}],
        **more,
    }


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x'*10**9 }}",
        "{{name",
        "{{#each name}}x{{/each}}",
    ],
)
async def test_c63_anything_but_a_placeholder_is_refused_when_saved(source: str, account: Account):
    answer = await push(account, text(source))
    assert code_of(answer) == (422, "bad_template")
    problem = answer.json()
    assert problem["field"] == "parts.0.text"
    for internal in ("Traceback", "__", "jinja", "File "):
        assert internal not in answer.text
    assert code_of(await account.get("/v1/templates/t")) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (text("Hi {{nobody}}"), "undeclared_variable"),
        (text("Hi", variables={"1st": {}}), "bad_variable_name"),
        (text("  "), "empty_body"),
        (text("x" * 2000), "too_large"),
        ({"parts": [{"channel": "email", "locale": "en", "text": "Hi"}]}, "empty_subject"),
        (
            {"parts": [{"channel": "sms", "locale": "en", "subject": "S", "text": "Hi"}]},
            "unexpected_part",
        ),
        (
            {"parts": [{"channel": "sms", "locale": "en", "text": "Hi"}] * 2},
            "duplicate_part",
        ),
        (
            {
                "variables": {"u": {}},
                "parts": [
                    {
                        "channel": "email",
                        "locale": "en",
                        "subject": "S",
                        "text": "T",
                        "html": "<a href={{u}}>x</a>",
                    }
                ],
            },
            "unsafe_placeholder",
        ),
        ({"parts": []}, "invalid_body"),
        ({"parts": [{"channel": "fax", "locale": "en", "text": "Hi"}]}, "invalid_body"),
    ],
)
async def test_what_would_go_wrong_later_is_refused_now(
    body: dict[str, Any], code: str, account: Account
):
    assert code_of(await push(account, body)) == (422, code)
    assert code_of(await account.get("/v1/templates/t")) == (404, "not_found")


async def test_a_published_version_never_changes_and_requests_get_the_current_one(
    account: Account, workflows: FakeWorkflows
):
    one = await push(account, text("One {{name}}", publish=True))
    assert (one.json()["version"], one.json()["current"]) == (1, True)
    same = await push(account, text("One {{name}}", publish=True))
    assert same.json() == one.json()
    two = await push(account, text("Two {{name}}"), key="t2")
    assert (two.json()["version"], two.json()["published"]) == (2, False)
    shown = (await account.get("/v1/templates/t")).json()
    assert (shown["version"], shown["parts"][0]["text"]) == (1, "One {{name}}")
    await account.post("/v1/templates/t/versions/2/publish")
    assert (await account.get("/v1/templates/t")).json()["version"] == 2
    old = (await account.get("/v1/templates/t", version=1)).json()
    assert (old["parts"][0]["text"], old["current"]) == ("One {{name}}", False)
    assert code_of(await account.post("/v1/templates/t/versions/9/publish")) == (404, "not_found")


async def test_a_preview_shows_subject_text_size_and_escapes_in_html(account: Account):
    body = {
        "recipient_id": "r-1",
        "channel": "email",
        "variables": {"order": "17", "name": "<b>Ada</b>"},
    }
    said = (await account.post("/v1/templates/placed/preview", body)).json()
    assert said["subject"] == "Order 17"
    assert said["text"] == "Hello <b>Ada</b>, we have order 17."
    assert said["html"] == "<p>Hello &lt;b&gt;Ada&lt;/b&gt;, we have order 17.</p>"
    assert said["bytes"] == sum(len(said[part]) for part in ("subject", "text", "html"))
    assert said["sms_segments"] is None


async def test_a_preview_counts_the_segments_of_a_text(account: Account):
    await push(account, text("{{name}}", publish=True))
    for value, encoding, segments in (
        ("x" * 160, "GSM-7", 1),
        ("x" * 161, "GSM-7", 2),
        ("ж" * 71, "UCS-2", 2),
    ):
        said = (
            await account.post(
                "/v1/templates/t/preview",
                {"recipient_id": "r-1", "channel": "sms", "variables": {"name": value}},
            )
        ).json()
        assert (said["sms_encoding"], said["sms_segments"]) == (encoding, segments)


async def test_c58_a_language_without_a_template_gets_the_default_one_and_the_preview_says_so(
    account: Account,
):
    await account.put("/v1/recipients/r-1", {"locale": "fr-CA"})
    body = {"recipient_id": "r-1", "channel": "email", "variables": {"order": "17"}}
    said = (await account.post("/v1/templates/placed/preview", body)).json()
    assert (said["locale"], said["locale_fallback"]) == ("en", True)
    assert said["text"] == "Hello there, we have order 17."
    assert (await account.post("/v1/notifications", notification(), key="k")).status_code == 202


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"channel": "sms"}, 422, "no_template"),
        ({"variables": {}}, 422, "missing_variable"),
        ({"recipient_id": "nobody"}, 404, "not_found"),
        ({"version": 7}, 404, "not_found"),
    ],
)
async def test_a_preview_that_cannot_be_says_why(
    changes: dict[str, Any], status: int, code: str, account: Account
):
    body = {"recipient_id": "r-1", "channel": "email", "variables": {"order": "1"}, **changes}
    assert code_of(await account.post("/v1/templates/placed/preview", body)) == (status, code)


async def test_a_category_gets_the_defaults_of_its_class_and_keeps_its_class(account: Account):
    found = {c["category"]: c for c in (await account.get("/v1/categories")).json()["items"]}
    assert set(found) == set(CATEGORIES)
    assert (found["offers"]["quiet_hours"], found["offers"]["consent_required"]) == (True, True)
    assert (found["security.otp"]["unknown_policy"], found["orders"]["unknown_policy"]) == (
        "resend",
        "stop",
    )
    changed = await account.put(
        "/v1/categories/orders", {**CATEGORIES["orders"], "message_class": "marketing"}
    )
    assert code_of(changed) == (409, "class_is_fixed")
    assert code_of(await account.get("/v1/categories/nope")) == (404, "not_found")


@pytest.mark.parametrize(
    ("cap", "means"),
    [
        ({}, "no cap"),
        ({"limit": None}, "no cap"),
        ({"limit": 0}, "never send"),
        ({"limit": 1}, "at most 1 a day"),
    ],
)
async def test_c74_the_reply_says_what_a_limit_means(
    cap: dict[str, Any], means: str, account: Account
):
    body = {**CATEGORIES["orders"], "caps": [{"scope": "category", "per": "day", **cap}]}
    shown = {"scope": "category", "per": "day", "limit": cap.get("limit"), "means": means}
    for answer in (
        await account.put("/v1/categories/capped", body),
        await account.get("/v1/categories/capped"),
    ):
        assert answer.status_code == 200, answer.text
        assert answer.json()["caps"] == [shown]


@pytest.mark.parametrize("limit", [-1, "", "many", 1.5, 10_001])
async def test_c74_a_limit_that_is_none_is_refused_and_named(limit: Any, account: Account):
    body = {**CATEGORIES["orders"], "caps": [{"scope": "category", "per": "day", "limit": limit}]}
    answer = await account.put("/v1/categories/new", body)
    assert code_of(answer) == (422, "invalid_body")
    assert "limit" in answer.text
    assert (await account.get("/v1/categories/new")).status_code == 404


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ladder": ["email", "email"]}, "bad_ladder"),
        ({"ladder": []}, "invalid_body"),
        ({"ttl_seconds": 0}, "invalid_body"),
        ({"message_class": "marketing", "unknown_policy": "resend"}, "bad_policy"),
        (
            {"caps": [{"scope": "category", "per": "day", "limit": 1}] * 2},
            "bad_cap",
        ),
    ],
)
async def test_bad_categories_are_refused(changes: dict[str, Any], code: str, account: Account):
    answer = await account.put("/v1/categories/new", {**CATEGORIES["orders"], **changes})
    assert code_of(answer) == (422, code)
    assert (await account.get("/v1/categories/new")).status_code == 404
