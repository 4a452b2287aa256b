"""The scheduler has woken us. What is owed is for our own tables to say."""

from datetime import UTC, datetime

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from activities.triggers import TriggerActivities
    from schemas.schedules import FireTrigger, TriggerInput, TriggerResult
    from workflows import budgets

SCHEDULED_START = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
"""Set by Temporal on what its schedules start: the nominal time, without jitter."""


@workflow.defn(name="Trigger")
class TriggerWorkflow:
    @workflow.run
    async def run(self, t: TriggerInput) -> TriggerResult:
        return await workflow.execute_activity_method(
            TriggerActivities.fire,
            FireTrigger(tenant=t.tenant, schedule_id=t.schedule_id, woken_for=_scheduled_for()),
            **budgets.FIRE_TRIGGER,
        )


def _scheduled_for() -> datetime | None:
    """None when it was started by hand; then what is due by the clock is fired."""
    at = workflow.info().typed_search_attributes.get(SCHEDULED_START)
    return None if at is None else at.astimezone(UTC)
