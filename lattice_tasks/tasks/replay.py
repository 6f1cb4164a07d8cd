"""What a replay and a discard mean for the invocation: the callables that the dead-letter shelf is given."""

from collections.abc import Callable, Sequence

from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.errors import AlreadyHandled
from lattice_tasks.store import settles as moves
from lattice_tasks.store.engine import Session
from lattice_tasks.store.settles import Taken
from lattice_tasks.tasks.invocation import Flag, State, step
from lattice_tasks.tasks.job import JobPicture, Jobs
from lattice_tasks.tasks.settle import mark_discarded

__all__ = ["Replays"]


class Replays:
    """Puts parked invocations back to work, waits for them, or marks them discarded."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def requeue(self, session: Session, letter: DeadLetter) -> None:
        """Back to waiting, same id and key, for exactly one attempt.

        Raises:
            AlreadyHandled: the invocation is not parked any more.
        """
        step(State.PARKED, "replay")
        queue_id = moves.reopen(session, letter.seq, State.PARKED.code)
        if queue_id is None:
            raise AlreadyHandled(f"task {letter.task_id} is not parked any more")
        moves.place_ready(session, Taken(letter.seq, queue_id, letter.priority, 0, 0), 0, int(Flag.REPLAY))

    def discarder(self, queue_id: int) -> Callable[[Session, Sequence[DeadLetter]], None]:
        """For the shelf of one queue: mark the invocations of its letters discarded."""

        def discard(session: Session, letters: Sequence[DeadLetter]) -> None:
            for letter in sorted(letters, key=lambda one: one.seq):
                mark_discarded(session, queue_id, letter.seq, letter.entry_id, "discard")

        return discard

    def await_end(self, task_id: str, timeout: float) -> JobPicture:
        """The invocation once it is not open any more, or as it is after `timeout` seconds."""
        return self._jobs.await_end(task_id, timeout)
