"""A whole embedded stack in a folder of its own, for benchmarks: started by the product's command, driven over HTTP."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil

from sendloom.settings import load_settings

SENDLOOM = (sys.executable, "-m", "sendloom.cli")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


@dataclass
class Stack:
    """A running stack. `env` starts more of the product's commands against it."""

    home: Path
    env: dict[str, str]
    api_url: str
    inbox_url: str
    key: str = ""
    tenant: str = "bench"
    http: httpx.Client = field(default_factory=httpx.Client)

    def run(self, *args: str, check: bool = True) -> str:
        """One `sendloom …` command; its standard output."""
        done = subprocess.run(
            [*SENDLOOM, *args], env=self.env, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"sendloom {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "state.json").read_text())
        return found

    @property
    def redis_url(self) -> str:
        return load_settings({"SENDLOOM_HOME": str(self.home)}).redis_url

    def pids(self) -> dict[str, int]:
        """Part → process id, of those running now."""
        return {
            name: part["pid"]
            for name, part in self.state()["parts"].items()
            if part.get("pid") and psutil.pid_exists(part["pid"])
        }

    def call(
        self, method: str, path: str, body: object = None, *, key: str | None = None, **kw: Any
    ) -> Any:
        """One API request; the JSON answer. Raises for anything but 2xx."""
        headers = {"Authorization": f"Bearer {self.key}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is not None:
            kw["json"] = body
        elif "content" in kw:
            headers["Content-Type"] = "application/x-ndjson"
        answer = self.http.request(method, self.api_url + path, headers=headers, timeout=60, **kw)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def upload(self, name: str, lines: Iterator[bytes], chunk_lines: int = 20_000) -> str:
        """An NDJSON list, chunk by chunk; its version id once it is ready."""
        self.call("PUT", f"/v1/lists/{name}", {})
        version: str = self.call(
            "POST", f"/v1/lists/{name}/versions", {"format": "ndjson"}, key=str(uuid4())
        )["version_id"]
        base = f"/v1/lists/{name}/versions/{version}"
        number, chunk = 0, list[bytes]()

        def put() -> None:
            answer = self.call(
                "PUT",
                f"{base}/chunks/{number}",
                content=b"".join(chunk),
                params={"first_line": number * chunk_lines + 1},
            )
            if answer["rejected"]:
                raise RuntimeError(f"chunk {number}: {answer['errors'][:3]}")

        for line in lines:
            chunk.append(line)
            if len(chunk) == chunk_lines:
                put()
                number, chunk = number + 1, []
        if chunk:
            put()
        self.call("POST", f"{base}/ready")
        return version

    def wait(self, path: str, done: Any, seconds: float = 600) -> Any:
        """Poll a resource until `done(answer)`. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.call("GET", path)
            if done(answer):
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path}: {answer}")
            time.sleep(0.1)


@contextmanager
def stack(env: Mapping[str, str] = {}, *, keep: bool = False) -> Iterator[Stack]:
    """`sendloom up` in a fresh folder, with a tenant and a key; taken down at the end."""
    home = Path(tempfile.mkdtemp(prefix="sendloom-bench-"))
    home.chmod(0o755)
    full = {**os.environ, **env, "SENDLOOM_HOME": str(home)}
    try:
        up = subprocess.run(
            [*SENDLOOM, "up", "--detach"], env=full, capture_output=True, text=True, check=False
        )
        if up.returncode != 0:
            raise RuntimeError(f"sendloom up: {up.stdout}{up.stderr}")
        status = json.loads(
            subprocess.run(
                [*SENDLOOM, "status", "--json"],
                env=full,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        s = Stack(home, full, status["api_url"], status["inbox_url"])
        s.run(
            "tenant",
            "create",
            s.tenant,
            "--email-from",
            "bench@example.com",
            "--sms-from",
            "+12025550100",
            "--json",
        )
        s.key = json.loads(s.run("key", "create", s.tenant, "--json"))["key"]
        yield s
    finally:
        subprocess.run([*SENDLOOM, "down"], env=full, capture_output=True, check=False)
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def kill(pids: Sequence[int]) -> None:
    """kill -9."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def percentile(values: Sequence[float], p: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(p / 100 * len(ordered) + 0.5) - 1))]


def seed(s: Stack) -> None:
    """Categories and templates every benchmark uses."""
    s.call(
        "PUT",
        "/v1/categories/security.otp",
        {"message_class": "security", "ladder": ["sms", "email"], "ttl_seconds": 600},
    )
    s.call(
        "PUT",
        "/v1/categories/orders.shipped",
        {"message_class": "transactional", "ladder": ["email"], "ttl_seconds": 86_400},
    )
    s.call(
        "PUT",
        "/v1/categories/offers.weekly",
        {
            "message_class": "marketing",
            "ladder": ["email"],
            "ttl_seconds": 86_400,
            "consent_required": True,
        },
    )
    s.call("POST", "/v1/templates/code/versions", {
        "parts": [
            {"channel": "sms", "locale": "en", "text": "{{code}} is your code."},
            {"channel": "email", "locale": "en", "subject": "Your code", "text": "{{code}} is your code."},
        ],
        "variables": {"code": {}}, "publish": True,
    }, key=str(uuid4()))  # fmt: skip
    s.call("POST", "/v1/templates/shipped/versions", {
        "parts": [{"channel": "email", "locale": "en", "subject": "Order {{order}}", "text": "Order {{order}} is on its way."}],
        "variables": {"order": {}}, "publish": True,
    }, key=str(uuid4()))  # fmt: skip
    filler = "\n".join(
        "This line is here to make the message as long as the others." for _ in range(28)
    )
    hello = {"en": "Hello", "de": "Guten Tag", "pt": "Bom dia"}
    s.call("POST", "/v1/templates/weekly/versions", {
        "parts": [
            {"channel": "email", "locale": locale, "subject": f"{word} {{{{name}}}}: the week in {{{{city}}}}",
             "text": f"{word} {{{{name}}}},\n\nyour plan {{{{plan}}}} in {{{{city}}}} has news.\n{filler}"}
            for locale, word in hello.items()
        ],
        "variables": {"name": {"default": "friend"}, "plan": {}, "city": {}}, "publish": True,
    }, key=str(uuid4()))  # fmt: skip


def daytime_zones() -> tuple[str, str, str]:
    """Three zones where it is 11, 12 and 13 o'clock now: quiet hours are on, and hold nobody back."""
    hour = datetime.now(UTC).hour
    names = []
    for local in (11, 12, 13):
        east = (local - hour + 11) % 24 - 11
        # Etc names count westward.
        names.append("Etc/GMT" + (f"-{east}" if east > 0 else f"+{-east}" if east < 0 else ""))
    return names[0], names[1], names[2]


def audience(count: int, prefix: str = "r") -> Iterator[bytes]:
    """NDJSON lines: 3 locales, 3 merge fields, consent recorded."""
    locales, zones = ("en", "de", "pt"), daytime_zones()
    consent = {
        "categories": ["offers.weekly"],
        "at": "2026-01-15T10:00:00Z",
        "source": "benchmark",
        "wording": "Yes, weekly.",
    }
    for n in range(count):
        yield json.dumps({
            "recipient_id": f"{prefix}{n:07d}", "email": f"{prefix}{n}@example.com",
            "locale": locales[n % 3], "zone": zones[n % 3], "consent": consent,
            "variables": {"name": f"Name{n}", "plan": "basic", "city": "Lisbon"},
        }).encode() + b"\n"  # fmt: skip
