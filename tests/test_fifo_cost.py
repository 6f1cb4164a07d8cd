"""What a FIFO's operations cost: statements, and what a statement touches, whatever the depth."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pytest
from psycopg import sql

from lattice_tasks.fifo import LatticeQueue
from lattice_tasks.keys import entry_key
from lattice_tasks.store import trees
from lattice_tasks.store.engine import POSTGRES, Engine, Session, Statement
from tests.fifos import NAME, TREE, head_of, opened
from tests.stores import fresh_engine, watched


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


def test_the_number_of_statements_does_not_grow_with_the_batch(engine: Engine) -> None:
    """Q-38, Q-39, Q-42 as the head row has them: no extra round trip, however many come or go."""
    with watched(engine) as session:
        queue = LatticeQueue[int](session, NAME, capacity=600)
        queue.enqueue(0)
        costs = []
        for number in (1, 500, 500):
            before = session.statements
            queue.enqueue_many(range(number))
            costs.append(session.statements - before)
        before = session.statements
        queue.try_dequeue()
        costs.append(session.statements - before)

    assert costs == [3, 3, 5, 3]


@pytest.mark.parametrize("look", [LatticeQueue.count, LatticeQueue.peek, LatticeQueue.list])
def test_a_look_is_one_statement(engine: Engine, look: Callable[[LatticeQueue[int]], object]) -> None:
    """Q-23, Q-60"""
    LatticeQueue[int](engine, NAME).enqueue_many(range(100))

    with watched(engine) as session:
        look(LatticeQueue(session, NAME))

    assert session.statements == 1


def test_what_an_operation_touches_does_not_grow_with_the_depth(engine: Engine) -> None:
    """Q-60, Q-62: with a deep backlog, and far above a floor left by as many that are gone."""
    with opened(engine) as fifo:
        costs = []
        for depth in (10, 4_000):
            with fifo.held() as held:
                held.append([b"x"] * depth)
                held.take(depth // 2)
            costs.append([cost_of(engine, statement, params) for statement, params in hot_statements(engine)])

    assert all(deep <= 1.3 * shallow + 3 for shallow, deep in zip(*costs, strict=True)), costs


def hot_statements(engine: Engine) -> list[tuple[Statement, tuple]]:
    head = head_of(engine)
    keys = [entry_key(head.floor), entry_key(head.floor + 1)]
    found = keys if engine.dialect == POSTGRES else json.dumps(keys)
    values = (
        [(keys, [b"new", b"new"], 2, head.tree_id)] if engine.dialect == POSTGRES else [(b"new", head.tree_id, keys[0])]
    )
    return [
        (trees._COUNT, (TREE,)),
        (trees._FROM_FLOOR, (TREE, 1)),
        (trees._TAKE_OLDEST, (head.tree_id, keys[0], head.tree_id, 1)),
        (trees._BY_KEY, (found, TREE)),
        (trees._REMOVE, (found, 2, head.tree_id)),
        (trees._REPLACE, *values),
    ]


def cost_of(engine: Engine, statement: Statement, params: tuple) -> int:
    """Rows that Postgres handled, in the worst plan it may choose; steps of SQLite's machine; rolled back."""
    with watched(engine) as session:
        if engine.dialect == POSTGRES:
            return rows_handled(session, statement, params)
        steps = []
        session.raw.set_progress_handler(lambda: steps.append(1) and None, 1)
        session.raw.execute("begin immediate")
        session.raw.execute(statement.sqlite, params).fetchall()
        session.raw.execute("rollback")
        return len(steps)


def rows_handled(session: Session, statement: Statement, params: tuple) -> int:
    with session.raw.transaction(force_rollback=True):
        return handled(explained(session, statement, params, set()))


def explained(session: Session, statement: Statement, params: tuple, prepared: set[str]) -> dict[str, Any]:
    """What a statement does, which is done, in its generic plan, on Postgres; kept by its name in `prepared`, as the
    connection would."""
    numbers = iter(range(1, 100))
    text = re.sub("%s", lambda _: f"${next(numbers)}", statement.postgres)
    name = f"hot_{crc32(text.encode())}"
    if statement.replans and name in prepared:
        session.raw.execute(f"deallocate {name}")
        prepared.discard(name)
    if name not in prepared:
        session.raw.execute("set plan_cache_mode = force_generic_plan")
        session.raw.execute(f"prepare {name} as {text}")
        prepared.add(name)
    given = ", ".join(sql.Literal(param).as_string(session.raw) for param in params)
    run = f"execute {name}({given})" if params else f"execute {name}"
    return session.raw.execute(f"explain (analyze, buffers, format json) {run}").fetchone()[0][0]["Plan"]


def handled(plan: dict[str, Any]) -> int:
    removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    own = (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return int(own) + sum(handled(below) for below in plan.get("Plans", ()))
