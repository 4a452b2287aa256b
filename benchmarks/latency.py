"""How fast one message is. `python -m benchmarks.latency --json`; the last line is one JSON object.

Idle: 200 passcodes one after another, each from the first byte of the request to its arrival at the SMS simulator, and the
accept alone. Then 500 notifications with 50 in flight, against a bare workflow with one activity that does nothing, on the same
Temporal server in the same run, started with the same number in flight.

Guarantees of our side: accepted row, decision, claim and outcome, each committed with fsync on. The bare side keeps a history only.
"""

import argparse
import asyncio
import json
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.stack import Stack, machine, percentile, seed, stack


@activity.defn(name="bare.nothing")
async def nothing(n: int) -> int:
    return n


@workflow.defn(name="Bare")
class Bare:
    @workflow.run
    async def run(self, n: int) -> int:
        return await workflow.execute_activity(
            nothing, n, start_to_close_timeout=timedelta(seconds=10)
        )


async def in_flight(count: int, width: int, one: Any) -> float:
    """Runs `one(n)` for n < count, `width` at once; how many a second."""
    gate = asyncio.Semaphore(width)

    async def guarded(n: int) -> None:
        async with gate:
            await one(n)

    start = time.monotonic()
    await asyncio.gather(*(guarded(n) for n in range(count)))
    return count / (time.monotonic() - start)


async def bare_workflows(address: str, namespace: str, count: int, width: int) -> float:
    client = await Client.connect(address, namespace=namespace)
    queue = f"bare-{uuid4()}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Bare],
        activities=[nothing],
        # As our fleet runs its workflows.
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):

        async def one(n: int) -> None:
            await client.execute_workflow(Bare.run, n, id=f"bare/{uuid4()}", task_queue=queue)

        await in_flight(20, 5, one)
        return await in_flight(count, width, one)


async def measure(s: Stack, passcodes: int, notifications: int) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {s.key}"}
    async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=100)) as http:
        repeats = 0

        async def post(path: str, body: dict[str, Any]) -> None:
            """As the client does: what could not be taken in time is asked again under its key."""
            nonlocal repeats
            key = {**headers, "Idempotency-Key": str(uuid4())}
            while True:
                answer = await http.post(s.api_url + path, json=body, headers=key)
                if answer.status_code not in (429, 503):
                    answer.raise_for_status()
                    return
                repeats += 1
                await asyncio.sleep(0.2)

        async def arrived_at(to: str) -> int:
            """Wall clock nanoseconds of the arrival at the simulator."""
            params: dict[str, Any] = {"to": to, "count": 1, "timeout": 10}
            answer = await http.get(s.inbox_url + "/api/wait", params=params)
            if not answer.raise_for_status().json()["reached"]:
                raise TimeoutError("a passcode did not arrive")
            answer = await http.get(s.inbox_url + "/api/messages", params={"to": to, "limit": 1})
            return int(answer.raise_for_status().json()["messages"][0]["received_ns"])

        async def mails() -> int:
            answer = await http.get(s.inbox_url + "/api/counts", params={"channel": "email"})
            return int(answer.raise_for_status().json()["count"])

        accept_ms: list[float] = []
        passcode_ms: list[float] = []
        for n in range(passcodes + 5):
            number = f"+1202555{200 + n:04d}"  # below are the magic ones
            recipient = f"p{n}"
            s.call("PUT", f"/v1/recipients/{recipient}", {
                "phone": {"address": number, "verified": True},
            })  # fmt: skip
            begun = time.time_ns()
            await post(
                "/v1/passcodes",
                {"recipient_id": recipient, "category": "security.otp", "template_id": "code"},
            )
            accepted = time.time_ns()
            came = await arrived_at(number)
            if n >= 5:
                # The first few warm connections and caches, as any running service has.
                accept_ms.append((accepted - begun) / 1e6)
                passcode_ms.append((came - begun) / 1e6)

        s.call(
            "PUT",
            "/v1/recipients/buyer",
            {"email": {"address": "buyer@example.com", "verified": True}},
        )
        before = await mails()
        start = time.monotonic()

        async def notify(n: int) -> None:
            await post("/v1/notifications", {
                "recipient_id": "buyer", "category": "orders.shipped", "template_id": "shipped",
                "variables": {"order": str(n)},
            })  # fmt: skip

        # 50 in flight until each has been delivered: as many workflows open as on the bare side.
        gate = asyncio.Semaphore(50)
        sent = 0

        async def guarded(n: int) -> None:
            await gate.acquire()
            await notify(n)

        async def release() -> None:
            nonlocal sent
            while sent < notifications:
                count = await mails() - before
                for _ in range(count - sent):
                    gate.release()
                sent = max(sent, count)
                await asyncio.sleep(0.01)

        async with asyncio.timeout(300):
            await asyncio.gather(release(), *(guarded(n) for n in range(notifications)))
        ours = notifications / (time.monotonic() - start)

    settings = json.loads(s.run("status", "--json"))
    bare = await bare_workflows(
        settings["temporal_address"], settings["temporal_namespace"], notifications, 50
    )
    return {
        "accept_p50_ms": round(percentile(accept_ms, 50), 1),
        "accept_p99_ms": round(percentile(accept_ms, 99), 1),
        "passcode_p50_ms": round(percentile(passcode_ms, 50), 1),
        "passcode_p99_ms": round(percentile(passcode_ms, 99), 1),
        "notifications_per_second": round(ours, 1),
        "bare_workflows_per_second": round(bare, 1),
        "ratio_bare_workflow": round(ours / bare, 2),
        "passcodes": passcodes,
        "notifications": notifications,
        "asked_again": repeats,
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--passcodes", type=int, default=200)
    parser.add_argument("--notifications", type=int, default=500)
    args = parser.parse_args()
    with stack() as s:
        seed(s)
        result = asyncio.run(measure(s, args.passcodes, args.notifications))
    if not args.json:
        for name, value in result.items():
            print(f"{name:28} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
