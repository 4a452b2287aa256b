"""Looks a campaign over before anything of it leaves: in its workflow, and whenever somebody asks the API."""

from collections.abc import Sequence
from datetime import datetime

from activities.campaign_ground import Ground
from schemas.campaigns import PreflightReport
from schemas.kinds import Mode
from sendloom.domain import preflight
from sendloom.domain.preflight import Forecast, Plan, Rehearsal, Specimen
from sendloom.domain.wall_time import planned
from sendloom.domain.zones import zone_or_default
from sendloom.ports import CampaignStore, Member


async def examine(
    ground: Ground,
    campaigns: CampaignStore,
    now: datetime,
    asked_rate: float | None,
    sample: Sequence[Member] | None = None,
) -> PreflightReport:
    """Renders a sample of the audience (drawn from its list unless given) and works out when it would end. Changes nothing."""
    row = ground.row
    if sample is None:
        sample = await campaigns.sample(
            row.tenant,
            row.category,
            ground.version_id,
            preflight.SAMPLE,
            channels=ground.policy.ladder,
        )
    rehearsal = preflight.rehearse(_specimens(ground, sample), ground.template, row.variables)
    size = row.size or 0
    start = max(now, ground.spec.send_at or now)
    forecast = preflight.forecast(
        Plan(
            size=size,
            start=start,
            asked_rate=ground.spec.rate_per_second if asked_rate is None else asked_rate,
            agreed_rate=preflight.agreed_rate(
                ground.tenant.settings.get("rates"), ground.policy.ladder
            ),
            deadline=ground.spec.deadline,
            expires_at=row.expires_at,
            last_wave=_last_wave(ground, sample, start),
        )
    )
    return _report(ground, rehearsal, forecast)


def _specimens(ground: Ground, sample: Sequence[Member]) -> list[Specimen]:
    """Those whom a message could reach at all: what the gates will leave out needs no rendering."""
    found = []
    for member in sample:
        person = member.person
        channels = [c for c in ground.policy.ladder if c in person.addresses]
        if person.exists and not person.erased and channels:
            found.append(Specimen(member.recipient_id, person.locale, member.variables, channels))
    return found


def _last_wave(ground: Ground, sample: Sequence[Member], start: datetime) -> datetime | None:
    """Of who is planned at the start: what has passed by then has been missed."""
    local = ground.spec.local_time
    if local is None:
        return None
    moments = (
        planned(
            local,
            zone_or_default(member.person.zone, ground.tenant.default_zone)[0],
            start,
            ground.spec.missed,
        ).at
        for member in sample
    )
    return max((at for at in moments if at is not None), default=None)


def _report(ground: Ground, rehearsal: Rehearsal, forecast: Forecast) -> PreflightReport:
    code, reason = None, ""
    if rehearsal.faults:
        code, reason = preflight.PREFLIGHT_FAILED, rehearsal.why()
    elif forecast.refusal is not None:
        code, reason = preflight.DEADLINE_INFEASIBLE, forecast.refusal
    size = ground.row.size or 0
    over = ground.tenant.settings.get("approval_over")
    return PreflightReport(
        ok=code is None,
        code=code,
        reason=reason,
        checked=rehearsal.checked,
        examples=rehearsal.examples,
        size=size,
        rate_per_second=forecast.rate_per_second,
        finish_at=forecast.finish_at,
        warnings=list(forecast.warnings),
        approval_needed=preflight.needs_second_person(
            size,
            over if isinstance(over, int) else None,
            live=ground.row.mode is Mode.LIVE,
        ),
    )
