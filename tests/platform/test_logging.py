"""The net under the log: what must not be there is not there, whatever was logged (TEN-4, PASS-5)."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendloom.platform import logging as ours
from sendloom.platform.sealing import KeyRing

CODE = "QWERTYUIOPAS"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger with our formatter, apart from the root's handlers."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ours.JsonFormatter("test"))
    logger = logging.getLogger("sendloom.tests.redaction")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield logger, stream
    logger.removeHandler(handler)


def read(stream: io.StringIO) -> dict[str, Any]:
    [line] = stream.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_a_record_is_one_line_of_json_with_its_fields(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = log
    logger.info(
        "a part ended", extra={"part": "api", "exit": 1, "took": 0.5, "reason": "quiet_hours"}
    )
    line = read(stream)
    assert line["message"] == "a part ended"
    assert (line["level"], line["process"], line["logger"]) == ("info", "test", logger.name)
    assert (line["part"], line["exit"], line["took"], line["reason"]) == (
        "api",
        1,
        0.5,
        "quiet_hours",
    )


@pytest.mark.parametrize(
    "leak",
    [
        "zoë.o'neil+tag@mail.example.com",
        "user@xn--exmple-cua.example.com",
        "user@exämple.com",
        "+12025550123",
        "+1 202 555 0123",
        "+44 (0)20 7946 0958",
    ],
)
def test_an_address_or_number_is_hidden_wherever_it_stands(
    leak: str, log: tuple[logging.Logger, io.StringIO]
) -> None:
    logger, stream = log
    try:
        raise ValueError(f"cannot send to {leak}")
    except ValueError:
        logger.exception("sending to %s, or <%s>", leak, leak, extra={"hint": [leak, {"at": leak}]})
    written = stream.getvalue()
    for part in (leak, json.dumps(leak)[1:-1], leak.partition("@")[0]):
        assert part not in written
    assert ours.HIDDEN in read(stream)["message"]


@pytest.mark.parametrize(
    "field", ["code", "passcode", "token", "address", "variables", "Authorization"]
)
def test_a_field_of_that_name_is_never_shown(
    field: str, log: tuple[logging.Logger, io.StringIO]
) -> None:
    logger, stream = log
    logger.info("x", extra={field: CODE, "nested": {"deeper": [{field: CODE}]}})
    assert CODE not in stream.getvalue()
    assert read(stream)[field] == ours.HIDDEN


def test_sealed_values_are_only_counted(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    sealed = KeyRing({"k": bytes(32)}).seal(b"x", purpose="p", tenant="t")
    logger.info("x", extra={"value": sealed})
    assert read(stream)["value"] == f"[{len(sealed)} bytes]"


def test_what_a_library_quotes_in_its_error_is_hidden(
    log: tuple[logging.Logger, io.StringIO],
) -> None:
    class Body(pydantic.BaseModel):
        digits: int

    logger, stream = log
    try:
        Body.model_validate({"digits": CODE})
    except pydantic.ValidationError:
        logger.exception("refused")
    assert "input_type=str" in read(stream)["trace"]  # the quoting did happen
    assert CODE not in stream.getvalue()


def test_the_password_in_a_url_is_hidden() -> None:
    text = ours.redact_text("cannot open postgresql://sendloom:hunter2@127.0.0.1:5432/sendloom")
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "harmless",
    [
        "notification/6f1d2c3a-0000-4000-8000-000000000000",
        "2026-03-29T01:30:00+00:00",
        "send-sms-security took 12.5 ms",
        "http://127.0.0.1:8080/readyz",
        "+3 more",
    ],
)
def test_what_an_operator_needs_stays(harmless: str) -> None:
    assert ours.redact_text(harmless) == harmless


@given(
    st.recursive(
        st.none() | st.text() | st.binary() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_no_value_can_break_a_line(value: object) -> None:
    record = logging.makeLogRecord({"msg": "x", "value": value})
    assert json.loads(ours.JsonFormatter("test").format(record))["message"] == "x"
