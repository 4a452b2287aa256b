"""The parts list of `sendloom up`: what runs, what it needs, and in which order it is drained."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sendloom.embedded import probes
from sendloom.embedded.home import WORKERS, Home
from sendloom.embedded.parts import Part
from sendloom.settings import PREFIX

MARKETING_NICE = 19
"""A campaign's processes give way to a passcode's on the same cores (LANE-2); see `sendloom.platform.priority`."""

_LAST_READY_SECONDS, _LAST_ANSWER_SECONDS = 240.0, 15.0
"""Who comes last is not broken because others are busy."""

TOKEN_VARIABLE = "SENDLOOM_SIMULATOR_TWILIO_TOKEN"
"""The simulators' one variable; they read no settings."""

_WORKERS_DRAIN, _API_DRAIN, _SIMULATORS_DRAIN, _STEPS_DRAIN = 0, 1, 2, 0
_REPOSITORY = Path(__file__).resolve().parents[2]


def stack_parts(home: Home, *, simulators: bool = True, workers: bool = True) -> list[Part]:
    """Everything, in an order in which each part's needs come before it."""
    env = {PREFIX + "HOME": str(home.directory), "PYTHONUNBUFFERED": "1"}
    ours = _Ours(env)
    parts: list[Part] = []
    for server in (home.postgres, home.valkey, home.temporal):
        if server is not None:
            parts.append(server.part())
    if home.cassandra is not None:
        parts += home.cassandra.parts()
    if simulators:
        parts.append(ours.simulators(home))
    servers = {part.name for part in parts}
    parts.append(ours.step("migrate", ("migrate",), needs=servers & {"postgres", "cassandra"}))
    parts.append(ours.step("temporal-setup", ("temporal", "setup"), needs=servers & {"temporal"}))
    needs = {"migrate", "temporal-setup", *(servers & {"valkey"})}
    parts.append(ours.api(home.ports["api"], needs))
    if workers:
        parts += [ours.worker(name, home.ports[name], needs) for name in WORKERS]
    return parts


def stack_addresses(home: Home, *, simulators: bool = True) -> dict[str, str]:
    """What a person opens in a browser, or points a client at."""
    api = f"http://127.0.0.1:{home.ports['api']}"
    addresses = {"api_url": api, "openapi_url": f"{api}/docs"}
    if simulators:
        addresses["inbox_url"] = f"http://127.0.0.1:{home.ports['simulators']}"
    if (temporal := home.temporal) is not None:
        addresses["temporal_address"] = temporal.address
        addresses["temporal_namespace"] = temporal.namespace
        addresses["temporal_ui_url"] = f"{temporal.ui_url}/namespaces/{temporal.namespace}"
    return addresses


class _Ours:
    """Parts that are our own Python."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def step(self, name: str, command: tuple[str, ...], needs: set[str]) -> Part:
        return Part(
            name=name,
            command=(sys.executable, "-m", "sendloom.cli", *command),
            needs=tuple(sorted(needs)),
            env=self._env,
            cwd=_REPOSITORY,
            once=True,
            drain=_STEPS_DRAIN,
        )

    def api(self, port: int, needs: set[str]) -> Part:
        return Part(
            name="api",
            command=(sys.executable, "-m", "sendloom.cli", "api"),
            ready=partial(probes.http_ok, f"http://127.0.0.1:{port}/readyz"),
            needs=tuple(sorted(needs)),
            env=self._env,
            cwd=_REPOSITORY,
            ports=(port,),
            drain=_API_DRAIN,
        )

    def worker(self, name: str, port: int, needs: set[str]) -> Part:
        message_class = name.split("-")[1]
        gives_way = message_class == "marketing"
        return Part(
            name=name,
            command=(
                *(sys.executable, "-m", "sendloom.cli", "worker"),
                *("--class", message_class, "--health-port", str(port)),
            ),
            ready=partial(
                probes.http_ok,
                f"http://127.0.0.1:{port}/readyz",
                seconds=_LAST_ANSWER_SECONDS if gives_way else 1.0,
            ),
            ready_seconds=_LAST_READY_SECONDS if gives_way else 60,
            needs=tuple(sorted(needs)),
            env=self._env,
            cwd=_REPOSITORY,
            ports=(port,),
            nice=MARKETING_NICE if gives_way else 0,
            # Calls in flight are finished and recorded before it leaves; the longest is an SMTP final reply.
            stop_seconds=30,
            drain=_WORKERS_DRAIN,
        )

    def simulators(self, home: Home) -> Part:
        smtp, http = home.ports["smtp"], home.ports["simulators"]
        return Part(
            name="simulators",
            command=(
                *(sys.executable, "-m", "sendloom.providers.simulators"),
                *("--smtp-port", str(smtp), "--http-port", str(http)),
                *("--account-sid", home.twilio_account_sid),
            ),
            ready=lambda: (
                probes.tcp_open("127.0.0.1", smtp)
                and probes.http_ok(f"http://127.0.0.1:{http}/healthz")
            ),
            # In the environment, because a command line is for everybody to see.
            env={**self._env, TOKEN_VARIABLE: home.twilio_auth_token},
            cwd=_REPOSITORY,
            ports=(smtp, http),
            drain=_SIMULATORS_DRAIN,
        )
