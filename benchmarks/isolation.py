"""What a passcode feels of a campaign. `python -m benchmarks.isolation --json`; the last line is one JSON object.

20 passcodes a second, each from the first byte of the request to its arrival at the SMS simulator: idle; while a campaign runs at full
speed; and while another tenant's SMS sender hangs at the provider and the mail relay hangs under a campaign.
"""

import argparse
import asyncio
import json
import time
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.campaign import Watch, launch
from benchmarks.kill import Outside, outside
from benchmarks.sinks import smtp_sink
from benchmarks.stack import Stack, audience, machine, percentile, seed, stack

PER_SECOND = 20
HANGING_PER_SECOND = 4


class Passcodes:
    """Sends at a steady rate, whatever the answers; arrivals are read from the simulator's log afterwards."""

    def __init__(self, s: Stack, out: Outside, per_second: float = PER_SECOND) -> None:
        self._s, self._out, self._per_second = s, out, per_second
        self._http = httpx.AsyncClient(timeout=30)
        self._phones = iter(f"+1202555{n:04d}" for n in range(200, 10_000))
        self.accepts: list[float] = []

    async def prepare(self, seconds: float) -> list[str]:
        """People for so many seconds: not while anything is measured."""
        prepared = [next(self._phones) for _ in range(int(seconds * self._per_second))]
        for phone in prepared:
            await self._put(phone)
        return prepared

    async def run(self, prepared: list[str], until: asyncio.Event | None = None) -> list[float]:
        """Milliseconds of every passcode sent; one that never arrives within 30 s counts as that."""
        begun: dict[str, int] = {}
        tasks: set[asyncio.Task[None]] = set()
        self.accepts = []
        start = time.monotonic()
        for n, phone in enumerate(prepared):
            await asyncio.sleep(max(0.0, start + n / self._per_second - time.monotonic()))
            if until is not None and until.is_set():
                break
            begun[phone] = time.time_ns()
            task = asyncio.create_task(self._send(phone))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            # One that was refused does not arrive, and counts as that.
            await asyncio.gather(*tasks, return_exceptions=True)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            came = {a["to"]: a["t_ns"] for a in self._out.arrivals() if a["to"] in begun}
            if len(came) == len(begun):
                break
            await asyncio.sleep(0.1)
        return [(came[to] - at) / 1e6 if to in came else 30_000.0 for to, at in begun.items()]

    async def _put(self, phone: str) -> None:
        (
            await self._http.put(
                f"{self._s.api_url}/v1/recipients/i{phone[1:]}",
                json={"phone": {"address": phone, "verified": True}},
                headers={"Authorization": f"Bearer {self._s.key}"},
            )
        ).raise_for_status()

    async def _send(self, phone: str) -> None:
        answer = await self._http.post(
            f"{self._s.api_url}/v1/passcodes",
            json={
                "recipient_id": f"i{phone[1:]}",
                "category": "security.otp",
                "template_id": "code",
            },
            headers={"Authorization": f"Bearer {self._s.key}", "Idempotency-Key": str(uuid4())},
        )
        answer.raise_for_status()
        self.accepts.append(answer.elapsed.total_seconds() * 1000)


async def campaign_time(s: Stack, size: int, sink: Any) -> float:
    sink.reset()
    begun = time.monotonic()
    await asyncio.to_thread(launch, s, "bench")
    await sink.wait_for(size, stall_seconds=120)
    return time.monotonic() - begun


def other_tenant(s: Stack) -> str:
    """A second tenant, whose SMS sender the simulator will hang."""
    s.run(
        "tenant",
        "create",
        "other",
        "--email-from",
        "other@example.com",
        "--sms-from",
        "+12025550177",
        "--json",
    )
    found: str = json.loads(s.run("key", "create", "other", "--json"))["key"]
    return found


async def hang_other_tenant(s: Stack, out: Outside, key: str, seconds: float) -> None:
    """Its provider takes every call and answers none; four more a second, so that dozens hang at any time."""
    async with httpx.AsyncClient(timeout=30) as http:
        await http.post(
            f"http://127.0.0.1:{out.http_port}/api/behaviour",
            json={"sms": {"hang_senders": ["+12025550177"]}},
        )
        headers = {"Authorization": f"Bearer {key}"}
        for n in range(int(seconds * HANGING_PER_SECOND)):
            begun = time.monotonic()
            await http.put(f"{s.api_url}/v1/recipients/h{n}", headers=headers,
                           json={"phone": {"address": f"+1202555{9900 + n % 90:04d}", "verified": True}})  # fmt: skip
            await http.post(f"{s.api_url}/v1/passcodes", headers={**headers, "Idempotency-Key": str(uuid4())},
                            json={"recipient_id": f"h{n}", "category": "security.otp", "template_id": "code"})  # fmt: skip
            await asyncio.sleep(max(0.0, begun + 1 / HANGING_PER_SECOND - time.monotonic()))


async def measure(s: Stack, out: Outside, sink: Any, size: int, seconds: float) -> dict[str, Any]:
    passcodes = Passcodes(s, out)
    await passcodes.run(await passcodes.prepare(2))
    people = await passcodes.prepare(seconds)
    with Watch(s) as idle_watch:
        idle = await passcodes.run(people)
    idle_accepts = passcodes.accepts
    alone = await campaign_time(s, size, sink)
    done = asyncio.Event()
    people = await passcodes.prepare(max(seconds, alone * 4))

    async def campaign() -> float:
        took = await campaign_time(s, size, sink)
        done.set()
        return took

    running = asyncio.create_task(campaign())
    with Watch(s) as busy_watch:
        busy = await passcodes.run(people, until=done)
    busy_accepts = passcodes.accepts
    together = await running
    people = await passcodes.prepare(seconds)
    key = await asyncio.to_thread(other_tenant, s)
    main_key, s.key = s.key, key
    await asyncio.to_thread(seed, s)
    s.key = main_key
    # The relay hangs under a campaign: it takes connections and answers nothing more.
    sink._process.send_signal(19)
    await asyncio.to_thread(launch, s, "bench")
    hanging = asyncio.create_task(hang_other_tenant(s, out, key, seconds))
    hang = await passcodes.run(people)
    await hanging
    sink._process.send_signal(18)
    return {
        "passcode_idle_p50_ms": round(percentile(idle, 50), 1),
        "passcode_idle_p99_ms": round(percentile(idle, 99), 1),
        "passcode_campaign_p50_ms": round(percentile(busy, 50), 1),
        "passcode_campaign_p99_ms": round(percentile(busy, 99), 1),
        "accept_p99_ms": {
            "idle": round(percentile(idle_accepts, 99), 1),
            "campaign": round(percentile(busy_accepts, 99), 1),
        },
        "cpu_s_idle": idle_watch.cpu_s_by_part,
        "cpu_s_campaign": busy_watch.cpu_s_by_part,
        "passcode_hang_p99_ms": round(percentile(hang, 99), 1),
        "ratio_campaign_to_idle_p99": round(percentile(busy, 99) / percentile(idle, 99), 2),
        "campaign_slowdown": round(together / alone, 2),
        "campaign_alone_s": round(alone, 2),
        "passcodes": {"idle": len(idle), "campaign": len(busy), "hang": len(hang)},
        "recipients": size,
        "sink": sink.name,
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--recipients", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=15)
    args = parser.parse_args()
    with outside() as out, smtp_sink() as sink:
        env = {**out.env, "SENDLOOM_SMTP__PORT": str(sink.port)}
        with stack(env) as s:
            seed(s)
            s.upload("bench", audience(args.recipients))
            result = asyncio.run(measure(s, out, sink, args.recipients, args.seconds))
    if not args.json:
        for name, value in result.items():
            print(f"{name:30} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
