"""Cassandra from its own Maven artifacts, without a container: one node or three on 127.0.0.1 to 127.0.0.3.

The jars are fetched once into a cache of the user's; Java 17 runs them. What is set here is what the ledger's promises rest
on: Paxos v2, and a commit log that is on disk before anything is acknowledged.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sendloom.embedded import probes
from sendloom.embedded.parts import Part
from sendloom.errors import ConfigurationError

log = logging.getLogger(__name__)

VERSION = "5.0.5"
JAVA = 17
CLUSTER = "sendloom"
DATACENTER = "datacenter1"
"""What SimpleSnitch calls the only one."""
RACK = "rack1"
FIX = "install Java 17 (a JRE without a desktop is enough) and Maven, and set JAVA_HOME if `java` is another version"

_POM = Path(__file__).resolve().parents[2] / "deploy" / "cassandra" / "pom.xml"
_FETCH_SECONDS = 900
_NEXT_HEAP_MB = 512
"""Of the second and third node, which are there to be killed."""
_RING_DELAY_MS = 3_000
"""How long a node listens before it joins. With 0 it is not heard by its seed, and the default is half a minute."""

OPTIONS = {
    "cluster_name": CLUSTER,
    "num_tokens": 16,
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "authenticator": "AllowAllAuthenticator",
    "authorizer": "AllowAllAuthorizer",
    # Acknowledged is on disk. With `periodic` 1,600 acknowledged claims were gone after one kill -9; at the same speed.
    "commitlog_sync": "batch",
    "commitlog_segment_size": "32MiB",
    # Half the round trips of v1, and linearizable reads.
    "paxos_variant": "v2",
    # A partition that many claim at once says so rather than making everybody wait.
    "cas_contention_timeout": "1800ms",
    "write_request_timeout": "2000ms",
    "read_request_timeout": "5000ms",
    "concurrent_writes": 32,
    "concurrent_reads": 16,
    "memtable_allocation_type": "offheap_objects",
    "memtable_heap_space": "256MiB",
    "memtable_offheap_space": "256MiB",
    "file_cache_size": "128MiB",
    "key_cache_size": "32MiB",
    "compaction_throughput": "64MiB/s",
    "concurrent_compactors": 1,
    "auto_snapshot": False,
    "materialized_views_enabled": False,
    "sasi_indexes_enabled": False,
    "dynamic_snitch": False,
    "incremental_backups": False,
}

_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.unsupported/sun.misc",
)
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)

_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{ISO8601} %-5level [%thread] %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <logger name="org.apache.cassandra" level="WARN"/>
  <logger name="org.apache.cassandra.service.StorageService" level="INFO"/>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True, kw_only=True)
class EmbeddedCassandra:
    """Where it lives and how to reach it. Every node listens on the same ports of an address of its own."""

    directory: Path
    port: int
    storage_port: int
    nodes: int = 1
    heap_mb: int = 1024

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.{n + 1}" for n in range(self.nodes))

    @property
    def address(self) -> str:
        """As the settings want it."""
        return ",".join(f"{host}:{self.port}" for host in self.hosts)

    def parts(self) -> list[Part]:
        """One a node. Each joins the ring when the one before it is there: two cannot at once."""
        return [self.part(n) for n in range(self.nodes)]

    def part(self, node: int = 0) -> Part:
        host, home = self.hosts[node], self.home(node)
        heap = self.heap_mb if node == 0 else min(self.heap_mb, _NEXT_HEAP_MB)
        return Part(
            name=_name(node),
            drain=6,
            command=(
                # What is fetched only when the part starts cannot be part of its command: `exec` finds it then.
                *("sh", "-c", _RUN, "cassandra", str(home / "arguments")),
                *(f"-Xms{heap}m", f"-Xmx{heap}m"),
                "org.apache.cassandra.service.CassandraDaemon",
            ),
            ready=lambda: probes.cql_answers(host, self.port),
            prepare=lambda: self.prepare(node),
            needs=() if node == 0 else (_name(node - 1),),
            cwd=self.directory,
            stop_seconds=30,
            ready_seconds=180,
            ports=(self.port, self.storage_port),
        )

    def home(self, node: int) -> Path:
        return self.directory / f"node{node + 1}"

    def prepare(self, node: int) -> None:
        """Fetch the jars, and write what this node is told."""
        home = self.home(node)
        for name in ("data", "commitlog", "hints", "saved_caches", "tmp"):
            (home / name).mkdir(parents=True, exist_ok=True)
        jars = fetch_jars()
        # JSON is YAML.
        (home / "cassandra.yaml").write_text(json.dumps(self._options(node), indent=1) + "\n")
        (home / "logback.xml").write_text(_LOGBACK)
        arguments = [find_java(), *self._java_options(home, jars)]
        (home / "arguments").write_text("\n".join(arguments) + "\n")

    def _options(self, node: int) -> dict[str, object]:
        home, host = self.home(node), self.hosts[node]
        return {
            **OPTIONS,
            "listen_address": host,
            "rpc_address": host,
            "native_transport_port": self.port,
            "storage_port": self.storage_port,
            "ssl_storage_port": self.storage_port + 1,
            "data_file_directories": [str(home / "data")],
            "commitlog_directory": str(home / "commitlog"),
            "hints_directory": str(home / "hints"),
            "saved_caches_directory": str(home / "saved_caches"),
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": f"{self.hosts[0]}:{self.storage_port}"}],
                }
            ],
        }

    def _java_options(self, home: Path, jars: Path) -> list[str]:
        properties = {
            "cassandra.config": (home / "cassandra.yaml").as_uri(),
            "cassandra.storagedir": home,
            "cassandra.ring_delay_ms": _RING_DELAY_MS,
            # The first node is alone and has nobody to wait for.
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra-foreground": "yes",
            "cassandra.shutdown_announce_in_ms": 200,
            "logback.configurationFile": (home / "logback.xml").as_uri(),
            "java.io.tmpdir": home / "tmp",
            "jdk.attach.allowAttachSelf": "true",
            "io.netty.tryReflectionSetAccessible": "true",
        }
        return [
            # A machine of two cores, shared.
            *("-XX:+UseG1GC", "-XX:ParallelGCThreads=2", "-XX:ConcGCThreads=1"),
            *("-XX:MaxGCPauseMillis=100", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"),
            "-Xss256k",
            # Such a node lives for minutes, on cores it shares. The optimising compiler took half of all they had for the
            # first 20,000 messages (17 CPU seconds against 8), and a third of what a restart takes.
            "-XX:TieredStopAtLevel=1",
            f"-javaagent:{_one(jars, 'jamm-*.jar')}",
            *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
            *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
            *(f"-D{key}={value}" for key, value in properties.items()),
            *("-cp", f"{jars}/*"),
        ]


_RUN = """
file=$1; shift
set -f; IFS='
'
set -- $(cat "$file") "$@"
exec "$@"
"""
"""The file holds the program and its options, one a line."""


def _name(node: int) -> str:
    return "cassandra" if node == 0 else f"cassandra-{node + 1}"


def _one(jars: Path, pattern: str) -> Path:
    if found := next(jars.glob(pattern), None):
        return found
    raise ConfigurationError(f"{jars} has no {pattern}: remove the directory, it is fetched again")


def jars_directory() -> Path:
    """Per user and version, outside every repository and home: they are the same for all."""
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "sendloom" / f"cassandra-{VERSION}"


def why_not() -> str | None:
    """What is missing to run it here; None when nothing is. Whether Maven's source can be reached shows only in trying."""
    try:
        find_java()
    except ConfigurationError as e:
        return str(e)
    if not jars_directory().is_dir() and shutil.which("mvn") is None:
        return (
            f"Cassandra's jars are not here yet, and there is no Maven (`mvn`) to fetch them: {FIX}"
        )
    return None


@cache
def find_java() -> str:
    """A Java of the version Cassandra's options are for.

    Raises:
        ConfigurationError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [f"{home}/bin/java"] if home else []
    candidates += ["java", *map(str, sorted(Path("/usr/lib/jvm").glob(f"*{JAVA}*/bin/java")))]
    for candidate in candidates:
        if (java := shutil.which(candidate)) is None:
            continue
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
        if re.search(rf'version "{JAVA}\b', done.stderr):
            return java
    raise ConfigurationError(f"Cassandra needs Java {JAVA}, and there is none: {FIX}")


def fetch_jars() -> Path:
    """The directory with Cassandra's jars, fetched by Maven the first time.

    Raises:
        ConfigurationError: Maven is missing, or cannot fetch them.
    """
    there = jars_directory()
    if there.is_dir():
        return there
    if (maven := shutil.which("mvn")) is None:
        raise ConfigurationError(f"Cassandra's jars are fetched by Maven, which is missing: {FIX}")
    there.parent.mkdir(parents=True, exist_ok=True)
    with (there.parent / f"{there.name}.lock").open("w") as lock:
        # Three nodes, or two test runs, ask at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if there.is_dir():
            return there
        log.info("fetching Cassandra's jars", extra={"version": VERSION, "into": str(there)})
        with tempfile.TemporaryDirectory(dir=there.parent, prefix=".fetching") as scratch:
            jars = Path(scratch) / "jars"
            command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
            command += [f"-Dcassandra.version={VERSION}"]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise ConfigurationError("Maven did not fetch Cassandra's jars in time") from None
            if done.returncode:
                said = (done.stdout or done.stderr).strip()[-800:]
                raise ConfigurationError(f"Maven could not fetch Cassandra's jars: {said}")
            jars.replace(there)
    return there
