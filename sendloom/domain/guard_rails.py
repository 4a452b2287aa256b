"""When a campaign stops itself: too many bounces or complaints, or no progress (CAMP-9). A failure spike is seen where it happens."""

from dataclasses import dataclass
from datetime import datetime, timedelta

BOUNCES = 0.03
COMPLAINTS = 0.0005
LEAST_HANDLED = 100
"""Fewer say nothing of a rate."""
LEAST_BOUNCES = 5
LEAST_COMPLAINTS = 2
"""One person who complains is no rate."""
STALL = timedelta(minutes=15)
SLOW_SENDS = 10
"""A slow campaign is stalled after the time that so many sends should have taken."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a campaign's messages came to."""

    sent: int = 0
    rejected: int = 0
    """Refused by the receiving side at once: a bounce that took no time."""
    bounced: int = 0
    complained: int = 0

    def since(self, earlier: "Tally") -> "Tally":
        """What is new, so that a campaign resumed by somebody who has looked is not stopped by what they saw."""
        return Tally(
            max(0, self.sent - earlier.sent),
            max(0, self.rejected - earlier.rejected),
            max(0, self.bounced - earlier.bounced),
            max(0, self.complained - earlier.complained),
        )


def too_much(tally: Tally) -> str | None:
    """The reason to pause, with its numbers, or None."""
    handled = tally.sent + tally.rejected
    if handled < LEAST_HANDLED:
        return None
    bounced = tally.rejected + tally.bounced
    if bounced >= LEAST_BOUNCES and bounced > BOUNCES * handled:
        return f"bounce_rate {bounced} of {handled} bounced, more than {BOUNCES:.0%}"
    complained = tally.complained
    if complained >= LEAST_COMPLAINTS and complained > COMPLAINTS * tally.sent:
        return f"complaint_rate {complained} of {tally.sent} complained, more than {COMPLAINTS:.2%}"
    return None


def stalled(
    now: datetime, last_progress: datetime, could_go: int, rate_per_second: float | None
) -> str | None:
    """Somebody could be sent to, and for long nobody was."""
    patience = STALL
    if rate_per_second is not None:
        patience = max(patience, timedelta(seconds=SLOW_SENDS / rate_per_second))
    quiet = now - last_progress
    if could_go <= 0 or quiet <= patience:
        return None
    return (
        f"stalled nothing left for {int(quiet.total_seconds() // 60)} minutes, {could_go} could go"
    )
