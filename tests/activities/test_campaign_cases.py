"""Failures of other systems' fan-out, against ours: on a real Postgres with a scripted mailer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
import pytest_asyncio

from activities.campaign_carriers import MailCarrier
from schemas.campaigns import CampaignRef, Frozen, StretchResult
from schemas.kinds import ControlState, MessageClass, Mode, RecipientState
from schemas.outcomes import Failed
from sendloom.domain.budgets import lease
from sendloom.ports import WireMail
from sendloom.providers import mime
from sendloom.providers.mime_forms import Form
from tests.campaign_fakes import (
    SENDERS,
    TENANT,
    CampaignStage,
    ScriptedMailer,
    a_stage,
    address_of,
    until,
)

SENT, DEFERRED = RecipientState.SENT, RecipientState.DEFERRED


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        yield stage


async def another_campaign(stage: CampaignStage) -> UUID:
    """To the same people, planned and, as far as it may be, sent now."""
    stage.campaign_id = uuid4()
    stage.ref = CampaignRef(tenant=TENANT, mode=Mode.LIVE, campaign_id=stage.campaign_id)
    await stage.launch()
    await stage.plan()
    await stage.send()
    return stage.campaign_id


async def test_c05_two_recovery_sweeps_at_once_over_a_job_killed_at_row_3000(
    stage: CampaignStage,
):
    await stage.set_up(10_000, page_size=500)
    await stage.launch()
    await stage.run(stage.plan_activities().plan, stage.stretch(None, max_recipients=20_000))
    gone, buried = asyncio.Event(), asyncio.Event()

    async def stand_still(mails: Sequence[WireMail]) -> None:
        if len(stage.mailer.mails) >= 3_000:
            # The process is gone here: it neither calls nor records what it has claimed.
            gone.set()
            await buried.wait()
            raise ConnectionError("it died here")

    stage.mailer.before_batch = stand_still
    killed = asyncio.create_task(stage.send(max_recipients=20_000))
    await gone.wait()
    stage.mailer.before_batch = None
    await stage.end_leases()

    async def sweep() -> StretchResult:
        await stage.run(stage.plan_activities().settle, stage.ref)
        return await stage.send(max_recipients=20_000)

    await asyncio.gather(sweep(), sweep())
    # Of two at once the older one ends as soon as it is fenced; the workflow starts the next stretch.
    while not (await stage.send(max_recipients=20_000)).done:
        pass
    stage.pass_time(timedelta(minutes=10))
    while not (await stage.send_due(max_recipients=20_000)).done:
        pass
    # What the killed one had claimed and not called nobody can know: it is named, and nobody is sent to twice.
    counts = await stage.counts()
    unknown = counts.get(RecipientState.UNKNOWN, 0)
    assert 0 < unknown <= 200
    assert counts == {SENT: 10_000 - unknown, RecipientState.UNKNOWN: unknown}
    assert max(stage.mailer.took.values()) == 1
    assert len(stage.mailer.took) == 10_000 - unknown
    buried.set()
    await killed
    assert await stage.counts() == counts


async def test_c15_contacts_that_come_and_go_while_it_is_sent_move_nobody(stage: CampaignStage):
    await stage.set_up(3_000, page_size=100)
    await stage.launch()
    gone = [f"r{n:06d}" for n in range(5, 3_000, 60)]

    async def come_and_go(sent: int) -> None:
        if sent % 60 == 0 and gone:
            await stage.pool.execute(
                "INSERT INTO recipients (tenant, recipient_id, zone) VALUES ($1, $2, 'UTC') ON CONFLICT DO NOTHING",
                TENANT,
                f"new{sent:05d}",
            )
            await stage.pool.execute(
                "UPDATE recipients SET erased_at = now() WHERE tenant = $1 AND recipient_id = $2",
                TENANT,
                gone.pop(),
            )

    left = set(gone)
    stage.mailer.after_mail = come_and_go
    await stage.plan()
    while not (await stage.send(max_recipients=700)).done:
        pass
    there_throughout = {address_of(f"r{n:06d}") for n in range(3_000)} - {
        address_of(id) for id in left
    }
    assert {to: stage.mailer.took[to] for to in there_throughout} == dict.fromkeys(
        there_throughout, 1
    )
    assert max(stage.mailer.took.values()) == 1
    assert sum((await stage.counts()).values()) == 3_000


async def test_c29_a_slow_job_that_is_taken_for_dead_goes_on_once_and_asks_no_more(
    stage: CampaignStage,
):
    await stage.set_up(1_200, page_size=100)
    await stage.launch()
    await stage.plan()
    statements: Counter[str] = Counter()

    async def slowly(mails: Sequence[WireMail]) -> None:
        statements["chunks"] += 1
        await asyncio.sleep(0.01)

    stage.mailer.before_batch = slowly
    first = asyncio.create_task(stage.send())
    await until(lambda: len(stage.mailer.mails) >= 300)
    # Somebody thinks that it has died, twice, though it makes progress all the time.
    second = asyncio.create_task(stage.send())
    third = asyncio.create_task(stage.send())
    ended = await asyncio.gather(first, second, third)
    assert sum(result.fenced for result in ended) >= 1
    while not (await stage.send()).done:
        pass
    stage.pass_time(timedelta(minutes=10))
    await stage.end_leases()
    await stage.send_due()
    assert max(stage.mailer.took.values()) == 1
    assert len(stage.mailer.took) == 1_200
    assert await stage.counts() == {SENT: 1_200}
    # Its repeats won nothing, so they called nothing: chunks are those of one run and what was in hand at the changes.
    assert statements["chunks"] <= 1_200 // 100 + 2 * 6


async def test_c70_twenty_ticks_while_a_batch_is_on_the_wire_hand_none_of_it_out_again(
    stage: CampaignStage,
):
    """A thousand are due. Another process looks once a second, for the 20 s that the first one's batch takes."""
    assert lease(MessageClass.MARKETING) > timedelta(seconds=20)
    # The database's own time, by which a lease ends, and no hour of it a quiet one.
    stage.clock.now = lambda: datetime.now(UTC)  # type: ignore[method-assign]
    await stage.set_up(1_000, page_size=100)
    await stage.pool.execute("UPDATE tenants SET quiet_start = '00:00', quiet_end = '00:00'")
    await stage.launch()
    await stage.plan()
    await stage.pool.execute("UPDATE decisions SET due_at = now()")
    on_the_wire: set[str] = set()
    arrived = asyncio.Event()

    async def slow(mails: Sequence[WireMail]) -> None:
        on_the_wire.update(mail.envelope_to for mail in mails)
        await arrived.wait()

    stage.mailer.before_batch = slow
    first = asyncio.create_task(stage.send_due())
    # Two batches, which is all that a lane may have in doubt.
    await until(lambda: len(on_the_wire) == 200)
    elsewhere = ScriptedMailer()
    others = stage.send_activities(carrier=MailCarrier(elsewhere, mime, Form, SENDERS))
    for _ in range(20):
        await stage.run(stage.plan_activities().settle, stage.ref)
        await stage.send_due(others)
    assert not on_the_wire & set(elsewhere.took)
    assert len(elsewhere.took) == 800
    assert await stage.claims() == {"claimed": 200, "sent": 800}
    arrived.set()
    await first
    await stage.run(stage.plan_activities().settle, stage.ref)
    await stage.send_due(others)
    everybody = {address_of(f"r{n:06d}"): 1 for n in range(1_000)}
    assert stage.mailer.took + elsewhere.took == everybody
    assert set(stage.mailer.took) == on_the_wire
    assert await stage.counts() == {SENT: 1_000}
    assert await stage.claims() == {"sent": 1_000}
    assert await stage.pool.fetchval("SELECT max(attempt) FROM claims") == 1


async def test_c92_thirty_minutes_without_a_provider_and_all_hundred_are_sent_once_afterwards(
    stage: CampaignStage,
):
    """Every moment of it they are somewhere that a worker or an operator looks at.

    A hundred are one chunk, and the buckets alone outlast half an hour. What the storm detection is for, that a provider which takes
    nothing costs one chunk an attempt instead of the whole audience, `test_c92_a_provider_that_is_down_…` shows on 2,000.
    """
    await stage.set_up(100)
    await stage.launch()
    await stage.plan()
    back = stage.clock.now() + timedelta(minutes=30)
    down = Failed(provider="smtp", code="connect_refused")
    stage.mailer.script = lambda mail: down if stage.clock.now() < back else None
    sending = stage.send_activities()
    for _ in range(200):
        result = await stage.send(sending)
        due = await stage.campaigns.due(TENANT, stage.campaign_id)
        if due.earliest is not None and due.earliest <= stage.clock.now():
            result = await stage.send_due(sending)
        states = await stage.states()
        assert set(states) <= {"pending", "deferred", "sent"}
        waiting = await stage.campaigns.due(TENANT, stage.campaign_id)
        # Pending is the shard's or, with a bucket, the due loop's; deferred always has one.
        assert waiting.waiting >= states.get("deferred", 0)
        if states == {"sent": 100}:
            break
        if result.control is ControlState.PAUSED:
            # It says why, and waits for somebody; who looks in when the provider is back.
            control = await stage.campaigns.control(TENANT, stage.campaign_id)
            assert "failure_spike" in control.reason
            stage.clock.at = max(back, stage.clock.now())
            resumed = await stage.campaigns.set_control(
                TENANT, stage.campaign_id, ControlState.RUNNING, None, "it is back", "ops"
            )
            stage.watch.hear(TENANT, stage.campaign_id, resumed)
            continue
        later = [at for at in (result.until, waiting.earliest) if at is not None]
        stage.clock.at = max(min(later, default=back), stage.clock.now())
    assert await stage.counts() == {SENT: 100}
    assert stage.mailer.took == {address_of(f"r{n:06d}"): 1 for n in range(100)}
    assert stage.clock.now() >= back
    assert await stage.letters() == []


async def test_c55_what_quiet_hours_hold_back_leaves_from_eight_on_and_nothing_is_left_at_five_past(
    stage: CampaignStage,
):
    """Thirty people in Chicago are written to at each of five moments; who is put off is looked at every minute."""
    await stage.set_up(30)
    chicago = ZoneInfo("America/Chicago")
    await stage.pool.execute("UPDATE recipients SET zone = 'America/Chicago'")
    evening = stage.clock.at.astimezone(chicago).date()
    midnight = datetime(evening.year, evening.month, evening.day, tzinfo=chicago) + timedelta(1)

    def at(clock: str) -> datetime:
        hour, minute = map(int, clock.split(":"))
        day = midnight - timedelta(days=1) if hour > 12 else midnight
        return day.replace(hour=hour, minute=minute).astimezone(UTC)

    campaigns: dict[str, tuple[UUID, CampaignRef, Frozen | None]] = {}
    left: dict[str, Counter[str]] = {}
    """By the minute they left in: of which moment's campaign, how many."""

    def note(minute: str, moment: str, before: int) -> None:
        if new := len(stage.mailer.mails) - before:
            left.setdefault(minute, Counter())[moment] += new

    async def look(minute: str) -> None:
        """What a campaign's due loop does when a row's moment has come."""
        stage.clock.at = at(minute)
        for moment, (id, ref, frozen) in campaigns.items():
            stage.campaign_id, stage.ref, stage.frozen = id, ref, frozen
            due = await stage.campaigns.due(TENANT, id)
            before = len(stage.mailer.mails)
            if due.earliest is not None and due.earliest <= stage.clock.at:
                await stage.send_due()
            note(minute, moment, before)

    for moment in ("21:59", "22:00", "23:00", "07:59", "08:00"):
        await look(moment)
        before = len(stage.mailer.mails)
        id = await another_campaign(stage)
        campaigns[moment] = (id, stage.ref, stage.frozen)
        note(moment, moment, before)
        held = moment not in ("21:59", "08:00")
        assert await stage.counts() == {DEFERRED if held else SENT: 30}
    # Nobody is called at night, and those of the morning at once.
    assert left == {"21:59": Counter({"21:59": 30}), "08:00": left["08:00"]}
    assert left["08:00"]["08:00"] == 30
    for minute in range(5):
        await look(f"08:0{minute}")
    together = sum(left.values(), Counter[str]())
    assert together == dict.fromkeys(campaigns, 30)
    assert all(count == 5 for count in stage.mailer.took.values())
    # Spread, so that eight o'clock is not a wall, and over at most four minutes.
    assert set(left) == {"21:59", *(f"08:0{minute}" for minute in range(5))}
    stage.clock.at = at("08:05")
    for id, _, _ in campaigns.values():
        assert (await stage.campaigns.due(TENANT, id)).waiting == 0
        counts = await stage.campaigns.counts(TENANT, id)
        assert {state: n for state, n in counts.items() if n} == {SENT: 30}


@pytest.mark.parametrize(
    ("limit", "first", "second", "next_day"),
    [
        (None, "sent", "sent", "sent"),
        (0, "suppressed", "suppressed", "suppressed"),
        (1, "sent", "deferred", "sent"),
    ],
)
async def test_c74_two_mails_under_each_kind_of_limit_and_none_is_queued_for_ever(
    limit: int | None, first: str, second: str, next_day: str, stage: CampaignStage
):
    cap = {"scope": "category", "per": "day", "limit": limit}
    await stage.set_up(1, caps=[cap], over_cap="defer")
    sent = 0
    for expected in (first, second):
        await another_campaign(stage)
        assert await stage.states() == {expected: 1}
        sent += expected == "sent"
        assert sum(stage.mailer.took.values()) == sent
    if limit == 0:
        assert await stage.reasons() == {"frequency_cap": 1}
    due = await stage.campaigns.due(TENANT, stage.campaign_id)
    if second == "deferred":
        # The next window is the person's next day, and nobody is woken for it.
        assert due.earliest is not None
        morning = stage.clock.at.replace(hour=8) + timedelta(days=1)
        assert morning <= due.earliest <= morning + timedelta(minutes=4)
        stage.clock.at = due.earliest
        assert (await stage.send_due()).done
        assert sum(stage.mailer.took.values()) == 2
    else:
        assert due.waiting == 0
    assert await stage.states() == {next_day: 1}
