"""What travels for a campaign: references and counts, never recipients."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from schemas.kinds import (
    CampaignPhase,
    Channel,
    ControlState,
    LatenessPolicy,
    MessageClass,
    Mode,
    RecipientState,
)
from schemas.wire import Wire

Counts = dict[RecipientState, int]


class PinnedSegment(Wire):
    """A segment as it was when the campaign was created; what becomes of it later changes nothing."""

    segment_id: str
    version: int
    definition: dict[str, Any]


class CampaignSpec(Wire):
    """What the caller asked for, as kept in `campaigns.spec`; every part is optional."""

    send_at: datetime | None = None
    """Not before this instant."""
    local_time: datetime | None = None
    """A naive wall time: each recipient's own, split into waves by zone."""
    missed: LatenessPolicy = LatenessPolicy.SEND
    """What a recipient whose local moment has passed gets."""
    window: str | None = None
    """`09:00-20:00`: only then, recipient's time."""
    deadline: datetime | None = None
    """Paced so as to end by then, unless a rate is set."""
    rate_per_second: float | None = None
    sent_of: UUID | None = None
    """A correction: the audience is who got this campaign, written down as a list at launch."""
    segment: PinnedSegment | None = None
    """The audience is who is in it at launch, written down as a list."""


class CampaignRef(Wire):
    """Names one campaign."""

    tenant: str
    mode: Mode
    campaign_id: UUID


class CampaignInput(Wire):
    """Starts a `Campaign`."""

    tenant: str
    mode: Mode
    campaign_id: UUID
    accepted_at: datetime
    send_at: datetime | None = None
    shards_done: list[int] = []
    """Set only when it continues as new: shards that need not be visited again. Losing it costs a look at their cursors."""
    rolls: int = 0
    wish: "ControlWish | None" = None
    """What the run before had noted and not written yet."""


class Frozen(Wire):
    """What launch pinned. `frozen_at` names the partition for ever."""

    frozen_at: datetime
    size: int
    shards: int
    pages: int
    page_size: int
    channels: list[Channel]
    message_class: MessageClass
    expires_at: datetime


class Refused(Wire):
    """The launch cannot be; said with a code and examples."""

    kind: Literal["refused"] = "refused"
    code: str
    reason: str
    examples: list[str] = []


class FreezeResult(Wire):
    """Exactly one of `frozen` and `refused` is set, unless the campaign had ended before (`closed`)."""

    frozen: Frozen | None = None
    refused: Refused | None = None
    closed: CampaignPhase | None = None
    control: "Control | None" = None
    send_at: datetime | None = None
    rate_per_second: float | None = None
    """What the spec or its deadline asks for, if anything."""
    under_way: bool = False
    """It was waiting or sending before: an earlier run has looked it over and had it approved."""


class PreflightReport(Wire):
    """What a sample of rendered messages and the arithmetic of the deadline say. Ids and names, never addresses or values."""

    ok: bool
    code: str | None = None
    """`preflight_failed` or `deadline_infeasible`."""
    reason: str = ""
    checked: int = 0
    """Recipients rendered."""
    examples: list[str] = []
    size: int = 0
    rate_per_second: float | None = None
    """The slower of what is asked and what is agreed; None when neither is known."""
    finish_at: datetime | None = None
    warnings: list[str] = []
    approval_needed: bool = False


class Approval(Wire):
    """Whether a second person has agreed. `refused`: nobody did before it expired."""

    approved: bool
    refused: str | None = None
    control: "Control | None" = None
    """Who waits for an agreement is in nobody's way: only here would it see a cancel whose signal was lost."""


class ShardRef(Wire):
    """One shard of one frozen campaign."""

    tenant: str
    mode: Mode
    campaign_id: UUID
    frozen_at: datetime
    shard: int
    message_class: MessageClass
    channels: list[Channel]


class ShardInput(Wire):
    """Starts, and continues, a `Shard`. `control` is the highest control version the workflow has seen."""

    ref: ShardRef
    planned: bool = False
    stretches: int = 0
    told_version: int = 0
    """The highest control version it has told its campaign of."""


class ShardResult(Wire):
    """How a shard ended. Neither: it was asked to return early and starts again from its cursors."""

    done: bool
    cancelled: bool = False
    handled: int = 0


class Stretch(Wire):
    """Asks for one stretch: some thousands of recipients or some seconds, whichever ends first.

    Where it starts is the durable cursor, never the caller's idea.
    """

    ref: ShardRef
    channel: Channel | None = None
    """None for plan; one for send."""
    epoch: int = 0
    max_recipients: int = 10_000
    max_seconds: float = 10.0


class StretchResult(Wire):
    """Counts only. `done` when nothing is left before the shard's end."""

    done: bool
    handled: int = 0
    until: datetime | None = None
    """Not before then: tokens, a paused control row, a sender's fault."""
    control: ControlState = ControlState.RUNNING
    control_version: int = 0
    fault: str | None = None
    """A sender-scope fault: the campaign has paused itself and says this."""
    fenced: bool = False
    next_page: int = 0
    """The durable cursor after the stretch."""
    caught_up: bool = False
    """Everything planned so far is sent; there is nothing to do before more is planned."""


class DueStretch(Wire):
    """Asks for the due rows of a campaign, in (shard, page) order, up to `before`."""

    tenant: str
    mode: Mode
    campaign_id: UUID
    frozen_at: datetime
    message_class: MessageClass
    channel: Channel
    max_recipients: int = 10_000
    max_seconds: float = 10.0
    half_rate: bool = False
    """For what catch-up found missing."""


class DueView(Wire):
    """What waits, by bucket."""

    earliest: datetime | None = None
    waiting: int = 0
    closed: bool = False
    """The campaign is over: whatever is replayed later starts a loop of its own."""


class DueInput(Wire):
    """Starts, and continues, a `Due` loop. `closing`: end when nothing waits (also how a replay after the close is worked)."""

    tenant: str
    mode: Mode
    campaign_id: UUID
    frozen_at: datetime
    message_class: MessageClass
    channels: list[Channel]
    closing: bool = False
    told_version: int = 0
    catch_up: bool = False


class LookAgain(Wire):
    """Wakes a `Due` loop: something may be due now."""

    catch_up: bool = False


class DueResult(Wire):
    """`waiting`: rows still in a bucket when it returned."""

    waiting: int = 0
    cancelled: bool = False


class CatchUpInput(Wire):
    """Starts, and continues, a `CatchUp`."""

    tenant: str
    mode: Mode
    campaign_id: UUID
    message_class: MessageClass
    rounds: int = 0


class SettleResult(Wire):
    """What settle found: ended leases made unknown, missing rows put into a bucket, and what is still open."""

    made_unknown: int = 0
    rebucketed: int = 0
    open_rows: int = 0
    earliest_due: datetime | None = None
    next_lease_end: datetime | None = None


class PhaseChange(Wire):
    """Shows where a campaign is."""

    ref: CampaignRef
    phase: CampaignPhase
    reason: str = ""


class ControlWish(Wire):
    """A signal that came past the API: its effect is still to be written. None leaves that part as it is."""

    ref: CampaignRef
    state: ControlState | None = None
    rate_per_second: float | None = None
    reason: str = ""
    by: str = ""


class Control(Wire):
    """The versioned control row."""

    version: int
    state: ControlState
    rate_per_second: float | None = None
    reason: str = ""
    by: str = ""


class ControlSignal(Wire):
    """`pause`, `resume`, `cancel`, `set_rate`. From the API it names the row it already wrote; from Temporal's UI it does not."""

    version: int | None = None
    reason: str = ""
    by: str = ""
    rate_per_second: float | None = None


class CampaignProgress(Wire):
    """Recipients by state; the sum is the frozen size, always."""

    campaign_id: UUID
    phase: CampaignPhase
    reason: str = ""
    size: int
    counts: Counts
    reasons: dict[str, int] = {}
    """Suppressed, expired and failed recipients by reason."""
    control: ControlState = ControlState.RUNNING
    rate_per_second: float | None = None
    last_send_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def adds_up(self) -> bool:
        return sum(self.counts.values()) == self.size


class CloseResult(Wire):
    """`closed` is None while it does not add up or somebody is still open."""

    closed: CampaignPhase | None
    progress: CampaignProgress
