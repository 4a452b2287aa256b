"""Segments on the command line."""

import json
from pathlib import Path

from tests.cli.conftest import Sendloom


def test_a_segment_is_put_looked_at_and_deleted(sendloom: Sendloom, tmp_path: Path):
    file = tmp_path / "segment.json"
    definition = {"attribute": "cli-plan", "eq": "pro"}
    file.write_text(json.dumps(definition))
    made = sendloom.json("segment", "put", "cli-pro", str(file), "--name", "Pro")
    assert (made["name"], made["version"], made["definition"]) == ("Pro", 1, definition)
    assert sendloom.json("segment", "show", "cli-pro")["definition"] == definition
    assert "cli-pro" in sendloom("segment", "list").stdout
    looked = sendloom.json("segment", "preview", str(file))
    assert (looked["members"], looked["complete"]) == (0, True)
    assert sendloom("segment", "delete", "cli-pro").exit_code == 0
    assert sendloom("segment", "show", "cli-pro").exit_code == 1


def test_a_file_that_is_no_segment_is_refused_with_its_place(sendloom: Sendloom, tmp_path: Path):
    file = tmp_path / "segment.json"
    file.write_text('{"any": []}')
    refused = sendloom("segment", "put", "cli-bad", str(file))
    assert refused.exit_code == 1
    assert "definition.any" in refused.stderr
    file.write_text("[")
    assert "not JSON" in sendloom("segment", "put", "cli-bad", str(file)).stderr
