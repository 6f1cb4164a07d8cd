"""The operator's seam: look at a queue's dead letters, replay them, discard them.

Looking takes no lock and writes nothing. A replay or discard changes the letter and its invocation in one transaction;
events and the wake-up follow the commit (inside a caller's own transaction they come before it). Many ids go in parts of
a bounded size, each its own transaction, and every id gets its answer: doing the same again is always safe.
"""

import builtins
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lattice_tasks.dead_letters import replay
from lattice_tasks.dead_letters.bin import DISCARDED
from lattice_tasks.dead_letters.call import Call
from lattice_tasks.dead_letters.comparison import Comparison, compare
from lattice_tasks.dead_letters.edit import Edited, edited_call, take_for_edit
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.filters import filter_of
from lattice_tasks.dead_letters.parking import letter_of, shelf_fifo
from lattice_tasks.dead_letters.replay import Answer, Chosen, Outcome
from lattice_tasks.errors import (
    Conflict,
    DeadLetterNotFound,
    InvalidInput,
    InvalidOperation,
    LatticeError,
    StoreUnavailable,
)
from lattice_tasks.keys import MAX_ID
from lattice_tasks.store import letters as cards
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.telemetry import Telemetry

__all__ = ["Shelf"]

#: Ids in one transaction: enough to make commits cheap, few enough that settles do not wait for the head.
_PART = 100
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class _Verb:
    """What an operator does to letters: choose and take them, change their invocations, tell it after the commit."""

    choose: Callable[[Session, int, Sequence[int]], Chosen]
    work: Callable[[Session, Sequence[DeadLetter]], object]
    tell: Callable[[Sequence[DeadLetter]], None]


def _nothing() -> None:
    return None


def _nothing_held(_session: Session) -> None:
    return None


def _answered(entry_ids: Sequence[int], outcome: Outcome, error: Exception) -> dict[int, Answer]:
    return {entry_id: Answer(entry_id, outcome, str(error)) for entry_id in entry_ids}


class Shelf:
    """The dead letters of one task queue.

    Args:
        hold: called before letters are chosen for a replay; locks, in the common order, every shelf that takes part.
        keeps: what is discarded goes into the bin.
        requeue: puts a letter's parked invocation back to work, for exactly one attempt, under its own id and key.
        discard_invocations: marks the invocations of letters `discarded`. A letter that cannot be read has `seq` 0:
            its invocation is the one of the queue that names the letter's `entry_id`.
        wake: called after the commit of a replay, so that an idle worker looks at once.
        replace: (session, letter, queue, call, key) → id of the changed copy that was submitted in the letter's place.
        on_replaced: called after the commit of that, so that an idle worker looks at once.
        await_end: (task id, seconds) → the invocation once it has ended.
    """

    def __init__(
        self,
        engine: Engine,
        queue_id: int,
        queue_name: str,
        *,
        telemetry: Telemetry,
        requeue: Callable[[Session, DeadLetter], object],
        discard_invocations: Callable[[Session, Sequence[DeadLetter]], object],
        hold: Callable[[Session], object] = _nothing_held,
        keeps: bool = True,
        wake: Callable[[], object] = _nothing,
        replace: Callable[[Session, DeadLetter, str, Call, str | None], str] | None = None,
        on_replaced: Callable[[], object] = _nothing,
        await_end: Callable[[str, float], Any] | None = None,
    ) -> None:
        self.queue_name = queue_name
        self._engine = engine
        self._queue_id = queue_id
        self._telemetry = telemetry
        self._requeue = requeue
        self._discard_invocations = discard_invocations
        self._wake = wake
        self._hold = hold
        self._keeps = keeps
        self._submit_copy = replace
        self._on_replaced = on_replaced
        self._await_end = await_end
        self._replay = _Verb(self._begin, self._put_back, self._tell_replaying)
        self._discard = _Verb(self._take_off, self._mark_discarded, self._tell_discarded)

    def __repr__(self) -> str:
        return f"Shelf({self.queue_name!r})"

    def count(self, *, after: int = 0, **filters: Any) -> int:
        """How many letters lie here, with an entry id above `after`, that fit every filter (the fields of `Filter`).

        Raises:
            InvalidInput: an unknown filter, or a value it cannot have.
        """
        wanted = filter_of(**filters)
        with self._engine.session() as session:
            if wanted.is_empty and not after:
                return shelf_fifo(session, self._queue_id).count()
            return cards.count_chosen(session, self._queue_id, wanted.chosen(), after)

    def compare(self, entry_id: int) -> Comparison:
        """The letter beside the last good run of its actor on this queue; see `Comparison`.

        Raises:
            DeadLetterNotFound: there is none of this id.
        """
        letter = self.get(entry_id)
        with self._engine.session() as session:
            return compare(session, self._queue_id, letter)

    def get(self, entry_id: int) -> DeadLetter:
        """One letter.

        Raises:
            DeadLetterNotFound: it was replayed, edited, discarded or evicted, or never was.
        """
        with self._engine.session() as session:
            rows = shelf_fifo(session, self._queue_id).get([entry_id])
        if not rows:
            raise DeadLetterNotFound(
                f"no dead letter {entry_id} on the shelf of queue {self.queue_name!r}; "
                "it may have been replayed, edited, discarded or evicted"
            )
        return letter_of(rows[0])

    def replay(self, entry_id: int, wait: float | None = None) -> Any:
        """Put the letter's invocation back to work for one attempt; the letter stays, pinned, until that has ended.

        Args:
            wait: seconds to wait for that end.

        Returns:
            None when there is none of this id; else the letter, or, with `wait`, the invocation as it then is: its
            `state` is `succeeded`, `parked` again, or still open when it did not end in time.

        Raises:
            AlreadyHandled: somebody else replays it.
            InvalidOperation: the letter cannot be read.
        """
        letter = self._one(self._replay, entry_id)
        if letter is None or wait is None or self._await_end is None:
            return letter
        return self._await_end(letter.task_id, wait)

    def discard(self, entry_id: int) -> bool:
        """Remove the letter for good and mark its invocation `discarded`; False when there is none of this id.

        Raises:
            AlreadyHandled: it is being replayed.
        """
        return self._one(self._discard, entry_id) is not None

    def edit(
        self,
        entry_id: int,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        key: str | None = None,
        by: str = "",
    ) -> Edited:
        """Submit a changed copy of the letter's task, under an id of its own, in place of the letter.

        In one transaction the copy is accepted, the letter leaves the shelf, and its task becomes `discarded`, with its
        message as it was; both tasks name each other.

        Args:
            args: instead of the letter's; None keeps them, and likewise `kwargs`.
            key: idempotency key of the copy, which has none otherwise; the letter's own stays with its task.
            by: who did it.

        Raises:
            InvalidInput: neither was given, or the task, where it is declared here, cannot be called like that.
            DeadLetterNotFound: somebody edited, replayed or discarded it, or it never was.
            AlreadyHandled: it is being replayed.
            InvalidOperation: it cannot be read.
            Conflict: the key names another task.
        """
        if self._submit_copy is None:
            raise InvalidOperation(f"letters of {self.queue_name!r} cannot be edited here")
        with self._engine.session() as session, session.transaction():
            letter = take_for_edit(session, self._queue_id, entry_id)
            call = edited_call(letter, args, kwargs)
            edited = Edited(letter, self._submit_copy(session, letter, self.queue_name, call, key))
        self._tell_edited(edited, by)
        return edited

    def replay_many(self, entry_ids: Sequence[int]) -> builtins.list[Answer]:
        """Replay each of these letters; one answer for each distinct id, in their order."""
        return self._many(self._replay, entry_ids)

    def discard_many(self, entry_ids: Sequence[int]) -> builtins.list[Answer]:
        """Discard each of these letters; one answer for each distinct id, in their order."""
        return self._many(self._discard, entry_ids)

    def list(self, *, limit: int | None = None, after: int = 0, **filters: Any) -> builtins.list[DeadLetter]:
        """Letters in the order of their ids, the oldest first.

        Args:
            limit: at most so many.
            after: only those with a higher entry id: a page begins where the last one ended.
            filters: the fields of `Filter`; all must hold.

        Raises:
            InvalidInput: an unknown filter, or a value it cannot have.
        """
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit={limit} is negative")
        wanted = filter_of(**filters)
        with self._engine.session() as session:
            fifo = shelf_fifo(session, self._queue_id)
            if wanted.is_empty and not after:
                return [letter_of(row) for row in fifo.entries(limit)]
            ids = cards.choose(session, self._queue_id, wanted.chosen(), after, MAX_ID if limit is None else limit)
            pages = [ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE)]
            return [letter_of(row) for page in pages for row in fifo.get(page)]

    def _one(self, verb: _Verb, entry_id: int) -> DeadLetter | None:
        with self._engine.session() as session, session.transaction():
            chosen = verb.choose(session, self._queue_id, [entry_id])
            letter = replay.the_only(chosen)
            verb.work(session, chosen.letters)
        verb.tell(chosen.letters)
        return letter

    def _many(self, verb: _Verb, entry_ids: Sequence[int]) -> builtins.list[Answer]:
        """In parts; where one letter spoils its part, each of that part by itself. Errors become answers, except
        inside a caller's transaction, which an error has spoiled as a whole."""
        wanted = list(dict.fromkeys(entry_ids))
        with self._engine.session() as session:
            is_callers = session.in_transaction
        answers: dict[int, Answer] = {}
        parts = deque(wanted[start : start + _PART] for start in range(0, len(wanted), _PART))
        while parts:
            part = parts.popleft()
            try:
                answers |= self._part(verb, part)
            except LatticeError as error:
                if is_callers:
                    raise
                if isinstance(error, StoreUnavailable):
                    answers |= _answered([*part, *chain(*parts)], Outcome.FAILED, error)
                    break
                if len(part) == 1:
                    outcome = Outcome.ALREADY_HANDLED if isinstance(error, Conflict) else Outcome.FAILED
                    answers |= _answered(part, outcome, error)
                else:
                    parts.extendleft([entry_id] for entry_id in reversed(part))
        return [answers[entry_id] for entry_id in wanted]

    def _part(self, verb: _Verb, entry_ids: Sequence[int]) -> dict[int, Answer]:
        with self._engine.session() as session, session.transaction():
            chosen = verb.choose(session, self._queue_id, entry_ids)
            verb.work(session, chosen.letters)
        verb.tell(chosen.letters)
        done = (Answer(letter.entry_id, Outcome.DONE) for letter in chosen.letters)
        return {answer.entry_id: answer for answer in (*chosen.answers, *done)}

    def _begin(self, session: Session, queue_id: int, entry_ids: Sequence[int]) -> Chosen:
        self._hold(session)
        return replay.begin_replays(session, queue_id, entry_ids)

    def _take_off(self, session: Session, queue_id: int, entry_ids: Sequence[int]) -> Chosen:
        return replay.take_off(session, queue_id, entry_ids, keeps=DISCARDED if self._keeps else None)

    def _put_back(self, session: Session, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self._requeue(session, letter)

    def _mark_discarded(self, session: Session, letters: Sequence[DeadLetter]) -> None:
        if letters:
            self._discard_invocations(session, letters)

    def _tell_replaying(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            replay.tell_replaying(self._telemetry, self.queue_name, letter)
        if letters:
            self._wake()

    def _tell_edited(self, edited: Edited, by: str) -> None:
        where: dict[str, Any] = {
            "shelf": self.queue_name,
            "entry_id": edited.letter.entry_id,
            "task_id": edited.letter.task_id,
        }
        self._telemetry.emit("dead_letter.edited", **where, child_id=edited.child_id, by=by)
        self._telemetry.emit("dead_letter.removed", **where, reason="replayed")
        self._on_replaced()

    def _tell_discarded(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            replay.tell_discarded(self._telemetry, self.queue_name, letter)
