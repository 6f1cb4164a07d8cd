"""System trees: the registry, their rows, and the head and pins of the trees that hold a FIFO.

Here is the SQL and nothing else; what the rows mean is `fifo.py`'s. Every change of a FIFO locks its head row first
(`hold`), and reads in later statements: the one that waited for the lock still sees the rows from before. No statement
costs more with the depth of a FIFO: each finds its rows from the floor or by key, so neither removed entries nor the
ones behind are walked.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice_tasks.errors import StoreError
from lattice_tasks.keys import MAX_ID, entry_key
from lattice_tasks.store.engine import POSTGRES, SQLITE, Session, Statement

__all__ = [
    "Head",
    "Row",
    "all_or_nothing",
    "count_of",
    "count_pins",
    "hold",
    "insert_rows",
    "pin",
    "remove_rows",
    "replace_rows",
    "rows_from_floor",
    "rows_of",
    "take_oldest",
    "undoable",
    "unpin",
    "write_head",
]

_FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class Head:
    """A FIFO's head row: no entry below `floor` lives, `next_id` was never issued, `count` entries live."""

    tree_id: int
    floor: int
    next_id: int
    count: int
    now_us: int


@dataclass(frozen=True, slots=True)
class Row:
    """One entry as stored."""

    entry_id: int
    value: bytes
    is_pinned: bool = False


_LAST = f"'{entry_key(MAX_ID)}'"
#: What the engines say differently: an entry's id and key in SQL, which rows are entries, several ids at once.
#: `is_entry` says what is none: of a pattern that must match Postgres believes that hardly any row does, and before the
#: first ANALYZE, or in a plan made for a short queue, it would then read and sort all entries to find the first.
_WORDS = {
    POSTGRES: {
        "id": "substr(key, 3)::bigint",
        "is_entry": f"key <= {_LAST} and key !~ '^e/([0-9]{{0,18}}|[0-9]{{20,}}|.*[^0-9].*)$'",
        "floor_key": "'e/' || lpad(floor::text, 19, '0')",
        "any_id": "= any(%s::bigint[])",
        "lowest": "least",
        "now": "{now}",
    },
    SQLITE: {
        "id": "cast(substr(key, 3) as integer)",
        "is_entry": f"key <= {_LAST} and key glob 'e/{'[0-9]' * 19}'",
        "floor_key": "printf('e/%019d', floor)",
        "any_id": "in (select value from json_each(%s))",
        "lowest": "min",
        "now": "{now}",
    },
}


def _statement(text: str, sqlite: str = "", replans: bool = False) -> Statement:
    return Statement(text.format(**_WORDS[POSTGRES]), (sqlite or text).format(**_WORDS[SQLITE]), replans)


_REGISTER = Statement(
    "insert into lattice_tree (name, kind, created_at) values (%s, %s, {now}) on conflict (name) do nothing"
)
_FIRST_HEAD = Statement(
    "insert into lattice_fifo_head (tree_id, floor, next_id, count) "
    "select id, 1, 1, 0 from lattice_tree where name = %s on conflict (tree_id) do nothing"
)
_HEAD = """
    select h.tree_id, h.floor, h.next_id, h.count, {now}
    from lattice_tree t join lattice_fifo_head h on h.tree_id = t.id where t.name = %s
"""
# On SQLite the transaction is IMMEDIATE: it holds the whole file already.
_HOLD = _statement(_HEAD + " for update of h", sqlite=_HEAD)
_COUNT = _statement(_HEAD)

# The floor never passes a pin: a pinned entry may be the lowest that lives while later ones are gone.
_WRITE_HEAD = _statement("""
    update lattice_fifo_head set next_id = %s, count = %s, floor = {lowest}(%s, coalesce(
        (select min(p.entry_id) from lattice_fifo_pin p where p.tree_id = %s), %s))
    where tree_id = %s
""")

# Tree and floor as scalars: with a join Postgres does not see that one head gives one ordered range, and sorts it.
_FROM_FLOOR = _statement(
    """
    with head as (
        select tree_id, {floor_key} as floor_key
        from lattice_fifo_head where tree_id = (select id from lattice_tree where name = %s))
    select {id}, value, exists (
        select 1 from lattice_fifo_pin p where p.tree_id = r.tree_id and p.entry_id = {id})
    from lattice_tree_row r
    where tree_id = (select tree_id from head) and key >= (select floor_key from head) and {is_entry}
    order by key limit %s
""",
    replans=True,
)
# Rows by key, here and below: before the first ANALYZE Postgres takes a tree for a dozen rows, and would read all of it
# to filter for the keys. So each key is looked up by itself (lateral), and what was found is named by its place (ctid):
# nobody else moves a row while the head is held. A limit that is a parameter counts as a few rows, ten keys do not: for
# ten places Postgres would rather read a short table from end to end, and keep that plan when it has grown.
_BY_KEY = _statement(
    """
    select {id}, value, exists (
        select 1 from lattice_fifo_pin p where p.tree_id = r.tree_id and p.entry_id = {id})
    from unnest(%s::text[]) as wanted (wanted_key) cross join lateral (
        select tree_id, key, value from lattice_tree_row
        where tree_id = (select id from lattice_tree where name = %s) and key = wanted_key limit 1) r
    """,
    sqlite="""
    select {id}, value, exists (
        select 1 from lattice_fifo_pin p where p.tree_id = r.tree_id and p.entry_id = {id})
    from lattice_tree_row r
    where key in (select value from json_each(%s)) and tree_id = (select id from lattice_tree where name = %s)
    """,
    replans=True,
)
_INSERT = Statement(
    postgres="insert into lattice_tree_row (tree_id, key, value) "
    "select %s, key, value from unnest(%s::text[], %s::bytea[]) as given (key, value)",
    sqlite="insert into lattice_tree_row (tree_id, key, value) values (%s, %s, %s)",
)
_REPLACE = Statement(
    postgres="""
    update lattice_tree_row t set value = given.value
    from (
        select r.place, g.value
        from (select * from unnest(%s::text[], %s::bytea[]) as g (wanted_key, value) limit %s) g cross join lateral (
            select ctid as place from lattice_tree_row where tree_id = %s and key = wanted_key limit 1) r) given
    where t.ctid = given.place
    """,
    sqlite="update lattice_tree_row set value = %s where tree_id = %s and key = %s",
    replans=True,
)
_REMOVE = _statement(
    """
    delete from lattice_tree_row t using (
        select r.place from (select unnest(%s::text[]) as wanted_key limit %s) wanted cross join lateral (
            select ctid as place from lattice_tree_row where tree_id = %s and key = wanted_key limit 1) r) given
    where t.ctid = given.place
    returning {id}, value
    """,
    sqlite="""
    delete from lattice_tree_row where key in (select value from json_each(%s) limit %s) and tree_id = %s
    returning {id}, value
    """,
    replans=True,
)

# One ordered walk of the primary key from the floor, then each row by its place.
_TAKE_OLDEST = _statement(
    """
    delete from lattice_tree_row t using (
        select ctid as place from lattice_tree_row
        where tree_id = %s and key >= %s and {is_entry}
            and {id} <> all(array(select entry_id from lattice_fifo_pin where tree_id = %s))
        order by key limit %s) given
    where t.ctid = given.place
    returning {id}, value
    """,
    sqlite="""
    delete from lattice_tree_row where (tree_id, key) in (
        select tree_id, key from lattice_tree_row
        where tree_id = %s and key >= %s and {is_entry}
            and {id} not in (select entry_id from lattice_fifo_pin where tree_id = %s)
        order by key limit %s)
    returning {id}, value
    """,
    replans=True,
)

_COUNT_PINS = Statement("select count(*) from lattice_fifo_pin where tree_id = %s")
_PIN = Statement(
    postgres="insert into lattice_fifo_pin (tree_id, entry_id) select %s, unnest(%s::bigint[])",
    sqlite="insert into lattice_fifo_pin (tree_id, entry_id) select %s, value from json_each(%s)",
)
_UNPIN = _statement("delete from lattice_fifo_pin where tree_id = %s and entry_id {any_id}")

_SAVE = Statement("savepoint lattice_fifo")
_UNDO = Statement("rollback to savepoint lattice_fifo")
_KEEP = Statement("release savepoint lattice_fifo")


@contextmanager
def all_or_nothing(session: Session) -> Iterator[None]:
    """A transaction; inside one that is open a savepoint, so that a caller who survives an error of the block and
    commits does not keep half of it."""
    if not session.in_transaction:
        with session.transaction():
            yield
        return
    session.execute(_SAVE)
    try:
        yield
    except BaseException:
        with suppress(StoreError):  # the connection is gone, and the transaction with it; the first error says more
            session.execute(_UNDO)
            session.execute(_KEEP)
        raise
    session.execute(_KEEP)


@contextmanager
def undoable(session: Session) -> Iterator[Callable[[], object]]:
    """A savepoint of the open transaction; the block is given what takes back all that was written in it so far."""
    with all_or_nothing(session):
        yield lambda: session.execute(_UNDO)


def hold(session: Session, name: str) -> Head:
    """Lock the head of the FIFO on this tree until the transaction ends; tree and head are made when missing."""
    rows = session.fetch(_HOLD, (name,))
    if not rows:
        session.execute(_REGISTER, (name, _FIFO))
        session.execute(_FIRST_HEAD, (name,))
        rows = session.fetch(_HOLD, (name,))
    return Head(*rows[0])


def write_head(session: Session, tree_id: int, floor: int, next_id: int, count: int) -> None:
    """Write the head that is held; its floor becomes the given one or the lowest pin, whichever is lower."""
    session.execute(_WRITE_HEAD, (next_id, count, floor, tree_id, MAX_ID, tree_id))


def count_of(session: Session, name: str) -> int:
    """How many entries live; 0 also when there is no such tree."""
    rows = session.fetch(_COUNT, (name,))
    return rows[0][3] if rows else 0


def rows_from_floor(session: Session, name: str, limit: int | None = None) -> list[Row]:
    """The first entries, all of them without a limit, in the order of their ids, as of one moment."""
    return _rows(session.fetch(_FROM_FLOOR, (name, MAX_ID if limit is None else limit)))


def rows_of(session: Session, name: str, entry_ids: Sequence[int]) -> list[Row]:
    """Those of these entries that exist, in the order of their ids."""
    return _rows(session.fetch(_BY_KEY, (_several(session, _keys(entry_ids)), name)))


def insert_rows(session: Session, tree_id: int, first_id: int, values: Sequence[bytes]) -> None:
    """Append values under ids that rise from `first_id`, in one statement."""
    keys = [entry_key(first_id + offset) for offset in range(len(values))]
    if session.dialect == POSTGRES:
        session.execute(_INSERT, (tree_id, keys, list(values)))
    else:
        session.execute_many(_INSERT, [(tree_id, key, value) for key, value in zip(keys, values, strict=True)])


def replace_rows(session: Session, tree_id: int, values: dict[int, bytes]) -> None:
    """Give entries that exist new values, in one statement."""
    keys = [entry_key(entry_id) for entry_id in values]
    if session.dialect == POSTGRES:
        session.execute(_REPLACE, (keys, list(values.values()), len(keys), tree_id))
    else:
        given = zip(values.values(), keys, strict=True)
        session.execute_many(_REPLACE, [(value, tree_id, key) for value, key in given])


def remove_rows(session: Session, tree_id: int, entry_ids: Sequence[int]) -> list[Row]:
    """Delete entries; returns those that existed, in the order of their ids."""
    keys = _keys(entry_ids)
    return _rows(session.fetch(_REMOVE, (_several(session, keys), len(keys), tree_id)))


def take_oldest(session: Session, head: Head, number: int) -> list[Row]:
    """Delete the first entries that are not pinned, at most so many; returns them in the order of their ids."""
    return _rows(session.fetch(_TAKE_OLDEST, (head.tree_id, entry_key(head.floor), head.tree_id, number)))


def count_pins(session: Session, tree_id: int) -> int:
    """How many entries are pinned."""
    return session.fetch(_COUNT_PINS, (tree_id,))[0][0]


def pin(session: Session, tree_id: int, entry_ids: Sequence[int]) -> None:
    """Pin entries that are not pinned."""
    session.execute(_PIN, (tree_id, _several(session, entry_ids)))


def unpin(session: Session, tree_id: int, entry_ids: Sequence[int]) -> None:
    """Take the pins away, where there are any."""
    session.execute(_UNPIN, (tree_id, _several(session, entry_ids)))


def _keys(entry_ids: Sequence[int]) -> list[str]:
    """The keys of these ids; an id that no entry can have finds nothing, as an unknown one does."""
    return [entry_key(entry_id) for entry_id in dict.fromkeys(entry_ids) if 1 <= entry_id <= MAX_ID]


def _several(session: Session, values: Sequence[Any]) -> Any:
    """Several values as one parameter: an array on Postgres, JSON on SQLite."""
    return list(values) if session.dialect == POSTGRES else msgspec.json.encode(values).decode()


def _rows(fetched: list[tuple]) -> list[Row]:
    return sorted((Row(row[0], bytes(row[1]), bool(row[2:] and row[2])) for row in fetched), key=_entry_id)


def _entry_id(row: Row) -> int:
    return row.entry_id
