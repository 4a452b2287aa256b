"""A schedule of one second, and Temporal killed under it: no run twice, no burst, no silence, and every second accounted for."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from schemas.kinds import Channel, MessageClass
from schemas.schedules import CatchUpRule, Overlap, RecurringContent
from sendloom.domain.ids import fire_id, notification_workflow_id
from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.embedded.temporal import EmbeddedTemporal
from sendloom.platform.sealing import RingSealer
from sendloom.platform.temporal import connect
from sendloom.ports import ScheduleRow
from sendloom.rows import PartWrite, RecipientWrite, Trigger
from sendloom.stores.audit import PostgresTriggers
from sendloom.stores.pool import Pool, open_pool
from sendloom.stores.recipients import PostgresRecipients
from tests.conftest import MakeSettings
from tests.stores.conftest import a_category, a_schedule, a_tenant
from workers import wiring
from workers.fleet import ops_worker
from workers.serve import serve
from workflows import scheduling

SECOND = timedelta(seconds=1)
OUTAGE = 8 * SECOND
"""Less than what the sweeper waits, so that it is Temporal's own wake-up that has to come back."""


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110 - it is outside of us
            await asyncio.sleep(0.1)


async def set_up(pool: Pool, stores: wiring.Stores, sealer: RingSealer) -> ScheduleRow:
    """A tenant that tells one person something each second."""
    tenant = f"t-{uuid4().hex[:12]}"
    await stores.catalog.put_tenant(a_tenant(tenant))
    await stores.catalog.put_category(
        a_category(
            tenant,
            category="orders.shipped",
            message_class=MessageClass.TRANSACTIONAL,
            quiet_hours=False,
        )
    )
    part = PartWrite(Channel.EMAIL, "en", "x", "x")
    await stores.catalog.add_template_version(tenant, "t", {}, "en", [part])
    await stores.catalog.publish(tenant, "t", 1)
    await PostgresRecipients(pool, sealer).upsert(tenant, [RecipientWrite("r1", "en", "UTC")])
    now = datetime.now(UTC).replace(microsecond=0)
    row = a_schedule(
        tenant,
        cron=None,
        every_seconds=1,
        zone="UTC",
        content=RecurringContent(template_id="t"),
        catch_up=CatchUpRule.LATEST,
        # Nobody works on the notifications here, so none of them ends.
        overlap=Overlap.ALLOW,
        handled_until=now,
        next_at=now + SECOND,
        created_at=now,
    )
    await stores.schedules.insert_or_match(row)
    return row


async def test_c30_an_outage_of_temporal_is_made_up_for_by_one_run_and_the_others_are_counted(
    make_settings: MakeSettings, fresh_database: str, valkey: str, server_home: Path
) -> None:
    server = EmbeddedTemporal(
        port=free_port(),
        http_port=free_port(),
        metrics_port=free_port(),
        file=server_home / f"outage-{uuid4().hex[:8]}.db",
    )
    log = server_home / "outage.log"
    settings = make_settings(
        postgres=fresh_database, redis=valkey, temporal={"address": server.address}
    )
    sealer = RingSealer(settings.keys.ring(), settings.keys.hashes())
    async with AsyncExitStack() as opened:
        pool = await open_pool(fresh_database, 4, "test")
        opened.push_async_callback(pool.close)
        stores = wiring.stores(pool, sealer)
        row = await set_up(pool, stores, sealer)
        triggers = PostgresTriggers(pool)

        async def lines(status: str, since: datetime) -> list[Trigger]:
            found = await triggers.of_trigger(row.tenant, row.id, 1000)
            return [t for t in reversed(found) if t.status == status and t.scheduled_for > since]

        async def fired_since(since: datetime, count: int) -> bool:
            return len(await lines("fired", since)) >= count

        with running(server.part(), log) as process:
            client = await connect(settings)
            ops = await opened.enter_async_context(wiring.ops(settings, client))
            stop = asyncio.Event()
            worker = ops_worker(client, ops.activities, None)
            serving = asyncio.create_task(serve([worker], stop, beside=ops.loops))
            await scheduling.apply(client, row)
            await eventually(lambda: fired_since(row.created_at, 3))
            process.kill()
            process.wait()
            killed_at = datetime.now(UTC)
            # It is an outage of so long; there is nothing else to wait for.
            await asyncio.sleep(OUTAGE.total_seconds())
        # Before it is there: it may wake us some seconds before we see that it is.
        outage_end = datetime.now(UTC)
        with running(server.part(), log):
            back_at = datetime.now(UTC)
            await eventually(lambda: fired_since(back_at, 5))
            stop.set()
            await serving

            found = (await triggers.of_trigger(row.tenant, row.id, 1000))[::-1]
            judged = [t for t in found if t.scheduled_for <= back_at + 5 * SECOND]
            by_status = {
                status: [t for t in judged if t.status == status] for status in ("fired", "missed")
            }
            assert {t.status for t in judged} == {"fired", "missed"}

            # Every second is there, once, as fired or as counted among the missed.
            seconds: list[datetime] = []
            for line in judged:
                span = line.missed or 1
                seconds += [line.scheduled_for + n * SECOND for n in range(span)]
            assert seconds == [seconds[0] + n * SECOND for n in range(len(seconds))]
            assert seconds[0] == row.handled_until + SECOND

            # What the outage swallowed came back as one run, not as a burst.
            during = [
                t
                for t in by_status["fired"]
                if killed_at + 2 * SECOND < t.scheduled_for <= outage_end
            ]
            assert len(during) <= 1, during
            assert sum(t.missed for t in by_status["missed"]) >= 5

            # And each fired one is one accepted row with one workflow.
            ids = [t.ref_id for t in by_status["fired"]]
            assert ids == [fire_id(row.id, t.scheduled_for) for t in by_status["fired"]]
            for id in ids:
                assert id is not None
                accepted = await stores.accepted.get(row.tenant, id)
                assert accepted is not None
                assert accepted.started_at is not None
                described = await client.get_workflow_handle(
                    notification_workflow_id(id)
                ).describe()
                assert described.workflow_type == "Notification"
            rows = await pool.fetchval(
                "SELECT count(*) FROM accepted WHERE tenant = $1", row.tenant
            )
            everything = await triggers.of_trigger(row.tenant, row.id, 1000)
            assert rows == len([t for t in everything if t.status == "fired"])
