"""Sealed values open only where they belong; hashes depend on key and tenant."""

import string
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.kinds import Channel
from sendloom.platform.sealing import (
    ADDRESS_HASH_BYTES,
    CannotOpen,
    Hashes,
    KeyRing,
    decode_key,
    key_id_of,
    keyed_hash,
    new_key,
    same,
)

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
RING = KeyRing({"new": NEW, "old": OLD})
HASHES = Hashes(address=OLD, body=NEW, passcode=OLD)
names = st.text(string.ascii_letters + ":0123456789", max_size=12)


@given(st.binary(max_size=300), names, names)
def test_what_is_sealed_opens_to_the_same(plain: bytes, purpose: str, tenant: str) -> None:
    assert (
        RING.open(RING.seal(plain, purpose=purpose, tenant=tenant), purpose=purpose, tenant=tenant)
        == plain
    )


@given(st.tuples(names, names), st.tuples(names, names))
def test_it_opens_for_no_other_purpose_or_tenant(
    sealed_for: tuple[str, str], opened_as: tuple[str, str]
) -> None:
    sealed = RING.seal(b"x", purpose=sealed_for[0], tenant=sealed_for[1])
    if sealed_for == opened_as:
        assert RING.open(sealed, purpose=opened_as[0], tenant=opened_as[1]) == b"x"
    else:
        with pytest.raises(CannotOpen):
            RING.open(sealed, purpose=opened_as[0], tenant=opened_as[1])


@given(st.data())
def test_one_changed_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(RING.seal(b"a passcode", purpose="p", tenant="t"))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CannotOpen):
        RING.open(bytes(sealed), purpose="p", tenant="t")


@given(st.binary(max_size=40))
def test_what_was_never_sealed_does_not_open(junk: bytes) -> None:
    with pytest.raises(CannotOpen):
        RING.open(junk, purpose="p", tenant="t")


def test_the_same_value_never_looks_the_same_twice() -> None:
    assert len({RING.seal(b"123456", purpose="p", tenant="t") for _ in range(100)}) == 100


def test_old_values_open_after_rotation_and_can_be_moved_to_the_new_key() -> None:
    before = KeyRing({"old": OLD}).seal(b"kept", purpose="p", tenant="t")
    assert RING.open(before, purpose="p", tenant="t") == b"kept"
    after = RING.rotate(before, purpose="p", tenant="t")
    assert after is not None
    assert (key_id_of(before), key_id_of(after)) == ("old", "new")
    assert KeyRing({"new": NEW}).open(after, purpose="p", tenant="t") == b"kept"
    assert RING.rotate(after, purpose="p", tenant="t") is None


def test_a_value_whose_key_has_left_the_ring_says_which_key_it_was() -> None:
    sealed = KeyRing({"old": OLD}).seal(b"x", purpose="p", tenant="t")
    with pytest.raises(CannotOpen, match="'old'"):
        KeyRing({"new": NEW}).open(sealed, purpose="p", tenant="t")


def test_a_page_of_values_opens_as_one_by_one() -> None:
    plains = [b"a", b"", b"c" * 500]
    sealed = RING.seal_many(plains, purpose="address", tenant="t")
    assert RING.open_many(sealed, purpose="address", tenant="t") == plains


@pytest.mark.parametrize(
    "text",
    ["", "k", "k:short", f"K:{new_key()}", f"a:{new_key()},a:{new_key()}", "a:!!"],
    ids=["empty", "no-key", "short", "capital", "twice", "no-base64"],
)
def test_a_ring_that_is_none_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="key") as e:
        KeyRing.parse(text)
    for entry in text.split(","):
        secret = entry.partition(":")[2]
        assert not secret or secret not in str(e.value)


def test_a_ring_is_read_with_the_current_key_first() -> None:
    ring = KeyRing.parse(f"b:{new_key()}, a:{new_key()}")
    assert (ring.current, ring.key_ids) == ("b", ("b", "a"))


def test_a_key_is_256_bits() -> None:
    assert len(decode_key(new_key())) == 32
    with pytest.raises(ValueError, match="32 bytes"):
        decode_key("AAAA")


@given(st.lists(names, max_size=4), st.lists(names, max_size=4))
def test_no_two_different_tuples_share_a_hash(one: list[str], other: list[str]) -> None:
    assert (keyed_hash(OLD, *one) == keyed_hash(OLD, *other)) == (one == other)


def test_an_address_hash_depends_on_key_tenant_and_channel() -> None:
    address = "+12025550123"
    hashes = {
        HASHES.address_hash("a", Channel.SMS, address),
        HASHES.address_hash("b", Channel.SMS, address),
        HASHES.address_hash("a", Channel.EMAIL, address),
        Hashes(address=NEW, body=NEW, passcode=OLD).address_hash("a", Channel.SMS, address),
    }
    assert len(hashes) == 4
    assert {len(h) for h in hashes} == {ADDRESS_HASH_BYTES}
    assert HASHES.address_hash("a", Channel.SMS, address) in hashes


def test_a_passcode_hash_belongs_to_one_passcode() -> None:
    one, other = UUID(int=1), UUID(int=2)
    assert same(HASHES.passcode_hash("t", one, "123456"), HASHES.passcode_hash("t", one, "123456"))
    assert not same(
        HASHES.passcode_hash("t", one, "123456"), HASHES.passcode_hash("t", other, "123456")
    )
