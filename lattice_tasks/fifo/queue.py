"""`LatticeQueue`: the typed queue that users see. Values become bytes here, in the caller; the engine never sees them."""

import builtins
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from lattice_tasks.errors import InvalidInput, NotEncodable, QueueFull, ReservedName
from lattice_tasks.fifo.cancellation import Cancellation
from lattice_tasks.fifo.engine import Fifo, Held
from lattice_tasks.store import trees
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.trees import Row

__all__ = ["JSON", "Capacity", "LatticeQueue", "QueueEntry", "Serializer", "Store", "require_capacity", "require_name"]

T = TypeVar("T")
#: A fixed bound, None for no bound, or a callable that is asked at each enqueue.
Capacity = int | Callable[[], int | None] | None
#: Where sessions come from; a session itself makes every call join its open transaction.
Store = Engine | Session | Callable[[], AbstractContextManager[Session]]

_SYSTEM = "_lattice_"
_TREE = "_lattice_queue_"
_MAX_NAME = 255
_HOME = "default"
#: No name may hold it, so that no name in one namespace is another one's in the next.
_PARTS = "\x1f"


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

    Inside a transaction of the caller's a call is part of it, and one that raises has changed nothing.

    Args:
        store: an engine or what makes sessions, or a session whose open transaction the calls shall join.
        name: 1 to 255 characters; distinct names are distinct queues.
        serializer: JSON unless given. It runs here, in the caller: the store sees bytes.
        capacity: how many entries may live before the oldest is evicted; None: any number. A callable is asked at
            each enqueue.
        on_evicted: called with what an enqueue evicted, as stored bytes, oldest first, after the enqueue has
            committed; inside a transaction of the caller's, before the caller's commit.
        namespace: the same name in another namespace is another queue.

    Raises:
        InvalidInput: the name, the capacity or the serializer is not acceptable.
        ReservedName: the name starts like a system tree's.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        serializer: Serializer = JSON,
        capacity: Capacity = None,
        on_evicted: Callable[[Sequence[QueueEntry[bytes]]], None] | None = None,
        namespace: str = _HOME,
    ) -> None:
        require_name(name)
        if not callable(capacity):
            require_capacity(capacity, name)
        if not all(callable(getattr(serializer, verb, None)) for verb in ("serialize", "deserialize")):
            raise InvalidInput(f"serializer={serializer!r} of queue {name!r} must have serialize and deserialize")
        self.name = name
        self._tree = _TREE + (name if namespace == _HOME else f"{namespace}{_PARTS}{name}")
        self._store = store
        self._serializer = serializer
        self._capacity = capacity
        self._on_evicted = on_evicted

    def __repr__(self) -> str:
        return f"LatticeQueue({self.name!r})"

    def enqueue(self, item: T, *, cancellation: Cancellation | None = None) -> int:
        """Append at the tail; returns the id. Raises like `enqueue_many`."""
        return self.enqueue_many([item], cancellation=cancellation)[0]

    def enqueue_many(self, items: Sequence[T], *, cancellation: Cancellation | None = None) -> builtins.list[int]:
        """Append all of them or none, in their order; returns their ids.

        Raises:
            CallCancelled, CallTimedOut: as the handle says; no id was issued.
            NotEncodable: a value is not JSON; another serializer's own error comes as it is. No id was issued.
            InvalidInput: the serializer gave something else than bytes.
            QueueFull: the bound is reached and nothing may be evicted.
            InvalidOperation: the last id was issued.
        """
        _check(cancellation, self, "enqueue")
        values = [self._bytes_of(item) for item in items]
        capacity = self._capacity() if callable(self._capacity) else self._capacity
        require_capacity(capacity, self.name)
        with self._held("enqueue", cancellation) as held:
            appended = held.append(values, capacity)
            ids = [entry_id for entry_id in appended.ids if entry_id is not None]
            if len(ids) < len(values):
                raise QueueFull(f"queue {self.name!r} holds {capacity} pinned entries, its bound; nothing was stored")
        if appended.evicted and self._on_evicted is not None:
            self._on_evicted([QueueEntry(row.entry_id, row.value) for row in appended.evicted])
        return ids

    def try_dequeue(self, *, cancellation: Cancellation | None = None) -> QueueEntry[T] | None:
        """Remove and return the head, or None; an entry that the serializer cannot read stays, its error is raised.

        Raises:
            CallCancelled, CallTimedOut: as the handle says; the head is still there.
        """
        with self._held("try_dequeue", cancellation) as held:
            taken = held.take()
            return self._entry(taken[0]) if taken else None

    def peek(self, *, cancellation: Cancellation | None = None) -> QueueEntry[T] | None:
        """The head, or None; one look-up."""
        with self._fifo("peek", cancellation) as fifo:
            rows = fifo.entries(limit=1)
        return self._entry(rows[0]) if rows else None

    def count(self, *, cancellation: Cancellation | None = None) -> int:
        """How many entries wait; one look-up."""
        with self._fifo("count", cancellation) as fifo:
            return fifo.count()

    def list(
        self, limit: int | None = None, *, cancellation: Cancellation | None = None
    ) -> builtins.list[QueueEntry[T]]:
        """The first entries, all of them without a limit, ascending, as of one moment. Not for a hot path.

        Raises:
            InvalidInput: the limit is negative.
        """
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit={limit} of queue {self.name!r} is negative")
        with self._fifo("list", cancellation) as fifo:
            rows = fifo.entries(limit)
        return [self._entry(row) for row in rows]

    @contextmanager
    def _held(self, verb: str, cancellation: Cancellation | None) -> Iterator[Held]:
        """The queue's head, for one change; the handle has its last word before the commit."""
        with self._fifo(verb, cancellation) as fifo, trees.all_or_nothing(fifo.session), fifo.held() as held:
            _check(cancellation, self, verb)
            yield held
            _check(cancellation, self, verb)

    @contextmanager
    def _fifo(self, verb: str, cancellation: Cancellation | None) -> Iterator[Fifo]:
        _check(cancellation, self, verb)
        if isinstance(self._store, Session):
            yield Fifo(self._store, self._tree)
            return
        with self._store.session() if isinstance(self._store, Engine) else self._store() as session:
            yield Fifo(session, self._tree)

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


def require_name(name: str, called: str = "queue name") -> None:
    """Refuse what is no name of a queue; `called` is for the error.

    Raises:
        InvalidInput: it is empty, too long, or holds control characters.
        ReservedName: it starts like a system tree's.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME:
        raise InvalidInput(f"{called} {name!r} must be a text of 1 to {_MAX_NAME} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidInput(f"{called} {name!r} must not contain control characters or lone surrogates")
    if name.startswith(_SYSTEM):
        raise ReservedName(f"{called} {name!r} starts with {_SYSTEM!r}, which is kept for the system; choose another")


def _check(cancellation: Cancellation | None, queue: LatticeQueue[Any], verb: str) -> None:
    if cancellation is not None:
        cancellation.check(f"{verb} on queue {queue.name!r}")
