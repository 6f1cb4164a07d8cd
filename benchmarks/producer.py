"""One measurement on the submitting side, in a process and an environment of the peer's own; prints JSON.

python -m benchmarks.producer MODULE VERB [NUMBER ...]
"""

import asyncio
import inspect
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from types import ModuleType
from typing import Any

from benchmarks import marks

BATCH = 1_000
WARM_UP = 50
LOST_AFTER_S = 30


async def now(value: Any) -> Any:
    """The value itself, awaited if it is still to come: synchronous and asynchronous peers run the same loops."""
    return await value if inspect.isawaitable(value) else value


class Stopwatch:
    """Wall and processor time of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def figures(self, tasks: int) -> dict[str, float]:
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        return {"per_second": tasks / wall, "producer_cpu_s_per_1000": cpu / tasks * 1000}


async def submit(producer: Any, seconds: float) -> dict[str, float]:
    """One call after the other, for so long."""
    for number in range(WARM_UP):
        await now(producer.submit(number))
    await now(producer.flush())
    watch, tasks, end = Stopwatch(), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        await now(producer.submit(tasks % marks.PLACES))
        tasks += 1
    await now(producer.flush())
    return watch.figures(tasks)


async def bulk(producer: Any, tasks: int) -> dict[str, float]:
    """The peer's call for many, a thousand at a time."""
    await now(producer.submit_many(range(WARM_UP)))
    await now(producer.flush())
    return await fill(producer, tasks)


async def fill(producer: Any, tasks: int) -> dict[str, float]:
    """Put exactly so many tasks on the queue, numbered from 0, in the fastest way the peer has."""
    watch = Stopwatch()
    if hasattr(producer, "submit_many"):
        for start in range(0, tasks, BATCH):
            await now(producer.submit_many(range(start, min(start + BATCH, tasks))))
    else:
        for number in range(tasks):
            await now(producer.submit(number))
    await now(producer.flush())
    return watch.figures(tasks)


async def latency(producer: Any, tasks: int) -> dict[str, float]:
    """From just before the submit call to the first line of the task, on a worker that has nothing else to do."""
    pause, spans_ms = random.Random(1), []
    for number in range(WARM_UP // 5 + tasks):
        submitted_ns = time.monotonic_ns()
        await now(producer.submit(number))
        while not (ran_ns := marks.instant_ns(number)):
            if time.monotonic_ns() - submitted_ns > LOST_AFTER_S * 1e9:
                raise SystemExit(f"task {number} did not run within {LOST_AFTER_S} s")
            await asyncio.sleep(0.000_3)
        spans_ms.append((ran_ns - submitted_ns) / 1e6)
        await asyncio.sleep(pause.uniform(0.005, 0.025))
    spans_ms = sorted(spans_ms[-tasks:])
    return {"p50_ms": spans_ms[tasks // 2], "p99_ms": spans_ms[max(0, int(tasks * 0.99) - 1)]}


async def load(producer: Any, seconds: float, per_second: int) -> dict[str, float]:
    """Unmarked tasks at a steady rate, in bulk, for so long."""
    watch, tasks, began = Stopwatch(), 0, time.monotonic()
    while time.monotonic() - began < seconds:
        await now(producer.submit_many([marks.UNMARKED] * min(per_second, BATCH)))
        tasks += min(per_second, BATCH)
        await asyncio.sleep(max(0.0, began + tasks / per_second - time.monotonic()))
    return watch.figures(tasks)


MEASUREMENTS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]] = {
    "submit": submit,
    "bulk": bulk,
    "fill": fill,
    "latency": latency,
    "load": load,
}


async def run(peer: ModuleType, verb: str, arguments: list[float]) -> Any:
    """One of the measurements, or a function of the peer's module."""
    if verb not in MEASUREMENTS:
        return await now(getattr(peer, verb)(*arguments))
    producer = peer.Producer()
    if hasattr(producer, "open"):
        await now(producer.open())
    figures = await MEASUREMENTS[verb](producer, *arguments)
    await now(producer.close())
    return figures


if __name__ == "__main__":
    app = import_module(f"benchmarks.peers.{sys.argv[1]}")
    print(json.dumps(asyncio.run(run(app, sys.argv[2], [json.loads(value) for value in sys.argv[3:]]))))
