"""A FIFO with a bound: what is evicted, what is pinned, and what finds no place."""

from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks.errors import InvalidInput, QueueFull
from lattice_tasks.fifo import LatticeQueue
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Engine
from tests.fifos import head_of, ids, opened
from tests.stores import fresh_engine


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


@pytest.fixture
def queue(engine: Engine) -> LatticeQueue[Any]:
    return LatticeQueue(engine, "work")


def pin(engine: Engine, *entry_ids: int) -> None:
    with opened(engine) as fifo, fifo.held() as held:
        held.pin(entry_ids)


def test_the_bound_evicts_the_oldest_and_renumbers_nothing(engine: Engine) -> None:
    """Q-51, Q-53, Q-55, Q-56"""
    queue = LatticeQueue[str](engine, "work", capacity=2)

    queue.enqueue_many(["a", "b"])
    queue.enqueue("c")

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == [(2, "b"), (3, "c")]
    assert queue.count() == 2
    assert head_of(engine).floor == 2


def test_a_batch_larger_than_the_bound_leaves_its_end(engine: Engine) -> None:
    """Q-53: as if they had come one by one."""
    told: list[tuple[int, bytes]] = []
    queue = LatticeQueue[int](
        engine, "work", capacity=3, on_evicted=lambda gone: told.extend((one.entry_id, one.value) for one in gone)
    )
    queue.enqueue(0)

    assert queue.enqueue_many([1, 2, 3, 4, 5]) == [2, 3, 4, 5, 6]

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == [(4, 3), (5, 4), (6, 5)]
    assert told == [(1, b"0"), (2, b"1"), (3, b"2")]
    assert queue.count() == 3


def test_the_capacity_is_read_at_each_enqueue(engine: Engine) -> None:
    """Q-50, Q-54: lowering it makes the next enqueue evict as many as needed."""
    bound: list[int | None] = [None]
    queue = LatticeQueue[int](engine, "work", capacity=lambda: bound[0])
    queue.enqueue_many(range(10))
    bound[0] = 3
    assert queue.count() == 10

    queue.enqueue(10)

    assert [entry.value for entry in queue.list()] == [8, 9, 10]


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "3"])
def test_a_capacity_below_one_is_refused(engine: Engine, capacity: Any) -> None:
    """Q-52"""
    with pytest.raises(InvalidInput, match="capacity"):
        LatticeQueue(engine, "work", capacity=capacity)
    with pytest.raises(InvalidInput, match="capacity"):
        LatticeQueue(engine, "work", capacity=lambda: capacity).enqueue(1)


def test_a_pinned_entry_is_passed_over_by_eviction_and_dequeue(engine: Engine) -> None:
    queue = LatticeQueue[int](engine, "work", capacity=3)
    queue.enqueue_many([1, 2, 3])
    pin(engine, 1, 3)

    queue.enqueue_many([4, 5])

    assert ids(queue) == [1, 3, 5]
    assert head_of(engine).floor == 1
    assert queue.try_dequeue().entry_id == 5
    assert queue.try_dequeue() is None
    assert ids(queue) == [1, 3]


def test_an_unpinned_entry_is_the_oldest_again(engine: Engine) -> None:
    queue = LatticeQueue[int](engine, "work", capacity=2)
    queue.enqueue_many([1, 2])
    pin(engine, 1)
    queue.enqueue(3)
    with opened(engine) as fifo, fifo.held() as held:
        held.unpin([1])

    queue.enqueue(4)

    assert ids(queue) == [3, 4]


def test_where_everything_is_pinned_there_is_no_place(engine: Engine) -> None:
    queue = LatticeQueue[int](engine, "work", capacity=2)
    queue.enqueue_many([1, 2])
    pin(engine, 1, 2)

    with pytest.raises(QueueFull, match="work"):
        queue.enqueue(3)

    assert ids(queue) == [1, 2]
    assert LatticeQueue[int](engine, "work").enqueue(3) == 3


def test_a_refusing_append_takes_what_fits(engine: Engine) -> None:
    with opened(engine) as fifo, fifo.held() as held:
        first = held.append([b"a", b"b", b"c"], capacity=2, evicts=False)
        second = held.append([b"d"], capacity=2, evicts=False)

    assert (first.ids, second.ids) == ((1, 2, None), (None,))
    assert (first.evicted, second.evicted) == ((), ())


def test_removing_a_pinned_entry_removes_its_pin(engine: Engine, queue: LatticeQueue[int]) -> None:
    queue.enqueue_many([1, 2])
    pin(engine, 1)

    with opened(engine) as fifo, fifo.held() as held:
        assert [row.entry_id for row in held.remove([1, 7])] == [1]

    with engine.session() as session:
        assert trees.count_pins(session, head_of(engine).tree_id) == 0
    assert head_of(engine).floor == 2
