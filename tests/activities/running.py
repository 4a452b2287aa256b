"""Running one activity as a worker would, attempt after attempt."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from schemas.content import Content
from schemas.notifications import (
    NotificationInput,
    PlanRequest,
    Recorded,
    RecordRequest,
    Sendable,
)
from tests.builders import World


def environment(attempt: int = 1, activity_id: str = "1", run_id: str = "") -> ActivityEnvironment:
    env = ActivityEnvironment()
    env.info = replace(
        env.info, attempt=attempt, activity_id=activity_id, workflow_run_id=run_id or str(uuid4())
    )
    return env


async def plan(world: World, n: NotificationInput, *, rung: int = 0, send_no: int = 1) -> Any:
    """The plan's step."""
    request = PlanRequest(n=n, rung=rung, send_no=send_no)
    return (await environment().run(world.delivery().plan, request)).step


async def planned(
    world: World, n: NotificationInput, content: Content | None = None, **how: Any
) -> Sendable:
    """Accepted, planned, and nothing in the way."""
    await world.accept(n, content)
    step = await plan(world, n, **how)
    assert isinstance(step, Sendable), step
    return step


class Sender:
    """One activity of one workflow run: its attempts follow each other as Temporal makes them."""

    def __init__(self, world: World, s: Sendable, activity_id: str = "1") -> None:
        self.world = world
        self.s = s
        self.attempt = 0
        self.delays: list[timedelta | None] = []
        self._details: list[Any] = []
        self._run_id = str(uuid4())
        self._activity_id = activity_id

    async def send(self, world: World | None = None) -> Recorded:
        """One attempt; on another worker when one is named."""
        self.attempt += 1
        env = environment(self.attempt, self._activity_id, self._run_id)
        env.info = replace(env.info, heartbeat_details=tuple(self._details))

        def remember(*details: Any) -> None:
            if details:
                self._details = list(details)

        env.on_heartbeat = remember
        try:
            return await env.run((world or self.world).delivery().send, self.s)
        except ApplicationError as e:
            self.delays.append(e.next_retry_delay)
            raise

    async def send_on(
        self, until: Callable[[Recorded], bool] = lambda _: True, attempts: int = 50
    ) -> Recorded:
        """Attempt after attempt, each after the delay that the one before asked for."""
        for _ in range(attempts):
            try:
                recorded = await self.send()
                if until(recorded):
                    return recorded
            except ApplicationError as e:
                if e.non_retryable:
                    raise
                self.world.clock.advance(e.next_retry_delay or timedelta(seconds=1))
        raise AssertionError("it never ended")


async def record(world: World, s: Sendable, recorded: Recorded, attempt: int = 1) -> None:
    request = RecordRequest(
        sendable=s,
        outcome=recorded.outcome,
        attempt=recorded.attempt,
        owner=recorded.owner,
    )
    await environment(attempt).run(world.delivery().record, request)
