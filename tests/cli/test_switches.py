"""Kill switches as an operator turns them."""

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from sendloom.client import SendloomClient
from sendloom.settings import Settings
from tests.cli.conftest import Sendloom


def test_a_switch_is_on_until_it_is_off_and_says_who_and_why(sendloom: Sendloom):
    tenant, campaign = sendloom.env["TENANT"], uuid4()
    for scope, *name in (
        ("tenant",),
        ("category", "orders"),
        ("lane", "send-email-marketing"),
        ("campaign", str(campaign).upper()),
    ):
        on = sendloom.json(
            "switch", "on", tenant, scope, *name, "--reason", "wrong prices", "--by", "ana"
        )
        assert (on["scope"], on["on"]) == (scope, True)
    again = sendloom("switch", "on", tenant, "tenant", "--reason", "still wrong", "--by", "bo")
    assert again.exit_code == 0
    listed = sendloom.lines("switch", "list", tenant)
    assert {(s["scope"], s["name"], s["reason"], s["by"]) for s in listed} == {
        ("tenant", tenant, "still wrong", "bo"),
        ("category", "orders", "wrong prices", "ana"),
        ("lane", "send-email-marketing", "wrong prices", "ana"),
        ("campaign", str(campaign), "wrong prices", "ana"),
    }
    for one in listed:
        off = sendloom.json("switch", "off", tenant, one["scope"], one["name"])
        assert off["on"] is False
    assert sendloom.lines("switch", "list", tenant) == []
    gone = sendloom("switch", "off", tenant, "category", "orders")
    assert gone.exit_code == 1
    assert "has no switch category orders" in gone.stderr


def test_both_turns_leave_an_audit_row(sendloom: Sendloom):
    tenant = sendloom.env["TENANT"]
    said = {"on": "wrong prices", "off": "prices are right"}
    for turn, reason in said.items():
        sendloom.json(
            "switch", turn, tenant, "category", "orders", "--reason", reason, "--by", "ana"
        )
    url, key = (sendloom.env[f"SENDLOOM_CLIENT__{name}"] for name in ("URL", "API_KEY"))
    with SendloomClient(url, key) as client:
        entries = client.audit().items
    turns = [e for e in entries if e.action.startswith("switch.")]
    assert [(e.actor, e.action, e.detail) for e in turns] == [
        ("cli", f"switch.{turn}", {"scope": "category", "by": "ana", "reason": said[turn]})
        for turn in ("off", "on")
    ]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("category", "no-such"), 1, "no category no-such"),
        (("category",), 2, "which category"),
        (("lane", "marketing"), 2, "send-email-marketing"),
        (("campaign", "spring"), 2, "not a campaign id"),
        (("tenant", "another"), 2, "takes no name"),
        (("planet", "earth"), 2, "planet"),
    ],
)
def test_a_switch_that_would_stop_nothing_is_refused(
    sendloom: Sendloom, words: tuple[str, ...], code: int, why: str
):
    tenant = sendloom.env["TENANT"]
    done = sendloom("switch", "on", tenant, *words, "--reason", "r")
    assert done.exit_code == code
    assert why in " ".join(done.stderr.replace("│", " ").split())
    assert sendloom.lines("switch", "list", tenant) == []


def test_a_reason_and_a_tenant_that_exists_are_needed(bare: Sendloom, sendloom: Sendloom):
    tenant = sendloom.env["TENANT"]
    assert bare("switch", "on", tenant, "tenant").exit_code == 2
    assert bare("switch", "on", tenant, "tenant", "--reason", " ").exit_code == 2
    assert bare("switch", "on", "nobody-here", "tenant", "--reason", "r").exit_code == 1
    assert bare("switch", "list", "nobody-here").exit_code == 1


def test_a_switch_written_by_hand_can_be_turned_off(sendloom: Sendloom, cli_settings: Settings):
    tenant = sendloom.env["TENANT"]

    async def by_hand() -> None:
        connection = await asyncpg.connect(cli_settings.postgres_dsn)
        try:
            await connection.execute(
                "INSERT INTO kill_switches (tenant, scope, name, reason, by) VALUES ($1, 'tenant', 'all', 'r', 'ana')",
                tenant,
            )
        finally:
            await connection.close()

    asyncio.run(by_hand())
    assert sendloom("switch", "off", tenant, "tenant").exit_code == 1
    assert sendloom("switch", "off", tenant, "tenant", "all").exit_code == 0
    assert sendloom.lines("switch", "list", tenant) == []
