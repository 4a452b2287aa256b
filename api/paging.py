"""Lists that are shown page by page."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from schemas.api import Page

Row = TypeVar("Row")
Shown = TypeVar("Shown")


def page_of(
    rows: Sequence[Row],
    limit: int,
    show: Callable[[Row], Shown],
    place: Callable[[Row], object],
) -> Page[Shown]:
    """What was asked for with this limit. A full page says where the next begins, which may then be empty."""
    return Page(
        items=[show(row) for row in rows],
        next=str(place(rows[-1])) if len(rows) == limit else None,
    )
