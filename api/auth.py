"""Who is asking. The tenant comes from the credential and from nowhere else (TEN-1)."""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from api.ports import Keys
from schemas.kinds import Mode
from sendloom.errors import Refusal
from sendloom.platform.sealing import same
from sendloom.ports import ApiKey, Tenant


class Scope(StrEnum):
    """What a key may do; `admin` may do everything."""

    SEND = "send"
    CAMPAIGNS = "campaigns"
    SUPPORT = "support"
    OPS = "ops"
    ADMIN = "admin"


class KeyKind(StrEnum):
    """`team` reaches only recipients marked internal; with `test` nothing leaves."""

    LIVE = "live"
    TEAM = "team"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated key and its tenant."""

    tenant: Tenant
    key: ApiKey

    @property
    def id(self) -> str:
        return self.tenant.tenant

    @property
    def mode(self) -> Mode:
        return Mode.TEST if self.key.kind == KeyKind.TEST else Mode.LIVE

    @property
    def actor(self) -> str:
        """What the audit log knows them by."""
        return f"key:{self.key.key_id}"

    def require(self, *scopes: Scope) -> None:
        """
        Raises:
            Refusal: `scope_missing`.
        """
        if Scope.ADMIN not in self.key.scopes and not self.key.scopes.intersection(scopes):
            wanted = " or ".join(sorted({*scopes, Scope.ADMIN}))
            raise Refusal("scope_missing", f"this needs the scope {wanted}", status=403)

    def require_category(self, category: str) -> None:
        """
        Raises:
            Refusal: `category_not_allowed`.
        """
        if self.key.categories is not None and category not in self.key.categories:
            raise Refusal(
                "category_not_allowed",
                "this key is limited to other categories",
                field="category",
                status=403,
            )


@dataclass(frozen=True, slots=True)
class Credential:
    """`sl_<kind>_<tenant>_<key id>_<secret>`: who it claims to be, and the proof."""

    kind: str
    tenant: str
    key_id: str
    secret: str

    @classmethod
    def parse(cls, header: str | None) -> "Credential":
        """From an Authorization header.

        Raises:
            Refusal: `credentials_missing`, `credentials_invalid`.
        """
        if not header:
            raise Refusal("credentials_missing", "there is no Authorization header", status=401)
        scheme, _, token = header.partition(" ")
        parts = token.strip().split("_", 4)
        if scheme.lower() != "bearer" or len(parts) != 5 or parts[0] != "sl" or not all(parts):
            raise _invalid()
        return cls(*parts[1:])


def hash_secret(secret: str) -> bytes:
    """256 random bits need no slow hash: there is nothing to guess."""
    return hashlib.sha256(secret.encode()).digest()


def new_credential(kind: KeyKind, tenant: str) -> Credential:
    """A fresh key. It is shown once; only the hash of its secret is kept."""
    return Credential(kind, tenant, secrets.token_hex(6), secrets.token_urlsafe(32))


def bearer(credential: Credential) -> str:
    c = credential
    return f"sl_{c.kind}_{c.tenant}_{c.key_id}_{c.secret}"


_NOBODY = hashlib.sha256(b"").digest()


async def authenticate(
    keys: Keys, header: str | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Caller:
    """The caller. A key is read on every request, so revoking one works at once.

    Raises:
        Refusal: any 401, or `tenant_disabled`.
    """
    credential = Credential.parse(header)
    stored = await keys.find(credential.tenant, credential.key_id)
    # The same work for a key that does not exist, so that the time it takes tells nothing.
    proven = same(stored.secret_hash if stored else _NOBODY, hash_secret(credential.secret))
    if stored is None or not proven or stored.key.kind != credential.kind:
        raise _invalid()
    if stored.revoked_at is not None and stored.revoked_at <= now():
        raise Refusal("key_revoked", "this key was revoked", status=401)
    if stored.expires_at is not None and stored.expires_at <= now():
        raise Refusal("key_expired", "this key has expired", status=401)
    if stored.tenant.disabled:
        raise Refusal("tenant_disabled", "this tenant is switched off", status=403)
    return Caller(stored.tenant, stored.key)


def _invalid() -> Refusal:
    return Refusal("credentials_invalid", "there is no such key", status=401)
