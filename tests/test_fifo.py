"""The typed queue, its ids and its rows, on both engines."""

from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks.errors import InvalidInput, InvalidOperation, NotEncodable, ReservedName
from lattice_tasks.fifo import LatticeQueue
from lattice_tasks.keys import MAX_ID
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Engine, Statement
from tests.fifos import TREE, head_of, ids, opened
from tests.stores import fresh_engine


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


class Text:
    """Another format than the default, that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def serialize(self, value: str) -> bytes:
        self.calls += 1
        return value.encode("utf-16")

    def deserialize(self, data: bytes) -> str:
        self.calls += 1
        return data.decode("utf-16")


@pytest.fixture
def queue(engine: Engine) -> LatticeQueue[Any]:
    return LatticeQueue(engine, "work")


def test_entries_leave_in_the_order_they_came(queue: LatticeQueue[int]) -> None:
    """Q-02"""
    queue.enqueue_many(range(100))
    for value in range(100, 200):
        queue.enqueue(value)

    drained = [entry.value for entry in iter(queue.try_dequeue, None)]

    assert drained == list(range(200))


def test_one_name_is_one_queue_and_two_names_are_two(engine: Engine) -> None:
    """Q-03, Q-04, Q-05: nobody created it before."""
    here, there = LatticeQueue[str](engine, "a"), LatticeQueue[str](engine, "a")
    other = LatticeQueue[str](engine, "b")
    other.enqueue("untouched")

    here.enqueue_many(["x", "y"])

    assert there.try_dequeue().value == "x"
    assert [(entry.entry_id, entry.value) for entry in other.list()] == [(1, "untouched")]
    assert (other.count(), here.count()) == (1, 1)


@pytest.mark.parametrize("name", ["", "  ", "x" * 256, "a\0b", "line\n", "\ud800", None])
def test_a_name_that_is_none_is_refused(engine: Engine, name: str) -> None:
    """Q-08"""
    with pytest.raises(InvalidInput):
        LatticeQueue(engine, name)


def test_the_systems_names_are_refused(engine: Engine) -> None:
    with pytest.raises(ReservedName, match="_lattice_"):
        LatticeQueue(engine, "_lattice_dlq_1")


@pytest.mark.parametrize("name", ["gpu/α", "it's", 'a"b; drop table x', "%s {now} %", "x" * 255, "_private"])
def test_any_other_name_is_a_name(engine: Engine, name: str) -> None:
    queue = LatticeQueue[int](engine, name)

    assert (queue.enqueue(1), queue.count(), queue.try_dequeue().value) == (1, 1, 1)


def test_an_empty_queue_answers_with_nothing(queue: LatticeQueue[Any]) -> None:
    """Q-21, Q-22, Q-23"""
    assert (queue.try_dequeue(), queue.peek(), queue.count(), queue.list()) == (None, None, 0, [])


def test_looking_changes_nothing(queue: LatticeQueue[str]) -> None:
    """Q-22, Q-23, Q-24, Q-25, Q-30"""
    assert queue.enqueue_many(["a", "b", "c"]) == [1, 2, 3]
    before = queue.list()

    assert queue.peek() == queue.peek() == before[0]
    assert queue.count() == 3
    assert queue.list(limit=2) == before[:2]
    queue.try_dequeue()

    assert [(entry.entry_id, entry.value) for entry in before] == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("value", [None, "ünï", 1.5, [1, {"a": [True, None]}], {"k": "v"}, "", "x" * 100_000])
def test_json_values_come_back_as_they_went(queue: LatticeQueue[Any], value: object) -> None:
    """Q-11"""
    queue.enqueue(value)

    assert queue.try_dequeue().value == value


def test_a_serializer_is_used_for_everything(engine: Engine) -> None:
    """Q-10, Q-12"""
    text = Text()
    queue = LatticeQueue[str](engine, "work", serializer=text)

    queue.enqueue_many(["one", "two"])
    seen = [queue.peek().value, queue.list()[1].value, queue.try_dequeue().value]

    assert seen == ["one", "two", "one"]
    assert text.calls == 2 + 1 + 2 + 1


@pytest.mark.parametrize("serializer", [None, "json", object(), Text.serialize])
def test_what_is_no_serializer_is_refused_at_once(engine: Engine, serializer: Any) -> None:
    """Q-10"""
    with pytest.raises(InvalidInput, match=r"serializer=.* of queue 'work'"):
        LatticeQueue(engine, "work", serializer=serializer)


def test_a_value_that_cannot_be_written_costs_nothing(engine: Engine, queue: LatticeQueue[Any]) -> None:
    """Q-13, Q-20: no row, no id; all or none."""

    class Nothing(Text):
        def serialize(self, value: str) -> bytes:
            return None

    for refused in (object(), "\ud800", float("nan").__class__):
        with pytest.raises(NotEncodable):
            queue.enqueue_many(["fine", refused])
    with pytest.raises(InvalidInput):
        LatticeQueue(engine, "work", serializer=Nothing()).enqueue("x")

    assert queue.count() == 0
    assert queue.enqueue("first") == 1


def test_a_reader_with_another_serializer_spoils_nothing(engine: Engine, queue: LatticeQueue[Any]) -> None:
    """Q-14: the decode error is the reader's, and the entry stays at the head."""
    LatticeQueue[str](engine, "work", serializer=Text()).enqueue("deep")

    for read in (queue.peek, queue.list, queue.try_dequeue):
        with pytest.raises(ValueError):
            read()

    assert LatticeQueue[str](engine, "work", serializer=Text()).try_dequeue().value == "deep"


def test_ids_rise_and_are_never_issued_again(queue: LatticeQueue[int]) -> None:
    """Q-30, Q-31, Q-33, Q-34: drained, with nothing kept in memory."""
    queue.enqueue_many([0, 0, 0])
    while queue.try_dequeue():
        pass

    assert queue.enqueue(0) == 4


def test_an_id_is_not_issued_again_after_its_entry_was_removed(engine: Engine, queue: LatticeQueue[int]) -> None:
    """Q-28, Q-32, Q-35, Q-40: the tail was removed while earlier entries remain."""
    queue.enqueue_many([0, 0, 0])
    with opened(engine) as fifo:
        assert fifo.remove(3)
        assert not fifo.remove(3)
        assert not any(fifo.remove(unknown) for unknown in (0, -1, 99, 2**63, 2**70))

    assert queue.enqueue(0) == 4
    assert ids(queue) == [1, 2, 4]


def test_entries_are_found_and_removed_by_id(engine: Engine, queue: LatticeQueue[str]) -> None:
    """Q-28"""
    queue.enqueue_many(["a", "b", "c"])

    with opened(engine) as fifo:
        assert fifo.try_get(2) == b'"b"'
        assert fifo.remove(2)
        assert [fifo.try_get(unknown) for unknown in (2, 0, -5, 2**63, 2**70)] == [None] * 5

    assert [entry.value for entry in queue.list()] == ["a", "c"]
    assert queue.count() == 2


def test_a_replaced_entry_keeps_id_and_place(engine: Engine, queue: LatticeQueue[str]) -> None:
    queue.enqueue_many(["a", "b", "c"])

    with opened(engine) as fifo, fifo.held() as held:
        held.replace({1: b'"x"', 3: b'"z"'})

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == [(1, "x"), (2, "b"), (3, "z")]


def test_the_floor_follows_the_head(engine: Engine, queue: LatticeQueue[int]) -> None:
    """Q-37, Q-43: what was dequeued is not walked again, whichever way it went."""
    queue.enqueue_many(range(5))

    floors = []
    for step in (lambda fifo: fifo.remove(2), lambda fifo: fifo.remove(1), lambda _: queue.try_dequeue()):
        with opened(engine) as fifo:
            step(fifo)
        floors.append(head_of(engine).floor)
    with opened(engine) as fifo:
        fifo.remove(5)
        fifo.remove(4)

    assert floors == [1, 2, 4]
    assert (head_of(engine).floor, head_of(engine).next_id, head_of(engine).count) == (6, 6, 0)


def test_a_floor_that_is_too_low_only_costs_a_walk(engine: Engine, queue: LatticeQueue[int]) -> None:
    """Q-44"""
    queue.enqueue_many(range(4))
    queue.try_dequeue()
    queue.try_dequeue()
    with engine.session() as session, session.transaction():
        head = trees.hold(session, TREE)
        trees.write_head(session, head.tree_id, 1, head.next_id, head.count)

    assert (queue.peek().entry_id, ids(queue)) == (3, [3, 4])
    assert [queue.try_dequeue().value, queue.try_dequeue().value, queue.try_dequeue()] == [2, 3, None]


@pytest.mark.parametrize("key", ["e/abc", "e/1", "e/00000000000000000x2", "e/9999999999999999999", "__head", "e0", "d"])
def test_a_row_that_is_no_entry_is_passed_over(engine: Engine, queue: LatticeQueue[int], key: str) -> None:
    """Q-45, Q-46"""
    queue.enqueue_many([1, 2])
    insert = Statement("insert into lattice_tree_row (tree_id, key, value) values (%s, %s, %s)")
    with engine.session() as session:
        session.execute(insert, (head_of(engine).tree_id, key, b"stray"))
    bounded = LatticeQueue[int](engine, "work", capacity=2)

    assert (ids(queue), queue.count(), queue.peek().value) == ([1, 2], 2, 1)
    bounded.enqueue(3)
    assert [queue.try_dequeue().value, queue.try_dequeue().value, queue.try_dequeue()] == [2, 3, None]


def test_entries_lie_under_padded_keys_in_their_own_tree(engine: Engine, queue: LatticeQueue[int]) -> None:
    """Q-47"""
    queue.enqueue_many(range(7))

    with engine.session() as session:
        stored = session.fetch(
            Statement(
                "select t.name, max(r.key) from lattice_tree t join lattice_tree_row r on r.tree_id = t.id group by t.name"
            )
        )

    assert stored == [("_lattice_queue_work", "e/0000000000000000007")]


def test_the_last_id_is_not_followed_by_another(engine: Engine, queue: LatticeQueue[int]) -> None:
    """Q-48"""
    queue.enqueue(0)
    with engine.session() as session, session.transaction():
        trees.write_head(session, trees.hold(session, TREE).tree_id, 1, MAX_ID - 2, 1)

    assert queue.enqueue(1) == MAX_ID - 2
    with pytest.raises(InvalidOperation, match="last id"):
        queue.enqueue_many([2, 3])
    assert queue.enqueue(2) == MAX_ID - 1
    with pytest.raises(InvalidOperation):
        queue.enqueue(3)
    assert ids(queue) == [1, MAX_ID - 2, MAX_ID - 1]
