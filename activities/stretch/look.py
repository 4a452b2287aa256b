"""The last look at a chunk's rows, and the dressing of those that may go."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from activities.campaign_carriers import Carrier, Heading, Parcel, Writer
from activities.campaign_ground import Ground
from activities.campaign_plan import letter
from activities.delivery import ADDRESS_PURPOSE
from activities.facts import spread_of
from activities.rendering import validity_seconds
from activities.stretch.lane import SendingLane
from activities.stretch.rows import PENDING, Objection, Ready, Result, final, key_of, later
from activities.stretch.standing import Standing
from schemas.kinds import FaultScope, RecipientState
from schemas.notifications import DecisionKey
from sendloom.domain.gates import Deferred, Expired, Suppressed, last_look
from sendloom.domain.outcomes import Cause
from sendloom.domain.reasons import Reason
from sendloom.domain.rendering import RenderError
from sendloom.domain.zones import zone_or_default
from sendloom.ports import ClaimScope, Move, PageSend

log = logging.getLogger(__name__)


class LastLook:
    """One for a stretch."""

    def __init__(
        self, lane: SendingLane, ground: Ground, carrier: Carrier, standing: Standing
    ) -> None:
        self._lane = lane
        self._ground = ground
        self._carrier = carrier
        self._standing = standing

    def at(self, rows: Sequence[PageSend], result: Result) -> tuple[list[Ready], list[Objection]]:
        """Who may go, with their message, and why the others may not."""
        scope = result.at
        now = self._lane.now()
        ready: list[Ready] = []
        objections: list[Objection] = []
        clear: set[tuple[object, ...] | None] = set()
        """Where the last look lets somebody pass against whom nothing is known: the zone and times it depends on."""
        addresses = self._addresses(rows)
        writer = self._writer(scope, now)
        for row in rows:
            try:
                like = None if _spoken_against(row) else (row.zone, row.not_before, row.not_after)
                if like not in clear:
                    move = self._objection(row, key_of(scope, row.recipient_id), now)
                    if move is not None:
                        objections.append(Objection(row, scope, move))
                        continue
                    if like is not None:
                        clear.add(like)
                ready.append(Ready(row, scope, self._dress(row, writer, addresses)))
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
            plain = self._lane.sealer.open_many(ADDRESS_PURPOSE, self._ground.row.tenant, sealed)
        except Exception:
            log.warning("an address of a page does not open")
            return {}
        return dict(zip(sealed, plain, strict=True))

    def _writer(self, scope: ClaimScope, now: datetime) -> Writer:
        ground = self._ground
        return self._carrier.writer(
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

    def _objection(self, row: PageSend, key: DecisionKey, now: datetime) -> Move | None:
        ground = self._ground
        if row.erased:
            return Move(key, PENDING, RecipientState.ERASED, Cause.ERASURE, reason="erased")
        zone, guessed = zone_or_default(row.zone, ground.tenant.default_zone)
        verdict = last_look(
            now=now,
            policy=ground.policy,
            channel=self._lane.channel,
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
                return final(key, RecipientState.SUPPRESSED, Reason.NO_ADDRESS)
            case None:
                return None
            case Suppressed(reason=reason):
                return final(key, RecipientState.SUPPRESSED, reason)
            case Expired(reason=reason):
                return final(key, RecipientState.EXPIRED, reason)
            case Deferred(until=until, reason=reason):
                spread = until + spread_of(key)
                return later(key, spread if spread < ground.ends_at else until, reason)

    def _dress(self, row: PageSend, writer: Writer, addresses: Mapping[bytes, bytes]) -> Parcel:
        ground = self._ground
        assert row.address is not None
        template = ground.template(self._lane.channel, row.locale)
        shared = ground.row.variables
        values = template.values({**shared, **row.variables} if shared else row.variables)
        sealed = row.address.sealed
        address = addresses.get(sealed) or self._lane.sealer.open(
            ADDRESS_PURPOSE, ground.row.tenant, sealed
        )
        return writer.write(row.recipient_id, row.send_no, address.decode(), template, values)

    def _unsendable(self, row: PageSend, scope: ClaimScope, e: Exception) -> Objection | None:
        """None: nothing is wrong with the recipient, so the row waits until the sender is put right."""
        code = str(getattr(e, "code", "") or "send_error")
        if getattr(e, "scope", None) is FaultScope.SENDER:
            self._standing.blame_sender(code)
            return None
        # Only what names no values may be written down.
        said = str(e)[:200] if isinstance(e, RenderError) else type(e).__name__
        log.warning("a recipient's message could not be made", extra={"error": said})
        state = RecipientState.FAILED
        key = key_of(scope, row.recipient_id)
        return Objection(
            row,
            scope,
            final(key, state, code),
            letter(self._ground.row, key, scope.channel, state, code, said),
        )


def _spoken_against(row: PageSend) -> bool:
    """Whether anything is known of this one recipient that may keep a message back."""
    return row.suppressed is not None or row.opted_out or row.erased or row.address is None
