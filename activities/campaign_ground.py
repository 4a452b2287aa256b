"""What a stretch stands on: the campaign, its category's policy and its compiled templates, read once a stretch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from temporalio.exceptions import ApplicationError

from activities.facts import address_states, policy_of, spread_of
from activities.rendering import NoTemplate, Templates
from schemas.campaigns import CampaignSpec, DueInput
from schemas.kinds import Channel, LatenessPolicy, RecipientState
from schemas.notifications import DecisionKey, trusted_decision_key
from sendloom.domain import gates, pacing
from sendloom.domain.backoff import bucket_of
from sendloom.domain.gates import Facts, Policy
from sendloom.domain.quiet_hours import parse_window
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import CompiledTemplate
from sendloom.domain.wall_time import planned
from sendloom.domain.zones import zone_or_default
from sendloom.ports import (
    CampaignRow,
    CampaignStore,
    CapUse,
    CatalogStore,
    Category,
    Decision,
    Person,
    TemplateParts,
    Tenant,
)

SERVED = (Channel.EMAIL, Channel.SMS)
"""Channels that campaigns can use."""


@dataclass(slots=True)
class Ground:
    """One frozen campaign, as a stretch sees it."""

    row: CampaignRow
    spec: CampaignSpec
    tenant: Tenant
    category: Category
    policy: Policy
    """Its ladder is where the campaign sends."""
    parts: list[TemplateParts]
    templates: Templates
    frozen_at: datetime
    version_id: UUID
    ends_at: datetime
    """Expiry or deadline, whichever is first: after it nothing leaves."""
    _by_locale: dict[tuple[Channel, str | None], CompiledTemplate] = field(default_factory=dict)

    def template(self, channel: Channel, locale: str | None) -> CompiledTemplate:
        """The nearest language there is.

        Raises:
            NoTemplate: nothing for this channel.
        """
        compiled = self._by_locale.get((channel, locale))
        if compiled is None:
            wanted = locale or self.tenant.default_locale
            compiled = self.templates.compiled(self.parts, channel, wanted, self.row.tenant)
            self._by_locale[channel, locale] = compiled
        return compiled

    def rate(self, asked: float | None) -> float | None:
        """Recipients a second: what operations ask, else what the spec asks, else what the deadline needs."""
        if asked is not None:
            return asked
        if self.spec.rate_per_second is not None:
            return self.spec.rate_per_second
        if self.spec.deadline is None:
            return None
        start = max(self.frozen_at, self.spec.send_at or self.frozen_at)
        return pacing.deadline_rate(self.row.size or 0, start, self.spec.deadline)

    def key(self, shard: int, page: int, recipient_id: str) -> DecisionKey:
        return trusted_decision_key(
            self.row.tenant, self.frozen_at, self.row.campaign_id, shard, page, recipient_id
        )

    def skips_quiet_hours(self, person: Person) -> bool:
        """Nobody knows when this person sleeps (POL-3)."""
        policy = self.policy
        return (
            len(policy.silences) > len(policy.silences_without_zone)
            and zone_or_default(person.zone, self.tenant.default_zone)[1]
        )

    def decide(
        self,
        key: DecisionKey,
        person: Person,
        now: datetime,
        from_rung: int = 0,
        *,
        again: bool = False,
    ) -> tuple[Decision, list[CapUse]]:
        """What to do for one person, and the caps it uses up.

        `again`: it was planned before, and whether it was late for its wave was judged then. Whoever waited for the moment is
        asked after it, and has not missed it.
        """
        if person.erased:
            return Decision(key, RecipientState.ERASED, reason="erased"), []
        if not person.exists:
            return Decision(key, RecipientState.SUPPRESSED, reason=Reason.UNKNOWN_RECIPIENT), []
        zone, guessed = zone_or_default(person.zone, self.tenant.default_zone)
        not_before = None
        if self.spec.local_time is not None:
            missed = LatenessPolicy.SEND if again else self.spec.missed
            moment = planned(self.spec.local_time, zone, now, missed)
            if moment.at is None:
                return Decision(key, RecipientState.EXPIRED, reason=Reason.SCHEDULED), []
            not_before = moment.at
        verdict = gates.decide(
            Facts(
                now=now,
                policy=self.policy,
                not_after=self.ends_at,
                zone=zone,
                zone_known=not guessed,
                addresses=address_states(person),
                suppressed=person.suppressed,
                opted_out=person.opted_out,
                consented=person.consented,
                cap_uses=person.cap_uses,
                not_before=not_before,
                spread=spread_of(key),
            ),
            from_rung,
        )
        match verdict:
            case gates.Chosen():
                chosen = Decision(
                    key,
                    RecipientState.PENDING,
                    channel=verdict.channel,
                    rung=verdict.rung,
                    not_after=verdict.not_after,
                )
                caps = [
                    CapUse(
                        key.recipient_id,
                        rule.scope,
                        verdict.local_day,
                        rule.limit_day,
                        rule.limit_week,
                    )
                    for rule in verdict.caps
                    if verdict.local_day is not None
                ]
                return chosen, caps
            case gates.Deferred():
                return Decision(
                    key,
                    RecipientState.DEFERRED,
                    channel=verdict.channel,
                    rung=verdict.rung,
                    reason=verdict.reason,
                    not_before=verdict.until,
                    due_at=bucket_of(verdict.until),
                ), []
            case gates.Expired():
                return Decision(key, RecipientState.EXPIRED, reason=verdict.reason), []
            case gates.Suppressed() | gates.NoRung():
                return Decision(key, RecipientState.SUPPRESSED, reason=verdict.reason), []


class Grounds:
    """Reads what stretches stand on."""

    def __init__(
        self, campaigns: CampaignStore, catalog: CatalogStore, templates: Templates
    ) -> None:
        self._campaigns = campaigns
        self._catalog = catalog
        self._templates = templates

    async def of(self, tenant: str, campaign_id: UUID) -> Ground:
        """
        Raises:
            ApplicationError: there is no such campaign, or it was never frozen; trying again changes nothing.
        """
        row = await self._campaigns.get(tenant, campaign_id)
        if row is None or row.frozen_at is None or row.version_id is None:
            raise ApplicationError("no frozen campaign", type="NoCampaign", non_retryable=True)
        return await self.under(row)

    async def under(self, row: CampaignRow) -> Ground:
        """Of a row with an audience, also one that is only tried out and stored nowhere."""
        assert row.frozen_at is not None
        assert row.version_id is not None
        tenant = row.tenant
        owner = await self._catalog.tenant(tenant)
        category = await self._catalog.category(tenant, row.category)
        if owner is None or category is None:
            raise ApplicationError("no such tenant or category", type="NoCategory")
        parts = await self._templates.parts(tenant, row.template_id, row.template_version)
        spec = CampaignSpec.model_validate(dict(row.spec))
        policy = policy_of(category, owner)
        window = parse_window(spec.window) if spec.window else None
        return Ground(
            row=row,
            spec=spec,
            tenant=owner,
            category=category,
            policy=replace(policy, ladder=channels_of(row, category, parts), send_window=window),
            parts=parts,
            templates=self._templates,
            frozen_at=row.frozen_at,
            version_id=row.version_id,
            ends_at=min(row.expires_at or _never(row), spec.deadline or _never(row)),
        )


def channels_of(
    row: CampaignRow, category: Category, parts: Sequence[TemplateParts]
) -> tuple[Channel, ...]:
    """Where a campaign sends, first tried first. On a rung that its category gets after the freeze nobody sends: whoever was planned
    for it would wait for ever.

    Before the freeze, and where none were pinned at it: the category's rungs that campaigns serve and the template has content for.
    """
    if row.channels is not None:
        return row.channels
    written = {part.channel for part in parts}
    return tuple(c for c in category.ladder if c in SERVED and c in written)


async def due_input(row: CampaignRow, catalog: CatalogStore) -> DueInput:
    """What the due loop of a frozen campaign is started with from outside of it, for rows that are in their buckets already.

    No channels: there is nothing to look for. A channel without a sender would hold it for ever, and with it the next replay.
    """
    assert row.frozen_at is not None
    category = await catalog.category(row.tenant, row.category)
    assert category is not None, "a category with a campaign cannot be removed"
    parts = await catalog.template_parts(row.tenant, row.template_id, row.template_version)
    return DueInput(
        tenant=row.tenant,
        mode=row.mode,
        campaign_id=row.campaign_id,
        frozen_at=row.frozen_at,
        message_class=category.message_class,
        channels=list(channels_of(row, category, parts)),
        closing=row.closed_at is not None,
    )


def _never(row: CampaignRow) -> datetime:
    return row.created_at + timedelta(days=365)


__all__ = ["SERVED", "Ground", "Grounds", "NoTemplate", "channels_of", "due_input"]
