"""Pauses a campaign that hurts or hangs, and says why (CAMP-9)."""

import logging
from datetime import datetime

from schemas.campaigns import Control
from schemas.kinds import CampaignPhase, ControlState, RecipientState
from sendloom.domain import guard_rails
from sendloom.domain.guard_rails import Tally
from sendloom.platform.metrics import campaign as metrics
from sendloom.ports import CampaignRow, CampaignStore

log = logging.getLogger(__name__)


async def watch_over(
    campaigns: CampaignStore,
    row: CampaignRow,
    *,
    stalled_at: datetime | None = None,
    rate_per_second: float | None = None,
) -> Control | None:
    """The control row it wrote, or None. `stalled_at`: also look for progress, as of then."""
    if row.frozen_at is None:
        return None
    control = await campaigns.control(row.tenant, row.campaign_id)
    if control.state is not ControlState.RUNNING:
        return None
    counts = await campaigns.counts(row.tenant, row.campaign_id)
    health = await campaigns.health(row)
    tally = Tally(
        sent=counts.get(RecipientState.SENT, 0),
        rejected=counts.get(RecipientState.REJECTED, 0),
        bounced=health.bounced,
        complained=health.complained,
    )
    reason = guard_rails.too_much(tally.since(health.seen))
    if reason is None and stalled_at is not None and row.phase is CampaignPhase.RUNNING:
        last = max(at for at in (row.frozen_at, row.last_send_at, health.control_at) if at)
        could_go = counts.get(RecipientState.PENDING, 0)
        reason = guard_rails.stalled(stalled_at, last, could_go, rate_per_second)
    if reason is None:
        return None
    # The pause first: what is lost between the two makes it pause once more after a resume, and never go on unseen.
    written = await campaigns.set_control(
        row.tenant, row.campaign_id, ControlState.PAUSED, None, reason, "sendloom"
    )
    await campaigns.note_seen(row.tenant, row.campaign_id, tally)
    metrics.record_paused(reason.split()[0])
    log.warning("a campaign paused itself", extra={"reason": reason})
    return written
