"""Workflows without Temporal: what is started is remembered, what is asked is answered from that."""

from uuid import UUID

from api.errors import TemporalUnavailable
from api.ports import Gone, TooLate
from schemas.campaigns import ControlSignal, DueInput
from schemas.notifications import CheckResult, Due
from sendloom.ports import AcceptedRow, ScheduleRow


class FakeWorkflows:
    """Implements `api.ports.Workflows`. Everything accepted is running until it is listed in `ended`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As new."""
        self.started: list[AcceptedRow] = []
        self.again: list[AcceptedRow] = []
        self.signals: list[tuple[UUID, str, ControlSignal]] = []
        self.rescheduled: list[tuple[UUID, Due]] = []
        self.cancelled: list[UUID] = []
        self.taken_back: list[UUID] = []
        """Reminders whose notification was."""
        self.due: list[DueInput] = []
        self.schedules: list[ScheduleRow] = []
        self.ended: set[UUID] = set()
        self.firing: set[UUID] = set()
        self.away = False
        """Temporal cannot be reached."""

    @property
    def ids(self) -> list[UUID]:
        return [row.id for row in self.started]

    async def start(self, row: AcceptedRow, *, again: bool = False) -> None:
        self._reach()
        if again:
            self.again.append(row)
        elif row.id not in self.ids:
            self.started.append(row)

    async def cancel_notification(self, id: UUID, reason: str, by: str) -> None:
        self._running(id)
        self.cancelled.append(id)

    async def cancel_fired(self, reminder_id: UUID, reason: str, by: str) -> None:
        self._running(reminder_id)
        self.taken_back.append(reminder_id)

    async def check_passcode(self, id: UUID, code: str) -> CheckResult:
        """The check itself is an activity's; without a worker the workflow is as good as gone."""
        self._reach()
        raise Gone

    async def resend_passcode(self, id: UUID, key: str) -> int:
        self._running(id)
        return 2

    async def cancel_passcode(self, id: UUID, reason: str, by: str) -> None:
        self._reach()
        raise Gone

    async def reschedule_reminder(self, id: UUID, due: Due) -> None:
        self._running(id)
        self.rescheduled.append((id, due))

    async def send_reminder_now(self, id: UUID, by: str) -> None:
        self._running(id)

    async def cancel_reminder(self, id: UUID, reason: str, by: str) -> None:
        self._running(id)
        self.cancelled.append(id)

    async def signal_campaign(self, id: UUID, name: str, signal: ControlSignal) -> None:
        if not self.away:
            self.signals.append((id, name, signal))

    async def work_due(self, due: DueInput) -> None:
        self._reach()
        self.due.append(due)

    async def apply_schedule(self, row: ScheduleRow) -> None:
        self._reach()
        self.schedules.append(row)

    def _reach(self) -> None:
        if self.away:
            raise TemporalUnavailable("Temporal: UNAVAILABLE")

    def _running(self, id: UUID) -> None:
        self._reach()
        if id in self.firing:
            raise TooLate("it is firing")
        if id in self.ended or id not in self.ids:
            raise Gone
