"""Where one invocation stands: its place, what is in front of it, and what keeps a worker from others. Read, never changed."""

from typing import NamedTuple

from lattice_tasks.store.engine import Session, Statement

__all__ = ["Standing", "Suspect", "count_ahead", "leased_suspects", "standing_of"]


class Standing(NamedTuple):
    """One invocation. `place`: ready, scheduled, lease, or None in none of them; instants in microseconds."""

    seq: int
    state: int
    place: str | None
    unknown_since: int | None
    reason: str | None
    now_us: int


class Suspect(NamedTuple):
    """One that is leased and may have killed a worker."""

    worker_id: int
    task_id: str
    flags: int
    claimed_at: int


_STANDING = """select i.seq, i.state,
        case when l.seq is not null then 'lease' when s.seq is not null then 'scheduled'
             when r.seq is not null then 'ready' end, i.unknown_since, i.reason, {now}
    from lattice_invocation i join lattice_queue q on q.id = i.queue_id
    left join lattice_ready r on r.queue_id = i.queue_id and r.seq = i.seq
    left join lattice_scheduled s on s.seq = i.seq
    left join lattice_lease l on l.seq = i.seq
    where q.namespace_id = %s and i.id = """
_STANDING_OF = Statement(postgres=_STANDING + "%s::uuid", sqlite=_STANDING + "%s")
# The order of a claim (`turns.py`), by the queue's kind.
_AHEAD = {
    "fifo": Statement(
        """select (select count(*) from lattice_ready where queue_id = %s and seq < %s),
                  (select count(*) from lattice_lease where queue_id = %s
                       and worker_id in (select id from lattice_worker))"""
    )
}
_SUSPECTS = Statement(
    """select l.worker_id, cast(i.id as text), l.flags, l.claimed_at
       from lattice_lease l join lattice_invocation i on i.seq = l.seq
       where l.flags & 1 <> 0 and l.worker_id in (select id from lattice_worker where namespace_id = %s) order by l.seq"""
)


def standing_of(session: Session, namespace_id: int, task_id: str) -> Standing | None:
    """Where the invocation is now; `task_id` must be a UUID in its usual form."""
    rows = session.fetch(_STANDING_OF, (namespace_id, task_id))
    return Standing(*rows[0]) if rows else None


def count_ahead(session: Session, kind: str, queue_id: int, seq: int) -> tuple[int, int]:
    """How many waiting ones a queue of this kind hands out before this one, and how many it has leased now."""
    waiting, running = session.fetch(_AHEAD[kind], (queue_id, seq, queue_id))[0]
    return waiting, running


def leased_suspects(session: Session, namespace_id: int) -> list[Suspect]:
    """Every suspect that a worker of the namespace has leased."""
    return [Suspect(*row) for row in session.fetch(_SUSPECTS, (namespace_id,))]
