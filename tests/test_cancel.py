"""Cancelling: it never starts afterwards, it is not retried, and everybody can see that it was cancelled and why."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from lattice_tasks import Lattice, TaskCancelled
from lattice_tasks.broker.middleware import Cancelled
from lattice_tasks.dead_letters.entry import MAX_NOTES, DeadLetter, Note, decode, encode, with_note
from lattice_tasks.errors import TaskNotFound
from lattice_tasks.tasks.claim import rescue
from lattice_tasks.tasks.settle import Kind, Outcome
from tests.claimers import Claimer, outcome
from tests.letters import letter
from tests.working import Gate, change, done, heard, opened, rows, states, stored, until, until_state, working

pytestmark = pytest.mark.recycled

QUICK = {"lease_ms": 1_000}  # so that a worker beats every 200 ms


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url, **QUICK) as lattice:
        yield lattice


def test_what_waits_or_sleeps_is_cancelled_at_once_and_never_starts(lattice: Lattice) -> None:
    """C52 a, b"""
    ran: list[int] = []

    @lattice.task
    def note(number: int) -> None:
        ran.append(number)

    jobs = [note.submit(1), note.submit(2, _delay=timedelta(hours=1)), note.submit(3, _delay=timedelta(seconds=0.2))]
    other = note.submit(4)
    events = heard(lattice)

    assert [job.cancel("changed my mind") for job in jobs] == [True, True, True]

    for job in jobs:
        picture = job.refresh()
        assert (picture.state, picture.error) == ("cancelled", "changed my mind")
        assert picture.finished_at is not None
        with pytest.raises(TaskCancelled, match="is cancelled: changed my mind"):
            job.result(timeout=1)
    assert (stored(lattice, "ready"), stored(lattice, "scheduled")) == (1, 0)
    assert [event["task_id"] for event in events.of("task.cancelled")] == [job.id for job in jobs]
    with working(lattice):
        done(lattice)
        until_state(other, "succeeded")
    assert ran == [4]


def test_what_waits_for_its_retry_is_not_retried(lattice: Lattice) -> None:
    """C52 d"""
    runs: list[int] = []

    @lattice.task(max_retries=5, min_backoff=150, max_backoff=200)
    def fail() -> None:
        runs.append(1)
        raise ValueError("no")

    job = fail.submit()
    with working(lattice):
        until_state(job, "scheduled")
        assert job.cancel()
        done(lattice)
        after = time.monotonic() + 0.3
        until(lambda: time.monotonic() > after)

    assert (len(runs), job.refresh().state, job.refresh().attempt) == (1, "cancelled", 1)
    assert lattice.dead_letters("default").count() == 0


def test_what_runs_is_interrupted(lattice: Lattice) -> None:
    """C52 c"""
    gate, caught = Gate(), []

    @lattice.task(max_retries=5)
    def wait() -> None:
        try:
            gate.pass_through()
        except BaseException as error:
            caught.append(type(error))
            raise

    @lattice.task
    def fine() -> int:
        return 1

    job = wait.submit()
    with working(lattice, threads=1):
        gate.await_entered()
        assert job.cancel("enough")
        picture = until_state(job, "cancelled")
        assert fine.submit().result(timeout=10) == 1  # its thread works on

    assert caught == [Cancelled]
    assert "enough" in picture.error
    assert (picture.attempt, gate.entered) == (0, 1)
    assert stored(lattice, "lease") == 0


def test_a_cancelled_one_that_fails_by_itself_is_not_retried(lattice: Lattice) -> None:
    gate = Gate()

    @lattice.task(max_retries=5)
    def stubborn() -> None:
        with suppress(Cancelled):
            gate.pass_through()
        raise ValueError("my own end")

    job = stubborn.submit()
    with working(lattice):
        gate.await_entered()
        job.cancel()
        until_state(job, "cancelled")
    assert lattice.dead_letters("default").count() == 0


def test_one_that_survives_its_cancel_has_succeeded_all_the_same(lattice: Lattice) -> None:
    """What was done was done: the record says so."""
    gate, asked = Gate(), threading.Event()

    @lattice.task
    def stubborn() -> str:
        try:
            gate.pass_through()
        except Cancelled:
            asked.set()
        return "done all the same"

    job = stubborn.submit()
    with working(lattice):
        gate.await_entered()
        assert job.cancel()
        until(asked.is_set)
        assert job.result(timeout=10) == "done all the same"


def test_one_that_was_claimed_but_has_not_begun_never_begins(lattice: Lattice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lattice_tasks.broker.pump._STUCK_S", 60)
    gate, ran = Gate(), []

    @lattice.task
    def block() -> None:
        gate.pass_through()

    @lattice.task
    def note(number: int) -> None:
        ran.append(number)

    note.submit(0)
    with working(lattice, threads=1) as worker:
        until(lambda: ran == [0])
        block.submit()
        gate.await_entered()
        jobs = [note.submit(1), note.submit(2)]
        until(lambda: len(worker.work_queue) == 2)
        assert states(jobs) == ["running", "running"]
        assert jobs[0].cancel("not this one")
        until(lambda: heard_of(lattice, jobs[0]))
        gate.open()
        until_state(jobs[0], "cancelled")
        until_state(jobs[1], "succeeded")
    assert ran == [0, 2]


def heard_of(lattice: Lattice, job: Any) -> bool:
    """Whether the worker knows of the cancel."""
    return any(
        message.message_id == job.id and message.cancel_reason for message in list(lattice.broker._pump._held.values())
    )


def test_what_has_ended_cannot_be_cancelled_any_more(lattice: Lattice) -> None:
    """T-01"""

    @lattice.task(max_retries=0)
    def end(well: bool) -> None:
        assert well

    jobs = [end.submit(True), end.submit(False)]
    cancelled = end.submit(True)
    cancelled.cancel("first")
    with working(lattice):
        done(lattice)

    before = [job.refresh() for job in (*jobs, cancelled)]
    assert [job.cancel("too late") for job in (*jobs, cancelled)] == [False, False, False]
    assert [job.refresh() for job in (*jobs, cancelled)] == before
    with pytest.raises(TaskNotFound):
        lattice.job("0198c5b2-7d1e-7c4a-9f10-2b6d1c3e4f50").cancel()


@pytest.mark.parametrize("reason", ["", "x" * 100_000, "NUL \0 and half a pair \ud800", None, 7])
def test_any_reason_can_be_kept(lattice: Lattice, reason: Any) -> None:
    job = lattice.submit("q", "idle")

    assert job.cancel(reason)

    error = job.refresh().error
    assert error is not None
    assert len(error.encode()) <= 4_096
    assert "\0" not in error


def test_of_many_who_cancel_one_does(lattice: Lattice) -> None:
    job, barrier, answers = lattice.submit("q", "idle"), threading.Barrier(10), []

    def cancel(number: int) -> None:
        barrier.wait()
        answers.append(job.cancel(f"by {number}"))

    threads = [threading.Thread(target=cancel, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == [False] * 9 + [True]


def test_cancels_race_with_workers_and_each_invocation_ends_once(lattice: Lattice) -> None:
    ran: list[int] = []

    @lattice.task
    def note(number: int) -> None:
        ran.append(number)

    jobs = note.submit_many([(number,) for number in range(200)])
    with working(lattice, threads=4):
        answers = [job.cancel() for job in jobs]
        done(lattice)

    ends = states(jobs)
    assert set(ends) <= {"succeeded", "cancelled"}
    assert len(set(ran)) == len(ran)
    assert {number for number, end in enumerate(ends) if end == "succeeded"} <= set(ran)
    assert all(answer for answer, end in zip(answers, ends, strict=True) if end == "cancelled")
    assert stored(lattice, "ready") == stored(lattice, "lease") == 0


def test_a_cancel_outlives_the_worker_that_was_asked(lattice: Lattice) -> None:
    """C52: the worker dies before it sees the cancel; nobody runs it again."""
    job = lattice.submit("q", "idle")
    change(
        lattice,
        """insert into lattice_worker (namespace_id, host, pid, threads, queues, actors, version, state, beat,
               started_at, seen_at) values (1, 'h', 1, 1, '[]', '[]', '1', 'active', 5, 0, 0)""",
    )
    (worker_id,) = rows(lattice, "select id from lattice_worker")[0]
    change(
        lattice,
        """insert into lattice_lease (worker_id, seq, batch, queue_id, priority, attempt, flags, claimed_at)
               select %s, seq, 1, queue_id, priority, attempt, flags, 0 from lattice_ready""",
        worker_id,
    )
    change(lattice, "delete from lattice_ready")

    assert job.refresh().state == "running"
    assert job.cancel("while it dies")
    with lattice.engine.session() as session:
        found = rescue(session, worker_id, 5)

    assert found is not None
    assert found.leases == 1
    assert job.refresh().state == "cancelled"
    assert stored(lattice, "ready") == stored(lattice, "lease") == 0


# --- a replay ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def claimer(lattice: Lattice) -> Iterator[Claimer]:
    claimer = Claimer(lattice)
    yield claimer
    claimer.close()


def replayed(lattice: Lattice, claimer: Claimer) -> tuple[Any, DeadLetter]:
    """A task that failed twice, then once more in a replay, and that is replayed again now; its letter as it was."""
    job, shelf = lattice.submit("q", "idle"), lattice.dead_letters("q")
    claimer.settle((claimer.claim_one(), outcome(Kind.PARK, reason="time_limit", error="TimeLimitExceeded: 5 s")))
    shelf.replay(1)
    claimer.settle((claimer.claim_one(), outcome(Kind.PARK, reason="worker_lost", error="gone", traceback="Trace")))
    letter = shelf.get(1)
    shelf.replay(1)
    return job, letter


def cards(lattice: Lattice) -> list[tuple[Any, ...]]:
    """All that is kept beside letters, and how often their groups were hit."""
    kept = "select fingerprint, reason, error_class, parked_at, replays from lattice_letter"
    return rows(lattice, kept) + rows(lattice, "select fingerprint, hits from lattice_group order by fingerprint")


def assert_as_before(lattice: Lattice, job: Any, before: DeadLetter, why: str) -> None:
    letter = lattice.dead_letters("q").get(1)
    assert [note.text for note in letter.notes] == [f"replay cancelled: {why}"]
    assert letter.notes[0].at >= letter.parked_at
    assert msgspec.structs.replace(letter, notes=()) == before
    picture = job.refresh()
    assert (picture.state, picture.error, picture.entry_id) == ("parked", "gone", 1)
    assert rows(lattice, "select reason, traceback, attempt from lattice_invocation where entry_id = 1") == [
        ("worker_lost", "Trace", 1)
    ]
    assert stored(lattice, "ready") == stored(lattice, "lease") == 0


def test_a_waiting_replay_that_is_cancelled_leaves_its_letter_as_it_was(lattice: Lattice, claimer: Claimer) -> None:
    """C52: nothing ran, so reason, error, group, attempts and the count of replays are those of the last failure."""
    job, before = replayed(lattice, claimer)
    kept = cards(lattice)

    assert job.cancel("not now (by ann)")

    assert_as_before(lattice, job, before, "not now (by ann)")
    assert cards(lattice) == kept
    assert lattice.dead_letters("q").replay(1) is not None


@pytest.mark.parametrize("kind", [Kind.CANCEL, Kind.RELEASE])
def test_a_running_replay_that_is_cancelled_leaves_its_letter_as_it_was(
    lattice: Lattice, claimer: Claimer, kind: Kind
) -> None:
    """C52"""
    job, before = replayed(lattice, claimer)
    kept, claimed = cards(lattice), claimer.claim_one()

    assert job.cancel("enough")
    settled = claimer.settle((claimed, Outcome(kind, error="enough")))

    assert_as_before(lattice, job, before, "enough")
    assert cards(lattice) == kept
    assert [name for name, _ in settled.events] == ["task.cancelled"]


def test_a_replay_that_fails_before_it_hears_of_its_cancel_has_failed(lattice: Lattice, claimer: Claimer) -> None:
    job, _before = replayed(lattice, claimer)
    claimed = claimer.claim_one()

    job.cancel("enough")
    claimer.settle((claimed, outcome(Kind.PARK, error="ValueError: mine")))

    letter = lattice.dead_letters("q").get(1)
    assert (letter.error, letter.failed_replays, letter.notes) == ("ValueError: mine", 2, ())


def test_a_cancelled_replay_that_never_began_outlives_its_worker(lattice: Lattice, claimer: Claimer) -> None:
    """C52: of several leases nobody knows which one killed it, so none is charged."""
    job, before = replayed(lattice, claimer)
    lattice.submit("q", "idle")
    claimer.claim(2)
    kept = cards(lattice)

    job.cancel("enough")
    with lattice.engine.session() as session:
        rescue(session, claimer.worker_id, claimer.beat())

    letter = lattice.dead_letters("q").get(1)
    assert [note.text for note in letter.notes] == ["replay cancelled: enough"]
    assert msgspec.structs.replace(letter, notes=()) == before
    assert cards(lattice) == kept
    assert job.refresh().error == "gone"


def test_only_the_last_notes_are_kept() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    noted = letter(1)
    for number in range(MAX_NOTES + 5):
        noted = with_note(noted, Note(at=at, text=f"note {number}"))

    assert [note.text for note in noted.notes] == [f"note {number}" for number in range(5, MAX_NOTES + 5)]
    assert decode(0, encode(noted)).notes == noted.notes
