"""Every activity that a workflow asks for is served where the workflow asks for it."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.client import Client

import workflows
from schemas.kinds import Channel, MessageClass
from sendloom.domain.lanes import lanes_of
from sendloom.settings import Settings
from workers import wiring
from workers.fleet import OPS_WORKFLOWS, WORKFLOWS, Activities

_CALLS = {
    f"{how}_{kind}_method"
    for how in ("execute", "start")
    for kind in ("activity", "local_activity")
}


FLOW, LANE, OPS = "flow", "lane", "ops"


def asked_for() -> Iterator[tuple[str, str]]:
    """(activity name, where), of every call in `workflows/`."""
    for path in Path(workflows.__path__[0]).glob("*.py"):
        module = importlib.import_module(f"workflows.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in _CALLS:
                continue
            reference = node.args[0]
            assert isinstance(reference, ast.Attribute), ast.dump(reference)
            assert isinstance(reference.value, ast.Name)
            method = getattr(getattr(module, reference.value.id), reference.attr)
            # Only sends name a queue; everything else runs where its workflow does.
            on_lane = any(keyword.arg == "task_queue" for keyword in node.keywords)
            by_ops = any(one.__module__ == module.__name__ for one in OPS_WORKFLOWS)
            yield name_of(method), LANE if on_lane else OPS if by_ops else FLOW


def name_of(method: object) -> str:
    definition = activity._Definition.must_from_callable(method)  # type: ignore[arg-type]
    assert definition.name is not None
    return definition.name


def names(activities: Activities) -> set[str]:
    return {name_of(one) for one in activities}


def test_workflows_ask_for_activities():
    asked = dict(asked_for())
    assert asked["delivery.plan"] == FLOW
    assert asked["delivery.send"] == LANE
    assert asked["campaign.send"] == LANE


@pytest.mark.parametrize("message_class", MessageClass)
async def test_every_activity_is_served_where_it_is_asked_for(
    settings: Settings, temporal_client: Client, message_class: MessageClass
):
    asked = set(asked_for())
    on_flow = {name for name, where in asked if where == FLOW}
    on_lanes = {name for name, where in asked if where == LANE}
    if message_class is MessageClass.SECURITY:
        # A security campaign is refused.
        on_lanes = {name for name in on_lanes if not name.startswith("campaign.")}
    async with wiring.shared(settings) as common:
        async with wiring.flow(settings, message_class, temporal_client, common) as activities:
            assert on_flow <= names(activities)
        for lane in lanes_of(message_class):
            async with wiring.lane(settings, lane, common) as activities:
                served = names(activities)
            if lane.channel in wiring.CONFIGURED:
                assert on_lanes <= served, lane.queue
            assert "delivery.send" in served


async def test_every_activity_of_housekeeping_is_served(
    settings: Settings, temporal_client: Client
):
    async with wiring.ops(settings, temporal_client) as ops:
        assert {name for name, where in asked_for() if where == OPS} <= names(ops.activities)


def test_channels_with_a_provider_are_those_the_settings_require():
    assert {Channel.EMAIL, Channel.SMS} == wiring.CONFIGURED


def test_every_workflow_in_the_package_is_in_the_fleet():
    defined = set()
    for path in Path(workflows.__path__[0]).glob("*.py"):
        module = importlib.import_module(f"workflows.{path.stem}")
        defined |= {
            one
            for one in vars(module).values()
            if isinstance(one, type)
            and one.__module__ == module.__name__
            and hasattr(one, "__temporal_workflow_definition")
        }
    assert defined == {*WORKFLOWS, *OPS_WORKFLOWS}
