"""Replaying a dead letter in the calling process and thread, where a debugger can see it.

It is one attempt like any other: under a lease, a heartbeat and a fencing token of its own, through the app's middleware,
and settled like a worker's. So no worker runs it meanwhile, and a process that dies in it leaves a worker lost.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

import msgspec
from dramatiq.middleware import SkipMessage
from dramatiq.threading import raise_thread_exception

from lattice_tasks import clock
from lattice_tasks.broker.broker import LatticeBroker
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.middleware import Cancelled
from lattice_tasks.broker.settlement import SettlementBuffer
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.dead_letters.shelf import Shelf
from lattice_tasks.errors import AlreadyHandled, DeadLetterNotFound, StoreError, StoreUnavailable
from lattice_tasks.queues.record import QueueRecord
from lattice_tasks.settings import Settings
from lattice_tasks.store import settles as moves
from lattice_tasks.store import workers as worker_rows
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.pictures import now_us
from lattice_tasks.store.turns import Claimed
from lattice_tasks.store.workers import WorkerRow
from lattice_tasks.tasks.arguments import Body, decode_body
from lattice_tasks.tasks.invocation import Flag, State
from lattice_tasks.tasks.settle import Kind, Outcome
from lattice_tasks.telemetry import Telemetry

__all__ = ["replay_here"]

_BATCH = 1
_TRY_AGAIN_S = 1.0


def replay_here(
    engine: Engine,
    settings: Settings,
    telemetry: Telemetry,
    broker: LatticeBroker,
    namespace_id: int,
    queue: QueueRecord,
    entry_id: int,
    on_failure: Callable[[BaseException], None],
) -> None:
    """Run a dead letter's invocation here and now, and settle it; returns when that is stored.

    Args:
        broker: of the app; it knows the actor.
        on_failure: called with the exception before the outcome is decided, while the frames are alive.

    Raises:
        DeadLetterNotFound: no letter of this id.
        AlreadyHandled: somebody else replays it.
        KeyboardInterrupt: it was interrupted; the letter lies on the shelf again.
    """
    here = _Here(engine, telemetry, broker, namespace_id, queue, settings)
    with here.registered():
        message = here.claim(entry_id)
        with here.beating(message):
            error = here.run(message, on_failure)
            here.settle(message)
    if isinstance(error, KeyboardInterrupt):
        raise error


class _Here:
    """This process as a worker of one invocation."""

    def __init__(
        self,
        engine: Engine,
        telemetry: Telemetry,
        broker: LatticeBroker,
        namespace_id: int,
        queue: QueueRecord,
        settings: Settings,
    ) -> None:
        self._engine = engine
        self._telemetry = telemetry
        self._broker = broker
        self._namespace_id = namespace_id
        self._queue = queue
        capacity, keeps = queue.dlq_capacity or settings.shelf_capacity, settings.dlq_restore_days > 0
        self._shelf = ShelfSpec(queue.id, capacity, queue.dlq_on_full, keeps)
        self._beat_s = settings.beat_ms / 1_000
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._worker_id = 0
        self._claimed: tuple[DeadLetter, Claimed] | None = None

    @contextmanager
    def registered(self) -> Iterator[None]:
        """A worker incarnation that serves no queue, so it claims nothing."""
        row = WorkerRow(
            self._namespace_id,
            socket.gethostname(),
            os.getpid(),
            1,
            "[]",
            json.dumps(sorted(self._broker.actors)),
            version("lattice-tasks"),
        )
        with self._engine.session() as session:
            self._worker_id = worker_rows.register(session, row)
        try:
            yield
        finally:
            with self._engine.session() as session:
                worker_rows.leave(session, self._worker_id)

    def claim(self, entry_id: int) -> LatticeMessage:
        """Pin the letter and lease its invocation in one transaction."""
        shelf = Shelf(
            self._engine,
            self._queue.id,
            self._queue.name,
            telemetry=self._telemetry,
            requeue=self._lease,
            discard_invocations=lambda session, letters: None,
        )
        if shelf.replay(entry_id) is None or self._claimed is None:
            raise DeadLetterNotFound(f"no dead letter {entry_id} on the shelf of queue {self._queue.name!r}")
        letter, claimed = self._claimed
        outcome = None
        try:
            body = decode_body(letter.body)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            body, outcome = Body(), Outcome(Kind.PARK, reason="schema", error=f"undecodable message: {error}")
        with self._engine.session() as session:
            read_us = now_us(session)
        message = LatticeMessage(claimed, _BATCH, self._queue.name, body, read_us)
        message.outcome = outcome
        return message

    def _lease(self, session: Session, letter: DeadLetter) -> None:
        queue_id = moves.reopen(session, letter.seq, State.PARKED.code)
        if queue_id is None:
            raise AlreadyHandled(f"task {letter.task_id} is not parked any more")
        flags = int(Flag.REPLAY)
        taken = moves.Taken(letter.seq, queue_id, letter.priority, 0, flags)
        moves.place_leased(session, taken, self._worker_id, _BATCH)
        submitted_at = clock.to_us(letter.submitted_at)
        ids = (letter.seq, queue_id, letter.priority, 0, flags, letter.task_id, letter.actor, letter.body)
        self._claimed = letter, Claimed(*ids, submitted_at, None, None)

    @contextmanager
    def beating(self, message: LatticeMessage) -> Iterator[None]:
        """Beat from a thread of its own, also while a debugger holds this one; a cancel interrupts this one."""
        ended, runner = threading.Event(), threading.get_ident()

        def beat() -> None:
            while not ended.wait(self._beat_s):
                try:
                    with self._engine.session() as session:
                        _, to_cancel = worker_rows.beat(session, self._worker_id, [message.claimed.seq])
                except StoreError:
                    continue  # the next beat tries again
                if to_cancel and message.cancel_reason is None and message.outcome is None:
                    message.cancel_reason = to_cancel[0][1]
                    raise_thread_exception(runner, Cancelled)

        thread = threading.Thread(target=beat, name="lattice-here", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=2)

    def run(self, message: LatticeMessage, on_failure: Callable[[BaseException], None]) -> BaseException | None:
        """As Dramatiq's worker thread does it; returns the exception it ended with."""
        broker = self._broker
        if message.outcome is not None:
            return None
        try:
            broker.emit_before("process_message", message)
            result = broker.get_actor(message.actor_name)(*message.args, **message.kwargs)
            broker.emit_after("process_message", message, result=result)
        except SkipMessage as skip:
            message.stuff_exception(skip)
            broker.emit_after("skip_message", message)
        except BaseException as error:  # noqa: BLE001 - whatever a task raises is the outcome
            on_failure(error)
            message.stuff_exception(error)
            broker.emit_after("process_message", message, exception=error)
            return error
        finally:
            broker._finish(message)
        return None

    def settle(self, message: LatticeMessage) -> None:
        """Write the outcome; while the store is away, keep trying."""
        buffer = SettlementBuffer(
            self._name, version("lattice-tasks"), self._telemetry, lambda queue_id: (self._queue.name, self._shelf)
        )
        buffer.add(message)
        _, special = buffer.sort()
        pause = threading.Event()
        while True:
            try:
                with self._engine.session() as session:
                    buffer.settle(session, self._worker_id, special)
                return
            except StoreUnavailable as error:
                self._telemetry.emit("store.unavailable", error=str(error))
                pause.wait(_TRY_AGAIN_S)
