"""The store as Dramatiq's result backend and rate-limiter backend."""

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from dramatiq.common import compute_backoff
from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT
from dramatiq.results.errors import ResultFailure

from lattice_tasks import clock
from lattice_tasks.errors import NotFinished, ResultNotStored, TaskNotFound
from lattice_tasks.store import counters
from lattice_tasks.store.engine import Engine

__all__ = ["StoreRateLimiterBackend", "StoreResultBackend"]


class StoreResultBackend(ResultBackend):
    """Reads results where the settlement wrote them; storing is the settlement's, so a result is never lost or early."""

    def __init__(self, fetch: Callable[[str], tuple[bool, Any]]) -> None:
        super().__init__(namespace="lattice")
        self._fetch = fetch

    def store_result(self, message: Any, result: Any, ttl: int) -> None:
        return

    def store_exception(self, message: Any, exception: BaseException, ttl: int) -> None:
        return

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        deadline = clock.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout) / 1_000
        attempts = 0
        while True:
            try:
                is_there, result = self._fetch(message.message_id)
            except NotFinished as error:
                raise ResultFailure(str(error), type(error).__name__, error.detail) from error
            except ResultNotStored as error:
                raise ResultFailure(str(error), type(error).__name__, str(error)) from error
            except TaskNotFound:  # a later step of a pipeline, perhaps: it is not there yet
                is_there, result = False, None
            if is_there:
                return result
            if not block:
                raise ResultMissing(message)
            attempts, delay_ms = compute_backoff(attempts, factor=5, max_backoff=100)
            if clock.monotonic() + delay_ms / 1_000 > deadline:
                raise ResultTimeout(message)
            time.sleep(delay_ms / 1_000)


class StoreRateLimiterBackend(RateLimiterBackend):
    """Counters in the store, for Dramatiq's rate limiters and barriers. Times to live are by the store's clock."""

    def __init__(self, engine: Engine, namespace_id: Callable[[], int]) -> None:
        self._engine = engine
        self._namespace_id = namespace_id

    def key_of(self, key: str) -> str:
        """The counter of this key in the namespace; opens the store."""
        return f"{self._namespace_id()}/{key}"

    def add(self, key: str, value: int, ttl: int) -> bool:
        ours = self.key_of(key)
        with self._engine.session() as session:
            return counters.add(session, ours, value, ttl)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        return self._change(key, amount, None, maximum, ttl)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        return self._change(key, -amount, minimum, None, ttl)

    def incr_and_sum(self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int) -> bool:
        ours, several = self.key_of(key), [self.key_of(one) for one in keys()]
        with self._engine.session() as session:
            return counters.add_within_sum(session, ours, several, amount, maximum, ttl)

    def wait(self, key: str, timeout: int | None) -> bool:
        ours, deadline = self.key_of(key), clock.monotonic() + (timeout or 0) / 1_000
        while True:
            with self._engine.session() as session:
                if counters.value(session, ours) > 0:
                    return True
            if timeout is not None and clock.monotonic() >= deadline:
                return False
            time.sleep(random.uniform(0.02, 0.06))

    def wait_notify(self, key: str, ttl: int) -> None:
        self.add(key, 1, ttl)

    def _change(self, key: str, amount: int, minimum: int | None, maximum: int | None, ttl: int) -> bool:
        ours = self.key_of(key)
        with self._engine.session() as session:
            return counters.change(session, ours, amount, minimum, maximum, ttl)
