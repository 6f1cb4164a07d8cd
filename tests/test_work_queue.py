"""What threads wait on: the queue between Dramatiq's threads, and the pump's bell."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.broker.bell import Bell
from lattice_tasks.broker.work_queue import WorkQueue
from tests.working import until


@dataclass
class Item:
    priority: int
    number: int = 0


@given(st.lists(st.integers(-3, 3)))
def test_the_lowest_number_comes_first_and_equal_ones_in_their_order(priorities: list[int]) -> None:
    """Actor priorities are Dramatiq's: lower first."""
    queue = WorkQueue()
    items = [Item(priority, number) for number, priority in enumerate(priorities)]
    for item in items:
        queue.put(item)

    got = [queue.get_nowait() for _ in items]

    assert got == sorted(items, key=lambda item: item.priority)
    with pytest.raises(Empty):
        queue.get_nowait()


def test_waiting_for_an_item_ends_with_its_time() -> None:
    with pytest.raises(Empty):
        WorkQueue().get(timeout=0.01)


def test_what_was_taken_back_is_not_handed_out_and_not_waited_for() -> None:
    queue = WorkQueue()
    for number in range(3):
        queue.put(Item(0, number))
    first = queue.get_nowait()

    back = queue.take_back()

    assert (first.number, [item.number for item in back]) == (0, [1, 2])
    assert (len(queue), queue.qsize(), queue.unfinished_tasks) == (0, 0, 1)
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    queue.put(Item(0, 9))
    assert until(lambda: taken(queue)).number == 9


def test_joining_waits_for_what_is_under_way() -> None:
    queue, joined = WorkQueue(), threading.Event()
    queue.put(Item(0))
    queue.put(Item(0))
    queue.get_nowait()
    thread = threading.Thread(target=lambda: (queue.join(), joined.set()))
    thread.start()

    queue.take_back()
    assert not joined.is_set()
    queue.task_done()

    thread.join(timeout=5)
    assert joined.is_set()


def test_every_item_reaches_exactly_one_of_many_threads() -> None:
    queue, count = WorkQueue(), 2_000
    got: list[int] = []

    def take() -> None:
        while True:
            try:
                item = queue.get(timeout=0.2)
            except Empty:
                return
            got.append(item.number)
            queue.task_done()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(count):
        queue.put(Item(number % 3, number))
        if number % 500 == 0:
            for item in queue.take_back():
                queue.put(item)
    queue.join()
    for thread in threads:
        thread.join()

    assert sorted(got) == list(range(count))


def test_waiting_ends_with_its_time_however_many_wait_and_however_short_it_is() -> None:
    """A sleeper that misses its time would never see that its worker stops."""
    queue, stopping = WorkQueue(), threading.Event()

    def take() -> None:
        while not stopping.is_set():
            with suppress(Empty):
                queue.get(timeout=0.0001)
                queue.task_done()

    threads = [threading.Thread(target=take, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(3_000):
        queue.put(Item(0, number))
    queue.join()
    stopping.set()

    for thread in threads:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in threads)


def test_a_bell_is_heard_once_and_patience_ends_in_time() -> None:
    bell, woken = Bell(), []

    bell.ring()
    bell.ring()
    bell.wait(lambda: False, lambda: 60)
    started = time.monotonic()
    bell.wait(lambda: False, lambda: 0.02)
    assert 0.02 <= time.monotonic() - started < 5

    bell.ring()
    bell.quiet()
    bell.wait(lambda: False, lambda: 0.001)
    bell.wait(lambda: True, lambda: 60)
    thread = threading.Thread(target=lambda: (bell.wait(lambda: False, lambda: 60), woken.append(1)))
    thread.start()
    until(lambda: bell.ring_if_waiting() or woken)
    thread.join()


def test_a_bell_that_is_rung_all_the_time_is_never_slept_through() -> None:
    bell, stopping, waits = Bell(), threading.Event(), []

    def listen() -> None:
        while not stopping.is_set():
            bell.wait(lambda: False, lambda: 0.0001)
            bell.quiet()
            waits.append(1)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    for _ in range(20_000):
        bell.ring()
    stopping.set()

    thread.join(timeout=5)
    assert not thread.is_alive()
    assert waits


def taken(queue: WorkQueue) -> Item | None:
    try:
        item: Item = queue.get_nowait()
    except Empty:
        return None
    return item
