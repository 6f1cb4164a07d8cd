"""Taking one letter off its shelf because a changed copy of its task takes its place, inside the caller's transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lattice_tasks.dead_letters.call import Call, call_of
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import letter_of, shelf_fifo
from lattice_tasks.errors import AlreadyHandled, DeadLetterNotFound, InvalidInput, InvalidOperation
from lattice_tasks.store import letters as cards
from lattice_tasks.store.engine import Session

__all__ = ["Edited", "edited_call", "take_for_edit"]


@dataclass(frozen=True, slots=True)
class Edited:
    """An edit that was made: the letter as it was, and the invocation that took its task's place."""

    letter: DeadLetter
    child_id: str


def take_for_edit(session: Session, queue_id: int, entry_id: int) -> DeadLetter:
    """Remove the letter. The caller inserts the changed copy and marks the letter's invocation.

    Raises:
        DeadLetterNotFound: somebody replayed, edited or discarded it, or it never was.
        AlreadyHandled: it is being replayed.
        InvalidOperation: it cannot be read.
    """
    with shelf_fifo(session, queue_id).held() as held:
        rows = held.get([entry_id])
        if not rows:
            raise DeadLetterNotFound(
                f"no dead letter {entry_id} on this shelf; it may have been replayed, edited or discarded"
            )
        letter = letter_of(rows[0])
        if letter.is_replaying:
            raise AlreadyHandled(f"dead letter {entry_id} is being replayed")
        if not letter.is_readable:
            raise InvalidOperation(letter.error)
        held.remove([entry_id])
        cards.drop(session, queue_id, [entry_id])
    return letter


def edited_call(letter: DeadLetter, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Call:
    """The letter's call with other arguments; None keeps them.

    Raises:
        InvalidInput: neither was given.
        InvalidOperation: the letter's message cannot be read, and not both were given.
    """
    if args is None and kwargs is None:
        raise InvalidInput("an edit needs args or kwargs; a replay repeats the task as it is")
    call = call_of(letter.body)
    if call is None and (args is None or kwargs is None):
        raise InvalidOperation(
            f"the message of dead letter {letter.entry_id} cannot be read; give args and kwargs both"
        )
    call = call or Call()
    return Call(
        call.args if args is None else list(args), call.kwargs if kwargs is None else dict(kwargs), call.options
    )
