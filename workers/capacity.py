"""What waits in each queue, and how many processes that calls for (LANE-8): figures for whoever starts and stops processes."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from schemas.kinds import MessageClass
from sendloom.domain.capacity import Bounds, wanted
from sendloom.domain.lanes import flow_queue, lanes_of
from sendloom.platform.metrics import workers as metrics

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """One queue, as Temporal sees it."""

    tasks: int
    oldest: timedelta
    workers: frozenset[str]
    """Identities of who asks it for work."""


class CapacityWatch:
    def __init__(
        self,
        look: Callable[[str], Awaitable[Waiting]],
        bounds: Mapping[MessageClass, Bounds],
    ) -> None:
        self._look = look
        self._bounds = bounds

    async def watch(self) -> None:
        """Once, over every queue of every class."""
        for message_class, bounds in self._bounds.items():
            await self._watch(message_class, bounds)

    async def _watch(self, message_class: MessageClass, bounds: Bounds) -> None:
        oldest, processes = timedelta(0), set[str]()
        for queue in queues_of(message_class):
            waiting = await self._look(queue)
            metrics.record_backlog(queue, waiting.tasks, waiting.oldest.total_seconds())
            oldest = max(oldest, waiting.oldest)
            # An identity is host/process/queue.
            processes |= {identity.rpartition("/")[0] for identity in waiting.workers}
        aim = wanted(message_class, len(processes), oldest, bounds)
        metrics.record_processes(message_class, len(processes), aim)
        if message_class is MessageClass.SECURITY and len(processes) < bounds.least:
            log.error(
                "security has too few processes",
                extra={"running": len(processes), "least": bounds.least},
            )


def queues_of(message_class: MessageClass) -> Sequence[str]:
    return [flow_queue(message_class), *(lane.queue for lane in lanes_of(message_class))]
