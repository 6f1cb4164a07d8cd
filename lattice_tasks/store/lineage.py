"""Which invocation took the place of which, and the last good run before a failure."""

from dataclasses import dataclass

from lattice_tasks.store.engine import Session, Statement

__all__ = ["GoodRun", "Walk", "good_run", "link", "walk_back"]


@dataclass(frozen=True, slots=True)
class GoodRun:
    """A succeeded invocation; instants in microseconds."""

    id: str
    body: bytes
    attempt: int
    submitted_at: int
    finished_at: int | None


@dataclass(frozen=True, slots=True)
class Walk:
    """One page of invocations on the way back: the lowest seq, how many there were, and the newest good one among them."""

    lowest: int | None
    looked_at: int
    good: int | None


_LINK_PARENT = Statement(
    postgres="update lattice_invocation set state = %s, entry_id = null, replaced_by = %s::uuid "
    "where seq = %s and state = %s",
    sqlite="update lattice_invocation set state = %s, entry_id = null, replaced_by = %s where seq = %s and state = %s",
)
_LINK_CHILD = Statement(
    postgres="update lattice_invocation set replay_of = %s::uuid where id = %s::uuid",
    sqlite="update lattice_invocation set replay_of = %s where id = %s",
)
# Back along the primary key, a page of rows: there is no index on the state, which every settle would have to move.
_WALK = Statement(
    """select min(seq), count(*), max(case when queue_id = %s and actor = %s and state = 1 then seq end)
       from (select seq, queue_id, actor, state from lattice_invocation where seq < %s order by seq desc limit %s) page"""
)
_GOOD = Statement(
    """select cast(id as text), body, attempt, submitted_at, finished_at from lattice_invocation
       where seq = %s and state = 1"""
)


def link(session: Session, parent_seq: int, parent_id: str, before: int, after: int, child_id: str) -> bool:
    """The parent goes from the state `before` to `after`, and both know each other; False: it is in another state."""
    session.execute(_LINK_CHILD, (parent_id, child_id))
    return session.execute(_LINK_PARENT, (after, child_id, parent_seq, before)) == 1


def walk_back(session: Session, queue_id: int, actor: str, before_seq: int, limit: int) -> Walk:
    """Look at up to `limit` invocations submitted before `before_seq`, whatever their queue, the newest first."""
    return Walk(*session.fetch(_WALK, (queue_id, actor, before_seq, limit))[0])


def good_run(session: Session, seq: int) -> GoodRun | None:
    """The succeeded invocation; None when it was pruned meanwhile."""
    rows = session.fetch(_GOOD, (seq,))
    return GoodRun(*rows[0]) if rows else None
