"""The dead letters of one tree: records that could not be applied to it, kept, looked at, replayed, discarded.

The same engine as under a task queue's shelf: bounded, ids never issued again, every change in one transaction under the
head. A record has no state besides its letter, so a replay is over when it returns: the letter leaves and the record is
applied together, or neither. Of two operators one does it, and the other finds nothing left to do.
"""

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters.parking import EVICT, ON_FULL
from lattice_tasks.dead_letters.record import RECORD_REASONS, RecordLetter, decode_record, encode_record
from lattice_tasks.errors import InvalidInput, InvalidOperation
from lattice_tasks.fifo import Fifo, Row, require_capacity, require_name
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.telemetry import Telemetry

__all__ = ["Applied", "ParkedRecords", "TreeShelf"]


class Applied(Protocol):
    """What applying a record came to. `is_deferred`: nothing was done, for now; try again later."""

    @property
    def is_deferred(self) -> bool: ...


R = TypeVar("R", bound=Applied)


@dataclass(frozen=True, slots=True)
class ParkedRecords:
    """What a park did, to be told after its commit.

    Attributes:
        letters: as they were given, in order.
        entry_ids: one per letter, in order; None: no place on a shelf that refuses.
        evicted: what had to go, oldest first; may hold letters of this very park, when they were more than the shelf takes.
    """

    letters: tuple[RecordLetter, ...]
    entry_ids: tuple[int | None, ...]
    evicted: tuple[RecordLetter, ...]


def _nothing_held(_session: Session) -> None:
    return None


class TreeShelf(Generic[R]):
    """The shelf of one tree.

    Args:
        tree: its name; the shelf is its own, whatever the tree's state.
        apply: applies a record as if it had just come, in the session's transaction, and counts no failure. It may park
            the record again, on this shelf, too.
        hold: called before the shelf's head is locked; locks what `apply` locks besides, in the common order.
        capacity: letters kept, at least 1.
        on_full: `evict` the oldest, or `refuse`.
        namespace: its id; the same tree in another namespace has another shelf.

    Raises:
        InvalidInput: one of them is not acceptable.
        ReservedName: the tree is one of the system's.
    """

    def __init__(
        self,
        engine: Engine,
        tree: str,
        *,
        telemetry: Telemetry,
        apply: Callable[[Session, RecordLetter], R],
        hold: Callable[[Session], object] = _nothing_held,
        capacity: int = 1_000,
        on_full: str = EVICT,
        namespace_id: int = 0,
    ) -> None:
        require_name(tree, "tree name")
        require_capacity(capacity, f"{tree} (shelf)")
        if capacity is None or on_full not in ON_FULL:
            raise InvalidInput(f"shelf of tree {tree!r}: capacity={capacity!r}, on_full={on_full!r}")
        self.tree = tree
        self._engine = engine
        self._telemetry = telemetry
        self._apply = apply
        self._hold = hold
        self._capacity = capacity
        self._evicts = on_full == EVICT
        self._name = f"_lattice_replog_dlq_{namespace_id}/{tree}"

    def __repr__(self) -> str:
        return f"TreeShelf({self.tree!r})"

    def park(self, session: Session, letters: Sequence[RecordLetter]) -> ParkedRecords:
        """Put letters here, in the session's transaction; `parked_at` becomes the store's now. Then `announce` it.

        Raises:
            InvalidInput: a reason that is not one of `RECORD_REASONS`.
        """
        for letter in letters:
            if letter.reason not in RECORD_REASONS:
                raise InvalidInput(f"reason {letter.reason!r} is none of {', '.join(RECORD_REASONS)}")
        if not letters:
            return ParkedRecords((), (), ())
        with self._fifo(session).held() as held:
            parked_at = clock.from_us(held.now_us)
            values = [encode_record(msgspec.structs.replace(letter, parked_at=parked_at)) for letter in letters]
            appended = held.append(values, self._capacity, evicts=self._evicts)
        return ParkedRecords(tuple(letters), appended.ids, tuple(_letter(row) for row in appended.evicted))

    def announce(self, parked: ParkedRecords) -> None:
        """Emit a park's events once it has committed: what was evicted, then what came."""
        for gone in parked.evicted:
            self._tell("evicted", gone)
        for letter, entry_id in zip(parked.letters, parked.entry_ids, strict=True):
            if entry_id is not None:
                self._telemetry.emit("tree_letter.enqueued", tree=self.tree, entry_id=entry_id, reason=letter.reason)

    def list(self, *, limit: int | None = None) -> builtins.list[RecordLetter]:
        """Letters in the order of their ids, all without a limit; changes nothing."""
        with self._engine.session() as session:
            return [_letter(row) for row in self._fifo(session).entries(limit)]

    def count(self) -> int:
        """How many letters lie here."""
        with self._engine.session() as session:
            return self._fifo(session).count()

    def try_get(self, entry_id: int) -> RecordLetter | None:
        """One letter, or None."""
        with self._engine.session() as session:
            rows = self._fifo(session).get([entry_id])
        return _letter(rows[0]) if rows else None

    def discard(self, entry_id: int) -> bool:
        """Remove a letter for good; False when there is none of this id."""
        with self._engine.session() as session:
            letter = self._take(session, entry_id)
        if letter is not None:
            self._tell("discarded", letter)
        return letter is not None

    def replay(self, entry_id: int) -> R | None:
        """Apply a letter's record once more; no failure is counted.

        Returns:
            What `apply` returned; the letter is gone then, whether or not it changed anything, unless it was deferred.
            None when there is no letter of this id.

        Raises:
            InvalidOperation: the letter cannot be read; it stays.
            Exception: of `apply`; the letter stays as it was.
        """
        with self._engine.session() as session, session.transaction(), trees.undoable(session) as undo:
            self._hold(session)
            letter = self._take(session, entry_id)
            if letter is None:
                return None
            if not letter.is_readable:
                raise InvalidOperation(letter.error)
            # It has left by now: when `apply` parks the record again, this letter needs no place and is not evicted.
            result = self._apply(session, letter)
            if result.is_deferred:
                undo()
        if not result.is_deferred:
            self._tell("replayed", letter)
        return result

    def _take(self, session: Session, entry_id: int) -> RecordLetter | None:
        with self._fifo(session).held() as held:
            rows = held.remove([entry_id])
        return _letter(rows[0]) if rows else None

    def _fifo(self, session: Session) -> Fifo:
        return Fifo(session, self._name)

    def _tell(self, what: str, letter: RecordLetter) -> None:
        where = {"tree": self.tree, "entry_id": letter.entry_id}
        if what == "evicted":
            self._telemetry.emit("tree_letter.evicted", **where, reason=letter.reason)
        else:
            self._telemetry.emit("tree_letter.removed", **where, reason=what)


def _letter(row: Row) -> RecordLetter:
    return decode_record(row.entry_id, row.value)
