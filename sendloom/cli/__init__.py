"""The `sendloom` command.

Each module of this package that has a `register(app)` adds its commands. Modules import what is heavy inside their
commands, so that `sendloom --help` and a worker's start stay quick.
"""

import importlib
import pkgutil

import typer


def build_app() -> typer.Typer:
    """Every command there is."""
    app = typer.Typer(
        name="sendloom",
        help="A multi-channel notification platform in which every message is a Temporal workflow.",
        no_args_is_help=True,
        add_completion=False,
        # A traceback with locals would print settings.
        pretty_exceptions_enable=False,
    )
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        if module.startswith("_"):
            continue
        register = getattr(importlib.import_module(f"{__name__}.{module}"), "register", None)
        if register is not None:
            register(app)
    return app


def main() -> None:
    """Run a command. What an operator must fix (78) or wait for (75) is one clear message, never a traceback."""
    from pydantic import ValidationError

    from sendloom.errors import ConfigurationError, SchemaTooOld, Transient

    try:
        build_app()()
    except ValidationError as e:
        # A request is what was typed; anything else is an answer or our own mistake.
        if not e.title.endswith(("Request", "Body")):
            raise
        from sendloom.cli._client import said

        typer.secho(f"sendloom: {said(e)}", fg="red", err=True)
        raise SystemExit(2) from None
    except (ConfigurationError, SchemaTooOld, Transient) as e:
        from sendloom.platform.process import EXIT_CONFIGURATION, EXIT_TRY_AGAIN

        typer.secho(f"sendloom: {e}", fg="red", err=True)
        raise SystemExit(
            EXIT_TRY_AGAIN if isinstance(e, Transient) else EXIT_CONFIGURATION
        ) from None
