"""Claims and outcomes a second on Postgres: chunks of 100 and 500 against one row a statement, in the same run.

    python -m benchmarks.claims [--dsn postgresql://…] [--seconds 2]

Without a DSN it starts a server of its own with production's settings and removes it afterwards. The last line is one JSON
object; the ratios are what to compare between machines.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import uvloop

from schemas.kinds import Channel, ClaimState
from sendloom.embedded.parts import running
from sendloom.embedded.ports import free_port
from sendloom.embedded.postgres import EmbeddedPostgres
from sendloom.ports import ClaimResult, ClaimScope, Want, Won
from sendloom.stores.ledger.postgres import PostgresLedger
from sendloom.stores.migrations.runner import migrate
from sendloom.stores.pool import open_pool

SESSIONS = 2
"""Chunks in flight at once, as a marketing lane of two processes has."""
CHUNKS = (1, 100, 500)
LEASE = timedelta(minutes=5)


@dataclass
class Measured:
    """Rows and the seconds they took."""

    claims: int = 0
    claim_seconds: float = 0.0
    record_seconds: float = 0.0

    @property
    def claims_per_second(self) -> float:
        return self.claims / self.claim_seconds

    @property
    def outcomes_per_second(self) -> float:
        return self.claims / self.record_seconds


async def measure(ledger: PostgresLedger, chunk: int, seconds: float) -> Measured:
    """Claims, then records, chunk after chunk, on new rows until the time is up."""
    measured = Measured()
    frozen_at = datetime.now(UTC)

    async def session() -> None:
        owner = uuid4()
        campaign = uuid4()
        until = time.monotonic() + seconds
        page = 0
        while time.monotonic() < until:
            scope = ClaimScope("bench", frozen_at, campaign, 0, page, Channel.EMAIL)
            ids = [f"r{page:06}-{n:03}" for n in range(chunk)]
            began = time.perf_counter()
            answers = await ledger.claim(scope, [Want(id) for id in ids], owner, LEASE)
            claimed = time.perf_counter()
            if not all(isinstance(answer, Won) for answer in answers):
                raise RuntimeError("a new row was not won")
            await ledger.record(
                scope,
                [
                    ClaimResult(
                        id,
                        1,
                        owner,
                        ClaimState.SENT,
                        provider="smtp",
                        provider_message_id=f"<{uuid4().hex}@example.com>",
                    )
                    for id in ids
                ],
            )
            measured.record_seconds += (time.perf_counter() - claimed) / SESSIONS
            measured.claim_seconds += (claimed - began) / SESSIONS
            measured.claims += chunk
            page += 1

    await asyncio.gather(*(session() for _ in range(SESSIONS)))
    return measured


async def run(dsn: str, seconds: float) -> dict[str, float]:
    await migrate(dsn)
    pool = await open_pool(dsn, SESSIONS, "benchmark claims")
    ledger = PostgresLedger(pool)
    result: dict[str, float] = {}
    try:
        await measure(ledger, CHUNKS[-1], seconds / 4)
        for chunk in CHUNKS:
            measured = await measure(ledger, chunk, seconds)
            result[f"claims_per_second_{chunk}"] = round(measured.claims_per_second)
            result[f"outcomes_per_second_{chunk}"] = round(measured.outcomes_per_second)
    finally:
        await pool.execute("DELETE FROM claims WHERE tenant = 'bench'", timeout=60)
        await pool.close()
    for chunk in CHUNKS[1:]:
        for what in ("claims", "outcomes"):
            one = result[f"{what}_per_second_{CHUNKS[0]}"]
            result[f"ratio_{what}_{chunk}"] = round(result[f"{what}_per_second_{chunk}"] / one, 1)
    return result


@contextlib.contextmanager
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sendloom-claims-") as directory:
        home = Path(directory)
        home.chmod(0o755)
        postgres = EmbeddedPostgres(
            directory=home / "postgres", port=free_port(), password=uuid4().hex
        )
        with running(postgres.part(), home / "postgres.log"):
            yield postgres.dsn()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", help="a Postgres of your own; it is migrated")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each chunk size")
    options = parser.parse_args()
    with contextlib.nullcontext(options.dsn) if options.dsn else server() as dsn:
        result = uvloop.run(run(dsn, options.seconds))
    for chunk in CHUNKS:
        sys.stdout.write(
            f"{chunk:4} a statement: {result[f'claims_per_second_{chunk}']:>8,.0f} claims/s"
            f" {result[f'outcomes_per_second_{chunk}']:>8,.0f} outcomes/s\n"
        )
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
