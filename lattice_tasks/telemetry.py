"""The table of events, and who listens.

Every change of state that an operator may want to see is one event of this table: a name, a level for the log, and the
fields it always carries. Log lines and metrics are two listeners of the same events. Fields are ids, counts and tags,
never payloads.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import structlog

from lattice_tasks.masking import masked

__all__ = ["EVENTS", "Event", "Telemetry", "make_log"]

Listener = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of event: the level of its log line (None: only counted) and the fields it carries."""

    level: str | None
    fields: tuple[str, ...]
    means: str


EVENTS: dict[str, Event] = {
    "queue.created": Event("info", ("queue", "auto"), "a queue came into being; auto: by a first submit"),
    "queue.stalled": Event("error", ("queue",), "its shelf is full and refuses: nothing of it is handed out"),
    "queue.unstalled": Event("info", ("queue",), "its shelf took all that was held: it is handed out again"),
    "queue.changed": Event("info", ("queue", "state"), "paused, resumed, …"),
    "task.submitted": Event(None, ("queue", "count"), "invocations accepted and committed"),
    "task.claimed": Event(None, ("queue", "count"), "leases taken"),
    "task.succeeded": Event(None, ("queue", "actor", "run_s"), "settled as succeeded"),
    "task.retried": Event("info", ("queue", "actor", "task_id", "attempt", "delay_ms", "error"), "back to scheduled"),
    "task.parked": Event("error", ("queue", "actor", "task_id", "reason", "attempts", "error"), "failed for good"),
    "task.held": Event("error", ("queue", "task_id"), "the shelf is full of pinned entries, or refuses"),
    "task.expired": Event("warning", ("queue", "actor", "task_id"), "deadline or age limit passed"),
    "task.cancelled": Event("info", ("queue", "task_id", "reason"), "cancelled by somebody"),
    "task.released": Event("info", ("queue", "task_id", "why"), "handed back uncharged"),
    "settle.refused": Event("warning", ("task_id", "worker"), "a late worker's settle changed nothing"),
    "settle.degraded": Event("error", ("task_id", "error"), "an outcome could not be stored as it was"),
    "worker.started": Event("info", ("worker", "host", "pid", "queues", "threads"), "an incarnation registered"),
    "worker.idle": Event(
        "warning", ("queues",), "no actor of the app lines up there: a typo, or an app without tasks?"
    ),
    "worker.stopped": Event("info", ("worker", "released"), "an incarnation left in good order"),
    "worker.lost": Event("warning", ("worker", "host", "pid", "leases"), "its heartbeat stood still; leases freed"),
    "worker.declared_dead": Event("warning", ("worker",), "I was declared dead; I take a new incarnation"),
    "worker.unwritten": Event("error", ("task_ids",), "outcomes that the last flush could not write"),
    "worker.failing": Event("error", ("worker", "error"), "the pump or the heartbeat met an unknown error; it goes on"),
    "worker.thread_replaced": Event("warning", ("worker", "count"), "dead worker threads replaced"),
    "store.unavailable": Event("error", ("error",), "the store does not answer; outcomes are kept"),
    "store.recovered": Event("info", ("outage_s",), "the store answers again"),
    "broker.unavailable": Event("warning", ("error", "retry_s"), "RabbitMQ does not answer; workers poll"),
    "broker.recovered": Event("info", (), "RabbitMQ answers again"),
    "wakeup.sent": Event(None, ("count",), "wake-ups published"),
    "wakeup.received": Event(None, ("count",), "wake-ups consumed"),
    "wakeup.garbage": Event("warning", ("size_bytes",), "something else lay on the wake-up queue; dropped"),
    "dead_letter.enqueued": Event("warning", ("shelf", "entry_id", "task_id", "reason"), "parked on a shelf"),
    "dead_letter.removed": Event("info", ("shelf", "entry_id", "task_id", "reason"), "discarded or replayed"),
    "dead_letter.evicted": Event("error", ("shelf", "entry_id", "task_id", "reason"), "the oldest of a full shelf"),
    "dead_letter.redirected": Event(
        "info",
        ("shelf", "entry_id", "task_id", "actor", "to_queue", "to_actor", "to_entry_id"),
        "replayed in another queue, or as another task",
    ),
    "dead_letter.restored": Event(
        "info", ("shelf", "entry_id", "task_id", "before"), "back from the bin, under a new entry id"
    ),
    "dead_letter.aged": Event("warning", ("shelf", "count", "entry_ids"), "past the queue's retention; in the bin now"),
    "dead_letter.bin_pruned": Event("info", ("count",), "letters past the time in which they could be restored"),
    "dead_letter.replaying": Event("info", ("shelf", "entry_id", "task_id"), "a replay was submitted"),
    "dead_letter.edited": Event(
        "info", ("shelf", "entry_id", "task_id", "child_id", "by"), "replaced by a changed copy"
    ),
    "dead_letter.group_marked": Event("info", ("group", "state", "by"), "an operator said what is known of a group"),
    "plan.made": Event("info", ("plan", "verb", "count", "digest"), "bulk work on dead letters was planned"),
    "plan.changed": Event("info", ("plan", "state", "why"), "it runs, was paused, stopped by its rule, or finished"),
    "tree_letter.enqueued": Event("warning", ("tree", "entry_id", "reason"), "a record was parked on its tree's shelf"),
    "tree_letter.removed": Event("info", ("tree", "entry_id", "reason"), "discarded or replayed"),
    "tree_letter.evicted": Event("error", ("tree", "entry_id", "reason"), "the oldest of a tree's full shelf"),
    "fifo.evicted": Event("warning", ("queue", "count", "entry_ids"), "the oldest of a FIFO queue at its bound"),
    "maintenance.pruned": Event("info", ("count",), "finished invocations past their retention removed"),
    "tree.compacted": Event("info", ("count",), "keys of trees that were deleted or expired long enough removed"),
    "maintenance.failed": Event("error", ("chore", "error"), "a chore failed; it will be tried again"),
    "supervisor.child_started": Event("info", ("slot", "pid"), "a worker process started"),
    "supervisor.child_died": Event(
        "error", ("slot", "pid", "exit_code", "error"), "a worker process died; it is replaced"
    ),
    "supervisor.child_left": Event("info", ("slot", "pid"), "a worker process ended unasked in good order: drained"),
    "supervisor.child_killed": Event("warning", ("slot", "pid"), "it outlasted the time it had to stop"),
    "supervisor.start_failed": Event("error", ("slot", "error"), "no worker process could be started; tried again"),
    "supervisor.reload_failed": Event("error", ("slot", "exit_code", "error"), "the old worker processes stay"),
    "supervisor.stopping": Event("info", ("signal", "processes"), "told to stop; the worker processes are asked to"),
}


_ALWAYS_LOGGED = frozenset({"warning", "error", "critical"})


class Telemetry:
    """Hands each event to the log and to its listeners; a listener that fails never harms the caller.

    Attributes:
        speaks: whether everyday events are logged; a program that merely submits hears of warnings and errors only.
    """

    def __init__(self, log: structlog.typing.FilteringBoundLogger, speaks: bool = True) -> None:
        self._listeners: list[Listener] = []
        self._log = log
        self.speaks = speaks

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens beside the log; hot paths skip their counted events when nobody does."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(name, fields)` for every event, in the thread that emits it; it must be quick."""
        self._listeners.append(listener)

    def emit(self, name: str, **fields: Any) -> None:
        """Emit an event of the table.

        Raises:
            KeyError: the table does not know the name.
        """
        event = EVENTS[name]
        if event.level is not None and (self.speaks or event.level in _ALWAYS_LOGGED):
            getattr(self._log, event.level)(name, **fields)
        for listener in self._listeners:
            try:
                listener(name, fields)
            except Exception as error:  # noqa: BLE001 - a listener is somebody else's code
                self._log.error("telemetry.listener_failed", listener=repr(listener), error=repr(error))


def _mask_urls(_logger: Any, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: masked(value) if isinstance(value, str) and "://" in value else value for key, value in line.items()}


def make_log(level: str, stream: TextIO | None = None) -> structlog.typing.FilteringBoundLogger:
    """A logger of our own, whatever the host program did to structlog.

    Lines go to stderr: for people on a terminal, JSON otherwise; passwords in URLs are masked, last.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(default=repr)
    return structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _mask_urls,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
