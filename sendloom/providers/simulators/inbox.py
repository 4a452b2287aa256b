"""What arrived. Messages are kept up to a bound; how many arrived is never forgotten."""

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import orjson

from schemas.kinds import Channel

Selector = Literal["to", "reference", "message_id", "channel"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message for one recipient, as it came off the wire. `content` is the mail as sent, or the SMS text."""

    id: str
    channel: Channel
    to: str
    sender: str
    message_id: str
    reference: str
    received_ns: int
    monotonic_ns: int
    digest: str
    content: bytes = field(repr=False)
    envelope: dict[str, str]

    @property
    def received_at(self) -> datetime:
        return datetime.fromtimestamp(self.received_ns / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class Counts:
    """Over everything that ever arrived. A duplicate is an arrival whose Message-ID (mail) or reference (SMS) was here before."""

    total: int
    channels: dict[str, int]
    recipients: int
    duplicates: int
    duplicated: list[tuple[str, int]]


class Inbox:
    """Written by the simulators; read by people, tests and the counting of kill runs."""

    def __init__(
        self,
        *,
        capacity: int = 20_000,
        capacity_bytes: int = 128 * 1024 * 1024,
        log: Path | None = None,
    ) -> None:
        self._kept: OrderedDict[str, Arrival] = OrderedDict()
        self._kept_bytes = 0
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._sequence = 0
        self._total = 0
        self._duplicates = 0
        self._duplicated: dict[str, int] = {}
        self._seen: dict[Selector, dict[str, int]] = {
            "to": {},
            "reference": {},
            "message_id": {},
            "channel": {},
        }
        self._waiting: dict[
            tuple[Selector, str] | None, list[tuple[int, asyncio.Future[None]]]
        ] = {}
        self._log_path = log
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if log else None
        self._unwritten: list[bytes] = []

    def record(
        self,
        channel: Channel,
        *,
        to: str,
        sender: str,
        message_id: str,
        reference: str,
        content: bytes,
        envelope: dict[str, str] | None = None,
        further_recipient: bool = False,
    ) -> Arrival:
        """Keep and count one arrival. `further_recipient`: of a message already counted by its id."""
        self._sequence += 1
        arrival = Arrival(
            id=str(self._sequence),
            channel=channel,
            to=to,
            sender=sender,
            message_id=message_id,
            reference=reference,
            received_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            digest=hashlib.blake2b(content, digest_size=8).hexdigest(),
            content=content,
            envelope=envelope or {},
        )
        self._count(arrival, further_recipient)
        self._keep(arrival)
        if self._log is not None:
            self._unwritten.append(_log_line(arrival))
        if self._waiting:
            self._wake(arrival)
        return arrival

    def flush(self) -> None:
        """Write the log. Callers do it before they answer, so nothing acknowledged is missing from it."""
        if self._unwritten and self._log is not None:
            lines = memoryview(b"".join(self._unwritten))
            self._unwritten.clear()
            while lines:
                lines = lines[os.write(self._log, lines) :]

    def close(self) -> None:
        self.flush()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def get(self, arrival_id: str) -> Arrival | None:
        return self._kept.get(arrival_id)

    def newest(self) -> Iterator[Arrival]:
        """Those still kept, newest first."""
        return reversed(self._kept.values())

    def messages(
        self,
        *,
        to: str | None = None,
        reference: str | None = None,
        channel: Channel | None = None,
        limit: int = 50,
    ) -> list[Arrival]:
        """Those still kept that match everything given, newest first."""
        found: list[Arrival] = []
        wanted_to = to.lower() if to is not None else None
        for arrival in self.newest():
            if len(found) >= limit:
                break
            if (
                (wanted_to is None or arrival.to.lower() == wanted_to)
                and (reference is None or arrival.reference == reference)
                and (channel is None or arrival.channel == channel)
            ):
                found.append(arrival)
        return found

    def search(self, *, to: str = "", any_id: str = "", limit: int = 100) -> list[Arrival]:
        """For people: part of a recipient, and part of any id (ours, the Message-ID, the provider's)."""
        to, any_id = to.lower(), any_id.lower()
        found: list[Arrival] = []
        for arrival in self.newest():
            if len(found) >= limit:
                break
            ids = (arrival.reference.lower(), arrival.message_id.lower(), arrival.id)
            if to in arrival.to.lower() and (not any_id or any(any_id in i for i in ids)):
                found.append(arrival)
        return found

    def count(self, by: Selector | None = None, value: str = "") -> int:
        """How many ever arrived: in all, or with this recipient, reference, Message-ID or channel."""
        if by is None:
            return self._total
        return self._seen[by].get(value.lower() if by == "to" else value, 0)

    def counts(self, *, most: int = 100) -> Counts:
        duplicated = sorted(self._duplicated.items(), key=lambda pair: -pair[1])
        return Counts(
            total=self._total,
            channels=dict(self._seen["channel"]),
            recipients=len(self._seen["to"]),
            duplicates=self._duplicates,
            duplicated=duplicated[:most],
        )

    async def wait(
        self, count: int, by: Selector | None = None, value: str = "", *, timeout: float = 10.0
    ) -> int:
        """Return as soon as `count` have arrived, or when time is up; the number that have."""
        if self.count(by, value) < count:
            key = None if by is None else (by, value.lower() if by == "to" else value)
            arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._waiting.setdefault(key, [])
            waiters.append((count, arrived))
            try:
                await asyncio.wait([arrived], timeout=timeout)
            finally:
                waiters.remove((count, arrived))
                if not waiters and self._waiting.get(key) is waiters:
                    del self._waiting[key]
        return self.count(by, value)

    def clear(self, *, counts: bool = False) -> None:
        """Forget the messages; the counts only when asked."""
        self._kept.clear()
        self._kept_bytes = 0
        if counts:
            self._total = self._duplicates = 0
            for seen in self._seen.values():
                seen.clear()
            self._duplicated.clear()

    @property
    def kept(self) -> int:
        return len(self._kept)

    def _count(self, arrival: Arrival, further_recipient: bool) -> None:
        self._total += 1
        _add(self._seen["to"], arrival.to.lower())
        _add(self._seen["channel"], arrival.channel.value)
        if further_recipient:
            return
        by_id = _add(self._seen["message_id"], arrival.message_id)
        by_reference = _add(self._seen["reference"], arrival.reference)
        # The messages API names each message itself, so there only our reference can come twice.
        if arrival.channel is Channel.SMS:
            identity, n = arrival.reference, by_reference
        else:
            identity, n = arrival.message_id, by_id
        if n > 1:
            self._duplicates += 1
            self._duplicated[identity] = n

    def _keep(self, arrival: Arrival) -> None:
        self._kept[arrival.id] = arrival
        self._kept_bytes += len(arrival.content)
        while len(self._kept) > self._capacity or (
            self._kept_bytes > self._capacity_bytes and len(self._kept) > 1
        ):
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.content)

    def _wake(self, arrival: Arrival) -> None:
        keys: tuple[tuple[Selector, str] | None, ...] = (
            None,
            ("to", arrival.to.lower()),
            ("reference", arrival.reference),
            ("message_id", arrival.message_id),
            ("channel", arrival.channel.value),
        )
        for key in keys:
            for count, arrived in self._waiting.get(key, ()):
                if not arrived.done() and self.count(*(key or (None, ""))) >= count:
                    arrived.set_result(None)


def _add(seen: dict[str, int], key: str) -> int:
    """How often it has now been seen; an absent id is not counted."""
    if not key:
        return 0
    n = seen[key] = seen.get(key, 0) + 1
    return n


def _log_line(arrival: Arrival) -> bytes:
    return orjson.dumps(
        {
            "t_ns": arrival.received_ns,
            "monotonic_ns": arrival.monotonic_ns,
            "channel": arrival.channel.value,
            "to": arrival.to,
            "message_id": arrival.message_id,
            "reference": arrival.reference,
            "digest": arrival.digest,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
