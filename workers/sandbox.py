"""How workflow code is run: in the sandbox where mistakes are looked for, and what may pass through it."""

from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH = (
    # Pure, without mutable state of their own; naming a package passes everything below it.
    "schemas",
    "sendloom.domain",
    "sendloom.errors",
    "sendloom.ports",
    "sendloom.platform.search_attributes",
    # Only references to activities are used, for their names and types.
    "activities",
    # What activity modules import on the way.
    "sendloom.platform",
    "prometheus_client",
    "orjson",
    "opentelemetry",
    "phonenumbers",
    "idna",
)


def restrictions() -> SandboxRestrictions:
    return SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)


def strict_runner() -> WorkflowRunner:
    """For tests: a module that slips through unnamed is an error."""
    policy = workflow.SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
    return SandboxedWorkflowRunner(
        restrictions=restrictions().with_import_notification_policy(policy)
    )


def fast_runner() -> WorkflowRunner:
    """For the fleet: the sandbox costs a third of a step, and what it finds it has found in tests and replays."""
    return UnsandboxedWorkflowRunner()
