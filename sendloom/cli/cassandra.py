"""Cassandra on this machine, without the rest of the stack."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sendloom.embedded.state import StackState

cassandra_app = typer.Typer(help="Run Cassandra here, without a container.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(cassandra_app, name="cassandra")


@cassandra_app.command()
def up(
    nodes: Annotated[
        int, typer.Option(min=1, max=3, help="One node, or three on 127.0.0.1 to 127.0.0.3.")
    ] = 1,
) -> None:
    """Start one node or three; Ctrl-C stops them, their data stay in this home.

    Prints the value for SENDLOOM_CASSANDRA__HOSTS when all are ready.
    """
    from sendloom.embedded.run import run_cassandra
    from sendloom.platform import logging
    from sendloom.settings import settings_home

    logging.configure("supervisor")
    said: set[str] = set()

    def changed(state: "StackState") -> None:
        for name, part in state.parts.items():
            if part.state == "ready" and name not in said:
                said.add(name)
                typer.echo(f"{name} ready", err=True)
        if state.ready and "" not in said:
            said.add("")
            typer.echo(state.addresses["cassandra_hosts"])

    asyncio.run(run_cassandra(settings_home(), nodes, changed=changed))


@cassandra_app.command()
def fetch() -> None:
    """Only fetch Cassandra's jars into this user's cache, so that the next start is quick."""
    from sendloom.embedded.cassandra import fetch_jars, find_java

    typer.echo(find_java())
    typer.echo(fetch_jars())
