"""Sealing (AES-GCM with a key ring) and keyed hashes. What is secret or personal leaves this file unreadable.

A sealed value is `version, key id length, key id, 96-bit random nonce, ciphertext and tag`. Purpose and tenant are
authenticated with it, so a value copied to another tenant's row, or to another column, does not open.
"""

import base64
import binascii
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from schemas.kinds import Channel

KEY_BYTES = 32
ADDRESS_HASH_BYTES = 16
"""128 bits: by the birthday bound two of a billion addresses collide with a chance of 1 in 10^21."""

_VERSION = 1
_NONCE_BYTES = 12
_DAMAGED = "damaged, or sealed for another purpose or tenant"
_KEY_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class CannotOpen(Exception):
    """A sealed value is damaged, belongs to another purpose or tenant, or its key has left the ring."""


class KeyRing:
    """Sealing keys by id; the first seals, all of them open.

    A random 96-bit nonce allows about 2^32 seals a key before a repeat becomes conceivable, so rotate at least
    every billion messages: put a new key first, keep the old ones until `rotate` has been over what they sealed.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise ValueError("a key ring needs at least one key")
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise ValueError("a key id is 1 to 32 of a-z, 0-9 and '-'")
            if len(key) != KEY_BYTES:
                raise ValueError(f"key {key_id} must be {KEY_BYTES} bytes")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self.current = next(iter(keys))
        self._head = _header(self.current)
        self._sealer = self._ciphers[self.current]

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """From `id:base64,id:base64`, current first.

        Raises:
            ValueError: it is not such a list. The message holds no key material.
        """
        keys: dict[str, bytes] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            key_id, colon, encoded = entry.partition(":")
            if not colon:
                raise ValueError("a key ring is id:base64 pairs separated by commas")
            if key_id in keys:
                raise ValueError("a key id appears twice in the ring")
            keys[key_id] = decode_key(encoded)
        return cls(keys)

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(self._ciphers)

    def seal(self, plain: bytes, *, purpose: str, tenant: str) -> bytes:
        return self._seal(plain, _associated(purpose, tenant))

    def seal_many(self, plains: Iterable[bytes], *, purpose: str, tenant: str) -> list[bytes]:
        """One page of values of one purpose and tenant."""
        associated = _associated(purpose, tenant)
        return [self._seal(plain, associated) for plain in plains]

    def open(self, sealed: bytes, *, purpose: str, tenant: str) -> bytes:
        """The plain value.

        Raises:
            CannotOpen: damaged, not sealed for this purpose and tenant, or under a key no longer in the ring.
        """
        return self._open(sealed, _associated(purpose, tenant))

    def open_many(self, sealed: Iterable[bytes], *, purpose: str, tenant: str) -> list[bytes]:
        """One page of values of one purpose and tenant; the first that does not open raises."""
        associated = _associated(purpose, tenant)
        head, decrypt = self._head, self._sealer.decrypt
        nonce = len(head)
        body, known = nonce + _NONCE_BYTES, head + associated
        plains: list[bytes] = []
        for value in sealed:
            # Nearly all are under the current key: then there is no header to be read.
            if value.startswith(head) and len(value) >= body:
                try:
                    plains.append(decrypt(value[nonce:body], value[body:], known))
                except (InvalidTag, ValueError) as e:
                    raise CannotOpen(_DAMAGED) from e
            else:
                plains.append(self._open(value, associated))
        return plains

    def rotate(self, sealed: bytes, *, purpose: str, tenant: str) -> bytes | None:
        """The same value under the current key, or None when it already is."""
        if sealed.startswith(self._head):
            return None
        return self.seal(
            self.open(sealed, purpose=purpose, tenant=tenant), purpose=purpose, tenant=tenant
        )

    def _seal(self, plain: bytes, associated: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return self._head + nonce + self._sealer.encrypt(nonce, plain, self._head + associated)

    def _open(self, sealed: bytes, associated: bytes) -> bytes:
        key_id, start = _read_header(sealed)
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise CannotOpen(f"sealed under key {key_id!r}, which is not in the ring")
        body = start + _NONCE_BYTES
        try:
            return cipher.decrypt(sealed[start:body], sealed[body:], sealed[:start] + associated)
        except (InvalidTag, ValueError) as e:
            raise CannotOpen(_DAMAGED) from e


def key_id_of(sealed: bytes) -> str:
    """Which key sealed it.

    Raises:
        CannotOpen: it is not a sealed value.
    """
    return _read_header(sealed)[0]


class Hashes:
    """Every keyed hash, with the keys it needs. HMAC-SHA256 over length-prefixed parts; the tenant is always one of them."""

    def __init__(self, *, address: bytes, body: bytes, passcode: bytes) -> None:
        self._address = address
        self._body = body
        self._passcode = passcode

    def address_hash(self, tenant: str, channel: Channel, lookup_form: str) -> bytes:
        """What an address is found by: 16 bytes, meaningless without the key and different in each tenant."""
        return keyed_hash(self._address, tenant, channel, lookup_form)[:ADDRESS_HASH_BYTES]

    def body_hash(self, tenant: str, canonical_body: bytes) -> bytes:
        """Whether a repeat brings the same body. Keyed, because bodies hold guessable personal data."""
        return keyed_hash(self._body, tenant, canonical_body)

    def passcode_hash(self, tenant: str, passcode_id: UUID, code: str) -> bytes:
        """What `check` compares with. A six-digit code is guessable, so only the key protects it."""
        return keyed_hash(self._passcode, tenant, passcode_id.bytes, code)


class RingSealer:
    """The ring and the hashes as stores and activities use them; implements the port `Sealer`."""

    def __init__(self, ring: KeyRing, hashes: Hashes) -> None:
        self._ring = ring
        self._hashes = hashes

    def seal(self, purpose: str, tenant: str, plain: bytes) -> bytes:
        return self._ring.seal(plain, purpose=purpose, tenant=tenant)

    def open(self, purpose: str, tenant: str, sealed: bytes) -> bytes:
        """
        Raises:
            CannotOpen: damaged, or sealed for another purpose or tenant.
        """
        return self._ring.open(sealed, purpose=purpose, tenant=tenant)

    def open_many(self, purpose: str, tenant: str, sealed: Iterable[bytes]) -> list[bytes]:
        """
        Raises:
            CannotOpen: as `open`, for the first that does not.
        """
        return self._ring.open_many(sealed, purpose=purpose, tenant=tenant)

    def address_hash(self, tenant: str, channel: Channel, lookup_form: str) -> bytes:
        return self._hashes.address_hash(tenant, channel, lookup_form)

    def passcode_hash(self, tenant: str, passcode_id: UUID, code: str) -> bytes:
        return self._hashes.passcode_hash(tenant, passcode_id, code)


def keyed_hash(key: bytes, *parts: str | bytes) -> bytes:
    """HMAC-SHA256 over the parts, each with its length before it, so no two different tuples agree."""
    message = bytearray()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        message += len(raw).to_bytes(4, "big")
        message += raw
    return hmac.digest(key, bytes(message), "sha256")


def same(one: bytes, other: bytes) -> bool:
    """Equal, in constant time."""
    return hmac.compare_digest(one, other)


def new_key() -> str:
    """A fresh 256-bit key, base64."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def decode_key(encoded: str) -> bytes:
    """The bytes of one base64 key.

    Raises:
        ValueError: not base64 of 32 bytes. The message holds no key material.
    """
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a key must be base64") from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key must be {KEY_BYTES} bytes of base64, this one has {len(key)}")
    return key


def _header(key_id: str) -> bytes:
    return bytes((_VERSION, len(key_id))) + key_id.encode()


def _read_header(sealed: bytes) -> tuple[str, int]:
    if len(sealed) < 2 or sealed[0] != _VERSION:
        raise CannotOpen("not a sealed value")
    start = 2 + sealed[1]
    if len(sealed) < start + _NONCE_BYTES:
        raise CannotOpen("a sealed value was cut short")
    try:
        return sealed[2:start].decode("ascii"), start
    except UnicodeDecodeError as e:
        raise CannotOpen("not a sealed value") from e


@lru_cache(maxsize=1024)
def _associated(purpose: str, tenant: str) -> bytes:
    return f"{len(purpose)}:{purpose}{len(tenant)}:{tenant}".encode()
