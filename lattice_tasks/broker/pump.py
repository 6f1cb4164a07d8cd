"""One thread moves all work of a process: one round trip settles what finished, on all queues, and claims what fits.

Outcomes that are reported while a commit is under way join the next one: idle, a single task is settled and the next one
claimed at once; loaded, hundreds share a commit. The pump keeps every outcome until the store has it.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any

import msgspec

from lattice_tasks import clock
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.notifier import Notifier
from lattice_tasks.broker.work_queue import WorkQueue
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.settings import Settings
from lattice_tasks.store import workers as worker_rows
from lattice_tasks.store.engine import SQLITE, Engine, Session
from lattice_tasks.store.turns import Claimed, Want, mark_started, promote, turn
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.tasks.settle import Ended, Kind, Outcome, settle
from lattice_tasks.tasks.submit import decode_body
from lattice_tasks.telemetry import Telemetry

__all__ = ["Lane", "Pump", "Screen"]

#: What a claimed invocation must pass before it runs: its outcome when it shall not run at all, else None.
Screen = Callable[[Claimed, int], Outcome | None]

_JOIN_S = 0.004  # loaded: how long outcomes are let to join a commit
_STUCK_S = 0.2  # look-ahead that no thread has started for so long goes back
_AUDIT_S = 5.0
_FULL_LOOK_S = 0.25
_WAKE_NEXT_S = 0.05
_PROMOTE = 500
_SUSPECT_S = 5.0
_NO_STORE_POLL_S = 0.25  # with the broker away, or none
_EMBEDDED_POLLS_S = (0.004, 0.02, 0.1)  # soon after work, later, and at rest: other processes' commits, by file version


@dataclass(slots=True)
class Lane:
    """One queue as this process serves it."""

    name: str
    queue_id: int
    shelf: ShelfSpec
    feed: SimpleQueue = field(default_factory=SimpleQueue)
    floor: int = 0
    looked_at: float = 0.0
    has_more: bool = True
    mean_s: float | None = None

    def measure(self, run_s: float) -> None:
        """Take a run time into the recent mean."""
        self.mean_s = run_s if self.mean_s is None else 0.8 * self.mean_s + 0.2 * run_s


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
        self._screen = screen
        self._name = worker_name
        self._version = version
        self._threads = threads
        self._work_queue = work_queue
        self._lanes: dict[int, Lane] = {}
        self._rotation = 0
        self._held: dict[int, LatticeMessage] = {}
        self._outcomes: deque[LatticeMessage] = deque()
        self._unsettled: list[LatticeMessage] = []
        self._suspects: deque[LatticeMessage] = deque()
        self._waiting_behind: list[LatticeMessage] = []
        self._suspect: LatticeMessage | None = None
        self._batch = 0
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._armed = False
        self._woken = True
        self._is_claiming = True
        self._is_uncertain = False
        self._polled_at = self._audited_at = self._woke_next_at = self._busy_at = 0.0
        self._due_at: float | None = None
        self._file_version = 0
        self._session: Session | None = None
        self._down_since: float | None = None
        self._reincarnate = False
        self._stopping = False
        self.worker_id = 0
        self._thread = threading.Thread(target=self._run, name="lattice-pump", daemon=True)

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
        self._take_back("the worker is stopping")
        self._ring()

    def stop(self, flush_s: float) -> None:
        """Write what is left, within `flush_s` seconds, and leave; leases of tasks that still run are released last."""
        self._is_claiming = False
        self._stopping = True
        self._ring()
        self._thread.join(flush_s)
        left = [message.message_id for message in (*self._unsettled, *self._outcomes)]
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
        lane = self._lanes.get(queue_id)
        if lane is None:
            lane = Lane(name, queue_id, shelf)
            self._lanes = {**self._lanes, queue_id: lane}
            self._notifier.subscribe((queue_id,), self.wake)
        self.wake((queue_id,))
        return lane

    def wake(self, queue_ids: Collection[int]) -> None:
        """These queues have work."""
        for queue_id in queue_ids:
            lane = self._lanes.get(queue_id)
            if lane is not None:
                lane.has_more = True
                lane.floor = 0
        self._woken = True
        self._ring()

    def ended(self, message: Any) -> None:
        """An attempt ended; its outcome is on the message. One append: this cannot fail."""
        self._outcomes.append(message)
        if self._armed:
            self._ring()

    def hand_back(self, messages: Iterable[Any], why: str) -> None:
        """These were claimed but not started; they go back uncharged."""
        for message in messages:
            message.outcome = Outcome(Kind.RELEASE, reason=why)
            self.ended(message)

    def cancel_running(self, seqs: Collection[int], interrupt: Callable[[int], None]) -> None:
        """Interrupt the threads that run these; `interrupt` takes a thread id."""
        for seq in seqs:
            message = self._held.get(seq)
            if message is None or message.outcome is not None or message.cancel_reason is not None:
                continue
            message.cancel_reason = "cancelled while running"
            if message.thread_id:
                interrupt(message.thread_id)

    def abandon(self, thread_id: int | None, finish: Callable[[Any], None]) -> None:
        """A thread died while it ran a message: that attempt has ended."""
        waiting = {id(one) for one in (*self._outcomes, *self._unsettled)}
        for message in list(self._held.values()):
            if message.thread_id == thread_id and id(message) not in waiting and message.started_ns:
                finish(message)
                self.ended(message)

    def wake_and_tell(self, queue_ids: Iterable[int]) -> None:
        """These queues have work again; wake this pump and the others."""
        self._notifier.notify(list(queue_ids))

    def drain(self, is_draining: bool) -> None:
        """An operator asked this worker to take no more."""
        if is_draining and self._is_claiming:
            self.pause()

    def declared_dead(self) -> None:
        """A beat changed no row: take a new incarnation, drop what is held."""
        self._reincarnate = True
        self._ring()

    def _ring(self) -> None:
        self._armed = False
        self._bell.put(None)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.1
        while not self._stopping or self._outcomes or self._unsettled:
            self._rest()
            try:
                self._work()
                pause_s = 0.1
            except StoreError as error:
                self._suffer(error)
                sleep(pause_s)
                pause_s = min(1.0, pause_s * 2)
                self._reopen()

    def _rest(self) -> None:
        """Sleep until there is reason to look; let outcomes join a commit while the threads have work."""
        if not self._has_reason():
            self._armed = True
            if not self._has_reason():
                try:
                    self._bell.get(timeout=self._patience_s())
                except Empty:
                    pass
            self._armed = False
        if self._outcomes and len(self._work_queue) > self._threads:
            sleep(_JOIN_S)
        while True:
            try:
                self._bell.get_nowait()
            except Empty:
                return

    def _has_reason(self) -> bool:
        if self._outcomes or self._unsettled or self._reincarnate or self._stopping:
            return True
        now = clock.monotonic()
        if self._due_at is not None and now >= self._due_at:
            return True
        if not self._is_claiming or self._free() <= 0:
            return False
        return self._woken or now - self._polled_at >= self._poll_s() or self._file_changed()

    def _patience_s(self) -> float:
        now = clock.monotonic()
        waits = [self._polled_at + self._poll_s() - now]
        if self._due_at is not None:
            waits.append(self._due_at - now)
        if self._unstarted():
            waits.append(_STUCK_S)
        if self._engine.dialect == SQLITE and self._free() > 0:
            rested = now - self._busy_at
            waits.append(_EMBEDDED_POLLS_S[0 if rested < 10 else 1 if rested < 60 else 2])
        if self._free() <= 0 and not self._unstarted():
            waits = [_STUCK_S * 5]
        return max(0.001, min(waits))

    def _poll_s(self) -> float:
        if self._notifier.is_connected or self._engine.dialect == SQLITE:
            return self._settings.poll_ms / 1000
        return min(_NO_STORE_POLL_S, self._settings.poll_ms / 1000)

    def _file_changed(self) -> bool:
        if self._engine.dialect != SQLITE or self._session is None:
            return False
        version = self._session.raw.execute("pragma data_version").fetchone()[0]
        if version == self._file_version:
            return False
        self._file_version = version
        for lane in self._lanes.values():
            lane.floor = 0
        return True

    def _free(self) -> int:
        return 0 if self._suspect_holds() else self._threads - len(self._held)

    def _unstarted(self) -> int:
        return len(self._work_queue) + sum(lane.feed.qsize() for lane in self._lanes.values())

    # --- one turn ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        session = self._session
        if session is None:
            raise StoreUnavailable("the store connection is closed")
        if self._reincarnate:
            self._take_new_incarnation(session)
        while self._outcomes:
            self._unsettled.append(self._outcomes.popleft())
        self._release_suspect()
        plain = self._settle_special(session)
        wants = self._wants() if self._is_claiming else []
        if plain or wants:
            self._turn(session, plain, wants)
        if self._due_at is not None and clock.monotonic() >= self._due_at:
            self._promote(session)
        if clock.monotonic() - self._audited_at >= _AUDIT_S:
            self._audit(session)
        self._give_back_stuck()
        self._notifier.listen(self._is_claiming and self._free() > 0)
        self._recovered()

    def _turn(self, session: Session, plain: list[LatticeMessage], wants: list[Want]) -> None:
        self._batch += 1
        settling = [(one.claimed.seq, one.batch, one.outcome.result if one.outcome else None) for one in plain]
        started = clock.monotonic()
        self._woken = False
        brought = turn(session, self.worker_id, self._batch, settling, wants, list(self._lanes) if wants else [])
        done = {id(one) for one in plain}
        self._unsettled = [one for one in self._unsettled if id(one) not in done]
        self._forget(plain, brought.refused)
        if self._telemetry.is_heard:
            self._count_succeeded(plain, set(brought.refused))
        if not brought.is_alive:
            self._reincarnate = True
            return
        if wants:
            self._polled_at = clock.monotonic()
            self._due_at = None if brought.due_us is None else self._polled_at + brought.due_us / 1e6
            self._note_lanes(wants, brought.claimed, started)
            self._deliver(brought.claimed, brought.now_us)

    def _wants(self) -> list[Want]:
        """Free threads, shared round robin by the queues that may have work, and each queue's look-ahead in time."""
        free = self._free()
        lanes = list(self._lanes.values())
        if not lanes or self._suspect_holds():
            return []
        unstarted = self._unstarted()
        poll = clock.monotonic() - self._polled_at >= self._poll_s()
        hopeful = [lane for lane in lanes if lane.has_more] or (lanes if poll or self._woken else [])
        self._rotation += 1
        turned = self._rotation % max(1, len(hopeful))
        hopeful = hopeful[turned:] + hopeful[:turned]
        wants = []
        for position, lane in enumerate(hopeful):
            share = max(0, free) // len(hopeful) + (1 if position < max(0, free) % len(hopeful) else 0)
            ahead = 0
            if lane.mean_s is not None:
                ahead = min(
                    self._settings.lookahead_count,
                    int(self._threads * self._settings.lookahead_ms / 1000 / max(lane.mean_s, 1e-5)),
                )
            limit = share + max(0, ahead - max(0, len(self._held) - self._threads))
            # Loaded: refill when half is gone, not task by task.
            if limit > 0 and (free > 0 or unstarted <= ahead // 2):
                wants.append(Want(lane.queue_id, limit, lane.floor))
        return wants

    def _note_lanes(self, wants: list[Want], claimed: list[Claimed], started: float) -> None:
        now = clock.monotonic()
        full: set[int] = set()
        for want in wants:
            lane = self._lanes[want.queue_id]
            seqs = [one.seq for one in claimed if one.queue_id == want.queue_id]
            lane.has_more = len(seqs) >= want.limit or (want.floor > 0)
            if len(seqs) >= want.limit:
                full.add(want.queue_id)
            if want.floor == 0:
                lane.looked_at = now
            # The floor skips dead entries; a look from the start finds what appeared below it, at a twentieth of the time.
            due = now - lane.looked_at >= max(_FULL_LOOK_S, 20 * (now - started))
            lane.floor = 0 if due or len(seqs) < want.limit else max(seqs)
        if claimed:
            self._busy_at = now
        if full and now - self._woke_next_at >= _WAKE_NEXT_S:
            self._woke_next_at = now
            self._notifier.notify(full)
        if any(lane.has_more for lane in self._lanes.values()):
            self._woken = True

    def _deliver(self, claimed: list[Claimed], now_us: int) -> None:
        for one in claimed:
            lane = self._lanes[one.queue_id]
            try:
                body = decode_body(one.body)
                refusal = self._screen(one, now_us)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                body = decode_body(b"{}")
                refusal = Outcome(Kind.PARK, reason="schema", error=f"undecodable message: {error}", is_charged=False)
            message = LatticeMessage(one, self._batch, lane.name, body, now_us)
            self._held[one.seq] = message
            if refusal is not None:
                message.outcome = refusal
                self._outcomes.append(message)
            elif one.flags & Flag.SUSPECT:
                self._suspects.append(message)
            elif self._suspect_holds():
                self._waiting_behind.append(message)
            else:
                lane.feed.put(message)
        self._release_suspect()

    # --- settling ---------------------------------------------------------------------------------------------------

    def _settle_special(self, session: Session) -> list[LatticeMessage]:
        """Settle everything that needs more than a final state; returns the plain successes for the fast lane."""
        plain, special = [], []
        for message in self._unsettled:
            outcome = message.outcome
            if outcome is None:
                outcome = message.outcome = Outcome(
                    Kind.RETRY, delay_us=1_000_000, error="the message came back without an outcome"
                )
            outcome.follow_ups, message.follow_ups = [*outcome.follow_ups, *message.follow_ups], []
            outcome.group = outcome.group or message.group
            is_plain = outcome.is_plain and not message.claimed.flags & Flag.REPLAY
            (plain if is_plain else special).append(message)
        if special:
            try:
                self._settle_batch(session, special)
            except StoreUnavailable:
                raise
            except StoreError:
                self._settle_apart(session, special)
        return plain

    def _settle_batch(self, session: Session, messages: list[LatticeMessage]) -> None:
        ended = [
            Ended(one.claimed.seq, one.batch, one.message_id, one.actor_name, one.outcome)
            for one in messages
            if one.outcome is not None
        ]
        settled = settle(session, self.worker_id, self._name, self._version, ended, self._shelf_of)
        done = {id(one) for one in messages}
        self._unsettled = [one for one in self._unsettled if id(one) not in done]
        self._forget(messages, settled.refused)
        for name, fields in settled.events:
            self._telemetry.emit(name, **fields)
        if settled.woken:
            self._notifier.notify(settled.woken)

    def _settle_apart(self, session: Session, messages: list[LatticeMessage]) -> None:
        """One outcome cannot be stored: it must not block the others. It is stored degraded."""
        for message in messages:
            try:
                self._settle_batch(session, [message])
            except StoreUnavailable:
                raise
            except StoreError as error:
                self._telemetry.emit("settle.degraded", task_id=message.message_id, error=str(error))
                outcome = message.outcome or Outcome(Kind.RETRY)
                outcome.result, outcome.traceback, outcome.error = None, None, "not storable"
                outcome.follow_ups, outcome.group = [], None
                self._settle_batch(session, [message])

    def _shelf_of(self, queue_id: int) -> tuple[str, ShelfSpec]:
        lane = self._lanes[queue_id]
        return lane.name, lane.shelf

    def _forget(self, messages: list[LatticeMessage], refused: Collection[int]) -> None:
        for message in messages:
            seq = message.claimed.seq
            if self._held.get(seq) is message:
                del self._held[seq]
            if seq in refused and not self._is_uncertain:
                self._telemetry.emit("settle.refused", task_id=message.message_id, worker=self.worker_id)

    def _count_succeeded(self, messages: list[LatticeMessage], refused: set[int]) -> None:
        now_ns = int(clock.monotonic() * 1e9)
        for one in messages:
            if one.claimed.seq not in refused:
                run_s = (now_ns - one.started_ns) / 1e9
                self._telemetry.emit("task.succeeded", queue=one.queue_name, actor=one.actor_name, run_s=run_s)

    # --- scheduled ones, suspects, look-ahead that is stuck ---------------------------------------------------------

    def _promote(self, session: Session) -> None:
        moved = promote(session, list(self._lanes), _PROMOTE)
        self._due_at = clock.monotonic() if len(moved) >= _PROMOTE else None
        if moved:
            for lane in self._lanes.values():
                lane.floor, lane.has_more = 0, True
            self._notifier.notify(list(self._lanes)) if len(moved) > self._free() else None
        self._woken = True

    def _suspect_holds(self) -> bool:
        """Whether a suspect runs alone, for as long as it has not proved harmless."""
        suspect = self._suspect
        if suspect is None:
            return bool(self._suspects)
        young = not suspect.started_ns or clock.monotonic() - suspect.started_ns / 1e9 < _SUSPECT_S
        return suspect.outcome is None and young

    def _release_suspect(self) -> None:
        """Let the next suspect run, its start recorded durably first; without any, what waited behind goes on."""
        if self._session is None or (self._suspect is not None and self._suspect_holds()):
            return
        self._suspect = None
        while self._suspects:
            self._take_back_to_wait()
            suspect = self._suspects.popleft()
            if mark_started(self._session, self.worker_id, suspect.claimed.seq, suspect.batch):
                self._suspect = suspect
                self._lanes[suspect.claimed.queue_id].feed.put(suspect)
                return
            self._held.pop(suspect.claimed.seq, None)
        waiting, self._waiting_behind = self._waiting_behind, []
        for message in waiting:
            self._lanes[message.claimed.queue_id].feed.put(message)

    def _take_back_to_wait(self) -> None:
        self._waiting_behind += self._unstarted_messages()

    def _unstarted_messages(self) -> list[LatticeMessage]:
        messages = [item.message for item in self._work_queue.take_back()]
        for lane in self._lanes.values():
            while True:
                try:
                    messages.append(lane.feed.get_nowait())
                except Empty:
                    break
        return messages

    def _take_back(self, why: str) -> None:
        waiting, self._waiting_behind = self._waiting_behind, []
        suspects = list(self._suspects)
        self._suspects.clear()
        self.hand_back([*self._unstarted_messages(), *waiting, *suspects], why)

    def _give_back_stuck(self) -> None:
        """Look-ahead that no thread has started in time would keep urgent work from other workers."""
        if self._suspect_holds() or not self._unstarted():
            return
        now_ns = int(clock.monotonic() * 1e9)
        running = [one.started_ns for one in list(self._held.values()) if one.started_ns and one.outcome is None]
        if len(running) >= self._threads and now_ns - max(running) > _STUCK_S * 1e9:
            for lane in self._lanes.values():
                lane.mean_s = None
            self._take_back("look-ahead was not started in time")

    # --- outages and rebirth ----------------------------------------------------------------------------------------

    def _audit(self, session: Session) -> None:
        """Free, uncharged, leases in the store that this process does not know: claims whose answer was lost."""
        known = {(one.claimed.seq, one.batch) for one in (*self._held.values(), *self._unsettled, *self._outcomes)}
        unknown = [lease for lease in worker_rows.my_leases(session, self.worker_id) if lease not in known]
        if unknown:
            worker_rows.free_leases(session, self.worker_id, unknown)
        self._audited_at = clock.monotonic()
        self._is_uncertain = False

    def _take_new_incarnation(self, session: Session) -> None:
        self._telemetry.emit("worker.declared_dead", worker=self.worker_id)
        self._take_back("declared dead")
        dropped = [*self._unsettled, *self._outcomes]
        self._outcomes.clear()
        self._unsettled = []
        refused = [one for one in dropped if one.outcome is not None and one.outcome.kind is not Kind.RELEASE]
        for message in refused:
            self._telemetry.emit("settle.refused", task_id=message.message_id, worker=self.worker_id)
        # What still runs stays known by its old batch: when it ends, its token fits no lease and it is refused.
        for message in dropped:
            self._held.pop(message.claimed.seq, None)
        self._suspect = None
        self.worker_id = self._register(session)
        self._reincarnate = False

    def _suffer(self, error: StoreError) -> None:
        self._is_uncertain = True
        if self._down_since is None:
            self._down_since = clock.monotonic()
            self._telemetry.emit("store.unavailable", error=str(error))

    def _recovered(self) -> None:
        if self._down_since is not None:
            outage_s, self._down_since = clock.monotonic() - self._down_since, None
            self._telemetry.emit("store.recovered", outage_s=round(outage_s, 3))

    def _reopen(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        try:
            self._session = self._engine.open_session()
            self._audited_at = 0.0
        except StoreError:
            return
