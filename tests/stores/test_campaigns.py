"""Campaigns in Postgres: pinned once, fenced, and with counts that add up whatever happens."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from schemas.kinds import CampaignPhase, Channel, ClaimState, ControlState, RecipientState
from sendloom.domain.ids import dead_letter_id
from sendloom.domain.outcomes import Cause
from sendloom.errors import Fenced, Refusal, StoreUnavailable
from sendloom.ports import (
    REPLAYED,
    CampaignRow,
    CapUse,
    ClaimResult,
    ClaimScope,
    Decision,
    Move,
    Want,
)
from sendloom.rows import AddressWrite, Preference, RecipientWrite
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.decisions import PostgresDecisions
from tests.stores.conftest import NOW, Stores, World, a_campaign, a_row

R = RecipientState
MINUTE = timedelta(minutes=1)
BUCKET = NOW - MINUTE
MAIL = (Channel.EMAIL,)


def scope_of(campaign: CampaignRow, decision: Decision) -> ClaimScope:
    key = decision.key
    assert decision.channel is not None
    return ClaimScope(
        campaign.tenant, key.frozen_at, key.campaign_id, key.shard, key.page, decision.channel
    )


async def claimed(
    stores: Stores,
    campaign: CampaignRow,
    decision: Decision,
    state: ClaimState | None = None,
    lease: timedelta = MINUTE,
    code: str | None = None,
) -> None:
    """A claim of it, with its outcome when there is one."""
    scope, owner = scope_of(campaign, decision), uuid4()
    who = decision.key.recipient_id
    await stores.ledger.claim(scope, [Want(who)], owner, lease)
    if state is not None:
        await stores.ledger.record(scope, [ClaimResult(who, 1, owner, state, code=code)])


async def finish(stores: Stores, campaign: CampaignRow, channel: Channel = Channel.EMAIL) -> None:
    """The main pass has been over every page."""
    for shard in range(campaign.shards or 0):
        epoch = await stores.campaigns.take_epoch(
            campaign.tenant, campaign.campaign_id, shard, channel
        )
        await stores.campaigns.advance(
            campaign.tenant, campaign.campaign_id, shard, channel, epoch, 1_000, True
        )


async def states(stores: Stores, campaign: CampaignRow) -> dict[RecipientState, int]:
    counts = await stores.campaigns.counts(campaign.tenant, campaign.campaign_id)
    assert sum(counts.values()) == campaign.size
    return {state: n for state, n in counts.items() if n}


# --- freeze ---------------------------------------------------------------------------------------------------------


async def test_freezing_pins_the_version_once(stores: Stores, world: World) -> None:
    first = await world.list_of([a_row(n) for n in range(7)])
    row = a_campaign(world.tenant)
    await stores.campaigns.insert(row)
    both = (Channel.EMAIL, Channel.SMS)
    frozen = await stores.campaigns.freeze(world.tenant, row.campaign_id, NOW, both)
    assert (frozen.size, frozen.pages, frozen.page_size, frozen.shards) == (7, 3, 3, 1)
    assert frozen.channels == [Channel.EMAIL, Channel.SMS]
    assert frozen.expires_at == NOW + timedelta(days=1)
    await world.list_of([a_row(1)])
    again = await stores.campaigns.freeze(
        world.tenant, row.campaign_id, NOW + MINUTE, (Channel.SMS,)
    )
    assert again == frozen
    stored = await stores.campaigns.get(world.tenant, row.campaign_id)
    assert stored is not None
    assert (stored.version_id, stored.frozen_at, stored.channels) == (first, NOW, both)


async def test_two_freezes_at_once_pin_the_same(stores: Stores, world: World) -> None:
    await world.list_of([a_row(1)])
    row = a_campaign(world.tenant)
    await stores.campaigns.insert(row)
    frozen = await asyncio.gather(
        *(
            stores.campaigns.freeze(world.tenant, row.campaign_id, NOW + n * MINUTE, MAIL)
            for n in range(4)
        )
    )
    assert frozen == [frozen[0]] * 4


async def test_what_cannot_be_sent_to_is_refused_with_a_code(stores: Stores, world: World) -> None:
    lists = stores.lists

    async def refused(list_id: str) -> str:
        row = a_campaign(world.tenant, list_id)
        await stores.campaigns.insert(row)
        with pytest.raises(Refusal) as e:
            await stores.campaigns.freeze(world.tenant, row.campaign_id, NOW, MAIL)
        stored = await stores.campaigns.get(world.tenant, row.campaign_id)
        assert stored is not None
        assert stored.version_id is None
        return e.value.code

    assert await refused("nowhere") == "unknown_list"
    await lists.create(world.tenant, "bare")
    assert await refused("bare") == "list_not_ready"
    await lists.start_version(world.tenant, "bare", uuid4(), "csv")
    assert await refused("bare") == "list_not_ready"
    await lists.create(world.tenant, "failed")
    version = await lists.start_version(world.tenant, "failed", uuid4(), "csv")
    await lists.fail(world.tenant, version.version_id, "too_many_errors")
    assert await refused("failed") == "list_failed"
    await lists.create(world.tenant, "empty")
    version = await lists.start_version(world.tenant, "empty", uuid4(), "csv")
    await lists.make_ready(world.tenant, version.version_id)
    assert await refused("empty") == "list_empty"


async def test_a_list_that_fails_later_is_told_to_its_campaign(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(2)
    t = world.tenant
    assert await stores.campaigns.list_failure(t, campaign.campaign_id) is None
    assert campaign.version_id is not None
    assert await stores.lists.withdraw(t, campaign.version_id, "bought")
    assert await stores.campaigns.list_failure(t, campaign.campaign_id) == "bought"
    record = await stores.lists.get(t, "everyone")
    assert record is not None
    assert record.current_version is None


async def test_inserting_again_changes_nothing_and_phases_close(
    stores: Stores, world: World
) -> None:
    row = a_campaign(world.tenant)
    await stores.campaigns.insert(row)
    await stores.campaigns.insert(row)
    control = await stores.campaigns.control(world.tenant, row.campaign_id)
    assert (control.version, control.state, control.rate_per_second) == (
        0,
        ControlState.RUNNING,
        50.0,
    )
    assert [c.campaign_id for c in await stores.campaigns.recent(world.tenant, 5)] == [
        row.campaign_id
    ]
    await stores.campaigns.sent_now(world.tenant, row.campaign_id)
    await stores.campaigns.set_phase(world.tenant, row.campaign_id, CampaignPhase.RUNNING)
    running = await stores.campaigns.get(world.tenant, row.campaign_id)
    assert running is not None
    assert (running.phase, running.closed_at) == (CampaignPhase.RUNNING, None)
    assert running.last_send_at is not None
    ids = [c.campaign_id for c in await stores.campaigns.open_campaigns(None, 10_000)]
    assert row.campaign_id in ids
    await stores.campaigns.set_phase(
        world.tenant, row.campaign_id, CampaignPhase.FAILED, "list_empty"
    )
    closed = await stores.campaigns.get(world.tenant, row.campaign_id)
    assert closed is not None
    assert (closed.reason, closed.closed_at is not None) == ("list_empty", True)


# --- control, epochs, cursors ---------------------------------------------------------------------------------------


async def test_control_versions_rise_and_cancelled_is_the_end(stores: Stores, world: World) -> None:
    row = a_campaign(world.tenant)
    await stores.campaigns.insert(row)
    at = (world.tenant, row.campaign_id)
    before = datetime.now(UTC) - MINUTE
    paused = await stores.campaigns.set_control(*at, ControlState.PAUSED, None, "why", "ann")
    assert (paused.version, paused.state, paused.rate_per_second) == (1, ControlState.PAUSED, 50.0)
    rated = await stores.campaigns.set_control(*at, None, 9.0, "slower", "bob")
    assert (rated.version, rated.state, rated.rate_per_second) == (2, ControlState.PAUSED, 9.0)
    both = await asyncio.gather(
        *(stores.campaigns.set_control(*at, ControlState.RUNNING, None, "", "x") for _ in range(5))
    )
    assert sorted(control.version for control in both) == [3, 4, 5, 6, 7]
    end = await stores.campaigns.set_control(*at, ControlState.CANCELLED, None, "stop", "ann")
    late = await stores.campaigns.set_control(*at, ControlState.RUNNING, 1.0, "no", "bob")
    assert late == end == await stores.campaigns.control(*at)
    changed = await stores.campaigns.controls_changed_since(before)
    assert changed[at] == end
    assert at not in await stores.campaigns.controls_changed_since(datetime.now(UTC) + MINUTE)


async def test_a_cursor_moves_only_forward_and_only_for_the_newest_epoch(
    stores: Stores, world: World
) -> None:
    at = (world.tenant, uuid4(), 3, "email")
    assert await stores.campaigns.cursor(*at) == (0, False)
    first = await stores.campaigns.take_epoch(*at)
    await stores.campaigns.advance(*at, first, 5, False)
    await stores.campaigns.advance(*at, first, 2, False)
    assert await stores.campaigns.cursor(*at) == (5, False)
    second = await stores.campaigns.take_epoch(*at)
    assert second == first + 1
    with pytest.raises(Fenced):
        await stores.campaigns.advance(*at, first, 9, True)
    await stores.campaigns.advance(*at, second, 7, True)
    await stores.campaigns.advance(*at, second, 7, False)
    assert await stores.campaigns.cursor(*at) == (7, True)


# --- sends ----------------------------------------------------------------------------------------------------------


async def test_a_page_of_sends_is_pending_unbucketed_and_of_one_channel(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(3)
    planned = await world.plan(campaign, attempt=2, not_after=NOW + MINUTE)
    sends = await stores.campaigns.page_sends(campaign, 0, 0, Channel.EMAIL)
    assert [s.recipient_id for s in sends] == ["r000", "r001", "r002"]
    assert dict(sends[0].variables) == {"name": "N0"}
    assert (sends[0].locale, sends[0].zone) == ("en", "Europe/Paris")
    assert (sends[0].attempt, sends[0].not_after) == (2, NOW + MINUTE)
    assert await stores.campaigns.page_sends(campaign, 0, 0, Channel.SMS) == []
    await stores.decisions.move(
        [
            Move(planned[0].key, frozenset({R.PENDING}), R.SENT, Cause.SENDER),
            Move(planned[1].key, frozenset({R.PENDING}), R.DEFERRED, Cause.SENDER, due_at=NOW),
        ]
    )
    sends = await stores.campaigns.page_sends(campaign, 0, 0, Channel.EMAIL)
    assert [s.recipient_id for s in sends] == ["r002"]


async def test_the_last_look_sees_what_happened_since_the_plan(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    campaign = await world.campaign(4)
    await world.plan(campaign)
    await stores.recipients.set_preferences(
        t, "r000", [Preference("offers.weekly", "email", True, "page")]
    )
    address_hash = stores.sealer.address_hash(t, Channel.EMAIL, "r001@example.com")
    await stores.ledger.suppress(t, Channel.EMAIL, address_hash, "stop", "test")
    await stores.recipients.erase(t, "r002")
    first = await stores.campaigns.page_sends(campaign, 0, 0, Channel.EMAIL)
    assert [(s.recipient_id, s.opted_out, s.suppressed) for s in first] == [
        ("r000", True, None),
        ("r001", False, "stop"),
    ]
    assert first[1].address is not None
    assert first[1].address.address_hash == address_hash
    other = AddressWrite(Channel.EMAIL, "new@example.com", "new@example.com", True)
    await stores.recipients.upsert(t, [RecipientWrite("r003", addresses=(other,))])
    [moved] = await stores.campaigns.page_sends(campaign, 0, 1, Channel.EMAIL)
    assert moved.address is not None
    assert stores.sealer.open("address", t, moved.address.sealed) == b"new@example.com"


async def test_due_rows_come_bucket_by_bucket_and_stay_due_until_their_next_state(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(8)
    planned = await world.plan(campaign)
    early, late, future = NOW - 2 * MINUTE, NOW - MINUTE, NOW + MINUTE
    deferral = {"cause": Cause.SENDER, "expect": frozenset({R.PENDING}), "to": R.DEFERRED}
    for n, due_at in ((7, early), (0, late), (1, late), (4, late), (5, future)):
        await stores.decisions.move([Move(planned[n].key, **deferral, due_at=due_at)])  # type: ignore[arg-type]
    view = await stores.campaigns.due(world.tenant, campaign.campaign_id)
    assert (view.earliest, view.waiting) == (early, 5)
    assert await stores.campaigns.due_sends(campaign, Channel.SMS, NOW, 10) == []
    [first] = await stores.campaigns.due_sends(campaign, Channel.EMAIL, NOW, 1)
    assert (first[0], first[1], [s.recipient_id for s in first[2]]) == (0, 2, ["r007"])
    groups = await stores.campaigns.due_sends(campaign, Channel.EMAIL, NOW, 10)
    assert [(shard, page, [s.recipient_id for s in sends]) for shard, page, sends in groups] == [
        (0, 0, ["r000", "r001"]),
        (0, 1, ["r004"]),
        (0, 2, ["r007"]),
    ]
    stored = await stores.decisions.read(planned[7].key)
    assert stored is not None
    assert (stored.state, stored.due_at) == (R.PENDING, early)
    await stores.decisions.move(
        [Move(planned[7].key, frozenset({R.PENDING}), R.SENT, Cause.SENDER)]
    )
    view = await stores.campaigns.due(world.tenant, campaign.campaign_id)
    assert (view.earliest, view.waiting, view.closed) == (late, 4, False)
    await stores.campaigns.set_phase(world.tenant, campaign.campaign_id, CampaignPhase.COMPLETED)
    assert (await stores.campaigns.due(world.tenant, campaign.campaign_id)).closed


# --- counts ---------------------------------------------------------------------------------------------------------


async def test_counts_add_up_before_during_and_after(stores: Stores, world: World) -> None:
    row = a_campaign(world.tenant)
    await stores.campaigns.insert(row)
    counts = await stores.campaigns.counts(world.tenant, row.campaign_id)
    assert sum(counts.values()) == 0
    campaign = await world.campaign(8)
    at = (world.tenant, NOW, campaign.campaign_id)
    assert await states(stores, campaign) == {R.PENDING: 8}
    planned = await world.plan(campaign)
    await stores.decisions.move(
        [
            Move(planned[0].key, frozenset({R.PENDING}), R.SENT, Cause.SENDER),
            Move(planned[1].key, frozenset({R.PENDING}), R.SUPPRESSED, Cause.SENDER, reason="x"),
            Move(planned[7].key, frozenset({R.PENDING}), R.FAILED, Cause.SENDER, reason="450"),
        ]
    )
    # Recomputed, never incremented: as often as you like, in any order, at once.
    pages = [(0, 0), (0, 2), (0, 0)]
    await asyncio.gather(
        *(stores.campaigns.summarise(*at, pages[:: 1 if n % 2 else -1]) for n in range(6))
    )
    right = {R.PENDING: 5, R.SENT: 1, R.SUPPRESSED: 1, R.FAILED: 1}
    assert await states(stores, campaign) == right
    await stores.campaigns.summarise_all(campaign)
    assert await states(stores, campaign) == right
    assert await stores.campaigns.reasons(*at) == {"450": 1, "x": 1}


async def test_a_page_that_is_not_there_gets_no_summary(stores: Stores, world: World) -> None:
    campaign = await world.campaign(3)
    await stores.campaigns.summarise(world.tenant, NOW, campaign.campaign_id, [(9, 9)])
    assert await states(stores, campaign) == {R.PENDING: 3}


async def test_every_number_can_be_listed_also_those_without_a_decision(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(8)
    at = (world.tenant, NOW, campaign.campaign_id)
    planned = await world.plan(campaign)
    await stores.pool.execute("DELETE FROM decisions WHERE tenant = $1 AND page = 1", world.tenant)
    for n, reason in ((0, "a"), (2, "b"), (7, "a")):
        move = Move(planned[n].key, frozenset({R.PENDING}), R.FAILED, Cause.SENDER, reason)
        await stores.decisions.move([move])

    async def listed(state: RecipientState, reason: str | None = None) -> list[str]:
        found: list[str] = []
        while group := await stores.campaigns.group(
            *at, state, reason, 2, found[-1] if found else None
        ):
            found += [d.key.recipient_id for d in group]
            assert {d.state for d in group} == {state}
        return found

    assert await listed(R.FAILED) == ["r000", "r002", "r007"]
    assert await listed(R.FAILED, "a") == ["r000", "r007"]
    assert await listed(R.PENDING) == ["r001", "r003", "r004", "r005", "r006"]
    assert await listed(R.SENT) == []


# --- settle, cancel, replay -----------------------------------------------------------------------------------------


async def test_settle_gives_outcomes_ends_leases_and_buckets_what_is_missing(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(8)
    d = await world.plan(campaign)
    await claimed(stores, campaign, d[0], ClaimState.SENT)
    await claimed(stores, campaign, d[1], ClaimState.REJECTED, code="550")
    await claimed(stores, campaign, d[2], ClaimState.FAILED, code="not_called")
    await claimed(stores, campaign, d[3], lease=timedelta(0))
    await claimed(stores, campaign, d[4])
    await finish(stores, campaign)
    result = await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    # r002 (known not sent) and r005 to r007 (never claimed) are missing; r004 is with a provider.
    assert (result.made_unknown, result.rebucketed, result.open_rows) == (1, 4, 5)
    assert result.earliest_due == BUCKET
    assert result.next_lease_end is not None
    assert result.next_lease_end > datetime.now(UTC)
    assert await states(stores, campaign) == {
        R.PENDING: 5,
        R.SENT: 1,
        R.REJECTED: 1,
        R.UNKNOWN: 1,
    }
    sends = [
        (s.recipient_id, s.attempt)
        for _, _, group in await stores.campaigns.due_sends(campaign, Channel.EMAIL, NOW, 99)
        for s in group
    ]
    assert sends == [("r002", 1), ("r005", 0), ("r006", 0), ("r007", 0)]
    letters = await stores.dead_letters.by_status(world.tenant, "open", 10)
    assert {(one.decision.recipient_id, one.state, one.code) for one in letters} == {
        ("r001", "rejected", "550"),
        ("r003", "unknown", "lease_over"),
    }
    again = await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    assert (again.made_unknown, again.rebucketed, again.open_rows) == (0, 0, 5)


class CutOff(PostgresDecisions):
    """Whoever has moved decisions hears no more of it."""

    async def move(self, moves: Sequence[Move]) -> int:
        await super().move(moves)
        raise StoreUnavailable("cut off")


async def test_who_is_settled_when_it_is_cut_off_has_a_letter_all_the_same(
    stores: Stores, world: World
) -> None:
    """The next round finds nobody pending any more, so nobody would write it then."""
    campaign = await world.campaign(2)
    d = await world.plan(campaign)
    await claimed(stores, campaign, d[0], ClaimState.REJECTED, code="550")
    await claimed(stores, campaign, d[1], lease=timedelta(0))
    await finish(stores, campaign)
    cut_off = PostgresCampaigns(stores.pool, CutOff(stores.pool, stores.sealer))
    with pytest.raises(StoreUnavailable):
        await cut_off.settle(campaign, stores.ledger, BUCKET)
    await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    assert await states(stores, campaign) == {R.REJECTED: 1, R.UNKNOWN: 1}
    letters = await stores.dead_letters.by_status(world.tenant, "open", 10)
    assert {one.decision.recipient_id for one in letters} == {"r000", "r001"}


async def test_settle_leaves_alone_what_the_main_pass_has_not_come_to(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(6)
    await world.plan(campaign)
    epoch = await stores.campaigns.take_epoch(world.tenant, campaign.campaign_id, 0, "email")
    await stores.campaigns.advance(world.tenant, campaign.campaign_id, 0, "email", epoch, 1, False)
    result = await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    assert (result.rebucketed, result.open_rows) == (3, 6)
    sends = await stores.campaigns.page_sends(campaign, 0, 1, Channel.EMAIL)
    assert [s.recipient_id for s in sends] == ["r003", "r004", "r005"]


async def test_cancel_takes_the_planned_the_deferred_and_those_never_planned(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(9)
    d = await world.plan(campaign)
    await stores.pool.execute("DELETE FROM decisions WHERE tenant = $1 AND page = 2", world.tenant)
    deferred = Move(d[1].key, frozenset({R.PENDING}), R.DEFERRED, Cause.SENDER, due_at=BUCKET)
    sent = Move(d[0].key, frozenset({R.PENDING}), R.SENT, Cause.SENDER)
    await stores.decisions.move([deferred, sent])
    await claimed(stores, campaign, d[3])
    await claimed(stores, campaign, d[4], ClaimState.SENT)
    await claimed(stores, campaign, d[5], ClaimState.FAILED)
    cancelled = await stores.campaigns.cancel_rest(campaign, None, "stopped", ledger=stores.ledger)
    assert cancelled == 6
    assert await states(stores, campaign) == {R.SENT: 2, R.CANCELLED: 6, R.PENDING: 1}
    assert (await stores.campaigns.due(world.tenant, campaign.campaign_id)).waiting == 0
    # The one in flight turns out unknown, and is said so.
    await stores.pool.execute(
        "UPDATE claims SET lease_until = now() WHERE tenant = $1", world.tenant
    )
    await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    assert await states(stores, campaign) == {R.SENT: 2, R.CANCELLED: 6, R.UNKNOWN: 1}
    assert await stores.campaigns.cancel_rest(campaign, None, "stopped") == 0


async def test_a_shard_is_cancelled_alone(stores: Stores, world: World) -> None:
    campaign = await world.campaign(18)
    assert campaign.shards == 2
    assert await stores.campaigns.cancel_rest(campaign, 1, "stopped") == 3
    assert await states(stores, campaign) == {R.PENDING: 15, R.CANCELLED: 3}


async def test_replay_takes_exactly_the_states_asked_for(stores: Stores, world: World) -> None:
    campaign = await world.campaign(5)
    d = await world.plan(campaign)
    kinds = (ClaimState.FAILED, ClaimState.UNKNOWN, ClaimState.REJECTED, ClaimState.SENT)
    for one, state in zip(d, kinds, strict=False):
        await claimed(stores, campaign, one, state, code="why")
    moves = [
        Move(
            one.key,
            frozenset({R.PENDING}),
            R(state.value),
            Cause.SENDER,
            reason="why",
            attempt=1,
        )
        for one, state in zip(d, kinds, strict=False)
    ]
    await stores.decisions.move(moves)
    # Nobody wrote the summaries: settle does, of every page that a pass has been over.
    await finish(stores, campaign)
    await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    assert await states(stores, campaign) == {
        R.PENDING: 1,
        R.SENT: 1,
        R.REJECTED: 1,
        R.UNKNOWN: 1,
        R.FAILED: 1,
    }
    with pytest.raises(ValueError, match="cannot be replayed"):
        await stores.campaigns.replay(campaign, [R.SENT], BUCKET)
    assert await stores.campaigns.replay(campaign, [R.FAILED], BUCKET) == 1
    assert await stores.campaigns.replay(campaign, [R.UNKNOWN, R.REJECTED], BUCKET) == 2
    assert await stores.campaigns.replay(campaign, [R.FAILED, R.UNKNOWN], BUCKET) == 0
    sends = [
        (s.recipient_id, s.attempt, s.send_no, s.reason)
        for _, _, group in await stores.campaigns.due_sends(campaign, Channel.EMAIL, NOW, 9)
        for s in group
    ]
    assert sends == [
        ("r000", 1, 1, REPLAYED),
        ("r001", 1, 1, REPLAYED),
        ("r002", 0, 2, REPLAYED),
        # Never sent at all: settle had found it.
        ("r004", 0, 1, None),
    ]
    assert await states(stores, campaign) == {R.SENT: 1, R.PENDING: 4}
    # What was replayed is not settled back to unknown.
    await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    assert await states(stores, campaign) == {R.SENT: 1, R.PENDING: 4}


async def test_replay_closes_the_dead_letters_of_those_it_takes(
    stores: Stores, world: World
) -> None:
    campaign = await world.campaign(2)
    d = await world.plan(campaign)
    await claimed(stores, campaign, d[0], lease=timedelta(0))
    await claimed(stores, campaign, d[1], ClaimState.REJECTED, code="550")
    await stores.campaigns.settle(campaign, stores.ledger, BUCKET)
    await stores.campaigns.replay(campaign, [R.UNKNOWN], BUCKET)
    replayed = await stores.dead_letters.get(world.tenant, dead_letter_id(d[0].key))
    assert replayed is not None
    assert (replayed.status, replayed.replays) == ("replayed", 1)
    [still] = await stores.dead_letters.by_status(world.tenant, "open", 9)
    assert still.decision == d[1].key


async def test_cancelling_gives_caps_back(stores: Stores, world: World) -> None:
    campaign = await world.campaign(2)
    await world.plan(campaign)
    today = NOW.date()
    uses = [CapUse(f"r00{n}", "marketing", today, 1, None) for n in range(2)]
    await stores.decisions.use_caps(world.tenant, campaign.campaign_id, uses)
    await stores.campaigns.cancel_rest(campaign, None, "stopped")
    assert await stores.decisions.use_caps(world.tenant, uuid4(), uses) == frozenset()
