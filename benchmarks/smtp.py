"""How many mails a second one process hands to Postfix's `smtp-sink`: the pipelined client, the one-at-a-time client, `smtp-source`.

    python -m benchmarks.smtp [--messages 50000] [--connections 10]

The last line is one JSON object. `cpu` figures are this process's CPU only, so they hold on a busy machine, too.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import uvloop

from benchmarks.mime import ENGLISH, a_mail
from schemas.kinds import MessageClass
from sendloom.ports import WireMail
from sendloom.providers.mime import Skeleton, stuff
from sendloom.providers.smtp import SmtpProvider
from sendloom.providers.smtp_pipeline import PipelineMailer
from sendloom.providers.smtp_session import SmtpAccount

CHUNK = 100
BATCHES_AT_ONCE = 4
DATE = datetime(2027, 3, 1, 9, 30, tzinfo=UTC)


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def sink() -> Iterator[int]:
    """`smtp-sink` on a free port."""
    command = _tool("smtp-sink")
    if command is None:
        raise SystemExit("smtp-sink is not installed (Debian: apt-get install postfix)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with subprocess.Popen([command, *user, f"127.0.0.1:{port}", "1000"]) as process:
        try:
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


def mails(count: int) -> list[WireMail]:
    skeleton = Skeleton(from_address="news@example.com", from_name="Example News")
    return [
        WireMail(
            f"dlv_{n}",
            "bounces@example.com",
            f"alex{n}@example.com",
            stuff(
                skeleton.fill(
                    to_address=f"alex{n}@example.com",
                    message_id=f"<{n:032}@example.com>",
                    date=DATE,
                    reference=f"dlv_{n}",
                    subject=f"Your news, {n}",
                    text=ENGLISH.text.replace("{{name}}", "Alex"),
                )
            ),
        )
        for n in range(count)
    ]


async def pipelined(port: int, count: int, connections: int) -> int:
    """Chunks as a campaign sends them, some at once."""
    mailer = PipelineMailer(SmtpAccount(host="127.0.0.1", port=port), connections=connections)
    wire = mails(count)
    chunks = iter([wire[n : n + CHUNK] for n in range(0, count, CHUNK)])
    taken = 0

    async def sender() -> None:
        nonlocal taken
        for chunk in chunks:
            outcomes = await mailer.send_batch(chunk, MessageClass.MARKETING, may_call=lambda: True)
            taken += sum(outcome.kind == "accepted" for outcome in outcomes)

    await asyncio.gather(*(sender() for _ in range(BATCHES_AT_ONCE)))
    await mailer.close()
    return taken


async def one_at_a_time(port: int, count: int, connections: int) -> int:
    provider = SmtpProvider(SmtpAccount(host="127.0.0.1", port=port), pool_size=connections)
    mail = a_mail(ENGLISH)
    left = iter(range(count))
    taken = 0

    async def sender() -> None:
        nonlocal taken
        for _ in left:
            outcome = await provider.send(mail, MessageClass.TRANSACTIONAL)
            taken += outcome.kind == "accepted"

    await asyncio.gather(*(sender() for _ in range(connections)))
    await provider.close()
    return taken


def measure(
    send: Callable[[int, int, int], Awaitable[int]], count: int, connections: int
) -> dict[str, float]:
    with sink() as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        wall, cpu = time.perf_counter(), time.process_time()

        async def run() -> int:
            return await send(port, count, connections)

        taken = runner.run(run())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if taken != count:
        raise SystemExit(f"{count - taken} of {count} were not taken")
    return {"per_second": round(count / wall), "per_cpu_second": round(count / cpu)}


def smtp_source(count: int, connections: int) -> dict[str, float]:
    command = _tool("smtp-source")
    if command is None:
        return {}
    with sink() as port:
        start = time.perf_counter()
        subprocess.run(
            [
                command,
                "-d",
                "-s",
                str(connections),
                "-l",
                "2300",
                "-m",
                str(count),
                f"127.0.0.1:{port}",
            ],
            check=True,
        )
        return {"per_second": round(count / (time.perf_counter() - start))}


def main() -> None:
    parser = argparse.ArgumentParser(description="SMTP clients against smtp-sink")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--connections", type=int, default=10)
    options = parser.parse_args()
    figures = {
        "smtp_source": smtp_source(options.messages, options.connections),
        "pipelined": measure(pipelined, options.messages, options.connections),
        "one_at_a_time": measure(one_at_a_time, options.messages // 20, options.connections),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
