"""Every problem document (RFC 9457) there is, and the one place where an exception becomes an answer.

`python -m api.errors --write` writes docs/errors.md from this table; a test compares the two.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sendloom.errors import Refusal, Transient
from sendloom.platform.metrics.http import record_refusal

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:sendloom:problem:"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One row of docs/errors.md. `fix` is said when whoever refused had nothing more exact to say."""

    status: int
    title: str
    fix: str


PROBLEMS: dict[str, ProblemKind] = {
    # Who is asking
    "credentials_missing": ProblemKind(
        401, "No credentials", "Send `Authorization: Bearer sl_…` with an API key."
    ),
    "credentials_invalid": ProblemKind(
        401, "Credentials not valid", "Use a key that exists; make one with `sendloom key create`."
    ),
    "key_expired": ProblemKind(401, "Key expired", "Make a new key with `sendloom key create`."),
    "key_revoked": ProblemKind(401, "Key revoked", "Make a new key with `sendloom key create`."),
    "tenant_disabled": ProblemKind(403, "Tenant disabled", "Ask your operator."),
    "scope_missing": ProblemKind(
        403, "Key may not do this", "Use a key with one of the scopes named in the detail."
    ),
    "category_not_allowed": ProblemKind(
        403, "Key may not use this category", "Use a key that is not limited to other categories."
    ),
    "recipient_not_internal": ProblemKind(
        403,
        "Team keys reach listed people only",
        "Mark the recipient `internal`, or use a live key.",
    ),
    # Finding things
    "not_found": ProblemKind(
        404, "Not found", "Check the id; another tenant's things are not found either."
    ),
    "method_not_allowed": ProblemKind(
        405, "Method not allowed", "See docs/openapi.json for what this resource takes."
    ),
    "unknown_category": ProblemKind(
        422, "Unknown category", "Create it with `PUT /v1/categories/{category}`."
    ),
    "unknown_template": ProblemKind(
        422,
        "Unknown template",
        "Create it with `POST /v1/templates/{template}/versions` and publish it.",
    ),
    "unknown_recipient": ProblemKind(
        422, "Unknown recipient", "Create it with `PUT /v1/recipients/{recipient}`."
    ),
    "unknown_segment": ProblemKind(
        422, "Unknown segment", "Create it with `PUT /v1/segments/{segment}`."
    ),
    "unknown_list": ProblemKind(422, "Unknown list", "Create it with `PUT /v1/lists/{list}`."),
    # The shape of a request
    "body_too_large": ProblemKind(
        413, "Body too large", "Upload audiences in chunks of at most 8 MiB to a list version."
    ),
    "unsupported_media_type": ProblemKind(
        415, "Media type not supported", "Send `application/json` (or what the endpoint says)."
    ),
    "invalid_body": ProblemKind(422, "Body not valid", "Correct the named field."),
    "invalid_parameter": ProblemKind(
        422, "Parameter not valid", "Correct the named path or query parameter."
    ),
    "idempotency_key_missing": ProblemKind(
        400,
        "Idempotency-Key is required",
        "Send `Idempotency-Key` with a value of your own, and the same one when you retry.",
    ),
    "idempotency_key_invalid": ProblemKind(
        400, "Idempotency-Key not valid", "Use 1 to 255 printable ASCII characters."
    ),
    "key_reused": ProblemKind(
        409,
        "Idempotency key reused",
        "Use a new key for a new request; repeat the first body to get the first answer.",
    ),
    "raw_address_refused": ProblemKind(
        422,
        "Raw addresses are refused",
        "Store the address with `PUT /v1/recipients/{recipient}` and name the recipient's id.",
    ),
    "content_refused": ProblemKind(
        422, "Content from the caller is refused", "Put the text into a template and name it."
    ),
    "audience_refused": ProblemKind(
        422,
        "Inline audiences are refused",
        "Upload a list (`PUT /v1/lists/{list}`, then versions and chunks) and name it.",
    ),
    # What a message needs
    "bad_variable": ProblemKind(
        422, "Variable not valid", "Give text or a number; links must be http(s)."
    ),
    "no_usable_channel": ProblemKind(
        422,
        "No usable channel",
        "Give the recipient an address or device on a channel that category and template share.",
    ),
    "ttl_expired": ProblemKind(
        422, "Already expired", "Give a `ttl_seconds` of at least 1, or a later `expires_at`."
    ),
    "bad_ttl": ProblemKind(422, "Time to live too long", "Give a shorter `ttl_seconds`."),
    "security_only": ProblemKind(
        422, "Passcodes need a security category", "Name a category of class security."
    ),
    "marketing_only": ProblemKind(
        422, "Campaigns are marketing only", "Name a category of class marketing."
    ),
    "bad_code": ProblemKind(
        422, "Code not acceptable", "Bring 6 to 32 ASCII letters or digits, or leave `code` out."
    ),
    "no_template": ProblemKind(
        422, "No content for the channel", "Publish a version with a part for this channel."
    ),
    "too_large": ProblemKind(
        422, "Rendered message too large", "Shorten the template or variables."
    ),
    "missing_variable": ProblemKind(
        422, "Variable missing", "Give the variable, or give it a default in the template."
    ),
    # When
    "bad_zone": ProblemKind(
        422, "Not a time zone", "Use an IANA name such as Europe/Paris, not an offset."
    ),
    "bad_locale": ProblemKind(
        422, "Not a language tag", "Use a tag such as pt, pt-BR or zh-Hant-TW."
    ),
    "bad_local_time": ProblemKind(
        422, "Not a local time", "Write it without an offset, for example 2026-01-15T09:00."
    ),
    "bad_window": ProblemKind(422, "Not a window", "Give two different times of day."),
    "due_past": ProblemKind(422, "That moment has passed", "Give a later moment."),
    "unknown_passcode": ProblemKind(404, "Unknown passcode", "Make a new one."),
    "too_late": ProblemKind(
        409, "Too late", "It has left, or ended; GET it to see what became of it."
    ),
    "bad_cron": ProblemKind(422, "Not a schedule", "Write five cron fields."),
    "too_often": ProblemKind(
        422, "Too often", "Give a longer interval, or ask your operator for a shorter least one."
    ),
    "always_quiet": ProblemKind(
        422,
        "Always inside quiet hours",
        "Choose a time outside the recipient's quiet hours, or a transactional category that keeps none.",
    ),
    "cannot_recur": ProblemKind(
        422, "Security messages do not recur", "Name a transactional or marketing category."
    ),
    "schedule_deleted": ProblemKind(409, "Schedule deleted", "Create a new one."),
    "bad_offset": ProblemKind(
        422,
        "Not a duration before the event",
        "Write it as P7D, P1D, PT1H or P1DT12H, each once.",
    ),
    "series_cancelled": ProblemKind(409, "Series cancelled", "Create a new one."),
    # Addresses
    "bad_recipient_id": ProblemKind(
        422, "Not a recipient id", "Use the id your own systems know the person by."
    ),
    "no_address": ProblemKind(422, "Nobody named", "Give a recipient_id, an email or a phone."),
    "bad_address": ProblemKind(
        422,
        "Not an address",
        "Use a deliverable email address, or a phone number with country code.",
    ),
    "blocked_number": ProblemKind(422, "Number never written to", "Use a mobile number."),
    "region_not_allowed": ProblemKind(
        422,
        "Region not allowed",
        "Ask your operator to add the region to the tenant's `sms_regions`.",
    ),
    # Templates
    "bad_template": ProblemKind(
        422, "Template not valid", "Only `{{name}}` is understood; correct the named part."
    ),
    "undeclared_variable": ProblemKind(
        422,
        "Variable not declared",
        "Declare it under `variables`, with a default if it may be missing.",
    ),
    "bad_variable_name": ProblemKind(
        422, "Variable name not valid", "Begin with a letter; use letters, digits and underscores."
    ),
    "bad_default": ProblemKind(422, "Default not valid", "A default is a text."),
    "unsafe_placeholder": ProblemKind(
        422,
        "Placeholder in an unsafe place",
        "Put it into text or a quoted attribute such as href.",
    ),
    "empty_subject": ProblemKind(422, "Subject empty", "An email has a subject."),
    "empty_body": ProblemKind(422, "Text empty", "A message has a text."),
    "unexpected_part": ProblemKind(422, "Part not for this channel", "Leave the named part out."),
    "duplicate_part": ProblemKind(422, "Part given twice", "Give each channel and locale once."),
    "bad_variables": ProblemKind(422, "Variables not valid", "`variables` is an object."),
    "bad_digits": ProblemKind(422, "Digits not valid", "Leave it out for six."),
    "bad_host": ProblemKind(422, "Not a host name", "Write example.com, without scheme or path."),
    "class_is_fixed": ProblemKind(409, "A category's class is fixed", "Use another category name."),
    "bad_policy": ProblemKind(422, "Policy not valid", "Leave `unknown_policy` out."),
    "bad_ladder": ProblemKind(422, "Ladder not valid", "Name each channel once."),
    "bad_cap": ProblemKind(
        422, "Cap not valid", "See `sendloom/domain/frequency.py`: {scope, per, limit}."
    ),
    # Segments and attributes
    "segment_invalid": ProblemKind(
        422,
        "Not a segment",
        "Correct the condition that `field` names; see docs/adr/0006-segments.md.",
    ),
    "segment_too_deep": ProblemKind(
        422, "Segment nested too deep", "Nest conditions at most 8 deep."
    ),
    "segment_too_large": ProblemKind(
        422, "Segment too large", "Use at most 100 conditions and 1,000 values in lists."
    ),
    "segment_empty": ProblemKind(
        409,
        "Nobody is in the segment",
        "Preview it; nobody was in it when the campaign was launched.",
    ),
    "attribute_invalid": ProblemKind(
        422,
        "Attribute not valid",
        "Names are letters, digits, `.`, `_` and `-`; values are strings up to 256 characters, numbers or booleans.",
    ),
    "too_many_attributes": ProblemKind(
        422, "Too many attributes", "Keep at most 64 attributes of a recipient."
    ),
    # Lists
    "list_not_ready": ProblemKind(
        409, "List not ready", "Finish the upload and `POST …/ready`, then send to it."
    ),
    "list_failed": ProblemKind(409, "List failed", "Upload a new version."),
    "list_empty": ProblemKind(409, "List empty", "Upload at least one good line."),
    "version_closed": ProblemKind(
        409,
        "List version is closed",
        "It takes chunks only while `uploading`; start a new version.",
    ),
    "chunk_conflict": ProblemKind(
        409,
        "Chunk number used for other bytes",
        "Number chunks by their place in the file, and repeat one byte for byte.",
    ),
    "unknown_version": ProblemKind(
        404, "Unknown list version", "Start one with `POST …/versions`."
    ),
    "chunk_missing": ProblemKind(
        409, "Chunk missing", "Upload the missing chunk, then `POST …/ready`."
    ),
    "chunk_unreadable": ProblemKind(
        422, "Chunk not readable", "Send UTF-8; a CSV chunk begins with its header line."
    ),
    "bad_header": ProblemKind(
        422, "CSV header not valid", "Name each column once in the first line."
    ),
    "bad_consent": ProblemKind(
        422, "Consent not valid", "Say source, at (with an offset), wording and categories."
    ),
    "unknown_field": ProblemKind(422, "Unknown field", "Put what templates need under variables."),
    "bad_json": ProblemKind(422, "Line is not JSON", "A line is one JSON object."),
    "line_too_long": ProblemKind(422, "Line too long", "A line has at most 65,536 bytes."),
    "payload_gone": ProblemKind(
        410, "Payload gone", "It was purged or erased: ask for a new message."
    ),
    # Operations
    "unknown_campaign": ProblemKind(404, "Unknown campaign", "Check the id."),
    "campaign_closed": ProblemKind(
        409, "Campaign has ended", "GET it to see what became of it; nothing can change it now."
    ),
    "campaign_not_frozen": ProblemKind(
        409, "Campaign not launched yet", "Wait until its audience is frozen."
    ),
    "campaign_open": ProblemKind(
        409, "Campaign has not ended", "Wait until it has completed or was cancelled."
    ),
    "nobody_sent": ProblemKind(
        422, "Nobody got that campaign", "There is nobody to send a correction to."
    ),
    "not_awaiting_approval": ProblemKind(
        409, "Campaign does not wait for approval", "GET it to see what it waits for."
    ),
    "same_person": ProblemKind(
        403,
        "A second person must approve",
        "Approve it with another key than the one it was made with.",
    ),
    "deadline_infeasible": ProblemKind(
        422, "The deadline cannot hold", "Give a later deadline, or a higher rate."
    ),
    "dead_letter_closed": ProblemKind(409, "Dead letter handled already", "GET it to see by whom."),
    "not_replayable": ProblemKind(
        409, "Cannot be replayed", "It could no longer help: ask for a new message instead."
    ),
    # Limits and failures
    "rate_limited": ProblemKind(429, "Too many requests", "Wait for `Retry-After` seconds."),
    "overloaded": ProblemKind(
        429,
        "Too much to do",
        "Wait for `Retry-After` seconds and repeat with the same key; marketing is refused first, security never.",
    ),
    "verify_rate_limited": ProblemKind(
        429, "Too many verifications", "Wait for `Retry-After` seconds."
    ),
    "store_unavailable": ProblemKind(
        503,
        "A store did not answer",
        "Repeat with the same Idempotency-Key after `Retry-After` seconds.",
    ),
    "temporal_unavailable": ProblemKind(
        503,
        "Temporal did not answer",
        "Repeat with the same Idempotency-Key after `Retry-After` seconds.",
    ),
    "internal_error": ProblemKind(
        500, "Our mistake", "Repeat with the same Idempotency-Key; tell us the time if it stays."
    ),
}

_RAW_ADDRESS_FIELDS = frozenset(
    [
        "to",
        "address",
        "addresses",
        "email",
        "emails",
        "phone",
        "phone_number",
        "number",
        "msisdn",
        "recipient_email",
        "recipient_phone",
        "cc",
        "bcc",
        "token",
        "device_token",
    ]
)
_CONTENT_FIELDS = frozenset(
    [
        "body",
        "html",
        "text",
        "subject",
        "content",
        "message",
        "title",
        "sms",
        "template_body",
        "template_source",
        "source",
        "markdown",
    ]
)
_AUDIENCE_FIELDS = frozenset(["recipients", "audience", "members", "to_list", "people"])
_LOOKS_LIKE_AN_ADDRESS = re.compile(r"@|^\+?[\d\s().\-\u00a0]{7,}$")


class TemporalUnavailable(Transient):
    """Temporal did not take the start or the update. The accepted row is there; a repeat finishes it."""


def problem(
    code: str,
    detail: str,
    *,
    field: str | None = None,
    fix: str = "",
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for one code."""
    kind = PROBLEMS.get(code) or ProblemKind(status or 422, "Refused", "")
    record_refusal(code if code in PROBLEMS else "other")
    body = {
        "type": TYPE + code,
        "title": kind.title,
        "status": kind.status,
        "code": code,
        "detail": detail,
        "fix": fix or kind.fix,
    }
    if field is not None:
        body["field"] = field
    return Response(
        orjson.dumps(body),
        status_code=kind.status,
        media_type=MEDIA_TYPE,
        headers=dict(headers or {}),
    )


def of_refusal(e: Refusal) -> Response:
    headers = (
        {"WWW-Authenticate": "Bearer"}
        if PROBLEMS.get(e.code) and (PROBLEMS[e.code].status == 401)
        else {}
    )
    if isinstance(e, Limited):
        headers.update(e.headers)
    return problem(e.code, e.detail, field=e.field, fix=e.fix, status=e.status, headers=headers)


class Limited(Refusal):
    """A refusal that passes by itself."""

    def __init__(self, code: str, detail: str, headers: Mapping[str, str], **more: Any) -> None:
        super().__init__(code, detail, status=429, **more)
        self.headers = headers


def install(app: FastAPI) -> None:
    """Answer every exception with a problem document."""

    @app.exception_handler(Refusal)
    async def refused(_: Request, e: Refusal) -> Response:
        return of_refusal(e)

    @app.exception_handler(Transient)
    async def unavailable(_: Request, e: Transient) -> Response:
        return of_transient(e)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, e: RequestValidationError) -> Response:
        return of_validation(e.errors())

    @app.exception_handler(HTTPException)
    async def http(request: Request, e: HTTPException) -> Response:
        match e.status_code:
            case 404:
                return problem("not_found", f"there is no {request.method} {request.url.path}")
            case 405:
                return problem(
                    "method_not_allowed",
                    f"{request.method} is not taken here",
                    headers=e.headers or {},
                )
            case 413:
                return problem("body_too_large", str(e.detail), headers=e.headers)
            case _:
                return problem("invalid_body", "the body cannot be read")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, e: Exception) -> Response:
        # The message may quote what a caller sent, so only its type is told.
        log.error("request ended by an error nobody expected", exc_info=e)
        return problem("internal_error", f"unexpected {type(e).__name__}")


def of_transient(e: Transient) -> Response:
    seconds = max(1, round(e.retry_after.total_seconds())) if e.retry_after else 1
    code = "temporal_unavailable" if isinstance(e, TemporalUnavailable) else "store_unavailable"
    log.warning("answered 503", extra={"code": code})
    return problem(
        code,
        "nothing was lost: the same key is safe to repeat",
        headers={"Retry-After": str(seconds)},
    )


def of_validation(errors: Sequence[Any]) -> Response:
    """The first error, with the path of its field. Never the value: it may be an address or a code."""
    e = errors[0]
    where, *path = e["loc"] or ("body",)
    field = ".".join(str(part) for part in path) or None
    last = str(path[-1]) if path else ""
    kind, value = e["type"], e.get("input")
    if where != "body":
        return problem("invalid_parameter", f"{where} {field}: {e['msg']}", field=field)
    if kind.startswith("model") and last in _AUDIENCE_FIELDS:
        return problem("audience_refused", f"{field} is not taken inline", field=field)
    if kind == "extra_forbidden":
        if last in _AUDIENCE_FIELDS:
            return problem("audience_refused", f"{field} is not taken inline", field=field)
        if last in _RAW_ADDRESS_FIELDS:
            return problem("raw_address_refused", f"{field} is not taken here", field=field)
        if last in _CONTENT_FIELDS:
            return problem("content_refused", f"{field} is not taken from a caller", field=field)
        return problem(
            "invalid_body", f"there is no field {field}", field=field, fix="Remove or rename it."
        )
    if last == "recipient_id" and isinstance(value, str) and _LOOKS_LIKE_AN_ADDRESS.search(value):
        return problem(
            "raw_address_refused", "recipient_id looks like an address, not an id", field=field
        )
    if last == "template_id" and isinstance(value, Mapping):
        return problem("content_refused", "template_id must be a name, not content", field=field)
    if last == "code" and kind.startswith("string_"):
        return problem("bad_code", f"code: {e['msg']}", field=field)
    message = e["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        return problem("invalid_body", "the body is not JSON", fix="Send one JSON object.")
    return problem("invalid_body", f"{field}: {message}" if field else message, field=field)


def markdown() -> str:
    """The text of docs/errors.md."""
    rows = [
        f'| <a id="{code}"></a>`{code}` | {kind.status} | {kind.title} | {kind.fix} |'
        for code, kind in PROBLEMS.items()
    ]
    return "\n".join(
        [_HEAD, "| code | status | what it means | what to do |", "|---|---|---|---|", *rows, ""]
    )


_HEAD = """# Errors

Every refusal is a problem document (RFC 9457, `application/problem+json`) with `type`, `title`, `status`, `code`, `detail`,
`fix` and, where there is one, `field`. `code` is stable: write your program against it. `429` and `503` carry `Retry-After`;
the same `Idempotency-Key` is always safe to repeat. Another tenant's ids answer `404`, as ids that do not exist do.

Why a message that was accepted was not sent is not an error: it is the `reason` of its state (see terminology.md).

Written by `python -m api.errors --write`; a test compares the two.
"""

DOC_FILE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        DOC_FILE.write_text(markdown(), encoding="utf-8")
    else:
        sys.stdout.write(markdown())
