"""Fakes of the ports. Each keeps what it saw and follows the same tables as the real thing; none is a mock."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from schemas.kinds import Channel, ClaimState, MessageClass, RecipientState
from schemas.messages import Outbound, OutboundSms
from schemas.notifications import DecisionKey, DeliveryKey
from schemas.outcomes import Accepted, CallOutcome
from sendloom.domain.outcomes import decision_may, merge
from sendloom.errors import Refusal, StoreUnavailable
from sendloom.platform.sealing import Hashes, KeyRing
from sendloom.ports import (
    AcceptedRow,
    CapUse,
    Category,
    ClaimAnswer,
    ClaimResult,
    ClaimRow,
    ClaimScope,
    DeadLetter,
    Decision,
    DeliveryRow,
    Done,
    InDoubt,
    InFlight,
    Move,
    PasscodeRow,
    Person,
    TemplateParts,
    Tenant,
    Want,
    Won,
)

START = datetime(2026, 3, 2, 15, 0, tzinfo=UTC)


class FakeClock:
    """One hand for both clocks; it moves only when told to."""

    def __init__(self, at: datetime = START) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def advance(self, by: timedelta) -> None:
        self.at += by


class Outage:
    """A part that can be taken down: `down` for everything, or for some methods only."""

    def __init__(self) -> None:
        self.down = False
        self.down_for: set[str] = set()
        self.hangs = False
        self.calls: list[str] = []

    async def reach(self, method: str) -> None:
        self.calls.append(method)
        if self.down or method in self.down_for:
            if self.hangs:
                await asyncio.Event().wait()
            raise StoreUnavailable(f"{method}: down")


class FakeSealer:
    """The real ring and the real hashes with test keys."""

    def __init__(self) -> None:
        self._ring = KeyRing({"test": bytes(range(32))})
        self.hashes = Hashes(address=b"a" * 32, body=b"b" * 32, passcode=b"p" * 32)

    def seal(self, purpose: str, tenant: str, plain: bytes) -> bytes:
        return self._ring.seal(plain, purpose=purpose, tenant=tenant)

    def open(self, purpose: str, tenant: str, sealed: bytes) -> bytes:
        return self._ring.open(sealed, purpose=purpose, tenant=tenant)

    def open_many(self, purpose: str, tenant: str, sealed: Sequence[bytes]) -> list[bytes]:
        return self._ring.open_many(sealed, purpose=purpose, tenant=tenant)

    def address_hash(self, tenant: str, channel: Channel, lookup_form: str) -> bytes:
        return self.hashes.address_hash(tenant, channel, lookup_form)


class FakeAccepted(Outage):
    def __init__(self, now: Callable[[], datetime] = lambda: START) -> None:
        super().__init__()
        self.rows: dict[tuple[str, UUID], AcceptedRow] = {}
        self.closed: list[UUID] = []
        self._now = now

    async def insert_or_match(self, row: AcceptedRow) -> tuple[AcceptedRow, bool]:
        await self.reach("insert_or_match")
        stored = self.rows.setdefault((row.tenant, row.id), row)
        if stored.body_hmac != row.body_hmac:
            raise Refusal("key_reused", "another body", status=409)
        return stored, stored is not row

    async def mark_started(self, tenant: str, id: UUID) -> None:
        await self.reach("mark_started")
        row = self.rows[tenant, id]
        self.rows[tenant, id] = replace(row, started_at=row.started_at or self._now())

    async def close(self, tenant: str, id: UUID, outcome: Mapping[str, Any]) -> None:
        await self.reach("close")
        self.closed.append(id)
        row = self.rows[tenant, id]
        later_proof = outcome.get("kind") == "accepted"
        if row.closed_at is None or later_proof:
            self.rows[tenant, id] = replace(
                row, closed_at=row.closed_at or self._now(), outcome=dict(outcome)
            )

    async def get(self, tenant: str, id: UUID) -> AcceptedRow | None:
        await self.reach("get")
        return self.rows.get((tenant, id))

    async def set_due(self, tenant: str, id: UUID, due_at: datetime) -> None:
        await self.reach("set_due")
        if (tenant, id) in self.rows:
            self.rows[tenant, id] = replace(self.rows[tenant, id], due_at=due_at)

    async def by_recipient(
        self, tenant: str, recipient_id: str, limit: int, before: datetime | None = None
    ) -> list[AcceptedRow]:
        rows = [
            r for r in self.rows.values() if (r.tenant, r.recipient_id) == (tenant, recipient_id)
        ]
        return rows[:limit]

    async def by_correlation(self, tenant: str, correlation_id: str) -> list[AcceptedRow]:
        return [
            r
            for r in self.rows.values()
            if (r.tenant, r.correlation_id) == (tenant, correlation_id)
        ]

    async def unstarted(self, older_than: timedelta, limit: int) -> list[AcceptedRow]:
        await self.reach("unstarted")
        before = self._now() - older_than
        return [
            row
            for row in self.rows.values()
            if row.started_at is None and row.closed_at is None and row.accepted_at < before
        ][:limit]

    async def open_rows(self, after: tuple[str, UUID] | None, limit: int) -> list[AcceptedRow]:
        rows = sorted((k, r) for k, r in self.rows.items() if r.closed_at is None)
        return [row for key, row in rows if after is None or key > after][:limit]

    async def purge(self, closed_before: datetime, limit: int) -> int:
        gone = [
            key
            for key, row in self.rows.items()
            if row.closed_at is not None and row.closed_at < closed_before
        ][:limit]
        for key in gone:
            del self.rows[key]
        return len(gone)


class FakePeople(Outage):
    def __init__(self) -> None:
        super().__init__()
        self.of: dict[tuple[str, str], Person] = {}

    async def people(
        self,
        tenant: str,
        category: str,
        recipient_ids: Sequence[str],
        cap_days: bool,
        *,
        channels: Sequence[Channel] | None = None,
        unread: bool = False,
    ) -> list[Person]:
        await self.reach("people")
        return [
            self.of.get((tenant, id)) or Person(recipient_id=id, exists=False)
            for id in recipient_ids
        ]


class FakeCatalog(Outage):
    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, Tenant] = {}
        self.categories: dict[tuple[str, str], Category] = {}
        self.parts: dict[tuple[str, str], list[TemplateParts]] = {}
        self.switched_off: dict[str, str] = {}
        """Lane queue or category → reason."""

    async def tenant(self, tenant: str) -> Tenant | None:
        await self.reach("tenant")
        return self.tenants.get(tenant)

    async def category(self, tenant: str, category: str) -> Category | None:
        await self.reach("category")
        return self.categories.get((tenant, category))

    async def template_parts(
        self, tenant: str, template_id: str, version: int | None
    ) -> list[TemplateParts]:
        await self.reach("template_parts")
        parts = self.parts.get((tenant, template_id), [])
        return [p for p in parts if version is None or p.version == version]

    async def killed(self, tenant: str, category: str, lane: str, campaign_id: UUID) -> str | None:
        await self.reach("killed")
        return self.switched_off.get(lane) or self.switched_off.get(category)


_Page = tuple[str, datetime, UUID, int, int, str]


def _decision_id(key: DecisionKey) -> _Page:
    return (key.tenant, key.frozen_at, key.campaign_id, key.shard, key.page, key.recipient_id)


class FakeDecisions(Outage):
    """Compare-and-set by the domain's own table; a move that the table forbids is a mistake of the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: dict[_Page, Decision] = {}
        self.deliveries: dict[DeliveryKey, DeliveryRow] = {}
        self.full_caps: set[str] = set()
        self.purged = False
        self.caps: list[CapUse] = []

    def only(self) -> Decision:
        [decision] = self.decisions.values()
        return decision

    async def insert(
        self,
        decisions: Sequence[Decision],
        deliveries: Sequence[DeliveryRow] = (),
        caps: Sequence[CapUse] = (),
    ) -> list[Decision]:
        await self.reach("insert")
        full = any(use.scope in self.full_caps for use in caps)
        stored = []
        for decision in decisions:
            if full and decision.state is RecipientState.PENDING:
                decision = replace(
                    decision, state=RecipientState.SUPPRESSED, reason="frequency_cap"
                )
            kept = self.decisions.setdefault(_decision_id(decision.key), decision)
            stored.append(kept)
            if kept is decision and kept.state is RecipientState.PENDING:
                self.caps += caps
        for row in deliveries:
            self.deliveries.setdefault(row.key, row)
        return stored

    async def insert_page(
        self, recipient_ids: Sequence[str], cohorts: Sequence[int], like: Sequence[Decision]
    ) -> bool:
        await self.reach("insert_page")
        page = [
            replace(like[cohort], key=like[cohort].key.model_copy(update={"recipient_id": id}))
            for id, cohort in zip(recipient_ids, cohorts, strict=True)
        ]
        if any(_decision_id(decision.key) in self.decisions for decision in page):
            return False
        self.decisions |= {_decision_id(decision.key): decision for decision in page}
        return True

    async def read(self, key: DecisionKey) -> Decision | None:
        await self.reach("read")
        return self.decisions.get(_decision_id(key))

    async def move_page(self, recipient_ids: Sequence[str], like: Move) -> int:
        return await self.move(
            [
                replace(like, key=like.key.model_copy(update={"recipient_id": id}))
                for id in recipient_ids
            ]
        )

    async def move(self, moves: Sequence[Move]) -> int:
        await self.reach("move")
        matched = 0
        for move in moves:
            for state in move.expect:
                assert decision_may(state, move.to, move.cause), (state, move.to, move.cause)
            id = _decision_id(move.key)
            old = self.decisions.get(id)
            if old is None or old.state not in move.expect:
                continue
            matched += 1
            changes = {
                name: value
                for name in (
                    "reason",
                    "channel",
                    "rung",
                    "send_no",
                    "attempt",
                    "not_before",
                    "not_after",
                )
                if (value := getattr(move, name)) is not None
            }
            self.decisions[id] = replace(old, state=move.to, due_at=move.due_at, **changes)
        return matched

    async def use_caps(
        self, tenant: str, campaign_id: UUID, caps: Sequence[CapUse]
    ) -> frozenset[str]:
        await self.reach("use_caps")
        full = frozenset(use.recipient_id for use in caps if use.scope in self.full_caps)
        self.caps += [use for use in caps if use.recipient_id not in full]
        return full

    async def delivery(self, key: DeliveryKey) -> DeliveryRow | None:
        await self.reach("delivery")
        return self.deliveries.get(key)

    async def add_delivery(self, row: DeliveryRow) -> DeliveryRow:
        await self.reach("add_delivery")
        if self.purged:
            raise Refusal("payload_gone", "the payload was purged or erased", status=410)
        return self.deliveries.setdefault(row.key, row)

    async def by_recipient(self, tenant: str, recipient_id: str, limit: int) -> list[Decision]:
        return [
            d
            for d in self.decisions.values()
            if (d.key.tenant, d.key.recipient_id) == (tenant, recipient_id)
        ][:limit]


@dataclass
class _Claim:
    state: ClaimState
    attempt: int
    owner: UUID
    lease_until: datetime
    provider: str | None = None
    provider_message_id: str | None = None
    code: str | None = None


@dataclass
class FakeLedger(Outage):
    """Claims in memory, by the domain's table and `merge`."""

    now: Callable[[], datetime] = lambda: START
    claims: dict[tuple[ClaimScope, str, int, str], _Claim] = field(default_factory=dict)
    suppressions: dict[tuple[str, Channel, bytes], str] = field(default_factory=dict)
    won: int = 0
    records: list[ClaimResult] = field(default_factory=list)
    slow_claim: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        Outage.__init__(self)

    def only(self) -> _Claim:
        [claim] = self.claims.values()
        return claim

    async def claim(
        self, scope: ClaimScope, wants: Sequence[Want], owner: UUID, lease: timedelta
    ) -> list[ClaimAnswer]:
        await self.reach("claim")
        answers = [self._claim(scope, want, owner, lease) for want in wants]
        self.slow_claim()
        return answers

    def _claim(self, scope: ClaimScope, want: Want, owner: UUID, lease: timedelta) -> ClaimAnswer:
        key = (scope, want.recipient_id, want.send_no, want.device)
        now = self.now()
        held = self.claims.get(key)
        follows = held is not None and (
            (held.state is ClaimState.FAILED and want.retry_of == held.attempt)
            or (held.state is ClaimState.UNKNOWN and want.resume_unknown_of == held.attempt)
        )
        if held is None or follows:
            attempt = 1 if held is None else held.attempt + 1
            self.claims[key] = _Claim(ClaimState.CLAIMED, attempt, owner, now + lease)
            self.won += 1
            return Won(attempt, now + lease)
        if held.state is not ClaimState.CLAIMED:
            return Done(
                held.state, held.attempt, held.code, held.provider, held.provider_message_id
            )
        if held.owner == owner:
            held.lease_until = now + lease
            return Won(held.attempt, held.lease_until)
        if held.lease_until <= now:
            return InDoubt(held.attempt, held.owner)
        return InFlight(held.lease_until, held.attempt)

    async def record(self, scope: ClaimScope, results: Sequence[ClaimResult]) -> None:
        await self.reach("record")
        for result in results:
            self.records.append(result)
            key = (scope, result.recipient_id, result.send_no, result.device)
            held = self.claims.get(key)
            fresh = _Claim(
                result.state,
                result.attempt,
                result.owner,
                self.now(),
                result.provider,
                result.provider_message_id,
                result.code,
            )
            if held is None:
                self.claims[key] = fresh
                continue
            state = merge(held.state, held.attempt, result.state, result.attempt)
            if state is result.state and held.state is not state:
                fresh.attempt = max(held.attempt, result.attempt)
                self.claims[key] = fresh

    async def read(self, scope: ClaimScope, wants: Sequence[Want]) -> list[ClaimRow | None]:
        await self.reach("read")
        return [self._read(scope, want) for want in wants]

    def _read(self, scope: ClaimScope, want: Want) -> ClaimRow | None:
        held = self.claims.get((scope, want.recipient_id, want.send_no, want.device))
        if held is None:
            return None
        return ClaimRow(
            key=DeliveryKey(
                tenant=scope.tenant,
                frozen_at=scope.frozen_at,
                campaign_id=scope.campaign_id,
                shard=scope.shard,
                page=scope.page,
                recipient_id=want.recipient_id,
                channel=scope.channel,
                send_no=want.send_no,
                device=want.device,
            ),
            state=held.state,
            attempt=held.attempt,
            owner=held.owner,
            lease_until=held.lease_until,
            lease_over=held.lease_until <= self.now(),
            provider=held.provider,
            provider_message_id=held.provider_message_id,
            code=held.code,
            recorded_at=None,
            delivered_at=None,
            opened_at=None,
            bounced_at=None,
        )

    async def settle(self, scope: ClaimScope) -> int:
        await self.reach("settle")
        over = [
            claim
            for (at, *_), claim in self.claims.items()
            if at == scope and claim.state is ClaimState.CLAIMED and claim.lease_until <= self.now()
        ]
        for claim in over:
            claim.state, claim.code = ClaimState.UNKNOWN, "lease_over"
        return len(over)

    async def of_campaign(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID
    ) -> list[ClaimRow]:
        rows = [
            self._read(scope, Want(recipient, send_no, device))
            for scope, recipient, send_no, device in self.claims
            if (scope.tenant, scope.frozen_at, scope.campaign_id)
            == (tenant, frozen_at, campaign_id)
        ]
        return [row for row in rows if row is not None]

    async def suppress(
        self, tenant: str, channel: Channel, address_hash: bytes, reason: str, source: str
    ) -> None:
        await self.reach("suppress")
        key = (tenant, channel, address_hash)
        if reason in ("complaint", "stop"):
            self.suppressions[key] = reason
        self.suppressions.setdefault(key, reason)

    async def unsuppress(self, tenant: str, channel: Channel, address_hash: bytes) -> bool:
        return self.suppressions.pop((tenant, channel, address_hash), None) is not None

    async def suppression(
        self, tenant: str, channel: Channel, address_hashes: Sequence[bytes]
    ) -> dict[bytes, str]:
        await self.reach("suppression")
        return {
            h: self.suppressions[tenant, channel, h]
            for h in address_hashes
            if (tenant, channel, h) in self.suppressions
        }


class FakeDeadLetters(Outage):
    def __init__(self) -> None:
        super().__init__()
        self.letters: dict[UUID, DeadLetter] = {}

    async def add(self, letters: Sequence[DeadLetter]) -> None:
        await self.reach("add")
        self.letters |= {letter.id: letter for letter in letters}

    async def by_status(
        self, tenant: str, status: str, limit: int, after: UUID | None = None
    ) -> list[DeadLetter]:
        return [one for one in self.letters.values() if one.status == status][:limit]

    async def get(self, tenant: str, id: UUID) -> DeadLetter | None:
        return self.letters.get(id)

    async def resolve(self, tenant: str, id: UUID, status: str, by: str) -> bool:
        letter = self.letters.get(id)
        if letter is None or letter.status != "open":
            return False
        self.letters[id] = replace(letter, status=status)
        return True


class FakePasscodes(Outage):
    def __init__(self, now: Callable[[], datetime] = lambda: START) -> None:
        super().__init__()
        self.rows: dict[tuple[str, UUID], PasscodeRow] = {}
        self.resends: dict[tuple[str, UUID], dict[str, int]] = defaultdict(dict)
        self._now = now

    async def insert(self, row: PasscodeRow) -> None:
        self.rows.setdefault((row.tenant, row.id), row)

    async def get(self, tenant: str, id: UUID) -> PasscodeRow | None:
        await self.reach("get")
        return self.rows.get((tenant, id))

    async def take_check(self, tenant: str, id: UUID) -> PasscodeRow | None:
        await self.reach("take_check")
        row = self.rows.get((tenant, id))
        if row is None:
            return None
        row = self.rows[tenant, id] = replace(row, checks_left=max(row.checks_left - 1, -1))
        return row

    async def mark_used(self, tenant: str, id: UUID) -> bool:
        await self.reach("mark_used")
        row = self.rows[tenant, id]
        if row.used_at is not None or row.cancelled_at is not None:
            return False
        self.rows[tenant, id] = replace(row, used_at=self._now())
        return True

    async def take_resend(self, tenant: str, id: UUID, key: str) -> int:
        await self.reach("take_resend")
        taken = self.resends[tenant, id]
        return taken.setdefault(key, len(taken) + 2)

    async def cancel(self, tenant: str, id: UUID) -> bool:
        await self.reach("cancel")
        row = self.rows[tenant, id]
        if row.used_at is not None or row.cancelled_at is not None:
            return False
        self.rows[tenant, id] = replace(row, cancelled_at=self._now())
        return True


class FakeSentCache(Outage):
    """Redis remembers only `sent`; down, it knows nothing and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.remembered: dict[str, str] = {}

    async def sent(self, delivery_id: str) -> str | None:
        return None if self.down else self.remembered.get(delivery_id)

    async def remember(self, delivery_id: str, provider_message_id: str) -> None:
        if not self.down:
            self.remembered[delivery_id] = provider_message_id


Answer = CallOutcome | BaseException | Callable[[], CallOutcome | None]


class ScriptedProvider:
    """Answers from a list, and accepts when the list is used up. Keeps what it was handed."""

    def __init__(self, *answers: Answer, name: str = "acme") -> None:
        self.name = name
        self.sent: list[Outbound] = []
        self._answers = list(answers)
        self.holds: asyncio.Event | None = None
        """While set to an unset event, calls wait for it: a provider that hangs."""
        self.called = asyncio.Event()

    async def send(self, message: Outbound, message_class: MessageClass) -> CallOutcome:
        self.sent.append(message)
        self.called.set()
        if self.holds is not None:
            await self.holds.wait()
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = answer()
        return answer or Accepted(provider=self.name, provider_message_id=f"m-{len(self.sent)}")

    async def close(self) -> None:
        return None


def texts(messages: Iterable[Outbound]) -> list[str]:
    """What was said, for a readable assert."""
    return [m.body if isinstance(m, OutboundSms) else m.text for m in messages]
