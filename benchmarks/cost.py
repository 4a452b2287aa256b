"""What one passcode costs. `python -m benchmarks.cost --json`; the last line is one JSON object.

CPU by process over a stretch without any work, then over one with a steady 20 passcodes a second; the difference, divided by the passcodes,
is what one costs. Beside it what it made others do: calls to Temporal and statements of Temporal's own store (its metrics), transactions in
Postgres, commands in Valkey.
`--to-the-end` waits until the codes have expired (`--ttl` seconds) and counts what their end costs as well.
"""

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import redis

from benchmarks.campaign import Watch
from benchmarks.kill import Outside, outside
from benchmarks.stack import Stack, machine, percentile, seed, stack
from sendloom.settings import load_settings

SAMPLE = re.compile(r"^(service_requests|persistence_requests)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def temporal_counts(s: Stack) -> Counter[str]:
    """Requests so far: `service:Operation` of what was called, `store:Operation` of what was read and written."""
    port = json.loads((s.home / "ports.json").read_text())["temporal-metrics"]
    return counted(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text)


def counted(metrics: str) -> Counter[str]:
    """Of Temporal's metrics, the sums over everything but the operation."""
    counts: Counter[str] = Counter()
    for line in metrics.splitlines():
        if found := SAMPLE.match(line):
            labels = dict(LABEL.findall(found[2]))
            kind = labels.get("service_name", "") if found[1] == "service_requests" else "store"
            counts[f"{kind}:{labels['operation']}"] += int(float(found[3]))
    return counts


async def postgres_transactions(s: Stack) -> int:
    db = await asyncpg.connect(load_settings({"SENDLOOM_HOME": str(s.home)}).postgres_dsn)
    try:
        await asyncio.sleep(1.2)  # backends report once a second
        count: int = await db.fetchval("SELECT sum(xact_commit)::bigint FROM pg_stat_database")
        return count
    finally:
        await db.close()


def redis_commands(s: Stack) -> int:
    with redis.Redis.from_url(s.redis_url) as client:
        found: Any = client.info("stats")
        return int(found["total_commands_processed"])


YARDSTICK = """
import time
spent, done = 0.0, 0
print(flush=True)
try:
    while True:
        began = time.process_time()
        sum(n * n for n in range(20_000))
        spent, done = spent + time.process_time() - began, done + 1
        time.sleep(0.1)
except KeyboardInterrupt:
    print(1000 * spent / max(done, 1))
"""


class Yardstick:
    """What the same small piece of Python costs meanwhile, ms of CPU: a shared machine's speed moves, and with it every figure here."""

    def __enter__(self) -> "Yardstick":
        self._process = subprocess.Popen(
            [sys.executable, "-c", YARDSTICK], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self.ms = float(self._process.communicate()[0])


class Load:
    """Passcodes at a steady rate; arrivals are read from the simulator's log."""

    def __init__(self, s: Stack, out: Outside, ttl: int) -> None:
        self._s, self._out, self._ttl = s, out, ttl
        self._http = httpx.AsyncClient(timeout=30)
        self._headers = {"Authorization": f"Bearer {s.key}"}
        self._phones = iter(f"+1202555{n:04d}" for n in range(200, 10_000))
        self.begun: dict[str, int] = {}

    async def people(self, count: int) -> list[str]:
        phones = [next(self._phones) for _ in range(count)]
        for phone in phones:
            (
                await self._http.put(
                    f"{self._s.api_url}/v1/recipients/c{phone[1:]}",
                    json={"phone": {"address": phone, "verified": True}},
                    headers=self._headers,
                )
            ).raise_for_status()
        return phones

    async def run(self, phones: list[str], per_second: float) -> None:
        tasks = []
        start = time.monotonic()
        for n, phone in enumerate(phones):
            await asyncio.sleep(max(0.0, start + n / per_second - time.monotonic()))
            self.begun[phone] = time.time_ns()
            tasks.append(asyncio.create_task(self._send(phone)))
        await asyncio.gather(*tasks)

    async def _send(self, phone: str) -> None:
        answer = await self._http.post(
            f"{self._s.api_url}/v1/passcodes",
            json={
                "recipient_id": f"c{phone[1:]}",
                "category": "security.otp",
                "template_id": "code",
                "ttl_seconds": self._ttl,
            },
            headers={**self._headers, "Idempotency-Key": str(uuid4())},
        )
        answer.raise_for_status()

    def took_ms(self, phones: list[str]) -> list[float]:
        came = {a["to"]: a["t_ns"] for a in self._out.arrivals()}
        return [(came[p] - self.begun[p]) / 1e6 if p in came else 30_000.0 for p in phones]


async def measure(s: Stack, out: Outside, args: argparse.Namespace) -> dict[str, Any]:
    load = Load(s, out, args.ttl)
    warm = await load.people(int(2 * args.per_second))
    phones = await load.people(int(args.seconds * args.per_second))
    await load.run(warm, args.per_second)
    # What the first ones leave behind has ended before anything is counted.
    await asyncio.sleep(args.ttl + 3 if args.to_the_end else 1.5)
    with Watch(s) as idle:
        await asyncio.sleep(args.idle)
    temporal, postgres, valkey = (
        temporal_counts(s),
        await postgres_transactions(s),
        redis_commands(s),
    )
    began = time.monotonic()
    with Watch(s) as busy, Yardstick() as yardstick:
        await load.run(phones, args.per_second)
        await asyncio.sleep(args.ttl + 3 if args.to_the_end else 1.5)
    seconds = time.monotonic() - began
    idle_share = {part: cpu / args.idle for part, cpu in idle.cpu_s_by_part.items()}
    count = len(phones)
    grown = temporal_counts(s) - temporal
    calls: dict[str, dict[str, float]] = defaultdict(dict)
    for name, n in grown.most_common():
        kind, _, operation = name.partition(":")
        if n / count >= 0.02:
            calls[kind][operation] = round(n / count, 2)
    ms = {
        part: round(1000 * (cpu - idle_share.get(part, 0.0) * seconds) / count, 2)
        for part, cpu in busy.cpu_s_by_part.items()
    }
    took = load.took_ms(phones)
    return {
        "cpu_ms_per_passcode": round(sum(ms.values()), 1),
        "cpu_ms_by_part": {part: cost for part, cost in ms.items() if abs(cost) >= 0.05},
        "cpu_idle_percent": {
            part: round(100 * share, 1) for part, share in idle_share.items() if share >= 0.001
        },
        "cpu_idle_percent_sum": round(100 * sum(idle_share.values()), 1),
        "passcode_p50_ms": round(percentile(took, 50), 1),
        "passcode_p99_ms": round(percentile(took, 99), 1),
        "temporal": dict(calls),
        "temporal_store_statements": round(
            sum(n for name, n in grown.items() if name.startswith("store:")) / count, 1
        ),
        "postgres_transactions": round((await postgres_transactions(s) - postgres) / count, 1),
        "redis_commands": round((redis_commands(s) - valkey) / count, 1),
        "yardstick_ms": round(yardstick.ms, 3),
        "passcodes": count,
        "ttl_seconds": args.ttl,
        "to_the_end": args.to_the_end,
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument(
        "--idle", type=float, default=10, help="seconds of the stretch without work"
    )
    parser.add_argument("--per-second", type=float, default=20)
    parser.add_argument("--ttl", type=int, default=60, help="how long a code lives, seconds")
    parser.add_argument(
        "--to-the-end", action="store_true", help="count what their end costs as well"
    )
    args = parser.parse_args()
    with outside() as out, stack(out.env) as s:
        seed(s)
        result = asyncio.run(measure(s, out, args))
    if not args.json:
        for name, value in result.items():
            print(f"{name:28} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
