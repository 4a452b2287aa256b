"""What the gates are told about people, and what callers say about them."""

import asyncio
from datetime import timedelta
from uuid import uuid4

from activities.facts import address_states
from schemas.kinds import Channel, MessageClass, RecipientState
from schemas.notifications import DecisionKey, DeliveryKey
from sendloom.ports import CapUse, Decision, DeliveryRow, Person
from sendloom.rows import AddressWrite, Consent, Preference, RecipientWrite
from tests.stores.conftest import NOW, Stores, World, a_category, a_row

EMAIL = AddressWrite(Channel.EMAIL, "Ann@example.com", "ann@example.com", verified=True)
EVERY_CHANNEL = tuple(Channel)
SMS = AddressWrite(Channel.SMS, "+12025550101", "+12025550101")


def consent(category: str = "offers.weekly", granted: bool = True, at: int = 0) -> Consent:
    return Consent(category, "*", granted, NOW + timedelta(seconds=at), "form", "I agree")


async def test_everything_about_several_people_in_the_order_asked(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    await stores.catalog.put_category(a_category(t, ladder=EVERY_CHANNEL))
    await stores.recipients.upsert(
        t,
        [
            RecipientWrite("ann", "de", "Europe/Berlin", {"plan": "pro"}, True, (EMAIL, SMS)),
            RecipientWrite("bob"),
        ],
    )
    await stores.recipients.record_consents(t, "ann", [consent()])
    await stores.recipients.set_preferences(
        t, "ann", [Preference("offers.weekly", "sms", True, "page")]
    )
    assert await stores.recipients.register_device(t, "ann", "pad", Channel.APNS, "token-1")
    await stores.ledger.suppress(
        t,
        Channel.EMAIL,
        stores.sealer.address_hash(t, Channel.EMAIL, "ann@example.com"),
        "complaint",
        "test",
    )
    nobody, ann, bob = await stores.people.people(
        t, "offers.weekly", ["nobody", "ann", "bob"], False
    )
    assert (nobody.recipient_id, nobody.exists) == ("nobody", False)
    assert (ann.exists, ann.locale, ann.zone, ann.erased) == (True, "de", "Europe/Berlin", False)
    email, sms = ann.addresses[Channel.EMAIL], ann.addresses[Channel.SMS]
    assert stores.sealer.open("address", t, email.sealed) == b"Ann@example.com"
    assert (email.verified, sms.verified, email.dead_reason) == (True, False, None)
    assert ann.suppressed == {Channel.EMAIL: "complaint"}
    assert (ann.opted_out, ann.consented) == (frozenset({"sms"}), frozenset({"*"}))
    [device] = ann.devices
    assert stores.sealer.open("device", t, device.sealed) == b"token-1"
    assert (bob.exists, bob.addresses, bob.consented) == (True, {}, frozenset())


async def test_only_what_the_category_may_use_is_looked_for(stores: Stores, world: World) -> None:
    t = world.tenant
    await stores.catalog.put_category(a_category(t, ladder=(Channel.SMS,)))
    await stores.recipients.upsert(t, [RecipientWrite("ann", addresses=(EMAIL, SMS))])
    await stores.recipients.register_device(t, "ann", "pad", Channel.APNS, "token-2")
    [ann] = await stores.people.people(t, "offers.weekly", ["ann"], False)
    assert (set(ann.addresses), ann.devices) == ({Channel.SMS}, [])
    [ann] = await stores.people.people(t, "no.such.category", ["ann"], False)
    assert (set(ann.addresses), len(ann.devices)) == ({Channel.EMAIL, Channel.SMS}, 1)


async def test_a_campaigns_own_channels_are_looked_for_instead(
    stores: Stores, world: World
) -> None:
    t, category, pinned = world.tenant, "offers.weekly", (Channel.SMS,)
    version = await world.list_of([a_row(0, phone="+12025550101")])
    await stores.catalog.put_category(a_category(t, ladder=(Channel.EMAIL,)))
    page = (t, category, version, 0, 0, False)
    [ann] = await stores.people.people(t, category, ["r000"], False, channels=pinned)
    [first] = (await stores.people.page_people(*page, channels=pinned)).people
    [member] = await stores.people.sample(t, category, version, 1, channels=pinned)
    for person in (ann, first, member.person):
        assert set(person.addresses) == {Channel.SMS}


async def test_one_person_is_read_like_many(stores: Stores, world: World) -> None:
    await stores.recipients.upsert(world.tenant, [RecipientWrite("ann", addresses=(EMAIL,))])
    [ann] = await stores.people.people(world.tenant, "offers.weekly", ["ann"], True)
    assert ann.addresses.keys() == {Channel.EMAIL}
    assert ann.cap_uses == {}


async def test_c71_leaving_all_marketing_leaves_only_marketing(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    await stores.catalog.put_category(
        a_category(t, category="security.otp", message_class=MessageClass.SECURITY)
    )
    await stores.recipients.upsert(t, [RecipientWrite("ann")])
    await stores.recipients.set_preferences(t, "ann", [Preference("*", "*", True, "page")])
    for category, out in (("offers.weekly", {"*"}), ("security.otp", set())):
        [ann] = await stores.people.people(t, category, ["ann"], False)
        assert ann.opted_out == out
        said = await stores.recipients.opted_out(t, category, Channel.EMAIL, ["ann", "bob"])
        assert said == ({"ann"} if out else set())


async def test_cap_days_are_given_by_scope_for_the_last_days_only(
    stores: Stores, world: World
) -> None:
    await stores.recipients.upsert(world.tenant, [RecipientWrite("ann")])
    today = NOW.date()
    days = [today, today, today - timedelta(days=1), today - timedelta(days=30)]
    for day in days:
        await stores.decisions.use_caps(
            world.tenant, uuid4(), [CapUse("ann", "marketing", day, None, None)]
        )
    [ann] = await stores.people.people(world.tenant, "offers.weekly", ["ann"], True)
    assert sorted(ann.cap_uses["marketing"]) == sorted(days[:3])
    [ann] = await stores.people.people(world.tenant, "offers.weekly", ["ann"], False)
    assert ann.cap_uses == {}


async def test_a_sample_of_members_has_their_variables_and_who_was_erased(
    stores: Stores, world: World
) -> None:
    version = await world.list_of([a_row(0), a_row(1, variables={}), a_row(2)])
    await stores.recipients.erase(world.tenant, "r002")
    members = await stores.campaigns.sample(world.tenant, "offers.weekly", version, 100)
    assert [m.recipient_id for m in members] == ["r000", "r001", "r002"]
    assert [dict(m.variables) for m in members] == [{"name": "N0"}, {}, {}]
    assert [m.person.erased for m in members] == [False, False, True]
    assert members[0].person.consented == {"*"}
    assert members[0].person.addresses[Channel.EMAIL].verified
    assert members[2].person.addresses == {}


async def test_what_is_left_out_stays_and_another_address_is_not_verified(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    await stores.recipients.upsert(
        t, [RecipientWrite("ann", "de", "Europe/Berlin", {"a": 1}, True, (EMAIL, SMS))]
    )
    await stores.recipients.upsert(t, [RecipientWrite("ann", zone="Europe/Paris")])
    ann = await stores.recipients.get(t, "ann")
    assert ann is not None
    assert (ann.locale, ann.zone, ann.attributes, ann.internal) == (
        "de",
        "Europe/Paris",
        {"a": 1},
        True,
    )
    assert [a.channel for a in ann.addresses] == [Channel.EMAIL, Channel.SMS]
    other = AddressWrite(Channel.EMAIL, "ann@example.net", "ann@example.net")
    old = ann.addresses[0].address_hash
    assert await stores.recipients.mark_dead(t, Channel.EMAIL, old, "hard_bounce") == 1
    await stores.recipients.upsert(t, [RecipientWrite("ann", addresses=(other,))])
    ann = await stores.recipients.get(t, "ann")
    assert ann is not None
    email = ann.addresses[0]
    assert (email.verified_at, email.dead_reason) == (None, None)
    assert not await stores.recipients.verify_address(t, "ann", Channel.EMAIL, old)
    assert await stores.recipients.verify_address(t, "ann", Channel.EMAIL, email.address_hash)
    # Giving the same one again does not take that back.
    await stores.recipients.upsert(t, [RecipientWrite("ann", addresses=(other,))])
    ann = await stores.recipients.get(t, "ann")
    assert ann is not None
    assert ann.addresses[0].verified_at is not None
    assert await stores.recipients.by_address(t, Channel.EMAIL, "ann@example.net") == ["ann"]
    assert await stores.recipients.by_address(t, Channel.EMAIL, "ann@example.com") == []
    assert await stores.recipients.remove_address(t, "ann", Channel.EMAIL)


async def test_a_token_registered_by_many_at_once_has_one_owner(
    stores: Stores, world: World
) -> None:
    people = ["ann", "bob"]
    await stores.recipients.upsert(world.tenant, [RecipientWrite(who) for who in people])
    for n in range(20):
        await asyncio.gather(
            *(
                stores.recipients.register_device(
                    world.tenant, people[i % 2], f"phone-{i % 3}", Channel.FCM, f"token-{n}"
                )
                for i in range(8)
            )
        )
    owners = await stores.pool.fetch(
        "SELECT count(*) AS owners FROM devices WHERE tenant = $1 GROUP BY token_hash", world.tenant
    )
    assert owners
    assert {row["owners"] for row in owners} == {1}


async def test_a_device_moves_with_its_owner_and_a_late_report_does_not_kill_a_new_registration(
    stores: Stores, world: World
) -> None:
    t, recipients = world.tenant, stores.recipients
    await stores.catalog.put_category(a_category(t, ladder=EVERY_CHANNEL))
    await recipients.upsert(t, [RecipientWrite("ann"), RecipientWrite("bob")])
    assert await recipients.register_device(t, "ann", "phone", Channel.FCM, "token")
    assert await recipients.register_device(t, "bob", "phone", Channel.FCM, "token")
    ann, bob = await recipients.get(t, "ann"), await recipients.get(t, "bob")
    assert ann is not None
    assert bob is not None
    assert ann.devices == ()
    [device] = bob.devices
    [person] = await stores.people.people(t, "offers.weekly", ["bob"], False)
    assert [d.device_id for d in person.devices] == ["phone"]
    before = device.registered_at - timedelta(seconds=1)
    assert not await recipients.disable_device(t, Channel.FCM, "token", before)
    assert await recipients.disable_device(t, Channel.FCM, "token", device.registered_at)
    [person] = await stores.people.people(t, "offers.weekly", ["bob"], False)
    assert person.devices == []
    assert not await recipients.register_device(t, "nobody", "x", Channel.FCM, "token-2")
    assert await recipients.remove_device(t, "bob", "phone")


async def test_the_newest_consent_counts_whatever_order_they_come_in(
    stores: Stores, world: World
) -> None:
    t, recipients = world.tenant, stores.recipients
    await recipients.upsert(t, [RecipientWrite("ann")])
    await recipients.record_consents(t, "ann", [consent(at=10, granted=False), consent(at=5)])
    await recipients.record_consents(t, "ann", [consent(at=7)])
    [stored] = await recipients.consents(t, "ann")
    assert (stored.granted, stored.at) == (False, NOW + timedelta(seconds=10))
    [ann] = await stores.people.people(t, "offers.weekly", ["ann"], False)
    assert ann.consented == frozenset()
    events = await stores.pool.fetchval("SELECT count(*) FROM consent_events WHERE tenant = $1", t)
    assert events == 3


async def test_preferences_are_told_and_recent_opt_outs_found(stores: Stores, world: World) -> None:
    t, recipients = world.tenant, stores.recipients
    out = [Preference("*", "email", True, "one-click"), Preference("a.b", "*", False, "page")]
    await recipients.set_preferences(t, "ann", out)
    stored = await recipients.preferences(t, "ann")
    assert [(p.category, p.channel, p.opted_out) for p in stored] == [
        ("*", "email", True),
        ("a.b", "*", False),
    ]
    changed_at = stored[0].changed_at
    assert changed_at is not None
    assert await recipients.recent_opt_outs(t, changed_at) == [("ann", "*", "email")]
    assert await recipients.recent_opt_outs(t, changed_at + timedelta(seconds=1)) == []


async def test_erasing_takes_all_that_is_personal_and_keeps_suppressions(
    stores: Stores, world: World
) -> None:
    t = world.tenant
    campaign = await world.campaign(4)
    planned = await world.plan(campaign)
    key = DecisionKey(tenant=t, frozen_at=NOW, campaign_id=uuid4(), recipient_id="r001")
    delivery = DeliveryRow(DeliveryKey(**dict(key), channel=Channel.EMAIL), b"a", b"{}")
    await stores.decisions.insert([Decision(key, RecipientState.SENT)], [delivery])
    address_hash = stores.sealer.address_hash(t, Channel.EMAIL, "r001@example.com")
    await stores.ledger.suppress(t, Channel.EMAIL, address_hash, "stop", "test")
    assert await stores.recipients.erase(t, "r001")
    assert not await stores.recipients.erase(t, "nobody")
    person = await stores.recipients.get(t, "r001")
    assert person is not None
    assert person.erased_at is not None
    assert (person.locale, person.zone, person.addresses) == (None, None, ())
    assert await stores.recipients.consents(t, "r001") == []
    assert await stores.ledger.suppression(t, Channel.EMAIL, [address_hash])
    assert await stores.decisions.delivery(delivery.key) is None
    stored = await stores.decisions.read(planned[1].key)
    assert stored is not None
    assert stored.state is RecipientState.ERASED
    sent = await stores.decisions.read(key)
    assert sent is not None
    assert sent.state is RecipientState.SENT
    counts = await stores.campaigns.counts(t, campaign.campaign_id)
    assert (counts[RecipientState.ERASED], sum(counts.values())) == (1, 4)
    # A list that still has them does not bring them back; somebody who says so does.
    await world.list_of([a_row(1)], "again")
    person = await stores.recipients.get(t, "r001")
    assert person is not None
    assert (person.erased_at is not None, person.addresses) == (True, ())
    await stores.recipients.upsert(t, [RecipientWrite("r001", addresses=(EMAIL,))])
    person = await stores.recipients.get(t, "r001")
    assert person is not None
    assert person.erased_at is None
    assert len(person.addresses) == 1


async def test_suppressions_are_listed_page_by_page(stores: Stores, world: World) -> None:
    hashes = sorted(bytes([n]) * 16 for n in range(5))
    for one in hashes:
        await stores.ledger.suppress(world.tenant, Channel.SMS, one, "manual", "ops")
    first = await stores.recipients.suppressions(world.tenant, None, 3)
    rest = await stores.recipients.suppressions(
        world.tenant, Channel.SMS, 3, (first[-1].channel, first[-1].address_hash)
    )
    assert [one.address_hash for one in first + rest] == hashes


async def test_two_lists_and_a_caller_writing_the_same_people_do_not_wait_for_each_other(
    stores: Stores, world: World
) -> None:
    rows = [a_row(n) for n in range(60)]
    await asyncio.gather(
        world.list_of(rows, "one"),
        world.list_of(rows[::-1], "two"),
        stores.recipients.upsert(
            world.tenant, [RecipientWrite(f"r{n:03}", "fr") for n in reversed(range(60))]
        ),
    )
    people = await stores.people.people(world.tenant, "offers.weekly", ["r000", "r059"], False)
    assert all(person.exists for person in people)


async def test_people_of_one_cohort_are_the_same_to_the_gates(stores: Stores, world: World) -> None:
    t, category = world.tenant, "offers.weekly"
    rows = [a_row(n, zone=("Europe/Berlin", "Asia/Tokyo")[n % 2]) for n in range(40)]
    version = await world.list_of(rows)
    ids = [f"r{n:03}" for n in range(40)]
    await stores.recipients.erase(t, ids[1])
    for n in (2, 3, 22):
        await stores.recipients.set_preferences(t, ids[n], [Preference(category, "*", True, "x")])
    await stores.recipients.set_preferences(t, ids[3], [Preference("*", "email", True, "x")])
    for n in (4, 24):
        [person] = await stores.people.people(t, category, [ids[n]], False)
        hash = person.addresses[Channel.EMAIL].address_hash
        await stores.ledger.suppress(t, Channel.EMAIL, hash, "hard_bounce", "x")

    def facts(person: Person) -> object:
        return (
            person.exists,
            person.erased,
            person.zone,
            address_states(person),
            person.suppressed,
            person.opted_out,
            person.consented,
        )

    seen = 0
    for shard in (0, 1, 2):
        for page, size in await stores.campaigns.pages(t, version, shard):
            found = await stores.campaigns.page_people(t, category, version, shard, page, False)
            alone = await stores.people.people(t, category, found.recipient_ids, False)
            for person, cohort in zip(alone, found.cohorts, strict=True):
                assert facts(person) == facts(found.people[cohort]), person.recipient_id
            assert len(found.people) == len(set(found.cohorts)) <= size
            seen += size
    assert seen == 40
