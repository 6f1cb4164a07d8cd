"""PgQueuer on Postgres (asyncpg); as a program, a worker under uvloop that claims ARGUMENT jobs at a time."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries, types
from pgqueuer.adapters.cli import supervisor
from pgqueuer.db import AsyncpgDriver
from pgqueuer.ports.repository import EntrypointExecutionParameter

from benchmarks import marks
from benchmarks.lanes import pairs_of_tasks

POSTGRES_URL = os.environ["BENCH_POSTGRES_URL"]


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(POSTGRES_URL)))

    @queuer.entrypoint("noop")
    async def noop(job: object) -> None:
        marks.ran(int(job.payload))

    yield queuer


async def reset() -> None:
    connection = await asyncpg.connect(POSTGRES_URL)
    await connection.execute("drop schema public cascade; create schema public")
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def left() -> int:
    connection = await asyncpg.connect(POSTGRES_URL)
    count = await connection.fetchval("select count(*) from pgqueuer")
    await connection.close()
    return count


class Lane:
    """A job is enqueued, picked alone, and logged as done: what a worker does, without the worker."""

    def __init__(self, number: int) -> None:
        self._name = f"lane{number}"
        self._me = uuid4()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(POSTGRES_URL)
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def put(self, number: int) -> None:
        await self._queries.enqueue(self._name, b"%d" % number)

    async def get(self) -> object:
        lane = {self._name: EntrypointExecutionParameter(concurrency_limit=0)}
        jobs: list = []
        while not jobs:  # it passes over what another client is picking at this moment, and may find nothing else
            jobs = await self._queries.dequeue(1, lane, self._me, None, timedelta(seconds=30))
        await self._queries.log_jobs([(job, "successful", None) for job in jobs])
        return jobs[0]

    async def close(self) -> None:
        await self._connection.close()


async def fifo(seconds: float, lanes: int) -> dict[str, float]:
    return await pairs_of_tasks(Lane, seconds, lanes)


class Producer:
    async def open(self) -> None:
        self._connection = await asyncpg.connect(POSTGRES_URL)
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def submit(self, number: int) -> None:
        await self._queries.enqueue("noop", b"%d" % number)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        size = len(numbers)
        await self._queries.enqueue(["noop"] * size, [b"%d" % number for number in numbers], [0] * size)

    async def flush(self) -> None:
        """Nothing to wait for: an enqueue returns after its commit."""

    async def close(self) -> None:
        await self._connection.close()


if __name__ == "__main__":
    # What `pgq run` does: its command line does not start with the current typer.
    uvloop.run(
        supervisor.run(
            worker,
            dequeue_timeout=timedelta(seconds=30),
            batch_size=int(sys.argv[1]),
            restart_delay=timedelta(seconds=5),
            restart_on_failure=False,
            mode=types.QueueExecutionMode.continuous,
            max_concurrent_tasks=None,
            shutdown_on_listener_failure=False,
            heartbeat_timeout=timedelta(seconds=30),
        )
    )
