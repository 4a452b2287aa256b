"""Campaigns: accepted in milliseconds whatever the audience, controlled by a row, counted so that it adds up."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated
from uuid import UUID, uuid4

from fastapi import APIRouter, Query, Request, Response

from activities.campaign_audience import own_list, pin_segment
from activities.campaign_ground import Grounds, due_input
from activities.campaign_row import campaign_row
from activities.preflight import examine
from activities.rendering import Templates
from api import accept
from api.accept import Ask, Found
from api.auditing import audited
from api.auth import Caller
from api.deps import (
    CampaignController,
    Campaigner,
    CampaignReader,
    IdempotencyKey,
    Operator,
    Parts,
    PartsDep,
)
from api.notifications import take_on
from api.timing import timely, within
from api.views import may_see
from schemas.api import (
    REPLAY_HEADER,
    AcceptedAnswer,
    CampaignRecipient,
    CampaignRequest,
    CampaignStatus,
    NotificationRequest,
    Page,
    RateBody,
    ReasonBody,
    ReplayBody,
    Replayed,
    TestSendRequest,
    TestSends,
)
from schemas.campaigns import (
    CampaignInput,
    CampaignSpec,
    Control,
    ControlSignal,
    PinnedSegment,
    PreflightReport,
)
from schemas.content import CampaignContent
from schemas.kinds import (
    CampaignPhase,
    ControlState,
    Kind,
    LatenessPolicy,
    MessageClass,
    RecipientState,
)
from sendloom.domain.preflight import SAMPLE
from sendloom.domain.quiet_hours import parse_window
from sendloom.domain.segments import parse
from sendloom.domain.wall_time import parse_local
from sendloom.errors import Refusal
from sendloom.ports import AcceptedRow, CampaignRow, Category, ListVersion, Member
from sendloom.rows import SegmentLook

router = APIRouter(prefix="/v1/campaigns", tags=["campaigns"])

FINAL = frozenset({CampaignPhase.COMPLETED, CampaignPhase.CANCELLED, CampaignPhase.FAILED})


@router.post("", status_code=202)
async def create(
    request: Request,
    response: Response,
    body: CampaignRequest,
    caller: Campaigner,
    parts: PartsDep,
    key: IdempotencyKey,
) -> AcceptedAnswer:
    """Accepted; the audience is frozen by its workflow."""
    ask = Ask(caller, Kind.CAMPAIGN, key, await request.body(), accept.now())
    row, replayed = await within(_take_on(parts, ask, body))
    if replayed:
        response.headers[REPLAY_HEADER] = "true"
    else:
        await audited(parts, caller, "campaign.create", str(row.id))
    return AcceptedAnswer(**accept.answer(row, replayed))


async def _take_on(parts: Parts, ask: Ask, body: CampaignRequest) -> tuple[AcceptedRow, bool]:
    caller = ask.caller
    segment: PinnedSegment | None = None

    async def read() -> Found:
        found = await accept.find(parts, caller, body.category, body.template_id, None)
        if found.category.message_class is not MessageClass.MARKETING:
            raise Refusal(
                "marketing_only",
                f"{body.category} is {found.category.message_class}",
                field="category",
            )
        nonlocal segment
        if body.audience is None:
            await _list_of(parts, caller, body)
        elif body.audience.segment is not None:
            segment = await pin_segment(parts.segments, caller.id, body.audience.segment)
        elif body.audience.sent_of is not None:
            await _source(parts, caller, body.audience.sent_of)
        return found

    async def make(found: Found) -> AcceptedRow:
        category = found.category
        parts.leave_room(caller, category)
        if not found.channels:
            raise Refusal(
                "no_template",
                "the template has no content for the category's channels",
                field="template_id",
            )
        spec = _spec(ask.now, body, segment)
        expires_at = _expiry(ask.now, body, spec, category)
        list_id = body.list_id
        if list_id is None:
            list_id = await own_list(parts.lists, caller.id, ask.id, body.name, segment)
        given = CampaignInput(
            tenant=caller.id,
            mode=caller.mode,
            campaign_id=ask.id,
            accepted_at=ask.now,
            send_at=spec.send_at,
        )
        content = CampaignContent(
            template_id=body.template_id,
            template_version=found.parts[0].version,
            variables=body.variables,
            name=body.name,
            list_id=list_id,
            spec=spec,
            created_by=caller.actor,
        )
        return accept.new_row(
            ask,
            category,
            recipient_id=None,
            due_at=spec.send_at,
            expires_at=expires_at,
            workflow_input=given.model_dump_json().encode(),
            content=content.model_dump_json().encode(),
        )

    row, replayed = await accept.accept(parts, ask, read, make)
    if row.started_at is None:
        await parts.campaigns.insert(campaign_row(row))
    await accept.start(parts, row)
    return row, replayed


async def _list_of(parts: Parts, caller: Caller, body: CampaignRequest) -> UUID:
    """The version that a launch would pin now."""
    assert body.list_id is not None
    found = await parts.lists.get(caller.id, body.list_id)
    if found is None:
        raise Refusal("unknown_list", f"there is no list {body.list_id}", field="list_id")
    if found.current_version is None:
        raise _unusable(body.list_id, await parts.lists.versions(caller.id, body.list_id))
    return found.current_version


def _unusable(list_id: str, versions: Sequence[ListVersion]) -> Refusal:
    """Why a list without a ready version has none: its newest one says."""
    newest = max(versions, key=lambda version: version.created_at, default=None)
    if newest is None or newest.state != "failed":
        code, why = "list_not_ready", f"list {list_id} has no ready version"
    elif newest.reason == "empty":
        code, why = "list_empty", f"list {list_id} has no rows"
    else:
        code, why = "list_failed", f"the upload of list {list_id} failed: {newest.reason}"
    return Refusal(code, why, field="list_id", status=409)


async def _source(parts: Parts, caller: Caller, id: UUID) -> tuple[CampaignRow, int]:
    """The campaign that a correction follows, and how many got it."""
    row = await parts.campaigns.get(caller.id, id)
    if row is None or row.mode is not caller.mode:
        raise Refusal("unknown_campaign", f"there is no campaign {id}", field="audience.sent_of")
    if row.phase not in FINAL:
        raise Refusal("campaign_open", f"{id} has not ended", field="audience.sent_of", status=409)
    counts = await parts.campaigns.counts(caller.id, id)
    sent = counts.get(RecipientState.SENT, 0)
    if not sent or row.version_id is None:
        raise Refusal("nobody_sent", f"nobody got {id}", field="audience.sent_of")
    return row, sent


_WESTERNMOST = timezone(timedelta(hours=-12))
_EASTERNMOST = timezone(timedelta(hours=14))


def _spec(
    now: datetime, body: CampaignRequest, segment: PinnedSegment | None = None
) -> CampaignSpec:
    if body.window is not None:
        parse_window(body.window)
    if body.deadline is not None and body.deadline <= max(now, body.send_at or now):
        raise Refusal(
            "deadline_infeasible", "the deadline is not after the start", field="deadline"
        )
    local = parse_local(body.local_time, field="local_time") if body.local_time else None
    if (
        local is not None
        and body.missed is LatenessPolicy.SKIP
        and local.replace(tzinfo=_WESTERNMOST) <= now
    ):
        raise Refusal(
            "due_past",
            "it has passed in every time zone, and who missed it would be skipped",
            field="local_time",
        )
    return CampaignSpec(
        send_at=body.send_at.astimezone(UTC) if body.send_at else None,
        local_time=local,
        missed=body.missed,
        window=body.window,
        deadline=body.deadline.astimezone(UTC) if body.deadline else None,
        rate_per_second=body.rate_per_second,
        sent_of=body.audience.sent_of if body.audience else None,
        segment=segment,
    )


def _expiry(
    now: datetime, body: CampaignRequest, spec: CampaignSpec, category: Category
) -> datetime:
    """The category's time counts from when the last of its audience may leave: a wave of next week is not over before it."""
    first = last = max(now, body.send_at or now)
    if spec.local_time is not None:
        if spec.missed is LatenessPolicy.NEXT_DAY:
            last += timedelta(days=1)
        first = max(first, spec.local_time.replace(tzinfo=_EASTERNMOST))
        last = max(last, spec.local_time.replace(tzinfo=_WESTERNMOST))
    if body.expires_at is None:
        return accept.expiry(last, None, category)
    if body.expires_at <= first:
        raise Refusal("ttl_expired", "it would have expired already", field="expires_at")
    return body.expires_at.astimezone(UTC)


@router.post("/preflight")
@timely
async def preflight(body: CampaignRequest, caller: Campaigner, parts: PartsDep) -> PreflightReport:
    """What a launch would be told now: messages as some of the audience would get them, and when it would end. Sends nothing."""
    now = accept.now()
    found = await accept.find(parts, caller, body.category, body.template_id, None)
    if found.category.message_class is not MessageClass.MARKETING:
        raise Refusal(
            "marketing_only", f"{body.category} is {found.category.message_class}", field="category"
        )
    version_id: UUID | None
    sample: list[Member] | None = None
    warnings: list[str] = []
    if body.audience is None:
        version_id = await _list_of(parts, caller, body)
        version = await parts.lists.version(caller.id, version_id)
        size = (version.size if version else None) or 0
    elif body.audience.segment is not None:
        # It is written out at launch; until then there is no list, and the first of its members stand for all.
        version_id = uuid4()
        look, sample = await _members(parts, caller, body.category, body.audience.segment)
        size = look.members
        if not look.complete:
            warnings.append(f"the segment was counted over {look.scanned} recipients only")
    else:
        assert body.audience.sent_of is not None
        source, size = await _source(parts, caller, body.audience.sent_of)
        version_id = source.version_id
    spec = _spec(now, body)
    tried = CampaignRow(
        tenant=caller.id,
        campaign_id=uuid4(),
        mode=caller.mode,
        name=body.name,
        category=body.category,
        template_id=body.template_id,
        template_version=found.parts[0].version,
        list_id=body.list_id or "",
        version_id=version_id,
        spec=spec.model_dump(mode="json"),
        variables=body.variables,
        phase=CampaignPhase.PREFLIGHT,
        reason="",
        size=size,
        shards=None,
        page_size=None,
        frozen_at=now,
        expires_at=_expiry(now, body, spec, found.category),
        created_at=now,
        closed_at=None,
        last_send_at=None,
    )
    grounds = Grounds(parts.campaigns, parts.catalog, Templates(parts.catalog))
    report = await examine(await grounds.under(tried), parts.campaigns, now, None, sample)
    return report.model_copy(update={"warnings": [*report.warnings, *warnings]})


async def _members(
    parts: Parts, caller: Caller, category: str, segment_id: str
) -> tuple[SegmentLook, list[Member]]:
    """Of a segment as it is now: a bounded count, and the first of them.

    Raises:
        Refusal: `unknown_segment`, `segment_empty`.
    """
    segment = parse((await pin_segment(parts.segments, caller.id, segment_id)).definition)
    look = await parts.segments.look(caller.id, segment, SAMPLE)
    if not look.members and look.complete:
        raise Refusal(
            "segment_empty",
            f"nobody is in segment {segment_id}",
            field="audience.segment",
            status=409,
        )
    people = await parts.people.people(caller.id, category, look.first, False)
    return look, [Member(id, {}, p) for id, p in zip(look.first, people, strict=True)]


@router.post("/test", status_code=202)
async def send_test(
    request: Request,
    body: TestSendRequest,
    caller: Campaigner,
    parts: PartsDep,
    key: IdempotencyKey,
) -> TestSends:
    """To named colleagues first. Each is a notification of its own, under the same gates as everybody's."""
    raw = await request.body()
    return await within(_send_tests(parts, caller, body, key, raw))


async def _send_tests(
    parts: Parts, caller: Caller, body: TestSendRequest, key: str, raw: bytes
) -> TestSends:
    ids = list(dict.fromkeys(body.recipient_ids))
    for id in ids:
        await accept.require_internal(parts, caller, id)
    items = []
    for id in ids:
        # Derived, so that a repeat of the whole request finds every one of them again.
        name = f"test:{hashlib.sha256(f'{key}/{id}'.encode()).hexdigest()}"
        row, replayed = await take_on(
            parts,
            Ask(caller, Kind.NOTIFICATION, name, raw, accept.now()),
            NotificationRequest(
                recipient_id=id,
                category=body.category,
                template_id=body.template_id,
                variables=body.variables,
            ),
        )
        items.append(AcceptedAnswer(**accept.answer(row, replayed)))
    await audited(parts, caller, "campaign.test", body.template_id, recipients=len(ids))
    return TestSends(items=items)


@router.get("")
@timely
async def recent(
    caller: CampaignReader, parts: PartsDep, limit: Annotated[int, Query(ge=1, le=100)] = 50
) -> Page[CampaignStatus]:
    """Newest first, without reasons."""
    rows = await parts.campaigns.recent(caller.id, limit)
    return Page(
        items=[
            await _status(parts, row, reasons=False) for row in rows if may_see(caller, row.mode)
        ]
    )


@router.get("/{id}")
@timely
async def show(id: UUID, caller: CampaignReader, parts: PartsDep) -> CampaignStatus:
    """Progress that adds up, and why each one who got nothing got nothing."""
    return await _status(parts, await _find(parts, caller, id))


async def _find(parts: Parts, caller: Caller, id: UUID) -> CampaignRow:
    row = await parts.campaigns.get(caller.id, id)
    if row is None or not may_see(caller, row.mode):
        raise Refusal("not_found", f"there is no campaign {id}", status=404)
    return row


async def _status(parts: Parts, row: CampaignRow, *, reasons: bool = True) -> CampaignStatus:
    control = await parts.campaigns.control(row.tenant, row.campaign_id)
    counts: dict[RecipientState, int] = {}
    why: dict[str, int] = {}
    if row.frozen_at is not None:
        counts = await parts.campaigns.counts(row.tenant, row.campaign_id)
        if reasons:
            why = await parts.campaigns.reasons(row.tenant, row.frozen_at, row.campaign_id)
    spec = CampaignSpec.model_validate(row.spec)
    return CampaignStatus(
        id=row.campaign_id,
        mode=row.mode,
        name=row.name,
        category=row.category,
        template_id=row.template_id,
        template_version=row.template_version,
        list_id=row.list_id,
        segment=spec.segment.segment_id if spec.segment else None,
        segment_version=spec.segment.version if spec.segment else None,
        phase=row.phase,
        reason=row.reason,
        control=control.state,
        rate_per_second=control.rate_per_second or spec.rate_per_second,
        size=row.size,
        counts={state: n for state, n in counts.items() if n},
        reasons=why,
        adds_up=row.size is None or sum(counts.values()) == row.size,
        created_at=row.created_at,
        send_at=spec.send_at,
        frozen_at=row.frozen_at,
        expires_at=row.expires_at,
        closed_at=row.closed_at,
        last_send_at=row.last_send_at,
        deadline=spec.deadline,
        local_time=spec.local_time,
        created_by=row.created_by,
        approved_by=row.approved_by,
    )


@router.get("/{id}/recipients")
@timely
async def recipients(
    id: UUID,
    caller: CampaignReader,
    parts: PartsDep,
    state: RecipientState,
    reason: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[str | None, Query(max_length=128)] = None,
) -> Page[CampaignRecipient]:
    """Who is in one group of the report. People not planned yet are in none."""
    row = await _find(parts, caller, id)
    if row.frozen_at is None:
        return Page(items=[])
    found = await parts.campaigns.group(caller.id, row.frozen_at, id, state, reason, limit, after)
    return Page(
        items=[
            CampaignRecipient(
                recipient_id=d.key.recipient_id,
                state=d.state,
                reason=d.reason,
                channel=d.channel,
                attempt=d.attempt,
                due_at=d.due_at,
            )
            for d in found
        ],
        next=found[-1].key.recipient_id if len(found) == limit else None,
    )


@router.post("/{id}/pause")
@timely
async def pause(
    id: UUID, body: ReasonBody, caller: CampaignController, parts: PartsDep
) -> CampaignStatus:
    """Within a second nothing more reaches a provider. Nobody is skipped by it."""
    return await _control(parts, caller, id, "pause", ControlState.PAUSED, body.reason)


@router.post("/{id}/resume")
@timely
async def resume(
    id: UUID, body: ReasonBody, caller: CampaignController, parts: PartsDep
) -> CampaignStatus:
    """Go on where it stopped. Nobody is repeated by it."""
    return await _control(parts, caller, id, "resume", ControlState.RUNNING, body.reason)


@router.post("/{id}/cancel")
@timely
async def cancel(
    id: UUID, body: ReasonBody, caller: CampaignController, parts: PartsDep
) -> CampaignStatus:
    """Stop for good; whoever has got nothing yet becomes `cancelled`."""
    return await _control(parts, caller, id, "cancel", ControlState.CANCELLED, body.reason)


@router.post("/{id}/approve")
@timely
async def approve(id: UUID, caller: CampaignController, parts: PartsDep) -> CampaignStatus:
    """By somebody else than who asked for it. A repeat changes nothing, but tells the workflow again."""
    row = await _find(parts, caller, id)
    if row.phase in FINAL:
        raise _closed(row.phase)
    if row.created_by == caller.actor:
        raise Refusal("same_person", "this key asked for the campaign itself", status=403)
    if row.approved_by is None:
        if await parts.campaigns.approve(caller.id, id, caller.actor):
            await audited(parts, caller, "campaign.approve", str(id), size=row.size)
        else:
            row = await _find(parts, caller, id)
            if (await parts.campaigns.control(caller.id, id)).state is ControlState.CANCELLED:
                raise _closed(CampaignPhase.CANCELLED)
            if row.approved_by is None:
                raise Refusal("not_awaiting_approval", f"it is {row.phase}", status=409)
    control = await parts.campaigns.control(caller.id, id)
    await parts.workflows.signal_campaign(
        id, "approve", ControlSignal(version=control.version, by=caller.actor)
    )
    return await _status(parts, await _find(parts, caller, id))


@router.post("/{id}/rate")
@timely
async def set_rate(
    id: UUID, body: RateBody, caller: CampaignController, parts: PartsDep
) -> CampaignStatus:
    """Recipients a second, from now on."""
    return await _control(parts, caller, id, "set_rate", None, "", rate=body.rate_per_second)


async def _control(
    parts: Parts,
    caller: Caller,
    id: UUID,
    name: str,
    state: ControlState | None,
    reason: str,
    rate: float | None = None,
) -> CampaignStatus:
    """The row first: senders read it four times a second. The signal only tells the workflow."""
    row = await _find(parts, caller, id)
    before = await parts.campaigns.control(caller.id, id)
    if row.phase in FINAL and not (before.state is state is ControlState.CANCELLED):
        raise _closed(row.phase)
    control: Control = before
    if state is None or before.state is not state:
        control = await parts.campaigns.set_control(
            caller.id, id, state, rate, reason, caller.actor
        )
        if control.state is ControlState.CANCELLED and state is not ControlState.CANCELLED:
            raise _closed(control.state)
        await audited(parts, caller, f"campaign.{name}", str(id), reason=reason, rate=rate)
    await parts.workflows.signal_campaign(
        id,
        name,
        ControlSignal(
            version=control.version, reason=reason, by=caller.actor, rate_per_second=rate
        ),
    )
    return await _status(parts, await _find(parts, caller, id))


def _closed(what: str) -> Refusal:
    return Refusal("campaign_closed", f"the campaign is {what}", status=409)


@router.post("/{id}/replay")
@timely
async def replay(id: UUID, body: ReplayBody, caller: Operator, parts: PartsDep) -> Replayed:
    """Send again to those whose send failed, or whose outcome is unknown, and to nobody else."""
    row = await _find(parts, caller, id)
    if row.frozen_at is None:
        raise Refusal("campaign_not_frozen", "its audience is not frozen", status=409)
    now = datetime.now(UTC)
    if row.expires_at is not None and row.expires_at <= now:
        raise Refusal("not_replayable", "the campaign has expired", status=409)
    count = await parts.campaigns.replay(row, list(body.states), current_bucket(now))
    await audited(parts, caller, "campaign.replay", str(id), states=body.states, count=count)
    if count:
        await work_due(parts, row)
    return Replayed(count=count)


def current_bucket(now: datetime) -> datetime:
    """The bucket that is due already."""
    return now.replace(second=0, microsecond=0)


async def work_due(parts: Parts, row: CampaignRow) -> None:
    """Have the rows that were just put into a bucket worked."""
    due = await due_input(row, parts.catalog)
    if due.channels:
        await parts.workflows.work_due(due)
