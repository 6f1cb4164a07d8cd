"""The pump's moves: settle what succeeded, claim what fits, promote what is due; in one round trip.

ready → lease is a claim; lease → nothing plus a final state is a settlement; scheduled → ready is a promotion.
Outcomes that need more than a final state (retries, parking, what hooks enqueued) go through `store/settles.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["Claimed", "Turn", "Want", "file_version", "mark_started", "next_due_us", "promote", "turn"]


@dataclass(frozen=True, slots=True)
class Want:
    """Claim up to `limit` from a queue, looking from `floor` (a hint: rows below it are not seen this time).

    `refuses`: its shelf does when it is full, so it may be stalled.
    """

    queue_id: int
    limit: int
    floor: int
    refuses: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """One lease just taken, with all that is needed to run it."""

    seq: int
    queue_id: int
    priority: int
    attempt: int
    flags: int
    id: str
    actor: str
    body: bytes
    submitted_at: int
    deadline_at: int | None
    unknown_since: int | None


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn brought. `refused` are settled seqs that were not ours any more; `is_alive` is False when this
    incarnation was declared dead; `due_us` is how far away the next scheduled one is, None: none."""

    claimed: list[Claimed]
    refused: list[int]
    is_alive: bool
    due_us: int | None
    now_us: int


# Settling names (worker, seq, batch): the primary key and the fencing token, no predicate that a partial index could match,
# so neither dead entries nor empty statistics can change the plan. Rows that are gone from `lease` change nothing.
_GONE = """given as (select * from unnest(%s::bigint[], %s::bigint[], %s::bytea[]) as g (seq, batch, result)),
    gone as (delete from lattice_lease l using given g
        where l.worker_id = %s and l.seq = g.seq and l.batch = g.batch returning l.seq, g.result),
    final as (update lattice_invocation i set state = 1, finished_at = {now}, result = o.result
        from gone o where i.seq = o.seq)"""
# A claim needs no fsync: if the database loses it, the task is merely ready again. Never in a statement that settles.
_RELAXED = "and (select set_config('synchronous_commit', 'off', true)) = 'off'"
# KEY SHARE on the worker's own row keeps the reaper out: nothing is leased to the dead. The array of ctids makes a TID scan
# whatever the statistics say; each queue seeks from its own floor by (queue_id, seq), the primary key of `ready`.
_PICKED = """alive as (select id from lattice_worker where id = %s {relaxed} for key share),
    picked as (delete from lattice_ready where ctid = any(array(
            select r.ctid from {wanted}))
        and exists (select 1 from alive)
        returning seq, queue_id, priority, attempt, flags),
    leased as (insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
        select %s, seq, %s, queue_id, priority, attempt, flags, {now} from picked)"""
# A queue is stalled while its shelf refuses and something is held. A limit is worked out once, a condition for every row.
_STALLED = "q.dlq_on_full = 'refuse' and exists (select 1 from lattice_held h where h.queue_id = q.id)"
_FIRST = f"""unnest(%s::bigint[], %s::int[], %s::bigint[]) as w (queue_id, n, floor)
            join lattice_queue q on q.id = w.queue_id and q.state in ('active', 'draining')
            cross join lateral (select ctid from lattice_ready
                where queue_id = w.queue_id and seq >= w.floor order by seq
                limit case when {_STALLED} then 0 else w.n end for update skip locked) r"""
# From a stalled queue only the replays, which may make room. They are found by their pinned letters: a long queue is not
# walked. In a statement of its own, or every claim would pay a fifth more for it.
_REPLAYED = """select l.seq from lattice_fifo_pin p
    join lattice_letter l on l.queue_id = {queue} and l.entry_id = p.entry_id
    where p.tree_id = (select id from lattice_tree where name = '_lattice_dlq_' || {queue})"""
_REPLAYS = f"""unnest(%s::bigint[], %s::int[]) as w (queue_id, n)
            join lattice_queue q on q.id = w.queue_id and q.state in ('active', 'draining') and {_STALLED}
            cross join lateral (select ctid from lattice_ready
                where queue_id = w.queue_id and seq = any(array({_REPLAYED.format(queue="w.queue_id")})) order by seq
                limit w.n for update skip locked) r"""
_DUE = """(select min(d.due_at) from unnest(%s::bigint[]) as w (queue_id)
    cross join lateral (select due_at from lattice_scheduled where queue_id = w.queue_id
        order by due_at limit 1) d)"""
_HEAD = """select exists (select 1 from alive), {due}, {now}, {gone}, p.seq, p.queue_id, p.priority, p.attempt, p.flags,
        i.id::text, i.actor, i.body, i.submitted_at, i.deadline_at, i.unknown_since
    from (select 1) one left join (picked p join lattice_invocation i on i.seq = p.seq) on true order by p.seq"""
_GONE_SEQS = "array(select seq from gone)"

_SETTLE_AND_CLAIM = Statement(
    f"with {_GONE}, {_PICKED} {_HEAD}"
    .replace("{relaxed}", "")
    .replace("{wanted}", _FIRST)
    .replace("{due}", _DUE)
    .replace("{gone}", _GONE_SEQS)
)  # fmt: skip
_CLAIM = Statement(
    f"with {_PICKED} {_HEAD}"
    .replace("{relaxed}", _RELAXED)
    .replace("{wanted}", _FIRST)
    .replace("{due}", _DUE)
    .replace("{gone}", "null::bigint[]")
)  # fmt: skip
_CLAIM_REPLAYS = Statement(
    f"with {_PICKED} {_HEAD}"
    .replace("{relaxed}", _RELAXED)
    .replace("{wanted}", _REPLAYS)
    .replace("{due}", "null::bigint")
    .replace("{gone}", "null::bigint[]")
)  # fmt: skip
_SETTLE = Statement(f"with {_GONE} select {_GONE_SEQS}")

# SQLite: the same moves as a few statements inside one BEGIN IMMEDIATE, so one fsync.
_LITE_ALIVE = Statement("select 1 from lattice_worker where id = %s")
_LITE_GONE = Statement("delete from lattice_lease where worker_id = %s and seq = %s and batch = %s returning seq")
_LITE_FINAL = Statement("update lattice_invocation set state = 1, finished_at = {now}, result = %s where seq = %s")
_LITE_LAST = Statement(
    f"""select max(seq) from (select r.seq from lattice_ready r join lattice_queue q
           on q.id = r.queue_id and q.state in ('active', 'draining') and not ({_STALLED})
       where r.queue_id = %s order by r.seq limit %s)"""
)
_LITE_REPLAYS = Statement(
    f"""select r.seq from lattice_queue q cross join ({_REPLAYED.format(queue="%s")}) l
        join lattice_ready r on r.queue_id = q.id and r.seq = l.seq
        where q.id = %s and q.state in ('active', 'draining') and {_STALLED} order by r.seq limit %s"""
)
_LITE_LEASE = Statement(
    """insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
       select %s, seq, %s, queue_id, priority, attempt, flags, {now} from lattice_ready where queue_id = %s and seq <= %s"""
)
_LITE_TAKE = Statement("delete from lattice_ready where queue_id = %s and seq <= %s")
_LITE_LEASE_ONE = Statement(
    """insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
       select %s, seq, %s, queue_id, priority, attempt, flags, {now} from lattice_ready where queue_id = %s and seq = %s"""
)
_LITE_TAKE_ONE = Statement("delete from lattice_ready where queue_id = %s and seq = %s")
_LITE_ROWS = Statement(
    """select l.seq, l.queue_id, l.priority, l.attempt, l.flags, i.id, i.actor, i.body, i.submitted_at, i.deadline_at,
           i.unknown_since
       from lattice_lease l join lattice_invocation i on i.seq = l.seq
       where l.worker_id = %s and l.queue_id = %s and l.seq <= %s and l.batch = %s order by l.seq"""
)
_LITE_DUE = Statement("select min(due_at) from lattice_scheduled where queue_id = %s")
_FILE_VERSION = Statement("pragma data_version")
_NOW = Statement("select {now}")

_PROMOTE = Statement(
    postgres="""with due as (delete from lattice_scheduled where ctid = any(array(
            select s.ctid from unnest(%s::bigint[]) as w (queue_id)
            cross join lateral (select ctid from lattice_scheduled
                where queue_id = w.queue_id and due_at <= {now} order by due_at limit %s for update skip locked) s))
            returning queue_id, seq, priority, attempt, flags)
        insert into lattice_ready (queue_id, seq, priority, attempt, flags)
        select queue_id, seq, priority, attempt, flags from due returning seq""",
    sqlite="""insert into lattice_ready (queue_id, seq, priority, attempt, flags)
        select queue_id, seq, priority, attempt, flags from lattice_scheduled
        where queue_id = %s and due_at <= %s order by due_at limit %s returning seq""",
)
_LITE_PROMOTED = Statement("delete from lattice_scheduled where seq = %s")
_MARK_STARTED = Statement("update lattice_lease set flags = flags | 8 where worker_id = %s and seq = %s and batch = %s")


def turn(
    session: Session,
    worker_id: int,
    batch: int,
    succeeded: Sequence[tuple[int, int, bytes | None]],
    wants: Sequence[Want],
    watched: Sequence[int],
) -> Turn:
    """Settle (seq, batch, result) of tasks that succeeded and claim up to each want, under the token (worker, batch).

    Args:
        watched: queue ids whose next due instant shall be told.
    """
    if session.dialect != POSTGRES:
        with session.transaction():
            return _lite_turn(session, worker_id, batch, succeeded, wants, watched)
    settling = (
        [one[0] for one in succeeded],
        [one[1] for one in succeeded],
        [one[2] for one in succeeded],
        worker_id,
    )
    if not wants and not watched:
        gone = session.fetch(_SETTLE, settling)[0][0]
        return Turn([], _refused(succeeded, gone), True, None, 0)
    claiming = (
        worker_id,
        [want.queue_id for want in wants],
        [want.limit for want in wants],
        [want.floor for want in wants],
        worker_id,
        batch,
        list(watched),
    )
    if succeeded:
        rows = session.fetch(_SETTLE_AND_CLAIM, settling + claiming)
    else:
        rows = session.fetch(_CLAIM, claiming)
    is_alive, due_at, now_us, gone = rows[0][:4]
    claimed = [Claimed(*row[4:]) for row in rows if row[4] is not None]
    claimed += _replays(session, worker_id, batch, wants, claimed)
    due_us = None if due_at is None else due_at - now_us
    return Turn(claimed, _refused(succeeded, gone or ()), is_alive, due_us, now_us)


def _replays(
    session: Session, worker_id: int, batch: int, wants: Sequence[Want], claimed: Sequence[Claimed]
) -> list[Claimed]:
    """What is replayed in those of these queues that are stalled."""
    brought = {one.queue_id for one in claimed}
    empty = [want for want in wants if want.refuses and want.queue_id not in brought]
    if not empty:
        return []
    limits = [want.limit for want in empty]
    rows = session.fetch(_CLAIM_REPLAYS, (worker_id, [want.queue_id for want in empty], limits, worker_id, batch))
    return [Claimed(*row[4:]) for row in rows if row[4] is not None]


def promote(session: Session, queue_ids: Sequence[int], limit: int) -> list[int]:
    """Move up to `limit` due invocations per queue from scheduled to ready; returns their seqs."""
    if session.dialect == POSTGRES:
        return [seq for (seq,) in session.fetch(_PROMOTE, (list(queue_ids), limit))]
    moved: list[int] = []
    with session.transaction():
        now_us = session.fetch(_NOW)[0][0]
        for queue_id in queue_ids:
            seqs = [seq for (seq,) in session.fetch(_PROMOTE, (queue_id, now_us, limit))]
            session.execute_many(_LITE_PROMOTED, [(seq,) for seq in seqs])
            moved += seqs
    return moved


def mark_started(session: Session, worker_id: int, seq: int, batch: int) -> bool:
    """Record durably that a suspect starts now; False: it is not ours any more."""
    return session.execute(_MARK_STARTED, (worker_id, seq, batch)) == 1


def file_version(session: Session) -> int:
    """SQLite: a number that changes with every commit of another connection; costs microseconds and no lock."""
    version: int = session.fetch(_FILE_VERSION)[0][0]
    return version


def next_due_us(session: Session, queue_ids: Sequence[int], now_us: int) -> int | None:
    """How far away the next scheduled invocation of these queues is, in microseconds; None: there is none."""
    dues = [row[0][0] for queue_id in queue_ids if (row := session.fetch(_LITE_DUE, (queue_id,)))[0][0] is not None]
    return min(dues) - now_us if dues else None


def _lite_turn(
    session: Session,
    worker_id: int,
    batch: int,
    succeeded: Sequence[tuple[int, int, bytes | None]],
    wants: Sequence[Want],
    watched: Sequence[int],
) -> Turn:
    gone = []
    for seq, token, result in succeeded:
        if session.fetch(_LITE_GONE, (worker_id, seq, token)):
            gone.append(seq)
            session.execute(_LITE_FINAL, (result, seq))
    is_alive = bool(session.fetch(_LITE_ALIVE, (worker_id,)))
    claimed: list[Claimed] = []
    for want in wants if is_alive else ():
        last = session.fetch(_LITE_LAST, (want.queue_id, want.limit))[0][0]
        if last is not None:
            session.execute(_LITE_LEASE, (worker_id, batch, want.queue_id, last))
            session.execute(_LITE_TAKE, (want.queue_id, last))
        else:
            last = _lite_replays(session, worker_id, batch, want) if want.refuses else 0
            if not last:
                continue
        claimed += [Claimed(*row) for row in session.fetch(_LITE_ROWS, (worker_id, want.queue_id, last, batch))]
    now_us = session.fetch(_NOW)[0][0]
    return Turn(claimed, _refused(succeeded, gone), is_alive, next_due_us(session, watched, now_us), now_us)


def _lite_replays(session: Session, worker_id: int, batch: int, want: Want) -> int:
    """Take what is replayed in a queue that is stalled; the last of it, 0 when there is none."""
    found = session.fetch(_LITE_REPLAYS, (want.queue_id, want.queue_id, want.queue_id, want.limit))
    for (seq,) in found:
        session.execute(_LITE_LEASE_ONE, (worker_id, batch, want.queue_id, seq))
        session.execute(_LITE_TAKE_ONE, (want.queue_id, seq))
    return found[-1][0] if found else 0


def _refused(succeeded: Sequence[tuple[int, int, bytes | None]], gone: Sequence[int]) -> list[int]:
    if len(gone) == len(succeeded):
        return []
    held = set(gone)
    return [one[0] for one in succeeded if one[0] not in held]
