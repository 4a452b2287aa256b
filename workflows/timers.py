"""Waiting, in ways that something may cut short."""

from collections.abc import Callable
from datetime import datetime

from temporalio import workflow


async def until(moment: datetime, unless: Callable[[], bool]) -> bool:
    """Wait for a moment; False when `unless` became true first."""
    if unless():
        return False
    rest = (moment - workflow.now()).total_seconds()
    if rest <= 0:
        return True
    try:
        await workflow.wait_condition(unless, timeout=rest)
    except TimeoutError:
        return True
    return False


class MovableDeadline:
    """A moment that can be moved while somebody waits for it."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment
        self._moves = 0

    @property
    def moment(self) -> datetime:
        return self._moment

    def move(self, moment: datetime) -> None:
        self._moment = moment
        self._moves += 1

    async def reached(self, unless: Callable[[], bool]) -> bool:
        """Wait for it wherever it is moved to; False when `unless` became true first."""
        while True:
            seen = self._moves

            def changed(seen: int = seen) -> bool:
                return unless() or self._moves != seen

            if await until(self._moment, changed):
                return True
            if unless():
                return False
