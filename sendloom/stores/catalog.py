"""What changes rarely: tenants, keys, categories, templates, kill switches."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from schemas.kinds import Channel, MessageClass, UnknownPolicy
from sendloom.errors import Refusal
from sendloom.ports import ApiKey, Category, TemplateParts, Tenant
from sendloom.rows import KillSwitch, PartWrite, StoredKey, TemplateVersion
from sendloom.stores.pool import STATEMENT, PostgresStore, Record
from sendloom.stores.queries import load

SQL = load("catalog.sql")


class PostgresCatalog(PostgresStore):
    """Implements `CatalogStore`, and what manages it."""

    async def tenant(self, tenant: str) -> Tenant | None:
        row = await self._row(SQL["tenant"], tenant)
        return None if row is None else Tenant(*row)

    async def tenants(self) -> list[Tenant]:
        return [Tenant(*row) for row in await self._fetch(SQL["tenants"])]

    async def put_tenant(self, tenant: Tenant) -> None:
        await self._execute(
            SQL["put_tenant"],
            tenant.tenant,
            tenant.name,
            tenant.default_zone,
            tenant.default_locale,
            tenant.default_region,
            tenant.email_from,
            tenant.email_from_name,
            tenant.sms_from,
            tenant.quiet_start,
            tenant.quiet_end,
            dict(tenant.settings),
            tenant.disabled,
        )

    async def find(self, tenant: str, key_id: str) -> StoredKey | None:
        """A key as stored, also one that has expired or was revoked: whoever checks it says why it is refused."""
        row = await self._row(SQL["key"], tenant, key_id)
        return None if row is None else _key(row)

    async def keys(self, tenant: str) -> list[StoredKey]:
        return [_key(row) for row in await self._fetch(SQL["keys"], tenant)]

    async def add_key(
        self, key: ApiKey, secret_hash: bytes, label: str = "", expires_at: datetime | None = None
    ) -> None:
        await self._execute(
            SQL["add_key"],
            key.tenant,
            key.key_id,
            secret_hash,
            key.kind,
            sorted(key.scopes),
            None if key.categories is None else sorted(key.categories),
            label,
            expires_at,
        )

    async def revoke_key(self, tenant: str, key_id: str) -> bool:
        return await self._execute(SQL["revoke_key"], tenant, key_id) > 0

    async def category(self, tenant: str, category: str) -> Category | None:
        row = await self._row(SQL["category"], tenant, category)
        return None if row is None else _category(row)

    async def categories(self, tenant: str) -> list[Category]:
        return [_category(row) for row in await self._fetch(SQL["categories"], tenant)]

    async def put_category(self, category: Category) -> None:
        """
        Raises:
            Refusal: `class_is_fixed`, when it exists with another class.
        """
        stored = await self._value(
            SQL["put_category"],
            category.tenant,
            category.category,
            category.message_class,
            list(category.ladder),
            category.ttl_seconds,
            category.quiet_hours,
            category.consent_required,
            category.unknown_policy,
            category.priority,
            [dict(cap) for cap in category.caps],
            category.over_cap,
        )
        if stored is None:
            raise Refusal(
                "class_is_fixed",
                "this category exists with another class",
                field="message_class",
                fix="use another category name",
                status=409,
            )

    async def template_parts(
        self, tenant: str, template_id: str, version: int | None
    ) -> list[TemplateParts]:
        rows = await self._fetch(SQL["template_parts"], tenant, template_id, version)
        return [TemplateParts(row[0], row[1], Channel(row[2]), *tuple(row)[3:]) for row in rows]

    async def templates(self, tenant: str) -> list[tuple[str, int | None]]:
        """(template id, current version)."""
        return [(row[0], row[1]) for row in await self._fetch(SQL["templates"], tenant)]

    async def template_versions(self, tenant: str, template_id: str) -> list[TemplateVersion]:
        rows = await self._fetch(SQL["template_versions"], tenant, template_id)
        return [TemplateVersion(*row) for row in rows]

    async def add_template_version(
        self,
        tenant: str,
        template_id: str,
        variables: Mapping[str, Mapping[str, str]],
        default_locale: str,
        parts: Sequence[PartWrite],
    ) -> int:
        """The next version, not published; its number."""
        async with self._transaction() as connection:
            await connection.execute(SQL["lock_template"], tenant, template_id, timeout=STATEMENT)
            version: int = await connection.fetchval(
                SQL["add_version"],
                tenant,
                template_id,
                {name: dict(about) for name, about in variables.items()},
                default_locale,
                timeout=STATEMENT,
            )
            try:
                await connection.execute(
                    SQL["add_parts"],
                    tenant,
                    template_id,
                    version,
                    [part.channel for part in parts],
                    [part.locale for part in parts],
                    [part.subject for part in parts],
                    [part.text for part in parts],
                    [part.html for part in parts],
                    timeout=STATEMENT,
                )
            except asyncpg.UniqueViolationError as e:
                raise Refusal(
                    "duplicate_part", "two parts for one channel and locale", field="parts"
                ) from e
        return version

    async def publish(self, tenant: str, template_id: str, version: int) -> bool:
        """Make it the current version. False: there is no such version."""
        return await self._execute(SQL["publish"], tenant, template_id, version) > 0

    async def killed(self, tenant: str, category: str, lane: str, campaign_id: UUID) -> str | None:
        reason: str | None = await self._value(
            SQL["killed"], tenant, category, lane, str(campaign_id)
        )
        return reason

    async def kill_switches(self, tenant: str) -> list[KillSwitch]:
        return [KillSwitch(*row) for row in await self._fetch(SQL["kill_switches"], tenant)]

    async def switch_on(self, tenant: str, scope: str, name: str, reason: str, by: str) -> None:
        await self._execute(SQL["switch_on"], tenant, scope, name, reason, by)

    async def switch_off(self, tenant: str, scope: str, name: str) -> bool:
        return await self._execute(SQL["switch_off"], tenant, scope, name) > 0


def _key(row: Record) -> StoredKey:
    tenant = Tenant(*tuple(row)[8:])
    return StoredKey(
        key=ApiKey(
            tenant.tenant,
            row["key_id"],
            row["kind"],
            frozenset(row["scopes"]),
            _set(row["categories"]),
        ),
        tenant=tenant,
        secret_hash=row["secret_hash"],
        label=row["label"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )


def _set(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _category(row: Record) -> Category:
    return Category(
        tenant=row["tenant"],
        category=row["category"],
        message_class=MessageClass(row["message_class"]),
        ladder=tuple(Channel(channel) for channel in row["ladder"]),
        ttl_seconds=row["ttl_seconds"],
        quiet_hours=row["quiet_hours"],
        consent_required=row["consent_required"],
        unknown_policy=UnknownPolicy(row["unknown_policy"]),
        priority=row["priority"],
        caps=tuple(row["caps"]),
        over_cap=row["over_cap"],
    )
