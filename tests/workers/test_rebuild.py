"""Everything promised is started again from our own rows, whatever one of them does (STORE-5)."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from schemas.campaigns import CampaignInput, CampaignSpec, DueInput
from schemas.content import CampaignContent
from schemas.kinds import (
    CampaignPhase,
    Channel,
    FaultScope,
    Kind,
    MessageClass,
    Mode,
    RecipientState,
)
from schemas.outcomes import Rejected
from schemas.schedules import FireTrigger, TriggerResult
from sendloom.domain.backoff import bucket_of
from sendloom.ports import AcceptedRow, CampaignRow, ScheduleRow
from tests.builders import (
    MARKETING,
    TENANT,
    World,
    a_category,
    a_notification,
    a_passcode,
    accepted_row,
    template_parts,
)
from tests.builders import a_content as content
from tests.campaign_fakes import a_stage
from tests.fakes import START
from tests.stores.conftest import a_campaign, a_schedule
from workers.rebuild import PAGE, Rebuild


class Campaigns:
    """Rows that are inserted if absent, and replays that wait."""

    def __init__(self) -> None:
        self.rows: dict[UUID, CampaignRow] = {}
        self.replaying: list[CampaignRow] = []

    async def insert(self, row: CampaignRow) -> None:
        self.rows.setdefault(row.campaign_id, row)

    async def waiting_after_close(self, limit: int) -> list[CampaignRow]:
        return self.replaying[:limit]


class Schedules:
    def __init__(self) -> None:
        self.rows: list[ScheduleRow] = []
        self.told: list[tuple[UUID, int]] = []

    async def everywhere(self, after: Any, limit: int) -> list[ScheduleRow]:
        return [row for row in self.rows if after is None or (row.tenant, row.id) > after][:limit]

    async def applied(self, tenant: str, id: UUID, version: int) -> None:
        self.told.append((id, version))


class Lost:
    """A Temporal that has forgotten everything, but for what `runs`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.campaigns, self.schedules = Campaigns(), Schedules()
        self.started: list[UUID] = []
        self.runs: set[UUID] = set()
        self.refuses: UUID | None = None
        self.applied: list[UUID] = []
        self.fired: list[FireTrigger] = []
        self.due: list[DueInput] = []

    async def start(self, row: AcceptedRow) -> bool:
        if row.id == self.refuses:
            raise RuntimeError("not this one")
        if row.id in self.runs:
            return False
        self.runs.add(row.id)
        self.started.append(row.id)
        return True

    async def apply(self, row: ScheduleRow) -> None:
        self.applied.append(row.id)

    async def fire(self, request: FireTrigger) -> TriggerResult:
        self.fired.append(request)
        return TriggerResult(fired=[uuid4()], skipped=2, refused=0)

    async def work_due(self, given: DueInput) -> None:
        self.due.append(given)

    async def rebuild(self) -> Rebuild:
        return Rebuild(
            accepted=self.world.accepted,
            passcodes=self.world.passcodes,
            campaigns=self.campaigns,  # type: ignore[arg-type]
            catalog=self.world.catalog,
            schedules=self.schedules,  # type: ignore[arg-type]
            hash_code=self.world.sealer.hashes.passcode_hash,
            start=self.start,
            apply=self.apply,
            fire=self.fire,
            work_due=self.work_due,
        )

    async def run(self) -> dict[str, int]:
        return dict((await (await self.rebuild()).run()).counts)


async def accepted(world: World, given: Any, kind: Kind, said: Any = None) -> AcceptedRow:
    """Only the row: whatever else an accept writes had not been written."""
    stored, _ = await world.accepted.insert_or_match(accepted_row(given, kind, said))
    return stored


def a_campaigns_row() -> AcceptedRow:
    given = CampaignInput(tenant=TENANT, mode=Mode.LIVE, campaign_id=uuid4(), accepted_at=START)
    said = CampaignContent(
        template_id="t", template_version=1, name="spring", list_id="all", spec=CampaignSpec()
    )
    row = accepted_row(given, Kind.CAMPAIGN)
    return replace(
        row,
        id=given.campaign_id,
        message_class=MARKETING,
        content=said.model_dump_json().encode(),
    )


async def test_what_is_open_is_started_once_and_what_has_ended_is_left_alone():
    world, given = World(), [a_notification(str(n)) for n in range(PAGE + 3)]
    for n in given:
        await accepted(world, n, Kind.NOTIFICATION)
    await world.accepted.close(TENANT, given[0].notification_id, {"kind": "accepted"})
    lost = Lost(world)
    lost.runs.add(given[1].notification_id)
    assert await lost.run() == {"started": PAGE + 1, "running": 1, "notification": PAGE + 1}
    assert set(lost.started) == {n.notification_id for n in given[2:]}
    assert all(row.started_at for row in world.accepted.rows.values() if row.closed_at is None)
    assert await lost.run() == {"running": PAGE + 2}


async def test_an_accept_that_was_cut_short_gets_what_it_had_not_written():
    world = World()
    passcode = await accepted(world, a_passcode(), Kind.PASSCODE, content(secret="480931"))
    campaign, _ = await world.accepted.insert_or_match(a_campaigns_row())
    lost = Lost(world)
    assert await lost.run() == {"started": 2, "passcode": 1, "campaign": 1}
    hashed = world.sealer.hashes.passcode_hash
    assert world.passcodes.rows[TENANT, passcode.id].code_hmac == hashed(
        TENANT, passcode.id, "480931"
    )
    assert lost.campaigns.rows[campaign.id].list_id == "all"


async def test_one_that_cannot_be_started_is_counted_and_holds_up_nobody():
    world, given = World(), [a_notification(str(n)) for n in range(3)]
    for n in given:
        await accepted(world, n, Kind.NOTIFICATION)
    lost = Lost(world)
    lost.refuses = given[1].notification_id
    told = await (await lost.rebuild()).run()
    assert (dict(told.counts), told.complete) == (
        {"started": 2, "failed": 1, "notification": 2},
        False,
    )
    lost.refuses = None
    assert (await (await lost.rebuild()).run()).complete


async def test_schedules_are_applied_again_and_what_they_missed_is_judged_once():
    world = World()
    lost = Lost(world)
    active, paused = a_schedule(TENANT, version=4), a_schedule(TENANT, state="paused")
    lost.schedules.rows = sorted([active, paused], key=lambda row: row.id)
    assert await lost.run() == {"schedules": 2, "fired": 1, "skipped": 2}
    assert set(lost.applied) == {active.id, paused.id}
    assert (active.id, 4) in lost.schedules.told
    assert [(f.schedule_id, f.by) for f in lost.fired] == [(active.id, "rebuild")]


async def test_a_replay_of_a_campaign_that_has_ended_gets_its_due_loop_back():
    world = World()
    # Nobody sends campaigns over APNs.
    ladder = (Channel.APNS, Channel.EMAIL)
    world.catalog.categories[TENANT, "offers.weekly"] = a_category(MARKETING, ladder=ladder)
    world.catalog.parts[TENANT, "t"] = [p for p in template_parts() if p.channel is Channel.EMAIL]
    lost = Lost(world)
    row = replace(
        a_campaign(TENANT),
        phase=CampaignPhase.COMPLETED,
        frozen_at=START,
        closed_at=START + timedelta(hours=1),
    )
    lost.campaigns.replaying = [row]
    assert await lost.run() == {"replays": 1}
    [due] = lost.due
    assert (due.campaign_id, due.frozen_at, due.closing) == (row.campaign_id, START, True)
    assert due.message_class is MessageClass.MARKETING
    assert due.channels == [Channel.EMAIL]


async def test_a_replay_goes_on_where_its_campaign_sent_whatever_its_category_has_become(
    database: str,
):
    async with a_stage(database) as stage:
        await stage.set_up(2, ladder=("email",))
        await stage.launch()
        await stage.plan()
        stage.mailer.script = lambda mail: Rejected(
            provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT
        )
        await stage.send()
        await stage.campaigns.set_phase(TENANT, stage.campaign_id, CampaignPhase.COMPLETED)
        bucket = bucket_of(stage.clock.now())
        await stage.campaigns.replay(await stage.row(), [RecipientState.REJECTED], bucket)
        await stage.pool.execute("UPDATE categories SET ladder = '{apns,sms}'")
        lost = Lost(World())
        lost.campaigns, lost.world.catalog = stage.campaigns, stage.catalog
        assert await lost.run() == {"replays": 1}
        # As a campaign is that was frozen before its channels were pinned.
        await stage.pool.execute("UPDATE campaigns SET channels = NULL")
        assert await lost.run() == {"replays": 1}
        await stage.pool.execute("UPDATE categories SET ladder = '{apns}'")
        assert await lost.run() == {"replays": 1}
    assert [due.channels for due in lost.due] == [[Channel.EMAIL], [Channel.SMS]]
