"""Every derived id. Same input, same id: that is what makes a retry harmless."""

import base64
import binascii
import hashlib
import struct
import zlib
from datetime import UTC, datetime
from uuid import UUID, uuid5

from schemas.kinds import Channel, Kind, Mode
from schemas.notifications import DecisionKey, DeliveryKey

NAMESPACE = UUID("6d6f6f6c-7365-6e64-8c0a-000000000001")


def _name(*parts: str) -> str:
    """Length-prefixed, so no two different tuples share a name."""
    return "".join(f"{len(part)}:{part}" for part in parts)


def derived_id(kind: Kind, tenant: str, mode: Mode, key: str) -> UUID:
    """The id of what one idempotency key created."""
    return uuid5(NAMESPACE, _name(kind, tenant, mode, key))


def child_id(parent: UUID, purpose: str) -> UUID:
    """The id of what a workflow starts once for a purpose, for example a reminder's notification."""
    return uuid5(NAMESPACE, _name("child", str(parent), purpose))


def schedule_id(tenant: str, mode: Mode, key: str) -> UUID:
    """The id of what one idempotency key made recur."""
    return uuid5(NAMESPACE, _name("schedule", tenant, mode, key))


def fire_id(schedule: UUID, scheduled_for: datetime) -> UUID:
    """The id of one run: (schedule, scheduled time) and nothing else, so that it cannot be fired twice."""
    return child_id(schedule, f"fire/{scheduled_for.astimezone(UTC).isoformat()}")


def series_id(tenant: str, mode: Mode, key: str) -> UUID:
    return uuid5(NAMESPACE, _name("series", tenant, mode, key))


def series_member_id(series: UUID, before: str, nth: int) -> UUID:
    """`nth`: one that ended without being sent may be followed by another when the event moves."""
    return child_id(series, f"{before}/{nth}")


def dead_letter_id(decision: DecisionKey) -> UUID:
    return uuid5(
        NAMESPACE, _name("dead", decision.tenant, str(decision.campaign_id), decision.recipient_id)
    )


def notification_workflow_id(notification_id: UUID) -> str:
    return f"notification/{notification_id}"


def passcode_workflow_id(passcode_id: UUID) -> str:
    return f"passcode/{passcode_id}"


def reminder_workflow_id(reminder_id: UUID) -> str:
    return f"reminder/{reminder_id}"


def temporal_schedule_id(schedule: UUID) -> str:
    return f"schedule/{schedule}"


def trigger_workflow_id(schedule: UUID) -> str:
    """Temporal adds the scheduled time to it."""
    return f"trigger/{schedule}"


def campaign_workflow_id(campaign_id: UUID) -> str:
    return f"campaign/{campaign_id}"


def shard_workflow_id(campaign_id: UUID, shard: int) -> str:
    return f"campaign/{campaign_id}/{shard}"


def due_workflow_id(campaign_id: UUID) -> str:
    return f"campaign/{campaign_id}/due"


def catch_up_workflow_id(campaign_id: UUID) -> str:
    return f"catchup/{campaign_id}"


_CHANNELS = {channel: n for n, channel in enumerate(Channel)}
_CHANNELS_BACK = {n: channel for channel, n in _CHANNELS.items()}
_HEAD = struct.Struct(">16sIIBBB")


class DeliveryNames:
    """The names of the deliveries of one page, as `delivery_id` and `message_id` give them; a campaign makes both a recipient."""

    __slots__ = ("_campaign", "_channel", "_device", "_head", "_tenant")

    def __init__(
        self,
        tenant: str,
        campaign_id: UUID,
        shard: int,
        page: int,
        channel: Channel,
        device: str = "",
    ) -> None:
        self._tenant = tenant
        self._campaign = campaign_id.bytes
        self._channel = channel
        self._device = device
        self._head = (campaign_id.bytes, shard, page, _CHANNELS[channel])

    def delivery_id(self, recipient_id: str, send_no: int) -> str:
        """A readable-back name for one delivery: it carries the key, so no index is needed to find the row. No address in it."""
        device = self._device.encode()
        raw = _HEAD.pack(*self._head, send_no, len(device)) + device + recipient_id.encode()
        return f"dlv_{_base64url(raw)}"

    def message_id(self, recipient_id: str, send_no: int, domain: str) -> str:
        """RFC 5322 Message-ID, the same over every retry of one delivery."""
        named = (
            f"{self._tenant}\x1f{recipient_id}\x1f{self._channel}\x1f{send_no}\x1f{self._device}"
        )
        digest = hashlib.blake2b(self._campaign + named.encode(), digest_size=16).hexdigest()
        return f"<{digest}@{domain}>"


def _base64url(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_URL_SAFE).decode().rstrip("=")


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def delivery_id(d: DeliveryKey) -> str:
    """As `DeliveryNames.delivery_id`."""
    return _names_of(d).delivery_id(d.recipient_id, d.send_no)


def message_id(d: DeliveryKey, domain: str) -> str:
    """As `DeliveryNames.message_id`."""
    return _names_of(d).message_id(d.recipient_id, d.send_no, domain)


def _names_of(d: DeliveryKey) -> DeliveryNames:
    return DeliveryNames(d.tenant, d.campaign_id, d.shard, d.page, d.channel, d.device)


def parse_delivery_id(tenant: str, frozen_at: datetime, text: str) -> DeliveryKey:
    """The key inside a delivery id.

    Raises:
        ValueError: it is not a delivery id.
    """
    if not text.startswith("dlv_"):
        raise ValueError("not a delivery id")
    body = text[4:]
    raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    if len(raw) < _HEAD.size:
        raise ValueError("not a delivery id")
    campaign, shard, page, channel, send_no, device_length = _HEAD.unpack_from(raw)
    rest = raw[_HEAD.size :]
    if channel not in _CHANNELS_BACK or len(rest) <= device_length:
        raise ValueError("not a delivery id")
    return DeliveryKey(
        tenant=tenant,
        frozen_at=frozen_at,
        campaign_id=UUID(bytes=campaign),
        shard=shard,
        page=page,
        recipient_id=rest[device_length:].decode(),
        channel=_CHANNELS_BACK[channel],
        send_no=send_no,
        device=rest[:device_length].decode(),
    )


def parse_delivery_campaign(text: str) -> UUID:
    """Only the campaign (or notification) id, to look up `frozen_at` with.

    Raises:
        ValueError: it is not a delivery id.
    """
    return parse_delivery_id("", datetime.min.replace(tzinfo=UTC), text).campaign_id


def spread(d: DecisionKey, seconds: int) -> int:
    """0 <= n < seconds, the same for the same decision."""
    return zlib.crc32(d.recipient_id.encode(), d.campaign_id.time_low) % max(seconds, 1)
