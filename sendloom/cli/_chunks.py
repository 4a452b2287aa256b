"""Cutting a list file into chunks of whole lines, always in the same places, so that an upload can go on where it stopped."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

Format = Literal["ndjson", "csv"]

TARGET = 2 * 1024 * 1024
"""Bytes of a chunk: small enough for a progress bar that moves, and for a repeat that costs little."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Chunk:
    number: int
    first_line: int
    """Of the file; the header of a CSV file is line 1 and in every chunk."""
    data: bytes
    ends_at: int
    """How far into the file it reaches."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def format_of(path: Path) -> Format | None:
    """By the name; None when it says nothing."""
    match path.suffix.lower():
        case ".csv" | ".tsv" | ".txt":
            return "csv"
        case ".ndjson" | ".jsonl":
            return "ndjson"
        case _:
            return None


def digest(path: Path) -> str:
    """Names the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chunks(file: BinaryIO, format: Format, target: int = TARGET) -> Iterator[Chunk]:
    """In order. A CSV record with line breaks in its quotes stays in one piece."""
    is_csv = format == "csv"
    records = _records(file, quotes=is_csv)
    header = b""
    line, at = 1, 0
    if is_csv:
        header = next(records, b"")
        at = len(header)
        line += header.count(b"\n")
        header = _ended(header.removeprefix(_BOM))
    number, first_line = 0, line
    held = bytearray()
    for record in records:
        if held and len(header) + len(held) + len(record) > target:
            yield Chunk(number, first_line, header + held, at)
            number, first_line = number + 1, line
            held.clear()
        held += record
        at += len(record)
        line += record.count(b"\n")
    if held or (is_csv and header and number == 0):
        yield Chunk(number, first_line, header + held, at)


def _ended(header: bytes) -> bytes:
    return header if header.endswith(b"\n") or not header else header + b"\n"


def _records(file: BinaryIO, *, quotes: bool) -> Iterator[bytes]:
    held = b""
    for line in file:
        held += line
        if quotes and held.count(b'"') % 2 and held.count(b"\n") < _RECORD_LINES:
            continue
        yield held
        held = b""
    if held:
        yield held


_RECORD_LINES = 50
"""A quote that is never closed is the server's to report, line by line."""
