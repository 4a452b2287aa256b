"""A store or Temporal away: 503 within a second, and the same key is safe (ACC-10)."""

import asyncio
import dataclasses
import socket
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from pydantic import SecretStr

from api.app import create_app
from api.deps import Parts
from api.timing import ANSWER_WITHIN
from sendloom.errors import ConfigurationError, SchemaTooOld
from sendloom.settings import Settings, load_settings
from sendloom.stores.pool import ACQUIRE
from tests.api.conftest import ON_A_BUSY_MACHINE, Account, code_of, notification
from tests.api.fakes import FakeWorkflows
from tests.api.test_campaigns import running
from tests.conftest import MakeSettings


async def test_temporal_away_is_503_and_the_same_key_then_starts_what_was_accepted(
    account: Account, workflows: FakeWorkflows, parts: Parts
):
    workflows.away = True
    answer = await account.post("/v1/notifications", notification(), key="k")
    assert code_of(answer) == (503, "temporal_unavailable")
    assert int(answer.headers["Retry-After"]) >= 1
    workflows.away = False
    again = await account.post("/v1/notifications", notification(), key="k")
    assert again.status_code == 202
    assert again.json()["replayed"] is True
    assert len(workflows.started) == 1
    row = await parts.accepted.get(account.tenant, workflows.started[0].id)
    assert row is not None
    assert row.started_at is not None


async def test_updates_of_a_temporal_that_is_away_are_503(
    account: Account, workflows: FakeWorkflows
):
    body = {**notification(), "due": {"at": "2035-01-01T09:00:00Z"}}
    url = (await account.post("/v1/reminders", body, key="k")).json()["status_url"]
    workflows.away = True
    assert code_of(await account.post(f"{url}/cancel", {})) == (503, "temporal_unavailable")
    workflows.away = False
    assert (await account.post(f"{url}/cancel", {})).json()["state"] == "cancelled"


async def test_c75_a_campaign_is_paused_and_cancelled_while_temporal_is_away(
    account: Account, api_settings: Settings, parts: Parts
):
    """The row is what senders read; the workflow is told when it can be."""
    id = await running(account, parts)
    away = api_settings.model_copy(
        update={"temporal": api_settings.temporal.model_copy(update={"address": "127.0.0.1:1"})}
    )
    app = create_app(away, answer_within=ON_A_BUSY_MACHINE)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as http,
    ):
        there = dataclasses.replace(account, http=http)
        for what, control in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
            answer = await there.post(f"/v1/campaigns/{id}/{what}", {"reason": "typo"})
            assert (answer.status_code, answer.json()["control"]) == (200, control)
            assert (await parts.campaigns.control(account.tenant, id)).state == control


assert ANSWER_WITHIN <= 1
IN_TIME = ANSWER_WITHIN + 3.5
"""The limit, and what a busy machine adds; below the `ACQUIRE` that a store would wait without one."""
assert IN_TIME < ACQUIRE


class Proxy:
    """Between the API and Postgres: passes everything, until it hangs or is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def hang(self) -> None:
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(database: str) -> AsyncIterator[Proxy]:
    url = httpx.URL(database)
    made = Proxy(url.host, url.port or 5432)
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def impatient(
    account: Account, api_settings: Settings, faked: FakeWorkflows, proxy: Proxy
) -> AsyncIterator[Account]:
    """The same account at an API as it is run: with the product's own time limit, and Postgres behind the proxy."""
    through = httpx.URL(api_settings.postgres_dsn).copy_with(host="127.0.0.1", port=proxy.port)
    app = create_app(api_settings.model_copy(update={"postgres": SecretStr(str(through))}), faked)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
            yield dataclasses.replace(account, http=http)


async def test_a_store_that_hangs_is_503_within_a_second_and_the_same_key_is_safe(
    impatient: Account, workflows: FakeWorkflows, proxy: Proxy
):
    account = impatient
    proxy.hang()
    began = time.monotonic()
    answers = await asyncio.gather(
        *(account.post("/v1/notifications", notification(), key="k") for _ in range(3)),
        account.get("/v1/recipients/r-1"),
        account.put("/v1/recipients/r-1", {"locale": "de"}),
        account.get("/v1/campaigns"),
        account.put("/v1/lists/all", {}),
        account.get("/v1/dead-letters"),
    )
    took = time.monotonic() - began
    assert {code_of(answer) for answer in answers} == {(503, "store_unavailable")}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers)
    assert took < IN_TIME
    assert workflows.started == []
    ready = await account.http.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")

    proxy.go_on()
    again = await _once_it_is_back(account)
    assert again.status_code == 202
    assert len(workflows.started) == 1


async def _once_it_is_back(account: Account) -> httpx.Response:
    """As a client does it: what `Retry-After` says, with the same key."""
    async with asyncio.timeout(60):
        answer = await account.post("/v1/notifications", notification(), key="k")
        while answer.status_code == 503:
            await asyncio.sleep(float(answer.headers["Retry-After"]))
            answer = await account.post("/v1/notifications", notification(), key="k")
    return answer


async def test_it_is_alive_and_ready_and_redis_down_only_degrades_it(
    account: Account, make_settings: MakeSettings, database: str, workflows: FakeWorkflows
):
    assert (await account.http.get("/healthz")).json()["status"] == "ok"
    ready = await account.http.get("/readyz")
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ok", "checks": {"postgres": "ok", "redis": "ok"}},
    )
    app = create_app(make_settings(postgres=database), workflows)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
            degraded = await http.get("/readyz")
    assert degraded.status_code == 200
    assert degraded.json()["status"] == "degraded"
    assert "Redis" in degraded.json()["checks"]["redis"]


async def test_temporal_is_asked_by_readiness_and_an_unreachable_one_is_503_in_time(
    make_settings: MakeSettings, database: str, valkey: str
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        app = create_app(
            make_settings(postgres=database, redis=valkey, temporal={"address": address})
        )
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
                began = time.monotonic()
                ready = await http.get("/readyz")
                assert time.monotonic() - began < IN_TIME
    assert ready.status_code == 503
    assert "Temporal" in ready.json()["checks"]["temporal"]


async def test_it_starts_while_postgres_is_away_and_says_so(
    make_settings: MakeSettings, valkey: str, workflows: FakeWorkflows
):
    app = create_app(make_settings(redis=valkey), workflows)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
            assert (await http.get("/healthz")).status_code == 200
            ready = await http.get("/readyz")
            answer = await http.get(
                "/v1/categories", headers={"Authorization": "Bearer sl_live_t_k_s"}
            )
    assert ready.status_code == 503
    assert code_of(answer) == (503, "store_unavailable")


async def test_c38_an_older_schema_stops_it_with_the_command_that_helps(
    make_settings: MakeSettings, empty_database: str, valkey: str, workflows: FakeWorkflows
):
    app = create_app(make_settings(postgres=empty_database, redis=valkey), workflows)
    with pytest.raises(SchemaTooOld, match="sendloom migrate"):
        async with app.router.lifespan_context(app):
            pass


def test_c38_a_misspelt_or_missing_setting_stops_it_and_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
):
    monkeypatch.setenv("SENDLOOM_HOME", str(tmp_path))
    monkeypatch.setenv("SENDLOOM_REDSI", "redis://127.0.0.1:1/0")
    with pytest.raises(
        ConfigurationError, match=r"SENDLOOM_REDSI is not a setting.*SENDLOOM_REDIS"
    ):
        create_app()
    monkeypatch.delenv("SENDLOOM_REDSI")
    with pytest.raises(ConfigurationError, match="SENDLOOM_POSTGRES is required"):
        create_app()
    with pytest.raises(ConfigurationError):
        load_settings({"SENDLOOM_HOME": str(tmp_path)})


async def test_metrics_count_refusals_by_code_and_requests_by_route_template(account: Account):
    await account.get("/v1/recipients/r-1")
    nobody = f"nobody-{uuid4().hex}"
    await account.get(f"/v1/recipients/{nobody}")
    text = (await account.http.get("/metrics")).text
    assert 'route="/v1/recipients/{recipient_id}"' in text
    assert 'problem="not_found"' in text
    assert nobody not in text
    assert account.tenant not in text
