"""`campaign watch` shows numbers that add up, and exits as the campaign ended (case C47)."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.cli.conftest import Sendloom

ID = uuid4()


def status(phase: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": str(ID),
        "mode": "live",
        "name": "Week 3",
        "category": "offers",
        "template_id": "placed",
        "template_version": 1,
        "list_id": "all",
        "phase": phase,
        "control": "running",
        "size": 100,
        "counts": {"pending": 100},
        "adds_up": True,
        "created_at": "2026-01-15T09:00:00Z",
        **changes,
    }


ENDED = {
    "counts": {"sent": 80, "suppressed": 17, "failed": 3},
    "reasons": {
        "opted_out": 5,
        "suppressed_hard_bounce": 5,
        "unverified": 4,
        "frequency_cap": 3,
        "timeout": 3,
    },
}


@contextmanager
def scripted(*answers: dict[str, Any]) -> Iterator[str]:
    """An API that says these, one after the other, and the last one for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def watching(tmp_path: Path) -> Callable[[str], Sendloom]:
    return lambda url: Sendloom(
        {
            "SENDLOOM_HOME": str(tmp_path),
            "SENDLOOM_CLIENT__URL": url,
            "SENDLOOM_CLIENT__API_KEY": "sl_live_t_k_s",
        }
    )


def test_c47_it_watches_to_the_end_and_reports_every_number(
    watching: Callable[[str], Sendloom],
):
    halfway = status("running", counts={"pending": 40, "sent": 60})
    with scripted(
        status("freezing", size=None, counts={}), halfway, status("completed", **ENDED)
    ) as url:
        done = watching(url)("campaign", "watch", str(ID))
    assert done.exit_code == 0, done.output
    numbers = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert numbers == [
        ["80", "sent"],
        ["17", "suppressed"],
        ["3", "failed"],
        ["100", "of"],
        ["5", "because"],
        ["5", "because"],
        ["4", "because"],
        ["3", "because"],
        ["3", "because"],
    ]
    assert "because of opted_out" in done.stdout


@pytest.mark.parametrize(
    "ended",
    [
        status("failed", reason="list_failed", size=None, counts={}),
        status("cancelled", counts={"sent": 10, "cancelled": 90}),
        status("completed", counts={"sent": 99}, adds_up=False),
    ],
    ids=["failed", "cancelled", "does not add up"],
)
def test_whatever_is_not_a_completed_campaign_that_adds_up_exits_with_1(
    ended: dict[str, Any], watching: Callable[[str], Sendloom]
):
    with scripted(ended) as url:
        done = watching(url)("campaign", "watch", str(ID), "--json")
        shown = watching(url)("campaign", "watch", str(ID))
    assert done.exit_code == 1
    assert json.loads(done.stdout)["phase"] == ended["phase"]
    assert ("do not add up" in shown.stdout) is (not ended["adds_up"])


def test_who_watches_a_paused_campaign_hears_why_and_what_lets_it_go_on(
    watching: Callable[[str], Sendloom],
):
    paused = status("running", control="paused", reason="complaint_rate", counts={"pending": 100})
    with scripted(paused, paused, status("completed", **ENDED)) as url:
        done = watching(url)("campaign", "watch", str(ID))
    assert done.exit_code == 0, done.output
    said = " ".join(done.stderr.split())
    assert f"paused (complaint_rate); `sendloom campaign resume {ID}` lets it go on" in said
    assert said.count("paused") == 1, "once, and not at every look"
