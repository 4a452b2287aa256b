"""Schedules that nobody woke us for: the scheduler was away or knows nothing of them, or a change of clocks hid a moment from it."""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from schemas.schedules import FireTrigger, TriggerResult
from sendloom.errors import StoreUnavailable
from sendloom.ports import ScheduleRow, ScheduleStore
from workers.sweeper import LEFT_ALONE, Lock

log = logging.getLogger(__name__)

NUDGE_EVERY = 5.0
OVERDUE = timedelta(seconds=10)
"""A wake-up takes well under a second; what is later than this was not woken for."""
NUDGED_AT_ONCE = 200


class Nudger:
    """Fires what is overdue by the trigger log, and tells Temporal of schedules that an interrupted request left untold."""

    def __init__(
        self,
        *,
        schedules: ScheduleStore,
        fire: Callable[[FireTrigger], Awaitable[TriggerResult]],
        apply: Callable[[ScheduleRow], Awaitable[None]],
        reachable: Callable[[], Awaitable[bool]],
        lock: Lock,
    ) -> None:
        self._schedules = schedules
        self._fire = fire
        self._apply = apply
        self._reachable = reachable
        self._lock = lock

    async def nudge(self) -> None:
        """One round."""
        try:
            async with self._lock("nudge") as ours:
                # While nothing can be started, nothing is promised: runs would pile up, and leave in one burst.
                if ours and await self._reachable():
                    await self._fire_overdue()
                    await self._apply_untold()
        except StoreUnavailable as e:
            log.warning("schedules wait for their store", extra={"why": str(e)})

    async def _fire_overdue(self) -> None:
        for tenant, id in await self._schedules.overdue(OVERDUE, NUDGED_AT_ONCE):
            try:
                result = await self._fire(FireTrigger(tenant=tenant, schedule_id=id, by="sweeper"))
            except StoreUnavailable:
                raise
            except Exception:
                # One that cannot be fired must not hold up the others.
                log.exception("a schedule could not be fired", extra={"schedule": str(id)})
                continue
            if not result.fired and not result.skipped:
                continue
            log.warning(
                "a schedule was overdue",
                extra={"schedule": str(id), "fired": len(result.fired), "skipped": result.skipped},
            )

    async def _apply_untold(self) -> None:
        for row in await self._schedules.unapplied(LEFT_ALONE, NUDGED_AT_ONCE):
            await self._apply(row)
            await self._schedules.applied(row.tenant, row.id, row.version)
