"""Pairs of an enqueue and a dequeue: eight clients of one process, all on one queue, or each on a lane of its own.

Every client puts a value in and takes one out, in turn, so a queue is never empty when somebody takes. A peer's module
offers a `Lane`: made with the lane's number, with `put(number)` and `get()`. Where they are coroutine functions, with
`open()` and `close()` around them, the clients are tasks of one loop instead of threads.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["CLIENTS", "pairs", "pairs_of_tasks"]

CLIENTS = 8
WARM_UP = 5


def pairs(lane: Callable[[int], Any], seconds: float, lanes: int) -> dict[str, float]:
    """Pairs per second that all clients did together; the client number n works on lane n % lanes.

    Raises:
        SystemExit: a queue said that it was empty.
    """
    ready = threading.Barrier(CLIENTS)

    def client(lane: Any) -> int:
        for number in range(WARM_UP):
            lane.put(number)
            lane.get()
        ready.wait()
        done, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            lane.put(done)
            _require(lane.get())
            done += 1
        return done

    with ThreadPoolExecutor(CLIENTS) as pool:
        return _figures(pool.map(client, [lane(number % lanes) for number in range(CLIENTS)]), seconds)


async def pairs_of_tasks(lane: Callable[[int], Any], seconds: float, lanes: int) -> dict[str, float]:
    """The same for a `Lane` of coroutine functions."""
    ready = asyncio.Barrier(CLIENTS)

    async def client(lane: Any) -> int:
        await lane.open()
        for number in range(WARM_UP):
            await lane.put(number)
            await lane.get()
        await ready.wait()
        done, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            await lane.put(done)
            _require(await lane.get())
            done += 1
        await ready.wait()
        await lane.close()
        return done

    opened = [lane(number % lanes) for number in range(CLIENTS)]
    return _figures(await asyncio.gather(*map(client, opened)), seconds)


def _figures(done: Iterable[int], seconds: float) -> dict[str, float]:
    return {"per_second": sum(done) / seconds}


def _require(taken: object) -> None:
    if taken is None:
        raise SystemExit("a queue was empty that had an entry for each client")
