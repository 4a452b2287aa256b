"""Records new histories and fingerprints: `python -m tests.replay.record [--fingerprints | NAME …]`.

A history that is there is never written over: it stands for runs that are open somewhere. Without a name every scenario that
lacks one is recorded. `--fingerprints` writes down the commands of today's code; the diff is for the reviewer.
"""

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path

from temporalio.testing import WorkflowEnvironment

from sendloom.embedded.binaries import beside_python
from sendloom.platform.payloads import data_converter
from sendloom.platform.process import leave
from sendloom.platform.sealing import KeyRing
from tests.replay.fingerprints import fingerprint
from tests.replay.scenarios import SCENARIOS
from tests.workflows.running import register_search_attributes

HERE = Path(__file__).parent
HISTORIES = HERE / "histories"
FINGERPRINTS = HERE / "fingerprints.json"

RING = KeyRing({"test": bytes(range(32))})
"""What the recorded payloads are sealed with; the same as the tests' `ring`."""


_RACED = ("signalled ", "timer", "signal ")

_IDENTITY = re.compile(r'"identity": "[^"]*"')


async def played(
    env: WorkflowEnvironment, name: str
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Histories as JSON, and fingerprints, of one scenario's workflows."""
    scenario = SCENARIOS[name]
    histories: dict[str, str] = {}
    prints: dict[str, list[str]] = {}
    for workflow, handle in (await scenario.play(env)).items():
        history = await handle.fetch_history()
        text = json.dumps(history.to_json_dict(), indent=1, sort_keys=True) + "\n"
        # Process and host of whoever recorded it are nobody's business.
        histories[workflow] = _IDENTITY.sub('"identity": "worker"', text)
        lines = fingerprint(history)
        # Where things happen at once, only what was asked for is the same every time: not its order, nor which signal came
        # before the end or before a timer.
        prints[workflow] = (
            lines
            if scenario.ordered
            else sorted({line for line in lines if not line.startswith(_RACED)})
        )
    return histories, prints


async def record(names: list[str], only_fingerprints: bool) -> int:
    known = json.loads(FINGERPRINTS.read_text()) if FINGERPRINTS.exists() else {}
    written = 0
    async with await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=beside_python("temporal-test-server"),
        data_converter=data_converter(RING),
    ) as env:
        await register_search_attributes(env)
        for name in names or SCENARIOS:
            histories, prints = await played(env, name)
            known |= prints
            for workflow, text in histories.items():
                path = HISTORIES / f"{workflow}.json"
                if only_fingerprints or path.exists():
                    continue
                path.write_text(text)
                written += 1
    FINGERPRINTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--fingerprints", action="store_true", help="write no histories")
    args = parser.parse_args()
    HISTORIES.mkdir(exist_ok=True)
    written = asyncio.run(record(args.names, args.fingerprints))
    sys.stderr.write(f"{written} histories written\n")
    leave(0)


if __name__ == "__main__":
    main()
