"""Uploading audiences: chunks in any order and more than once, errors by line, nothing stops the rest (CAMP-2)."""

import json
from typing import Any
from uuid import UUID

import pytest

from api.deps import Parts
from schemas.api import CHUNK_BYTES
from tests.api.conftest import Account, code_of


async def start(account: Account, format: str = "ndjson", key: str = "v") -> str:
    await account.put("/v1/lists/all", {"name": "All"})
    version = await account.post("/v1/lists/all/versions", {"format": format}, key=key)
    assert version.status_code == 201, version.text
    return f"/v1/lists/all/versions/{version.json()['version_id']}"


async def put(
    account: Account,
    url: str,
    chunk: int,
    data: str | bytes,
    media: str = "application/x-ndjson",
    **params: Any,
) -> Any:
    raw = data if isinstance(data, bytes) else data.encode()
    query = "&".join(f"{name}={value}" for name, value in params.items())
    return await account.raw(
        "PUT", f"{url}/chunks/{chunk}" + (f"?{query}" if query else ""), raw, Content_Type=media
    )


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


async def test_chunks_in_any_order_and_twice_become_one_ready_list(account: Account):
    url = await start(account)
    second = lines({"recipient_id": "b", "email": "b@example.com"})
    first = lines({"recipient_id": "a", "email": "a@example.com", "variables": {"n": 1}})
    assert (await put(account, url, 1, second, first_line=2)).json()["accepted"] == 1
    early = await account.post(f"{url}/ready")
    assert code_of(early) == (409, "chunk_missing")
    assert (await put(account, url, 0, first)).json()["replayed"] is False
    repeat = await put(account, url, 0, first)
    assert (repeat.status_code, repeat.json()["replayed"]) == (200, True)
    other = await put(account, url, 0, second)
    assert code_of(other) == (409, "chunk_conflict")

    ready = (await account.post(f"{url}/ready")).json()
    assert (ready["state"], ready["size"], ready["rejected"]) == ("ready", 2, 0)
    assert (await account.post(f"{url}/ready")).json() == ready
    late = await put(account, url, 2, second)
    assert code_of(late) == (409, "version_closed")
    assert (await account.get("/v1/lists/all")).json()["current_version"] == ready["version_id"]
    known = (await account.get("/v1/recipients/a")).json()
    assert [(x["channel"], x["hint"]) for x in known["addresses"]] == [("email", "a…@e….com")]


async def test_the_same_key_finds_the_upload_again_with_what_is_there(account: Account):
    url = await start(account)
    await put(account, url, 0, lines({"recipient_id": "a"}))
    again = await account.post("/v1/lists/all/versions", {"format": "ndjson"}, key="v")
    assert url.endswith(again.json()["version_id"])
    assert [chunk["chunk"] for chunk in again.json()["chunks"]] == [0]
    other = await account.post("/v1/lists/all/versions", {"format": "csv"}, key="v")
    assert code_of(other) == (409, "key_reused")
    assert await start(account, key="another") != url


async def test_a_bad_line_is_an_error_with_its_number_and_the_rest_stands(account: Account):
    url = await start(account)
    data = (
        lines({"recipient_id": "a"})
        + "{broken\n"
        + lines(
            {"recipient_id": "b", "zone": "Mars/Phobos"},
            {"recipient_id": "x@example.com"},
            {"recipient_id": "c", "unknown": 1},
            {"recipient_id": "d"},
        )
    )
    said = (await put(account, url, 0, data, first_line=101)).json()
    assert (said["accepted"], said["rejected"]) == (2, 4)
    assert [(e["line"], e["code"]) for e in said["errors"]] == [
        (102, "bad_json"),
        (103, "bad_zone"),
        (104, "bad_recipient_id"),
        (105, "unknown_field"),
    ]
    assert "x@example.com" not in json.dumps(said)
    ready = (await account.post(f"{url}/ready")).json()
    assert (ready["state"], ready["size"], ready["rejected"]) == ("ready", 2, 4)
    assert len((await account.get(url)).json()["errors"]) == 4


async def test_c19_a_spreadsheets_csv_with_bom_crlf_and_semicolons_is_read_whole(
    account: Account, parts: Parts
):
    url = await start(account, "csv")
    data = "\ufeffemail;first name\r\nada@example.com;Ada\r\nbob@example.com;Bob\r\n"
    said = (await put(account, url, 0, data, "text/csv")).json()
    assert (said["accepted"], said["errors"]) == (2, [])
    assert (await account.post(f"{url}/ready")).json()["size"] == 2
    version_id = UUID(url.rpartition("/")[2])
    pool = parts.lists._pool  # type: ignore[attr-defined]
    rows = await pool.fetch("SELECT variables FROM list_rows WHERE version_id = $1", version_id)
    assert sorted(row["variables"]["first_name"] for row in rows) == ["Ada", "Bob"]


async def test_c52_phone_numbers_with_odd_spaces_are_accepted_and_a_broken_one_is_told_by_line(
    account: Account,
):
    url = await start(account, "csv")
    data = "phone\n+1\u00a0202\u00a0555\u00a00143\n(202) 555-0144\n202-555-01\n"
    said = (await put(account, url, 0, data, "text/csv")).json()
    assert (said["accepted"], said["rejected"]) == (2, 1)
    [error] = said["errors"]
    assert (error["line"], error["column"], error["code"]) == (4, "phone", "bad_address")
    assert (await account.post(f"{url}/ready")).json()["size"] == 2


async def test_a_later_csv_chunk_begins_with_the_header_and_knows_its_lines(account: Account):
    url = await start(account, "csv")
    await put(account, url, 0, "recipient_id,city\na,Rome\n", "text/csv")
    said = (
        await put(account, url, 1, "recipient_id,city\nb,Bonn\n,\n", "text/csv", first_line=3)
    ).json()
    assert [(e["line"], e["code"]) for e in said["errors"]] == [(4, "no_address")]


async def test_consent_given_in_a_list_is_recorded_with_its_wording(account: Account):
    url = await start(account)
    row = {
        "recipient_id": "a",
        "email": "a@example.com",
        "consent": {"source": "signup", "at": "2026-01-15T09:00:00Z", "wording": "Yes, weekly"},
    }
    await put(account, url, 0, lines(row), consent_categories="offers,news")
    found = (await account.get("/v1/recipients/a/consents")).json()["items"]
    assert [(c["category"], c["granted"], c["wording"]) for c in found] == [
        ("news", True, "Yes, weekly"),
        ("offers", True, "Yes, weekly"),
    ]


async def test_an_upload_without_one_good_line_has_failed_and_cannot_be_sent_to(account: Account):
    url = await start(account)
    await put(account, url, 0, "{broken\n")
    failed = (await account.post(f"{url}/ready")).json()
    assert (failed["state"], failed["reason"]) == ("failed", "empty")
    campaign = {
        "name": "Week 3",
        "category": "offers",
        "template_id": "placed",
        "list_id": "all",
        "variables": {"order": "1"},
    }
    answer = await account.post("/v1/campaigns", campaign, key="c")
    assert code_of(answer) == (409, "list_empty")


@pytest.mark.parametrize(
    ("media", "status"), [("application/json", 415), ("text/csv", 415), ("", 415)]
)
async def test_the_media_type_must_be_what_was_announced(media: str, status: int, account: Account):
    url = await start(account)
    answer = await put(account, url, 0, "{}\n", media)
    assert code_of(answer) == (status, "unsupported_media_type")


async def test_bytes_that_are_no_text_are_errors_of_their_lines(account: Account):
    url = await start(account)
    said = await put(account, url, 0, b'{"recipient_id": "\xff"}\n{"recipient_id": "a"}\n')
    assert (said.status_code, said.json()["accepted"], said.json()["rejected"]) == (200, 1, 1)
    url = await start(account, "csv", key="csv")
    said = await put(account, url, 0, b"recipient_id\n\xff\xfe\na\n", "text/csv")
    assert (said.status_code, said.json()["accepted"], said.json()["rejected"]) == (200, 1, 1)


async def test_a_csv_without_a_usable_header_is_refused_as_a_whole(account: Account):
    url = await start(account, "csv")
    answer = await put(account, url, 0, "recipient_id,recipient_id\na,b\n", "text/csv")
    assert answer.status_code in (200, 422)
    said = answer.json()
    code = said["code"] if answer.status_code == 422 else said["errors"][0]["code"]
    assert code == "bad_header"
    if answer.status_code == 200:
        assert said["accepted"] == 0


async def test_chunks_hold_eight_megabytes_and_not_a_byte_more(account: Account):
    url = await start(account)
    row = lines({"recipient_id": "a", "variables": {"x": "y" * 4000}})
    many = row * (CHUNK_BYTES // len(row))
    assert (await put(account, url, 0, many)).status_code == 200
    too_many = many + " " * (CHUNK_BYTES - len(many) + 1)
    answer = await put(account, url, 1, too_many)
    assert code_of(answer) == (413, "body_too_large")
    assert "chunks" in answer.json()["fix"]
