"""What is lost or doubled when processes are killed. `python -m benchmarks.kill --rounds 20 --recipients 20000 --json`; the last line is one
JSON object.

Each round trickles passcodes and order notifications while a paced campaign runs. When the sink has counted a random share of the
campaign, one process gets `kill -9`, or Valkey a FLUSHALL. A round ends when most of its campaign has arrived; what waits for a lease is
settled beside the rounds that follow. Sink and SMS simulator run in a session of their own and are counted by what they wrote, not by our
tables. Everything is counted after settling and before any replay; then what is unknown is replayed and counted again.

- lost: accepted or frozen with no final state, or said to be `sent` but absent at the sink.
- doubled: more than one arrival of the same message at the sink; for security told apart by whether the payload was the same.
- recovery: the longest silence of that class that begins or goes on after the kill. Rounds that hit a store are reported apart.
- replayed_doubled: who got the message twice because an unknown was replayed; at most the unknowns that had reached the sink.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import redis

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
MEMBER = re.compile(r"(k\d+x)\d+@")
IN_DOUBT_MAX = 200
"""What a lane may have in doubt in one process (CAMP-4), so what one kill may leave unknown."""
SHARE_ENOUGH = 0.97
"""A round ends here: the rest may wait minutes for the lease of who was killed."""


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

    def __post_init__(self) -> None:
        self._seen: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()
        self._read = 0

    def arrivals(self) -> list[dict[str, Any]]:
        """All so far, in the order they came; only what is new is read."""
        with self.log.open("rb") as f:
            f.seek(self._read)
            for line in f:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                arrival = json.loads(line)
                self._seen.append(arrival)
                if member := MEMBER.match(arrival["to"]):
                    self._counts[member[1]] += 1
        return self._seen

    def count(self, prefix: str) -> int:
        """Arrivals of a round's campaign."""
        self.arrivals()
        return self._counts[prefix]


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
    states: dict[str, str] = field(default_factory=dict)
    """recipient → state, before any replay"""

    @property
    def of_store(self) -> bool:
        return self.victim in STORES


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
        deadline, wait = time.monotonic() + seconds, 0.2
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                answer = await self.http.post(self.s.api_url + path, json=body, headers=headers)
                if answer.status_code == 202:
                    found: dict[str, Any] = answer.json()
                    return found
                if answer.status_code not in (429, 500, 502, 503, 504):
                    raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
            await asyncio.sleep(wait)
            wait = min(wait * 2, 1.0)
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
        if victim == "flushall":
            redis.Redis.from_url(self.s.redis_url).flushall()
            return
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
        began = time.monotonic()
        while (
            self.out.count(r.prefix) < SHARE_ENOUGH * self.recipients
            and time.monotonic() - began < 90
        ):
            await asyncio.sleep(0.05)
        # Long enough to see the silence that a kill at the end of a campaign makes.
        await asyncio.sleep(max(0.0, 12 - (time.monotonic() - began)))
        r.trickling = False
        await trickle

    async def settled(self, r: Round) -> None:
        """The campaign has ended and every accepted message has a final state, or time is up (and it counts as lost)."""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            status = await self.get(f"/v1/campaigns/{r.campaign_id}")
            if status["phase"] in ("completed", "cancelled", "failed"):
                break
            await asyncio.sleep(0.5)
        else:
            log(f"round {r.number}: the campaign did not close: {status}")
        open_ = {("passcodes", id) for id in r.passcodes.values()}
        open_ |= {("notifications", id) for id in r.orders.values()}
        deadline = time.monotonic() + 240
        while open_ and time.monotonic() < deadline:
            for kind, id in list(open_):
                if (await self.get(f"/v1/{kind}/{id}"))["state"] in FINAL:
                    open_.discard((kind, id))
            await asyncio.sleep(0.5)

    async def tally(self, rounds: list[Round]) -> dict[str, Any]:
        arrivals = self.out.arrivals()
        by_to = _by_address(arrivals)
        lost, unknown = 0, Counter[str]()
        unknown_max = 0
        doubled: Counter[str] = Counter()
        sums = True
        silences: dict[str, dict[str, float]] = {}
        for r in rounds:
            before = unknown.total()
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
                            log(f"round {r.number} {r.victim}: doubled {kind} {id}: {state}")
            status = await self.get(f"/v1/campaigns/{r.campaign_id}")
            counts = status["counts"]
            sums &= status["adds_up"] and sum(counts.values()) == self.recipients
            lost += sum(n for state, n in counts.items() if state not in FINAL)
            unknown["marketing"] += counts.get("unknown", 0)
            if status["phase"] != "completed":
                sums = False
                log(f"round {r.number} {r.victim}: campaign {status['phase']} {counts}")
            r.states = {**await self.states(r, "sent"), **await self.states(r, "unknown")}
            sums &= len(r.states) == counts.get("sent", 0) + counts.get("unknown", 0)
            for n in range(self.recipients):
                came = by_to.get(f"{r.prefix}{n}@example.com", [])
                if len(came) > 1:
                    doubled["marketing"] += 1
                if r.states.get(f"{r.prefix}{n:07d}") == "sent" and not came:
                    lost += 1
            unknown_max = max(unknown_max, unknown.total() - before)
            heard = silences.setdefault(r.victim, {"security": 0.0, "marketing": 0.0})
            for cls in heard:
                wanted = r.passcodes.__contains__ if cls == "security" else _member_of(r.prefix)
                times = [a["t_ns"] for a in arrivals if wanted(a["to"])]
                longest = silence(times, r.killed_ns)
                heard[cls] = round(max(heard[cls], longest), 2)
                log(f"round {r.number} {r.victim}: {cls} silent for {longest:.2f} s")
        result: dict[str, Any] = {
            "rounds": len(rounds),
            "recipients": self.recipients,
            "passcodes": sum(len(r.passcodes) for r in rounds),
            "orders": sum(len(r.orders) for r in rounds),
            "lost": lost,
            "doubled_marketing": doubled["marketing"],
            "doubled_transactional": doubled["transactional"],
            "doubled_security_same_payload": doubled["security_same"],
            "doubled_security_other_payload": doubled["security_other"],
            "unknown": unknown.total(),
            "unknown_by_class": dict(unknown),
            "unknown_max_a_kill": unknown_max,
            "sums_add_up": sums,
        }
        for cls in ("security", "marketing"):
            for name, of_store in (("recovery_s", False), ("store_recovery_s", True)):
                result[f"{name}_{cls}_max"] = max(
                    (heard[cls] for v, heard in silences.items() if (v in STORES) is of_store),
                    default=None,
                )
        result["silence_s_by_victim"] = silences
        result["killed"] = Counter(r.victim for r in rounds)
        return result

    async def replay_unknown(self, rounds: list[Round]) -> dict[str, Any]:
        """An operator sends again whatever is unknown; afterwards nobody is."""
        before = Counter(a["to"] for a in self.out.arrivals())
        doubtful: set[str] = set()
        for r in rounds:
            ids = [id for id, state in r.states.items() if state == "unknown"]
            doubtful |= {f"{r.prefix}{int(id.removeprefix(r.prefix))}@example.com" for id in ids}
            if ids:
                await self.operate(f"/v1/campaigns/{r.campaign_id}/replay", {"states": ["unknown"]})
            for to, id in r.orders.items():
                if (await self.get(f"/v1/notifications/{id}"))["state"] == "unknown":
                    doubtful.add(to)
        replayed_letters = await self._replay_letters(
            {id for r in rounds for id in r.orders.values()}
        )
        not_final = 0
        for r in rounds:
            await self.settled(r)
            deadline = time.monotonic() + 120
            while True:
                status = await self.get(f"/v1/campaigns/{r.campaign_id}")
                open_ = sum(n for s, n in status["counts"].items() if s not in FINAL | {"unknown"})
                left = open_ + status["counts"].get("unknown", 0)
                if left == 0 or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.5)
            not_final += left
        # What has a final state has arrived, but its line may still be on its way into the log.
        await asyncio.sleep(1)
        after = Counter(a["to"] for a in self.out.arrivals())
        return {
            "replayed": len(doubtful),
            "replayed_letters": replayed_letters,
            "unknown_that_had_arrived": sum(1 for to in doubtful if before[to]),
            "replayed_doubled": sum(1 for to in after if after[to] > 1 and before[to] <= 1),
            "not_final_after_replay": not_final,
        }

    async def _replay_letters(self, ids: set[str]) -> int:
        count, after = 0, None
        while True:
            page = await self.get(
                "/v1/dead-letters?status=open&limit=100" + (f"&after={after}" if after else "")
            )
            for letter in page["items"]:
                if letter["ref_id"] in ids:
                    await self.operate(f"/v1/dead-letters/{letter['id']}/replay", {})
                    count += 1
            after = page["next"]
            if after is None:
                return count

    async def operate(self, path: str, body: dict[str, Any]) -> None:
        answer = await self.http.post(
            self.s.api_url + path, json=body, headers={"Authorization": f"Bearer {self.s.key}"},
        )  # fmt: skip
        if answer.is_error:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")

    async def states(self, r: Round, state: str) -> dict[str, str]:
        """recipient → state of everybody of whom the campaign says this."""
        found: dict[str, str] = {}
        after: str | None = None
        while True:
            page = await self.get(
                f"/v1/campaigns/{r.campaign_id}/recipients?state={state}&limit=1000"
                + (f"&after={after}" if after else "")
            )
            found.update({item["recipient_id"]: item["state"] for item in page["items"]})
            after = page["next"]
            if after is None:
                return found


def _by_address(arrivals: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_to: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for a in arrivals:
        by_to[a["to"]].append(a)
    return by_to


def _member_of(prefix: str) -> Callable[[str], bool]:
    def of(to: str) -> bool:
        member = MEMBER.match(to)
        return member is not None and member[1] == prefix

    return of


def silence(times: list[int], since: int, window_ns: int = 60_000_000_000) -> float:
    """The longest gap in seconds between arrivals that overlaps with what comes after `since`, up to the last arrival near it.

    The first arrival after a kill may have been on the wire already, so every gap counts, not only the first.
    """
    after = sorted(t for t in times if t > since)
    # One that comes late is the end of a long silence, not of none.
    near = [t for t in after if t < since + window_ns] or after[:1]
    return max((b - a for a, b in zip([since, *near], near, strict=False)), default=0) / 1e9


STORES = ("postgres", "valkey", "flushall", "cassandra")
VICTIMS = (
    "worker-marketing",
    "worker-security",
    "api",
    "temporal",
    "worker-transactional",
    "worker-ops",
    *STORES[:3],
)
WITH_CASSANDRA = ("cassandra", *VICTIMS)
BACK_WITHIN = {"cassandra": {"security": 5.0, "marketing": 30.0}}
"""Seconds. Cassandra's own start takes ten of them; a passcode does not wait for it (POL-7)."""


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def run(s: Stack, out: Outside, args: argparse.Namespace) -> dict[str, Any]:
    driver = Driver(s, out, args.recipients, args.rate)
    rounds: list[Round] = []
    for number, victim in zip(range(args.rounds), cycle(args.victims), strict=False):
        r = Round(number, victim, prefix=f"k{number}x")
        rounds.append(r)
        await driver.play(r)
    for r in rounds:
        await driver.settled(r)
    result = await driver.tally(rounds)
    return {**result, **await driver.replay_unknown(rounds), "machine": machine()}


def too_late(silences: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Of the victims whose return has a limit, those that were silent for longer."""
    return [
        f"{victim}: {cls} silent for {heard} s"
        for victim, by_class in silences.items()
        for cls, heard in by_class.items()
        if heard > BACK_WITHIN.get(victim, {}).get(cls, float("inf"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipients", type=int, default=2_000)
    parser.add_argument(
        "--rate", type=float, help="campaign recipients a second (else a fifteenth of them)"
    )
    parser.add_argument("--ledger", choices=("postgres", "cassandra"), help="sets SENDLOOM_LEDGER")
    parser.add_argument("--victims", nargs="+", help="parts to kill, in turn (default: all)")
    parser.add_argument("--keep", action="store_true", help="leave the stack's folder and its logs")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    random.seed(args.seed)
    args.victims = args.victims or (WITH_CASSANDRA if args.ledger == "cassandra" else VICTIMS)
    args.rate = args.rate or max(100.0, args.recipients / 15)
    with outside() as out:
        env = out.env if args.ledger is None else {**out.env, "SENDLOOM_LEDGER": args.ledger}
        with stack(env, keep=args.keep) as s:
            seed(s)
            result = asyncio.run(run(s, out, args))
    if not args.json:
        for name, value in result.items():
            log(f"{name:32} {value}")
    print(json.dumps(result))
    bad = (
        *("lost", "doubled_marketing", "doubled_transactional", "doubled_security_other_payload"),
        "not_final_after_replay",
    )
    if (
        any(result[name] for name in bad)
        or not result["sums_add_up"]
        or result["unknown_max_a_kill"] > IN_DOUBT_MAX
        or result["replayed_doubled"] > result["unknown_that_had_arrived"]
        or too_late(result["silence_s_by_victim"])
    ):
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
