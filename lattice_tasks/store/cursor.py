"""Durable cursors over users' trees: what is left of each range, by an id that any process may use.

The row is locked while a page is taken, and moved in the same transaction: what one has got, nobody gets again.
"""

from dataclasses import dataclass

from lattice_tasks.store.engine import Session, Statement

__all__ = ["CursorRow", "close", "hold", "insert", "move", "prune"]


@dataclass(frozen=True, slots=True)
class CursorRow:
    """A cursor: [start, end) is what is left. `total`: keys yielded or deleted so far."""

    id: str
    tree: str
    kind: str
    is_reverse: bool
    start: str
    end: str
    page_size: int
    is_done: bool
    total: int


_INSERT = Statement(
    "insert into lattice_cursor (id, tree, kind, is_reverse, start_key, end_key, page_size, is_done, total, idle_us, "
    "expires_at) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {now} + %s)"
)
_FIND = """
    select id, tree, kind, is_reverse, start_key, end_key, page_size, is_done, total
    from lattice_cursor where id = %s and tree = %s and expires_at > {now}
"""
_HOLD = Statement(_FIND + " for update", sqlite=_FIND)
_MOVE = Statement(
    "update lattice_cursor set start_key = %s, end_key = %s, is_done = %s, total = %s, expires_at = {now} + idle_us "
    "where id = %s"
)
_CLOSE = Statement("delete from lattice_cursor where id = %s and tree = %s")
_PRUNE = Statement(
    postgres="""
    delete from lattice_cursor where ctid = any(array(
        select ctid from lattice_cursor where expires_at <= {now} order by expires_at limit %s for update skip locked))
    """,
    sqlite="""
    delete from lattice_cursor where id in (
        select id from lattice_cursor where expires_at <= {now} order by expires_at limit %s)
    """,
)


def insert(session: Session, row: CursorRow, idle_us: int) -> None:
    """Store a new cursor, which lives until nobody has used it for so long."""
    columns = (row.id, row.tree, row.kind, int(row.is_reverse), row.start, row.end, row.page_size, int(row.is_done))
    session.execute(_INSERT, (*columns, row.total, idle_us, idle_us))


def hold(session: Session, cursor_id: str, tree: str) -> CursorRow | None:
    """Lock a cursor until the transaction ends; None when there is none for this tree, or no more."""
    rows = session.fetch(_HOLD, (cursor_id, tree))
    if not rows:
        return None
    cursor_id, tree, kind, is_reverse, start, end, page_size, is_done, total = rows[0]
    return CursorRow(cursor_id, tree, kind, bool(is_reverse), start, end, page_size, bool(is_done), total)


def move(session: Session, row: CursorRow) -> None:
    """Write how far a cursor that is held has come; it lives on for its idle time."""
    session.execute(_MOVE, (row.start, row.end, int(row.is_done), row.total, row.id))


def close(session: Session, cursor_id: str, tree: str) -> bool:
    """Remove a cursor; False when there was none."""
    return session.execute(_CLOSE, (cursor_id, tree)) == 1


def prune(session: Session, limit: int) -> int:
    """Remove cursors that nobody has used for their idle time, at most `limit`; returns how many."""
    return session.execute(_PRUNE, (limit,))
