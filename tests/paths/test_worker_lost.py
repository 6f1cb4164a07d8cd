"""A task that takes its whole process along is counted, and nobody else is."""

import pytest

from lattice_tasks.tasks.invocation import Flag, State
from tests.paths.conftest import Begin
from tests.paths.fleet import Fleet

NEIGHBOURS = [f"neighbour{number}" for number in range(9)]


def test_a_task_that_kills_its_process_is_parked_and_its_neighbours_are_not_charged(anywhere: Begin) -> None:
    """Counting: all ten are claimed together, so at the first death nobody knows who it was."""
    life = anywhere(lease_ms=1_000, lives_max_retries=0, lookahead_ms=0)
    calls = [(name, 250) for name in NEIGHBOURS]
    life.submit_together(calls[:4])
    life.submit("die", "killer", "exit", 100)
    life.submit_together(calls[4:])
    fleet = Fleet(life, processes=1, threads=10)

    life.finished(60, tend=fleet.tend)

    lost = life.history.events("worker.lost")
    rows = life.checked(budget=1)
    assert lost[0]["fields"]["leases"] == 10, "they were not claimed together"
    assert fleet.deaths == len(lost) == 2  # one when all were suspects, and its budget of one
    assert {name: (rows[name].state, rows[name].attempt) for name in NEIGHBOURS} == dict.fromkeys(
        NEIGHBOURS, (State.SUCCEEDED, 0)
    )
    (letter,) = life.lattice.dead_letters("lives").list()
    assert (letter.reason, letter.attempts, letter.task_id) == ("worker_lost", 1, rows["killer"].id)
    assert "died while running it" in letter.error


def test_a_task_that_fails_and_kills_in_turn_has_one_budget(served: Begin) -> None:
    """A loss counts against `max_retries` like a failure."""
    life = served(lease_ms=1_000, lives_max_retries=2)
    life.submit("moody", "moody")
    fleet = Fleet(life, processes=1, threads=2)

    life.finished(60, tend=fleet.tend)

    ends = [one["how"] for one in life.history.of("end", name="moody")]
    assert ([one["attempt"] for one in life.history.of("start", name="moody")], ends) == ([1, 2, 3], ["error"])
    assert life.checked(budget=3)["moody"].state is State.PARKED
    assert fleet.deaths == 2


def test_the_budget_of_a_message_wins_over_its_actors(sqlite_url: str, begin: Begin) -> None:
    """Dramatiq's `max_retries` may be given with a message; it bounds the deaths of its process too."""
    life = begin(sqlite_url, lease_ms=1_000, lives_max_retries=50)
    life.send("die", "killer", max_retries=0)
    fleet = Fleet(life, processes=1, threads=2)

    life.finished(60, tend=fleet.tend)

    assert len(life.history.of("start", name="killer")) == 1
    assert [letter.reason for letter in life.lattice.dead_letters("lives").list()] == ["worker_lost"]


def test_a_suspect_is_not_charged_for_the_death_that_another_brings(served: Begin) -> None:
    """It came from a dead worker to one where a young task is about to kill."""
    life = served(lease_ms=1_000, lives_max_retries=0)
    fleet = Fleet(life, processes=1, threads=4)
    life.submit("die", "killer", "exit", 1_500)
    life.started("killer")
    life.lattice.queues.pause("lives")
    life.submit("work", "suspect", 50)
    life.store.change("update lattice_ready set flags = %s", int(Flag.SUSPECT))
    life.lattice.queues.resume("lives")

    life.finished(60, tend=fleet.tend)

    lost = life.history.events("worker.lost")
    assert lost[0]["fields"]["leases"] == 2, "they did not meet in one process"
    row = life.checked()["suspect"]
    assert (row.state, row.attempt, len(life.started("suspect"))) == (State.SUCCEEDED, 0, 1)


@pytest.mark.soak
def test_three_killers_among_many_are_told_apart(anywhere: Begin) -> None:
    """The long version: four processes, killers of both kinds, and nobody else is charged."""
    life = anywhere(lease_ms=2_000, lives_max_retries=3)
    harmless = [f"harmless{number}" for number in range(200)]
    for number, name in enumerate(harmless):
        life.submit("work", name, 20)
        if number in (20, 90, 160):
            life.submit("die", f"killer{number}", "exit" if number < 100 else "kill", 100)
    fleet = Fleet(life, processes=4, threads=4)

    life.finished(300, tend=fleet.tend)

    rows = life.checked(budget=4)
    assert {rows[name].state for name in harmless} == {State.SUCCEEDED}
    assert {name: rows[name].attempt for name in harmless if rows[name].attempt} == {}
    assert sorted(letter.reason for letter in life.lattice.dead_letters("lives").list()) == ["worker_lost"] * 3
