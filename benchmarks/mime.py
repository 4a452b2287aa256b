"""How fast one core makes mails: a template's `Form`, `Skeleton.fill` of rendered text, `build`, and a plain `EmailMessage`.

    python -m benchmarks.mime [--seconds 2]

The last line is one JSON object. CPU time is what is measured, so a busy machine only makes it noisier.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from functools import partial

from schemas.kinds import Channel
from schemas.messages import OutboundEmail
from sendloom.domain.rendering import CompiledTemplate, compile_template
from sendloom.providers.mime import Skeleton, build, stuff
from sendloom.providers.mime_forms import Form

DATE = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)
LINE = "Thank you for being with us; here is what is new this month, and what you asked for.\n"
GERMAN_LINE = (
    "Vielen Dank für Ihre Treue: Hier ist, was neu ist und was Sie sich gewünscht hätten.\n"
)
GREEK_LINE = "Καλημέρα κόσμε, τα νέα του μήνα.\n"


@dataclass(frozen=True)
class Case:
    subject: str
    text: str
    name: str
    month: str
    html: str | None = None


ENGLISH = Case("Your news for {{month}}", "Dear {{name}},\n\n" + LINE * 23, "Alex", "March")
GERMAN = Case(
    "Ihre Neuigkeiten für {{month}}",
    "Guten Tag {{name}},\n\n" + GERMAN_LINE * 11 + "Im {{month}} für Sie:\n" + GERMAN_LINE * 11,
    "Jürgen Müller",
    "März",
)
CASES = {
    "text": ENGLISH,
    "text_html": replace(ENGLISH, html="<p>Dear {{name}},</p>\n" + f"<p>{LINE}</p>" * 20),
    "one_umlaut": replace(ENGLISH, name="Jürgen Müller"),
    "german": GERMAN,
    "german_html": replace(
        GERMAN, html="<p>Guten Tag {{name}},</p>\n" + f'<p class="x">{GERMAN_LINE}</p>' * 20
    ),
    "greek": Case(
        "Τα νέα: {{month}}",
        "Καλημέρα {{name}},\n\n" + GREEK_LINE * 33 + "Για {{month}}.\n",
        "Γιώργος Παπάς",
        "Μάρτιος",
    ),
}


def compiled(case: Case) -> CompiledTemplate:
    return compile_template(
        Channel.EMAIL,
        subject=case.subject,
        text=case.text,
        html=case.html,
        variables={"month": {}, "name": {}},
    )


def values_of(case: Case, template: CompiledTemplate) -> list[str]:
    return template.values({"month": case.month, "name": case.name})


def a_mail(case: Case) -> OutboundEmail:
    template = compiled(case)
    rendered = template.filled(values_of(case, template))
    return OutboundEmail(
        reference="dlv_benchmark",
        message_id="<0123456789abcdef0123456789abcdef@example.com>",
        date=DATE,
        from_address="news@example.com",
        from_name="Example News",
        to_address="alex@example.com",
        subject=rendered.subject or "",
        text=rendered.text,
        html=rendered.html,
        envelope_from="bounces@example.com",
        list_unsubscribe_url="https://example.com/u/0123456789abcdef",
    )


def by_skeleton(mail: OutboundEmail) -> Callable[[], bytes]:
    skeleton = Skeleton(from_address=mail.from_address, from_name=mail.from_name)
    return lambda: stuff(
        skeleton.fill(
            to_address=mail.to_address,
            message_id=mail.message_id,
            date=mail.date,
            reference=mail.reference,
            subject=mail.subject,
            text=mail.text,
            html=mail.html,
            list_unsubscribe_url=mail.list_unsubscribe_url,
        )
    )


def by_form(case: Case) -> Callable[[], bytes]:
    """From a recipient's values, rendering included; the plain way where a form says None."""
    template = compiled(case)
    values = values_of(case, template)
    mail = a_mail(case)
    form = Form(template)
    skeleton = Skeleton(from_address=mail.from_address, from_name=mail.from_name)

    def make() -> bytes:
        filled = form.fill(
            skeleton,
            values,
            to=mail.to_address,
            message_id=mail.message_id,
            date=mail.date,
            reference=mail.reference,
            list_unsubscribe_url=mail.list_unsubscribe_url,
        )
        if filled is not None:
            return filled
        rendered = template.filled(values)
        return stuff(
            skeleton.fill(
                to_address=mail.to_address,
                message_id=mail.message_id,
                date=mail.date,
                reference=mail.reference,
                subject=rendered.subject or "",
                text=rendered.text,
                html=rendered.html,
                list_unsubscribe_url=mail.list_unsubscribe_url,
            )
        )

    return make


def by_email_message(mail: OutboundEmail) -> bytes:
    """What a straightforward sender does."""
    message = EmailMessage(policy=SMTP.clone(max_line_length=998))
    message["From"] = f"{mail.from_name} <{mail.from_address}>"
    message["To"] = mail.to_address
    message["Subject"] = mail.subject
    message["Date"] = mail.date
    message["Message-ID"] = mail.message_id
    message["List-Unsubscribe"] = f"<{mail.list_unsubscribe_url}>"
    message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    message.set_content(mail.text)
    if mail.html is not None:
        message.add_alternative(mail.html, subtype="html")
    return message.as_bytes()


def rate(make: Callable[[], bytes], seconds: float) -> float:
    """Calls per second of CPU."""
    for _ in range(20):
        make()
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        for _ in range(50):
            make()
        count += 50
    return count / spent


def main() -> None:
    parser = argparse.ArgumentParser(description="MIME on one core")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds per figure")
    seconds = parser.parse_args().seconds
    figures: dict[str, float] = {}
    for name, case in CASES.items():
        mail = a_mail(case)
        fast = rate(by_skeleton(mail), seconds)
        figures[f"{name}_form_per_second"] = round(rate(by_form(case), seconds))
        figures[f"{name}_bytes"] = len(by_skeleton(mail)())
        figures[f"{name}_per_second"] = round(fast)
        figures[f"{name}_build_per_second"] = round(rate(partial(build, mail), seconds))
        plain = rate(partial(by_email_message, mail), seconds)
        figures[f"{name}_ratio_email_message"] = round(fast / plain, 1)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
