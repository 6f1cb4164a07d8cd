"""Writing new invocations: one, or many in one statement; and finding the holder of an idempotency key.

An invocation and its place (ready or scheduled) are written together. The id is the client's, so the same insert can be
repeated after a lost answer and gives exactly one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["NewInvocation", "find_holders", "insert_invocations"]


@dataclass(frozen=True, slots=True)
class NewInvocation:
    """One accepted submit. `delay_us` and `deadline_us` count from the store's now; `due_at` and `deadline_at` are
    instants; None in both: at once, and never."""

    id: str
    queue_id: int
    actor: str
    body: bytes
    priority: int = 0
    key: str | None = None
    delay_us: int | None = None
    due_at: int | None = None
    deadline_us: int | None = None
    deadline_at: int | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether it starts its life in `scheduled`."""
        return self.delay_us is not None or self.due_at is not None


# One autocommit statement, so one round trip and one fsync. `on conflict do nothing` covers the id (a repeated insert)
# and the key; neither is an error.
_INSERT = """insert into lattice_invocation
    (id, queue_id, actor, body, priority, key, submitted_at, deadline_at, state, attempt)"""
_ONE_READY = Statement(
    postgres=f"""with new as ({_INSERT}
            values (%s, %s, %s, %s, %s, %s, {{now}}, coalesce(%s::bigint, {{now}} + %s::bigint), 0, 0)
            on conflict do nothing returning seq, queue_id, priority)
        insert into lattice_ready (queue_id, seq, priority, attempt, flags)
        select queue_id, seq, priority, 0, 0 from new returning seq""",
    sqlite=f"""{_INSERT} values (%s, %s, %s, %s, %s, %s, {{now}}, coalesce(%s, {{now}} + %s), 0, 0)
        on conflict do nothing returning seq""",
)
_ONE_LATER = Statement(
    postgres=f"""with new as ({_INSERT}
            values (%s, %s, %s, %s, %s, %s, {{now}}, coalesce(%s::bigint, {{now}} + %s::bigint), 0, 0)
            on conflict do nothing returning seq, queue_id, priority)
        insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
        select queue_id, coalesce(%s::bigint, {{now}} + %s::bigint), seq, priority, 0, 0 from new returning seq"""
)
_PLACE_READY = Statement(
    "insert into lattice_ready (queue_id, seq, priority, attempt, flags) values (%s, %s, %s, 0, 0)"
)
_PLACE_LATER = Statement(
    """insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
       values (%s, coalesce(%s, {now} + %s), %s, %s, 0, 0)"""
)
# Many: parallel arrays, one column each, unnested by the server; binary parameters. `ord` keeps the caller's order in `seq`.
# Ids travel back only for keyed batches: without keys a missing row can only be a repeat of this very call.
_MANY = Statement(
    f"""with given as (
            select * from unnest(%s::uuid[], %s::bigint[], %s::text[], %s::bytea[], %s::int[], %s::text[], %s::bigint[],
                %s::bigint[], %s::bigint[], %s::bigint[])
            with ordinality as g (id, queue_id, actor, body, priority, key, due_at, delay_us, deadline_at, deadline_us, ord)),
        new as ({_INSERT}
            select id, queue_id, actor, body, priority, key, {{now}}, coalesce(deadline_at, {{now}} + deadline_us), 0, 0
            from given order by ord
            on conflict do nothing returning seq, id, queue_id, priority),
        placed as (insert into lattice_ready (queue_id, seq, priority, attempt, flags)
            select n.queue_id, n.seq, n.priority, 0, 0 from new n join given g using (id)
            where g.due_at is null and g.delay_us is null),
        later as (insert into lattice_scheduled (queue_id, due_at, seq, priority, attempt, flags)
            select n.queue_id, coalesce(g.due_at, {{now}} + g.delay_us), n.seq, n.priority, 0, 0
            from new n join given g using (id) where g.due_at is not null or g.delay_us is not null)
        select id::text from new"""
)
# The plain batch of one actor: nothing keyed, nothing delayed. No join back, so it is twice as fast as `_MANY`.
_MANY_PLAIN = Statement(
    f"""with new as ({_INSERT}
            select id, %s, %s, body, %s, null, {{now}}, null, 0, 0
            from unnest(%s::uuid[], %s::bytea[]) with ordinality as g (id, body, ord) order by ord
            on conflict do nothing returning seq, queue_id, priority)
        insert into lattice_ready (queue_id, seq, priority, attempt, flags)
        select queue_id, seq, priority, 0, 0 from new"""
)
_TOP = Statement("select coalesce(max(seq), 0) from lattice_invocation")
_INSERT_AT = Statement(
    """insert into lattice_invocation
           (seq, id, queue_id, actor, body, priority, key, submitted_at, deadline_at, state, attempt)
       values (%s, %s, %s, %s, %s, %s, null, {now}, null, 0, 0)
       on conflict do nothing"""
)
_PLACE_ABOVE = Statement(
    """insert into lattice_ready (queue_id, seq, priority, attempt, flags)
       select queue_id, seq, priority, 0, 0 from lattice_invocation where seq > %s order by seq"""
)
_HOLDERS = Statement(
    postgres="""select i.queue_id, i.key, i.id::text, i.actor, i.body from lattice_invocation i
        join unnest(%s::bigint[], %s::text[]) as w (queue_id, key) on i.queue_id = w.queue_id and i.key = w.key""",
    sqlite="select queue_id, key, id, actor, body from lattice_invocation where queue_id = %s and key = %s",
)


def insert_invocations(session: Session, batch: Sequence[NewInvocation]) -> set[str]:
    """Insert them in order, all or none; returns the ids that are new (a missing one: its id or key was there).

    Ids must be distinct within the batch; of two equal keys in it the first wins.
    """
    if len(batch) == 1:
        return {batch[0].id} if _insert_one(session, batch[0]) else set()
    plain = len({(one.queue_id, one.actor, one.priority) for one in batch}) == 1 and not any(
        one.key is not None or one.is_delayed or one.deadline_us is not None or one.deadline_at is not None
        for one in batch
    )
    if session.dialect == POSTGRES:
        return _insert_plain(session, batch) if plain else _insert_mixed(session, batch)
    with session.transaction():
        if plain:
            return _insert_numbered(session, batch)
        return {one.id for one in batch if _insert_one(session, one)}


def find_holders(session: Session, keys: Sequence[tuple[int, str]]) -> dict[tuple[int, str], tuple[str, str, bytes]]:
    """(queue id, key) → (id, actor, body) of the invocation that holds the key."""
    if session.dialect == POSTGRES:
        found = session.fetch(_HOLDERS, ([queue_id for queue_id, _ in keys], [key for _, key in keys]))
    else:
        found = [row for pair in keys for row in session.fetch(_HOLDERS, pair)]
    return {(queue_id, key): (task_id, actor, body) for queue_id, key, task_id, actor, body in found}


def _insert_one(session: Session, one: NewInvocation) -> bool:
    columns = (one.id, one.queue_id, one.actor, one.body, one.priority, one.key, one.deadline_at, one.deadline_us)
    if session.dialect == POSTGRES:
        if one.is_delayed:
            return bool(session.fetch(_ONE_LATER, (*columns, one.due_at, one.delay_us)))
        return bool(session.fetch(_ONE_READY, columns))
    with session.transaction():
        rows = session.fetch(_ONE_READY, columns)
        for (seq,) in rows:
            if one.is_delayed:
                session.execute(_PLACE_LATER, (one.queue_id, one.due_at, one.delay_us, seq, one.priority))
            else:
                session.execute(_PLACE_READY, (one.queue_id, seq, one.priority))
    return bool(rows)


def _insert_plain(session: Session, batch: Sequence[NewInvocation]) -> set[str]:
    first, ids = batch[0], [one.id for one in batch]
    session.execute(_MANY_PLAIN, (first.queue_id, first.actor, first.priority, ids, [one.body for one in batch]))
    return set(ids)


def _insert_mixed(session: Session, batch: Sequence[NewInvocation]) -> set[str]:
    rows = session.fetch(
        _MANY,
        (
            [one.id for one in batch],
            [one.queue_id for one in batch],
            [one.actor for one in batch],
            [one.body for one in batch],
            [one.priority for one in batch],
            [one.key for one in batch],
            [one.due_at for one in batch],
            [one.delay_us for one in batch],
            [one.deadline_at for one in batch],
            [one.deadline_us for one in batch],
        ),
    )
    return {row[0] for row in rows}


def _insert_numbered(session: Session, batch: Sequence[NewInvocation]) -> set[str]:
    # BEGIN IMMEDIATE keeps every other writer out, so the numbers can be dealt here.
    top = session.fetch(_TOP)[0][0]
    numbered = list(enumerate(batch, start=top + 1))
    session.execute_many(
        _INSERT_AT, [(seq, one.id, one.queue_id, one.actor, one.body, one.priority) for seq, one in numbered]
    )
    # What is above the old top is what was really inserted: an id that was there already keeps its place.
    session.execute(_PLACE_ABOVE, (top,))
    return {one.id for one in batch}
