"""One-time passcodes: send, check, send again, cancel. The code is never told, logged or shown."""

import asyncio
import math
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from activities.passcodes import passcode_row
from api import accept
from api.accept import Ask, Found
from api.auth import Caller
from api.deps import IdempotencyKey, Parts, PartsDep, Reader, Sender
from api.errors import Limited
from api.ports import Gone, TooLate
from api.timing import timely, within
from api.views import decision_key, find_row, message_status
from schemas.api import (
    REPLAY_HEADER,
    WAIT_SECONDS,
    CancelBody,
    CheckAnswer,
    CheckBody,
    PasscodeAccepted,
    PasscodeRequest,
    PasscodeStatus,
    ResendAnswer,
)
from schemas.content import Content
from schemas.kinds import Channel, Kind, MessageClass, Mode, RecipientState
from schemas.notifications import CheckResult, PasscodeInput
from sendloom.domain import passcodes as rules
from sendloom.domain.addresses import NormalAddress, normalise
from sendloom.domain.budgets import PASSCODE_DIGITS_MIN, PASSCODE_TTL_MAX
from sendloom.domain.outcomes import OPEN
from sendloom.errors import Refusal
from sendloom.ports import AcceptedRow, PasscodeRow

router = APIRouter(prefix="/v1/passcodes", tags=["passcodes"])

OURS = ("code",)
"""The variable that we fill in."""

VERIFY_WINDOW = timedelta(hours=1)
VERIFY_PER_ADDRESS = 5
"""An hour, for one address; a tenant's `verify_per_address` overrides it."""
VERIFY_PER_TENANT = 2000
"""An hour; a tenant's `verify_per_tenant` overrides it."""


@router.post("", status_code=202)
async def create(
    request: Request,
    response: Response,
    body: PasscodeRequest,
    caller: Sender,
    parts: PartsDep,
    key: IdempotencyKey,
    wait: Annotated[
        float, Query(ge=0, le=WAIT_SECONDS, description="Seconds to wait for the provider.")
    ] = 0,
) -> PasscodeAccepted:
    """Send a passcode. With `wait` the answer carries what the provider said, if it said it in time."""
    ask = Ask(caller, Kind.PASSCODE, key, await request.body(), accept.now())
    began = time.monotonic()
    row, replayed = await within(_take_on(parts, ask, body))
    if replayed:
        response.headers[REPLAY_HEADER] = "true"
    status = await _wait_for_provider(parts, row, began + wait) if wait else None
    return PasscodeAccepted(**accept.answer(row, replayed), status=status)


async def _take_on(parts: Parts, ask: Ask, body: PasscodeRequest) -> tuple[AcceptedRow, bool]:
    caller = ask.caller

    async def read() -> Found:
        return await accept.find(parts, caller, body.category, body.template_id, body.recipient_id)

    async def make(found: Found) -> AcceptedRow:
        category = found.category
        if category.message_class is not MessageClass.SECURITY:
            raise Refusal(
                "security_only",
                f"{category.category} is {category.message_class}",
                field="category",
            )
        parts.leave_room(caller, category)
        expires_at = ask.now + _ttl(body.ttl_seconds, category.ttl_seconds)
        variables = {name: v for name, v in body.variables.items() if name not in OURS}
        accept.require_variables(parts, caller, found, variables, OURS)
        address = _to_verify(caller, body)
        channels = accept.usable(found, verifying=body.verify.channel if body.verify else None)
        code = rules.validate_code(body.code) if body.code is not None else _draw(caller.mode)
        verifying: dict[str, Any] = {}
        recipient_id = body.recipient_id
        if address is not None:
            hashed = parts.address_hash(caller.id, address.channel, address.lookup)
            await _limit_verifications(parts, caller, ask.now, hashed)
            verifying = {
                "verify_channel": address.channel,
                "verify_address": address.deliverable,
            }
            # Nobody we know yet: the id that a list would give them.
            recipient_id = recipient_id or f"{address.channel}-{hashed.hex()}"
        assert recipient_id is not None
        given = PasscodeInput(
            tenant=caller.id,
            mode=caller.mode,
            notification_id=ask.id,
            recipient_id=recipient_id,
            category=category.category,
            message_class=category.message_class,
            accepted_at=ask.now,
            expires_at=expires_at,
            priority=category.priority,
            max_checks=body.max_checks,
        )
        return accept.new_row(
            ask,
            category,
            recipient_id=recipient_id,
            correlation_id=body.correlation_id,
            expires_at=expires_at,
            workflow_input=given.model_dump_json().encode(),
            content=accept.content(
                found,
                body.template_id,
                variables,
                accept.stamped(parts, caller, found, channels),
                secret=code,
                origin=body.origin,
                **verifying,
            ),
        )

    row, replayed = await accept.accept(parts, ask, read, make)
    if row.started_at is None:
        # From the stored row, whose code is the first one drawn for this key.
        await parts.passcodes.insert(_row(parts, row))
    await accept.start(parts, row)
    return row, replayed


def _draw(mode: Mode) -> str:
    """Test keys get a fixed code, so that a caller can test without reading messages (PASS-6)."""
    if mode is Mode.TEST:
        return rules.fixed_code()
    return rules.draw_code(PASSCODE_DIGITS_MIN, secrets.randbelow)


def _ttl(asked: int | None, category_seconds: int) -> timedelta:
    if asked is None:
        return min(timedelta(seconds=category_seconds), PASSCODE_TTL_MAX)
    if asked <= 0:
        raise Refusal("ttl_expired", "it would have expired already", field="ttl_seconds")
    return rules.validate_ttl(timedelta(seconds=min(asked, 86_400)))


def _to_verify(caller: Caller, body: PasscodeRequest) -> NormalAddress | None:
    if body.verify is None:
        return None
    address = normalise(
        body.verify.channel,
        body.verify.address,
        default_region=caller.tenant.default_region,
        field="verify.address",
    )
    if address.channel is Channel.SMS:
        allowed = caller.tenant.settings.get("sms_regions") or [caller.tenant.default_region]
        if address.region not in allowed:
            raise Refusal(
                "region_not_allowed",
                f"numbers of {address.region or 'an unknown region'} are not written to",
                field="verify.address",
            )
    return address


async def _limit_verifications(
    parts: Parts, caller: Caller, now: datetime, address_hash: bytes
) -> None:
    """Counted in SQL, so that losing Redis loses no count. The address itself is in neither name."""
    settings = caller.tenant.settings
    subjects = (
        (f"verify:{address_hash.hex()}", settings.get("verify_per_address", VERIFY_PER_ADDRESS)),
        ("verify", settings.get("verify_per_tenant", VERIFY_PER_TENANT)),
    )
    for subject, limit in subjects:
        ends = await parts.limits.take(caller.id, subject, int(limit), VERIFY_WINDOW)
        if ends is not None:
            raise Limited(
                "verify_rate_limited",
                "too many passcodes were sent to unverified addresses",
                {"Retry-After": str(max(1, math.ceil((ends - now).total_seconds())))},
                field="verify.address",
            )


def _row(parts: Parts, row: AcceptedRow) -> PasscodeRow:
    return passcode_row(row, parts.hashes.passcode_hash)


async def _wait_for_provider(parts: Parts, row: AcceptedRow, until: float) -> PasscodeStatus:
    """Look at our own rows until a provider has answered, or time is up."""
    key, pause = decision_key(row), 0.01
    while True:
        decision = await parts.decisions.read(key)
        settled = decision is not None and decision.state not in OPEN
        if not settled and decision is not None:
            claims = await parts.ledger.of_campaign(row.tenant, row.accepted_at, row.id)
            settled = decision.state is RecipientState.DEFERRED or any(
                claim.provider_message_id is not None for claim in claims
            )
        if settled or time.monotonic() + pause >= until:
            return await _status(parts, row)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)


@router.get("/{id}")
@timely
async def show(id: UUID, caller: Reader, parts: PartsDep) -> PasscodeStatus:
    """Where it is, and how many checks are left."""
    return await _status(parts, await find_row(parts, caller, Kind.PASSCODE, id))


async def _status(parts: Parts, row: AcceptedRow) -> PasscodeStatus:
    message, stored = await asyncio.gather(
        message_status(parts, row), parts.passcodes.get(row.tenant, row.id)
    )
    passcode = stored or _row(parts, row)
    return PasscodeStatus(
        **message.model_dump(),
        passcode=_word(passcode, datetime.now(UTC)),
        attempts_left=max(passcode.checks_left, 0),
        send_no=passcode.send_no,
    )


def _word(p: PasscodeRow, now: datetime) -> Any:
    if p.used_at is not None:
        return "used"
    if p.cancelled_at is not None:
        return "cancelled"
    if now >= p.expires_at:
        return "expired"
    return "max_attempts" if p.checks_left <= 0 else "open"


@router.post("/{id}/check")
async def check(id: UUID, body: CheckBody, caller: Sender, parts: PartsDep) -> CheckAnswer:
    """Compare a code. Every call counts, before anything is compared; a code works once."""
    row = await find_row(parts, caller, Kind.PASSCODE, id)
    try:
        result = await parts.workflows.check_passcode(id, body.code)
    except Gone:
        result = await _check_by_row(parts, row, body.code)
    if result.result == "approved":
        await _mark_verified(parts, row)
    return CheckAnswer(
        result=result.result,
        approved=result.result == "approved",
        attempts_left=result.attempts_left,
    )


async def _check_by_row(parts: Parts, row: AcceptedRow, code: str) -> CheckResult:
    """The same check without the workflow: it has ended, or Temporal lost it. The row is the truth."""
    await parts.passcodes.insert(_row(parts, row))
    taken = await parts.passcodes.take_check(row.tenant, row.id)
    assert taken is not None
    result = rules.judge(
        rules.Challenge(
            code_hmac=taken.code_hmac,
            checks_left=taken.checks_left,
            expires_at=taken.expires_at,
            used=taken.used_at is not None,
            cancelled=taken.cancelled_at is not None,
        ),
        parts.hashes.passcode_hash(row.tenant, row.id, rules.entered(code)),
        datetime.now(UTC),
    )
    if result.result == "approved" and not await parts.passcodes.mark_used(row.tenant, row.id):
        return CheckResult(result="used", attempts_left=result.attempts_left)
    return result


async def _mark_verified(parts: Parts, row: AcceptedRow) -> None:
    """Whoever read the code holds the address it went to."""
    content = Content.model_validate_json(row.content)
    if content.verify_channel is None or content.verify_address is None or not row.recipient_id:
        return
    lookup = normalise(content.verify_channel, content.verify_address).lookup
    await parts.recipients.verify_address(
        row.tenant,
        row.recipient_id,
        content.verify_channel,
        parts.address_hash(row.tenant, content.verify_channel, lookup),
    )


@router.post("/{id}/resend")
async def resend(id: UUID, caller: Sender, parts: PartsDep, key: IdempotencyKey) -> ResendAnswer:
    """The same code again, where the last one went. The count of checks stays as it is."""
    await find_row(parts, caller, Kind.PASSCODE, id)
    try:
        return ResendAnswer(send_no=await parts.workflows.resend_passcode(id, key))
    except (Gone, TooLate) as e:
        raise Refusal("too_late", str(e) or "it has ended", status=409) from None


@router.post("/{id}/cancel")
async def cancel(id: UUID, body: CancelBody, caller: Sender, parts: PartsDep) -> PasscodeStatus:
    """The code stops working at once."""
    row = await find_row(parts, caller, Kind.PASSCODE, id)
    try:
        await parts.workflows.cancel_passcode(id, body.reason, caller.actor)
    except TooLate as e:
        raise Refusal("too_late", str(e), status=409) from None
    except Gone:
        await parts.passcodes.insert(_row(parts, row))
        if not await parts.passcodes.cancel(caller.id, id):
            raise Refusal("too_late", "it was used or has expired", status=409) from None
    return await _status(parts, row)
