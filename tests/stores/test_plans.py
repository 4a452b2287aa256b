"""Plans of the hot statements, as they are made on tables that were never analysed: by index, and by all of the key."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from sendloom.stores import queries
from sendloom.stores.pool import Pool
from tests.stores.conftest import NOW

PAGE = {"tenant", "frozen_at", "campaign_id", "shard", "page"}
ROW = PAGE | {"recipient_id"}
HOT: list[tuple[str, str, dict[str, set[str]]]] = [
    # statement → per table the columns that its index condition must have
    ("ledger.sql", "claim_new", {"cursors": {"tenant", "campaign_id", "shard", "stage"}}),
    ("ledger.sql", "claim_again", {"cursors": {"tenant", "campaign_id", "shard", "stage"}}),
    ("ledger.sql", "read", {"claims": PAGE | {"channel", "recipient_id"}}),
    ("ledger.sql", "claim_all", {"cursors": {"tenant", "campaign_id", "shard", "stage"}}),
    ("ledger.sql", "record", {}),
    ("ledger.sql", "record_all", {"claims": PAGE | {"channel", "recipient_id"}}),
    ("sent.sql", "write", {"claims": PAGE | {"channel", "recipient_id"}, "decisions": ROW}),
    ("ledger.sql", "settle", {"claims": PAGE | {"channel"}}),
    ("ledger.sql", "of_campaign", {"claims": {"tenant", "frozen_at", "campaign_id"}}),
    ("ledger.sql", "of_shard", {"claims": PAGE | {"channel"}}),
    ("ledger.sql", "of_recipient", {"claims": PAGE | {"channel", "recipient_id"}}),
    ("ledger.sql", "places_of_recipient", {"decisions": {"tenant", "recipient_id"}}),
    ("ledger.sql", "delivered", {"claims": ROW | {"channel", "send_no", "device"}}),
    ("ledger.sql", "complaints", {"claims": {"campaign_id"}}),
    ("ledger.sql", "suppression", {"suppressions": {"tenant", "channel", "address_hash"}}),
    ("decisions.sql", "insert", {}),
    ("decisions.sql", "insert_all", {}),
    ("decisions.sql", "of_page", {"decisions": ROW}),
    ("decisions.sql", "move", {"decisions": ROW}),
    ("decisions.sql", "move_page", {"decisions": ROW}),
    (
        "decisions.sql",
        "move_and_give_back",
        {"decisions": ROW, "cap_uses": {"tenant", "recipient_id"}},
    ),
    ("decisions.sql", "full_caps", {"cap_uses": {"tenant", "recipient_id", "scope"}}),
    ("decisions.sql", "lock_people", {"recipients": {"tenant", "recipient_id"}}),
    ("decisions.sql", "by_recipient", {"decisions": {"tenant", "recipient_id"}}),
    ("decisions.sql", "delivery", {"deliveries": {"tenant", "frozen_at", "campaign_id"}}),
    (
        "people.sql",
        "people",
        {
            "recipients": {"tenant", "recipient_id"},
            "addresses": {"tenant", "recipient_id", "channel"},
            "preferences": {"tenant", "recipient_id"},
            "consents": {"tenant", "recipient_id"},
            "suppressions": {"tenant", "channel", "address_hash"},
        },
    ),
    (
        "people.sql",
        "page_people",
        {
            "list_rows": {"tenant", "version_id", "shard", "page"},
            "recipients": {"tenant", "recipient_id"},
            "addresses": {"tenant", "recipient_id", "channel"},
        },
    ),
    (
        "campaigns.sql",
        "page_sends",
        {
            "decisions": PAGE,
            "list_rows": {"tenant", "version_id", "shard", "page", "recipient_id"},
            "recipients": {"tenant", "recipient_id"},
            "addresses": {"tenant", "recipient_id", "channel"},
            "preferences": {"tenant", "recipient_id"},
            "suppressions": {"tenant", "channel", "address_hash"},
        },
    ),
    (
        "campaigns.sql",
        "due_sends",
        {
            "decisions": {"tenant", "campaign_id", "channel", "due_at"},
            "list_rows": {"tenant", "version_id", "shard", "page", "recipient_id"},
            "recipients": {"tenant", "recipient_id"},
            "preferences": {"tenant", "recipient_id"},
        },
    ),
    ("campaigns.sql", "due", {"decisions": {"tenant", "campaign_id"}}),
    ("campaigns.sql", "undefer", {}),
    ("campaigns.sql", "bucket", {}),
    (
        "campaigns.sql",
        "give_back_caps",
        {"decisions": PAGE, "cap_uses": {"tenant", "recipient_id"}},
    ),
    ("campaigns.sql", "pending_group", {"decisions": ROW, "list_rows": {"tenant", "version_id"}}),
    ("recipients.sql", "upsert_addresses", {"recipients": {"tenant", "recipient_id"}}),
    ("recipients.sql", "erase_payloads", {"deliveries": {"tenant", "frozen_at", "campaign_id"}}),
    (
        "campaigns.sql",
        "open_sends",
        {"decisions": {"tenant", "frozen_at", "campaign_id", "shard"}, "cursors": {"tenant"}},
    ),
    (
        "campaigns.sql",
        "stale_pages",
        {
            "list_pages": {"tenant", "version_id", "shard"},
            "cursors": {"tenant", "campaign_id", "shard"},
            "page_summaries": {"tenant", "campaign_id", "shard", "page"},
        },
    ),
    ("campaigns.sql", "counts", {"page_summaries": {"tenant", "campaign_id"}}),
    ("campaigns.sql", "health", {"claims": {"campaign_id"}}),
    (
        "people.sql",
        "sample",
        {
            "list_pages": {"tenant", "version_id"},
            "list_rows": {"tenant", "version_id", "shard", "page"},
        },
    ),
    ("campaigns.sql", "controls_since", {"campaign_control": {"at"}}),
    ("accepted.sql", "get", {"accepted": {"tenant", "id"}}),
    ("accepted.sql", "unstarted", {"accepted": {"accepted_at"}}),
    (
        "accepted.sql",
        "oldest_waiting_security",
        {
            "accepted": {"accepted_at"},
            "claims": {"tenant", "frozen_at", "campaign_id"},
            "decisions": {"tenant", "frozen_at", "campaign_id"},
        },
    ),
    ("accepted.sql", "by_recipient", {"accepted": {"tenant", "recipient_id"}}),
    ("passcodes.sql", "take_check", {"passcodes": {"tenant", "id"}}),
]


async def plan_of(pool: Pool, sql: str) -> dict[str, Any]:
    """The generic plan, as this session would run it."""
    async with pool.acquire() as connection:
        types = [p.name for p in (await connection.prepare(sql)).get_parameters()]
        # A value only for the time that names the partition, so that the plan of one partition is left.
        moment = f"'{NOW.isoformat()}'"
        values = [moment if name == "timestamptz" else "NULL" for name in types]
        named = ", ".join(
            name[:-2] + "[]" if name.endswith("[]") else name.replace("varchar", "text")
            for name in types
        )
        async with connection.transaction():
            await connection.execute(f"PREPARE looked_at ({named}) AS {sql}")
            plan = await connection.fetchval(
                f"EXPLAIN (FORMAT JSON) EXECUTE looked_at ({', '.join(values)})"
            )
            await connection.execute("DEALLOCATE looked_at")
    found: dict[str, Any] = json.loads(plan)[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def table_of(node: dict[str, Any]) -> str | None:
    name: str | None = node.get("Relation Name")
    if name is None:
        return None
    for parent in ("decisions", "claims", "deliveries"):
        if name.startswith(f"{parent}_"):
            return parent
    return name


@pytest.mark.parametrize(
    ("file", "name", "by"), HOT, ids=[f"{file}:{name}" for file, name, _ in HOT]
)
async def test_a_hot_statement_takes_the_index_with_no_statistics_at_all(
    file: str, name: str, by: dict[str, set[str]], pool: Pool
) -> None:
    plan = await plan_of(pool, queries.load(file)[name])
    seen = set()
    for node in nodes(plan):
        table = table_of(node)
        kind = node["Node Type"]
        if table is None or kind in ("ModifyTable", "Bitmap Heap Scan"):
            continue
        assert kind != "Seq Scan", f"{table} is scanned from end to end"
        if table in by:
            condition = node.get("Index Cond", "")
            missing = {column for column in by[table] if column not in condition}
            assert not missing, f"{table} is looked into by {condition}"
            seen.add(table)
    assert seen == by.keys()


async def test_the_plan_stays_when_the_table_has_grown_unanalysed(pool: Pool) -> None:
    """The plan was made on an empty table, and nobody analyses in mid-campaign."""
    sql = queries.load("decisions.sql")["move"]
    before = [node["Node Type"] for node in nodes(await plan_of(pool, sql))]
    await pool.execute(
        """INSERT INTO decisions (tenant, frozen_at, campaign_id, shard, page, recipient_id, state)
           SELECT 'plans', $1, '00000000-0000-0000-0000-000000000001', n / 5000, n / 500 % 10, 'r' || n, 0
             FROM generate_series(1, 20000) AS n""",
        NOW - timedelta(seconds=1),
    )
    after = [node["Node Type"] for node in nodes(await plan_of(pool, sql))]
    assert "Seq Scan" not in before + after
