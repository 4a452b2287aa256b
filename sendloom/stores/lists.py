"""Lists: chunked, resumable uploads into a version; made ready once, then never changed."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from schemas.kinds import Channel, RecipientState
from sendloom.domain.list_lines import ListRow
from sendloom.domain.outcomes import RECIPIENT_CODE
from sendloom.domain.segments import Segment
from sendloom.errors import Refusal
from sendloom.ports import WRITTEN, Between, CampaignRow, ListVersion, Sealer
from sendloom.rows import AddressWrite, ChunkRecord, Consent, ListRecord, RecipientWrite
from sendloom.stores.pool import BULK, STATEMENT, Connection, Pool, PostgresStore, Record, or_none
from sendloom.stores.queries import load
from sendloom.stores.recipients import write_addresses, write_consents, write_recipients
from sendloom.stores.segment_sql import with_segment

SQL = load("lists.sql")

PAGE_SIZE = 1_000
SHARDS_MAX = 1_000
SHARD_PAGES_MIN = 5
"""A child workflow costs as much as some hundred recipients; a smaller shard would cost more than it saves."""
SHARD_PAGES_USUAL = 10
SHARDS_EVEN = 20
"""Before there are this many, processes would not share the work evenly if shards were larger than they have to be."""

ERRORS_KEPT = 100
"""Of each chunk."""
EMPTY = "empty"
ABANDONED = "abandoned"
COPY_CHUNK = 50_000
"""Rows of a campaign that one statement looks at for a correction, in whole shards."""
SCAN_CHUNK = 5_000
"""Recipients that one transaction looks at for a segment, whoever of them is in it."""
PLACING = 600.0
"""Seconds. The step to ready orders and writes the whole list."""


async def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """How an audience is cut: every shard has `pages_per_shard` pages, the last one fewer."""

    page_size: int
    pages_per_shard: int
    pages: int
    shards: int


def shape(size: int, page_size: int = PAGE_SIZE) -> Shape:
    """Shards grow with the audience: to the usual size when there are enough to share out, and then so that there never are
    more than SHARDS_MAX."""
    pages = -(-size // page_size)
    shared_out = min(SHARD_PAGES_USUAL, pages // SHARDS_EVEN)
    per_shard = max(SHARD_PAGES_MIN, shared_out, -(-pages // SHARDS_MAX))
    return Shape(page_size, per_shard, pages, -(-pages // per_shard))


class PostgresLists(PostgresStore):
    """Everything about lists but sending to them."""

    def __init__(
        self,
        pool: Pool,
        sealer: Sealer,
        page_size: int = PAGE_SIZE,
        scan_chunk: int = SCAN_CHUNK,
        copy_chunk: int = COPY_CHUNK,
    ) -> None:
        super().__init__(pool)
        self._sealer = sealer
        self._page_size = page_size
        self._scan_chunk = scan_chunk
        self._copy_chunk = copy_chunk

    async def create(self, tenant: str, list_id: str, name: str = "") -> None:
        """If absent; a name given replaces the one there."""
        await self._execute(SQL["create"], tenant, list_id, name)

    async def get(self, tenant: str, list_id: str) -> ListRecord | None:
        row = await self._row(SQL["get"], tenant, list_id)
        return None if row is None else ListRecord(*row)

    async def lists(self, tenant: str) -> list[ListRecord]:
        return [ListRecord(*row) for row in await self._fetch(SQL["lists"], tenant)]

    async def start_version(
        self, tenant: str, list_id: str, version_id: UUID, format: str
    ) -> ListVersion:
        """An upload begins; a repeat with the same id finds it.

        Raises:
            Refusal: `unknown_list`.
        """
        await self._execute(SQL["start"], tenant, version_id, list_id, format)
        version = await self.version(tenant, version_id)
        if version is None or version.list_id != list_id:
            raise Refusal("unknown_list", "there is no such list", field="list_id", status=404)
        return version

    async def version(self, tenant: str, version_id: UUID) -> ListVersion | None:
        row = await self._row(SQL["version"], tenant, version_id)
        return None if row is None else ListVersion(*row)

    async def versions(self, tenant: str, list_id: str) -> list[ListVersion]:
        """Newest first."""
        return [ListVersion(*row) for row in await self._fetch(SQL["versions"], tenant, list_id)]

    async def chunks(self, tenant: str, version_id: UUID) -> list[ChunkRecord]:
        return [_chunk(row) for row in await self._fetch(SQL["chunks"], tenant, version_id)]

    async def chunk(self, tenant: str, version_id: UUID, chunk: int) -> ChunkRecord | None:
        row = await self._row(SQL["chunk"], tenant, version_id, chunk)
        return None if row is None else _chunk(row)

    async def add_chunk(
        self,
        tenant: str,
        version_id: UUID,
        chunk: int,
        sha256: bytes,
        first_line: int,
        lines: int,
        rows: Sequence[ListRow],
        errors: Sequence[Mapping[str, Any]] = (),
    ) -> ChunkRecord:
        """One chunk, whole or not at all: its rows are staged, its people and consents written. A repeat changes nothing.

        Raises:
            Refusal: `unknown_version`, `version_closed`, or `chunk_conflict` for other content under a number already used.
        """
        staged = await asyncio.to_thread(self._prepare, tenant, rows)
        async with self._transaction() as connection:
            state = await connection.fetchval(
                SQL["share_version"], tenant, version_id, timeout=STATEMENT
            )
            if state is None:
                raise Refusal("unknown_version", "there is no such list version", status=404)
            known = await connection.fetchrow(
                SQL["chunk"], tenant, version_id, chunk, timeout=STATEMENT
            )
            if known is None and state != "uploading":
                raise Refusal(
                    "version_closed",
                    f"this list version is {state}; it takes no more chunks",
                    fix="start a new version of the list",
                    status=409,
                )
            kept = [dict(error) for error in errors[:ERRORS_KEPT]]
            inserted = known is None and await connection.fetchval(
                SQL["add_chunk"],
                tenant,
                version_id,
                chunk,
                sha256,
                first_line,
                lines,
                len(rows),
                kept,
                timeout=STATEMENT,
            )
            if not inserted:
                # It was there, or came in beside us: the insert waited for that one to end.
                known = known or await connection.fetchrow(
                    SQL["chunk"], tenant, version_id, chunk, timeout=STATEMENT
                )
                if known is None or known["sha256"] != sha256:
                    raise Refusal(
                        "chunk_conflict",
                        f"chunk {chunk} was uploaded with other content",
                        field="chunk",
                        fix="number chunks by their place in the file, and repeat one byte for byte",
                        status=409,
                    )
                return _chunk(known, replayed=True)
            await self._stage(connection, tenant, version_id, chunk, staged)
            await connection.execute(SQL["touch"], tenant, version_id, timeout=STATEMENT)
        return ChunkRecord(chunk, sha256, first_line, lines, len(rows), tuple(kept))

    async def make_ready(self, tenant: str, version_id: UUID) -> ListVersion:
        """Fix every row's (shard, page) in one ordered statement. An empty list has failed. A repeat finds it done.

        Raises:
            Refusal: `unknown_version`.
        """
        async with self._transaction() as connection:
            version = await connection.fetchrow(
                SQL["lock_version"], tenant, version_id, timeout=BULK
            )
            if version is None:
                raise Refusal("unknown_version", "there is no such list version", status=404)
            if version["state"] == "uploading":
                size = await connection.fetchval(SQL["staged"], tenant, version_id, timeout=BULK)
                if size == 0:
                    await connection.execute(
                        SQL["fail"], tenant, version_id, EMPTY, timeout=STATEMENT
                    )
                else:
                    await self._place(connection, tenant, version_id, size)
                    at = (tenant, version["list_id"])
                    await connection.execute(SQL["lock_list"], *at, timeout=STATEMENT)
                    await connection.execute(
                        SQL["make_current"], *at, version_id, timeout=STATEMENT
                    )
        ready = await self.version(tenant, version_id)
        assert ready is not None
        return ready

    async def write_sent(
        self,
        tenant: str,
        list_id: str,
        version_id: UUID,
        source: CampaignRow,
        between: Between = _nothing,
    ) -> ListVersion:
        if source.frozen_at is None or source.version_id is None:
            raise Refusal("campaign_not_frozen", "that campaign was never launched", status=409)
        version = await self._begin(tenant, list_id, version_id, between)
        if version.state == "uploading":
            shards, size = source.shards or 0, source.size or 0
            step = max(1, self._copy_chunk * shards // max(size, 1))
            for first in range(0, shards, step):
                await between()
                last = min(first + step, shards) - 1
                if not await self._copy_on(tenant, version_id, source, first, last):
                    break
            version = await self.make_ready(tenant, version_id)
        return version

    async def _copy_on(
        self, tenant: str, version_id: UUID, source: CampaignRow, first: int, last: int
    ) -> bool:
        """Some shards; False: nothing is written to the version any more.

        The lock makes who gives it up, or erases one of those copied, wait for what is on its way.
        """
        async with self._transaction() as connection:
            at = await connection.fetchrow(SQL["lock_version"], tenant, version_id, timeout=BULK)
            if at is None or at["state"] != "uploading":
                return False
            await connection.execute(
                SQL["stage_sent"],
                tenant,
                version_id,
                source.frozen_at,
                source.campaign_id,
                RECIPIENT_CODE[RecipientState.SENT],
                source.version_id,
                first,
                last,
                timeout=PLACING,
            )
        return True

    async def write_segment(
        self,
        tenant: str,
        list_id: str,
        version_id: UUID,
        segment: Segment,
        between: Between = _nothing,
    ) -> ListVersion:
        version = await self._begin(tenant, list_id, version_id, between)
        if version.state == "uploading":
            while not await self._scan_on(tenant, version_id, segment):
                await between()
            version = await self.make_ready(tenant, version_id)
        return version

    async def _begin(
        self, tenant: str, list_id: str, version_id: UUID, between: Between
    ) -> ListVersion:
        """The version, to be written or written already. One that was given up for nobody going on with it is begun again."""
        await between()
        await self.create(tenant, list_id)
        version = await self.start_version(tenant, list_id, version_id, WRITTEN)
        if version.state == "failed" and version.reason == ABANDONED:
            await self._execute(SQL["begin_again"], tenant, version_id, ABANDONED)
            version = await self.start_version(tenant, list_id, version_id, WRITTEN)
        return version

    async def _scan_on(self, tenant: str, version_id: UUID, segment: Segment) -> bool:
        """One chunk and its cursor, in one transaction; whether there is nothing left to scan.

        The lock makes an attempt that was thought dead and its successor take turns: each goes on from the cursor it finds.
        """
        async with self._transaction() as connection:
            at = await connection.fetchrow(SQL["lock_scan"], tenant, version_id, timeout=BULK)
            if at is None or at["state"] != "uploading" or at["scanned_all"]:
                return True
            sql, args = with_segment(
                SQL["stage_segment"],
                segment,
                tenant,
                version_id,
                at["scanned_to"],
                self._scan_chunk,
            )
            found = await connection.fetchrow(sql, *args, timeout=BULK)
            assert found is not None
            done = bool(found["scanned"] < self._scan_chunk)
            await connection.execute(
                SQL["scanned"], tenant, version_id, found["last"], done, timeout=STATEMENT
            )
        return done

    async def fail(self, tenant: str, version_id: UUID, reason: str) -> bool:
        """An upload that cannot go on; what was staged is dropped."""
        async with self._transaction() as connection:
            # Chunks on their way end first, or what they staged would stay.
            await connection.execute(SQL["lock_version"], tenant, version_id, timeout=BULK)
            done = await connection.execute(
                SQL["fail"], tenant, version_id, reason, timeout=STATEMENT
            )
            await connection.execute(SQL["unstage"], tenant, version_id, timeout=BULK)
        return not done.endswith(" 0")

    async def withdraw(self, tenant: str, version_id: UUID, reason: str) -> bool:
        """A ready list turned out bad: it fails late, and campaigns that pinned it must stop."""
        async with self._transaction() as connection:
            list_id = await connection.fetchval(
                SQL["withdraw"], tenant, version_id, reason, timeout=STATEMENT
            )
            if list_id is None:
                return False
            await connection.execute(SQL["lock_list"], tenant, list_id, timeout=STATEMENT)
            await connection.execute(SQL["unset_current"], tenant, version_id, timeout=STATEMENT)
        return True

    async def reap(self, untouched_for: timedelta, limit: int = 100) -> int:
        """Fail uploads that nobody went on with, over all tenants; how many."""
        rows = await self._fetch(SQL["abandoned"], untouched_for, limit)
        return sum([await self.fail(row["tenant"], row["version_id"], ABANDONED) for row in rows])

    async def _place(
        self, connection: Connection, tenant: str, version_id: UUID, size: int
    ) -> None:
        cut = shape(size, self._page_size)
        at = (tenant, version_id, cut.page_size, cut.pages_per_shard)
        await connection.execute(SQL["place"], *at, timeout=PLACING)
        await connection.execute(SQL["place_pages"], *at, size, timeout=BULK)
        await connection.execute(SQL["unstage"], tenant, version_id, timeout=PLACING)
        await connection.execute(
            SQL["ready"], tenant, version_id, size, cut.shards, cut.page_size, timeout=STATEMENT
        )

    def _prepare(self, tenant: str, rows: Sequence[ListRow]) -> list[tuple[str, ListRow]]:
        """With the id of each; the later of two lines for one person counts. Without one, it is its address's keyed hash."""
        by_id = {row.recipient_id or self._derived(tenant, row): row for row in rows}
        return sorted(by_id.items())

    def _derived(self, tenant: str, row: ListRow) -> str:
        if row.email_lookup is not None:
            channel, lookup = Channel.EMAIL, row.email_lookup
        elif row.phone is not None:
            channel, lookup = Channel.SMS, row.phone
        else:
            raise ValueError("a line without an id and without an address")
        return f"{channel}-{self._sealer.address_hash(tenant, channel, lookup).hex()}"

    async def _stage(
        self,
        connection: Connection,
        tenant: str,
        version_id: UUID,
        chunk: int,
        rows: Sequence[tuple[str, ListRow]],
    ) -> None:
        if not rows:
            return
        await write_recipients(
            connection,
            tenant,
            [RecipientWrite(id, row.locale, row.zone) for id, row in rows],
            revive=False,
        )
        await write_addresses(
            connection,
            self._sealer,
            tenant,
            [(id, address) for id, row in rows for address in _addresses(row)],
            only_new=True,
        )
        await write_consents(
            connection, tenant, [(id, consent) for id, row in rows for consent in _consents(row)]
        )
        await connection.execute(
            SQL["stage"],
            tenant,
            version_id,
            chunk,
            [id for id, _ in rows],
            or_none([row.variables or None for _, row in rows]),
            timeout=BULK,
        )


def _addresses(row: ListRow) -> list[AddressWrite]:
    # The person gave consent with this very address: that is what shows that it is theirs.
    verified = row.consent is not None
    found = []
    if row.email is not None and row.email_lookup is not None:
        found.append(AddressWrite(Channel.EMAIL, row.email, row.email_lookup, verified))
    if row.phone is not None:
        found.append(AddressWrite(Channel.SMS, row.phone, row.phone, verified))
    return found


def _consents(row: ListRow) -> list[Consent]:
    given = row.consent
    if given is None:
        return []
    return [
        Consent(category, "*", True, given.at, given.source, given.wording)
        for category in given.categories
    ]


def _chunk(row: Record, *, replayed: bool = False) -> ChunkRecord:
    return ChunkRecord(
        row["chunk"],
        row["sha256"],
        row["first_line"],
        row["lines"],
        row["accepted"],
        tuple(row["errors"]),
        replayed,
    )
