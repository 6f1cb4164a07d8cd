"""`Bin`: bringing discarded and evicted dead letters back, and letting letters go at an age; none goes silently."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lattice_tasks import clock
from lattice_tasks.audit import record_removals
from lattice_tasks.dead_letters import entry
from lattice_tasks.dead_letters.bin import AGED, restored
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import card_of, shelf_fifo
from lattice_tasks.dead_letters.replay import take_off
from lattice_tasks.errors import AlreadyHandled, Conflict, DeadLetterNotFound, InvalidInput, InvalidOperation
from lattice_tasks.keys import MAX_ID
from lattice_tasks.queues.record import Queues, shelf_tree
from lattice_tasks.settings import Settings
from lattice_tasks.store import bin as rows
from lattice_tasks.store import letters as cards
from lattice_tasks.store.bin import Aging, BinRow, Revived
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.tasks.invocation import State, step
from lattice_tasks.tasks.settle import mark_all_discarded
from lattice_tasks.telemetry import Telemetry

__all__ = ["Bin", "Binned", "remove_aged"]

_DAY_US = 86_400_000_000
_MOST_MS = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Binned:
    """A letter in the bin.

    Attributes:
        id: its number there.
        entry_id: what it had on the shelf.
        why: `discarded`, `evicted`, or `aged`: by the queue's retention.
        until: it can be restored until then.
    """

    id: int
    queue: str
    entry_id: int
    task_id: str
    actor: str
    reason: str
    error: str
    why: str
    binned_at: datetime
    until: datetime


class Bin:
    """The bin of one namespace, and how long its queues keep their dead letters."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        queues: Queues,
        namespace_id: Callable[[], int],
        telemetry: Telemetry,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._queues = queues
        self._namespace_id = namespace_id
        self._telemetry = telemetry

    @property
    def _window_us(self) -> int:
        return self._settings.dlq_restore_days * _DAY_US

    def list(self, queue: str | None = None, limit: int = 50, before_id: int | None = None) -> list[Binned]:
        """What can be restored, the newest first.

        Args:
            before_id: go on below this number.

        Raises:
            QueueNotFound: no such queue.
        """
        queue_id = 0 if queue is None else self._queues.get(queue).id
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            found = rows.list_all(session, namespace_id, queue_id, before_id or MAX_ID, limit)
        return [self._binned(row) for row in found if row.binned_at >= row.now_us - self._window_us]

    def get(self, which: int | str) -> Binned:
        """The letter of this number in the bin, or of this task.

        Raises:
            DeadLetterNotFound: it is not in the bin, or has been there for longer than it is kept.
        """
        namespace_id = self._namespace_id()
        with self._engine.session() as session:
            return self._binned(self._row(session, namespace_id, which))

    def restore(self, which: int | str) -> DeadLetter:
        """Put a letter back on its shelf, under a new entry id; its invocation is parked again.

        Args:
            which: its number in the bin, or its task's id.

        Raises:
            DeadLetterNotFound: it is not in the bin, or has been there for longer than it is kept.
            AlreadyHandled: somebody else was quicker.
            Conflict: its shelf is full, and nobody is evicted for it; or its key names another task by now.
            InvalidOperation: it cannot be read.
        """
        namespace_id = self._namespace_id()
        with self._engine.session() as session, session.transaction():
            row = self._row(session, namespace_id, which)
            letter = self._put_back(session, row)
        self._telemetry.emit(
            "dead_letter.restored",
            shelf=row.queue,
            entry_id=letter.entry_id,
            task_id=letter.task_id,
            before=row.entry_id,
        )
        return letter

    def set_retention(self, queue: str, age: timedelta | None) -> None:
        """Let the letters of a queue leave its shelf at this age, for the bin; None: never, which is the default.

        Raises:
            QueueNotFound: no such queue.
            InvalidInput: not between a second and ten years.
        """
        record = self._queues.get(queue)
        age_ms = None if age is None else clock.us_of(age, "retention") // 1_000
        if age_ms is not None and not 1_000 <= age_ms <= _MOST_MS:
            raise InvalidInput(f"retention={age} must be between a second and ten years; None is never")
        with self._engine.session() as session:
            rows.set_aging(session, record.id, age_ms)

    def retention(self, queue: str) -> timedelta | None:
        """The age at which letters of a queue leave its shelf; None: never.

        Raises:
            QueueNotFound: no such queue.
        """
        record = self._queues.get(queue)
        with self._engine.session() as session:
            ages = {one.queue_id: one.retention_ms for one in rows.agings(session)}
        return timedelta(milliseconds=ages[record.id]) if record.id in ages else None

    def _row(self, session: Session, namespace_id: int, which: int | str) -> BinRow:
        row = rows.find(session, namespace_id, which if isinstance(which, int) else None, str(which))
        if row is None or row.binned_at < row.now_us - self._window_us:
            raise DeadLetterNotFound(f"no dead letter {which} in the bin; see `lattice-tasks dlq bin`")
        return row

    def _binned(self, row: BinRow) -> Binned:
        facts = (row.entry_id, row.task_id, row.actor, row.reason, row.error, row.why)
        until = clock.from_us(row.binned_at + self._window_us)
        return Binned(row.id, row.queue, *facts, clock.from_us(row.binned_at), until)

    def _put_back(self, session: Session, row: BinRow) -> DeadLetter:
        record = self._queues.get(row.queue)
        capacity = record.dlq_capacity or self._settings.shelf_capacity
        letter = entry.decode(row.entry_id, row.value)
        if not letter.is_readable:
            raise InvalidOperation(f"dead letter {row.id} of the bin: {letter.error}")
        with shelf_fifo(session, row.queue_id).held() as held:
            if not rows.take(session, row.id):
                raise AlreadyHandled(f"dead letter {row.id} of the bin has been restored already")
            letter = restored(letter, self._seq(session, row, letter), held.now_us)
            (entry_id,) = held.append([entry.encode(letter)], capacity, evicts=False).ids
            if entry_id is None:
                raise Conflict(
                    f"the shelf of queue {row.queue!r} is full ({capacity}); nobody is evicted for what comes back: "
                    "make room first"
                )
            cards.put_back(session, row.queue_id, [card_of(letter, entry_id, held.now_us)])
            rows.place(session, letter.seq, step(State.DISCARDED, "restore").code, entry_id)
        return entry.decode(entry_id, entry.encode(letter))

    def _seq(self, session: Session, row: BinRow, letter: DeadLetter) -> int:
        """Of the discarded invocation; it is made anew when it has been pruned since."""
        found = rows.standing(session, letter.task_id)
        if found is not None:
            if found[1] != State.DISCARDED.code:
                raise Conflict(f"task {letter.task_id} is {State.of(found[1])}, not discarded")
            return found[0]
        seq = rows.revive(
            session,
            Revived(
                task_id=letter.task_id,
                queue_id=row.queue_id,
                actor=letter.actor,
                body=letter.body,
                priority=letter.priority,
                key=letter.key,
                submitted_at=clock.to_us(letter.submitted_at),
                state=State.DISCARDED.code,
                attempt=letter.attempts,
                reason=letter.reason,
                error=letter.error,
                traceback=letter.traceback,
            ),
        )
        if seq is None:
            raise Conflict(
                f"the key {letter.key!r} of task {letter.task_id} names another task of queue {row.queue!r} now"
            )
        return seq


def remove_aged(session: Session, aging: Aging, limit: int, keeps: bool) -> Sequence[DeadLetter]:
    """Move a page of a queue's letters that are past its retention to the bin, with a record in the audit; those."""
    found = rows.aged(session, aging.queue_id, shelf_tree(aging.queue_id), aging.retention_ms * 1_000, limit)
    if not found:
        return ()
    with session.transaction():
        gone = take_off(session, aging.queue_id, found, keeps=AGED if keeps else None).letters
        mark_all_discarded(session, aging.queue_id, gone)
        ids = {(aging.queue_id, aging.queue): [(letter.entry_id, letter.task_id) for letter in gone]}
        if gone:
            record_removals(session, ids, "dlq retention", "older than the queue keeps its dead letters")
    return gone
