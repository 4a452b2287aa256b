"""The inbox: what is kept, what is counted, what people and tests see of it, and the process around it."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiosmtplib
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.errors import ConfigurationError
from sendloom.providers.simulators import Simulators, SimulatorSettings
from sendloom.providers.simulators.behaviour import Behaviour
from sendloom.providers.simulators.inbox import Arrival, Inbox
from sendloom.providers.simulators.pages import Opened, list_page, message_page

ROOT = Path(__file__).parents[2]


def an_arrival(inbox: Inbox, n: int = 1, **changes: object) -> Arrival:
    facts: dict[str, object] = {
        "to": f"r{n}@example.com",
        "sender": "a@example.com",
        "message_id": f"<m{n}@example.com>",
        "reference": f"d-{n}",
        "content": b"Subject: s\r\n\r\nbody\r\n",
    }
    channel = changes.pop("channel", Channel.EMAIL)
    return inbox.record(channel, **(facts | changes))  # type: ignore[arg-type]


@pytest.fixture
async def sims() -> AsyncIterator[Simulators]:
    async with Simulators() as running:
        yield running


@pytest.fixture
async def http(sims) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=sims.http_url) as client:
        yield client


# Keeping and counting


def test_messages_are_forgotten_beyond_the_bound_but_never_uncounted():
    inbox = Inbox(capacity=10)
    for n in range(100):
        an_arrival(inbox, n)
    assert inbox.kept == 10
    assert [a.to for a in inbox.messages(limit=3)] == [
        "r99@example.com",
        "r98@example.com",
        "r97@example.com",
    ]
    assert inbox.count() == 100
    assert inbox.count("to", "r0@example.com") == 1
    assert inbox.get("1") is None


def test_bytes_are_bounded_too():
    inbox = Inbox(capacity_bytes=1000)
    for n in range(10):
        an_arrival(inbox, n, content=b"x" * 300)
    assert inbox.kept == 3
    an_arrival(inbox, 10, content=b"x" * 5000)
    assert inbox.kept == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5))))
def test_counts_agree_with_a_plain_recount(arrivals):
    inbox = Inbox(capacity=3)
    for mail, key, person in arrivals:
        if mail:
            an_arrival(
                inbox, to=f"{person}@example.com", message_id=f"<{key}>", reference=f"m-{key}"
            )
        else:
            an_arrival(
                inbox,
                channel=Channel.SMS,
                to=f"+1202555010{person}",
                message_id=f"SM{len(inbox._seen['message_id'])}",
                reference=f"s-{key}" if key else "",
            )
    mails = [key for mail, key, _ in arrivals if mail]
    texts = [key for mail, key, _ in arrivals if not mail and key]
    counts = inbox.counts()
    assert counts.total == len(arrivals)
    assert counts.duplicates == len(mails) - len(set(mails)) + len(texts) - len(set(texts))
    assert dict(counts.duplicated) == {
        **{f"<{k}>": mails.count(k) for k in mails if mails.count(k) > 1},
        **{f"s-{k}": texts.count(k) for k in texts if texts.count(k) > 1},
    }
    assert counts.recipients == len({(mail, person) for mail, _, person in arrivals})
    assert sum(counts.channels.values()) == len(arrivals)


def test_one_message_to_two_recipients_is_no_duplicate():
    inbox = Inbox()
    an_arrival(inbox, to="b@example.com")
    an_arrival(inbox, to="c@example.com", further_recipient=True)
    assert inbox.counts().duplicates == 0
    assert inbox.count("message_id", "<m1@example.com>") == 1
    assert inbox.count() == 2


def test_equal_content_has_an_equal_digest_and_other_content_another():
    inbox = Inbox()
    first, same, other = (an_arrival(inbox, content=c) for c in (b"1", b"1", b"2"))
    assert first.digest == same.digest != other.digest


async def test_waiting_ends_with_the_arrival_that_completes_the_count():
    inbox = Inbox()
    waits = [
        asyncio.create_task(inbox.wait(2, "to", "R1@example.com")),
        asyncio.create_task(inbox.wait(3)),
        asyncio.create_task(inbox.wait(1, "reference", "d-1")),
        asyncio.create_task(inbox.wait(1, "channel", "email")),
    ]
    await asyncio.sleep(0)
    an_arrival(inbox, 1)
    an_arrival(inbox, 2)
    done, _ = await asyncio.wait(waits[2:], timeout=30)
    assert len(done) == 2
    assert not waits[0].done()
    assert not waits[1].done()
    an_arrival(inbox, 1)
    assert await asyncio.gather(*waits[:2]) == [2, 3]
    assert inbox._waiting == {}


async def test_waiting_gives_up_when_time_is_up_and_says_how_many_came():
    inbox = Inbox()
    an_arrival(inbox)
    assert await inbox.wait(2, timeout=0.05) == 1
    assert inbox._waiting == {}


def test_the_log_has_a_line_for_every_arrival_once_it_is_flushed(tmp_path):
    log = tmp_path / "arrivals.ndjson"
    inbox = Inbox(log=log)
    first = an_arrival(inbox, 1)
    an_arrival(inbox, 2, channel=Channel.SMS)
    inbox.flush()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0] == {
        "t_ns": first.received_ns,
        "monotonic_ns": first.monotonic_ns,
        "channel": "email",
        "to": "r1@example.com",
        "message_id": "<m1@example.com>",
        "reference": "d-1",
        "digest": first.digest,
    }
    assert lines[1]["channel"] == "sms"
    inbox.close()
    reopened = Inbox(log=log)
    an_arrival(reopened, 3)
    reopened.close()
    assert len(log.read_text().splitlines()) == 3


# Pages

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.links += [value for name, value in attrs if name == "href"]


def assert_harmless(page: str) -> None:
    seen = Tags(page)
    assert not {"script", "img", "iframe", "object", "b"} & set(seen.tags)
    assert not seen.handlers
    assert all(link.startswith("/") for link in seen.links)


def hostile_mail() -> bytes:
    return (
        f"Subject: {HOSTILE}\r\nX-{HOSTILE.split('>')[0][1:]}: {HOSTILE}\r\n"
        'Content-Type: multipart/alternative; boundary="b"\r\n\r\n'
        f"--b\r\nContent-Type: text/plain\r\n\r\n{HOSTILE}\r\n"
        f"--b\r\nContent-Type: text/html\r\n\r\n<b>{HOSTILE}</b>\r\n--b--\r\n"
    ).encode()


def test_hostile_mail_is_shown_as_text_only():
    inbox = Inbox()
    arrival = an_arrival(
        inbox,
        to=f"{HOSTILE}@example.com",
        sender=HOSTILE,
        reference=HOSTILE,
        message_id=HOSTILE,
        content=hostile_mail(),
        envelope={HOSTILE: HOSTILE},
    )
    for page in (
        message_page(arrival, 1),
        list_page([arrival], inbox.counts(), to=HOSTILE, any_id=HOSTILE),
        list_page([], inbox.counts(), to=HOSTILE, any_id=HOSTILE),
    ):
        assert_harmless(page)
    page = message_page(arrival, 2)
    assert "&lt;b&gt;&lt;script&gt;alert(1)" in page, "HTML is shown as its source"
    assert "2 times" in page


@given(
    st.binary(max_size=400),
    st.sampled_from(["", "From: ", "Content-Type: ", "Subject: =?utf-8?q?", "To: <"]),
)
def test_any_bytes_can_be_opened_and_shown(content, prefix):
    inbox = Inbox()
    for channel in (Channel.EMAIL, Channel.SMS):
        arrival = an_arrival(inbox, channel=channel, content=prefix.encode() + content)
        assert_harmless(message_page(arrival, 1))
        assert_harmless(list_page([arrival], inbox.counts(), to="", any_id=""))


def test_a_template_placeholder_in_a_message_stays_what_it_is():
    arrival = an_arrival(Inbox(), content=b"Subject: $title ${body}\r\n\r\n$body\r\n")
    assert "$title ${body}" in message_page(arrival, 1)


@pytest.mark.parametrize(
    ("content", "subject", "text"),
    [
        (b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n\r\nHallo\r\n", "Grüße", "Hallo"),
        (b"Subject: x\r\nContent-Type: text/plain; charset=no-such\r\n\r\nabc\r\n", "x", "abc"),
        (b"Subject: x\r\nContent-Transfer-Encoding: base64\r\n\r\n!!!\r\n", "x", ""),
        (b"no header at all", "", ""),
        (b"", "", ""),
    ],
)
def test_mail_is_opened_as_far_as_it_can_be(content, subject, text):
    opened = Opened(an_arrival(Inbox(), content=content))
    assert opened.subject == subject
    assert text in opened.text


async def deliver(sims: Simulators, to: str, key: str = "m1") -> None:
    content = (
        f"Subject: Order {key}\r\nMessage-ID: <{key}@example.com>\r\nX-Sendloom-Delivery: d-{key}\r\n\r\nHi {key}\r\n"
    ).encode()
    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=sims.smtp_port) as client:
        await client.sendmail("a@example.com", [to], content)


async def test_the_inbox_page_lists_finds_and_opens_messages(sims, http):
    assert "Nothing has arrived yet" in (await http.get("/")).text
    await deliver(sims, "ana@example.com", "m1")
    await deliver(sims, "bob@example.com", "m2")
    page = await http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.text.index("Order m2") < page.text.index("Order m1"), "newest first"
    found = (await http.get("/", params={"to": "ana@"})).text
    assert "Order m1" in found
    assert "Order m2" not in found
    by_id = (await http.get("/", params={"id": "d-m2"})).text
    assert "Order m2" in by_id
    assert "Order m1" not in by_id
    assert "No message matches" in (await http.get("/", params={"id": "nothing"})).text

    link = next(link for link in Tags(found).links if link.startswith("/messages/"))
    message = (await http.get(link)).text
    for shown in ("Order m1", "ana@example.com", "d-m1", "&lt;m1@example.com&gt;", "Hi m1"):
        assert shown in message
    raw = await http.get(f"{link}/raw")
    assert raw.headers["content-type"].startswith("text/plain")
    assert raw.content.endswith(b"\r\n\r\nHi m1\r\n")
    assert (await http.get("/messages/999")).status_code == 404
    assert (await http.get("/messages/999/raw")).status_code == 404


# JSON


async def test_messages_come_as_json_filtered_and_limited(sims, http):
    for n in range(5):
        await deliver(sims, "ana@example.com", f"m{n}")
    await deliver(sims, "bob+x@example.com", "m9")

    async def listed(**params: object) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = (await http.get("/api/messages", params=params)).json()[
            "messages"
        ]
        return messages

    assert len(await listed()) == 6
    assert [m["reference"] for m in await listed(to="ANA@example.com", limit=2)] == ["d-m4", "d-m3"]
    (one,) = await listed(reference="d-m2")
    assert (one["subject"], one["text"], one["channel"]) == ("Order m2", "Hi m2\n", "email")
    assert await listed(channel="sms") == []
    assert (await http.get("/api/messages?to=bob+x@example.com")).json()["messages"][0][
        "to"
    ] == "bob+x@example.com"
    full = (await http.get(f"/api/messages/{one['id']}")).json()
    assert ["Message-ID", "<m2@example.com>"] in full["headers"]
    assert full["envelope"]["mail_from"] == "a@example.com"
    assert (await http.get("/api/messages/999")).status_code == 404


async def test_counts_over_http_name_duplicates_and_outlive_the_messages(sims, http):
    for key in ("m1", "m2", "m1", "m1"):
        await deliver(sims, "ana@example.com", key)
    assert (await http.delete("/api/messages")).status_code == 204
    assert (await http.get("/api/messages")).json() == {"messages": []}
    assert (await http.get("/api/counts")).json() == {
        "total": 4,
        "channels": {"email": 4},
        "recipients": 1,
        "duplicates": 2,
        "duplicated": [{"id": "<m1@example.com>", "count": 3}],
    }
    for by, value, n in (
        ("to", "ana@example.com", 4),
        ("reference", "d-m1", 3),
        ("message_id", "<m2@example.com>", 1),
        ("channel", "sms", 0),
    ):
        assert (await http.get("/api/counts", params={by: value})).json() == {by: value, "count": n}
    await http.delete("/api/messages", params={"counts": "1"})
    assert (await http.get("/api/counts")).json()["total"] == 0


async def test_waiting_over_http_answers_at_once_when_the_count_is_reached(sims, http):
    waiting = asyncio.create_task(
        http.get(
            "/api/wait", params={"to": "ana@example.com", "count": 2, "timeout": 20}, timeout=30
        )
    )
    began = time.monotonic()
    await deliver(sims, "ana@example.com", "m1")
    assert not waiting.done()
    await deliver(sims, "ana@example.com", "m2")
    assert (await waiting).json() == {"count": 2, "reached": True}
    assert time.monotonic() - began < 10
    late = await http.get("/api/wait", params={"count": 3, "timeout": 0.05})
    assert late.json() == {"count": 2, "reached": False}


@pytest.mark.parametrize(
    "path",
    [
        "/api/wait?to=a&reference=b",
        "/api/wait?count=many",
        "/api/wait?timeout=-1",
        "/api/wait?timeout=nan",
        "/api/wait?timeout=100000",
        "/api/counts?to=a&channel=sms",
        "/api/messages?limit=-1",
        "/api/messages?channel=pigeon",
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(http, path):
    answer = await http.get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]


async def test_stopping_ends_those_who_wait(sims):
    async with Simulators() as other, httpx.AsyncClient(base_url=other.http_url) as http:
        waiting = asyncio.create_task(
            http.get("/api/wait", params={"count": 1, "timeout": 60}, timeout=60)
        )
        async with asyncio.timeout(30):
            while not other.inbox._waiting:  # noqa: ASYNC110 - it is outside of us
                await asyncio.sleep(0.005)
        began = time.monotonic()
        await other.__aexit__(None, None, None)
        assert time.monotonic() - began < 20
        assert (await waiting).status_code == 503


async def test_stats_tell_what_the_simulators_did(sims, http):
    await deliver(sims, "ana@example.com")
    stats = (await http.get("/api/stats")).json()
    assert (stats["kept"], stats["smtp"]["messages"], stats["smtp"]["connections"]) == (1, 1, 1)
    assert stats["sms"]["messages"] == 0
    assert stats["uptime_s"] >= 0


# Switches


async def test_switches_change_over_http_all_or_nothing(sims, http):
    changed = await http.post(
        "/api/behaviour",
        json={"mail": {"throttle_per_s": 14}, "sms": {"hang_senders": ["+12025550100"]}},
    )
    assert changed.status_code == 200
    assert changed.json()["mail"]["throttle_per_s"] == 14
    assert sims.behaviour.sms.hang_senders == {"+12025550100"}
    await http.post("/api/behaviour", json={"mail": {"slow_s": 0.5}})
    assert (sims.behaviour.mail.throttle_per_s, sims.behaviour.mail.slow_s) == (14, 0.5)

    wrong: tuple[dict[str, Any], ...] = (
        {"mail": {"throttle_per_s": 0, "slow_s": 9}},
        {"mail": {"hang": "sometimes"}},
        {"mail": {"no_such": 1}},
        {"fax": {}},
        {"mail": 3},
        {"mail": {"greeting": "250 fine"}},
        {"sms": {"slow_s": -1}, "mail": {"slow_s": 9}},
    )
    for bad in wrong:
        refused = await http.post("/api/behaviour", json=bad)
        assert refused.status_code == 422
        assert refused.json()["problems"]
    for bad_body in (b"{", b"[]", b""):
        assert (await http.post("/api/behaviour", content=bad_body)).status_code == 400
    assert (sims.behaviour.mail.throttle_per_s, sims.behaviour.mail.slow_s) == (14, 0.5)

    assert (await http.delete("/api/behaviour")).json() == Behaviour().model_dump(mode="json")
    assert (await http.get("/api/behaviour")).json() == Behaviour().model_dump(mode="json")


def test_a_mistyped_switch_is_refused_in_a_test_too():
    behaviour = Behaviour()
    with pytest.raises(ValueError, match="throttle_per_s"):
        behaviour.mail.throttle_per_s = 0
    with pytest.raises(ValueError, match="no_such"):
        behaviour.mail.no_such = 1  # type: ignore[attr-defined]


# The process


async def test_a_taken_port_is_named(sims):
    with pytest.raises(
        ConfigurationError, match=f"SMTP simulator cannot listen on 127.0.0.1:{sims.smtp_port}"
    ):
        async with Simulators(SimulatorSettings(smtp_port=sims.smtp_port)):
            pass
    with pytest.raises(ConfigurationError, match="HTTP simulator"):
        async with Simulators(http_port=sims.http_port):
            pass


async def wait_for_ports(path: Path) -> dict[str, int]:
    async with asyncio.timeout(60):
        while not path.exists():  # noqa: ASYNC110, ASYNC240 - it is outside of us
            await asyncio.sleep(0.01)
    ports: dict[str, int] = json.loads(path.read_text())  # noqa: ASYNC240 - a few bytes
    return ports


async def a_process(tmp_path: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sendloom.providers.simulators",
        "--smtp-port=0",
        "--http-port=0",
        f"--ports-file={tmp_path / 'ports.json'}",
        f"--log={tmp_path / 'arrivals.ndjson'}",
        *arguments,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SENDLOOM_SIMULATOR_TWILIO_TOKEN": "other"},
    )


async def test_the_process_takes_mail_and_sms_logs_them_and_ends_with_zero(tmp_path):
    process = await a_process(tmp_path)
    try:
        ports = await wait_for_ports(tmp_path / "ports.json")
        async with aiosmtplib.SMTP(hostname="127.0.0.1", port=ports["smtp_port"]) as client:
            await client.sendmail(
                "a@example.com",
                ["private@example.com"],
                b"Message-ID: <x@example.com>\r\nX-Sendloom-Delivery: d-1\r\n\r\n\r\n",
            )
        sid = "AC" + "0" * 31 + "1"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['http_port']}") as http:
            answer = await http.post(
                f"/2010-04-01/Accounts/{sid}/Messages.json",
                data={
                    "To": "+12025550123",
                    "From": "+12025550100",
                    "Body": "secret",
                    "StatusCallback": "http://127.0.0.1:9/x?ref=d-2",
                },
                auth=(sid, "other"),
            )
            assert answer.status_code == 201
            lines = [
                json.loads(line) for line in (tmp_path / "arrivals.ndjson").read_text().splitlines()
            ]
            assert [(line["channel"], line["to"], line["reference"]) for line in lines] == [
                ("email", "private@example.com", "d-1"),
                ("sms", "+12025550123", "d-2"),
            ]
            # Somebody who waits and somebody who hangs must not hold the end up.
            hung = asyncio.create_task(http.get("/api/wait?count=9&timeout=100", timeout=60))
            async with aiosmtplib.SMTP(hostname="127.0.0.1", port=ports["smtp_port"]):
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(30):
                    _, errors = await process.communicate()
            await asyncio.gather(hung, return_exceptions=True)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    for private in (b"private@example.com", b"+12025550123", b"secret", b"d-2", b"Traceback"):
        assert private not in errors


async def test_nothing_acknowledged_is_missing_from_the_log_after_a_kill(tmp_path):
    process = await a_process(tmp_path)
    try:
        ports = await wait_for_ports(tmp_path / "ports.json")
        acknowledged = 0

        async def send(worker: int) -> None:
            nonlocal acknowledged
            async with aiosmtplib.SMTP(hostname="127.0.0.1", port=ports["smtp_port"]) as client:
                while True:
                    await client.sendmail(
                        "a@example.com", ["b@example.com"], b"Subject: x\r\n\r\n\r\n"
                    )
                    acknowledged += 1
                    if acknowledged == 300:
                        process.kill()

        results = await asyncio.gather(*(send(n) for n in range(8)), return_exceptions=True)
        assert not [r for r in results if not isinstance(r, aiosmtplib.SMTPException | OSError)]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    lines = (tmp_path / "arrivals.ndjson").read_bytes().splitlines()
    assert 300 <= acknowledged <= len(lines)
    assert all(json.loads(line)["to"] == "b@example.com" for line in lines)


async def test_the_process_names_a_taken_port_and_ends_with_two(tmp_path, sims):
    process = await a_process(tmp_path, f"--smtp-port={sims.smtp_port}")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert f"127.0.0.1:{sims.smtp_port}".encode() in errors
    assert b"Traceback" not in errors
