"""Adapters run on uvloop in production and on asyncio's own loop elsewhere, so their tests run on both."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

ON_BOTH = {"test_smtp.py", "test_twilio.py"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    loops: dict[str, LoopFactory] = {"asyncio": asyncio.SelectorEventLoop}
    return loops | {"uvloop": uvloop.new_event_loop} if item.path.name in ON_BOTH else loops
