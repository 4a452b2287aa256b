"""The simulator promises what each magic number comes to; the adapter must see the same."""

import httpx
import pytest
from pydantic import SecretStr

from schemas.kinds import MessageClass
from schemas.messages import OutboundSms
from sendloom.providers.simulators import Simulators, TwilioOptions
from sendloom.providers.simulators.magic import PHONE_PREFIX, SMS, SmsMagic
from sendloom.providers.twilio import HttpTimeouts, TwilioAccount, TwilioProvider

OPTIONS = TwilioOptions()


def limits_for(magic: SmsMagic) -> HttpTimeouts:
    """Patient where an answer comes soon; otherwise the client leaves, and may not know."""
    soon = "unknown" not in magic.outcome
    return HttpTimeouts(
        connect=5, reply=dict.fromkeys(MessageClass, magic.seconds + 10 if soon else 0.5)
    )


@pytest.mark.parametrize("magic", SMS, ids=lambda m: m.number)
async def test_each_magic_number_comes_to_what_the_simulator_says(magic: SmsMagic):
    number = PHONE_PREFIX + magic.number
    sms = OutboundSms(
        reference=f"dlv_{magic.number}",
        to=number,
        sender="+12025550100",
        body="Your code is 000123.",
        intent="otp",
    )
    async with Simulators() as sims:
        account = TwilioAccount(
            account_sid=OPTIONS.account_sid,
            secret=SecretStr(OPTIONS.auth_token),
            base_url=sims.http_url,
        )
        provider = TwilioProvider(
            httpx.AsyncClient(trust_env=False), account, timeouts=limits_for(magic)
        )
        outcome = await provider.send(sms, MessageClass.SECURITY)
        await provider.close()
        assert outcome.kind in magic.outcome
        if outcome.kind in ("rejected", "failed"):
            assert sims.inbox.count("to", number) == 0


async def test_the_second_try_of_a_throttled_number_is_accepted():
    async with Simulators() as sims:
        account = TwilioAccount(
            account_sid=OPTIONS.account_sid,
            secret=SecretStr(OPTIONS.auth_token),
            base_url=sims.http_url,
        )
        provider = TwilioProvider(httpx.AsyncClient(trust_env=False), account)
        sms = OutboundSms(
            reference="dlv_1", to=f"{PHONE_PREFIX}0160", sender="+12025550100", body="x"
        )
        first = await provider.send(sms, MessageClass.SECURITY)
        second = await provider.send(sms, MessageClass.SECURITY)
        await provider.close()
        assert (first.kind, second.kind) == ("failed", "accepted")
        assert sims.inbox.count("to", sms.to) == 1
