"""Clients of Redis (Valkey). It only makes things fast, so nobody waits for it: short time-outs, one quick retry."""

from importlib import resources
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

Redis = redis.asyncio.Redis

DOWN = (RedisError, OSError, TimeoutError)
"""Redis did not answer, or not in time, or not sensibly."""

ANSWER = 0.5
"""Seconds."""


def open_redis(url: str, **options: Any) -> Redis:
    """A client; it connects when it is first used. A connection that went stale while idle is tried once more."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_timeout=ANSWER,
        socket_connect_timeout=ANSWER,
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        decode_responses=False,
        **options,
    )


def script(name: str) -> str:
    """The text of `lua/<name>.lua`."""
    return (resources.files("sendloom.stores.lua") / f"{name}.lua").read_text("utf-8")
