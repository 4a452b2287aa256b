"""Twilio's messages API: what every status, code and silence comes to."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from pydantic import SecretStr

from schemas.kinds import FaultScope, MessageClass
from schemas.messages import OutboundEmail, OutboundSms
from schemas.outcomes import Accepted, CallOutcome, Failed, Rejected, Unknown
from sendloom.errors import ConfigurationError
from sendloom.providers.twilio import HttpTimeouts, TwilioAccount, TwilioProvider
from sendloom.providers.twilio_codes import (
    DELIVERY,
    REQUEST,
    classify_delivery,
    until_next_day,
)
from tests.providers.scripted import (
    Certificates,
    Clock,
    Hangup,
    Peer,
    certificates,
    serving,
    unused_port,
)

SECURITY, MARKETING = MessageClass.SECURITY, MessageClass.MARKETING
MESSAGE, RECIPIENT, SENDER, PROVIDER = (
    FaultScope.MESSAGE,
    FaultScope.RECIPIENT,
    FaultScope.SENDER,
    FaultScope.PROVIDER,
)
SID = "AC" + "0" * 32
TOKEN = "t0p-s3cret"
NOW = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)
QUICK = HttpTimeouts(connect=10, reply=dict.fromkeys(MessageClass, 0.3))
PATIENT = HttpTimeouts(connect=30, reply=dict.fromkeys(MessageClass, 30.0))
CREATED = {"sid": "SM" + "1" * 32, "status": "queued", "error_code": None}


def an_sms(**changes: Any) -> OutboundSms:
    fields: dict[str, Any] = {
        "reference": "dlv_1",
        "to": "+12025550123",
        "sender": "+12025550100",
        "body": "Your code is 000123.",
        "validity_seconds": 600,
        "intent": "otp",
        "status_callback": "https://example.com/callbacks/twilio?d=dlv_1",
    }
    return OutboundSms.model_validate(fields | changes)


def provider_over(
    transport: httpx.AsyncBaseTransport | None = None,
    *,
    base_url: str = "https://api.twilio.com",
    timeouts: HttpTimeouts = PATIENT,
    **account: Any,
) -> TwilioProvider:
    http = httpx.AsyncClient(transport=transport)
    return TwilioProvider(
        http,
        TwilioAccount(account_sid=SID, secret=SecretStr(TOKEN), base_url=base_url, **account),
        timeouts=timeouts,
        now=lambda: NOW,
    )


async def answer_to(response: httpx.Response) -> CallOutcome:
    provider = provider_over(httpx.MockTransport(lambda request: response))
    try:
        return await provider.send(an_sms(), SECURITY)
    finally:
        await provider.close()


def error(status: int, code: int, message: str = "no", **headers: str) -> httpx.Response:
    body = {
        "code": code,
        "message": message,
        "more_info": f"https://www.twilio.com/docs/errors/{code}",
        "status": status,
    }
    return httpx.Response(status, json=body, headers=headers)


async def request_for(sms: OutboundSms, **account: Any) -> httpx.Request:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, json=CREATED)

    provider = provider_over(httpx.MockTransport(handle), **account)
    assert isinstance(await provider.send(sms, SECURITY), Accepted)
    await provider.close()
    [request] = seen
    return request


def form_of(request: httpx.Request) -> dict[str, str]:
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    parsed = parse_qs(request.content.decode("ascii"), strict_parsing=True)
    assert all(len(values) == 1 for values in parsed.values())
    return {name: values[0] for name, values in parsed.items()}


# --- the request -------------------------------------------------------------------------------------------------------


async def test_a_message_is_created_as_the_api_wants_it():
    request = await request_for(an_sms(body="Grüße & 1 + 1 = 2 €"))
    assert request.method == "POST"
    assert str(request.url) == f"https://api.twilio.com/2010-04-01/Accounts/{SID}/Messages.json"
    assert form_of(request) == {
        "To": "+12025550123",
        "From": "+12025550100",
        "Body": "Grüße & 1 + 1 = 2 €",
        "SmartEncoded": "false",
        "ValidityPeriod": "600",
        "RiskCheck": "enable",
        "MessageIntent": "otp",
        "StatusCallback": "https://example.com/callbacks/twilio?d=dlv_1",
    }
    credentials = base64.b64decode(request.headers["Authorization"].removeprefix("Basic "))
    assert credentials.decode() == f"{SID}:{TOKEN}"


async def test_what_is_not_set_is_not_sent():
    form = form_of(await request_for(an_sms(status_callback=None, intent="")))
    assert "StatusCallback" not in form
    assert "MessageIntent" not in form


async def test_a_messaging_service_is_named_as_one():
    form = form_of(await request_for(an_sms(sender="MG" + "a" * 32)))
    assert form["MessagingServiceSid"] == "MG" + "a" * 32
    assert "From" not in form


async def test_an_api_key_signs_in_its_own_name():
    request = await request_for(an_sms(), user="SK" + "b" * 32)
    credentials = base64.b64decode(request.headers["Authorization"].removeprefix("Basic "))
    assert credentials.decode() == f"SK{'b' * 32}:{TOKEN}"
    assert f"/Accounts/{SID}/" in str(request.url)


async def test_risk_check_can_be_switched_off():
    assert form_of(await request_for(an_sms(), risk_check=False))["RiskCheck"] == "disable"


@pytest.mark.parametrize(
    ("asked", "sent"), [(0, "1"), (1, "1"), (36_000, "36000"), (99_999, "36000")]
)
async def test_the_validity_period_stays_within_what_the_api_takes(asked, sent):
    assert form_of(await request_for(an_sms(validity_seconds=asked)))["ValidityPeriod"] == sent


async def test_the_base_url_may_have_a_path_and_a_slash():
    request = await request_for(an_sms(), base_url="http://127.0.0.1:8025/twilio/")
    assert str(request.url).startswith("http://127.0.0.1:8025/twilio/2010-04-01/Accounts/")


def test_a_nonsense_account_is_refused_at_start_and_the_token_is_never_shown():
    with pytest.raises(ConfigurationError):
        TwilioAccount(account_sid="AC12", secret=SecretStr(TOKEN))
    assert TOKEN not in repr(TwilioAccount(account_sid=SID, secret=SecretStr(TOKEN)))


async def test_only_sms_is_carried():
    provider = provider_over(httpx.MockTransport(lambda r: httpx.Response(500)))
    email = OutboundEmail(
        reference="r",
        message_id="<a@example.com>",
        date=NOW,
        from_address="a@example.com",
        to_address="b@example.com",
        subject="s",
        text="t",
        envelope_from="a@example.com",
    )
    with pytest.raises(TypeError):
        await provider.send(email, SECURITY)
    await provider.close()


# --- answers -----------------------------------------------------------------------------------------------------------


async def test_201_with_an_id_is_accepted():
    outcome = await answer_to(httpx.Response(201, json=CREATED))
    assert outcome == Accepted(provider="twilio", provider_message_id=CREATED["sid"])


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(201),
        httpx.Response(201, text="<html>created</html>"),
        httpx.Response(201, json={"status": "queued"}),
        httpx.Response(200, json={"sid": None}),
        httpx.Response(201, json={"sid": ""}),
        httpx.Response(201, json=["SM1"]),
        httpx.Response(201, content=b"\xff\xfe\x00"),
    ],
)
async def test_2xx_without_an_id_is_unknown(response):
    outcome = await answer_to(response)
    assert isinstance(outcome, Unknown)
    assert outcome.code == "no_id"


REJECTING = [
    (400, 21211, RECIPIENT, True),
    (400, 21217, RECIPIENT, True),
    (400, 21614, RECIPIENT, True),
    (400, 21635, RECIPIENT, True),
    (400, 21212, SENDER, False),
    (400, 21606, SENDER, False),
    (400, 21657, SENDER, False),
    (400, 21659, SENDER, False),
    (400, 21660, SENDER, False),
    (400, 21612, PROVIDER, False),
    (400, 21214, PROVIDER, False),
    (400, 21408, MESSAGE, False),
    (400, 21602, MESSAGE, False),
    (400, 21603, MESSAGE, False),
    (400, 21604, MESSAGE, False),
    (400, 21609, MESSAGE, False),
    (400, 21617, MESSAGE, False),
    (400, 21619, MESSAGE, False),
    (400, 21620, MESSAGE, False),
    (400, 21656, MESSAGE, False),
]


@pytest.mark.parametrize(("status", "code", "scope", "suppress"), REJECTING)
async def test_codes_that_reject(status, code, scope, suppress):
    outcome = await answer_to(error(status, code))
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.scope, outcome.suppress) == (str(code), scope, suppress)
    assert not outcome.opted_out


async def test_21610_is_an_opt_out_and_suppresses():
    outcome = await answer_to(error(400, 21610, "Attempt to send to unsubscribed recipient"))
    assert isinstance(outcome, Rejected)
    assert (outcome.scope, outcome.suppress, outcome.opted_out) == (RECIPIENT, True, True)


FAILING = [
    (401, 20003, SENDER, False),
    (404, 20404, SENDER, False),
    (403, 20008, SENDER, False),
    (429, 20429, PROVIDER, True),
    (429, 14107, PROVIDER, True),
    (400, 21608, SENDER, False),
    (400, 21611, PROVIDER, True),
    (400, 21703, SENDER, False),
    (400, 21704, SENDER, False),
    (400, 21705, SENDER, False),
]


@pytest.mark.parametrize(("status", "code", "scope", "throttled"), FAILING)
async def test_codes_that_fail(status, code, scope, throttled):
    outcome = await answer_to(error(status, code))
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope, outcome.throttled) == (str(code), scope, throttled)


def test_every_request_code_is_one_of_the_above():
    tested = {row[1] for row in (*REJECTING, *FAILING)} | {21610}
    assert set(REQUEST) <= tested


async def test_an_unknown_code_rejects_and_never_touches_the_number():
    outcome = await answer_to(error(400, 29999))
    assert isinstance(outcome, Rejected)
    assert (outcome.scope, outcome.suppress, outcome.opted_out) == (MESSAGE, False, False)


@pytest.mark.parametrize(
    "response",
    [
        error(500, 20500),
        error(503, 20503),
        httpx.Response(500, text="oops"),
        httpx.Response(502, html="<h1>Bad gateway</h1>"),
        httpx.Response(504),
        httpx.Response(429, html="<h1>Slow down</h1>"),
        httpx.Response(429, json={"error": "rate limited"}),
        httpx.Response(429),
        httpx.Response(408),
    ],
    ids=lambda r: f"{r.status_code} {r.content[:20]!r}",
)
async def test_answers_that_say_nothing_about_the_message_are_unknown(response):
    assert isinstance(await answer_to(response), Unknown)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_configuration_fault_and_is_not_followed(status):
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(status, headers={"Location": "https://elsewhere.example/"})

    http = httpx.AsyncClient(transport=httpx.MockTransport(handle), follow_redirects=True)
    provider = TwilioProvider(http, TwilioAccount(account_sid=SID, secret=SecretStr(TOKEN)))
    outcome = await provider.send(an_sms(), SECURITY)
    await provider.close()
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == ("redirected", SENDER)
    assert asked == ["api.twilio.com"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 407])
async def test_a_4xx_that_twilio_did_not_write_is_our_configuration(status):
    outcome = await answer_to(httpx.Response(status, html="<h1>no</h1>"))
    assert isinstance(outcome, Failed)
    assert outcome.scope is SENDER


async def test_the_number_in_twilios_message_is_not_kept():
    outcome = await answer_to(
        error(400, 21211, "The 'To' number +12025550123 is not a valid phone number")
    )
    assert isinstance(outcome, Rejected)
    assert "2025550123" not in outcome.detail
    assert "not a valid phone number" in outcome.detail


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("7", timedelta(seconds=7)),
        ("0", timedelta(0)),
        ("Mon, 01 Mar 2027 09:31:30 GMT", timedelta(seconds=90)),
        ("Mon, 01 Mar 2027 09:00:00 GMT", timedelta(0)),
        ("99999999999999999999", timedelta(days=1)),
        ("Wed, 01 Mar 2034 09:31:30 GMT", timedelta(days=1)),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
async def test_retry_after_in_seconds_and_as_a_date(header, wait):
    outcome = await answer_to(error(429, 20429, **{"Retry-After": header}))
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == wait


async def test_retry_after_never_shortens_what_a_code_asks_for():
    outcome = await answer_to(error(400, 21611, **{"Retry-After": "1"}))
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == timedelta(minutes=10)


# --- silence, by phase: real sockets -----------------------------------------------------------------------------------


async def read_request(peer: Peer) -> bytes:
    """Headers and body."""
    head = await peer.reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    return head + await peer.reader.readexactly(length)


async def respond(peer: Peer, status: str, body: bytes, content_type: str) -> None:
    peer.writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await peer.writer.drain()


@asynccontextmanager
async def against(
    script: Callable[[Peer], Any], *, timeouts: HttpTimeouts = PATIENT, **options: Any
):
    async with serving(script, **options) as server:
        provider = provider_over(base_url=f"http://127.0.0.1:{server.port}", timeouts=timeouts)
        yield server, provider
        await provider.close()


async def test_a_real_request_is_accepted_and_the_connection_is_kept():
    async def script(peer: Peer) -> None:
        while True:
            await read_request(peer)
            await respond(peer, "201 CREATED", json.dumps(CREATED).encode(), "application/json")

    async with against(_until_gone(script)) as (server, provider):
        for _ in range(3):
            assert isinstance(await provider.send(an_sms(), SECURITY), Accepted)
    assert server.connections == 1


def _until_gone(script: Callable[[Peer], Any]) -> Callable[[Peer], Any]:
    async def run(peer: Peer) -> None:
        try:
            await script(peer)
        except asyncio.IncompleteReadError as gone:
            raise Hangup from gone

    return run


async def test_a_refused_connection_is_failed():
    with unused_port() as port:
        provider = provider_over(base_url=f"http://127.0.0.1:{port}")
        outcome = await provider.send(an_sms(), SECURITY)
        await provider.close()
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == ("connection_refused", PROVIDER)


async def test_c13_a_mistyped_host_is_the_senders_fault():
    provider = provider_over(base_url="http://api.twilio.invalid", timeouts=QUICK)
    outcome = await provider.send(an_sms(), SECURITY)
    await provider.close()
    assert isinstance(outcome, Failed)
    assert outcome.code in ("host_not_found", "connect_timeout")  # a resolver may also hang
    assert outcome.scope is (SENDER if outcome.code == "host_not_found" else PROVIDER)


@pytest.mark.parametrize("base_url", ["ftp://example.com", "http://", "https://exa mple.com"])
async def test_a_base_url_that_is_none_is_the_senders_fault(base_url):
    provider = provider_over(base_url=base_url)
    outcome = await provider.send(an_sms(), SECURITY)
    await provider.close()
    assert isinstance(outcome, Failed)
    assert outcome.scope is SENDER


async def test_a_reset_after_the_request_was_written_is_unknown():
    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.reset()

    async with against(script) as (_, provider):
        outcome = await provider.send(an_sms(), SECURITY)
    assert isinstance(outcome, Unknown)


async def test_a_hang_up_after_the_request_was_written_is_unknown():
    async def script(peer: Peer) -> None:
        await read_request(peer)

    async with against(script) as (_, provider):
        outcome = await provider.send(an_sms(), SECURITY)
    assert isinstance(outcome, Unknown)


async def test_half_an_answer_is_unknown():
    async def script(peer: Peer) -> None:
        await read_request(peer)
        await peer.say("HTTP/1.1 201 CREATED", "Content-Length: 500", "", '{"sid": "SM1')

    async with against(script) as (_, provider):
        outcome = await provider.send(an_sms(), SECURITY)
    assert isinstance(outcome, Unknown)


async def test_no_answer_in_time_is_unknown():
    async def script(peer: Peer) -> None:
        await read_request(peer)
        await peer.gone()

    async with against(script, timeouts=QUICK) as (_, provider):
        outcome = await provider.send(an_sms(), SECURITY)
    assert isinstance(outcome, Unknown)
    assert outcome.code == "reply_timeout"


async def test_an_answer_that_drips_does_not_outlast_the_class():
    """Each read comes in time, the whole never does."""

    async def script(peer: Peer) -> None:
        await read_request(peer)
        await peer.say("HTTP/1.1 201 CREATED", "Content-Length: 100000", "")
        while True:
            peer.writer.write(b" ")
            await peer.writer.drain()
            await asyncio.sleep(0.02)

    async with against(script, timeouts=QUICK) as (_, provider):
        outcome = await provider.send(an_sms(), SECURITY)
    assert isinstance(outcome, Unknown)
    assert outcome.code == "reply_timeout"


async def test_each_class_waits_as_long_as_it_may():
    async def script(peer: Peer) -> None:
        await read_request(peer)
        answered.set()
        await peer.gone()

    answered = asyncio.Event()
    limits = HttpTimeouts(reply=dict.fromkeys(MessageClass, 30.0) | {SECURITY: 0.2})
    async with against(script, timeouts=limits) as (_, provider):
        marketing = asyncio.create_task(provider.send(an_sms(), MARKETING))
        await answered.wait()
        assert isinstance(await provider.send(an_sms(), SECURITY), Unknown)
        assert not marketing.done()
        marketing.cancel()


async def test_a_real_html_502_and_429_are_unknown():
    async def script(peer: Peer) -> None:
        for status in ("502 Bad Gateway", "429 Too Many Requests"):
            await read_request(peer)
            await respond(peer, status, b"<html>no</html>", "text/html")
        await peer.gone()

    async with against(script) as (_, provider):
        for _n in range(2):
            assert isinstance(await provider.send(an_sms(), SECURITY), Unknown)


async def test_what_is_not_http_is_unknown():
    async def script(peer: Peer) -> None:
        await read_request(peer)
        await peer.say("220 relay.example ready", "")

    async with against(script) as (_, provider):
        assert isinstance(await provider.send(an_sms(), SECURITY), Unknown)


@pytest.fixture(scope="session")
def tls(tmp_path_factory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


async def test_a_certificate_nobody_we_know_signed_is_failed(tls: Certificates):
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with serving(script, tls=tls.server) as server:
        provider = provider_over(base_url=f"https://127.0.0.1:{server.port}")
        outcome = await provider.send(an_sms(), SECURITY)
        await provider.close()
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.scope) == ("certificate_refused", SENDER)


async def test_a_tls_handshake_that_never_ends_is_failed():
    async def script(peer: Peer) -> None:
        await peer.gone()

    async with serving(script) as server:
        provider = provider_over(base_url=f"https://127.0.0.1:{server.port}", timeouts=QUICK)
        outcome = await provider.send(an_sms(), SECURITY)
        await provider.close()
    assert isinstance(outcome, Failed)


async def test_c49_waiting_for_a_connection_is_never_a_failure():
    """Two connections, 50 callers, and 5 s for each reply: the last of them waits two minutes."""
    clock = Clock()
    asked: list[asyncio.Future[None]] = []

    async def script(peer: Peer) -> None:
        while True:
            await read_request(peer)
            here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asked.append(here)
            if len(asked) == 2:
                await clock.skip(5)
                while asked:
                    asked.pop().set_result(None)
            await here
            await respond(peer, "201 CREATED", json.dumps(CREATED).encode(), "application/json")

    async with serving(_until_gone(script)) as server:
        http = httpx.AsyncClient(limits=httpx.Limits(max_connections=2))
        provider = TwilioProvider(
            http,
            TwilioAccount(
                account_sid=SID,
                secret=SecretStr(TOKEN),
                base_url=f"http://127.0.0.1:{server.port}",
            ),
            # Were the wait for a connection part of it, the last of 50 would run out of time.
            timeouts=HttpTimeouts(reply=dict.fromkeys(MessageClass, 10.0)),
        )
        outcomes = await asyncio.gather(*(provider.send(an_sms(), SECURITY) for _ in range(50)))
        await provider.close()
    assert [o.kind for o in outcomes] == ["accepted"] * 50
    assert server.connections <= 2


# --- being given up ----------------------------------------------------------------------------------------------------


async def test_a_call_cancelled_after_the_request_was_written_still_answers():
    asked, answer = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        asked.set()
        await answer.wait()
        await respond(peer, "201 CREATED", json.dumps(CREATED).encode(), "application/json")
        await peer.gone()

    async with against(script) as (_, provider):
        call = asyncio.create_task(provider.send(an_sms(), SECURITY))
        await asked.wait()
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        answer.set()
        assert isinstance(await call, Accepted)


async def test_a_call_cancelled_while_it_waits_for_a_connection_is_not_called():
    busy = asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        busy.set()
        await peer.gone()

    async with serving(script) as server:
        http = httpx.AsyncClient(limits=httpx.Limits(max_connections=1))
        account = TwilioAccount(
            account_sid=SID, secret=SecretStr(TOKEN), base_url=f"http://127.0.0.1:{server.port}"
        )
        provider = TwilioProvider(http, account, timeouts=QUICK)
        first = asyncio.create_task(provider.send(an_sms(), SECURITY))
        await busy.wait()
        async with asyncio.timeout(0.05):
            outcome = await provider.send(an_sms(), SECURITY)
        assert outcome == Failed(provider="twilio", code="not_called", counts=False)
        assert isinstance(await first, Unknown)
        await provider.close()
    assert server.connections == 1


# --- delivery codes ----------------------------------------------------------------------------------------------------


DELIVERED = [
    ((30001, 30017, 30020, 30021, 30022, 30023), Failed, PROVIDER, False),
    ((30025, 30026, 30027, 30410), Failed, PROVIDER, False),
    ((30003, 30008, 30450, 30610), Failed, RECIPIENT, False),
    ((30002, 30018, 30024, 30032, 30033, 30034, 30035), Failed, SENDER, False),
    ((11200, 12300, 57012), Failed, SENDER, False),
    ((30005, 30640), Rejected, RECIPIENT, True),
    ((30004, 30006), Rejected, RECIPIENT, False),
    ((30007, 30010, 30011, 30012, 30019), Rejected, MESSAGE, False),
    ((30998, 1), Rejected, MESSAGE, False),
]


@pytest.mark.parametrize(("codes", "kind", "scope", "suppress"), DELIVERED)
def test_delivery_codes(codes, kind, scope, suppress):
    for code in codes:
        outcome = classify_delivery(code, NOW)
        assert isinstance(outcome, kind), code
        assert outcome.scope is scope
        assert getattr(outcome, "suppress", False) == suppress
        assert outcome.code == str(code)


def test_every_delivery_code_is_one_of_the_above():
    assert set(DELIVERY) <= {code for row in DELIVERED for code in row[0]}


def test_a_carrier_block_is_a_soft_opt_out():
    outcome = classify_delivery(30004, NOW)
    assert isinstance(outcome, Rejected)
    assert (outcome.opted_out, outcome.suppress) == (True, False)


def test_a_fraud_block_waits_half_an_hour_and_does_not_fail_over():
    outcome = classify_delivery(30450, NOW)
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == timedelta(minutes=30)
    assert outcome.scope is not PROVIDER


@pytest.mark.parametrize(
    ("now", "wait"),
    [
        (datetime(2027, 3, 1, 9, 30, tzinfo=UTC), timedelta(hours=22, minutes=30)),  # 1:30 PST
        (datetime(2027, 3, 1, 7, 30, tzinfo=UTC), timedelta(minutes=30)),  # 23:30 PST
        # the day is an hour shorter: 2:00 PST becomes 3:00 PDT
        (datetime(2027, 3, 14, 8, 0, tzinfo=UTC), timedelta(hours=23)),
    ],
)
def test_a_daily_cap_is_lifted_at_midnight_pacific_time(now, wait):
    assert until_next_day(now) == wait
    outcome = classify_delivery(30023, now)
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == wait
