"""The embedded stack's directory: its ports, its generated keys and the settings its processes read."""

import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sendloom.embedded.cassandra import EmbeddedCassandra
from sendloom.embedded.ports import choose_ports, read_ports
from sendloom.embedded.postgres import EmbeddedPostgres
from sendloom.embedded.temporal import NAMESPACE, EmbeddedTemporal
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.errors import ConfigurationError
from sendloom.settings import PREFIX, SETTINGS_FILE, fresh_keys, read_settings_file

PORTS_FILE = "ports.json"

_PREFERRED = {
    "api": 8080,
    "temporal": 7233,
    "temporal-ui": 8233,
    "temporal-http": 7243,
    "temporal-metrics": 7244,
    "postgres": 15432,
    "cassandra": 19042,
    "cassandra-storage": 17000,
    "valkey": 16379,
    "smtp": 2525,
    "simulators": 8025,
}
WORKERS = (
    "worker-security",
    "worker-transactional",
    "worker-marketing-1",
    "worker-marketing-2",
    "worker-ops",
)
_FIRST_HEALTH_PORT = 9101

_HEADER = """# Written by `sendloom up`, read by every sendloom process; the environment wins over it.
# It holds the keys that open this stack's data: keep it as long as the data, and never copy it into a repository.
"""


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where everything is. Servers the environment names elsewhere are not ours, and are None."""

    directory: Path
    ports: Mapping[str, int]
    postgres: EmbeddedPostgres | None
    valkey: EmbeddedValkey | None
    temporal: EmbeddedTemporal | None
    cassandra: EmbeddedCassandra | None
    """Also None when the ledger is in Postgres."""
    twilio_account_sid: str
    twilio_auth_token: str


def open_home(directory: Path, environ: Mapping[str, str] = os.environ) -> Home:
    """Create or read the directory: choose ports, generate what has no value yet, write `settings.env` (mode 0600).

    Raises:
        ConfigurationError: a port is taken, or there is data whose keys are gone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        directory.chmod(0o711)  # Postgres runs as somebody else and must come through
    else:
        directory.chmod(0o700)
    for name in ("logs", "valkey", "temporal"):
        (directory / name).mkdir(exist_ok=True)
        (directory / name).chmod(0o700)
    file = directory / SETTINGS_FILE
    old = read_settings_file(file)
    if not old and (directory / "postgres" / "created").exists():
        raise ConfigurationError(
            f"{directory} holds data, but {file} with the keys that open it is gone. "
            f"Restore it, or remove {directory} to start afresh."
        )
    ledger = _ledger(old, environ)
    ports = _ports(directory, old, environ)
    password = urlsplit(old.get(PREFIX + "POSTGRES", "")).password or secrets.token_urlsafe(24)
    postgres = EmbeddedPostgres(
        directory=directory / "postgres", port=ports["postgres"], password=password
    )
    valkey = EmbeddedValkey(directory=directory / "valkey", port=ports["valkey"])
    temporal = EmbeddedTemporal(
        port=ports["temporal"],
        http_port=ports["temporal-http"],
        metrics_port=ports["temporal-metrics"],
        ui_port=ports["temporal-ui"],
        file=directory / "temporal" / "temporal.db",
    )
    cassandra = embedded_cassandra(directory, ports)
    api = f"http://127.0.0.1:{ports['api']}"
    # Follows the ports, so it is written anew each time.
    addresses = {
        "POSTGRES": postgres.dsn(),
        "REDIS": valkey.url,
        **({"CASSANDRA__HOSTS": cassandra.address} if ledger == "cassandra" else {}),
        "TEMPORAL__ADDRESS": temporal.address,
        "TEMPORAL__UI_URL": temporal.ui_url or "",
        "SMTP__HOST": "127.0.0.1",
        "SMTP__PORT": str(ports["smtp"]),
        "TWILIO__BASE_URL": f"http://127.0.0.1:{ports['simulators']}",
        "API__PORT": str(ports["api"]),
        "API__PUBLIC_URL": api,
    }
    # Chosen once; what an operator changed stays.
    once = {
        "ENVIRONMENT": "embedded",
        "LEDGER": ledger,
        "CASSANDRA__REPLICATION": "1",
        "TEMPORAL__NAMESPACE": NAMESPACE,
        "SMTP__TLS": "none",
        "SMTP__SENDER": "Sendloom <no-reply@example.com>",
        "TWILIO__ACCOUNT_SID": "AC" + secrets.token_hex(16),
        "TWILIO__AUTH_TOKEN": secrets.token_hex(16),
        "TWILIO__SENDER": "+12025550100",
    }
    new = {
        **fresh_keys(),
        **{PREFIX + name: value for name, value in once.items()},
        **old,
        **{PREFIX + name: value for name, value in addresses.items()},
    }
    _write_private(file, _HEADER + "".join(f"{k}={v}\n" for k, v in new.items()))
    return Home(
        directory=directory,
        ports=ports,
        postgres=None if environ.get(PREFIX + "POSTGRES") else postgres,
        valkey=None if environ.get(PREFIX + "REDIS") else valkey,
        temporal=None if environ.get(PREFIX + "TEMPORAL__ADDRESS") else temporal,
        cassandra=None
        if ledger == "postgres" or environ.get(PREFIX + "CASSANDRA__HOSTS")
        else cassandra,
        twilio_account_sid=new[PREFIX + "TWILIO__ACCOUNT_SID"],
        twilio_auth_token=new[PREFIX + "TWILIO__AUTH_TOKEN"],
    )


def embedded_cassandra(
    directory: Path, ports: Mapping[str, int], nodes: int = 1
) -> EmbeddedCassandra:
    return EmbeddedCassandra(
        directory=directory / "cassandra",
        port=ports["cassandra"],
        storage_port=ports["cassandra-storage"],
        nodes=nodes,
    )


def cassandra_alone(directory: Path, nodes: int) -> EmbeddedCassandra:
    """Only Cassandra, with the data and the ports it has in this home's stack."""
    (directory / "cassandra").mkdir(parents=True, exist_ok=True)
    wanted = {name: port for name, port in _PREFERRED.items() if name.startswith("cassandra")}
    return embedded_cassandra(directory, choose_ports(directory / PORTS_FILE, wanted), nodes)


def _ledger(old: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Chosen on the first start. The other one knows nothing of what was claimed, and would send it again."""
    name = PREFIX + "LEDGER"
    before = old.get(name, "postgres") if old else None
    wanted = environ.get(name) or before or "postgres"
    if before is not None and wanted != before:
        raise ConfigurationError(
            f"the ledger of this home is in {before.capitalize()}, and {name} says {wanted}: claims of one mean nothing "
            f"to the other. Unset {name}, or use another home."
        )
    return wanted


def _ports(directory: Path, old: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, int]:
    wanted = dict(_PREFERRED)
    wanted |= {name: _FIRST_HEALTH_PORT + n for n, name in enumerate(WORKERS)}
    file = directory / PORTS_FILE
    name = PREFIX + "API__PORT"
    given = environ.get(name) or old.get(name)
    if given is not None and not given.isdecimal():
        raise ConfigurationError(f"{name} is not a port number.")
    # In the file it is ours, unless somebody changed it.
    ours = given is None or (name not in environ and read_ports(file).get("api") == int(given))
    return choose_ports(file, wanted, None if given is None or ours else {"api": int(given)})


def _write_private(file: Path, text: str) -> None:
    """Atomically, and never readable by others, not even for a moment."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".settings")  # mode 0600
    with os.fdopen(descriptor, "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    Path(name).replace(file)
