"""`sendloom worker` as a process of its own."""

import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from sendloom.embedded.ports import free_port
from sendloom.settings import Settings, known_settings

ROOT = Path(__file__).parents[2]


def environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables; secrets revealed, as an operator would set them."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SENDLOOM_")}
    for name in known_settings():
        value: object = settings
        for part in name.removeprefix("SENDLOOM_").lower().split("__"):
            value = getattr(value, part)
        if value is None:
            continue
        reveal = getattr(value, "get_secret_value", None)
        plain = reveal() if reveal else value
        if isinstance(plain, bytes):
            plain = base64.b64encode(plain).decode()
        env[name] = str(plain)
    return env


class Worker:
    """One process and what it wrote."""

    def __init__(self, env: Mapping[str, str], *arguments: str) -> None:
        self._env = env
        self._arguments = arguments
        self.port = free_port()

    async def __aenter__(self) -> "Worker":
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sendloom.cli", "worker", *self._arguments),
            *("--health-port", str(self.port)),
            env=dict(self._env),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def ended(self, seconds: float = 60) -> tuple[int, str]:
        out, _ = await asyncio.wait_for(self.process.communicate(), seconds)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode()

    async def not_ready(self, seconds: float = 60) -> str:
        """Why, once it has got further than to start."""
        async with asyncio.timeout(seconds), httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await http.get(f"http://127.0.0.1:{self.port}/readyz")
                    if answer.status_code == 503 and "starting" not in answer.text:
                        return answer.text
                await asyncio.sleep(0.05)

    async def ready(self, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds), httpx.AsyncClient() as http:
            while self.process.returncode is None:
                try:
                    if (await http.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(await self.ended())
