"""PgQueuer on Postgres (asyncpg); as a program, a worker under uvloop that claims ARGUMENT jobs at a time."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries, types
from pgqueuer.adapters.cli import supervisor
from pgqueuer.db import AsyncpgDriver

from benchmarks import marks

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
