"""What Sendloom needs from the world, in its own words. Adapters live in `sendloom/stores` and `sendloom/providers`.

Stores raise `StoreUnavailable` when the database does not answer, and `Refusal` only where a method says so. Providers
never raise for what a provider or the network did: they answer with a `CallOutcome`. Every method takes the tenant; none
reads by id alone.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from schemas.campaigns import Control, Counts, DueView, Frozen, SettleResult
from schemas.kinds import (
    CampaignPhase,
    Channel,
    ClaimState,
    ControlState,
    Kind,
    MessageClass,
    Mode,
    RecipientState,
    UnknownPolicy,
)
from schemas.messages import Outbound
from schemas.notifications import DecisionKey, DeliveryKey, trusted_decision_key
from schemas.outcomes import CallOutcome
from schemas.schedules import (
    CatchUpRule,
    Overlap,
    RecurringContent,
    ScheduleKind,
    ScheduleState,
    SeriesContent,
    TriggerStatus,
)
from sendloom.domain.guard_rails import Tally
from sendloom.domain.outcomes import Cause
from sendloom.domain.segments import Segment

if TYPE_CHECKING:
    from sendloom.rows import SegmentRecord, Suppression

# --- rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant: str
    name: str
    default_zone: str
    default_locale: str
    default_region: str
    email_from: str | None
    email_from_name: str
    sms_from: str | None
    quiet_start: time
    quiet_end: time
    settings: Mapping[str, Any]
    disabled: bool


@dataclass(frozen=True, slots=True)
class ApiKey:
    tenant: str
    key_id: str
    kind: str
    """live, team or test"""
    scopes: frozenset[str]
    categories: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Category:
    tenant: str
    category: str
    message_class: MessageClass
    ladder: tuple[Channel, ...]
    ttl_seconds: int
    quiet_hours: bool
    consent_required: bool
    unknown_policy: UnknownPolicy
    priority: int
    caps: tuple[Mapping[str, Any], ...]
    """[{scope: category|channel|marketing, per: day|week, limit: int}]; empty: no cap."""
    over_cap: str


@dataclass(slots=True)
class Address:
    """`sealed` opens to the deliverable form."""

    address_hash: bytes
    sealed: bytes
    verified: bool
    dead_reason: str | None


@dataclass(frozen=True, slots=True)
class Device:
    device_id: str
    channel: Channel
    sealed: bytes


@dataclass(slots=True)
class Person:
    """Everything the gates need to know of one recipient for one category, read in one go."""

    recipient_id: str
    exists: bool
    locale: str | None = None
    zone: str | None = None
    erased: bool = False
    addresses: dict[Channel, Address] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    opted_out: frozenset[str] = frozenset()
    """Channels ('*' for all) opted out of for this category or for all marketing."""
    consented: frozenset[str] = frozenset()
    """Channels ('*' for all) with recorded consent for this category."""
    suppressed: dict[Channel, str] = field(default_factory=dict)
    """Channel → reason, for the addresses above."""
    suppressions_unread: bool = False
    """Nobody could look at them: only for security, which then uses what was stamped at accept (POL-7)."""
    cap_uses: dict[str, list[date]] = field(default_factory=dict)
    """Scope → local days used, over the last 8 days; filled only when the category has caps."""


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """One channel and locale of one template version."""

    template_id: str
    version: int
    channel: Channel
    locale: str
    subject: str | None
    text: str
    html: str | None
    variables: Mapping[str, Mapping[str, str]]
    default_locale: str


@dataclass(frozen=True, slots=True)
class AcceptedRow:
    """What we promised. `workflow_input` and `content` are opened JSON here, sealed at rest."""

    tenant: str
    id: UUID
    mode: Mode
    kind: Kind
    idempotency_key: str
    body_hmac: bytes
    message_class: MessageClass
    category: str
    recipient_id: str | None
    accepted_at: datetime
    expires_at: datetime
    workflow_input: bytes
    content: bytes
    due_at: datetime | None = None
    correlation_id: str | None = None
    parent_id: UUID | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    outcome: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Decision:
    """What we resolved to do for one person."""

    key: DecisionKey
    state: RecipientState
    channel: Channel | None = None
    rung: int = 0
    send_no: int = 1
    attempt: int = 0
    reason: str | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CapUse:
    """Consumed with the decision, keyed by its id and local day: a repeat changes nothing.

    `limit_day` and `limit_week` (None: no such limit) are checked again under a lock when it is consumed.
    """

    recipient_id: str
    scope: str
    local_day: date
    limit_day: int | None
    limit_week: int | None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A single notification's fixed payload."""

    key: DeliveryKey
    address_hash: bytes
    payload: bytes
    """Opened JSON of an Outbound; sealed at rest."""


@dataclass(slots=True)
class Move:
    """One compare-and-set on a decision: applied only if its state is one of `expect` (checked against DECISION_MOVES).

    None leaves a column as it is; `due_at` is always written (None clears the bucket).
    """

    key: DecisionKey
    expect: frozenset[RecipientState]
    to: RecipientState
    cause: Cause
    reason: str | None = None
    channel: Channel | None = None
    rung: int | None = None
    send_no: int | None = None
    attempt: int | None = None
    not_before: datetime | None = None
    not_after: datetime | None = None
    due_at: datetime | None = None

    @classmethod
    def proven(cls, page: "ClaimScope") -> "Move":
        """Of anybody in this page whose message is with the provider, whatever was thought before. Its key names nobody."""
        key = trusted_decision_key(
            page.tenant, page.frozen_at, page.campaign_id, page.shard, page.page, ""
        )
        return cls(key, _ANY_BUT_SENT, RecipientState.SENT, Cause.PROOF)


_ANY_BUT_SENT = frozenset(RecipientState) - {RecipientState.SENT}


# --- the ledger -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """One ledger partition. `epoch` fences: a claim under an older epoch than the shard's wins nothing (raises Fenced)."""

    tenant: str
    frozen_at: datetime
    campaign_id: UUID
    shard: int
    page: int
    channel: Channel
    epoch: int | None = None


@dataclass(slots=True)
class Want:
    """One claim wanted. `retry_of`: the failed attempt this one follows; `resume_unknown_of`: the unknown attempt, by policy or replay."""

    recipient_id: str
    send_no: int = 1
    device: str = ""
    retry_of: int | None = None
    resume_unknown_of: int | None = None

    @property
    def attempt(self) -> int:
        """The attempt it would be."""
        return (self.retry_of or self.resume_unknown_of or 0) + 1


@dataclass(slots=True)
class Won:
    attempt: int
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class InFlight:
    """Somebody else's lease runs until then."""

    until: datetime
    attempt: int


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A lease ended without a record: it must be settled (as unknown) before anything else."""

    attempt: int
    owner: UUID


@dataclass(frozen=True, slots=True)
class Done:
    """There is an outcome. A `failed` one may be wanted again with `retry_of=attempt`."""

    state: ClaimState
    attempt: int
    code: str | None
    provider: str | None
    provider_message_id: str | None


ClaimAnswer = Won | InFlight | InDoubt | Done


@dataclass(slots=True)
class ClaimResult:
    """What a call came to, by the claim's owner."""

    recipient_id: str
    attempt: int
    owner: UUID
    state: ClaimState
    send_no: int = 1
    device: str = ""
    provider: str | None = None
    provider_message_id: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claim as stored."""

    key: DeliveryKey
    state: ClaimState
    attempt: int
    owner: UUID
    lease_until: datetime
    lease_over: bool
    """Judged by the store's clock."""
    provider: str | None
    provider_message_id: str | None
    code: str | None
    recorded_at: datetime | None
    delivered_at: datetime | None
    opened_at: datetime | None
    bounced_at: datetime | None
    complained_at: datetime | None = None


class ReceiptStatus(StrEnum):
    """What may be said of a delivery after its provider took it."""

    DELIVERED = "delivered"
    OPENED = "opened"
    BOUNCED = "bounced"
    COMPLAINED = "complained"


@dataclass(frozen=True, slots=True)
class Receipt:
    key: DeliveryKey
    status: ReceiptStatus
    at: datetime


class Complaints(NamedTuple):
    """How many deliveries of a campaign came back, or made somebody complain."""

    bounced: int
    complained: int


class Ledger(Protocol):
    """What sending needs of the ledger: claims and suppressions."""

    async def claim(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> list[ClaimAnswer]:
        """One answer per want, in order, in one statement when nothing conflicts.

        Raises:
            Fenced: the scope's epoch is no longer the shard's.
            StoreUnavailable: nothing is known to be claimed.
        """
        ...

    async def record(self, scope: ClaimScope, results: Sequence[ClaimResult]) -> None:
        """Merge outcomes by the rules of `domain.outcomes.merge`. A missing claim is inserted with its outcome (POL-7)."""
        ...

    async def read(self, scope: ClaimScope, wants: Sequence[Want]) -> list[ClaimRow | None]: ...

    async def settle(self, scope: ClaimScope) -> int:
        """Make every ended lease of the partition unknown; how many."""
        ...

    async def of_campaign(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID
    ) -> list[ClaimRow]:
        """Every claim of a single notification (its own campaign), for views."""
        ...

    async def suppress(
        self, tenant: str, channel: Channel, address_hash: bytes, reason: str, source: str
    ) -> None:
        """The first reason stays, except that complaint and stop outrank hard_bounce and manual."""
        ...

    async def unsuppress(self, tenant: str, channel: Channel, address_hash: bytes) -> bool: ...

    async def suppression(
        self, tenant: str, channel: Channel, address_hashes: Sequence[bytes]
    ) -> dict[bytes, str]: ...


class DeliveryLog(Protocol):
    """What was done for whom, and what receipts said of it later."""

    async def receive(self, receipts: Sequence[Receipt]) -> None:
        """Each status has a time of its own, so they may come in any order, and again: the earliest stays."""
        ...

    async def complaints(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID
    ) -> Complaints: ...

    async def of_shard(self, scope: ClaimScope, pages: Sequence[int]) -> list[ClaimRow]:
        """Every claim of these pages of the scope's shard and channel, in (page, recipient) order."""
        ...

    async def of_recipient(self, tenant: str, recipient_id: str, day: date) -> list[ClaimRow]:
        """What was claimed for them on that day (UTC), in that order."""
        ...

    async def suppressions(
        self,
        tenant: str,
        channel: Channel | None,
        limit: int,
        after: tuple[str, bytes] | None = None,
    ) -> "list[Suppression]":
        """In (channel, hash) order, after that of the last one seen."""
        ...

    async def settle_orphans(self, over_for: timedelta, limit: int) -> int:
        """Make unknown what nobody has settled so long after its lease's end, over all tenants; how many."""
        ...


class FullLedger(Ledger, DeliveryLog, Protocol):
    """Claims, delivery log and suppressions. Two implementations, one contract test suite."""


# --- stores ---------------------------------------------------------------------------------------------------------


class AcceptedStore(Protocol):
    async def insert_or_match(self, row: AcceptedRow) -> tuple[AcceptedRow, bool]:
        """The stored row and whether it existed already. The first writer's content wins.

        Raises:
            Refusal: `key_reused` (409) when the stored body HMAC differs.
        """
        ...

    async def mark_started(self, tenant: str, id: UUID) -> None: ...

    async def close(self, tenant: str, id: UUID, outcome: Mapping[str, Any]) -> None:
        """Idempotent; the first outcome stays, except that a later `accepted` replaces anything."""
        ...

    async def get(self, tenant: str, id: UUID) -> AcceptedRow | None: ...

    async def set_due(self, tenant: str, id: UUID, due_at: datetime) -> None: ...

    async def by_recipient(
        self, tenant: str, recipient_id: str, limit: int, before: datetime | None = None
    ) -> list[AcceptedRow]: ...

    async def by_correlation(self, tenant: str, correlation_id: str) -> list[AcceptedRow]: ...

    async def unstarted(self, older_than: timedelta, limit: int) -> list[AcceptedRow]:
        """Rows a crash left between accept and start, over all tenants; for the sweeper."""
        ...

    async def open_rows(self, after: tuple[str, UUID] | None, limit: int) -> list[AcceptedRow]:
        """Every row not closed, in (tenant, id) order; for rebuild."""
        ...

    async def purge(self, closed_before: datetime, limit: int) -> int: ...


class PeopleStore(Protocol):
    async def people(
        self,
        tenant: str,
        category: str,
        recipient_ids: Sequence[str],
        cap_days: bool,
        *,
        channels: Sequence[Channel] | None = None,
        unread: bool = False,
    ) -> list[Person]:
        """One Person per id, in order, in one statement. `unread`: also while suppressions cannot be read, for who only takes
        something on; it is asked again before anything leaves.

        `category` selects preferences and consents, and its ladder which addresses and devices are looked for; for a campaign its
        own `channels` do.
        """
        ...


class CatalogStore(Protocol):
    async def tenant(self, tenant: str) -> Tenant | None: ...

    async def category(self, tenant: str, category: str) -> Category | None: ...

    async def template_parts(
        self, tenant: str, template_id: str, version: int | None
    ) -> list[TemplateParts]:
        """All channels and locales of one version (None: the current one); empty when there is none."""
        ...

    async def killed(self, tenant: str, category: str, lane: str, campaign_id: UUID) -> str | None:
        """The reason of a kill switch that is on, or None."""
        ...


class DecisionStore(Protocol):
    async def insert(
        self,
        decisions: Sequence[Decision],
        deliveries: Sequence[DeliveryRow] = (),
        caps: Sequence[CapUse] = (),
    ) -> list[Decision]:
        """Insert if absent, in one transaction with cap uses; the stored ones, in order.

        A cap found full under the lock turns that decision into suppressed `frequency_cap` before it is inserted.
        """
        ...

    async def insert_page(
        self, recipient_ids: Sequence[str], cohorts: Sequence[int], like: Sequence[Decision]
    ) -> bool:
        """One page's decisions at once, each person's like their cohort's. False: somebody has one already, and none is inserted."""
        ...

    async def read(self, key: DecisionKey) -> Decision | None: ...

    async def move(self, moves: Sequence[Move]) -> int:
        """Apply the compare-and-sets; how many matched. A move out of pending/deferred to anything but sent gives caps back."""
        ...

    async def move_page(self, recipient_ids: Sequence[str], like: Move) -> int:
        """As `move` for all of these, of the page that `like.key` names, each as `like` says."""
        ...

    async def use_caps(
        self, tenant: str, campaign_id: UUID, caps: Sequence[CapUse]
    ) -> frozenset[str]:
        """For decisions that were deferred and can leave now: consume, under the lock; the recipients for whom a cap is full."""
        ...

    async def delivery(self, key: DeliveryKey) -> DeliveryRow | None: ...

    async def add_delivery(self, row: DeliveryRow) -> DeliveryRow:
        """Insert if absent (a resend, a later rung); the stored one."""
        ...

    async def by_recipient(self, tenant: str, recipient_id: str, limit: int) -> list[Decision]: ...


class SentStore(Protocol):
    async def write(
        self, scope: ClaimScope, owner: UUID, provider: str, sent: Mapping[str, str]
    ) -> None:
        """Of first attempts of first sends that the provider took, its message id by recipient: their claims recorded as
        `Ledger.record` does, and then their decisions moved as `DecisionStore.move` does."""
        ...


class DeadLetterStore(Protocol):
    async def add(self, letters: Sequence["DeadLetter"]) -> None:
        """Insert, or reopen with the newer error."""
        ...

    async def by_status(
        self, tenant: str, status: str, limit: int, after: UUID | None = None
    ) -> list["DeadLetter"]: ...

    async def get(self, tenant: str, id: UUID) -> "DeadLetter | None": ...

    async def resolve(self, tenant: str, id: UUID, status: str, by: str) -> bool:
        """open → replayed or discarded; False when it was not open."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    id: UUID
    kind: Kind
    ref_id: UUID
    decision: DecisionKey
    category: str
    channel: Channel | None
    state: str
    code: str
    last_error: str
    created_at: datetime | None = None
    status: str = "open"
    replays: int = 0


@dataclass(frozen=True, slots=True)
class PasscodeRow:
    tenant: str
    id: UUID
    code_hmac: bytes
    checks_left: int
    send_no: int
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    cancelled_at: datetime | None


class PasscodeStore(Protocol):
    async def insert(self, row: PasscodeRow) -> None:
        """If absent."""
        ...

    async def get(self, tenant: str, id: UUID) -> PasscodeRow | None: ...

    async def take_check(self, tenant: str, id: UUID) -> PasscodeRow | None:
        """Count one check durably, before anything is compared; the row after. None: unknown id.

        `checks_left` in the answer is -1 when there was none left to take.
        """
        ...

    async def mark_used(self, tenant: str, id: UUID) -> bool:
        """True for exactly one caller."""
        ...

    async def take_resend(self, tenant: str, id: UUID, key: str) -> int:
        """The send number of this resend key; the same key gives the same number."""
        ...

    async def cancel(self, tenant: str, id: UUID) -> bool: ...


# --- campaigns ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CampaignRow:
    tenant: str
    campaign_id: UUID
    mode: Mode
    name: str
    category: str
    template_id: str
    template_version: int
    list_id: str
    version_id: UUID | None
    spec: Mapping[str, Any]
    variables: Mapping[str, Any]
    phase: CampaignPhase
    reason: str
    size: int | None
    shards: int | None
    page_size: int | None
    frozen_at: datetime | None
    expires_at: datetime | None
    created_at: datetime
    closed_at: datetime | None
    last_send_at: datetime | None
    created_by: str = ""
    """Who asked for it, as the audit log knows them."""
    approved_by: str | None = None
    """The second person, where one is needed."""
    channels: tuple[Channel, ...] | None = None
    """Where it sends, first tried first; pinned. None before the freeze, and where it was frozen before they were."""


@dataclass(slots=True)
class Member:
    """Somebody of a frozen audience, with what a message to them needs."""

    recipient_id: str
    variables: Mapping[str, Any]
    person: Person


@dataclass(slots=True)
class PagePeople:
    """Who is on a page of a frozen list. People of one cohort are the same to the gates, so one verdict is everybody's."""

    recipient_ids: list[str]
    cohorts: list[int]
    """Beside each id the number of its cohort."""
    people: list[Person]
    """By cohort: one of them. Locale and addresses are that one's own."""


@dataclass(slots=True)
class PageSend:
    """One pending decision of a page on one channel, with everything a send needs, read in one statement (also the last look)."""

    recipient_id: str
    variables: Mapping[str, Any]
    locale: str | None
    zone: str | None
    attempt: int
    send_no: int
    not_before: datetime | None
    not_after: datetime | None
    address: Address | None
    suppressed: str | None
    opted_out: bool
    erased: bool
    reason: str | None = None
    """The decision's; `REPLAYED` marks an operator's wish to send again whatever is unknown."""


@dataclass(frozen=True, slots=True)
class Health:
    """What receipts said of a campaign, and what somebody has looked at already."""

    bounced: int
    complained: int
    seen: Tally
    """As it was when a guard rail last stopped it."""
    control_at: datetime | None
    """When its control row was last written."""


REPLAYED = "replayed"


class CampaignStore(Protocol):
    async def insert(self, row: CampaignRow) -> None:
        """If absent, with a control row: running, version 0."""
        ...

    async def get(self, tenant: str, campaign_id: UUID) -> CampaignRow | None: ...

    async def recent(self, tenant: str, limit: int) -> list[CampaignRow]: ...

    async def freeze(
        self, tenant: str, campaign_id: UUID, frozen_at: datetime, channels: Sequence[Channel]
    ) -> Frozen:
        """Pin the list's current ready version and the channels, once; a repeat returns what was pinned.

        One frozen before channels were pinned has none, and is answered with what is given.

        Raises:
            Refusal: `list_not_ready`, `list_failed`, `list_empty`, `unknown_list`.
        """
        ...

    async def set_phase(
        self, tenant: str, campaign_id: UUID, phase: CampaignPhase, reason: str = ""
    ) -> None: ...

    async def sent_now(self, tenant: str, campaign_id: UUID) -> None:
        """Something of it has just left; sets `last_send_at`."""
        ...

    async def health(self, campaign: CampaignRow) -> Health:
        """From the outcome columns of its claims."""
        ...

    async def note_seen(self, tenant: str, campaign_id: UUID, tally: Tally) -> None:
        """A guard rail has stopped it over this."""
        ...

    async def list_failure(self, tenant: str, campaign_id: UUID) -> str | None:
        """Why the pinned list failed after launch, or None."""
        ...

    async def control(self, tenant: str, campaign_id: UUID) -> Control: ...

    async def set_control(
        self,
        tenant: str,
        campaign_id: UUID,
        state: ControlState | None,
        rate_per_second: float | None,
        reason: str,
        by: str,
    ) -> Control:
        """The next version. None leaves that part as it is; a cancelled row never changes again (it is returned as it is)."""
        ...

    async def controls_changed_since(self, at: datetime) -> dict[tuple[str, UUID], Control]:
        """Every control row written since, over all tenants; each sender process reads it every 250 ms."""
        ...

    async def take_epoch(self, tenant: str, campaign_id: UUID, shard: int, stage: str) -> int:
        """The next epoch of (shard, stage); fences every older holder."""
        ...

    async def cursor(
        self, tenant: str, campaign_id: UUID, shard: int, stage: str
    ) -> tuple[int, bool]:
        """(next page, closed)."""
        ...

    async def advance(
        self,
        tenant: str,
        campaign_id: UUID,
        shard: int,
        stage: str,
        epoch: int,
        page: int,
        closed: bool,
    ) -> None:
        """Written with or after the page's outcomes, never before; never backwards.

        Raises:
            Fenced: the epoch is no longer ours.
        """
        ...

    async def pages(self, tenant: str, version_id: UUID, shard: int) -> list[tuple[int, int]]:
        """(page, size) of a shard, in order."""
        ...

    async def page_people(
        self,
        tenant: str,
        category: str,
        version_id: UUID,
        shard: int,
        page: int,
        cap_days: bool,
        *,
        channels: Sequence[Channel] | None = None,
    ) -> PagePeople:
        """A page's people, in one statement. `channels`: as in `people`."""
        ...

    async def sample(
        self,
        tenant: str,
        category: str,
        version_id: UUID,
        most: int,
        *,
        channels: Sequence[Channel] | None = None,
    ) -> list[Member]:
        """At most so many people, evenly over the audience; always the same ones. `channels`: as in `people`."""
        ...

    async def approve(self, tenant: str, campaign_id: UUID, by: str) -> bool:
        """Durably, once, while it waits for that and by somebody else than who asked for it. False: none of that is so."""
        ...

    async def page_sends(
        self, campaign: CampaignRow, shard: int, page: int, channel: Channel
    ) -> list[PageSend]:
        """Pending decisions without a bucket, in recipient order; in one statement."""
        ...

    async def due_sends(
        self, campaign: CampaignRow, channel: Channel, before: datetime, limit: int
    ) -> list[tuple[int, int, list[PageSend]]]:
        """Rows whose bucket has come, grouped by (shard, page), in that order. Deferred rows are moved to pending."""
        ...

    async def due(self, tenant: str, campaign_id: UUID) -> DueView: ...

    async def summarise(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID, pages: Sequence[tuple[int, int]]
    ) -> None:
        """Recompute these pages' summaries from their rows, each under its lock, and overwrite."""
        ...

    async def counts(self, tenant: str, campaign_id: UUID) -> Counts:
        """Summaries, plus the sizes of pages without one as pending. Adds up to the frozen size, always."""
        ...

    async def reasons(self, tenant: str, frozen_at: datetime, campaign_id: UUID) -> dict[str, int]:
        """Recipients not sent to, by reason."""
        ...

    async def group(
        self,
        tenant: str,
        frozen_at: datetime,
        campaign_id: UUID,
        state: RecipientState,
        reason: str | None,
        limit: int,
        after: str | None,
    ) -> list[Decision]:
        """The recipients in one state, so that every number can be listed."""
        ...

    async def settle(self, campaign: CampaignRow, ledger: Ledger, bucket: datetime) -> SettleResult:
        """Ended leases become unknown; decisions whose claim has an outcome get it; missing rows get a bucket. Never sends."""
        ...

    async def cancel_rest(
        self,
        campaign: CampaignRow,
        shard: int | None,
        reason: str,
        ledger: Ledger | None = None,
    ) -> int:
        """Write every row without a final state as cancelled (also rows never planned), and recompute summaries.

        With a ledger, rows claimed at this moment stay pending for settle, and what has an outcome gets it.
        """
        ...

    async def replay(
        self, campaign: CampaignRow, states: Sequence[RecipientState], bucket: datetime
    ) -> int:
        """failed and unknown → pending with a bucket and the reason `REPLAYED`, by an operator."""
        ...


@dataclass(frozen=True, slots=True)
class ListVersion:
    tenant: str
    list_id: str
    version_id: UUID
    state: str
    format: str
    size: int | None
    rejected: int
    reason: str | None
    created_at: datetime


WRITTEN = "written"
"""The format of a version that nobody uploads: we write it at launch."""
Between = Callable[[], Awaitable[None]]
"""Called before every chunk; what it raises stops the writing, and a repeat goes on with it."""


class Audiences(Protocol):
    """Audiences that are written out as a list version when a campaign is launched."""

    async def write_sent(
        self,
        tenant: str,
        list_id: str,
        version_id: UUID,
        source: CampaignRow,
        between: Between = ...,
    ) -> ListVersion:
        """A list version of exactly those who got a campaign; a repeat finds it done.

        Raises:
            Refusal: `campaign_not_frozen`.
        """
        ...

    async def write_segment(
        self,
        tenant: str,
        list_id: str,
        version_id: UUID,
        segment: Segment,
        between: Between = ...,
    ) -> ListVersion:
        """A list version of who is in a segment, chunk by chunk; a repeat goes on after the last chunk, or finds it done."""
        ...

    async def fail(self, tenant: str, version_id: UUID, reason: str) -> bool:
        """It is not gone on with; what was written goes."""
        ...


class SegmentStore(Protocol):
    """Segments as campaigns need them: to copy one as it is."""

    async def get(self, tenant: str, segment_id: str) -> "SegmentRecord | None": ...


class ListNames(Protocol):
    """Lists, before there is anything in them."""

    async def create(self, tenant: str, list_id: str, name: str = "") -> None:
        """If absent; a name given replaces the one there."""
        ...


# --- what recurs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """Something that recurs. Temporal's schedule wakes us; this row and the trigger log say what is owed."""

    tenant: str
    id: UUID
    mode: Mode
    kind: ScheduleKind
    body_hmac: bytes
    name: str
    category: str
    recipient_id: str | None
    content: RecurringContent
    """Sealed at rest."""
    cron: str | None
    every_seconds: int | None
    zone: str
    overlap: Overlap
    catch_up: CatchUpRule
    catch_up_seconds: int
    catch_up_max: int
    jitter_seconds: int
    state: ScheduleState
    handled_until: datetime
    """Every scheduled time up to here has its line in the trigger log."""
    next_at: datetime
    created_by: str
    created_at: datetime
    version: int = 1
    applied_version: int = 0
    """What Temporal has been told."""


@dataclass(frozen=True, slots=True)
class Fire:
    """One line of the trigger log, as it is written when a run is judged."""

    scheduled_for: datetime
    status: TriggerStatus
    by: str
    missed: int = 0
    missed_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A reminder series. Its members are reminders with derived ids."""

    tenant: str
    id: UUID
    mode: Mode
    body_hmac: bytes
    category: str
    recipient_id: str
    correlation_id: str
    event_at: datetime | None
    event_local: str | None
    content: SeriesContent
    """Sealed at rest."""
    created_at: datetime
    cancelled: bool = False
    version: int = 1


class ScheduleStore(Protocol):
    async def insert_or_match(self, row: ScheduleRow) -> tuple[ScheduleRow, bool]:
        """The stored row, and whether it was there before.

        Raises:
            Refusal: `key_reused`.
        """
        ...

    async def get(self, tenant: str, id: UUID) -> ScheduleRow | None:
        """Also one that was deleted."""
        ...

    async def of_tenant(
        self, tenant: str, limit: int, after: UUID | None = None
    ) -> list[ScheduleRow]:
        """Without the deleted ones, by id."""
        ...

    async def replace(self, row: ScheduleRow, version: int) -> ScheduleRow | None:
        """Write a new definition or state over `version`; the row as it is then. None: somebody else was quicker."""
        ...

    async def applied(self, tenant: str, id: UUID, version: int) -> None:
        """Temporal has been told of this version."""
        ...

    async def judge(
        self, row: ScheduleRow, until: datetime, next_at: datetime, fires: Sequence[Fire]
    ) -> bool:
        """Write down what is to be fired and what is left out, and that everything up to `until` is handled, at once.

        False: the row has changed since it was read, and nothing was written.
        """
        ...

    async def owed(self, tenant: str, id: UUID) -> list[datetime]:
        """Scheduled times that were judged owed and are not known to have been fired, oldest first."""
        ...

    async def settle(
        self,
        tenant: str,
        id: UUID,
        scheduled_for: datetime,
        status: TriggerStatus,
        ref_id: UUID | None = None,
        reason: str = "",
    ) -> None:
        """owed → what became of it."""
        ...

    async def last_fired(self, tenant: str, id: UUID, before: datetime) -> UUID | None:
        """What the latest earlier run was."""
        ...

    async def overdue(self, grace: timedelta, limit: int) -> list[tuple[str, UUID]]:
        """Schedules nobody woke us for, or whose owed runs were left, for this long."""
        ...

    async def unapplied(self, older_than: timedelta, limit: int) -> list[ScheduleRow]:
        """Those that Temporal has not been told of."""
        ...

    async def everywhere(self, after: tuple[str, UUID] | None, limit: int) -> list[ScheduleRow]:
        """Over all tenants, without the deleted ones; for rebuild."""
        ...


class SeriesStore(Protocol):
    async def insert_or_match(self, row: SeriesRow) -> tuple[SeriesRow, bool]:
        """
        Raises:
            Refusal: `key_reused`.
        """
        ...

    async def get(self, tenant: str, id: UUID) -> SeriesRow | None: ...

    async def replace(self, row: SeriesRow, version: int) -> SeriesRow | None:
        """Write it over `version`; None: somebody else was quicker."""
        ...


# --- providers, cache, control --------------------------------------------------------------------------------------


class Provider(Protocol):
    """One provider account on one lane."""

    name: str

    async def send(self, message: Outbound, message_class: MessageClass) -> CallOutcome:
        """One call. Never raises for what the provider or the network did."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class WireMail:
    """A mail ready for the wire: CRLF lines, dot-stuffed, without the final dot."""

    reference: str
    envelope_from: str
    envelope_to: str
    data: bytes


class BulkMailer(Protocol):
    """Many mails at once over kept connections; for campaigns."""

    name: str

    async def send_batch(
        self,
        mails: Sequence[WireMail],
        message_class: MessageClass,
        *,
        may_call: Callable[[], bool],
    ) -> list[CallOutcome]:
        """One outcome per mail, in order. `may_call` is looked at before each call; False: `Failed(not_called, counts=False)`."""
        ...

    async def close(self) -> None: ...


class SentCache(Protocol):
    """Redis remembers only `sent`; losing it loses nothing."""

    async def sent(self, delivery_id: str) -> str | None:
        """The provider's message id, or None (also when Redis is down)."""
        ...

    async def remember(self, delivery_id: str, provider_message_id: str) -> None: ...


class Tokens(Protocol):
    """Token buckets: campaign, tenant, provider account."""

    async def take(self, buckets: Sequence[tuple[str, float]], most: int) -> tuple[int, float]:
        """How many of `most` every bucket (name, rate per second) allows now, taken together, and the seconds until one more."""
        ...

    async def slow_down(self, name: str, base: float) -> float:
        """Multiplicative decrease of an adaptive bucket after a throttle; the new rate."""
        ...

    async def speed_up(self, name: str, base: float) -> float:
        """Additive increase after calm; the new rate."""
        ...


class Sealer(Protocol):
    """Sealing at rest, and keyed hashes."""

    def seal(self, purpose: str, tenant: str, plain: bytes) -> bytes: ...

    def open(self, purpose: str, tenant: str, sealed: bytes) -> bytes: ...

    def open_many(self, purpose: str, tenant: str, sealed: Sequence[bytes]) -> list[bytes]:
        """In order; the first that does not open raises."""
        ...

    def address_hash(self, tenant: str, channel: Channel, lookup_form: str) -> bytes: ...
