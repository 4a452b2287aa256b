"""A campaign that continues as new after few events and has few shards in flight, so that a test need not send thousands of signals
nor start a hundred children.

It has a module of its own because the sandbox loads it, and would load a test module's imports with it.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from schemas.campaigns import CampaignInput, CampaignProgress
    from workflows.campaign import CampaignWorkflow


@workflow.defn(name="Campaign")
class ShortCampaign(CampaignWorkflow):
    roll_at = 400
    window = 3

    @workflow.init
    def __init__(self, c: CampaignInput) -> None:
        super().__init__(c)

    @workflow.run
    async def run(self, c: CampaignInput) -> CampaignProgress:
        return await super().run(c)
