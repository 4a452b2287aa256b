"""Every setting, in one frozen object, read once at the edge of a process.

A value comes from a `SENDLOOM_…` environment variable or else from `<home>/settings.env`, which `sendloom up` writes with
keys of its own. Nothing secret, no store and no queue has a default: what is missing stops the process (NFR-3).
"""

import difflib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretBytes,
    SecretStr,
    StringConstraints,
    ValidationError,
)
from pydantic.fields import FieldInfo

from sendloom.errors import ConfigurationError
from sendloom.platform.hosts import parse_hosts
from sendloom.platform.sealing import Hashes, KeyRing, decode_key, new_key

PREFIX = "SENDLOOM_"
SETTINGS_FILE = "settings.env"
DEFAULT_HOME = Path(".sendloom")


def _key(value: object) -> object:
    return decode_key(value) if isinstance(value, str) else value


def _ring(value: SecretStr) -> SecretStr:
    KeyRing.parse(value.get_secret_value())
    return value


def _url(*schemes: str) -> AfterValidator:
    def check(value: SecretStr) -> SecretStr:
        # The message never quotes the value: it holds a password.
        if urlsplit(value.get_secret_value()).scheme not in schemes:
            raise ValueError(
                f"must be a URL that begins with {' or '.join(s + '://' for s in schemes)}"
            )
        return value

    return AfterValidator(check)


def _hosts(value: str) -> str:
    parse_hosts(value)
    return value


Key = Annotated[SecretBytes, BeforeValidator(_key)]
"""32 bytes, given as base64."""


class Part(BaseModel):
    """One part's slice; adapters receive only theirs."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TemporalSettings(Part):
    address: str = Field(description="host:port of the Temporal frontend")
    namespace: str = Field("sendloom", description="Temporal namespace of this cell")
    api_key: SecretStr | None = Field(None, description="API key, where the server wants one")
    tls: bool = Field(False, description="speak TLS to the frontend; implied by an API key")
    tls_ca: Path | None = Field(
        None, description="PEM file of the authority that signed the server"
    )
    tls_cert: Path | None = Field(None, description="PEM file of our client certificate")
    tls_key: Path | None = Field(None, description="PEM file of our client key")
    ui_url: str | None = Field(None, description="where Temporal's UI is, for links in the console")
    connect_seconds: float = Field(
        10, gt=0, description="give up on an unreachable or refusing server after this"
    )
    build_id: str | None = Field(
        None, description="worker deployment build; unset switches worker versioning off"
    )
    cached_workflows: int = Field(
        2_000,
        ge=10,
        description="most workflows a class's worker keeps in memory, some 50 KB each; all others wait in Temporal only",
    )


class KeySettings(Part):
    sealing: Annotated[SecretStr, AfterValidator(_ring)] = Field(
        description="sealing key ring, `id:base64,…`; the first seals, all open"
    )
    address: Key = Field(description="key of the hash addresses are found by; can never change")
    body: Key = Field(
        description="key of the hash that tells a repeat from a reused idempotency key"
    )
    passcode: Key = Field(description="key of the passcode hash")
    unsubscribe: Key = Field(description="key that signs unsubscribe tokens")

    def ring(self) -> KeyRing:
        return KeyRing.parse(self.sealing.get_secret_value())

    def hashes(self) -> Hashes:
        return Hashes(
            address=self.address.get_secret_value(),
            body=self.body.get_secret_value(),
            passcode=self.passcode.get_secret_value(),
        )


class SmtpSettings(Part):
    host: str = Field(description="SMTP relay host")
    port: int = Field(587, ge=1, le=65535, description="SMTP relay port")
    tls: Literal["none", "starttls", "implicit"] = Field(
        "starttls", description="how the connection is protected; `none` only towards a simulator"
    )
    tls_ca: Path | None = Field(None, description="PEM file of the authority that signed the relay")
    username: str | None = Field(None, description="SMTP AUTH user")
    password: SecretStr | None = Field(None, description="SMTP AUTH password")
    sender: str = Field(description="From address of email, also the Message-ID domain")


class TwilioSettings(Part):
    base_url: str = Field("https://api.twilio.com", description="root of the messages API")
    account_sid: str = Field(description="account that sends")
    auth_token: SecretStr = Field(description="its token; also verifies status callbacks")
    sender: str = Field(description="From number (E.164) or messaging service sid")


class CassandraSettings(Part):
    """Read only when the ledger is there."""

    hosts: Annotated[str, AfterValidator(_hosts)] | None = Field(
        None, description="nodes of Cassandra, `host:port,host:port`, for a ledger of `cassandra`"
    )
    datacenter: str = Field("datacenter1", description="the one this cell is in")
    keyspace: Annotated[str, StringConstraints(pattern="^[a-z][a-z0-9_]{0,47}$")] = Field(
        "sendloom", description="keyspace of the ledger; `sendloom migrate` creates it"
    )
    replication: int = Field(
        3, ge=1, le=7, description="copies of each row, for the keyspace that is created"
    )
    username: str | None = Field(None, description="user, where Cassandra wants one")
    password: SecretStr | None = Field(None, description="its password")

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        return parse_hosts(self.hosts or "")


class ApiSettings(Part):
    host: str = Field("127.0.0.1", description="address the API listens on")
    port: int = Field(8080, ge=1, le=65535, description="port the API listens on")
    public_url: str = Field(
        description="how the outside reaches the API: unsubscribe links, callbacks"
    )


class ClientSettings(Part):
    """What the command line speaks to; the servers never read it."""

    url: str | None = Field(None, description="API the commands speak to; unset: the local one")
    api_key: SecretStr | None = Field(None, description="API key the commands use")


class TelemetrySettings(Part):
    otlp_endpoint: str | None = Field(
        None, description="OTLP/HTTP collector; unset: traces stay here"
    )
    sample_ratio: float = Field(0.01, ge=0, le=1, description="share of successful traces kept")


class WorkerSettings(Part):
    security_worst_hour: int = Field(
        10_000, ge=1, description="security messages in the worst hour; capacity is twice that"
    )
    marketing_most: int = Field(
        4, ge=1, le=1000, description="marketing processes that serve at once; more stand by"
    )


class Settings(Part):
    model_config = ConfigDict(hide_input_in_errors=True)

    environment: Literal["embedded", "production"] = Field(
        "embedded", description="who runs the servers: `sendloom up`, or someone else"
    )
    home: Path = Field(
        DEFAULT_HOME, description="directory of the embedded stack's data and settings.env"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least severe log line written"
    )
    postgres: Annotated[SecretStr, _url("postgresql", "postgres")] = Field(
        description="DSN of Postgres, `postgresql://user:password@host:port/database`"
    )
    redis: Annotated[SecretStr, _url("redis", "rediss", "unix")] = Field(
        description="URL of Redis or Valkey, `redis://host:port/0`"
    )
    ledger: Literal["postgres", "cassandra"] = Field(
        "postgres", description="where claims, outcomes and suppressions are; chosen once"
    )
    cassandra: CassandraSettings = CassandraSettings()
    temporal: TemporalSettings
    keys: KeySettings
    smtp: SmtpSettings
    twilio: TwilioSettings
    api: ApiSettings
    client: ClientSettings = ClientSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    workers: WorkerSettings = WorkerSettings()

    @property
    def postgres_dsn(self) -> str:
        return self.postgres.get_secret_value()

    @property
    def redis_url(self) -> str:
        return self.redis.get_secret_value()


class Documented(Part):
    """One setting as `docs/settings.md` shows it."""

    name: str
    required: bool
    default: str
    description: str
    secret: bool


def known_settings() -> dict[str, Documented]:
    """Every variable there is, by name, in the order of the model."""
    return {d.name: d for d in _leaves(Settings, PREFIX)}


def settings_home(environ: Mapping[str, str] = os.environ) -> Path:
    """`$SENDLOOM_HOME` or `./.sendloom`, absolute."""
    return Path(environ.get(PREFIX + "HOME") or DEFAULT_HOME).absolute()


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment and `<home>/settings.env`.

    Raises:
        ConfigurationError: a variable is unknown, missing or nonsense. Names it and the fix, never its value.
    """
    environ = os.environ if environ is None else environ
    home = settings_home(environ)
    file = home / SETTINGS_FILE
    given = {
        **read_settings_file(file),
        **{k: v for k, v in environ.items() if k.startswith(PREFIX) and v},
    }
    _refuse_unknown(given, file)
    tree: dict[str, Any] = {}
    for name, value in given.items():
        *parents, leaf = name.removeprefix(PREFIX).lower().split("__")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    tree["home"] = home
    # A part none of whose variables is given must still say which of them are missing.
    for name, field in Settings.model_fields.items():
        if _part(field) is not None:
            tree.setdefault(name, {})
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as e:
        raise ConfigurationError(_explain(e, home)) from None
    if settings.ledger == "cassandra" and settings.cassandra.hosts is None:
        raise ConfigurationError(
            f"{PREFIX}CASSANDRA__HOSTS is required and not set, because {PREFIX}LEDGER is cassandra: "
            "name the nodes, or run `sendloom up` with the same setting, which starts one."
        )
    return settings


def fresh_keys() -> dict[str, str]:
    """Every key a new installation needs, by variable name. They must be kept as long as its data."""
    keys = {
        f"{PREFIX}KEYS__{name}".upper(): new_key()
        for name in KeySettings.model_fields
        if name != "sealing"
    }
    return {f"{PREFIX}KEYS__SEALING": f"k{secrets.token_hex(3)}:{new_key()}", **keys}


def settings_reference() -> str:
    """The text of `docs/settings.md`."""
    rows = [
        f"| `{d.name}` | {'**required**' if d.required else f'`{d.default}`' if d.default else '–'} "
        f"| {d.description}{' (secret)' if d.secret else ''} |"
        for d in known_settings().values()
    ]
    return "\n".join(
        [_REFERENCE_HEAD, "| variable | default | what it is |", "|---|---|---|", *rows, ""]
    )


_REFERENCE_HEAD = """# Settings

Written by `sendloom settings --markdown` from `sendloom/settings.py`; a test compares the two.

A value comes from the environment or, when it is not there, from `<home>/settings.env` (mode 0600). `sendloom up` writes that
file with keys of its own on its first start; in production there is no file and every required variable must be in the
environment. An unknown `SENDLOOM_…` variable stops the process with the nearest known name, a missing one with its fix.
An empty variable counts as not set.
"""


def read_settings_file(file: Path) -> dict[str, str]:
    """What the file sets, by variable name; nothing when there is no file.

    Raises:
        ConfigurationError: it is there and cannot be read.
    """
    try:
        if not file.is_file():
            return {}
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as e:
        raise ConfigurationError(
            f"cannot read {file}: {e.strerror}. Run as the user that owns it."
        ) from e
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}


def _refuse_unknown(given: Mapping[str, str], file: Path) -> None:
    known = known_settings()
    lines = []
    for name in sorted(set(given) - set(known)):
        # Without the prefix, which would make everything look alike.
        bare = {k.removeprefix(PREFIX): k for k in known}
        near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.6)
        hint = f" Did you mean {bare[near[0]]}?" if near else ""
        lines.append(f"{name} is not a setting.{hint}")
    if lines:
        where = f"Remove or rename it (environment or {file}); docs/settings.md lists them all."
        raise ConfigurationError("\n".join([*lines, where]))


def _explain(e: ValidationError, home: Path) -> str:
    known = known_settings()
    lines, missing = [], False
    for error in e.errors(include_url=False, include_input=False, include_context=False):
        name = PREFIX + "__".join(str(part) for part in error["loc"]).upper()
        what = known[name].description if name in known else ""
        if error["type"] == "missing":
            missing = True
            lines.append(f"{name} is required and not set: {what}.")
        else:
            lines.append(f"{name} is wrong: {error['msg'].removeprefix('Value error, ')} ({what}).")
    if missing:
        lines.append(
            "Set it in the environment (docs/settings.md). On one machine run `sendloom up` first: it writes "
            f"{home / SETTINGS_FILE} with fresh keys and the addresses of its own servers."
        )
    return "\n".join(lines)


def _part(field: FieldInfo) -> type[Part] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Part) else None


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[Documented]:
    for name, field in model.model_fields.items():
        if (part := _part(field)) is not None:
            yield from _leaves(part, f"{prefix}{name}__".upper())
            continue
        yield Documented(
            name=f"{prefix}{name}".upper(),
            required=field.is_required(),
            default="" if field.is_required() or field.default is None else str(field.default),
            description=field.description or "",
            secret=bool({SecretStr, SecretBytes} & {field.annotation, *get_args(field.annotation)}),
        )
