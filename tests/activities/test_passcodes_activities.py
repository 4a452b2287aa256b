"""Checking a passcode: counted before compared, won once, over when it is over. The vectors are providers.md's, section 7."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from schemas.notifications import CheckPasscode, CheckResult, PasscodeRef, ResendPasscode
from tests.activities.running import environment
from tests.builders import CODE, World, a_content, a_passcode


class Passcode:
    """One accepted passcode and what callers do with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.p = a_passcode()
        self.ref = PasscodeRef(
            tenant=self.p.tenant, id=self.p.notification_id, expires_at=self.p.expires_at
        )

    async def accepted(self, code: str = CODE) -> "Passcode":
        await self.world.accept(self.p, a_content(secret=code))
        return self

    async def check(self, code: str) -> CheckResult:
        request = CheckPasscode(**self.ref.model_dump(), code=code)
        return await environment().run(self.world.checking().check, request)

    async def resend(self, key: str) -> int:
        request = ResendPasscode(**self.ref.model_dump(), key=key)
        return await environment().run(self.world.checking().resend, request)

    async def cancel(self) -> bool:
        return await environment().run(self.world.checking().cancel, self.ref)


async def test_the_right_code_is_approved_once():
    passcode = await Passcode(World()).accepted()
    assert await passcode.check(CODE) == CheckResult(result="approved", attempts_left=4)
    assert (await passcode.check(CODE)).result == "used"


async def test_five_wrong_a_resend_and_one_more_is_still_locked():
    passcode = await Passcode(World()).accepted()
    for left in (4, 3, 2, 1):
        assert await passcode.check("000000") == CheckResult(result="wrong", attempts_left=left)
    await passcode.resend("again")
    assert await passcode.check("000000") == CheckResult(result="wrong", attempts_left=0)
    assert await passcode.check(CODE) == CheckResult(result="max_attempts", attempts_left=0)
    with pytest.raises(ApplicationError) as e:
        await passcode.resend("once more")
    assert (e.value.type, e.value.non_retryable) == ("TooLate", True)


async def test_a_code_is_good_for_599_seconds_and_not_for_601():
    world = World()
    early, late = await Passcode(world).accepted(), await Passcode(world).accepted()
    world.clock.advance(timedelta(seconds=599))
    assert (await early.check(CODE)).result == "approved"
    world.clock.advance(timedelta(seconds=2))
    assert (await late.check(CODE)).result == "expired"


async def test_two_right_checks_at_once_have_one_winner():
    passcode = await Passcode(World()).accepted()
    results = await asyncio.gather(passcode.check(CODE), passcode.check(CODE))
    assert sorted(r.result for r in results) == ["approved", "used"]


async def test_two_wrong_checks_at_once_cost_two_attempts():
    passcode = await Passcode(World()).accepted()
    results = await asyncio.gather(passcode.check("111111"), passcode.check("222222"))
    assert sorted(r.attempts_left for r in results) == [3, 4]


async def test_the_attempt_is_counted_before_anything_is_compared():
    world = World()
    passcode = await Passcode(world).accepted()
    world.passcodes.down_for.add("mark_used")
    with pytest.raises(Exception, match="mark_used"):
        await passcode.check(CODE)
    world.passcodes.down_for.clear()
    assert await passcode.check(CODE) == CheckResult(result="approved", attempts_left=3)


async def test_leading_zeros_survive():
    passcode = await Passcode(World()).accepted("000123")
    assert (await passcode.check("123")).result == "wrong"
    assert (await passcode.check("000123")).result == "approved"


async def test_a_code_typed_with_spaces_is_the_code():
    passcode = await Passcode(World()).accepted()
    assert (await passcode.check(f"{CODE[:3]} {CODE[3:]}")).result == "approved"


async def test_a_resend_key_gives_the_same_number_again():
    passcode = await Passcode(World()).accepted()
    assert await passcode.resend("a") == 2
    assert await passcode.resend("a") == 2
    assert await passcode.resend("b") == 3


async def test_a_cancelled_code_is_refused_and_not_resent():
    passcode = await Passcode(World()).accepted()
    assert await passcode.cancel() is True
    assert await passcode.cancel() is True
    assert (await passcode.check(CODE)).result == "cancelled"
    with pytest.raises(ApplicationError):
        await passcode.resend("a")


async def test_a_used_code_cannot_be_cancelled():
    passcode = await Passcode(World()).accepted()
    await passcode.check(CODE)
    assert await passcode.cancel() is False


async def test_what_is_stored_does_not_say_the_code():
    world = World()
    passcode = await Passcode(world).accepted()
    row = world.passcodes.rows[passcode.p.tenant, passcode.p.notification_id]
    assert CODE.encode() not in row.code_hmac
    other = await Passcode(world).accepted()
    same_code = world.passcodes.rows[other.p.tenant, other.p.notification_id]
    assert row.code_hmac != same_code.code_hmac


async def test_a_fresh_passcode_after_expiry_starts_cleanly():
    world = World()
    first = await Passcode(world).accepted()
    for _ in range(6):
        await first.check("000000")
    world.clock.advance(timedelta(minutes=11))
    second = Passcode(world)
    second.p = a_passcode(accepted_at=world.clock.at)
    second.ref = second.ref.model_copy(
        update={"id": second.p.notification_id, "expires_at": second.p.expires_at}
    )
    await second.accepted("135790")
    assert await second.check("135790") == CheckResult(result="approved", attempts_left=4)
