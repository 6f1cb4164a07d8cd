"""persist-queue's FIFO in an SQLite file, each put and get committed, as its page has it for values that must not be lost."""

import os
import shutil
from functools import cache
from pathlib import Path

from persistqueue import FIFOSQLiteQueue

from benchmarks.lanes import pairs

FOLDER = Path(os.environ["BENCH_FOLDER"], "persist-queue")


@cache
def opened(number: int) -> FIFOSQLiteQueue:
    """One object per file, for all threads: two would not see each other's counts."""
    return FIFOSQLiteQueue(str(FOLDER / f"lane{number}"), multithreading=True, auto_commit=True)


class Lane:
    def __init__(self, number: int) -> None:
        self._queue = opened(number)

    def put(self, number: int) -> None:
        self._queue.put(number)

    def get(self) -> int:
        return self._queue.get(timeout=30)


def reset() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)


def fifo(seconds: float, lanes: int) -> dict[str, float]:
    return pairs(Lane, seconds, lanes)
