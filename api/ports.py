"""What only the API needs of the world: credentials, the resources callers manage, and running workflows.

What it shares with the workers is in `sendloom/ports.py`. Adapters meet these in `api/wiring.py`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from schemas.campaigns import ControlSignal, DueInput
from schemas.kinds import Channel
from schemas.notifications import CheckResult, Due
from sendloom.domain.list_lines import ListRow
from sendloom.domain.segments import Segment
from sendloom.ports import (
    AcceptedRow,
    CatalogStore,
    Category,
    ListNames,
    ListVersion,
    ScheduleRow,
    SegmentStore,
)
from sendloom.rows import (
    AuditEntry,
    ChunkRecord,
    Consent,
    ListRecord,
    PartWrite,
    Preference,
    RecipientRow,
    RecipientWrite,
    SegmentLook,
    SegmentRecord,
    StoredKey,
    Suppression,
    TemplateVersion,
    Trigger,
)

# --- running workflows ----------------------------------------------------------------------------------------------


class TooLate(Exception):
    """The workflow refused an update: it is past the point. The message says why."""


class Gone(Exception):
    """There is no such workflow running: it ended, or was never started."""


class Workflows(Protocol):
    """Running workflows, by the id of what they carry. Every method raises Transient when Temporal does not answer."""

    async def start(self, row: AcceptedRow, *, again: bool = False) -> None:
        """Start it with its stored input; one that exists already is success. `again`: also when one has ended."""
        ...

    async def cancel_notification(self, id: UUID, reason: str, by: str) -> None:
        """
        Raises:
            Gone, TooLate.
        """
        ...

    async def cancel_fired(self, reminder_id: UUID, reason: str, by: str) -> None:
        """The notification that a reminder's own workflow sends.

        Raises:
            Gone, TooLate.
        """
        ...

    async def check_passcode(self, id: UUID, code: str) -> CheckResult:
        """
        Raises:
            Gone.
        """
        ...

    async def resend_passcode(self, id: UUID, key: str) -> int:
        """
        Raises:
            Gone, TooLate.
        """
        ...

    async def cancel_passcode(self, id: UUID, reason: str, by: str) -> None:
        """
        Raises:
            Gone, TooLate.
        """
        ...

    async def reschedule_reminder(self, id: UUID, due: Due) -> None:
        """
        Raises:
            Gone, TooLate.
        """
        ...

    async def send_reminder_now(self, id: UUID, by: str) -> None:
        """
        Raises:
            Gone, TooLate.
        """
        ...

    async def cancel_reminder(self, id: UUID, reason: str, by: str) -> None:
        """
        Raises:
            Gone, TooLate.
        """
        ...

    async def signal_campaign(self, id: UUID, name: str, signal: ControlSignal) -> None:
        """Tell the workflow of a control row that is already written. Fails for nobody: one that is gone needs no telling, and one that
        cannot be told now is told later."""
        ...

    async def work_due(self, due: DueInput) -> None:
        """Rows were put into a bucket: the due loop looks at once, and is started again when it had ended."""
        ...

    async def apply_schedule(self, row: ScheduleRow) -> None:
        """Make Temporal's schedule agree with the row: create, change, pause or delete it."""
        ...


# --- the resources callers and operators manage ---------------------------------------------------------------------


class Keys(Protocol):
    async def find(self, tenant: str, key_id: str) -> StoredKey | None:
        """A key as stored, also one that has expired or was revoked."""
        ...


class Catalog(Keys, CatalogStore, Protocol):
    """Categories and templates, with what manages them."""

    async def categories(self, tenant: str) -> list[Category]: ...

    async def put_category(self, category: Category) -> None:
        """
        Raises:
            Refusal: `class_is_fixed`.
        """
        ...

    async def template_versions(self, tenant: str, template_id: str) -> list[TemplateVersion]: ...

    async def add_template_version(
        self,
        tenant: str,
        template_id: str,
        variables: Mapping[str, Mapping[str, str]],
        default_locale: str,
        parts: Sequence[PartWrite],
    ) -> int:
        """The next version, not published; its number."""
        ...

    async def publish(self, tenant: str, template_id: str, version: int) -> bool: ...


class Recipients(Protocol):
    async def upsert(self, tenant: str, recipients: Sequence[RecipientWrite]) -> None: ...

    async def get(self, tenant: str, recipient_id: str) -> RecipientRow | None: ...

    async def verify_address(
        self, tenant: str, recipient_id: str, channel: Channel, address_hash: bytes
    ) -> bool: ...

    async def remove_address(self, tenant: str, recipient_id: str, channel: Channel) -> bool: ...

    async def register_device(
        self, tenant: str, recipient_id: str, device_id: str, channel: Channel, token: str
    ) -> bool: ...

    async def remove_device(self, tenant: str, recipient_id: str, device_id: str) -> bool: ...

    async def set_preferences(
        self, tenant: str, recipient_id: str, preferences: Sequence[Preference]
    ) -> None: ...

    async def preferences(self, tenant: str, recipient_id: str) -> list[Preference]: ...

    async def record_consents(
        self, tenant: str, recipient_id: str, consents: Sequence[Consent]
    ) -> None: ...

    async def consents(self, tenant: str, recipient_id: str) -> list[Consent]: ...

    async def suppressions(
        self,
        tenant: str,
        channel: Channel | None,
        limit: int,
        after: tuple[str, bytes] | None = None,
    ) -> list[Suppression]: ...

    async def erase(self, tenant: str, recipient_id: str) -> bool: ...


class Lists(ListNames, Protocol):
    async def get(self, tenant: str, list_id: str) -> ListRecord | None: ...

    async def start_version(
        self, tenant: str, list_id: str, version_id: UUID, format: str
    ) -> ListVersion:
        """
        Raises:
            Refusal: `unknown_list`.
        """
        ...

    async def version(self, tenant: str, version_id: UUID) -> ListVersion | None: ...

    async def versions(self, tenant: str, list_id: str) -> list[ListVersion]: ...

    async def chunks(self, tenant: str, version_id: UUID) -> list[ChunkRecord]: ...

    async def chunk(self, tenant: str, version_id: UUID, chunk: int) -> ChunkRecord | None: ...

    async def add_chunk(
        self,
        tenant: str,
        version_id: UUID,
        chunk: int,
        sha256: bytes,
        first_line: int,
        lines: int,
        rows: Sequence[ListRow],
        errors: Sequence[Mapping[str, Any]] = (),
    ) -> ChunkRecord:
        """
        Raises:
            Refusal: `unknown_version`, `version_closed`, `chunk_conflict`.
        """
        ...

    async def make_ready(self, tenant: str, version_id: UUID) -> ListVersion:
        """
        Raises:
            Refusal: `unknown_version`.
        """
        ...


class Segments(SegmentStore, Protocol):
    async def put(
        self, tenant: str, segment_id: str, name: str, definition: Any, by: str
    ) -> SegmentRecord: ...

    async def recent(self, tenant: str, limit: int, after: str = "") -> list[SegmentRecord]: ...

    async def delete(self, tenant: str, segment_id: str) -> bool: ...

    async def look(self, tenant: str, segment: Segment, first: int) -> SegmentLook:
        """A bounded count, with the ids of the first so many members."""
        ...


class Limits(Protocol):
    async def take(
        self, tenant: str, subject: str, limit: int, window: timedelta
    ) -> datetime | None:
        """Count one. None: it may go on; otherwise when the window ends."""
        ...


class Audit(Protocol):
    async def add(
        self, tenant: str, actor: str, action: str, target: str, detail: Mapping[str, Any] = ...
    ) -> None: ...

    async def recent(
        self, tenant: str, limit: int, before: int | None = None, target: str | None = None
    ) -> list[tuple[int, AuditEntry]]: ...


class Triggers(Protocol):
    """The trigger log (REM-6)."""

    async def between(
        self, tenant: str, first: datetime, last: datetime, limit: int = ...
    ) -> list[Trigger]: ...

    async def of_trigger(
        self, tenant: str, trigger_id: UUID, limit: int = ..., before: datetime | None = None
    ) -> list[Trigger]: ...
