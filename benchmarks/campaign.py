"""How fast a campaign is, and whether everybody got it once. `python -m benchmarks.campaign --recipients 50000 --json`.

In one run, against the same kind of sink and with messages of about 2 KB:

(a) Postfix `smtp-source -d` (kept connections, no records at all), before each campaign: what the wire and the sink allow;
(b) Celery with Redis and smtplib, four processes, no guarantees, on at most 20,000 messages;
(c) Sendloom with every guarantee on: gates, claims, outcomes, 3 merge fields, 3 locales, the list in Postgres, file-backed Temporal.

Speed is the median of three campaigns, from the request to the last message counted at the sink; its ratio to (a) is the median of
the three pairs. Then one accounting run in which the sink records every envelope, for `lost` and `doubled` by recipient. The last
line is one JSON object, or one per size when several sizes are given, in a list.
"""

import argparse
import asyncio
import json
import statistics
import threading
import time
from typing import Any
from uuid import uuid4

import psutil
from temporalio.client import Client

from benchmarks import celery_baseline
from benchmarks.sinks import Sink, free_port, smtp_sink, smtp_source
from benchmarks.stack import Stack, audience, machine, seed, stack

MESSAGE_BYTES = 2048
SESSIONS = 20
"""Two marketing processes with ten connections each; smtp-source gets the same number."""
CELERY_MAX = 20_000


class Watch:
    """CPU seconds and the largest worker, over every process of the stack, while a campaign runs."""

    def __init__(self, s: Stack) -> None:
        self._s = s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.worker_rss_mb_max = 0.0
        self._cpu_before = self._cpu()

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        after = self._cpu()
        self.cpu_s_by_part = {
            name: round(after[name] - self._cpu_before.get(name, 0.0), 2) for name in after
        }
        self.cpu_s = sum(self.cpu_s_by_part.values())

    def _cpu(self) -> dict[str, float]:
        found = {}
        for name, pid in self._s.pids().items():
            total = 0.0
            for p in self._family(pid):
                try:
                    times = p.cpu_times()
                except psutil.Error:
                    continue
                # Postgres backends that ended are in their parent's children_ figures.
                total += times.user + times.system + times.children_user + times.children_system
            found[name] = total
        return found

    @staticmethod
    def _family(pid: int) -> list[psutil.Process]:
        try:
            parent = psutil.Process(pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.Error:
            return []

    def _run(self) -> None:
        workers = [
            pid for name, pid in self._s.pids().items() if name.startswith("worker-marketing")
        ]
        while not self._stop.wait(0.25):
            for pid in workers:
                try:
                    rss = psutil.Process(pid).memory_info().rss / 2**20
                except psutil.Error:
                    continue
                self.worker_rss_mb_max = max(self.worker_rss_mb_max, rss)


def launch(s: Stack, list_id: str) -> str:
    answer = s.call("POST", "/v1/campaigns", {
        "name": "benchmark", "category": "offers.weekly", "template_id": "weekly", "list_id": list_id,
    }, key=str(uuid4()))  # fmt: skip
    found: str = answer["id"]
    return found


def run_once(s: Stack, sink: Sink, list_id: str, size: int) -> dict[str, Any]:
    """One campaign. Times are from the request."""
    sink.reset()
    begun = time.monotonic()
    with Watch(s) as watch:
        campaign = launch(s, list_id)
        first = None
        while first is None:
            if sink.count() > 0:
                first = time.monotonic() - begun
            time.sleep(0.01)
        asyncio.run(sink.wait_for(size))
        seconds = time.monotonic() - begun
        status = s.wait(
            f"/v1/campaigns/{campaign}",
            lambda a: a["phase"] in ("completed", "failed", "cancelled"),
        )
    return {
        "campaign": campaign,
        "seconds": seconds,
        "first_send_s": first,
        "cpu_s": watch.cpu_s,
        "cpu_s_by_part": watch.cpu_s_by_part,
        "rss": watch.worker_rss_mb_max,
        "adds_up": status["phase"] == "completed"
        and sum(status["counts"].values()) == size
        and status["counts"]["sent"] == size,
    }


async def events_max(s: Stack, campaign: str) -> int:
    """The longest history among the campaign's workflows."""
    status = json.loads(s.run("status", "--json"))
    client = await Client.connect(
        status["temporal_address"], namespace=status["temporal_namespace"]
    )
    longest = 0
    for kind in ("", "/due", *(f"/{n}" for n in range(1_000))):
        handle = client.get_workflow_handle(f"campaign/{campaign}{kind}")
        try:
            longest = max(longest, (await handle.describe()).history_length)
        except Exception:  # Not that many shards.
            if kind.startswith("/") and kind != "/due":
                break
    return longest


def measure(size: int, celery_messages: int, runs: int, ledger: str = "postgres") -> dict[str, Any]:
    port = free_port()
    with smtp_sink(port=port) as sink:
        env = {
            "SENDLOOM_SMTP__HOST": "127.0.0.1",
            "SENDLOOM_SMTP__PORT": str(port),
            "SENDLOOM_LEDGER": ledger,
        }
        with stack(env) as s:
            celery_rate = (
                asyncio.run(
                    celery_baseline.measure(
                        sink,
                        s.redis_url.rsplit("/", 1)[0] + "/9",
                        min(celery_messages, size),
                    )
                )
                if celery_messages
                else None
            )
            seed(s)
            s.upload("bench", audience(size))
            # In turn, because on a shared machine a minute later is another machine.
            source, speeds = [], []
            for _ in range(runs):
                source.append(smtp_source(port, size, SESSIONS, MESSAGE_BYTES))
                speeds.append(run_once(s, sink, "bench", size))
            events = asyncio.run(events_max(s, speeds[-1]["campaign"]))
            # The accounting run: a recording sink takes the place of the counting one.
            sink._process.terminate()  # type: ignore[union-attr]
            sink._process.wait()  # type: ignore[union-attr]
            with smtp_sink(record=True, port=port) as recorder:
                accounting = run_once(s, recorder, "bench", size)
                seen = recorder.recipients()
                recording = recorder.name
    middle = sorted(speeds, key=lambda r: r["seconds"])[len(speeds) // 2]
    rate = size / middle["seconds"]
    found = [beside for beside in source if beside is not None]
    ratios = [size / r["seconds"] / beside for beside, r in zip(found, speeds, strict=False)]
    wanted = {f"r{n}@example.com" for n in range(size)}
    return {
        "recipients": size,
        "ledger": ledger,
        "seconds": round(middle["seconds"], 2),
        "per_second": round(rate),
        "seconds_each": [round(r["seconds"], 2) for r in speeds],
        "first_send_s": round(max(r["first_send_s"] for r in speeds), 2),
        "smtp_source_per_second": round(statistics.median(found)) if found else None,
        "celery_per_second": round(celery_rate) if celery_rate else None,
        "ratio_smtp_source": round(statistics.median(ratios), 2) if ratios else None,
        "ratio_smtp_source_each": [round(ratio, 2) for ratio in ratios],
        "ratio_celery": round(rate / celery_rate, 1) if celery_rate else None,
        "lost": sum(1 for to in wanted if to not in seen),
        "doubled": sum(1 for n in seen.values() if n > 1),
        "sums_add_up": all(r["adds_up"] for r in (*speeds, accounting)),
        "worker_rss_mb_max": round(max(r["rss"] for r in speeds), 1),
        "cpu_s_per_1000": round(middle["cpu_s"] / size * 1000, 4),
        "cpu_s_by_part": middle["cpu_s_by_part"],
        "temporal_events_max": events,
        "sink": sink.name,
        "accounting_sink": recording,
        "accounting_seconds": round(accounting["seconds"], 2),
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--recipients", default="50000", help="one size, or several with commas")
    parser.add_argument("--celery", type=int, default=CELERY_MAX, help="0 leaves the baseline out")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ledger", choices=("postgres", "cassandra"), default="postgres")
    args = parser.parse_args()
    results = []
    for n, size in enumerate(int(x) for x in args.recipients.split(",")):
        results.append(measure(size, args.celery if n == 0 else 0, args.runs, args.ledger))
        if not args.json:
            for name, value in results[-1].items():
                print(f"{name:26} {value}")
    print(json.dumps(results[0] if len(results) == 1 else results))


if __name__ == "__main__":
    main()
