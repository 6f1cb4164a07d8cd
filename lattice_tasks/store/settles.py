"""Settlements that need more than a final state, each batch in the caller's transaction.

First `take_leases`: what it returns is ours, everything else was fenced off and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = [
    "Facts",
    "Held",
    "Taken",
    "cancel_leased",
    "cancel_reason",
    "count_down",
    "facts_of",
    "has_held",
    "held_ones",
    "hold",
    "move_parked",
    "place_leased",
    "place_ready",
    "place_ready_many",
    "place_scheduled",
    "queues_with_held",
    "record_failure",
    "reopen",
    "reopen_many",
    "rest",
    "rest_discarded",
    "rest_unread",
    "take_leases",
    "take_unleased",
    "unhold",
]


@dataclass(frozen=True, slots=True)
class Taken:
    """A lease that was taken out to be settled."""

    seq: int
    queue_id: int
    priority: int
    attempt: int
    flags: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a dead letter keeps of its invocation."""

    seq: int
    id: str
    actor: str
    body: bytes
    key: str | None
    priority: int
    submitted_at: int
    entry_id: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """An invocation that failed for good while its shelf had no place."""

    seq: int
    id: str
    actor: str
    body: bytes
    key: str | None
    priority: int
    submitted_at: int
    attempt: int
    reason: str
    error: str | None
    traceback: str | None


_TAKE = Statement(
    postgres="""delete from lattice_lease l using unnest(%s::bigint[], %s::bigint[]) as g (seq, batch)
        where l.worker_id = %s and l.seq = g.seq and l.batch = g.batch
        returning l.seq, l.queue_id, l.priority, l.attempt, l.flags""",
    sqlite="""delete from lattice_lease where seq = %s and batch = %s and worker_id = %s
        returning seq, queue_id, priority, attempt, flags""",
)
_READY = Statement("insert into lattice_ready (queue_id, seq, priority, attempt, flags) values (%s, %s, %s, %s, %s)")
_SCHEDULED = Statement(
    """insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
       values (%s, {now} + %s, %s, %s, %s, %s)"""
)
_LEASED = Statement(
    """insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
       values (%s, %s, %s, %s, %s, %s, %s, {now})"""
)
_FAILURE = Statement(
    """update lattice_invocation set attempt = %s, error = %s, traceback = %s,
           unknown_since = case when %s then coalesce(unknown_since, {now}) end where seq = %s"""
)
_REST = Statement(
    """update lattice_invocation set state = %s, finished_at = {now}, attempt = %s, error = %s, traceback = %s,
           result = %s, entry_id = %s, reason = %s where seq = %s"""
)
# A place of their own: an index on the state, even a partial one, would forbid every settlement a heap-only update.
_HELD = Statement(
    postgres="""select i.seq, i.id::text, i.actor, i.body, i.key, i.priority, i.submitted_at, i.attempt, i.reason, i.error,
            i.traceback
        from lattice_held h join lattice_invocation i on i.seq = h.seq
        where h.queue_id = %s order by h.seq limit %s for update of h skip locked""",
    sqlite="""select i.seq, i.id, i.actor, i.body, i.key, i.priority, i.submitted_at, i.attempt, i.reason, i.error,
            i.traceback
        from lattice_held h join lattice_invocation i on i.seq = h.seq where h.queue_id = %s order by h.seq limit %s""",
)
_HOLD = Statement("insert into lattice_held (queue_id, seq) values (%s, %s)")
_ANY_HELD = Statement("select 1 from lattice_held where queue_id = %s limit 1")
_LET_GO = Statement("delete from lattice_held where queue_id = %s and seq = %s")
_HELD_QUEUES = Statement("select distinct queue_id from lattice_held order by queue_id")
_UNHOLD = Statement("update lattice_invocation set state = %s, entry_id = %s where seq = %s")
_GONE = Statement("update lattice_invocation set state = %s, entry_id = null where seq = %s")
_GONE_UNREAD = Statement(
    "update lattice_invocation set state = %s, entry_id = null where queue_id = %s and entry_id = %s"
)
_REOPEN = Statement(
    """update lattice_invocation set state = 0, finished_at = null, attempt = 0
       where seq = %s and state = %s returning queue_id"""
)
_REOPEN_MANY = Statement(
    postgres="""update lattice_invocation i set state = 0, finished_at = null, attempt = 0
        from unnest(%s::bigint[]) as g (seq) where i.seq = g.seq and i.state = %s returning i.seq, i.queue_id""",
    sqlite="""update lattice_invocation set state = 0, finished_at = null, attempt = 0
        where seq in (select value from json_each(%s)) and state = %s returning seq, queue_id""",
)
_READY_MANY = Statement(
    postgres="""insert into lattice_ready (queue_id, seq, priority, attempt, flags)
        select g.queue_id, g.seq, g.priority, 0, %s
        from unnest(%s::bigint[], %s::bigint[], %s::int[]) as g (queue_id, seq, priority)""",
    sqlite="insert into lattice_ready (queue_id, seq, priority, attempt, flags) values (%s, %s, %s, 0, %s)",
)
# A key names one invocation of a queue: where the other queue has it already, nothing moves.
_MOVE_PARKED = Statement(
    """update lattice_invocation set queue_id = %s, actor = %s, entry_id = %s,
           redirected_from = coalesce(redirected_from, %s)
       where seq = %s and state = %s and not exists (
           select 1 from lattice_invocation o
           where o.queue_id = %s and o.key = lattice_invocation.key and o.seq <> lattice_invocation.seq)"""
)
_FACTS = Statement(
    postgres="""select seq, id::text, actor, body, key, priority, submitted_at, entry_id
        from lattice_invocation where seq = any(%s::bigint[])""",
    sqlite="select seq, id, actor, body, key, priority, submitted_at, entry_id from lattice_invocation where seq = %s",
)
_COUNT_DOWN = Statement("update lattice_counter set value = value - 1 where key = %s returning value")
_COUNTED = Statement("delete from lattice_counter where key = %s and value <= 0")
_DROP_READY = Statement("delete from lattice_ready where queue_id = %s and seq = %s returning flags")
_DROP_SCHEDULED = Statement("delete from lattice_scheduled where seq = %s returning flags")
_REASON = Statement("select coalesce(error, 'cancelled') from lattice_invocation where seq = %s")
_WHY = Statement("update lattice_invocation set error = %s where seq = %s")
_FLAG_LEASE = Statement(
    """update lattice_lease set flags = flags | 4
       where seq = %s and worker_id in (select id from lattice_worker)"""
)


def take_leases(session: Session, worker_id: int, tokens: Sequence[tuple[int, int]]) -> dict[int, Taken]:
    """Take out the leases (seq, batch) that are still this worker's, by seq."""
    ordered = sorted(tokens)
    if session.dialect == POSTGRES:
        rows = session.fetch(_TAKE, ([seq for seq, _ in ordered], [batch for _, batch in ordered], worker_id))
    else:
        rows = [row for token in ordered for row in session.fetch(_TAKE, (*token, worker_id))]
    return {row[0]: Taken(*row) for row in rows}


def place_ready(session: Session, lease: Taken, attempt: int, flags: int) -> None:
    """lease → ready, at its old place in the order."""
    session.execute(_READY, (lease.queue_id, lease.seq, lease.priority, attempt, flags))


def place_scheduled(session: Session, lease: Taken, delay_us: int, attempt: int, flags: int) -> None:
    """lease → scheduled, due so long from now."""
    session.execute(_SCHEDULED, (lease.queue_id, delay_us, lease.seq, lease.priority, attempt, flags))


def place_leased(session: Session, taken: Taken, worker_id: int, batch: int) -> None:
    """Straight into a lease of a worker that wants to run just this one."""
    columns = (worker_id, taken.seq, batch, taken.queue_id, taken.priority, taken.attempt, taken.flags)
    session.execute(_LEASED, columns)


def record_failure(
    session: Session, seq: int, attempt: int, error: str | None, traceback: str | None, is_unknown: bool
) -> None:
    """Note on an open invocation what its last attempt ended with; `is_unknown`: no worker knew its actor."""
    session.execute(_FAILURE, (attempt, error, traceback, is_unknown, seq))


def rest(
    session: Session,
    seq: int,
    code: int,
    attempt: int,
    error: str | None,
    traceback: str | None,
    result: bytes | None,
    entry_id: int | None,
    reason: str | None = None,
) -> None:
    """Write a resting state into the invocation; `reason` is the tag of its dead letter."""
    session.execute(_REST, (code, attempt, error, traceback, result, entry_id, reason, seq))


def held_ones(session: Session, queue_id: int, limit: int) -> list[Held]:
    """Held invocations of a queue, the oldest first, locked for the caller's transaction; none that another locks."""
    return [Held(*row) for row in session.fetch(_HELD, (queue_id, limit))]


def queues_with_held(session: Session) -> list[int]:
    """Ids of the queues that have held invocations."""
    return [queue_id for (queue_id,) in session.fetch(_HELD_QUEUES)]


def has_held(session: Session, queue_id: int) -> bool:
    """Whether the queue has held invocations."""
    return bool(session.fetch(_ANY_HELD, (queue_id,)))


def hold(session: Session, queue_id: int, seq: int) -> None:
    """A failed invocation found no place on its shelf; it waits for one."""
    session.execute(_HOLD, (queue_id, seq))


def unhold(session: Session, queue_id: int, seq: int, code: int, entry_id: int) -> None:
    """A held invocation found its place on the shelf."""
    session.execute(_LET_GO, (queue_id, seq))
    session.execute(_UNHOLD, (code, entry_id, seq))


def rest_discarded(session: Session, seq: int, code: int) -> None:
    """The dead letter of a parked invocation is gone: write the state that says so, keep its error."""
    session.execute(_GONE, (code, seq))


def rest_unread(session: Session, queue_id: int, entry_id: int, code: int) -> None:
    """The same, when only the entry's id is known. Rare: it reads the whole table."""
    session.execute(_GONE_UNREAD, (code, queue_id, entry_id))


def reopen(session: Session, seq: int, code: int) -> int | None:
    """A resting invocation in the state `code` is open again, with a fresh count; its queue id, None: another state."""
    rows = session.fetch(_REOPEN, (seq, code))
    return rows[0][0] if rows else None


def reopen_many(session: Session, seqs: Sequence[int], code: int) -> dict[int, int]:
    """`reopen` of many: seq → queue id of those that were in the state."""
    wanted = list(seqs) if session.dialect == POSTGRES else msgspec.json.encode(list(seqs)).decode()
    return dict(session.fetch(_REOPEN_MANY, (wanted, code)))


def place_ready_many(session: Session, places: Sequence[tuple[int, int, int]], flags: int) -> None:
    """Put reopened invocations (queue id, seq, priority) where they are claimed."""
    if session.dialect == POSTGRES:
        session.execute(_READY_MANY, (flags, *(list(column) for column in zip(*places, strict=True))))
    else:
        session.execute_many(_READY_MANY, [(*place, flags) for place in places])


def move_parked(
    session: Session, seq: int, code: int, queue_id: int, actor: str, entry_id: int, redirected_from: str
) -> bool:
    """Let a parked invocation belong to another queue and actor; False: it is not parked, or its key is taken there."""
    return session.execute(_MOVE_PARKED, (queue_id, actor, entry_id, redirected_from, seq, code, queue_id)) == 1


def facts_of(session: Session, seqs: Sequence[int]) -> dict[int, Facts]:
    """What dead letters keep, by seq."""
    if session.dialect == POSTGRES:
        rows = session.fetch(_FACTS, (sorted(seqs),))
    else:
        rows = [row for seq in sorted(seqs) for row in session.fetch(_FACTS, (seq,))]
    return {row[0]: Facts(*row) for row in rows}


def count_down(session: Session, key: str) -> int | None:
    """Lower a group's counter by one, and remove it when nothing is left; what remains, None when there is no such counter."""
    rows = session.fetch(_COUNT_DOWN, (key,))
    if rows and rows[0][0] <= 0:
        session.execute(_COUNTED, (key,))
    return rows[0][0] if rows else None


def take_unleased(session: Session, queue_id: int, seq: int) -> int | None:
    """Take an invocation out of where it waits or sleeps: its flags, None: it is in neither place any more."""
    rows = session.fetch(_DROP_READY, (queue_id, seq)) or session.fetch(_DROP_SCHEDULED, (seq,))
    return rows[0][0] if rows else None


def cancel_leased(session: Session, seq: int, reason: str) -> bool:
    """Ask the worker that runs it to cancel it at its next beat; False: nobody runs it."""
    if not session.execute(_FLAG_LEASE, (seq,)):
        return False
    session.execute(_WHY, (reason, seq))
    return True


def cancel_reason(session: Session, seq: int) -> str:
    """What was said when a running one was asked to be cancelled."""
    rows = session.fetch(_REASON, (seq,))
    return rows[0][0] if rows else "cancelled"
