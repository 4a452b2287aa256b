"""A campaign's own steps: freeze, plan, settle, close, and what its control row says. Nothing here calls a provider."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid5

from temporalio import activity

from activities.campaign_ground import Ground, Grounds, channels_of
from activities.guard_rails import watch_over
from activities.heartbeats import CAMPAIGN, heartbeating
from activities.lane_guard import LaneGuard, watching
from activities.preflight import examine
from activities.rendering import Templates
from schemas.campaigns import (
    Approval,
    CampaignProgress,
    CampaignRef,
    CampaignSpec,
    CloseResult,
    Control,
    ControlWish,
    DueView,
    FreezeResult,
    Frozen,
    PhaseChange,
    PreflightReport,
    Refused,
    SettleResult,
    ShardRef,
    Stretch,
    StretchResult,
)
from schemas.kinds import CampaignPhase, ControlState, Kind, MessageClass, RecipientState
from schemas.notifications import DecisionKey
from sendloom.domain import progress, segments
from sendloom.domain.backoff import bucket_of
from sendloom.domain.ids import NAMESPACE, dead_letter_id
from sendloom.domain.lanes import lane_for
from sendloom.domain.rendering import RenderError
from sendloom.errors import Fenced, Refusal, Transient
from sendloom.platform.metrics import campaign as metrics
from sendloom.platform.metrics import delivery as sends
from sendloom.ports import (
    AcceptedStore,
    Audiences,
    CampaignRow,
    CampaignStore,
    CapUse,
    CatalogStore,
    DeadLetter,
    DeadLetterStore,
    Decision,
    DecisionStore,
    Ledger,
    PagePeople,
    Person,
)

log = logging.getLogger(__name__)

PLAN = "plan"
"""The cursor's stage; sending has one per channel."""
PAGES_A_CURSOR = 2
"""A cursor behind by some pages costs a repeat that inserts nothing; a cursor a page costs a write a page."""
PLANS_AT_ONCE = 2
"""In one process: more would only share the processor, and the first shards' senders wait for all of them."""
PAGES_A_SUMMARY = 25
LETTERS_AT_ONCE = 500
CONTROL_EVERY = 1.0
_FINAL = {CampaignPhase.COMPLETED, CampaignPhase.CANCELLED, CampaignPhase.FAILED}
_UNDER_WAY = {
    CampaignPhase.WAITING,
    CampaignPhase.RUNNING,
    CampaignPhase.PAUSED,
    CampaignPhase.SETTLING,
}
NOT_APPROVED = "not_approved"
_ALIKE = frozenset(RecipientState) - {RecipientState.DEFERRED, RecipientState.FAILED}
"""What people of one cohort share to the letter: a deferral is spread over minutes, a failure gets a letter each."""


class _Cancelled(Exception):
    """Somebody cancelled the campaign while its audience was being written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CampaignActivities:
    """On `flow-<class>`."""

    def __init__(
        self,
        *,
        campaigns: CampaignStore,
        decisions: DecisionStore,
        ledger: Ledger,
        catalog: CatalogStore,
        accepted: AcceptedStore,
        dead_letters: DeadLetterStore,
        templates: Templates,
        audiences: Audiences,
        guard: LaneGuard | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._campaigns = campaigns
        self._decisions = decisions
        self._ledger = ledger
        self._catalog = catalog
        self._accepted = accepted
        self._dead_letters = dead_letters
        self._templates = templates
        self._audiences = audiences
        self._guard = guard
        self._grounds = Grounds(campaigns, catalog, templates)
        self._now = now
        self._planning = asyncio.Semaphore(PLANS_AT_ONCE)
        self._monotonic = monotonic

    # --- launch -------------------------------------------------------------------------------------------------------

    @activity.defn(name="campaign.freeze")
    async def freeze(self, ref: CampaignRef) -> FreezeResult:
        """Pins the audience, or says why the launch cannot be. Safe to repeat: what was pinned stays pinned."""
        async with heartbeating(every=CAMPAIGN):
            row = await self._row(ref)
            control = await self._campaigns.control(ref.tenant, ref.campaign_id)
            if row.phase in _FINAL:
                return FreezeResult(closed=row.phase, control=control)
            try:
                frozen = await self._freeze(row)
            except _Cancelled as cancelled:
                await self._end(row, CampaignPhase.CANCELLED, cancelled.reason, {"counts": {}})
                control = await self._control(ref)
                return FreezeResult(closed=CampaignPhase.CANCELLED, control=control)
            except Refusal as refusal:
                refused = Refused(code=refusal.code, reason=refusal.detail)
                await self._end(row, CampaignPhase.FAILED, refused.code, {"detail": refused.reason})
                return FreezeResult(refused=refused, control=control)
            ground = await self._grounds.of(ref.tenant, ref.campaign_id)
            return FreezeResult(
                frozen=frozen,
                control=control,
                send_at=ground.spec.send_at,
                rate_per_second=ground.rate(None),
                under_way=row.phase in _UNDER_WAY,
            )

    async def _freeze(self, row: CampaignRow) -> Frozen:
        category = await self._catalog.category(row.tenant, row.category)
        if category is None:
            raise Refusal("unknown_category", "the category is not there", field="category")
        if category.message_class is not MessageClass.MARKETING:
            raise Refusal("marketing_only", "only marketing categories can be campaigns")
        parts = await self._templates.parts(row.tenant, row.template_id, row.template_version)
        if not parts:
            raise Refusal("unknown_template", "the template version is not there")
        channels = channels_of(row, category, parts)
        if not channels:
            raise Refusal("no_template", "the template has no content for the category's channels")
        for part in parts:
            self._templates.compiled(parts, part.channel, part.locale, row.tenant)
        if row.version_id is None:
            await self._write_audience(row)
        return await self._campaigns.freeze(row.tenant, row.campaign_id, self._now(), channels)

    async def _write_audience(self, row: CampaignRow) -> None:
        """For a correction the list of who got the other campaign (CAMP-12), for a segment the list of its members (CAMP-2).

        The version's id follows from the campaign's, so that any attempt goes on with what there is.
        """
        spec = CampaignSpec.model_validate(dict(row.spec))
        if spec.sent_of is not None:
            source = await self._campaigns.get(row.tenant, spec.sent_of)
            if source is None:
                raise Refusal("unknown_campaign", "the campaign to correct is gone")
            version_id = uuid5(NAMESPACE, f"{row.campaign_id}/sent of {spec.sent_of}")
            writing = partial(self._audiences.write_sent, source=source)
        elif spec.segment is not None:
            version_id = uuid5(NAMESPACE, f"{row.campaign_id}/segment")
            segment = segments.parse(spec.segment.definition)
            writing = partial(self._audiences.write_segment, segment=segment)
        else:
            return

        async def between() -> None:
            if activity.is_worker_shutdown():
                raise Transient("this worker stops; another goes on after the last chunk")
            control = await self._campaigns.control(row.tenant, row.campaign_id)
            if control.state is ControlState.CANCELLED:
                raise _Cancelled(control.reason or "cancelled")

        try:
            version = await writing(row.tenant, row.list_id, version_id, between=between)
        except _Cancelled:
            await self._audiences.fail(row.tenant, version_id, "cancelled")
            raise
        if version.state == "failed" and spec.segment is not None and not version.size:
            raise Refusal(
                "segment_empty", f"nobody was in segment {spec.segment.segment_id} at launch"
            )

    @activity.defn(name="campaign.preflight")
    async def preflight(self, ref: CampaignRef) -> PreflightReport:
        """Looks at messages as some of the audience would get them, and at the deadline. What cannot be ends it here (CAMP-8)."""
        async with heartbeating(every=CAMPAIGN):
            ground = await self._grounds.of(ref.tenant, ref.campaign_id)
            control = await self._control(ref)
            report = await examine(ground, self._campaigns, self._now(), control.rate_per_second)
            if report.code is not None and control.state is not ControlState.CANCELLED:
                log.warning("a launch was refused", extra={"code": report.code})
                await self._end(
                    ground.row,
                    CampaignPhase.FAILED,
                    report.code,
                    {"detail": report.reason, "examples": report.examples},
                )
            return report

    @activity.defn(name="campaign.approval")
    async def approval(self, ref: CampaignRef) -> Approval:
        """Whether the row says that a second person has agreed; a signal alone proves nothing."""
        row = await self._row(ref)
        control = await self._control(ref)
        if row.approved_by is not None or control.state is ControlState.CANCELLED:
            return Approval(approved=row.approved_by is not None, control=control)
        if row.expires_at is not None and row.expires_at <= self._now():
            detail = {"detail": "nobody approved it before it expired"}
            await self._end(row, CampaignPhase.FAILED, NOT_APPROVED, detail)
            return Approval(approved=False, refused=NOT_APPROVED)
        return Approval(approved=False, control=control)

    @activity.defn(name="campaign.control")
    async def control(self, ref: CampaignRef) -> Control:
        """What the control row says, for who has nobody to hear it from."""
        return await self._control(ref)

    @activity.defn(name="campaign.show_phase")
    async def show_phase(self, change: PhaseChange) -> None:
        ref = change.ref
        await self._campaigns.set_phase(ref.tenant, ref.campaign_id, change.phase, change.reason)

    @activity.defn(name="campaign.write_control")
    async def write_control(self, wish: ControlWish) -> Control:
        """For a signal that came past the API."""
        ref = wish.ref
        return await self._campaigns.set_control(
            ref.tenant,
            ref.campaign_id,
            wish.state,
            wish.rate_per_second,
            wish.reason,
            wish.by,
        )

    # --- plan ---------------------------------------------------------------------------------------------------------

    @activity.defn(name="campaign.plan")
    async def plan(self, s: Stretch) -> StretchResult:
        """Decides for some thousands of people, page by page from the durable cursor. Returns counts."""
        async with heartbeating(every=CAMPAIGN), watching(self._guard), self._planning:
            began = self._monotonic()
            try:
                return await self._plan(s, began)
            except Fenced:
                log.info("planning was taken over by a newer attempt")
                return StretchResult(done=False, fenced=True)
            finally:
                metrics.record_stretch(PLAN, "", self._monotonic() - began)

    async def _plan(self, s: Stretch, began: float) -> StretchResult:
        ref = s.ref
        ground = await self._grounds.of(ref.tenant, ref.campaign_id)
        epoch = await self._campaigns.take_epoch(ref.tenant, ref.campaign_id, ref.shard, PLAN)
        page, closed = await self._campaigns.cursor(ref.tenant, ref.campaign_id, ref.shard, PLAN)
        if closed:
            return StretchResult(done=True, next_page=page)
        begun = page
        pages = [
            (number, size)
            for number, size in await self._campaigns.pages(
                ref.tenant, ground.version_id, ref.shard
            )
            if number >= page
        ]
        handled = 0
        changed: list[int] = []
        await self._stop_with_list(ref)
        control, looked_at = await self._control(ref), self._monotonic()
        reading: asyncio.Task[PagePeople] | None = None
        try:
            for n, (number, size) in enumerate(pages):
                while (
                    self._guard is not None
                    and self._monotonic() - began < s.max_seconds
                    and not activity.is_worker_shutdown()
                    and await self._guard.let_pass()
                ):
                    pass
                if self._monotonic() - looked_at > CONTROL_EVERY:
                    control, looked_at = await self._control(ref), self._monotonic()
                if control.state is not ControlState.RUNNING:
                    break
                if handled and (
                    handled + size > s.max_recipients
                    or self._monotonic() - began > s.max_seconds
                    or activity.is_worker_shutdown()
                ):
                    break
                members = await (reading or self._read(ground, ref.shard, number))
                reading = None
                if n + 1 < len(pages):
                    # The next page is read while this one is judged and written.
                    reading = asyncio.create_task(self._read(ground, ref.shard, pages[n + 1][0]))
                if not await self._plan_page(ground, ref.shard, number, members):
                    changed.append(number)
                handled += size
                page = number + 1
                if page - begun >= PAGES_A_CURSOR:
                    await self._advance(ground, ref.shard, epoch, changed, page, closed=False)
                    begun = page
            closed = not pages or page > pages[-1][0]
            if page > begun or closed:
                await self._advance(ground, ref.shard, epoch, changed, page, closed=closed)
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        return StretchResult(
            done=closed,
            handled=handled,
            control=control.state,
            control_version=control.version,
            fault=control.reason if control.by == "sendloom" else None,
            next_page=page,
        )

    async def _stop_with_list(self, ref: ShardRef) -> None:
        """A list that fails later stops its campaigns (CAMP-2)."""
        why = await self._campaigns.list_failure(ref.tenant, ref.campaign_id)
        if why is None:
            return
        control = await self._control(ref)
        if control.state is ControlState.RUNNING:
            log.warning("a campaign was paused: its list has failed")
            metrics.record_paused("list_failed")
            await self._campaigns.set_control(
                ref.tenant,
                ref.campaign_id,
                ControlState.PAUSED,
                None,
                f"list_failed: {why}",
                "sendloom",
            )

    async def _read(self, ground: Ground, shard: int, page: int) -> PagePeople:
        row = ground.row
        return await self._campaigns.page_people(
            row.tenant,
            row.category,
            ground.version_id,
            shard,
            page,
            bool(ground.policy.caps),
            channels=ground.policy.ladder,
        )

    async def _plan_page(self, ground: Ground, shard: int, page: int, people: PagePeople) -> bool:
        """Whether all of it is pending, as it was without decisions: then there are no new numbers to be summed up."""
        now = self._now()
        if not ground.policy.caps:
            like = [
                self._decide(ground, shard, page, p.recipient_id, p, now) for p in people.people
            ]
            if all(d.state in _ALIKE for d, _ in like) and await self._insert_page(people, like):
                _note_unknown_zones(ground, people, dict(enumerate(d.state for d, _ in like)))
                return all(d.state is RecipientState.PENDING for d, _ in like)
        decisions: list[Decision] = []
        caps: list[CapUse] = []
        for recipient_id, cohort in zip(people.recipient_ids, people.cohorts, strict=True):
            person = people.people[cohort]
            decision, uses = self._decide(ground, shard, page, recipient_id, person, now)
            decisions.append(decision)
            caps += uses
        stored = await self._insert(decisions, caps)
        failed = [d for d in stored if d.state is RecipientState.FAILED and d.attempt == 0]
        if failed:
            await self._dead_letters.add(
                [_letter(ground.row, d, "it could not be planned") for d in failed]
            )
        for state in {d.state for d in stored}:
            metrics.record_planned(state, sum(1 for d in stored if d.state is state))
        states = zip(people.cohorts, (d.state for d in decisions), strict=True)
        _note_unknown_zones(ground, people, dict(states))
        return False

    def _decide(
        self,
        ground: Ground,
        shard: int,
        page: int,
        recipient_id: str,
        person: Person,
        now: datetime,
    ) -> tuple[Decision, list[CapUse]]:
        """What becomes of somebody who is to the gates as `person` is."""
        key = ground.key(shard, page, recipient_id)
        try:
            return ground.decide(key, person, now)
        except Exception as e:
            # One bad recipient must not hold up a page (CAMP-4).
            log.warning("a recipient could not be planned", extra={"error": type(e).__name__})
            code = e.code if isinstance(e, RenderError) else "plan_error"
            return Decision(key, RecipientState.FAILED, reason=code), []

    async def _insert_page(
        self, people: PagePeople, like: Sequence[tuple[Decision, list[CapUse]]]
    ) -> bool:
        """Cohort by cohort, as long as nobody was there before and nothing is wrong with anybody."""
        if not like:
            return True
        try:
            new = await self._decisions.insert_page(
                people.recipient_ids, people.cohorts, [decision for decision, _ in like]
            )
        except (Transient, asyncio.CancelledError):
            raise
        except Exception as e:
            # One by one it turns out who it is.
            log.debug("a page is written one by one", extra={"error": type(e).__name__})
            return False
        if new:
            for cohort, count in Counter(people.cohorts).items():
                metrics.record_planned(like[cohort][0].state, count)
        return new

    async def _insert(self, decisions: list[Decision], caps: list[CapUse]) -> list[Decision]:
        """All at once; should the database refuse one of them as nonsense, everybody but that one."""
        try:
            return await self._decisions.insert(decisions, caps=caps)
        except (Transient, asyncio.CancelledError):
            raise
        except Exception as e:
            if len(decisions) == 1:
                [only] = decisions
                if only.state is RecipientState.FAILED:
                    raise
                log.warning(
                    "a decision could not be written as it was", extra={"error": type(e).__name__}
                )
                return await self._decisions.insert(
                    [Decision(only.key, RecipientState.FAILED, reason="plan_error")]
                )
            half = len(decisions) // 2
            stored = []
            for part in (decisions[:half], decisions[half:]):
                people = {d.key.recipient_id for d in part}
                stored += await self._insert(
                    part, [use for use in caps if use.recipient_id in people]
                )
            return stored

    async def _advance(
        self,
        ground: Ground,
        shard: int,
        epoch: int,
        changed: list[int],
        page: int,
        *,
        closed: bool,
    ) -> None:
        row = ground.row
        if changed:
            await self._campaigns.summarise(
                row.tenant, ground.frozen_at, row.campaign_id, [(shard, n) for n in changed]
            )
        await self._campaigns.advance(row.tenant, row.campaign_id, shard, PLAN, epoch, page, closed)
        changed.clear()

    # --- while it runs ------------------------------------------------------------------------------------------------

    @activity.defn(name="campaign.due")
    async def due(self, ref: CampaignRef) -> DueView:
        """What waits in buckets."""
        return await self._campaigns.due(ref.tenant, ref.campaign_id)

    @activity.defn(name="campaign.progress")
    async def progress(self, ref: CampaignRef) -> CampaignProgress:
        return await self._progress(await self._row(ref))

    @activity.defn(name="campaign.settle")
    async def settle(self, ref: CampaignRef) -> SettleResult:
        """Names what ended leases came to, and puts who is missing into a bucket. Never sends."""
        began = self._monotonic()
        async with heartbeating(every=CAMPAIGN):
            row = await self._row(ref)
            settled = await self._campaigns.settle(row, self._ledger, bucket_of(self._now()))
            if settled.made_unknown:
                await self._write_letters(row, RecipientState.UNKNOWN)
        metrics.record_stretch("settle", "", self._monotonic() - began)
        return settled

    @activity.defn(name="campaign.guard_rails")
    async def guard_rails(self, ref: CampaignRef) -> None:
        """Pauses it when receipts say that it hurts, or when it hangs. Shards read the row themselves."""
        row = await self._row(ref)
        if row.frozen_at is None or row.phase in _FINAL:
            return
        ground = await self._grounds.of(ref.tenant, ref.campaign_id)
        control = await self._control(ref)
        queues = [lane_for(c, ground.category.message_class).queue for c in ground.policy.ladder]
        killed = [
            await self._catalog.killed(row.tenant, row.category, queue, row.campaign_id)
            for queue in queues
        ]
        # What somebody has switched off is no stall.
        stalled_at = None if any(killed) else self._now()
        await watch_over(
            self._campaigns,
            row,
            stalled_at=stalled_at,
            rate_per_second=ground.rate(control.rate_per_second),
        )

    @activity.defn(name="campaign.cancel_rest")
    async def cancel_rest(self, ref: CampaignRef) -> int:
        """Everybody without a final state becomes `cancelled`, also who was never planned; but not who may be with a provider."""
        async with heartbeating(every=CAMPAIGN):
            row = await self._row(ref)
            control = await self._control(ref)
            cancelled = 0
            for shard in range(row.shards or 0):
                cancelled += await self._campaigns.cancel_rest(
                    row, shard, control.reason or "cancelled", self._ledger
                )
            return cancelled

    @activity.defn(name="campaign.close")
    async def close(self, ref: CampaignRef) -> CloseResult:
        """Recomputes every page; ends the campaign only when the sum is the frozen size and nobody is open."""
        async with heartbeating(every=CAMPAIGN):
            row = await self._row(ref)
            await self._summarise_all(row)
            shown = await self._progress(row)
            if row.phase in _FINAL:
                return CloseResult(closed=row.phase, progress=shown)
            if not progress.adds_up(shown.counts, shown.size) or progress.still_open(shown.counts):
                log.info("a campaign cannot be closed yet")
                return CloseResult(closed=None, progress=shown)
            phase, reason = CampaignPhase.COMPLETED, ""
            if shown.control is ControlState.CANCELLED:
                phase = CampaignPhase.CANCELLED
                reason = (await self._control(ref)).reason or "cancelled"
            else:
                reason = progress.nobody_sent(shown.counts, shown.reasons)
            counts = {state.value: count for state, count in shown.counts.items() if count}
            await self._end(row, phase, reason, {"counts": counts})
            return CloseResult(
                closed=phase,
                progress=shown.model_copy(update={"phase": phase, "reason": reason}),
            )

    # --- helpers ------------------------------------------------------------------------------------------------------

    async def _row(self, ref: CampaignRef) -> CampaignRow:
        row = await self._campaigns.get(ref.tenant, ref.campaign_id)
        if row is None:
            # The API inserts it before it starts the workflow; a replica may be behind.
            raise Transient("the campaign's row is not there")
        return row

    async def _control(self, ref: CampaignRef | ShardRef) -> Control:
        return await self._campaigns.control(ref.tenant, ref.campaign_id)

    async def _progress(self, row: CampaignRow) -> CampaignProgress:
        counts = await self._campaigns.counts(row.tenant, row.campaign_id)
        reasons: dict[str, int] = {}
        if row.frozen_at is not None:
            reasons = await self._campaigns.reasons(row.tenant, row.frozen_at, row.campaign_id)
        control = await self._campaigns.control(row.tenant, row.campaign_id)
        return CampaignProgress(
            campaign_id=row.campaign_id,
            phase=row.phase,
            reason=row.reason,
            size=row.size or 0,
            counts=counts,
            reasons=reasons,
            control=control.state,
            rate_per_second=control.rate_per_second,
            last_send_at=row.last_send_at,
            updated_at=self._now(),
        )

    async def _summarise_all(self, row: CampaignRow) -> None:
        if row.frozen_at is None or row.version_id is None:
            return
        for shard in range(row.shards or 0):
            pages = await self._campaigns.pages(row.tenant, row.version_id, shard)
            for n in range(0, len(pages), PAGES_A_SUMMARY):
                batch = [(shard, number) for number, _ in pages[n : n + PAGES_A_SUMMARY]]
                await self._campaigns.summarise(row.tenant, row.frozen_at, row.campaign_id, batch)

    async def _write_letters(self, row: CampaignRow, state: RecipientState) -> None:
        """A dead letter for everybody in a state, so that somebody can see and replay them."""
        if row.frozen_at is None:
            return
        after: str | None = None
        while True:
            found = await self._campaigns.group(
                row.tenant, row.frozen_at, row.campaign_id, state, None, LETTERS_AT_ONCE, after
            )
            if found:
                await self._dead_letters.add(
                    [_letter(row, d, "nobody knows whether it was taken") for d in found]
                )
            if len(found) < LETTERS_AT_ONCE:
                return
            after = found[-1].key.recipient_id

    async def _end(
        self, row: CampaignRow, phase: CampaignPhase, reason: str, more: dict[str, Any]
    ) -> None:
        await self._campaigns.set_phase(row.tenant, row.campaign_id, phase, reason)
        await self._accepted.close(
            row.tenant, row.campaign_id, {"kind": phase.value, "reason": reason, **more}
        )


def _note_unknown_zones(
    ground: Ground, people: PagePeople, states: Mapping[int, RecipientState]
) -> None:
    """Of those who are written to. What a cohort came to is what each of it came to."""
    blind = {
        cohort
        for cohort, person in enumerate(people.people)
        if states.get(cohort) is RecipientState.PENDING and ground.skips_quiet_hours(person)
    }
    if blind:
        sends.record_zone_unknown(sum(cohort in blind for cohort in people.cohorts))


def _letter(row: CampaignRow, decision: Decision, error: str) -> DeadLetter:
    return letter(
        row, decision.key, decision.channel, decision.state, decision.reason or "unknown", error
    )


def letter(
    row: CampaignRow, key: DecisionKey, channel: Any, state: RecipientState, code: str, error: str
) -> DeadLetter:
    """What ended without success, for the list that operators work."""
    return DeadLetter(
        id=dead_letter_id(key),
        kind=Kind.CAMPAIGN,
        ref_id=row.campaign_id,
        decision=key,
        category=row.category,
        channel=channel,
        state=state,
        code=code,
        last_error=error,
    )
