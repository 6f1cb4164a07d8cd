"""This project, by its documented names only: Postgres and RabbitMQ, or one SQLite file with BENCH_EMBEDDED=1."""

import os
from collections.abc import Iterable
from pathlib import Path

import psycopg

from benchmarks import marks
from benchmarks.lanes import pairs
from lattice_tasks import Lattice

POSTGRES_URL = os.environ["BENCH_POSTGRES_URL"]
IS_EMBEDDED = os.environ.get("BENCH_EMBEDDED") == "1"
FILE = Path(os.environ["BENCH_FOLDER"], "lattice.db")

lattice = (
    Lattice(store_url=f"sqlite:///{FILE}", broker_url="", namespace="bench")
    if IS_EMBEDDED
    else Lattice(store_url=POSTGRES_URL, broker_url=os.environ["BENCH_RABBITMQ_URL"], namespace="bench")
)


@lattice.task(queue="default")
def noop(number: int) -> None:
    marks.ran(number)


def reset() -> None:
    if IS_EMBEDDED:
        for file in FILE.parent.glob(FILE.name + "*"):
            file.unlink()
    else:
        with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
            connection.execute("drop schema public cascade")
            connection.execute("create schema public")
    lattice.migrate()


def left() -> int:
    depth = lattice.queues.depth("default")
    return depth.waiting + depth.scheduled + depth.running


def crowd(finished: int, waiting: int) -> None:
    """Fill the tables beside the queue that is measured: its own finished rows, and a queue that nobody works on."""
    lattice.queues.add("default")
    lattice.queues.add("crowd")
    with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
        for queue, state, count in (("default", 1, finished), ("crowd", 0, waiting)):
            connection.execute(_CROWD, {"queue": queue, "state": state, "count": count})


_CROWD = """
with instant as (select (extract(epoch from now()) * 1000000)::bigint as us),
queue as (select id from lattice_queue where name = %(queue)s),
stored as (
    insert into lattice_invocation
        (id, queue_id, actor, body, priority, submitted_at, state, finished_at, attempt)
    select gen_random_uuid(), queue.id, 'noop', convert_to('{"args":[-1],"kwargs":{},"options":{}}', 'UTF8'), 0,
           us, %(state)s, case when %(state)s = 0 then null else us end, 0
    from queue, instant, generate_series(1, %(count)s)
    returning queue_id, seq, state)
insert into lattice_ready (queue_id, seq, priority, attempt, flags)
select queue_id, seq, 0, 0, 0 from stored where state = 0
"""


class Lane:
    def __init__(self, number: int) -> None:
        self._queue = lattice.fifo(f"lane{number}")

    def put(self, number: int) -> None:
        self._queue.enqueue(number)

    def get(self) -> object:
        return self._queue.try_dequeue()


def fifo(seconds: float, lanes: int) -> dict[str, float]:
    return pairs(Lane, seconds, lanes)


class Producer:
    def submit(self, number: int) -> None:
        noop.submit(number)

    def submit_many(self, numbers: Iterable[int]) -> None:
        noop.submit_many([(number,) for number in numbers])

    def flush(self) -> None:
        """Nothing to wait for: a submit returns after its commit."""

    def close(self) -> None:
        lattice.close()
