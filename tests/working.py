"""A lattice with a worker of this process, and waiting without sleeping, that the tests of tasks share."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
from dramatiq.middleware import TimeLimit

from lattice_tasks import Lattice
from lattice_tasks.store.engine import Statement

PATIENCE_S = 15.0


@contextmanager
def opened(store_url: str, **settings: Any) -> Iterator[Lattice]:
    """A lattice that stays out of Dramatiq's global broker and logs nothing that is expected."""
    lattice = Lattice(store_url, set_default=False, **{"log_level": "critical", **settings})
    try:
        yield lattice
    finally:
        lattice.close()


@contextmanager
def working(lattice: Lattice, threads: int = 2, queues: set[str] | None = None) -> Iterator[dramatiq.Worker]:
    """Dramatiq's own worker, in this process. One per lattice: Dramatiq's broker never forgets a worker."""
    worker = dramatiq.Worker(lattice.broker, queues=queues, worker_threads=threads, worker_timeout=50)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=5_000)


def heard(lattice: Lattice) -> "Events":
    """Everything the lattice tells from now on."""
    events = Events()
    lattice.telemetry.subscribe(events)
    return events


class Events:
    """Names and fields of events, in the order they came."""

    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, fields: Any) -> None:
        self.all.append((name, dict(fields)))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [fields for heard_name, fields in list(self.all) if heard_name == name]

    @property
    def names(self) -> set[str]:
        return {name for name, _ in list(self.all)}


def until(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """The first true value of the condition, asked again and again."""
    pause = threading.Event()
    give_up_at = time.monotonic() + patience_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < give_up_at, f"it did not become true in {patience_s} s: {what or condition}"
        pause.wait(0.005)


def until_state(job: Any, *states: str) -> Any:
    """The job's picture once it is in one of these states."""
    return until(lambda: (picture := job.refresh()).state in states and picture, f"{job.id} {states}")


def done(lattice: Lattice, *queues: str) -> None:
    """Wait until these queues have nothing waiting, scheduled or running."""
    for queue in queues or ("default",):
        lattice.broker.join(queue, timeout=int(PATIENCE_S * 1_000))


def states(jobs: Iterable[Any]) -> list[str]:
    """The states of these jobs, in order."""
    return [job.refresh().state for job in jobs]


def stored(lattice: Lattice, table: str = "invocation") -> int:
    """How many rows a table has."""
    return rows(lattice, f"select count(*) from lattice_{table}")[0][0]


def rows(lattice: Lattice, sql: str, *params: Any) -> list[tuple]:
    """The answer of the store to a statement that both engines know."""
    lattice.namespace_id  # noqa: B018 - opens the store
    with lattice.engine.session() as session:
        return session.fetch(Statement(sql), params)


def change(lattice: Lattice, sql: str, *params: Any) -> int:
    """Change rows behind the lattice's back."""
    with lattice.engine.session() as session:
        return session.execute(Statement(sql), params)


class Gate:
    """Holds tasks inside until it is opened, in a way that an interrupt gets through; counts who came."""

    def __init__(self) -> None:
        self.entered = 0
        self._open = threading.Event()
        self._lock = threading.Lock()

    def pass_through(self) -> None:
        with self._lock:
            self.entered += 1
        give_up_at = time.monotonic() + 4 * PATIENCE_S
        while not self._open.wait(0.005):
            assert time.monotonic() < give_up_at, "nobody opened the gate"

    def open(self) -> None:
        self._open.set()

    def await_entered(self, count: int = 1) -> None:
        until(lambda: self.entered >= count, f"{count} inside the gate")


def spin(seconds: float = 30) -> None:
    """Work that an interrupt gets through."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def boot_time_limit(lattice: Lattice) -> None:
    """As the `dramatiq` command and `lattice-tasks worker` do before they start a worker; looking more often."""
    for middleware in lattice.broker.middleware:
        if isinstance(middleware, TimeLimit):
            middleware.manager.interval = 0.05
    lattice.broker.emit_after("process_boot")
