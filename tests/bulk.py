"""Many dead letters at once, made without running their tasks, that the tests of bulk work share."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from lattice_tasks import Lattice, clock
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import ShelfSpec, park
from lattice_tasks.store.engine import Statement
from tests.working import Gate

_PAGE = 5_000
_SUBMITTED = Statement(
    """select seq, id, actor, body, key, priority, submitted_at from lattice_invocation
       where queue_id = %s and seq > %s and state = 0 order by seq limit %s"""
)
_UNREADY = Statement("delete from lattice_ready where queue_id = %s")
_FIRST = Statement("select coalesce(min(seq), 0) - 1 from lattice_invocation where queue_id = %s")
_PARKED = Statement(
    """update lattice_invocation set state = 2, finished_at = submitted_at, attempt = 1, reason = 'unknown',
           entry_id = seq - %s where queue_id = %s"""
)


class Runs:
    """A task that says which numbers ran, how often, and fails for those that are ill."""

    def __init__(self, lattice: Lattice, queue: str = "q") -> None:
        self.ran: Counter[int] = Counter()
        self.order: list[int] = []
        self.is_ill: Callable[[int], bool] = lambda number: False
        self.gate: Gate | None = None
        self._lock = threading.Lock()

        @lattice.task(queue=queue, max_retries=0, name=f"task_{queue}")
        def run(number: int) -> int:
            with self._lock:
                self.ran[number] += 1
                self.order.append(number)
            if self.gate is not None:
                self.gate.pass_through()
            if self.is_ill(number):
                raise ValueError(f"ill {number}")
            return number

        self.task = run
        lattice.queues.add(queue)


def in_background(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin the call in a thread; the answer waits for its end, and raises what it raised."""
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append((call(), None))
        except BaseException as error:
            answer.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def ended() -> Any:
        thread.join(30)
        assert not thread.is_alive(), "it did not end"
        value, error = answer[0]
        if error is not None:
            raise error
        return value

    return ended


def group_name(number: int) -> str:
    """A word of letters only, which a fingerprint keeps."""
    return "Trouble" + "".join(chr(ord("a") + number // 26**place % 26) for place in (2, 1, 0))


def parked(lattice: Lattice, task: Any, queue: str, count: int, groups: int = 1) -> None:
    """Park so many invocations of a task, called with a number each, on a shelf that was empty; nobody may work meanwhile."""
    for start in range(0, count, _PAGE):
        task.submit_many([(number,) for number in range(start, min(count, start + _PAGE))])
    queue_id, after = lattice.queues.get(queue).id, 0
    with lattice.engine.session() as session:
        session.execute(_UNREADY, (queue_id,))
        first = session.fetch(_FIRST, (queue_id,))[0][0]
        while rows := session.fetch(_SUBMITTED, (queue_id, after, _PAGE)):
            letters = [_letter(queue, row, (row[0] - first) % groups) for row in rows]
            with session.transaction():
                park(session, ShelfSpec(queue_id, count), letters)
            after = rows[-1][0]
        session.execute(_PARKED, (first, queue_id))


def _letter(queue: str, row: tuple, group: int) -> DeadLetter:
    seq, task_id, actor, body, key, priority, submitted_at = row
    return DeadLetter(
        task_id=str(task_id),
        seq=seq,
        queue=queue,
        actor=actor,
        body=bytes(body),
        key=key,
        priority=priority,
        reason="unknown",
        error=f"{group_name(group)}: no luck with {seq}",
        attempts=1,
        submitted_at=clock.from_us(submitted_at),
    )
