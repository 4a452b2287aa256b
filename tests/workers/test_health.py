"""The three paths a worker process answers."""

import asyncio
import contextlib
import socket

import httpx
import pytest

from sendloom.errors import ConfigurationError
from sendloom.platform.metrics import delivery  # noqa: F401 - a metric is there once it is imported
from workers.health import Health, listening


async def get(port: int, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.request(method, f"http://127.0.0.1:{port}{path}")


async def test_it_is_ready_from_when_it_serves_until_it_drains():
    health = Health()
    async with listening(health, 0) as port:
        assert (await get(port, "/readyz")).status_code == 503
        assert (await get(port, "/readyz")).text == "starting\n"
        health.ready()
        assert (await get(port, "/readyz")).status_code == 200
        health.draining()
        answer = await get(port, "/readyz")
        assert (answer.status_code, answer.text) == (503, "draining\n")
        # Draining is no reason to kill it.
        assert (await get(port, "/livez")).status_code == 200
        assert (await get(port, "/healthz")).status_code == 200


async def test_metrics_are_in_prometheus_form():
    async with listening(Health(), 0) as port:
        answer = await get(port, "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "sendloom_provider_calls_total" in answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/readyz", 405),
        ("HEAD", "/livez", 200),
        ("GET", "/livez?x", 200),
    ],
)
async def test_anything_else_is_refused(method, path, status):
    async with listening(Health(), 0) as port:
        assert (await get(port, path, method)).status_code == status


async def test_nonsense_on_the_port_hurts_nobody(caplog: pytest.LogCaptureFixture):
    async with listening(Health(), 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01" + b"\xff" * 100_000 + b"\r\n\r\n")
        # Closed in order or reset: it has not read all of it.
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert (await get(port, "/livez")).status_code == 200
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


async def test_a_taken_port_is_a_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="--health-port"):
            async with listening(Health(), taken.getsockname()[1]):
                pass
