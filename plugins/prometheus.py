"""Prometheus metrics of one process, on a loopback port of its own.

    lattice.use(PrometheusPlugin())  # 127.0.0.1, the first free port from 9191

Counters and the histogram are fed by the events of `lattice_tasks.telemetry.EVENTS`; `METRICS` and `COUNTED` below are
the whole mapping. Gauges (depths, workers) are read from the store while a scrape is answered. Names carry their unit:
seconds, `_total`. Task ids, error texts and arguments never become labels.

One port per process: the workers of one host take 9191, 9192, … in the order in which they start, so the scrape
configuration lists as many targets as processes may run. Sum the counters over the targets; take the `max` of the
gauges, for every process reads the same store. No port is opened before the first event, so importing an app file
opens nothing, and a process forked after the import serves its own.
"""

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lattice_tasks import Lattice, clock, insights
from lattice_tasks.errors import LatticeError

__all__ = ["COUNTED", "METRICS", "Count", "PrometheusPlugin"]

#: What an actor is called once the process has seen more of them than the limit.
OTHER = "_other"

#: Seconds; from a no-op to an hour.
RUN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

#: Every counter: what it counts, and its labels beside `namespace`.
METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lattice_tasks_total": ("Invocations that ended, or rest on a shelf", ("queue", "actor", "outcome")),
    "lattice_tasks_submitted_total": ("Invocations accepted and committed", ("queue",)),
    "lattice_tasks_claimed_total": ("Leases taken", ("queue",)),
    "lattice_task_retries_total": ("Failed attempts that will be tried again", ("queue", "actor")),
    "lattice_redeliveries_total": ("Invocations handed back without a charge", ("queue",)),
    "lattice_stale_completions_rejected_total": ("Settles of late workers that changed nothing", ()),
    "lattice_settle_degraded_total": ("Outcomes that could not be stored as they were", ()),
    "lattice_dlq_parked_total": ("Dead letters put on the shelf of a queue", ("queue", "reason")),
    "lattice_dlq_removed_total": ("Dead letters taken off their shelf: discarded or replayed", ("shelf", "reason")),
    "lattice_dlq_evicted_total": ("Dead letters lost to a full shelf; each is a task that nobody will see", ("shelf",)),
    "lattice_dlq_replays_total": ("Replays submitted", ("shelf",)),
    "lattice_workers_started_total": ("Worker incarnations that registered", ()),
    "lattice_workers_lost_total": ("Workers whose heartbeat stood still", ()),
    "lattice_workers_declared_dead_total": ("Times this process found itself declared dead", ()),
    "lattice_worker_threads_replaced_total": ("Worker threads that died and were replaced", ()),
    "lattice_wakeups_total": ("Wake-ups through the broker", ("kind",)),
    "lattice_outages_total": ("Times that the store or the broker stopped answering", ("service",)),
    "lattice_pruned_total": ("Finished invocations removed after their retention", ()),
    "lattice_chores_failed_total": ("Maintenance chores that failed and will be tried again", ("chore",)),
}


@dataclass(frozen=True, slots=True)
class Count:
    """How an event moves a counter: by the number in field `amount`, or by one; labels not in `says` are its fields."""

    metric: str
    says: Mapping[str, str] = field(default_factory=dict)
    amount: str = ""


#: Event by event, what is counted. Labels that an event does not carry stay empty.
COUNTED: dict[str, tuple[Count, ...]] = {
    "task.submitted": (Count("lattice_tasks_submitted_total", amount="count"),),
    "task.claimed": (Count("lattice_tasks_claimed_total", amount="count"),),
    "task.succeeded": (Count("lattice_tasks_total", {"outcome": "succeeded"}),),
    "task.parked": (Count("lattice_tasks_total", {"outcome": "parked"}), Count("lattice_dlq_parked_total")),
    "task.held": (Count("lattice_tasks_total", {"outcome": "held"}),),
    "task.expired": (Count("lattice_tasks_total", {"outcome": "expired"}),),
    "task.cancelled": (Count("lattice_tasks_total", {"outcome": "cancelled"}),),
    "task.retried": (Count("lattice_task_retries_total"),),
    "task.released": (Count("lattice_redeliveries_total"),),
    "settle.refused": (Count("lattice_stale_completions_rejected_total"),),
    "settle.degraded": (Count("lattice_settle_degraded_total"),),
    "dead_letter.removed": (Count("lattice_dlq_removed_total"),),
    "dead_letter.evicted": (Count("lattice_dlq_evicted_total"),),
    "dead_letter.replaying": (Count("lattice_dlq_replays_total"),),
    "worker.started": (Count("lattice_workers_started_total"),),
    "worker.lost": (Count("lattice_workers_lost_total"),),
    "worker.declared_dead": (Count("lattice_workers_declared_dead_total"),),
    "worker.thread_replaced": (Count("lattice_worker_threads_replaced_total", amount="count"),),
    "wakeup.sent": (Count("lattice_wakeups_total", {"kind": "sent"}, amount="count"),),
    "wakeup.received": (Count("lattice_wakeups_total", {"kind": "received"}, amount="count"),),
    "wakeup.garbage": (Count("lattice_wakeups_total", {"kind": "garbage"}),),
    "store.unavailable": (Count("lattice_outages_total", {"service": "store"}),),
    "broker.unavailable": (Count("lattice_outages_total", {"service": "broker"}),),
    "maintenance.pruned": (Count("lattice_pruned_total", amount="count"),),
    "maintenance.failed": (Count("lattice_chores_failed_total"),),
}


class PrometheusPlugin:
    """Subscribes to a `Lattice` and serves its metrics; `lattice.use(plugin)` starts it, `lattice.close()` stops it.

    Args:
        host: loopback unless you say otherwise: whoever reaches the port reads the names of queues and actors.
        port: the first to try; 0 takes any free one.
        ports: how many to try, so how many processes of one host can be scraped.
        max_actors: actors with a label of their own; the rest are counted together as `_other`.
        store_every_s: at most so often a scrape reads the store; in between it repeats what it read.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 9191,
        ports: int = 32,
        max_actors: int = 100,
        store_every_s: float = 5.0,
    ) -> None:
        self._host, self._port, self._ports = host, port, ports
        self._max_actors = max_actors
        self._store_every_s = store_every_s
        self._actors: set[str] = set()
        self._lock = threading.Lock()
        self._server: Any = None
        self._serving_pid = self._heard_pid = 0

    def start(self, lattice: Lattice) -> None:
        """Listen to the events of this `Lattice`; the port is opened with the first of them."""
        self._namespace = lattice.settings.namespace
        self._registry = prometheus_client.CollectorRegistry()
        self._counters = {
            name: prometheus_client.Counter(name, means, ("namespace", *labels), registry=self._registry)
            for name, (means, labels) in METRICS.items()
        }
        self._run_seconds = prometheus_client.Histogram(
            "lattice_task_run_seconds",
            "How long succeeded attempts ran",
            ("namespace", "queue", "actor"),
            buckets=RUN_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_StoreGauges(lattice, self._store_every_s))
        lattice.telemetry.subscribe(self._hear)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that this process serves, or None as long as it serves none."""
        return (self._host, self._server.server_port) if self._is_serving else None

    def serve(self) -> tuple[str, int]:
        """Open the port now instead of with the first event; a second call only tells the address.

        Raises:
            OSError: none of the ports is free.
        """
        with self._lock:
            if not self._is_serving:
                if self._server is not None:
                    self._server.server_close()  # this process's copy of its parent's socket
                self._server, self._serving_pid = self._opened(), os.getpid()
            return self._host, self._server.server_port

    def stop(self) -> None:
        """Close the port. A plugin that was stopped serves no more."""
        with self._lock:
            self._heard_pid = os.getpid()
            if self._is_serving:
                self._server.shutdown()
            if self._server is not None:
                self._server.server_close()
            self._server = None

    @property
    def _is_serving(self) -> bool:
        return self._server is not None and self._serving_pid == os.getpid()

    def _opened(self) -> Any:
        last = self._port + (self._ports - 1 if self._port else 0)
        for port in range(self._port, last + 1):
            try:
                return prometheus_client.start_http_server(port, self._host, self._registry)[0]
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == last:
                    raise OSError(
                        error.errno,
                        f"cannot serve metrics on {self._host}, ports {self._port} to {last}: {error.strerror}; "
                        "pass another host, port or more ports to PrometheusPlugin",
                    ) from error
        raise AssertionError("the last port returns or raises")

    def _hear(self, event: str, fields: Mapping[str, Any]) -> None:
        if self._heard_pid != os.getpid():
            self._heard_pid = os.getpid()
            # Not in the emitting thread: it may hold a lock, and opening looks up the host's name.
            threading.Thread(target=self.serve, name="lattice-prometheus", daemon=True).start()
        for count in COUNTED.get(event, ()):
            labels = (self._label(name, count.says, fields) for name in METRICS[count.metric][1])
            self._counters[count.metric].labels(self._namespace, *labels).inc(
                fields[count.amount] if count.amount else 1
            )
        if event == "task.succeeded":
            labels = (self._label(name, {}, fields) for name in ("queue", "actor"))
            self._run_seconds.labels(self._namespace, *labels).observe(fields["run_s"])

    def _label(self, name: str, says: Mapping[str, str], fields: Mapping[str, Any]) -> str:
        value = says.get(name) or str(fields.get(name, ""))
        if name != "actor" or value in self._actors:
            return value
        if len(self._actors) >= self._max_actors:
            return OTHER
        self._actors.add(value)
        return value


class _StoreGauges(Collector):
    """What only the store knows, read while a scrape is answered."""

    def __init__(self, lattice: Lattice, every_s: float) -> None:
        self._lattice = lattice
        self._namespace = lattice.settings.namespace
        self._every_s = every_s
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._last: list[Metric] = []

    def describe(self) -> list[Metric]:
        """Nothing: the registry would otherwise read the store when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges; when the store does not answer, only `lattice_store_up` with 0."""
        with self._lock:
            now = clock.monotonic()
            if self._read_at is None or now - self._read_at >= self._every_s:
                self._last, self._read_at = self._read(), now
            yield from self._last

    def _read(self) -> list[Metric]:
        up = GaugeMetricFamily("lattice_store_up", "Whether the store answered this process")
        try:
            namespace_id = self._lattice.namespace_id
            with self._lattice.engine.session() as session:
                now = insights.store_now(session)
                queues = insights.queue_depth(session, namespace_id)
                workers = insights.list_workers(session, namespace_id)
        except LatticeError:
            up.add_metric((), 0)
            return [up]
        up.add_metric((), 1)
        return [up, *self._of_queues(queues, now), *self._of_workers(workers)]

    def _of_queues(self, queues: Sequence[insights.QueuePicture], now: datetime) -> list[Metric]:
        by_state, by_queue = ("namespace", "queue", "state"), ("namespace", "queue")
        depths = GaugeMetricFamily("lattice_queue_depth", "Invocations of a queue by place", labels=by_state)
        shelves = GaugeMetricFamily("lattice_dlq_depth", "Dead letters on the shelf of a queue", labels=by_queue)
        states = GaugeMetricFamily("lattice_queue_state", "1 for the state that a queue is in", labels=by_state)
        ages = GaugeMetricFamily(
            "lattice_queue_oldest_age_seconds", "Since the longest-waiting task was submitted", labels=by_queue
        )
        for queue in queues:
            where = (self._namespace, queue.name)
            for place in ("waiting", "scheduled", "running", "held"):
                depths.add_metric((*where, place), getattr(queue.depth, place))
            shelves.add_metric(where, queue.depth.parked)
            states.add_metric((*where, queue.state), 1)
            waited = now - (queue.oldest_waiting_at or now)
            ages.add_metric(where, max(0.0, waited.total_seconds()))
        return [depths, shelves, states, ages]

    def _of_workers(self, workers: Sequence[insights.WorkerPicture]) -> list[Metric]:
        by_state = ("namespace", "state")
        counts = GaugeMetricFamily("lattice_workers", "Registered worker processes", labels=by_state)
        slots = GaugeMetricFamily("lattice_worker_slots", "Worker threads", labels=by_state)
        silence = GaugeMetricFamily(
            "lattice_worker_heartbeat_age_seconds", "The longest silence of a registered worker", labels=("namespace",)
        )
        for state, count in Counter(worker.state for worker in workers).items():
            counts.add_metric((self._namespace, state), count)
        threads, busy = sum(worker.threads for worker in workers), sum(worker.running for worker in workers)
        slots.add_metric((self._namespace, "busy"), min(busy, threads))  # look-ahead leases more than threads
        slots.add_metric((self._namespace, "free"), max(0, threads - busy))
        silence.add_metric((self._namespace,), max((worker.silent_s for worker in workers), default=0.0))
        return [counts, slots, silence]
