"""Why an invocation has not started, or has not finished: every reason that holds now, the most decisive first.

Each is a condition that really keeps an invocation where it is: what a claim asks of the queue (`store/turns.py`), what a
worker asks of itself before it claims or starts anything (`broker/hand_over.py`), or what ended it. Reading only; the
facts are read one after the other, so a busy store may have moved on between two of them.
"""

from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Session
from lattice_tasks.tasks.invocation import State
from lattice_tasks.why import rested, running, unstarted
from lattice_tasks.why.scene import Reason, look

__all__ = ["Reason", "why"]

_OF_STATE = {
    State.WAITING: unstarted.waiting,
    State.SCHEDULED: unstarted.scheduled,
    State.RUNNING: running.running,
    State.SUCCEEDED: rested.ended,
    State.PARKED: rested.parked,
    State.HELD: rested.held,
    State.CANCELLED: rested.ended,
    State.EXPIRED: rested.ended,
    State.DISCARDED: rested.ended,
}


def why(session: Session, namespace_id: int, task_id: str, settings: Settings) -> list[Reason]:
    """Every reason that holds; never empty.

    Raises:
        TaskNotFound: no such id in the namespace; it may have been pruned, or its submit has not committed yet.
    """
    scene = look(session, namespace_id, task_id, settings)
    return list(_OF_STATE[scene.task.state](scene))
