"""Commands for what recurs: schedules, the log of what they fired, and reminder series."""

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sendloom.cli._client import (
    Json,
    Key,
    Variable,
    connected,
    new_key,
    said,
    show,
    table,
    variables,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

schedule_app = typer.Typer(help="What recurs: set up, pause, look at.", no_args_is_help=True)
series_app = typer.Typer(help="Reminders before one event.", no_args_is_help=True)

_TRIGGERS = ("scheduled_for", "status", "fired_at", "by", "kind", "id", "missed", "reason")


def register(app: typer.Typer) -> None:
    app.add_typer(schedule_app, name="schedule")
    app.add_typer(series_app, name="series")
    app.command()(triggers)


@schedule_app.command("create")
def create_schedule(
    category: Annotated[str, typer.Option(help="Category name.")],
    template: Annotated[str, typer.Option(help="Template id.")],
    recipient: Annotated[
        str | None, typer.Option(help="A notification to this recipient id each time.")
    ] = None,
    list_id: Annotated[
        str | None, typer.Option("--list", help="A campaign to this list each time.")
    ] = None,
    segment: Annotated[
        str | None,
        typer.Option(help="A campaign each time to whoever is in this segment then."),
    ] = None,
    cron: Annotated[str | None, typer.Option(help="Five fields: 30 9 * * mon-fri.")] = None,
    every: Annotated[int | None, typer.Option(help="Seconds between runs, instead.")] = None,
    zone: Annotated[str | None, typer.Option(help="IANA name; else the tenant's.")] = None,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    catch_up: Annotated[
        str, typer.Option(help="What is made up after an outage: all, latest or none.")
    ] = "latest",
    catch_up_window: Annotated[
        int, typer.Option(help="Seconds; what was missed longer ago is not made up.")
    ] = 86_400,
    overlap: Annotated[
        str, typer.Option(help="When the run before has not ended: skip or allow.")
    ] = "skip",
    jitter: Annotated[int, typer.Option(help="Seconds that runs are spread over.")] = 0,
    var: Variable = None,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Send a notification or a campaign again and again."""
    from schemas.api import ScheduleRequest

    if [recipient, list_id, segment].count(None) != 2:
        raise typer.BadParameter("give exactly one of --recipient, --list and --segment")
    run: dict[str, Any] = {"template_id": template, "variables": variables(var)}
    audience: dict[str, Any] = (
        {"list_id": list_id} if segment is None else {"audience": {"segment": segment}}
    )
    what = (
        {"notification": {**run, "recipient_id": recipient}}
        if recipient is not None
        else {"campaign": {**run, **audience, "name": name or template}}
    )
    request = _valid(
        ScheduleRequest,
        {
            "name": name,
            "category": category,
            "cron": cron,
            "every_seconds": every,
            "zone": zone,
            "catch_up": catch_up,
            "catch_up_window_seconds": catch_up_window,
            "overlap": overlap,
            "jitter_seconds": jitter,
            **what,
        },
    )
    with connected() as client:
        show(client.create_schedule(request, key=new_key(key)), json_)


def _valid(model: "type[BaseModel]", given: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        return model.model_validate(given)
    except ValidationError as e:
        raise typer.BadParameter(said(e)) from None


@schedule_app.command("list")
def list_schedules(json_: Json = False) -> None:
    """All that are not deleted."""
    with connected() as client:
        items, after = [], None
        while True:
            page = client.schedules(after=after)
            items += page.items
            if page.next is None:
                break
            after = UUID(page.next)
    table(items, ("id", "name", "kind", "state", "cron", "every_seconds", "zone", "next_at"), json_)


@schedule_app.command("show")
def show_schedule(id: UUID, json_: Json = False) -> None:
    """One."""
    with connected() as client:
        show(client.schedule(id), json_)


@schedule_app.command("pause")
def pause_schedule(id: UUID, json_: Json = False) -> None:
    """Fire nothing until it is resumed."""
    with connected() as client:
        show(client.pause_schedule(id), json_)


@schedule_app.command("resume")
def resume_schedule(id: UUID, json_: Json = False) -> None:
    """Fire again, from its next time on."""
    with connected() as client:
        show(client.resume_schedule(id), json_)


@schedule_app.command("delete")
def delete_schedule(id: UUID, json_: Json = False) -> None:
    """Fire no more; its log stays."""
    with connected() as client:
        show(client.delete_schedule(id), json_)


@schedule_app.command("triggers")
def schedule_triggers(
    id: UUID,
    limit: Annotated[int, typer.Option(help="The newest so many.")] = 50,
    json_: Json = False,
) -> None:
    """What it fired and what it left out, newest first."""
    with connected() as client:
        table(client.schedule_triggers(id, limit).items, _TRIGGERS, json_)


Instant = Annotated[str, typer.Argument(help="With offset: 2026-05-05T09:00:00+02:00.")]


def triggers(since: Instant, until: Instant, json_: Json = False) -> None:
    """What should have been fired between two instants, and what became of it."""
    first, last = _instant(since), _instant(until)
    with connected() as client:
        table(client.triggers(first, last).items, ("schedule_id", *_TRIGGERS), json_)


def _instant(text: str) -> Any:
    from datetime import datetime

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter(f"{text!r} is not an instant with its offset")
    return at


# --- reminder series --------------------------------------------------------------------------------------------------

At = Annotated[str | None, typer.Option("--at", help="When the event is, with offset.")]
Local = Annotated[str | None, typer.Option("--local", help="When it is in the recipient's zone.")]


def _event(at: str | None, local: str | None) -> Any:
    from schemas.api import DueBody

    return _valid(DueBody, {"at": at} if local is None else {"at": at, "local": local})


@series_app.command("create")
def create_series(
    recipient: Annotated[str, typer.Option(help="Recipient id, never an address.")],
    category: Annotated[str, typer.Option(help="Category name.")],
    template: Annotated[str, typer.Option(help="Template id.")],
    before: Annotated[list[str], typer.Option(help="P7D, P1D, PT1H; repeat it for each reminder.")],
    at: At = None,
    local: Local = None,
    var: Variable = None,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Some reminders before one event."""
    from schemas.api import SeriesRequest

    request = SeriesRequest(
        recipient_id=recipient,
        category=category,
        template_id=template,
        event=_event(at, local),
        offsets=list(before),
        variables=variables(var),
    )
    with connected() as client:
        show(client.create_series(request, key=new_key(key)), json_)


@series_app.command("show")
def show_series(id: UUID, json_: Json = False) -> None:
    """Its reminders, and where each is."""
    with connected() as client:
        show(client.series(id), json_)


@series_app.command("move")
def move_series(id: UUID, at: At = None, local: Local = None, json_: Json = False) -> None:
    """The event has moved: the open reminders move with it."""
    with connected() as client:
        show(client.move_series(id, _event(at, local)), json_)


@series_app.command("cancel")
def cancel_series(id: UUID, json_: Json = False) -> None:
    """Take back all that are open."""
    with connected() as client:
        show(client.cancel_series(id), json_)
