"""Passcodes: counted durably, used once."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from sendloom.errors import Refusal
from sendloom.ports import PasscodeRow
from tests.stores.conftest import NOW, Stores, World


async def a_passcode(world: World, **changes: object) -> PasscodeRow:
    row = replace(
        PasscodeRow(
            tenant=world.tenant,
            id=uuid4(),
            code_hmac=b"h" * 32,
            checks_left=5,
            send_no=1,
            created_at=NOW,
            expires_at=NOW + timedelta(hours=1),
            used_at=None,
            cancelled_at=None,
        ),
        **changes,  # type: ignore[arg-type]
    )
    await world.stores.passcodes.insert(row)
    return row


async def test_inserting_again_keeps_the_first_secret_and_what_was_counted(
    stores: Stores, world: World
) -> None:
    row = await a_passcode(world)
    assert await stores.passcodes.get(world.tenant, row.id) == row
    await stores.passcodes.take_check(world.tenant, row.id)
    await stores.passcodes.insert(replace(row, code_hmac=b"x" * 32))
    assert await stores.passcodes.get(world.tenant, row.id) == replace(row, checks_left=4)


async def test_c88_twenty_checks_at_once_take_exactly_what_there_is(
    stores: Stores, world: World
) -> None:
    row = await a_passcode(world)
    taken = await asyncio.gather(
        *(stores.passcodes.take_check(world.tenant, row.id) for _ in range(20))
    )
    left = sorted(one.checks_left for one in taken if one is not None)
    assert left == [-1] * 15 + [0, 1, 2, 3, 4]
    assert await stores.passcodes.take_check(world.tenant, uuid4()) is None


async def test_a_code_is_used_by_exactly_one_caller(stores: Stores, world: World) -> None:
    row = await a_passcode(world)
    used = await asyncio.gather(
        *(stores.passcodes.mark_used(world.tenant, row.id) for _ in range(8))
    )
    assert sorted(used) == [False] * 7 + [True]
    assert not await stores.passcodes.cancel(world.tenant, row.id)


async def test_a_cancelled_or_expired_code_cannot_be_used(stores: Stores, world: World) -> None:
    row = await a_passcode(world)
    assert await stores.passcodes.cancel(world.tenant, row.id)
    assert not await stores.passcodes.cancel(world.tenant, row.id)
    expired = await a_passcode(world, expires_at=NOW - timedelta(seconds=1))
    for one in (row, expired):
        assert not await stores.passcodes.mark_used(world.tenant, one.id)


async def test_a_resend_key_has_one_number_for_ever_and_resets_no_count(
    stores: Stores, world: World
) -> None:
    row = await a_passcode(world)
    await stores.passcodes.take_check(world.tenant, row.id)
    keys = ["a", "b", "a", "c", "b"]
    numbers = [await stores.passcodes.take_resend(world.tenant, row.id, key) for key in keys]
    assert numbers == [2, 3, 2, 4, 3]
    at_once = await asyncio.gather(
        *(stores.passcodes.take_resend(world.tenant, row.id, f"k{n % 3}") for n in range(9))
    )
    assert sorted(set(at_once)) == [5, 6, 7]
    assert at_once[:3] == at_once[3:6] == at_once[6:]
    stored = await stores.passcodes.get(world.tenant, row.id)
    assert stored is not None
    assert (stored.checks_left, stored.send_no) == (4, 7)
    with pytest.raises(Refusal, match="unknown_passcode"):
        await stores.passcodes.take_resend(world.tenant, uuid4(), "a")


async def test_old_codes_are_purged(stores: Stores, world: World) -> None:
    old = await a_passcode(world, created_at=NOW - timedelta(days=8))
    new = await a_passcode(world)
    while await stores.passcodes.purge(NOW - timedelta(days=7), 10):
        pass
    assert await stores.passcodes.get(world.tenant, old.id) is None
    assert await stores.passcodes.get(world.tenant, new.id) == new
