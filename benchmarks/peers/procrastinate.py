"""Procrastinate on Postgres (psycopg 3): asynchronous tasks, a synchronous producer on one connection.

BENCH_POOL is the size of a worker's connection pool; without it this is a producer.
"""

import os
from collections.abc import Iterable

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks import marks

POSTGRES_URL = os.environ["BENCH_POSTGRES_URL"]
IS_PRODUCER = os.environ.get("BENCH_ROLE") == "producer"

app = App(
    connector=SyncPsycopgConnector(conninfo=POSTGRES_URL, min_size=1, max_size=1)
    if IS_PRODUCER
    else PsycopgConnector(conninfo=POSTGRES_URL, min_size=1, max_size=int(os.environ["BENCH_POOL"]))
)


@app.task(name="noop")
async def noop(number: int) -> None:
    marks.ran(number)


def reset() -> None:
    with psycopg.connect(POSTGRES_URL, autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")
    with app.open():
        app.schema_manager.apply_schema()


def left() -> int:
    with psycopg.connect(POSTGRES_URL) as connection:
        unfinished = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
        return connection.execute(unfinished).fetchone()[0]


class Producer:
    def open(self) -> None:
        app.open()

    def submit(self, number: int) -> None:
        noop.defer(number=number)

    def submit_many(self, numbers: Iterable[int]) -> None:
        noop.batch_defer(*[{"number": number} for number in numbers])

    def flush(self) -> None:
        """Nothing to wait for: a defer returns after its commit."""

    def close(self) -> None:
        app.close()
