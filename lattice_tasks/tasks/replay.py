"""What a replay and a discard mean for the invocation: the callables that the dead-letter shelf is given."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.redirect import Destination, hold_shelves, redirect
from lattice_tasks.errors import AlreadyHandled, Conflict, QueueNotFound
from lattice_tasks.store import settles as moves
from lattice_tasks.store.engine import Session
from lattice_tasks.store.queues import find_queue
from lattice_tasks.tasks.invocation import Flag, State, step
from lattice_tasks.tasks.job import JobPicture, Jobs
from lattice_tasks.tasks.redirects import Redirects, Router
from lattice_tasks.tasks.settle import mark_all_discarded
from lattice_tasks.telemetry import Telemetry

__all__ = ["Replays", "Requeued"]

#: Where a letter was moved to, by the entry id it had: (queue id, entry id).
Requeued = Mapping[int, tuple[int, int]]


class Replays:
    """Puts parked invocations back to work, waits for them, or marks them discarded.

    Args:
        capacity: of a shelf whose queue does not say.
    """

    def __init__(
        self, jobs: Jobs, redirects: Redirects, namespace_id: Callable[[], int], telemetry: Telemetry, capacity: int
    ) -> None:
        self._jobs = jobs
        self.redirects = redirects
        self.namespace_id = namespace_id
        self.telemetry = telemetry
        self._capacity = capacity

    def hold(self, session: Session, queues: Mapping[int, str], router: Router | None = None) -> None:
        """Lock the shelves of these queues (by id) and of those that their letters are redirected to, before any letter is
        chosen; in the order that keeps everybody from waiting in a circle."""
        router = router or self.redirects.router(session)
        elsewhere = {router.queue_of(name) for name in queues.values()} - set(queues.values())
        hold_shelves(session, [*queues, *(self._destination(session, name, "").queue_id for name in elsewhere)])

    def requeue(self, session: Session, letter: DeadLetter) -> None:
        """One letter's invocation back to waiting, same id and key, for exactly one attempt.

        Raises:
            AlreadyHandled: the invocation is not parked any more.
            Conflict, QueueNotFound: it is redirected to where it cannot go.
        """
        self.requeue_many(session, [letter], self.redirects.router(session))

    def requeue_many(self, session: Session, letters: Sequence[DeadLetter], router: Router) -> Requeued:
        """`requeue` of letters of one shelf, pinned, all or none; where those lie now that were redirected elsewhere."""
        step(State.PARKED, "replay")
        moved = {}
        for letter in letters:
            queue, actor = router.destination(letter.queue, letter.actor)
            if (queue, actor) != (letter.queue, letter.actor):
                to = self._destination(session, queue, actor)
                moved[letter.entry_id] = (to.queue_id, self._redirect(session, letter, to))
        reopened = moves.reopen_many(session, [letter.seq for letter in letters], State.PARKED.code)
        for letter in letters:
            if letter.seq not in reopened:
                raise AlreadyHandled(f"task {letter.task_id} is not parked any more")
        places = [(reopened[letter.seq], letter.seq, letter.priority) for letter in letters]
        moves.place_ready_many(session, places, int(Flag.REPLAY))
        return moved

    def discarder(self, queue_id: int) -> Callable[[Session, Sequence[DeadLetter]], None]:
        """For the shelf of one queue: mark the invocations of its letters discarded."""
        return lambda session, letters: mark_all_discarded(session, queue_id, letters)

    def await_end(self, task_id: str, timeout: float) -> JobPicture:
        """The invocation once it is not open any more, or as it is after `timeout` seconds."""
        return self._jobs.await_end(task_id, timeout)

    def _destination(self, session: Session, queue: str, actor: str) -> Destination:
        row = find_queue(session, self.namespace_id(), queue)
        if row is None:
            raise QueueNotFound(
                f"no queue {queue!r} to redirect a dead letter to; see `lattice-tasks dlq redirects list`"
            )
        return Destination(row[0], queue, actor, row[5] or self._capacity)

    def _redirect(self, session: Session, letter: DeadLetter, to: Destination) -> int:
        own_id = self._destination(session, letter.queue, letter.actor).queue_id
        moved = redirect(session, own_id, letter, to)
        was = msgspec.json.encode({"queue": letter.queue, "actor": letter.actor}).decode()
        code = State.PARKED.code
        if not moves.move_parked(session, letter.seq, code, to.queue_id, to.actor, moved.entry_id, was):
            raise Conflict(
                f"dead letter {letter.entry_id} cannot move to queue {to.queue!r}: task {letter.task_id} is not parked any "
                f"more, or another task has its key {letter.key!r} there"
            )
        self.telemetry.emit(
            "dead_letter.redirected",
            shelf=letter.queue,
            entry_id=letter.entry_id,
            task_id=letter.task_id,
            actor=letter.actor,
            to_queue=to.queue,
            to_actor=to.actor,
            to_entry_id=moved.entry_id,
        )
        return moved.entry_id
