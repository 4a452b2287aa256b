"""Commands for campaigns."""

import time
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
    table,
    variables,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.api import CampaignRequest, CampaignStatus
    from sendloom.client import SendloomClient

campaign_app = typer.Typer(help="Send to lists: start, watch and control it.", no_args_is_help=True)

_FINAL = frozenset({"completed", "cancelled", "failed"})
_OPEN = frozenset({"pending", "deferred"})


def register(app: typer.Typer) -> None:
    app.add_typer(campaign_app, name="campaign")


_Name = Annotated[str, typer.Option("--name", help="For people.")]
_Category = Annotated[str, typer.Option("--category", help="A marketing category.")]
_Template = Annotated[str, typer.Option("--template", help="Template id.")]
_List = Annotated[str | None, typer.Option("--list", help="A list with a ready version.")]
_SentOf = Annotated[
    UUID | None, typer.Option("--sent-of", help="Instead of a list: who got this campaign.")
]
_Segment = Annotated[
    str | None, typer.Option("--segment", help="Instead of a list: who is in this at launch.")
]
_SendAt = Annotated[
    str | None, typer.Option("--send-at", help="Not before: 2026-01-15T09:00:00+01:00.")
]
_LocalTime = Annotated[
    str | None,
    typer.Option("--local-time", help="Each recipient's own wall time: 2026-01-15T09:00."),
]
_Missed = Annotated[
    str,
    typer.Option("--missed", help="When that has passed for somebody: send, next_day or skip."),
]
_Window = Annotated[
    str | None, typer.Option("--window", help="Only then, recipient's time: 09:00-20:00.")
]
_Deadline = Annotated[str | None, typer.Option("--deadline", help="Paced so as to end by then.")]
_ExpiresAt = Annotated[str | None, typer.Option("--expires-at", help="Nothing is sent after this.")]
_Rate = Annotated[float | None, typer.Option("--rate", help="Recipients a second.")]


_AS_THEY_ARE = (
    *("name", "category", "list_id", "send_at", "local_time"),
    *("missed", "window", "deadline", "expires_at"),
)


def _audience(sent_of: UUID | None, segment: str | None) -> "dict[str, object] | None":
    named = {"sent_of": sent_of, "segment": segment}
    return {name: value for name, value in named.items() if value is not None} or None


@campaign_app.command("create")
def create(
    ctx: typer.Context,
    name: _Name,
    category: _Category,
    template: _Template,
    list_id: _List = None,
    sent_of: _SentOf = None,
    segment: _Segment = None,
    var: Variable = None,
    send_at: _SendAt = None,
    local_time: _LocalTime = None,
    missed: _Missed = "send",
    window: _Window = None,
    deadline: _Deadline = None,
    expires_at: _ExpiresAt = None,
    rate: _Rate = None,
    key: Key = None,
    watch_: Annotated[bool, typer.Option("--watch", help="Stay and show the progress.")] = False,
    json_: Json = False,
) -> None:
    """Start a campaign."""
    request = _request(ctx)
    with connected() as client:
        accepted = client.create_campaign(request, key=new_key(key))
        if not watch_:
            show(accepted, json_)
            return
        last = _watch(client, accepted.id, json_)
    _exit(last)


@campaign_app.command("preflight")
def preflight(
    ctx: typer.Context,
    category: _Category,
    template: _Template,
    list_id: _List = None,
    sent_of: _SentOf = None,
    segment: _Segment = None,
    var: Variable = None,
    send_at: _SendAt = None,
    local_time: _LocalTime = None,
    missed: _Missed = "send",
    window: _Window = None,
    deadline: _Deadline = None,
    expires_at: _ExpiresAt = None,
    rate: _Rate = None,
    json_: Json = False,
) -> None:
    """What a launch would be told now. Exits with 1 when it would be refused."""
    request = _request(ctx, name="preflight")
    with connected() as client:
        report = client.preflight_campaign(request)
    show(report, json_)
    if not report.ok:
        raise typer.Exit(EXIT_REFUSED)


def _request(ctx: typer.Context, **more: object) -> "CampaignRequest":
    """From the options that `create` and `preflight` share, which are the fields of a campaign but for a few names."""
    from pydantic import ValidationError

    from schemas.api import CampaignRequest

    given = ctx.params
    if sum(given[name] is not None for name in ("list_id", "sent_of", "segment")) != 1:
        raise typer.BadParameter("give exactly one of --list, --sent-of and --segment")
    fields = {name: given[name] for name in _AS_THEY_ARE if name in given} | {
        "template_id": given["template"],
        "audience": _audience(given["sent_of"], given["segment"]),
        "variables": variables(given["var"]),
        "rate_per_second": given["rate"],
        **more,
    }
    try:
        return CampaignRequest.model_validate({k: v for k, v in fields.items() if v is not None})
    except ValidationError as e:
        raise typer.BadParameter(said(e)) from None


@campaign_app.command("test")
def send_test(
    category: _Category,
    template: _Template,
    to: Annotated[list[str], typer.Option("--to", help="An internal recipient; may be repeated.")],
    var: Variable = None,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Send it to named colleagues first."""
    from schemas.api import TestSendRequest

    request = TestSendRequest(
        category=category, template_id=template, variables=variables(var), recipient_ids=to
    )
    with connected() as client:
        sent = client.test_campaign(request, key=new_key(key))
    table(sent.items, ("id", "kind", "status_url", "replayed"), json_)


@campaign_app.command("approve")
def approve(id: UUID, json_: Json = False) -> None:
    """As the second person, with another key than the one it was made with."""
    with connected() as client:
        status = client.approve_campaign(id)
    if json_:
        show(status, True)
    else:
        typer.echo(f"{id} is approved by {status.approved_by}")


@campaign_app.command("show")
def show_one(id: UUID, json_: Json = False) -> None:
    """Progress by state, and why each one who got nothing got nothing."""
    with connected() as client:
        status = client.campaign(id)
    if json_:
        show(status, True)
    else:
        _report(status)


@campaign_app.command("list")
def every(limit: Annotated[int, typer.Option(min=1, max=100)] = 20, json_: Json = False) -> None:
    """The newest campaigns."""
    with connected() as client:
        page = client.campaigns(limit)
    table(page.items, ("id", "name", "phase", "size", "created_at", "reason"), json_)


@campaign_app.command("pause")
def pause(id: UUID, reason: Reason = "", json_: Json = False) -> None:
    """Within a second nothing more leaves."""
    _control(id, lambda client: client.pause_campaign(id, reason), json_)


@campaign_app.command("resume")
def resume(id: UUID, reason: Reason = "", json_: Json = False) -> None:
    """Go on where it stopped."""
    _control(id, lambda client: client.resume_campaign(id, reason), json_)


@campaign_app.command("cancel")
def cancel(id: UUID, reason: Reason = "", json_: Json = False) -> None:
    """Stop for good."""
    _control(id, lambda client: client.cancel_campaign(id, reason), json_)


@campaign_app.command("rate")
def rate(id: UUID, per_second: float, json_: Json = False) -> None:
    """Recipients a second, from now on."""
    _control(id, lambda client: client.set_campaign_rate(id, per_second), json_)


def _control(id: UUID, ask: "Callable[[SendloomClient], CampaignStatus]", as_json: bool) -> None:
    with connected() as client:
        status = ask(client)
    if as_json:
        show(status, True)
    else:
        typer.echo(f"{id} is {status.control}")


@campaign_app.command("recipients")
def recipients(
    id: UUID,
    state: Annotated[str, typer.Option(help="sent, suppressed, failed, …")],
    reason: Annotated[str | None, typer.Option(help="Only with this reason.")] = None,
    json_: Json = False,
) -> None:
    """Everybody in one group of the report."""
    from schemas.kinds import RecipientState

    if state not in list(RecipientState):
        raise typer.BadParameter(f"choose from {', '.join(RecipientState)}", param_hint="--state")
    found, after = [], None
    with connected() as client:
        while True:
            page = client.campaign_recipients(
                id, RecipientState(state), reason=reason, limit=1000, after=after
            )
            found += page.items
            after = page.next
            if after is None:
                break
    table(found, ("recipient_id", "state", "reason", "channel", "attempt"), json_)


@campaign_app.command("replay")
def replay(
    id: UUID,
    failed: Annotated[bool, typer.Option("--failed", help="Those whose send failed.")] = False,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Those of whom nobody knows; some may get it twice.")
    ] = False,
    json_: Json = False,
) -> None:
    """Send again to exactly those."""
    from typing import Literal

    from schemas.kinds import RecipientState

    states: list[Literal[RecipientState.FAILED, RecipientState.UNKNOWN]] = []
    if failed:
        states.append(RecipientState.FAILED)
    if unknown:
        states.append(RecipientState.UNKNOWN)
    if not states:
        raise typer.BadParameter("give --failed, --unknown or both")
    with connected() as client:
        show(client.replay_campaign(id, states), json_)


@campaign_app.command("watch")
def watch(id: UUID, json_: Json = False) -> None:
    """Show the progress until it has ended. Exits with 1 unless it completed and adds up."""
    with connected() as client:
        last = _watch(client, id, json_)
    _exit(last)


def _standing(status: "CampaignStatus") -> str:
    """In words, for whoever waits: what it does, or why it does nothing and who can change that."""
    if status.phase in _FINAL or status.control != "paused":
        return str(status.phase)
    why = f" ({status.reason})" if status.reason else ""
    return f"paused{why}; `sendloom campaign resume {status.id}` lets it go on"


def _watch(client: "SendloomClient", id: UUID, as_json: bool) -> "CampaignStatus":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.fields[phase]:<10}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} / {task.total:,.0f}"),
        TextColumn("{task.fields[states]}"),
        TimeRemainingColumn(),
        console=console,
        disable=as_json or not console.is_terminal,
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=1, phase="", states="")
        said = ""
        while True:
            status = client.campaign(id)
            if (now := _standing(status)) != said:
                said = now
                if not as_json and (status.control == "paused" or not console.is_terminal):
                    console.print(now)
            settled = sum(n for state, n in status.counts.items() if state not in _OPEN)
            progress.update(
                bar,
                total=max(status.size or 0, 1),
                completed=settled,
                phase=status.control if status.control == "paused" else status.phase,
                states="  ".join(f"{state} {n:,}" for state, n in sorted(status.counts.items())),
            )
            if status.phase in _FINAL:
                break
            time.sleep(_LOOK_EVERY)
    if as_json:
        typer.echo(status.model_dump_json())
    else:
        _report(status)
    return status


_LOOK_EVERY = 0.5
"""Seconds. What it shows comes from page summaries, so a look costs the server little."""


def _report(status: "CampaignStatus") -> None:
    """Each number, and that they add up."""
    typer.echo(f"{status.name}: {status.phase}" + (f" ({status.reason})" if status.reason else ""))
    if status.size is None:
        typer.echo("  its audience is not frozen yet")
        return
    for state, n in sorted(status.counts.items(), key=lambda item: -item[1]):
        typer.echo(f"  {n:>12,}  {state}")
    typer.echo(f"  {sum(status.counts.values()):>12,}  of {status.size:,}")
    for reason, n in sorted(status.reasons.items(), key=lambda item: -item[1]):
        typer.echo(f"  {n:>12,}  because of {reason}")
    if not status.adds_up:
        typer.secho("  the numbers do not add up", fg="red")


def _exit(status: "CampaignStatus") -> None:
    if status.phase != "completed" or not status.adds_up:
        raise typer.Exit(EXIT_REFUSED)
