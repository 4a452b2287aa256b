"""Commands for segments: predicates over recipients that campaigns can be sent to."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sendloom.cli._client import Json, connected, show, table

segment_app = typer.Typer(help="Audiences by a condition on recipients.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(segment_app, name="segment")


_File = Annotated[
    Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        allow_dash=True,
        help='A JSON file, - for standard input: {"attribute": "plan", "eq": "pro"}.',
    ),
]


@segment_app.command("put")
def put(
    segment_id: str,
    file: _File,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    json_: Json = False,
) -> None:
    """Create a segment, or change it. Campaigns created before keep what it was."""
    definition = _read(file)
    with connected() as client:
        show(client.put_segment(segment_id, definition, name), json_)


@segment_app.command("show")
def show_segment(segment_id: str, json_: Json = False) -> None:
    """One segment."""
    with connected() as client:
        show(client.get_segment(segment_id), json_)


@segment_app.command("list")
def every(json_: Json = False) -> None:
    """All segments, by id."""
    items = []
    with connected() as client:
        after: str | None = None
        while True:
            page = client.segments(after=after)
            items += page.items
            after = page.next
            if after is None:
                break
    table(items, ("segment_id", "name", "version", "updated_at", "updated_by"), json_)


@segment_app.command("delete")
def delete(segment_id: str) -> None:
    """Campaigns created from it go on."""
    with connected() as client:
        client.delete_segment(segment_id)
    typer.echo(f"{segment_id} is deleted")


@segment_app.command("preview")
def preview(file: _File, json_: Json = False) -> None:
    """Who a definition would choose now: a count, bounded, and some ids."""
    definition = _read(file)
    with connected() as client:
        show(client.preview_segment(definition), json_)


def _read(file: Path) -> dict[str, Any]:
    import json

    try:
        text = (
            typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text("utf-8")
        )
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise typer.BadParameter(f"{file} is not JSON", param_hint="FILE") from e
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{file} is not a JSON object", param_hint="FILE")
    return found
