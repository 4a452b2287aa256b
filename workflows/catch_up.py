"""Compares the frozen audience with recorded outcomes while a campaign is in flight, and hands what is missing to the due loop."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.campaign_plan import CampaignActivities
    from schemas.campaigns import CampaignRef, CatchUpInput, LookAgain
    from sendloom.domain.ids import due_workflow_id
    from workflows import campaign_budgets as budgets

EVERY = timedelta(minutes=5)
ROLL_AFTER = 300
"""Rounds in one run: some 3,000 events, a day."""


@workflow.defn(name="CatchUp")
class CatchUpWorkflow:
    @workflow.init
    def __init__(self, c: CatchUpInput) -> None:
        self._ref = CampaignRef(tenant=c.tenant, mode=c.mode, campaign_id=c.campaign_id)
        self._wanted = False
        self._draining = False

    @workflow.run
    async def run(self, c: CatchUpInput) -> None:
        rounds = 0
        while rounds < ROLL_AFTER and not workflow.info().is_continue_as_new_suggested():
            await self._next_round()
            if self._draining:
                return
            self._wanted = False
            settled = await workflow.execute_activity_method(
                CampaignActivities.settle, self._ref, **budgets.SWEEP
            )
            if settled.rebucketed:
                await self._feed_due_loop()
            if workflow.patched("guard-rails"):
                await workflow.execute_activity_method(
                    CampaignActivities.guard_rails, self._ref, **budgets.STEP
                )
            rounds += 1
        workflow.continue_as_new(
            c.model_copy(update={"rounds": c.rounds + rounds}),
        )

    @workflow.signal
    def now(self) -> None:
        """On demand: do not wait for the next round."""
        self._wanted = True

    @workflow.signal
    def drain(self) -> None:
        """The campaign needs no more catching up."""
        self._draining = True

    async def _next_round(self) -> None:
        try:
            await workflow.wait_condition(lambda: self._wanted or self._draining, timeout=EVERY)
        except TimeoutError:
            return

    async def _feed_due_loop(self) -> None:
        due = workflow.get_external_workflow_handle(due_workflow_id(self._ref.campaign_id))
        try:
            await due.signal("look_again", LookAgain(catch_up=True))
        except ApplicationError:
            # It looks every minute by itself, or is about to be started again.
            workflow.logger.info("the due loop was not there to be woken")
