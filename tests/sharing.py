"""Who runs which tests when several processes share them (`pytest -n 2`): what has one costly server stays together."""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

WHOLE_STACKS = "whole stacks"
"""They hold the machine to its limits of time: never two at once, and first, since they take longest."""
ON_CASSANDRA = "on Cassandra"
"""One node for all of them."""

_AS_DEMANDING = {"test_waiting_reminders.py"}
_ON_CASSANDRA = {
    "test_beside.py",
    "test_cassandra.py",
    "test_ledger_contract.py",
    "test_ledger_machine.py",
}


def group_of(nodeid: str) -> str:
    """Its file, whose database and servers it shares, unless that shares something with other files."""
    file = PurePosixPath(nodeid.split("::", 1)[0])
    if file.parent.name in {"embedded", "system"} or file.name in _AS_DEMANDING:
        return WHOLE_STACKS
    return ON_CASSANDRA if file.name in _ON_CASSANDRA else str(file)


def place(nodeid: str) -> int:
    """Long groups begin early, so that no process is left alone with one at the end."""
    group = group_of(nodeid)
    return [WHOLE_STACKS, ON_CASSANDRA, group].index(group)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One process runs a group, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
