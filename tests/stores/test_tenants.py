"""TEN-1: whatever one tenant does, with whatever ids, it sees and changes nothing of another.

Both tenants hold the same ids everywhere. Every method of every store that takes a tenant is in the table below; a method
that is missing from it fails a test of its own.
"""

import inspect
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from schemas.kinds import CampaignPhase, Channel, ClaimState, ControlState, Kind, RecipientState
from schemas.notifications import DecisionKey, DeliveryKey
from schemas.schedules import RecurringContent, TriggerStatus
from sendloom.domain.guard_rails import Tally
from sendloom.domain.ids import dead_letter_id
from sendloom.domain.outcomes import Cause
from sendloom.domain.segments import parse
from sendloom.errors import Refusal
from sendloom.ports import (
    ApiKey,
    CampaignRow,
    CapUse,
    ClaimResult,
    ClaimScope,
    DeadLetter,
    Decision,
    DeliveryRow,
    Fire,
    Move,
    PasscodeRow,
    Receipt,
    ReceiptStatus,
    Want,
)
from sendloom.rows import (
    AddressWrite,
    Consent,
    PartWrite,
    Preference,
    RecipientWrite,
    Trigger,
)
from sendloom.stores.pool import Pool
from tests.stores.conftest import (
    NOW,
    RingSealer,
    Stores,
    a_campaign,
    a_category,
    a_row,
    a_schedule,
    a_series,
    a_tenant,
    an_accepted,
)

MARK = "VICTIM"
R = RecipientState
ID = UUID(int=7)
"""Of the campaign, the list version, the accepted row, the passcode: the same in every tenant."""
WHO = "r000"
CAT = "offers.weekly"
MINUTE = timedelta(minutes=1)
HASH = b"h" * 32
EVERYBODY = parse({"not": {"attribute": "nothing", "exists": True}})


def key(t: str, who: str = WHO) -> DecisionKey:
    return DecisionKey(tenant=t, frozen_at=NOW, campaign_id=ID, recipient_id=who)


def delivery_key(t: str) -> DeliveryKey:
    return DeliveryKey(**dict(key(t)), channel=Channel.EMAIL)


def scope(t: str) -> ClaimScope:
    return ClaimScope(t, NOW, ID, 0, 0, Channel.EMAIL)


def campaign(t: str) -> CampaignRow:
    return replace(
        a_campaign(t),
        campaign_id=ID,
        version_id=ID,
        frozen_at=NOW,
        size=3,
        shards=1,
        page_size=3,
        name=t,
    )


def letter(t: str, text: str = "x") -> DeadLetter:
    return DeadLetter(
        dead_letter_id(key(t)), Kind.CAMPAIGN, ID, key(t), CAT, Channel.EMAIL, "failed", text, text
    )


def passcode(t: str) -> PasscodeRow:
    return PasscodeRow(t, ID, HASH, 5, 1, NOW, NOW + timedelta(hours=1), None, None)


def trigger(text: str = "x") -> Trigger:
    return Trigger(ID, NOW, "campaign", text, text, NOW, ID)


def accepted(t: str, text: str = "x") -> Any:
    return an_accepted(
        t, id=ID, correlation_id="c", recipient_id=WHO, content=text.encode(), idempotency_key=text
    )


def moved(t: str) -> Move:
    return Move(key(t), frozenset({R.PENDING}), R.FAILED, Cause.SENDER, reason="x")


def mail(who: str, text: str) -> AddressWrite:
    return AddressWrite(Channel.EMAIL, f"{text}@example.com", f"{text.lower()}@example.com")


def schedule(t: str, text: str = "x") -> Any:
    content = RecurringContent(template_id="t", variables={"mark": text})
    return a_schedule(t, id=ID, name=text, recipient_id=text, content=content)


def series(t: str, text: str = "x") -> Any:
    return a_series(t, id=ID, correlation_id=text, recipient_id=text)


LATER = [Fire(NOW + timedelta(hours=1), TriggerStatus.OWED, "x")]


async def fill(s: Stores, t: str, mark: str) -> None:
    """The same ids in every tenant, and a mark of its own in everything that can be read."""
    await s.catalog.put_tenant(replace(a_tenant(t), name=mark, settings={"mark": mark}))
    await s.catalog.put_category(a_category(t, caps=({"mark": mark},)))
    await s.catalog.add_key(ApiKey(t, "k1", "live", frozenset({mark}), None), HASH, mark)
    parts = [PartWrite(Channel.EMAIL, "en", mark, mark, mark)]
    await s.catalog.add_template_version(t, "t", {mark: {}}, "en", parts)
    await s.catalog.publish(t, "t", 1)
    await s.catalog.switch_on(t, "campaign", str(ID), mark, mark)
    await s.lists.create(t, "everyone", mark)
    await s.lists.start_version(t, "everyone", ID, "ndjson")
    rows = [a_row(n, variables={"mark": mark}) for n in range(3)]
    await s.lists.add_chunk(t, ID, 0, HASH, 1, 3, rows, [{"mark": mark}])
    await s.lists.make_ready(t, ID)
    await s.recipients.upsert(
        t, [RecipientWrite(WHO, mark, mark, {"mark": mark}, True, (mail(WHO, mark),))]
    )
    await s.recipients.register_device(t, WHO, "d", Channel.FCM, f"token-{mark}")
    await s.recipients.set_preferences(t, WHO, [Preference("*", "sms", True, mark)])
    await s.recipients.record_consents(t, WHO, [Consent(CAT, "*", True, NOW, mark, mark)])
    await s.campaigns.insert(replace(campaign(t), version_id=None, name=mark, spec={"m": mark}))
    await s.campaigns.freeze(t, ID, NOW, (Channel.EMAIL,))
    await s.campaigns.take_epoch(t, ID, 0, "email")
    decision = Decision(key(t), R.PENDING, Channel.EMAIL, reason=mark)
    payload = DeliveryRow(delivery_key(t), HASH, mark.encode())
    use = CapUse(WHO, "marketing", NOW.date(), None, None)
    await s.decisions.insert([decision], [payload], [use])
    owner = uuid4()
    await s.ledger.claim(scope(t), [Want(WHO)], owner, MINUTE)
    await s.ledger.record(
        scope(t), [ClaimResult(WHO, 1, owner, ClaimState.UNKNOWN, provider=mark, code=mark)]
    )
    await s.ledger.suppress(t, Channel.EMAIL, HASH, mark, mark)
    await s.accepted.insert_or_match(accepted(t, mark))
    await s.passcodes.insert(passcode(t))
    await s.passcodes.take_resend(t, ID, mark)
    await s.dead_letters.add([letter(t, mark)])
    await s.audit.add(t, mark, mark, mark, {"mark": mark})
    await s.triggers.fired(t, trigger(mark))
    await s.schedules.insert_or_match(schedule(t, mark))
    await s.series.insert_or_match(series(t, mark))
    await s.segments.put(t, "seg", mark, {"attribute": "mark", "eq": mark}, mark)
    await s.limits.take(t, "s", 5, timedelta(days=3650))


Call = Callable[[Stores, str], Awaitable[Any]]
DAY = timedelta(days=1)
CALLS: dict[str, Call] = {
    "PostgresAccepted.insert_or_match": lambda s, t: s.accepted.insert_or_match(accepted(t)),
    "PostgresAccepted.mark_started": lambda s, t: s.accepted.mark_started(t, ID),
    "PostgresAccepted.close": lambda s, t: s.accepted.close(t, ID, {"kind": "accepted"}),
    "PostgresAccepted.get": lambda s, t: s.accepted.get(t, ID),
    "PostgresAccepted.set_due": lambda s, t: s.accepted.set_due(t, ID, NOW + DAY),
    "PostgresAccepted.by_recipient": lambda s, t: s.accepted.by_recipient(t, WHO, 99),
    "PostgresAccepted.by_correlation": lambda s, t: s.accepted.by_correlation(t, "c"),
    "PostgresAudit.add": lambda s, t: s.audit.add(t, "a", "b", "c"),
    "PostgresAudit.recent": lambda s, t: s.audit.recent(t, 99),
    "PostgresTriggers.fired": lambda s, t: s.triggers.fired(t, trigger()),
    "PostgresTriggers.update": lambda s, t: s.triggers.update(t, ID, NOW, "other"),
    "PostgresTriggers.between": lambda s, t: s.triggers.between(t, NOW - DAY, NOW + DAY),
    "PostgresTriggers.of_trigger": lambda s, t: s.triggers.of_trigger(t, ID),
    "PostgresCatalog.tenant": lambda s, t: s.catalog.tenant(t),
    "PostgresCatalog.put_tenant": lambda s, t: s.catalog.put_tenant(a_tenant(t)),
    "PostgresCatalog.find": lambda s, t: s.catalog.find(t, "k1"),
    "PostgresCatalog.keys": lambda s, t: s.catalog.keys(t),
    "PostgresCatalog.add_key": lambda s, t: s.catalog.add_key(
        ApiKey(t, uuid4().hex, "live", frozenset(), None), HASH
    ),
    "PostgresCatalog.revoke_key": lambda s, t: s.catalog.revoke_key(t, "k1"),
    "PostgresCatalog.category": lambda s, t: s.catalog.category(t, CAT),
    "PostgresCatalog.categories": lambda s, t: s.catalog.categories(t),
    "PostgresCatalog.put_category": lambda s, t: s.catalog.put_category(a_category(t)),
    "PostgresCatalog.template_parts": lambda s, t: s.catalog.template_parts(t, "t", None),
    "PostgresCatalog.templates": lambda s, t: s.catalog.templates(t),
    "PostgresCatalog.template_versions": lambda s, t: s.catalog.template_versions(t, "t"),
    "PostgresCatalog.add_template_version": lambda s, t: s.catalog.add_template_version(
        t, "t", {}, "en", [PartWrite(Channel.EMAIL, "en", "x", "x")]
    ),
    "PostgresCatalog.publish": lambda s, t: s.catalog.publish(t, "t", 1),
    "PostgresCatalog.killed": lambda s, t: s.catalog.killed(t, CAT, "lane", ID),
    "PostgresCatalog.kill_switches": lambda s, t: s.catalog.kill_switches(t),
    "PostgresCatalog.switch_on": lambda s, t: s.catalog.switch_on(t, "campaign", str(ID), "x", "x"),
    "PostgresCatalog.switch_off": lambda s, t: s.catalog.switch_off(t, "campaign", str(ID)),
    "PostgresCampaigns.insert": lambda s, t: s.campaigns.insert(campaign(t)),
    "PostgresCampaigns.get": lambda s, t: s.campaigns.get(t, ID),
    "PostgresCampaigns.recent": lambda s, t: s.campaigns.recent(t, 99),
    "PostgresCampaigns.freeze": lambda s, t: s.campaigns.freeze(t, ID, NOW, (Channel.EMAIL,)),
    "PostgresCampaigns.list_failure": lambda s, t: s.campaigns.list_failure(t, ID),
    "PostgresCampaigns.set_phase": lambda s, t: s.campaigns.set_phase(
        t, ID, CampaignPhase.CANCELLED
    ),
    "PostgresCampaigns.sample": lambda s, t: s.campaigns.sample(t, CAT, ID, 99),
    "PostgresCampaigns.approve": lambda s, t: s.campaigns.approve(t, ID, "x"),
    "PostgresCampaigns.health": lambda s, t: s.campaigns.health(campaign(t)),
    "PostgresCampaigns.note_seen": lambda s, t: s.campaigns.note_seen(t, ID, Tally(sent=9)),
    "PostgresCampaigns.sent_now": lambda s, t: s.campaigns.sent_now(t, ID),
    "PostgresCampaigns.control": lambda s, t: s.campaigns.control(t, ID),
    "PostgresCampaigns.set_control": lambda s, t: s.campaigns.set_control(
        t, ID, ControlState.PAUSED, 1.0, "x", "x"
    ),
    "PostgresCampaigns.take_epoch": lambda s, t: s.campaigns.take_epoch(t, ID, 0, "email"),
    "PostgresCampaigns.cursor": lambda s, t: s.campaigns.cursor(t, ID, 0, "email"),
    "PostgresCampaigns.advance": lambda s, t: advance(s, t),
    "PostgresCampaigns.pages": lambda s, t: s.campaigns.pages(t, ID, 0),
    "PostgresCampaigns.page_people": lambda s, t: s.campaigns.page_people(t, CAT, ID, 0, 0, True),
    "PostgresCampaigns.people": lambda s, t: s.campaigns.people(t, CAT, [WHO], True),
    "PostgresCampaigns.page_sends": lambda s, t: s.campaigns.page_sends(
        campaign(t), 0, 0, Channel.EMAIL
    ),
    "PostgresCampaigns.due_sends": lambda s, t: s.campaigns.due_sends(
        campaign(t), Channel.EMAIL, NOW + DAY, 99
    ),
    "PostgresCampaigns.due": lambda s, t: s.campaigns.due(t, ID),
    "PostgresCampaigns.summarise": lambda s, t: s.campaigns.summarise(t, NOW, ID, [(0, 0)]),
    "PostgresCampaigns.summarise_all": lambda s, t: s.campaigns.summarise_all(campaign(t)),
    "PostgresCampaigns.counts": lambda s, t: s.campaigns.counts(t, ID),
    "PostgresCampaigns.reasons": lambda s, t: s.campaigns.reasons(t, NOW, ID),
    "PostgresCampaigns.group": lambda s, t: s.campaigns.group(
        t, NOW, ID, R.PENDING, None, 99, None
    ),
    "PostgresCampaigns.settle": lambda s, t: s.campaigns.settle(
        campaign(t), s.ledger, NOW - MINUTE
    ),
    "PostgresCampaigns.cancel_rest": lambda s, t: s.campaigns.cancel_rest(
        campaign(t), None, "x", ledger=s.ledger
    ),
    "PostgresCampaigns.replay": lambda s, t: s.campaigns.replay(
        campaign(t), [R.FAILED, R.UNKNOWN, R.REJECTED], NOW - MINUTE
    ),
    "PostgresDeadLetters.add": lambda s, t: s.dead_letters.add([letter(t)]),
    "PostgresDeadLetters.by_status": lambda s, t: s.dead_letters.by_status(
        t, "open", 99, dead_letter_id(key(t))
    ),
    "PostgresDeadLetters.get": lambda s, t: s.dead_letters.get(t, dead_letter_id(key(t))),
    "PostgresDeadLetters.resolve": lambda s, t: s.dead_letters.resolve(
        t, dead_letter_id(key(t)), "discarded", "x"
    ),
    "PostgresDecisions.insert": lambda s, t: s.decisions.insert(
        [Decision(key(t), R.SENT)],
        [DeliveryRow(delivery_key(t), HASH, b"x")],
        [CapUse(WHO, "marketing", NOW.date(), 1, 1)],
    ),
    "PostgresDecisions.insert_page": lambda s, t: s.decisions.insert_page(
        ["new"], [0], [Decision(key(t), R.PENDING)]
    ),
    "PostgresDecisions.read": lambda s, t: s.decisions.read(key(t)),
    "PostgresDecisions.move": lambda s, t: s.decisions.move([moved(t)]),
    "PostgresDecisions.move_page": lambda s, t: s.decisions.move_page([WHO], moved(t)),
    "PostgresDecisions.use_caps": lambda s, t: s.decisions.use_caps(
        t, ID, [CapUse(WHO, "marketing", NOW.date(), 1, 1)]
    ),
    "PostgresDecisions.delivery": lambda s, t: s.decisions.delivery(delivery_key(t)),
    "PostgresDecisions.add_delivery": lambda s, t: s.decisions.add_delivery(
        DeliveryRow(delivery_key(t), HASH, b"x")
    ),
    "PostgresDecisions.by_recipient": lambda s, t: s.decisions.by_recipient(t, WHO, 99),
    "PostgresLedger.claim": lambda s, t: s.ledger.claim(
        scope(t), [Want(WHO, resume_unknown_of=1)], uuid4(), MINUTE
    ),
    "PostgresLedger.record": lambda s, t: s.ledger.record(
        scope(t), [ClaimResult(WHO, 1, uuid4(), ClaimState.SENT)]
    ),
    "PostgresSent.write": lambda s, t: s.sent.write(scope(t), uuid4(), "smtp", {WHO: "m"}),
    "PostgresLedger.read": lambda s, t: s.ledger.read(scope(t), [Want(WHO)]),
    "PostgresLedger.settle": lambda s, t: s.ledger.settle(scope(t)),
    "PostgresLedger.of_campaign": lambda s, t: s.ledger.of_campaign(t, NOW, ID),
    "PostgresLedger.of_shard": lambda s, t: s.ledger.of_shard(scope(t), [0]),
    "PostgresLedger.of_recipient": lambda s, t: s.ledger.of_recipient(
        t, WHO, datetime.now(UTC).date()
    ),
    "PostgresLedger.receive": lambda s, t: s.ledger.receive(
        [Receipt(delivery_key(t), ReceiptStatus.COMPLAINED, NOW)]
    ),
    "PostgresLedger.complaints": lambda s, t: s.ledger.complaints(t, NOW, ID),
    "PostgresLedger.suppressions": lambda s, t: s.ledger.suppressions(t, None, 99),
    "PostgresLedger.suppress": lambda s, t: s.ledger.suppress(
        t, Channel.EMAIL, HASH, "complaint", "x"
    ),
    "PostgresLedger.unsuppress": lambda s, t: s.ledger.unsuppress(t, Channel.EMAIL, HASH),
    "PostgresLedger.suppression": lambda s, t: s.ledger.suppression(t, Channel.EMAIL, [HASH]),
    "PostgresLimits.take": lambda s, t: s.limits.take(t, "s", 5, timedelta(days=3650)),
    "PostgresLimits.used": lambda s, t: s.limits.used(t, "s", timedelta(days=3650)),
    "PostgresLists.create": lambda s, t: s.lists.create(t, "everyone", "x"),
    "PostgresLists.get": lambda s, t: s.lists.get(t, "everyone"),
    "PostgresLists.lists": lambda s, t: s.lists.lists(t),
    "PostgresLists.start_version": lambda s, t: s.lists.start_version(
        t, "everyone", uuid4(), "csv"
    ),
    "PostgresLists.version": lambda s, t: s.lists.version(t, ID),
    "PostgresLists.versions": lambda s, t: s.lists.versions(t, "everyone"),
    "PostgresLists.chunks": lambda s, t: s.lists.chunks(t, ID),
    "PostgresLists.chunk": lambda s, t: s.lists.chunk(t, ID, 0),
    "PostgresLists.add_chunk": lambda s, t: s.lists.add_chunk(
        t, ID, 1, HASH, 1, 1, [a_row(0, variables={})]
    ),
    "PostgresLists.make_ready": lambda s, t: s.lists.make_ready(t, ID),
    "PostgresLists.write_sent": lambda s, t: s.lists.write_sent(t, "copy", uuid4(), campaign(t)),
    "PostgresLists.write_segment": lambda s, t: s.lists.write_segment(
        t, "copy", uuid4(), EVERYBODY
    ),
    "PostgresLists.fail": lambda s, t: s.lists.fail(t, ID, "x"),
    "PostgresLists.withdraw": lambda s, t: s.lists.withdraw(t, ID, "x"),
    "PostgresPasscodes.insert": lambda s, t: s.passcodes.insert(passcode(t)),
    "PostgresPasscodes.get": lambda s, t: s.passcodes.get(t, ID),
    "PostgresPasscodes.take_check": lambda s, t: s.passcodes.take_check(t, ID),
    "PostgresPasscodes.mark_used": lambda s, t: s.passcodes.mark_used(t, ID),
    "PostgresPasscodes.take_resend": lambda s, t: s.passcodes.take_resend(t, ID, "x"),
    "PostgresPasscodes.cancel": lambda s, t: s.passcodes.cancel(t, ID),
    "PostgresPeople.people": lambda s, t: s.people.people(t, CAT, [WHO, "r001"], True),
    "PostgresPeople.sample": lambda s, t: s.people.sample(t, CAT, ID, 99),
    "PostgresPeople.page_people": lambda s, t: s.people.page_people(t, CAT, ID, 0, 0, True),
    "PostgresRecipients.upsert": lambda s, t: s.recipients.upsert(
        t, [RecipientWrite(WHO, "xx", addresses=(mail(WHO, MARK),))]
    ),
    "PostgresRecipients.get": lambda s, t: s.recipients.get(t, WHO),
    "PostgresRecipients.by_address": lambda s, t: s.recipients.by_address(
        t, Channel.EMAIL, f"{MARK.lower()}@example.com"
    ),
    "PostgresRecipients.verify_address": lambda s, t: s.recipients.verify_address(
        t, WHO, Channel.EMAIL, victims_hash(s)
    ),
    "PostgresRecipients.mark_dead": lambda s, t: s.recipients.mark_dead(
        t, Channel.EMAIL, victims_hash(s), "x"
    ),
    "PostgresRecipients.remove_address": lambda s, t: s.recipients.remove_address(
        t, WHO, Channel.EMAIL
    ),
    "PostgresRecipients.register_device": lambda s, t: s.recipients.register_device(
        t, WHO, "d2", Channel.FCM, f"token-{MARK}"
    ),
    "PostgresRecipients.disable_device": lambda s, t: s.recipients.disable_device(
        t, Channel.FCM, f"token-{MARK}", datetime.now(UTC) + DAY
    ),
    "PostgresRecipients.remove_device": lambda s, t: s.recipients.remove_device(t, WHO, "d"),
    "PostgresRecipients.set_preferences": lambda s, t: s.recipients.set_preferences(
        t, WHO, [Preference("*", "sms", False, "x")]
    ),
    "PostgresRecipients.preferences": lambda s, t: s.recipients.preferences(t, WHO),
    "PostgresRecipients.opted_out": lambda s, t: s.recipients.opted_out(t, CAT, Channel.SMS, [WHO]),
    "PostgresRecipients.recent_opt_outs": lambda s, t: s.recipients.recent_opt_outs(
        t, NOW - 365 * DAY
    ),
    "PostgresRecipients.record_consents": lambda s, t: s.recipients.record_consents(
        t, WHO, [Consent(CAT, "*", False, NOW + MINUTE, "x", "x")]
    ),
    "PostgresRecipients.consents": lambda s, t: s.recipients.consents(t, WHO),
    "PostgresRecipients.suppressions": lambda s, t: s.recipients.suppressions(t, None, 99),
    "PostgresRecipients.erase": lambda s, t: s.recipients.erase(t, WHO),
    "PostgresSchedules.insert_or_match": lambda s, t: s.schedules.insert_or_match(schedule(t)),
    "PostgresSchedules.get": lambda s, t: s.schedules.get(t, ID),
    "PostgresSchedules.of_tenant": lambda s, t: s.schedules.of_tenant(t, 99),
    "PostgresSchedules.replace": lambda s, t: s.schedules.replace(schedule(t), 1),
    "PostgresSchedules.applied": lambda s, t: s.schedules.applied(t, ID, 1),
    "PostgresSchedules.judge": lambda s, t: s.schedules.judge(
        schedule(t), NOW + MINUTE, NOW + DAY, LATER
    ),
    "PostgresSchedules.owed": lambda s, t: s.schedules.owed(t, ID),
    "PostgresSchedules.settle": lambda s, t: s.schedules.settle(
        t, ID, NOW, TriggerStatus.FIRED, ID, "x"
    ),
    "PostgresSchedules.last_fired": lambda s, t: s.schedules.last_fired(t, ID, NOW + DAY),
    "PostgresSegments.put": lambda s, t: s.segments.put(t, "seg", "x", {"zone": "UTC"}, "x"),
    "PostgresSegments.get": lambda s, t: s.segments.get(t, "seg"),
    "PostgresSegments.recent": lambda s, t: s.segments.recent(t, 99),
    "PostgresSegments.delete": lambda s, t: s.segments.delete(t, "seg"),
    "PostgresSegments.look": lambda s, t: s.segments.look(t, EVERYBODY, 99),
    "PostgresSeries.insert_or_match": lambda s, t: s.series.insert_or_match(series(t)),
    "PostgresSeries.get": lambda s, t: s.series.get(t, ID),
    "PostgresSeries.replace": lambda s, t: s.series.replace(series(t), 1),
}
OVER_ALL_TENANTS = {
    "PostgresAccepted.oldest_waiting_security",
    # Housekeeping, rebuild and senders' control: no caller of the API reaches these.
    "PostgresAccepted.unstarted",
    "PostgresAccepted.open_rows",
    "PostgresAccepted.purge",
    "PostgresAccepted.forget_secrets",
    "PostgresCampaigns.open_campaigns",
    "PostgresCampaigns.waiting_after_close",
    "PostgresCampaigns.controls_changed_since",
    "PostgresCatalog.tenants",
    "PostgresLedger.settle_orphans",
    "PostgresLists.reap",
    "PostgresLimits.purge",
    "PostgresPasscodes.purge",
    "PostgresSchedules.overdue",
    "PostgresSchedules.unapplied",
    "PostgresSchedules.everywhere",
}


NOT_FILLED = {
    # Emptied by the step to ready; comes with progress.
    "list_staging",
    "page_summaries",
    # Not among these stores; they have a test of their own.
    "schedules",
    "reminder_series",
}
"""All else has rows to lose."""


async def advance(s: Stores, t: str) -> None:
    epoch = await s.campaigns.take_epoch(t, ID, 0, "email")
    await s.campaigns.advance(t, ID, 0, "email", epoch, 9, True)


def victims_hash(s: Stores) -> bytes:
    """As if the other tenant had got hold of it."""
    return s.sealer.address_hash("victim-0", Channel.EMAIL, f"{MARK.lower()}@example.com")


def test_every_method_of_every_store_is_in_the_table(stores: Stores) -> None:
    there = set()
    for store in vars(stores).values():
        if not type(store).__name__.startswith("Postgres"):
            continue
        for name, _ in inspect.getmembers(type(store), inspect.iscoroutinefunction):
            if not name.startswith("_"):
                there.add(f"{type(store).__name__}.{name}")
    assert there == CALLS.keys() | OVER_ALL_TENANTS


async def everything_of(pool: Pool, tenant: str) -> dict[str, list[Any]]:
    """Every row of every table that carries this tenant."""
    tables = await pool.fetch(
        """SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            WHERE a.attname = 'tenant' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND c.relnamespace = 'public'::regnamespace"""
    )
    return {
        table: sorted(
            str(tuple(row))
            for row in await pool.fetch(f"SELECT * FROM {table} WHERE tenant = $1", tenant)
        )
        for (table,) in tables
    }


@pytest.mark.parametrize("seed", range(4))
async def test_c11_c62_no_call_of_another_tenant_sees_or_changes_anything(
    seed: int, stores: Stores
) -> None:
    """Every method, as another tenant with the very same ids, in several orders."""
    victim, attacker = f"victim-{seed}", f"attacker-{seed}"
    await fill(stores, victim, MARK)
    before = await everything_of(stores.pool, victim)
    assert {table for table, rows in before.items() if not rows} <= NOT_FILLED
    await fill(stores, attacker, "OTHER")
    names = sorted(CALLS)
    random.Random(seed).shuffle(names)
    for name in names:
        try:
            seen = await CALLS[name](stores, attacker)
        except Refusal as refused:
            seen = refused
        assert MARK not in str(seen), f"{name} shows another tenant's rows"
    assert await everything_of(stores.pool, victim) == before


@pytest.mark.parametrize("tenant", [None, "", "%", "' OR true --"])
async def test_c62_no_tenant_is_nobody_and_never_everybody(
    tenant: Any, stores: Stores, ring: Any
) -> None:
    one = await stores.world()
    await fill(stores, one.tenant, MARK)
    for name in sorted(CALLS):
        method = name.split(".")[1]
        if not method.startswith(
            ("by_c", "by_r", "find", "keys", "recent", "template", "lists", "versions", "kill")
        ):
            continue
        seen = await CALLS[name](stores, tenant)
        assert not seen, f"{name} shows something to nobody"


def test_a_sealed_value_of_one_tenant_does_not_open_for_another(sealer: RingSealer) -> None:
    sealed = sealer.seal("address", "one", b"ann@example.com")
    assert sealer.open("address", "one", sealed) == b"ann@example.com"
    for purpose, tenant in (("address", "other"), ("device", "one")):
        with pytest.raises(Exception, match="damaged"):
            sealer.open(purpose, tenant, sealed)
    one = sealer.address_hash("one", Channel.EMAIL, "ann@example.com")
    assert one != sealer.address_hash("other", Channel.EMAIL, "ann@example.com")
