"""Preflight and approval over a real database: what they read, what they write, whom they look at."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from activities.rendering import Templates
from schemas.campaigns import PreflightReport
from schemas.kinds import CampaignPhase, ControlState
from sendloom.domain.segments import Segment
from sendloom.stores.lists import PostgresLists
from sendloom.stores.recipients import PostgresRecipients
from tests.campaign_fakes import CATEGORY, TENANT, CampaignStage, a_stage, address_of
from tests.fakes import START


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        yield stage


async def preflight(stage: CampaignStage) -> PreflightReport:
    return await stage.run(stage.plan_activities().preflight, stage.ref)


async def test_a_hundred_are_looked_at_evenly_over_the_frozen_audience(stage: CampaignStage):
    await stage.set_up(1_037, page_size=50, pages_a_shard=4)
    frozen = await stage.launch()
    row = await stage.row()
    assert row.version_id is not None
    sample = await stage.campaigns.sample(TENANT, CATEGORY, row.version_id, 100)
    numbers = sorted(int(member.recipient_id[1:]) for member in sample)
    assert len(numbers) == len(set(numbers)) == 100
    gaps = [b - a for a, b in itertools.pairwise(numbers)]
    assert numbers[0] == 0
    assert max(gaps) <= 3 * frozen.size / 100
    report = await preflight(stage)
    assert (report.ok, report.checked, report.size) == (True, 100, 1_037)


@pytest.mark.parametrize("size", [1, 2, 99, 100, 101])
async def test_an_audience_of_few_is_looked_at_whole(stage: CampaignStage, size: int):
    await stage.set_up(size, page_size=7, pages_a_shard=3)
    await stage.launch()
    report = await preflight(stage)
    assert report.ok
    assert report.checked <= 100
    assert report.checked >= min(size, 90)


async def test_an_audience_is_looked_at_on_the_channels_of_the_freeze(stage: CampaignStage):
    await stage.set_up(3, ladder=("email",))
    await stage.launch()
    await stage.pool.execute("UPDATE categories SET ladder = '{sms}'")
    report = await preflight(stage)
    assert (report.ok, report.checked) == (True, 3)


async def test_a_missing_name_refuses_the_launch_with_examples_and_without_addresses(
    stage: CampaignStage,
):
    def variables(n: int) -> dict[str, Any]:
        return {} if n % 10 == 3 else {"first_name": "{{name}}" if n == 5 else "Ana"}

    await stage.set_up(40, variables=variables)
    await stage.launch()
    report = await preflight(stage)
    assert (report.ok, report.code) == (False, "preflight_failed")
    assert "r000003: missing_variable first_name (email)" in report.examples
    assert "r000005: literal_braces (email)" in report.examples
    assert "@" not in report.model_dump_json()
    row = await stage.row()
    assert (row.phase, row.reason) == (CampaignPhase.FAILED, "preflight_failed")


async def test_who_cannot_be_reached_at_all_is_not_rendered(stage: CampaignStage):
    await stage.set_up(10, variables=lambda n: {} if n == 4 else {"first_name": "Ana"})
    await stage.pool.execute("DELETE FROM addresses WHERE recipient_id = 'r000004'")
    await stage.launch()
    report = await preflight(stage)
    assert (report.ok, report.checked) == (True, 9)


async def test_a_deadline_beyond_the_agreed_rate_refuses_the_launch(stage: CampaignStage):
    await stage.set_up(100)
    await stage.pool.execute("""UPDATE tenants SET settings = '{"rates": {"email": 1}}'""")
    deadline = stage.clock.now() + timedelta(seconds=60)
    await stage.launch(deadline=deadline.isoformat())
    report = await preflight(stage)
    assert report.code == "deadline_infeasible"
    assert report.finish_at == stage.clock.now() + timedelta(seconds=100)
    assert (await stage.row()).phase is CampaignPhase.FAILED


@pytest.mark.parametrize(
    ("spec", "finish"),
    [
        # Six in the evening is 18:00 UTC in London and 23:00 in New York, on which the last of them wait.
        ({}, "2026-03-02T23:00:00+00:00"),
        # Planned a day later, when it has passed for everybody.
        ({"send_at": "2026-03-03T10:00:00Z"}, "2026-03-03T23:00:00+00:00"),
        ({"send_at": "2026-03-03T10:00:00Z", "missed": "send"}, "2026-03-03T10:00:40+00:00"),
    ],
)
async def test_the_finish_of_waves_is_the_last_zones_moment(
    stage: CampaignStage, spec: dict[str, Any], finish: str
):
    stage.clock.at = START
    await stage.set_up(4)
    await stage.pool.execute(
        "UPDATE recipients SET zone = 'America/New_York' WHERE recipient_id IN ('r000001', 'r000002')"
    )
    await stage.launch(
        rate_per_second=0.1, local_time="2026-03-02T18:00:00", **{"missed": "next_day", **spec}
    )
    report = await preflight(stage)
    assert report.finish_at == datetime.fromisoformat(finish)


async def test_a_phase_shown_late_does_not_open_again_what_has_ended(stage: CampaignStage):
    await stage.set_up(1)
    await stage.launch()
    for phase in (CampaignPhase.FAILED, CampaignPhase.PREFLIGHT):
        await stage.campaigns.set_phase(TENANT, stage.campaign_id, phase, phase.value)
    row = await stage.row()
    assert (row.phase, row.reason) == (CampaignPhase.FAILED, "failed")
    assert row.closed_at is not None


async def test_a_cancelled_campaign_is_not_failed_by_its_preflight(stage: CampaignStage):
    await stage.set_up(3, variables=lambda n: {})
    await stage.launch()
    await stage.campaigns.set_control(
        TENANT, stage.campaign_id, ControlState.CANCELLED, None, "typo", "ops"
    )
    assert (await preflight(stage)).code == "preflight_failed"
    assert (await stage.row()).closed_at is None


async def test_only_somebody_else_may_approve_and_only_while_it_is_awaited(stage: CampaignStage):
    await stage.set_up(3)
    await stage.pool.execute("""UPDATE tenants SET settings = '{"approval_over": 2}'""")
    await stage.launch()
    await stage.pool.execute("UPDATE campaigns SET created_by = 'key:one'")
    assert (await preflight(stage)).approval_needed
    asked = stage.plan_activities().approval

    async def approve(by: str) -> bool:
        return await stage.campaigns.approve(TENANT, stage.campaign_id, by)

    assert not await approve("key:two")
    await stage.campaigns.set_phase(TENANT, stage.campaign_id, CampaignPhase.AWAITING_APPROVAL)
    assert not await approve("key:one")
    assert not (await stage.run(asked, stage.ref)).approved
    assert await approve("key:two")
    assert not await approve("key:three")
    assert (await stage.run(asked, stage.ref)).approved
    assert (await stage.row()).approved_by == "key:two"


async def test_what_nobody_approves_before_it_expires_fails(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    stage.pass_time(timedelta(days=8))
    said = await stage.run(stage.plan_activities().approval, stage.ref)
    assert (said.approved, said.refused) == (False, "not_approved")
    assert (await stage.row()).reason == "not_approved"


# --- corrections ----------------------------------------------------------------------------------------------------------


async def test_a_correction_goes_to_exactly_those_who_got_it_with_their_values(
    stage: CampaignStage,
):
    await stage.set_up(30, page_size=4, pages_a_shard=2)
    await stage.pool.execute(
        "UPDATE consents SET granted = false WHERE recipient_id IN ('r000003', 'r000017')"
    )
    frozen = await stage.launch()
    sending = stage.send_activities()
    for shard in range(frozen.shards):
        await stage.plan(shard)
        await stage.send(sending, shard=shard)
    assert (await stage.states())["sent"] == 28
    wrong = stage.campaign_id
    stage.mailer.mails.clear()

    stage.campaign_id = uuid4()
    stage.ref = stage.ref.model_copy(update={"campaign_id": stage.campaign_id})
    await stage.insert(sent_of=str(wrong))
    await stage.pool.execute(
        "UPDATE campaigns SET list_id = 'correction' WHERE campaign_id = $1", stage.campaign_id
    )
    # It is copied some shards at a time.
    assert frozen.shards == 4
    copying = PostgresLists(stage.pool, stage.sealer, page_size=4, copy_chunk=16)
    freezing = stage.plan_activities(audiences=copying)
    results = [await stage.run(freezing.freeze, stage.ref) for _ in range(2)]
    assert results[0].frozen is not None, results[0].refused
    assert [r.frozen and r.frozen.size for r in results] == [28, 28]
    row = await stage.row()
    assert row.version_id is not None
    members = await stage.campaigns.sample(TENANT, CATEGORY, row.version_id, 100)
    assert {m.recipient_id for m in members} == {f"r{n:06d}" for n in range(30) if n not in (3, 17)}
    assert all(m.variables == {"first_name": f"Ana{int(m.recipient_id[1:])}"} for m in members)


async def test_a_correction_of_what_nobody_got_is_refused_at_launch(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    wrong = stage.campaign_id
    stage.campaign_id = uuid4()
    stage.ref = stage.ref.model_copy(update={"campaign_id": stage.campaign_id})
    await stage.insert(sent_of=str(wrong))
    await stage.pool.execute(
        "UPDATE campaigns SET list_id = 'correction' WHERE campaign_id = $1", stage.campaign_id
    )
    result = await stage.run(stage.plan_activities().freeze, stage.ref)
    assert result.refused is not None
    assert result.refused.code == "list_empty"


# --- segments -------------------------------------------------------------------------------------------------------------


EVEN = {"attribute": "even", "eq": True}


async def to_a_segment(
    stage: CampaignStage, size: int, definition: Any = EVEN, page_size: int = 4
) -> None:
    """A campaign to a segment, not launched yet. Recipients with an even number have the attribute."""
    await stage.set_up(size, page_size=page_size, declared={"first_name": {"default": "you"}})
    await stage.pool.execute(
        "UPDATE recipients SET attributes = jsonb_build_object('even', right(recipient_id, 1)::int % 2 = 0)"
    )
    pinned = {"segment_id": "even", "version": 3, "definition": definition}
    await stage.insert(segment=pinned)
    await stage.pool.execute("UPDATE campaigns SET list_id = 'segment-x'")


class Interrupted(PostgresLists):
    """Something happens before the n-th chunk of a segment is scanned."""

    def __init__(self, stage: CampaignStage, chunk: int, then: Callable[[], Awaitable[None]]):
        super().__init__(stage.pool, stage.sealer, page_size=4, scan_chunk=5)
        self._left = chunk
        self._then = then

    async def _scan_on(self, tenant: str, version_id: UUID, segment: Segment) -> bool:
        self._left -= 1
        if self._left == 0:
            await self._then()
        return await super()._scan_on(tenant, version_id, segment)


def audiences(stage: CampaignStage) -> PostgresLists:
    return PostgresLists(stage.pool, stage.sealer, page_size=4, scan_chunk=5)


async def members(stage: CampaignStage) -> list[str]:
    row = await stage.row()
    assert row.version_id is not None
    found = await stage.pool.fetch(
        "SELECT recipient_id FROM list_rows WHERE version_id = $1 ORDER BY shard, page, recipient_id",
        row.version_id,
    )
    return [row["recipient_id"] for row in found]


def evens(size: int) -> list[str]:
    return [f"r{n:06d}" for n in range(0, size, 2)]


async def test_a_worker_that_dies_while_it_writes_a_segment_is_followed_by_one_that_goes_on(
    stage: CampaignStage,
):
    await to_a_segment(stage, 23)

    async def die() -> None:
        raise asyncio.CancelledError

    dying = stage.plan_activities(audiences=Interrupted(stage, 3, die))
    with pytest.raises(asyncio.CancelledError):
        await stage.run(dying.freeze, stage.ref)
    assert await stage.pool.fetchval(
        "SELECT scanned_to FROM list_versions WHERE format = 'written'"
    ) == ("r000009")
    assert (await stage.row()).phase is CampaignPhase.ACCEPTED
    going_on = Interrupted(stage, 99, die)
    for _ in range(2):
        result = await stage.run(stage.plan_activities(audiences=going_on).freeze, stage.ref)
        assert result.frozen is not None, result.refused
        assert result.frozen.size == 12
    assert await members(stage) == evens(23)
    assert going_on._left == 99 - 3  # 13 of 23 were left


async def test_a_segments_members_get_one_message_each_and_nobody_else_does(stage: CampaignStage):
    await to_a_segment(stage, 23)
    result = await stage.run(stage.plan_activities(audiences=audiences(stage)).freeze, stage.ref)
    assert result.frozen is not None, result.refused
    stage.frozen = result.frozen
    # Erased and changed after the launch: no message, and no other audience.
    await PostgresRecipients(stage.pool, stage.sealer).erase(TENANT, "r000004")
    await stage.pool.execute("UPDATE recipients SET attributes = '{}'")
    assert (await preflight(stage)).ok
    sending = stage.send_activities()
    for shard in range(result.frozen.shards):
        await stage.plan(shard)
        await stage.send(sending, shard=shard)
    states = await stage.states()
    assert states["sent"] == 11
    assert sum(states.values()) == 12
    expected = {address_of(id) for id in evens(23) if id != "r000004"}
    assert dict(stage.mailer.took) == dict.fromkeys(expected, 1)


async def test_a_campaign_cancelled_while_its_segment_is_written_ends_and_leaves_nothing(
    stage: CampaignStage,
):
    await to_a_segment(stage, 23)

    async def cancel() -> None:
        await stage.campaigns.set_control(
            TENANT, stage.campaign_id, ControlState.CANCELLED, None, "typo", "ops"
        )

    writing = Interrupted(stage, 2, cancel)
    result = await stage.run(stage.plan_activities(audiences=writing).freeze, stage.ref)
    assert (result.closed, result.frozen, result.refused) == (CampaignPhase.CANCELLED, None, None)
    assert writing._left == 0  # The chunk it was at was the last one.
    row = await stage.row()
    assert (row.phase, row.reason, row.version_id) == (CampaignPhase.CANCELLED, "typo", None)
    assert await stage.pool.fetchval("SELECT count(*) FROM list_staging") == 0
    version = await stage.pool.fetchrow(
        "SELECT state, reason FROM list_versions WHERE format = 'written'"
    )
    assert tuple(version or ()) == ("failed", "cancelled")
    again = await stage.run(stage.plan_activities(audiences=writing).freeze, stage.ref)
    assert again.closed is CampaignPhase.CANCELLED


@pytest.mark.parametrize(
    "definition", [{"attribute": "unknown", "eq": 1}, {"attribute": "even", "gt": 1}]
)
async def test_a_segment_with_nobody_in_it_refuses_the_launch_and_says_so(
    stage: CampaignStage, definition: Any
):
    await to_a_segment(stage, 7, definition)
    for _ in range(2):
        result = await stage.run(
            stage.plan_activities(audiences=audiences(stage)).freeze, stage.ref
        )
        row = await stage.row()
        assert (row.phase, row.reason) == (CampaignPhase.FAILED, "segment_empty")
    assert result.closed is CampaignPhase.FAILED


# --- local-time waves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "zone", "expected"),
    [
        # In Berlin 02:30 does not exist that day: the first moment after the gap.
        ("send", "Europe/Berlin", ("deferred", "2026-03-29T01:00:00+00:00")),
        ("send", "America/New_York", ("deferred", "2026-03-29T06:30:00+00:00")),
        # It was 02:30 in Tokyo before the plan.
        ("send", "Asia/Tokyo", ("pending", None)),
        ("next_day", "Asia/Tokyo", ("deferred", "2026-03-29T17:30:00+00:00")),
        ("skip", "Asia/Tokyo", ("expired", None)),
    ],
)
async def test_waves_keep_the_wall_time_on_the_day_the_clocks_change(
    stage: CampaignStage, missed: str, zone: str, expected: tuple[str, str | None]
):
    """CAMP-7: half past two on the night of 2026-03-29."""
    await stage.set_up(1)
    await stage.pool.execute("UPDATE tenants SET quiet_start = '00:00', quiet_end = '00:00'")
    await stage.pool.execute("UPDATE recipients SET zone = $1", zone)
    stage.clock.at = datetime(2026, 3, 28, 20, tzinfo=UTC)
    await stage.launch(local_time="2026-03-29T02:30:00", missed=missed)
    await stage.plan()
    row = await stage.pool.fetchrow(
        "SELECT recipient_state(state) AS state, not_before FROM decisions"
    )
    assert row is not None
    state, moment = expected
    assert row["state"] == state
    if moment is None:
        assert row["not_before"] is None
    else:
        # Spread over a few minutes, so that a whole zone does not leave in one second.
        late = row["not_before"] - datetime.fromisoformat(moment)
        assert timedelta(0) <= late <= timedelta(minutes=15)


async def test_a_template_that_changes_under_a_running_campaign_changes_no_message(
    stage: CampaignStage,
):
    await stage.set_up(20, page_size=2)
    await stage.launch()
    await stage.plan()
    await stage.send(max_recipients=2)
    assert 0 < len(stage.mailer.mails) < 20
    await stage.pool.execute(
        "INSERT INTO template_versions (tenant, template_id, version, variables, default_locale, published_at)"
        " SELECT tenant, template_id, 2, variables, default_locale, now() FROM template_versions"
    )
    await stage.pool.execute(
        "INSERT INTO template_parts (tenant, template_id, version, channel, locale, subject, text, html)"
        " SELECT tenant, template_id, 2, channel, locale, subject, 'Quite another thing', NULL FROM template_parts"
    )
    await stage.pool.execute("UPDATE templates SET current_version = 2")
    # Also for a worker that has just come, and has compiled nothing yet.
    await stage.send(stage.send_activities(templates=Templates(stage.catalog)))
    assert len(stage.mailer.mails) == 20
    assert all(b"this week only" in mail.data for mail in stage.mailer.mails)
