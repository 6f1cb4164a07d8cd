"""A dead letter beside the last good run of the same actor: what was different?"""

from dataclasses import dataclass
from datetime import datetime

from lattice_tasks import clock
from lattice_tasks.dead_letters.call import Call, Difference, call_of, differences
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.keys import MAX_ID
from lattice_tasks.store import lineage as rows
from lattice_tasks.store.engine import Session

__all__ = ["LOOK_AT", "Comparison", "GoodRun", "compare"]

#: How many of the newest invocations of the store are looked at.
LOOK_AT = 10_000
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class GoodRun:
    """An invocation that succeeded. Which worker ran it is not kept of those."""

    task_id: str
    call: Call
    failures: int
    submitted_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, from the good run to the letter; `good` is None when there was none among `looked_at` invocations."""

    good: GoodRun | None
    looked_at: int
    differences: tuple[Difference, ...] = ()


def compare(session: Session, queue_id: int, letter: DeadLetter, look_at: int = LOOK_AT) -> Comparison:
    """The letter beside the newest succeeded invocation of its actor on its queue that is still in the record.

    Args:
        look_at: go no further back than so many of the newest invocations, of all queues; a page at a time.
    """
    looked_at, before = 0, MAX_ID
    while looked_at < look_at:
        walk = rows.walk_back(session, queue_id, letter.actor, before, min(_PAGE, look_at - looked_at))
        looked_at += walk.looked_at
        found = None if walk.good is None else rows.good_run(session, walk.good)
        if found is not None:
            return _compared(letter, found, looked_at)
        if walk.lowest is None:
            break
        before = walk.lowest
    return Comparison(None, looked_at)


def _compared(letter: DeadLetter, found: rows.GoodRun, looked_at: int) -> Comparison:
    good = GoodRun(
        task_id=found.id,
        call=call_of(found.body) or Call(),
        failures=found.attempt,
        submitted_at=clock.from_us(found.submitted_at),
        finished_at=None if found.finished_at is None else clock.from_us(found.finished_at),
    )
    bad = call_of(letter.body)
    return Comparison(good, looked_at, () if bad is None else tuple(differences(good.call, bad)))
