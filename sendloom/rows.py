"""Rows of the resources that callers and operators manage, as the stores hand them out. What sends need is in `ports.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from schemas.kinds import Channel
from sendloom.ports import ApiKey, Tenant


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key and the tenant it belongs to, read together."""

    key: ApiKey
    tenant: Tenant
    secret_hash: bytes
    label: str
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """`scope` is tenant, category, lane or campaign; `name` is which."""

    scope: str
    name: str
    reason: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class AddressWrite:
    """An address in its deliverable form, and in the form it is found by."""

    channel: Channel
    deliverable: str
    lookup: str
    verified: bool = False


@dataclass(frozen=True, slots=True)
class RecipientWrite:
    """Creates or changes one recipient; None leaves a field as it is, an address not given stays."""

    recipient_id: str
    locale: str | None = None
    zone: str | None = None
    attributes: Mapping[str, Any] | None = None
    internal: bool | None = None
    addresses: tuple[AddressWrite, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredAddress:
    """`sealed` opens (purpose `address`) to the deliverable form."""

    channel: Channel
    address_hash: bytes
    sealed: bytes
    verified_at: datetime | None
    dead_at: datetime | None
    dead_reason: str | None
    suppressed: str | None


@dataclass(frozen=True, slots=True)
class StoredDevice:
    device_id: str
    channel: Channel
    registered_at: datetime
    last_seen_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecipientRow:
    recipient_id: str
    locale: str | None
    zone: str | None
    attributes: Mapping[str, Any]
    internal: bool
    created_at: datetime
    updated_at: datetime
    erased_at: datetime | None
    addresses: tuple[StoredAddress, ...] = ()
    devices: tuple[StoredDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Preference:
    """`*` is all marketing, and all channels."""

    category: str
    channel: str
    opted_out: bool
    source: str
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Consent:
    """What the person agreed to, when, where and in which words."""

    category: str
    channel: str
    granted: bool
    at: datetime
    source: str
    wording: str


@dataclass(frozen=True, slots=True)
class Suppression:
    channel: Channel
    address_hash: bytes
    reason: str
    source: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TemplateVersion:
    template_id: str
    version: int
    published_at: datetime | None
    current: bool
    default_locale: str
    variables: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PartWrite:
    channel: Channel
    locale: str
    subject: str | None
    text: str
    html: str | None = None


@dataclass(frozen=True, slots=True)
class ListRecord:
    list_id: str
    name: str
    current_version: UUID | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """`version` counts changes of the definition."""

    segment_id: str
    name: str
    definition: Mapping[str, Any]
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """How many of those scanned are in it. `complete`: that was everybody."""

    members: int
    scanned: int
    complete: bool
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What one uploaded chunk came to. `errors`: the first 100, as {line, column, code, detail}."""

    chunk: int
    sha256: bytes
    first_line: int
    lines: int
    accepted: int
    errors: tuple[Mapping[str, Any], ...] = ()
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: datetime
    actor: str
    action: str
    target: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trigger:
    """One fire of something scheduled: when it should have been, when it was, who asked."""

    trigger_id: UUID
    scheduled_for: datetime
    kind: str
    status: str
    by: str = ""
    fired_at: datetime | None = None
    ref_id: UUID | None = None
    missed: int = 0
    """How many runs in a row this line stands for, when they were left out."""
    missed_until: datetime | None = None
    reason: str = ""
