"""Every operation of the API as a value: what to ask, and how to read the answer. Both clients run these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel, TypeAdapter

from schemas import api
from schemas.api import IDEMPOTENCY_HEADER, Page
from schemas.campaigns import PreflightReport
from schemas.kinds import RecipientState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request."""

    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether a repeat is harmless: it reads, it replaces, or it carries a key."""


def _path(*parts: object) -> str:
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def _reads(model: type[T]) -> Callable[[bytes], T]:
    return TypeAdapter(model).validate_json


def _nothing(_: bytes) -> None:
    return None


def _get(path: str, model: type[T], **params: object) -> Call[T]:
    return Call("GET", path, _reads(model), params=_params(params))


def _send(
    method: str,
    path: str,
    read: Callable[[bytes], T],
    body: BaseModel | Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    repeatable: bool = True,
    **params: object,
) -> Call[T]:
    headers = {IDEMPOTENCY_HEADER: key} if key is not None else {}
    raw: bytes | None = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        raw = (
            body.model_dump_json(exclude_unset=True).encode()
            if isinstance(body, BaseModel)
            else _ANY.dump_json(dict(body))
        )
    return Call(method, path, read, raw, headers, _params(params), repeatable)


_ANY: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def _params(params: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value is not None}


# --- messages -------------------------------------------------------------------------------------------------------


def send_notification(request: api.NotificationRequest, *, key: str) -> Call[api.AcceptedAnswer]:
    """`key` names this request for ever: repeating it is harmless."""
    return _send("POST", _path("notifications"), _reads(api.AcceptedAnswer), request, key=key)


def notification(id: UUID) -> Call[api.MessageStatus]:
    return _get(_path("notifications", id), api.MessageStatus)


def cancel_notification(id: UUID, reason: str = "cancelled") -> Call[api.MessageStatus]:
    """Take it back, while it has not left."""
    return _send(
        "POST",
        _path("notifications", id, "cancel"),
        _reads(api.MessageStatus),
        api.CancelBody(reason=reason),
    )


def delivery(id: str) -> Call[api.DeliveryStatus]:
    return _get(_path("deliveries", id), api.DeliveryStatus)


def send_passcode(
    request: api.PasscodeRequest, *, key: str, wait: float | None = None
) -> Call[api.PasscodeAccepted]:
    """`wait` up to 2 s for what the provider says."""
    return _send(
        "POST", _path("passcodes"), _reads(api.PasscodeAccepted), request, key=key, wait=wait
    )


def passcode(id: UUID) -> Call[api.PasscodeStatus]:
    return _get(_path("passcodes", id), api.PasscodeStatus)


def check_passcode(id: UUID, code: str) -> Call[api.CheckAnswer]:
    """Each call counts, so a call that may have arrived is not repeated for you."""
    return _send(
        "POST",
        _path("passcodes", id, "check"),
        _reads(api.CheckAnswer),
        api.CheckBody(code=code),
        repeatable=False,
    )


def resend_passcode(id: UUID, *, key: str) -> Call[api.ResendAnswer]:
    """The same code again; the number of checks left does not change."""
    return _send("POST", _path("passcodes", id, "resend"), _reads(api.ResendAnswer), key=key)


def cancel_passcode(id: UUID, reason: str = "cancelled") -> Call[api.PasscodeStatus]:
    return _send(
        "POST",
        _path("passcodes", id, "cancel"),
        _reads(api.PasscodeStatus),
        api.CancelBody(reason=reason),
    )


def send_reminder(request: api.ReminderRequest, *, key: str) -> Call[api.ReminderAccepted]:
    return _send("POST", _path("reminders"), _reads(api.ReminderAccepted), request, key=key)


def reminder(id: UUID) -> Call[api.ReminderStatus]:
    return _get(_path("reminders", id), api.ReminderStatus)


def reschedule_reminder(id: UUID, due: api.DueBody) -> Call[api.ReminderStatus]:
    return _send(
        "POST",
        _path("reminders", id, "reschedule"),
        _reads(api.ReminderStatus),
        api.RescheduleBody(due=due),
    )


def send_reminder_now(id: UUID) -> Call[api.ReminderStatus]:
    return _send("POST", _path("reminders", id, "send-now"), _reads(api.ReminderStatus))


def cancel_reminder(id: UUID, reason: str = "cancelled") -> Call[api.ReminderStatus]:
    return _send(
        "POST",
        _path("reminders", id, "cancel"),
        _reads(api.ReminderStatus),
        api.CancelBody(reason=reason),
    )


def cancel_reminders(correlation_id: str, reason: str = "cancelled") -> Call[api.CancelledMany]:
    """All that share a correlation id."""
    return _send(
        "POST",
        _path("reminders", "cancel"),
        _reads(api.CancelledMany),
        api.CancelBody(reason=reason),
        correlation_id=correlation_id,
    )


# --- what recurs ----------------------------------------------------------------------------------------------------


def create_schedule(request: api.ScheduleRequest, *, key: str) -> Call[api.ScheduleStatus]:
    return _send("POST", _path("schedules"), _reads(api.ScheduleStatus), request, key=key)


def schedule(id: UUID) -> Call[api.ScheduleStatus]:
    return _get(_path("schedules", id), api.ScheduleStatus)


def schedules(limit: int = 100, after: UUID | None = None) -> Call[Page[api.ScheduleStatus]]:
    return _get(_path("schedules"), Page[api.ScheduleStatus], limit=limit, after=after)


def change_schedule(id: UUID, request: api.ScheduleRequest) -> Call[api.ScheduleStatus]:
    """Replace what it does and when, from now on."""
    return _send("PUT", _path("schedules", id), _reads(api.ScheduleStatus), request)


def delete_schedule(id: UUID) -> Call[api.ScheduleStatus]:
    return _send("DELETE", _path("schedules", id), _reads(api.ScheduleStatus))


def pause_schedule(id: UUID) -> Call[api.ScheduleStatus]:
    return _send("POST", _path("schedules", id, "pause"), _reads(api.ScheduleStatus))


def resume_schedule(id: UUID) -> Call[api.ScheduleStatus]:
    return _send("POST", _path("schedules", id, "resume"), _reads(api.ScheduleStatus))


def schedule_triggers(
    id: UUID, limit: int = 100, before: str | None = None
) -> Call[Page[api.TriggerAnswer]]:
    """What one has fired, newest first; `before` is `next` of the page before."""
    return _get(
        _path("schedules", id, "triggers"), Page[api.TriggerAnswer], limit=limit, before=before
    )


def triggers(since: datetime, until: datetime, limit: int = 1000) -> Call[Page[api.TriggerAnswer]]:
    """What should have been fired in a stretch of time, and what became of it."""
    return _get(
        _path("triggers"),
        Page[api.TriggerAnswer],
        since=since.isoformat(),
        until=until.isoformat(),
        limit=limit,
    )


def create_series(request: api.SeriesRequest, *, key: str) -> Call[api.SeriesStatus]:
    return _send("POST", _path("reminder-series"), _reads(api.SeriesStatus), request, key=key)


def series(id: UUID) -> Call[api.SeriesStatus]:
    return _get(_path("reminder-series", id), api.SeriesStatus)


def move_series(id: UUID, event: api.DueBody) -> Call[api.SeriesStatus]:
    """The event has moved: the open reminders move with it."""
    return _send(
        "PUT",
        _path("reminder-series", id),
        _reads(api.SeriesStatus),
        api.SeriesMove(event=event),
    )


def cancel_series(id: UUID) -> Call[api.SeriesStatus]:
    return _send("DELETE", _path("reminder-series", id), _reads(api.SeriesStatus))


# --- campaigns and lists --------------------------------------------------------------------------------------------


def create_campaign(request: api.CampaignRequest, *, key: str) -> Call[api.AcceptedAnswer]:
    return _send("POST", _path("campaigns"), _reads(api.AcceptedAnswer), request, key=key)


def preflight_campaign(request: api.CampaignRequest) -> Call[PreflightReport]:
    """What a launch would be told now; nothing is created."""
    return _send("POST", _path("campaigns", "preflight"), _reads(PreflightReport), request)


def test_campaign(request: api.TestSendRequest, *, key: str) -> Call[api.TestSends]:
    """To recipients marked internal only."""
    return _send("POST", _path("campaigns", "test"), _reads(api.TestSends), request, key=key)


def approve_campaign(id: UUID) -> Call[api.CampaignStatus]:
    """By another key than the one that asked for it."""
    return _send("POST", _path("campaigns", id, "approve"), _reads(api.CampaignStatus))


def campaign(id: UUID) -> Call[api.CampaignStatus]:
    return _get(_path("campaigns", id), api.CampaignStatus)


def campaigns(limit: int = 50) -> Call[Page[api.CampaignStatus]]:
    return _get(_path("campaigns"), Page[api.CampaignStatus], limit=limit)


def campaign_recipients(
    id: UUID,
    state: RecipientState,
    *,
    reason: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> Call[Page[api.CampaignRecipient]]:
    """Who is in one group of the report."""
    return _get(
        _path("campaigns", id, "recipients"),
        Page[api.CampaignRecipient],
        state=state,
        reason=reason,
        limit=limit,
        after=after,
    )


def pause_campaign(id: UUID, reason: str = "") -> Call[api.CampaignStatus]:
    return _control(id, "pause", api.ReasonBody(reason=reason))


def resume_campaign(id: UUID, reason: str = "") -> Call[api.CampaignStatus]:
    return _control(id, "resume", api.ReasonBody(reason=reason))


def cancel_campaign(id: UUID, reason: str = "") -> Call[api.CampaignStatus]:
    return _control(id, "cancel", api.ReasonBody(reason=reason))


def set_campaign_rate(id: UUID, rate_per_second: float) -> Call[api.CampaignStatus]:
    return _control(id, "rate", api.RateBody(rate_per_second=rate_per_second))


def _control(id: UUID, what: str, body: BaseModel) -> Call[api.CampaignStatus]:
    return _send("POST", _path("campaigns", id, what), _reads(api.CampaignStatus), body)


def replay_campaign(
    id: UUID, states: Sequence[Literal[RecipientState.FAILED, RecipientState.UNKNOWN]]
) -> Call[api.Replayed]:
    """Sends again to those whose send failed, or whose outcome is unknown."""
    return _send(
        "POST",
        _path("campaigns", id, "replay"),
        _reads(api.Replayed),
        api.ReplayBody(states=list(states)),
    )


def put_segment(
    segment_id: str, definition: Mapping[str, Any], name: str = ""
) -> Call[api.SegmentAnswer]:
    """Create it, or change it in place; campaigns created before keep what it was."""
    body = api.SegmentRequest(name=name, definition=dict(definition))
    return _send("PUT", _path("segments", segment_id), _reads(api.SegmentAnswer), body)


def get_segment(segment_id: str) -> Call[api.SegmentAnswer]:
    return _get(_path("segments", segment_id), api.SegmentAnswer)


def segments(limit: int = 100, after: str | None = None) -> Call[Page[api.SegmentAnswer]]:
    return _get(_path("segments"), Page[api.SegmentAnswer], limit=limit, after=after)


def delete_segment(segment_id: str) -> Call[None]:
    return _send("DELETE", _path("segments", segment_id), _nothing)


def preview_segment(definition: Mapping[str, Any]) -> Call[api.SegmentPreview]:
    """A bounded count of who is in it now."""
    body = api.SegmentPreviewRequest(definition=dict(definition))
    return _send("POST", _path("segments", "preview"), _reads(api.SegmentPreview), body)


def put_list(list_id: str, name: str = "") -> Call[api.ListAnswer]:
    return _send("PUT", _path("lists", list_id), _reads(api.ListAnswer), api.ListRequest(name=name))


def get_list(list_id: str) -> Call[api.ListAnswer]:
    return _get(_path("lists", list_id), api.ListAnswer)


def start_upload(
    list_id: str,
    format: Literal["ndjson", "csv"] = "ndjson",
    *,
    key: str,
) -> Call[api.VersionAnswer]:
    """The same key gives the same version, which is how an upload is resumed."""
    return _send(
        "POST",
        _path("lists", list_id, "versions"),
        _reads(api.VersionAnswer),
        api.VersionRequest(format=format),
        key=key,
    )


def put_chunk(
    list_id: str,
    version_id: UUID,
    chunk: int,
    data: bytes,
    *,
    first_line: int | None = None,
    format: Literal["ndjson", "csv"] = "ndjson",
    consent_categories: Sequence[str] = (),
) -> Call[api.ChunkAnswer]:
    """At most 8 MiB of whole lines; a CSV chunk begins with the header line. `first_line` is where its first line (after the
    header) is in the whole file, for error messages. `consent_categories` are for consents that name none."""
    media = "text/csv; charset=utf-8" if format == "csv" else "application/x-ndjson"
    return Call(
        "PUT",
        _path("lists", list_id, "versions", version_id, "chunks", chunk),
        _reads(api.ChunkAnswer),
        data,
        {"Content-Type": media},
        _params(
            {
                "first_line": first_line,
                "consent_categories": ",".join(consent_categories) or None,
            }
        ),
    )


def make_ready(list_id: str, version_id: UUID) -> Call[api.VersionAnswer]:
    return _send(
        "POST", _path("lists", list_id, "versions", version_id, "ready"), _reads(api.VersionAnswer)
    )


def list_version(list_id: str, version_id: UUID) -> Call[api.VersionAnswer]:
    return _get(_path("lists", list_id, "versions", version_id), api.VersionAnswer)


# --- recipients -----------------------------------------------------------------------------------------------------


def put_recipient(recipient_id: str, request: api.RecipientRequest) -> Call[api.RecipientAnswer]:
    return _send("PUT", _path("recipients", recipient_id), _reads(api.RecipientAnswer), request)


def recipient(recipient_id: str) -> Call[api.RecipientAnswer]:
    return _get(_path("recipients", recipient_id), api.RecipientAnswer)


def erase_recipient(recipient_id: str) -> Call[None]:
    return _send("DELETE", _path("recipients", recipient_id), _nothing)


def remove_address(recipient_id: str, channel: Literal["email", "sms"]) -> Call[None]:
    return _send("DELETE", _path("recipients", recipient_id, "addresses", channel), _nothing)


def recipient_messages(
    recipient_id: str, *, limit: int = 50, before: str | None = None
) -> Call[Page[api.MessageStatus]]:
    """What was sent to this person lately, newest first."""
    return _get(
        _path("recipients", recipient_id, "messages"),
        Page[api.MessageStatus],
        limit=limit,
        before=before,
    )


def set_preferences(
    recipient_id: str, preferences: Sequence[api.PreferenceBody]
) -> Call[Page[api.PreferenceAnswer]]:
    return _send(
        "PUT",
        _path("recipients", recipient_id, "preferences"),
        _reads(Page[api.PreferenceAnswer]),
        api.PreferencesRequest(preferences=list(preferences)),
    )


def preferences(recipient_id: str) -> Call[Page[api.PreferenceAnswer]]:
    return _get(_path("recipients", recipient_id, "preferences"), Page[api.PreferenceAnswer])


def record_consents(
    recipient_id: str, consents: Sequence[api.ConsentBody]
) -> Call[Page[api.ConsentAnswer]]:
    return _send(
        "PUT",
        _path("recipients", recipient_id, "consents"),
        _reads(Page[api.ConsentAnswer]),
        api.ConsentsRequest(consents=list(consents)),
    )


def consents(recipient_id: str) -> Call[Page[api.ConsentAnswer]]:
    return _get(_path("recipients", recipient_id, "consents"), Page[api.ConsentAnswer])


def put_device(recipient_id: str, device_id: str, device: api.DeviceBody) -> Call[api.DeviceAnswer]:
    return _send(
        "PUT",
        _path("recipients", recipient_id, "devices", device_id),
        _reads(api.DeviceAnswer),
        device,
    )


def remove_device(recipient_id: str, device_id: str) -> Call[None]:
    return _send("DELETE", _path("recipients", recipient_id, "devices", device_id), _nothing)


# --- templates and categories ---------------------------------------------------------------------------------------


def create_template_version(
    template_id: str, request: api.TemplateVersionRequest, *, key: str
) -> Call[api.TemplateVersionAnswer]:
    return _send(
        "POST",
        _path("templates", template_id, "versions"),
        _reads(api.TemplateVersionAnswer),
        request,
        key=key,
    )


def publish_template(template_id: str, version: int) -> Call[api.TemplateVersionAnswer]:
    return _send(
        "POST",
        _path("templates", template_id, "versions", version, "publish"),
        _reads(api.TemplateVersionAnswer),
    )


def template(template_id: str, version: int | None = None) -> Call[api.TemplateVersionAnswer]:
    """The current version, or a given one."""
    return _get(_path("templates", template_id), api.TemplateVersionAnswer, version=version)


def preview_template(template_id: str, request: api.PreviewRequest) -> Call[api.PreviewAnswer]:
    return _send(
        "POST", _path("templates", template_id, "preview"), _reads(api.PreviewAnswer), request
    )


def put_category(category: str, request: api.CategoryRequest) -> Call[api.CategoryAnswer]:
    return _send("PUT", _path("categories", category), _reads(api.CategoryAnswer), request)


def category(category: str) -> Call[api.CategoryAnswer]:
    return _get(_path("categories", category), api.CategoryAnswer)


def categories() -> Call[Page[api.CategoryAnswer]]:
    return _get(_path("categories"), Page[api.CategoryAnswer])


# --- operations -----------------------------------------------------------------------------------------------------


def suppress(body: api.SuppressionBody) -> Call[api.SuppressionAnswer]:
    return _send("POST", _path("suppressions"), _reads(api.SuppressionAnswer), body)


def unsuppress(ref: api.SuppressionRef) -> Call[None]:
    return _send("POST", _path("suppressions", "remove"), _nothing, ref)


def suppressions(
    *, limit: int = 100, after: str | None = None
) -> Call[Page[api.SuppressionAnswer]]:
    return _get(_path("suppressions"), Page[api.SuppressionAnswer], limit=limit, after=after)


def dead_letters(
    *, status: str = "open", limit: int = 50, after: UUID | None = None
) -> Call[Page[api.DeadLetterAnswer]]:
    return _get(
        _path("dead-letters"), Page[api.DeadLetterAnswer], status=status, limit=limit, after=after
    )


def dead_letter(id: UUID) -> Call[api.DeadLetterAnswer]:
    return _get(_path("dead-letters", id), api.DeadLetterAnswer)


def replay_dead_letter(id: UUID) -> Call[api.DeadLetterAnswer]:
    return _send("POST", _path("dead-letters", id, "replay"), _reads(api.DeadLetterAnswer))


def discard_dead_letter(id: UUID) -> Call[api.DeadLetterAnswer]:
    return _send("POST", _path("dead-letters", id, "discard"), _reads(api.DeadLetterAnswer))


def audit(*, limit: int = 100) -> Call[Page[api.AuditEntry]]:
    return _get(_path("audit"), Page[api.AuditEntry], limit=limit)


def health() -> Call[api.Health]:
    return Call("GET", "/readyz", _reads(api.Health))
