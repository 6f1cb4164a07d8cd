"""The queue record, and `Queues`: finding, making, pausing and measuring them by name within one namespace."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from lattice_tasks import clock
from lattice_tasks.dead_letters.parking import ON_FULL
from lattice_tasks.errors import (
    Conflict,
    InvalidInput,
    QueueClosed,
    QueueExists,
    QueueNotFound,
    ReservedName,
    StoreUnavailable,
)
from lattice_tasks.store import queues as rows
from lattice_tasks.store.engine import Engine
from lattice_tasks.telemetry import Telemetry

__all__ = ["Depth", "QueueRecord", "Queues", "require_name", "shelf_tree"]

_CACHED_S = 1.0
_MAX_MS = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """One task queue. `retention_ms` and `dlq_capacity` are None where the settings' defaults hold."""

    id: int
    namespace: str
    name: str
    kind: str
    state: str
    retention_ms: int | None
    dlq_capacity: int | None
    dlq_on_full: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Depth:
    """How many invocations a queue has in each place."""

    waiting: int
    scheduled: int
    running: int
    parked: int
    held: int


def shelf_tree(queue_id: int) -> str:
    """The name of the reserved tree behind a queue's dead-letter shelf."""
    return f"_lattice_dlq_{queue_id}"


def require_name(name: object) -> str:
    """The name itself, when a queue may be called so: 1 to 255 characters without control characters.

    Raises:
        InvalidInput: it is no such text.
        ReservedName: it ends like Dramatiq's delay and dead-letter queues (`.DQ`, `.XQ`).
    """
    if not isinstance(name, str) or not 1 <= len(name) <= 255:
        raise InvalidInput(f"queue name {name!r:.80} must be a text of 1 to 255 characters")
    if not name.isprintable():
        raise InvalidInput(f"queue name {name!r:.80} holds control characters or lone surrogates")
    if name.endswith((".DQ", ".XQ")):
        raise ReservedName(f"queue name {name!r} ends like Dramatiq's own .DQ and .XQ queues; choose another")
    return name


def _require_within(field: str, value: object, low: int, high: int) -> None:
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise InvalidInput(f"{field}={value!r:.80} must be a whole number between {low} and {high}")


class Queues:
    """The queues of one namespace."""

    def __init__(self, engine: Engine, namespace: str, namespace_id: Callable[[], int], telemetry: Telemetry) -> None:
        self._engine = engine
        self._namespace = namespace
        self._namespace_id = namespace_id
        self._telemetry = telemetry
        self._cache: dict[str, tuple[float, QueueRecord]] = {}
        self._names: dict[int, str] = {}
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        *,
        kind: str = "fifo",
        retention_ms: int | None = None,
        dlq_capacity: int | None = None,
        dlq_on_full: str = "evict",
    ) -> QueueRecord:
        """Create a queue.

        Args:
            retention_ms: how long its finished invocations are kept.
            dlq_capacity: dead letters it keeps, at least 1.
            dlq_on_full: `evict`: then the oldest goes; `refuse`: then what fails is `held`, and nothing of the queue is
                handed out, replays aside, until there is room.

        Raises:
            QueueExists: the name is taken; nothing changed.
            InvalidInput: a field is not acceptable; nothing was stored.
        """
        record = self._insert(require_name(name), kind, retention_ms, dlq_capacity, dlq_on_full, auto=False)
        if record is None:
            raise QueueExists(f"queue {name!r} exists already in namespace {self._namespace!r}")
        return record

    def get(self, name: str) -> QueueRecord:
        """The record, fresh from the store.

        Raises:
            QueueNotFound: no such queue.
        """
        with self._engine.session() as session:
            row = rows.find_queue(session, self._namespace_id(), require_name(name))
        if row is None:
            raise QueueNotFound(f"no queue {name!r} in namespace {self._namespace!r}; see `lattice-tasks queues list`")
        return self._remember(row)

    def list(self) -> list[QueueRecord]:
        """All queues of the namespace, by name."""
        with self._engine.session() as session:
            return [self._remember(row) for row in rows.list_queues(session, self._namespace_id())]

    def pause(self, name: str) -> QueueRecord:
        """Stop handing out its invocations; submits go on. Pausing twice is no error."""
        return self._move(name, "active", "paused")

    def resume(self, name: str) -> QueueRecord:
        """Hand out its invocations again."""
        return self._move(name, "paused", "active")

    def depth(self, name: str) -> Depth:
        """How many of its invocations wait, sleep, run, are parked and held.

        Raises:
            QueueNotFound: no such queue.
        """
        queue_id = self.get(name).id
        with self._engine.session() as session:
            return Depth(*rows.depths(session, queue_id, shelf_tree(queue_id)))

    def name_of(self, queue_id: int) -> str:
        """The name of a queue that was looked up here before; its id, when it was not."""
        return self._names.get(queue_id, str(queue_id))

    def resolve(self, name: str) -> QueueRecord:
        """The record, at most a second old while the store answers; a missing queue is created with the defaults.

        Raises:
            QueueClosed: it takes no new invocations.
        """
        cached = self._cache.get(name)
        if cached is not None and clock.monotonic() - cached[0] <= _CACHED_S:
            record = cached[1]
        else:
            try:
                record = self.ensure(name)
            except StoreUnavailable:
                if cached is None:
                    raise
                record = cached[1]  # the insert that follows waits for the store, and longer
        if record.state not in ("active", "paused"):
            raise QueueClosed(f"queue {name!r} is {record.state} and takes no new invocations")
        return record

    def known(self, name: str) -> QueueRecord:
        """The record, whatever its state; from memory, however old, when the queue was looked up here before."""
        cached = self._cache.get(name)
        return cached[1] if cached is not None else self.ensure(name)

    def ensure(self, name: str) -> QueueRecord:
        """The record, whatever its state, fresh from the store; a queue that is missing is created with the defaults."""
        require_name(name)
        # In a session of its own: a queue made inside the caller's transaction would vanish with its roll-back.
        with self._engine.apart() as session:
            row = rows.find_queue(session, self._namespace_id(), name)
        if row is not None:
            return self._remember(row)
        record = self._insert(name, "fifo", None, None, "evict", auto=True)
        return record if record is not None else self.ensure(name)

    def _insert(
        self, name: str, kind: str, retention_ms: int | None, dlq_capacity: int | None, dlq_on_full: str, auto: bool
    ) -> QueueRecord | None:
        if kind != "fifo":
            raise InvalidInput(f"kind={kind!r} is not known; use fifo")
        if dlq_on_full not in ON_FULL:
            raise InvalidInput(f"dlq_on_full={dlq_on_full!r:.80} is not known; use {' or '.join(ON_FULL)}")
        _require_within("dlq_capacity", dlq_capacity, 1, 10_000_000)
        _require_within("retention_ms", retention_ms, 0, _MAX_MS)
        # What a submit creates stands whatever its caller does; what somebody adds follows the transaction they are in.
        with self._engine.apart() if auto else self._engine.session() as session:
            row = rows.add_queue(session, self._namespace_id(), name, kind, retention_ms, dlq_capacity, dlq_on_full)
        if row is None:
            return None
        self._telemetry.emit("queue.created", queue=name, auto=auto)
        return self._remember(row, is_settled=auto or not self._engine.is_joined)

    def _move(self, name: str, before: str, after: str) -> QueueRecord:
        record = self.get(name)
        if record.state == after:
            return record
        with self._engine.session() as session:
            row: tuple | None = rows.set_queue_state(session, self._namespace_id(), name, before, after)
        if row is None:
            raise Conflict(f"queue {name!r} is {record.state}, not {before}; it cannot become {after}")
        self._telemetry.emit("queue.changed", queue=name, state=after)
        return self._remember(row, is_settled=not self._engine.is_joined)

    def _remember(self, row: tuple, is_settled: bool = True) -> QueueRecord:
        record = QueueRecord(
            id=row[0],
            namespace=self._namespace,
            name=row[1],
            kind=row[2],
            state=row[3],
            retention_ms=row[4],
            dlq_capacity=row[5],
            dlq_on_full=row[6],
            created_at=clock.from_us(row[7]),
            updated_at=clock.from_us(row[8]),
        )
        self._names[record.id] = record.name
        if is_settled and not self._engine.is_provisional:  # a queue that is rolled back must not be remembered
            with self._lock:
                self._cache[record.name] = (clock.monotonic(), record)
        return record
