"""Kill switches. They write to the store itself: they must work when the API does not."""

import getpass
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sendloom.cli._client import Json, done, fail
from sendloom.cli._store import ACTOR, in_store

if TYPE_CHECKING:
    from sendloom.rows import KillSwitch
    from sendloom.stores.audit import PostgresAudit
    from sendloom.stores.catalog import PostgresCatalog

switch_app = typer.Typer(
    help="Kill switches: what is on is not sent, passcodes included.", no_args_is_help=True
)


class SwitchScope(StrEnum):
    """What one switch stops, always of one tenant."""

    TENANT = "tenant"
    CATEGORY = "category"
    LANE = "lane"
    CAMPAIGN = "campaign"


Name = Annotated[
    str | None,
    typer.Argument(help="Which category, lane (its queue) or campaign; none for the tenant."),
]
By = Annotated[
    str | None, typer.Option("--by", help="Who does this; the user of this machine if not given.")
]


def register(app: typer.Typer) -> None:
    app.add_typer(switch_app, name="switch")


@switch_app.command("on")
def on(
    tenant: str,
    scope: SwitchScope,
    name: Name = None,
    *,
    reason: Annotated[
        str, typer.Option("--reason", help="Kept with the switch and with the audit row.")
    ],
    by: By = None,
    json_: Json = False,
) -> None:
    """Stop a tenant, category, lane or campaign. One that is on already gets the new reason."""
    target, who = _target(tenant, scope, name, new=True), _who(by)
    if not reason.strip():
        raise typer.BadParameter("say why", param_hint="--reason")

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> str | None:
        if await catalog.tenant(tenant) is None:
            return f"there is no tenant {tenant}"
        if scope == SwitchScope.CATEGORY and await catalog.category(tenant, target) is None:
            return f"{tenant} has no category {target}"
        await catalog.switch_on(tenant, scope, target, reason, who)
        detail = {"scope": str(scope), "by": who, "reason": reason}
        await audit.add(tenant, ACTOR, "switch.on", target, detail)
        return None

    if (wrong := in_store(work)) is not None:
        fail(wrong)
    done(f"{scope} {target} is stopped", json_, tenant=tenant, scope=scope, name=target, on=True)


@switch_app.command("off")
def off(
    tenant: str,
    scope: SwitchScope,
    name: Name = None,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the audit row.")] = "",
    by: By = None,
    json_: Json = False,
) -> None:
    """Let it go on."""
    target, who = _target(tenant, scope, name, new=False), _who(by)

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> bool:
        was_on = await catalog.switch_off(tenant, scope, target)
        if was_on:
            detail = {"scope": str(scope), "by": who, "reason": reason}
            await audit.add(tenant, ACTOR, "switch.off", target, detail)
        return was_on

    if not in_store(work):
        fail(f"{tenant} has no switch {scope} {target}; `sendloom switch list {tenant}` shows all")
    done(f"{scope} {target} goes on", json_, tenant=tenant, scope=scope, name=target, on=False)


@switch_app.command("list")
def every(tenant: str, json_: Json = False) -> None:
    """What is stopped, oldest first."""

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> "list[KillSwitch] | None":
        if await catalog.tenant(tenant) is None:
            return None
        return await catalog.kill_switches(tenant)

    switches = in_store(work)
    if switches is None:
        fail(f"there is no tenant {tenant}")
    for one in switches:
        at = one.at.isoformat(timespec="seconds")
        if json_:
            row = {"scope": one.scope, "name": one.name, "reason": one.reason}
            typer.echo(json.dumps({**row, "by": one.by, "at": at}))
        else:
            typer.echo(f"{at}  {one.scope:<8}  {one.name}  {one.by}: {one.reason}")


def _target(tenant: str, scope: SwitchScope, name: str | None, *, new: bool) -> str:
    """The name as senders compare it; a new one is checked, because a switch that nobody meets looks like one that works."""
    from sendloom.domain.lanes import LANES

    if scope == SwitchScope.TENANT:
        if new and name not in (None, tenant):
            raise typer.BadParameter("the scope tenant takes no name", param_hint="NAME")
        # Senders ignore it, so one that was written by hand may have any.
        return name or tenant
    if not name:
        raise typer.BadParameter(f"say which {scope}", param_hint="NAME")
    if scope == SwitchScope.CAMPAIGN:
        try:
            return str(UUID(name))
        except ValueError:
            raise typer.BadParameter("not a campaign id", param_hint="NAME") from None
    queues = sorted(lane.queue for lane in LANES.values())
    if new and scope == SwitchScope.LANE and name not in queues:
        raise typer.BadParameter(f"choose from {', '.join(queues)}", param_hint="NAME")
    return name


def _who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        raise typer.BadParameter("say who does this", param_hint="--by") from None
