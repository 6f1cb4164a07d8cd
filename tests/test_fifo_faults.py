"""A FIFO under crashes, roll-backs and many clients, and against a model."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lattice_tasks.fifo import Fifo, LatticeQueue
from lattice_tasks.store.engine import Engine
from tests.fifos import ids
from tests.stores import Crash, Watched, fresh_engine, watched


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


@pytest.fixture
def queue(engine: Engine) -> LatticeQueue[Any]:
    return LatticeQueue(engine, "work")


def test_a_rolled_back_enqueue_or_dequeue_never_was(engine: Engine, queue: LatticeQueue[int]) -> None:
    """Q-49: a caller's own transaction decides."""
    queue.enqueue(1)

    def change_and_fail() -> None:
        with engine.session() as session, session.transaction():
            joined = LatticeQueue[int](session, "work")
            assert (joined.enqueue(2), joined.try_dequeue().value, joined.count()) == (2, 1, 1)
            raise LookupError

    with pytest.raises(LookupError):
        change_and_fail()
    with engine.session() as session, session.transaction():
        LatticeQueue[int](session, "work").enqueue(3)

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == [(1, 1), (2, 3)]


def test_a_caller_that_goes_away_in_its_transaction_leaves_the_queue_alone(engine: Engine) -> None:
    queue = LatticeQueue[int](engine, "work", capacity=1)
    queue.enqueue(1)

    def enqueue_and_die() -> None:
        with watched(engine) as session, session.transaction():
            LatticeQueue[int](session, "work", capacity=1).enqueue(2)
            session.raw.close()
            raise Crash

    with pytest.raises(Crash):
        enqueue_and_die()

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == [(1, 1)]


@pytest.mark.parametrize("crash_before", range(1, 8))
def test_a_crash_at_any_statement_loses_neither_the_evicted_nor_the_new(engine: Engine, crash_before: int) -> None:
    """Q-34, Q-36, Q-40, Q-41, Q-49: capacity 1, evict and append; all of it or nothing."""
    queue = LatticeQueue[str](engine, "work", capacity=1)
    queue.enqueue("old")

    with watched(engine, crash_before) as session:
        try:
            LatticeQueue[str](session, "work", capacity=1).enqueue("new")
            crashed = False
        except Crash:
            crashed = True

    assert [(entry.entry_id, entry.value) for entry in queue.list()] == ([(1, "old")] if crashed else [(2, "new")])
    assert queue.count() == 1
    assert crashed == (crash_before <= 5)
    assert queue.enqueue("next") == (2 if crashed else 3)


@pytest.mark.parametrize("crash_before", [1, 2, 3, 4])
def test_a_crash_in_a_dequeue_still_serves_the_head(
    engine: Engine, queue: LatticeQueue[str], crash_before: int
) -> None:
    """Q-41, Q-49"""
    queue.enqueue_many(["a", "b"])

    with watched(engine, crash_before) as session:
        try:
            LatticeQueue[str](session, "work").try_dequeue()
            left = ["b"]
        except Crash:
            left = ["a", "b"]

    assert [entry.value for entry in queue.list()] == left
    assert (left == ["a", "b"]) == (crash_before <= 3)
    assert queue.enqueue("c") == 3


def test_many_clients_at_once_see_one_serial_order(engine: Engine) -> None:
    """Q-01: every id once, rising for each producer; every entry dequeued once, rising for each consumer."""
    producers, consumers, each = 4, 3, 25
    start = threading.Barrier(producers + consumers)
    left = threading.Semaphore(0)

    def produce(number: int) -> list[int]:
        queue = LatticeQueue[list[int]](engine, "work")
        start.wait()
        issued = []
        for turn in range(each):
            issued.append(queue.enqueue([number, turn]))
            left.release()
        return issued

    def consume() -> list[tuple[int, list[int]]]:
        queue = LatticeQueue[list[int]](engine, "work")
        start.wait()
        taken = []
        while left.acquire(timeout=60) and (entry := queue.try_dequeue()):
            taken.append((entry.entry_id, entry.value))
        return taken

    with ThreadPoolExecutor(producers + consumers) as pool:
        produced = [pool.submit(produce, number) for number in range(producers)]
        consumed = [pool.submit(consume) for _ in range(consumers)]
        issued = [future.result() for future in produced]
        left.release(consumers)
        taken = [future.result() for future in consumed]

    assert sorted(chain(*issued)) == list(range(1, producers * each + 1))
    assert all(one == sorted(one) for one in issued)
    assert sorted(entry_id for one in taken for entry_id, _ in one) == list(range(1, producers * each + 1))
    assert all(one == sorted(one) for one in taken)


def test_a_first_enqueue_by_several_at_once_makes_one_queue(engine: Engine) -> None:
    """Q-05"""
    start = threading.Barrier(6)

    def enqueue(number: int) -> int:
        start.wait()
        return LatticeQueue[int](engine, "fresh").enqueue(number)

    with ThreadPoolExecutor(6) as pool:
        issued = sorted(pool.map(enqueue, range(6)))

    assert issued == [1, 2, 3, 4, 5, 6]


def test_a_bounded_queue_under_many_writers_keeps_its_bound(engine: Engine) -> None:
    """Q-53, C04: alive and evicted add up to what was accepted, and the newest are alive."""
    gone: list[int] = []
    start = threading.Barrier(5)

    def enqueue(number: int) -> list[int]:
        queue = LatticeQueue[int](
            engine, "work", capacity=4, on_evicted=lambda rows: gone.extend(row.entry_id for row in rows)
        )
        start.wait()
        return [entry_id for _ in range(10) for entry_id in queue.enqueue_many([number, number])]

    with ThreadPoolExecutor(5) as pool:
        issued = sorted(chain(*pool.map(enqueue, range(5))))

    alive = ids(LatticeQueue[int](engine, "work"))
    assert issued == list(range(1, 101))
    assert alive == [97, 98, 99, 100]
    assert sorted(gone) == list(range(1, 97))


class FifoMachine(RuleBasedStateMachine):
    """Any steps, crashes among them, against a model: a dict of entries, a set of pins, the next id."""

    engine: Engine
    runs = iter(range(10**9))

    @initialize()
    def begin(self) -> None:
        self.tree = f"machine_{next(self.runs)}"
        self.session = self.engine.open_session()
        self.entries: dict[int, bytes] = {}
        self.pins: set[int] = set()
        self.next_id = 1

    def teardown(self) -> None:
        self.session.close()

    @property
    def fifo(self) -> Fifo:
        return Fifo(self.session, self.tree)

    @rule(
        values=st.lists(st.binary(max_size=4), max_size=6),
        capacity=st.none() | st.integers(1, 6),
        evicts=st.booleans(),
        crash_before=st.none() | st.integers(1, 5),
    )
    def append(self, values: list[bytes], capacity: int | None, evicts: bool, crash_before: int | None) -> None:
        session = Watched(self.session, crash_before)
        try:
            with Fifo(session, self.tree).held() as held:
                appended = held.append(values, capacity, evicts)
        except Crash:
            self.session = self.engine.open_session()
            return
        expected_ids, expected_gone = [], []
        for value, entry_id in zip(values, appended.ids, strict=True):
            alive = len(self.pins) if evicts else len(self.entries)
            room = capacity is None or min(alive, len(self.entries)) < capacity
            expected_ids.append(self.next_id if room else None)
            if not room:
                continue
            assert entry_id == self.next_id
            self.entries[self.next_id] = value
            self.next_id += 1
            while capacity is not None and len(self.entries) > capacity:
                oldest = min(self.entries.keys() - self.pins)
                expected_gone.append((oldest, self.entries.pop(oldest)))
        assert list(appended.ids) == expected_ids
        assert [(row.entry_id, row.value) for row in appended.evicted] == expected_gone

    @rule(number=st.integers(1, 3), crash_before=st.none() | st.integers(1, 4))
    def take(self, number: int, crash_before: int | None) -> None:
        try:
            with Fifo(Watched(self.session, crash_before), self.tree).held() as held:
                taken = held.take(number)
        except Crash:
            self.session = self.engine.open_session()
            return
        expected = sorted(self.entries.keys() - self.pins)[:number]
        assert [(row.entry_id, row.value) for row in taken] == [(one, self.entries.pop(one)) for one in expected]

    @rule(entry_ids=st.lists(st.integers(-1, 12), max_size=4), crash_before=st.none() | st.integers(1, 5))
    def remove(self, entry_ids: list[int], crash_before: int | None) -> None:
        try:
            with Fifo(Watched(self.session, crash_before), self.tree).held() as held:
                removed = held.remove(entry_ids)
        except Crash:
            self.session = self.engine.open_session()
            return
        expected = sorted(self.entries.keys() & set(entry_ids))
        assert [(row.entry_id, row.value) for row in removed] == [(one, self.entries.pop(one)) for one in expected]
        self.pins -= set(expected)

    @rule(data=st.data())
    def pin_or_unpin(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.entries)), max_size=3)) if self.entries else set()
        with self.fifo.held() as held:
            held.pin(sorted(chosen - self.pins))
            held.unpin(sorted(chosen & self.pins))
        self.pins ^= chosen

    @invariant()
    def shows_what_the_model_holds(self) -> None:
        rows = self.fifo.entries()
        assert [(row.entry_id, row.value, row.is_pinned) for row in rows] == [
            (entry_id, value, entry_id in self.pins) for entry_id, value in sorted(self.entries.items())
        ]
        assert self.fifo.count() == len(self.entries)
        assert self.fifo.entries(limit=1) == rows[:1]
        assert self.fifo.get([*range(-1, 12), 2**70]) == [row for row in rows if row.entry_id < 12]


def test_any_sequence_of_steps_and_crashes_agrees_with_the_model(engine: Engine) -> None:
    """Q-01, Q-02, Q-28, Q-30..Q-36, Q-40, Q-41, Q-44, Q-49, Q-53..Q-56"""
    machine = type("Machine", (FifoMachine,), {"engine": engine, "runs": iter(range(10**9))})

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
