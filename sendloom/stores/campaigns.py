"""Campaigns: what is pinned, who controls them, how far each shard is, and counts that always add up."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import groupby, repeat
from operator import itemgetter
from typing import TypeVar
from uuid import UUID

import orjson

from schemas.campaigns import Control, Counts, DueView, Frozen, SettleResult
from schemas.kinds import (
    CampaignPhase,
    Channel,
    ClaimState,
    ControlState,
    Kind,
    MessageClass,
    Mode,
    RecipientState,
)
from schemas.notifications import DecisionKey
from sendloom.domain.guard_rails import Tally
from sendloom.domain.ids import dead_letter_id
from sendloom.domain.outcomes import RECIPIENT_CODE, RECIPIENT_OF_CODE, Cause, decision_may
from sendloom.errors import Fenced, Refusal
from sendloom.ports import (
    REPLAYED,
    Address,
    CampaignRow,
    ClaimRow,
    ClaimScope,
    DeadLetter,
    Decision,
    Health,
    Ledger,
    Move,
    PageSend,
    Want,
)
from sendloom.stores.dead_letters import SQL as LETTERS
from sendloom.stores.dead_letters import add_letters
from sendloom.stores.decisions import PostgresDecisions, decision
from sendloom.stores.lists import EMPTY
from sendloom.stores.people import NOTHING, PostgresPeople, places_of
from sendloom.stores.pool import (
    ACQUIRE,
    BULK,
    STATEMENT,
    Pool,
    Record,
    answering,
    parted,
    touched,
)
from sendloom.stores.queries import load

SQL = load("campaigns.sql")

T = TypeVar("T")

_FIRST = (-1, -1, "")
_PAGES_AT_ONCE = 20
"""Pages one statement cancels: some ten thousand rows."""
_ROWS_AT_ONCE = 50_000
"""Audience rows that settle and replay look at in one statement."""

_STATE_OF_CLAIM = {
    ClaimState.SENT: RecipientState.SENT,
    ClaimState.REJECTED: RecipientState.REJECTED,
    ClaimState.UNKNOWN: RecipientState.UNKNOWN,
}


class PostgresCampaigns(PostgresPeople):
    """Implements `CampaignStore`."""

    def __init__(self, pool: Pool, decisions: PostgresDecisions) -> None:
        super().__init__(pool)
        self._decisions = decisions

    async def insert(self, row: CampaignRow) -> None:
        rate = row.spec.get("rate_per_second")
        await self._execute(
            SQL["insert"],
            row.tenant,
            row.campaign_id,
            row.mode,
            row.name,
            row.category,
            row.template_id,
            row.template_version,
            row.list_id,
            dict(row.spec),
            dict(row.variables),
            row.phase,
            row.reason,
            row.expires_at,
            row.created_at,
            rate,
            row.created_by,
        )

    async def get(self, tenant: str, campaign_id: UUID) -> CampaignRow | None:
        row = await self._row(SQL["get"], tenant, campaign_id)
        return None if row is None else _campaign(row)

    async def recent(self, tenant: str, limit: int) -> list[CampaignRow]:
        return [_campaign(row) for row in await self._fetch(SQL["recent"], tenant, limit)]

    async def open_campaigns(self, after: tuple[str, UUID] | None, limit: int) -> list[CampaignRow]:
        """Every one not closed, over all tenants, in (tenant, id) order; for reconcile and rebuild."""
        at = after or ("", UUID(int=0))
        return [_campaign(row) for row in await self._fetch(SQL["open_campaigns"], *at, limit)]

    async def waiting_after_close(self, limit: int) -> list[CampaignRow]:
        """Campaigns that have ended, with rows in a due bucket, over all tenants; for rebuild."""
        return [_campaign(row) for row in await self._fetch(SQL["waiting_after_close"], limit)]

    async def freeze(
        self, tenant: str, campaign_id: UUID, frozen_at: datetime, channels: Sequence[Channel]
    ) -> Frozen:
        async with self._transaction() as connection:
            row = await connection.fetchrow(SQL["lock"], tenant, campaign_id, timeout=STATEMENT)
            if row is None:
                raise Refusal("unknown_campaign", "there is no such campaign", status=404)
            campaign = _campaign(row)
            if campaign.version_id is None:
                await connection.fetchrow(
                    SQL["lock_list"], tenant, campaign.list_id, timeout=STATEMENT
                )
                audience = await connection.fetchrow(
                    SQL["audience"], tenant, campaign.list_id, timeout=STATEMENT
                )
                _refuse_unusable(audience)
                assert audience is not None
                pinned = await connection.fetchrow(
                    SQL["pin"],
                    tenant,
                    campaign_id,
                    audience["current_version"],
                    audience["size"],
                    audience["shards"],
                    audience["page_size"],
                    frozen_at,
                    list(channels),
                    timeout=STATEMENT,
                )
                assert pinned is not None
                campaign = _campaign(pinned)
            about = await connection.fetchrow(
                SQL["frozen"], tenant, campaign.category, campaign.version_id, timeout=STATEMENT
            )
        if about is None or campaign.expires_at is None:
            raise Refusal("unknown_category", "the campaign's category is gone", field="category")
        assert campaign.frozen_at is not None
        assert campaign.size is not None
        assert campaign.shards is not None
        assert campaign.page_size is not None
        return Frozen(
            frozen_at=campaign.frozen_at,
            size=campaign.size,
            shards=campaign.shards,
            pages=about["pages"],
            page_size=campaign.page_size,
            channels=list(channels if campaign.channels is None else campaign.channels),
            message_class=MessageClass(about["message_class"]),
            expires_at=campaign.expires_at,
        )

    async def list_failure(self, tenant: str, campaign_id: UUID) -> str | None:
        """Why the pinned list failed after launch, or None."""
        row = await self._row(SQL["list_failure"], tenant, campaign_id)
        return None if row is None else (row["reason"] or "list_failed")

    async def set_phase(
        self, tenant: str, campaign_id: UUID, phase: CampaignPhase, reason: str = ""
    ) -> None:
        await self._execute(SQL["set_phase"], tenant, campaign_id, phase, reason)

    async def approve(self, tenant: str, campaign_id: UUID, by: str) -> bool:
        return await self._execute(SQL["approve"], tenant, campaign_id, by) > 0

    async def health(self, campaign: CampaignRow) -> Health:
        row = await self._row(
            SQL["health"], campaign.tenant, campaign.campaign_id, _frozen_at(campaign), timeout=BULK
        )
        if row is None:
            raise Refusal("unknown_campaign", "there is no such campaign", status=404)
        return Health(row["bounced"], row["complained"], Tally(**row["guarded"]), row["at"])

    async def note_seen(self, tenant: str, campaign_id: UUID, tally: Tally) -> None:
        await self._execute(SQL["note_seen"], tenant, campaign_id, asdict(tally))

    async def sent_now(self, tenant: str, campaign_id: UUID) -> None:
        """Something of it has just left; once a stretch is enough."""
        await self._execute(SQL["sent_now"], tenant, campaign_id)

    # --- control ----------------------------------------------------------------------------------------------------

    async def control(self, tenant: str, campaign_id: UUID) -> Control:
        row = await self._row(SQL["control"], tenant, campaign_id)
        if row is None:
            raise Refusal("unknown_campaign", "there is no such campaign", status=404)
        return _control(row)

    async def set_control(
        self,
        tenant: str,
        campaign_id: UUID,
        state: ControlState | None,
        rate_per_second: float | None,
        reason: str,
        by: str,
    ) -> Control:
        row = await self._row(
            SQL["set_control"], tenant, campaign_id, state, rate_per_second, reason, by
        )
        return await self.control(tenant, campaign_id) if row is None else _control(row)

    async def controls_changed_since(self, at: datetime) -> dict[tuple[str, UUID], Control]:
        """Also gives rows written exactly then. Ask from a few seconds before the last time: a slow commit carries an older time."""
        rows = await self._fetch(SQL["controls_since"], at)
        return {(row["tenant"], row["campaign_id"]): _control(row) for row in rows}

    # --- epochs and cursors -----------------------------------------------------------------------------------------

    async def take_epoch(self, tenant: str, campaign_id: UUID, shard: int, stage: str) -> int:
        epoch: int = await self._value(SQL["take_epoch"], tenant, campaign_id, shard, stage)
        return epoch

    async def cursor(
        self, tenant: str, campaign_id: UUID, shard: int, stage: str
    ) -> tuple[int, bool]:
        row = await self._row(SQL["cursor"], tenant, campaign_id, shard, stage)
        return (0, False) if row is None else (row["page"], row["closed"])

    async def advance(
        self,
        tenant: str,
        campaign_id: UUID,
        shard: int,
        stage: str,
        epoch: int,
        page: int,
        closed: bool,
    ) -> None:
        args = (tenant, campaign_id, shard, stage, epoch, page, closed)
        if await self._execute(SQL["advance"], *args) == 0:
            raise Fenced(f"shard {shard} {stage}: epoch {epoch} is over")

    async def pages(self, tenant: str, version_id: UUID, shard: int) -> list[tuple[int, int]]:
        rows = await self._fetch(SQL["pages"], tenant, version_id, shard)
        return [(row["page"], row["size"]) for row in rows]

    # --- sends ------------------------------------------------------------------------------------------------------

    async def page_sends(
        self, campaign: CampaignRow, shard: int, page: int, channel: Channel
    ) -> list[PageSend]:
        row = await self._row(
            SQL["page_sends"],
            campaign.tenant,
            campaign.category,
            channel,
            campaign.version_id,
            campaign.frozen_at,
            campaign.campaign_id,
            shard,
            page,
        )
        return [] if row is None else _sends(row)

    async def due_sends(
        self, campaign: CampaignRow, channel: Channel, before: datetime, limit: int
    ) -> list[tuple[int, int, list[PageSend]]]:
        row = await self._row(
            SQL["due_sends"],
            campaign.tenant,
            campaign.category,
            channel,
            campaign.version_id,
            campaign.frozen_at,
            campaign.campaign_id,
            before,
            limit,
            timeout=BULK,
        )
        if row is None:
            return []
        places = list(zip(row["shards"], row["pages"], strict=True))
        deferred = [
            (shard, page, id)
            for (shard, page), id, state in zip(
                places, parted(row["ids"]), row["states"], strict=True
            )
            if state == RECIPIENT_CODE[RecipientState.DEFERRED]
        ]
        if deferred:
            await self._execute(
                SQL["undefer"],
                campaign.tenant,
                campaign.frozen_at,
                campaign.campaign_id,
                [shard for shard, _, _ in deferred],
                [page for _, page, _ in deferred],
                [id for _, _, id in deferred],
                timeout=BULK,
            )
        placed = zip(places, _sends(row), strict=True)
        return [
            (shard, page, [send for _, send in group])
            for (shard, page), group in groupby(placed, key=itemgetter(0))
        ]

    async def due(self, tenant: str, campaign_id: UUID) -> DueView:
        row = await self._row(SQL["due"], tenant, campaign_id, timeout=BULK)
        assert row is not None
        return DueView(**dict(row))

    # --- counts -----------------------------------------------------------------------------------------------------

    async def summarise(
        self, tenant: str, frozen_at: datetime, campaign_id: UUID, pages: Sequence[tuple[int, int]]
    ) -> None:
        if not pages:
            return
        await self._execute(
            SQL["summarise"],
            tenant,
            frozen_at,
            campaign_id,
            [shard for shard, _ in pages],
            [page for _, page in pages],
            timeout=BULK,
        )

    async def summarise_all(self, campaign: CampaignRow) -> None:
        """Every page; for the close."""
        for shard, pages in await self._shard_pages(campaign, None):
            await self.summarise(
                campaign.tenant, _frozen_at(campaign), campaign.campaign_id, _at(shard, pages)
            )

    async def counts(self, tenant: str, campaign_id: UUID) -> Counts:
        row = await self._row(SQL["counts"], tenant, campaign_id)
        if row is None or row["size"] is None:
            return dict.fromkeys(RecipientState, 0)
        counts = {RECIPIENT_OF_CODE[code]: n for code, n in enumerate(row["counts"])}
        counts[RecipientState.PENDING] += row["size"] - row["summed"]
        return counts

    async def reasons(self, tenant: str, frozen_at: datetime, campaign_id: UUID) -> dict[str, int]:
        rows = await self._fetch(SQL["reasons"], tenant, frozen_at, campaign_id, timeout=BULK)
        return {row["reason"]: row["n"] for row in rows}

    async def group(
        self,
        tenant: str,
        frozen_at: datetime,
        campaign_id: UUID,
        state: RecipientState,
        reason: str | None,
        limit: int,
        after: str | None,
    ) -> list[Decision]:
        campaign = await self.get(tenant, campaign_id)
        if campaign is None or campaign.version_id is None:
            return []
        at: tuple[int, int, str] = _FIRST
        if after is not None:
            place = await self._row(SQL["place_of"], tenant, after, campaign.version_id)
            if place is None:
                return []
            at = (place["shard"], place["page"], after)
        if state is RecipientState.PENDING and reason is None:
            version = campaign.version_id
            rows = await self._fetch(
                SQL["pending_group"],
                tenant,
                frozen_at,
                campaign_id,
                version,
                *at,
                limit,
                timeout=BULK,
            )
        else:
            code = RECIPIENT_CODE[state]
            rows = await self._fetch(
                SQL["group"],
                tenant,
                frozen_at,
                campaign_id,
                code,
                reason,
                *at,
                limit,
                timeout=BULK,
            )
        return [decision(row) for row in rows]

    # --- settle, cancel, replay -------------------------------------------------------------------------------------

    async def settle(self, campaign: CampaignRow, ledger: Ledger, bucket: datetime) -> SettleResult:
        made_unknown = rebucketed = 0
        next_lease_end: datetime | None = None
        frozen_at = _frozen_at(campaign)
        at = (campaign.tenant, frozen_at, campaign.campaign_id)
        for first, last in _shard_ranges(campaign):
            rows = await self._fetch(SQL["open_sends"], *at, first, last, timeout=BULK)
            stale = await self._fetch(
                SQL["stale_pages"],
                campaign.tenant,
                campaign.version_id,
                campaign.campaign_id,
                first,
                last,
                timeout=BULK,
            )
            worked = {(row["shard"], row["page"]) for row in stale}
            moves: list[Move] = []
            missing: list[tuple[Record, int]] = []
            for (shard, page, channel), group in groupby(rows, key=_partition):
                scope = ClaimScope(*at, shard, page, Channel(channel))
                here = list(group)
                made_unknown += await ledger.settle(scope)
                claims = await ledger.read(scope, [_want(row) for row in here])
                for row, claim in zip(here, claims, strict=True):
                    if claim is not None and claim.state is ClaimState.CLAIMED:
                        end = claim.lease_until
                        next_lease_end = min(next_lease_end or end, end)
                    elif (move := _outcome(scope, row, claim)) is not None:
                        moves.append(move)
                        worked.add((shard, page))
                    elif row["behind"] and row["due_at"] is None:
                        missing.append((row, 0 if claim is None else claim.attempt))
                        worked.add((shard, page))
            await self._take_outcomes(campaign, moves)
            if missing:
                rebucketed += await self._execute(
                    SQL["bucket"],
                    *at,
                    bucket,
                    [row["shard"] for row, _ in missing],
                    [row["page"] for row, _ in missing],
                    [row["recipient_id"] for row, _ in missing],
                    [attempt for _, attempt in missing],
                    timeout=BULK,
                )
            await self.summarise(*at, sorted(worked))
        counts = await self.counts(campaign.tenant, campaign.campaign_id)
        due = await self.due(campaign.tenant, campaign.campaign_id)
        return SettleResult(
            made_unknown=made_unknown,
            rebucketed=rebucketed,
            open_rows=counts[RecipientState.PENDING] + counts[RecipientState.DEFERRED],
            earliest_due=due.earliest,
            next_lease_end=next_lease_end,
        )

    async def cancel_rest(
        self,
        campaign: CampaignRow,
        shard: int | None,
        reason: str,
        ledger: Ledger | None = None,
    ) -> int:
        """With a ledger, rows claimed at this moment are left pending for settle: they may be with a provider, and calling
        them cancelled could turn out untrue. What has an outcome gets it."""
        cancelled = 0
        at = (campaign.tenant, _frozen_at(campaign), campaign.campaign_id)
        for n, all_pages in await self._shard_pages(campaign, shard):
            for pages in _chunks(all_pages, _PAGES_AT_ONCE):
                left: list[str] = []
                if ledger is not None:
                    left = await self._with_providers(campaign, ledger, n, pages)
                async with self._transaction() as connection:
                    what = (campaign.version_id, reason, n, pages, left)
                    cancelled += touched(
                        await connection.execute(SQL["cancel_rows"], *at, *what, timeout=BULK)
                    )
                    await connection.execute(SQL["give_back_caps"], *at, n, pages, timeout=BULK)
                    await connection.execute(
                        SQL["summarise"], *at, [n] * len(pages), pages, timeout=BULK
                    )
        return cancelled

    async def replay(
        self, campaign: CampaignRow, states: Sequence[RecipientState], bucket: datetime
    ) -> int:
        """Also closes their dead letters. A rejected one is sent anew, under the next send number."""
        for state in states:
            if not decision_may(state, RecipientState.PENDING, Cause.REPLAY):
                raise ValueError(f"{state} cannot be replayed")
        codes = [RECIPIENT_CODE[state] for state in states]
        at = (campaign.tenant, _frozen_at(campaign), campaign.campaign_id)
        replayed = 0
        for first, last in _shard_ranges(campaign):
            async with self._transaction() as connection:
                rows = await connection.fetch(
                    SQL["replay"], *at, codes, bucket, first, last, REPLAYED, timeout=BULK
                )
                if not rows:
                    continue
                letters = [
                    dead_letter_id(_key(at, row["shard"], row["page"], row["recipient_id"]))
                    for row in rows
                ]
                await connection.execute(
                    LETTERS["resolve_many"],
                    campaign.tenant,
                    letters,
                    "campaign replay",
                    timeout=BULK,
                )
                pages = sorted({(row["shard"], row["page"]) for row in rows})
                await connection.execute(
                    SQL["summarise"],
                    *at,
                    [shard for shard, _ in pages],
                    [page for _, page in pages],
                    timeout=BULK,
                )
            replayed += len(rows)
        return replayed

    async def _with_providers(
        self, campaign: CampaignRow, ledger: Ledger, shard: int, pages: list[int]
    ) -> list[str]:
        at = (campaign.tenant, _frozen_at(campaign), campaign.campaign_id)
        rows = await self._fetch(SQL["pending_of_pages"], *at, shard, pages, timeout=BULK)
        left: list[str] = []
        moves: list[Move] = []
        for (page, channel), group in groupby(rows, key=_page_channel):
            scope = ClaimScope(*at, shard, page, Channel(channel))
            here = list(group)
            claims = await ledger.read(scope, [_want(row) for row in here])
            for row, claim in zip(here, claims, strict=True):
                if claim is None:
                    continue
                if claim.state is ClaimState.CLAIMED:
                    left.append(row["recipient_id"])
                elif (move := _outcome(scope, row, claim, final=True)) is not None:
                    moves.append(move)
        await self._take_outcomes(campaign, moves)
        return left

    async def _take_outcomes(self, campaign: CampaignRow, moves: Sequence[Move]) -> None:
        """Give decisions what their claims came to; what ended badly becomes a dead letter, as a sender would have made it."""
        if not moves:
            return
        letters = [
            DeadLetter(
                id=dead_letter_id(move.key),
                kind=Kind.CAMPAIGN,
                ref_id=campaign.campaign_id,
                decision=move.key,
                category=campaign.category,
                channel=move.channel,
                state=move.to.value,
                code=move.reason or "",
                last_error="",
            )
            for move in moves
            if move.to is not RecipientState.SENT
        ]
        with answering():
            async with self._pool.acquire(timeout=ACQUIRE) as connection:
                await add_letters(connection, letters)
        # Last: whoever is pending is settled again after a crash, and nobody ends badly without a letter.
        await self._decisions.move(moves)

    async def _shard_pages(
        self, campaign: CampaignRow, shard: int | None
    ) -> list[tuple[int, list[int]]]:
        rows = await self._fetch(
            SQL["shard_pages"], campaign.tenant, campaign.version_id, shard, timeout=BULK
        )
        return [(row["shard"], row["pages"]) for row in rows]


def _refuse_unusable(audience: Record | None) -> None:
    if audience is None:
        raise Refusal("unknown_list", "there is no such list", field="list_id")
    if audience["size"]:
        return
    state, reason = audience["newest_state"], audience["newest_reason"]
    if reason == EMPTY:
        raise Refusal(
            "list_empty", "the list has no rows", field="list_id", fix="upload recipients first"
        )
    if state == "failed":
        raise Refusal(
            "list_failed",
            f"the list's upload failed: {reason}",
            field="list_id",
            fix="upload it again",
        )
    raise Refusal(
        "list_not_ready",
        "the list has no version that is ready",
        field="list_id",
        fix="finish the upload, then launch",
    )


def _outcome(
    scope: ClaimScope, row: Record, claim: ClaimRow | None, *, final: bool = False
) -> Move | None:
    """What a pending decision becomes by its claim; None when the claim leaves it open.

    Failed leaves it open: it is tried again. So does the unknown that the decision itself came from (its attempt is the
    claim's): somebody decided to send it again, unless nothing will be sent any more (`final`).
    """
    if claim is None or (to := _STATE_OF_CLAIM.get(claim.state)) is None:
        return None
    if to is RecipientState.UNKNOWN and claim.attempt <= row["attempt"] and not final:
        return None
    return Move(
        key=_key(
            (scope.tenant, scope.frozen_at, scope.campaign_id),
            scope.shard,
            scope.page,
            row["recipient_id"],
        ),
        expect=frozenset({RecipientState.PENDING}),
        to=to,
        cause=Cause.PROOF if to is RecipientState.SENT else Cause.SETTLE,
        reason=claim.code,
        channel=scope.channel,
        attempt=claim.attempt,
    )


def _sends(row: Record) -> list[PageSend]:
    """Runs for every recipient of every campaign; see `people._people`."""
    ids = parted(row["ids"])
    variables = (
        {} if row["l_ids"] is None else _mapped(row["l_ids"], orjson.loads(row["l_variables"]))
    )
    people: dict[str, tuple[str | None, str | None]] = {}
    if row["r_ids"] is not None:
        people = _mapped(row["r_ids"], places_of(row["r_places"]))
    addresses: dict[str, Address] = {}
    if row["a_ids"] is not None:
        verified = row["a_verifieds"] or repeat(row["a_verified"])
        dead = row["a_dead"] or repeat(None)
        of_them = map(Address, row["a_hashes"], row["a_sealed"], verified, dead)
        addresses = _mapped(row["a_ids"], of_them)
    suppressed = (
        {} if row["s_hashes"] is None else dict(zip(row["s_hashes"], row["s_reasons"], strict=True))
    )
    opted_out = frozenset(row["p_ids"] or ())
    sends = []
    for id, attempt, send_no, reason, not_before, not_after in zip(
        ids,
        row["attempts"] or repeat(0),
        row["send_nos"] or repeat(1),
        row["reasons"] or repeat(None),
        row["not_befores"] or repeat(row["not_before"]),
        row["not_afters"] or repeat(row["not_after"]),
        strict=False,
    ):
        person = people.get(id)
        locale, zone = person or (None, None)
        address = addresses.get(id)
        sends.append(
            PageSend(
                id,
                variables.get(id, NOTHING),
                locale,
                zone,
                attempt,
                send_no,
                not_before,
                not_after,
                address,
                suppressed.get(address.address_hash) if suppressed and address else None,
                id in opted_out,
                person is None,
                reason,
            )
        )
    return sends


def _mapped(ids: str, values: Iterable[T]) -> dict[str, T]:
    return dict(zip(parted(ids), values, strict=True))


def _campaign(row: Record) -> CampaignRow:
    campaign = CampaignRow(*row)
    channels = campaign.channels
    return replace(
        campaign,
        mode=Mode(campaign.mode),
        phase=CampaignPhase(campaign.phase),
        channels=None if channels is None else tuple(map(Channel, channels)),
    )


def _control(row: Record) -> Control:
    return Control(
        version=row["version"],
        state=ControlState(row["state"]),
        rate_per_second=row["rate_per_second"],
        reason=row["reason"],
        by=row["by"],
    )


def _key(at: tuple[str, datetime, UUID], shard: int, page: int, recipient_id: str) -> DecisionKey:
    tenant, frozen_at, campaign_id = at
    return DecisionKey(
        tenant=tenant,
        frozen_at=frozen_at,
        campaign_id=campaign_id,
        shard=shard,
        page=page,
        recipient_id=recipient_id,
    )


def _partition(row: Record) -> tuple[int, int, str]:
    return (row["shard"], row["page"], row["channel"])


def _page_channel(row: Record) -> tuple[int, str]:
    return (row["page"], row["channel"])


def _want(row: Record) -> Want:
    return Want(row["recipient_id"], row["send_no"])


def _frozen_at(campaign: CampaignRow) -> datetime:
    if campaign.frozen_at is None:
        raise ValueError("the campaign has not been frozen")
    return campaign.frozen_at


def _at(shard: int, pages: Iterable[int]) -> list[tuple[int, int]]:
    return [(shard, page) for page in pages]


def _chunks(items: list[int], size: int) -> Iterator[list[int]]:
    return (items[n : n + size] for n in range(0, len(items), size))


def _shard_ranges(campaign: CampaignRow) -> Iterator[tuple[int, int]]:
    """Ranges of shards with a bounded number of rows each."""
    shards, size = campaign.shards or 0, campaign.size or 0
    step = max(1, _ROWS_AT_ONCE * shards // max(size, 1))
    return ((first, min(first + step, shards)) for first in range(0, shards, step))
