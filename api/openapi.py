"""The published contract: `python -m api.openapi --write` writes docs/openapi.json; a test compares the two."""

import json
import sys
from pathlib import Path

from api.app import describe

FILE = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def document() -> str:
    return json.dumps(describe(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(document(), encoding="utf-8")
    else:
        sys.stdout.write(document())
