"""The engine under every FIFO buffer: bytes in, bytes out, one head row that orders it all.

The head row in the store is the coordinator. Every change holds it, from the first statement to the end of the
transaction, so any number of processes see one serial order. Ids rise from 1 and are never issued again: not when the
queue was drained, and not after a crash, for the head is written together with the entries. What a rolled back
transaction had issued nobody has seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lattice_tasks.errors import InvalidOperation
from lattice_tasks.keys import MAX_ID
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Session
from lattice_tasks.store.trees import Row

__all__ = ["Appended", "Fifo", "Held", "Row"]


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did.

    Attributes:
        ids: one per value, in order; None where there was no place.
        evicted: what had to go, oldest first; may hold values of this very append, when they were more than the bound.
    """

    ids: tuple[int | None, ...]
    evicted: tuple[Row, ...]


class Held:
    """A FIFO whose head is locked: what is read here stays true until the transaction ends. Made by `Fifo.held`."""

    def __init__(self, session: Session, tree: str) -> None:
        head = trees.hold(session, tree)
        self._session = session
        self._tree = tree
        self._head = head
        self._floor, self._next_id, self._count = head.floor, head.next_id, head.count
        self.now_us = head.now_us  #: the store's clock

    def append(self, values: Sequence[bytes], capacity: int | None = None, evicts: bool = True) -> Appended:
        """Append at the tail, under ids that rise.

        Args:
            values: any number; the statements do not grow with it.
            capacity: how many entries may live; None: any number.
            evicts: at the bound the oldest go, pinned ones aside; values find no place when all are pinned.
                False: nothing goes, and the values beyond the bound find no place.

        Raises:
            InvalidOperation: the last id was issued; nothing was written.
        """
        taken = self._places(len(values), capacity, evicts)
        without = (None,) * (len(values) - taken)
        if not taken:
            return Appended(without, ())
        first_id = self._next_id
        if first_id + taken > MAX_ID:
            raise InvalidOperation(f"{self._tree} has issued its last id; move its entries to a new queue")
        trees.insert_rows(self._session, self._head.tree_id, first_id, values[:taken])
        self._next_id += taken
        self._count += taken
        surplus = 0 if capacity is None else self._count - capacity
        evicted = self.take(surplus) if surplus > 0 else []
        return Appended((*range(first_id, self._next_id), *without), tuple(evicted))

    def take(self, number: int = 1) -> list[Row]:
        """Remove the first entries that are not pinned, at most so many; returns them, oldest first."""
        if not self._count:
            return []
        taken = trees.take_oldest(self._session, self._head, number)
        if taken:
            self._count -= len(taken)
            self._floor = max(self._floor, taken[-1].entry_id + 1)
        return taken

    def get(self, entry_ids: Sequence[int]) -> list[Row]:
        """Those of these entries that exist, in the order of their ids."""
        return trees.rows_of(self._session, self._tree, entry_ids)

    def remove(self, entry_ids: Sequence[int]) -> list[Row]:
        """Remove entries and their pins; returns those that existed, in the order of their ids."""
        removed = trees.remove_rows(self._session, self._head.tree_id, entry_ids)
        if removed:
            self.unpin([row.entry_id for row in removed])
            self._count -= len(removed)
            for row in removed:
                if row.entry_id == self._floor:
                    self._floor += 1
        return removed

    def replace(self, values: Mapping[int, bytes]) -> None:
        """Give entries that exist new values; they keep id and place."""
        trees.replace_rows(self._session, self._head.tree_id, dict(values))

    def pin(self, entry_ids: Sequence[int]) -> None:
        """Keep entries, not pinned yet, from being evicted or dequeued."""
        trees.pin(self._session, self._head.tree_id, entry_ids)

    def unpin(self, entry_ids: Sequence[int]) -> None:
        """Take their pins away, where there are any."""
        trees.unpin(self._session, self._head.tree_id, entry_ids)

    def _places(self, wanted: int, capacity: int | None, evicts: bool) -> int:
        if capacity is None or self._count + wanted <= capacity:
            return wanted
        if not evicts:
            return max(0, capacity - self._count)
        return wanted if trees.count_pins(self._session, self._head.tree_id) < capacity else 0

    def _write(self) -> None:
        head = self._head
        if not self._count:
            self._floor = self._next_id
        if (self._floor, self._next_id, self._count) != (head.floor, head.next_id, head.count):
            trees.write_head(self._session, head.tree_id, self._floor, self._next_id, self._count)


@dataclass(frozen=True, slots=True)
class Fifo:
    """The engine: one FIFO of bytes over one system tree, in one session. Joins the session's open transaction."""

    session: Session
    tree: str

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Lock the head for several steps; the head is written when the block ends well, all of it or nothing counts.

        Whoever holds several queues at once takes them sorted by tree, or two may wait for each other.
        """
        with self.session.transaction():
            held = Held(self.session, self.tree)
            yield held
            held._write()

    def count(self) -> int:
        """How many entries live; one look-up."""
        return trees.count_of(self.session, self.tree)

    def entries(self, limit: int | None = None) -> list[Row]:
        """The first entries, all of them without a limit, ascending, as of one moment; takes no lock."""
        return trees.rows_from_floor(self.session, self.tree, limit)

    def get(self, entry_ids: Sequence[int]) -> list[Row]:
        """Those of these entries that exist, ascending; takes no lock."""
        return trees.rows_of(self.session, self.tree, entry_ids)

    def try_get(self, entry_id: int) -> bytes | None:
        """One entry's bytes, or None; takes no lock."""
        rows = self.get([entry_id])
        return rows[0].value if rows else None

    def remove(self, entry_id: int) -> bool:
        """Remove any entry, wherever it stands; False when there is none of this id."""
        with self.held() as held:
            return bool(held.remove([entry_id]))
