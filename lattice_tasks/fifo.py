"""One engine under every FIFO buffer: `Fifo` over bytes, and `LatticeQueue`, the typed queue that users see.

The head row in the store is the coordinator. Every change holds it, from the first statement to the end of the
transaction, so any number of processes see one serial order. Ids rise from 1 and are never issued again: not when the
queue was drained, and not after a crash, for the head is written together with the entries. What a rolled back
transaction had issued nobody has seen.

Made for control data, dead letters and diagnostics: one head is the ceiling of a queue's rate, by design.
A dequeue removes the entry before the caller has worked on it; work that must not be lost is a task.
"""

import builtins
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from lattice_tasks.errors import InvalidInput, InvalidOperation, NotEncodable, QueueFull, ReservedName
from lattice_tasks.keys import MAX_ID
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.trees import Row

__all__ = ["JSON", "Appended", "Fifo", "Held", "LatticeQueue", "QueueEntry", "Row", "Serializer", "require_capacity"]

T = TypeVar("T")

_SYSTEM = "_lattice_"
_TREE = "_lattice_queue_"
_MAX_NAME = 255


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


class Serializer(Protocol):
    """How a queue's values become bytes and values again."""

    def serialize(self, value: Any) -> bytes: ...
    def deserialize(self, data: bytes) -> Any: ...


class _Json:
    def serialize(self, value: Any) -> bytes:
        try:
            return msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotEncodable(f"a {type(value).__name__} cannot be written as JSON: {error}") from error

    def deserialize(self, data: bytes) -> Any:
        return msgspec.json.decode(data)


#: UTF-8 JSON, for queues that bring no serializer of their own.
JSON: Serializer = _Json()


@dataclass(frozen=True, slots=True)
class QueueEntry(Generic[T]):
    """A value and the id that it was given when it was enqueued."""

    entry_id: int
    value: T


class LatticeQueue(Generic[T]):
    """A typed FIFO in the store, the same for everybody who opens its name; opening it needs no step before.

    Args:
        store: an engine, or a session whose open transaction the calls shall join.
        name: 1 to 255 characters; distinct names are distinct queues.
        serializer: JSON unless given. It runs here, in the caller: the store sees bytes.
        capacity: how many entries may live before the oldest is evicted; None: any number. A callable is asked at
            each enqueue.
        on_evicted: called with what an enqueue evicted, as stored bytes, oldest first, after the enqueue has
            committed; with a session that is in a transaction, before the caller's commit.

    Raises:
        InvalidInput: the name or the capacity is not acceptable.
        ReservedName: the name starts like a system tree's.
    """

    def __init__(
        self,
        store: Engine | Session,
        name: str,
        *,
        serializer: Serializer = JSON,
        capacity: int | Callable[[], int | None] | None = None,
        on_evicted: Callable[[Sequence[QueueEntry[bytes]]], None] | None = None,
    ) -> None:
        _require_name(name)
        if not callable(capacity):
            require_capacity(capacity, name)
        self.name = name
        self._store = store
        self._serializer = serializer
        self._capacity = capacity
        self._on_evicted = on_evicted

    def __repr__(self) -> str:
        return f"LatticeQueue({self.name!r})"

    def enqueue(self, item: T) -> int:
        """Append at the tail; returns the id. Raises like `enqueue_many`."""
        return self.enqueue_many([item])[0]

    def enqueue_many(self, items: Sequence[T]) -> builtins.list[int]:
        """Append at the tail, all or none; returns one id for each, in order.

        Raises:
            NotEncodable: a value is not JSON; another serializer's own error comes as it is. No id was issued.
            QueueFull: the bound is reached and nothing may be evicted.
            InvalidOperation: the last id was issued.
        """
        values = [self._bytes_of(item) for item in items]
        capacity = self._capacity() if callable(self._capacity) else self._capacity
        require_capacity(capacity, self.name)
        with self._fifo() as fifo, fifo.held() as held:
            appended = held.append(values, capacity)
            ids = [entry_id for entry_id in appended.ids if entry_id is not None]
            if len(ids) < len(values):
                raise QueueFull(f"queue {self.name!r} holds {capacity} pinned entries, its bound; nothing was stored")
        if appended.evicted and self._on_evicted is not None:
            self._on_evicted([QueueEntry(row.entry_id, row.value) for row in appended.evicted])
        return ids

    def try_dequeue(self) -> QueueEntry[T] | None:
        """Remove and return the head, or None; an entry that the serializer cannot read stays, its error is raised."""
        with self._fifo() as fifo, fifo.held() as held:
            taken = held.take()
            return self._entry(taken[0]) if taken else None

    def peek(self) -> QueueEntry[T] | None:
        """The head, or None; one look-up."""
        with self._fifo() as fifo:
            rows = fifo.entries(limit=1)
        return self._entry(rows[0]) if rows else None

    def count(self) -> int:
        """How many entries wait; one look-up."""
        with self._fifo() as fifo:
            return fifo.count()

    def list(self, limit: int | None = None) -> builtins.list[QueueEntry[T]]:
        """The first entries, all of them without a limit, ascending, as of one moment. Not for a hot path."""
        with self._fifo() as fifo:
            rows = fifo.entries(limit)
        return [self._entry(row) for row in rows]

    @contextmanager
    def _fifo(self) -> Iterator[Fifo]:
        tree = _TREE + self.name
        if isinstance(self._store, Session):
            yield Fifo(self._store, tree)
            return
        with self._store.session() as session:
            yield Fifo(session, tree)

    def _bytes_of(self, item: T) -> bytes:
        value = self._serializer.serialize(item)
        if not isinstance(value, bytes):
            raise InvalidInput(f"the serializer of queue {self.name!r} gave {type(value).__name__}; it must give bytes")
        return value

    def _entry(self, row: Row) -> QueueEntry[T]:
        return QueueEntry(row.entry_id, self._serializer.deserialize(row.value))


def require_capacity(capacity: int | None, name: str) -> None:
    """Refuse a bound that is not None or a whole number from 1.

    Raises:
        InvalidInput: with the queue's name.
    """
    if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1):
        raise InvalidInput(f"capacity={capacity!r} of queue {name!r} must be None or a whole number from 1")


def _require_name(name: str) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME:
        raise InvalidInput(f"queue name {name!r} must be a text of 1 to {_MAX_NAME} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidInput(f"queue name {name!r} must not contain control characters or lone surrogates")
    if name.startswith(_SYSTEM):
        raise ReservedName(f"queue name {name!r} starts with {_SYSTEM!r}, which is kept for the system; choose another")
