"""Sends a campaign's stretches: a page is read, chunks of it are rendered, claimed, called and recorded, then the cursor moves.

What holds at every moment: nothing is called without a claim that was won; what is claimed is recorded, whoever cancels;
at most one lane budget of rows is claimed and not recorded; the cursor never passes a row that could still go now.
"""

from temporalio import activity

from activities.stretch.due_rows import DueRows
from activities.stretch.lane import SendingLane
from activities.stretch.run import StretchRun
from activities.stretch.shard_pages import ShardPages
from schemas.campaigns import DueStretch, Stretch, StretchResult


class CampaignSendActivities:
    """On one lane's queue. One for all activities of that lane in a process: they share its budget and its pace."""

    def __init__(self, lane: SendingLane) -> None:
        self.lane = lane

    @activity.defn(name="campaign.send")
    async def send(self, s: Stretch) -> StretchResult:
        """Sends what is planned of one shard on one channel, from the durable cursor, for some seconds."""
        ref, lane = s.ref, self.lane
        ground = await lane.grounds.of(ref.tenant, ref.campaign_id)
        epoch = await lane.campaigns.take_epoch(
            ref.tenant, ref.campaign_id, ref.shard, lane.channel
        )
        stretch = StretchRun(lane, ground, ref.mode, s.max_recipients, s.max_seconds, epoch=epoch)
        return await stretch.run(ShardPages(stretch, ref.shard))

    @activity.defn(name="campaign.send_due")
    async def send_due(self, s: DueStretch) -> StretchResult:
        """Sends the rows of one channel whose bucket has come. It takes no epoch: each row's claim is its fence."""
        lane = self.lane
        ground = await lane.grounds.of(s.tenant, s.campaign_id)
        stretch = StretchRun(
            lane, ground, s.mode, s.max_recipients, s.max_seconds, half_rate=s.half_rate
        )
        return await stretch.run(DueRows(stretch))
