"""What a run is started with is what Temporal would note of our workers anyway, so it has nothing to write to its search index."""

from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from schemas.kinds import Kind
from sendloom.platform.search_attributes import BUILDS, UNVERSIONED, UNVERSIONED_BUILDS
from tests.builders import a_passcode, accepted_row
from workflows.starting import attributes_of


@workflow.defn(name="BuildsNothing")
class Nothing:
    @workflow.run
    async def run(self) -> None:
        return None


GIVEN = attributes_of(accepted_row(a_passcode(), Kind.PASSCODE))


@pytest.mark.parametrize("given", [TypedSearchAttributes([]), GIVEN], ids=["nothing", "ours"])
async def test_temporal_notes_of_an_unversioned_worker_what_we_start_with(
    temporal_client: Client, given: TypedSearchAttributes
) -> None:
    queue = f"builds-{uuid4()}"
    async with Worker(
        temporal_client,
        task_queue=queue,
        workflows=[Nothing],
        build_id=UNVERSIONED,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await temporal_client.start_workflow(
            Nothing.run, id=queue, task_queue=queue, search_attributes=given
        )
        await handle.result()
    noted = (await handle.describe()).typed_search_attributes.get(BUILDS)
    assert tuple(noted or ()) == UNVERSIONED_BUILDS


def test_a_run_for_versioned_workers_is_started_without() -> None:
    row = accepted_row(a_passcode(), Kind.PASSCODE)
    assert attributes_of(row).get(BUILDS) is not None
    assert attributes_of(row, "2026-11-30").get(BUILDS) is None
