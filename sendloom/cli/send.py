"""Commands that send to one person: notifications, passcodes, reminders."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sendloom.cli._client import (
    EXIT_REFUSED,
    Json,
    Key,
    Reason,
    Variable,
    connected,
    new_key,
    said,
    show,
    variables,
)

if TYPE_CHECKING:
    from schemas.api import DueBody

passcode_app = typer.Typer(help="Send, check and cancel one-time passcodes.", no_args_is_help=True)
reminder_app = typer.Typer(help="Reminders: set, move and cancel them.", no_args_is_help=True)
notification_app = typer.Typer(help="Look at and cancel notifications.", no_args_is_help=True)

Recipient = Annotated[str, typer.Option("--recipient", help="Recipient id, never an address.")]
Category = Annotated[str, typer.Option("--category", help="Category name.")]
Template = Annotated[str, typer.Option("--template", help="Template id.")]
Ttl = Annotated[int | None, typer.Option("--ttl", help="Seconds after which it is not sent.")]
Correlation = Annotated[
    str | None, typer.Option("--correlation-id", help="Your own id, to find or cancel by.")
]


def register(app: typer.Typer) -> None:
    app.command()(send)
    app.add_typer(notification_app, name="notification")
    app.add_typer(passcode_app, name="passcode")
    app.add_typer(reminder_app, name="reminder")


def send(
    recipient: Recipient,
    category: Category,
    template: Template,
    var: Variable = None,
    ttl: Ttl = None,
    correlation_id: Correlation = None,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Send one notification."""
    from schemas.api import NotificationRequest

    with connected() as client:
        request = NotificationRequest(
            recipient_id=recipient,
            category=category,
            template_id=template,
            variables=variables(var),
            ttl_seconds=ttl,
            correlation_id=correlation_id,
        )
        show(client.send_notification(request, key=new_key(key)), json_)


@notification_app.command("show")
def show_notification(id: UUID, json_: Json = False) -> None:
    """What became of it, by channel."""
    with connected() as client:
        show(client.notification(id), json_)


@notification_app.command("cancel")
def cancel_notification(id: UUID, reason: Reason = "cancelled", json_: Json = False) -> None:
    """Take it back, while it has not left."""
    with connected() as client:
        show(client.cancel_notification(id, reason), json_)


# --- passcodes ------------------------------------------------------------------------------------------------------


@passcode_app.command("send")
def send_passcode(
    category: Category,
    template: Template,
    recipient: Annotated[str | None, typer.Option("--recipient", help="Recipient id.")] = None,
    verify_email: Annotated[
        str | None, typer.Option(help="Verify this address instead of using a stored one.")
    ] = None,
    verify_phone: Annotated[
        str | None, typer.Option(help="Verify this number instead of using a stored one.")
    ] = None,
    var: Variable = None,
    ttl: Ttl = None,
    wait: Annotated[
        float, typer.Option(min=0, max=2, help="Seconds to wait for the provider.")
    ] = 2.0,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Send a passcode; Sendloom draws it."""
    from schemas.api import PasscodeRequest, VerifyAddress
    from schemas.kinds import Channel

    if verify_email and verify_phone:
        raise typer.BadParameter("verify one address at a time")
    verify = None
    if verify_email:
        verify = VerifyAddress(channel=Channel.EMAIL, address=verify_email)
    elif verify_phone:
        verify = VerifyAddress(channel=Channel.SMS, address=verify_phone)
    elif recipient is None:
        raise typer.BadParameter("give --recipient, --verify-email or --verify-phone")
    with connected() as client:
        request = PasscodeRequest(
            recipient_id=recipient,
            category=category,
            template_id=template,
            variables=variables(var),
            ttl_seconds=ttl,
            verify=verify,
        )
        show(client.send_passcode(request, key=new_key(key), wait=wait or None), json_)


@passcode_app.command("check")
def check_passcode(
    id: UUID,
    code: Annotated[
        str | None, typer.Argument(help="Asked for when not given, so that it stays out of ps.")
    ] = None,
    json_: Json = False,
) -> None:
    """Compare a code. Exits with 1 unless it is approved."""
    offered: str = code or typer.prompt("code", hide_input=True)
    with connected() as client:
        answer = client.check_passcode(id, offered)
        show(answer, json_)
    if not answer.approved:
        raise typer.Exit(EXIT_REFUSED)


@passcode_app.command("resend")
def resend_passcode(id: UUID, key: Key = None, json_: Json = False) -> None:
    """Send the same code again."""
    with connected() as client:
        show(client.resend_passcode(id, key=new_key(key)), json_)


@passcode_app.command("show")
def show_passcode(id: UUID, json_: Json = False) -> None:
    """Where it is, and how many checks are left."""
    with connected() as client:
        show(client.passcode(id), json_)


@passcode_app.command("cancel")
def cancel_passcode(id: UUID, reason: Reason = "cancelled", json_: Json = False) -> None:
    """Make the code stop working."""
    with connected() as client:
        show(client.cancel_passcode(id, reason), json_)


# --- reminders ------------------------------------------------------------------------------------------------------

At = Annotated[
    str | None, typer.Option("--at", help="An instant with offset, 2026-01-15T09:00:00+01:00.")
]
Local = Annotated[
    str | None,
    typer.Option("--local", help="A wall time in the recipient's zone, 2026-01-15T09:00."),
]


@reminder_app.command("create")
def create_reminder(
    recipient: Recipient,
    category: Category,
    template: Template,
    at: At = None,
    local: Local = None,
    var: Variable = None,
    lateness: Annotated[
        str, typer.Option(help="What to do when its moment was missed: send, skip or next_day.")
    ] = "send",
    ttl: Ttl = None,
    correlation_id: Correlation = None,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Send a notification at a moment."""
    from schemas.api import ReminderRequest
    from schemas.kinds import LatenessPolicy

    if lateness not in list(LatenessPolicy):
        raise typer.BadParameter(
            f"choose from {', '.join(LatenessPolicy)}", param_hint="--lateness"
        )
    with connected() as client:
        request = ReminderRequest(
            recipient_id=recipient,
            category=category,
            template_id=template,
            due=_due(at, local),
            variables=variables(var),
            lateness=LatenessPolicy(lateness),
            ttl_seconds=ttl,
            correlation_id=correlation_id,
        )
        show(client.send_reminder(request, key=new_key(key)), json_)


def _due(at: str | None, local: str | None) -> "DueBody":
    from pydantic import ValidationError

    from schemas.api import DueBody

    if (at is None) == (local is None):
        raise typer.BadParameter("give exactly one of --at and --local")
    try:
        return DueBody.model_validate({"at": at} if at is not None else {"local": local})
    except ValidationError as e:
        raise typer.BadParameter(said(e)) from None


@reminder_app.command("show")
def show_reminder(id: UUID, json_: Json = False) -> None:
    """Where it is."""
    with connected() as client:
        show(client.reminder(id), json_)


@reminder_app.command("reschedule")
def reschedule_reminder(id: UUID, at: At = None, local: Local = None, json_: Json = False) -> None:
    """Move it."""
    with connected() as client:
        show(client.reschedule_reminder(id, _due(at, local)), json_)


@reminder_app.command("send-now")
def send_reminder_now(id: UUID, json_: Json = False) -> None:
    """Do not wait."""
    with connected() as client:
        show(client.send_reminder_now(id), json_)


@reminder_app.command("cancel")
def cancel_reminder(
    id: Annotated[UUID | None, typer.Argument(help="One reminder.")] = None,
    correlation_id: Correlation = None,
    reason: Reason = "cancelled",
    json_: Json = False,
) -> None:
    """Take one back, or all of a correlation id. Exits with 1 when some were too late."""
    if (id is None) == (correlation_id is None):
        raise typer.BadParameter("give an id or --correlation-id")
    with connected() as client:
        if id is not None:
            show(client.cancel_reminder(id, reason), json_)
            return
        assert correlation_id is not None
        answer = client.cancel_reminders(correlation_id, reason)
        show(answer, json_)
    if answer.too_late:
        raise typer.Exit(EXIT_REFUSED)
