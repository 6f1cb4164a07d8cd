"""Choosing the letters that an operator may replay or discard now, and taking them, inside the caller's transaction.

The shelf's head is held, so of two operators one wins and the other is told. A replay leaves the letter where it is,
pinned: no eviction, no discard and no second replay until the replay has ended. What happens to the invocation is the
caller's; of those it may touch, as the order of locks is, only the ones of the letters it is given here: they are
parked, so no settle holds them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from lattice_tasks.dead_letters.bin import keep
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import letter_of, shelf_fifo
from lattice_tasks.errors import AlreadyHandled, InvalidOperation
from lattice_tasks.fifo import Held
from lattice_tasks.store import letters as cards
from lattice_tasks.store.engine import Session
from lattice_tasks.telemetry import Telemetry

__all__ = [
    "Answer",
    "Chosen",
    "Outcome",
    "begin_replay",
    "begin_replays",
    "take_off",
    "tell_discarded",
    "tell_replaying",
    "the_only",
]

_WHENEVER: Mapping[int, datetime] = {}


class Outcome(StrEnum):
    """What became of one id of a bulk replay or discard."""

    DONE = "done"
    UNKNOWN = "unknown"
    ALREADY_HANDLED = "already_handled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """One id's outcome; `detail` says why it was not done."""

    entry_id: int
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters that may be worked on, ascending, and the answers for all other ids that were asked for."""

    letters: tuple[DeadLetter, ...]
    answers: tuple[Answer, ...]


def begin_replays(
    session: Session, queue_id: int, entry_ids: Sequence[int], parked_at: Mapping[int, datetime] = _WHENEVER
) -> Chosen:
    """Pin the letters that nobody replays yet. The caller then puts their invocations back to work.

    Args:
        parked_at: by entry id; a letter that was parked at another instant is another failure than the one that is meant.
    """
    with shelf_fifo(session, queue_id).held() as held:
        chosen = _choose(held, entry_ids, parked_at, only_readable=True)
        held.pin([letter.entry_id for letter in chosen.letters])
    replaying = tuple(msgspec.structs.replace(letter, is_replaying=True) for letter in chosen.letters)
    return Chosen(replaying, chosen.answers)


def begin_replay(session: Session, queue_id: int, entry_id: int) -> DeadLetter | None:
    """Pin one letter; None when there is none of this id.

    Raises:
        AlreadyHandled: it is being replayed.
        InvalidOperation: it cannot be read, so nobody knows its invocation.
    """
    return the_only(begin_replays(session, queue_id, [entry_id]))


def take_off(
    session: Session,
    queue_id: int,
    entry_ids: Sequence[int],
    parked_at: Mapping[int, datetime] = _WHENEVER,
    keeps: str | None = None,
) -> Chosen:
    """Remove the letters that nobody replays; `parked_at` as above. The caller then marks their invocations `discarded`.

    Args:
        keeps: how they come into the bin; None: they are gone for good.
    """
    with shelf_fifo(session, queue_id).held() as held:
        chosen = _choose(held, entry_ids, parked_at, only_readable=False)
        gone = [letter.entry_id for letter in chosen.letters]
        removed = held.remove(gone)
        if keeps is not None:
            keep(session, queue_id, removed, keeps)
        cards.drop(session, queue_id, gone)
    return chosen


def the_only(chosen: Chosen) -> DeadLetter | None:
    """The letter, or None, of a choice from one id; raises for an answer that is an error."""
    if chosen.letters:
        return chosen.letters[0]
    errors: dict[Outcome, Callable[[str], Exception]] = {
        Outcome.ALREADY_HANDLED: AlreadyHandled,
        Outcome.FAILED: InvalidOperation,
    }
    for answer in chosen.answers:
        if answer.outcome in errors:
            raise errors[answer.outcome](answer.detail)
    return None


def tell_replaying(telemetry: Telemetry, shelf: str, letter: DeadLetter) -> None:
    """After the commit: a replay of this letter was submitted. `shelf` is the queue's name."""
    telemetry.emit("dead_letter.replaying", shelf=shelf, entry_id=letter.entry_id, task_id=letter.task_id)


def tell_discarded(telemetry: Telemetry, shelf: str, letter: DeadLetter) -> None:
    """After the commit: this letter was taken off its shelf for an operator."""
    ids = {"entry_id": letter.entry_id, "task_id": letter.task_id}
    telemetry.emit("dead_letter.removed", shelf=shelf, reason="discarded", **ids)


def _choose(held: Held, entry_ids: Sequence[int], parked_at: Mapping[int, datetime], only_readable: bool) -> Chosen:
    found = {row.entry_id: letter_of(row) for row in held.get(entry_ids)}
    letters, answers = [], []
    for entry_id in sorted(set(entry_ids)):
        letter = found.get(entry_id)
        if letter is None:
            answers.append(Answer(entry_id, Outcome.UNKNOWN, f"no dead letter {entry_id} on this shelf"))
        elif letter.is_replaying:
            text = f"dead letter {entry_id} is being replayed"
            if letter.is_readable:
                text += (
                    f"; why it takes so long: `lattice-tasks tasks why {letter.task_id}`; "
                    f"`lattice-tasks tasks cancel {letter.task_id}` takes it back"
                )
            answers.append(Answer(entry_id, Outcome.ALREADY_HANDLED, text))
        elif parked_at.get(entry_id, letter.parked_at) != letter.parked_at:
            answers.append(Answer(entry_id, Outcome.ALREADY_HANDLED, f"dead letter {entry_id} was parked again since"))
        elif only_readable and not letter.is_readable:
            answers.append(Answer(entry_id, Outcome.FAILED, letter.error))
        else:
            letters.append(letter)
    return Chosen(tuple(letters), tuple(answers))
