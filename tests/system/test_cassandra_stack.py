"""The whole product with its ledger on Cassandra, which is killed in the middle of a campaign."""

import asyncio
import time

import asyncpg
import pytest

from schemas import api
from schemas.kinds import Channel, MessageClass, RecipientState
from sendloom.embedded.cassandra import why_not
from sendloom.embedded.state import read_state
from tests.conftest import NO_CASSANDRA
from tests.system.running import Stack, eventually, tenant_on

pytestmark = pytest.mark.cassandra

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
    with tenant_on(stack, "wide") as tenant:
        client = tenant.client
        tenant.category("otp", MessageClass.SECURITY, Channel.SMS)
        tenant.category("news", MessageClass.MARKETING, Channel.EMAIL)
        tenant.template("code", "code", sms="{{code}} it is.")
        tenant.template("news", "name", email="Hello {{name}}.")
        tenant.person("ana", phone=PHONE)
        tenant.readers("readers", READERS, address)
        client.suppress(
            api.SuppressionBody(channel=Channel.EMAIL, address=address(7), reason="manual")
        )
        campaign = tenant.campaign("readers", "news", RATE)
        eventually(lambda: tenant.mails() >= 60, "the first mails")
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
        assert tenant.arrives(PHONE, 15)
        took = time.monotonic() - killed
        # The rest at its rate after half a minute, and the lease of what was being sent in the moment of the kill.
        eventually(
            lambda: client.campaign(campaign).phase == "completed",
            "the end",
            300,
            state=lambda: f"{client.campaign(campaign)}\n{tenant.mails()} mails\n{stack.state()}",
        )
        counts = client.campaign(campaign).counts
        assert sum(counts.values()) == READERS
        assert counts[RecipientState.SUPPRESSED] == 1
        # What was with a provider in the moment of the kill may be unknown; it is said, and never sent twice.
        assert counts[RecipientState.SENT] + counts.get(RecipientState.UNKNOWN, 0) == READERS - 1
        arrived = [tenant.mails(to=address(n)) for n in range(READERS)]
        assert arrived[7] == 0
        assert max(arrived) == 1
        assert sum(arrived) >= counts[RecipientState.SENT]
        assert sum(arrived) >= READERS - 1 - counts.get(RecipientState.UNKNOWN, 0)
        assert counts.get(RecipientState.UNKNOWN, 0) <= 100
    assert took < 15
    assert asyncio.run(_claims_in_postgres(stack)) == 0


async def _claims_in_postgres(stack: Stack) -> int:
    connection = await asyncpg.connect(stack.settings.postgres_dsn)
    try:
        found: int = await connection.fetchval("SELECT count(*) FROM claims")
        return found
    finally:
        await connection.close()
