"""Taking a request on, once: check, remember, start, mark. What it promises is durable before anybody hears of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import orjson

from api.auth import Caller, KeyKind
from api.deps import Parts
from api.timing import forget
from schemas.api import AcceptedAnswer, Variables
from schemas.content import Content
from schemas.kinds import Channel, Kind, MessageClass
from sendloom.domain.ids import derived_id
from sendloom.domain.rendering import MissingVariable
from sendloom.domain.same_body import require_same_body
from sendloom.errors import Refusal
from sendloom.platform.metrics.http import record_replay
from sendloom.ports import AcceptedRow, Category, Person, TemplateParts

F = TypeVar("F")


def canonical(body: bytes) -> bytes:
    """The same for bodies that say the same: key order and white space do not count.

    Raises:
        Refusal: `invalid_body`.
    """
    try:
        return orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        raise Refusal("invalid_body", "the body is not JSON", fix="Send one JSON object.") from None


@dataclass(frozen=True, slots=True)
class Ask:
    """One create request: who, what kind, under which key, with which body."""

    caller: Caller
    kind: Kind
    key: str
    body: bytes
    now: datetime

    @property
    def id(self) -> UUID:
        return derived_id(self.kind, self.caller.id, self.caller.mode, self.key)


@dataclass(frozen=True, slots=True)
class Found:
    """What a message is made of, as it is at accept."""

    category: Category
    parts: list[TemplateParts]
    person: Person | None

    @property
    def channels(self) -> list[Channel]:
        """The ladder's channels that the template has content for."""
        written = {part.channel for part in self.parts}
        return [channel for channel in self.category.ladder if channel in written]


async def accept(
    parts: Parts,
    ask: Ask,
    read: Callable[[], Awaitable[F]],
    make: Callable[[F], Awaitable[AcceptedRow]],
) -> tuple[AcceptedRow, bool]:
    """The accepted row, and whether it was there before.

    `read` gathers what is needed, `make` refuses or makes the row. A repeat is answered from the row alone: it must succeed
    also when the template or the recipient has gone since.

    Raises:
        Refusal: with nothing written.
        Transient: the same key is safe to repeat.
    """
    hashed = parts.hashes.body_hash(ask.caller.id, canonical(ask.body))
    reading = asyncio.ensure_future(read())
    try:
        stored = await parts.accepted.get(ask.caller.id, ask.id)
        replayed = stored is not None
        if stored is None:
            row = await make(await reading)
            row, replayed = await parts.accepted.insert_or_match(replace(row, body_hmac=hashed))
        else:
            require_same_body(stored.body_hmac, hashed)
            row = stored
    finally:
        forget(reading)
    if replayed:
        record_replay(ask.kind)
    return row, replayed


def new_row(ask: Ask, category: Category, **more: Any) -> AcceptedRow:
    """A row of this request. Its body hash is put in by `accept`."""
    return AcceptedRow(
        tenant=ask.caller.id,
        id=ask.id,
        mode=ask.caller.mode,
        kind=ask.kind,
        idempotency_key=ask.key,
        body_hmac=b"",
        message_class=category.message_class,
        category=category.category,
        accepted_at=ask.now,
        **more,
    )


async def start(parts: Parts, row: AcceptedRow) -> None:
    """Start what was accepted, unless that is done. A crash before it, or a lost mark, is made good by the sweeper."""
    if row.started_at is not None or row.closed_at is not None:
        return
    await parts.workflows.start(row)
    await parts.accepted.mark_started(row.tenant, row.id)


async def find(
    parts: Parts, caller: Caller, category: str, template_id: str, recipient_id: str | None
) -> Found:
    """Category, template and recipient, read at the same time.

    Raises:
        Refusal: one of them does not exist.
    """
    caller.require_category(category)
    people: Awaitable[list[Person]] = (
        parts.people.people(caller.id, category, [recipient_id], False, unread=True)
        if recipient_id is not None
        else _nobody()
    )
    found, template, persons = await asyncio.gather(
        parts.catalog.category(caller.id, category),
        parts.catalog.template_parts(caller.id, template_id, None),
        people,
    )
    if found is None:
        raise Refusal("unknown_category", f"there is no category {category}", field="category")
    if not template:
        raise Refusal(
            "unknown_template",
            f"there is no published template {template_id}",
            field="template_id",
        )
    person = persons[0] if persons else None
    if person is not None and (not person.exists or person.erased):
        raise Refusal("unknown_recipient", "there is no such recipient", field="recipient_id")
    if recipient_id is not None and caller.key.kind == KeyKind.TEAM:
        await require_internal(parts, caller, recipient_id)
    return Found(found, template, person)


async def _nobody() -> list[Person]:
    return []


async def require_internal(parts: Parts, caller: Caller, recipient_id: str) -> None:
    """
    Raises:
        Refusal: `recipient_not_internal`; also for somebody who is not there.
    """
    recipient = await parts.recipients.get(caller.id, recipient_id)
    if recipient is None or not recipient.internal:
        raise Refusal(
            "recipient_not_internal",
            "only recipients marked internal can be reached this way",
            field="recipient_id",
            status=403,
        )


def require_variables(
    parts: Parts, caller: Caller, found: Found, variables: Variables, ours: tuple[str, ...] = ()
) -> None:
    """Every variable that a part of the template on the ladder needs, with a value that can be shown; `ours` we fill in.

    Raises:
        Refusal: `missing_variable`, `bad_variable`.
    """
    filled: Mapping[str, Any] = {**variables, **dict.fromkeys(ours, "0")}
    for part in found.parts:
        if part.channel in found.category.ladder:
            for name in parts.compiled.of(caller.id, part).missing(filled):
                raise MissingVariable(name)


def usable(found: Found, *, verifying: Channel | None = None) -> list[Channel]:
    """The channels a message could leave on as things are. Suppressions and opt-outs are for the gates, which record why.

    Raises:
        Refusal: `no_usable_channel`.
    """
    person = found.person
    channels = [
        channel
        for channel in found.channels
        if channel is verifying
        or (
            person is not None
            and verifying is None
            and (
                any(device.channel is channel for device in person.devices)
                or (
                    (address := person.addresses.get(channel)) is not None
                    and address.dead_reason is None
                )
            )
        )
    ]
    if not channels:
        raise Refusal(
            "no_usable_channel",
            "the recipient has no live address or device on any channel that the category's ladder and the "
            "template have in common",
            field="recipient_id" if verifying is None else "verify.channel",
        )
    return channels


def expiry(now: datetime, ttl_seconds: int | None, category: Category) -> datetime:
    """When it can no longer help.

    Raises:
        Refusal: `ttl_expired`, `bad_ttl`.
    """
    seconds = category.ttl_seconds if ttl_seconds is None else ttl_seconds
    if seconds <= 0:
        raise Refusal("ttl_expired", "it would have expired already", field="ttl_seconds")
    if seconds > TTL_MAX_SECONDS:
        raise Refusal(
            "bad_ttl", f"at most {TTL_MAX_SECONDS} seconds are allowed", field="ttl_seconds"
        )
    return now + timedelta(seconds=seconds)


TTL_MAX_SECONDS = 30 * 86_400
"""No longer than claims and idempotency keys are kept for certain."""


def stamped(parts: Parts, caller: Caller, found: Found, channels: list[Channel]) -> dict[str, Any]:
    """What security falls back on when profiles cannot be read later (POL-7)."""
    person = found.person
    if person is None:
        return {}
    stamps: dict[str, Any] = {"locale": person.locale}
    if found.category.message_class is MessageClass.SECURITY:
        verified = {
            channel: person.addresses[channel]
            for channel in channels
            if channel in person.addresses
            and person.addresses[channel].verified
            and channel not in person.suppressed
        }
        stamps["verified_channels"] = list(verified)
        stamps["verified_addresses"] = {
            channel: parts.open_address(caller.id, address.sealed)
            for channel, address in verified.items()
        }
    return stamps


def content(
    found: Found, template_id: str, variables: Variables, stamps: Mapping[str, Any], **more: Any
) -> bytes:
    """The sealed half of the accepted row."""
    return (
        Content(
            template_id=template_id,
            template_version=found.parts[0].version,
            variables=variables,
            **stamps,
            **more,
        )
        .model_dump_json()
        .encode()
    )


def answer(row: AcceptedRow, replayed: bool) -> dict[str, Any]:
    """The fields of every 202."""
    return AcceptedAnswer(
        id=row.id,
        kind=row.kind,
        status_url=status_url(row.kind, row.id),
        replayed=replayed,
        accepted_at=row.accepted_at,
        expires_at=row.expires_at,
    ).model_dump()


def status_url(kind: Kind, id: UUID) -> str:
    return f"/v1/{kind}s/{id}"


def now() -> datetime:
    return datetime.now(UTC)
