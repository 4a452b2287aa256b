"""Commands for templates and categories."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

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

    M = TypeVar("M", bound=BaseModel)

template_app = typer.Typer(help="What messages say.", no_args_is_help=True)
category_app = typer.Typer(help="What kinds of messages there are.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]


def register(app: typer.Typer) -> None:
    app.add_typer(template_app, name="template")
    app.add_typer(category_app, name="category")


def _read(file: Path, model: "type[M]") -> "M":
    from pydantic import ValidationError

    try:
        return model.model_validate_json(file.read_bytes())
    except ValidationError as e:
        raise typer.BadParameter(f"{file}: {said(e)}") from None


@template_app.command("push")
def push(
    template_id: str,
    file: File,
    publish: Annotated[
        bool, typer.Option("--publish", help="Make it the current version.")
    ] = False,
    key: Key = None,
    json_: Json = False,
) -> None:
    """Add a version from a JSON file: {parts, variables, default_locale}. The same content makes nothing new."""
    from schemas.api import TemplateVersionRequest

    request = _read(file, TemplateVersionRequest)
    if publish:
        request = request.model_copy(update={"publish": True})
    with connected() as client:
        show(client.create_template_version(template_id, request, key=new_key(key)), json_)


@template_app.command("publish")
def publish(template_id: str, version: int, json_: Json = False) -> None:
    """Make a version the current one."""
    with connected() as client:
        show(client.publish_template(template_id, version), json_)


@template_app.command("show")
def show_one(
    template_id: str,
    version: Annotated[int | None, typer.Option(help="The current one when not given.")] = None,
    json_: Json = False,
) -> None:
    """One version with its parts."""
    with connected() as client:
        show(client.template(template_id, version), json_)


@template_app.command("preview")
def preview(
    template_id: str,
    recipient: Annotated[str, typer.Option("--recipient", help="Recipient id.")],
    channel: Annotated[str, typer.Option(help="email, sms, apns or fcm.")],
    version: Annotated[int | None, typer.Option(help="The current one when not given.")] = None,
    var: Variable = None,
    json_: Json = False,
) -> None:
    """What this recipient would get, with its size and SMS segments. Nothing is sent."""
    from schemas.api import PreviewRequest
    from schemas.kinds import Channel

    if channel not in list(Channel):
        raise typer.BadParameter(f"choose from {', '.join(Channel)}", param_hint="--channel")
    request = PreviewRequest(
        recipient_id=recipient, channel=Channel(channel), variables=variables(var), version=version
    )
    with connected() as client:
        show(client.preview_template(template_id, request), json_)


@category_app.command("put")
def put_category(category: str, file: File, json_: Json = False) -> None:
    """Create or change one from a JSON file: {message_class, ladder, ttl_seconds, …}."""
    from schemas.api import CategoryRequest

    request = _read(file, CategoryRequest)
    with connected() as client:
        show(client.put_category(category, request), json_)


@category_app.command("show")
def show_category(category: str, json_: Json = False) -> None:
    """One category."""
    with connected() as client:
        show(client.category(category), json_)


@category_app.command("list")
def every_category(json_: Json = False) -> None:
    """All categories."""
    with connected() as client:
        page = client.categories()
    table(page.items, ("category", "message_class", "ladder", "ttl_seconds", "priority"), json_)
