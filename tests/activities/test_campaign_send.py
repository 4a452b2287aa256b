"""Planning and sending stretches, on a real Postgres with a scripted mailer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from email import message_from_bytes
from email.policy import default
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from activities.campaign_plan import PLANS_AT_ONCE
from activities.stretch.run import LOOK_VALID
from schemas.kinds import (
    CampaignPhase,
    Channel,
    ControlState,
    FaultScope,
    MessageClass,
    RecipientState,
)
from schemas.outcomes import CallOutcome, Failed, Rejected, Unknown
from sendloom.domain.backoff import bucket_of
from sendloom.domain.budgets import DEFERRAL_SPREAD, LEASE_MARGIN, RETRIES
from sendloom.domain.pacing import CHUNK_MAX
from sendloom.errors import StoreUnavailable
from sendloom.ports import ClaimResult, ClaimScope, Move, WireMail
from sendloom.stores.campaigns import PostgresCampaigns
from sendloom.stores.decisions import PostgresDecisions
from sendloom.stores.ledger.postgres import PostgresLedger
from tests.campaign_fakes import (
    CATEGORY,
    TENANT,
    CampaignStage,
    FakeTokens,
    a_stage,
    address_of,
    until,
)
from tests.fakes import START, FakeClock

SENT, PENDING, DEFERRED = RecipientState.SENT, RecipientState.PENDING, RecipientState.DEFERRED
EXPIRED, REJECTED = RecipientState.EXPIRED, RecipientState.REJECTED


@pytest_asyncio.fixture
async def stage(database: str) -> AsyncIterator[CampaignStage]:
    async with a_stage(database) as stage:
        yield stage


def only_for(number: int, outcome: CallOutcome) -> Callable[[WireMail], CallOutcome | None]:
    address = address_of(f"r{number:06d}")
    return lambda mail: outcome if mail.envelope_to == address else None


async def expire(stage: CampaignStage) -> None:
    expires_at = (await stage.row()).expires_at
    assert expires_at is not None
    stage.clock.at = expires_at


def everybody_once(stage: CampaignStage, numbers: Iterable[int]) -> bool:
    return stage.mailer.took == {address_of(f"r{n:06d}"): 1 for n in numbers}


async def test_c66_everybody_on_every_page_gets_exactly_one(stage: CampaignStage):
    await stage.set_up(250, page_size=100)
    await stage.launch()
    planned = await stage.plan()
    assert (planned.done, planned.handled, planned.next_page) == (True, 250, 3)
    sent = await stage.send()
    assert (sent.done, sent.caught_up, sent.handled) == (True, True, 250)
    assert everybody_once(stage, range(250))
    assert await stage.counts() == {SENT: 250}
    assert (await stage.row()).last_send_at is not None


async def test_a_mail_is_rendered_in_its_readers_language_and_can_be_left(stage: CampaignStage):
    await stage.set_up(2)
    await stage.launch()
    await stage.plan()
    await stage.send()
    english, german = sorted(stage.mailer.mails, key=lambda mail: mail.envelope_to)
    assert b"Subject: For Ana0" in english.data
    parsed = message_from_bytes(german.data, policy=default)
    assert parsed["Subject"] == "Für Ana1"
    assert b"List-Unsubscribe: <https://notify.example.com/u/" in english.data
    assert b"List-Unsubscribe-Post: List-Unsubscribe=One-Click" in english.data


async def test_a_stretch_ends_at_its_size_and_the_next_begins_at_the_cursor(stage: CampaignStage):
    await stage.set_up(500, page_size=100)
    await stage.launch()
    first = await stage.run(stage.plan_activities().plan, stage.stretch(None, max_recipients=200))
    assert (first.done, first.next_page) == (False, 2)
    sent = await stage.send()
    assert (sent.done, sent.caught_up, sent.next_page) == (False, True, 2)
    await stage.plan()
    sent = await stage.send()
    assert (sent.done, sent.next_page) == (True, 5)
    assert everybody_once(stage, range(500))


async def test_a_process_plans_two_shards_at_once(stage: CampaignStage):
    """What is planned beside the first shards only keeps their senders waiting."""
    await stage.set_up(60, page_size=5, pages_a_shard=2)
    await stage.launch()
    in_hand: set[int] = set()
    full, most = asyncio.Event(), 0

    class Watched(PostgresCampaigns):
        async def take_epoch(self, tenant: str, campaign_id: UUID, shard: int, stage: str) -> int:
            nonlocal most
            in_hand.add(shard)
            most = max(most, len(in_hand))
            if len(in_hand) == PLANS_AT_ONCE:
                full.set()
            await full.wait()
            return await super().take_epoch(tenant, campaign_id, shard, stage)

        async def advance(self, *args: Any) -> None:
            await super().advance(*args)
            in_hand.discard(args[2])

    planning = stage.plan_activities(campaigns=Watched(stage.pool, stage.decisions))
    results = await asyncio.gather(
        *(stage.run(planning.plan, stage.stretch(None, shard)) for shard in range(6))
    )
    assert all(result.done for result in results)
    assert most == PLANS_AT_ONCE


async def test_c54_number_57_alone_is_failed(stage: CampaignStage):
    await stage.set_up(
        100, variables=lambda n: {"first_name": ["not", "text"] if n == 57 else f"Ana{n}"}
    )
    await stage.launch()
    for _ in range(3):
        await stage.plan()
        assert (await stage.send()).done
    assert everybody_once(stage, [n for n in range(100) if n != 57])
    assert await stage.counts() == {SENT: 99, RecipientState.FAILED: 1}
    assert await stage.reasons() == {"bad_variable": 1}
    assert await stage.letters() == ["r000057"]


async def test_c32_a_missing_name_fails_that_one_and_says_so(stage: CampaignStage):
    values: list[dict[str, str | None]] = [
        {"first_name": "Ana"},
        {},
        {"first_name": None},
        {"first_name": ""},
    ]
    await stage.set_up(4, variables=lambda n: values[n])
    await stage.launch()
    await stage.plan()
    await stage.send()
    assert everybody_once(stage, [0])
    assert await stage.reasons() == {"missing_variable": 3}
    assert b"{{" not in stage.mailer.mails[0].data


async def test_what_the_gates_say_is_recorded_with_its_reason_and_adds_up(stage: CampaignStage):
    await stage.set_up(20)
    async with stage.pool.acquire() as c:
        await c.execute("DELETE FROM consents WHERE recipient_id = 'r000000'")
        await c.execute(
            "INSERT INTO preferences (tenant, recipient_id, category, channel, opted_out, source)"
            " VALUES ($1, 'r000001', $2, '*', true, 'page')",
            TENANT,
            CATEGORY,
        )
        await c.execute("UPDATE addresses SET verified_at = NULL WHERE recipient_id = 'r000002'")
        await c.execute("UPDATE recipients SET erased_at = now() WHERE recipient_id = 'r000003'")
        await c.execute("DELETE FROM recipients WHERE recipient_id = 'r000004'")
    await stage.ledger.suppress(
        TENANT,
        Channel.EMAIL,
        stage.sealer.address_hash(TENANT, Channel.EMAIL, address_of("r000005")),
        "hard_bounce",
        "test",
    )
    await stage.launch()
    await stage.plan()
    await stage.send()
    assert everybody_once(stage, range(6, 20))
    assert await stage.reasons() == {
        "no_consent": 1,
        "opted_out": 1,
        "unverified": 1,
        "erased": 1,
        "unknown_recipient": 1,
        "suppressed_hard_bounce": 1,
    }
    assert sum((await stage.counts()).values()) == 20


async def test_who_opts_out_after_the_plan_is_not_sent_to(stage: CampaignStage):
    await stage.set_up(10)
    await stage.launch()
    await stage.plan()
    opt_outs = {
        "r000002": ("*", "email"),
        "r000003": ("*", "*"),
        "r000004": (CATEGORY, "email"),
        "r000005": (CATEGORY, "*"),
        # Not of this message.
        "r000006": ("other.news", "*"),
        "r000007": (CATEGORY, "sms"),
    }
    await stage.pool.executemany(
        "INSERT INTO preferences (tenant, recipient_id, category, channel, opted_out, source)"
        " VALUES ($1, $2, $3, $4, true, 'page')",
        [(TENANT, who, category, channel) for who, (category, channel) in opt_outs.items()],
    )
    await stage.send()
    assert everybody_once(stage, [0, 1, 6, 7, 8, 9])
    assert await stage.reasons() == {"opted_out": 4}


async def test_who_opts_out_while_a_page_is_on_the_wire_is_seen_before_the_rest_of_it_goes(
    stage: CampaignStage,
):
    """POL-6: a slow wire makes a page take minutes, and a look at who has opted out is good for seconds."""
    await stage.set_up(300, page_size=300)
    await stage.launch()
    await stage.plan()
    passed = 0.0

    async def minutes_pass(mails: Sequence[WireMail]) -> None:
        nonlocal passed
        stage.mailer.before_batch = None
        await stage.pool.execute(
            "INSERT INTO preferences (tenant, recipient_id, category, channel, opted_out, source)"
            " VALUES ($1, 'r000299', '*', '*', true, 'page')",
            TENANT,
        )
        passed += LOOK_VALID + 1

    stage.mailer.before_batch = minutes_pass
    sending = stage.send_activities(monotonic=lambda: time.monotonic() + passed)
    assert (await stage.send(sending)).done
    assert everybody_once(stage, range(299))
    assert await stage.reasons() == {"opted_out": 1}


async def test_a_launch_that_cannot_be_says_why(stage: CampaignStage):
    await stage.set_up(5, message_class="transactional")
    await stage.insert()
    result = await stage.run(stage.plan_activities().freeze, stage.ref)
    assert result.refused is not None
    assert result.refused.code == "marketing_only"
    row = await stage.row()
    assert (row.phase, row.reason) == (CampaignPhase.FAILED, "marketing_only")


async def test_a_launch_pins_the_audience_once(stage: CampaignStage):
    await stage.set_up(5)
    first = await stage.launch()
    stage.pass_time(timedelta(hours=1))
    again = await stage.run(stage.plan_activities().freeze, stage.ref)
    assert again.frozen == first


@pytest.mark.parametrize("ladder", [("sms",), ("sms", "email"), ("apns",)])
async def test_a_launch_pins_where_it_sends_whatever_its_category_becomes(
    stage: CampaignStage, ladder: tuple[str, ...]
):
    """After a rebuild the workflow freezes again, and what runs with other channels would never end, or not begin again."""
    await stage.set_up(5, ladder=("email",))
    first = await stage.launch()
    await change_ladder(stage, *ladder)
    again = await stage.run(stage.plan_activities().freeze, stage.ref)
    assert again.frozen == first
    assert first.channels == [Channel.EMAIL]
    assert (await stage.row()).channels == (Channel.EMAIL,)


async def test_frozen_before_channels_were_pinned_it_goes_by_its_categorys_ladder(
    stage: CampaignStage,
):
    await stage.set_up(5, ladder=("email",))
    await stage.launch()
    await stage.pool.execute("UPDATE campaigns SET channels = NULL")
    await change_ladder(stage, "apns", "sms")
    again = await stage.run(stage.plan_activities().freeze, stage.ref)
    assert again.frozen is not None
    assert again.frozen.channels == [Channel.SMS]
    await stage.plan()
    assert (await stage.send(channel=Channel.SMS)).done
    assert await stage.counts() == {SENT: 5}


# --- crash points: architecture, section 5 --------------------------------------------------------------------------------


async def test_killed_after_the_decisions_and_before_the_cursor_nothing_new_is_decided(
    stage: CampaignStage,
):
    await stage.set_up(100)
    await stage.launch()

    class NoCursor(PostgresCampaigns):
        async def advance(self, *args: object, **kwargs: object) -> None:
            raise StoreUnavailable("gone")

    broken = NoCursor(stage.pool, stage.decisions)
    with pytest.raises(StoreUnavailable):
        await stage.run(stage.plan_activities(campaigns=broken).plan, stage.stretch(None))
    assert await stage.states() == {"pending": 100}
    # Had it been decided anew, this would change the verdict.
    await stage.pool.execute("DELETE FROM consents")
    assert (await stage.plan()).done
    assert await stage.states() == {"pending": 100}


class Wire:
    """Stops a batch before its first call, like a process that is killed there, and may let it go on as a zombie."""

    def __init__(self, stage: CampaignStage) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        stage.mailer.before_batch = self.stop

    async def stop(self, mails: Sequence[WireMail]) -> None:
        self.reached.set()
        await self.released.wait()


async def test_killed_between_claim_and_record_nobody_is_called_again_by_reflex(
    stage: CampaignStage,
):
    await stage.set_up(300, page_size=100)
    await stage.launch()
    await stage.plan()
    killed = stage.send_activities()
    wire = Wire(stage)
    victim = asyncio.create_task(stage.send(killed))
    await until(lambda: len(stage.mailer.batches) == 2)
    claimed = (await stage.claims())["claimed"]
    assert claimed == 200, "the whole budget, and no more"
    stage.mailer.before_batch = None

    again = await stage.send()
    # Who was in flight waits for the end of the lease in a bucket, and holds nobody back.
    assert again.done
    assert await stage.counts() == {SENT: 100, DEFERRED: 200}

    await stage.end_leases()
    stage.pass_time(timedelta(minutes=10))
    assert (await stage.send_due()).done
    assert sum(stage.mailer.took.values()) == 100
    assert await stage.counts() == {SENT: 100, RecipientState.UNKNOWN: 200}
    assert len(await stage.letters()) == 200

    # It was not dead at all: what it still had in hand it may not call any more, and what it knows is merged.
    wire.released.set()
    zombie = await victim
    assert zombie.fenced
    assert max(stage.mailer.took.values()) == 1


async def test_a_lease_that_ended_is_believed_before_any_gate(stage: CampaignStage):
    """Somebody who may have been sent to is not called suppressed only because they have opted out since."""
    await stage.set_up(10)
    await stage.launch()
    await stage.plan()
    wire = Wire(stage)
    victim = asyncio.create_task(stage.send())
    await wire.reached.wait()
    stage.mailer.before_batch = None
    await stage.send()
    await stage.pool.execute(
        "INSERT INTO preferences (tenant, recipient_id, category, channel, opted_out, source)"
        " VALUES ($1, 'r000003', '*', 'email', true, 'page')",
        TENANT,
    )
    await stage.end_leases()
    stage.pass_time(timedelta(minutes=10))
    await stage.send_due()
    assert await stage.states() == {"unknown": 10}
    wire.released.set()
    await victim


async def test_c65_a_record_that_fails_repeats_the_marking_and_never_the_call(
    stage: CampaignStage,
):
    await stage.set_up(150)
    await stage.launch()
    await stage.plan()

    class Forgetful(PostgresLedger):
        refusals = 4

        async def record(self, scope: ClaimScope, results: Sequence[ClaimResult]) -> None:
            if self.refusals:
                self.refusals -= 1
                raise StoreUnavailable("gone")
            await super().record(scope, results)

    await stage.send(stage.send_activities(ledger=Forgetful(stage.pool)))
    assert everybody_once(stage, range(150))
    assert await stage.counts() == {SENT: 150}


async def test_killed_between_record_and_decision_the_outcome_is_found(stage: CampaignStage):
    await stage.set_up(150)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(
        3, Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT)
    )

    class Dies(PostgresDecisions):
        async def move(self, moves: Sequence[Move]) -> int:
            raise RuntimeError("killed")

        async def move_page(self, recipient_ids: Sequence[str], like: Move) -> int:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        await stage.send(stage.send_activities(decisions=Dies(stage.pool, stage.sealer)))
    assert (await stage.states())["pending"] == 150
    called = sum(stage.mailer.took.values())
    assert called > 0
    await stage.send()
    assert everybody_once(stage, [n for n in range(150) if n != 3])
    assert await stage.counts() == {SENT: 149, RecipientState.REJECTED: 1}
    assert await stage.letters() == ["r000003"]


async def test_a_zombie_wins_nothing_after_a_newer_attempt_has_begun(stage: CampaignStage):
    await stage.set_up(400, page_size=100)
    await stage.launch()
    await stage.plan()
    wire = Wire(stage)
    zombie = asyncio.create_task(stage.send())
    await wire.reached.wait()
    stage.mailer.before_batch = None
    in_hand = (await stage.claims())["claimed"]
    assert (await stage.send()).done
    wire.released.set()
    assert (await zombie).fenced
    assert sum(stage.mailer.took.values()) == 400, f"{in_hand} of them by the zombie"
    assert max(stage.mailer.took.values()) == 1
    assert await stage.states() == {"sent": 400}


async def test_a_lost_answer_to_a_claim_is_recognised(stage: CampaignStage):
    await stage.set_up(50)
    await stage.launch()
    await stage.plan()

    class LosesOneAnswer(PostgresLedger):
        lost = False

        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            answer = await super().claim(*args, **kwargs)
            if not self.lost:
                self.lost = True
                raise StoreUnavailable("the answer was lost")
            return answer

    await stage.send(stage.send_activities(ledger=LosesOneAnswer(stage.pool)))
    assert everybody_once(stage, range(50))


async def test_a_claim_whose_answer_is_lost_with_its_store_is_called_for_when_the_store_is_back(
    stage: CampaignStage,
):
    """Given up, its rows would be somebody's until the lease is over: minutes for the next attempt."""
    await stage.set_up(50)
    await stage.launch()
    await stage.plan()
    away = 0.0

    class Restarts(PostgresLedger):
        asked = 0

        async def claim(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal away
            self.asked += 1
            if self.asked == 1:
                await super().claim(*args, **kwargs)
            if self.asked <= 6:
                away += 5
                raise StoreUnavailable("killed, and being started again")
            return await super().claim(*args, **kwargs)

    sending = stage.send_activities(
        ledger=Restarts(stage.pool), monotonic=lambda: time.monotonic() + away
    )
    await stage.send(sending)
    assert away > LEASE_MARGIN.total_seconds()
    assert everybody_once(stage, range(50))
    assert await stage.counts() == {SENT: 50}
    # And none of it was given back first, because the lease was too short by then.
    assert await stage.pool.fetchval("SELECT max(attempt) FROM claims") == 1


async def test_what_was_won_unheard_goes_back_when_a_newer_attempt_has_begun(
    stage: CampaignStage,
):
    await stage.set_up(50)
    await stage.launch()
    await stage.plan()

    class Lost(PostgresLedger):
        asked = 0

        async def claim(self, scope: ClaimScope, *args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            if self.asked == 1:
                await super().claim(scope, *args, **kwargs)
                raise StoreUnavailable("the answer was lost")
            await stage.campaigns.take_epoch(TENANT, stage.campaign_id, scope.shard, scope.channel)
            return await super().claim(scope, *args, **kwargs)

    assert (await stage.send(stage.send_activities(ledger=Lost(stage.pool)))).fenced
    assert await stage.claims() == {"failed": 50}
    assert (await stage.send()).done
    assert everybody_once(stage, range(50))
    assert await stage.counts() == {SENT: 50}


async def test_cancelled_it_claims_nothing_more_and_records_what_is_in_flight(
    stage: CampaignStage,
):
    await stage.set_up(400, page_size=100)
    await stage.launch()
    await stage.plan()
    wire = Wire(stage)
    sending = stage.send_activities()
    env = stage.environment()
    task = asyncio.create_task(env.run(sending.send, stage.stretch()))
    await wire.reached.wait()
    env.cancel()
    wire.released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Nothing had been called when it was cancelled, and nothing was then.
    assert await stage.claims() == {"failed": sum(stage.mailer.batches)}
    assert not stage.mailer.took
    assert sending.lane.budget.in_doubt == 0
    stage.mailer.before_batch = None
    assert (await stage.send()).done
    assert everybody_once(stage, range(400))


async def test_a_worker_that_shuts_down_ends_its_stretch_early(stage: CampaignStage):
    await stage.set_up(400, page_size=100)
    await stage.launch()
    await stage.plan()
    sending = stage.send_activities()
    env = stage.environment()

    async def shut_down(count: int) -> None:
        if count == 50:
            env.worker_shutdown()

    stage.mailer.after_mail = shut_down
    result = await env.run(sending.send, stage.stretch())
    assert not result.done
    taken = sum(stage.mailer.took.values())
    assert 50 <= taken < 400
    assert (await stage.states())["sent"] == taken
    assert (await stage.send()).done
    assert everybody_once(stage, range(400))


async def test_no_more_than_the_budget_is_ever_in_doubt_over_all_activities_of_a_lane(
    stage: CampaignStage,
):
    await stage.set_up(1_200, page_size=100, pages_a_shard=4)
    await stage.launch()
    for shard in range(3):
        await stage.plan(shard)
    sending = stage.send_activities()
    most = 0

    async def measure(mails: Sequence[WireMail]) -> None:
        nonlocal most
        most = max(most, (await stage.claims()).get("claimed", 0))

    stage.mailer.before_batch = measure
    await asyncio.gather(*(stage.send(sending, shard=shard) for shard in range(3)))
    assert 100 < most <= 200
    assert everybody_once(stage, range(1_200))


async def test_c49_a_slow_wire_calls_only_what_can_end_within_its_lease(stage: CampaignStage):
    """Whatever of a chunk comes too late is given back uncalled, and chunks shrink to what the wire bears."""
    await stage.set_up(60)
    await stage.launch()
    await stage.plan()
    hands = FakeClock()

    async def four_seconds_each(count: int) -> None:
        hands.advance(timedelta(seconds=4))

    stage.mailer.after_mail = four_seconds_each
    sending = stage.send_activities(monotonic=hands.monotonic)
    stretches = 0
    while not (await stage.send(sending)).done:
        stretches += 1
        assert stretches < 60
    assert everybody_once(stage, range(60))
    assert await stage.counts() == {SENT: 60}
    assert await stage.pool.fetchval("SELECT max(attempt) FROM decisions") == 0


# --- control --------------------------------------------------------------------------------------------------------------


async def control(stage: CampaignStage, state: ControlState) -> None:
    await stage.campaigns.set_control(TENANT, stage.campaign_id, state, None, "asked", "ops")


async def test_paused_in_mid_flight_the_rest_goes_on_after_the_resume_without_waiting(
    stage: CampaignStage,
):
    await stage.set_up(500, page_size=100)
    await stage.launch()
    await stage.plan()

    heard_at = 0

    async def pause(count: int) -> None:
        nonlocal heard_at
        if count == 130:
            await control(stage, ControlState.PAUSED)
            await until(
                lambda: stage.watch.look(TENANT, stage.campaign_id).state is ControlState.PAUSED
            )
            heard_at = len(stage.mailer.mails)

    stage.mailer.after_mail = pause
    result = await stage.send()
    assert (result.done, result.control) == (False, ControlState.PAUSED)
    sent = sum(stage.mailer.took.values())
    # From the moment it is heard nothing more is called, also of what was claimed.
    assert 130 <= sent == heard_at < 500
    assert await stage.states() == {"sent": sent, "pending": 500 - sent}
    assert (await stage.claims()).get("claimed", 0) == 0
    stage.mailer.after_mail = None

    still = await stage.send()
    assert (still.control, still.handled) == (ControlState.PAUSED, 0)
    await control(stage, ControlState.RUNNING)
    assert (await stage.send()).done
    assert everybody_once(stage, range(500))
    # Rows that were claimed and not called have burnt nothing.
    attempts = await stage.pool.fetchval("SELECT max(attempt) FROM decisions")
    assert attempts == 0


async def test_control_rows_that_cannot_be_read_stop_the_calls(stage: CampaignStage):
    await stage.set_up(10)
    await stage.launch()
    await stage.plan()
    await stage.watch.follow(TENANT, stage.campaign_id)

    class Silent(PostgresCampaigns):
        async def controls_changed_since(self, at: Any) -> Any:
            raise StoreUnavailable("gone")

    assert stage.watch.may_call(TENANT, stage.campaign_id)
    stage.watch._rows = Silent(stage.pool, stage.decisions)
    await until(lambda: not stage.watch.may_call(TENANT, stage.campaign_id))
    stage.watch._rows = stage.campaigns
    await until(lambda: stage.watch.may_call(TENANT, stage.campaign_id))


async def test_c13_a_mistyped_host_pauses_the_campaign_and_blames_no_recipient(
    stage: CampaignStage,
):
    await stage.set_up(1)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = lambda mail: Failed(
        provider="smtp", code="unknown_host", scope=FaultScope.SENDER
    )
    result = await stage.send()
    assert (result.control, result.fault) == (ControlState.PAUSED, "smtp: unknown_host")
    row = await stage.campaigns.control(TENANT, stage.campaign_id)
    assert (row.state, row.reason, row.version) == (
        ControlState.PAUSED,
        "smtp: unknown_host",
        result.control_version,
    )
    assert await stage.states() == {"pending": 1}
    assert await stage.letters() == []

    stage.mailer.script = lambda mail: None
    await control(stage, ControlState.RUNNING)
    assert (await stage.send()).done
    assert everybody_once(stage, [0])


async def test_c69_a_login_that_fails_pauses_after_one_chunk(stage: CampaignStage):
    await stage.set_up(500)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = lambda mail: Failed(
        provider="smtp", code="4.7.0", scope=FaultScope.SENDER
    )
    await stage.send()
    assert sum(stage.mailer.batches) <= 200
    assert await stage.states() == {"pending": 500}


async def test_a_kill_switch_stops_a_stretch_and_nobody_is_lost(stage: CampaignStage):
    await stage.set_up(20)
    await stage.launch()
    await stage.plan()
    await stage.pool.execute(
        "INSERT INTO kill_switches (tenant, scope, name, reason, by) VALUES ($1, 'category', $2, 'test', 'ops')",
        TENANT,
        CATEGORY,
    )
    result = await stage.send()
    assert result.until is not None
    assert not stage.mailer.took
    await stage.pool.execute("DELETE FROM kill_switches")
    assert (await stage.send()).done
    assert everybody_once(stage, range(20))


# --- outcomes -------------------------------------------------------------------------------------------------------------


async def test_a_known_failure_waits_in_its_buckets_and_is_given_up_in_the_end(
    stage: CampaignStage,
):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(1, Failed(provider="smtp", code="4.2.1"))
    assert (await stage.send()).done
    assert await stage.counts() == {SENT: 2, DEFERRED: 1}
    waits = []
    for _ in range(RETRIES[MessageClass.MARKETING].attempts - 1):
        due = await stage.campaigns.due(TENANT, stage.campaign_id)
        assert due.earliest is not None
        waits.append(due.earliest - stage.clock.now())
        stage.clock.at = due.earliest
        await stage.send_due()
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    assert waits == [minute, 10 * minute, *[hour] * 5]
    assert await stage.counts() == {SENT: 2, RecipientState.FAILED: 1}
    assert await stage.letters() == ["r000001"]
    assert len(stage.mailer.mails) == 2


async def test_a_retry_that_comes_through_is_sent_once(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(1, Failed(provider="smtp", code="4.2.1"))
    await stage.send()
    stage.mailer.script = lambda mail: None
    early = await stage.send_due()
    assert (early.done, early.handled) == (True, 0)
    stage.pass_time(timedelta(minutes=2))
    assert (await stage.send_due()).done
    assert everybody_once(stage, range(3))
    assert await stage.counts() == {SENT: 3}
    assert (await stage.campaigns.due(TENANT, stage.campaign_id)).waiting == 0


async def test_a_retry_after_the_end_is_not_planned(stage: CampaignStage):
    await stage.set_up(1)
    await stage.launch(deadline=(stage.clock.now() + timedelta(seconds=30)).isoformat())
    await stage.plan()
    stage.mailer.script = lambda mail: Failed(provider="smtp", code="4.2.1")
    await stage.send()
    assert await stage.states() == {"failed": 1}


async def test_after_its_expiry_neither_sender_nor_planner_nor_catch_up_sends(
    stage: CampaignStage,
):
    await stage.set_up(30, page_size=10, pages_a_shard=2)
    await stage.launch()
    await stage.plan()
    # For catch-up: a cursor that has passed the first page. A deleted decision would not do: nothing in the product takes one
    # away behind the planner, so settle looks for decisions without an outcome, and who has none stays pending, unclosed.
    epoch = await stage.campaigns.take_epoch(TENANT, stage.campaign_id, 0, "email")
    await stage.campaigns.advance(TENANT, stage.campaign_id, 0, "email", epoch, 1, False)
    await expire(stage)
    await stage.send()
    assert await stage.counts() == {EXPIRED: 10, PENDING: 20}
    await stage.plan(shard=1)
    assert await stage.counts() == {EXPIRED: 20, PENDING: 10}
    await stage.send(shard=1)
    settled = await stage.run(stage.plan_activities().settle, stage.ref)
    assert (settled.rebucketed, settled.open_rows) == (10, 10)
    stage.pass_time(timedelta(minutes=1))
    await stage.send_due(half_rate=True)
    assert stage.mailer.mails == []
    # Before the close, which would hide a page that nobody counted again.
    assert await stage.counts() == {EXPIRED: 30}
    closed = await stage.run(stage.plan_activities().close, stage.ref)
    assert closed.closed is CampaignPhase.COMPLETED
    assert closed.progress.adds_up
    assert closed.progress.reason == "nobody was sent to: expired 30"


async def test_what_waits_for_a_retry_or_was_replayed_expires_and_is_counted(
    stage: CampaignStage,
):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    outcomes: dict[str, CallOutcome] = {
        address_of("r000001"): Failed(provider="smtp", code="4.2.1"),
        address_of("r000002"): Rejected(provider="smtp", code="5.7.1", scope=FaultScope.RECIPIENT),
    }
    stage.mailer.script = lambda mail: outcomes.get(mail.envelope_to)
    await stage.send()
    row = await stage.row()
    assert await stage.campaigns.replay(row, [REJECTED], bucket_of(stage.clock.now())) == 1
    assert await stage.counts() == {SENT: 1, DEFERRED: 1, PENDING: 1}
    stage.mailer.script = lambda mail: None
    await expire(stage)
    await stage.send_due()
    assert len(stage.mailer.mails) == 1
    assert await stage.counts() == {SENT: 1, EXPIRED: 2}
    closed = await stage.run(stage.plan_activities().close, stage.ref)
    assert closed.closed is CampaignPhase.COMPLETED


async def test_a_provider_that_names_a_time_is_not_asked_before_it(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    wait = timedelta(minutes=25)
    stage.mailer.script = only_for(1, Failed(provider="smtp", code="4.2.1", retry_after=wait))
    assert (await stage.send()).done
    due = await stage.campaigns.due(TENANT, stage.campaign_id)
    assert due.earliest == stage.clock.now() + wait


@pytest.mark.parametrize(
    ("waited", "spec"), [(0, {}), (2, {}), (2, {"local_time": "2026-03-02T18:00:00"})]
)
async def test_who_is_only_ever_throttled_is_given_up_when_the_total_time_of_the_class_is_over(
    stage: CampaignStage, waited: int, spec: Mapping[str, str]
):
    """A throttle burns no attempt, so it is time that ends it (CAMP-14): from the first attempt, however long a pause or the
    campaign itself had lasted by then."""
    total = RETRIES[MessageClass.MARKETING].total
    stage.clock.at = START
    await stage.set_up(1)
    await stage.launch(**spec)
    await stage.plan()
    stage.clock.at = began = stage.clock.now() + waited * total
    stage.mailer.script = lambda mail: Failed(provider="smtp", code="4.7.28", throttled=True)
    await stage.send()
    await stage.send_due()
    stage.clock.at = began + total - timedelta(minutes=2)
    await stage.send_due()
    assert await stage.states() == {"deferred": 1}
    assert await stage.letters() == []
    stage.clock.at = began + total
    await stage.send_due()
    assert await stage.states() == {"failed": 1}
    assert await stage.letters() == ["r000000"]


async def test_a_refused_address_is_suppressed_and_listed(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(
        1, Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT, suppress=True)
    )
    await stage.send()
    assert await stage.counts() == {SENT: 2, RecipientState.REJECTED: 1}
    assert await stage.letters() == ["r000001"]
    hashed = stage.sealer.address_hash(TENANT, Channel.EMAIL, address_of("r000001"))
    assert await stage.ledger.suppression(TENANT, Channel.EMAIL, [hashed]) == {
        hashed: "hard_bounce"
    }


async def test_who_is_refused_on_one_rung_is_tried_on_the_next_in_its_own_lane(
    stage: CampaignStage,
):
    await stage.set_up(3, ladder=("email", "sms"))
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(
        1, Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT)
    )
    assert (await stage.send()).done
    assert (await stage.send(channel=Channel.SMS)).done
    assert await stage.counts() == {SENT: 2, DEFERRED: 1}
    stage.pass_time(timedelta(minutes=1))
    assert (await stage.send_due(channel=Channel.SMS)).done
    assert len(stage.sms.took) == 1
    assert await stage.counts() == {SENT: 3}
    assert await stage.letters() == []


async def test_the_next_rung_has_the_whole_time_of_the_class(stage: CampaignStage):
    """However late in the campaign, a text that fails the first time is tried again."""
    await stage.set_up(1, ladder=("email", "sms"))
    await stage.launch()
    await stage.plan()
    stage.pass_time(2 * RETRIES[MessageClass.MARKETING].total)
    stage.mailer.script = only_for(0, Rejected(provider="smtp", code="5.1.1"))
    await stage.send()
    stage.sms.answers = Failed(provider="sms", code="429", throttled=True)
    for _ in range(2):
        stage.pass_time(timedelta(minutes=2))
        await stage.send_due(channel=Channel.SMS)
        assert await stage.counts() == {DEFERRED: 1}
    stage.sms.answers = None
    stage.pass_time(timedelta(minutes=2))
    await stage.send_due(channel=Channel.SMS)
    assert await stage.counts() == {SENT: 1}


async def change_ladder(stage: CampaignStage, *channels: str) -> None:
    await stage.pool.execute("UPDATE categories SET ladder = $1", list(channels))


@pytest.mark.parametrize("ladder", [("sms", "email"), ("sms",)])
async def test_who_is_planned_after_their_categorys_ladder_changed_is_sent_to_as_at_the_freeze(
    stage: CampaignStage, ladder: tuple[str, ...]
):
    """The campaign has senders for the channels of its freeze; on any other its people would wait for ever."""
    await stage.set_up(3, ladder=("email",))
    await stage.launch()
    await change_ladder(stage, *ladder)
    await stage.plan()
    assert (await stage.send()).done
    assert await stage.counts() == {SENT: 3}


@pytest.mark.parametrize("again", [False, True], ids=["at once", "on the second try"])
async def test_who_is_refused_after_their_category_got_a_rung_is_not_put_off_to_it(
    stage: CampaignStage, again: bool
):
    await stage.set_up(3, ladder=("email",))
    await stage.launch()
    await stage.plan()
    await change_ladder(stage, "email", "sms")
    refused = Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT)
    if again:
        later = Failed(provider="smtp", code="4.2.1", scope=FaultScope.RECIPIENT)
        stage.mailer.script = only_for(1, later)
        await stage.send()
        assert await stage.counts() == {SENT: 2, DEFERRED: 1}
        stage.pass_time(timedelta(minutes=2))
        stage.mailer.script = only_for(1, refused)
        assert (await stage.send_due()).done
    else:
        stage.mailer.script = only_for(1, refused)
        assert (await stage.send()).done
    assert await stage.counts() == {SENT: 2, RecipientState.REJECTED: 1}


async def test_who_is_refused_after_their_category_lost_a_rung_goes_on_to_it_all_the_same(
    stage: CampaignStage,
):
    await stage.set_up(3, ladder=("email", "sms"))
    await stage.launch()
    await stage.plan()
    await change_ladder(stage, "email")
    refused = Rejected(provider="smtp", code="5.1.1", scope=FaultScope.RECIPIENT)
    stage.mailer.script = only_for(1, refused)
    assert (await stage.send()).done
    stage.pass_time(timedelta(minutes=1))
    assert (await stage.send_due(channel=Channel.SMS)).done
    assert len(stage.sms.took) == 1
    assert await stage.counts() == {SENT: 3}


async def test_who_was_put_off_is_asked_about_on_the_channels_of_the_freeze(stage: CampaignStage):
    """Caps are asked again before a second try, and with them everything else about the person."""
    await stage.set_up(3, ladder=("email",), caps=ONE_A_DAY)
    await stage.launch()
    await stage.plan()
    later = Failed(provider="smtp", code="4.2.1", scope=FaultScope.RECIPIENT)
    stage.mailer.script = only_for(1, later)
    await stage.send()
    assert await stage.counts() == {SENT: 2, DEFERRED: 1}
    await change_ladder(stage, "sms")
    stage.pass_time(timedelta(minutes=2))
    stage.mailer.script = lambda mail: None
    assert (await stage.send_due()).done
    assert await stage.counts() == {SENT: 3}


async def test_an_unknown_outcome_is_never_sent_again_unless_an_operator_says_so(
    stage: CampaignStage,
):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(1, Unknown(provider="smtp", code="no_final_reply"))
    await stage.send()
    await stage.run(stage.plan_activities().settle, stage.ref)
    assert await stage.counts() == {SENT: 2, RecipientState.UNKNOWN: 1}
    assert await stage.letters() == ["r000001"]
    assert len(stage.mailer.mails) == 2

    row = await stage.row()
    bucket = stage.clock.now()
    assert await stage.campaigns.replay(row, [RecipientState.UNKNOWN], bucket) == 1
    await stage.run(stage.plan_activities().settle, stage.ref)
    # Still in doubt the second time: that is one call, not one for each look.
    assert (await stage.send_due()).done
    assert await stage.counts() == {SENT: 2, RecipientState.UNKNOWN: 1}
    assert await stage.campaigns.replay(row, [RecipientState.UNKNOWN], bucket) == 1
    stage.mailer.script = lambda mail: None
    assert (await stage.send_due()).done
    assert await stage.counts() == {SENT: 3}
    assert everybody_once(stage, range(3))


async def test_c17_throttled_rows_burn_no_attempts_and_the_pace_falls(stage: CampaignStage):
    await stage.set_up(100)
    stage.tokens = tokens = FakeTokens()
    await stage.launch()
    await stage.plan()
    count = 0

    def fourteen(mail: WireMail) -> CallOutcome | None:
        nonlocal count
        count += 1
        if count <= 14:
            return None
        return Failed(provider="smtp", code="4.7.28", throttled=True)

    stage.mailer.script = fourteen
    sending = stage.send_activities()
    await stage.send(sending)
    assert tokens.slowed
    assert await stage.counts() == {SENT: 14, DEFERRED: 86}
    assert await stage.pool.fetchval("SELECT max(attempt) FROM decisions") == 0
    stage.mailer.script = lambda mail: None
    stage.pass_time(timedelta(minutes=2))
    await stage.send_due(sending)
    assert sending.lane.pace.bucket in tokens.rates
    assert everybody_once(stage, range(100))


async def test_c92_a_provider_that_is_down_does_not_burn_everybodys_attempts(
    stage: CampaignStage,
):
    await stage.set_up(2_000)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = lambda mail: Failed(provider="smtp", code="connect_refused")
    sending = stage.send_activities()
    result = await stage.send(sending)
    assert result.until is not None
    tried = (await stage.states())["deferred"]
    assert tried <= 200
    for _ in range(20):
        result = await stage.send(sending)
        if result.control is ControlState.PAUSED:
            break
    assert result.fault is not None
    assert "failure_spike" in result.fault
    assert (await stage.states())["pending"] > 0


async def test_a_rate_takes_its_tokens_before_anything_is_claimed(stage: CampaignStage):
    await stage.set_up(100)
    stage.tokens = tokens = FakeTokens()
    tokens.grant = 30
    await stage.launch(rate_per_second=40)
    await stage.plan()
    result = await stage.send()
    assert result.until is not None
    assert not result.done
    # A chunk is what the rate allows in a quarter of a second.
    assert stage.mailer.batches == [10, 10, 10]
    assert await stage.claims() == {"sent": 30}


async def test_what_catch_up_found_goes_at_half_the_rate(stage: CampaignStage):
    await stage.set_up(10)
    stage.tokens = tokens = FakeTokens()
    await stage.launch(rate_per_second=40)
    await stage.plan()
    await stage.pool.execute("UPDATE decisions SET due_at = $1", stage.clock.now())
    await stage.send_due(half_rate=True)
    assert sorted(tokens.rates.values()) == [20, 40]
    assert everybody_once(stage, range(10))


async def test_without_a_rate_catch_up_takes_half_a_chunk_and_one_page_at_a_time(
    stage: CampaignStage,
):
    await stage.set_up(240, page_size=120)
    await stage.launch()
    await stage.plan()
    await stage.pool.execute("UPDATE decisions SET due_at = $1", stage.clock.now())
    most = 0

    async def measure(mails: Sequence[WireMail]) -> None:
        nonlocal most
        most = max(most, (await stage.claims()).get("claimed", 0))

    stage.mailer.before_batch = measure
    assert (await stage.send_due(half_rate=True)).done
    assert max(stage.mailer.batches) <= CHUNK_MAX // 2
    assert most <= 120
    assert everybody_once(stage, range(240))


# --- caps and moments -----------------------------------------------------------------------------------------------------

ONE_A_DAY = ({"scope": "category", "per": "day", "limit": 1},)


async def test_at_night_who_has_no_zone_is_written_to_and_counted(stage: CampaignStage):
    """POL-3: nobody knows when they sleep, and somebody should know how many they are."""
    stage.clock.at = START.replace(hour=23)
    await stage.set_up(5)
    await stage.pool.execute("UPDATE recipients SET zone = 'UTC'")
    await stage.pool.execute("UPDATE recipients SET zone = NULL WHERE recipient_id >= 'r000002'")
    await stage.launch()
    before = REGISTRY.get_sample_value("sendloom_zone_unknown_total") or 0
    await stage.plan()
    assert (REGISTRY.get_sample_value("sendloom_zone_unknown_total") or 0) == before + 3
    await stage.send()
    assert await stage.counts() == {SENT: 3, DEFERRED: 2}


async def test_a_cap_is_used_up_when_a_deferred_message_leaves(stage: CampaignStage):
    stage.clock.at = START
    await stage.set_up(3, caps=ONE_A_DAY)
    # Local night: everybody is put off until eight.
    await stage.pool.execute("UPDATE recipients SET zone = 'Asia/Tokyo'")
    await stage.launch()
    await stage.plan()
    assert await stage.counts() == {DEFERRED: 3}
    assert await stage.pool.fetchval("SELECT count(*) FROM cap_uses") == 0
    stage.pass_time(timedelta(hours=9))
    await stage.pool.execute(
        "INSERT INTO cap_uses (tenant, recipient_id, scope, local_day, decision_id)"
        " VALUES ($1, 'r000001', $2, '2026-03-03', $3)",
        TENANT,
        f"category:{CATEGORY}",
        uuid4(),
    )
    assert (await stage.send_due()).done
    assert everybody_once(stage, [0, 2])
    assert await stage.reasons() == {"frequency_cap": 1}
    assert await stage.pool.fetchval("SELECT count(*) FROM cap_uses") == 3


async def test_ones_own_use_of_a_cap_does_not_stand_in_the_way_after_a_pause(
    stage: CampaignStage,
):
    await stage.set_up(3, caps=ONE_A_DAY)
    await stage.launch()
    await stage.plan()
    assert await stage.pool.fetchval("SELECT count(*) FROM cap_uses") == 3
    await stage.pool.execute("UPDATE decisions SET due_at = $1", stage.clock.now())
    assert (await stage.send_due()).done
    assert everybody_once(stage, range(3))


async def test_who_is_refused_on_one_rung_has_not_used_up_the_cap_for_the_next(
    stage: CampaignStage,
):
    await stage.set_up(2, ladder=("email", "sms"), caps=ONE_A_DAY)
    await stage.launch()
    await stage.plan()
    stage.mailer.script = only_for(1, Rejected(provider="smtp", code="5.1.1"))
    await stage.send()
    assert await stage.counts() == {SENT: 1, DEFERRED: 1}
    assert await stage.pool.fetchval("SELECT count(*) FROM cap_uses") == 1
    stage.pass_time(timedelta(minutes=1))
    assert (await stage.send_due(channel=Channel.SMS)).done
    assert await stage.counts() == {SENT: 2}
    assert await stage.pool.fetchval("SELECT count(*) FROM cap_uses") == 2


async def test_local_time_waves_wait_for_their_moment(stage: CampaignStage):
    stage.clock.at = START
    await stage.set_up(4)
    await stage.pool.execute(
        "UPDATE recipients SET zone = 'America/New_York' WHERE recipient_id >= 'r000002'"
    )
    # 15:00 UTC now: six in the evening is three hours away for London, eight for New York.
    await stage.launch(local_time="2026-03-02T18:00:00")
    await stage.plan()
    assert await stage.counts() == {DEFERRED: 4}
    stage.pass_time(timedelta(hours=3, minutes=5))
    await stage.send_due()
    assert everybody_once(stage, [0, 1])
    stage.pass_time(timedelta(hours=5))
    await stage.send_due()
    assert everybody_once(stage, range(4))


@pytest.mark.parametrize("missed", ["send", "next_day", "skip"])
async def test_a_wave_whose_caps_are_asked_again_is_not_taken_for_missed(
    stage: CampaignStage, missed: str
):
    """It is asked at its moment, which is past by then; whoever was there in time has not missed it."""
    stage.clock.at = START
    await stage.set_up(3, caps=ONE_A_DAY)
    await stage.launch(local_time="2026-03-02T18:00:00", missed=missed)
    await stage.plan()
    assert await stage.counts() == {DEFERRED: 3}
    # A wire that fails at first: the retry is later still.
    stage.mailer.script = only_for(1, Failed(provider="smtp", code="4.3.2"))
    stage.pass_time(timedelta(hours=3, minutes=5))
    assert (await stage.send_due()).done
    assert await stage.counts() == {SENT: 2, DEFERRED: 1}
    stage.mailer.script = lambda mail: None
    stage.pass_time(timedelta(minutes=2))
    assert (await stage.send_due()).done
    assert everybody_once(stage, range(3))


@pytest.mark.parametrize("missed", ["next_day", "skip"])
async def test_who_is_refused_in_a_wave_goes_to_the_next_rung_in_the_same_wave(
    stage: CampaignStage, missed: str
):
    stage.clock.at = START
    await stage.set_up(2, ladder=("email", "sms"))
    await stage.launch(local_time="2026-03-02T18:00:00", missed=missed)
    await stage.plan()
    stage.mailer.script = only_for(1, Rejected(provider="smtp", code="5.1.1"))
    stage.pass_time(timedelta(hours=3, minutes=5))
    assert (await stage.send_due()).done
    assert await stage.counts() == {SENT: 1, DEFERRED: 1}
    stage.pass_time(timedelta(minutes=1))
    assert (await stage.send_due(channel=Channel.SMS)).done
    assert await stage.counts() == {SENT: 2}


async def test_c95_a_window_is_kept_for_each_message_not_at_the_start(stage: CampaignStage):
    await stage.set_up(40, page_size=10)
    stage.clock.at = stage.clock.at.replace(hour=19, minute=59)
    stage.tokens = FakeTokens()
    await stage.launch(window="09:00-20:00", rate_per_second=40)
    await stage.plan()

    async def night_falls(count: int) -> None:
        if count == 20:
            stage.clock.at = stage.clock.at.replace(hour=20, minute=0)

    stage.mailer.after_mail = night_falls
    assert (await stage.send()).done
    assert sum(stage.mailer.took.values()) == 20
    assert await stage.counts() == {SENT: 20, DEFERRED: 20}
    due = await stage.campaigns.due(TENANT, stage.campaign_id)
    assert due.earliest is not None
    morning = stage.clock.at.replace(hour=9, minute=0) + timedelta(days=1)
    buckets = await stage.pool.fetch("SELECT DISTINCT due_at FROM decisions WHERE state = 1")
    assert morning <= due.earliest == min(bucket["due_at"] for bucket in buckets)
    # Nine o'clock is no wall.
    assert len(buckets) > 1
    assert max(bucket["due_at"] for bucket in buckets) <= morning + DEFERRAL_SPREAD
    stage.clock.at = due.earliest + timedelta(minutes=5)
    assert (await stage.send_due()).done
    assert everybody_once(stage, range(40))


async def test_the_spread_after_a_closed_window_carries_nobody_past_the_end(stage: CampaignStage):
    await stage.set_up(10)
    stage.clock.at = stage.clock.at.replace(hour=19, minute=59)
    morning = stage.clock.at.replace(hour=9, minute=0) + timedelta(days=1)
    deadline = morning + timedelta(seconds=1)
    await stage.launch(window="09:00-20:00", deadline=deadline.isoformat())
    await stage.plan()
    stage.clock.at = stage.clock.at.replace(hour=20, minute=0)
    await stage.send()
    assert await stage.counts() == {DEFERRED: 10}
    stage.clock.at = morning
    assert (await stage.send_due()).done
    assert everybody_once(stage, range(10))


# --- the end --------------------------------------------------------------------------------------------------------------


async def test_c47_every_number_is_shown_and_they_add_up(stage: CampaignStage):
    stage.clock.at = START
    await stage.set_up(100, caps=ONE_A_DAY)
    ids = [f"r{n:06d}" for n in range(100)]
    for id in ids[80:85]:
        hashed = stage.sealer.address_hash(TENANT, Channel.EMAIL, address_of(id))
        await stage.ledger.suppress(TENANT, Channel.EMAIL, hashed, "complaint", "test")
    async with stage.pool.acquire() as c:
        await c.execute(
            "INSERT INTO preferences (tenant, recipient_id, category, channel, opted_out, source)"
            " SELECT $1, id, $2, '*', true, 'page' FROM unnest($3::text[]) AS id",
            TENANT,
            CATEGORY,
            ids[85:90],
        )
        await c.execute(
            "UPDATE addresses SET verified_at = NULL WHERE recipient_id = ANY ($1)", ids[90:94]
        )
        await c.execute(
            "INSERT INTO cap_uses (tenant, recipient_id, scope, local_day, decision_id)"
            " SELECT $1, id, $2, '2026-03-02', gen_random_uuid() FROM unnest($3::text[]) AS id",
            TENANT,
            f"category:{CATEGORY}",
            ids[94:97],
        )
    bad = {address_of(id) for id in ids[97:]}
    stage.mailer.script = lambda mail: (
        Rejected(provider="smtp", code="5.7.1") if mail.envelope_to in bad else None
    )
    await stage.launch()
    await stage.plan()
    await stage.send()
    closed = await stage.run(stage.plan_activities().close, stage.ref)
    assert closed.closed is CampaignPhase.COMPLETED
    assert closed.progress.adds_up
    assert closed.progress.counts[SENT] == 80
    assert closed.progress.reasons == {
        "suppressed_complaint": 5,
        "opted_out": 5,
        "unverified": 4,
        "frequency_cap": 3,
        "5.7.1": 3,
    }


async def test_a_campaign_is_not_closed_while_somebody_is_open(stage: CampaignStage):
    await stage.set_up(3)
    await stage.launch()
    await stage.plan()
    closed = await stage.run(stage.plan_activities().close, stage.ref)
    assert closed.closed is None
    assert (await stage.row()).phase is not CampaignPhase.COMPLETED


async def test_all_suppressed_completes_with_nobody_sent_and_says_why(stage: CampaignStage):
    await stage.set_up(3)
    await stage.pool.execute("DELETE FROM consents")
    await stage.launch()
    await stage.plan()
    assert (await stage.send()).done
    closed = await stage.run(stage.plan_activities().close, stage.ref)
    assert closed.closed is CampaignPhase.COMPLETED
    assert closed.progress.reason == "nobody was sent to: no_consent 3"


async def test_c79_cancelled_before_the_plan_everybody_is_cancelled_and_it_adds_up(
    stage: CampaignStage,
):
    await stage.set_up(250)
    await stage.launch()
    await stage.run(stage.plan_activities().plan, stage.stretch(None, max_recipients=100))
    await stage.send()
    await control(stage, ControlState.CANCELLED)
    assert (await stage.send()).control is ControlState.CANCELLED
    assert (await stage.plan()).control is ControlState.CANCELLED
    await stage.run(stage.plan_activities().cancel_rest, stage.ref)
    closed = await stage.run(stage.plan_activities().close, stage.ref)
    assert closed.closed is CampaignPhase.CANCELLED
    assert await stage.counts() == {SENT: 100, RecipientState.CANCELLED: 150}


async def test_settle_puts_who_is_missing_into_a_bucket_and_sends_nothing(stage: CampaignStage):
    await stage.set_up(20)
    await stage.launch()
    await stage.plan()
    # A cursor that has passed rows it should not have: nobody may be forgotten for it.
    epoch = await stage.campaigns.take_epoch(TENANT, stage.campaign_id, 0, "email")
    await stage.campaigns.advance(TENANT, stage.campaign_id, 0, "email", epoch, 1, True)
    settled = await stage.run(stage.plan_activities().settle, stage.ref)
    assert (settled.rebucketed, settled.open_rows) == (20, 20)
    assert not stage.mailer.took
    stage.pass_time(timedelta(minutes=1))
    assert (await stage.send_due(half_rate=True)).done
    assert everybody_once(stage, range(20))


async def test_a_list_that_fails_later_pauses_its_campaign(stage: CampaignStage):
    await stage.set_up(20)
    await stage.launch()
    await stage.pool.execute("UPDATE list_versions SET state = 'failed', reason = 'withdrawn'")
    result = await stage.plan()
    assert (result.control, result.fault) == (ControlState.PAUSED, "list_failed: withdrawn")
    assert await stage.states() == {}
