"""The dead letters of tasks, with real workers: bounded shelves, replays of exactly one attempt, and what becomes of the
invocation."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks import Job, Lattice, Park, TaskDiscarded, TaskParked
from lattice_tasks.dead_letters.replay import Outcome
from lattice_tasks.errors import AlreadyHandled, DeadLetterNotFound
from tests.working import Gate, done, heard, opened, states, stored, until_state, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


class Patient:
    """A task that fails until it is cured."""

    def __init__(self, lattice: Lattice) -> None:
        self.is_ill = True
        self.runs: list[tuple[Any, ...]] = []

        @lattice.task(queue="q", max_retries=0)
        def suffer(*args: Any, **kwargs: Any) -> Any:
            self.runs.append((*args, *kwargs.items()))
            if self.is_ill:
                raise ValueError(f"ill {len(self.runs)}")
            return list(args)

        self.task = suffer

    def parked(self, lattice: Lattice, *args: Any, **options: Any) -> Job[Any]:
        job = self.task.submit(*args, **options)
        until_state(job, "parked")
        return job


def test_a_full_shelf_loses_its_oldest_with_a_word_about_each(store_url: str) -> None:
    """C04, D-50, D-51, D-98: alive + parked + reported-dropped is all there was."""
    with opened(store_url, shelf_capacity=3) as lattice:
        events, patient = heard(lattice), Patient(lattice)
        with working(lattice, threads=1):
            jobs = [patient.parked(lattice, n) for n in range(5)]

        letters = lattice.dead_letters("q").list()
        assert [letter.task_id for letter in letters] == [job.id for job in jobs[2:]]
        assert lattice.dead_letters("q").count() == 3
        assert states(jobs) == ["discarded", "discarded", "parked", "parked", "parked"]
        with pytest.raises(TaskDiscarded):
            jobs[0].result(timeout=1)
        with pytest.raises(TaskParked, match="ValueError: ill"):
            jobs[4].result(timeout=1)
        evicted, parked = events.of("dead_letter.evicted"), events.of("dead_letter.enqueued")
        assert [event["task_id"] for event in evicted] == [job.id for job in jobs[:2]]
        assert len(parked) - len(evicted) == 3
        told = [name for name, _ in events.all if name.startswith("dead_letter")]
        assert told[3:] == ["dead_letter.evicted", "dead_letter.enqueued"] * 2


def test_a_replay_is_one_attempt_of_the_same_invocation(lattice: Lattice) -> None:
    """T-07, C26: same id, key, arguments and priority; a second death shows both lives."""
    patient = Patient(lattice)
    shelf = lattice.dead_letters
    with working(lattice):
        job = patient.parked(lattice, 1, x=2, _key="k", _priority=7)
        (letter,) = shelf("q").list()
        before = job.refresh()

        assert shelf("q").replay(letter.entry_id, wait=10).state == "parked"
        (again,) = shelf("q").list()
        patient.is_ill = False
        assert shelf("q").replay(letter.entry_id, wait=10).state == "succeeded"
        after = job.refresh()

    assert patient.runs == [(1, ("x", 2))] * 3
    assert (again.entry_id, again.error) == (letter.entry_id, "ValueError: ill 2")
    assert [life.error for life in again.lives] == ["ValueError: ill 1"]
    assert (after.id, after.key, after.priority, after.submitted_at) == (
        before.id,
        before.key,
        before.priority,
        before.submitted_at,
    )
    assert (after.entry_id, after.error, job.result()) == (None, None, [1])
    assert shelf("q").count() == stored(lattice, "fifo_pin") == 0


def test_twenty_rounds_are_twenty_executions(lattice: Lattice) -> None:
    """C25"""
    patient = Patient(lattice)
    with working(lattice):
        job = patient.parked(lattice, 1)
        (letter,) = lattice.dead_letters("q").list()
        for _ in range(20):
            assert lattice.dead_letters("q").replay(letter.entry_id, wait=10).state == "parked"
    assert len(patient.runs) == 21
    assert job.refresh().attempt == 1
    assert lattice.dead_letters("q").count() == 1


def test_of_twenty_who_replay_one_letter_one_does(lattice: Lattice) -> None:
    """C28, A-15"""
    gate, ran = Gate(), []

    @lattice.task(queue="q", max_retries=0)
    def once() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise Park("no")
        gate.pass_through()

    barrier, answers = threading.Barrier(20), []

    def replay(entry_id: int) -> None:
        barrier.wait()
        try:
            lattice.dead_letters("q").replay(entry_id)
            answers.append("done")
        except (AlreadyHandled, DeadLetterNotFound):
            answers.append("already handled")

    job = once.submit()
    with working(lattice):
        entry_id = until_state(job, "parked").entry_id
        threads = [threading.Thread(target=replay, args=(entry_id,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(AlreadyHandled):
            lattice.dead_letters("q").discard(entry_id)
        gate.open()
        until_state(job, "succeeded")

    assert sorted(answers) == ["already handled"] * 19 + ["done"]
    assert len(ran) == 2


def test_replaying_all_replays_those_that_were_seen(lattice: Lattice) -> None:
    """C27"""
    patient = Patient(lattice)
    with working(lattice, threads=4):
        jobs = [patient.parked(lattice, n) for n in range(10)]
        seen = [letter.entry_id for letter in lattice.dead_letters("q").list()]
        later = [patient.parked(lattice, n) for n in range(5)]
        answers = lattice.dead_letters("q").replay_many(seen)
        done(lattice, "q")

    assert [answer.outcome for answer in answers] == [Outcome.DONE] * 10
    assert len(patient.runs) == 25
    assert lattice.dead_letters("q").count() == 15
    assert set(states([*jobs, *later])) == {"parked"}


def test_a_replay_that_nobody_runs_waits_and_pins_its_letter(lattice: Lattice) -> None:
    patient = Patient(lattice)
    with working(lattice):
        job = patient.parked(lattice, 1)
    (letter,) = lattice.dead_letters("q").list()

    assert lattice.dead_letters("q").replay(letter.entry_id, wait=0.05).state == "waiting"

    (pinned,) = lattice.dead_letters("q").list()
    assert pinned.is_replaying
    with pytest.raises(AlreadyHandled):
        lattice.dead_letters("q").discard(letter.entry_id)
    assert job.cancel("never mind")
    (back,) = lattice.dead_letters("q").list()
    assert not back.is_replaying
    assert back.notes[-1].text == "replay cancelled: never mind"
    assert job.refresh().state == "parked"


def test_a_discarded_one_says_so_for_ever(lattice: Lattice) -> None:
    """T-01, D-62, D-97"""
    patient, events = Patient(lattice), heard(lattice)
    with working(lattice):
        job = patient.parked(lattice, 1, _key="k")
    entry_id = job.refresh().entry_id

    assert lattice.dead_letters("q").discard(entry_id)

    assert (job.refresh().state, job.refresh().error) == ("discarded", "ValueError: ill 1")
    assert not job.cancel()
    with pytest.raises(DeadLetterNotFound):
        lattice.dead_letters("q").get(entry_id)
    assert [event["reason"] for event in events.of("dead_letter.removed")] == ["discarded"]
    assert not patient.task.submit(1, _key="k").created
