"""What an operator reads of a part that ended."""

from pathlib import Path

from sendloom.embedded.parts import tail


def test_the_end_of_a_log_is_readable(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text(
        "started\n"
        '{"level": "error", "message": "cannot go on", "trace": "Traceback\\n  File x\\nKeyError: 1\\n"}\n'
        '{"level": "info", "message": "stopped"}\n'
        "[1, 2]\n"
    )
    assert tail(log, 3) == "error cannot go on: KeyError: 1\ninfo stopped\n[1, 2]"
    assert tail(log).startswith("started\n")


def test_a_log_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    assert "cannot be read" in tail(tmp_path / "none.log")
