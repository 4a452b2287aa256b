"""What Temporal keeps is unreadable without the ring, on the real server too."""

from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from schemas.wire import Wire
from sendloom.platform.payloads import ENCODING, data_converter
from sendloom.platform.sealing import CannotOpen, KeyRing

SECRET = "QWERTYUIOPAS"
OLD = KeyRing({"old": bytes(32)})
ROTATED = KeyRing({"new": bytes(range(32)), "old": bytes(32)})


class Order(Wire):
    code: str
    wait: timedelta = timedelta(0)


@workflow.defn(name="KeepsASecret")
class KeepsASecret:
    @workflow.run
    async def run(self, order: Order) -> Order:
        if order.wait:
            raise ApplicationError(f"no luck with {order.code}", order.code, type="NoLuck")
        return order


async def test_a_model_survives_the_way_there_and_back() -> None:
    converter = data_converter(OLD)
    [payload] = await converter.encode([Order(code=SECRET)])
    assert payload.metadata["encoding"] == ENCODING
    assert payload.metadata["sendloom-key"] == b"old"
    assert SECRET.encode() not in payload.SerializeToString()
    assert await converter.decode([payload], [Order]) == [Order(code=SECRET)]


async def test_old_payloads_open_after_rotation_and_new_ones_use_the_new_key() -> None:
    [before] = await data_converter(OLD).encode(["kept"])
    rotated = data_converter(ROTATED)
    assert await rotated.decode([before]) == ["kept"]
    [after] = await rotated.encode(["kept"])
    assert after.metadata["sendloom-key"] == b"new"
    with pytest.raises(CannotOpen):
        await data_converter(OLD).decode([after])


async def test_what_temporals_own_tools_wrote_passes() -> None:
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"by hand"')
    assert await data_converter(OLD).decode([plain]) == ["by hand"]


async def _history(client: Client, order: Order) -> WorkflowHistory:
    queue = f"secret-{uuid4()}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[KeepsASecret],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow(
            KeepsASecret.run, order, id=queue, task_queue=queue, memo={"note": SECRET}
        )
        if order.wait:
            with pytest.raises(WorkflowFailureError) as e:
                await handle.result()
            assert isinstance(e.value.cause, ApplicationError)
            assert SECRET in str(e.value.cause)
        else:
            assert (await handle.result()).code == SECRET
        return await handle.fetch_history()


async def test_a_history_holds_the_secret_nowhere_in_clear(temporal_client: Client) -> None:
    history = await _history(temporal_client, Order(code=SECRET))
    assert SECRET not in history.to_json()
    assert SECRET.encode() not in b"".join(e.SerializeToString() for e in history.events)


async def test_nor_does_a_failure_with_its_message_and_details(temporal_client: Client) -> None:
    history = await _history(temporal_client, Order(code=SECRET, wait=timedelta(1)))
    raw = b"".join(e.SerializeToString() for e in history.events)
    assert b"NoLuck" in raw  # the type is there: the search did look at the failure
    assert SECRET.encode() not in raw


async def test_a_history_from_before_a_rotation_replays(
    temporal_client: Client, ring: KeyRing
) -> None:
    history = await _history(temporal_client, Order(code=SECRET))
    rotated = KeyRing({"newer": bytes(range(1, 33)), "test": bytes(range(32))})
    assert ring.current in rotated.key_ids
    await Replayer(
        workflows=[KeepsASecret],
        data_converter=data_converter(rotated),
        workflow_runner=UnsandboxedWorkflowRunner(),
    ).replay_workflow(history)
