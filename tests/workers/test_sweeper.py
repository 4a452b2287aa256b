"""What a crash left is found and finished, by one process at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from schemas.kinds import Kind
from sendloom.ports import AcceptedRow
from sendloom.stores.pool import open_pool
from tests.builders import World, a_notification, a_passcode, accepted_row
from tests.builders import a_content as content
from workers.locks import advisory_lock
from workers.sweeper import LEFT_ALONE, UPLOAD_ABANDONED, Purger, Reaper, Sweeper

LONG_AGO = LEFT_ALONE + timedelta(seconds=1)


class Starts:
    """What was started."""

    def __init__(self) -> None:
        self.rows: list[AcceptedRow] = []
        self.refuses: UUID | None = None

    async def __call__(self, row: AcceptedRow) -> bool:
        if row.id == self.refuses:
            raise RuntimeError("not this one")
        self.rows.append(row)
        return True


class NoCampaigns:
    """Nothing here is one."""


@contextlib.asynccontextmanager
async def ours(name: str) -> AsyncIterator[bool]:
    yield True


@contextlib.asynccontextmanager
async def somebody_elses(name: str) -> AsyncIterator[bool]:
    yield False


class Orphans:
    """Claims that nobody settles."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    async def settle_orphans(self, over_for: timedelta, limit: int) -> int:
        settled, self.count = min(self.count, limit), max(self.count - limit, 0)
        return settled


def sweeper(world: World, starts: Starts, lock=ours, orphans: Orphans | None = None) -> Sweeper:
    return Sweeper(
        claims=orphans or Orphans(),
        accepted=world.accepted,
        passcodes=world.passcodes,
        campaigns=NoCampaigns(),  # type: ignore[arg-type]
        hash_code=world.sealer.hashes.passcode_hash,
        start=starts,
        lock=lock,
    )


async def test_a_row_left_unstarted_is_started_and_marked():
    world, starts = World(), Starts()
    row = await world.accept(a_notification())
    await sweeper(world, starts).sweep()
    assert starts.rows == []  # its accept may still be going on
    world.clock.advance(LONG_AGO)
    await sweeper(world, starts).sweep()
    assert [started.id for started in starts.rows] == [row.id]
    await sweeper(world, starts).sweep()
    assert len(starts.rows) == 1


async def test_a_passcode_left_before_its_code_was_stored_gets_it():
    world, starts = World(), Starts()
    p = a_passcode()
    row = accepted_row(p, Kind.PASSCODE, content(secret="135790"))
    await world.accepted.insert_or_match(row)
    world.clock.advance(LONG_AGO)
    await sweeper(world, starts).sweep()
    stored = world.passcodes.rows[p.tenant, p.notification_id]
    hashes = world.sealer.hashes
    assert stored.code_hmac == hashes.passcode_hash(p.tenant, p.notification_id, "135790")
    assert stored.checks_left == 5


async def test_only_the_holder_of_the_lock_sweeps():
    world, starts = World(), Starts()
    await world.accept(a_notification())
    world.clock.advance(LONG_AGO)
    await sweeper(world, starts, somebody_elses).sweep()
    assert starts.rows == []


async def test_a_row_that_cannot_be_started_is_not_marked_and_holds_up_nobody():
    world, starts = World(), Starts()
    bad = await world.accept(a_notification())
    good = await world.accept(a_notification())
    starts.refuses = bad.id
    world.clock.advance(LONG_AGO)
    await sweeper(world, starts).sweep()
    assert world.accepted.rows[bad.tenant, bad.id].started_at is None
    assert world.accepted.rows[good.tenant, good.id].started_at is not None


async def test_a_store_that_is_down_is_waited_for():
    world, starts = World(), Starts()
    world.accepted.down = True
    await sweeper(world, starts).sweep()
    assert starts.rows == []


async def test_claims_that_nobody_settled_are_settled():
    orphans = Orphans(3)
    await sweeper(World(), Starts(), orphans=orphans).sweep()
    assert orphans.count == 0


class Aged:
    """Rows by age, deleted in batches as asked."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.batches: list[int] = []

    async def purge(self, before, limit: int) -> int:
        gone = min(self.rows, limit)
        self.rows -= gone
        self.batches.append(gone)
        return gone


class AgedRows(Aged):
    def __init__(self, rows: int, secrets: int) -> None:
        super().__init__(rows)
        self.secrets = secrets
        self.secrets_before: datetime | None = None

    async def forget_secrets(self, before: datetime, limit: int) -> int:
        self.secrets_before = before
        gone = min(self.secrets, limit)
        self.secrets -= gone
        return gone


async def test_a_purge_goes_in_small_batches_to_the_end():
    accepted, passcodes = AgedRows(2_500, 1_200), Aged(10)
    await Purger(accepted=accepted, passcodes=passcodes, lock=ours).purge()
    assert accepted.batches == [1_000, 1_000, 500]
    assert (accepted.secrets, passcodes.rows) == (0, 0)


async def test_pass5_codes_are_gone_before_they_are_seven_days_old():
    accepted, now = AgedRows(0, 1), datetime(2026, 3, 9, tzinfo=UTC)
    purger = Purger(accepted=accepted, passcodes=Aged(0), lock=ours, now=lambda: now)
    await purger.purge()
    assert accepted.secrets_before == now - timedelta(days=6)


async def test_abandoned_uploads_are_reaped_by_the_one_that_holds_the_lock():
    asked: list[timedelta] = []

    class Lists:
        async def reap(self, untouched_for: timedelta, limit: int = 100, /) -> int:
            asked.append(untouched_for)
            return 1

    @contextlib.asynccontextmanager
    async def theirs(name: str) -> AsyncIterator[bool]:
        yield False

    await Reaper(lists=Lists(), lock=theirs).reap()
    assert asked == []
    await Reaper(lists=Lists(), lock=ours).reap()
    assert asked == [UPLOAD_ABANDONED]


async def test_the_advisory_lock_has_one_holder_and_ends_with_it(database: str):
    pool = await open_pool(database, 3, "test")
    try:
        async with advisory_lock(pool, "sweep") as first:
            async with advisory_lock(pool, "sweep") as second, advisory_lock(pool, "x") as other:
                assert (first, second, other) == (True, False, True)
        async with advisory_lock(pool, "sweep") as again:
            assert again is True
    finally:
        await asyncio.wait_for(pool.close(), 60)
