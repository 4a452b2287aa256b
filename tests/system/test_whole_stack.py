"""One of everything through the whole product, a worker killed in the middle; and what must not be readable anywhere is not."""

import base64
import os
import signal
import sqlite3
from collections.abc import Iterator

import asyncpg
import redis
from temporalio.client import Client

from schemas import api
from schemas.kinds import Channel, MessageClass
from sendloom.embedded.state import read_state
from tests.system.running import Stack, Tenant, eventually, tenant_on

CODE = "QZXWVKJHGFDY"
PHONE = "+12025550147"
ADDRESS = "very.private.person@example.com"
READERS = 600
RATE = 60.0


def address(n: int) -> str:
    return f"r{n}.private@example.com"


async def test_one_of_each_with_a_worker_killed_and_nothing_in_clear(stack: Stack) -> None:
    with tenant_on(stack, "whole") as tenant:
        tenant.category("otp", MessageClass.SECURITY, Channel.SMS, Channel.EMAIL)
        tenant.category("orders", MessageClass.TRANSACTIONAL, Channel.EMAIL)
        tenant.category("news", MessageClass.MARKETING, Channel.EMAIL)
        tenant.template("code", "code", sms="{{code}} is your code.", email="{{code}} it is.")
        tenant.template("news", "name", email="Hello {{name}}.")
        _messages(tenant)
        _campaign(tenant, stack)
    await _nothing_in_clear(stack, tenant.urls)


def _messages(tenant: Tenant) -> None:
    client = tenant.client
    tenant.person("ana", phone=PHONE, email=ADDRESS)
    passcode = client.send_passcode(
        api.PasscodeRequest(recipient_id="ana", category="otp", template_id="code", code=CODE),
        key="otp",
        wait=2.0,
    )
    assert tenant.arrives(PHONE)
    assert client.check_passcode(passcode.id, "AAAAAAAAAAAA").result == "wrong"
    assert client.check_passcode(passcode.id, CODE).approved
    notification = client.send_notification(
        api.NotificationRequest(
            recipient_id="ana", category="orders", template_id="news", variables={"name": "Ana"}
        ),
        key="order",
    )
    assert tenant.arrives(ADDRESS)
    eventually(lambda: client.notification(notification.id).state == "sent", "the order")
    # Refused at the wire for good: the address must not be in the error that is kept either.
    tenant.person("bo", email="reject+" + ADDRESS)
    refused = client.send_notification(
        api.NotificationRequest(
            recipient_id="bo", category="orders", template_id="news", variables={"name": "Bo"}
        ),
        key="refused",
    )
    eventually(lambda: client.notification(refused.id).state == "rejected", "the refusal")
    assert [letter.recipient_id for letter in client.dead_letters().items] == ["bo"]


def _campaign(tenant: Tenant, stack: Stack) -> None:
    client = tenant.client
    tenant.readers("readers", READERS, address)
    before = tenant.mails()
    campaign = tenant.campaign("readers", "news", RATE)
    eventually(lambda: tenant.mails() - before >= 40, "the first mails")
    for name in ("worker-marketing-1", "worker-marketing-2"):
        process = read_state(stack.home).parts[name].process()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    at_kill = tenant.mails()
    eventually(lambda: tenant.mails() > at_kill + 20, "mails after both workers were killed")
    client.cancel_campaign(campaign, "seen enough")
    status = client.campaign(campaign)
    assert sum(status.counts.values()) == READERS
    assert all(tenant.mails(to=address(n)) <= 1 for n in range(READERS))


SECRETS = (CODE, PHONE, ADDRESS, address(17))


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
