"""One message: resolve what to do, send it once, record what came of it. Every step is safe to repeat.

The accepted row says what was promised, the decision what was resolved, the claim what was done to a provider. A repeat reads
them and goes on from there; nothing random or new is made twice.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid5

from pydantic import TypeAdapter
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.facts import address_states, policy_of, spread_of
from activities.heartbeats import heartbeating, resume, say, to_its_end
from activities.rendering import Senders, Templates, outbound
from schemas.content import Content
from schemas.kinds import (
    Channel,
    ClaimState,
    FaultScope,
    MessageClass,
    Mode,
    RecipientState,
    UnknownPolicy,
)
from schemas.messages import Outbound
from schemas.notifications import (
    DecisionKey,
    DeliveryKey,
    NoRung,
    NotificationInput,
    Objection,
    Plan,
    PlanRequest,
    Recorded,
    RecordRequest,
    Sendable,
    Settled,
)
from schemas.outcomes import (
    Accepted,
    CallOutcome,
    Cancelled,
    Deferred,
    Expired,
    Failed,
    Outcome,
    Rejected,
    Suppressed,
    Unknown,
)
from schemas.wire import Wire
from sendloom.domain import backoff, gates, ids
from sendloom.domain.addresses import normalise
from sendloom.domain.budgets import RETRIES, lease, provider_timeout
from sendloom.domain.frequency import CapRule
from sendloom.domain.gates import AddressState, Facts, Policy
from sendloom.domain.lanes import lane_for
from sendloom.domain.outcomes import MEANING, OPEN, Cause
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import RenderError
from sendloom.domain.zones import zone_or_default
from sendloom.errors import Refusal, StoreUnavailable
from sendloom.platform.metrics import delivery as metrics
from sendloom.ports import (
    AcceptedRow,
    AcceptedStore,
    CapUse,
    CatalogStore,
    Category,
    ClaimResult,
    ClaimScope,
    Decision,
    DecisionStore,
    DeliveryRow,
    Done,
    InDoubt,
    InFlight,
    Ledger,
    Move,
    PeopleStore,
    Person,
    Provider,
    Sealer,
    SentCache,
    Tenant,
    Want,
    Won,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

ADDRESS_PURPOSE = "address"
DEVICE_PURPOSE = "device"
"""What addresses and device tokens are sealed for."""

CHANNEL_NOT_CONFIGURED = "channel_not_configured"
NO_DEVICE = "no_device"
ERASED = "erased"

PATIENCE = 2.0
"""Seconds. What security waits for a store before it does without (POL-7), and what anybody repeats a record at once."""
REPEAT_EVERY = 0.1
CLAIM_DELAYS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between asking for a claim again."""

STORE_DELAY = timedelta(seconds=5)
"""The next look at a store that is down; with jitter, so that they do not all look at once."""
CONFIGURATION_DELAY = timedelta(seconds=60)
"""A wrong login heals when somebody mends it: asked rarely, and it burns no attempts."""
LEASE_SLACK = timedelta(milliseconds=500)
"""Lease ends are judged by Postgres's clock, and we come back by ours."""

_OUTBOUND: TypeAdapter[Outbound] = TypeAdapter(Outbound)
_NOT_SENT = frozenset(RecipientState) - {RecipientState.SENT}


class SendProgress(Wire):
    """What an attempt leaves to the next. Losing it makes us more patient, never less careful."""

    counted: int = 0
    """Provider calls that count against the class's attempts."""
    attempt: int = 0
    """The last claim's attempt."""


@dataclass(frozen=True, slots=True)
class _Claimed:
    """What a call is made under. `until` is on our monotonic clock, counted from before the claim."""

    attempt: int
    owner: UUID
    until: float


class _Send:
    """One attempt: the sendable and what it has come to know."""

    def __init__(self, s: Sendable, owner: UUID, progress: SendProgress) -> None:
        self.s = s
        self.owner = owner
        self.progress = progress
        self.scope = scope_of(s.delivery)
        self.address_hash: bytes | None = None


class DeliveryActivities:
    def __init__(
        self,
        *,
        accepted: AcceptedStore,
        people: PeopleStore,
        catalog: CatalogStore,
        decisions: DecisionStore,
        ledger: Ledger,
        sealer: Sealer,
        senders: Senders,
        configured: frozenset[Channel],
        providers: Mapping[Channel, Provider],
        test_provider: Provider,
        cache: SentCache,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._accepted = accepted
        self._people = people
        self._catalog = catalog
        self._decisions = decisions
        self._ledger = ledger
        self._sealer = sealer
        self._senders = senders
        self._configured = configured
        self._providers = providers
        self._test_provider = test_provider
        self._cache = cache
        self._now = now
        self._monotonic = monotonic
        self._rng = rng
        self._templates = Templates(catalog)
        self._unrecorded: Callable[[], Awaitable[None]] | None = None
        """The last marketing outcome that could not be recorded."""

    # --- plan --------------------------------------------------------------------------------------------------------

    @activity.defn(name="delivery.plan")
    async def plan(self, request: PlanRequest) -> Plan:
        """What to do on the asked rung or below it, decided once: a repeat gets the stored decision and payload."""
        n = request.n
        key = decision_key(n)
        row, decision = await asyncio.gather(
            self._accepted.get(n.tenant, n.notification_id), self._decisions.read(key)
        )
        if row is None or not row.content:
            return Plan(step=Settled(outcome=Expired(reason="purged")))
        if (cancelled := _cancelled_in_store(row)) is not None:
            return Plan(step=Settled(outcome=cancelled))
        category, tenant = await self._catalog_of(n)
        if decision is not None:
            known = await self._stored_plan(request, decision, category)
            if known is not None:
                return Plan(step=known)
        content = Content.model_validate_json(row.content)
        person = await self._person(n, content)
        return Plan(step=await self._resolve(request, decision, content, person, category, tenant))

    async def _catalog_of(self, n: NotificationInput) -> tuple[Category, Tenant]:
        category, tenant = await asyncio.gather(
            self._catalog.category(n.tenant, n.category), self._catalog.tenant(n.tenant)
        )
        if category is None or tenant is None:
            # Both existed at accept; whoever removed them can put them back.
            raise ApplicationError("the category or tenant is gone", type="CatalogGone")
        return category, tenant

    async def _stored_plan(
        self, request: PlanRequest, decision: Decision, category: Category
    ) -> Sendable | Settled | None:
        """What an earlier run resolved, unless there is something left to resolve."""
        resend = request.send_no > decision.send_no
        if decision.state not in OPEN:
            return None if resend else Settled(outcome=await self._outcome_of(decision))
        if (
            decision.state is not RecipientState.PENDING
            or decision.channel is None
            or decision.rung < request.rung
            or resend
            or (decision.not_after is not None and self._now() >= decision.not_after)
        ):
            return None
        key = delivery_key(decision.key, decision.channel, decision.send_no)
        if await self._decisions.delivery(key) is None:
            return None
        return _sendable(request.n, key, decision.rung, category, decision.not_after)

    async def _outcome_of(self, decision: Decision) -> Outcome:
        """The outcome a final decision stands for."""
        reason = decision.reason or ""
        match decision.state:
            case RecipientState.SENT:
                row = None
                if decision.channel is not None:
                    key = delivery_key(decision.key, decision.channel, decision.send_no)
                    [row] = await self._ledger.read(scope_of(key), [want_of(key)])
                return Accepted(
                    provider=(row and row.provider) or "",
                    provider_message_id=(row and row.provider_message_id) or "",
                )
            case RecipientState.REJECTED:
                return Rejected(provider="", code=reason)
            case RecipientState.FAILED:
                return Failed(provider="", code=reason)
            case RecipientState.UNKNOWN:
                return Unknown(provider="", code=reason)
            case RecipientState.EXPIRED:
                return Expired(reason=reason or Reason.EXPIRED)
            case RecipientState.CANCELLED:
                return Cancelled(reason=reason or "cancelled")
            case RecipientState.ERASED:
                return Suppressed(reason=ERASED)
            case _:
                return Suppressed(reason=reason)

    async def _person(self, n: NotificationInput, content: Content) -> Person:
        """The recipient as they are now; for security, as they were at accept when they cannot be read (POL-7)."""
        security = n.message_class is MessageClass.SECURITY
        try:
            [person] = await within(
                self._people.people(n.tenant, n.category, [n.recipient_id], not security),
                PATIENCE if security else None,
            )
        except StoreUnavailable:
            metrics.record_away("profiles")
            if not security or not (content.verified_addresses or content.verify_address):
                raise
            log.error("recipients cannot be read; using what was verified at accept")
            return Person(recipient_id=n.recipient_id, exists=True, locale=content.locale)
        if person.suppressions_unread and content.verified_addresses:
            log.error("suppressions cannot be looked at; using what was verified at accept")
            person.addresses, person.devices = {}, []
        return person

    async def _resolve(
        self,
        request: PlanRequest,
        decision: Decision | None,
        content: Content,
        person: Person,
        category: Category,
        tenant: Tenant,
    ) -> Sendable | NoRung | Objection | Settled:
        n, key = request.n, decision_key(request.n)
        verifying = content.verify_channel if content.verify_address is not None else None
        if verifying is None:
            if not person.exists:
                return await self._object(
                    request, decision, Suppressed(reason=Reason.UNKNOWN_RECIPIENT)
                )
            if person.erased:
                return await self._object(request, decision, Suppressed(reason=ERASED))
        addresses = await self._addresses(n, content, person)
        facts = self._facts(n, key, category, tenant, person)
        facts.addresses = {channel: known.state for channel, known in addresses.items()}
        facts.suppressed = {
            c: known.suppressed for c, known in addresses.items() if known.suppressed
        }
        parts = await self._templates.parts(n.tenant, content.template_id, content.template_version)
        rung, skipped = request.rung, ""
        while True:
            verdict = gates.decide(facts, rung)
            match verdict:
                case gates.Chosen() as chosen:
                    if chosen.zone_unknown:
                        metrics.record_zone_unknown()
                case gates.NoRung() | gates.Suppressed() if skipped and request.rung == 0:
                    # Not the person's doing: somebody can mend it and replay.
                    failed = Failed(
                        provider="", code=skipped, scope=FaultScope.SENDER, counts=False
                    )
                    return await self._object(request, decision, failed)
                case gates.NoRung(reason=reason):
                    return await self._no_rung(request, decision, skipped or _named(reason, facts))
                case gates.Suppressed(reason=reason):
                    why = _named(reason, facts)
                    return await self._object(request, decision, Suppressed(reason=why))
                case _:
                    return await self._object(request, decision, gates.to_outcome(verdict))
            try:
                if n.mode is Mode.LIVE and chosen.channel not in self._configured:
                    raise _NotConfigured
                template = self._templates.compiled(
                    parts, chosen.channel, person.locale or tenant.default_locale, n.tenant
                )
                send_no = max(request.send_no, decision.send_no if decision else 1)
                delivery = delivery_key(key, chosen.channel, send_no)
                message = outbound(
                    template,
                    content,
                    delivery=delivery,
                    message_class=n.message_class,
                    category=n.category,
                    tenant=tenant,
                    senders=self._senders,
                    address=addresses[chosen.channel].plain(),
                    date=n.accepted_at,
                    expires_at=n.expires_at,
                )
            except _NotConfigured:
                skipped, rung = skipped or CHANNEL_NOT_CONFIGURED, chosen.rung + 1
                continue
            except RenderError as e:
                skipped, rung = skipped or e.code, chosen.rung + 1
                continue
            payload = DeliveryRow(
                key=delivery,
                address_hash=addresses[chosen.channel].address_hash,
                payload=message.model_dump_json().encode(),
            )
            return await self._store(request, decision, chosen, payload, category)

    def _facts(
        self,
        n: NotificationInput,
        key: DecisionKey,
        category: Category,
        tenant: Tenant,
        person: Person,
    ) -> Facts:
        zone, defaulted = zone_or_default(person.zone, tenant.default_zone)
        return Facts(
            now=self._now(),
            policy=policy_of(category, tenant),
            not_after=n.expires_at,
            zone=zone,
            zone_known=not defaulted,
            opted_out=person.opted_out,
            consented=person.consented,
            cap_uses=person.cap_uses,
            not_before=n.not_before,
            spread=spread_of(key),
        )

    async def _addresses(
        self, n: NotificationInput, content: Content, person: Person
    ) -> dict[Channel, "_Known"]:
        """Where this message may go, by channel."""
        if content.verify_channel is not None and content.verify_address is not None:
            # Only there: a code that proves who holds an address proves nothing anywhere else.
            channel = content.verify_channel
            return {channel: await self._given(n, channel, content.verify_address)}
        states = address_states(person)
        found = {
            channel: _Known(
                state=states[channel],
                address_hash=address.address_hash,
                suppressed=person.suppressed.get(channel),
                plain=self._opener(ADDRESS_PURPOSE, n.tenant, address.sealed),
            )
            for channel, address in person.addresses.items()
        }
        for device in person.devices:
            plain = self._opener(DEVICE_PURPOSE, n.tenant, device.sealed)
            found.setdefault(device.channel, _Known(AddressState.VERIFIED, b"", None, plain))
        if not found and n.message_class is MessageClass.SECURITY:
            for channel in content.verified_channels:
                if channel in content.verified_addresses:
                    address = content.verified_addresses[channel]
                    found[channel] = await self._given(n, channel, address)
        return found

    def _opener(self, purpose: str, tenant: str, sealed: bytes) -> Callable[[], str]:
        return lambda: self._sealer.open(purpose, tenant, sealed).decode()

    async def _given(self, n: NotificationInput, channel: Channel, address: str) -> "_Known":
        """An address that came with the request, for security only."""
        lookup = normalise(channel, address).lookup
        address_hash = self._sealer.address_hash(n.tenant, channel, lookup)
        found = await self._unless_away(
            "suppressions", self._ledger.suppression(n.tenant, channel, [address_hash]), {}, True
        )
        return _Known(
            AddressState.VERIFYING, address_hash, found.get(address_hash), lambda: address
        )

    async def _object(
        self, request: PlanRequest, decision: Decision | None, outcome: Outcome
    ) -> Objection:
        """Store the objection as the decision, so that anybody can see why it was not sent, or not yet."""
        reason = getattr(outcome, "reason", getattr(outcome, "code", None))
        until = outcome.until if isinstance(outcome, Deferred) else None
        await self._decide(request, decision, MEANING[outcome.kind].recipient, reason, until)
        if isinstance(outcome, Suppressed):
            metrics.record_suppressed(request.n.message_class, outcome.reason)
        return Objection(outcome=outcome)

    async def _no_rung(
        self, request: PlanRequest, decision: Decision | None, reason: str
    ) -> NoRung:
        if request.rung == 0:
            await self._decide(request, decision, RecipientState.SUPPRESSED, reason, None)
            metrics.record_suppressed(request.n.message_class, reason)
        # After an earlier rung was tried its outcome stands, and closing writes it.
        return NoRung(reason=reason)

    async def _decide(
        self,
        request: PlanRequest,
        decision: Decision | None,
        state: RecipientState,
        reason: str | None,
        not_before: datetime | None,
    ) -> None:
        key = decision_key(request.n)
        if decision is None:
            await self._decisions.insert(
                [Decision(key=key, state=state, reason=reason, not_before=not_before)]
            )
        elif decision.state in OPEN and request.rung == 0:
            await self._decisions.move(
                [
                    Move(
                        key=key,
                        expect=frozenset({decision.state}),
                        to=state,
                        cause=Cause.SENDER,
                        reason=reason,
                        not_before=not_before,
                    )
                ]
            )

    async def _store(
        self,
        request: PlanRequest,
        decision: Decision | None,
        chosen: gates.Chosen,
        payload: DeliveryRow,
        category: Category,
    ) -> Sendable | Settled | Objection:
        """Insert decision and delivery if absent; what is then there is the plan."""
        n, key = request.n, decision_key(request.n)
        fresh = Decision(
            key=key,
            state=RecipientState.PENDING,
            channel=chosen.channel,
            rung=chosen.rung,
            send_no=payload.key.send_no,
            not_before=chosen.not_before,
            not_after=chosen.not_after,
        )
        if decision is None:
            caps = [_cap_use(n, rule, chosen) for rule in chosen.caps]
            [stored] = await self._decisions.insert([fresh], [payload], caps)
            if stored.state is RecipientState.SUPPRESSED:
                reason = stored.reason or Reason.FREQUENCY_CAP
                metrics.record_suppressed(n.message_class, reason)
                return Objection(outcome=Suppressed(reason=reason))
            if stored.state not in OPEN:
                return Settled(outcome=await self._outcome_of(stored))
            if stored.channel is not chosen.channel:
                # Two runs resolved it at once and the other was first: its decision is the decision.
                known = await self._stored_plan(request, stored, category)
                if known is not None:
                    return known
            return _sendable(n, payload.key, chosen.rung, category, chosen.not_after)
        if chosen.caps and decision.state in OPEN:
            caps = [_cap_use(n, rule, chosen) for rule in chosen.caps]
            if await self._decisions.use_caps(n.tenant, n.notification_id, caps):
                return await self._object(
                    request, decision, Suppressed(reason=Reason.FREQUENCY_CAP)
                )
        try:
            await self._decisions.add_delivery(payload)
        except Refusal:
            # There was one, and it has been purged or erased: it is not made up again.
            return Settled(outcome=Expired(reason="purged"))
        if decision.state in OPEN:
            await self._decisions.move(
                [
                    Move(
                        key=key,
                        expect=frozenset({decision.state}),
                        to=RecipientState.PENDING,
                        cause=Cause.SENDER,
                        channel=chosen.channel,
                        rung=chosen.rung,
                        not_before=chosen.not_before,
                        not_after=chosen.not_after,
                    )
                ]
            )
        return _sendable(n, payload.key, chosen.rung, category, chosen.not_after)

    # --- send --------------------------------------------------------------------------------------------------------

    @activity.defn(name="delivery.send")
    async def send(self, s: Sendable) -> Recorded:
        """Last look, claim, call, record. The claim says what an earlier attempt came to; a cancelled call is finished."""
        info = activity.info()
        owner = uuid5(ids.NAMESPACE, f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}")
        a = _Send(s, owner, resume(SendProgress) or SendProgress())
        try:
            async with heartbeating(lambda: a.progress):
                return await to_its_end(self._attempt(a))
        except StoreUnavailable as e:
            say(a.progress)
            raise _later(str(e), "StoreUnavailable", STORE_DELAY * (0.5 + self._rng())) from e

    async def _attempt(self, a: _Send) -> Recorded:
        s = a.s
        provider = self._provider(s)
        if provider is None:
            return Recorded(
                outcome=Failed(
                    provider="",
                    code=CHANNEL_NOT_CONFIGURED,
                    scope=FaultScope.SENDER,
                    counts=False,
                )
            )
        verdict, delivery = await self._last_look(s)
        if verdict is not None:
            return Recorded(outcome=verdict, attempt=a.progress.attempt)
        a.address_hash = delivery.address_hash
        if s.message_class is MessageClass.MARKETING:
            await self._recording_is_back()
        message = _OUTBOUND.validate_json(delivery.payload)
        if activity.is_cancelled():
            raise asyncio.CancelledError
        claimed = await self._claim(a)
        if isinstance(claimed, Recorded):
            return claimed
        a.progress = a.progress.model_copy(update={"attempt": claimed.attempt})
        timeout = provider_timeout(s.message_class).total_seconds()
        if claimed.until - self._monotonic() <= timeout:
            # The claim took so long that the call could outlast it, and then somebody else might call too.
            outcome: CallOutcome = Failed(
                provider=provider.name, code=Reason.NOT_CALLED, counts=False
            )
        else:
            outcome = await self._call(provider, message, s)
        return await self._conclude(a, claimed, outcome)

    async def _recording_is_back(self) -> None:
        """Marketing claims nothing more while outcomes cannot be recorded (POL-7). The one that could not be is how we find out."""
        if (record := self._unrecorded) is None:
            return
        try:
            await within(record(), PATIENCE)
        except StoreUnavailable:
            raise
        except Exception:
            # Its own workflow sees to it. The store answers, and that is all that is asked here.
            log.exception("an outcome could not be recorded again")
        if self._unrecorded is record:
            self._unrecorded = None

    def _provider(self, s: Sendable) -> Provider | None:
        if s.mode is Mode.TEST:
            return self._test_provider
        return self._providers.get(s.delivery.channel)

    async def _last_look(self, s: Sendable) -> tuple[Outcome | None, DeliveryRow]:
        """Windows, switches, suppressions and opt-outs as they are now, and the payload as it was fixed."""
        d = s.delivery
        security = s.message_class is MessageClass.SECURITY
        lane = lane_for(d.channel, s.message_class)
        delivery = await self._decisions.delivery(d)
        if delivery is None:
            raise ApplicationError("the payload is gone", type="PayloadGone", non_retryable=True)
        killed, suppressed, opted_out = await asyncio.gather(
            self._unless_away(
                "switches",
                self._catalog.killed(d.tenant, s.category, lane.queue, d.campaign_id),
                None,
                security,
            ),
            self._unless_away(
                "suppressions",
                self._ledger.suppression(d.tenant, d.channel, [delivery.address_hash]),
                {},
                security,
            ),
            self._opted_out(s),
        )
        verdict = gates.last_look(
            now=self._now(),
            policy=Policy(message_class=s.message_class, ladder=(d.channel,)),
            channel=d.channel,
            expires_at=s.expires_at,
            not_after=s.not_after,
            suppressed=suppressed.get(delivery.address_hash),
            opted_out=opted_out,
            killed=killed is not None,
        )
        return (None if verdict is None else gates.to_outcome(verdict)), delivery

    async def _unless_away(
        self, store: str, asked: Awaitable[T], otherwise: T, security: bool
    ) -> T:
        """Security does not wait for what it was already cleared of when it was planned (POL-7)."""
        try:
            return await within(asked, PATIENCE if security else None)
        except StoreUnavailable:
            metrics.record_away(store)
            log.error("a last look could not be taken", extra={"store": store})
            if not security:
                raise
            return otherwise

    async def _opted_out(self, s: Sendable) -> bool:
        if s.message_class is MessageClass.SECURITY:
            return False
        d = s.delivery
        [person] = await self._people.people(d.tenant, s.category, [d.recipient_id], False)
        return d.channel in person.opted_out or gates.EVERY_CHANNEL in person.opted_out

    # --- claiming ----------------------------------------------------------------------------------------------------

    async def _claim(self, a: _Send) -> _Claimed | Recorded:
        """The right to call, or what there is instead of a call."""
        s, want = a.s, want_of(a.s.delivery)
        while True:
            before = self._monotonic()
            try:
                answer = await self._ask(a, want)
            except StoreUnavailable:
                if s.message_class is not MessageClass.SECURITY:
                    raise
                return await self._without_claim(a)
            match answer:
                case Won(attempt=attempt):
                    span = lease(s.message_class).total_seconds()
                    metrics.record_claim(s.message_class, self._monotonic() - before)
                    return _Claimed(attempt, a.owner, before + span)
                case InFlight(until=until):
                    say(a.progress)
                    raise _later("in flight elsewhere", "InFlight", self._rest(until))
                case InDoubt():
                    # Its owner is dead or cut off, and nobody knows whether it called.
                    await self._ledger.settle(a.scope)
                case Done(state=ClaimState.FAILED, attempt=attempt):
                    want = _again(want, retry_of=attempt)
                case Done(state=ClaimState.UNKNOWN, attempt=attempt) if (
                    s.unknown_policy is UnknownPolicy.RESEND or await self._released(s, attempt)
                ):
                    want = _again(want, resume_unknown_of=attempt)
                case Done() as done:
                    return await self._already(a, done)

    async def _ask(self, a: _Send, want: Want) -> Won | InFlight | InDoubt | Done:
        """One claim; for security again and again for two seconds.

        For the others a little longer than a restart takes: when the answer to a claim that was made is lost, only this owner
        knows it again, and to the next attempt it would be somebody's until the lease is over, which is minutes.
        """
        span = lease(a.s.message_class)
        if a.s.message_class is not MessageClass.SECURITY:
            for delay in CLAIM_DELAYS:
                with contextlib.suppress(StoreUnavailable):
                    [answer] = await self._ledger.claim(a.scope, [want], a.owner, span)
                    return answer
                await asyncio.sleep(delay)
                if self._now() >= a.s.not_after:
                    raise StoreUnavailable("it may not go any more when the ledger is back")
            [answer] = await self._ledger.claim(a.scope, [want], a.owner, span)
            return answer
        until = self._monotonic() + PATIENCE
        while True:
            try:
                [answer] = await within(
                    self._ledger.claim(a.scope, [want], a.owner, span),
                    max(until - self._monotonic(), 0.01),
                )
                return answer
            except StoreUnavailable:
                if self._monotonic() + REPEAT_EVERY >= until:
                    raise
                await asyncio.sleep(REPEAT_EVERY)

    async def _without_claim(self, a: _Send) -> _Claimed | Recorded:
        """POL-7: a passcode does not wait for the ledger. The same sealed payload twice is harmless, none is not."""
        if (id := await self._cache.sent(ids.delivery_id(a.s.delivery))) is not None:
            provider = self._provider(a.s)
            assert provider is not None
            return Recorded(
                outcome=Accepted(provider=provider.name, provider_message_id=id),
                attempt=max(a.progress.attempt, 1),
                owner=str(a.owner),
                recorded=False,
            )
        log.error("claims are away; sending a security message without one")
        metrics.record_without_claim()
        span = lease(a.s.message_class).total_seconds()
        return _Claimed(a.progress.attempt + 1, a.owner, self._monotonic() + span)

    async def _released(self, s: Sendable, attempt: int) -> bool:
        """Whether an operator has put a decision that had ended with this unknown attempt back to pending."""
        decision = await self._decisions.read(_decision_of(s.delivery))
        return (
            decision is not None
            and decision.state is RecipientState.PENDING
            and decision.attempt >= attempt
        )

    async def _already(self, a: _Send, done: Done) -> Recorded:
        """Somebody got that far before: no call and no error, only the truth."""
        match done.state:
            case ClaimState.SENT:
                outcome: CallOutcome = Accepted(
                    provider=done.provider or "",
                    provider_message_id=done.provider_message_id or "",
                )
                await self._mark_sent(a.s, done.attempt)
            case ClaimState.REJECTED:
                outcome = Rejected(provider=done.provider or "", code=done.code or "")
            case _:
                outcome = Unknown(provider=done.provider or "", code=done.code or "")
        return Recorded(outcome=outcome, attempt=done.attempt, owner=str(a.owner))

    def _rest(self, until: datetime) -> timedelta:
        return max(until - self._now(), timedelta(0)) + LEASE_SLACK

    # --- the call and after ------------------------------------------------------------------------------------------

    async def _call(self, provider: Provider, message: Outbound, s: Sendable) -> CallOutcome:
        channel, message_class = s.delivery.channel, s.message_class
        before = self._monotonic()
        try:
            outcome = await provider.send(message, message_class)
        except Exception:
            # Adapters answer with values. One that raises has a bug, and may have called.
            log.exception("a provider adapter raised", extra={"provider": provider.name})
            outcome = Unknown(provider=provider.name, code="adapter_raised")
        took = self._monotonic() - before
        metrics.record_call(provider.name, channel, message_class, outcome.kind, took)
        if isinstance(outcome, Accepted):
            since = (self._now() - s.delivery.frozen_at).total_seconds()
            metrics.record_accept_to_provider(channel, message_class, since)
        elif isinstance(outcome, Failed) and outcome.scope is FaultScope.SENDER:
            log.error(
                "the provider refuses our configuration",
                extra={"provider": provider.name, "why": outcome.code},
            )
        return outcome

    async def _conclude(self, a: _Send, claimed: _Claimed, outcome: CallOutcome) -> Recorded:
        s = a.s
        recorded = await self._record_soon(a, claimed, outcome)
        result = Recorded(
            outcome=outcome, attempt=claimed.attempt, owner=str(claimed.owner), recorded=recorded
        )
        resend = isinstance(outcome, Unknown) and s.unknown_policy is UnknownPolicy.RESEND
        if not recorded or not (isinstance(outcome, Failed) or resend):
            return result
        assert isinstance(outcome, Failed | Unknown)
        delay = self._retry_in(a, outcome)
        if delay is not None:
            say(a.progress)
            raise _later("not taken", type(outcome).__name__, delay)
        return result.model_copy(update={"outcome": self._given_up(a, outcome)})

    def _retry_in(self, a: _Send, outcome: Failed | Unknown) -> timedelta | None:
        """How long to wait for the next attempt; None: there is none."""
        s, now, budget = a.s, self._now(), RETRIES[a.s.message_class]
        since = s.delivery.frozen_at
        retry_after = outcome.retry_after if isinstance(outcome, Failed) else None
        if isinstance(outcome, Failed) and outcome.scope is FaultScope.SENDER:
            at = now + max(retry_after or timedelta(0), CONFIGURATION_DELAY * (0.5 + self._rng()))
        elif isinstance(outcome, Failed) and not outcome.counts:
            at = now + budget.first_delay
        else:
            counted = a.progress.counted + 1
            a.progress = a.progress.model_copy(update={"counted": counted})
            planned = backoff.next_attempt(
                budget,
                counted,
                since=since,
                now=now,
                not_after=s.expires_at,
                rng=self._rng,
                retry_after=retry_after,
            )
            return None if planned is None else planned - now
        return at - now if at < min(s.expires_at, since + budget.total) else None

    def _given_up(self, a: _Send, outcome: Failed | Unknown) -> Outcome:
        """A known failure that only its ttl kept from another attempt has expired, unless another rung is left."""
        s, budget = a.s, RETRIES[a.s.message_class]
        out_of_attempts = backoff.exhausted(
            budget, a.progress.counted, s.delivery.frozen_at, self._now()
        )
        if isinstance(outcome, Unknown) or out_of_attempts or s.rung + 1 < s.rungs:
            return outcome
        return Expired(reason=Reason.EXPIRED)

    async def _record_soon(self, a: _Send, claimed: _Claimed, outcome: CallOutcome) -> bool:
        """Whether it is in, after repeating it for a moment. Only this is repeated, never the call (case C65)."""
        if isinstance(outcome, Accepted):
            await self._cache.remember(ids.delivery_id(a.s.delivery), outcome.provider_message_id)
        write = partial(self._write, a.s, claimed.attempt, claimed.owner, outcome, a.address_hash)
        until = self._monotonic() + PATIENCE
        while True:
            try:
                await within(write(), max(until - self._monotonic(), 0.01))
                return True
            except StoreUnavailable:
                if self._monotonic() + REPEAT_EVERY >= until:
                    log.error(
                        "an outcome could not be recorded yet",
                        extra={"delivery": ids.delivery_id(a.s.delivery)},
                    )
                    metrics.record_unrecorded(a.s.message_class)
                    if a.s.message_class is MessageClass.MARKETING:
                        self._unrecorded = write
                    return False
                await asyncio.sleep(REPEAT_EVERY)

    async def _write(
        self,
        s: Sendable,
        attempt: int,
        owner: UUID,
        outcome: CallOutcome,
        address_hash: bytes | None,
    ) -> None:
        d = s.delivery
        state = MEANING[outcome.kind].claim
        assert state is not None
        await self._ledger.record(
            scope_of(d),
            [
                ClaimResult(
                    recipient_id=d.recipient_id,
                    attempt=attempt,
                    owner=owner,
                    state=state,
                    send_no=d.send_no,
                    device=d.device,
                    provider=outcome.provider,
                    provider_message_id=outcome.provider_message_id
                    if isinstance(outcome, Accepted)
                    else None,
                    code=None if isinstance(outcome, Accepted) else outcome.code,
                )
            ],
        )
        if isinstance(outcome, Accepted):
            await self._mark_sent(s, attempt)
        elif isinstance(outcome, Rejected) and outcome.suppress and s.mode is Mode.LIVE:
            if address_hash is None:
                delivery = await self._decisions.delivery(d)
                address_hash = delivery.address_hash if delivery else None
            if address_hash:
                reason = "stop" if outcome.opted_out else "hard_bounce"
                await self._ledger.suppress(
                    d.tenant, d.channel, address_hash, reason, f"{outcome.provider}: {outcome.code}"
                )
        metrics.record_outcome(d.channel, s.message_class, outcome.kind)

    async def _mark_sent(self, s: Sendable, attempt: int) -> None:
        """By proof, over whatever else the decision said."""
        await self._decisions.move(
            [
                Move(
                    key=_decision_of(s.delivery),
                    expect=_NOT_SENT,
                    to=RecipientState.SENT,
                    cause=Cause.PROOF,
                    channel=s.delivery.channel,
                    rung=s.rung,
                    send_no=s.delivery.send_no,
                    attempt=attempt,
                )
            ]
        )

    @activity.defn(name="delivery.record")
    async def record(self, request: RecordRequest) -> None:
        """Repeats only the marking of a call that was made."""
        if activity.info().attempt > 1:
            log.error(
                "still recording an outcome",
                extra={"delivery": ids.delivery_id(request.sendable.delivery)},
            )
        await self._write(
            request.sendable, request.attempt, UUID(request.owner), request.outcome, None
        )

    @activity.defn(name="delivery.settle")
    async def settle(self, s: Sendable) -> Recorded:
        """What really became of a send that was cut off: read from its claim, once no call can still be going on."""
        d, scope = s.delivery, scope_of(s.delivery)
        [row] = await self._ledger.read(scope, [want_of(d)])
        if row is not None and row.state is ClaimState.CLAIMED:
            if not row.lease_over:
                raise _later("in flight elsewhere", "InFlight", self._rest(row.lease_until))
            await self._ledger.settle(scope)
            [row] = await self._ledger.read(scope, [want_of(d)])
        over: Outcome = Expired(reason=Reason.EXPIRED)
        if row is None:
            waited = Failed(provider="", code=Reason.NOT_CALLED, counts=False)
            return Recorded(outcome=over if self._now() >= s.expires_at else waited, attempt=0)
        provider, code = row.provider or "", row.code or ""
        match row.state:
            case ClaimState.SENT:
                await self._mark_sent(s, row.attempt)
                outcome: Outcome = Accepted(
                    provider=provider, provider_message_id=row.provider_message_id or ""
                )
            case ClaimState.REJECTED:
                outcome = Rejected(provider=provider, code=code)
            case ClaimState.FAILED:
                failed = Failed(provider=provider, code=code)
                outcome = over if self._now() >= s.expires_at else failed
            case _:
                outcome = Unknown(provider=provider, code=code)
        return Recorded(outcome=outcome, attempt=row.attempt, owner=str(row.owner))


# --- helpers ----------------------------------------------------------------------------------------------------------


class _NotConfigured(Exception):
    """No provider for this channel."""


@dataclass(slots=True)
class _Known:
    """One address a message could go to, opened only when it does."""

    state: AddressState
    address_hash: bytes
    suppressed: str | None
    plain: Callable[[], str]


async def within(asked: Awaitable[T], seconds: float | None) -> T:
    """The answer, or StoreUnavailable when it does not come in time."""
    try:
        async with asyncio.timeout(seconds):
            return await asked
    except TimeoutError:
        raise StoreUnavailable("no answer in time") from None


def decision_key(n: NotificationInput) -> DecisionKey:
    """A notification is its own campaign: shard 0, page 0, frozen when it was accepted."""
    return DecisionKey(
        tenant=n.tenant,
        frozen_at=n.accepted_at,
        campaign_id=n.notification_id,
        recipient_id=n.recipient_id,
    )


def delivery_key(key: DecisionKey, channel: Channel, send_no: int) -> DeliveryKey:
    return DeliveryKey(**key.model_dump(), channel=channel, send_no=send_no)


def _decision_of(d: DeliveryKey) -> DecisionKey:
    return DecisionKey.model_validate(d.model_dump())


def scope_of(d: DeliveryKey) -> ClaimScope:
    return ClaimScope(d.tenant, d.frozen_at, d.campaign_id, d.shard, d.page, d.channel)


def want_of(d: DeliveryKey) -> Want:
    return Want(d.recipient_id, d.send_no, d.device)


def _again(
    want: Want, *, retry_of: int | None = None, resume_unknown_of: int | None = None
) -> Want:
    return Want(want.recipient_id, want.send_no, want.device, retry_of, resume_unknown_of)


def _sendable(
    n: NotificationInput,
    delivery: DeliveryKey,
    rung: int,
    category: Category,
    not_after: datetime | None,
) -> Sendable:
    return Sendable(
        delivery=delivery,
        rung=rung,
        rungs=len(category.ladder),
        message_class=n.message_class,
        mode=n.mode,
        category=n.category,
        unknown_policy=category.unknown_policy,
        not_after=not_after or n.expires_at,
        expires_at=n.expires_at,
    )


def _cap_use(n: NotificationInput, rule: CapRule, chosen: gates.Chosen) -> CapUse:
    assert chosen.local_day is not None
    return CapUse(n.recipient_id, rule.scope, chosen.local_day, rule.limit_day, rule.limit_week)


def _cancelled_in_store(row: AcceptedRow) -> Cancelled | None:
    """Cancelling is checked in our own store, whatever became of the message that asked for it (case C44)."""
    if row.closed_at is None or row.outcome is None or row.outcome.get("kind") != "cancelled":
        return None
    return Cancelled(reason=str(row.outcome.get("reason") or "cancelled"))


def _named(reason: Reason, facts: Facts) -> str:
    """A person without a device is not a person without an address (case C16)."""
    push_only = all(channel in (Channel.APNS, Channel.FCM) for channel in facts.policy.ladder)
    return NO_DEVICE if reason is Reason.NO_ADDRESS and push_only else reason


def _later(why: str, kind: str, delay: timedelta) -> ApplicationError:
    """An expected failure: Temporal waits that long and asks again."""
    return ApplicationError(
        why, type=kind, next_retry_delay=delay, category=ApplicationErrorCategory.BENIGN
    )
