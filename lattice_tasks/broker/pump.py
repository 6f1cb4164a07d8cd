"""One thread moves all work of a process: one round trip settles what finished, on all queues, and claims what fits.

Outcomes that are reported while a commit is under way join the next one: idle, a single task is settled and the next one
claimed at once; loaded, hundreds share a commit.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from time import sleep
from typing import Any

from lattice_tasks import clock
from lattice_tasks.broker.bell import Bell
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.hand_over import HandOver, Screen
from lattice_tasks.broker.lane import Lane
from lattice_tasks.broker.notifier import Notifier
from lattice_tasks.broker.patience import Patience
from lattice_tasks.broker.settlement import SettlementBuffer
from lattice_tasks.broker.work_queue import WorkQueue
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.settings import Settings
from lattice_tasks.store import workers as worker_rows
from lattice_tasks.store.engine import SQLITE, Engine, Session
from lattice_tasks.store.turns import Want, file_version, mark_started, promote, turn
from lattice_tasks.tasks.settle import Kind, Outcome
from lattice_tasks.telemetry import Telemetry

__all__ = ["Pump"]

_YIELD_S = 0.00005
_SHORTEST_S = 0.0005
_JOIN_S = 0.004  # loaded: how long outcomes are let to join a commit
_STUCK_S = 0.2  # look-ahead that no thread has started for so long goes back
_AUDIT_S = 60.0  # and after every connection error
_DUE_LOOK_S = 0.1
_WAKE_NEXT_S = 0.05
_PROMOTE = 500


class Pump:
    """Claims for the free threads of one Dramatiq worker, looks ahead in time, and settles."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        telemetry: Telemetry,
        notifier: Notifier,
        register: Callable[[Session], int],
        screen: Screen,
        worker_name: str,
        version: str,
        threads: int,
        work_queue: WorkQueue,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._telemetry = telemetry
        self._notifier = notifier
        self._register = register
        self._threads = threads
        self._hand_over = HandOver(settings, threads, work_queue, screen)
        self._held: dict[int, LatticeMessage] = {}
        self._buffer = SettlementBuffer(worker_name, version, telemetry, self._shelf_of)
        self._bell = Bell()
        self._patience = Patience(settings, notifier, engine.dialect == SQLITE)
        self._is_woken = True
        self._is_claiming = True
        self._is_stopping = False
        self._dead_id = 0
        self._turns = 0
        self._audited_at = self._told_next_at = self._due_looked_at = 0.0
        self._due_at: float | None = None
        self._down_since: float | None = None
        self._file_version = 0
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name="lattice-pump", daemon=True)
        self.worker_id = 0

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register this incarnation and begin.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        self._session = self._engine.open_session()
        self.worker_id = self._register(self._session)
        self._thread.start()

    def pause(self) -> None:
        """Stop claiming and hand back at once what no thread has started."""
        self._is_claiming = False
        self._bell.ring()

    def stop(self, flush_s: float) -> None:
        """Write what is left, within `flush_s` seconds, and leave; leases of tasks that still run are released last."""
        self._is_claiming = False
        self._is_stopping = True
        self._bell.ring()
        self._thread.join(flush_s)
        left = [message.message_id for message in self._buffer.all()]
        if left:
            self._telemetry.emit("worker.unwritten", task_ids=left)
        released = 0
        if not self._thread.is_alive() and self._session is not None:
            try:
                released = worker_rows.leave(self._session, self.worker_id)
            except StoreError as error:
                self._telemetry.emit("store.unavailable", error=str(error))
            self._session.close()
        self._telemetry.emit("worker.stopped", worker=self.worker_id, released=released)

    @property
    def is_healthy(self) -> bool:
        """Whether the store answered the last time."""
        return self._down_since is None

    # --- what other threads call ------------------------------------------------------------------------------------

    def open_lane(self, name: str, queue_id: int, shelf: ShelfSpec) -> Lane:
        """Serve a queue from now on."""
        if queue_id not in self._hand_over.lanes:
            self._notifier.subscribe((queue_id,), self.wake)
        lane = self._hand_over.open_lane(name, queue_id, shelf)
        self.wake((queue_id,))
        return lane

    def wake(self, queue_ids: Collection[int], is_early: bool = False) -> None:
        """These queues have work; `is_early`: its commit is under way, so what is not there yet is looked for again."""
        if is_early:
            self._patience.expect()
        for queue_id in queue_ids:
            lane = self._hand_over.lanes.get(queue_id)
            if lane is not None:
                lane.wake()
        self._due_looked_at = 0.0
        self._is_woken = True
        self._bell.ring()

    def tell(self, queue_ids: Iterable[int]) -> None:
        """These queues have work again: wake every pump that serves them."""
        self._notifier.notify(list(queue_ids))

    def ended(self, message: Any) -> None:
        """An attempt ended; its outcome is on the message. This cannot fail."""
        if message.started_ns:
            message.ended_ns = clock.monotonic_ns()
            lane = self._hand_over.lanes.get(message.claimed.queue_id)
            if lane is not None:
                lane.measure((message.ended_ns - message.started_ns) / 1e9)
        self._buffer.add(message)
        self._bell.ring_if_waiting()

    def hand_back(self, messages: Iterable[Any], why: str) -> None:
        """These were claimed but not started; they go back uncharged."""
        for message in messages:
            message.outcome = Outcome(Kind.RELEASE, reason=why)
            self.ended(message)

    def cancel_running(self, seqs: Iterable[tuple[int, str]], interrupt: Callable[[int], None]) -> None:
        """Interrupt the threads that run these; `interrupt` takes a thread id."""
        for seq, why in seqs:
            message = self._held.get(seq)
            if message is None or message.outcome is not None or message.cancel_reason is not None:
                continue
            message.cancel_reason = why
            if message.thread_id:
                interrupt(message.thread_id)

    def abandon(self, thread_id: int | None, finish: Callable[[Any], None]) -> None:
        """A thread died while it ran a message: that attempt has ended."""
        waiting = {id(one) for one in self._buffer.all()}
        for message in list(self._held.values()):
            if message.thread_id == thread_id and message.started_ns and id(message) not in waiting:
                finish(message)
                self.ended(message)

    def held(self) -> list[int]:
        """The seqs of everything that this process has leased, as it knows."""
        return list(self._held)

    def drain(self, is_draining: bool) -> None:
        """An operator asked this worker to take no more."""
        if is_draining and self._is_claiming:
            self.pause()

    def declared_dead(self, worker_id: int) -> None:
        """A beat changed no row: take a new incarnation, drop what is held; unless that was done already."""
        self._dead_id = worker_id
        self._bell.ring()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.1
        while not self._is_stopping or len(self._buffer) or self._hand_over.unstarted:
            try:
                self._rest()
                self._work()
                pause_s = 0.1
            except Exception as error:  # noqa: BLE001 - whatever it is: this thread alone settles, so it goes on
                self._suffer(error)
                sleep(pause_s)
                pause_s = min(1.0, pause_s * 2)
                self._reopen()

    def _rest(self) -> None:
        """Sleep until there is reason to look; let outcomes join a commit while the threads have work."""
        self._bell.wait(self._has_reason, self._patience_s)
        if len(self._buffer) and self._hand_over.unstarted > self._threads:
            sleep(_JOIN_S)
        self._bell.quiet()

    def _has_reason(self) -> bool:
        if len(self._buffer) or self._dead_id == self.worker_id or self._is_stopping:
            return True
        if not self._is_claiming:
            return self._hand_over.unstarted > 0
        now = clock.monotonic()
        if self._due_at is not None and now >= self._due_at:
            return True
        if self._hand_over.room(self._free()) <= 0:
            return False
        return self._is_woken or self._patience.is_over or self._has_file_changed()

    def _patience_s(self) -> float:
        now = clock.monotonic()
        waits = [1.0]
        if self._due_at is not None:
            waits.append(self._due_at - now)
        if self._hand_over.unstarted:
            waits.append(_STUCK_S)
        if self._is_claiming and self._hand_over.room(self._free()) > 0:
            waits.append(self._patience.left_s())
        return max(_SHORTEST_S, min(waits))

    def _has_file_changed(self) -> bool:
        if self._engine.dialect != SQLITE or self._session is None:
            return False
        version = file_version(self._session)
        if version == self._file_version:
            return False
        self._file_version = version
        self._hand_over.wake()
        return True

    def _free(self) -> int:
        """Threads without a message; what has ended frees its thread before it is settled."""
        return self._threads - max(0, len(self._held) - len(self._buffer))

    # --- one turn ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        session = self._session
        if session is None:
            raise StoreUnavailable("the store connection is closed")
        if self._dead_id == self.worker_id:
            self._take_new_incarnation(session)
        self._give_back()
        plain, special = self._buffer.sort()
        wants = self._hand_over.wants(self._free(), self._patience.every_s) if self._is_claiming else []
        if special:
            woken = self._buffer.settle(session, self.worker_id, special)
            self._forget(special)
            if woken:
                self._notifier.notify(woken)
        if plain or wants:
            self._turn(session, plain, wants)
        if self._due_at is not None and clock.monotonic() >= self._due_at:
            self._promote(session)
        if clock.monotonic() - self._audited_at >= _AUDIT_S:
            self._audit(session)
        self._hand_over.start_next(lambda one: self._record_start(session, one), self._held.values())
        self._notifier.listen(self._is_claiming and self._free() > 0)
        if self._down_since is not None:
            outage_s, self._down_since = clock.monotonic() - self._down_since, None
            self._telemetry.emit("store.recovered", outage_s=round(outage_s, 3))

    def _turn(self, session: Session, plain: list[LatticeMessage], wants: list[Want]) -> None:
        self._turns += 1
        settling = [(one.claimed.seq, one.batch, one.outcome.result if one.outcome else None) for one in plain]
        started = clock.monotonic()
        watched: list[int] = []
        if wants:
            self._is_woken = False
            if started - self._due_looked_at >= _DUE_LOOK_S:
                self._due_looked_at, watched = started, list(self._hand_over.lanes)
        brought = turn(session, self.worker_id, self._turns, settling, wants, watched)
        self._buffer.done(plain, brought.refused, self.worker_id)
        self._forget(plain)
        self._buffer.tell_succeeded(plain, brought.refused)
        if not brought.is_alive:
            self._dead_id = self.worker_id
        elif wants:
            now = clock.monotonic()
            if watched:
                self._due_at = None if brought.due_us is None else now + brought.due_us / 1e6
            full = self._hand_over.note(wants, brought.claimed, now, now - started)
            self._patience.looked(bool(brought.claimed))
            self._hand_over.tell_claimed(self._telemetry, brought.claimed)
            self._is_woken = self._is_woken or self._hand_over.has_more
            if full and now - self._told_next_at >= _WAKE_NEXT_S:  # more is left, perhaps: wake the next worker
                self._told_next_at = now
                self._notifier.notify(full)
            messages = self._hand_over.receive(brought.claimed, self._turns, brought.now_us)
            for message in messages:
                self._held[message.claimed.seq] = message
                if message.outcome is not None:
                    self._buffer.add(message)
            self._hand_over.deliver(messages)
            if 0 < len(brought.claimed) <= self._threads:
                sleep(_YIELD_S)  # let the threads have the interpreter before the pump looks around

    def _shelf_of(self, queue_id: int) -> tuple[str, ShelfSpec]:
        lane = self._hand_over.lanes[queue_id]
        return lane.name, lane.shelf

    def _forget(self, messages: Iterable[LatticeMessage]) -> None:
        for message in messages:
            self._hand_over.forget(message)
            if self._held.get(message.claimed.seq) is message:
                del self._held[message.claimed.seq]

    # --- scheduled ones, suspects, what goes back -------------------------------------------------------------------

    def _promote(self, session: Session) -> None:
        moved = promote(session, list(self._hand_over.lanes), _PROMOTE)
        self._due_at = clock.monotonic() if len(moved) >= _PROMOTE else None
        self._due_looked_at = 0.0
        self._hand_over.wake()
        self._is_woken = True
        if len(moved) > self._free():
            self._notifier.notify(list(self._hand_over.lanes))

    def _record_start(self, session: Session, suspect: LatticeMessage) -> bool:
        if mark_started(session, self.worker_id, suspect.claimed.seq, suspect.batch):
            return True
        self._forget([suspect])
        return False

    def _give_back(self) -> None:
        """Hand back what no thread has started: when this worker stops, and when look-ahead sits on slow work."""
        if not self._is_claiming:
            self.hand_back(self._hand_over.take_back_all(), "the worker is stopping")
            return
        running = [one.started_ns for one in list(self._held.values()) if one.started_ns and one.outcome is None]
        self.hand_back(self._hand_over.take_back_stuck(running, _STUCK_S), "look-ahead was not started in time")

    # --- outages and rebirth ----------------------------------------------------------------------------------------

    def _audit(self, session: Session) -> None:
        """Free, uncharged, leases in the store that this process does not know: claims whose answer was lost."""
        known = {(one.claimed.seq, one.batch) for one in (*self._held.values(), *self._buffer.all())}
        unknown = [lease for lease in worker_rows.my_leases(session, self.worker_id) if lease not in known]
        if unknown:
            worker_rows.free_leases(session, self.worker_id, unknown)
        self._audited_at = clock.monotonic()
        self._buffer.is_uncertain = False

    def _take_new_incarnation(self, session: Session) -> None:
        self._telemetry.emit("worker.declared_dead", worker=self.worker_id)
        unstarted = self._hand_over.take_back_all()
        ended = self._buffer.clear()
        for message in ended:
            if message.outcome is None or message.outcome.kind is not Kind.RELEASE:
                self._telemetry.emit("settle.refused", task_id=message.message_id, worker=self.worker_id)
        # What still runs stays known by its old batch: when it ends, its token fits no lease and it is refused.
        self._forget([*unstarted, *ended])
        self.worker_id = self._register(session)
        self._hand_over.wake()
        self._is_woken = True

    def _suffer(self, error: Exception) -> None:
        self._buffer.is_uncertain = True
        self._hand_over.wake()  # what was asked for last time was not answered
        self._is_woken = True
        if not isinstance(error, StoreError):
            self._telemetry.emit("worker.failing", worker=self.worker_id, error=f"{type(error).__name__}: {error}")
        if self._down_since is None:
            self._down_since = clock.monotonic()
            self._telemetry.emit("store.unavailable", error=str(error))

    def _reopen(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        with suppress(StoreError):
            self._session = self._engine.open_session()
            self._audited_at = 0.0
