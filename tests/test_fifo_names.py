"""`lattice.fifo` and `lattice.fifo_lanes`: names, namespaces, bounds by name, what is told, and what is left alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.dead_letters.parking import shelf_fifo
from lattice_tasks.errors import InvalidInput, ReservedName, SettingsError
from lattice_tasks.fifo import Fifo, LatticeQueue
from lattice_tasks.fifo.lanes import lane_of
from lattice_tasks.settings import load
from lattice_tasks.store.engine import Engine, Statement
from tests.stores import fresh_engine

pytestmark = pytest.mark.recycled

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    lattice = Lattice(store_url=store_url, set_default=False, log_level="error")
    yield lattice
    lattice.close()


def of(lattice: Lattice, **settings: Any) -> Lattice:
    return Lattice(store_url=lattice.settings.store_url, set_default=False, log_level="error", **settings)


def values(queue: LatticeQueue[Any]) -> list[Any]:
    return [entry.value for entry in queue.list()]


def test_a_queue_needs_its_name_only_and_opens_nothing_by_being_named(sqlite_url: str, tmp_path: Path) -> None:
    """Q-05, Q-11: a module may name its queues; the first call makes the store."""
    lattice = Lattice(store_url=sqlite_url, set_default=False, log_level="error")
    queue = lattice.fifo("work-items")
    lanes = lattice.fifo_lanes("lanes")
    assert list(tmp_path.glob("*.db")) == []

    assert queue.enqueue({"id": 7}) == 1
    assert lattice.fifo("work-items").try_dequeue().value == {"id": 7}
    assert lanes.count() == 0
    lattice.close()


def test_a_queue_in_another_namespace_is_another_queue(lattice: Lattice) -> None:
    """Q-04: not even a name that spells the other's place leads there."""
    other = of(lattice, namespace="b")
    lattice.fifo("work").enqueue("mine")
    for name in ("work", "b/work", "b work"):
        lattice.fifo(name).enqueue("mine")

    assert other.fifo("work").list() == []
    assert other.fifo("work").enqueue("theirs") == 1
    assert values(lattice.fifo("work")) == ["mine", "mine"]
    other.close()


def test_a_queue_follows_the_callers_transaction(lattice: Lattice) -> None:
    """Q-49: entry and task come and go together."""
    queue = lattice.fifo("work")
    queue.enqueue("first")
    database = lattice.engine.database

    with database.connection_context(), lattice.transaction(database):
        assert queue.try_dequeue().value == "first"
        queue.enqueue("second")
    with suppress(ZeroDivisionError), database.connection_context(), lattice.transaction(database):
        assert queue.try_dequeue().value == "second"
        queue.enqueue(1 / 0)

    assert values(queue) == ["second"]


def test_a_bound_goes_by_the_queues_name(lattice: Lattice) -> None:
    """Q-50, Q-51: an override, the fall-back, and the caller's own word over both."""
    bounded = of(lattice, fifo_capacity={"a": 2, "*": 3})

    for queue in (bounded.fifo("a"), bounded.fifo("b"), bounded.fifo("c", capacity=1), lattice.fifo("d")):
        queue.enqueue_many(range(5))

    counts = [bounded.fifo(name).count() for name in "abcd"]
    assert counts == [2, 3, 1, 5]
    bounded.close()


def test_a_bound_that_was_lowered_holds_from_the_next_enqueue_on(lattice: Lattice) -> None:
    """Q-54, Q-56: read at each enqueue, whoever has the queue in hand."""
    queue = lattice.fifo("work")
    queue.enqueue_many(range(10))
    lattice.settings = replace(lattice.settings, fifo_capacity={"work": 3})
    assert queue.count() == 10

    assert queue.enqueue(10) == 11

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == [(9, 8), (10, 9), (11, 10)]


@pytest.mark.parametrize(
    "text", ["0", "-1", "many", "1.5", "true", "null", '{"a": 0}', '{"a": true}', "[1]", '{"a": {}}']
)
def test_a_bound_below_one_is_refused_wherever_it_stands(text: str, tmp_path: Path) -> None:
    """Q-52: says where it was read, and for which queue."""
    file = tmp_path / "lattice.toml"
    file.write_text(f"fifo_capacity = {text}" if text in ("0", "-1", "1.5", "true") else f"fifo_capacity = '{text}'")

    with pytest.raises(SettingsError, match=r"LATTICE_FIFO_CAPACITY.*from 1"):
        load({}, {"LATTICE_FIFO_CAPACITY": text}, None)
    with pytest.raises(SettingsError, match=r"lattice.toml.*from 1"):
        load({}, {}, file)
    with pytest.raises(SettingsError, match="argument"):
        load({"fifo_capacity": {"a": 0}}, {})
    with pytest.raises(InvalidInput, match="capacity=0"):
        Lattice(set_default=False).fifo("a", capacity=0)


def test_a_bound_is_read_from_file_environment_and_arguments(tmp_path: Path) -> None:
    """Q-50: the nearer source replaces the farther one as a whole; a number alone is for every queue."""
    file = tmp_path / "lattice.toml"
    file.write_text('[fifo_capacity]\n"work-items" = 50\n"*" = 1000\n')
    environment = {"LATTICE_FIFO_CAPACITY": '{"a": 7}'}

    from_file, from_environment, from_arguments = (
        load({}, {}, file),
        load({}, environment, file),
        load({"fifo_capacity": 9}, environment, file),
    )

    assert [from_file.fifo_capacity_of(name) for name in ("work-items", "other")] == [50, 1000]
    assert [from_environment.fifo_capacity_of(name) for name in ("a", "other", "work-items")] == [7, None, None]
    assert from_arguments.fifo_capacity_of("a") == 9
    assert load({}, {"LATTICE_FIFO_CAPACITY": "12"}).fifo_capacity == {"*": 12}


def test_what_is_evicted_is_told(lattice: Lattice) -> None:
    """Q-53: nothing is dropped without a record that says so."""
    told: list[tuple[str, dict[str, Any]]] = []
    lattice.telemetry.subscribe(lambda name, fields: told.append((name, dict(fields))))

    lattice.fifo("work", capacity=2).enqueue_many("abcd")

    assert [fields for name, fields in told if name == "fifo.evicted"] == [
        {"queue": "work", "count": 2, "entry_ids": [1, 2]}
    ]


def test_a_key_always_leads_to_the_same_lane_and_keeps_its_order(lattice: Lattice) -> None:
    """Q-64"""
    lanes = lattice.fifo_lanes("orders", lanes=4)
    keys = [f"customer {number}" for number in range(20)]
    for turn in range(5):
        for key in keys:
            lattice.fifo_lanes("orders", lanes=4).enqueue(key, [key, turn])

    drained = {lane.name: [entry.value for entry in iter(lane.try_dequeue, None)] for lane in lanes}

    assert list(drained) == [f"orders/{number}" for number in range(4)]
    assert all(drained.values()), "twenty keys leave no lane of four empty"
    for key in keys:
        (found,) = [
            [turn for one, turn in entries if one == key] for entries in drained.values() if [key, 0] in entries
        ]
        assert found == [0, 1, 2, 3, 4]
        assert [key, 0] in drained[lanes.lane(key).name]
    assert sum(map(len, drained.values())) == 100


def test_a_lane_is_the_same_in_every_process() -> None:
    """Q-64: whatever the seed of Python's own hash; and in every release, for entries wait in their lanes meanwhile."""
    keys = ["", "a", "customer 1", "customer 2", "ünï", "x" * 1_000, "\U0001f600"]
    program = f"from lattice_tasks.fifo.lanes import lane_of; print([lane_of(key, 8) for key in {keys!r}])"

    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4294967295")
    }

    assert said == {f"{[lane_of(key, 8) for key in keys]}\n"}
    assert [lane_of(key, 8) for key in keys] == [4, 7, 2, 7, 7, 7, 0]


def test_lanes_are_used_evenly() -> None:
    """Q-64"""
    used = [0] * 8
    for number in range(8_000):
        used[lane_of(f"key{number}", 8)] += 1

    assert min(used) > 850
    assert max(used) < 1_150


@pytest.mark.parametrize("lanes", [0, -1, True, 1.5, "8", 1_025, None])
def test_a_number_of_lanes_that_is_none_is_refused(lattice: Lattice, lanes: Any) -> None:
    with pytest.raises(InvalidInput, match="lanes="):
        lattice.fifo_lanes("orders", lanes=lanes)


@pytest.mark.parametrize("key", [None, 7, b"bytes", "\ud800"])
def test_a_lane_key_that_is_no_text_is_refused(lattice: Lattice, key: Any) -> None:
    with pytest.raises(InvalidInput, match="lane key"):
        lattice.fifo_lanes("orders").enqueue(key, 1)
    assert lattice.fifo_lanes("orders").count() == 0


def test_lanes_have_names_and_bounds_like_any_queue(lattice: Lattice) -> None:
    """Q-08, Q-50: by the lane's own name, else by the name of them all."""
    with pytest.raises(InvalidInput):
        lattice.fifo_lanes("")
    with pytest.raises(ReservedName):
        lattice.fifo_lanes("_lattice_x")
    bounded = of(lattice, fifo_capacity={"orders": 2, "orders/0": 1, "*": 5})

    for lane in bounded.fifo_lanes("orders", lanes=2):
        lane.enqueue_many(range(9))

    assert [lane.count() for lane in bounded.fifo_lanes("orders", lanes=2)] == [1, 2]
    bounded.close()


def test_a_queue_writes_into_its_own_tables_only(lattice: Lattice) -> None:
    """Q-06: no journal, no feed, no outbox ever holds a row of it."""
    lattice.fifo("before").enqueue(0)
    before = rows_of_tables(lattice.engine)

    queue = lattice.fifo("work", capacity=2)
    queue.enqueue_many(range(5))
    queue.try_dequeue()
    queue.enqueue_many(range(2))

    after = rows_of_tables(lattice.engine)
    grown = {table: after[table] - before[table] for table in after if after[table] != before[table]}
    assert grown == {"lattice_tree": 1, "lattice_tree_row": 2, "lattice_fifo_head": 1}


def test_shelves_of_dead_letters_and_queues_are_one_engine(store_url: str) -> None:
    """Q-07: the same rows, the same head; prefix, codec and what is done with evicted entries are parameters."""
    with fresh_engine(store_url) as engine:
        LatticeQueue[int](engine, "work").enqueue_many([1, 2])
        with engine.session() as session:
            shelf = shelf_fifo(session, 7)
            assert type(shelf) is Fifo
            with shelf.held() as held:
                held.append([b"letter", b"letter"])
            stored = session.fetch(
                Statement(
                    """select t.name, min(r.key), max(h.next_id), max(h.count) from lattice_tree t
                       join lattice_tree_row r on r.tree_id = t.id join lattice_fifo_head h on h.tree_id = t.id
                       group by t.name order by t.name"""
                )
            )

    key = "e/0000000000000000001"
    assert stored == [("_lattice_dlq_7", key, 3, 2), ("_lattice_queue_work", key, 3, 2)]


def rows_of_tables(engine: Engine) -> dict[str, int]:
    tables = Statement(
        postgres="select tablename from pg_tables where schemaname = current_schema()",
        sqlite="select name from sqlite_schema where type = 'table' and name not like 'sqlite_%%'",
    )
    with engine.session() as session:
        names = [name for (name,) in session.fetch(tables)]
        assert "lattice_tree_row" in names
        return {name: session.fetch(Statement(f'select count(*) from "{name}"'))[0][0] for name in names}
