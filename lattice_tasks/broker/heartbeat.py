"""Proof of life: a thread and a connection of their own, so that no long claim and no busy thread delays a beat.

Each beat also learns what shall be cancelled, replaces worker threads that an interrupt killed, and lets maintenance look
after the other workers. After an outage a process first beats, then flushes its outcomes, then does chores.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from lattice_tasks import clock
from lattice_tasks.broker.pump import Pump
from lattice_tasks.errors import StoreError
from lattice_tasks.settings import Settings
from lattice_tasks.store import workers as worker_rows
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.telemetry import Telemetry

__all__ = ["Chores", "Heartbeat"]


class Chores(Protocol):
    """What a living worker also looks after."""

    def run_due(self, session: Session) -> None:
        """Run every chore whose time has come; each is short."""

    def bury(self, session: Session, worker_id: int, seen_beat: int | None) -> None:
        """Free the leases of a dead worker; with `seen_beat` None its end was seen, whatever its counter says."""

    def forget(self) -> None:
        """The store was away: measurements of other workers start anew."""


class Heartbeat:
    """Beats for the pump's incarnation until stopped."""

    def __init__(
        self,
        engine: Engine,
        pump: Pump,
        telemetry: Telemetry,
        settings: Settings,
        chores: Chores,
        interrupt: Callable[[int], None],
        mend_threads: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._pump = pump
        self._telemetry = telemetry
        self._every_s = settings.beat_ms / 1_000
        self._lock_wait_ms = settings.lease_ms // 4  # a chore that waits longer would pass for our own death
        self._chores = chores
        self._interrupt = interrupt
        self._mend_threads = mend_threads
        self._session: Session | None = None
        self._to_bury: deque[int] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lattice-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def bury(self, worker_ids: Iterable[int]) -> None:
        """Before the next beat, free the leases of these dead workers."""
        self._to_bury.extend(worker_ids)

    def stop(self) -> None:
        """End; the last beat may be under way for a moment."""
        self._stopping.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = clock.monotonic()
            if not self._is_done(self._beat_once):
                self._chores.forget()
                self._close()
            self._is_done(self._mend_threads)
            self._stopping.wait(max(0.05, self._every_s - (clock.monotonic() - started)))
        self._close()

    def _is_done(self, what: Callable[[], None]) -> bool:
        try:
            what()
        except StoreError:
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is: a worker that beats no more is taken for dead
            text = f"{type(error).__name__}: {error}"
            self._telemetry.emit("worker.failing", worker=self._pump.worker_id, error=text)
            return False
        return True

    def _beat_once(self) -> None:
        if self._session is None:
            self._session = self._engine.open_session(self._lock_wait_ms)
        self._beat(self._session)

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _beat(self, session: Session) -> None:
        while self._to_bury:
            self._chores.bury(session, self._to_bury[0], None)
            self._to_bury.popleft()
        worker_id = self._pump.worker_id
        state, to_cancel = worker_rows.beat(session, worker_id, self._pump.held())
        if state is None:
            self._pump.declared_dead(worker_id)
        self._pump.drain(state == "draining")
        if to_cancel:
            self._pump.cancel_running(to_cancel, self._interrupt)
        if self._pump.is_healthy:
            self._chores.run_due(session)
