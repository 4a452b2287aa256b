"""Redis remembers only `sent`: the common repeat is answered without the ledger, and losing it loses nothing."""

from datetime import timedelta

from sendloom.stores.redis_client import DOWN, Redis

KEPT = timedelta(days=1)
"""Repeats come soon; later ones ask the ledger."""


class RedisSentCache:
    """Implements `SentCache`. A delivery id carries the campaign's, which is derived from the tenant."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def sent(self, delivery_id: str) -> str | None:
        try:
            found = await self._client.get(_key(delivery_id))
        except DOWN:
            return None
        return found.decode() if isinstance(found, bytes) else found

    async def remember(self, delivery_id: str, provider_message_id: str) -> None:
        try:
            await self._client.set(_key(delivery_id), provider_message_id, ex=KEPT)
        except DOWN:
            return


def _key(delivery_id: str) -> str:
    return f"sendloom:sent:{delivery_id}"
