"""Whether, when and on which channel (POL). Facts in, the first objection out, or the channel to use.

The order is the policy: what will never be sent must not be parked until morning, and what is parked must not use up
today's cap. So: expiry and switches; suppression and opt-out; consent; window and quiet hours; caps; the ladder. The gates
run from current data when a message can leave; `last_look` runs once more just before the provider call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from schemas import outcomes
from schemas.kinds import Channel, MessageClass
from sendloom.domain.frequency import NO_CAPS, CapRule, Caps, free_again, full
from sendloom.domain.ladder import Ladder, rungs
from sendloom.domain.quiet_hours import Window, opening
from sendloom.domain.reasons import Reason, suppression_reason
from sendloom.domain.wall_time import local_day

EVERY_CHANNEL = "*"


class AddressState(StrEnum):
    """What is known of a recipient's address (or device) on one channel."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    DEAD = "dead"
    VERIFYING = "verifying"
    """Unverified, and the message is the passcode that verifies it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a category (and, for a campaign, its send window) says. Built once, asked millions of times."""

    message_class: MessageClass
    ladder: Ladder
    quiet: Window | None = None
    """See `quiet_window`."""
    send_window: Window | None = None
    """A campaign's own: it leaves only inside, in the recipient's zone (case C95)."""
    consent_required: bool = False
    """Marketing needs consent whatever this says."""
    sms_consent_required: bool = False
    """POL-9: SMS outside security needs the category's consent."""
    caps: Caps = NO_CAPS
    defer_over_cap: bool = False

    security: bool = field(init=False)
    needs_consent: frozenset[Channel] = field(init=False)
    silences: tuple[Window, ...] = field(init=False)
    silence_reasons: tuple[Reason, ...] = field(init=False)
    silences_without_zone: tuple[Window, ...] = field(init=False)
    silence_reasons_without_zone: tuple[Reason, ...] = field(init=False)

    def __post_init__(self) -> None:
        security = self.message_class is MessageClass.SECURITY
        marketing = self.message_class is MessageClass.MARKETING
        window = (
            [(Reason.WINDOW, self.send_window.inverted())]
            if self.send_window and not self.send_window.empty and not security
            else []
        )
        quiet = (
            [(Reason.QUIET_HOURS, self.quiet)]
            if self.quiet and not self.quiet.empty and not security
            else []
        )
        silences = window + quiet
        # POL-3: nobody knows when this person sleeps, so marketing does not pretend to. The rest keeps the tenant's zone.
        blind = window if marketing else silences
        consent = [
            channel
            for channel in Channel
            if not security
            and (
                marketing
                or self.consent_required
                or (self.sms_consent_required and channel is Channel.SMS)
            )
        ]
        for name, value in (
            ("security", security),
            ("needs_consent", frozenset(consent)),
            ("silences", tuple(silence for _, silence in silences)),
            ("silence_reasons", tuple(reason for reason, _ in silences)),
            ("silences_without_zone", tuple(silence for _, silence in blind)),
            ("silence_reasons_without_zone", tuple(reason for reason, _ in blind)),
        ):
            object.__setattr__(self, name, value)


def quiet_window(
    message_class: MessageClass, category_keeps: bool, tenant_quiet: Window
) -> Window | None:
    """The quiet hours a category keeps: marketing always, transactional if it says so, security never (POL-3)."""
    if message_class is MessageClass.SECURITY:
        return None
    return tenant_quiet if category_keeps or message_class is MessageClass.MARKETING else None


@dataclass(slots=True)
class Facts:
    """Everything the gates need to know of one recipient for one message, at one moment."""

    now: datetime
    policy: Policy
    not_after: datetime
    """The hard end: ttl, deadline or campaign expiry, whichever is first."""
    zone: ZoneInfo
    """The recipient's, or the tenant's default."""
    zone_known: bool = True
    """False when it is the default because the recipient has none, or a bad one."""
    addresses: Mapping[Channel, AddressState] = field(default_factory=dict)
    suppressed: Mapping[Channel, str] = field(default_factory=dict)
    """Channel → reason as the ledger stores it, for the addresses above."""
    opted_out: frozenset[str] = frozenset()
    """Channels, or '*', opted out of for this category or for all marketing."""
    consented: frozenset[str] = frozenset()
    """Channels, or '*', with recorded consent for this category."""
    killed: frozenset[str] = frozenset()
    """Channels whose lane is switched off; '*' when the tenant, category or campaign is."""
    cap_uses: Mapping[str, Sequence[date]] = field(default_factory=dict)
    """Counter → local days used."""
    not_before: datetime | None = None
    """Asked for no earlier than this: a send time, a local-time wave."""
    spread: timedelta = timedelta(0)
    """0 to 4 minutes, derived from the decision's id, added to whatever is put off, so that 8 o'clock is not a wall."""


@dataclass(slots=True)
class Chosen:
    """It may leave now, on this channel."""

    channel: Channel
    rung: int
    not_before: datetime
    not_after: datetime
    """The hard end, or the next silence if that comes first."""
    caps: tuple[CapRule, ...] = ()
    """The counters it consumes, on `local_day`."""
    local_day: date | None = None
    zone_unknown: bool = False
    """Quiet hours were skipped because the recipient has no zone; a metric counts it."""


@dataclass(slots=True)
class Suppressed:
    """It will not be sent."""

    reason: Reason


@dataclass(slots=True)
class Deferred:
    """Not before `until`; the gates run again then. The rung is where it would go as things stand: the lane to wait in."""

    until: datetime
    reason: Reason
    channel: Channel
    rung: int


@dataclass(slots=True)
class Expired:
    """It cannot leave before its end. The reason says what held it."""

    reason: Reason = Reason.EXPIRED


@dataclass(slots=True)
class NoRung:
    """Nothing usable at or after the asked rung: for security, undeliverable; the caller decides."""

    reason: Reason


Verdict = Chosen | Suppressed | Deferred | Expired | NoRung


# --- gates on one channel ---------------------------------------------------------------------------------------------


def _switches(facts: Facts, channel: Channel) -> Reason | None:
    killed = facts.killed
    if killed and (channel in killed or EVERY_CHANNEL in killed):
        return Reason.KILLED
    return None


def _suppression(facts: Facts, channel: Channel) -> Reason | None:
    # Also for security: a passcode to a dead or hostile address helps nobody (POL-5).
    stored = facts.suppressed.get(channel)
    return None if stored is None else suppression_reason(stored)


def _opt_out(facts: Facts, channel: Channel) -> Reason | None:
    opted_out = facts.opted_out
    if not opted_out or facts.policy.security:
        return None
    return Reason.OPTED_OUT if channel in opted_out or EVERY_CHANNEL in opted_out else None


_ADDRESS_OBJECTIONS: dict[AddressState | None, Reason] = {
    None: Reason.NO_ADDRESS,
    AddressState.DEAD: Reason.ADDRESS_DEAD,
    AddressState.UNVERIFIED: Reason.UNVERIFIED,
    AddressState.VERIFYING: Reason.UNVERIFIED,
}


def _address(facts: Facts, channel: Channel) -> Reason | None:
    state = facts.addresses.get(channel)
    if state is AddressState.VERIFIED:
        return None
    if state is AddressState.VERIFYING and facts.policy.security:
        return None
    return _ADDRESS_OBJECTIONS[state]


def _consent(facts: Facts, channel: Channel) -> Reason | None:
    if channel not in facts.policy.needs_consent:
        return None
    consented = facts.consented
    return None if channel in consented or EVERY_CHANNEL in consented else Reason.NO_CONSENT


CHANNEL_GATES: tuple[Callable[[Facts, Channel], Reason | None], ...] = (
    _switches,
    _suppression,
    _opt_out,
    _address,
    _consent,
)


def objection(facts: Facts, channel: Channel) -> Reason | None:
    """The first gate's objection to this channel, or None."""
    for gate in CHANNEL_GATES:
        if (reason := gate(facts, channel)) is not None:
            return reason
    return None


def _first_objection(facts: Facts, ladder: Sequence[tuple[int, Channel]]) -> Reason:
    """Of a ladder with no usable rung: the earliest gate's, and within it the earliest rung's."""
    for gate in CHANNEL_GATES:
        for _, channel in ladder:
            if (reason := gate(facts, channel)) is not None:
                return reason
    return Reason.LADDER_EXHAUSTED


# --- the whole ----------------------------------------------------------------------------------------------------------


def decide(facts: Facts, from_rung: int = 0) -> Verdict:
    """The first objection, or the first rung at or after `from_rung` that nothing stands in the way of."""
    if facts.now >= facts.not_after:
        return Expired()
    policy = facts.policy
    usable: list[tuple[int, Channel]] = []
    for rung in range(from_rung, len(policy.ladder)):
        if objection(facts, policy.ladder[rung]) is None:
            usable.append((rung, policy.ladder[rung]))
            # Only a channel's own cap can make a second choice necessary.
            if not policy.caps.by_channel:
                break
    if not usable:
        reason = _first_objection(facts, rungs(policy.ladder, from_rung))
        # A later rung is asked for only after an earlier one was tried, so that is not "suppressed".
        return NoRung(reason) if policy.security or from_rung else Suppressed(reason)

    start = facts.now
    held: Reason | None = None
    if facts.not_before is not None and facts.not_before > start:
        start, held = facts.not_before, Reason.SCHEDULED
    silences, reasons = _silences(policy, facts.zone_known)
    not_after = facts.not_after
    if silences:
        room = opening(start, facts.zone, silences)
        if room is None:
            return Expired(reasons[0])
        if room.held_by is not None:
            start, held = room.at, reasons[room.held_by]
        not_after = min(not_after, room.closes)
    if held is not None:
        return _deferred(facts, start, held, usable[0])
    return _within_caps(facts, usable, not_after)


def _silences(policy: Policy, zone_known: bool) -> tuple[tuple[Window, ...], tuple[Reason, ...]]:
    if zone_known:
        return policy.silences, policy.silence_reasons
    return policy.silences_without_zone, policy.silence_reasons_without_zone


def _deferred(
    facts: Facts, until: datetime, reason: Reason, rung: tuple[int, Channel]
) -> Deferred | Expired:
    spread = until + facts.spread
    silences, _ = _silences(facts.policy, facts.zone_known)
    # The spread must not carry it out of a short window or past its end.
    room = opening(spread, facts.zone, silences)
    if spread < facts.not_after and room is not None and room.held_by is None:
        until = spread
    if until >= facts.not_after:
        return Expired(reason)
    return Deferred(until, reason, channel=rung[1], rung=rung[0])


def _within_caps(
    facts: Facts, usable: Sequence[tuple[int, Channel]], not_after: datetime
) -> Verdict:
    policy = facts.policy
    rung, channel = usable[0]
    blind = not facts.zone_known and len(policy.silences) > len(policy.silences_without_zone)
    if policy.security or not policy.caps:
        return Chosen(channel, rung, facts.now, not_after, zone_unknown=blind)
    today = local_day(facts.now, facts.zone)
    for rule in policy.caps.common:
        if full(rule, facts.cap_uses.get(rule.scope, ()), today) is not None:
            return _over(facts, (rule,), today, usable[0])
    over: list[CapRule] = []
    for rung, channel in usable:
        own = policy.caps.for_channel(channel)
        if own is None or full(own, facts.cap_uses.get(own.scope, ()), today) is None:
            return Chosen(
                channel,
                rung,
                facts.now,
                not_after,
                caps=policy.caps.consumed_on(channel),
                local_day=today,
                zone_unknown=blind,
            )
        over.append(own)
    return _over(facts, over, today, usable[0])


def _over(
    facts: Facts, rules: Sequence[CapRule], today: date, rung: tuple[int, Channel]
) -> Verdict:
    if not facts.policy.defer_over_cap:
        return Suppressed(Reason.FREQUENCY_CAP)
    rooms: list[datetime] = []
    for rule in rules:
        reached = full(rule, facts.cap_uses.get(rule.scope, ()), today)
        room = free_again(reached, today, facts.zone) if reached is not None else facts.now
        if room is not None:
            rooms.append(room)
    # A limit of 0 is never waited out: that queue would never drain (case C74).
    if not rooms:
        return Suppressed(Reason.FREQUENCY_CAP)
    silences, _ = _silences(facts.policy, facts.zone_known)
    free = opening(min(rooms), facts.zone, silences)
    if free is None:
        return Expired(Reason.FREQUENCY_CAP)
    return _deferred(facts, free.at, Reason.FREQUENCY_CAP, rung)


def last_look(
    *,
    now: datetime,
    policy: Policy,
    channel: Channel,
    expires_at: datetime,
    not_before: datetime | None = None,
    not_after: datetime | None = None,
    suppressed: str | None = None,
    opted_out: bool = False,
    killed: bool = False,
    zone: ZoneInfo | None = None,
    zone_known: bool = True,
) -> Suppressed | Deferred | Expired | None:
    """The sender's re-check between plan and call; None: call.

    `not_before` and `not_after` are the plan's, `expires_at` is the hard end. With a zone a window that has closed since is
    worked out anew; without one the row is deferred to now, which sends it through the gates again. Opt-outs win against
    whatever was planned (POL-6), except over security (POL-5).
    """
    if now >= expires_at:
        return Expired()
    if killed:
        return Suppressed(Reason.KILLED)
    if suppressed is not None:
        return Suppressed(suppression_reason(suppressed))
    if opted_out and not policy.security:
        return Suppressed(Reason.OPTED_OUT)
    if not_before is not None and now < not_before:
        return _wait(not_before, Reason.SCHEDULED, policy, channel, expires_at)
    silences, reasons = _silences(policy, zone_known)
    if zone is not None and silences:
        room = opening(now, zone, silences)
        if room is None:
            return Expired(reasons[0])
        if room.held_by is not None:
            return _wait(room.at, reasons[room.held_by], policy, channel, expires_at)
    elif not_after is not None and now >= not_after:
        return _wait(now, Reason.WINDOW, policy, channel, expires_at)
    return None


def _wait(
    until: datetime, reason: Reason, policy: Policy, channel: Channel, expires_at: datetime
) -> Deferred | Expired:
    if until >= expires_at:
        return Expired(reason)
    rung = policy.ladder.index(channel) if channel in policy.ladder else 0
    return Deferred(until, reason, channel=channel, rung=rung)


def to_outcome(verdict: Suppressed | Deferred | Expired | NoRung) -> outcomes.Outcome:
    """The wire form of an objection."""
    match verdict:
        case Suppressed(reason=reason):
            return outcomes.Suppressed(reason=reason)
        case Deferred(until=until, reason=reason):
            return outcomes.Deferred(until=until, reason=reason)
        case Expired(reason=reason):
            return outcomes.Expired(reason=reason)
        case NoRung(reason=reason):
            return outcomes.Undeliverable(reason=reason)
