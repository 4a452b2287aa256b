"""What the commands that speak to the API share: where it is, how answers are shown, and what a refusal exits with."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import uuid4

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from sendloom.client import SendloomClient

EXIT_REFUSED = 1
"""The API answered, and the answer was no; or the outcome is not the one wished for."""
EXIT_UNAVAILABLE = 69
"""EX_UNAVAILABLE of sysexits.h: nobody answered. Trying again may help."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", help="Idempotency key; the same one makes a repeat harmless. Drawn when not given."
    ),
]
Variable = Annotated[
    list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="May be repeated.")
]
Reason = Annotated[str, typer.Option("--reason", help="Kept with the audit row.")]


@contextmanager
def connected() -> "Iterator[SendloomClient]":
    """A client for `SENDLOOM_CLIENT__URL`, or for the stack of this home. A refusal ends the command with its code and fix."""
    from sendloom.client import SendloomClient, SendloomError, SendloomUnreachable

    url, key = _where()
    with SendloomClient(url, key) as client:
        try:
            yield client
        except SendloomUnreachable as e:
            fail(f"no answer from {url}: {e.detail}. {e.fix}", EXIT_UNAVAILABLE)
        except SendloomError as e:
            about = f" ({e.field})" if e.field else ""
            code = EXIT_UNAVAILABLE if e.status == 503 else EXIT_REFUSED
            fail(f"{e.code}{about}: {e.detail}\n  {e.fix}", code)


def _where() -> tuple[str, str]:
    """
    Raises:
        ConfigurationError: there is no key.
    """
    from sendloom.errors import ConfigurationError
    from sendloom.settings import SETTINGS_FILE, read_settings_file, settings_home

    stored: Mapping[str, str] = read_settings_file(settings_home() / SETTINGS_FILE)

    def setting(name: str) -> str | None:
        return os.environ.get(name) or stored.get(name)

    url = setting("SENDLOOM_CLIENT__URL")
    if url is None:
        host = setting("SENDLOOM_API__HOST") or "127.0.0.1"
        url = f"http://{host}:{setting('SENDLOOM_API__PORT') or 8080}"
    key = setting("SENDLOOM_CLIENT__API_KEY")
    if key is None:
        raise ConfigurationError(
            "SENDLOOM_CLIENT__API_KEY is not set. Make a key with `sendloom key create TENANT` and export it."
        )
    return url, key


def fail(message: str, code: int = EXIT_REFUSED) -> NoReturn:
    typer.secho(f"sendloom: {message}", fg="red", err=True)
    raise typer.Exit(code)


_PLAINER: dict[tuple[int | str, ...], str] = {
    ("recipient_id",): "an id has 1 to 128 letters, digits and . _ : -, and is no address",
    ("locale",): "not a language tag such as pt or pt-BR",
    ("local_time",): "a wall time without an offset, such as 2026-01-15T09:00",
}
"""For fields whose rule is a pattern, which tells nobody what to type."""


def _why(kind: str, where: tuple[int | str, ...], message: str) -> str:
    plainer = _PLAINER.get(where[-1:]) if kind == "string_pattern_mismatch" else None
    return plainer or message.removeprefix("Value error, ")


def said(error: "ValidationError") -> str:
    """What is wrong with what was typed, without the value: it may be somebody's address."""
    return "; ".join(
        ": ".join(
            part
            for part in (
                ".".join(str(step) for step in one["loc"]),
                _why(one["type"], one["loc"], one["msg"]),
            )
            if part
        )
        for one in error.errors(include_input=False, include_url=False)
    )


def new_key(key: str | None) -> str:
    return key or f"cli-{uuid4()}"


def variables(given: Sequence[str] | None) -> dict[str, Any]:
    """From `--var name=value`. Values are text: templates show them as they are."""
    found: dict[str, Any] = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE", param_hint="--var")
        found[name] = value
    return found


def show(answer: "BaseModel", as_json: bool) -> None:
    """One answer: as JSON for programs, as aligned lines for people."""
    if as_json:
        typer.echo(answer.model_dump_json())
        return
    _lines(answer.model_dump(mode="json"))


def _lines(values: Mapping[str, Any], indent: int = 0) -> None:
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        if value in (None, [], {}, ""):
            continue
        if isinstance(value, list) and isinstance(value[0], dict):
            typer.echo(f"{' ' * indent}{name}:")
            for one in value:
                _lines(one, indent + 2)
                typer.echo("")
        elif isinstance(value, dict):
            typer.echo(f"{' ' * indent}{name}:")
            _lines(value, indent + 2)
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"{' ' * indent}{name:<{width}}  {shown}")


def table(items: "Sequence[BaseModel]", columns: Sequence[str], as_json: bool) -> None:
    """A list: one JSON object a line, or a table."""
    if as_json:
        for item in items:
            typer.echo(item.model_dump_json())
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold")
    for name in columns:
        # An id that is cut off cannot be copied.
        grid.add_column(name.replace("_", " "), overflow="fold", no_wrap=name.endswith("id"))
    for item in items:
        values = item.model_dump(mode="json")
        grid.add_row(*(_cell(values.get(name)) for name in columns))
    console = Console()
    console.print(grid, width=None if console.is_terminal else _PIPED)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


_PIPED = 240
"""Columns of a table that goes into a pipe or file."""


def done(what: str, as_json: bool, **said: Any) -> None:
    typer.echo(json.dumps(said) if as_json else what)
