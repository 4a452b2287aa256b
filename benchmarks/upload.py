"""A list through the API, and what it costs in memory. `python -m benchmarks.upload --json`; the last line is one JSON object.

Each size is uploaded to a stack of its own, as NDJSON in chunks, one after another as a careful client does. A sampler looks at the
resident memory of the API and of the workers twenty times a second; `ratio_api_rss` says how it grows with the size.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from benchmarks.stack import Stack, audience, machine, seed, stack

SAMPLE_S = 0.05


@contextmanager
def sampled(s: Stack) -> Iterator[dict[str, float]]:
    """The most memory in MB of each part of ours, until the block ends."""
    most: dict[str, float] = {}
    parts = {
        name: psutil.Process(pid)
        for name, pid in s.pids().items()
        if name == "api" or name.startswith("worker-")
    }
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_S):
            for name, process in parts.items():
                with suppress(psutil.Error):
                    most[name] = max(most.get(name, 0.0), process.memory_info().rss / 2**20)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


class Clock:
    """When the last line was taken, so that the step to `ready` is told apart from the upload."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.last = 0.0

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        self.last = time.monotonic()


def upload(size: int) -> dict[str, Any]:
    with stack() as s:
        seed(s)
        # Connections, plans and caches are there before anything is compared.
        s.upload("warm", audience(20_000, "w"))
        with sampled(s) as most:
            lines = Clock(audience(size))
            begun = time.monotonic()
            version = s.upload("bench", iter(lines))
            seconds = time.monotonic() - begun
        kept = s.call("GET", f"/v1/lists/bench/versions/{version}")
    return {
        "rows": size,
        "kept": kept["size"],
        "state": kept["state"],
        "seconds": round(seconds, 1),
        "rows_per_second": round(size / seconds),
        "ready_s": round(begun + seconds - lines.last, 2),
        "api_rss_mb": round(most["api"]),
        "worker_rss_mb_max": round(max(mb for name, mb in most.items() if name != "api")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    args = parser.parse_args()
    runs = [upload(size) for size in args.rows]
    result = {
        "runs": runs,
        "ratio_api_rss": round(runs[-1]["api_rss_mb"] / runs[0]["api_rss_mb"], 2),
        "ratio_worker_rss": round(runs[-1]["worker_rss_mb_max"] / runs[0]["worker_rss_mb_max"], 2),
        "machine": machine(),
    }
    if not args.json:
        for run in runs:
            print(run, file=sys.stderr)
    print(json.dumps(result))
    if any(run["kept"] != run["rows"] or run["state"] != "ready" for run in runs):
        sys.exit(1)


if __name__ == "__main__":
    main()
