"""What `why` says of a task, and workers that are only rows, for the tests of both halves of its reasons."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lattice_tasks import Lattice
from lattice_tasks.store import workers
from lattice_tasks.store.workers import WorkerRow
from lattice_tasks.why import Reason, why
from tests.claimers import Claimer
from tests.working import change


@contextmanager
def claimers(lattice: Lattice) -> Iterator[Callable[[], Claimer]]:
    """Makes workers without threads, which know the actor `train`."""
    made: list[Claimer] = []

    def make() -> Claimer:
        made.append(Claimer(lattice))
        change(lattice, "update lattice_worker set actors = %s where id = %s", '["train"]', made[-1].worker_id)
        return made[-1]

    yield make
    for one in made:
        one.close()


def reasons(lattice: Lattice, job: Any) -> list[Reason]:
    with lattice.engine.session() as session:
        return why(session, lattice.namespace_id, getattr(job, "id", job), lattice.settings)


def codes(lattice: Lattice, job: Any) -> list[str]:
    return [reason.code for reason in reasons(lattice, job)]


def facts(lattice: Lattice, job: Any, code: str) -> dict[str, Any]:
    (reason,) = [reason for reason in reasons(lattice, job) if reason.code == code]
    return reason.facts


def register(lattice: Lattice, queues: str = '["q"]', actors: str = '["train"]', threads: int = 2) -> int:
    with lattice.engine.session() as session:
        row = WorkerRow(lattice.namespace_id, "host", 9, threads, queues, actors, "1")
        return workers.register(session, row)


def seen_ago(lattice: Lattice, worker_id: int, seconds: float) -> None:
    us = int(seconds * 1_000_000)
    change(lattice, "update lattice_worker set seen_at = seen_at - %s where id = %s", us, worker_id)
