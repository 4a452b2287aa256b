"""What is lost or doubled when processes are killed. `python -m benchmarks.kill --rounds 5 --json`; the last line is one JSON object.

Each round trickles passcodes and order notifications while a paced campaign runs. When the sink has counted a random share of the
campaign, one process gets `kill -9`. Sink and SMS simulator run in a session of their own and are counted by what they wrote, not by
our tables. Everything is counted after settling and before any replay.

- lost: accepted or frozen with no final state, or said to be `sent` but absent at the sink.
- doubled: more than one arrival of the same message at the sink; for security told apart by whether the payload was the same.
- recovery: from the kill to the next arrival of that class.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.sinks import free_port, wait_for_port
from benchmarks.stack import Stack, audience, kill, machine, seed, stack

FINAL = {
    "sent",
    "rejected",
    "failed",
    "unknown",
    "suppressed",
    "expired",
    "cancelled",
    "erased",
    "undeliverable",
}
ACCOUNT_SID = "AC" + "0" * 31 + "1"
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass
class Outside:
    """Simulators in a session of their own, and the log of what arrived."""

    smtp_port: int
    http_port: int
    log: Path
    token: str

    @property
    def env(self) -> dict[str, str]:
        """Settings that point a stack here."""
        return {
            "SENDLOOM_SMTP__HOST": "127.0.0.1",
            "SENDLOOM_SMTP__PORT": str(self.smtp_port),
            "SENDLOOM_TWILIO__BASE_URL": f"http://127.0.0.1:{self.http_port}",
            "SENDLOOM_TWILIO__ACCOUNT_SID": ACCOUNT_SID,
            "SENDLOOM_TWILIO__AUTH_TOKEN": self.token,
        }

    def arrivals(self) -> list[dict[str, Any]]:
        with self.log.open("rb") as f:
            return [json.loads(line) for line in f if line.endswith(b"\n")]

    def count(self, prefix: str) -> int:
        return sum(1 for a in self.arrivals() if a["to"].startswith(prefix))


@contextmanager
def outside() -> Iterator[Outside]:
    with tempfile.TemporaryDirectory(prefix="sendloom-outside-") as folder:
        log = Path(folder) / "arrivals.ndjson"
        log.touch()
        smtp_port, http_port = free_port(), free_port()
        token = uuid4().hex
        process = subprocess.Popen(
            [sys.executable, "-m", "sendloom.providers.simulators",
             "--smtp-port", str(smtp_port), "--http-port", str(http_port), "--log", str(log),
             "--account-sid", ACCOUNT_SID],
            start_new_session=True, env={**os.environ, "SENDLOOM_SIMULATOR_TWILIO_TOKEN": token}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for_port(smtp_port)
            wait_for_port(http_port)
            yield Outside(smtp_port, http_port, log, token)
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


@dataclass
class Round:
    """One round and what came of it."""

    number: int
    victim: str
    prefix: str
    campaign_id: str = ""
    passcodes: dict[str, str] = field(default_factory=dict)
    """number → id of those accepted"""
    orders: dict[str, str] = field(default_factory=dict)
    """recipient → id of those accepted"""
    killed_ns: int = 0
    trickling: bool = True


class Driver:
    def __init__(self, s: Stack, out: Outside, recipients: int, rate: float) -> None:
        self.s, self.out, self.recipients, self.rate = s, out, recipients, rate
        self.http = httpx.AsyncClient(timeout=5)
        self.phones = (f"+1202555{n:04d}" for n in range(200, 10_000))

    async def post(
        self, path: str, body: dict[str, Any], seconds: float = 90
    ) -> dict[str, Any] | None:
        """As a careful caller does: the same key again until it is answered. None: never accepted."""
        headers = {"Authorization": f"Bearer {self.s.key}", "Idempotency-Key": str(uuid4())}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                answer = await self.http.post(self.s.api_url + path, json=body, headers=headers)
                if answer.status_code == 202:
                    found: dict[str, Any] = answer.json()
                    return found
                if answer.status_code not in (429, 500, 502, 503, 504):
                    raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.2)
        return None

    async def get(self, path: str) -> dict[str, Any]:
        for _ in range(100):
            with suppress(httpx.TransportError):
                answer = await self.http.get(
                    self.s.api_url + path, headers={"Authorization": f"Bearer {self.s.key}"}
                )
                if answer.status_code == 200:
                    found: dict[str, Any] = answer.json()
                    return found
            await asyncio.sleep(0.2)
        raise RuntimeError(f"{path} is not answered")

    async def trickle(self, r: Round) -> None:
        """Five passcodes and five orders a second until told to stop."""
        waiting: set[asyncio.Task[None]] = set()
        n = 0
        while r.trickling:
            for one in (self.passcode(r, n), self.order(r, n)):
                task = asyncio.create_task(one)
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            n += 1
            await asyncio.sleep(0.2)
        if waiting:
            await asyncio.gather(*waiting)

    async def passcode(self, r: Round, n: int) -> None:
        phone = next(self.phones)
        recipient = f"{r.prefix}p{n}"
        await self.recipient(recipient, {"phone": {"address": phone, "verified": True}})
        code = "".join(random.choices(LETTERS, k=12))
        answer = await self.post("/v1/passcodes", {
            "recipient_id": recipient, "category": "security.otp", "template_id": "code", "code": code,
        })  # fmt: skip
        if answer:
            r.passcodes[phone] = answer["id"]

    async def order(self, r: Round, n: int) -> None:
        recipient = f"{r.prefix}o{n}"
        await self.recipient(
            recipient, {"email": {"address": f"{recipient}@example.com", "verified": True}}
        )
        answer = await self.post("/v1/notifications", {
            "recipient_id": recipient, "category": "orders.shipped", "template_id": "shipped",
            "variables": {"order": str(n)},
        })  # fmt: skip
        if answer:
            r.orders[f"{recipient}@example.com"] = answer["id"]

    async def recipient(self, recipient: str, body: dict[str, Any]) -> None:
        for _ in range(300):
            with suppress(httpx.TransportError):
                answer = await self.http.put(
                    f"{self.s.api_url}/v1/recipients/{recipient}", json=body,
                    headers={"Authorization": f"Bearer {self.s.key}"},
                )  # fmt: skip
                if answer.status_code < 300:
                    return
            await asyncio.sleep(0.2)
        raise RuntimeError("the API does not come back")

    def strike(self, victim: str) -> None:
        """kill -9 of one process, by part name; several processes may share a class, one of them dies."""
        pids = self.s.pids()
        named = [name for name in pids if name == victim or name.startswith(victim)]
        if not named:
            raise RuntimeError(f"no running part is called {victim}: {sorted(pids)}")
        kill([pids[random.choice(named)]])

    async def play(self, r: Round) -> None:
        self.s.upload(f"kill{r.number}", audience(self.recipients, r.prefix))
        trickle = asyncio.create_task(self.trickle(r))
        campaign = await self.post("/v1/campaigns", {
            "name": f"kill {r.number}", "category": "offers.weekly", "template_id": "weekly",
            "list_id": f"kill{r.number}", "rate_per_second": self.rate,
        })  # fmt: skip
        assert campaign is not None
        r.campaign_id = campaign["id"]
        share = random.uniform(0.1, 0.8)
        while self.out.count(r.prefix) < share * self.recipients:
            await asyncio.sleep(0.05)
        r.killed_ns = time.time_ns()
        await asyncio.to_thread(self.strike, r.victim)
        log(f"round {r.number}: killed {r.victim} at {share:.0%}")
        await self.settled(r)
        r.trickling = False
        await trickle
        await self.closed(r)

    async def settled(self, r: Round) -> None:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            status = await self.get(f"/v1/campaigns/{r.campaign_id}")
            if status["phase"] in ("completed", "cancelled", "failed"):
                return
            await asyncio.sleep(0.5)
        log(f"round {r.number}: the campaign did not close: {status}")

    async def closed(self, r: Round) -> None:
        """Every accepted message has a final state, or time is up (and it counts as lost)."""
        open_ids = set(r.passcodes.values()) | set(r.orders.values())
        deadline = time.monotonic() + 240
        while open_ids and time.monotonic() < deadline:
            for id in list(open_ids):
                kind = "passcodes" if id in r.passcodes.values() else "notifications"
                if (await self.get(f"/v1/{kind}/{id}"))["state"] in FINAL:
                    open_ids.discard(id)
            await asyncio.sleep(0.5)

    async def tally(self, rounds: list[Round]) -> dict[str, Any]:
        arrivals = self.out.arrivals()
        by_to: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for a in arrivals:
            by_to[a["to"]].append(a)
        lost, unknown = 0, Counter[str]()
        doubled: Counter[str] = Counter()
        sums = True
        recovery: dict[str, list[float]] = {"security": [], "marketing": []}
        for r in rounds:
            for cls, ids, kind in (
                ("security", r.passcodes, "passcodes"), ("transactional", r.orders, "notifications"),
            ):  # fmt: skip
                for to, id in ids.items():
                    state = (await self.get(f"/v1/{kind}/{id}"))["state"]
                    came = by_to.get(to, [])
                    if state not in FINAL or (state == "sent" and not came):
                        lost += 1
                        log(
                            f"round {r.number} {r.victim}: lost {kind} {id}: {state}, {len(came)} arrived"
                        )
                    unknown[cls] += state == "unknown"
                    if len(came) > 1:
                        if cls == "security":
                            same = len({a["digest"] for a in came}) == 1
                            doubled["security_same" if same else "security_other"] += 1
                        else:
                            doubled[cls] += 1
            status = await self.get(f"/v1/campaigns/{r.campaign_id}")
            counts = status["counts"]
            sums &= status["adds_up"] and sum(counts.values()) == self.recipients
            lost += sum(n for state, n in counts.items() if state not in FINAL)
            unknown["marketing"] += counts.get("unknown", 0)
            if status["phase"] != "completed":
                sums = False
                log(f"round {r.number} {r.victim}: campaign {status['phase']} {counts}")
            states = await self.states(r)
            for n in range(self.recipients):
                came = by_to.get(f"{r.prefix}{n}@example.com", [])
                if len(came) > 1:
                    doubled["marketing"] += 1
                if states.get(f"{r.prefix}{n:07d}") == "sent" and not came:
                    lost += 1
            for cls, addresses in (
                ("security", set(r.passcodes)),
                ("marketing", {f"{r.prefix}{n}@example.com" for n in range(self.recipients)}),
            ):
                after = [
                    a["t_ns"] for a in arrivals if a["to"] in addresses and a["t_ns"] > r.killed_ns
                ]
                if after:
                    recovery[cls].append((min(after) - r.killed_ns) / 1e9)
                    gaps = sorted(after)
                    # The first arrival may have been on the wire already; the longest silence right after is what counts.
                    near = [t for t in gaps if t - r.killed_ns < 30e9]
                    silence = max(
                        (b - a for a, b in zip([r.killed_ns, *near], near, strict=False)), default=0
                    )
                    recovery[cls][-1] = max(recovery[cls][-1], silence / 1e9)
        return {
            "rounds": len(rounds),
            "recipients": self.recipients,
            "passcodes": sum(len(r.passcodes) for r in rounds),
            "orders": sum(len(r.orders) for r in rounds),
            "lost": lost,
            "doubled_marketing": doubled["marketing"],
            "doubled_transactional": doubled["transactional"],
            "doubled_security_same_payload": doubled["security_same"],
            "doubled_security_other_payload": doubled["security_other"],
            "unknown": sum(unknown.values()),
            "unknown_by_class": dict(unknown),
            "sums_add_up": sums,
            "recovery_s_security_max": round(max(recovery["security"], default=0), 2),
            "recovery_s_marketing_max": round(max(recovery["marketing"], default=0), 2),
            "killed": Counter(r.victim for r in rounds),
            "machine": machine(),
        }

    async def states(self, r: Round) -> dict[str, str]:
        """recipient → state of everybody the campaign says it sent to."""
        found: dict[str, str] = {}
        after: str | None = None
        while True:
            page = await self.get(
                f"/v1/campaigns/{r.campaign_id}/recipients?state=sent&limit=1000"
                + (f"&after={after}" if after else "")
            )
            found.update({item["recipient_id"]: item["state"] for item in page["items"]})
            after = page["next"]
            if after is None:
                return found


VICTIMS = (
    "worker-marketing",
    "worker-security",
    "api",
    "temporal",
    "worker-transactional",
    "worker-ops",
)


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def run(s: Stack, out: Outside, args: argparse.Namespace) -> dict[str, Any]:
    driver = Driver(s, out, args.recipients, args.rate)
    rounds: list[Round] = []
    for number, victim in zip(range(args.rounds), cycle(args.victims), strict=False):
        r = Round(number, victim, prefix=f"k{number}x")
        rounds.append(r)
        await driver.play(r)
    return await driver.tally(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipients", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=200.0, help="campaign recipients a second")
    parser.add_argument("--victims", nargs="+", default=VICTIMS, help="parts to kill, in turn")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    random.seed(args.seed)
    with outside() as out:
        with stack(out.env) as s:
            seed(s)
            result = asyncio.run(run(s, out, args))
    if not args.json:
        for name, value in result.items():
            log(f"{name:32} {value}")
    print(json.dumps(result))
    bad = ("lost", "doubled_marketing", "doubled_transactional", "doubled_security_other_payload")
    if any(result[name] for name in bad) or not result["sums_add_up"]:
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
