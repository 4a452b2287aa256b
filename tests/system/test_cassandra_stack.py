"""The whole product with its ledger on Cassandra, which is killed in the middle of a campaign."""

import asyncio
import json
import time

import asyncpg
import httpx
import pytest

from schemas import api
from schemas.kinds import Channel, MessageClass, RecipientState
from sendloom.client import SendloomClient
from sendloom.embedded.cassandra import why_not
from sendloom.embedded.state import read_state
from tests.conftest import NO_CASSANDRA
from tests.system.running import Stack, eventually

pytestmark = pytest.mark.cassandra

TENANT = "wide"
READERS = 600
RATE = 60.0
PHONE = "+12025550148"


def address(n: int) -> str:
    return f"r{n}.wide@example.com"


def test_a_campaign_whose_ledger_is_killed_reaches_everybody_once(stack: Stack) -> None:
    """And a passcode does not wait for it (POL-7)."""
    if (missing := why_not()) is not None:
        pytest.skip(f"{NO_CASSANDRA}: {missing}")
    stack.env["SENDLOOM_LEDGER"] = "cassandra"
    urls = json.loads(stack.sendloom("up", "--detach", "--json"))
    stack.sendloom("tenant", "create", TENANT, "--email-from", "hello@example.com", "--sms-from", "+12025550100")  # fmt: skip
    key = json.loads(stack.sendloom("key", "create", TENANT, "--json"))["key"]
    with (
        SendloomClient(urls["api_url"], key) as client,
        httpx.Client(base_url=urls["inbox_url"], timeout=30) as inbox,
    ):
        _catalog(client)
        _upload(client)
        client.suppress(
            api.SuppressionBody(channel=Channel.EMAIL, address=address(7), reason="manual")
        )
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
        eventually(lambda: _mails(inbox) >= 60, "the first mails")
        process = read_state(stack.home).parts["cassandra"].process()
        assert process is not None
        process.kill()
        killed = time.monotonic()
        client.send_passcode(
            api.PasscodeRequest(
                recipient_id="ana", category="otp", template_id="code", code="482913"
            ),
            key="otp",
        )
        answer = inbox.get("/api/wait", params={"to": PHONE, "count": 1, "timeout": 15})
        assert answer.raise_for_status().json()["reached"]
        took = time.monotonic() - killed
        # The rest at its rate after half a minute, and the lease of what was being sent in the moment of the kill.
        eventually(
            lambda: client.campaign(campaign.id).phase == "completed",
            "the end",
            120,
            state=lambda: f"{client.campaign(campaign.id)}\n{_mails(inbox)} mails\n{stack.state()}",
        )
        counts = client.campaign(campaign.id).counts
        assert sum(counts.values()) == READERS
        assert counts[RecipientState.SUPPRESSED] == 1
        # What was with a provider in the moment of the kill may be unknown; it is said, and never sent twice.
        assert counts[RecipientState.SENT] + counts.get(RecipientState.UNKNOWN, 0) == READERS - 1
        arrived = [
            inbox.get("/api/counts", params={"to": address(n)}).json()["count"]
            for n in range(READERS)
        ]
        assert arrived[7] == 0
        assert max(arrived) == 1
        assert sum(arrived) >= counts[RecipientState.SENT]
        assert sum(arrived) >= READERS - 1 - counts.get(RecipientState.UNKNOWN, 0)
        assert counts.get(RecipientState.UNKNOWN, 0) <= 100
    assert took < 15
    assert asyncio.run(_claims_in_postgres(stack)) == 0


def _catalog(client: SendloomClient) -> None:
    for name, message_class, ladder in (
        ("otp", MessageClass.SECURITY, [Channel.SMS]),
        ("news", MessageClass.MARKETING, [Channel.EMAIL]),
    ):
        client.put_category(
            name, api.CategoryRequest(message_class=message_class, ladder=ladder, ttl_seconds=3600)
        )
    for name, part, variable in (
        ("code", {"channel": "sms", "locale": "en", "text": "{{code}} it is."}, "code"),
        (
            "news",
            {"channel": "email", "locale": "en", "subject": "News", "text": "Hello {{name}}."},
            "name",
        ),
    ):
        client.create_template_version(
            name,
            api.TemplateVersionRequest.model_validate(
                {"parts": [part], "variables": {variable: {}}, "publish": True}
            ),
            key=name,
        )
    client.put_recipient(
        "ana", api.RecipientRequest(phone=api.AddressBody(address=PHONE, verified=True))
    )


def _upload(client: SendloomClient) -> None:
    consent = {
        "source": "form",
        "at": "2026-01-15T10:00:00Z",
        "wording": "Yes.",
        "categories": ["news"],
    }
    lines = [
        {
            "recipient_id": f"r{n}",
            "email": address(n),
            "consent": consent,
            "variables": {"name": f"N{n}"},
        }
        for n in range(READERS)
    ]
    client.put_list("readers")
    version = client.start_upload("readers", key="readers")
    client.put_chunk(
        "readers",
        version.version_id,
        0,
        b"".join(json.dumps(line).encode() + b"\n" for line in lines),
    )
    client.make_ready("readers", version.version_id)


def _mails(inbox: httpx.Client) -> int:
    return int(inbox.get("/api/counts", params={"channel": "email"}).json()["count"])


async def _claims_in_postgres(stack: Stack) -> int:
    connection = await asyncpg.connect(stack.settings.postgres_dsn)
    try:
        found: int = await connection.fetchval("SELECT count(*) FROM claims")
        return found
    finally:
        await connection.close()
