"""One of everything through the whole product, a worker killed in the middle; and what must not be readable anywhere is not."""

import base64
import json
import os
import signal
import sqlite3
from collections.abc import Iterator

import asyncpg
import httpx
import redis
from temporalio.client import Client

from schemas import api
from schemas.kinds import Channel, MessageClass
from sendloom.client import SendloomClient
from sendloom.embedded.state import read_state
from tests.system.running import Stack, eventually

TENANT = "whole"
CODE = "QZXWVKJHGFDY"
PHONE = "+12025550147"
ADDRESS = "very.private.person@example.com"
READERS = 600
RATE = 60.0


def catalog(client: SendloomClient) -> None:
    for name, message_class, ladder in (
        ("otp", MessageClass.SECURITY, [Channel.SMS, Channel.EMAIL]),
        ("orders", MessageClass.TRANSACTIONAL, [Channel.EMAIL]),
        ("news", MessageClass.MARKETING, [Channel.EMAIL]),
    ):
        seconds = 600 if message_class is MessageClass.SECURITY else 86_400
        client.put_category(
            name,
            api.CategoryRequest(message_class=message_class, ladder=ladder, ttl_seconds=seconds),
        )
    both = [
        {"channel": "sms", "locale": "en", "text": "{{code}} is your code."},
        {"channel": "email", "locale": "en", "subject": "Code", "text": "{{code}} it is."},
    ]
    mail = [{"channel": "email", "locale": "en", "subject": "News", "text": "Hello {{name}}."}]
    for name, parts, variable in (("code", both, "code"), ("news", mail, "name")):
        client.create_template_version(
            name,
            api.TemplateVersionRequest.model_validate(
                {"parts": parts, "variables": {variable: {}}, "publish": True}
            ),
            key=name,
        )


def audience() -> bytes:
    consent = {
        "source": "form",
        "at": "2026-01-15T10:00:00Z",
        "wording": "Yes.",
        "categories": ["news"],
    }
    # No zone: marketing then keeps no quiet hours, so the hour of the day changes nothing here.
    return b"".join(
        json.dumps(
            {
                "recipient_id": f"r{n}",
                "email": f"r{n}.private@example.com",
                "consent": consent,
                "variables": {"name": f"N{n}"},
            }
        ).encode()
        + b"\n"
        for n in range(READERS)
    )


async def test_one_of_each_with_a_worker_killed_and_nothing_in_clear(stack: Stack) -> None:
    urls = json.loads(stack.sendloom("up", "--detach", "--json"))
    stack.sendloom("tenant", "create", TENANT, "--email-from", "hello@example.com", "--sms-from", "+12025550100")  # fmt: skip
    key = json.loads(stack.sendloom("key", "create", TENANT, "--json"))["key"]
    with (
        SendloomClient(urls["api_url"], key) as client,
        httpx.Client(base_url=urls["inbox_url"], timeout=90) as inbox,
    ):
        catalog(client)
        _messages(client, inbox)
        _campaign(client, inbox, stack)
    await _nothing_in_clear(stack, urls)


def _messages(client: SendloomClient, inbox: httpx.Client) -> None:
    client.put_recipient(
        "ana",
        api.RecipientRequest(
            phone=api.AddressBody(address=PHONE, verified=True),
            email=api.AddressBody(address=ADDRESS, verified=True),
        ),
    )
    passcode = client.send_passcode(
        api.PasscodeRequest(recipient_id="ana", category="otp", template_id="code", code=CODE),
        key="otp",
        wait=2.0,
    )
    assert _arrives(inbox, PHONE)
    assert client.check_passcode(passcode.id, "AAAAAAAAAAAA").result == "wrong"
    assert client.check_passcode(passcode.id, CODE).approved
    notification = client.send_notification(
        api.NotificationRequest(
            recipient_id="ana", category="orders", template_id="news", variables={"name": "Ana"}
        ),
        key="order",
    )
    assert _arrives(inbox, ADDRESS)
    eventually(lambda: client.notification(notification.id).state == "sent", "the order")
    # Refused at the wire for good: the address must not be in the error that is kept either.
    client.put_recipient(
        "bo",
        api.RecipientRequest(email=api.AddressBody(address="reject+" + ADDRESS, verified=True)),
    )
    refused = client.send_notification(
        api.NotificationRequest(
            recipient_id="bo", category="orders", template_id="news", variables={"name": "Bo"}
        ),
        key="refused",
    )
    eventually(lambda: client.notification(refused.id).state == "rejected", "the refusal")
    assert [letter.recipient_id for letter in client.dead_letters().items] == ["bo"]


def _campaign(client: SendloomClient, inbox: httpx.Client, stack: Stack) -> None:
    client.put_list("readers")
    version = client.start_upload("readers", key="readers")
    client.put_chunk("readers", version.version_id, 0, audience())
    client.make_ready("readers", version.version_id)
    before = _mails(inbox)
    campaign = client.create_campaign(
        api.CampaignRequest(
            name="news",
            category="news",
            template_id="news",
            list_id="readers",
            rate_per_second=RATE,
        ),
        key="news",
    )
    eventually(lambda: _mails(inbox) - before >= 40, "the first mails")
    for name in ("worker-marketing-1", "worker-marketing-2"):
        process = read_state(stack.home).parts[name].process()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    at_kill = _mails(inbox)
    eventually(lambda: _mails(inbox) > at_kill + 20, "mails after both workers were killed", 60)
    client.cancel_campaign(campaign.id, "seen enough")
    status = client.campaign(campaign.id)
    assert sum(status.counts.values()) == READERS
    assert all(
        inbox.get("/api/counts", params={"to": f"r{n}.private@example.com"}).json()["count"] <= 1
        for n in range(READERS)
    )


def _mails(inbox: httpx.Client) -> int:
    return int(inbox.get("/api/counts", params={"channel": "email"}).json()["count"])


def _arrives(inbox: httpx.Client, to: str) -> bool:
    answer = inbox.get("/api/wait", params={"to": to, "count": 1, "timeout": 60})
    return bool(answer.raise_for_status().json()["reached"])


SECRETS = (CODE, PHONE, ADDRESS, "r17.private@example.com")


def _forms() -> Iterator[tuple[str, bytes]]:
    """Each secret as it could lie about: as it is, in hex (bytea), and in base64 at each of its three offsets."""
    for secret in SECRETS:
        raw = secret.encode()
        yield secret, raw
        yield secret, raw.hex().encode()
        for shift in range(3):
            whole = base64.b64encode(b"x" * shift + raw)
            # The characters that depend on the secret alone.
            yield secret, whole[4 if shift else 0 : -4]


def _found_in(where: str, data: bytes) -> list[str]:
    lowered = data.lower()
    return [
        f"{where} holds {secret}"
        for secret, form in _forms()
        if (form.lower() in lowered if form == secret.encode() else form in data)
    ]


def test_the_search_finds_what_lies_about_in_any_form():
    for hidden in (
        CODE.encode(),
        PHONE.encode().hex().encode(),
        *(base64.b64encode(b"ab" * n + ADDRESS.encode() + b"z") for n in range(4)),
    ):
        assert _found_in("x", b"before " + hidden + b" after")
    assert not _found_in("x", b"nothing of the kind")


async def _nothing_in_clear(stack: Stack, urls: dict[str, str]) -> None:
    found: list[str] = []
    looked_at = 0
    client = await Client.connect(urls["temporal_address"], namespace=urls["temporal_namespace"])
    async for execution in client.list_workflows():
        history = await client.get_workflow_handle(
            execution.id, run_id=execution.run_id
        ).fetch_history()
        # As the server keeps it: this client has no key, so whatever it can read anybody can.
        found += _found_in(f"history {execution.id}", history.to_json().encode())
        looked_at += len(history.events)
    assert looked_at > 50

    logs = [p for p in (stack.home / "logs").iterdir() if not p.name.startswith("simulators")]
    assert len(logs) > 5
    for path in logs:
        found += _found_in(path.name, path.read_bytes())

    settings = stack.settings
    rows = 0
    connection = await asyncpg.connect(settings.postgres_dsn)
    try:
        tables = await connection.fetch(
            "SELECT quote_ident(relname) AS name FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        assert len(tables) > 30
        for table in tables:
            texts = await connection.fetch(f"SELECT t::text AS row FROM {table['name']} t")
            rows += len(texts)
            found += _found_in(table["name"], "\n".join(r["row"] for r in texts).encode())
    finally:
        await connection.close()
    assert rows > READERS

    store = redis.Redis.from_url(settings.redis_url)
    for name in store.scan_iter():
        found += _found_in("Valkey", bytes(name) + b" " + (store.dump(name) or b""))
    store.close()

    # What the server has on disk: search attributes, memos, failures, task queues.
    [file] = (stack.home / "temporal").glob("temporal.db")
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        for statement in database.iterdump():
            found += _found_in("Temporal's database", statement.encode())
    assert found == []
