"""The rows of the audit: appended under the lock of their namespace's head, read in pages, never changed or deleted.

What a record means and how its hash is made is `lattice_tasks/audit.py`'s.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lattice_tasks.store.engine import Session, Statement

__all__ = [
    "AuditRow",
    "Ends",
    "Head",
    "append",
    "ends_of",
    "hold_head",
    "list_rows",
    "namespace_of",
    "page",
    "write_head",
]


class AuditRow(NamedTuple):
    """One record as stored. `at` is in microseconds, `before` and `after` are JSON objects, hashes are hexadecimal."""

    n: int
    at: int
    who: str
    verb: str
    target: str
    reason: str | None
    before: str
    after: str
    begun: int | None
    previous: str
    hash: str


@dataclass(frozen=True, slots=True)
class Head:
    """The last record of a chain, and the store's clock; `n` 0: there is none yet."""

    n: int
    hash: str
    now_us: int


@dataclass(frozen=True, slots=True)
class Ends:
    """How far the head says that the chain goes, and how far its records go, as of one moment; None: no such row."""

    head_n: int | None
    head_hash: str | None
    last_n: int | None


_COLUMNS = ", ".join(AuditRow._fields)
_FIRST_HEAD = Statement(
    "insert into lattice_audit_head (namespace_id, n, hash) values (%s, 0, '') on conflict (namespace_id) do nothing"
)
# Whoever waited here sees the head as the one before left it: a chain cannot fork. On SQLite the transaction is
# IMMEDIATE and holds the whole file already.
_HOLD = Statement(
    postgres="select n, hash, {now} from lattice_audit_head where namespace_id = %s for update",
    sqlite="select n, hash, {now} from lattice_audit_head where namespace_id = %s",
)
_APPEND = Statement(
    f"insert into lattice_audit (namespace_id, {_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_WRITE_HEAD = Statement("update lattice_audit_head set n = %s, hash = %s where namespace_id = %s")
_ENDS = Statement(
    """select (select n from lattice_audit_head where namespace_id = %s),
              (select hash from lattice_audit_head where namespace_id = %s),
              (select max(n) from lattice_audit where namespace_id = %s)"""
)
_PAGE = Statement(f"select {_COLUMNS} from lattice_audit where namespace_id = %s and n > %s order by n limit %s")
# Those that ended as a set, hashed once: looked up one by one they took minutes among 100,000 records.
_LIST = Statement(
    f"""select {_COLUMNS} from lattice_audit where namespace_id = %s and n < %s
        and (cast(%s as bigint) is null or at >= %s) and (cast(%s as text) is null or who = %s)
        and (cast(%s as text) is null or verb = %s) and (cast(%s as text) is null or target = %s)
        and (%s = 0 or (begun = n and n not in (
            select begun from lattice_audit where namespace_id = %s and begun is not null and begun < n)))
    order by n desc limit %s"""
)
_NAMESPACE_OF = Statement("select namespace_id from lattice_queue where id = %s")


def hold_head(session: Session, namespace_id: int) -> Head:
    """Lock the head of a namespace's chain until the caller's transaction ends; made when it is missing."""
    rows = session.fetch(_HOLD, (namespace_id,))
    if not rows:
        session.execute(_FIRST_HEAD, (namespace_id,))
        rows = session.fetch(_HOLD, (namespace_id,))
    return Head(*rows[0])


def append(session: Session, namespace_id: int, row: AuditRow) -> None:
    """Insert one record; its head is held, and is written with `write_head`."""
    session.execute(_APPEND, (namespace_id, *row))


def write_head(session: Session, namespace_id: int, row: AuditRow) -> None:
    """This record is the last one now."""
    session.execute(_WRITE_HEAD, (row.n, row.hash, namespace_id))


def ends_of(session: Session, namespace_id: int) -> Ends:
    """Where the chain ends, by its head and by its records."""
    return Ends(*session.fetch(_ENDS, (namespace_id, namespace_id, namespace_id))[0])


def page(session: Session, namespace_id: int, after_n: int, limit: int) -> list[AuditRow]:
    """Up to `limit` records that follow `after_n`, ascending."""
    return [AuditRow(*row) for row in session.fetch(_PAGE, (namespace_id, after_n, limit))]


def list_rows(
    session: Session,
    namespace_id: int,
    *,
    before_n: int,
    since_us: int | None,
    who: str | None,
    verb: str | None,
    target: str | None,
    is_unfinished: bool,
    limit: int,
) -> list[AuditRow]:
    """Up to `limit` records below `before_n` that fit every filter, newest first."""
    filters = (since_us, since_us, who, who, verb, verb, target, target)
    rows = session.fetch(_LIST, (namespace_id, before_n, *filters, int(is_unfinished), namespace_id, limit))
    return [AuditRow(*row) for row in rows]


def namespace_of(session: Session, queue_id: int) -> int | None:
    """Whose queue this is; None: there is no such queue."""
    rows = session.fetch(_NAMESPACE_OF, (queue_id,))
    return rows[0][0] if rows else None
