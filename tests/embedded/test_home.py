"""The directory of the embedded stack: ports that stay, keys that stay, errors that name who is in the way."""

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sendloom.embedded.home import PORTS_FILE, cassandra_alone, open_home
from sendloom.embedded.ports import choose_ports, free_port, is_free, who_listens
from sendloom.embedded.stack import stack_addresses, stack_parts
from sendloom.errors import ConfigurationError
from sendloom.settings import SETTINGS_FILE, load_settings


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that this very process listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


def test_a_port_that_is_taken_is_passed_over(tmp_path: Path, taken: int) -> None:
    chosen = choose_ports(tmp_path / PORTS_FILE, {"api": taken, "temporal": taken})
    assert taken not in chosen.values()
    assert len(set(chosen.values())) == 2
    assert all(is_free(port) for port in chosen.values())


def test_chosen_ports_stay_over_a_restart(tmp_path: Path) -> None:
    first = choose_ports(tmp_path / PORTS_FILE, {"api": free_port(), "smtp": free_port()})
    again = choose_ports(tmp_path / PORTS_FILE, {"api": free_port(), "smtp": free_port()})
    assert again == first


def test_a_configured_port_that_is_taken_names_the_process(tmp_path: Path, taken: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"port {taken}, configured for api.*process {os.getpid()} \("
    ):
        choose_ports(tmp_path / PORTS_FILE, {"api": free_port()}, {"api": taken})


def test_a_port_chosen_earlier_that_is_taken_now_gives_way_and_names_the_process(
    tmp_path: Path, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / PORTS_FILE).write_text(json.dumps({"smtp": taken}))
    chosen = choose_ports(tmp_path / PORTS_FILE, {"smtp": free_port()})
    assert chosen["smtp"] != taken
    assert f"process {os.getpid()} " in vars(caplog.records[-1])["taken_by"]
    assert choose_ports(tmp_path / PORTS_FILE, {"smtp": free_port()}) == chosen


def test_the_api_port_in_the_settings_file_counts_as_configured_once_somebody_changed_it(
    tmp_path: Path, taken: int
) -> None:
    open_home(tmp_path, {})
    file = tmp_path / SETTINGS_FILE
    port = load_settings({"SENDLOOM_HOME": str(tmp_path)}).api.port
    file.write_text(file.read_text().replace(f"API__PORT={port}", f"API__PORT={taken}"))
    with pytest.raises(ConfigurationError, match=f"port {taken}, configured for api"):
        open_home(tmp_path, {})


def test_who_listens_says_so_of_a_port_nobody_has() -> None:
    assert "process" in who_listens(free_port())


def test_a_new_home_has_private_settings_a_process_can_start_with(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", {})
    assert stat.S_IMODE((home.directory / SETTINGS_FILE).stat().st_mode) == 0o600
    settings = load_settings({"SENDLOOM_HOME": str(home.directory)})
    assert settings.api.port == home.ports["api"]
    assert str(home.ports["smtp"]) in settings_text(home.directory)
    assert home.postgres is not None
    assert settings.postgres_dsn == home.postgres.dsn()


def settings_text(directory: Path) -> str:
    return (directory / SETTINGS_FILE).read_text()


def test_opening_a_home_again_changes_no_key(tmp_path: Path) -> None:
    open_home(tmp_path, {})
    before = settings_text(tmp_path)
    open_home(tmp_path, {})
    assert settings_text(tmp_path) == before


def test_what_an_operator_added_to_the_file_stays(tmp_path: Path) -> None:
    open_home(tmp_path, {})
    file = tmp_path / SETTINGS_FILE
    file.write_text(file.read_text() + "SENDLOOM_LOG_LEVEL=DEBUG\n")
    open_home(tmp_path, {})
    assert load_settings({"SENDLOOM_HOME": str(tmp_path)}).log_level == "DEBUG"


def test_data_without_their_keys_are_not_started_over(tmp_path: Path) -> None:
    open_home(tmp_path, {})
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "created").touch()
    (tmp_path / SETTINGS_FILE).unlink()
    with pytest.raises(ConfigurationError, match="keys"):
        open_home(tmp_path, {})


def test_a_server_named_in_the_environment_is_not_started(tmp_path: Path) -> None:
    home = open_home(tmp_path, {"SENDLOOM_POSTGRES": "postgresql://db.example.com/sendloom"})
    names = {part.name for part in stack_parts(home)}
    assert "postgres" not in names
    assert {"valkey", "temporal", "migrate", "api"} <= names


def test_a_port_setting_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SENDLOOM_API__PORT"):
        open_home(tmp_path, {"SENDLOOM_API__PORT": "http"})


def test_the_stack_has_every_part_with_marketing_giving_way(tmp_path: Path) -> None:
    home = open_home(tmp_path, {})
    parts = {part.name: part for part in stack_parts(home)}
    workers = {name for name in parts if name.startswith("worker-")}
    assert workers == {
        "worker-security",
        "worker-transactional",
        "worker-marketing-1",
        "worker-marketing-2",
        "worker-ops",
    }
    assert {name for name in workers if parts[name].nice > 0} == {
        "worker-marketing-1",
        "worker-marketing-2",
    }
    order = sorted(parts.values(), key=lambda part: part.drain)
    position = {part.name: n for n, part in enumerate(order)}
    drained = ["worker-ops", "api", "simulators", "temporal", "valkey", "postgres"]
    assert sorted(drained, key=position.__getitem__) == drained
    ports = [port for part in parts.values() for port in part.ports]
    assert len(ports) == len(set(ports))
    assert {"api_url", "inbox_url", "temporal_address"} <= set(stack_addresses(home))


def test_a_ledger_on_cassandra_starts_one_before_the_schema_and_stops_it_last(
    tmp_path: Path,
) -> None:
    home = open_home(tmp_path, {"SENDLOOM_LEDGER": "cassandra"})
    parts = {part.name: part for part in stack_parts(home)}
    assert {"cassandra", "postgres"} <= set(parts["migrate"].needs)
    assert parts["cassandra"].drain == max(part.drain for part in parts.values())
    settings = load_settings({"SENDLOOM_HOME": str(tmp_path)})
    assert settings.ledger == "cassandra"
    assert settings.cassandra.nodes == (("127.0.0.1", home.ports["cassandra"]),)
    # It stays so without the variable.
    assert open_home(tmp_path, {}).cassandra is not None


def test_a_cassandra_named_in_the_environment_is_not_started(tmp_path: Path) -> None:
    home = open_home(
        tmp_path,
        {"SENDLOOM_LEDGER": "cassandra", "SENDLOOM_CASSANDRA__HOSTS": "db.example.com:9042"},
    )
    assert "cassandra" not in {part.name for part in stack_parts(home)}


@pytest.mark.parametrize(
    ("first", "second"), [("postgres", "cassandra"), ("cassandra", "postgres")]
)
def test_the_ledger_of_a_home_cannot_be_changed(tmp_path: Path, first: str, second: str) -> None:
    open_home(tmp_path, {"SENDLOOM_LEDGER": first})
    with pytest.raises(ConfigurationError, match="claims of one mean nothing"):
        open_home(tmp_path, {"SENDLOOM_LEDGER": second})


def test_a_ledger_on_cassandra_without_its_nodes_is_refused(tmp_path: Path) -> None:
    open_home(tmp_path, {})
    with pytest.raises(ConfigurationError, match="SENDLOOM_CASSANDRA__HOSTS is required"):
        load_settings({"SENDLOOM_HOME": str(tmp_path), "SENDLOOM_LEDGER": "cassandra"})


def test_three_nodes_join_one_after_the_other(tmp_path: Path) -> None:
    server = cassandra_alone(tmp_path, 3)
    assert [part.needs for part in server.parts()] == [(), ("cassandra",), ("cassandra-2",)]
    assert server.hosts == ("127.0.0.1", "127.0.0.2", "127.0.0.3")
