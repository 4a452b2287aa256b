"""A campaign's own row, from what was accepted; for the API, and for whoever finishes an accept that a crash cut short."""

from schemas.content import CampaignContent
from schemas.kinds import CampaignPhase
from sendloom.ports import AcceptedRow, CampaignRow


def campaign_row(row: AcceptedRow) -> CampaignRow:
    """The same one every time, so that inserting it if absent may be repeated."""
    content = CampaignContent.model_validate_json(row.content)
    return CampaignRow(
        tenant=row.tenant,
        campaign_id=row.id,
        mode=row.mode,
        name=content.name,
        category=row.category,
        template_id=content.template_id,
        template_version=content.template_version,
        list_id=content.list_id,
        version_id=None,
        spec=content.spec.model_dump(mode="json"),
        variables=content.variables,
        phase=CampaignPhase.ACCEPTED,
        reason="",
        size=None,
        shards=None,
        page_size=None,
        frozen_at=None,
        expires_at=row.expires_at,
        created_at=row.accepted_at,
        closed_at=None,
        last_send_at=None,
        created_by=content.created_by,
    )
