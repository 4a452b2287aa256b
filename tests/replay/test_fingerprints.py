"""What workflows ask of Temporal today, against what was written down: a changed order must be meant."""

import json

import pytest
import pytest_asyncio
from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from sendloom.embedded.binaries import beside_python
from tests.replay.record import FINGERPRINTS, played
from tests.replay.scenarios import SCENARIOS
from tests.workflows.running import register_search_attributes

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(converter: DataConverter):
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=beside_python("temporal-test-server"), data_converter=converter
    ) as started:
        await register_search_attributes(started)
        yield started


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_commands_are_those_written_down(env: WorkflowEnvironment, name: str):
    """If this was meant: a patch (docs/versioning.md), then `python -m tests.replay.record --fingerprints`."""
    _, prints = await played(env, name)
    known = json.loads(FINGERPRINTS.read_text())
    assert prints == {workflow: known.get(workflow) for workflow in prints}
