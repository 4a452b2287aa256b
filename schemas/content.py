"""What an accepted request says, sealed at rest in the accepted row and opened only by the activity that plans it."""

from typing import Any

from schemas.campaigns import CampaignSpec
from schemas.kinds import Channel
from schemas.wire import Wire


class Content(Wire):
    """Template, variables and, for a passcode, the secret. Never travels through Temporal."""

    template_id: str
    template_version: int
    """Frozen at accept: a template that changes later does not change this message."""
    variables: dict[str, Any] = {}
    secret: str | None = None
    """A passcode's code; rendered as the variable `code`."""
    origin: str | None = None
    """Host for the origin-bound last line of a passcode SMS."""
    verify_channel: Channel | None = None
    verify_address: str | None = None
    """The verify-this-address passcode flow: the only place where a caller names a raw address."""
    verified_channels: list[Channel] = []
    """Stamped at accept; what security uses when profiles or suppressions cannot be read (POL-7)."""
    verified_addresses: dict[Channel, str] = {}
    """Their deliverable forms, stamped at accept for security only: without them there is nowhere to send to (POL-7)."""
    locale: str | None = None
    """The recipient's at accept; used when profiles cannot be read."""
    due_moved: bool = False
    """A reminder whose wall time does not exist in the recipient's zone, or had passed: the answer says that it was moved."""


class CampaignContent(Content):
    """What the accepted row keeps of a campaign: enough to write its own row, again and again."""

    name: str
    list_id: str
    spec: CampaignSpec
    created_by: str = ""
