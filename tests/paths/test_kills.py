"""kill -9 at any moment: nothing is lost, nothing is completed twice."""

import random
import time

import pytest

from lattice_tasks.tasks.invocation import State
from tests.paths.conftest import Begin
from tests.paths.fleet import Fleet, Life, Supervised, settled

LEASE_MS = 2_000


def kill_at_random(life: Life, workers: Supervised, tasks: int, kills: int, seed: int, patience_s: float) -> None:
    """Work through the tasks, and meanwhile kill workers that are busy, evenly spread over the work."""
    chance = random.Random(seed)
    names = [f"work{number}" for number in range(tasks)]
    for first in range(0, tasks, 100):
        life.submit_together([(name, chance.randint(10, 60)) for name in names[first : first + 100]])
    for number in range(kills):
        settled(lambda done=tasks * number // (kills + 2): len(life.history.of("end")) >= done, "progress", patience_s)
        life.kill(settled(lambda: workers.busy(chance), "a busy worker", patience_s))
    life.finished(patience_s)

    victims = [one["victim"] for one in life.history.of("fault")]
    interrupted = life.history.in_flight()
    bites = [victim for victim in victims if interrupted.get(victim)]
    assert len(bites) >= 0.95 * kills, f"only {len(bites)} of {kills} kills hit a running task (seed {seed})"
    count = "select count(*) from lattice_worker"
    settled(lambda: life.store.fetch(count) == [(len(life.workers()),)], "the burial of all the dead")
    # One that was killed between a burial and its telling told nobody.
    assert len(life.history.events("worker.lost")) >= 0.8 * kills
    assert workers.replaced() >= kills
    rows = life.checked(budget=51)
    assert {row.state for row in rows.values()} == {State.SUCCEEDED}
    assert len(rows) == tasks
    assert len(life.history.of("start")) > tasks  # some ran again


def new_seed() -> int:
    """Another one each time; the one of a failure is in its message."""
    return time.time_ns() % 1_000_000


def test_no_task_is_lost_when_workers_are_killed_at_random(served: Begin) -> None:
    """Faults 1."""
    life = served(lease_ms=LEASE_MS)
    workers = Supervised(life, processes=4, threads=4)

    kill_at_random(life, workers, 400, 8, new_seed(), 60)


def test_no_task_is_lost_when_the_writers_of_one_file_are_killed(sqlite_url: str, begin: Begin) -> None:
    """Faults 17: the file stays sound."""
    life = begin(sqlite_url, lease_ms=LEASE_MS)
    workers = Supervised(life, processes=2, threads=4)

    kill_at_random(life, workers, 150, 4, new_seed(), 60)

    assert life.store.fetch("pragma integrity_check") == [("ok",)]


@pytest.mark.soak
def test_no_task_of_many_is_lost_when_workers_are_killed_often(anywhere: Begin) -> None:
    """Faults 1, the long version."""
    life = anywhere(lease_ms=LEASE_MS)
    workers = Supervised(life, processes=4, threads=4)

    kill_at_random(life, workers, 2_000, 50, new_seed(), 600)


def test_the_work_and_the_duties_of_a_killed_worker_are_taken_over(anywhere: Begin) -> None:
    """C10: within two leases, by one that was there all the time and has been told nothing."""
    life = anywhere(lease_ms=LEASE_MS)
    gate = life.gate()
    worker = life.worker(threads=1)
    life.submit("hold", "orphan", gate)
    life.started("orphan")
    heir = life.worker(threads=1)

    killed_at = life.kill(worker.pid)

    again = life.started("orphan", 2)[1]
    assert again["pid"] == heir.pid
    assert again["at"] - killed_at < 2 * LEASE_MS / 1_000
    life.open(gate)
    life.finished()
    life.checked()


def test_one_that_takes_the_place_of_a_killed_worker_is_not_taken_for_it(served: Begin) -> None:
    """C11: alone, on the same host, started at once; it rescues its predecessor's work like any other's."""
    life = served(lease_ms=LEASE_MS)
    gate = life.gate()
    fleet = Fleet(life, processes=1, threads=1)
    life.submit("hold", "orphan", gate)

    killed_at = life.kill(life.started("orphan")[0]["pid"])
    settled(lambda: fleet.tend() or fleet.deaths, "a new worker")

    again = life.started("orphan", 2)[1]
    assert again["at"] - killed_at < 2 * LEASE_MS / 1_000 + 2  # it has to start first
    (lost,) = life.history.events("worker.lost", pid=again["pid"])
    assert lost["fields"]["leases"] == 1
    life.open(gate)
    life.finished()
    life.checked()


def test_a_killed_task_does_not_hold_its_limit_for_ever(served: Begin) -> None:
    """C12: one at a time by a limiter; the one that holds it is killed, and both it and the next one run."""
    life = served(lease_ms=1_000)
    gate = life.gate()
    fleet = Fleet(life, processes=2, threads=1)
    life.submit("alone", "holder", gate, queue="limited")
    (start,) = life.started("holder")
    life.submit("alone", "waiting", gate, queue="limited")
    settled(lambda: life.history.of("end", name="waiting", error="RateLimitExceeded"), "the limit to be felt")

    life.kill(start["pid"])
    life.open(gate)
    life.finished(queues=["limited"], tend=fleet.tend)

    rows = life.checked()
    assert {row.state for row in rows.values()} == {State.SUCCEEDED}
    assert len(life.history.of("start", name="holder")) >= 2
