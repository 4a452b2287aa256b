"""Tenants, keys, categories, templates, switches; and the logs of who did what and what was fired."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from schemas.kinds import Channel, Kind, MessageClass
from schemas.notifications import DecisionKey
from sendloom.domain.ids import dead_letter_id
from sendloom.errors import Refusal
from sendloom.ports import ApiKey, DeadLetter
from sendloom.rows import PartWrite, Trigger
from tests.stores.conftest import NOW, Stores, World, a_category, a_tenant


async def test_a_tenant_and_a_category_come_back_as_they_were_put(
    stores: Stores, world: World
) -> None:
    assert await stores.catalog.tenant(world.tenant) == a_tenant(world.tenant)
    changed = replace(a_tenant(world.tenant), name="Other", disabled=True, settings={"b": [1]})
    await stores.catalog.put_tenant(changed)
    assert await stores.catalog.tenant(world.tenant) == changed
    assert changed in await stores.catalog.tenants()
    assert await stores.catalog.tenant("nobody") is None
    caps = ({"scope": "marketing", "per": "day", "limit": 1},)
    category = a_category(world.tenant, caps=caps, over_cap="defer", ttl_seconds=9)
    await stores.catalog.put_category(category)
    assert await stores.catalog.category(world.tenant, category.category) == category
    assert await stores.catalog.categories(world.tenant) == [category]
    assert await stores.catalog.category(world.tenant, "nothing") is None


async def test_the_class_of_a_category_is_fixed(stores: Stores, world: World) -> None:
    with pytest.raises(Refusal, match="class_is_fixed"):
        await stores.catalog.put_category(
            a_category(world.tenant, message_class=MessageClass.SECURITY)
        )


async def test_a_key_is_found_with_its_tenant_also_when_it_is_revoked(
    stores: Stores, world: World
) -> None:
    key = ApiKey(world.tenant, "k1", "live", frozenset({"send"}), frozenset({"a.b"}))
    await stores.catalog.add_key(key, b"s" * 32, "first", NOW)
    found = await stores.catalog.find(world.tenant, "k1")
    assert found is not None
    assert (found.key, found.tenant) == (key, a_tenant(world.tenant))
    assert (found.secret_hash, found.label, found.expires_at) == (b"s" * 32, "first", NOW)
    assert await stores.catalog.revoke_key(world.tenant, "k1")
    assert not await stores.catalog.revoke_key(world.tenant, "k1")
    found = await stores.catalog.find(world.tenant, "k1")
    assert found is not None
    assert found.revoked_at is not None
    assert await stores.catalog.keys(world.tenant) == [found]
    assert await stores.catalog.find(world.tenant, "k2") is None


async def test_c36_a_key_of_one_tenant_is_no_key_of_another(stores: Stores) -> None:
    one, other = await stores.world(), await stores.world()
    key = ApiKey(one.tenant, "k1", "live", frozenset({"admin"}), None)
    await stores.catalog.add_key(key, b"s" * 32)
    for _ in range(2):
        assert await stores.catalog.find(one.tenant, "k1") is not None
        assert await stores.catalog.find(other.tenant, "k1") is None


PARTS = [
    PartWrite(Channel.EMAIL, "en", "Hello {{name}}", "text", "<p>html</p>"),
    PartWrite(Channel.EMAIL, "de", "Hallo {{name}}", "Text"),
    PartWrite(Channel.SMS, "en", None, "text"),
]


async def test_a_version_is_current_once_published_and_older_ones_stay_readable(
    stores: Stores, world: World
) -> None:
    t, catalog = world.tenant, stores.catalog
    variables = {"name": {"default": "you"}, "code": {}}
    assert await catalog.template_parts(t, "welcome", None) == []
    assert await catalog.add_template_version(t, "welcome", variables, "en", PARTS) == 1
    assert await catalog.template_parts(t, "welcome", None) == []
    assert await catalog.publish(t, "welcome", 1)
    parts = await catalog.template_parts(t, "welcome", None)
    assert [(p.channel, p.locale, p.subject, p.html) for p in parts] == [
        (Channel.EMAIL, "de", "Hallo {{name}}", None),
        (Channel.EMAIL, "en", "Hello {{name}}", "<p>html</p>"),
        (Channel.SMS, "en", None, None),
    ]
    assert {p.version for p in parts} == {1}
    assert parts[0].variables == variables
    assert await catalog.add_template_version(t, "welcome", {}, "de", PARTS[:1]) == 2
    assert {p.version for p in await catalog.template_parts(t, "welcome", None)} == {1}
    assert await catalog.publish(t, "welcome", 2)
    assert {p.version for p in await catalog.template_parts(t, "welcome", None)} == {2}
    assert len(await catalog.template_parts(t, "welcome", 1)) == 3
    assert not await catalog.publish(t, "welcome", 3)
    versions = await catalog.template_versions(t, "welcome")
    assert [(v.version, v.current, v.default_locale) for v in versions] == [
        (1, False, "en"),
        (2, True, "de"),
    ]
    assert await catalog.templates(t) == [("welcome", 2)]


async def test_versions_added_at_once_get_numbers_of_their_own(
    stores: Stores, world: World
) -> None:
    numbers = await asyncio.gather(
        *(stores.catalog.add_template_version(world.tenant, "t", {}, "en", PARTS) for _ in range(4))
    )
    assert sorted(numbers) == [1, 2, 3, 4]
    with pytest.raises(Refusal, match="duplicate_part"):
        await stores.catalog.add_template_version(world.tenant, "t", {}, "en", PARTS[:1] * 2)
    assert len(await stores.catalog.template_versions(world.tenant, "t")) == 4


async def test_each_kind_of_switch_stops_what_it_names(stores: Stores, world: World) -> None:
    t, catalog, campaign = world.tenant, stores.catalog, uuid4()
    asked = (t, "offers.weekly", "send-email-marketing", campaign)
    assert await catalog.killed(*asked) is None
    for scope, name in (
        ("tenant", t),
        ("category", "offers.weekly"),
        ("lane", "send-email-marketing"),
        ("campaign", str(campaign)),
    ):
        await catalog.switch_on(t, scope, "another", "not this", "ops")
        if scope != "tenant":
            assert await catalog.killed(*asked) is None
        await catalog.switch_off(t, scope, "another")
        await catalog.switch_on(t, scope, name, f"why {scope}", "ops")
        assert await catalog.killed(*asked) == f"why {scope}"
        [switch] = await catalog.kill_switches(t)
        assert (switch.scope, switch.name, switch.by) == (scope, name, "ops")
        assert await catalog.switch_off(t, scope, name)
        assert not await catalog.switch_off(t, scope, name)


def a_letter(world: World, **changes: object) -> DeadLetter:
    key = DecisionKey(
        tenant=world.tenant, frozen_at=NOW, campaign_id=uuid4(), recipient_id="r1", page=3
    )
    return replace(
        DeadLetter(
            id=dead_letter_id(key),
            kind=Kind.NOTIFICATION,
            ref_id=key.campaign_id,
            decision=key,
            category="a.b",
            channel=Channel.SMS,
            state="failed",
            code="30008",
            last_error="no route",
        ),
        **changes,  # type: ignore[arg-type]
    )


async def test_a_dead_letter_is_resolved_once_and_opened_again_by_a_newer_error(
    stores: Stores, world: World
) -> None:
    letters, letter = stores.dead_letters, a_letter(world)
    await letters.add([letter, letter])
    stored = await letters.get(world.tenant, letter.id)
    assert stored is not None
    assert replace(stored, created_at=None) == letter
    resolved = await asyncio.gather(
        *(letters.resolve(world.tenant, letter.id, "replayed", "ann") for _ in range(4))
    )
    assert sorted(resolved) == [False, False, False, True]
    await letters.add([replace(letter, code="30003", last_error="again", channel=None)])
    stored = await letters.get(world.tenant, letter.id)
    assert stored is not None
    assert (stored.status, stored.code, stored.replays) == ("open", "30003", 1)
    assert await letters.resolve(world.tenant, letter.id, "discarded", "bob")
    with pytest.raises(ValueError, match="replayed or discarded"):
        await letters.resolve(world.tenant, letter.id, "lost", "bob")


async def test_dead_letters_are_paged_newest_first(stores: Stores, world: World) -> None:
    added = [a_letter(world) for _ in range(5)]
    for letter in added:
        await stores.dead_letters.add([letter])
    first = await stores.dead_letters.by_status(world.tenant, "open", 3)
    rest = await stores.dead_letters.by_status(world.tenant, "open", 3, first[-1].id)
    assert [one.id for one in first + rest] == [one.id for one in reversed(added)]
    assert await stores.dead_letters.by_status(world.tenant, "replayed", 3) == []


async def test_the_audit_log_is_paged_and_filtered(stores: Stores, world: World) -> None:
    for n in range(4):
        await stores.audit.add(world.tenant, "key:k1", "campaign.pause", f"c{n % 2}", {"n": n})
    first = await stores.audit.recent(world.tenant, 3)
    rest = await stores.audit.recent(world.tenant, 3, before=first[-1][0])
    assert [entry.detail["n"] for _, entry in first + rest] == [3, 2, 1, 0]
    one = await stores.audit.recent(world.tenant, 9, target="c1")
    assert [entry.detail["n"] for _, entry in one] == [3, 1]


async def test_the_same_fire_happens_once(stores: Stores, world: World) -> None:
    fire = Trigger(uuid4(), NOW, "campaign", "fired", "schedule", NOW, uuid4())
    tried = await asyncio.gather(*(stores.triggers.fired(world.tenant, fire) for _ in range(5)))
    assert sorted(tried) == [False] * 4 + [True]
    missed = replace(fire, scheduled_for=NOW - timedelta(days=7), status="missed", fired_at=None)
    assert await stores.triggers.fired(world.tenant, missed)
    assert await stores.triggers.of_trigger(world.tenant, fire.trigger_id) == [fire, missed]
    week = await stores.triggers.between(world.tenant, NOW - timedelta(days=8), NOW)
    assert week == [missed]
    assert await stores.triggers.update(
        world.tenant, fire.trigger_id, missed.scheduled_for, "fired", NOW
    )
    [caught_up] = await stores.triggers.between(world.tenant, NOW - timedelta(days=8), NOW)
    assert (caught_up.status, caught_up.fired_at) == ("fired", NOW)


async def test_a_limit_counts_what_it_lets_through_and_says_when_it_ends(
    stores: Stores, world: World
) -> None:
    window = timedelta(days=3650)
    at = (world.tenant, "verify:abc", 3, window)
    taken = await asyncio.gather(*(stores.limits.take(*at) for _ in range(10)))
    assert sum(1 for ends in taken if ends is None) == 3
    ends = next(ends for ends in taken if ends is not None)
    assert ends > datetime.now(UTC)
    assert await stores.limits.used(world.tenant, "verify:abc", window) == 3
    assert await stores.limits.take(world.tenant, "verify:other", 3, window) is None
    assert await stores.limits.take(world.tenant, "verify:none", 0, window) is not None
    assert await stores.limits.take(world.tenant, "verify:abc", 4, window) is None
    # In another window it is free again.
    assert await stores.limits.take(world.tenant, "verify:abc", 1, timedelta(seconds=7)) is None
    while await stores.limits.purge(datetime.now(UTC) + timedelta(days=1), 10):
        pass
    assert await stores.limits.used(world.tenant, "verify:abc", window) == 0
