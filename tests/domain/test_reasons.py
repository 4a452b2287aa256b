"""Every reason is explained where people look for it."""

from pathlib import Path

from sendloom.domain.reasons import EXPLANATIONS

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_reasons_in_the_terminology_are_those_of_the_code():
    written = (ROOT / "docs" / "terminology.md").read_text(encoding="utf-8")
    for reason, explanation in EXPLANATIONS.items():
        assert f"| `{reason}` | {explanation} |" in written
