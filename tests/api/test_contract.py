"""What is published is what is served, and every refusal in the code is one that callers can look up."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import app as application
from api.errors import PROBLEMS, markdown
from api.openapi import FILE, document

ROOT = Path(__file__).resolve().parents[2]
WITH_CODES = ("api", "activities", "sendloom/domain", "sendloom/stores")


def test_the_openapi_document_is_the_one_checked_in():
    assert FILE.read_text(encoding="utf-8") == document(), "run `python -m api.openapi --write`"


def test_the_list_of_errors_is_the_one_checked_in():
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert written == markdown(), "run `python -m api.errors --write`"


def codes_in(file: Path) -> Iterator[str]:
    """Every code that a `Refusal`, or `problem(…)`, is made with in one file."""
    names = {"Refusal", "Limited", "problem", "RenderError"}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        is_super = isinstance(called, ast.Attribute) and called.attr == "__init__"
        if (name in names or is_super) and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def test_every_code_is_documented():
    used = {
        code
        for folder in WITH_CODES
        for file in (ROOT / folder).rglob("*.py")
        for code in codes_in(file)
    }
    assert len(used) > 50
    assert used - PROBLEMS.keys() == set()


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_problem_says_what_to_do(code: str):
    kind = PROBLEMS[code]
    assert 400 <= kind.status < 600
    assert kind.title
    assert kind.fix.endswith(".")


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does():
    paths = application.describe()["paths"]
    operations = [operation for path in paths.values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    assert all(operation.get("description") for operation in operations)


def test_every_create_needs_an_idempotency_key():
    paths = application.describe()["paths"]
    for path in ("notifications", "passcodes", "reminders", "campaigns"):
        headers = [p["name"] for p in paths[f"/v1/{path}"]["post"]["parameters"]]
        assert "Idempotency-Key" in headers
