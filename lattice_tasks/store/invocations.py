"""Looking up single invocations, and removing finished ones whose retention has passed."""

from dataclasses import dataclass

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["InvocationRow", "find", "prune"]


@dataclass(frozen=True, slots=True)
class InvocationRow:
    """One invocation and the place it is in, when it is open: ready, scheduled or lease."""

    seq: int
    id: str
    queue_id: int
    queue: str
    actor: str
    state: int
    place: str | None
    attempt: int
    key: str | None
    priority: int
    submitted_at: int
    finished_at: int | None
    error: str | None
    entry_id: int | None
    result: bytes | None
    reason: str | None
    replaced_by: str | None


# The lease is looked up worker by worker, by its whole key: a join would read a table that is full of dead entries.
_COLUMNS = """i.queue_id, q.name, i.actor, i.state,
    case when i.state <> 0 then null
         when exists (select 1 from lattice_worker w where 1 =
                          (select 1 from lattice_lease l where l.worker_id = w.id and l.seq = i.seq)) then 'lease'
         when exists (select 1 from lattice_scheduled s where s.seq = i.seq) then 'scheduled'
         else 'ready' end,
    i.attempt, i.key, i.priority, i.submitted_at, i.finished_at, i.error, i.entry_id, i.result, i.reason,
    cast(i.replaced_by as text)
    from lattice_invocation i join lattice_queue q on q.id = i.queue_id"""
_FIND = Statement(
    postgres="select i.seq, i.id::text, " + _COLUMNS + " where i.id = %s::uuid and q.namespace_id = %s",
    sqlite="select i.seq, i.id, " + _COLUMNS + " where i.id = %s and q.namespace_id = %s",
)
# By primary key in submit order from a remembered place, never by an index on the state: settling stays cheap, and one
# pass costs what it removes plus what rests there for longer (parked ones, long schedules).
_PRUNE = Statement(
    postgres="""with old as (select i.seq, i.state, i.finished_at, q.retention_ms
            from lattice_invocation i join lattice_queue q on q.id = i.queue_id
            where i.seq > %s order by i.seq limit %s),
        gone as (delete from lattice_invocation i using old o
            where i.seq = o.seq and o.state in (1, 4, 5, 6)
                and o.finished_at < {now} - coalesce(o.retention_ms, %s) * 1000 returning i.seq)
        select (select max(seq) from old), (select count(*) from gone), (select count(*) from old)""",
    sqlite="""select max(seq), 0, count(*) from
        (select seq from lattice_invocation where seq > %s order by seq limit %s)""",
)
_PRUNE_LITE = Statement(
    """delete from lattice_invocation where seq in (
           select i.seq from lattice_invocation i join lattice_queue q on q.id = i.queue_id
           where i.seq > %s and i.seq <= %s and i.seq < (select max(seq) from lattice_invocation)
               and i.state in (1, 4, 5, 6) and i.finished_at < {now} - coalesce(q.retention_ms, %s) * 1000)"""
)


def find(session: Session, namespace_id: int, task_id: str | None) -> InvocationRow | None:
    """The invocation of this id, None when the namespace has none."""
    if task_id is None:
        return None
    rows = session.fetch(_FIND, (task_id, namespace_id))
    return InvocationRow(*rows[0]) if rows else None


def prune(session: Session, after_seq: int, limit: int, default_retention_ms: int) -> tuple[int, int]:
    """Look at up to `limit` invocations after `after_seq` and remove those that finished longer ago than their
    queue's retention.

    Returns:
        How many were removed, and where to go on next time: 0 when the end was reached.
    """
    with session.transaction():
        if session.dialect == POSTGRES:
            last, gone, seen = session.fetch(_PRUNE, (after_seq, limit, default_retention_ms))[0]
        else:
            last, gone, seen = session.fetch(_PRUNE, (after_seq, limit))[0]
            if seen:
                gone = session.execute(_PRUNE_LITE, (after_seq, last, default_retention_ms))
    return gone, last if seen == limit else 0
