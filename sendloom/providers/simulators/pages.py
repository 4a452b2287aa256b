"""The inbox for people: one list, one message. Everything that arrived is shown as text, never as markup."""

import logging
from collections.abc import Iterable
from email import policy
from email.message import EmailMessage
from email.parser import BytesHeaderParser, BytesParser
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import urlencode

from schemas.kinds import Channel
from sendloom.providers.simulators.inbox import Arrival, Counts

log = logging.getLogger(__name__)

_PAGE = Template((files(__package__) / "page.html").read_text("utf-8"))

MOST_SHOWN = 100


class Opened:
    """What a person or a test wants to know of a message. Broken mail opens too: what cannot be read is left out."""

    def __init__(self, arrival: Arrival, *, headers_only: bool = False) -> None:
        self.headers: list[tuple[str, str]] = []
        self.text = self.html = ""
        if arrival.channel is not Channel.EMAIL:
            self.text = arrival.content.decode("utf-8", "replace")
            return
        parser = BytesHeaderParser if headers_only else BytesParser
        mail = parser(policy=policy.default).parsebytes(arrival.content)
        self.headers = [(name, _header(mail, name, raw)) for name, raw in mail.raw_items()]
        for part in () if headers_only else mail.walk():
            if part.get_content_disposition() == "attachment":
                continue
            if part.get_content_type() == "text/plain" and not self.text:
                self.text = _content(part)
            elif part.get_content_type() == "text/html" and not self.html:
                self.html = _content(part)

    @property
    def subject(self) -> str:
        return next((value for name, value in self.headers if name.lower() == "subject"), "")


def _header(mail: EmailMessage, name: str, raw: Any) -> str:
    try:
        return str(mail.policy.header_fetch_parse(name, raw))
    except Exception:
        # The parser raises almost anything on malformed headers, and what was sent is to be seen all the same.
        log.debug("a header cannot be parsed", extra={"header": name})
        return str(raw)


def _content(part: EmailMessage) -> str:
    try:
        text = str(part.get_content())
    except (LookupError, ValueError, AttributeError):
        payload = part.get_payload(decode=True)
        text = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
    return text.replace("\r\n", "\n")


def as_json(arrival: Arrival, *, full: bool = False) -> dict[str, Any]:
    """A message for the JSON API; `full` adds headers, HTML and envelope."""
    opened = Opened(arrival)
    shown: dict[str, Any] = {
        "id": arrival.id,
        "channel": arrival.channel.value,
        "to": arrival.to,
        "from": arrival.sender,
        "subject": opened.subject,
        "text": opened.text,
        "message_id": arrival.message_id,
        "reference": arrival.reference,
        "received_at": arrival.received_at.isoformat(),
        "received_ns": arrival.received_ns,
        "monotonic_ns": arrival.monotonic_ns,
        "digest": arrival.digest,
    }
    if full:
        shown |= {
            "html": opened.html,
            "headers": [list(pair) for pair in opened.headers],
            "envelope": arrival.envelope,
        }
    return shown


def list_page(arrivals: list[Arrival], counts: Counts, *, to: str, any_id: str) -> str:
    channels = (
        ", ".join(f"{n:,} {channel}" for channel, n in sorted(counts.channels.items()))
        or "nothing yet"
    )
    if arrivals:
        rows = "".join(_row(arrival) for arrival in arrivals)
        listing = (
            '<div class="scroll"><table><thead><tr><th scope="col">Received (UTC)</th><th scope="col">Channel</th>'
            '<th scope="col">To</th><th scope="col">Message</th><th scope="col">Id</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
    elif to or any_id:
        listing = '<p>No message matches. <a href="/">Show all</a></p>'
    else:
        listing = "<p>Nothing has arrived yet.</p>"
    body = f"""<h1>Inbox</h1>
<p class="quiet">{counts.total:,} arrived ({escape(channels)}), {counts.recipients:,} recipients, \
{counts.duplicates:,} duplicates. Newest first, at most {MOST_SHOWN}.</p>
<form method="get" action="/" role="search">
<label>Recipient <input type="search" name="to" value="{escape(to)}" placeholder="part of an address or number"></label>
<label>Id <input type="search" name="id" value="{escape(any_id)}" placeholder="delivery, Message-ID or provider id"></label>
<button>Find</button>
</form>
{listing}"""
    return _PAGE.substitute(title="Inbox", body=body)


def _row(arrival: Arrival) -> str:
    opened = Opened(arrival, headers_only=True)
    title = opened.subject or opened.text
    shown = title if len(title) <= 90 else title[:89] + "…"
    reference = arrival.reference or arrival.message_id
    same = (
        f'<a href="/?{escape(urlencode({"id": reference}))}"><code>{escape(reference)}</code></a>'
        if reference
        else ""
    )
    return (
        f'<tr><td class="time">{arrival.received_at:%Y-%m-%d %H:%M:%S}</td><td>{escape(arrival.channel)}</td>'
        f"<td>{escape(arrival.to)}</td>"
        f'<td><a href="/messages/{escape(arrival.id)}">{escape(shown.strip() or "(empty)")}</a></td><td>{same}</td></tr>'
    )


def message_page(arrival: Arrival, times: int) -> str:
    """`times`: how often this very message has arrived in all."""
    opened = Opened(arrival)
    facts = [
        ("Received", arrival.received_at.isoformat(timespec="milliseconds")),
        ("Channel", arrival.channel.value),
        ("To", arrival.to),
        ("From", arrival.sender),
        ("Delivery", arrival.reference),
        ("Provider id" if arrival.channel is Channel.SMS else "Message-ID", arrival.message_id),
        ("Arrived", "once" if times <= 1 else f"{times} times"),
        *((name.replace("_", " ").capitalize(), value) for name, value in arrival.envelope.items()),
    ]
    sections = [_facts(facts)]
    if opened.headers:
        sections.append(f"<h2>Headers</h2>{_facts(opened.headers)}")
    if opened.text:
        sections.append(f"<h2>Text</h2><pre>{escape(opened.text)}</pre>")
    if opened.html:
        sections.append(f"<h2>HTML source</h2><pre>{escape(opened.html)}</pre>")
    if arrival.channel is Channel.EMAIL:
        sections.append(
            f'<p><a href="/messages/{escape(arrival.id)}/raw">Message as it came</a></p>'
        )
    title = opened.subject or f"{arrival.channel.upper()} to {arrival.to}"
    body = f'<p><a href="/">Inbox</a></p><h1>{escape(title)}</h1>' + "".join(sections)
    return _PAGE.substitute(title=escape(title), body=body)


def missing_page() -> str:
    return _PAGE.substitute(
        title="Not here",
        body='<p><a href="/">Inbox</a></p><h1>Not here</h1><p>No such message, or too old to be kept.</p>',
    )


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in pairs
        if value
    )
    return f'<div class="scroll"><table>{rows}</table></div>'
