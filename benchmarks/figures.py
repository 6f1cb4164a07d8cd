"""The figures every peer is measured by. Each function is one run and returns plain numbers."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from benchmarks import marks
from benchmarks.lanes import CLIENTS
from benchmarks.peers import Peer
from benchmarks.processes import Failed, Ground, Workers, produce, wait_until

Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """How much of everything: a full run, or a quick one that only shows that it works."""

    rounds: int = 3
    submit_s: float = 3
    drain_tasks: int = 20_000
    latency_tasks: int = 300
    settle_s: float = 6
    fifo_s: float = 5
    idle_s: float = 20
    finished_rows: int = 1_000_000
    waiting_rows: int = 100_000
    snapshot_s: float = 180
    #: Background claims while the snapshot is held: 180,000 dead index entries in three minutes.
    snapshot_load_per_s: int = 1_000


QUICK = Scale(
    rounds=1,
    submit_s=1,
    drain_tasks=5_000,
    latency_tasks=50,
    fifo_s=2,
    settle_s=4,
    idle_s=5,
    finished_rows=50_000,
    waiting_rows=5_000,
    snapshot_s=10,
)


def submit(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """One process, one connection, one call at a time."""
    produce(ground, peer, "reset")
    return produce(ground, peer, "submit", scale.submit_s)


def bulk(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """The same, a thousand a call."""
    produce(ground, peer, "reset")
    return produce(ground, peer, "bulk", min(peer.bulk_tasks, scale.drain_tasks))


def idle(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """What workers cost that have nothing to do, and what it costs to start them."""
    with _settled_workers(ground, peer, scale) as workers:
        start_cpu_s = workers.cpu_s()
        time.sleep(scale.idle_s)
        idle_cpu_s = workers.cpu_s() - start_cpu_s
        return {
            "cpu_s_in_20_s": idle_cpu_s / scale.idle_s * 20,
            "start_cpu_s": start_cpu_s,
            "pss_mib": workers.pss_mib(),
        }


def drain(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """Tasks are queued first; the clock runs from the first task's start to the last one's."""
    produce(ground, peer, "reset")
    return drain_now(ground, peer, scale.drain_tasks)


def drain_now(ground: Ground, peer: Peer, tasks: int) -> Figures:
    """Drain on top of whatever the tables hold already."""
    marks.clear(ground.folder)
    produce(ground, peer, "fill", tasks)
    if peer.uses_postgres:  # autovacuum would come round within a minute; do not leave to chance whom it finds
        with psycopg.connect(ground.postgres_url, autocommit=True) as connection:
            connection.execute("vacuum analyze")
    with Workers(ground, peer) as workers:
        wait_until(
            lambda: len(marks.instants_ns(ground.folder)) >= tasks, 180, workers, f"{peer.module}: {tasks} tasks"
        )
        cpu_s = workers.cpu_s()
        wait_until(lambda: produce(ground, peer, "left") == 0, 20, workers, f"{peer.module}: an empty queue")
        instants = marks.instants_ns(ground.folder)
    span_s = (max(instants) - min(instants)) / 1e9
    return {"per_second": tasks / span_s, "worker_cpu_s": cpu_s, "tasks": tasks}


def latency(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """One task at a time on idle workers."""
    with _settled_workers(ground, peer, scale):
        return produce(ground, peer, "latency", scale.latency_tasks)


def fifo(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """Eight clients that put a value in and take one out: all on one queue, then each on a lane of its own."""
    found: Figures = {}
    for name, lanes in (("one", 1), ("lanes", CLIENTS)):
        produce(ground, peer, "reset")
        found[f"{name}_per_second"] = produce(ground, peer, "fifo", scale.fifo_s, lanes)["per_second"]
    return found


FIGURES = {"submit": submit, "bulk": bulk, "idle": idle, "drain": drain, "latency": latency, "fifo": fifo}


def measured(ground: Ground, peer: Peer, figure: str, scale: Scale) -> Figures:
    """One run of one figure.

    Raises:
        Failed: the peer did not do its work.
    """
    try:
        return FIGURES[figure](ground, peer, scale)
    except (subprocess.SubprocessError, OSError, psycopg.Error) as error:
        raise Failed(f"{peer.module} {figure}: {error}") from error


@contextmanager
def _settled_workers(ground: Ground, peer: Peer, scale: Scale) -> Iterator[Workers]:
    """Workers on an empty queue that have done with starting."""
    produce(ground, peer, "reset")
    marks.clear(ground.folder)
    with Workers(ground, peer) as workers:
        time.sleep(scale.settle_s)
        workers.require_alive()
        yield workers
