"""Views of one queue that the FIFO tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lattice_tasks.fifo import Fifo, LatticeQueue
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Engine

NAME, TREE = "work", "_lattice_queue_work"


@contextmanager
def opened(engine: Engine) -> Iterator[Fifo]:
    with engine.session() as session:
        yield Fifo(session, TREE)


def head_of(engine: Engine) -> trees.Head:
    with engine.session() as session, session.transaction():
        return trees.hold(session, TREE)


def ids(queue: LatticeQueue[Any]) -> list[int]:
    return [entry.entry_id for entry in queue.list()]
