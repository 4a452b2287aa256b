"""Commands for what ended without success."""

from typing import Annotated
from uuid import UUID

import typer

from sendloom.cli._client import EXIT_REFUSED, Json, connected, done, show, table

dead_letter_app = typer.Typer(help="What ended without success.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(dead_letter_app, name="dead-letters")


@dead_letter_app.command("list")
def every(
    status: Annotated[str, typer.Option(help="open, replayed or discarded.")] = "open",
    limit: Annotated[int, typer.Option(min=1, max=200)] = 50,
    json_: Json = False,
) -> None:
    """Newest first."""
    with connected() as client:
        page = client.dead_letters(status=status, limit=limit)
    table(
        page.items,
        ("id", "kind", "recipient_id", "category", "channel", "state", "code", "last_error"),
        json_,
    )


@dead_letter_app.command("show")
def show_one(id: UUID, json_: Json = False) -> None:
    """One, with its last error."""
    with connected() as client:
        show(client.dead_letter(id), json_)


@dead_letter_app.command("replay")
def replay(
    id: Annotated[UUID | None, typer.Argument(help="One letter.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every open one.")] = False,
    json_: Json = False,
) -> None:
    """Send it again. With --all, what cannot be sent any more is left and counted; exits with 1 when there was any."""
    from sendloom.client import SendloomError

    if (id is None) != all_:
        raise typer.BadParameter("give an id or --all")
    with connected() as client:
        if id is not None:
            show(client.replay_dead_letter(id), json_)
            return
        replayed = left = 0
        after: UUID | None = None
        while True:
            page = client.dead_letters(limit=200, after=after)
            for letter in page.items:
                try:
                    client.replay_dead_letter(letter.id)
                    replayed += 1
                except SendloomError as e:
                    if e.status != 409:
                        raise
                    left += 1
            if page.next is None:
                break
            after = UUID(page.next)
    done(f"{replayed:,} replayed, {left:,} cannot be", json_, replayed=replayed, left=left)
    if left:
        raise typer.Exit(EXIT_REFUSED)


@dead_letter_app.command("discard")
def discard(id: UUID, json_: Json = False) -> None:
    """Let it go."""
    with connected() as client:
        show(client.discard_dead_letter(id), json_)
