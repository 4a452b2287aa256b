"""Commands for recipients, what they said they want, and suppressions."""

from typing import Annotated

import typer

from sendloom.cli._client import Json, connected, done, fail, show, table

recipient_app = typer.Typer(help="People, their addresses and preferences.", no_args_is_help=True)
suppression_app = typer.Typer(help="Addresses that must not be used.", no_args_is_help=True)

CHANNELS = ("email", "sms", "apns", "fcm", "*")


def register(app: typer.Typer) -> None:
    app.add_typer(recipient_app, name="recipient")
    app.add_typer(suppression_app, name="suppression")


@recipient_app.command("put")
def put(
    recipient_id: str,
    email: Annotated[str | None, typer.Option(help="Email address.")] = None,
    phone: Annotated[str | None, typer.Option(help="Phone number with country code.")] = None,
    verified: Annotated[
        bool, typer.Option("--verified", help="They have shown that the addresses are theirs.")
    ] = False,
    locale: Annotated[str | None, typer.Option(help="Language tag, pt-BR.")] = None,
    zone: Annotated[str | None, typer.Option(help="IANA zone, Europe/Paris.")] = None,
    internal: Annotated[bool | None, typer.Option(help="May receive test sends.")] = None,
    json_: Json = False,
) -> None:
    """Create a recipient, or change what is given."""
    from schemas.api import AddressBody, RecipientRequest

    given = {"locale": locale, "zone": zone, "internal": internal}
    body = {name: value for name, value in given.items() if value is not None}
    request = RecipientRequest.model_validate(body).model_copy(
        update={
            name: AddressBody(address=address, verified=verified)
            for name, address in (("email", email), ("phone", phone))
            if address is not None
        }
    )
    with connected() as client:
        show(client.put_recipient(recipient_id, request), json_)


@recipient_app.command("show")
def show_one(recipient_id: str, json_: Json = False) -> None:
    """What is known of them, without the addresses themselves."""
    with connected() as client:
        show(client.recipient(recipient_id), json_)


@recipient_app.command("messages")
def messages(
    recipient_id: str,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    json_: Json = False,
) -> None:
    """What was sent to them lately."""
    with connected() as client:
        page = client.recipient_messages(recipient_id, limit=limit)
    table(page.items, ("accepted_at", "kind", "category", "state", "reason", "id"), json_)


@recipient_app.command("erase")
def erase(
    recipient_id: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_: Json = False,
) -> None:
    """Remove everything personal. It cannot be undone."""
    if not yes and not typer.confirm(f"erase {recipient_id} for good?"):
        fail("nothing was erased")
    with connected() as client:
        client.erase_recipient(recipient_id)
    done(f"{recipient_id} is erased", json_, erased=recipient_id)


@recipient_app.command("opt-out")
def opt_out(
    recipient_id: str,
    category: Annotated[str, typer.Option(help="`*` is all marketing.")] = "*",
    channel: Annotated[str, typer.Option(help="`*` is all channels.")] = "*",
    json_: Json = False,
) -> None:
    """Write down that they do not want it; it holds at once."""
    _set(recipient_id, category, channel, True, json_)


@recipient_app.command("opt-in")
def opt_in(
    recipient_id: str,
    category: Annotated[str, typer.Option(help="`*` is all marketing.")] = "*",
    channel: Annotated[str, typer.Option(help="`*` is all channels.")] = "*",
    json_: Json = False,
) -> None:
    """Take an opt-out back. Consent is another matter: `recipient consent`."""
    _set(recipient_id, category, channel, False, json_)


def _set(recipient_id: str, category: str, channel: str, out: bool, as_json: bool) -> None:
    from schemas.api import PreferenceBody

    if channel not in CHANNELS:
        raise typer.BadParameter(f"choose from {', '.join(CHANNELS)}", param_hint="--channel")
    body = PreferenceBody.model_validate(
        {"category": category, "channel": channel, "opted_out": out, "source": "cli"}
    )
    with connected() as client:
        page = client.set_preferences(recipient_id, [body])
    table(page.items, ("category", "channel", "opted_out", "source", "changed_at"), as_json)


@recipient_app.command("preferences")
def preferences(recipient_id: str, json_: Json = False) -> None:
    """What they opted out of."""
    with connected() as client:
        page = client.preferences(recipient_id)
    table(page.items, ("category", "channel", "opted_out", "source", "changed_at"), json_)


@recipient_app.command("consent")
def consent(
    recipient_id: str,
    category: Annotated[str, typer.Option(help="What for.")],
    source: Annotated[str, typer.Option(help="Where it was given.")],
    wording: Annotated[str, typer.Option(help="The words they agreed to.")],
    channel: Annotated[str, typer.Option(help="`*` is all channels.")] = "*",
    withdraw: Annotated[bool, typer.Option("--withdraw", help="They took it back.")] = False,
    json_: Json = False,
) -> None:
    """Record a consent with its wording."""
    from schemas.api import ConsentBody

    body = ConsentBody.model_validate(
        {
            "category": category,
            "channel": channel,
            "granted": not withdraw,
            "source": source,
            "wording": wording,
        }
    )
    with connected() as client:
        page = client.record_consents(recipient_id, [body])
    table(page.items, ("category", "channel", "granted", "at", "source"), json_)


# --- suppressions ---------------------------------------------------------------------------------------------------


@suppression_app.command("add")
def add(
    channel: str,
    address: Annotated[
        str | None, typer.Argument(help="Asked for when not given, so that it stays out of ps.")
    ] = None,
    json_: Json = False,
) -> None:
    """Never write to it again. Only a keyed hash of it is kept."""
    from schemas.api import SuppressionBody

    given = address or typer.prompt("address")
    body = SuppressionBody.model_validate({"channel": channel, "address": given})
    with connected() as client:
        show(client.suppress(body), json_)


@suppression_app.command("remove")
def remove(
    channel: str,
    address: Annotated[str | None, typer.Argument(help="Asked for when not given.")] = None,
    json_: Json = False,
) -> None:
    """It may be written to again."""
    from schemas.api import SuppressionRef

    given = address or typer.prompt("address")
    ref = SuppressionRef.model_validate({"channel": channel, "address": given})
    with connected() as client:
        client.unsuppress(ref)
    done("removed", json_, removed=True)


@suppression_app.command("list")
def every(limit: Annotated[int, typer.Option(min=1, max=1000)] = 100, json_: Json = False) -> None:
    """Hashes only."""
    with connected() as client:
        page = client.suppressions(limit=limit)
    table(page.items, ("channel", "address_hash", "reason", "source", "at"), json_)
