"""Old histories must replay on today's code."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer

from tests.replay.record import HISTORIES
from workers.fleet import OPS_WORKFLOWS, WORKFLOWS
from workers.sandbox import fast_runner, strict_runner

EVERY = (*WORKFLOWS, *OPS_WORKFLOWS)
RECORDED = sorted(HISTORIES.glob("*.json"))


def history_of(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_an_old_history_still_replays(path: Path, converter: DataConverter):
    replayer = Replayer(workflows=EVERY, data_converter=converter, workflow_runner=strict_runner())
    await replayer.replay_workflow(history_of(path))


async def test_the_fleets_own_runner_replays_them_too(converter: DataConverter):
    replayer = Replayer(workflows=EVERY, data_converter=converter, workflow_runner=fast_runner())
    for path in RECORDED:
        await replayer.replay_workflow(history_of(path))


def test_every_workflow_has_a_history():
    recorded = {
        json.loads(path.read_text())["events"][0]["workflowExecutionStartedEventAttributes"][
            "workflowType"
        ]["name"]
        for path in RECORDED
    }
    names = {workflow.__temporal_workflow_definition.name for workflow in EVERY}  # type: ignore[attr-defined]
    assert names <= recorded


async def test_a_changed_order_of_commands_is_noticed(converter: DataConverter):
    """The replayer is no good if it cannot fail."""
    path = HISTORIES / "notification-sent.json"
    text = path.read_text().replace("send-email-transactional", "send-sms-transactional")
    text = text.replace('"delivery.send"', '"delivery.other"')
    history = WorkflowHistory.from_json("changed", text)
    replayer = Replayer(workflows=EVERY, data_converter=converter, workflow_runner=fast_runner())
    with pytest.raises(Exception, match=r"[Nn]ondeterminism"):
        await replayer.replay_workflow(history)


def test_no_history_says_an_address_or_a_code():
    for path in RECORDED:
        text = path.read_text()
        assert "ada@example.com" not in text
        assert "480931" not in text
        assert "+12025550143" not in text
