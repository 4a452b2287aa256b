"""The simulators promise what each magic recipient comes to; the adapters must see the same."""

from datetime import UTC, datetime

import pytest

from schemas.kinds import MessageClass
from schemas.messages import OutboundEmail
from schemas.outcomes import CallOutcome
from sendloom.ports import WireMail
from sendloom.providers.mime import build, stuff
from sendloom.providers.simulators import Simulators
from sendloom.providers.simulators.magic import MAIL, Act, MailMagic
from sendloom.providers.smtp import SmtpProvider
from sendloom.providers.smtp_pipeline import PipelineMailer
from sendloom.providers.smtp_session import SmtpAccount, SmtpTimeouts


def limits(seconds: float) -> SmtpTimeouts:
    return SmtpTimeouts(
        connect=30, command=seconds, final_reply=dict.fromkeys(MessageClass, seconds)
    )


PATIENT, SILENT = limits(30), limits(1)
"""Where an answer comes it has time; only where none ever comes somebody must leave."""
CLASS = MessageClass.TRANSACTIONAL


def a_mail(to: str) -> OutboundEmail:
    return OutboundEmail(
        reference=f"dlv_{to.partition('@')[0]}",
        message_id=f"<{to}>",
        date=datetime(2027, 3, 1, 9, 30, tzinfo=UTC),
        from_address="news@example.com",
        to_address=to,
        subject="Hello",
        text="Hello\n",
        envelope_from="bounces@example.com",
    )


async def alone(
    sims: Simulators, mail: OutboundEmail, timeouts: SmtpTimeouts = PATIENT
) -> CallOutcome:
    provider = SmtpProvider(SmtpAccount(host=sims.host, port=sims.smtp_port), timeouts=timeouts)
    outcome = await provider.send(mail, CLASS)
    await provider.close()
    return outcome


async def among_others(
    sims: Simulators, mail: OutboundEmail, timeouts: SmtpTimeouts = PATIENT
) -> CallOutcome:
    """Third of five on one connection: the other four must not notice."""
    mailer = PipelineMailer(
        SmtpAccount(host=sims.host, port=sims.smtp_port), connections=1, timeouts=timeouts
    )
    others = [a_mail(f"alex{n}@example.com") for n in range(4)]
    mails = [*others[:2], mail, *others[2:]]
    outcomes = await mailer.send_batch(
        [WireMail(m.reference, m.envelope_from, m.to_address, stuff(build(m))) for m in mails],
        CLASS,
        may_call=lambda: True,
    )
    await mailer.close()
    outcome = outcomes.pop(2)
    assert [o.kind for o in outcomes] == ["accepted"] * 4
    assert [sims.inbox.count("to", m.to_address) for m in others] == [1] * 4
    return outcome


@pytest.mark.parametrize("send", [alone, among_others])
@pytest.mark.parametrize("magic", MAIL, ids=lambda m: m.name)
async def test_each_magic_recipient_comes_to_what_the_simulator_says(magic: MailMagic, send):
    to = f"{magic.name}{'+10ms' if magic.seconds else ''}@example.com"
    async with Simulators() as sims:
        outcome = await send(sims, a_mail(to), SILENT if magic.act is Act.SILENCE else PATIENT)
        if magic.name == "drop-before":
            # how far the dot came when the line was reset is a race; both clients may only be careful
            assert outcome.kind in ("failed", "unknown")
        else:
            assert magic.outcome.startswith(outcome.kind)
        if outcome.kind in ("rejected", "failed"):
            assert sims.inbox.count("to", to) == 0


@pytest.mark.parametrize("send", [alone, among_others])
async def test_a_session_limit_of_the_simulator_is_no_recipients_failure(send):
    """C50."""
    async with Simulators() as sims:
        sims.behaviour.mail.close_after = 1
        assert (await send(sims, a_mail("zoe@example.com"))).kind == "accepted"
        assert sims.inbox.count("to", "zoe@example.com") == 1
