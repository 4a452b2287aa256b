"""`sendloom doctor` finds what is wrong, says how to fix it, and never falls over it itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sendloom.embedded.doctor import Finding, examine
from sendloom.embedded.home import open_home
from sendloom.embedded.ports import free_port
from sendloom.settings import SETTINGS_FILE, fresh_keys

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Complete settings, and nothing listening anywhere."""
    return {
        "SENDLOOM_HOME": str(tmp_path),
        "SENDLOOM_POSTGRES": f"postgresql://u:hunter2@127.0.0.1:{free_port()}/none",
        "SENDLOOM_REDIS": f"redis://127.0.0.1:{free_port()}/0",
        "SENDLOOM_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
        "SENDLOOM_TEMPORAL__CONNECT_SECONDS": "2",
        "SENDLOOM_SMTP__HOST": "127.0.0.1",
        "SENDLOOM_SMTP__PORT": str(free_port()),
        "SENDLOOM_SMTP__SENDER": "news@example.com",
        "SENDLOOM_TWILIO__BASE_URL": f"http://127.0.0.1:{free_port()}",
        "SENDLOOM_TWILIO__ACCOUNT_SID": "AC0",
        "SENDLOOM_TWILIO__AUTH_TOKEN": "hunter3",
        "SENDLOOM_TWILIO__SENDER": "+12025550100",
        "SENDLOOM_API__PORT": str(free_port()),
        "SENDLOOM_API__PUBLIC_URL": "http://127.0.0.1:1",
        **fresh_keys(),
    }


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    named = {f.name: f for f in findings}
    assert len(named) == len(findings)
    return named


async def test_every_missing_service_is_found_with_a_fix(environ: dict[str, str]) -> None:
    found = by_name(await examine(environ))
    services = (
        *("postgres reachable", "redis reachable", "temporal reachable"),
        *("smtp reachable", "sms provider reachable", "api ready"),
    )
    for name in services:
        assert not found[name].ok, name
        assert found[name].fix
    for name in ("python", "temporal", "postgres", "valkey", "disk", "home", "settings"):
        assert found[name].ok, found[name]
    assert "hunter" not in "".join(f.model_dump_json() for f in found.values())


async def test_what_works_is_found_to_work_and_an_old_schema_is_named(
    environ: dict[str, str], empty_database: str, valkey: str, temporal_server: str
) -> None:
    environ |= {
        "SENDLOOM_POSTGRES": empty_database,
        "SENDLOOM_REDIS": valkey,
        "SENDLOOM_TEMPORAL__ADDRESS": temporal_server,
    }
    found = by_name(await examine(environ))
    for name in ("postgres reachable", "redis reachable", "temporal reachable", "clock"):
        assert found[name].ok, found[name]
    assert found["search attributes"].ok
    assert not found["schema"].ok
    assert found["schema"].fix == "sendloom migrate"
    assert not found["workers"].ok
    assert "send-sms-security" in found["workers"].detail


async def test_a_current_schema_is_found_current(environ: dict[str, str], database: str) -> None:
    found = by_name(await examine({**environ, "SENDLOOM_POSTGRES": database}))
    assert found["schema"].ok


async def test_missing_settings_end_the_search_where_it_cannot_go_on(tmp_path: Path) -> None:
    findings = await examine({"SENDLOOM_HOME": str(tmp_path)})
    assert findings[-1].name == "settings"
    assert "SENDLOOM_POSTGRES is required" in findings[-1].detail


async def test_settings_that_others_can_read_are_found(environ: dict[str, str]) -> None:
    open_home(Path(environ["SENDLOOM_HOME"]), {})
    file = Path(environ["SENDLOOM_HOME"]) / SETTINGS_FILE
    file.chmod(0o644)
    found = by_name(await examine(environ))
    assert not found["home"].ok
    assert found["home"].fix == f"chmod 600 {file}"


def test_the_command_exits_with_1_and_prints_one_json_object(environ: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sendloom.cli", "doctor", "--json"],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert {"name", "ok", "detail", "fix"} == set(answer["checks"][0])


def test_status_of_a_home_where_nothing_runs_exits_with_1(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sendloom.cli", "status", "--json"],
        env={"SENDLOOM_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["running"] is False
