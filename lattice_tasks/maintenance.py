"""The list of (every, chore): what living workers look after besides their own work.

Every chore is short, pages by key, and moves its state in the transaction that does the work; two workers that run the
same chore at once do no harm.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lattice_tasks import clock
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.dead_letters.tracking import IDLE_US
from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.settings import Settings
from lattice_tasks.store import bin as bin_rows
from lattice_tasks.store import counters, cursor, failures, journal
from lattice_tasks.store import invocations as invocation_rows
from lattice_tasks.store import letters as letter_rows
from lattice_tasks.store import plans as plan_rows
from lattice_tasks.store import queues as queue_rows
from lattice_tasks.store import settles as settle_rows
from lattice_tasks.store import tree as tree_cells
from lattice_tasks.store import workers as worker_rows
from lattice_tasks.store.engine import Session
from lattice_tasks.tasks.bin import remove_aged
from lattice_tasks.tasks.claim import Observer, rescue
from lattice_tasks.tasks.settle import park_held
from lattice_tasks.telemetry import Telemetry

__all__ = ["Maintenance", "compact_trees", "prune"]

_PRUNE_PAGE = 2_000
_HELD_PAGE = 100
_BIN_PAGE = 500
_PLAN_DAYS = 30
_DAY_US = 86_400_000_000
_KEPT_HOURS = 7 * 24  # of the trend of a group of dead letters
_TREE_PAGE = 1_000
#: How long the outcome of a batch of a tree is remembered.
_BATCH_RETENTION_US = 48 * 3_600 * 1_000_000


@dataclass(slots=True)
class _Chore:
    name: str
    every_s: float
    run: Callable[[Session], None]
    due_at: float


class Maintenance:
    """Buries dead workers, prunes finished invocations and expired counters."""

    def __init__(self, settings: Settings, telemetry: Telemetry, wake: Callable[[Iterable[int]], None]) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._wake = wake
        self._observer = Observer(settings.lease_ms / 1_000)
        self._pruned_to = 0
        now = clock.monotonic()
        self._chores = [
            _Chore("rescue", 0.0, self._rescue, now),
            _Chore("held", 5.0, self._park_held, now),
            _Chore("prune", 30.0, self._prune, now + 30),
            _Chore("counters", 300.0, self._prune_counters, now + 60),
            _Chore("aging", 30.0, self._remove_aged, now + 10),
            _Chore("bin", 30.0, self._prune_bin, now + 15),
            _Chore("plans", 300.0, self._prune_plans, now + 90),
            _Chore("failures", 300.0, self._prune_failures, now + 75),
            _Chore("letter_hours", 3_600.0, self._prune_letter_hours, now + 90),
            _Chore("trees", 60.0, self._compact_trees, now + 45),
        ]

    def run_due(self, session: Session) -> None:
        """Run every chore whose time has come, called at every beat; one that fails is told and tried again."""
        for chore in self._chores:
            if clock.monotonic() < chore.due_at:
                continue
            chore.due_at = clock.monotonic() + chore.every_s
            try:
                chore.run(session)
            except StoreUnavailable:
                raise
            except StoreError as error:
                self._telemetry.emit("maintenance.failed", chore=chore.name, error=str(error))

    def forget(self) -> None:
        """The store was away: how long other workers stood still is unknown."""
        self._observer.forget()

    def _rescue(self, session: Session) -> None:
        for worker_id, beat in self._observer.dead(lambda: worker_rows.pulses(session)):
            self.bury(session, worker_id, beat)

    def bury(self, session: Session, worker_id: int, seen_beat: int | None) -> None:
        """Free the leases of a dead worker and wake those who serve its queues; with `seen_beat` None its end was seen."""
        try:
            found = rescue(session, worker_id, seen_beat)
        except StoreUnavailable:
            raise
        except StoreError as error:  # one that cannot be buried shall not keep the others from it
            self._telemetry.emit("maintenance.failed", chore="rescue", error=f"worker {worker_id}: {error}")
            return
        if found is not None:
            self._telemetry.emit("worker.lost", worker=worker_id, host=found.host, pid=found.pid, leases=found.leases)
            if found.queue_ids:
                self._wake(found.queue_ids)

    def _park_held(self, session: Session) -> None:
        for queue_id in settle_rows.queues_with_held(session):
            row = queue_rows.queue_of(session, queue_id)
            if row is None:
                continue
            name, capacity, on_full = row
            keeps = self._settings.dlq_restore_days > 0
            shelf = ShelfSpec(queue_id, capacity or self._settings.shelf_capacity, on_full, keeps)
            events = park_held(session, name, shelf, _HELD_PAGE)
            for event, fields in events:
                self._telemetry.emit(event, **fields)
            if events:
                self._wake([queue_id])
            if len(events) >= _HELD_PAGE:
                self._hasten("held")

    def _prune(self, session: Session) -> None:
        """One page at a time; a page that was full is followed by the next one soon."""
        gone, self._pruned_to = invocation_rows.prune(
            session, self._pruned_to, _PRUNE_PAGE, self._settings.retention_ms
        )
        if gone:
            self._telemetry.emit("maintenance.pruned", count=gone)
        if self._pruned_to:
            self._hasten("prune")

    def _remove_aged(self, session: Session) -> None:
        """A page of each queue; a page that was full is followed by the next one soon."""
        for aging in bin_rows.agings(session):
            gone = remove_aged(session, aging, _BIN_PAGE, self._settings.dlq_restore_days > 0)
            if gone:
                ids = [letter.entry_id for letter in gone]
                self._telemetry.emit("dead_letter.aged", shelf=aging.queue, count=len(gone), entry_ids=ids)
            if len(gone) == _BIN_PAGE:
                self._hasten("aging")

    def _prune_bin(self, session: Session) -> None:
        gone = bin_rows.prune(session, self._settings.dlq_restore_days * _DAY_US, _BIN_PAGE)
        if gone:
            self._telemetry.emit("dead_letter.bin_pruned", count=gone)
        if gone == _BIN_PAGE:
            self._hasten("bin")

    def _prune_plans(self, session: Session) -> None:
        if plan_rows.prune(session, _PLAN_DAYS * _DAY_US, _PRUNE_PAGE):
            self._hasten("plans")

    def _prune_counters(self, session: Session) -> None:
        counters.prune(session)

    def _prune_failures(self, session: Session) -> None:
        if failures.prune(session, IDLE_US, _PRUNE_PAGE) == _PRUNE_PAGE:
            self._hasten("failures")

    def _prune_letter_hours(self, session: Session) -> None:
        letter_rows.prune_hours(session, _KEPT_HOURS)

    def _compact_trees(self, session: Session) -> None:
        gone, has_more = _compact_page(session, self._settings.tree_grace_ms)
        if gone:
            self._telemetry.emit("tree.compacted", count=gone)
        if has_more:
            self._hasten("trees")

    def _hasten(self, name: str) -> None:
        chore = next(one for one in self._chores if one.name == name)
        chore.due_at = clock.monotonic() + 1.0


def prune(session: Session, retention_ms: int) -> int:
    """Remove every finished invocation past its retention, a page a transaction; returns how many."""
    total, after = 0, 0
    while True:
        gone, after = invocation_rows.prune(session, after, _PRUNE_PAGE, retention_ms)
        total += gone
        if not after:
            return total


def compact_trees(session: Session, grace_ms: int) -> int:
    """Remove every key of trees that has been dead for its grace, a page a transaction; returns how many."""
    total, has_more = 0, True
    while has_more:
        gone, has_more = _compact_page(session, grace_ms)
        total += gone
    return total


def _compact_page(session: Session, grace_ms: int) -> tuple[int, bool]:
    """How many dead keys went; and whether there may be more of them, of cursors or of decided batches."""
    gone = tree_cells.compact(session, grace_ms * 1_000, _TREE_PAGE)
    others = (cursor.prune(session, _TREE_PAGE), journal.prune(session, _BATCH_RETENTION_US, _TREE_PAGE))
    return gone, max(gone, *others) == _TREE_PAGE
