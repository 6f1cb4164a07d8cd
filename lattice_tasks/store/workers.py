"""Worker incarnations: registering, beating, watching the others, and burying the dead with their leases.

A worker's row and its leases go together: the reaper deletes both in one transaction, a claim holds KEY SHARE on the row,
so after a burial nothing new is leased to the dead and a beat that changes no row tells the worker so.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = [
    "Orphan",
    "WorkerRow",
    "beat",
    "bury",
    "free_leases",
    "leave",
    "my_leases",
    "place_orphan",
    "pulses",
    "register",
    "set_state",
]

_STARTED = 8  # a bit of `flags`, as in tasks/invocation.py


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What an incarnation says of itself. `queues` and `actors` are JSON arrays."""

    namespace_id: int
    host: str
    pid: int
    threads: int
    queues: str
    actors: str
    version: str


@dataclass(frozen=True, slots=True)
class Orphan:
    """A lease taken from a dead worker; it must be placed again in the same transaction."""

    seq: int
    queue_id: int
    priority: int
    attempt: int
    flags: int


_REGISTER = Statement(
    """insert into lattice_worker (namespace_id, host, pid, threads, queues, actors, version, state, beat, started_at,
           seen_at)
       values (%s, %s, %s, %s, %s, %s, %s, 'active', 0, {now}, {now}) returning id"""
)
# The answer carries all that a beating worker must know: that it lives, whether it shall drain, what to cancel.
_BEAT = Statement("""update lattice_worker set beat = beat + 1, seen_at = {now} where id = %s returning state""")
# By full key, lease by lease: a range over the worker would walk every dead entry that an open snapshot keeps.
_CANCELS = Statement(
    postgres="""select l.seq, coalesce(i.error, 'cancelled')
        from lattice_lease l join lattice_invocation i on i.seq = l.seq
        where l.worker_id = %s and l.seq = any(%s::bigint[]) and l.flags & 4 <> 0""",
    sqlite="""select l.seq, coalesce(i.error, 'cancelled')
        from lattice_lease l join lattice_invocation i on i.seq = l.seq
        where l.worker_id = %s and l.flags & 4 <> 0""",
)
_PULSES = Statement("select id, beat, host, pid from lattice_worker")
_MINE = Statement("select seq, batch from lattice_lease where worker_id = %s")
# Skip locked: one that was frozen within a transaction must not hold up the heartbeats of those who would bury it.
_LOCK_DEAD = Statement(
    postgres="select host, pid from lattice_worker where id = %s and (beat = %s or %s) for update skip locked",
    sqlite="select host, pid from lattice_worker where id = %s and (beat = %s or %s)",
)
_LOCK_MINE = Statement(
    postgres="select 1 from lattice_worker where id = %s for update",
    sqlite="select 1 from lattice_worker where id = %s",
)
_TAKE_LEASES = Statement(
    """delete from lattice_lease where worker_id = %s returning seq, queue_id, priority, attempt, flags"""
)
_TAKE_SOME = Statement(
    """delete from lattice_lease where worker_id = %s and seq = %s and batch = %s
       returning seq, queue_id, priority, attempt, flags"""
)
_BACK = Statement("insert into lattice_ready (queue_id, seq, priority, attempt, flags) values (%s, %s, %s, %s, %s)")
_LEAVE = Statement("delete from lattice_worker where id = %s")
_SET_STATE = Statement("update lattice_worker set state = %s where namespace_id = %s and id = %s")


def register(session: Session, row: WorkerRow) -> int:
    """The id of a new incarnation; ids are never given twice."""
    columns = (row.namespace_id, row.host, row.pid, row.threads, row.queues, row.actors, row.version)
    return session.fetch(_REGISTER, columns)[0][0]


def set_state(session: Session, namespace_id: int, worker_id: int, state: str) -> bool:
    """Ask a worker to be `active` or `draining`; it learns of it with its next beat. False: there is none of this id."""
    return session.execute(_SET_STATE, (state, namespace_id, worker_id)) == 1


def beat(session: Session, worker_id: int, held: Sequence[int]) -> tuple[str | None, list[tuple[int, str]]]:
    """Move the counter; returns the worker's state, None when it was declared dead, and which leases to cancel, why."""
    # On SQLite a transaction waits its turn better than a lone statement; on Postgres it would be two trips more.
    with session.transaction() if session.dialect != POSTGRES else nullcontext():
        rows = session.fetch(_BEAT, (worker_id,))
    if not rows:
        return None, []
    if not held:
        return rows[0][0], []
    named = (worker_id, list(held)) if session.dialect == POSTGRES else (worker_id,)
    return rows[0][0], [(seq, why) for seq, why in session.fetch(_CANCELS, named)]


def pulses(session: Session) -> list[tuple[int, int, str, int]]:
    """(worker id, beat, host, pid) of every worker, of all namespaces."""
    return session.fetch(_PULSES)


def my_leases(session: Session, worker_id: int) -> list[tuple[int, int]]:
    """(seq, batch) of everything leased to the worker."""
    return session.fetch(_MINE, (worker_id,))


def bury(session: Session, worker_id: int, seen_beat: int | None) -> tuple[str, int, list[Orphan]] | None:
    """Delete a dead worker and take its leases: host, pid and orphans by seq, or None: it lives, is buried, or is locked.

    In the caller's transaction, which must place every orphan. With `seen_beat` None the counter is not asked: its
    parent saw the process end.
    """
    found = session.fetch(_LOCK_DEAD, (worker_id, seen_beat or 0, seen_beat is None))
    if not found:
        return None
    leases = sorted(session.fetch(_TAKE_LEASES, (worker_id,)))
    session.execute(_LEAVE, (worker_id,))
    return found[0][0], found[0][1], [Orphan(*lease) for lease in leases]


def place_orphan(session: Session, orphan: Orphan, attempt: int, flags: int) -> None:
    """An orphan waits again, at its old place in the order."""
    session.execute(_BACK, (orphan.queue_id, orphan.seq, orphan.priority, attempt, flags))


def free_leases(session: Session, worker_id: int, leases: Sequence[tuple[int, int]]) -> list[int]:
    """Hand back leases (seq, batch) uncharged; returns the seqs that were really held."""
    freed = []
    with session.transaction():
        for seq, batch in sorted(leases):
            for row in session.fetch(_TAKE_SOME, (worker_id, seq, batch)):
                session.execute(_BACK, (row[1], row[0], row[2], row[3], row[4] & ~_STARTED))
                freed.append(seq)
    return freed


def leave(session: Session, worker_id: int) -> int:
    """Delete the worker in good order; whatever it still leases goes back uncharged. Returns how many."""
    with session.transaction():
        session.fetch(_LOCK_MINE, (worker_id,))
        leases = sorted(session.fetch(_TAKE_LEASES, (worker_id,)))
        for seq, queue_id, priority, attempt, flags in leases:
            session.execute(_BACK, (queue_id, seq, priority, attempt, flags & ~_STARTED))
        session.execute(_LEAVE, (worker_id,))
    return len(leases)
