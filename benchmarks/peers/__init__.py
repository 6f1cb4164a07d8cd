"""Who is measured, each set up as its own documentation recommends for speed.

A module of this package is one peer's app. It offers

    reset()      an empty queue, with whatever schema the peer needs
    left()       how many tasks the peer still holds
    fifo(…)      pairs of an enqueue and a dequeue, see `benchmarks.lanes`
    Producer     submit(number), flush(), close(), and where the peer has a call for it open() and submit_many(numbers)

All of them may be coroutine functions. `flush` returns once everything submitted has reached the server; without it a client
that does not wait for confirms would be credited with what still sits in its socket.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["PEERS", "Peer"]

ALL_FIGURES = ("submit", "bulk", "idle", "drain", "latency")
AND_FIFO = (*ALL_FIGURES, "fifo")


@dataclass(frozen=True)
class Peer:
    """One contestant.

    Attributes:
        module: in this package.
        worker: the command of a program in its environment; `{node}` is the number of the node.
        nodes: how many of these commands run side by side.
        settings: environment variables of its producers and workers.
        is_ours: lives in the project's own environment.
        uses_postgres: its tables are vacuumed and analysed before a drain.
        figures: what is measured.
        bulk_tasks: how many a bulk run submits.
    """

    module: str
    worker: str = ""
    nodes: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = False
    uses_postgres: bool = False
    figures: Sequence[str] = ALL_FIGURES
    bulk_tasks: int = 20_000


PEERS = {
    "lattice": Peer(
        "lattice",
        "dramatiq benchmarks.peers.lattice --processes 2 --threads 8",
        is_ours=True,
        uses_postgres=True,
        figures=AND_FIFO,
    ),
    "dramatiq": Peer(
        "dramatiq",
        "dramatiq benchmarks.peers.dramatiq --processes 2 --threads 8",
        settings={"dramatiq_queue_prefetch": "200"},  # the default of twice the threads drains a third slower
        bulk_tasks=5_000,
    ),
    "dramatiq, confirms": Peer(
        "dramatiq", settings={"BENCH_CONFIRM": "1"}, figures=("submit", "bulk"), bulk_tasks=3_000
    ),
    "celery": Peer(
        "celery",
        # Two solo workers beat every pool when tasks are tiny.
        "celery --app benchmarks.peers.celery worker --pool solo --loglevel WARNING --hostname node{node}@bench "
        "--without-gossip --without-mingle --without-heartbeat",
        nodes=2,
        bulk_tasks=5_000,
    ),
    "celery, confirms": Peer("celery", settings={"BENCH_CONFIRM": "1"}, figures=("submit", "bulk"), bulk_tasks=3_000),
    "pgqueuer": Peer(
        "pgqueuer", "python -m benchmarks.peers.pgqueuer 500", nodes=2, uses_postgres=True, figures=AND_FIFO
    ),
    "procrastinate": Peer(
        "procrastinate",
        "procrastinate --app benchmarks.peers.procrastinate.app --log-level warning worker --concurrency 30",
        nodes=2,
        settings={"BENCH_POOL": "10"},
        uses_postgres=True,
    ),
    "lattice, SQLite": Peer(
        "lattice",
        "dramatiq benchmarks.peers.lattice --processes 1 --threads 8",
        settings={"BENCH_EMBEDDED": "1"},
        is_ours=True,
        figures=AND_FIFO,
    ),
    "huey, SQLite": Peer(
        "huey",
        "huey_consumer benchmarks.peers.huey.huey --workers 8 --worker-type thread --no-periodic --quiet",
        figures=("submit", "idle", "drain", "latency"),  # it has no call for many
    ),
    "persist-queue, SQLite": Peer("persistqueue", figures=("fifo",)),
}
