"""What a process refuses to start with, and that it says so without showing a value (case C38, NFR-3)."""

import subprocess
import sys
from pathlib import Path

import pytest

from sendloom.errors import ConfigurationError
from sendloom.platform.sealing import new_key
from sendloom.settings import (
    SETTINGS_FILE,
    fresh_keys,
    known_settings,
    load_settings,
    settings_reference,
)

ROOT = Path(__file__).parents[2]


def complete(home: Path) -> dict[str, str]:
    return {
        "SENDLOOM_HOME": str(home),
        "SENDLOOM_POSTGRES": "postgresql://sendloom:hunter2@db.example.com/sendloom",
        "SENDLOOM_REDIS": "redis://cache.example.com/0",
        "SENDLOOM_TEMPORAL__ADDRESS": "temporal.example.com:7233",
        "SENDLOOM_SMTP__HOST": "smtp.example.com",
        "SENDLOOM_SMTP__SENDER": "news@example.com",
        "SENDLOOM_TWILIO__ACCOUNT_SID": "AC0",
        "SENDLOOM_TWILIO__AUTH_TOKEN": "hunter3",
        "SENDLOOM_TWILIO__SENDER": "+12025550100",
        "SENDLOOM_API__PUBLIC_URL": "https://send.example.com",
        **fresh_keys(),
    }


def test_a_complete_environment_is_enough(tmp_path: Path) -> None:
    settings = load_settings(complete(tmp_path))
    assert settings.home == tmp_path
    assert settings.smtp.port == 587
    assert settings.postgres_dsn.endswith("/sendloom")
    assert settings.keys.ring().current == settings.keys.ring().key_ids[0]


def test_c38_a_misspelt_variable_is_named_with_the_one_it_resembles(tmp_path: Path) -> None:
    given = {**complete(tmp_path), "SENDLOOM_TEMPORAL__ADRESS": "x", "SENDLOOM_POSTGRESS": "y"}
    with pytest.raises(ConfigurationError) as e:
        load_settings(given)
    assert (
        "SENDLOOM_TEMPORAL__ADRESS is not a setting. Did you mean SENDLOOM_TEMPORAL__ADDRESS?"
        in str(e.value)
    )
    assert "Did you mean SENDLOOM_POSTGRES?" in str(e.value)


@pytest.mark.parametrize(
    "name",
    [n for n, s in known_settings().items() if s.required],
)
def test_c38_each_missing_required_setting_stops_it_and_says_the_fix(
    name: str, tmp_path: Path
) -> None:
    given = complete(tmp_path)
    del given[name]
    with pytest.raises(ConfigurationError) as e:
        load_settings(given)
    assert f"{name} is required" in str(e.value)
    assert "sendloom up" in str(e.value)


def test_no_store_queue_or_secret_has_a_default() -> None:
    known = known_settings()
    for name in (
        "SENDLOOM_POSTGRES",
        "SENDLOOM_REDIS",
        "SENDLOOM_TEMPORAL__ADDRESS",
        *fresh_keys(),
    ):
        assert known[name].required, name
    assert all(s.required or not s.default for s in known.values() if s.secret)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SENDLOOM_POSTGRES", "mysql://root:hunter2@db"),
        ("SENDLOOM_REDIS", "hunter2"),
        ("SENDLOOM_KEYS__SEALING", "k1:hunter2"),
        ("SENDLOOM_KEYS__SEALING", "hunter2"),
        ("SENDLOOM_KEYS__PASSCODE", "hunter2"),
        ("SENDLOOM_SMTP__PORT", "hunter2"),
        ("SENDLOOM_SMTP__TLS", "hunter2"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_never_shown(
    name: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as e:
        load_settings({**complete(tmp_path), name: value})
    assert f"{name} is wrong" in str(e.value)
    assert "hunter2" not in str(e.value)


def test_settings_cannot_be_printed_with_their_secrets(tmp_path: Path) -> None:
    given = complete(tmp_path)
    shown = repr(load_settings(given)) + load_settings(given).model_dump_json()
    for name, setting in known_settings().items():
        if setting.secret and name in given:
            assert given[name] not in shown, name


def test_the_environment_wins_over_the_file_and_an_empty_variable_counts_as_none(
    tmp_path: Path,
) -> None:
    lines = complete(tmp_path)
    (tmp_path / SETTINGS_FILE).write_text(
        "# ours\n\n" + "".join(f"{k}={v}\n" for k, v in lines.items() if k != "SENDLOOM_HOME")
    )
    settings = load_settings(
        {
            "SENDLOOM_HOME": str(tmp_path),
            "SENDLOOM_SMTP__HOST": "other.example.com",
            "SENDLOOM_SMTP__SENDER": "",
        }
    )
    assert settings.smtp.host == "other.example.com"
    assert settings.smtp.sender == "news@example.com"


def test_an_unknown_name_in_the_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text("SENDLOOM_SMPT__HOST=x\n")
    with pytest.raises(ConfigurationError, match="Did you mean SENDLOOM_SMTP__HOST"):
        load_settings(complete(tmp_path))


def test_a_ring_may_hold_several_keys(tmp_path: Path) -> None:
    ring = f"b:{new_key()},a:{new_key()}"
    settings = load_settings({**complete(tmp_path), "SENDLOOM_KEYS__SEALING": ring})
    assert settings.keys.ring().key_ids == ("b", "a")


def test_the_documented_settings_are_those_of_the_code() -> None:
    written = (ROOT / "docs/settings.md").read_text()
    assert written == settings_reference(), "run `sendloom settings --markdown > docs/settings.md`"


@pytest.mark.parametrize("command", [["migrate"], ["temporal", "setup"], ["api"]])
def test_c38_a_process_stops_with_one_clear_message(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sendloom.cli", *command],
        env={"SENDLOOM_HOME": str(tmp_path), "SENDLOOM_MAIL_QEUE_URL": "amqp://u:hunter2@q"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 78
    assert "SENDLOOM_MAIL_QEUE_URL is not a setting" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
