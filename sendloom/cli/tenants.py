"""Commands that make the first tenant and its keys. They write to the store itself: without a key there is no API yet."""

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from sendloom.cli._client import Json, fail
from sendloom.cli._store import ACTOR, in_store

if TYPE_CHECKING:
    from sendloom.stores.audit import PostgresAudit
    from sendloom.stores.catalog import PostgresCatalog

tenant_app = typer.Typer(help="Customers or product teams.", no_args_is_help=True)
key_app = typer.Typer(help="API keys.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(tenant_app, name="tenant")
    app.add_typer(key_app, name="key")


@tenant_app.command("create")
def create_tenant(
    tenant: str,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    zone: Annotated[str, typer.Option(help="For recipients without one.")] = "UTC",
    locale: Annotated[str, typer.Option(help="For recipients without one.")] = "en",
    region: Annotated[
        str, typer.Option(help="Where a phone number without country code is.")
    ] = "US",
    email_from: Annotated[str | None, typer.Option(help="From address.")] = None,
    email_from_name: Annotated[str, typer.Option(help="From name.")] = "",
    sms_from: Annotated[str | None, typer.Option(help="Sender of texts.")] = None,
    sms_region: Annotated[
        list[str] | None,
        typer.Option(help="Regions passcodes to raw numbers may go to; may be repeated."),
    ] = None,
    approval_over: Annotated[
        int | None,
        typer.Option(min=0, help="Campaigns to more people than this need a second person."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(help="Agreed with a provider, a second: email=500; may be repeated."),
    ] = None,
    json_: Json = False,
) -> None:
    """Create a tenant, or change it."""
    import re

    from sendloom.domain.locales import validate_locale
    from sendloom.domain.zones import validate_zone
    from sendloom.errors import Refusal
    from sendloom.ports import Tenant

    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", tenant):
        raise typer.BadParameter("1 to 32 of a-z, 0-9 and '-'", param_hint="TENANT")
    rates = _rates(rate or [])
    try:
        validate_zone(zone)
        locale = validate_locale(locale)
    except Refusal as e:
        raise typer.BadParameter(f"{e.detail}; {e.fix}", param_hint=f"--{e.field}") from None

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> bool:
        from datetime import time

        known = await catalog.tenant(tenant)
        settings = dict(known.settings) if known is not None else {}
        if sms_region:
            settings["sms_regions"] = [one.upper() for one in sms_region]
        if approval_over is not None:
            settings["approval_over"] = approval_over
        if rates:
            settings["rates"] = {**settings.get("rates", {}), **rates}
        await catalog.put_tenant(
            Tenant(
                tenant=tenant,
                name=name or tenant,
                default_zone=zone,
                default_locale=locale,
                default_region=region.upper(),
                email_from=email_from,
                email_from_name=email_from_name or name,
                sms_from=sms_from,
                quiet_start=known.quiet_start if known else time(22),
                quiet_end=known.quiet_end if known else time(8),
                settings=settings,
                disabled=False,
            )
        )
        await audit.add(tenant, ACTOR, "tenant.put", tenant)
        return known is None

    created = in_store(work)
    if json_:
        typer.echo(json.dumps({"tenant": tenant, "created": created}))
    else:
        typer.echo(f"{tenant} is {'created' if created else 'changed'}")


def _rates(given: list[str]) -> dict[str, float]:
    from schemas.kinds import Channel

    rates = {}
    for one in given:
        channel, _, number = one.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if channel not in list(Channel) or not 0 < value < float("inf"):
            raise typer.BadParameter(f"{one!r} is not like email=500", param_hint="--rate")
        rates[channel] = value
    return rates


@tenant_app.command("list")
def every_tenant(json_: Json = False) -> None:
    """All tenants."""

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> list[tuple[str, str]]:
        return [(one.tenant, one.name) for one in await catalog.tenants()]

    for tenant, name in in_store(work):
        typer.echo(
            json.dumps({"tenant": tenant, "name": name}) if json_ else f"{tenant:<32}  {name}"
        )


@key_app.command("create")
def create_key(
    tenant: str,
    kind: Annotated[
        str,
        typer.Option(help="live; team reaches only internal recipients; with test nothing leaves."),
    ] = "live",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="send, campaigns, support, ops, admin; may be repeated. All if not given."
        ),
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Limit it to these; may be repeated.")
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="It ends after so many days.")] = None,
    label: Annotated[str, typer.Option(help="For people.")] = "",
    json_: Json = False,
) -> None:
    """Make a key. It is shown once; only a hash is kept."""
    from api.auth import KeyKind, Scope, bearer, hash_secret, new_credential
    from sendloom.ports import ApiKey

    if kind not in list(KeyKind):
        raise typer.BadParameter(f"choose from {', '.join(KeyKind)}", param_hint="--kind")
    unknown = set(scope or ()) - set(Scope)
    if unknown:
        raise typer.BadParameter(f"choose from {', '.join(Scope)}", param_hint="--scope")
    credential = new_credential(KeyKind(kind), tenant)
    scopes = frozenset(scope or Scope)

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> bool:
        if await catalog.tenant(tenant) is None:
            return False
        await catalog.add_key(
            ApiKey(
                tenant,
                credential.key_id,
                kind,
                frozenset(str(one) for one in scopes),
                frozenset(category) if category else None,
            ),
            hash_secret(credential.secret),
            label,
            datetime.now(UTC) + timedelta(days=days) if days else None,
        )
        await audit.add(tenant, ACTOR, "key.create", credential.key_id, {"kind": kind})
        return True

    if not in_store(work):
        fail(f"there is no tenant {tenant}; make it with `sendloom tenant create {tenant}`")
    if json_:
        typer.echo(
            json.dumps({"tenant": tenant, "key_id": credential.key_id, "key": bearer(credential)})
        )
    else:
        typer.echo(bearer(credential))


@key_app.command("revoke")
def revoke_key(tenant: str, key_id: str, json_: Json = False) -> None:
    """Stop a key at once."""

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> bool:
        revoked = await catalog.revoke_key(tenant, key_id)
        if revoked:
            await audit.add(tenant, ACTOR, "key.revoke", key_id)
        return revoked

    if not in_store(work):
        fail(f"{tenant} has no key {key_id} that is not revoked already")
    typer.echo(json.dumps({"revoked": key_id}) if json_ else f"{key_id} is revoked")


@key_app.command("list")
def every_key(tenant: str, json_: Json = False) -> None:
    """A tenant's keys, without their secrets."""

    async def work(catalog: "PostgresCatalog", audit: "PostgresAudit") -> list[dict[str, object]]:
        return [
            {
                "key_id": one.key.key_id,
                "kind": one.key.kind,
                "scopes": sorted(one.key.scopes),
                "categories": sorted(one.key.categories) if one.key.categories else None,
                "label": one.label,
                "expires_at": one.expires_at.isoformat() if one.expires_at else None,
                "revoked_at": one.revoked_at.isoformat() if one.revoked_at else None,
            }
            for one in await catalog.keys(tenant)
        ]

    for key in in_store(work):
        if json_:
            typer.echo(json.dumps(key))
        else:
            state = "revoked" if key["revoked_at"] else "ends " + str(key["expires_at"] or "never")
            typer.echo(f"{key['key_id']}  {key['kind']:<5}  {state}  {key['label']}")
