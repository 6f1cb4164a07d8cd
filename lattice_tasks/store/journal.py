"""The journal of replicated trees: one row for each change, written by the transaction that makes it; and which batches
were decided.

Places (`seq`) are dense, from 0, for each tree: the head that the writer holds deals them out. Values are what was
written, so that nobody has to read the tree again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_tasks.clock import Stamp, Version
from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["COMMIT", "DELETE", "DELETE_RANGE", "SET", "Record", "append", "decide", "fingerprint_of", "prune", "read"]

SET, DELETE, DELETE_RANGE, COMMIT = "set", "delete", "delete_range", "commit"


@dataclass(frozen=True, slots=True)
class Record:
    """One change.

    Attributes:
        key: None for a commit; the start, which is inside, of a range.
        end_key: of a range, which is outside.
        expires_at: of a set; None: never.
        transaction_id: the batch that it belongs to. It counts when the commit of that batch follows.
        batch_size, batch_index: how many changes the batch has, and which of them this is, from 0; the commit's index is
            their number.
    """

    op: str
    version: Version
    key: str | None = None
    end_key: str | None = None
    value: bytes | None = None
    expires_at: int | None = None
    transaction_id: str | None = None
    batch_size: int | None = None
    batch_index: int | None = None


_COLUMNS = "seq, op, wall, counter, origin, key, end_key, value, expires_at, transaction_id, batch_size, batch_index"
_APPEND = Statement(
    postgres=f"""
    insert into lattice_journal (tree_id, {_COLUMNS})
    select %s, g.* from unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[],
        %s::text[], %s::bytea[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[]) g
    """,
    sqlite=f"""
    insert into lattice_journal (tree_id, {_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    """,
)
_READ = Statement(f"select {_COLUMNS} from lattice_journal where tree_id = %s and seq >= %s order by seq limit %s")
_DECIDE = Statement(
    "insert into lattice_tree_batch (tree_id, transaction_id, fingerprint, outcome, decided_at) "
    "values (%s, %s, %s, %s, {now}) on conflict (tree_id, transaction_id) do nothing"
)
_FINGERPRINT = Statement("select fingerprint from lattice_tree_batch where tree_id = %s and transaction_id = %s")
_PRUNE = Statement(
    postgres="""
    delete from lattice_tree_batch where ctid = any(array(
        select ctid from lattice_tree_batch where decided_at <= {now} - %s order by decided_at limit %s
        for update skip locked))
    """,
    sqlite="""
    delete from lattice_tree_batch where (tree_id, transaction_id) in (
        select tree_id, transaction_id from lattice_tree_batch where decided_at <= {now} - %s
        order by decided_at limit %s)
    """,
)


def append(session: Session, tree_id: int, first_seq: int, records: Sequence[Record]) -> None:
    """Write records at the places from `first_seq` on, in one statement."""
    rows = [
        (
            first_seq + at,
            record.op,
            record.version.stamp.wall,
            record.version.stamp.counter,
            record.version.origin,
            record.key,
            record.end_key,
            record.value,
            record.expires_at,
            record.transaction_id,
            record.batch_size,
            record.batch_index,
        )
        for at, record in enumerate(records)
    ]
    if session.dialect == POSTGRES:
        session.execute(_APPEND, (tree_id, *(list(column) for column in zip(*rows, strict=True))))
    else:
        session.execute_many(_APPEND, [(tree_id, *row) for row in rows])


def read(session: Session, tree_id: int, from_seq: int, limit: int) -> list[tuple[int, Record]]:
    """The records from a place on, each with its place, in their order; empty beyond the end."""
    return [_record(row) for row in session.fetch(_READ, (tree_id, from_seq, limit))]


def decide(session: Session, tree_id: int, transaction_id: str, fingerprint: str, outcome: str) -> bool:
    """Remember what became of a batch; False when that is known already."""
    return session.execute(_DECIDE, (tree_id, transaction_id, fingerprint, outcome)) == 1


def fingerprint_of(session: Session, tree_id: int, transaction_id: str) -> str | None:
    """The fingerprint of the keys of a batch that was decided, or None."""
    rows = session.fetch(_FINGERPRINT, (tree_id, transaction_id))
    return rows[0][0] if rows else None


def prune(session: Session, retention_us: int, limit: int) -> int:
    """Forget batches that were decided so long ago, at most `limit`; returns how many."""
    return session.execute(_PRUNE, (retention_us, limit))


def _record(row: tuple) -> tuple[int, Record]:
    seq, op, wall, counter, origin, key, end_key, value, expires_at, transaction_id, batch_size, batch_index = row
    return seq, Record(
        op,
        Version(Stamp(wall, counter), origin),
        key,
        end_key,
        None if value is None else bytes(value),
        expires_at,
        transaction_id,
        batch_size,
        batch_index,
    )
