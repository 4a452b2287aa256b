"""Real servers for every test that asks: started lazily, once a session, as subprocesses that die with the run."""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import redis
from hypothesis import HealthCheck
from hypothesis import settings as examples
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.testing import WorkflowEnvironment

from sendloom.embedded.binaries import beside_python
from sendloom.embedded.cassandra import DATACENTER, EmbeddedCassandra, why_not
from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.embedded.postgres import EmbeddedPostgres
from sendloom.embedded.temporal import NAMESPACE, EmbeddedTemporal
from sendloom.embedded.valkey import EmbeddedValkey
from sendloom.platform.hosts import parse_hosts
from sendloom.platform.payloads import data_converter
from sendloom.platform.sealing import KeyRing, new_key
from sendloom.settings import PREFIX, Settings
from sendloom.stores.cassandra import Address, open_cluster
from sendloom.stores.cql.runner import migrate as migrate_cassandra
from tests.sharing import ByGroup, place

_CASSANDRA = os.environ.get(f"{PREFIX}CASSANDRA__HOSTS", "local")
# What a developer has set for a stack of their own must not reach a test.
for _name in [name for name in os.environ if name.startswith(PREFIX)]:
    del os.environ[_name]

# A busy machine takes its time over an example, and a run that found what the one before had not would say nothing of what was
# changed between them. `--hypothesis-profile=explore` looks further.
examples.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.register_profile("same", examples.get_profile("explore"), derandomize=True)
examples.load_profile("same")

_TEMPLATE = "sendloom_template"
NO_CASSANDRA = "no Cassandra"

TimeSkipping = Callable[[], contextlib.AbstractAsyncContextManager[WorkflowEnvironment]]
MakeSettings = Callable[..., Settings]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--temporal",
        default="local",
        help="`local` starts the dev server; an address uses a running one (namespace `sendloom`)",
    )

    parser.addoption(
        "--cassandra",
        default=_CASSANDRA,
        help="`local` starts a node; host:port,… (also SENDLOOM_CASSANDRA__HOSTS) uses a running cluster, in keyspaces of the tests' own",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    config.option.loadscopereorder = False
    return ByGroup(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A ledger nobody tested must be seen by everybody who reads the last lines."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if NO_CASSANDRA in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.section("Cassandra was not tested", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped. {skipped[0].longrepr[-1]!s}")


@pytest.fixture(scope="session")
def server_home() -> Iterator[Path]:
    """Not pytest's own tmp_path: that is closed to the user Postgres runs as."""
    path = Path(tempfile.mkdtemp(prefix="sendloom-tests-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(server_home: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(
        directory=server_home / "postgres",
        port=free_port(),
        password=uuid4().hex,
        for_tests=True,
    )
    with running(server.part(), server_home / "postgres.log"):
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres_server: EmbeddedPostgres) -> str:
    """The name of a database with the newest schema, migrated once; every `database` is a copy of it."""
    if importlib.util.find_spec("sendloom.stores.migrations.runner") is None:
        pytest.fail("sendloom.stores.migrations.runner is not there; use `empty_database`")
    from sendloom.stores.migrations.runner import migrate

    dsn = postgres_server.create_database(_TEMPLATE)
    # In a thread: the test asking for this may already have a loop running in ours.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrate(dsn)).result()
    return _TEMPLATE


@pytest.fixture(scope="module")
def database(postgres_server: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """The DSN of a migrated database that this test module has for itself."""
    name = f"module_{uuid4().hex[:12]}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture
def fresh_database(postgres_server: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """The DSN of a migrated database that this one test has for itself."""
    name = f"test_{uuid4().hex[:12]}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture
def empty_database(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of a database with nothing in it."""
    name = f"empty_{uuid4().hex[:12]}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def valkey_server(server_home: Path) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(directory=server_home / "valkey", port=free_port(), snapshots=False)
    with running(server.part(), server_home / "valkey.log"):
        yield server


@pytest.fixture
def valkey(valkey_server: EmbeddedValkey) -> str:
    """The URL of an empty Valkey."""
    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    return valkey_server.url


@pytest.fixture(scope="session")
def cassandra_hosts(server_home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """One node, or the cluster the option names."""
    hosts: str = request.config.getoption("--cassandra")
    if hosts != "local":
        yield hosts
        return
    if (missing := why_not()) is not None:
        pytest.skip(f"{NO_CASSANDRA}: {missing}")
    server = EmbeddedCassandra(
        directory=server_home / "cassandra",
        port=free_port(),
        storage_port=free_port(),
        heap_mb=512,
    )
    server.directory.mkdir()
    with running(server.part(), server_home / "cassandra.log"):
        yield server.address


@pytest.fixture(scope="session")
def cassandra_address(cassandra_hosts: str) -> Iterator[Address]:
    """A migrated keyspace of this session's own."""
    address = Address(
        hosts=parse_hosts(cassandra_hosts),
        datacenter=DATACENTER,
        keyspace=f"test_{uuid4().hex[:12]}",
    )
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrate_cassandra(address, replication=1)).result()
    yield address
    with open_cluster(address) as cluster:
        cluster.connect().execute(f"DROP KEYSPACE {address.keyspace}", timeout=60)


@pytest.fixture(scope="session")
def temporal_server(server_home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a dev server with the product's flags and namespace."""
    address: str = request.config.getoption("--temporal")
    if address != "local":
        yield address
        return
    server = EmbeddedTemporal(port=free_port(), http_port=free_port(), metrics_port=free_port())
    with running(server.part(), server_home / "temporal.log"):
        yield server.address


@pytest.fixture(scope="session")
def ring() -> KeyRing:
    return KeyRing({"test": bytes(range(32))})


@pytest.fixture(scope="session")
def converter(ring: KeyRing) -> DataConverter:
    return data_converter(ring)


@pytest_asyncio.fixture
async def temporal_client(temporal_server: str, converter: DataConverter) -> Client:
    """A client with production's converter. Use a task queue and workflow ids of the test's own."""
    return await Client.connect(temporal_server, namespace=NAMESPACE, data_converter=converter)


@pytest.fixture
def time_skipping(converter: DataConverter) -> TimeSkipping:
    """`async with time_skipping() as env:` where a workflow waits for days."""

    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[WorkflowEnvironment]:
        async with await WorkflowEnvironment.start_time_skipping(
            test_server_existing_path=beside_python("temporal-test-server"),
            data_converter=converter,
        ) as env:
            yield env

    return start


@pytest.fixture(scope="session")
def make_settings(server_home: Path) -> MakeSettings:
    """Settings with every key set and servers that are not there; keyword arguments replace whole parts or fields."""
    keys = {name: new_key() for name in ("address", "body", "passcode", "unsubscribe")}
    whole = Settings.model_validate(
        {
            "home": server_home,
            "postgres": "postgresql://nobody@127.0.0.1:1/none",
            "redis": "redis://127.0.0.1:1/0",
            # Enough for a server that is there, on a busy machine; who names one that is not says how long that may take.
            "temporal": {"address": "127.0.0.1:1", "connect_seconds": 30},
            "keys": {"sealing": f"test:{_TEST_SEALING_KEY}", **keys},
            "smtp": {"host": "127.0.0.1", "port": 1, "tls": "none", "sender": "news@example.com"},
            "twilio": {
                "base_url": "http://127.0.0.1:1",
                "account_sid": "AC" + "0" * 32,
                "auth_token": "test-token",
                "sender": "+12025550100",
            },
            "api": {"public_url": "http://127.0.0.1:1"},
        }
    )

    def make(**changes: Any) -> Settings:
        values = {name: getattr(whole, name) for name in Settings.model_fields}
        for name, change in changes.items():
            part = values[name]
            # A mapping changes some fields of a part, anything else replaces it.
            if isinstance(change, dict):
                values[name] = type(part).model_validate({**dict(part), **change})
            else:
                values[name] = change
        return Settings.model_validate(values)

    return make


@pytest.fixture
def settings(
    make_settings: MakeSettings, database: str, valkey: str, temporal_server: str
) -> Settings:
    """Settings that point at the session's real servers and this module's database."""
    return make_settings(postgres=database, redis=valkey, temporal={"address": temporal_server})


# The same key as `ring`, so that what one sealed the other opens.
_TEST_SEALING_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
