"""A worker that will never have anything to do says so."""

from lattice_tasks import Lattice
from tests.working import heard, opened, working


def _add(lattice: Lattice) -> None:
    @lattice.task(queue="sums")
    def add(left: int, right: int) -> int:
        return left + right


def test_a_worker_for_a_queue_that_no_actor_uses_warns(sqlite_url: str) -> None:
    with opened(sqlite_url) as lattice:
        _add(lattice)
        events = heard(lattice)

        with working(lattice, queues={"sums", "smus"}):
            pass

        assert events.of("worker.idle") == [{"queues": ["smus"]}]


def test_a_worker_of_an_app_without_tasks_warns_and_any_other_does_not(sqlite_url: str) -> None:
    for has_tasks in (False, True):
        with opened(sqlite_url) as lattice:
            if has_tasks:
                _add(lattice)
            events = heard(lattice)

            with working(lattice):
                pass

            assert bool(events.of("worker.idle")) is not has_tasks
