"""A lighter queue between Dramatiq's consumer threads and its worker threads.

`queue.PriorityQueue` spends half of a busy worker's time in its lock. This one keeps the interface that Dramatiq's worker
uses (`put`, `get`, `get_nowait`, `task_done`, `join`, `unfinished_tasks`) and the actors' priorities, waits in C, and lets
the pump take back what no thread has started. (Not on a `SimpleQueue`: see `bell.py`.)
"""

import heapq
import itertools
import threading
from collections import deque
from queue import Empty
from typing import Any

__all__ = ["WorkQueue"]


class WorkQueue:
    """Items with a `priority`, lowest first; equal ones in the order they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._finished = threading.Condition(self._lock)
        self._heap: list[tuple[int, int, Any]] = []
        self._order = itertools.count()
        self._waiting: deque[threading.Lock] = deque()
        self.unfinished_tasks = 0

    def __len__(self) -> int:
        return len(self._heap)

    qsize = __len__

    def put(self, item: Any) -> None:
        """Add an item and wake one thread."""
        with self._lock:
            heapq.heappush(self._heap, (item.priority, next(self._order), item))
            self.unfinished_tasks += 1
            if self._waiting:
                self._waiting.popleft().release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The first item, waiting up to `timeout` seconds.

        Raises:
            Empty: none came, or another thread was quicker, or the pump took it back.
        """
        with self._lock:
            if self._heap:
                return heapq.heappop(self._heap)[2]
            if not block:
                raise Empty
            called = threading.Lock()
            called.acquire()
            self._waiting.append(called)
        called.acquire(timeout=-1 if timeout is None else timeout)
        with self._lock:
            if called in self._waiting:
                self._waiting.remove(called)
            if not self._heap:
                raise Empty
            return heapq.heappop(self._heap)[2]

    def get_nowait(self) -> Any:
        """The first item.

        Raises:
            Empty: there is none.
        """
        return self.get(block=False)

    def take_back(self) -> list[Any]:
        """Remove and return every item that no thread has taken."""
        with self._lock:
            items = [item for _, _, item in sorted(self._heap, key=lambda entry: entry[:2])]
            self._heap.clear()
            self.unfinished_tasks -= len(items)
            self._finished.notify_all()
        return items

    def task_done(self) -> None:
        """Count one item as finished."""
        with self._lock:
            self.unfinished_tasks -= 1
            if self.unfinished_tasks <= 0:
                self._finished.notify_all()

    def join(self) -> None:
        """Wait until every item was finished or taken back."""
        with self._lock:
            while self.unfinished_tasks > 0:
                self._finished.wait()
