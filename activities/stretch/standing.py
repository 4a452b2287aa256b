"""How a stretch stands: what it has handled, and why it claims nothing more, said by whoever in it finds out."""

from datetime import datetime

from activities.campaign_control import ControlWatch
from sendloom.ports import CampaignRow


class Standing:
    """One for a stretch. Every reason holds until the stretch is over, but for a kill switch that is turned back."""

    def __init__(self, watch: ControlWatch, row: CampaignRow, provider: str) -> None:
        self.handled = 0
        self.interrupted = False
        self.fenced = False
        self.killed: str | None = None
        self.until: datetime | None = None
        """It may go on from then."""
        self.fault: str | None = None
        """Of our own configuration; `faulted_at` is the version of the control row under which it showed."""
        self.faulted_at = 0
        self.error: BaseException | None = None
        self._watch = watch
        self._row = row
        self._provider = provider

    @property
    def over(self) -> bool:
        """Whether nothing more may be claimed."""
        return (
            self.interrupted
            or self.error is not None
            or self.fenced
            or self.fault is not None
            or self.killed is not None
            or self.until is not None
        )

    def blame_sender(self, code: str) -> None:
        row = self._row
        if self.fault is None:
            self.fault = f"{self._provider}: {code}"
            self.faulted_at = self._watch.look(row.tenant, row.campaign_id).version

    def broke(self, error: BaseException) -> None:
        """The first one counts."""
        self.error = self.error or error
