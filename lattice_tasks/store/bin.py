"""The bin: letters that left their shelf without having been replayed, kept for a while so that they can come back; and
which letters are old enough to go there."""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["Aging", "BinRow", "NewBinRow", "Revived", "aged", "agings", "find", "keep", "list_all", "place", "prune", "revive",
           "set_aging", "standing", "take"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewBinRow:
    """A letter for the bin; `why` says how it left."""

    entry_id: int
    seq: int
    task_id: str
    actor: str
    reason: str
    error: str
    why: str
    value: bytes


@dataclass(frozen=True, slots=True)
class BinRow:
    """A letter in the bin; instants in microseconds."""

    id: int
    queue_id: int
    queue: str
    entry_id: int
    seq: int
    task_id: str
    actor: str
    reason: str
    error: str
    why: str
    binned_at: int
    value: bytes
    now_us: int


@dataclass(frozen=True, slots=True)
class Aging:
    """A queue whose letters leave its shelf at some age."""

    queue_id: int
    queue: str
    retention_ms: int


@dataclass(frozen=True, slots=True)
class Revived:
    """What an invocation is made of anew, when it has been pruned."""

    task_id: str
    queue_id: int
    actor: str
    body: bytes
    priority: int
    key: str | None
    submitted_at: int
    state: int
    attempt: int
    reason: str
    error: str
    traceback: str


_KEEP = Statement(
    postgres="""insert into lattice_bin (queue_id, entry_id, seq, task_id, actor, reason, error, why, binned_at, value)
        select %s, g.entry_id, g.seq, g.task_id, g.actor, g.reason, g.error, g.why, {now}, g.value
        from unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bytea[])
            as g (entry_id, seq, task_id, actor, reason, error, why, value)""",
    sqlite="""insert into lattice_bin (queue_id, entry_id, seq, task_id, actor, reason, error, why, binned_at, value)
        values (%s, %s, %s, %s, %s, %s, %s, %s, {now}, %s)""",
)
_ROW = """b.id, b.queue_id, q.name, b.entry_id, b.seq, b.task_id, b.actor, b.reason, b.error, b.why, b.binned_at, b.value, {now}
    from lattice_bin b join lattice_queue q on q.id = b.queue_id"""
_LIST = Statement(
    f"""select {_ROW} where q.namespace_id = %s and (%s = 0 or b.queue_id = %s) and b.id < %s order by b.id desc limit %s"""
)
_FIND = Statement(f"select {_ROW} where q.namespace_id = %s and b.id = %s")
_FIND_TASK = Statement(f"select {_ROW} where q.namespace_id = %s and b.task_id = %s order by b.id desc limit 1")
_TAKE = Statement("delete from lattice_bin where id = %s")
_PRUNE = Statement(
    postgres="""delete from lattice_bin where ctid = any(array(
        select ctid from lattice_bin where binned_at < {now} - %s order by binned_at limit %s))""",
    sqlite="""delete from lattice_bin where id in (
        select id from lattice_bin where binned_at < {now} - %s order by binned_at limit %s)""",
)
_AGINGS = Statement(
    "select id, name, dlq_retention_ms from lattice_queue where dlq_retention_ms is not null order by id"
)
_SET_AGING = Statement("update lattice_queue set dlq_retention_ms = %s, updated_at = {now} where id = %s")
_AGED = Statement(
    """select l.entry_id from lattice_letter l where l.queue_id = %s and l.parked_at < {now} - %s
       and not exists (select 1 from lattice_fifo_pin p where p.entry_id = l.entry_id
           and p.tree_id = (select id from lattice_tree where name = %s))
       order by l.entry_id limit %s"""
)
_REVIVE = Statement(
    """insert into lattice_invocation (id, queue_id, actor, body, priority, key, submitted_at, state, attempt, reason, error,
           traceback, finished_at)
       values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {now}) on conflict do nothing returning seq"""
)
_STANDING = Statement(
    postgres="select seq, state from lattice_invocation where id = %s::uuid for update",
    sqlite="select seq, state from lattice_invocation where id = %s",
)
_PLACE = Statement("update lattice_invocation set state = %s, entry_id = %s, finished_at = {now} where seq = %s")


def keep(session: Session, queue_id: int, rows: Sequence[NewBinRow]) -> None:
    """Put letters of one shelf into the bin."""
    columns = [(r.entry_id, r.seq, r.task_id, r.actor, r.reason, r.error, r.why, r.value) for r in rows]
    if columns and session.dialect == POSTGRES:
        session.execute(_KEEP, (queue_id, *(list(column) for column in zip(*columns, strict=True))))
    elif columns:
        session.execute_many(_KEEP, [(queue_id, *column) for column in columns])


def list_all(session: Session, namespace_id: int, queue_id: int, before_id: int, limit: int) -> list[BinRow]:
    """The newest below an id, of one queue or (0) of every one."""
    return [BinRow(*row) for row in session.fetch(_LIST, (namespace_id, queue_id, queue_id, before_id, limit))]


def find(session: Session, namespace_id: int, bin_id: int | None, task_id: str = "") -> BinRow | None:
    """One letter by its number in the bin, or the newest of a task."""
    rows = (
        session.fetch(_FIND_TASK, (namespace_id, task_id))
        if bin_id is None
        else session.fetch(_FIND, (namespace_id, bin_id))
    )
    return BinRow(*rows[0]) if rows else None


def take(session: Session, bin_id: int) -> bool:
    """Take it out; False: somebody else has."""
    return session.execute(_TAKE, (bin_id,)) == 1


def prune(session: Session, older_us: int, limit: int) -> int:
    """Remove up to so many letters that have lain there for longer; returns how many."""
    return session.execute(_PRUNE, (older_us, limit))


def agings(session: Session) -> list[Aging]:
    """The queues of every namespace whose letters leave at some age."""
    return [Aging(*row) for row in session.fetch(_AGINGS)]


def set_aging(session: Session, queue_id: int, retention_ms: int | None) -> None:
    """Let a queue's letters leave its shelf at this age; None: never."""
    session.execute(_SET_AGING, (retention_ms, queue_id))


def aged(session: Session, queue_id: int, tree: str, older_us: int, limit: int) -> list[int]:
    """Entry ids of letters that were parked longer ago and are not being replayed, the oldest first."""
    return [row[0] for row in session.fetch(_AGED, (queue_id, older_us, tree, limit))]


def revive(session: Session, row: Revived) -> int | None:
    """Insert an invocation that was pruned, under its own id; its new seq, None: its id or its key is taken."""
    values = (row.task_id, row.queue_id, row.actor, row.body, row.priority, row.key, row.submitted_at, row.state)
    found = session.fetch(_REVIVE, (*values, row.attempt, row.reason, row.error, row.traceback))
    return found[0][0] if found else None


def standing(session: Session, task_id: str) -> tuple[int, int] | None:
    """Seq and state of an invocation, locked; None: it was pruned."""
    rows = session.fetch(_STANDING, (task_id,))
    return (rows[0][0], rows[0][1]) if rows else None


def place(session: Session, seq: int, code: int, entry_id: int) -> None:
    """An invocation's letter lies on the shelf again."""
    session.execute(_PLACE, (code, entry_id, seq))
