"""One time-skipping server a module: tests run one after another and have ids of their own, and starting it takes seconds."""

from collections.abc import AsyncIterator

import pytest_asyncio
from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from sendloom.embedded.binaries import beside_python
from tests.workflows.running import register_search_attributes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(converter: DataConverter) -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=beside_python("temporal-test-server"), data_converter=converter
    ) as started:
        await register_search_attributes(started)
        yield started
