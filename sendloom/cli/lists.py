"""Commands for lists: upload a file in chunks, and go on where an upload stopped."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sendloom.cli._client import EXIT_REFUSED, Json, connected, show

if TYPE_CHECKING:
    from schemas.api import VersionAnswer

list_app = typer.Typer(help="Audiences.", no_args_is_help=True)

_ERRORS_SHOWN = 20


def register(app: typer.Typer) -> None:
    app.add_typer(list_app, name="list")


@list_app.command("create")
def create(
    list_id: str,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    json_: Json = False,
) -> None:
    """Create a list, or rename it."""
    with connected() as client:
        show(client.put_list(list_id, name), json_)


@list_app.command("show")
def show_list(
    list_id: str,
    version: Annotated[UUID | None, typer.Option(help="One upload of it.")] = None,
    json_: Json = False,
) -> None:
    """A list, or one version with its line errors."""
    with connected() as client:
        if version is None:
            show(client.get_list(list_id), json_)
        else:
            show(client.list_version(list_id, version), json_)


@list_app.command("upload")
def upload(
    list_id: str,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)],
    format_: Annotated[
        str | None, typer.Option("--format", help="csv or ndjson; by the file's name if not given.")
    ] = None,
    consent_category: Annotated[
        list[str] | None,
        typer.Option(help="For consents that name no category; may be repeated."),
    ] = None,
    again: Annotated[
        str, typer.Option(help="Anything: makes a new version of a file uploaded before.")
    ] = "",
    json_: Json = False,
) -> None:
    """Upload a file. Run it again after an interruption: what is there already is not sent again.

    Columns: recipient_id, email, phone, locale, zone; for a consent
    consent_source, consent_at, consent_wording and consent_categories
    (with | between). Every other column is a variable. In NDJSON these are
    fields, with "consent" and "variables" as objects. An address without a
    consent here or proof on record is unverified: nothing is sent to it.

    Exits with 1 when the list cannot be sent to. Lines with errors are left out and reported.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    from sendloom.cli._chunks import Format, chunks, digest, format_of

    if format_ not in (None, "csv", "ndjson"):
        raise typer.BadParameter("csv or ndjson", param_hint="--format")
    chosen: Format | None = "csv" if format_ == "csv" else "ndjson" if format_ else format_of(file)
    if chosen is None:
        raise typer.BadParameter("the file's name does not say it", param_hint="--format")
    console = Console(stderr=True)
    with connected() as client:
        client.put_list(list_id)
        version = client.start_upload(list_id, chosen, key=f"file-{digest(file)}{again}")
        there = {chunk.chunk: chunk.sha256 for chunk in version.chunks}
        with (
            file.open("rb") as opened,
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TextColumn("{task.fields[rows]:,} lines, {task.fields[errors]:,} errors"),
                console=console,
                disable=json_ or not console.is_terminal,
                transient=True,
            ) as progress,
        ):
            bar = progress.add_task(
                file.name,
                total=file.stat().st_size,
                rows=sum(chunk.lines for chunk in version.chunks),
                errors=version.rejected,
            )
            rows, errors = sum(chunk.lines for chunk in version.chunks), version.rejected
            for chunk in chunks(opened, chosen):
                if version.state == "uploading" and there.get(chunk.number) != chunk.sha256:
                    answer = client.put_chunk(
                        list_id,
                        version.version_id,
                        chunk.number,
                        chunk.data,
                        first_line=chunk.first_line,
                        format=chosen,
                        consent_categories=consent_category or (),
                    )
                    rows, errors = rows + answer.lines, errors + answer.rejected
                progress.update(bar, completed=chunk.ends_at, rows=rows, errors=errors)
        if version.state == "uploading":
            version = client.make_ready(list_id, version.version_id)
    if json_:
        typer.echo(version.model_dump_json())
    else:
        _report(version)
    if version.state != "ready":
        raise typer.Exit(EXIT_REFUSED)


def _report(version: "VersionAnswer") -> None:
    size = "" if version.size is None else f", {version.size:,} recipients"
    why = f" ({version.reason})" if version.reason else ""
    typer.echo(f"{version.list_id} {version.version_id}: {version.state}{why}{size}")
    if version.rejected:
        typer.secho(f"{version.rejected:,} lines were left out:", fg="yellow", err=True)
    for error in version.errors[:_ERRORS_SHOWN]:
        where = f", {error.column}" if error.column else ""
        typer.echo(f"  line {error.line}{where}: {error.code}: {error.detail}", err=True)
    if version.rejected > _ERRORS_SHOWN:
        typer.echo("  … `sendloom list show --version` shows the first 100", err=True)
