"""JSON log lines, with a net under them: what looks like an address, a code or a secret never reaches the file.

The net is the second line of defence. The first is that nothing of the kind is logged: log ids.
"""

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Final, TextIO

HIDDEN: Final = "[hidden]"

_SECRET_FIELDS = frozenset(
    [
        "address",
        "addresses",
        "api_key",
        "authorization",
        "auth_token",
        "body",
        "code",
        "codes",
        "dsn",
        "email",
        "from_address",
        "key",
        "password",
        "passcode",
        "payload",
        "phone",
        "recipient_address",
        "rendered",
        "sealed",
        "secret",
        "subject",
        "text",
        "to",
        "to_address",
        "token",
        "variables",
    ]
)
_EMAIL = re.compile(r"[^\s<>\"'(),:;=\[\]{}]+@[A-Za-z0-9\u00a1-\uffff][A-Za-z0-9.\u00a1-\uffff-]*")
_PHONE = re.compile(r"\+\d(?:[ ().\-]{0,2}\d){6,14}")
# Where libraries quote what they were given: pydantic's errors, Postgres's details, URLs with credentials.
_QUOTED = re.compile(
    r"(?<=input_value=).*?(?=, input_type=)|(?<=DETAIL: ).*|(?<=://)[^\s/@:]*:[^\s/@]*(?=@)"
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ECHO_LIMIT = 4096
_DEPTH = 4


class JsonFormatter(logging.Formatter):
    """One record, one line, `extra` fields beside the message."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": redact_text(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in line:
                line[name] = redact(value, name)
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = record.exc_info[1].__class__.__name__
            trace = "".join(traceback.format_exception(*record.exc_info))
            line["trace"] = redact_text(trace[-_ECHO_LIMIT:])
        return json.dumps(line)


def redact(value: object, name: str = "", depth: int = 0) -> object:
    """The value as it may be shown under that field name."""
    if name.lower() in _SECRET_FIELDS:
        return HIDDEN
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return redact_text(value[:_ECHO_LIMIT])
        case bytes() | bytearray() | memoryview():
            return f"[{len(value)} bytes]"
        case dict() if depth < _DEPTH:
            return {str(k): redact(v, str(k), depth + 1) for k, v in value.items()}
        case list() | tuple() | set() | frozenset() if depth < _DEPTH:
            return [redact(v, "", depth + 1) for v in value]
        case _:
            return redact_text(str(value)[:_ECHO_LIMIT])


def redact_text(text: str) -> str:
    """Free text without what looks like an address, a number or a quoted input."""
    # The plain substring tests keep the usual line at no cost.
    if "input_value=" in text or "DETAIL: " in text or "://" in text:
        text = _QUOTED.sub(HIDDEN, text)
    if "@" in text:
        text = _EMAIL.sub(HIDDEN, text)
    if "+" in text:
        text = _PHONE.sub(HIDDEN, text)
    return text


def configure(process: str, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Every logger of this process writes JSON lines to `stream` (stderr). Call once, first."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # One line a request or a call: metrics say it better.
    for noisy in ("httpx", "httpcore", "uvicorn.access", "aiosmtplib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
