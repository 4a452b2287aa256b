"""One notification, from start to its final state, on a server that skips time."""

from datetime import timedelta

import pytest
from temporalio.client import WorkflowUpdateFailedError

from schemas.kinds import Channel, FaultScope, RecipientState
from schemas.notifications import CancelRequest, NotificationView
from schemas.outcomes import Accepted, Failed, Rejected, Unknown
from tests.builders import MARKETING, SECURITY, TRANSACTIONAL, World, a_notification
from tests.conftest import TimeSkipping
from tests.workflows.running import eventually, skipping
from workflows.notification import NotificationWorkflow


async def test_a_notification_is_sent_and_its_row_closed(time_skipping: TimeSkipping):
    world = World()
    async with time_skipping() as env, skipping(env, world, TRANSACTIONAL) as r:
        n = a_notification(accepted_at=await r.now())
        handle = await r.start(n)
        view = await handle.result()
    assert view.state is RecipientState.SENT
    [channel] = view.channels
    assert (channel.channel, channel.provider) == (Channel.EMAIL, "smtp")
    assert len(world.email.sent) == 1
    assert world.accepted.rows[n.tenant, n.notification_id].outcome == {
        "kind": "accepted",
        "provider": "smtp",
        "provider_message_id": "m-1",
    }
    assert world.decisions.only().state is RecipientState.SENT
