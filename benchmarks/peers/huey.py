"""Huey on one SQLite file, synced on every commit. It takes a task off the queue before it runs: at most once."""

import os
from pathlib import Path

from huey import SqliteHuey

from benchmarks import marks

huey = SqliteHuey("bench", filename=str(Path(os.environ["BENCH_FOLDER"], "huey.db")), fsync=True, results=False)


@huey.task()
def noop(number: int) -> None:
    marks.ran(number)


def reset() -> None:
    huey.flush()


def left() -> int:
    return huey.pending_count()


class Producer:
    def submit(self, number: int) -> None:
        noop(number)

    def flush(self) -> None:
        """Nothing to wait for: a call returns after its commit."""

    def close(self) -> None:
        huey.storage.close()
