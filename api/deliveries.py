"""One delivery: one channel, one send number, one device."""

from fastapi import APIRouter

from api.deps import PartsDep, Reader
from api.timing import timely
from api.views import channel_view, may_see
from schemas.api import DeliveryStatus
from schemas.kinds import Kind
from sendloom.domain.ids import parse_delivery_campaign, parse_delivery_id
from sendloom.errors import Refusal
from sendloom.ports import ClaimScope, Want

router = APIRouter(prefix="/v1/deliveries", tags=["deliveries"])


@router.get("/{id}")
@timely
async def show(id: str, caller: Reader, parts: PartsDep) -> DeliveryStatus:
    """What was done to a provider for it. The id is in every status."""
    missing = Refusal("not_found", f"there is no delivery {id[:200]}", status=404)
    try:
        campaign_id = parse_delivery_campaign(id)
    except ValueError:
        raise missing from None
    row = await parts.accepted.get(caller.id, campaign_id)
    if row is None or not may_see(caller, row.mode):
        raise missing
    frozen_at = row.accepted_at
    if row.kind is Kind.CAMPAIGN:
        campaign = await parts.campaigns.get(caller.id, campaign_id)
        if campaign is None or campaign.frozen_at is None:
            raise missing
        frozen_at = campaign.frozen_at
    key = parse_delivery_id(caller.id, frozen_at, id)
    scope = ClaimScope(caller.id, frozen_at, campaign_id, key.shard, key.page, key.channel)
    [claim] = await parts.ledger.read(
        scope, [Want(key.recipient_id, send_no=key.send_no, device=key.device)]
    )
    if claim is None:
        raise missing
    return DeliveryStatus(
        **channel_view(claim).model_dump(),
        notification_id=campaign_id,
        recipient_id=key.recipient_id,
    )
