"""Over a real socket, as `sendloom api` serves it: a huge upload is refused before it has arrived (case C94)."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest_asyncio
import uvicorn
from fastapi import FastAPI

from tests.api.conftest import Account, notification
from tests.api.test_lists import start

HUGE = 200 * 1024 * 1024


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@pytest_asyncio.fixture(loop_scope="module")
async def address(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    # The fixture's own lifespan has put the parts together.
    server = Server(uvicorn.Config(app, lifespan="off", log_config=None, http="httptools"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.wait_for(server.listening.wait(), 60)
        yield listening.getsockname()
        server.should_exit = True
        await serving


async def upload(
    address: tuple[str, int], path: str, headers: dict[str, str], announce: bool
) -> tuple[int, bytes, int]:
    """Sends up to 200 MB and stops as soon as there is an answer; (status, body, bytes that were taken)."""
    reader, writer = await asyncio.open_connection(*address)
    lines = [f"PUT {path} HTTP/1.1", "Host: t", *(f"{k}: {v}" for k, v in headers.items())]
    lines.append(f"Content-Length: {HUGE}" if announce else "Transfer-Encoding: chunked")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    block, sent = b"x" * 65536, 0
    while not answer.done() and sent < HUGE:
        writer.write(block if announce else b"10000\r\n" + block + b"\r\n")
        sent += len(block)
        try:
            await writer.drain()
        except OSError:
            break
        await asyncio.sleep(0)
    head = (await answer).decode()
    length = next(
        int(line.partition(":")[2])
        for line in head.splitlines()
        if line.lower().startswith("content-length:")
    )
    body = await reader.readexactly(length)
    writer.close()
    return int(head.split()[1]), body, sent


async def test_two_hundred_megabytes_are_refused_early_with_how_to_chunk_them(
    account: Account, address: tuple[str, int]
):
    path = f"{await start(account)}/chunks/0"
    headers = {**account.headers, "Content-Type": "application/x-ndjson"}
    for announce in (True, False):
        status, body, sent = await upload(address, path, headers, announce)
        problem = json.loads(body)
        assert (status, problem["code"]) == (413, "body_too_large")
        assert "chunks of at most 8 MiB" in problem["fix"]
        # What the sockets' buffers hold, and no more.
        assert sent < HUGE / 4


async def test_it_serves_what_the_application_answers(account: Account, address: tuple[str, int]):
    url = f"http://{address[0]}:{address[1]}"
    async with httpx.AsyncClient(base_url=url, headers=account.headers) as http:
        answer = await http.post(
            "/v1/notifications", json=notification(), headers={"Idempotency-Key": "k"}
        )
        assert answer.status_code == 202
        assert (await http.get(answer.json()["status_url"])).json()["state"] == "pending"
