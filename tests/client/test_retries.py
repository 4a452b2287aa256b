"""What the client repeats, and what it never does (ACC-8)."""

import subprocess
import sys
from collections.abc import Callable
from uuid import UUID, uuid4

import httpx
import pytest

from schemas.api import CheckAnswer, NotificationRequest
from sendloom.client import (
    AsyncSendloomClient,
    Retries,
    SendloomClient,
    SendloomError,
    SendloomUnreachable,
)

QUICK = Retries(attempts=4, first_seconds=0, longest_seconds=0, total_seconds=60)
REQUEST = NotificationRequest(recipient_id="r-1", category="orders", template_id="placed")

ACCEPTED = {
    "id": str(uuid4()),
    "kind": "notification",
    "status_url": "/v1/notifications/x",
    "replayed": False,
    "accepted_at": "2026-01-15T09:00:00Z",
    "expires_at": "2026-01-15T10:00:00Z",
}


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"type": "t", "title": "T", "status": status, "code": code, "detail": "d", "fix": "f"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named)


Answer = httpx.Response | Exception


class Script:
    """A transport that answers as told, in order, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("Idempotency-Key") for request in self.asked]


def client(script: Callable[[httpx.Request], httpx.Response]) -> SendloomClient:
    return SendloomClient("http://t", "sl_x", retries=QUICK, transport=httpx.MockTransport(script))


REFUSED_CONNECTION = httpx.ConnectError("refused")
LOST_ANSWER = httpx.ReadTimeout("no answer")


@pytest.mark.parametrize(
    "first",
    [
        REFUSED_CONNECTION,
        LOST_ANSWER,
        httpx.RemoteProtocolError("closed"),
        problem(503, "store_unavailable", Retry_After="0"),
        problem(429, "rate_limited", Retry_After="0"),
        httpx.Response(502, text="<html>bad gateway</html>"),
    ],
    ids=lambda answer: getattr(answer, "status_code", type(answer).__name__),
)
def test_a_create_is_repeated_with_the_same_key_after_whatever_may_pass(first: Answer):
    script = Script(first, httpx.Response(202, json=ACCEPTED))
    with client(script) as sendloom:
        answer = sendloom.send_notification(REQUEST, key="order-17")
    assert answer.id == UUID(ACCEPTED["id"])  # type: ignore[arg-type]
    assert script.keys == ["order-17", "order-17"]
    assert script.asked[0].content == script.asked[1].content


def test_a_check_that_may_have_been_counted_is_not_repeated():
    for lost in (LOST_ANSWER, httpx.RemoteProtocolError("closed")):
        script = Script(lost)
        with client(script) as sendloom, pytest.raises(SendloomUnreachable):
            sendloom.check_passcode(uuid4(), "123456")
        assert len(script.asked) == 1
    script = Script(httpx.Response(502))
    with client(script) as sendloom, pytest.raises(SendloomError):
        sendloom.check_passcode(uuid4(), "123456")
    assert len(script.asked) == 1


def test_a_check_that_never_left_or_was_refused_for_now_is_repeated():
    right = {"result": "approved", "approved": True, "attempts_left": 4}
    script = Script(
        REFUSED_CONNECTION,
        problem(503, "temporal_unavailable", Retry_After="0"),
        httpx.Response(200, json=right),
    )
    with client(script) as sendloom:
        assert sendloom.check_passcode(uuid4(), "123456") == CheckAnswer.model_validate(right)


def test_a_refusal_is_raised_at_once_with_its_code_field_and_fix():
    body = problem(422, "unknown_recipient")
    script = Script(body)
    with client(script) as sendloom, pytest.raises(SendloomError) as refused:
        sendloom.send_notification(REQUEST, key="k")
    e = refused.value
    assert (e.code, e.status, e.detail, e.fix) == ("unknown_recipient", 422, "d", "f")
    assert len(script.asked) == 1


def test_it_gives_up_after_its_attempts_and_says_what_the_last_answer_was():
    script = Script(*[problem(503, "store_unavailable", Retry_After="0")] * 4)
    with client(script) as sendloom, pytest.raises(SendloomError) as refused:
        sendloom.send_notification(REQUEST, key="k")
    assert refused.value.code == "store_unavailable"
    assert len(script.asked) == 4
    script = Script(*[REFUSED_CONNECTION] * 4)
    with client(script) as sendloom, pytest.raises(SendloomUnreachable, match="same key"):
        sendloom.send_notification(REQUEST, key="k")
    assert len(script.asked) == 4


def test_it_does_not_wait_longer_than_it_may():
    script = Script(problem(429, "verify_rate_limited", Retry_After="3600"))
    with client(script) as sendloom, pytest.raises(SendloomError) as refused:
        sendloom.send_notification(REQUEST, key="k")
    assert refused.value.retry_after == 3600
    assert len(script.asked) == 1


def test_waits_grow_and_never_undercut_what_the_server_asked():
    retries = Retries(attempts=5, first_seconds=1, longest_seconds=4, total_seconds=100)
    for attempt, most in ((1, 1), (2, 2), (3, 4), (4, 4)):
        for _ in range(50):
            wait = retries.wait(attempt, 0, None)
            assert wait is not None
            assert 0 <= wait <= most
            asked = retries.wait(attempt, 0, 7)
            assert asked is not None
            assert 7 <= asked <= 7 + most
    assert retries.wait(5, 0, None) is None
    assert retries.wait(1, 99.5, 1) is None


async def test_the_async_client_does_the_same():
    script = Script(
        REFUSED_CONNECTION,
        problem(503, "store_unavailable", Retry_After="0"),
        httpx.Response(202, json=ACCEPTED),
        problem(404, "not_found"),
    )
    async with AsyncSendloomClient(
        "http://t", "sl_x", retries=QUICK, transport=httpx.MockTransport(script)
    ) as sendloom:
        answer = await sendloom.send_notification(REQUEST, key="k")
        assert answer.replayed is False
        with pytest.raises(SendloomError) as refused:
            await sendloom.notification(uuid4())
    assert refused.value.code == "not_found"
    assert script.keys == ["k", "k", "k", None]


def test_an_answer_with_fields_of_a_newer_server_is_read():
    script = Script(httpx.Response(202, json={**ACCEPTED, "something_new": 1}))
    with client(script) as sendloom:
        assert str(sendloom.send_notification(REQUEST, key="k").id) == ACCEPTED["id"]


def test_ids_and_names_are_quoted_in_paths():
    script = Script(problem(404, "not_found"))
    with client(script) as sendloom, pytest.raises(SendloomError):
        sendloom.recipient("a/../b?c")
    assert script.asked[0].url.raw_path == b"/v1/recipients/a%2F..%2Fb%3Fc"


def test_it_imports_nothing_of_the_server():
    code = (
        "import sys, sendloom.client\n"
        "ours = {name.partition('.')[0] for name in sys.modules}\n"
        "foreign = ours & {'api', 'workflows', 'activities', 'workers', 'fastapi', 'asyncpg', 'temporalio', 'redis'}\n"
        "inside = {n for n in sys.modules if n.startswith('sendloom.') and not n.startswith('sendloom.client')}\n"
        "assert not foreign and not inside, (foreign, inside)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
