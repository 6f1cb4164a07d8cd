"""Putting dead letters on a queue's shelf, and what becomes of one whose replay has ended.

Everything here runs inside the caller's transaction, next to the states of the invocations it is about, and costs a
number of statements that grows with the kinds of trouble, not with the letters. Each letter has its card (`store/letters.py`)
as long as it lies here. Events are the caller's, after its commit: `announce`
has them in the order that a reader can add up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters import entry
from lattice_tasks.dead_letters.bin import EVICTED, keep
from lattice_tasks.dead_letters.entry import REASONS, DeadLetter, Life, Note
from lattice_tasks.dead_letters.fingerprint import error_class_of, fingerprint, normalised
from lattice_tasks.errors import InvalidInput
from lattice_tasks.fifo import Fifo, Held, Row, require_capacity
from lattice_tasks.store import letters as cards
from lattice_tasks.store.engine import Session
from lattice_tasks.store.letters import Card
from lattice_tasks.telemetry import Telemetry

__all__ = [
    "EVICT",
    "ON_FULL",
    "REFUSE",
    "Evicted",
    "Parking",
    "ShelfSpec",
    "announce",
    "cancel_replays",
    "card_of",
    "fail_replay",
    "fail_replays",
    "finish_replay",
    "finish_replays",
    "letter_of",
    "park",
    "shelf_fifo",
]

#: What a full shelf does: lose its oldest letter, or take no more.
EVICT, REFUSE = "evict", "refuse"
ON_FULL = (EVICT, REFUSE)


@dataclass(frozen=True, slots=True)
class ShelfSpec:
    """Which shelf, and its rules as they are now: they are read with each park, so a change counts at once.

    Attributes:
        queue_id: of the task queue.
        capacity: at least 1.
        on_full: `evict` or `refuse`.
        keeps: what is evicted goes into the bin.
    """

    queue_id: int
    capacity: int = 1_000
    on_full: str = EVICT
    keeps: bool = True

    def __post_init__(self) -> None:
        require_capacity(self.capacity, f"{self.queue_id} (shelf)")
        if self.capacity is None or self.on_full not in ON_FULL:
            raise InvalidInput(
                f"shelf of queue {self.queue_id}: capacity={self.capacity!r}, on_full={self.on_full!r}; "
                f"a shelf is bounded, and on_full is {' or '.join(ON_FULL)}"
            )


@dataclass(frozen=True, slots=True)
class Evicted:
    """A letter that had to go. Its invocation becomes `discarded`; with `seq` 0 (an entry that could not be read) it
    is the one of the queue that names this `entry_id`."""

    entry_id: int
    task_id: str
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parking:
    """What a park did.

    Attributes:
        entry_ids: one per letter, in order; None: no place, its invocation is `held`.
        evicted: oldest first. It holds letters of this very park when they were more than the shelf takes: their
            ids are in `entry_ids` as well.
    """

    entry_ids: tuple[int | None, ...]
    evicted: tuple[Evicted, ...]


def shelf_fifo(session: Session, queue_id: int) -> Fifo:
    """The FIFO under the shelf of a task queue."""
    return Fifo(session, f"_lattice_dlq_{queue_id}")


def letter_of(row: Row) -> DeadLetter:
    """The letter in a row of a shelf."""
    return entry.decode(row.entry_id, row.value, row.is_pinned)


def park(session: Session, shelf: ShelfSpec, letters: Sequence[DeadLetter]) -> Parking:
    """Put letters on the shelf; `parked_at` becomes the store's now.

    At the bound the oldest unpinned letters go; a pinned one is being replayed and stays. When the shelf refuses, or
    all it holds is pinned, a letter finds no place.

    Raises:
        InvalidInput: a reason that is not one of `REASONS`.
    """
    for letter in letters:
        if letter.reason not in REASONS:
            raise InvalidInput(f"task {letter.task_id}: reason {letter.reason!r} is none of {', '.join(REASONS)}")
    if not letters:
        return Parking((), ())
    with shelf_fifo(session, shelf.queue_id).held() as held:
        parked_at = clock.from_us(held.now_us)
        values = [entry.encode(msgspec.structs.replace(letter, parked_at=parked_at)) for letter in letters]
        appended = held.append(values, shelf.capacity, evicts=shelf.on_full == EVICT)
        placed = zip(letters, appended.ids, strict=True)
        parked = [card_of(letter, entry_id, held.now_us) for letter, entry_id in placed if entry_id is not None]
        cards.file(session, shelf.queue_id, parked)
        cards.drop(session, shelf.queue_id, [row.entry_id for row in appended.evicted])
        if shelf.keeps:
            keep(session, shelf.queue_id, appended.evicted, EVICTED)
    gone = (letter_of(row) for row in appended.evicted)
    evicted = tuple(Evicted(letter.entry_id, letter.task_id, letter.seq, letter.reason) for letter in gone)
    return Parking(appended.ids, evicted)


def finish_replays(session: Session, queue_id: int, entry_ids: Sequence[int]) -> list[DeadLetter]:
    """Remove the letters of replays that succeeded, with their pins; returns those that were there, ascending."""
    if not entry_ids:
        return []
    with shelf_fifo(session, queue_id).held() as held:
        cards.drop(session, queue_id, entry_ids)
        return [letter_of(row) for row in held.remove(entry_ids)]


def fail_replays(session: Session, queue_id: int, lives: Mapping[int, Life]) -> list[DeadLetter]:
    """Unpin the letters of replays that failed; each keeps its id and its place and gets one more life.

    A letter that is not pinned is not being replayed: a second failure of one replay changes nothing.

    Returns:
        The letters as they now are, ascending.
    """
    if not lives:
        return []
    with shelf_fifo(session, queue_id).held() as held:
        parked_at = clock.from_us(held.now_us)
        again = {entry_id: msgspec.structs.replace(life, parked_at=parked_at) for entry_id, life in lives.items()}
        letters = _unpin(held, list(lives), lambda letter: entry.with_life(letter, again[letter.entry_id]))
        readable = (letter for letter in letters if letter.is_readable)
        cards.refile(session, queue_id, [card_of(letter, letter.entry_id, held.now_us) for letter in readable])
    return letters


def cancel_replays(session: Session, queue_id: int, notes: Mapping[int, str]) -> list[DeadLetter]:
    """Unpin the letters of replays that were cancelled, each with a note: nothing failed, so its life and its card stay.

    Returns:
        The letters as they now are, ascending; none that was not pinned.
    """
    if not notes:
        return []
    with shelf_fifo(session, queue_id).held() as held:
        said = {entry_id: Note(at=clock.from_us(held.now_us), text=text) for entry_id, text in notes.items()}
        return _unpin(held, list(notes), lambda letter: entry.with_note(letter, said[letter.entry_id]))


def finish_replay(session: Session, queue_id: int, entry_id: int) -> DeadLetter | None:
    """`finish_replays` of one; None when it was not there."""
    return next(iter(finish_replays(session, queue_id, [entry_id])), None)


def fail_replay(session: Session, queue_id: int, entry_id: int, life: Life) -> bool:
    """`fail_replays` of one; False when it was not being replayed."""
    return bool(fail_replays(session, queue_id, {entry_id: life}))


def card_of(letter: DeadLetter, entry_id: int, parked_at: int) -> Card:
    """What the store keeps beside a letter that was parked at this instant (microseconds)."""
    return Card(
        entry_id=entry_id,
        seq=letter.seq,
        fingerprint=fingerprint(letter.actor, letter.error, letter.traceback),
        actor=letter.actor,
        reason=letter.reason,
        error_class=error_class_of(letter.error, letter.traceback),
        message=normalised(letter.error),
        key=letter.key,
        parked_at=parked_at,
        replays=letter.failed_replays,
    )


def _unpin(held: Held, entry_ids: Sequence[int], change: Callable[[DeadLetter], DeadLetter]) -> list[DeadLetter]:
    """Those of these letters that are pinned, unpinned and as `change` makes them, where they can be read; ascending."""
    letters = []
    for row in held.get(entry_ids):
        if row.is_pinned:
            letter = letter_of(row)
            letter = change(letter) if letter.is_readable else letter
            letters.append(msgspec.structs.replace(letter, is_replaying=False))
    held.replace({letter.entry_id: entry.encode(letter) for letter in letters if letter.is_readable})
    held.unpin([letter.entry_id for letter in letters])
    return letters


def announce(telemetry: Telemetry, shelf: str, letters: Sequence[DeadLetter], parking: Parking) -> None:
    """Emit a park's events, once it has committed: what was evicted, then what was parked, then what found no place.

    Args:
        shelf: the queue's name.
        letters: those that were given to `park`.
    """
    for gone in parking.evicted:
        telemetry.emit(
            "dead_letter.evicted", shelf=shelf, entry_id=gone.entry_id, task_id=gone.task_id, reason=gone.reason
        )
    for letter, entry_id in zip(letters, parking.entry_ids, strict=True):
        if entry_id is None:
            telemetry.emit("task.held", queue=shelf, task_id=letter.task_id)
        else:
            telemetry.emit(
                "dead_letter.enqueued", shelf=shelf, entry_id=entry_id, task_id=letter.task_id, reason=letter.reason
            )
