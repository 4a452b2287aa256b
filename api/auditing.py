"""Every administrative act leaves a row: who, what, on what."""

from typing import Any

from api.auth import Caller
from api.deps import Parts


async def audited(parts: Parts, caller: Caller, action: str, target: str, **detail: Any) -> None:
    """`target` and `detail` are ids and names, never addresses or content."""
    await parts.audit.add(caller.id, caller.actor, action, target, detail)
