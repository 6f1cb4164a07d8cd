"""A FIFO's operations touch the same number of Postgres's pages at every depth, and after any number of entries has gone.

Counted by EXPLAIN (ANALYZE, BUFFERS) of the very statements, in their generic plans, with no statistics on the table.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import psycopg
import pytest

from lattice_tasks.fifo import Fifo, LatticeQueue
from lattice_tasks.store.engine import Engine, Session, Statement
from tests.fifos import NAME, TREE, opened
from tests.stores import fresh_engine
from tests.test_fifo_cost import explained, handled

AT_MOST = 1.5
MILLION = pytest.param(1_000_000, marks=pytest.mark.slow)
FILL = Statement(
    """insert into lattice_tree_row (tree_id, key, value)
       select h.tree_id, 'e/' || lpad((h.next_id + n)::text, 19, '0'), '"filled"'
       from lattice_fifo_head h, generate_series(0, %s - 1) n where h.tree_id = (select id from lattice_tree where name = %s)"""
)
RAISE = Statement(
    """update lattice_fifo_head set next_id = next_id + %s, count = count + %s
       where tree_id = (select id from lattice_tree where name = %s)"""
)
OPERATIONS: dict[str, Callable[[LatticeQueue[Any]], object]] = {
    "enqueue": lambda queue: queue.enqueue("one"),
    "dequeue": lambda queue: queue.try_dequeue(),
    "peek": lambda queue: queue.peek(),
    "count": lambda queue: queue.count(),
    "enqueue at the bound": lambda queue: LatticeQueue[Any](queue._store, NAME, capacity=queue.count()).enqueue("one"),
    "enqueue and remove": lambda queue: Fifo(queue._store, TREE).remove(queue.enqueue("one")),
}


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    with fresh_engine(postgres_url) as engine:
        yield engine


class Measured(Session):
    """Adds up the pages that each statement touches; it runs once to be measured, which is undone, and once more.

    Its plans are those of the first time, as in a connection that has been open since the queue was short.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.open_session().raw, engine.dialect)
        self.pages = 0
        self._prepared: set[str] = set()

    def fetch(self, statement: Statement, params: Any = ()) -> list[tuple]:
        self._measure(statement, params)
        return super().fetch(statement, params)

    def execute(self, statement: Statement, params: Any = ()) -> int:
        self._measure(statement, params)
        return super().execute(statement, params)

    def _measure(self, statement: Statement, params: Any) -> None:
        if "savepoint" in statement.postgres:
            return
        with self.raw.transaction(force_rollback=True):
            plan = explained(self, statement, params, self._prepared)
        self.pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    def pages_of(self, operation: Callable[[LatticeQueue[Any]], object]) -> int:
        before = self.pages
        with self.transaction():
            operation(LatticeQueue[Any](self, NAME))
        return self.pages - before


def fill(engine: Engine, number: int) -> None:
    """So many entries at once, as if they had been enqueued."""
    with engine.session() as session, session.transaction():
        session.execute(FILL, (number, TREE))
        session.execute(RAISE, (number, number, TREE))


def pages(measured: Measured) -> dict[str, float]:
    """Of each operation, in the middle of five."""
    return {name: median(measured.pages_of(step) for _ in range(5)) for name, step in OPERATIONS.items()}


def assert_not_dearer(shallow: dict[str, float], deep: dict[str, float]) -> None:
    assert all(shallow.values())
    assert {name: deep[name] for name in deep if deep[name] > AT_MOST * shallow[name]} == {}, (shallow, deep)


@pytest.fixture
def early(engine: Engine) -> Iterator[Measured]:
    """A connection that is there since the first entry."""
    LatticeQueue[Any](engine, NAME).enqueue("one")
    measured = Measured(engine)
    yield measured
    measured.close()


@pytest.fixture
def late(engine: Engine) -> Iterator[Measured]:
    """One that plans when it is first used."""
    measured = Measured(engine)
    yield measured
    measured.close()


@pytest.mark.parametrize("depth", [1_000, MILLION])
def test_the_pages_of_an_operation_do_not_grow_with_the_depth(
    engine: Engine, early: Measured, late: Measured, depth: int
) -> None:
    """Q-23, Q-60, Q-62, C41: neither in plans made for one entry nor in those made for many."""
    shallow = pages(early)
    fill(engine, depth)

    assert_not_dearer(shallow, pages(early))
    assert_not_dearer(shallow, pages(late))
    assert LatticeQueue[Any](engine, NAME).count() > depth


@pytest.mark.parametrize("depth", [1_000, MILLION])
def test_entries_that_are_gone_cost_no_pages(engine: Engine, early: Measured, late: Measured, depth: int) -> None:
    """Q-43: drained through the engine, and nothing has been vacuumed; a snapshot held meanwhile keeps them all."""
    shallow = pages(early)
    fill(engine, depth)

    with psycopg.connect(engine.url) as snapshot:
        snapshot.execute("set transaction isolation level repeatable read")
        snapshot.execute("select count(*) from lattice_fifo_head")
        drain(engine)
        LatticeQueue[Any](engine, NAME).enqueue("one")
        assert_not_dearer(shallow, pages(early))
        assert_not_dearer(shallow, pages(late))

    assert LatticeQueue[Any](engine, NAME).count() == 1


def test_a_plan_made_by_the_statistics_of_a_short_queue_does_not_read_all_of_a_long_one(
    engine: Engine, early: Measured
) -> None:
    """C41: analysed when it held one entry, as autovacuum does with a queue that is mostly empty; then comes a burst."""
    with engine.session() as session:
        session.raw.execute("vacuum analyze")
    shallow = pages(early)
    fill(engine, 50_000)

    deep = pages(early)

    assert {name: deep[name] for name in deep if deep[name] > shallow[name] + 15} == {}


def test_what_must_be_planned_anew_is(engine: Engine) -> None:
    """C41: whatever walks entries; a thousand times would not make psycopg keep the plan."""
    session = engine.open_session()
    queue = LatticeQueue[Any](session, NAME)
    for _ in range(20):
        queue.enqueue("one")
        queue.peek()
        queue.try_dequeue()

    kept = [text for (text,) in session.raw.execute("select statement from pg_prepared_statements").fetchall()]
    session.close()

    assert any("for update of h" in text for text in kept)
    assert [text for text in kept if "order by key" in text] == []


def drain(engine: Engine) -> None:
    with opened(engine) as fifo:
        gone = 1
        while gone:
            with fifo.held() as held:
                gone = len(held.take(50_000))


def test_a_list_walks_what_lives_and_nothing_else(engine: Engine) -> None:
    """Q-61, Q-43: one ordered walk from the floor."""
    queue = LatticeQueue[Any](engine, NAME)
    queue.enqueue_many(range(5_000))
    with opened(engine) as fifo, fifo.held() as held:
        held.take(4_900)

    session = engine.open_session()
    seen: list[dict[str, Any]] = []

    class Planned(Session):
        def fetch(self, statement: Statement, params: Any = ()) -> list[tuple]:
            seen.append(explained(self, statement, params, set()))
            return super().fetch(statement, params)

    found = LatticeQueue[Any](Planned(session.raw, session.dialect), NAME).list()
    session.close()

    (plan,) = seen
    assert [entry.value for entry in found] == list(range(4_900, 5_000))
    assert "Sort" not in kinds(plan)
    assert "Seq Scan" not in {
        node["Node Type"] for node in nodes(plan) if node.get("Relation Name") == "lattice_tree_row"
    }
    assert handled(plan) < 4 * 100 + 20


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def kinds(plan: dict[str, Any]) -> set[str]:
    return {node["Node Type"] for node in nodes(plan)}
