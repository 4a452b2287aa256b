"""What a provider adapter is handed: fully rendered, addressed, fixed. Lives in memory only; sealed wherever it rests."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from schemas.wire import Wire


class OutboundEmail(Wire):
    """One mail to one envelope recipient. `message_id` and `date` are made once and kept over retries."""

    kind: Literal["email"] = "email"
    reference: str
    """The delivery id; what logs and simulators know the message by."""
    message_id: str
    """With angle brackets: `<...@domain>`."""
    date: datetime
    from_address: str
    from_name: str = ""
    reply_to: str | None = None
    to_address: str
    subject: str
    text: str
    html: str | None = None
    envelope_from: str
    list_unsubscribe_url: str | None = None
    """Set for marketing: makes List-Unsubscribe and List-Unsubscribe-Post."""
    auto_submitted: bool = True


class OutboundSms(Wire):
    """One text message. `to` and `sender` are E.164 (or a sender id)."""

    kind: Literal["sms"] = "sms"
    reference: str
    to: str
    sender: str
    body: str
    validity_seconds: int = 36_000
    intent: str = "notifications"
    status_callback: str | None = None


Outbound = Annotated[OutboundEmail | OutboundSms, Field(discriminator="kind")]
