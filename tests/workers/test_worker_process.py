"""`sendloom worker` as a process: what stops it, how it drains, and that it says why."""

import asyncio
import signal
import time

import asyncpg
import pytest

from sendloom.embedded.ports import free_port
from sendloom.platform.process import EXIT_CONFIGURATION
from sendloom.settings import Settings
from tests.workers.processes import Worker, environment


async def test_a_worker_gets_ready_and_drains_on_sigterm_with_exit_code_0(settings: Settings):
    async with Worker(environment(settings), "--class", "security") as worker:
        await worker.ready()
        worker.process.send_signal(signal.SIGTERM)
        code, log = await worker.ended()
    assert code == 0, log
    assert '"drained"' in log


class Successor:
    """Next in line for the only place: nobody else is quicker, however often they look."""

    LINE = """SELECT {} FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
               WHERE l.locktype = 'advisory' AND a.datname = current_database() AND {} l.granted"""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def __aenter__(self) -> "Successor":
        self._waits = await asyncpg.connect(self._dsn)
        self._acts = await asyncpg.connect(self._dsn)
        taking = "SELECT pg_advisory_lock(hashtext('sendloom'), hashtext('marketing 0'))"
        self.taken = asyncio.create_task(self._waits.execute(taking))
        async with asyncio.timeout(60):
            while not await self._acts.fetchval(self.LINE.format("count(*)", "NOT")):
                pass
        return self

    async def succeed(self) -> None:
        """Ends the session that holds the place."""
        await self._acts.execute(self.LINE.format("pg_terminate_backend(l.pid)", ""))
        await asyncio.wait_for(self.taken, 60)

    async def __aexit__(self, *_: object) -> None:
        await self._waits.close()
        await self._acts.close()


async def test_a_marketing_process_over_the_ceiling_stands_by_and_one_that_lost_its_place_ends(
    settings: Settings,
):
    """LANE-8, by two real processes."""
    env = environment(settings) | {"SENDLOOM_WORKERS__MARKETING_MOST": "1"}
    async with Worker(env, "--class", "marketing") as first:
        await first.ready()
        async with Worker(env, "--class", "marketing") as second:
            assert "standing by" in await second.not_ready()
            second.process.send_signal(signal.SIGTERM)
            code, log = await second.ended()
        assert code == 0, log
        assert '"serving"' not in log
        await first.ready()
        # It loses its place to somebody else, and serves no longer.
        async with Successor(settings.postgres_dsn) as successor:
            await successor.succeed()
            code, log = await first.ended()
    assert code != 0
    assert "are taken" in log


async def test_c64_an_unknown_namespace_ends_it_at_once_and_says_so(settings: Settings):
    env = environment(settings) | {"SENDLOOM_TEMPORAL__NAMESPACE": "nowhere"}
    began = time.monotonic()
    async with Worker(env, "--class", "security") as worker:
        code, log = await worker.ended()
    assert code == EXIT_CONFIGURATION
    assert "has no namespace `nowhere`" in log
    assert time.monotonic() - began < 30


async def test_c64_an_unreachable_server_ends_it_within_seconds(settings: Settings):
    env = environment(settings) | {
        "SENDLOOM_TEMPORAL__ADDRESS": f"127.0.0.1:{free_port()}",
        "SENDLOOM_TEMPORAL__CONNECT_SECONDS": "2",
    }
    async with Worker(env, "--class", "security") as worker:
        code, log = await worker.ended()
    assert code == EXIT_CONFIGURATION
    assert "SENDLOOM_TEMPORAL__ADDRESS" in log


async def test_c64_a_refused_token_is_not_printed(settings: Settings):
    env = environment(settings) | {
        "SENDLOOM_TEMPORAL__API_KEY": "a-secret-token",
        "SENDLOOM_TEMPORAL__CONNECT_SECONDS": "10",
    }
    async with Worker(env, "--class", "security") as worker:
        code, log = await worker.ended()
    assert code == EXIT_CONFIGURATION
    assert "a-secret-token" not in log


async def test_an_older_schema_ends_it_with_the_command_that_helps(
    settings: Settings, empty_database: str
):
    env = environment(settings) | {"SENDLOOM_POSTGRES": empty_database}
    async with Worker(env, "--class", "security") as worker:
        code, log = await worker.ended()
    assert code == EXIT_CONFIGURATION
    assert "sendloom migrate" in log


async def test_a_missing_setting_is_named(settings: Settings):
    env = environment(settings)
    del env["SENDLOOM_POSTGRES"]
    async with Worker(env, "--class", "security") as worker:
        code, log = await worker.ended()
    assert code != 0
    assert "SENDLOOM_POSTGRES is required" in log


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--class"),
        (("--class", "vip"), "vip"),
        (("--lane", "send-fax-security"), "send-fax-security"),
        (("--class", "ops", "--lane", "send-sms-security"), "ops serves no lanes"),
    ],
)
async def test_nonsense_on_the_command_line_is_refused(
    settings: Settings, arguments: tuple[str, ...], says: str
):
    async with Worker(environment(settings), *arguments) as worker:
        code, log = await worker.ended()
    assert code != 0
    assert says in log
