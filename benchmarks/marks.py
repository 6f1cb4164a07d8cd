"""When each task ran: one file of instants, shared by the memory of every process that runs tasks.

Task number n writes the monotonic clock, which all processes of one machine share, at place n. A task that runs twice
writes twice at the same place: the figures count tasks, not executions.
"""

import mmap
import os
import struct
import time
from array import array
from functools import cache
from pathlib import Path

NAME = "marks"
PLACES = 40_000
#: The number of a task that leaves no mark: background load.
UNMARKED = -1

_INSTANT = struct.Struct("@Q")


def clear(folder: Path) -> None:
    """A new file; processes that are started afterwards write into it."""
    file = folder / NAME
    file.unlink(missing_ok=True)
    file.write_bytes(bytes(PLACES * _INSTANT.size))


def instants_ns(folder: Path) -> list[int]:
    """When the tasks ran that did, in no order."""
    return [instant for instant in array("Q", (folder / NAME).read_bytes()) if instant]


def ran(number: int) -> None:
    """The body of every task that is measured."""
    if number != UNMARKED:
        _INSTANT.pack_into(_shared(), number * _INSTANT.size, time.monotonic_ns())


def instant_ns(number: int) -> int:
    """When that task ran, or 0."""
    return int(_INSTANT.unpack_from(_shared(), number * _INSTANT.size)[0])


@cache
def _shared() -> mmap.mmap:
    with open(Path(os.environ["BENCH_FOLDER"], NAME), "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
