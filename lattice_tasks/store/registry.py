"""The registry of trees: which there are, and the head of each user's tree.

A tree is in the registry before its first cell is. Its head holds the last stamp, whether its changes are journaled,
and the journal's next place; whoever changes the tree locks the head first (`hold`) and reads in later statements.
The head is a row of its own, as a FIFO's is: it is written at every change, and the names beside it are looked up by
all.
"""

from dataclasses import dataclass

from lattice_tasks.clock import Stamp
from lattice_tasks.errors import InvalidOperation
from lattice_tasks.keys import prefix_end
from lattice_tasks.store.engine import Session, Statement

__all__ = ["TREE", "TreeHead", "copy_stamp", "create", "find", "hold", "list_trees", "set_mode", "write_head"]

#: The kind of a user's tree.
TREE = "tree"


@dataclass(frozen=True, slots=True)
class TreeHead:
    """A tree's head row; `now_us` is the store's clock. `mode` None: changes are not journaled."""

    tree_id: int
    mode: str | None
    stamp: Stamp
    next_seq: int
    now_us: int


_REGISTER = Statement(
    "insert into lattice_tree (name, kind, created_at) values (%s, %s, {now}) on conflict (name) do nothing"
)
_FIRST_HEAD = Statement(
    "insert into lattice_tree_head (tree_id, mode, wall, counter, next_seq) "
    "select id, null, 0, 0, 0 from lattice_tree where name = %s and kind = %s on conflict (tree_id) do nothing"
)
_HEAD = """
    select h.tree_id, h.mode, h.wall, h.counter, h.next_seq, {now}
    from lattice_tree t join lattice_tree_head h on h.tree_id = t.id where t.name = %s
"""
# On SQLite the transaction is IMMEDIATE: it holds the whole file already.
_HOLD = Statement(_HEAD + " for update of h", sqlite=_HEAD)
_WRITE_HEAD = Statement("update lattice_tree_head set wall = %s, counter = %s, next_seq = %s where tree_id = %s")
_SET_MODE = Statement("update lattice_tree_head set mode = %s where tree_id = %s")
_COPY_STAMP = Statement("""
    update lattice_tree_head set wall = (select wall from lattice_tree_head where tree_id = %s),
        counter = (select counter from lattice_tree_head where tree_id = %s) where tree_id = %s
""")
_FIND = Statement("select id from lattice_tree where name = %s and kind = %s")
_LIST = Statement("""
    select t.name, h.mode, h.wall, t.created_at from lattice_tree t join lattice_tree_head h on h.tree_id = t.id
    where t.kind = %s and t.name >= %s and t.name < %s order by t.name
""")


def hold(session: Session, name: str) -> TreeHead:
    """Lock the head of the tree until the transaction ends; a tree that is missing is registered.

    Raises:
        InvalidOperation: a tree of another kind has this name.
    """
    rows = session.fetch(_HOLD, (name,))
    if not rows:
        session.execute(_REGISTER, (name, TREE))
        session.execute(_FIRST_HEAD, (name, TREE))
        rows = session.fetch(_HOLD, (name,))
    if not rows:
        raise InvalidOperation(f"tree {name!r} holds a queue of the system; it takes no cells and no replication")
    tree_id, mode, wall, counter, next_seq, now_us = rows[0]
    return TreeHead(tree_id, mode, Stamp(wall, counter), next_seq, now_us)


def create(session: Session, name: str) -> bool:
    """Register a tree; False when there is one of this name."""
    return session.execute(_REGISTER, (name, TREE)) == 1 and session.execute(_FIRST_HEAD, (name, TREE)) == 1


def find(session: Session, name: str) -> int | None:
    """The id of a user's tree, or None."""
    rows = session.fetch(_FIND, (name, TREE))
    return rows[0][0] if rows else None


def write_head(session: Session, tree_id: int, stamp: Stamp, next_seq: int) -> None:
    """Write the head that is held."""
    session.execute(_WRITE_HEAD, (stamp.wall, stamp.counter, next_seq, tree_id))


def copy_stamp(session: Session, source_id: int, target_id: int) -> None:
    """Let the stamps of a tree that nobody else sees yet go on from those of another."""
    session.execute(_COPY_STAMP, (source_id, source_id, target_id))


def set_mode(session: Session, tree_id: int, mode: str | None) -> None:
    """Journal the changes of a tree whose head is held, from now on, or None: no more."""
    session.execute(_SET_MODE, (mode, tree_id))


def list_trees(session: Session, prefix: str) -> list[tuple]:
    """(name, mode, wall of the last stamp, created at) of the users' trees whose name begins so, by name."""
    return session.fetch(_LIST, (TREE, prefix, prefix_end(prefix)))
