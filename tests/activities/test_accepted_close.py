"""The last step: decision, dead letter, row."""

import pytest

from schemas.kinds import Channel, Kind, RecipientState
from schemas.notifications import CloseReminder, CloseRequest, Due, ReminderView
from schemas.outcomes import Accepted, Cancelled, Failed, Outcome, Undeliverable
from sendloom.domain.outcomes import MEANING
from sendloom.errors import StoreUnavailable
from tests.activities.running import Sender, environment, planned
from tests.builders import World, a_notification, a_reminder
from tests.fakes import START


async def close(world: World, n, outcome: Outcome, **more) -> None:
    request = CloseRequest(
        kind=Kind.NOTIFICATION,
        tenant=n.tenant,
        id=n.notification_id,
        recipient_id=n.recipient_id,
        category=n.category,
        message_class=n.message_class,
        accepted_at=n.accepted_at,
        outcome=outcome,
        dead_letter=MEANING[outcome.kind].dead_letter,
        **more,
    )
    await environment().run(world.closing().close, request)


async def test_a_success_closes_the_row_and_nothing_else():
    world = World()
    n = a_notification()
    await Sender(world, await planned(world, n)).send()
    calls = len(world.decisions.calls)
    await close(world, n, Accepted(provider="smtp", provider_message_id="m-1"))
    assert len(world.decisions.calls) == calls
    assert world.dead_letters.letters == {}
    row = world.accepted.rows[n.tenant, n.notification_id]
    assert row.outcome is not None
    assert row.outcome["kind"] == "accepted"


async def test_a_failure_ends_the_decision_and_leaves_a_dead_letter():
    world = World()
    n = a_notification()
    await planned(world, n)
    failed = Failed(provider="smtp", code="421", detail="busy " * 200)
    await close(world, n, failed, channel=Channel.EMAIL, attempt=12)
    decision = world.decisions.only()
    assert (decision.state, decision.reason, decision.attempt) == (
        RecipientState.FAILED,
        "421",
        12,
    )
    [letter] = world.dead_letters.letters.values()
    assert (letter.kind, letter.ref_id, letter.state) == (
        Kind.NOTIFICATION,
        n.notification_id,
        "failed",
    )
    assert len(letter.last_error) == 500


async def test_what_was_never_resolved_still_gets_a_decision_to_be_seen():
    world = World()
    n = a_notification()
    await world.accept(n)
    await close(world, n, Cancelled(reason="no longer"))
    decision = world.decisions.only()
    assert (decision.state, decision.reason) == (RecipientState.CANCELLED, "no longer")
    assert world.dead_letters.letters == {}


async def test_a_decision_that_is_final_is_left_alone():
    world = World()
    n = a_notification()
    await Sender(world, await planned(world, n)).send()
    await close(world, n, Undeliverable(reason="ladder_exhausted"))
    assert world.decisions.only().state is RecipientState.SENT


async def test_the_row_is_closed_last():
    world = World()
    n = a_notification()
    await planned(world, n)
    world.dead_letters.down = True
    with pytest.raises(StoreUnavailable):
        await close(world, n, Failed(provider="smtp", code="421"))
    assert world.accepted.rows[n.tenant, n.notification_id].closed_at is None
    world.dead_letters.down = False
    await close(world, n, Failed(provider="smtp", code="421"))
    await close(world, n, Failed(provider="smtp", code="421"))
    assert len(world.dead_letters.letters) == 1


async def test_a_reminder_that_sent_it_is_closed_after_it():
    world = World()
    r, n = a_reminder(Due(at=START)), a_notification()
    await world.accept(r)
    await Sender(world, await planned(world, n)).send()
    view = ReminderView(id=r.reminder_id, state="sent", notification_id=n.notification_id)
    reminder = CloseReminder(tenant=r.tenant, id=r.reminder_id, view=view)
    accepted = Accepted(provider="smtp", provider_message_id="m-1")
    await close(world, n, accepted, reminder=reminder)
    ids = (n.notification_id, r.reminder_id)
    notification, closed = (world.accepted.rows[n.tenant, id].outcome or {} for id in ids)
    assert (notification["kind"], closed["kind"], closed["state"]) == (
        "accepted",
        "accepted",
        "sent",
    )
    # As long as the first is open, the second says that there is something to do.
    assert list(world.accepted.closed) == list(ids)
