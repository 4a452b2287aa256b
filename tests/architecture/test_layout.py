"""The layout is what the documents say: names are ours, layers hold, documents name what exists."""

import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = ("schemas", "workflows", "activities", "workers", "api", "sendloom")


@pytest.mark.parametrize("name", TOP)
def test_the_name_is_ours(name: str) -> None:
    """Generic names collide: other distributions install a top-level `workflows`."""
    owners = set(importlib.metadata.packages_distributions().get(name, ()))
    assert owners <= {"sendloom"}, f"{owners} also installs a top-level package called {name}"
    assert Path(importlib.import_module(name).__file__ or "").is_relative_to(ROOT)


def test_imports_point_inward() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert command is not None, "import-linter is not installed"
    done = subprocess.run([command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_package_is_in_the_distribution() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    there = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for top in TOP
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert there == listed


def test_the_lock_has_a_hash_for_everything_and_no_addresses() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pins = re.findall(r"^[a-z0-9][a-z0-9._-]*(?:\[[^\]]*\])?==", lock, re.MULTILINE)
    assert len(pins) > 50
    assert "://" not in lock
    for block in re.split(r"\n(?=[a-z0-9])", lock):
        assert "--hash=sha256:" in block, block.splitlines()[0]


LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")
DOCUMENTS = sorted(
    p for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"))
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_in_a_document_leads_somewhere(document: Path) -> None:
    broken = [
        to for to in LINK.findall(document.read_text()) if not (document.parent / to).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_path_a_document_names_exists(document: Path) -> None:
    tops = "|".join((*TOP, "docs", "tests", "benchmarks", "deploy", "examples", "temporal-config"))
    named = set(re.findall(rf"`((?:{tops})/[A-Za-z0-9_./-]+\.[a-z]+)`", document.read_text()))
    missing = sorted(
        path
        for path in named
        if not (ROOT / path).exists() and "NNNN" not in path and "acme" not in path
    )
    assert missing == []


def test_adrs_are_numbered_without_gaps() -> None:
    numbers = sorted(int(p.name[:4]) for p in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_make_help_lists_the_words_the_readme_uses() -> None:
    words = {"help", "up", "demo", "down", "test", "check", "bench", "replay"}
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert words <= set(re.findall(r"\b[a-z]+\b", shown))
