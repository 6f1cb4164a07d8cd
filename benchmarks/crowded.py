"""What happens to a drain when the store is not empty: many other rows, or a snapshot that nobody lets go.

Each run measures the plain drain and the hindered one right after each other and returns their ratio, so that what the
machine does otherwise falls out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.figures import Figures, Scale, drain, drain_now
from benchmarks.peers import Peer
from benchmarks.processes import Failed, Ground, Workers, produce


def crowd(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """Finished rows of the same queue, and waiting ones of another that nobody works on."""
    plain = drain(ground, peer, scale)
    produce(ground, peer, "reset")
    produce(ground, peer, "crowd", scale.finished_rows, scale.waiting_rows)
    return _compared(plain, drain_now(ground, peer, scale.drain_tasks))


def snapshot(ground: Ground, peer: Peer, scale: Scale) -> Figures:
    """A report or a dump holds a snapshot: no dead row and no dead index entry younger than it can be removed.

    Tasks flow at a steady rate meanwhile and leave theirs. The drain is measured at the end of that time, the snapshot
    still held, by workers that start afresh and so remember nothing of where the dead ones lie.
    """
    plain = drain(ground, peer, scale)
    produce(ground, peer, "reset")
    with _held_snapshot(ground.postgres_url):
        with Workers(ground, peer):
            produce(ground, peer, "load", scale.snapshot_s, scale.snapshot_load_per_s)
        hindered = drain_now(ground, peer, scale.drain_tasks)
        dead_rows = _dead_rows(ground.postgres_url)
    if dead_rows < scale.snapshot_s * scale.snapshot_load_per_s / 2:
        raise Failed(f"snapshot: only {dead_rows} dead rows were kept, so the snapshot hindered nobody")
    return _compared(plain, hindered) | {"dead_rows": dead_rows}


CROWDED = {"crowd": crowd, "snapshot": snapshot}


@contextmanager
def _held_snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from lattice_ready")
        yield
        connection.rollback()


def _dead_rows(url: str) -> int:
    """What the last vacuum had to leave in the table that every claim reads."""
    with psycopg.connect(url) as connection:
        statistics = "select n_dead_tup from pg_stat_user_tables where relname = 'lattice_ready'"
        return connection.execute(statistics).fetchone()[0]


def _compared(plain: Figures, hindered: Figures) -> Figures:
    return {
        "plain_per_second": plain["per_second"],
        "per_second": hindered["per_second"],
        "ratio": hindered["per_second"] / plain["per_second"],
    }
