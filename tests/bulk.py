"""Many dead letters at once, made without running their tasks, that the tests of bulk work share."""

from typing import Any

from lattice_tasks import Lattice, clock
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import ShelfSpec, park
from lattice_tasks.store.engine import Statement

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
