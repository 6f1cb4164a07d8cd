"""How often a task runs: exactly as often as its options say, whatever stops it in between."""

import time
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.rate_limits import ConcurrentRateLimiter

from lattice_tasks import DeadLetters, Lattice, Park, current
from tests.working import PATIENCE_S, Gate, done, heard, opened, rows, states, until, until_state, working

pytestmark = pytest.mark.recycled

SOON = {"min_backoff": 1, "max_backoff": 2}


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


class Runs:
    """Counts the runs of a task, and when they were."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.attempts: list[int] = []

    def note(self) -> int:
        self.at.append(time.monotonic())
        self.attempts.append(current.invocation.attempt)
        return len(self.at)

    def __len__(self) -> int:
        return len(self.at)


@pytest.mark.parametrize("max_retries", [0, 3])
def test_n_retries_are_n_plus_one_executions_and_then_it_is_parked(lattice: Lattice, max_retries: int) -> None:
    """C23, T-06"""
    runs = Runs()

    @lattice.task(max_retries=max_retries, **SOON)
    def fail() -> None:
        runs.note()
        raise ValueError("no such luck")

    job = fail.submit()
    with working(lattice):
        picture = until_state(job, "parked")

    assert runs.attempts == list(range(1, max_retries + 2))
    assert picture.attempt == max_retries + 1
    letter = lattice.dead_letters("default").get(picture.entry_id)
    assert (letter.reason, letter.attempts, letter.error) == ("unknown", max_retries + 1, "ValueError: no such luck")
    assert "in fail" in letter.traceback
    assert letter.task_id == job.id


def test_tasks_and_plain_actors_have_four_retries_unless_they_say_otherwise(lattice: Lattice) -> None:
    runs = {"ours": 0, "plain": 0}

    @lattice.task(**SOON)
    def ours() -> None:
        runs["ours"] += 1
        raise ValueError

    @dramatiq.actor(broker=lattice.broker, **SOON)
    def plain() -> None:
        runs["plain"] += 1
        raise ValueError

    jobs = [ours.submit(), lattice.job(plain.send().message_id)]
    with working(lattice):
        done(lattice)

    assert runs == {"ours": 5, "plain": 5}
    assert states(jobs) == ["parked", "parked"]


def test_the_options_of_a_message_win_over_those_of_its_actor(lattice: Lattice) -> None:
    runs = Runs()

    @lattice.task(max_retries=9, min_backoff=60_000)
    def fail() -> None:
        runs.note()
        raise ValueError

    fail.send_with_options(max_retries=1, min_backoff=1, max_backoff=1)
    with working(lattice):
        done(lattice)

    assert len(runs) == 2


def test_the_options_of_the_middleware_hold_where_nobody_says_otherwise(store_url: str) -> None:
    with opened(store_url, middleware=[DeadLetters(max_retries=2, min_backoff=1, max_backoff=1)]) as lattice:
        runs = Runs()

        @lattice.task
        def fail() -> None:
            runs.note()
            raise ValueError

        fail.submit()
        with working(lattice):
            done(lattice)

    assert len(runs) == 3


def test_no_wait_is_shorter_than_the_minimum(lattice: Lattice) -> None:
    """C23"""
    runs = Runs()

    @lattice.task(max_retries=2, min_backoff=150, max_backoff=10_000)
    def fail() -> None:
        runs.note()
        raise ValueError

    fail.submit()
    with working(lattice):
        done(lattice)

    first, second = (after - before for before, after in zip(runs.at, runs.at[1:], strict=False))
    assert first >= 0.150
    assert second >= 0.300


def test_a_task_may_ask_for_its_own_wait(lattice: Lattice) -> None:
    runs = Runs()

    @lattice.task(max_retries=1, min_backoff=60_000)
    def later() -> str:
        if runs.note() == 1:
            raise dramatiq.Retry(delay=120)
        return "now"

    job = later.submit()
    with working(lattice):
        assert job.result(timeout=10) == "now"

    assert 0.120 <= runs.at[1] - runs.at[0] < 5
    assert job.refresh().attempt == 1


def test_a_foolish_wait_loses_nothing(lattice: Lattice) -> None:
    waits: list[Any] = [-5, 10**30, float("inf"), float("nan"), "soon"]

    @lattice.task(max_retries=1)
    def later(number: int) -> None:
        raise dramatiq.Retry(delay=waits[number])

    jobs = later.submit_many([(number,) for number in range(len(waits))])
    with working(lattice):
        pictures = [until_state(job, "scheduled", "parked") for job in jobs]
    assert all("Retry" in picture.error for picture in pictures)


def test_what_a_task_throws_on_purpose_is_parked_at_once(lattice: Lattice) -> None:
    @lattice.task(max_retries=9, throws=(KeyError, PermissionError))
    def refuse() -> None:
        raise KeyError("not you")

    @lattice.task(max_retries=9)
    def park() -> None:
        raise Park("bad customer")

    jobs = [refuse.submit(), park.submit()]
    with working(lattice):
        done(lattice)

    letters = {letter.task_id: letter for letter in lattice.dead_letters("default").list()}
    assert [(letters[job.id].reason, letters[job.id].attempts) for job in jobs] == [("rejected", 1)] * 2
    assert letters[jobs[1].id].error == "bad customer"


def test_a_predicate_ends_the_retries_and_sees_the_count(lattice: Lattice) -> None:
    """C23: it takes both, the predicate and the limit."""
    seen: list[tuple[int, str]] = []

    @lattice.task(
        max_retries=5, retry_when=lambda count, error: not seen.append((count, str(error))) and count < 2, **SOON
    )
    def fail() -> None:
        raise ValueError("no")

    @lattice.task(max_retries=2, retry_when=lambda count, error: True, **SOON)
    def limited() -> None:
        raise ValueError("no")

    jobs = [fail.submit(), limited.submit()]
    with working(lattice):
        done(lattice)

    assert [job.refresh().attempt for job in jobs] == [3, 3]
    assert seen == [(0, "no"), (1, "no"), (2, "no")]


# Bad `throws` kill Dramatiq's thread, which is replaced.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_options_that_fail_themselves_park_the_task_instead_of_losing_it(lattice: Lattice) -> None:
    def declare(name: str, options: dict[str, Any]) -> Any:
        @lattice.task(name=name, **options)
        def fail() -> None:
            raise ValueError("the real reason")

        return fail

    foolish: dict[str, dict[str, Any]] = {
        "retry_when": {"retry_when": lambda count, error: 1 // 0},
        "max_retries": {"max_retries": "many"},
        "min_backoff": {"min_backoff": None},
        "max_backoff": {"max_backoff": "long"},
        "throws": {"throws": "KeyError"},
        "on_retry_exhausted": {"on_retry_exhausted": "nobody", "max_retries": 0},
    }

    @lattice.task
    def fine() -> int:
        return 1

    jobs = [declare(name, options).submit() for name, options in foolish.items()]
    with working(lattice, threads=1):
        pictures = [until_state(job, "parked") for job in jobs]
        assert fine.submit().result(timeout=10) == 1
    assert all("the real reason" in picture.error for picture in pictures)


def test_who_wants_to_know_is_told_once_that_the_retries_are_spent(lattice: Lattice) -> None:
    told: list[Any] = []

    @lattice.task(queue="bells")
    def ring(message: Any, counts: Any) -> None:
        told.append((message["message_id"], message["args"], counts))

    @lattice.task(max_retries=2, on_retry_exhausted="ring", **SOON)
    def fail(number: int) -> None:
        raise ValueError

    job = fail.submit(7)
    with working(lattice):
        until_state(job, "parked")
        until(lambda: told)
        done(lattice, "bells")

    assert told == [(job.id, [7], {"retries": 2, "max_retries": 2})]


def test_the_count_is_the_stores_so_it_outlives_workers(store_url: str) -> None:
    """C24"""
    runs = Runs()

    def one_more(lattice: Lattice) -> Any:
        @lattice.task(max_retries=3, min_backoff=300, max_backoff=400)
        def fail() -> None:
            runs.note()
            raise ValueError

        return fail

    with opened(store_url) as lattice:
        job = one_more(lattice).submit()
    for count in range(1, 5):
        with opened(store_url) as lattice:
            one_more(lattice)
            with working(lattice, threads=1):
                until(lambda count=count: len(runs) >= count)
    with opened(store_url) as lattice:
        assert (len(runs), lattice.job(job.id).refresh().state) == (4, "parked")


def test_a_stopped_worker_charges_nothing(store_url: str) -> None:
    """C21, reliability 2: five stops with three retries, and it runs to its end."""
    gate = Gate()

    def patient(lattice: Lattice) -> Any:
        @lattice.task(max_retries=3, notify_shutdown=True)
        def wait() -> str:
            gate.pass_through()
            return "through"

        return wait

    with opened(store_url) as lattice:
        job = patient(lattice).submit()
    for count in range(1, 6):
        with opened(store_url) as lattice:
            events = heard(lattice)
            patient(lattice)
            with working(lattice):
                gate.await_entered(count)
            assert [event["task_id"] for event in events.of("task.released")] == [job.id]
            assert job.id in str(rows(lattice, "select id from lattice_invocation where attempt = 0"))
    gate.open()
    with opened(store_url) as lattice:
        patient(lattice)
        with working(lattice):
            assert lattice.job(job.id).result(timeout=10) == "through"
        assert lattice.job(job.id).refresh().attempt == 0


def test_waiting_for_a_turn_is_no_failure(lattice: Lattice) -> None:
    """C22"""
    limiter = ConcurrentRateLimiter(lattice.broker.rate_limiter_backend, "one", limit=1)
    inside, most = [], []

    @lattice.task(max_retries=3, min_backoff=5, max_backoff=20)
    def exclusive(number: int) -> int:
        with limiter.acquire():
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)
        return number

    jobs = exclusive.submit_many([(number,) for number in range(50)])
    events = heard(lattice)
    with working(lattice, threads=8):
        assert [job.result(timeout=PATIENCE_S) for job in jobs] == list(range(50))

    assert max(most) == 1
    assert len(events.of("task.retried")) > 0
    assert {job.refresh().attempt for job in jobs} == {0}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I have no words")


def recurse() -> None:
    recurse()


RAISED: list[tuple[Any, str]] = [
    (ValueError("a\0b"), r"ValueError: a\x00b"),
    (ValueError("half a pair \ud800"), r"ValueError: half a pair \ud800"),
    (ValueError("x" * 100_000), "ValueError: xxx"),
    (Unspeakable(), "its text cannot be read"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (MemoryError(), "MemoryError"),
    (BaseException("base"), "BaseException: base"),
    (ExceptionGroup("several", [ValueError("one"), KeyError("two")]), "ExceptionGroup: several"),
    (recurse, "RecursionError"),
]


def test_whatever_a_task_raises_it_is_parked_readable(lattice: Lattice) -> None:
    """Reliability 22: NUL and lone surrogates in exception texts too."""

    @lattice.task(max_retries=0)
    def fail(number: int) -> None:
        error = RAISED[number][0]
        if isinstance(error, BaseException):
            raise error
        error()

    jobs = fail.submit_many([(number,) for number in range(len(RAISED))])
    with working(lattice, threads=1):
        pictures = [until_state(job, "parked") for job in jobs]

    for picture, (_, told) in zip(pictures, RAISED, strict=True):
        letter = lattice.dead_letters("default").get(picture.entry_id)
        assert told in letter.error
        assert picture.error == letter.error
        assert "in fail" in letter.traceback
        assert len(letter.error.encode()) <= 4_096
        assert len(letter.traceback.encode()) <= 32_768
