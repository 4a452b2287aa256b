"""When a call is made again, and how long to wait. Only what is safe to repeat is repeated, with the same key."""

import random
from dataclasses import dataclass

import httpx

REFUSED_FOR_NOW = frozenset({429, 503})
BROKEN_ON_THE_WAY = frozenset({502, 504})


@dataclass(frozen=True, slots=True)
class Retries:
    """`attempts` calls at most, and no wait that would end after `total_seconds`."""

    attempts: int = 6
    first_seconds: float = 0.1
    longest_seconds: float = 5.0
    total_seconds: float = 30.0

    def wait(self, attempt: int, spent: float, retry_after: float | None) -> float | None:
        """Seconds until attempt + 1, or None to give up. What the server asked for is the floor, jitter goes on top."""
        if attempt >= self.attempts:
            return None
        step = min(self.longest_seconds, self.first_seconds * 2 ** (attempt - 1))
        seconds = (retry_after or 0.0) + random.uniform(0, step)
        return seconds if spent + seconds <= self.total_seconds else None


def retry_after(answer: httpx.Response) -> float | None:
    try:
        return max(0.0, float(answer.headers.get("Retry-After", "")))
    except ValueError:
        return None


def may_repeat(error: httpx.TransportError, repeatable: bool) -> bool:
    """A call that never left may always be made again; one that may have arrived only when a repeat is harmless."""
    return repeatable or isinstance(
        error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
    )
