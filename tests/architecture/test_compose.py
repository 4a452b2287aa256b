"""docker-compose.yml and temporal-config say only what the code knows."""

import json
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml
from temporalio.envconfig import ClientConfig

from sendloom.cli import build_app
from sendloom.embedded.cassandra import OPTIONS
from sendloom.embedded.stack import TOKEN_VARIABLE
from sendloom.embedded.temporal import DYNAMIC_CONFIG, NAMESPACE
from sendloom.platform.temporal_setup import read_schedules
from sendloom.settings import PREFIX, known_settings, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: s for name, s in SERVICES.items() if s["image"] == "sendloom:local"}
NODES = ["cassandra-1", "cassandra-2", "cassandra-3"]
CLASSES = {"security", "transactional", "marketing", "ops"}


def environment(service: dict[str, Any]) -> dict[str, str]:
    return dict(service.get("environment", {}))


def test_the_compose_file_is_what_the_compose_specification_allows() -> None:
    schema = resources.files("check_jsonschema.builtin_schemas").joinpath(
        "vendor/compose-spec.json"
    )
    validator = jsonschema.validators.validator_for(json.loads(schema.read_text()))
    validator(json.loads(schema.read_text())).validate(COMPOSE)


def test_the_schema_would_have_noticed_a_mistake() -> None:
    schema = resources.files("check_jsonschema.builtin_schemas").joinpath(
        "vendor/compose-spec.json"
    )
    wrong = {"services": {"api": {"image": "x", "comand": ["y"]}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, json.loads(schema.read_text()))


def test_every_server_and_process_of_the_architecture_is_there() -> None:
    servers = {
        "postgres",
        *NODES,
        "valkey",
        "temporal",
        "temporal-ui",
        "mail",
        "otel-collector",
    }
    jobs = {"temporal-schema", "migrate", "temporal-setup"}
    assert servers | jobs | {"api"} | {f"worker-{c}" for c in CLASSES} <= set(SERVICES)


def test_what_a_service_waits_for_exists() -> None:
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed], f"{needed} can never be healthy"


def test_every_variable_of_ours_is_a_known_setting() -> None:
    named = {v for s in SERVICES.values() for v in environment(s) if v.startswith(PREFIX)}
    assert named - {TOKEN_VARIABLE} <= set(known_settings())


@pytest.mark.parametrize("ledger", ["postgres", "cassandra"])
@pytest.mark.parametrize("name", sorted(set(OURS) - {"simulators"}))
def test_a_process_would_accept_its_settings(name: str, ledger: str, tmp_path: Path) -> None:
    given = {"SENDLOOM_HOME": str(tmp_path)}
    for variable, value in environment(OURS[name]).items():
        # What comes from .env: a key, or a password inside a URL.
        fill = "k1:" if variable.endswith("KEYS__SEALING") else ""
        whole = value.startswith("${")
        key = fill + "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
        given[variable] = key if whole else _filled(value)
    assert environment(OURS[name])["SENDLOOM_LEDGER"] == "${SENDLOOM_LEDGER:-postgres}"
    given["SENDLOOM_LEDGER"] = ledger
    settings = load_settings(given)
    assert settings.environment == "production"
    assert settings.ledger == ledger
    assert [host for host, _ in settings.cassandra.nodes] == NODES


def test_cassandra_is_three_nodes_that_join_one_by_one_and_only_when_asked_for() -> None:
    before: str | None = None
    for node in NODES:
        service = SERVICES[node]
        assert service["profiles"] == ["cassandra"]
        assert list(service.get("depends_on", {})) == ([before] if before else [])
        assert service["volumes"] == [f"{node}:/var/lib/cassandra"]
        before = node
    # With the last of them all three are there; without the profile nobody waits.
    needed = SERVICES["migrate"]["depends_on"]
    assert needed[NODES[-1]] == {"condition": "service_healthy", "required": False}


def test_a_node_of_the_compose_file_promises_what_our_own_nodes_promise(tmp_path: Path) -> None:
    """Its script run on a configuration that says the opposite."""
    file = tmp_path / "cassandra.yaml"
    file.write_text(
        "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms\npaxos_variant: v1\nnum_tokens: 16\n"
    )
    [script] = SERVICES["cassandra-2"]["command"]
    script = script.replace("$$", "$").replace("/etc/cassandra/cassandra.yaml", str(file))
    before, run, _ = script.partition("exec docker-entrypoint.sh cassandra -f")
    assert run
    for _ in range(2):  # a restart finds what the first start wrote
        subprocess.run([*SERVICES["cassandra-2"]["entrypoint"], before], check=True)
    said = yaml.safe_load(file.read_text())
    promised = {key: OPTIONS[key] for key in ("commitlog_sync", "paxos_variant")}
    assert said == {**promised, "num_tokens": 16}


def _filled(value: str) -> str:
    before, found, rest = value.partition("${")
    return before + "word" + rest.partition("}")[2] if found else value


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_command_exists_with_its_options(name: str) -> None:
    words = OURS[name]["command"]
    if words[:2] == ["python", "-m"]:
        module = words[2].replace(".", "/")
        assert (ROOT / module / "__main__.py").exists()
        return
    assert words[0] == "sendloom"
    command: Any = typer.main.get_command(build_app())
    rest = words[1:]
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    with command.make_context(name, rest):
        pass  # parsed: every option exists and takes such a value


def test_each_class_has_its_worker() -> None:
    served = {
        words[words.index("--class") + 1]
        for s in OURS.values()
        if (words := s["command"])[:2] == ["sendloom", "worker"]
    }
    assert served == CLASSES


def test_no_secret_is_written_down() -> None:
    secret = {name for name, setting in known_settings().items() if setting.secret}
    for service in OURS.values():
        for variable, value in environment(service).items():
            if variable in secret and variable != "SENDLOOM_REDIS":
                assert ":?" in value, f"{variable} must come from .env"


def test_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]


def test_both_temporal_servers_get_the_same_dynamic_configuration() -> None:
    file = yaml.safe_load((ROOT / "temporal-config/dynamicconfig.yaml").read_text())
    assert {key: json.dumps(entries[0]["value"]) for key, entries in file.items()} == DYNAMIC_CONFIG


def test_every_dynamic_configuration_key_says_why() -> None:
    lines = (ROOT / "temporal-config/dynamicconfig.yaml").read_text().splitlines()
    keys = [n for n, line in enumerate(lines) if line and line[0].isalpha()]
    assert keys
    assert all(lines[n - 1].startswith("# ") for n in keys)


@pytest.mark.parametrize("profile", ["local", "test", "production"])
def test_the_client_profiles_can_be_read(profile: str) -> None:
    config = ClientConfig.load(config_source=ROOT / "temporal-config/temporal.toml")
    assert config.profiles[profile].namespace == NAMESPACE
    assert config.profiles[profile].address


def test_the_schedules_can_be_read() -> None:
    assert all(
        e.task_queue for e in read_schedules(ROOT / "temporal-config/schedules.yaml").values()
    )


def test_the_collector_hands_on_what_it_receives() -> None:
    config = yaml.safe_load((ROOT / "deploy/otel-collector.yaml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])


def test_what_the_collector_scrapes_is_a_service() -> None:
    text = (ROOT / "deploy/otel-collector.yaml").read_text()
    jobs = yaml.safe_load(text)["receivers"]["prometheus"]["config"]["scrape_configs"]
    hosts = {
        target.partition(":")[0]
        for job in jobs
        for static in job.get("static_configs", [])
        for target in static["targets"]
    } | {name for job in jobs for dns in job.get("dns_sd_configs", []) for name in dns["names"]}
    assert hosts <= set(SERVICES)


def test_the_image_copies_every_package() -> None:
    copied = {
        line.split()[1]
        for line in (ROOT / "deploy/Dockerfile").read_text().splitlines()
        if line.startswith("COPY")
    }
    assert {
        "schemas",
        "workflows",
        "activities",
        "workers",
        "api",
        "sendloom",
        "temporal-config",
    } <= copied
