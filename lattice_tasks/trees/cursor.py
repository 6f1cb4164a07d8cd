"""Durable cursors: a range in pages, by an id that another process may go on with after a restart.

A page is taken and the cursor moved in one transaction, so that no key is ever yielded twice. A page whose answer is lost
on its way is therefore not seen again: who cannot afford that scans, or deletes by range.
"""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from lattice_tasks import clock
from lattice_tasks.errors import CursorNotFound, InvalidInput
from lattice_tasks.keys import following
from lattice_tasks.store import cursor as cursors
from lattice_tasks.store import tree as cells
from lattice_tasks.store.cursor import CursorRow
from lattice_tasks.store.engine import Session
from lattice_tasks.store.tree import Cell
from lattice_tasks.trees.writer import writing

__all__ = ["KINDS", "LatticeCursor", "Source", "open_cursor"]

KINDS = ("entries", "keys", "delete_range")

_MAX_PAGE = 10_000
_MIN_IDLE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Source:
    """The tree under a cursor: its sessions, its name in the registry, whose changes a deletion is, and how it reads."""

    session: Callable[[], AbstractContextManager[Session]]
    tree: str
    site_id: str
    entry_of: Callable[[Cell], Any]


class LatticeCursor:
    """A cursor by its id. Made by `LatticeTree.open_cursor` and `LatticeTree.cursor`."""

    def __init__(self, source: Source, cursor_id: str) -> None:
        self._source = source
        self.id = cursor_id

    def __repr__(self) -> str:
        return f"LatticeCursor({self.id!r})"

    def next_page(self) -> list[Any]:
        """What comes next; empty, again and again, when nothing is left.

        Returns:
            Entries, or keys, in the cursor's order. Of the kind `delete_range` the keys that were deleted just now.

        Raises:
            CursorNotFound: it was closed, or nobody used it for its idle time.
        """
        with self._source.session() as session, session.transaction():
            row = cursors.hold(session, self.id, self._source.tree)
            if row is None:
                raise CursorNotFound(f"no cursor {self.id!r:.80} on this tree; it was closed, or unused for too long")
            found, row = ([], row) if row.is_done else self._take(session, row)
            cursors.move(session, row)
        if row.kind == "entries":
            return [self._source.entry_of(cell) for cell in found]
        return [cell.key for cell in found]

    def close(self) -> bool:
        """Forget the cursor; False when there was none any more."""
        with self._source.session() as session:
            return cursors.close(session, self.id, self._source.tree)

    def _take(self, session: Session, row: CursorRow) -> tuple[list[Cell], CursorRow]:
        if row.kind == "delete_range":
            return self._delete(session, row)
        found, has_more = _page(session, row)
        return found, _moved(row, found, has_more)

    def _delete(self, session: Session, row: CursorRow) -> tuple[list[Cell], CursorRow]:
        """Delete up to the last key of the page; the last page up to the end of the range."""
        with writing(session, row.tree, self._source.site_id) as writer:
            found, has_more = _page(session, row)
            end = following(found[-1].key) if has_more else row.end
            writer.delete_range(row.start, end)
        return found, _moved(row, found, has_more)


def open_cursor(
    source: Source, kind: str, start: str, end: str, *, is_reverse: bool, page_size: int, idle: timedelta
) -> LatticeCursor:
    """Store a new cursor over [start, end).

    Raises:
        InvalidInput: an unknown kind, a page of no size, or an idle time below a minute.
    """
    if kind not in KINDS:
        raise InvalidInput(f"kind={kind!r} of a cursor must be one of {', '.join(KINDS)}")
    if is_reverse and kind == "delete_range":
        raise InvalidInput("a cursor that deletes goes forwards only; leave out reverse=True")
    if isinstance(page_size, bool) or not isinstance(page_size, int) or not 1 <= page_size <= _MAX_PAGE:
        raise InvalidInput(f"page_size={page_size!r} must be a whole number from 1 to {_MAX_PAGE}")
    if not isinstance(idle, timedelta) or idle < _MIN_IDLE:
        raise InvalidInput(f"idle={idle!r} must be a timedelta of at least a minute")
    row = CursorRow(uuid.uuid4().hex, source.tree, kind, is_reverse, start, end, page_size, is_done=False, total=0)
    with source.session() as session:
        cursors.insert(session, row, clock.us_of(idle, "idle"))
    return LatticeCursor(source, row.id)


def _page(session: Session, row: CursorRow) -> tuple[list[Cell], bool]:
    keys_only = row.kind != "entries"
    return cells.page(session, row.tree, row.start, row.end, row.page_size, reverse=row.is_reverse, keys_only=keys_only)


def _moved(row: CursorRow, found: list[Cell], has_more: bool) -> CursorRow:
    row = replace(row, total=row.total + len(found), is_done=not has_more)
    if not found:
        return row
    return replace(row, end=found[-1].key) if row.is_reverse else replace(row, start=following(found[-1].key))
