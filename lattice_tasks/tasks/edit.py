"""What an edit of a dead letter means for invocations: a changed copy is submitted, and both know each other."""

from collections.abc import Callable, Mapping
from typing import Any

from lattice_tasks.dead_letters.call import Call
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.errors import AlreadyHandled, Conflict, InvalidInput
from lattice_tasks.store import lineage
from lattice_tasks.store.engine import Session
from lattice_tasks.store.submits import find_holders, insert_invocations
from lattice_tasks.tasks.invocation import State, step
from lattice_tasks.tasks.submit import Submitter

__all__ = ["Edits"]


class Edits:
    """Submits changed copies of parked invocations.

    Args:
        check: (actor, args, kwargs); raises when a task that is declared in this process cannot be called like that.
    """

    def __init__(self, submitter: Submitter, check: Callable[[str, list[Any], Mapping[str, Any]], None]) -> None:
        self._submitter = submitter
        self._check = check

    def replace(self, session: Session, letter: DeadLetter, queue: str, call: Call, key: str | None) -> str:
        """Insert the copy, with the letter's priority and options and a key of its own or none; the parent, whose
        message stays as it is, becomes discarded. Returns the child's id.

        Raises:
            InvalidInput: the arguments are not acceptable, or do not fit the task.
            Conflict: the key names another invocation, or the letter's is not parked any more.
        """
        ours = next((name for name in call.kwargs if name.startswith("_")), None)
        if ours is not None:
            raise InvalidInput(f"kwargs: names like {ours!r} are kept for options of a submit")
        self._check(letter.actor, call.args, call.kwargs)
        child = self._submitter.draft(
            queue,
            letter.actor,
            call.args,
            call.kwargs,
            call.options,
            is_follow_up=True,
            key=key,
            priority=letter.priority,
        )
        if not insert_invocations(session, [child]):
            holders = find_holders(session, [(child.queue_id, key or "")])
            held_by = next((holder[0] for holder in holders.values()), "another task")
            raise Conflict(f"key {key!r} names task {held_by} of queue {queue} already; choose another, or none")
        after = step(State.PARKED, "replace")
        if not lineage.link(session, letter.seq, letter.task_id, State.PARKED.code, after.code, child.id):
            raise AlreadyHandled(f"task {letter.task_id} is not parked any more")
        return child.id
