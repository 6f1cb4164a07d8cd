"""The plain write of a tree as one statement, for Postgres: hold the head, tick, write the cells, journal them.

What `trees/writer.py` does in several steps; without conditions they need no answers in between, and one round trip and no
open transaction is half the price. The rules of the stamps are those of `clock.Stamp`.
"""

from collections.abc import Mapping

from lattice_tasks.clock import TICKS_PER_US, Stamp
from lattice_tasks.store.engine import POSTGRES, Session, Statement
from lattice_tasks.store.registry import TREE

__all__ = ["put"]

_MAX_COUNTER = 2**31 - 1
# The head is updated first, and everything else takes its place and stamps from the row as it then is, also when the
# update had to wait: so no cell is written before the head is held. All `n` stamps have one wall.
_PUT = Statement(
    f"""
    with asked as (
        select %s::text as tree, %s::bigint as n, %s::text as origin, {{now}} + %s::bigint as dead_at,
            {{now}} * {TICKS_PER_US} as now
    ), head as (
        update lattice_tree_head h set
            wall = case when a.now > h.wall then a.now when h.counter + a.n > {_MAX_COUNTER} then h.wall + 1 else h.wall end,
            counter = a.n + case when a.now > h.wall or h.counter + a.n > {_MAX_COUNTER} then -1 else h.counter end,
            next_seq = h.next_seq + case when h.mode is null then 0 else a.n end
        from asked a
        where h.tree_id = (select id from lattice_tree where name = (select tree from asked) and kind = '{TREE}')
        returning h.tree_id, h.mode, h.wall, h.counter - a.n as counter, h.next_seq - a.n - 1 as seq, a.origin, a.dead_at
    ), given as (
        select * from unnest(%s::text[], %s::bytea[]) with ordinality as g (key, value, n)
    ), cells as (
        insert into lattice_cell (tree_id, key, value, wall, counter, origin, dead_at)
        select h.tree_id, g.key, g.value, h.wall, h.counter + g.n, h.origin, h.dead_at from head h, given g
        on conflict (tree_id, key) do update set value = excluded.value, wall = excluded.wall,
            counter = excluded.counter, origin = excluded.origin, dead_at = excluded.dead_at
    ), told as (
        insert into lattice_journal (tree_id, seq, op, wall, counter, origin, key, value, expires_at)
        select h.tree_id, h.seq + g.n, 'set', h.wall, h.counter + g.n, h.origin, g.key, g.value, h.dead_at
        from head h, given g where h.mode is not null
    )
    select wall, counter + %s from head
    """
)


def put(session: Session, tree: str, values: Mapping[str, bytes], ttl_us: int | None, origin: str) -> Stamp | None:
    """Set keys, each a change of its own, and return the last one's stamp.

    Returns:
        None when nothing was done: the tree is not registered yet, there are no values, or the store is no Postgres.
    """
    if session.dialect != POSTGRES or not values:
        return None
    n = len(values)
    rows = session.fetch(_PUT, (tree, n, origin, ttl_us, list(values), list(values.values()), n))
    return Stamp(*rows[0]) if rows else None
