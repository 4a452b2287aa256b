"""Segments over the API: managed, looked at, and pinned by a campaign when it is created."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from api.deps import Parts
from schemas.campaigns import CampaignSpec
from sendloom.ports import WRITTEN
from tests.api.conftest import Account, code_of

PRO = {"attribute": "plan", "eq": "pro"}


async def people(account: Account, *plans: str) -> None:
    for n, plan in enumerate(plans):
        answer = await account.put(
            f"/v1/recipients/s-{n}",
            {
                "attributes": {"plan": plan, "n": n},
                "email": {"address": f"s{n}@example.com", "verified": True},
            },
        )
        assert answer.status_code == 200, answer.text


async def put(account: Account, definition: Any = PRO, id: str = "pro") -> Any:
    answer = await account.put(f"/v1/segments/{id}", {"name": "Pro", "definition": definition})
    assert answer.status_code == 200, answer.text
    return answer.json()


def campaign(**changes: Any) -> dict[str, Any]:
    return {
        "name": "News",
        "category": "offers",
        "template_id": "placed",
        "variables": {"order": "17"},
        "audience": {"segment": "pro"},
        **changes,
    }


async def test_a_segment_is_put_shown_listed_and_deleted_and_each_change_is_audited(
    account: Account,
):
    assert (await put(account))["version"] == 1
    assert (await put(account, {"not": PRO}))["version"] == 2
    await put(account, id="also")
    assert (await account.get("/v1/segments/pro")).json()["definition"] == {"not": PRO}
    page = (await account.get("/v1/segments", limit=1)).json()
    assert ([s["segment_id"] for s in page["items"]], page["next"]) == (["also"], "also")
    rest = (await account.get("/v1/segments", after="also")).json()
    assert ([s["segment_id"] for s in rest["items"]], rest["next"]) == (["pro"], None)
    assert (await account.delete("/v1/segments/pro")).status_code == 204
    assert code_of(await account.delete("/v1/segments/pro")) == (404, "not_found")
    assert code_of(await account.get("/v1/segments/pro")) == (404, "not_found")
    entries = (await account.get("/v1/audit")).json()["items"]
    said = [(e["action"], e["target"]) for e in entries if e["action"].startswith("segment.")]
    assert said[:4] == [
        ("segment.delete", "pro"),
        ("segment.put", "also"),
        ("segment.put", "pro"),
        ("segment.put", "pro"),
    ]


@pytest.mark.parametrize(
    ("definition", "code"),
    [
        ({"attribute": "plan"}, "segment_invalid"),
        ({"zone": "+01:00"}, "bad_zone"),
        ({"any": [{"zone": "UTC"}] * 100}, "segment_too_large"),
        ({"attribute": "a", "in": list(range(1001))}, "segment_too_large"),
    ],
)
async def test_what_is_no_segment_is_refused(account: Account, definition: Any, code: str):
    for answer in (
        await account.put("/v1/segments/x", {"definition": definition}),
        await account.post("/v1/segments/preview", {"definition": definition}),
    ):
        assert code_of(answer) == (422, code)
        assert answer.json()["field"].startswith("definition")


@pytest.mark.parametrize(("depth", "code"), [(9, "segment_too_deep"), (5000, "invalid_body")])
async def test_a_tree_that_is_too_deep_is_refused_however_deep(
    account: Account, depth: int, code: str
):
    raw = '{"definition":' + '{"not":' * depth + '{"zone":"UTC"}' + "}" * depth + "}"
    answer = await account.raw(
        "PUT", "/v1/segments/x", raw.encode(), Content_Type="application/json"
    )
    assert code_of(answer) == (422, code)


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"a": {"b": 1}}, "attribute_invalid"),
        ({"a b": 1}, "attribute_invalid"),
        ({"a": "x" * 257}, "attribute_invalid"),
        ({f"a{n}": n for n in range(65)}, "too_many_attributes"),
    ],
)
async def test_attributes_nobody_could_choose_by_are_refused(
    account: Account, attributes: Any, code: str
):
    answer = await account.put("/v1/recipients/r-1", {"attributes": attributes})
    assert code_of(answer) == (422, code)
    assert (await account.get("/v1/recipients/r-1")).json()["attributes"] == {}


async def test_a_preview_counts_and_names_some(account: Account):
    await people(account, "pro", "free", "pro")
    answer = await account.post("/v1/segments/preview", {"definition": PRO})
    assert answer.json() == {
        "members": 2,
        "scanned": 4,  # r-1 is everybody's
        "complete": True,
        "examples": ["s-0", "s-2"],
    }
    unknown = {"definition": {"attribute": "unknown", "ne": 1}}
    assert (await account.post("/v1/segments/preview", unknown)).json()["members"] == 0


async def test_a_campaign_keeps_the_definition_it_was_created_with(account: Account, parts: Parts):
    await people(account, "pro", "free")
    await put(account)
    answer = await account.post("/v1/campaigns", campaign(), key="k")
    assert answer.status_code == 202, answer.text
    await put(account, {"not": PRO})
    again = await account.post("/v1/campaigns", campaign(), key="k")
    assert again.json()["id"] == answer.json()["id"]
    row = await parts.campaigns.get(account.tenant, UUID(answer.json()["id"]))
    assert row is not None
    pinned = CampaignSpec.model_validate(dict(row.spec)).segment
    assert pinned is not None
    assert (pinned.segment_id, pinned.version, pinned.definition) == ("pro", 1, PRO)
    shown = (await account.get(f"/v1/campaigns/{row.campaign_id}")).json()
    assert (shown["segment"], shown["segment_version"]) == ("pro", 1)


async def test_a_preflight_of_a_segment_looks_at_its_members(account: Account):
    await put(account)
    assert code_of(await account.post("/v1/campaigns/preflight", campaign())) == (
        409,
        "segment_empty",
    )
    await people(account, "pro", "free", "pro")
    good = (await account.post("/v1/campaigns/preflight", campaign())).json()
    assert (good["ok"], good["size"], good["checked"]) == (True, 2, 2)
    bad = (await account.post("/v1/campaigns/preflight", campaign(variables={}))).json()
    assert bad["code"] == "preflight_failed"
    assert "s-0: missing_variable order (email)" in bad["examples"]


async def test_another_tenants_segment_is_not_there(
    account: Account, new_account: Callable[..., Any]
):
    await put(account)
    other: Account = await new_account()
    await other.set_up()
    for answer in (
        await other.get("/v1/segments/pro"),
        await other.delete("/v1/segments/pro"),
    ):
        assert code_of(answer) == (404, "not_found")
    assert (await other.get("/v1/segments")).json()["items"] == []
    for path in ("/v1/campaigns", "/v1/campaigns/preflight"):
        refused = await other.post(path, campaign(), key="k")
        assert code_of(refused)[1] == "unknown_segment"
    await put(other, {"not": PRO})
    assert (await account.get("/v1/segments/pro")).json()["definition"] == PRO


@pytest.mark.parametrize(
    "audience", [{}, {"segment": "pro", "sent_of": str(uuid4())}, {"segment": "No Name"}]
)
async def test_an_audience_is_one_thing(account: Account, audience: Any):
    answer = await account.post("/v1/campaigns", campaign(audience=audience), key="k")
    assert code_of(answer) == (422, "invalid_body")


async def test_nobody_adds_to_or_ends_what_a_launch_is_writing(account: Account, parts: Parts):
    id = uuid4()
    await parts.lists.create(account.tenant, "segment-x")
    await parts.lists.start_version(account.tenant, "segment-x", id, WRITTEN)
    at = f"/v1/lists/segment-x/versions/{id}"
    line = b'{"recipient_id": "r-1"}\n'
    put_ = await account.raw("PUT", f"{at}/chunks/0", line, Content_Type="application/x-ndjson")
    assert code_of(put_) == (409, "version_closed")
    assert code_of(await account.post(f"{at}/ready")) == (409, "version_closed")
