"""What callers of the HTTP API send and get. The typed client shares these models with the server, and nothing else.

Requests refuse fields they do not know; answers ignore them, so that an older client reads a newer server.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.kinds import (
    CampaignPhase,
    Channel,
    ControlState,
    Kind,
    LatenessPolicy,
    MessageClass,
    Mode,
    RecipientState,
    UnknownPolicy,
)
from schemas.notifications import ChannelView
from schemas.schedules import CatchUpRule, Overlap, ScheduleKind, ScheduleState, TriggerStatus
from schemas.wire import Wire

ID = r"^[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}$"
LOCAL = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?$"
NAME = r"^[a-z0-9][a-z0-9._\-]{0,63}$"

RecipientId = Annotated[str, StringConstraints(pattern=ID)]
"""Opaque and without meaning to us; never an address."""
CategoryName = Annotated[str, StringConstraints(pattern=NAME)]
TemplateName = Annotated[str, StringConstraints(pattern=NAME)]
ListName = Annotated[str, StringConstraints(pattern=NAME)]
SegmentName = Annotated[str, StringConstraints(pattern=NAME)]
DeviceId = Annotated[str, StringConstraints(pattern=ID)]
CorrelationId = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Locale = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$")]
Variables = dict[str, Any]

IDEMPOTENCY_HEADER = "Idempotency-Key"
REPLAY_HEADER = "Idempotent-Replay"
TEST_CODE = "012345"
"""What every passcode made with a test key is (PASS-6); a caller can test without reading a message."""
PASSCODE_TTL_SECONDS = 600
WAIT_SECONDS = 2.0
CHUNK_BYTES = 8 * 1024 * 1024
BODY_BYTES = 1024 * 1024

T = TypeVar("T")


class Request(BaseModel):
    """What a caller sends. A field we do not know is refused: a misspelt one must not be silently dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(Wire):
    """RFC 9457, as `application/problem+json`. `code` is stable; docs/errors.md lists them all."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    fix: str = ""


class Page(Wire, Generic[T]):
    """One page of a list. `next`, when set, is the `after` of the following page."""

    items: list[T]
    next: str | None = None


# --- asking for a message -------------------------------------------------------------------------------------------


class NotificationRequest(Request):
    """Tell one recipient one fact."""

    recipient_id: RecipientId
    category: CategoryName
    template_id: TemplateName
    variables: Variables = {}
    ttl_seconds: int | None = None
    """After this it is not sent any more; the category's when not given."""
    correlation_id: CorrelationId | None = None


class VerifyAddress(Request):
    """The only place where a raw address is taken: a passcode that proves who holds it."""

    channel: Literal[Channel.EMAIL, Channel.SMS]
    address: Annotated[str, StringConstraints(min_length=3, max_length=320)]


class PasscodeRequest(Request):
    """Send a one-time passcode; bring the code, or let us draw it."""

    recipient_id: RecipientId | None = None
    """May be left out only when an address is verified."""
    category: CategoryName
    template_id: TemplateName
    code: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]{6,32}$")] | None = Field(
        None, repr=False
    )
    variables: Variables = {}
    ttl_seconds: int | None = None
    max_checks: int = Field(5, ge=1, le=10)
    origin: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.\-]{1,253}$")] | None = None
    """Host for the origin-bound last line of the SMS."""
    verify: VerifyAddress | None = None
    correlation_id: CorrelationId | None = None

    @model_validator(mode="after")
    def _somebody(self) -> "PasscodeRequest":
        if self.recipient_id is None and self.verify is None:
            raise ValueError("recipient_id is required unless verify names an address")
        return self


class CheckBody(Request):
    code: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(repr=False)


class DueBody(Request):
    """An instant, or a wall time in the recipient's zone."""

    at: AwareDatetime | None = None
    local: Annotated[str, StringConstraints(pattern=LOCAL)] | None = None

    @model_validator(mode="after")
    def _one(self) -> "DueBody":
        if (self.at is None) == (self.local is None):
            raise ValueError("give exactly one of at and local")
        return self


class ReminderRequest(Request):
    """Tell one recipient one fact at a moment."""

    recipient_id: RecipientId
    category: CategoryName
    template_id: TemplateName
    due: DueBody
    variables: Variables = {}
    lateness: LatenessPolicy = LatenessPolicy.SEND
    grace_seconds: int = Field(3600, ge=0)
    ttl_seconds: int | None = None
    """Counted from the due moment."""
    correlation_id: CorrelationId | None = None


class RescheduleBody(Request):
    due: DueBody


class CancelBody(Request):
    reason: Annotated[str, StringConstraints(max_length=200)] = "cancelled"


class AudienceOf(Request):
    """An audience that is written out as a list when the campaign is launched."""

    sent_of: UUID | None = None
    """Exactly those who got an earlier campaign, for a correction."""
    segment: SegmentName | None = None
    """Who is in it at launch, by the definition it has now."""

    @model_validator(mode="after")
    def _one(self) -> "AudienceOf":
        if (self.sent_of is None) == (self.segment is None):
            raise ValueError("give exactly one of sent_of and segment")
        return self


def _require_one_audience(list_id: str | None, audience: Request | None) -> None:
    if (list_id is None) == (audience is None):
        raise ValueError("give exactly one of list_id and audience")


class CampaignRequest(Request):
    """Tell a list something. Marketing only."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    category: CategoryName
    template_id: TemplateName
    list_id: ListName | None = None
    """A list, or `audience`."""
    audience: AudienceOf | None = None
    variables: Variables = {}
    send_at: AwareDatetime | None = None
    local_time: Annotated[str, StringConstraints(pattern=LOCAL)] | None = None
    """A wall time: each recipient's own, in waves by zone."""
    missed: LatenessPolicy = LatenessPolicy.SEND
    """What a recipient whose local moment has passed gets."""
    window: Annotated[str, StringConstraints(max_length=32)] | None = None
    """`09:00-20:00`: only then, recipient's time."""
    deadline: AwareDatetime | None = None
    """Paced so as to end by then, unless a rate is set."""
    expires_at: AwareDatetime | None = None
    rate_per_second: float | None = Field(None, gt=0, le=1_000_000)

    @model_validator(mode="after")
    def _one_audience(self) -> "CampaignRequest":
        _require_one_audience(self.list_id, self.audience)
        return self


class TestSendRequest(Request):
    """What a campaign would say, to named colleagues only."""

    __test__ = False

    category: CategoryName
    template_id: TemplateName
    variables: Variables = {}
    recipient_ids: list[RecipientId] = Field(min_length=1, max_length=20)
    """Recipients marked internal."""


class ReasonBody(Request):
    reason: Annotated[str, StringConstraints(max_length=200)] = ""


class RateBody(Request):
    rate_per_second: float = Field(gt=0, le=1_000_000)


class ReplayBody(Request):
    """What to send again: `failed`, `unknown`, or both."""

    states: list[Literal[RecipientState.FAILED, RecipientState.UNKNOWN]] = Field(min_length=1)


class AcceptedAnswer(Wire):
    """It is durable and on its way. `replayed`: this key had created it before."""

    id: UUID
    kind: Kind
    status_url: str
    replayed: bool
    accepted_at: datetime
    expires_at: datetime


class ReminderAccepted(AcceptedAnswer):
    due_at: datetime
    due_moved: bool = False
    """The wall time asked for does not exist in the recipient's zone (clocks go forward): the first valid moment after."""


class MessageStatus(Wire):
    """The truth about one message, from our own rows."""

    id: UUID
    kind: Kind
    mode: Mode
    state: str
    """pending | deferred | sent | rejected | failed | unknown | suppressed | expired | cancelled | erased |
    undeliverable"""
    reason: str | None = None
    deferred_until: datetime | None = None
    recipient_id: str | None = None
    category: str
    accepted_at: datetime
    expires_at: datetime
    closed_at: datetime | None = None
    correlation_id: str | None = None
    channels: list[ChannelView] = []


class PasscodeStatus(MessageStatus):
    """The code itself is never told."""

    passcode: Literal["open", "used", "cancelled", "expired", "max_attempts"]
    attempts_left: int
    send_no: int


class PasscodeAccepted(AcceptedAnswer):
    status: PasscodeStatus | None = None
    """Set when the caller waited: what the provider said, if it said something in time."""


class CheckAnswer(Wire):
    result: Literal["approved", "wrong", "expired", "max_attempts", "used", "cancelled"]
    approved: bool
    attempts_left: int


class ResendAnswer(Wire):
    send_no: int


class ReminderStatus(Wire):
    """`state` is scheduled, firing, skipped, cancelled, or what became of the notification it sent."""

    id: UUID
    mode: Mode
    state: str
    reason: str | None = None
    recipient_id: str | None = None
    category: str
    accepted_at: datetime
    due_at: datetime | None = None
    due_moved: bool = False
    closed_at: datetime | None = None
    correlation_id: str | None = None
    notification: MessageStatus | None = None


class CancelledMany(Wire):
    """Cancelling by correlation id: how many, and which were too late."""

    cancelled: int
    already_closed: int
    too_late: list[UUID] = []


class DeliveryStatus(ChannelView):
    notification_id: UUID
    recipient_id: str


# --- campaigns ------------------------------------------------------------------------------------------------------


class CampaignStatus(Wire):
    """Counts are recipients; they add up to `size`, always, once the audience is frozen."""

    id: UUID
    mode: Mode
    name: str
    category: str
    template_id: str
    template_version: int
    list_id: str
    segment: str | None = None
    """What the list was, or is yet to be, written from."""
    segment_version: int | None = None
    phase: CampaignPhase
    reason: str = ""
    control: ControlState
    rate_per_second: float | None = None
    size: int | None = None
    counts: dict[RecipientState, int] = {}
    reasons: dict[str, int] = {}
    adds_up: bool = True
    created_at: datetime
    send_at: datetime | None = None
    frozen_at: datetime | None = None
    expires_at: datetime | None = None
    closed_at: datetime | None = None
    last_send_at: datetime | None = None
    deadline: datetime | None = None
    local_time: datetime | None = None
    created_by: str = ""
    approved_by: str | None = None
    """Set once a second person has agreed, where one is needed."""


class TestSends(Wire):
    """One notification for each colleague."""

    __test__ = False

    items: list[AcceptedAnswer]


class CampaignRecipient(Wire):
    """One member of one group of a campaign's report."""

    recipient_id: str
    state: RecipientState
    reason: str | None = None
    channel: Channel | None = None
    attempt: int = 0
    due_at: datetime | None = None


class Replayed(Wire):
    count: int


# --- what recurs ----------------------------------------------------------------------------------------------------


class NotificationRun(Request):
    """Each run tells one recipient one fact; the template's version is the current one of that moment."""

    recipient_id: RecipientId
    template_id: TemplateName
    variables: Variables = {}
    ttl_seconds: int | None = None
    correlation_id: CorrelationId | None = None


class RecurringAudience(Request):
    """An audience that each run writes out as a list of its own when it is launched."""

    segment: SegmentName
    """Who is in it at launch, by the definition it has when the run fires."""


class CampaignRun(Request):
    """Each run is a campaign to the list, or to the segment, as it is at that moment."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=180)]
    template_id: TemplateName
    list_id: ListName | None = None
    """A list, or `audience`."""
    audience: RecurringAudience | None = None
    variables: Variables = {}
    window: Annotated[str, StringConstraints(max_length=32)] | None = None
    rate_per_second: float | None = Field(None, gt=0, le=1_000_000)

    @model_validator(mode="after")
    def _one_audience(self) -> "CampaignRun":
        _require_one_audience(self.list_id, self.audience)
        return self


class ScheduleRequest(Request):
    """Do something again and again: `cron` in `zone`, or `every_seconds`; a `notification` or a `campaign`."""

    name: Annotated[str, StringConstraints(max_length=200)] = ""
    category: CategoryName
    cron: Annotated[str, StringConstraints(max_length=200)] | None = None
    every_seconds: int | None = Field(None, gt=0, le=31_536_000)
    zone: str | None = None
    """An IANA name; the tenant's when not given."""
    notification: NotificationRun | None = None
    campaign: CampaignRun | None = None
    overlap: Overlap = Overlap.SKIP
    """What happens to a run whose predecessor has not ended. `catch_up: all` usually wants `allow`."""
    catch_up: CatchUpRule = CatchUpRule.LATEST
    """What is made up after an outage: every missed run, one for the whole gap, or none."""
    catch_up_window_seconds: int = Field(86_400, ge=0, le=31_536_000)
    """A run missed by more than this is not made up."""
    catch_up_max: int = Field(10, ge=1, le=1000)
    """Of `all`, at most these, the newest."""
    jitter_seconds: int = Field(0, ge=0, le=3600)
    """Each run starts up to this much later, so that not everything starts on the hour."""

    @model_validator(mode="after")
    def _one_of_each(self) -> "ScheduleRequest":
        if (self.cron is None) == (self.every_seconds is None):
            raise ValueError("give exactly one of cron and every_seconds")
        if (self.notification is None) == (self.campaign is None):
            raise ValueError("give exactly one of notification and campaign")
        return self


class ScheduleStatus(Wire):
    id: UUID
    mode: Mode
    kind: ScheduleKind
    name: str
    category: str
    state: ScheduleState
    cron: str | None = None
    every_seconds: int | None = None
    zone: str
    template_id: str
    recipient_id: str | None = None
    list_id: str | None = None
    segment: str | None = None
    """What each run pins, and writes a list of its own from."""
    overlap: Overlap
    catch_up: CatchUpRule
    catch_up_window_seconds: int
    catch_up_max: int
    jitter_seconds: int
    next_at: datetime | None = None
    """None while it is paused, or once it is deleted."""
    created_at: datetime
    created_by: str
    warnings: list[str] = []


class TriggerAnswer(Wire):
    """One line of the trigger log. A `missed` one may stand for many runs in a row."""

    schedule_id: UUID
    kind: ScheduleKind
    scheduled_for: datetime
    status: TriggerStatus
    by: str
    fired_at: datetime | None = None
    id: UUID | None = None
    """Of the notification or campaign that it fired."""
    status_url: str | None = None
    missed: int = 0
    missed_until: datetime | None = None
    reason: str = ""


class OffsetBody(Request):
    """How long before the event, as an ISO 8601 duration: `P7D`, `P1D`, `PT1H`."""

    before: Annotated[str, StringConstraints(max_length=32)]
    template_id: TemplateName | None = None
    """The series' own when not given."""


class SeriesRequest(Request):
    """Some reminders before one event. What is past when it is planned is left out."""

    recipient_id: RecipientId
    category: CategoryName
    template_id: TemplateName
    event: DueBody
    offsets: list[OffsetBody | Annotated[str, StringConstraints(max_length=32)]] = Field(
        min_length=1, max_length=12
    )
    variables: Variables = {}
    lateness: LatenessPolicy = LatenessPolicy.SEND
    """What one does when its moment passes while everything is down."""
    grace_seconds: int = Field(3600, ge=0)
    ttl_seconds: int | None = None
    correlation_id: CorrelationId | None = None


class SeriesMove(Request):
    """The event has moved: the open reminders move with it, what is past then is taken back, what was sent stays."""

    event: DueBody


class SeriesMemberStatus(Wire):
    before: str
    template_id: str
    state: str
    """scheduled, firing, left_out, or how it ended."""
    due_at: datetime
    id: UUID | None = None
    """Of the reminder, once there is one."""


class SeriesStatus(Wire):
    id: UUID
    mode: Mode
    state: Literal["active", "cancelled"]
    recipient_id: str
    category: str
    correlation_id: str
    event_at: datetime
    created_at: datetime
    members: list[SeriesMemberStatus]


# --- lists ----------------------------------------------------------------------------------------------------------


class ListRequest(Request):
    name: Annotated[str, StringConstraints(max_length=200)] = ""


class ListAnswer(Wire):
    list_id: str
    name: str
    current_version: UUID | None = None


class VersionRequest(Request):
    """`ndjson`: one object a line; `csv`: each chunk begins with the header line."""

    format: Literal["ndjson", "csv"] = "ndjson"


class LineError(Wire):
    """One line that was left out, and why; the others stand."""

    line: int
    column: str | None = None
    code: str
    detail: str


class ChunkAnswer(Wire):
    chunk: int
    first_line: int
    lines: int
    accepted: int
    rejected: int
    errors: list[LineError] = []
    """The first 100."""
    replayed: bool = False


class ChunkSummary(Wire):
    chunk: int
    sha256: str
    first_line: int
    lines: int
    accepted: int


class VersionAnswer(Wire):
    list_id: str
    version_id: UUID
    state: Literal["uploading", "ready", "failed"]
    format: str
    size: int | None = None
    rejected: int = 0
    reason: str | None = None
    created_at: datetime
    chunks: tuple[ChunkSummary, ...] = ()
    errors: tuple[LineError, ...] = ()


# --- segments -------------------------------------------------------------------------------------------------------


class SegmentRequest(Request):
    """`definition` is a tree: `{"all": […]}`, `{"any": […]}`, `{"not": …}` over `{"attribute": "plan", "eq": "pro"}` (or `ne`,
    `in`, `exists`, `lt`, `lte`, `gt`, `gte`), `{"locale": "de"}`, `{"zone": "Europe/Berlin"}`, `{"has_channel": "email"}`.

    A comparison with an attribute that is missing, or of another type than the value, is false before `not` is applied.
    """

    name: Annotated[str, StringConstraints(max_length=200)] = ""
    definition: dict[str, Any]


class SegmentAnswer(Wire):
    """`version` counts changes of the definition."""

    segment_id: str
    name: str
    definition: dict[str, Any]
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str


class SegmentPreviewRequest(Request):
    definition: dict[str, Any]


class SegmentPreview(Wire):
    """How many of the recipients scanned are in it. Not `complete`: there are more recipients than were scanned."""

    members: int
    scanned: int
    complete: bool
    examples: list[str] = []
    """Ids of the first of them."""


# --- recipients -----------------------------------------------------------------------------------------------------


class AddressBody(Request):
    """`verified`: the caller has proof that the person holds it."""

    address: Annotated[str, StringConstraints(min_length=3, max_length=320)]
    verified: bool = False


class RecipientRequest(Request):
    """Creates or replaces what is given; an address left out stays as it is."""

    locale: Locale | None = None
    zone: str | None = None
    """An IANA name, never an offset."""
    attributes: dict[str, Any] = {}
    """To choose them by in segments: at most 64, each a string (up to 256 characters), a number or a boolean. Not sealed."""
    internal: bool = False
    """May receive test sends."""
    email: AddressBody | None = None
    phone: AddressBody | None = None


class AddressAnswer(Wire):
    """The address itself is never told; `hint` is enough to recognise it."""

    channel: Channel
    hint: str
    verified: bool
    dead_reason: str | None = None
    suppressed: str | None = None


class DeviceBody(Request):
    channel: Literal[Channel.APNS, Channel.FCM]
    token: Annotated[str, StringConstraints(min_length=8, max_length=4096)] = Field(repr=False)


class DeviceAnswer(Wire):
    device_id: str
    channel: Channel


class RecipientAnswer(Wire):
    recipient_id: str
    locale: str | None = None
    zone: str | None = None
    attributes: dict[str, Any] = {}
    internal: bool = False
    addresses: list[AddressAnswer] = []
    devices: list[DeviceAnswer] = []
    erased_at: datetime | None = None


class PreferenceBody(Request):
    """`*` is all marketing, and all channels."""

    category: CategoryName | Literal["*"] = "*"
    channel: Channel | Literal["*"] = "*"
    opted_out: bool
    source: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "api"


class PreferencesRequest(Request):
    preferences: list[PreferenceBody] = Field(min_length=1, max_length=100)


class PreferenceAnswer(Wire):
    category: str
    channel: str
    opted_out: bool
    source: str
    changed_at: datetime


class ConsentBody(Request):
    """What the person agreed to, when, where and in which words."""

    category: CategoryName
    channel: Channel | Literal["*"] = "*"
    granted: bool = True
    at: AwareDatetime | None = None
    source: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    wording: Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class ConsentsRequest(Request):
    consents: list[ConsentBody] = Field(min_length=1, max_length=100)


class ConsentAnswer(Wire):
    category: str
    channel: str
    granted: bool
    at: datetime
    source: str
    wording: str


# --- templates and categories ---------------------------------------------------------------------------------------


class TemplatePartBody(Request):
    """One channel and locale. `{{name}}` stands for a variable, escaped in HTML; there is no logic."""

    channel: Channel
    locale: Locale
    subject: Annotated[str, StringConstraints(max_length=998)] | None = None
    text: Annotated[str, StringConstraints(min_length=1, max_length=100_000)]
    html: Annotated[str, StringConstraints(max_length=500_000)] | None = None


class VariableBody(Request):
    """A variable without a default must be given in every request."""

    default: str | None = None


class TemplateVersionRequest(Request):
    parts: list[TemplatePartBody] = Field(min_length=1, max_length=200)
    variables: dict[str, VariableBody] = {}
    default_locale: Locale = "en"
    publish: bool = False


class TemplatePartAnswer(Wire):
    channel: Channel
    locale: str
    subject: str | None = None
    text: str
    html: str | None = None


class TemplateVersionAnswer(Wire):
    template_id: str
    version: int
    published: bool
    current: bool
    default_locale: str
    variables: dict[str, dict[str, str]] = {}
    parts: list[TemplatePartAnswer] = []


class PreviewRequest(Request):
    """Render for a real recipient; nothing is sent."""

    recipient_id: RecipientId
    channel: Channel
    variables: Variables = {}
    version: int | None = None


class PreviewAnswer(Wire):
    channel: Channel
    locale: str
    locale_fallback: bool
    """The recipient's language is not among the template's."""
    version: int
    subject: str | None = None
    text: str
    html: str | None = None
    bytes: int
    sms_segments: int | None = None
    sms_encoding: str | None = None


class CategoryRequest(Request):
    message_class: MessageClass
    ladder: list[Channel] = Field(min_length=1, max_length=4)
    ttl_seconds: int = Field(gt=0, le=31_536_000)
    quiet_hours: bool | None = None
    """Marketing keeps them always; transactional when this says so."""
    consent_required: bool | None = None
    unknown_policy: UnknownPolicy | None = None
    priority: int = Field(3, ge=1, le=5)
    caps: list["CapBody"] = []
    over_cap: Literal["suppress", "defer"] = "suppress"


class CapBody(Request):
    scope: Literal["category", "channel", "marketing"]
    per: Literal["day", "week"]
    limit: int | None = Field(None, ge=0, le=10_000)
    """Left out: no cap. 0: never send."""


class CategoryAnswer(Wire):
    category: str
    message_class: MessageClass
    ladder: list[Channel]
    ttl_seconds: int
    quiet_hours: bool
    consent_required: bool
    unknown_policy: UnknownPolicy
    priority: int
    caps: list["CapAnswer"] = []
    over_cap: str


class CapAnswer(Wire):
    scope: str
    per: str
    limit: int | None = None
    means: str
    """In words: "no cap", "never send", "at most 3 a week"."""


# --- operations -----------------------------------------------------------------------------------------------------


class SuppressionBody(Request):
    """The address is hashed at once and not kept."""

    channel: Literal[Channel.EMAIL, Channel.SMS]
    address: Annotated[str, StringConstraints(min_length=3, max_length=320)]
    reason: Literal["manual", "hard_bounce", "complaint", "stop"] = "manual"


class SuppressionRef(Request):
    channel: Literal[Channel.EMAIL, Channel.SMS]
    address: Annotated[str, StringConstraints(min_length=3, max_length=320)]


class SuppressionAnswer(Wire):
    channel: Channel
    address_hash: str
    reason: str
    source: str
    at: datetime | None = None


class DeadLetterAnswer(Wire):
    id: UUID
    kind: Kind
    ref_id: UUID
    recipient_id: str
    category: str
    channel: Channel | None = None
    state: str
    code: str
    last_error: str
    status: str
    replays: int
    created_at: datetime | None = None


class AuditEntry(Wire):
    at: datetime
    actor: str
    action: str
    target: str
    detail: dict[str, Any] = {}


class Health(Wire):
    """`degraded`: it works without that part, more slowly."""

    status: Literal["ok", "degraded", "unavailable"]
    checks: dict[str, str] = {}
