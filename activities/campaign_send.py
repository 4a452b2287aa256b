"""Sends a campaign's stretches: a page is read, chunks of it are rendered, claimed, called and recorded, then the cursor moves.

What holds at every moment: nothing is called without a claim that was won; what is claimed is recorded, whoever cancels;
at most one lane budget of rows is claimed and not recorded; the cursor never passes a row that could still go now.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid5

from temporalio import activity

from activities.campaign_carriers import Carrier, Heading, Parcel, TestCarrier, Writer
from activities.campaign_control import ControlWatch, InDoubtBudget
from activities.campaign_ground import Ground, Grounds
from activities.campaign_plan import PLAN, letter
from activities.delivery import ADDRESS_PURPOSE
from activities.facts import spread_of
from activities.guard_rails import watch_over
from activities.heartbeats import heartbeating
from activities.lane_guard import LaneGuard, watching
from activities.rendering import Templates, validity_seconds
from schemas.campaigns import Control, DueStretch, Stretch, StretchResult
from schemas.kinds import (
    Channel,
    ClaimState,
    ControlState,
    FaultScope,
    Mode,
    RecipientState,
)
from schemas.notifications import DecisionKey, trusted_decision_key
from schemas.outcomes import Accepted, CallOutcome, Failed, Rejected, Unknown
from sendloom.domain import pacing
from sendloom.domain.backoff import bucket_of, exhausted, retry_bucket
from sendloom.domain.budgets import LEASE_MARGIN, RETRIES, lease
from sendloom.domain.gates import Deferred, Expired, Suppressed, last_look
from sendloom.domain.ids import NAMESPACE
from sendloom.domain.lanes import Lane
from sendloom.domain.outcomes import OPEN, Cause
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import RenderError
from sendloom.domain.zones import zone_or_default
from sendloom.errors import Fenced, StoreUnavailable
from sendloom.platform.metrics import campaign as metrics
from sendloom.ports import (
    CampaignStore,
    CapUse,
    CatalogStore,
    ClaimAnswer,
    ClaimResult,
    ClaimScope,
    DeadLetter,
    DeadLetterStore,
    Decision,
    DecisionStore,
    Done,
    InDoubt,
    InFlight,
    Ledger,
    Move,
    PageSend,
    PeopleStore,
    Person,
    Sealer,
    Tokens,
    Want,
    Won,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGES_AT_ONCE = 3
"""While one page is on the wire the next is read and rendered."""
GROUPS_AT_ONCE = 8
"""Due rows lie thin over many pages."""
LOOK_VALID = 5.0
"""Seconds. An opt-out or suppression this recent may be missed; then the rows are read again."""
DUE_AT_ONCE = 1_000
SWITCHES_EVERY = 1.0
NOTE_EVERY = 5.0
REPEAT_LONGEST = 1.0
"""Between two tries to write, or claim, in a store that is away: it is used as soon as it is back."""
GUARD_EVERY = 10.0
GUARDED_KEPT = 1_000
KILLED_WAIT = timedelta(seconds=10)
STORM_FIRST = timedelta(seconds=1)
STORM_LONGEST = timedelta(seconds=30)
STORM_CHUNKS = 10
"""Chunks in a row of which no call came through, each waited after for longer: some three minutes, then it pauses."""
CALM = 10.0
"""Seconds without a throttle before the pace is raised."""
PROBE = 1.25

_PENDING = frozenset({RecipientState.PENDING})
_ANY_BUT_SENT = frozenset(RecipientState) - {RecipientState.SENT}


@dataclass(slots=True)
class Pace:
    """What a provider account has shown to bear. `base` is what it was before it first said no."""

    base: float
    rate: float
    changed_at: float


@dataclass(slots=True)
class Storm:
    """Chunks of which no call came through, one after another."""

    chunks: int = 0

    @property
    def wait(self) -> timedelta:
        return min(STORM_FIRST * float(2 ** max(self.chunks - 1, 0)), STORM_LONGEST)


class CampaignSendActivities:
    """On one lane's queue. One for all activities of that lane in a process: they share its budget and its pace."""

    def __init__(
        self,
        *,
        lane: Lane,
        carrier: Carrier,
        campaigns: CampaignStore,
        decisions: DecisionStore,
        ledger: Ledger,
        people: PeopleStore,
        catalog: CatalogStore,
        dead_letters: DeadLetterStore,
        templates: Templates,
        sealer: Sealer,
        watch: ControlWatch,
        guard: LaneGuard | None = None,
        tokens: Tokens | None = None,
        provider_rate: float | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lane = lane
        self.carrier = carrier
        self.test_carrier = TestCarrier(carrier)
        self.campaigns = campaigns
        self.decisions = decisions
        self.ledger = ledger
        self.people = people
        self.catalog = catalog
        self.dead_letters = dead_letters
        self.grounds = Grounds(campaigns, catalog, templates)
        self.sealer = sealer
        self.watch = watch
        self.guard = guard
        self.tokens = tokens
        self.provider_rate = provider_rate
        self.now = now
        self.monotonic = monotonic
        self.budget = InDoubtBudget(lane.calls_in_flight)
        self.chunk_max = max(1, min(pacing.CHUNK_MAX, lane.calls_in_flight // 2))
        self.meter = pacing.Meter()
        self.pace: Pace | None = None
        self.storms: dict[UUID, Storm] = {}
        self.unwritten = 0
        """Writes that the database has refused and that are being repeated: until they are through, nothing more is claimed."""
        self.guarded: dict[UUID, float] = {}

    @activity.defn(name="campaign.send")
    async def send(self, s: Stretch) -> StretchResult:
        """Sends what is planned of one shard on one channel, from the durable cursor, for some seconds."""
        ref = s.ref
        ground = await self.grounds.of(ref.tenant, ref.campaign_id)
        epoch = await self.campaigns.take_epoch(
            ref.tenant, ref.campaign_id, ref.shard, self.lane.channel
        )
        stretch = _Stretch(self, ground, ref.mode, s.max_recipients, s.max_seconds, epoch=epoch)
        return await stretch.run(_Shard(stretch, ref.shard))

    @activity.defn(name="campaign.send_due")
    async def send_due(self, s: DueStretch) -> StretchResult:
        """Sends the rows of one channel whose bucket has come. It takes no epoch: each row's claim is its fence."""
        ground = await self.grounds.of(s.tenant, s.campaign_id)
        stretch = _Stretch(
            self, ground, s.mode, s.max_recipients, s.max_seconds, half_rate=s.half_rate
        )
        return await stretch.run(_Due(stretch))

    # --- pace ---------------------------------------------------------------------------------------------------------

    @property
    def bucket(self) -> str:
        return f"provider:{self.carrier.name}:{self.lane.queue}"

    def provider_buckets(self) -> list[tuple[str, float]]:
        if self.pace is not None:
            return [(self.bucket, self.pace.rate)]
        return [] if self.provider_rate is None else [(self.bucket, self.provider_rate)]

    async def throttled(self) -> None:
        """The provider says that this is too fast."""
        now = self.monotonic()
        if self.pace is None:
            base = max(1.0, self.meter.rate(now))
            if self.provider_rate is not None:
                base = min(base, self.provider_rate)
            self.pace = Pace(base, base, float("-inf"))
        if self.tokens is None or now - self.pace.changed_at < 1.0:
            # What was already on its way when the pace was lowered says nothing about the new pace.
            return
        self.pace.rate = await self.tokens.slow_down(self.bucket, self.pace.base)
        self.pace.changed_at = now
        log.info("a provider asked for less", extra={"rate": round(self.pace.rate, 1)})

    async def calm(self) -> None:
        """Nothing was throttled; after a while a little more is tried."""
        now = self.monotonic()
        if self.pace is None or self.tokens is None or now - self.pace.changed_at < CALM:
            return
        if self.pace.rate >= self.pace.base:
            # It bears all that it bore when it said no, and perhaps that was said on a bad day.
            self.pace.base *= PROBE
        self.pace.rate = await self.tokens.speed_up(self.bucket, self.pace.base)
        self.pace.changed_at = now


class _Work:
    """Where a stretch's rows come from."""

    concurrency = PAGES_AT_ONCE
    done = False
    caught_up = False
    next_page = 0

    async def run(self) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class _Row:
    """One row of a page."""

    row: PageSend
    at: ClaimScope

    @property
    def key(self) -> DecisionKey:
        """Made when it is asked for: most rows are sent, and those are named by their page and id."""
        return _key(self.at, self.row.recipient_id)


@dataclass(slots=True)
class _Ready(_Row):
    """It may go, dressed for the wire."""

    parcel: Parcel


@dataclass(slots=True)
class _Objection(_Row):
    """It may not go, or not yet."""

    move: Move
    letter: DeadLetter | None = None


@dataclass(slots=True)
class _Result:
    """What a chunk leads to, gathered and then written in a few statements."""

    at: ClaimScope
    sent: list[str] = field(default_factory=list)
    """Whose message is proven to be with the provider."""
    claims: list[ClaimResult] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    suppress: list[tuple[bytes, str]] = field(default_factory=list)
    rejected: list[tuple[_Row, Rejected]] = field(default_factory=list)
    left: int = 0
    """Rows that are still pending and could go now."""

    def object(self, one: _Objection) -> None:
        self.moves.append(one.move)
        if one.letter is not None:
            self.letters.append(one.letter)


class _Stretch:
    """One attempt of one activity."""

    def __init__(
        self,
        lane: CampaignSendActivities,
        ground: Ground,
        mode: Mode,
        max_recipients: int,
        max_seconds: float,
        *,
        epoch: int | None = None,
        half_rate: bool = False,
    ) -> None:
        self.lane = lane
        self.ground = ground
        self.epoch = epoch
        self.channel: Channel = lane.lane.channel
        self.carrier: Carrier = lane.test_carrier if mode is Mode.TEST else lane.carrier
        self.max_recipients = max_recipients
        self.began = lane.monotonic()
        self.ends = self.began + max_seconds
        self.half_rate = half_rate
        info = activity.info()
        # Never a process: a claim whose answer was lost is recognised by the attempt that asked for it.
        self.owner = uuid5(NAMESPACE, f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}")
        self.chunks = 0
        self.handled = 0
        self.noted_at = float("-inf")
        self.most = lane.chunk_max
        self.control = Control(version=0, state=ControlState.RUNNING)
        self.until: datetime | None = None
        self.fault: str | None = None
        self.faulted_at = 0
        self.fenced = False
        self.interrupted = False
        self.killed: str | None = None
        self.error: BaseException | None = None

    # --- the frame ----------------------------------------------------------------------------------------------------

    async def run(self, work: _Work) -> StretchResult:
        row, lane = self.ground.row, self.lane
        self.control = await lane.watch.follow(row.tenant, row.campaign_id)
        step = "due" if self.epoch is None else "send"
        try:
            async with heartbeating(), self._watching(), self._guarded():
                worker = asyncio.create_task(work.run())
                cancelled = False
                while not worker.done():
                    try:
                        await asyncio.wait([worker])
                    except asyncio.CancelledError:
                        # Nothing more is claimed; what is on the wire is finished and recorded first.
                        cancelled = self.interrupted = True
                if cancelled:
                    # Retrieved, or asyncio complains that nobody looked at it.
                    worker.exception()
                    raise asyncio.CancelledError
                worker.result()
            self.control = lane.watch.look(row.tenant, row.campaign_id)
            if self.fault is not None:
                await self._pause_self()
        except Fenced:
            self.fenced = True
        finally:
            lane.watch.leave(row.tenant, row.campaign_id)
            metrics.record_stretch(step, self.channel, lane.monotonic() - self.began)
        if self.fenced:
            metrics.record_fenced(self.channel)
            log.info("sending was taken over by a newer attempt")
        if self.killed is not None and self.until is None:
            self.until = lane.now() + KILLED_WAIT
        return StretchResult(
            done=work.done and not self.fenced,
            handled=self.handled,
            until=self.until,
            control=self.control.state,
            control_version=self.control.version,
            fault=self.fault,
            fenced=self.fenced,
            next_page=work.next_page,
            caught_up=work.caught_up,
        )

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Looks at the kill switches beside the work."""
        await self._look_at_switches()

        async def look() -> None:
            while True:
                await asyncio.sleep(SWITCHES_EVERY)
                await self._look_at_switches()
                await self._look_at_guard_rails()

        task = asyncio.create_task(look())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look_at_switches(self) -> None:
        row, lane = self.ground.row, self.lane
        try:
            self.killed = await lane.catalog.killed(
                row.tenant, row.category, lane.lane.queue, row.campaign_id
            )
        except StoreUnavailable:
            # Without the database nothing can be claimed either.
            log.warning("kill switches could not be read")

    async def _look_at_guard_rails(self) -> None:
        """Once in a while for each campaign of the lane, by whichever stretch comes to it first (CAMP-9)."""
        row, lane = self.ground.row, self.lane
        now = lane.monotonic()
        if now - lane.guarded.get(row.campaign_id, float("-inf")) < GUARD_EVERY:
            return
        if len(lane.guarded) > GUARDED_KEPT:
            lane.guarded.clear()
        lane.guarded[row.campaign_id] = now
        try:
            written = await watch_over(lane.campaigns, row)
        except StoreUnavailable:
            log.warning("a campaign's receipts could not be read")
            return
        if written is not None:
            lane.watch.hear(row.tenant, row.campaign_id, written)

    @property
    def stopping(self) -> bool:
        """Whether nothing more may be claimed in this stretch."""
        row, lane = self.ground.row, self.lane
        self.control = lane.watch.look(row.tenant, row.campaign_id)
        return (
            self.interrupted
            or self.error is not None
            or self.fenced
            or self.fault is not None
            or self.killed is not None
            or self.until is not None
            or self.control.state is not ControlState.RUNNING
            or self.handled >= self.max_recipients
            or lane.monotonic() >= self.ends
            or activity.is_worker_shutdown()
        )

    async def _pause_self(self) -> None:
        """A fault of our own configuration: everybody stops until somebody has looked (cases C13, C69)."""
        row, lane = self.ground.row, self.lane
        known = lane.watch.look(row.tenant, row.campaign_id)
        if known.state is ControlState.RUNNING and known.version == self.faulted_at:
            known = await self._insist(
                lambda: lane.campaigns.set_control(
                    row.tenant,
                    row.campaign_id,
                    ControlState.PAUSED,
                    None,
                    self.fault or "",
                    "sendloom",
                )
            )
            lane.watch.hear(row.tenant, row.campaign_id, known)
            metrics.record_paused("sender_fault")
            log.warning("a campaign paused itself", extra={"reason": self.fault})
        self.control = known

    async def _insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """For what follows a call: only the write is repeated, for as long as the database is away (POL-7)."""
        try:
            return await write()
        except StoreUnavailable:
            log.warning("a record could not be written; it is repeated")
        delay = 0.1
        self.lane.unwritten += 1
        try:
            while True:
                await asyncio.sleep(delay)
                delay = min(delay * 2, REPEAT_LONGEST)
                with contextlib.suppress(StoreUnavailable):
                    return await write()
        finally:
            self.lane.unwritten -= 1

    # --- rows ---------------------------------------------------------------------------------------------------------

    def scope(self, shard: int, page: int) -> ClaimScope:
        row = self.ground.row
        return ClaimScope(
            row.tenant,
            self.ground.frozen_at,
            row.campaign_id,
            shard,
            page,
            self.channel,
            self.epoch,
        )

    async def object(self, scope: ClaimScope, objections: Sequence[_Objection]) -> None:
        """Writes why these may not go."""
        result = _Result(scope)
        await self.believe(scope, objections, result)
        self.handled += len(objections)
        await self._rungs(result)
        await self._write(result)

    async def work(self, shard: int, page: int, rows: Sequence[PageSend], read_at: float) -> bool:
        """Sends these rows of one page, chunk by chunk. True when none of them is left that could go now."""
        scope = self.scope(shard, page)
        tasks: list[asyncio.Task[int]] = []
        rest = list(rows)
        left = 0
        try:
            while rest and not self.stopping and self._is_fresh(read_at):
                if not await self._control_is_fresh() or await self._gives_way():
                    continue
                if self.lane.unwritten:
                    await asyncio.sleep(0.05)
                    continue
                allowed = await self._tokens(min(len(rest), self.most))
                if allowed == 0:
                    continue
                # First a place, then the messages: dressed ones that wait would be most of the memory of a stretch.
                await self.lane.budget.acquire(allowed)
                if self.stopping or self.lane.unwritten or not self._is_fresh(read_at):
                    self.lane.budget.release(allowed)
                    continue
                chunk, rest = rest[:allowed], rest[allowed:]
                result = _Result(scope)
                ready, objections = self._look_and_dress(scope, chunk, result)
                self.lane.budget.release(len(chunk) - len(ready))
                try:
                    await self.believe(scope, objections, result)
                except BaseException:
                    self.lane.budget.release(len(ready))
                    raise
                if ready:
                    self.chunks += 1
                    tasks.append(
                        asyncio.create_task(self._carry(scope, ready, result, self.chunks))
                    )
                else:
                    self.handled += len(result.sent) + len(result.moves) + len(result.rejected)
                    await self._rungs(result)
                    await self._write(result)
                    left += result.left
        finally:
            left += sum(await _all(tasks))
        return not rest and left == 0

    def _guarded(self) -> contextlib.AbstractAsyncContextManager[None]:
        return watching(self.lane.guard)

    async def _gives_way(self) -> bool:
        """Waits in hand while security waits: a timer for each shard would load a server that is behind already."""
        guard = self.lane.guard
        return guard is not None and await guard.let_pass()

    async def _control_is_fresh(self) -> bool:
        """Waits rather than claims what could not be called."""
        if not self.lane.watch.fresh:
            await asyncio.sleep(0.02)
        return self.lane.watch.fresh

    def _is_fresh(self, read_at: float) -> bool:
        return self.lane.monotonic() - read_at < LOOK_VALID

    def _look_and_dress(
        self, scope: ClaimScope, rows: Sequence[PageSend], result: _Result
    ) -> tuple[list[_Ready], list[_Objection]]:
        """The last look at each row, then its message: who may go, and why the others may not."""
        now = self.lane.now()
        ready: list[_Ready] = []
        objections: list[_Objection] = []
        clear: set[tuple[object, ...] | None] = set()
        """Where the last look lets somebody pass against whom nothing is known: the zone and times it depends on."""
        addresses = self._addresses(rows)
        writer = self._writer(scope, now)
        for row in rows:
            try:
                like = None if _spoken_against(row) else (row.zone, row.not_before, row.not_after)
                if like not in clear:
                    move = self._objection(row, _key(scope, row.recipient_id), now)
                    if move is not None:
                        objections.append(_Objection(row, scope, move))
                        continue
                    if like is not None:
                        clear.add(like)
                ready.append(_Ready(row, scope, self._dress(row, writer, addresses)))
            except Exception as e:
                # One bad recipient is recorded and the chunk goes on (CAMP-4, cases C32 and C54).
                objection = self._unsendable(row, scope, e)
                if objection is None:
                    result.left += 1
                else:
                    objections.append(objection)
        return ready, objections

    def _addresses(self, rows: Sequence[PageSend]) -> dict[bytes, bytes]:
        """By their sealed form; empty when one of them does not open: then each is opened for itself."""
        sealed = [row.address.sealed for row in rows if row.address is not None]
        try:
            plain = self.lane.sealer.open_many(ADDRESS_PURPOSE, self.ground.row.tenant, sealed)
        except Exception:
            log.warning("an address of a page does not open")
            return {}
        return dict(zip(sealed, plain, strict=True))

    def _writer(self, scope: ClaimScope, now: datetime) -> Writer:
        ground = self.ground
        return self.carrier.writer(
            Heading(
                tenant=ground.tenant,
                category=ground.category,
                message_class=ground.category.message_class,
                campaign_id=scope.campaign_id,
                shard=scope.shard,
                page=scope.page,
                date=now,
                validity_seconds=validity_seconds(ground.ends_at, now),
            )
        )

    async def believe(
        self, scope: ClaimScope, objections: Sequence[_Objection], result: _Result
    ) -> None:
        """What an earlier attempt did to a provider is true whatever the gates say now, so it is looked at first."""
        if not objections:
            return
        wants = [Want(one.row.recipient_id, one.row.send_no) for one in objections]
        found = await self.lane.ledger.read(scope, wants)
        if any(c is not None and c.state is ClaimState.CLAIMED and c.lease_over for c in found):
            await self.lane.ledger.settle(scope)
            found = await self.lane.ledger.read(scope, wants)
        for one, claim in zip(objections, found, strict=True):
            if claim is None or claim.state is ClaimState.FAILED:
                result.object(one)
            elif claim.state is ClaimState.CLAIMED:
                result.moves.append(_in_flight(one.key, claim.lease_until))
            elif claim.state is ClaimState.SENT:
                result.sent.append(one.row.recipient_id)
            elif claim.state is ClaimState.REJECTED:
                code = claim.code or "rejected"
                result.rejected.append((one, Rejected(provider=claim.provider or "", code=code)))
            elif one.row.attempt >= claim.attempt:
                # Replayed after this very doubt, and then objected to.
                result.object(one)
            else:
                self._finish_unknown(one, claim.attempt, claim.code or "unknown", result)

    def _objection(self, row: PageSend, key: DecisionKey, now: datetime) -> Move | None:
        ground = self.ground
        if row.erased:
            return Move(
                key,
                frozenset({RecipientState.PENDING}),
                RecipientState.ERASED,
                Cause.ERASURE,
                reason="erased",
            )
        zone, guessed = zone_or_default(row.zone, ground.tenant.default_zone)
        verdict = last_look(
            now=now,
            policy=ground.policy,
            channel=self.channel,
            expires_at=ground.ends_at,
            not_before=row.not_before,
            not_after=row.not_after,
            suppressed=row.suppressed,
            opted_out=row.opted_out,
            zone=zone,
            zone_known=not guessed,
        )
        match verdict:
            case None if row.address is None:
                return _final(key, RecipientState.SUPPRESSED, Reason.NO_ADDRESS)
            case None:
                return None
            case Suppressed(reason=reason):
                return _final(key, RecipientState.SUPPRESSED, reason)
            case Expired(reason=reason):
                return _final(key, RecipientState.EXPIRED, reason)
            case Deferred(until=until, reason=reason):
                spread = until + spread_of(key)
                return _later(key, spread if spread < ground.ends_at else until, reason)

    def _dress(self, row: PageSend, writer: Writer, addresses: Mapping[bytes, bytes]) -> Parcel:
        ground = self.ground
        assert row.address is not None
        template = ground.template(self.channel, row.locale)
        shared = ground.row.variables
        values = template.values({**shared, **row.variables} if shared else row.variables)
        sealed = row.address.sealed
        address = addresses.get(sealed) or self.lane.sealer.open(
            ADDRESS_PURPOSE, ground.row.tenant, sealed
        )
        return writer.write(row.recipient_id, row.send_no, address.decode(), template, values)

    def _unsendable(self, row: PageSend, scope: ClaimScope, e: Exception) -> _Objection | None:
        """None: nothing is wrong with the recipient, so the row waits until the sender is put right."""
        code = str(getattr(e, "code", "") or "send_error")
        if getattr(e, "scope", None) is FaultScope.SENDER:
            self._blame_sender(code)
            return None
        # Only what names no values may be written down.
        said = str(e)[:200] if isinstance(e, RenderError) else type(e).__name__
        log.warning("a recipient's message could not be made", extra={"error": said})
        state = RecipientState.FAILED
        key = _key(scope, row.recipient_id)
        return _Objection(
            row,
            scope,
            _final(key, state, code),
            letter(self.ground.row, key, self.channel, state, code, said),
        )

    def _blame_sender(self, code: str) -> None:
        row = self.ground.row
        if self.fault is None:
            self.fault = f"{self.carrier.name}: {code}"
            self.faulted_at = self.lane.watch.look(row.tenant, row.campaign_id).version

    # --- a chunk --------------------------------------------------------------------------------------------------------

    async def _carry(
        self, scope: ClaimScope, ready: list[_Ready], result: _Result, number: int
    ) -> int:
        """Claim, call, record: the rows are in doubt only in between. How many of them could still go now."""
        held = len(ready)
        try:
            owner = uuid5(self.owner, str(number))
            won, began = await self._claim(scope, ready, result, owner)
            outcomes = await self._call(scope, won, result, began, owner) if won else []
        except Fenced:
            self.fenced = True
            return held
        except Exception as e:
            self.error = self.error or e
            raise
        finally:
            self.lane.budget.release(held)
        await self._learn(outcomes, began)
        await self._note_sent(outcomes)
        await self._rungs(result)
        await self._write(result)
        self.handled += len(ready) - result.left
        return result.left

    async def _claim(
        self, scope: ClaimScope, ready: list[_Ready], result: _Result, owner: UUID
    ) -> tuple[list[tuple[_Ready, Won]], float]:
        """What was won, and a moment before the first of its leases began."""
        began, answers = await self._ask(
            scope, [Want(one.row.recipient_id, one.row.send_no) for one in ready], owner
        )
        won: list[tuple[_Ready, Won]] = []
        again: list[tuple[_Ready, Want]] = []
        settled = False
        for one, answer in zip(ready, answers, strict=True):
            match answer:
                case Won():
                    won.append((one, answer))
                case Done(state=ClaimState.FAILED, attempt=attempt):
                    # Still pending, so nobody has judged that failure: not called, a sender's fault, or a crash since.
                    again.append(
                        (one, Want(one.row.recipient_id, one.row.send_no, retry_of=attempt))
                    )
                case Done(state=ClaimState.UNKNOWN, attempt=doubt) if one.row.attempt >= doubt:
                    # The decision has seen this very doubt and is pending again: an operator replayed it.
                    again.append(
                        (
                            one,
                            Want(
                                one.row.recipient_id,
                                one.row.send_no,
                                resume_unknown_of=doubt,
                            ),
                        )
                    )
                case InDoubt() if not settled:
                    settled = True
                    await self.lane.ledger.settle(scope)
                    self._judge_found(one, answer, result)
                case _:
                    self._judge_found(one, answer, result)
        if again:
            _, second = await self._ask(scope, [want for _, want in again], owner)
            for (one, _), answer in zip(again, second, strict=True):
                if isinstance(answer, Won):
                    won.append((one, answer))
                else:
                    self._judge_found(one, answer, result)
        return won, began

    async def _ask(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID
    ) -> tuple[float, list[ClaimAnswer]]:
        """A claim whose answer was lost is asked for again by the same owner, who recognises it and renews its lease. To
        everybody else, also the next attempt, these rows would be somebody's until the lease is over, which is minutes."""
        lane, length = self.lane, lease(self.ground.category.message_class)
        delay, lost = 0.1, False
        while True:
            began = lane.monotonic()
            try:
                return began, await lane.ledger.claim(scope, wants, owner, length)
            except StoreUnavailable:
                lost = True
                if self.interrupted or activity.is_worker_shutdown():
                    await self._give_back(scope, wants, owner)
                    raise
            except Fenced:
                if lost:
                    await self._give_back(scope, wants, owner)
                raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, REPEAT_LONGEST)

    async def _give_back(self, scope: ClaimScope, wants: Sequence[Want], owner: UUID) -> None:
        """Whatever was won of it unheard: only we know that nobody was called."""
        results = [
            ClaimResult(
                want.recipient_id,
                want.attempt,
                owner,
                ClaimState.FAILED,
                send_no=want.send_no,
                provider=self.carrier.name,
                code=Reason.NOT_CALLED,
            )
            for want in wants
        ]
        await self._insist(lambda: self.lane.ledger.record(scope, results))

    def _judge_found(self, one: _Row, answer: ClaimAnswer, result: _Result) -> None:
        """Somebody was there before us; what they left says what this row is."""
        match answer:
            case InFlight(until=until):
                result.moves.append(_in_flight(one.key, until))
            case Done(state=ClaimState.SENT):
                result.sent.append(one.row.recipient_id)
            case Done(state=ClaimState.REJECTED, code=code):
                rejected = Rejected(provider=answer.provider or "", code=code or "rejected")
                result.rejected.append((one, rejected))
            case Done(state=ClaimState.UNKNOWN):
                self._finish_unknown(one, answer.attempt, answer.code or "unknown", result)
            case InDoubt():
                self._finish_unknown(one, answer.attempt, "lease_over", result)
            case _:
                # It changed between two statements; the next read shows as what.
                result.left += 1

    async def _call(
        self,
        scope: ClaimScope,
        won: list[tuple[_Ready, Won]],
        result: _Result,
        began: float,
        owner: UUID,
    ) -> list[CallOutcome]:
        lane, row = self.lane, self.ground.row
        call_by = began + LEASE_MARGIN.total_seconds()

        def may_call() -> bool:
            return (
                not self.interrupted
                and self.fault is None
                and self.killed is None
                # A call must end, at its longest, before the lease does.
                and lane.monotonic() < call_by
                and lane.watch.may_call(row.tenant, row.campaign_id)
            )

        try:
            outcomes = await self.carrier.carry(
                [one.parcel for one, _ in won],
                self.ground.category.message_class,
                may_call=may_call,
            )
        except Exception as e:
            # A provider never raises; should one, nobody knows what it had done by then.
            log.exception("a provider raised")
            outcomes = [Unknown(provider=self.carrier.name, code=type(e).__name__) for _ in won]
        # Nearly everything is a first attempt that is taken: recorded by columns, not by objects.
        taken: dict[str, str] = {}
        provider = self.carrier.name
        for (one, claim), outcome in zip(won, outcomes, strict=True):
            if (
                type(outcome) is Accepted
                and claim.attempt == 1
                and one.row.send_no == 1
                and outcome.provider == provider
            ):
                taken[one.row.recipient_id] = outcome.provider_message_id
            else:
                self._judge(one, claim, outcome, owner, result)
        if taken:
            await self._insist(lambda: lane.ledger.record_sent(scope, owner, provider, taken))
            result.sent += taken
        if result.claims:
            await self._insist(lambda: lane.ledger.record(scope, result.claims))
        return outcomes

    def _judge(
        self, one: _Ready, claim: Won, outcome: CallOutcome, owner: UUID, result: _Result
    ) -> None:
        """The one table of outcomes, for a campaign's row."""
        row = one.row
        state, message_id, code = ClaimState.SENT, None, None
        match outcome:
            case Accepted():
                message_id = outcome.provider_message_id
                result.sent.append(row.recipient_id)
            case Rejected():
                state, code = ClaimState.REJECTED, outcome.code
                if row.address is not None and (outcome.suppress or outcome.opted_out):
                    result.suppress.append(
                        (
                            row.address.address_hash,
                            "stop" if outcome.opted_out else "hard_bounce",
                        )
                    )
                result.rejected.append((one, outcome))
            case Failed():
                state, code = ClaimState.FAILED, outcome.code
                self._judge_failed(one, outcome, result)
            case Unknown():
                state, code = ClaimState.UNKNOWN, outcome.code
                self._finish_unknown(one, claim.attempt, code, result)
        result.claims.append(
            ClaimResult(
                row.recipient_id,
                claim.attempt,
                owner,
                state,
                send_no=row.send_no,
                provider=outcome.provider,
                provider_message_id=message_id,
                code=code,
            )
        )

    def _judge_failed(self, one: _Row, outcome: Failed, result: _Result) -> None:
        key, row = one.key, one.row
        if outcome.scope is FaultScope.SENDER:
            # Nothing is wrong with the recipient: the row stays as it is and goes on after the resume.
            self._blame_sender(outcome.code)
            result.left += 1
            return
        if not outcome.counts:
            result.left += 1
            return
        ground, now = self.ground, self.lane.now()
        budget = RETRIES[ground.category.message_class]
        # Being asked to slow down says nothing about this recipient, so it burns no attempt; time still bounds it.
        attempt = row.attempt + (0 if outcome.throttled else 1)
        since = max(ground.frozen_at, row.not_before or ground.frozen_at, _start(ground))
        bucket = retry_bucket(max(attempt, 1), now, outcome.retry_after)
        if exhausted(budget, attempt, since, now) or bucket >= ground.ends_at:
            self._finish_badly(
                row,
                key,
                RecipientState.FAILED,
                outcome.code,
                outcome.detail,
                result,
                attempt=attempt,
            )
            return
        result.moves.append(
            Move(
                key,
                _PENDING,
                RecipientState.DEFERRED,
                Cause.SENDER,
                reason=outcome.code,
                attempt=attempt,
                due_at=bucket,
            )
        )

    def _finish_unknown(self, one: _Row, attempt: int, code: str, result: _Result) -> None:
        """Marketing never sends again what may have been sent. The decision keeps the doubtful attempt: should an operator
        replay it, that attempt and no later one is resumed."""
        self._finish_badly(
            one.row, one.key, RecipientState.UNKNOWN, code, code, result, attempt=attempt
        )

    def _finish_badly(
        self,
        row: PageSend,
        key: DecisionKey,
        state: RecipientState,
        code: str,
        error: str,
        result: _Result,
        *,
        attempt: int | None = None,
    ) -> None:
        result.moves.append(Move(key, _PENDING, state, Cause.SENDER, reason=code, attempt=attempt))
        result.letters.append(
            letter(self.ground.row, key, self.channel, state, code, error or code)
        )

    async def _rungs(self, result: _Result) -> None:
        """Who was refused on this channel goes on to the next rung that is open to them, in its own lane and time."""
        if not result.rejected:
            return
        ground, lane = self.ground, self.lane
        ladder = ground.policy.ladder
        rung = ladder.index(self.channel) if self.channel in ladder else len(ladder)
        people = {}
        if rung + 1 < len(ladder):
            ids = [one.row.recipient_id for one, _ in result.rejected]
            found = await self._insist(
                lambda: lane.people.people(
                    ground.row.tenant, ground.row.category, ids, bool(ground.policy.caps)
                )
            )
            people = {person.recipient_id: person for person in found}
        now = lane.now()
        for one, rejected in result.rejected:
            person = people.get(one.row.recipient_id)
            next_rung = None
            if person is not None:
                # Its own use of a cap is given back by the move and taken again when the next rung leaves.
                person.cap_uses = {}
                next_rung = ground.decide(one.key, person, now, rung + 1)[0]
            if next_rung is not None and next_rung.channel is not None:
                result.moves.append(
                    Move(
                        one.key,
                        _PENDING,
                        RecipientState.DEFERRED,
                        Cause.SENDER,
                        reason=rejected.code,
                        channel=next_rung.channel,
                        rung=next_rung.rung,
                        attempt=0,
                        not_before=next_rung.not_before,
                        due_at=next_rung.due_at or bucket_of(now),
                    )
                )
            else:
                self._finish_badly(
                    one.row,
                    one.key,
                    RecipientState.REJECTED,
                    rejected.code,
                    rejected.detail,
                    result,
                )

    async def _write(self, result: _Result) -> None:
        """After the record. Letters come before the moves, so that nobody ends badly without one."""
        lane, tenant = self.lane, self.ground.row.tenant
        for address_hash, reason in result.suppress:
            await self._insist(
                partial(
                    lane.ledger.suppress,
                    tenant,
                    self.channel,
                    address_hash,
                    reason,
                    self.carrier.name,
                )
            )
        if result.letters:
            await self._insist(partial(lane.dead_letters.add, result.letters))
        if result.sent:
            like = Move(
                _key(result.at, ""),
                _ANY_BUT_SENT,
                RecipientState.SENT,
                Cause.PROOF,
            )
            await self._insist(partial(lane.decisions.move_page, result.sent, like))
        if result.moves:
            await self._insist(partial(lane.decisions.move, result.moves))
        result.sent.clear()
        result.moves.clear()
        result.letters.clear()
        result.suppress.clear()

    def _count(self, outcomes: Iterable[CallOutcome]) -> None:
        kinds: dict[str, int] = {}
        for outcome in outcomes:
            kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
        for kind, count in kinds.items():
            metrics.record_sent(self.channel, kind, count)

    async def _note_sent(self, outcomes: Sequence[CallOutcome]) -> None:
        """Keeps the age of the last send visible (case C51)."""
        lane, row = self.lane, self.ground.row
        now = lane.monotonic()
        if now - self.noted_at < NOTE_EVERY or not any(isinstance(o, Accepted) for o in outcomes):
            return
        self.noted_at = now
        await self._insist(partial(lane.campaigns.sent_now, row.tenant, row.campaign_id))

    async def _learn(self, outcomes: Sequence[CallOutcome], began: float) -> None:
        """The provider's pace, storms, and how many rows a chunk can hold."""
        lane = self.lane
        seconds = lane.monotonic() - began
        self._count(outcomes)
        called = [o for o in outcomes if not (isinstance(o, Failed) and not o.counts)]
        lane.meter.note(lane.monotonic(), sum(1 for o in called if isinstance(o, Accepted)))
        if any(isinstance(o, Failed) and o.throttled for o in called):
            await lane.throttled()
        elif called:
            await lane.calm()
        if seconds >= LEASE_MARGIN.total_seconds() and len(called) < len(outcomes):
            # The wire is slower than the lease allows for so many: fewer next time, or most of a chunk is claimed in vain.
            self.most = max(1, len(called))
        elif seconds < 1.0:
            self.most = min(lane.chunk_max, self.most * 2)
        self._look_for_storm(called)

    def _look_for_storm(self, called: Sequence[CallOutcome]) -> None:
        """A provider that takes nothing must not burn everybody's attempts (case C92)."""
        lane, id = self.lane, self.ground.row.campaign_id
        faults = [
            o
            for o in called
            if isinstance(o, Failed) and o.scope is FaultScope.PROVIDER and not o.throttled
        ]
        if not called or len(faults) < len(called):
            if called:
                lane.storms.pop(id, None)
            return
        storm = lane.storms.setdefault(id, Storm())
        storm.chunks += 1
        if storm.chunks >= STORM_CHUNKS:
            lane.storms.pop(id, None)
            metrics.record_paused("failure_spike")
            self._blame_sender(f"failure_spike {faults[-1].code}")
        else:
            self.until = lane.now() + storm.wait

    # --- tokens ---------------------------------------------------------------------------------------------------------

    def _buckets(self) -> list[tuple[str, float]]:
        lane, ground = self.lane, self.ground
        row = ground.row
        buckets = lane.provider_buckets()
        control = lane.watch.look(row.tenant, row.campaign_id)
        rate = ground.rate(control.rate_per_second)
        if rate is not None:
            buckets.append((f"campaign:{row.tenant}:{row.campaign_id}", rate))
            if self.half_rate:
                buckets.append((f"catch-up:{row.tenant}:{row.campaign_id}", rate / 2))
        rates = ground.tenant.settings.get("rates")
        if isinstance(rates, Mapping) and self.channel in rates:
            buckets.append((f"tenant:{row.tenant}:{self.channel}", float(rates[self.channel])))
        return buckets

    async def _tokens(self, most: int) -> int:
        """How many rows may be claimed now. 0: look again, or the wait is long and `until` says how long."""
        lane = self.lane
        buckets = self._buckets()
        if lane.tokens is None or not buckets:
            return max(1, most // 2) if self.half_rate else most
        most = pacing.chunk_size((rate for _, rate in buckets), most)
        allowed, wait = await lane.tokens.take(buckets, most)
        if allowed > 0:
            return allowed
        metrics.record_held_back("tokens", wait)
        if wait > pacing.WAIT_IN_HAND.total_seconds():
            self.until = lane.now() + timedelta(seconds=wait)
        else:
            await asyncio.sleep(max(wait, 0.005))
        return 0


class _Shard(_Work):
    """The main pass: planned pages in order from the durable cursor, which moves behind the last finished one."""

    def __init__(self, stretch: _Stretch, shard: int) -> None:
        self._s = stretch
        self._shard = shard
        self._order: list[int] = []
        self._finished: set[int] = set()
        self._touched: set[int] = set()
        self._closing = asyncio.Lock()
        self._planned_to = 0
        self._plan_closed = False

    async def run(self) -> None:
        s, row = self._s, self._s.ground.row
        campaigns = s.lane.campaigns
        stage = s.channel
        self.next_page, closed = await campaigns.cursor(
            row.tenant, row.campaign_id, self._shard, stage
        )
        if closed:
            self.done = self.caught_up = True
            return
        self._planned_to, self._plan_closed = await campaigns.cursor(
            row.tenant, row.campaign_id, self._shard, PLAN
        )
        pages = await campaigns.pages(row.tenant, s.ground.version_id, self._shard)
        todo = [number for number, _ in pages if self.next_page <= number < self._planned_to]
        places = asyncio.Semaphore(1 if s._buckets() else self.concurrency)
        tasks: list[asyncio.Task[None]] = []
        try:
            for number in todo:
                await places.acquire()
                if s.stopping:
                    break
                self._order.append(number)
                tasks.append(asyncio.create_task(self._page(number, places)))
        finally:
            try:
                await _all(tasks)
            except Fenced:
                s.fenced = True
        await self._summarise_unfinished()
        self.caught_up = self.next_page >= self._planned_to
        if self.caught_up and self._plan_closed and not s.fenced:
            await self._advance(self._planned_to, closed=True)
            self.done = True

    async def _summarise_unfinished(self) -> None:
        """Its numbers must not wait for the next stretch, which may be a pause away; nor for the close, when a newer attempt
        has passed over these pages before all of this one's outcomes were recorded."""
        s, row = self._s, self._s.ground.row
        pages = self._touched if s.fenced else self._touched - self._finished
        if pages:
            await s.lane.campaigns.summarise(
                row.tenant,
                s.ground.frozen_at,
                row.campaign_id,
                [(self._shard, number) for number in sorted(pages)],
            )

    async def _page(self, number: int, places: asyncio.Semaphore) -> None:
        s = self._s
        try:
            finished = False
            while not finished and not s.stopping:
                read_at = s.lane.monotonic()
                rows = await s.lane.campaigns.page_sends(
                    s.ground.row, self._shard, number, s.channel
                )
                # Also without rows: a killed attempt may have recorded them all, and not counted.
                self._touched.add(number)
                before = s.handled
                finished = not rows or await s.work(self._shard, number, rows, read_at)
                if not finished and s.handled == before:
                    # For example until control rows can be read again.
                    await asyncio.sleep(0.05)
        except BaseException as e:
            s.error = s.error or e
            raise
        finally:
            places.release()
        if finished:
            await self._finish(number)

    async def _finish(self, number: int) -> None:
        """Moves the cursor over what is finished, in order, after the numbers are written."""
        async with self._closing:
            self._finished.add(number)
            ready: list[int] = []
            while self._order and self._order[0] in self._finished:
                ready.append(self._order.pop(0))
            if not ready:
                return
            changed = [(self._shard, n) for n in ready if n in self._touched]
            if changed:
                row = self._s.ground.row
                await self._s.lane.campaigns.summarise(
                    row.tenant, self._s.ground.frozen_at, row.campaign_id, changed
                )
            await self._advance(ready[-1] + 1, closed=False)

    async def _advance(self, page: int, *, closed: bool) -> None:
        s, row = self._s, self._s.ground.row
        assert s.epoch is not None
        await s.lane.campaigns.advance(
            row.tenant, row.campaign_id, self._shard, s.channel, s.epoch, page, closed
        )
        self.next_page = page


class _Due(_Work):
    """Rows whose bucket has come, in (shard, page) order."""

    concurrency = GROUPS_AT_ONCE

    def __init__(self, stretch: _Stretch) -> None:
        self._s = stretch

    async def run(self) -> None:
        s = self._s
        while not s.stopping:
            read_at = s.lane.monotonic()
            groups = await s.lane.campaigns.due_sends(
                s.ground.row, s.channel, s.lane.now(), DUE_AT_ONCE
            )
            if not groups:
                self.done = True
                return
            before = s.handled
            places = asyncio.Semaphore(1 if s._buckets() or s.half_rate else self.concurrency)
            tasks: list[asyncio.Task[None]] = []
            try:
                for shard, page, rows in groups:
                    await places.acquire()
                    if s.stopping:
                        break
                    tasks.append(
                        asyncio.create_task(self._group(shard, page, rows, read_at, places))
                    )
            finally:
                await _all(tasks)
            if s.handled == before and not s.stopping:
                await asyncio.sleep(0.05)

    async def _group(
        self,
        shard: int,
        page: int,
        rows: Sequence[PageSend],
        read_at: float,
        places: asyncio.Semaphore,
    ) -> None:
        s = self._s
        try:
            row = s.ground.row
            rows = await self._with_caps(shard, page, rows)
            await s.work(shard, page, rows, read_at)
            await s.lane.campaigns.summarise(
                row.tenant, s.ground.frozen_at, row.campaign_id, [(shard, page)]
            )
        except BaseException as e:
            s.error = s.error or e
            raise
        finally:
            places.release()

    async def _with_caps(
        self, shard: int, page: int, rows: Sequence[PageSend]
    ) -> Sequence[PageSend]:
        """Caps are used up when a message leaves, so whoever was put off is asked again; the rest of the rows."""
        s = self._s
        ground, lane = s.ground, s.lane
        if not ground.policy.caps:
            return rows
        found = await lane.people.people(
            ground.row.tenant, ground.row.category, [row.recipient_id for row in rows], True
        )
        now = lane.now()
        ladder = ground.policy.ladder
        rung = ladder.index(s.channel) if s.channel in ladder else 0
        used = [person.cap_uses for person in found]
        scope = s.scope(shard, page)
        objections: list[_Objection] = []
        uses: list[CapUse] = []
        going: list[tuple[PageSend, Person]] = []
        for row, person in zip(rows, found, strict=True):
            # Uses may be this decision's own, from before a pause; the store can tell them apart, under its lock.
            person.cap_uses = {}
            key = ground.key(shard, page, row.recipient_id)
            decision, caps = ground.decide(key, person, now, rung)
            if decision.state is RecipientState.PENDING and decision.channel is s.channel:
                going.append((row, person))
                uses += caps
            else:
                objections.append(_Objection(row, scope, _redecided(decision, now)))
        full: frozenset[str] = frozenset()
        if uses:
            full = await lane.decisions.use_caps(ground.row.tenant, ground.row.campaign_id, uses)
        by_id = dict(zip((row.recipient_id for row in rows), used, strict=True))
        for row, person in going:
            if row.recipient_id in full:
                person.cap_uses = by_id[row.recipient_id]
                key = ground.key(shard, page, row.recipient_id)
                decision, _ = ground.decide(key, person, now, rung)
                if decision.state is RecipientState.PENDING:
                    # Filled up since it was read.
                    decision = replace(
                        decision,
                        state=RecipientState.SUPPRESSED,
                        reason=Reason.FREQUENCY_CAP,
                    )
                objections.append(_Objection(row, scope, _redecided(decision, now)))
        await s.object(scope, objections)
        return [row for row, _ in going if row.recipient_id not in full]


def _redecided(decision: Decision, now: datetime) -> Move:
    """What the gates said this time, for a row that was put off."""
    open_ = decision.state in OPEN
    return Move(
        decision.key,
        _PENDING,
        RecipientState.DEFERRED if open_ else decision.state,
        Cause.ERASURE if decision.state is RecipientState.ERASED else Cause.SENDER,
        reason=decision.reason,
        channel=decision.channel,
        rung=decision.rung if open_ else None,
        not_before=decision.not_before,
        due_at=(decision.due_at or bucket_of(now)) if open_ else None,
    )


def _key(at: ClaimScope, recipient_id: str) -> DecisionKey:
    return trusted_decision_key(
        at.tenant, at.frozen_at, at.campaign_id, at.shard, at.page, recipient_id
    )


def _spoken_against(row: PageSend) -> bool:
    """Whether anything is known of this one recipient that may keep a message back."""
    return row.suppressed is not None or row.opted_out or row.erased or row.address is None


async def _all(tasks: Sequence["asyncio.Task[T]"]) -> list[T]:
    """Waits for every one, then raises the first failure: nothing may go on behind a stretch's back."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def _start(ground: Ground) -> datetime:
    return ground.spec.send_at or ground.frozen_at


def _final(key: DecisionKey, state: RecipientState, reason: str) -> Move:
    return Move(key, _PENDING, state, Cause.SENDER, reason=reason)


def _in_flight(key: DecisionKey, until: datetime) -> Move:
    """Somebody else's lease runs until then."""
    return _later(key, until + timedelta(seconds=1), "in_flight")


def _later(key: DecisionKey, until: datetime, reason: str) -> Move:
    """Back into a bucket."""
    return Move(
        key,
        _PENDING,
        RecipientState.DEFERRED,
        Cause.SENDER,
        reason=reason,
        not_before=None,
        due_at=bucket_of(until),
    )
