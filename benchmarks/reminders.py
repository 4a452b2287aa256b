"""Many reminders due in one second. `python -m benchmarks.reminders --json`; the last line is one JSON object.

They are accepted through the API, a number of requests in flight, all for the same moment; that moment is put after the last accept
by what a short warm-up says accepting takes. Arrivals are the sink's. `lag` is from the moment to the arrival.

- fired_by_tenths_s: when a tenth of them had left, two tenths, and so on: evenly spaced when they leave steadily.
- out_of_order_p99: how many places apart its turn to be accepted and its turn to leave are, for 99 of 100.
- passcode_*: two passcodes a second, before the moment and from it on: what the security lane feels.
- cpu_ms_each: what one reminder cost from the moment on, by part; the passcodes' part of it is small.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.campaign import Watch
from benchmarks.isolation import Passcodes
from benchmarks.kill import outside
from benchmarks.stack import machine, percentile, seed, stack

IN_FLIGHT = 40
WARM_UP = 200
PASSCODES_PER_SECOND = 2.0
IDLE_S = 15.0
SLOWEST = 20
"""Reminders a second: for so long there are passcodes to send beside them."""
STALL_S = 120.0
"""So long without an arrival and it is over."""


class Caller:
    def __init__(self, url: str, key: str) -> None:
        self.http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )
        self.refused = 0
        self.accept_ms: list[float] = []
        self.turns: dict[str, int] = {}
        """Who was accepted as which."""

    async def person(self, name: str) -> None:
        await self._until(
            lambda: self.http.put(
                f"/v1/recipients/{name}",
                json={"email": {"address": f"{name}@example.com", "verified": True}},
            )
        )

    async def remind(self, name: str, due: datetime) -> str:
        key = str(uuid4())
        begun = time.monotonic()
        answer = await self._until(
            lambda: self.http.post(
                "/v1/reminders",
                json={
                    "recipient_id": name, "category": "orders.shipped", "template_id": "shipped",
                    "variables": {"order": name}, "due": {"at": due.isoformat()},
                },
                headers={"Idempotency-Key": key},
            )
        )  # fmt: skip
        self.accept_ms.append((time.monotonic() - begun) * 1000)
        self.turns[f"{name}@example.com"] = len(self.turns)
        id: str = answer.json()["id"]
        return id

    async def state(self, id: str) -> str:
        answer = await self._until(lambda: self.http.get(f"/v1/reminders/{id}"))
        found: str = answer.json()["state"]
        return found

    async def _until(self, ask: Any) -> httpx.Response:
        """The same again while the API is full or away, as a careful caller does."""
        for _ in range(600):
            with suppress(httpx.TransportError):
                answer: httpx.Response = await ask()
                if answer.is_success:
                    return answer
                if answer.status_code not in (429, 500, 502, 503, 504):
                    raise RuntimeError(f"{answer.status_code} {answer.text}")
                self.refused += 1
            await asyncio.sleep(0.2)
        raise RuntimeError("the API does not answer")


async def all_at_once(jobs: list[Any]) -> list[Any]:
    places = asyncio.Semaphore(IN_FLIGHT)

    async def one(job: Any) -> Any:
        async with places:
            return await job()

    return await asyncio.gather(*(one(job) for job in jobs))


async def measure(s: Any, out: Any, count: int) -> dict[str, Any]:
    caller = Caller(s.api_url, s.key)
    names = [f"m{n}" for n in range(count)]
    await all_at_once(
        [lambda n=n: caller.person(n) for n in [*names, *(f"w{i}" for i in range(WARM_UP))]]
    )
    begun = time.monotonic()
    far = datetime.now(UTC) + timedelta(days=30)
    await all_at_once([lambda i=i: caller.remind(f"w{i}", far) for i in range(WARM_UP)])
    each = (time.monotonic() - begun) / WARM_UP
    caller.accept_ms.clear()
    caller.turns.clear()
    passcodes = Passcodes(s, out, PASSCODES_PER_SECOND)
    await passcodes.run(await passcodes.prepare(3))
    idle = await passcodes.run(await passcodes.prepare(IDLE_S))
    people = await passcodes.prepare(30 + count / SLOWEST)
    due = (datetime.now(UTC) + timedelta(seconds=count * each * 1.3 + 10)).replace(microsecond=0)
    begun = time.monotonic()
    ids = await all_at_once([lambda n=n: caller.remind(n, due) for n in names])
    accept_s = time.monotonic() - begun
    late = datetime.now(UTC) >= due
    await asyncio.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
    wanted = {f"{n}@example.com" for n in names}
    with Watch(s) as watch:
        over = asyncio.Event()
        beside = asyncio.create_task(passcodes.run(people, until=over))
        moved, seen = time.monotonic(), 0
        while seen < count and time.monotonic() - moved < STALL_S:
            await asyncio.sleep(0.2)
            there = len({a["to"] for a in out.arrivals()} & wanted)
            if there > seen:
                moved, seen = time.monotonic(), there
        over.set()
        busy = await beside
    firsts: dict[str, int] = {}
    for a in out.arrivals():
        if a["to"] in wanted:
            firsts.setdefault(a["to"], a["t_ns"])
    lags = sorted(t / 1e9 - due.timestamp() for t in firsts.values())
    left = sorted(firsts, key=firsts.__getitem__)
    apart = [abs(n - caller.turns[to]) for n, to in enumerate(left)]
    await asyncio.sleep(5)
    arrived = [a for a in out.arrivals() if a["to"] in wanted]
    missing = [i for n, i in zip(names, ids, strict=True) if f"{n}@example.com" not in firsts]
    return {
        "reminders": count,
        "accept_s": round(accept_s, 1),
        "accepts_per_second": round(count / accept_s, 1),
        "accept_ms_p50": round(percentile(caller.accept_ms, 50)),
        "accept_ms_p99": round(percentile(caller.accept_ms, 99)),
        "refused_and_repeated": caller.refused,
        "accepted_after_due": late,
        "all_fired_s": round(max(lags), 1) if lags else None,
        "fired_per_second": round(len(lags) / max(lags), 1) if lags else None,
        "first_s": round(lags[0], 1) if lags else None,
        "fired_by_tenths_s": [round(percentile(lags, 10 * n), 1) for n in range(1, 11)]
        if lags
        else [],
        "out_of_order_p99": percentile(apart, 99) if apart else None,
        "lag_s_p50": round(percentile(lags, 50), 1) if lags else None,
        "lag_s_p99": round(percentile(lags, 99), 1) if lags else None,
        "early": sum(1 for lag in lags if lag < 0),
        "lost": count - len(firsts),
        "lost_states": [await caller.state(i) for i in missing[:5]],
        "doubled": len(arrived) - len({a["to"] for a in arrived}),
        "passcode_idle_p50_ms": round(percentile(idle, 50)),
        "passcode_idle_max_ms": round(max(idle)),
        "passcode_p50_ms": round(percentile(busy, 50)),
        "passcode_p99_ms": round(percentile(busy, 99)),
        "passcodes": len(busy),
        "cpu_ms_each": {
            part: round(spent / max(1, len(firsts)) * 1000, 1)
            for part, spent in sorted(watch.cpu_s_by_part.items(), key=lambda p: -p[1])
            if spent > 0.5
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--reminders", type=int, default=10_000)
    args = parser.parse_args()
    with outside() as out, stack(out.env) as s:
        seed(s)
        result = asyncio.run(measure(s, out, args.reminders))
    result["machine"] = machine()
    if not args.json:
        for name, value in result.items():
            print(f"{name:24} {value}", file=sys.stderr)
    print(json.dumps(result))
    if result["lost"] or result["doubled"] or result["early"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
