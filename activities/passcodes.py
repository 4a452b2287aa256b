"""Checking, resending and cancelling one passcode. The code itself is nowhere here but in the request that offers it."""

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from temporalio import activity
from temporalio.exceptions import ApplicationError

from schemas.content import Content
from schemas.notifications import (
    CheckPasscode,
    CheckResult,
    PasscodeInput,
    PasscodeRef,
    ResendPasscode,
)
from sendloom.domain.passcodes import Challenge, entered, judge, may_resend
from sendloom.ports import AcceptedRow, PasscodeRow, PasscodeStore

HashCode = Callable[[str, UUID, str], bytes]
"""(tenant, passcode id, code) → what is stored of it."""


class PasscodeActivities:
    def __init__(
        self,
        *,
        passcodes: PasscodeStore,
        hash_code: HashCode,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._passcodes = passcodes
        self._hash_code = hash_code
        self._now = now

    @activity.defn(name="passcode.check")
    async def check(self, request: CheckPasscode) -> CheckResult:
        """Counts the attempt durably, then compares in constant time, then lets exactly one right answer win."""
        row = await self._passcodes.take_check(request.tenant, request.id)
        if row is None:
            return CheckResult(result="expired", attempts_left=0)  # purged long ago
        offered = self._hash_code(request.tenant, request.id, entered(request.code))
        result = judge(_challenge(row), offered, self._now())
        if result.result == "approved" and not await self._passcodes.mark_used(
            request.tenant, request.id
        ):
            return CheckResult(result="used", attempts_left=result.attempts_left)
        return result

    @activity.defn(name="passcode.resend")
    async def resend(self, request: ResendPasscode) -> int:
        """The send number of this key. A code that could not be used any more is not sent again."""
        row = await self._passcodes.get(request.tenant, request.id)
        why = may_resend(_challenge(row), self._now()) if row else None
        if row is None or why is not None:
            because = why.result if why else "expired"
            raise ApplicationError(f"cannot resend: {because}", type="TooLate", non_retryable=True)
        return await self._passcodes.take_resend(request.tenant, request.id, request.key)

    @activity.defn(name="passcode.cancel")
    async def cancel(self, request: PasscodeRef) -> bool:
        """Whether it is cancelled now; False: it had been used before."""
        if await self._passcodes.cancel(request.tenant, request.id):
            return True
        row = await self._passcodes.get(request.tenant, request.id)
        return row is not None and row.cancelled_at is not None


def passcode_row(row: AcceptedRow, hash_code: HashCode) -> PasscodeRow:
    """What `check` goes by, from what was accepted; for whoever finishes an accept that a crash cut short."""
    given = PasscodeInput.model_validate_json(row.workflow_input)
    # After some days the code is forgotten; what nobody can be right about has long expired.
    secret = Content.model_validate_json(row.content).secret if row.content else None
    return PasscodeRow(
        tenant=row.tenant,
        id=row.id,
        code_hmac=hash_code(row.tenant, row.id, entered(secret or "")),
        checks_left=given.max_checks,
        send_no=1,
        created_at=row.accepted_at,
        expires_at=row.expires_at,
        used_at=None,
        cancelled_at=None,
    )


def _challenge(row: PasscodeRow) -> Challenge:
    return Challenge(
        code_hmac=row.code_hmac,
        checks_left=row.checks_left,
        expires_at=row.expires_at,
        used=row.used_at is not None,
        cancelled=row.cancelled_at is not None,
    )
