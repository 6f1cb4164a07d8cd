"""Calls on a queue that are taken back: by their handle, or by an error inside a transaction of the caller's."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks.errors import CallCancelled, CallTimedOut, InvalidInput
from lattice_tasks.fifo import Cancellation, LatticeQueue
from lattice_tasks.store.engine import Engine
from tests.fifos import NAME, head_of, ids, opened
from tests.stores import fresh_engine, watched

pytestmark = pytest.mark.recycled

Call = Callable[[LatticeQueue[Any], Cancellation], object]
CALLS: dict[str, Call] = {
    "enqueue": lambda queue, handle: queue.enqueue(9, cancellation=handle),
    "enqueue_many": lambda queue, handle: queue.enqueue_many([8, 9], cancellation=handle),
    "try_dequeue": lambda queue, handle: queue.try_dequeue(cancellation=handle),
    "peek": lambda queue, handle: queue.peek(cancellation=handle),
    "count": lambda queue, handle: queue.count(cancellation=handle),
    "list": lambda queue, handle: queue.list(cancellation=handle),
}
CHANGES = ("enqueue", "enqueue_many", "try_dequeue")


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


@pytest.fixture
def queue(engine: Engine) -> LatticeQueue[Any]:
    queue = LatticeQueue[Any](engine, NAME, capacity=3)
    queue.enqueue_many([1, 2, 3])
    return queue


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_was_cancelled_before_does_nothing_at_all(
    engine: Engine, queue: LatticeQueue[Any], call: str
) -> None:
    """Q-26: not one statement."""
    handle = Cancellation()
    handle.cancel()
    before = queue.list(), head_of(engine)

    with watched(engine) as session, pytest.raises(CallCancelled, match=rf"{NAME}.*nothing was changed"):
        CALLS[call](LatticeQueue(session, NAME, capacity=3), handle)

    assert session.statements == 0
    assert queue.list() == before[0]
    assert head_of(engine).next_id == before[1].next_id


@pytest.mark.parametrize("call", CALLS)
def test_a_call_whose_time_is_over_does_nothing_at_all(queue: LatticeQueue[Any], call: str) -> None:
    """Q-26: the deadline is a signal like any other, and a TimeoutError to whoever knows no more."""
    handle = Cancellation(timeout=timedelta(0))

    with pytest.raises(TimeoutError, match="within 0:00:00") as raised:
        CALLS[call](queue, handle)

    assert isinstance(raised.value, CallTimedOut)
    assert ids(queue) == [1, 2, 3]
    assert queue.enqueue(4) == 4


@pytest.mark.parametrize("call", CALLS)
def test_a_handle_that_nobody_signals_changes_nothing_about_a_call(queue: LatticeQueue[Any], call: str) -> None:
    """Q-26: one handle serves many calls."""
    handle = Cancellation(timeout=timedelta(hours=1))

    assert CALLS[call](queue, handle) is not None
    assert queue.peek(cancellation=handle) is not None
    assert not handle.is_signalled


@pytest.mark.parametrize("call", CHANGES)
def test_a_call_that_is_cancelled_while_it_waits_its_turn_does_nothing(
    engine: Engine, queue: LatticeQueue[Any], call: str
) -> None:
    """Q-26: it was cancelled in the queue for the head, or the file; it finds out when it gets there."""
    handle, has_begun = Cancellation(), threading.Event()

    def wait_and_be_cancelled() -> None:
        has_begun.set()
        CALLS[call](LatticeQueue[Any](engine, NAME, capacity=3), handle)

    with ThreadPoolExecutor(1) as pool:
        with opened(engine) as fifo, fifo.held():
            waiting = pool.submit(wait_and_be_cancelled)
            has_begun.wait(10)
            handle.cancel()
        with pytest.raises(CallCancelled):
            waiting.result(20)

    assert ids(queue) == [1, 2, 3]


@pytest.mark.parametrize("call", CHANGES)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_call_that_is_cancelled_after_its_last_write_is_undone(
    engine: Engine, queue: LatticeQueue[Any], call: str, in_transaction: bool
) -> None:
    """Q-26: up to the commit; in a transaction of the caller's, who goes on and commits, just this call is undone."""

    class Late(Cancellation):
        """Signalled at its third look, which is the one before the commit."""

        looks = 0

        def check(self, what: str) -> None:
            self.looks += 1
            if self.looks == (3 if "dequeue" in what else 4):  # an enqueue looks before it encodes, too
                self.cancel()
            super().check(what)

    handle = Late()
    with engine.session() as session:
        joined = LatticeQueue[Any](session, NAME, capacity=3)
        if in_transaction:
            with session.transaction():
                joined.enqueue("kept")
                with pytest.raises(CallCancelled):
                    CALLS[call](joined, handle)
        else:
            with pytest.raises(CallCancelled):
                CALLS[call](joined, handle)

    assert handle.looks == (3 if call == "try_dequeue" else 4)
    assert ids(queue) == ([2, 3, 4] if in_transaction else [1, 2, 3])
    assert queue.count() == 3
    assert queue.enqueue("next") == (5 if in_transaction else 4)


@pytest.mark.parametrize("timeout", [timedelta(microseconds=-1), 5, 1.5, "1s", True])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match="timedelta"):
        Cancellation(timeout=timeout)


def test_an_entry_that_cannot_be_read_stays_when_the_callers_transaction_goes_on(
    engine: Engine, queue: LatticeQueue[Any]
) -> None:
    """Q-14, Q-41, Q-49: the error is the caller's to survive; entry and count are as they were."""

    class Blind:
        def serialize(self, value: Any) -> bytes:
            return b"?"

        def deserialize(self, data: bytes) -> Any:
            raise ValueError("what is this?")

    with engine.session() as session, session.transaction():
        with pytest.raises(ValueError, match="what is this"):
            LatticeQueue[Any](session, NAME, serializer=Blind()).try_dequeue()
        LatticeQueue[Any](session, NAME).enqueue(4)

    assert ids(queue) == [1, 2, 3, 4]
    assert queue.count() == 4
    assert head_of(engine).floor == 1


def test_a_serializer_that_fails_within_a_transaction_spoils_nothing(engine: Engine, queue: LatticeQueue[Any]) -> None:
    """Q-13: it runs before the first statement."""
    with watched(engine) as session, session.transaction():
        joined = LatticeQueue[Any](session, NAME)
        with pytest.raises(ValueError, match="JSON"):
            joined.enqueue_many([4, object()])
        assert session.statements == 0
        joined.enqueue(5)

    assert [entry.value for entry in queue.list()] == [1, 2, 3, 5]


def test_a_negative_limit_is_refused(queue: LatticeQueue[Any]) -> None:
    with pytest.raises(InvalidInput, match="limit=-1"):
        queue.list(limit=-1)
    assert queue.list(limit=0) == []
