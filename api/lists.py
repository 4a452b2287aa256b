"""Lists: named audiences, uploaded in chunks that may come in any order and more than once."""

import asyncio
import hashlib
from collections.abc import Iterable
from itertools import chain
from typing import Annotated
from uuid import UUID, uuid5

from fastapi import APIRouter, Path, Query, Request

from api.auditing import audited
from api.auth import Caller
from api.deps import Campaigner, CampaignReader, IdempotencyKey, Parts, PartsDep
from api.timing import timely, within
from schemas.api import (
    NAME,
    CategoryName,
    ChunkAnswer,
    ChunkSummary,
    LineError,
    ListAnswer,
    ListRequest,
    VersionAnswer,
    VersionRequest,
)
from sendloom.domain import list_lines
from sendloom.domain.csv_lines import CsvParser
from sendloom.domain.ids import NAMESPACE
from sendloom.domain.list_lines import ListRow, NdjsonParser, Parsed, Reading
from sendloom.errors import Refusal
from sendloom.ports import WRITTEN, ListVersion
from sendloom.rows import ChunkRecord

router = APIRouter(prefix="/v1/lists", tags=["lists"])

ListId = Annotated[str, Path(pattern=NAME)]
ERRORS_SHOWN = 100
CHUNKS_MAX = 100_000
_BOM = b"\xef\xbb\xbf"
_MEDIA = {
    "csv": frozenset({"text/csv", "application/octet-stream"}),
    "ndjson": frozenset({"application/x-ndjson", "application/jsonl", "application/octet-stream"}),
}


@router.put("/{list_id}")
@timely
async def put(
    list_id: ListId, body: ListRequest, caller: Campaigner, parts: PartsDep
) -> ListAnswer:
    """Create one, or rename it."""
    await parts.lists.create(caller.id, list_id, body.name)
    return await _shown(parts, caller, list_id)


@router.get("/{list_id}")
@timely
async def show(list_id: ListId, caller: CampaignReader, parts: PartsDep) -> ListAnswer:
    """A list, and the version that a campaign would get."""
    return await _shown(parts, caller, list_id)


async def _shown(parts: Parts, caller: Caller, list_id: str) -> ListAnswer:
    found = await parts.lists.get(caller.id, list_id)
    if found is None:
        raise Refusal("not_found", f"there is no list {list_id}", status=404)
    return ListAnswer(list_id=found.list_id, name=found.name, current_version=found.current_version)


@router.post("/{list_id}/versions", status_code=201)
@timely
async def start_version(
    list_id: ListId,
    body: VersionRequest,
    caller: Campaigner,
    parts: PartsDep,
    key: IdempotencyKey,
) -> VersionAnswer:
    """Begin an upload. The same key finds the same upload again, which is how one is resumed."""
    await _shown(parts, caller, list_id)
    name = "".join(f"{len(part)}:{part}" for part in ("list", caller.id, list_id, key))
    version_id = uuid5(NAMESPACE, name)
    version = await parts.lists.start_version(caller.id, list_id, version_id, body.format)
    if version.format != body.format:
        raise Refusal(
            "key_reused",
            "this idempotency key began an upload of another format",
            field="Idempotency-Key",
            status=409,
        )
    return await _version(parts, caller, version)


@router.put(
    "/{list_id}/versions/{version_id}/chunks/{chunk}",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        }
    },
)
async def put_chunk(
    request: Request,
    list_id: ListId,
    version_id: UUID,
    chunk: Annotated[int, Path(ge=0, lt=CHUNKS_MAX)],
    caller: Campaigner,
    parts: PartsDep,
    first_line: Annotated[
        int | None,
        Query(ge=1, description="Where its first line (after a CSV header) is in the whole file."),
    ] = None,
    consent_categories: Annotated[
        str, Query(max_length=1000, description="For consents that name no category; with commas.")
    ] = "",
) -> ChunkAnswer:
    """Whole lines, at most 8 MiB. A bad line is an error with its number; the others stand. A repeat changes nothing.

    NDJSON: `{"recipient_id", "email", "phone", "locale", "zone", "consent", "variables"}` a line. CSV: every chunk begins with
    the header line; columns of the same names, and every other column is a variable.
    """
    version = await _uploaded(parts, caller, list_id, version_id)
    _require_media(request, version.format)
    data = await request.body()
    sha256 = hashlib.sha256(data).digest()
    known = await parts.lists.chunk(caller.id, version_id, chunk)
    if known is not None and known.sha256 == sha256:
        return _chunk(known, replayed=True)
    first = first_line or (2 if version.format == "csv" else 1)
    reading = Reading(
        default_region=caller.tenant.default_region,
        consent_categories=_categories(consent_categories),
    )
    rows, errors = await asyncio.to_thread(_parse, data, version.format, first, reading)
    record = await parts.lists.add_chunk(
        caller.id,
        version_id,
        chunk,
        sha256,
        first,
        len(rows) + len(errors),
        rows,
        [
            {"line": e.line, "column": e.column, "code": e.code, "detail": e.detail}
            for e in errors[:ERRORS_SHOWN]
        ],
    )
    return _chunk(record, replayed=record.replayed)


def _require_media(request: Request, format: str) -> None:
    media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media not in _MEDIA[format]:
        raise Refusal(
            "unsupported_media_type",
            f"this upload is {format}",
            field="Content-Type",
            fix=f"Send one of {', '.join(sorted(_MEDIA[format]))}.",
            status=415,
        )


def _categories(text: str) -> tuple[CategoryName, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _parse(
    data: bytes, format: str, first_line: int, reading: Reading
) -> tuple[list[ListRow], list[list_lines.LineError]]:
    data = data.removeprefix(_BOM)
    parsed: Iterable[Parsed]
    if format == "csv":
        # The header stands before the first line.
        csv = CsvParser(reading, line=max(first_line - 2, 0))
        parsed = chain(csv.feed(data), csv.close())
    else:
        ndjson = NdjsonParser(reading, line=first_line - 1)
        parsed = chain(ndjson.feed(data), ndjson.close())
    rows: list[ListRow] = []
    errors: list[list_lines.LineError] = []
    for one in parsed:
        if isinstance(one, ListRow):
            rows.append(one)
        else:
            errors.append(one)
    return rows, errors


def _chunk(record: ChunkRecord, *, replayed: bool) -> ChunkAnswer:
    return ChunkAnswer(
        chunk=record.chunk,
        first_line=record.first_line,
        lines=record.lines,
        accepted=record.accepted,
        rejected=record.lines - record.accepted,
        errors=[LineError.model_validate(error) for error in record.errors],
        replayed=replayed,
    )


@router.post("/{list_id}/versions/{version_id}/ready")
async def make_ready(
    list_id: ListId, version_id: UUID, caller: Campaigner, parts: PartsDep
) -> VersionAnswer:
    """No more chunks: fix the order, for ever. An upload without one good line has failed."""
    await _uploaded(parts, caller, list_id, version_id)
    chunks = await parts.lists.chunks(caller.id, version_id)
    missing = sorted(set(range(len(chunks))) - {c.chunk for c in chunks})
    if missing:
        raise Refusal(
            "chunk_missing", f"chunk {missing[0]} was not uploaded", field="chunk", status=409
        )
    version = await parts.lists.make_ready(caller.id, version_id)
    await audited(parts, caller, "list.ready", f"{list_id}/{version_id}", size=version.size)
    return await _version(parts, caller, version)


@router.get("/{list_id}/versions/{version_id}")
@timely
async def show_version(
    list_id: ListId, version_id: UUID, caller: CampaignReader, parts: PartsDep
) -> VersionAnswer:
    """How far an upload is, which chunks it has, and which lines were left out."""
    return await _version(parts, caller, await _find(parts, caller, list_id, version_id))


async def _find(parts: Parts, caller: Caller, list_id: str, version_id: UUID) -> ListVersion:
    version = await within(parts.lists.version(caller.id, version_id))
    if version is None or version.list_id != list_id:
        raise Refusal(
            "not_found", f"there is no version {version_id} of list {list_id}", status=404
        )
    return version


async def _uploaded(parts: Parts, caller: Caller, list_id: str, version_id: UUID) -> ListVersion:
    """One that callers fill; what a launch writes is nobody else's to add to or to end."""
    version = await _find(parts, caller, list_id, version_id)
    if version.format == WRITTEN:
        raise Refusal(
            "version_closed", "this list version is written by its campaign's launch", status=409
        )
    return version


async def _version(parts: Parts, caller: Caller, version: ListVersion) -> VersionAnswer:
    chunks = await parts.lists.chunks(caller.id, version.version_id)
    errors = [LineError.model_validate(e) for c in chunks for e in c.errors]
    return VersionAnswer(
        list_id=version.list_id,
        version_id=version.version_id,
        state=version.state,
        format=version.format,
        size=version.size,
        rejected=sum(c.lines - c.accepted for c in chunks),
        reason=version.reason,
        created_at=version.created_at,
        chunks=tuple(
            ChunkSummary(
                chunk=c.chunk,
                sha256=c.sha256.hex(),
                first_line=c.first_line,
                lines=c.lines,
                accepted=c.accepted,
            )
            for c in chunks
        ),
        errors=tuple(sorted(errors, key=lambda e: e.line)[:ERRORS_SHOWN]),
    )
