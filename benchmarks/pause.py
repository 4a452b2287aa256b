"""How long after "paused" the last byte leaves, and whether pausing repeats or skips anybody. `python -m benchmarks.pause --json`.

One campaign at full speed is paused and resumed 20 times: from the API's answer to the last message counted at the sink. During one
pause Valkey is flushed; during another it is killed and comes back with an older dump that says `running`. In the end everybody must
have exactly one message.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks.campaign import launch
from benchmarks.sinks import Sink, smtp_sink
from benchmarks.stack import Stack, audience, kill, machine, seed, stack

QUIET_S = 1.6
"""A pause is over when nothing has come for this long; longer than what is promised (1 s)."""


def last_send_after(sink: Sink, since: float) -> float:
    """Milliseconds from `since` until the count last moved; watches until it has stood still."""
    last_count, last_move = sink.total(), since
    while time.monotonic() - max(last_move, since) < QUIET_S:
        count = sink.total()
        if count != last_count:
            last_count, last_move = count, time.monotonic()
        time.sleep(0.002)
    return max(0.0, (last_move - since) * 1000)


def pause(s: Stack, campaign: str, sink: Sink) -> float:
    s.call("POST", f"/v1/campaigns/{campaign}/pause", {"reason": "benchmark"})
    return last_send_after(sink, time.monotonic())


def resume(s: Stack, campaign: str) -> None:
    s.call("POST", f"/v1/campaigns/{campaign}/resume", {})


def wait_until_moving(sink: Sink, more: int, seconds: float = 15) -> bool:
    start, deadline = sink.total(), time.monotonic() + seconds
    while sink.total() < start + more:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def restore_older_valkey(s: Stack) -> None:
    """Kill Valkey and let it come back with the dump taken while the campaign was running."""
    state = s.state()
    pid = state["parts"]["valkey"]["pid"]
    folder = valkey_folder(s)
    (folder / "dump.rdb").unlink(missing_ok=True)
    kill([pid])
    (folder / "older.rdb").rename(folder / "dump.rdb")


def valkey_folder(s: Stack) -> Path:
    client = redis.Redis.from_url(s.redis_url)
    return Path(str(client.config_get("dir")["dir"]))


def dump_while_running(s: Stack) -> None:
    client = redis.Redis.from_url(s.redis_url)
    client.save()
    folder = valkey_folder(s)
    subprocess.run(["cp", str(folder / "dump.rdb"), str(folder / "older.rdb")], check=True)


def measure(recipients: int, times: int) -> dict[str, Any]:
    with smtp_sink(record=True) as sink:
        env = {"SENDLOOM_SMTP__HOST": "127.0.0.1", "SENDLOOM_SMTP__PORT": str(sink.port)}
        with stack(env) as s:
            seed(s)
            s.upload("bench", audience(recipients))
            campaign = launch(s, "bench")
            wait_until_moving(sink, 100, seconds=30)
            dump_while_running(s)
            latencies: list[float] = []
            while_paused = 0
            for n in range(times):
                if not wait_until_moving(sink, 50):
                    break
                latencies.append(pause(s, campaign, sink))
                before = sink.total()
                if n == times // 3:
                    redis.Redis.from_url(s.redis_url).flushall()
                    time.sleep(2)
                if n == times * 2 // 3:
                    restore_older_valkey(s)
                    time.sleep(6)
                while_paused += sink.total() - before
                resume(s, campaign)
            s.wait(f"/v1/campaigns/{campaign}", lambda a: a["phase"] == "completed", seconds=600)
            seen = sink.recipients()
    return {
        "pauses": len(latencies),
        "pause_to_last_send_ms_max": round(max(latencies), 1),
        "pause_to_last_send_ms_median": round(sorted(latencies)[len(latencies) // 2], 1),
        "sent_while_paused": while_paused,
        "repeats": sum(n - 1 for n in seen.values()),
        "skipped": sum(1 for n in range(recipients) if f"r{n}@example.com" not in seen),
        "recipients": recipients,
        "sink": sink.name,
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--recipients", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=20)
    args = parser.parse_args()
    result = measure(args.recipients, args.times)
    if not args.json:
        for name, value in result.items():
            print(f"{name:30} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
