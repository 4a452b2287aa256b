"""The messages API over real sockets: its answers, every magic number, every switch, signed receipts."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sendloom.providers.simulators import Simulators, TwilioOptions
from sendloom.providers.simulators.magic import SMS, SMS_BY_PHONE, SmsAct
from sendloom.providers.simulators.server import HttpServer, listening
from sendloom.providers.simulators.twilio import segments
from sendloom.providers.twilio_signature import SIGNATURE_HEADER, verify

OPTIONS = TwilioOptions(keys={"SK" + "1" * 32: "key-secret"})
SID = OPTIONS.account_sid
PATH = f"/2010-04-01/Accounts/{SID}/Messages"
SENDER = "+12025550100"
TO = "+12025550123"


class Callbacks:
    """Our side of the status callbacks: keeps what came, answers as told."""

    def __init__(self, answers: list[int] | None = None) -> None:
        self.seen: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.verified: list[bool] = []
        self.url = ""
        self._answers = answers or []
        self._arrived = asyncio.Condition()

    async def receive(self, request: Request) -> Response:
        form = parse_qsl((await request.body()).decode(), keep_blank_values=True)
        url = f"{self.url}?{request.url.query}" if request.url.query else self.url
        self.verified.append(
            verify(OPTIONS.auth_token, request.headers.get(SIGNATURE_HEADER), url, form=form)
        )
        self.tokens.append(request.headers["i-twilio-idempotency-token"])
        async with self._arrived:
            self.seen.append(dict(form))
            self._arrived.notify_all()
        return Response(status_code=self._answers.pop(0) if self._answers else 204)

    async def arrived(self, n: int) -> list[dict[str, str]]:
        async with asyncio.timeout(30), self._arrived:
            await self._arrived.wait_for(lambda: len(self.seen) >= n)
        return self.seen

    @property
    def statuses(self) -> list[str]:
        return [form["MessageStatus"] for form in self.seen]


@pytest.fixture
async def sims() -> AsyncIterator[Simulators]:
    async with Simulators(twilio=OPTIONS) as running:
        running.behaviour.sms.receipt_delay_s = 0.01
        yield running


@pytest.fixture
async def http(sims) -> AsyncIterator[httpx.AsyncClient]:
    auth = (SID, OPTIONS.auth_token)
    async with httpx.AsyncClient(base_url=sims.http_url, auth=auth, timeout=15) as client:
        yield client


@pytest.fixture
async def callbacks() -> AsyncIterator[Callbacks]:
    receiver = Callbacks()
    app = Starlette(routes=[Route("/receipts", receiver.receive, methods=["POST"])])
    with listening("127.0.0.1", 0, "callback") as sock:
        receiver.url = f"http://127.0.0.1:{sock.getsockname()[1]}/receipts"
        server = HttpServer(app)
        await server.start(sock)
        yield receiver
        await server.stop()


def a_message(to: str = TO, **changes: str) -> dict[str, str]:
    form = {"To": to, "From": SENDER, "Body": "Your code is 123456"} | changes
    return {name: value for name, value in form.items() if value}


# The resource


async def test_a_message_is_created_with_exactly_the_documented_body(sims, http):
    answer = await http.post(f"{PATH}.json", data=a_message())
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    sid = body.pop("sid")
    assert re.fullmatch(r"SM[0-9a-f]{32}", sid)
    created = parsedate_to_datetime(body.pop("date_created"))
    assert parsedate_to_datetime(body.pop("date_updated")) == created
    assert created.utcoffset() is not None
    assert body == {
        "account_sid": SID,
        "api_version": "2010-04-01",
        "body": "Your code is 123456",
        "date_sent": None,
        "direction": "outbound-api",
        "error_code": None,
        "error_message": None,
        "from": SENDER,
        "messaging_service_sid": None,
        "num_media": "0",
        "num_segments": "1",
        "price": None,
        "price_unit": "USD",
        "status": "queued",
        "subresource_uris": {"media": f"{PATH}/{sid}/Media.json"},
        "to": TO,
        "uri": f"{PATH}/{sid}.json",
    }
    (arrival,) = sims.inbox.messages()
    assert (arrival.to, arrival.sender, arrival.message_id) == (TO, SENDER, sid)
    assert arrival.content == b"Your code is 123456"
    assert (arrival.channel, arrival.reference) == ("sms", "")


async def test_a_messaging_service_accepts_before_it_has_chosen_a_sender(sims, http):
    sims.behaviour.sms.receipts = False
    service = "MG" + "a" * 32
    answer = await http.post(f"{PATH}.json", data=a_message(From="", MessagingServiceSid=service))
    body = answer.json()
    assert (body["status"], body["from"], body["num_segments"]) == ("accepted", None, "0")
    assert body["messaging_service_sid"] == service


async def test_a_message_can_be_read_redacted_and_deleted(http, sims):
    sid = (await http.post(f"{PATH}.json", data=a_message())).json()["sid"]
    assert (await http.get(f"{PATH}/{sid}.json")).json()["body"] == "Your code is 123456"
    assert (await http.post(f"{PATH}/{sid}.json", data={"Body": ""})).json()["body"] == ""
    assert (await http.get(f"{PATH}/{sid}.json")).json()["body"] == ""
    assert (await http.delete(f"{PATH}/{sid}.json")).status_code == 204
    gone = await http.get(f"{PATH}/{sid}.json")
    assert gone.status_code == 404
    assert gone.json() == {
        "code": 20404,
        "message": f"The requested resource {PATH}/{sid}.json was not found",
        "more_info": "https://www.twilio.com/docs/errors/20404",
        "status": 404,
    }


async def test_messages_are_listed_by_recipient_and_day_newest_first_in_pages(http, sims):
    sids = [
        (await http.post(f"{PATH}.json", data=a_message(Body=f"n{i}"))).json()["sid"]
        for i in range(5)
    ]
    await http.post(f"{PATH}.json", data=a_message(to="+12025550124"))
    day = (await http.get(f"{PATH}/{sids[0]}.json")).json()["date_created"]
    today = parsedate_to_datetime(day).date().isoformat()

    first = (
        await http.get(f"{PATH}.json", params={"To": TO, "DateSent": today, "PageSize": 2})
    ).json()
    assert [m["sid"] for m in first["messages"]] == [sids[4], sids[3]]
    assert (first["page"], first["page_size"], first["previous_page_uri"]) == (0, 2, None)
    second = (await http.get(first["next_page_uri"])).json()
    assert [m["sid"] for m in second["messages"]] == [sids[2], sids[1]]
    third = (await http.get(second["next_page_uri"])).json()
    assert [m["sid"] for m in third["messages"]] == [sids[0]]
    assert third["next_page_uri"] is None

    async def listed(**params: str) -> int:
        return len((await http.get(f"{PATH}.json", params=params)).json()["messages"])

    assert await listed() == 6
    assert await listed(From=SENDER) == 6
    assert await listed(From="+12025550101") == 0
    assert await listed(To=TO, DateSent="2001-01-01") == 0
    assert await listed(**{"DateSent>": "2001-01-01"}) == 6
    assert await listed(**{"DateSent<": "2001-01-01"}) == 0
    assert (await http.get(f"{PATH}.json", params={"DateSent": "soon"})).status_code == 400


@pytest.mark.parametrize(
    ("auth", "status", "code"),
    [
        (None, 401, 20003),
        ((SID, "wrong"), 401, 20003),
        (("AC" + "9" * 32, OPTIONS.auth_token), 401, 20003),
        (("SK" + "1" * 32, "key-secret"), 201, None),
        ((SID, OPTIONS.auth_token), 201, None),
    ],
    ids=["none", "wrong token", "wrong account", "api key", "token"],
)
async def test_only_the_accounts_own_credentials_are_taken(sims, auth, status, code):
    async with httpx.AsyncClient(base_url=sims.http_url) as http:
        answer = await http.post(f"{PATH}.json", data=a_message(), auth=auth)
        assert answer.status_code == status
        if code:
            assert answer.json()["code"] == code
            assert answer.headers["www-authenticate"] == 'Basic realm="Twilio API"'
            assert sims.inbox.count() == 0


async def test_another_accounts_messages_and_unknown_paths_are_not_found(http):
    other = PATH.replace(SID, "AC" + "9" * 32)
    for path in (
        f"{other}.json",
        f"{PATH}/SM{'0' * 32}.json",
        f"/2010-04-01/Accounts/{SID}/Calls.json",
    ):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, 20404)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"To": ""}, 21604),
        ({"From": ""}, 21603),
        ({"Body": ""}, 21602),
        ({"Body": "x" * 1601}, 21617),
        ({"To": "2025550123"}, 21211),
        ({"To": "+1202555012٣"}, 21211),
        ({"From": "acme!"}, 21212),
        ({"MessagingServiceSid": "MG1"}, 21705),
        ({"StatusCallback": "not a url"}, 21609),
        ({"StatusCallback": "http://my_host.example.com/x"}, 21609),
        ({"StatusCallback": "http://[::1/x"}, 21609),
        ({"StatusCallback": "http://xn--a.example.com/x"}, 21609),
        ({"StatusCallback": "http://a.example.com:99999/x"}, 21609),
        ({"StatusCallback": "http:///x"}, 21609),
        ({"ValidityPeriod": "0"}, 20001),
        ({"ValidityPeriod": "36001"}, 20001),
        ({"ScheduleType": "fixed", "SendAt": "2026-12-01T00:00:00Z"}, 20001),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_with_its_code(sims, http, changes, code):
    answer = await http.post(f"{PATH}.json", data=a_message(**changes))
    assert answer.status_code == 400
    assert answer.json()["code"] == code
    assert answer.json()["more_info"] == f"https://www.twilio.com/docs/errors/{code}"
    assert sims.inbox.count() == 0


async def test_a_body_of_1600_characters_is_taken(http):
    answer = await http.post(f"{PATH}.json", data=a_message(Body="x" * 1600))
    assert (answer.status_code, answer.json()["num_segments"]) == (201, "11")


async def test_only_own_numbers_send_when_they_are_listed():
    options = TwilioOptions(numbers=frozenset({SENDER}))
    async with Simulators(twilio=options) as sims:
        async with httpx.AsyncClient(
            base_url=sims.http_url, auth=(SID, options.auth_token)
        ) as http:
            assert (await http.post(f"{PATH}.json", data=a_message())).status_code == 201
            answer = await http.post(f"{PATH}.json", data=a_message(From="+12025550102"))
            assert answer.json()["code"] == 21606


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("Ŵ" * 69 + "{", 1),
        ("a" * 69 + "ŷ", 1),
        ("ŷ" * 70, 1),
        ("😀" * 35, 1),
        ("😀" * 36, 2),
        ("a" * 160, 1),
        ("a" * 161, 2),
        ("€" * 80, 1),
        ("a" * 152 + "€" + "a" * 152, 3),
        ("", 1),
    ],
)
def test_c22_segments_are_counted_as_a_handset_receives_them(body, parts):
    assert segments(body) == parts


# Magic numbers

ERRORS = {
    "0150": (400, 21211),
    "0151": (400, 21614),
    "0152": (400, 21610),
    "0153": (400, 21612),
    "0154": (400, 21408),
    "0155": (400, 21606),
    "0156": (400, 21999),
    "0157": (400, 21608),
    "0158": (400, 21611),
    "0159": (401, 20003),
    "0160": (429, 20429),
    "0161": (429, 20429),
    "0163": (503, 20503),
    "0164": (500, 20500),
}
ONCE = {"0160", "0164"}
PAGES = {"0162": (429, 0), "0165": (502, 1)}
UNREADABLE = {"0166": 1, "0168": 0}
NO_ANSWER = {"0170": 1, "0171": 0, "0172": 1, "0173": 0}
WAITS = {"0174": 1.0, "0175": 3.0, "0176": 8.0}
RECEIPTS = {
    "0180": (["sent", "undelivered"], "30003"),
    "0181": (["sent", "undelivered"], "30005"),
    "0182": (["sent", "undelivered"], "30006"),
    "0183": (["sent", "undelivered"], "30007"),
    "0184": (["sent", "undelivered"], "30004"),
    "0185": (["sent", "undelivered"], "30008"),
    "0186": (["failed"], "30001"),
    "0187": (["failed"], "30450"),
    "0188": (["sent", "undelivered"], "30034"),
    "0190": (["sent"], None),
    "0191": ([], None),
    "0192": (["delivered", "sent"], None),
    "0193": (["sent", "sent", "delivered", "delivered"], None),
    "0194": (["sent", "delivered"], None),
    "0195": (["sent", "delivered"], None),
}


def phone(number: str) -> str:
    return "+1202555" + number


def test_every_magic_number_is_tested():
    tested = {*ERRORS, *PAGES, *UNREADABLE, *NO_ANSWER, *WAITS, *RECEIPTS, "0167"}
    assert tested == {row.number for row in SMS}


@pytest.mark.parametrize("number", ERRORS)
async def test_a_magic_number_gets_its_error_and_is_not_taken(sims, http, number):
    for attempt in (1, 2):
        answer = await http.post(f"{PATH}.json", data=a_message(phone(number)))
        if attempt == 2 and number in ONCE:
            assert answer.status_code == 201
            assert sims.inbox.count("to", phone(number)) == 1
            return
        assert (answer.status_code, answer.json()["code"]) == ERRORS[number]
        assert answer.json()["status"] == answer.status_code
        assert sims.inbox.count() == 0


async def test_once_means_once_for_each_message(sims, http):
    async def status(ref: str) -> int:
        form = a_message(phone("0160"), StatusCallback=f"http://127.0.0.1:9/r?ref={ref}")
        answer = await http.post(f"{PATH}.json", data=form)
        return int(answer.status_code)

    sims.behaviour.sms.receipts = False
    assert [await status(ref) for ref in ("d1", "d2", "d1", "d2", "d1")] == [
        429,
        429,
        201,
        201,
        201,
    ]


@pytest.mark.parametrize("number", PAGES)
async def test_a_page_from_in_between_is_not_the_apis_own_error(sims, http, number):
    status, taken = PAGES[number]
    answer = await http.post(f"{PATH}.json", data=a_message(phone(number)))
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert sims.inbox.count() == taken


@pytest.mark.parametrize("number", UNREADABLE)
async def test_an_unreadable_201_has_no_sid(sims, http, number):
    answer = await http.post(f"{PATH}.json", data=a_message(phone(number)))
    assert answer.status_code == 201
    with pytest.raises(ValueError, match=r"Unterminated"):
        answer.json()
    assert sims.inbox.count() == UNREADABLE[number]


async def test_a_redirect_leads_elsewhere_and_takes_nothing(sims, http):
    answer = await http.post(f"{PATH}.json", data=a_message(phone("0167")))
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        "https://elsewhere.example.com/",
    )
    assert sims.inbox.count() == 0


@pytest.mark.parametrize("number", NO_ANSWER)
async def test_a_number_that_never_answers_has_taken_the_message_or_not(sims, http, number):
    act = SMS_BY_PHONE[phone(number)].act
    if act is SmsAct.RESET:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await http.post(f"{PATH}.json", data=a_message(phone(number)))
    else:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(
                f"{PATH}.json", data=a_message(phone(number)), timeout=httpx.Timeout(5, read=0.3)
            )
    assert await sims.inbox.wait(NO_ANSWER[number], timeout=30) == NO_ANSWER[number]
    # What was taken can be found, which is how an unknown outcome is settled.
    listed = (await http.get(f"{PATH}.json", params={"To": phone(number)})).json()["messages"]
    assert len(listed) == NO_ANSWER[number]


@pytest.mark.parametrize("number", ["0174", "0175"])
async def test_a_slow_number_takes_at_once_and_answers_after_its_seconds(sims, http, number):
    began = time.monotonic()
    sending = asyncio.create_task(http.post(f"{PATH}.json", data=a_message(phone(number))))
    assert await sims.inbox.wait(1) == 1
    assert not sending.done()
    assert (await sending).status_code == 201
    assert time.monotonic() - began >= WAITS[number]


async def test_c90_a_late_number_takes_the_message_though_the_client_has_left(sims, http):
    began = time.monotonic()
    with pytest.raises(httpx.ReadTimeout):
        await http.post(
            f"{PATH}.json", data=a_message(phone("0176")), timeout=httpx.Timeout(5, read=0.3)
        )
    assert sims.inbox.count() == 0
    assert await sims.inbox.wait(1, "to", phone("0176"), timeout=15) == 1
    assert time.monotonic() - began >= 8


# Receipts


async def test_receipts_are_signed_and_tell_the_later_life_of_a_message(sims, http, callbacks):
    callback = f"{callbacks.url}?ref=d-1&x=it's"
    answer = await http.post(f"{PATH}.json", data=a_message(StatusCallback=callback))
    sid = answer.json()["sid"]
    sent, delivered = await callbacks.arrived(2)
    common = {
        "AccountSid": SID,
        "ApiVersion": "2010-04-01",
        "From": SENDER,
        "MessageSid": sid,
        "SmsSid": sid,
        "To": TO,
    }
    done = delivered.pop("RawDlrDoneDate")
    assert re.fullmatch(r"\d{10}", done)
    assert sent == common | {"MessageStatus": "sent", "SmsStatus": "sent"}
    assert delivered == common | {"MessageStatus": "delivered", "SmsStatus": "delivered"}
    assert callbacks.verified == [True, True]
    resource = (await http.get(f"{PATH}/{sid}.json")).json()
    assert resource["status"] == "delivered"
    assert parsedate_to_datetime(resource["date_sent"])
    assert sims.inbox.messages()[0].reference == "d-1"


@pytest.mark.parametrize("number", [n for n in RECEIPTS if n != "0191"])
async def test_a_magic_number_reports_its_statuses(sims, http, callbacks, number):
    statuses, code = RECEIPTS[number]
    answer = await http.post(
        f"{PATH}.json", data=a_message(phone(number), StatusCallback=callbacks.url)
    )
    assert answer.status_code == 201
    assert answer.json()["status"] == "queued"
    if number == "0194":
        assert callbacks.statuses == statuses, "before the answer"
    await callbacks.arrived(len(statuses))
    assert callbacks.statuses == statuses
    assert callbacks.seen[-1].get("ErrorCode") == code
    assert all(v is (number != "0195") for v in callbacks.verified)
    resource = (await http.get(f"{PATH}/{answer.json()['sid']}.json")).json()
    assert resource["error_code"] == (int(code) if code else None)
    assert resource["status"] == ("delivered" if "delivered" in statuses else statuses[-1])


async def test_a_number_without_receipts_stays_queued(sims, http, callbacks):
    silent = await http.post(
        f"{PATH}.json", data=a_message(phone("0191"), StatusCallback=callbacks.url)
    )
    await http.post(f"{PATH}.json", data=a_message(StatusCallback=callbacks.url))
    await callbacks.arrived(2)
    assert {form["To"] for form in callbacks.seen} == {TO}
    assert (await http.get(f"{PATH}/{silent.json()['sid']}.json")).json()["status"] == "queued"


async def test_a_messaging_service_reports_itself_and_the_sender_it_chose(http, callbacks):
    service = "MG" + "a" * 32
    form = a_message(From="", MessagingServiceSid=service, StatusCallback=callbacks.url)
    await http.post(f"{PATH}.json", data=form)
    (sent, *_) = await callbacks.arrived(1)
    assert sent["MessagingServiceSid"] == service
    assert sent["From"].startswith("+1202555")


async def test_a_receipt_answered_with_an_error_is_lost_unless_the_url_asks_for_retries(
    sims, http, callbacks
):
    callbacks._answers = [500, 500]
    await http.post(f"{PATH}.json", data=a_message(phone("0190"), StatusCallback=callbacks.url))
    await sims.twilio.settled()
    assert sims.twilio.stats.receipts_lost == 1
    assert len(callbacks.seen) == 1
    callbacks._answers = [500, 503, 204]
    url = f"{callbacks.url}#rc=3&rp=5xx"
    await http.post(f"{PATH}.json", data=a_message(phone("0190"), StatusCallback=url))
    await callbacks.arrived(4)
    assert len(set(callbacks.tokens[1:])) == 1, "equal over its retries"
    assert callbacks.tokens[0] != callbacks.tokens[1]
    assert all(callbacks.verified), "the fragment is neither sent nor signed"


async def test_a_receipt_for_nobody_is_lost_and_harms_nothing(sims, http):
    with listening("127.0.0.1", 0, "closed") as sock:
        nobody = f"http://127.0.0.1:{sock.getsockname()[1]}/receipts"
    await http.post(f"{PATH}.json", data=a_message(phone("0190"), StatusCallback=nobody))
    await sims.twilio.settled()
    assert (sims.twilio.stats.receipts_lost, sims.twilio.stats.receipts_delivered) == (1, 0)
    assert (await http.post(f"{PATH}.json", data=a_message())).status_code == 201


# Switches


async def test_one_sender_can_hang_while_the_others_work(sims, http):
    sims.behaviour.change({"sms": {"hang_senders": ["+12025550199"]}})
    hung = [
        asyncio.create_task(http.post(f"{PATH}.json", data=a_message(From="+12025550199")))
        for _ in range(20)
    ]
    assert await sims.inbox.wait(20) == 20
    assert (await http.post(f"{PATH}.json", data=a_message())).status_code == 201
    assert not any(task.done() for task in hung)
    assert sims.twilio.stats.hung == 20
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)


async def test_everything_can_hang_be_slow_or_unavailable(sims, http):
    sims.behaviour.sms.slow_s = 0.2
    began = time.monotonic()
    assert (await http.post(f"{PATH}.json", data=a_message())).status_code == 201
    assert time.monotonic() - began >= 0.2
    sims.behaviour.reset()
    sims.behaviour.sms.unavailable = True
    answer = await http.post(f"{PATH}.json", data=a_message())
    assert (answer.status_code, answer.json()["code"]) == (503, 20503)
    assert sims.inbox.count() == 1
    sims.behaviour.reset()
    sims.behaviour.sms.hang = True
    with pytest.raises(httpx.ReadTimeout):
        await http.post(f"{PATH}.json", data=a_message(), timeout=httpx.Timeout(5, read=0.2))
    assert await sims.inbox.wait(2, timeout=30) == 2


async def test_only_so_many_requests_are_taken_in_any_second(sims, http):
    sims.behaviour.sms.throttle_per_s = 5
    answers = await asyncio.gather(
        *[http.post(f"{PATH}.json", data=a_message(Body=str(i))) for i in range(12)]
    )
    taken = [a for a in answers if a.status_code == 201]
    refused = [(a.status_code, a.json()["code"]) for a in answers if a.status_code != 201]
    assert set(refused) == {(429, 20429)}
    assert len(taken) == sims.inbox.count() == 12 - len(refused)
    times = sorted(a.monotonic_ns for a in sims.inbox.messages())
    assert all(later - first > 0.95e9 for first, later in zip(times, times[5:], strict=False))


@pytest.mark.parametrize(("stage", "taken"), [("request", 3), ("reply", 4)])
async def test_the_line_drops_every_so_many_requests_at_the_chosen_moment(sims, http, stage, taken):
    sims.behaviour.change({"sms": {"drop_every": 3, "drop_at": stage}})
    for _ in range(3):
        assert (await http.post(f"{PATH}.json", data=a_message())).status_code == 201
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await http.post(f"{PATH}.json", data=a_message())
    assert sims.inbox.count() == taken
    assert (await http.post(f"{PATH}.json", data=a_message())).status_code == 201


async def test_stopping_lets_go_of_clients_that_hang():
    async with Simulators(twilio=OPTIONS) as sims:
        sims.behaviour.sms.hang = True
        async with httpx.AsyncClient(
            base_url=sims.http_url, auth=(SID, OPTIONS.auth_token)
        ) as http:
            hung = asyncio.create_task(http.post(f"{PATH}.json", data=a_message(), timeout=30))
            await sims.inbox.wait(1)
            began = time.monotonic()
            await sims.__aexit__(None, None, None)
            assert time.monotonic() - began < 20
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await hung
