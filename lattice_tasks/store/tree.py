"""Cells: the rows of users' trees, each with the version of the change that it comes from.

A cell without a value is a tombstone. `dead_at` is the instant from which a cell is dead: its expiry, or when it was
deleted; None: it lives for ever. The dead stay for merging until `compact` takes them; nobody else sees them.
Every change holds the tree's head (`registry.hold`), so that between its reading and its writing nobody writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice_tasks.clock import Stamp, Version
from lattice_tasks.store.engine import POSTGRES, SQLITE, Session, Statement

__all__ = ["Cell", "cells_of", "compact", "copy_live", "count", "kill_range", "later", "live_cell", "page", "write"]

#: A page ends behind the value that passes so many bytes, however many rows it may hold.
PAGE_BYTES = 4 * 1_048_576


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as stored; instants are microseconds. A page of keys alone leaves `value` empty."""

    key: str
    value: bytes | None
    version: Version
    dead_at: int | None = None

    @property
    def is_tombstone(self) -> bool:
        """Whether it says that there is no value."""
        return self.value is None

    @property
    def expires_at(self) -> int | None:
        """When it expires; None: never, or it is a tombstone."""
        return None if self.value is None else self.dead_at

    def is_live(self, now_us: int) -> bool:
        """Whether anybody but a merge sees it at this instant of the store's clock."""
        return self.value is not None and (self.dead_at is None or self.dead_at > now_us)


_LIVE = "value is not null and (dead_at is null or dead_at > {now})"
# The tree as a scalar: with a join Postgres does not see that one tree gives one ordered range, and sorts it.
_OF_TREE = "tree_id = (select id from lattice_tree where name = %s)"
_IN_RANGE = "key >= %s and key < %s"


_COLUMNS = "key, value, wall, counter, origin, dead_at"
_GET = Statement(f"select {_COLUMNS} from lattice_cell where {_OF_TREE} and key = %s and {_LIVE}")
_COUNT = Statement(f"select count(*) from lattice_cell where {_OF_TREE} and {_IN_RANGE} and {_LIVE}")


# One ordered walk of the primary key from the start. The running size ends a page of large values early; it needs no
# value to be read, for a row knows its length. SQLite would carry all values through the window: there the last key of the
# page is looked for first. Both looks there must be at one instant, or what expires in between makes the page look like
# the last one; and SQLite's clock is read anew at each call.
def _page(columns: str, order: str, side: str, last: str) -> Statement:
    rows = f"from lattice_cell where {_OF_TREE} and {_IN_RANGE} and {_LIVE}"
    then = rows.replace("{now}", "(select now from moment)")
    running = f"sum(size) over (order by key {order} rows unbounded preceding) - size as before"
    return Statement(
        f"""
        select {columns} from (
            select c.*, {running}
            from (select {columns}, octet_length(value) as size {rows} order by key {order} limit %s) c
        ) d where before < {PAGE_BYTES} order by key {order}
        """,
        sqlite=f"""
        with moment as materialized (select {{now}} as now)
        select {columns} {then} and key {side} (
            select {last}(key) from (
                select key, {running}
                from (select key, length(value) as size {then} order by key {order} limit %s) c
            ) d where before < {PAGE_BYTES}) order by key {order}
        """,
    )


def _keys_page(order: str) -> Statement:
    return Statement(f"""
        select key, null, wall, counter, origin, dead_at from lattice_cell
        where {_OF_TREE} and {_IN_RANGE} and {_LIVE} order by key {order} limit %s
    """)


_PAGE, _PAGE_BACK = _page(_COLUMNS, "asc", "<=", "max"), _page(_COLUMNS, "desc", ">=", "min")
_KEYS, _KEYS_BACK = _keys_page("asc"), _keys_page("desc")

# Each key by itself (lateral): before the first ANALYZE Postgres takes a tree for a dozen rows, and would read all of it.
_CELLS = Statement(
    postgres=f"""
    select {_COLUMNS} from unnest(%s::text[]) as wanted (wanted_key) cross join lateral (
        select {_COLUMNS} from lattice_cell where tree_id = %s and key = wanted_key limit 1) c
    """,
    sqlite=f"select {_COLUMNS} from lattice_cell where key in (select value from json_each(%s)) and tree_id = %s",
)
_UPSERT = """
    on conflict (tree_id, key) do update set value = excluded.value, wall = excluded.wall,
        counter = excluded.counter, origin = excluded.origin, dead_at = excluded.dead_at
"""
_WRITE = Statement(
    postgres=f"""
    insert into lattice_cell (tree_id, key, value, wall, counter, origin, dead_at)
    select %s, g.* from unnest(%s::text[], %s::bytea[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[]) g
    {_UPSERT}
    """,
    sqlite=f"""
    insert into lattice_cell (tree_id, key, value, wall, counter, origin, dead_at) values (%s, %s, %s, %s, %s, %s, %s)
    {_UPSERT}
    """,
)
_KILL_RANGE = Statement(f"""
    update lattice_cell set value = null, wall = %s, counter = %s, origin = %s, dead_at = %s
    where tree_id = %s and {_IN_RANGE} and {_LIVE}
""")
_COPY = Statement(f"""
    insert into lattice_cell (tree_id, key, value, wall, counter, origin, dead_at)
    select %s, {_COLUMNS} from lattice_cell where tree_id = %s and {_LIVE}
""")
# The dead in the order of their deaths, by their own index. Locked first: who is being written just now comes another time,
# and who was written meanwhile is no longer meant.
_COMPACT = Statement(
    """
    delete from lattice_cell where ctid = any(array(
        select ctid from lattice_cell where dead_at <= {now} - %s order by dead_at limit %s for update skip locked))
    """,
    sqlite="""
    delete from lattice_cell where (tree_id, key) in (
        select tree_id, key from lattice_cell where dead_at <= {now} - %s order by dead_at limit %s)
    """,
)


def later(one: Cell, other: Cell) -> Cell:
    """Of two cells of one key the one that stays: the higher version.

    An honest site never makes two cells of one version. For the others the content decides, so that every site still
    comes to the same whatever the order in which it hears of them.
    """
    return max(one, other, key=_rank)


def _rank(cell: Cell) -> tuple[Any, ...]:
    return cell.version, cell.is_tombstone, cell.expires_at or 0, cell.value or b""


def live_cell(session: Session, tree: str, key: str) -> Cell | None:
    """The cell of a key, unless it is dead; one look-up."""
    rows = session.fetch(_GET, (tree, key))
    return _cell(rows[0]) if rows else None


def page(
    session: Session, tree: str, start: str, end: str, limit: int, *, reverse: bool = False, keys_only: bool = False
) -> tuple[list[Cell], bool]:
    """The first live cells of [start, end), the last ones backwards, and whether there may be more of them."""
    if keys_only:
        statement = _KEYS_BACK if reverse else _KEYS
    else:
        statement = _PAGE_BACK if reverse else _PAGE
    params: tuple[Any, ...] = (tree, start, end)
    if session.dialect == SQLITE and not keys_only:
        params += params
    cells = [_cell(row) for row in session.fetch(statement, (*params, limit))]
    return cells, len(cells) == limit or sum(len(cell.value or b"") for cell in cells) >= PAGE_BYTES


def count(session: Session, tree: str, start: str, end: str) -> int:
    """How many live cells there are in [start, end); it walks them."""
    return session.fetch(_COUNT, (tree, start, end))[0][0]


def cells_of(session: Session, tree_id: int, keys: Sequence[str]) -> dict[str, Cell]:
    """The cells of these keys, the dead ones too, by key."""
    wanted = list(keys) if session.dialect == POSTGRES else msgspec.json.encode(keys).decode()
    return {row[0]: _cell(row) for row in session.fetch(_CELLS, (wanted, tree_id))}


def write(session: Session, tree_id: int, cells: Sequence[Cell]) -> None:
    """Put cells of distinct keys in the place of what there was, in one statement."""
    rows = [
        (cell.key, cell.value, cell.version.stamp.wall, cell.version.stamp.counter, cell.version.origin, cell.dead_at)
        for cell in cells
    ]
    if session.dialect == POSTGRES:
        session.execute(_WRITE, (tree_id, *(list(column) for column in zip(*rows, strict=True))))
    else:
        session.execute_many(_WRITE, [(tree_id, *row) for row in rows])


def kill_range(session: Session, tree_id: int, start: str, end: str, version: Version, now_us: int) -> int:
    """Make tombstones of the live cells in [start, end); returns how many."""
    stamp = version.stamp
    return session.execute(_KILL_RANGE, (stamp.wall, stamp.counter, version.origin, now_us, tree_id, start, end))


def copy_live(session: Session, source_id: int, target_id: int) -> int:
    """Copy every live cell as it is into an empty tree; returns how many."""
    return session.execute(_COPY, (target_id, source_id))


def compact(session: Session, grace_us: int, limit: int) -> int:
    """Remove cells of any tree that have been dead for so long, at most `limit`; returns how many."""
    return session.execute(_COMPACT, (grace_us, limit))


def _cell(row: tuple) -> Cell:
    key, value, wall, counter, origin, dead_at = row
    return Cell(key, None if value is None else bytes(value), Version(Stamp(wall, counter), origin), dead_at)
