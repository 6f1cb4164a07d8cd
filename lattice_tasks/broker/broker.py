"""`LatticeBroker`: Dramatiq's broker over the store.

Submits go through the tasks' own submitter; consuming goes through the pump. Hooks are looked up once, and the decision
about an attempt is made ahead of all of them.
"""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import dramatiq
from dramatiq.errors import ConnectionFailed, QueueJoinTimeout
from dramatiq.middleware import (
    AgeLimit,
    Callbacks,
    CurrentMessage,
    Middleware,
    Pipelines,
    Retries,
    ShutdownNotifications,
    TimeLimit,
)
from dramatiq.results import Results
from dramatiq.threading import raise_thread_exception

from lattice_tasks import clock
from lattice_tasks.broker.consumer import LatticeConsumer
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.broker.heartbeat import Chores, Heartbeat
from lattice_tasks.broker.middleware import Cancelled, DeadLetters, LatticeGroupCallbacks
from lattice_tasks.broker.notifier import Notifier
from lattice_tasks.broker.pump import Pump
from lattice_tasks.broker.results import StoreRateLimiterBackend, StoreResultBackend
from lattice_tasks.broker.work_queue import WorkQueue
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import InvalidInput, InvalidOperation, LatticeError, StoreError
from lattice_tasks.queues.record import QueueRecord, Queues, require_name
from lattice_tasks.settings import VERSION, Settings
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.submits import NewInvocation
from lattice_tasks.store.turns import Claimed
from lattice_tasks.store.workers import WorkerRow, register
from lattice_tasks.tasks.current import current
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.tasks.job import Jobs
from lattice_tasks.tasks.settle import Kind, Outcome
from lattice_tasks.tasks.submit import Submitter
from lattice_tasks.telemetry import Telemetry

__all__ = ["LatticeBroker", "Parts"]

_FLUSH_S = 10.0
_DROPPED_OPTIONS = ("eta", "delay", "retries", "traceback", "requeue_timestamp")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the broker is built on; the app is the maker."""

    engine: Engine
    settings: Settings
    telemetry: Telemetry
    queues: Queues
    submitter: Submitter
    jobs: Jobs
    notifier: Notifier
    namespace_id: Callable[[], int]
    chores: Callable[[Callable[[Iterable[int]], None]], Chores]


class LatticeBroker(dramatiq.Broker):
    """A broker whose record is the store.

    Args:
        middleware: replaces the default list. Without a `DeadLetters` in it one is added; Dramatiq's `Retries` is refused.
    """

    def __init__(self, parts: Parts, middleware: list[Middleware] | None = None) -> None:
        self._parts = parts
        self._hooks: dict[str, list[Callable[..., Any]]] = {}
        self._local = threading.local()
        self._pump: Pump | None = None
        self._heartbeat: Heartbeat | None = None
        self._worker: dramatiq.Worker | None = None
        self.on_incarnation: Callable[[int], None] = lambda _worker_id: None
        self.rate_limiter_backend = StoreRateLimiterBackend(parts.engine, parts.namespace_id)
        self.result_backend = StoreResultBackend(parts.jobs.fetch)
        super().__init__(middleware=self._default_middleware() if middleware is None else middleware)
        found = [one for one in self.middleware if isinstance(one, DeadLetters)]
        if not found:
            found = [self._dead_letters_middleware()]
            self.add_middleware(found[0])
        self._dead_letters = found[0]

    def _default_middleware(self) -> list[Middleware]:
        return [
            AgeLimit(),
            TimeLimit(),
            ShutdownNotifications(),
            Callbacks(),
            Pipelines(),
            CurrentMessage(),
            LatticeGroupCallbacks(self.rate_limiter_backend, self.follow_up),
            Results(backend=self.result_backend, store_results=True),
            self._dead_letters_middleware(),
        ]

    def _dead_letters_middleware(self) -> DeadLetters:
        settings = self._parts.settings
        return DeadLetters(
            max_result_bytes=settings.max_payload_bytes, unknown_grace_ms=settings.unknown_actor_grace_ms
        )

    # --- hooks ------------------------------------------------------------------------------------------------------

    def add_middleware(self, middleware: Middleware, **place: Any) -> None:
        """Add a middleware, as Dramatiq's broker does.

        Raises:
            InvalidOperation: it is Dramatiq's `Retries`, which would double what `DeadLetters` does.
        """
        if isinstance(middleware, Retries):
            raise InvalidOperation(
                "Dramatiq's Retries re-enqueues a copy before it acknowledges, so a crash doubles the task; "
                "lattice_tasks has its options in DeadLetters. Leave Retries out of the middleware list"
            )
        self._hooks = {}
        super().add_middleware(middleware, **place)
        self._hooks = {}

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        if signal == "process_message":
            self._begin(args[0])
        elif signal == "worker_boot":
            self._boot(args[0])
        elif signal == "worker_shutdown" and self._pump is not None:
            self._pump.pause()
        hooks = self._hooks.get("before_" + signal)
        if hooks is None:
            hooks = self._find_hooks("before_" + signal, self.middleware)
        for hook in hooks:
            try:
                hook(self, *args, **kwargs)
            except dramatiq.middleware.MiddlewareError:
                raise
            except Exception:
                self.logger.critical("Unexpected failure in before_%s of %r.", signal, hook, exc_info=True)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        if signal == "process_message":
            self._local.settling = args[0]
            self._dead_letters.pin(self, args[0], kwargs.get("result"), kwargs.get("exception"))
        elif signal == "skip_message":
            self._local.settling = args[0]
            self._dead_letters.pin_skipped(self, args[0])
        hooks = self._hooks.get("after_" + signal)
        if hooks is None:
            hooks = self._find_hooks("after_" + signal, list(reversed(self.middleware)))
        for hook in hooks:
            try:
                hook(self, *args, **kwargs)
            except Exception as error:
                self.logger.critical("Unexpected failure in after_%s of %r.", signal, hook, exc_info=True)
                if signal == "process_message" and isinstance(error, LatticeError):
                    self._dead_letters.cut_off(args[0], error)
        if signal == "worker_shutdown":
            self._leave()

    def _find_hooks(self, name: str, middleware: Iterable[Middleware]) -> list[Callable[..., Any]]:
        """The hooks that are really overridden, bound, in their order; kept until the list changes."""
        idle = getattr(Middleware, name, None)
        found = [getattr(one, name) for one in middleware if getattr(type(one), name, None) is not idle]
        self._hooks[name] = found
        return found

    # --- submitting -------------------------------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Know a queue from now on; it comes into being in the store with its first submit or worker."""
        if require_name(queue_name) not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message, *, delay: int | None = None) -> dramatiq.Message:
        """Store the message; when this returns it is committed.

        What a hook enqueues between the decision about a message and its ack is kept and committed with that settlement,
        so a chain can neither be cut nor doubled.
        """
        self.emit_before("enqueue", message, delay)
        settling = getattr(self._local, "settling", None)
        if settling is not None:
            settling.follow_ups.append(self.follow_up(message, delay))
        else:
            self._parts.submitter.submit([self._draft(message, delay, is_follow_up=False)])
        self.emit_after("enqueue", message, delay)
        return message

    def follow_up(self, message: dramatiq.Message, delay: int | None = None) -> NewInvocation:
        """The invocation that a message of a chain stands for; `delay` in milliseconds."""
        return self._draft(message, delay, is_follow_up=True)

    def _draft(self, message: dramatiq.Message, delay: int | None, is_follow_up: bool) -> NewInvocation:
        options = {name: value for name, value in message.options.items() if name not in _DROPPED_OPTIONS}
        if delay is not None and (not isinstance(delay, int | float) or not 0 <= delay * 1_000 <= clock.MAX_DELAY_US):
            raise InvalidInput(f"delay={delay!r:.80} must be milliseconds between 0 and ten years")
        new = self._parts.submitter.draft(
            message.queue_name,
            message.actor_name,
            message.args,
            message.kwargs,
            options,
            task_id=message.message_id,
            is_follow_up=is_follow_up,
        )
        if not delay:
            return new
        return NewInvocation(new.id, new.queue_id, new.actor, new.body, delay_us=int(delay * 1_000))

    def _finish(self, message: Any) -> None:
        """The outcome goes to the pump; what this thread enqueues from now on is its own again.

        A message that comes back without an outcome has failed, not succeeded.
        """
        self._local.settling = None
        current.leave()
        if message.outcome is None:
            message.failed = True
            self._dead_letters.pin(self, message, None, message._exception)

    # --- working ----------------------------------------------------------------------------------------------------

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> LatticeConsumer:
        """A consumer that takes from the pump's memory. `prefetch` is not used: the pump looks ahead in time."""
        if self._pump is None:
            raise InvalidOperation("this broker is consumed by a dramatiq.Worker only")
        try:
            record = self._parts.queues.known(queue_name)
        except StoreError as error:
            raise ConnectionFailed(str(error)) from error
        lane = self._pump.open_lane(record.name, record.id, self._shelf(record))
        lane.take = self._taker(queue_name)
        return LatticeConsumer(self._pump, lane, timeout, self._finish)

    def _taker(self, queue_name: str) -> Callable[[LatticeMessage], bool]:
        """Dramatiq's consumer thread takes a message, unless it is paused."""
        thread = self._worker.consumers.get(queue_name) if self._worker is not None else None

        def take(message: LatticeMessage) -> bool:
            if thread is None or thread.paused or not thread.running or thread.consumer is None:
                return False
            thread.handle_message(message)
            return True

        return take

    def _shelf(self, record: QueueRecord) -> ShelfSpec:
        settings = self._parts.settings
        capacity = record.dlq_capacity or settings.shelf_capacity
        return ShelfSpec(record.id, capacity, record.dlq_on_full, keeps=settings.dlq_restore_days > 0)

    def bury(self, worker_ids: Iterable[int]) -> None:
        """Free at once the leases of worker processes that somebody saw end; the store being away, their lease does it."""
        if self._heartbeat is not None:
            self._heartbeat.bury(worker_ids)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until the queue has nothing waiting, scheduled or running; for tests.

        Raises:
            QueueJoinTimeout: it still has after `timeout` milliseconds.
        """
        give_up_at = None if timeout is None else clock.monotonic() + timeout / 1_000
        pause = threading.Event()
        while True:
            depth = self._parts.queues.depth(queue_name)
            if not depth.waiting + depth.scheduled + depth.running:
                return
            if give_up_at is not None and clock.monotonic() > give_up_at:
                raise QueueJoinTimeout(f"queue {queue_name!r} still has work after {timeout} ms")
            pause.wait(0.01)

    def close(self) -> None:
        """Close the notifier's connection and the pool."""
        self._parts.notifier.stop()
        self._parts.engine.close()

    def _begin(self, message: LatticeMessage) -> None:
        claimed = message.claimed
        message.thread_id = threading.get_ident()
        message.started_ns = clock.monotonic_ns()
        if message.cancel_reason is not None:  # while it lay here; one that comes later finds the thread
            raise Cancelled
        current.enter(claimed.id, message.queue_name, claimed.actor, claimed.attempt + 1, claimed.submitted_at)

    def _boot(self, worker: dramatiq.Worker) -> None:
        parts = self._parts
        parts.telemetry.speaks = True
        work_queue = WorkQueue()
        worker.work_queue = cast(Any, work_queue)  # it has all that the worker uses of a PriorityQueue
        me = f"{socket.gethostname()}:{os.getpid()}"
        pump = Pump(
            parts.engine,
            parts.settings,
            parts.telemetry,
            parts.notifier,
            lambda session: self._register(session, worker),
            self._screen,
            me,
            VERSION,
            worker.worker_threads,
            work_queue,
        )
        try:
            # Before the consumers ask, each from a thread of its own, and so with a connection of its own.
            for name in sorted(self.get_declared_queues() & (worker.consumer_whitelist or self.get_declared_queues())):
                parts.queues.ensure(name)
            parts.namespace_id()
            parts.engine.close_idle()  # the pump and the heartbeat have connections of their own
            pump.start()
        except StoreError as error:
            raise ConnectionFailed(str(error)) from error
        self._pump, self._worker = pump, worker
        self._heartbeat = Heartbeat(
            parts.engine,
            pump,
            parts.telemetry,
            parts.settings,
            parts.chores(pump.tell),
            lambda thread_id: raise_thread_exception(thread_id, Cancelled),
            self._mend_threads,
        )
        self._heartbeat.start()
        declared = self.get_declared_queues()
        unserved = sorted((worker.consumer_whitelist or set()) - declared)
        if unserved or not declared:
            parts.telemetry.emit("worker.idle", queues=unserved)

    def _register(self, session: Session, worker: dramatiq.Worker) -> int:
        queues = sorted(worker.consumer_whitelist or self.get_declared_queues())
        row = WorkerRow(
            self._parts.namespace_id(),
            socket.gethostname(),
            os.getpid(),
            worker.worker_threads,
            json.dumps(queues),
            json.dumps(sorted(self.actors)),
            VERSION,
        )
        worker_id = register(session, row)
        self.on_incarnation(worker_id)
        self._parts.telemetry.emit(
            "worker.started", worker=worker_id, host=row.host, pid=row.pid, queues=queues, threads=row.threads
        )
        return worker_id

    def _screen(self, claimed: Claimed, now_us: int) -> Outcome | None:
        """The outcome of what must not run: cancelled, expired, too large, or spent by lost workers."""
        if claimed.flags & Flag.CANCEL:
            return Outcome(Kind.CANCEL)
        if claimed.deadline_at is not None and claimed.deadline_at <= now_us:
            return Outcome(Kind.EXPIRE, error="its deadline passed before it could start")
        limit = self._parts.settings.max_payload_bytes
        if len(claimed.body) > limit:
            error = f"the stored message has {len(claimed.body)} bytes, the limit is {limit}"
            return Outcome(Kind.PARK, reason="oversized", error=error, is_charged=False)
        if claimed.attempt and claimed.flags & Flag.SUSPECT:
            return self._dead_letters.spent_by_losses(self.actors.get(claimed.actor), claimed)
        return None

    def _mend_threads(self) -> None:
        """An interrupt that arrives late kills a worker thread of Dramatiq; put a new one in its place."""
        worker, pump = self._worker, self._pump
        if worker is None or pump is None:
            return
        dead = [thread for thread in worker.workers if not thread.is_alive() and thread.running]
        for thread in dead:
            worker.workers.remove(thread)
            pump.abandon(thread.ident, self._finish)
            worker._add_worker()
        if dead:
            self._parts.telemetry.emit("worker.thread_replaced", worker=pump.worker_id, count=len(dead))

    def _leave(self) -> None:
        if self._heartbeat is not None and self._pump is not None:
            self._heartbeat.stop()
            self._pump.stop(_FLUSH_S)
        self._heartbeat = self._pump = self._worker = None
