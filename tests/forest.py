"""Trees on a store of this code's schema, at any hour, that the tests of trees share."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from lattice_tasks.clock import Stamp, Version
from lattice_tasks.settings import Settings
from lattice_tasks.store import journal, registry
from lattice_tasks.store.engine import POSTGRES, Engine, Session, Statement
from lattice_tasks.store.journal import Record
from lattice_tasks.store.schema import migrate
from lattice_tasks.store.tree import Cell
from lattice_tasks.trees.tree import LatticeTree

NAMESPACE, NAME = 1, "orders"
TREE = "t/1/orders"
SITE = "local"


@contextmanager
def engine_at(store_url: str, offset: timedelta = timedelta(0)) -> Iterator[Engine]:
    """A process of its own, as it were, whose store clock is that far off."""
    engine = Engine(Settings(store_url=store_url, clock_offset_ms=int(offset.total_seconds() * 1_000)))
    try:
        migrate(engine)
        yield engine
    finally:
        engine.close()


def tree_of(store: Engine | Session, name: str = NAME, **options: Any) -> LatticeTree[Any]:
    return LatticeTree(store, name, options.pop("namespace_id", NAMESPACE), **options)


@contextmanager
def tree_at(store_url: str, offset: timedelta = timedelta(0), **options: Any) -> Iterator[LatticeTree[Any]]:
    with engine_at(store_url, offset) as engine:
        yield tree_of(engine, **options)


def cell(key: str, value: bytes | None, wall: int, counter: int = 0, origin: str = "far", **more: Any) -> Cell:
    return Cell(key, value, Version(Stamp(wall, counter), origin), **more)


def stored(engine: Engine, tree: str = TREE) -> dict[str, Cell]:
    """Every cell of a tree, the dead ones too."""
    with engine.session() as session:
        rows = session.fetch(
            Statement(
                "select key, value, wall, counter, origin, dead_at from lattice_cell where tree_id = "
                "(select id from lattice_tree where name = %s)"
            ),
            (tree,),
        )
    return {
        key: Cell(key, None if value is None else bytes(value), Version(Stamp(wall, counter), origin), dead_at)
        for key, value, wall, counter, origin, dead_at in rows
    }


def journaled(engine: Engine, tree: str = TREE) -> list[Record]:
    """Every record of a tree, after a look that their places are dense from 0."""
    with engine.session() as session:
        tree_id = registry.find(session, tree)
        found = [] if tree_id is None else journal.read(session, tree_id, 0, 100_000)
    assert [seq for seq, _ in found] == list(range(len(found)))
    return [record for _, record in found]


def last_stamp(engine: Engine, tree: str = TREE) -> Stamp:
    with engine.session() as session, session.transaction():
        return registry.hold(session, tree).stamp


def end_backends(engine: Engine, number: int) -> int:
    """End connections to a Postgres database, the youngest first, ours aside; how many."""
    assert engine.dialect == POSTGRES
    statement = Statement("""
        select count(pg_terminate_backend(pid)) from (
            select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
            order by random() limit %s) b
    """)
    with engine.session() as session:
        return session.fetch(statement, (number,))[0][0]
