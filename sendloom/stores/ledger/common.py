"""What both ledgers think of wants, rows and results."""

from collections.abc import Sequence
from typing import TypeAlias

from schemas.kinds import ClaimState
from sendloom.ports import ClaimAnswer, ClaimResult, ClaimRow, Done, InDoubt, InFlight, Want

Id: TypeAlias = tuple[str, int, str]
"""Of one delivery in its partition: recipient, send number, device."""


def id_of(want: Want) -> Id:
    return (want.recipient_id, want.send_no, want.device)


def by_kind(wants: Sequence[Want]) -> dict[tuple[bool, bool], list[Want]]:
    """By whether a retry and whether a resume is wanted. Raises ValueError for wants that make no sense."""
    groups: dict[tuple[bool, bool], list[Want]] = {}
    seen: set[Id] = set()
    for want in wants:
        if (id := id_of(want)) in seen:
            raise ValueError("the same delivery is wanted twice")
        seen.add(id)
        retry, resume = want.retry_of is not None, want.resume_unknown_of is not None
        if retry and resume and want.retry_of != want.resume_unknown_of:
            raise ValueError("retry_of and resume_unknown_of name different attempts")
        groups.setdefault((retry, resume), []).append(want)
    return groups


def answer_of(row: ClaimRow) -> ClaimAnswer:
    if row.state is not ClaimState.CLAIMED:
        return Done(row.state, row.attempt, row.code, row.provider, row.provider_message_id)
    if row.lease_over:
        return InDoubt(row.attempt, row.owner)
    return InFlight(row.lease_until, row.attempt)


def distinct(results: Sequence[ClaimResult]) -> list[list[ClaimResult]]:
    """Batches in which no claim appears twice, in the order given."""
    batches: list[list[ClaimResult]] = []
    depth: dict[Id, int] = {}
    for result in results:
        id = (result.recipient_id, result.send_no, result.device)
        n = depth.get(id, 0)
        depth[id] = n + 1
        if n == len(batches):
            batches.append([])
        batches[n].append(result)
    return batches
