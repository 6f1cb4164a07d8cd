"""In which order invocations run, when those that sleep wake, and that nobody sits on work another could do."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks import Lattice
from tests.working import Gate, change, done, heard, opened, rows, states, stored, until, until_state, working

pytestmark = pytest.mark.recycled


@pytest.fixture
def lattice(store_url: str) -> Iterator[Lattice]:
    with opened(store_url) as lattice:
        yield lattice


def test_with_one_thread_the_order_of_a_thousand_ends_is_that_of_their_submits(lattice: Lattice) -> None:
    """L-60, I4"""
    ran: list[int] = []

    @lattice.task
    def note(number: int) -> None:
        ran.append(number)

    jobs = note.submit_many([(number,) for number in range(900)])
    with working(lattice, threads=1):
        jobs += [note.submit(number) for number in range(900, 1_000)]
        done(lattice)

    assert ran == list(range(1_000))
    finished = [row[0] for row in rows(lattice, "select seq from lattice_invocation order by finished_at, seq")]
    assert finished == sorted(finished)
    assert {job.refresh().state for job in jobs[::100]} == {"succeeded"}


def test_a_retry_does_not_go_to_the_back(lattice: Lattice) -> None:
    """L-64"""
    ran: list[tuple[int, int]] = []
    gate = Gate()

    @lattice.task(max_retries=1, min_backoff=1, max_backoff=1)
    def note(number: int) -> None:
        if number == 0 and len(ran) == 0:
            ran.append((0, 1))
            raise ValueError
        if number == 1:
            gate.pass_through()
        ran.append((number, len([one for one in ran if one[0] == number]) + 1))

    jobs = note.submit_many([(number,) for number in range(30)])
    with working(lattice, threads=1):
        gate.await_entered()  # the first has failed, the second runs
        change(lattice, "update lattice_scheduled set due_at = 0")
        until(lambda: jobs[0].refresh().state == "waiting")
        until(lambda: stored(lattice, "lease") == 1)  # what was claimed ahead is handed back
        gate.open()
        done(lattice)

    place = ran.index((0, 2))
    assert place < 29
    assert [number for number, _ in ran if number] == list(range(1, 30))


def test_a_busy_worker_holds_back_at_most_one_and_another_takes_the_next_at_once(store_url: str) -> None:
    """With the only thread busy and 20 tasks of 1 s waiting."""
    gate = Gate()
    started: list[tuple[str, int, float]] = []

    def declare(lattice: Lattice, name: str) -> Any:
        @lattice.task
        def slow(number: int) -> None:
            started.append((name, number, time.monotonic()))
            gate.pass_through()

        return slow

    with opened(store_url) as first, opened(store_url) as second:
        slow = declare(first, "first")
        declare(second, "second")
        slow.submit_many([(number,) for number in range(21)])
        with working(first, threads=1):
            gate.await_entered()
            held = until(lambda: stored(first, "lease"))
            until(lambda: stored(first, "lease") <= 2, "what runs and at most one more")
            assert held <= 2
            with working(second, threads=1):
                began = time.monotonic()
                until(lambda: len(started) == 2)
                assert started[1][0] == "second"
                assert started[1][1] in (1, 2)
                assert time.monotonic() - began < 2
                gate.open()
                done(first)
    assert sorted(number for _, number, _ in started) == list(range(21))


def test_look_ahead_that_meets_slow_work_is_handed_back_uncharged(store_url: str) -> None:
    gate, ran = Gate(), []

    def declare(lattice: Lattice) -> Any:
        @lattice.task
        def note(number: int) -> None:
            if number == 100:
                gate.pass_through()
            ran.append(number)

        return note

    with opened(store_url) as first, opened(store_url) as second:
        note = declare(first)
        declare(second)
        events = heard(first)
        note.submit_many([(number,) for number in range(100)])
        with working(first, threads=1):
            until(lambda: len(ran) == 100)  # quick ones: now it looks ahead
            jobs = note.submit_many([(100,), *[(number,) for number in range(101, 120)]])
            gate.await_entered()
            until(lambda: stored(first, "lease") == 1)
            with working(second, threads=1):
                until(lambda: set(ran) >= set(range(101, 120)))
                gate.open()
                done(first)
    handed_back = events.of("task.released")
    assert all("not started in time" in event["why"] for event in handed_back)
    assert {job.refresh().attempt for job in jobs[:3]} == {0}
    assert sorted(ran) == list(range(120))


def test_a_due_one_starts_within_a_tenth_of_a_second_and_once(lattice: Lattice) -> None:
    started: dict[int, float] = {}
    asked: dict[int, float] = {}
    again: list[int] = []

    @lattice.task
    def note(number: int) -> None:
        (again if number in started else (started.setdefault(number, time.monotonic()) and []) or []).append(number)

    note.submit(0)
    with working(lattice):
        until(lambda: 0 in started)
        for number, delay_s in enumerate([0.25, 0.3, 0.35, 0.6, 0.9], start=1):
            asked[number] = time.monotonic() + delay_s
            note.submit(number, _delay=timedelta(seconds=delay_s))
        until(lambda: len(started) == 6)
        done(lattice)

    late = {number: started[number] - due for number, due in asked.items()}
    assert min(late.values()) >= -0.01  # two clocks: the store's and ours
    assert sorted(late.values())[-2] < 0.1
    assert max(late.values()) < 0.5
    assert again == []


def test_a_due_one_is_promoted_once_however_many_workers_look(store_url: str) -> None:
    ran: list[int] = []

    def declare(lattice: Lattice) -> Any:
        @lattice.task
        def note(number: int) -> None:
            ran.append(number)

        return note

    with opened(store_url) as first, opened(store_url) as second, opened(store_url) as third:
        note = declare(first)
        declare(second)
        declare(third)
        with working(first), working(second), working(third):
            note.submit_many([(number,) for number in range(200)], _delay=timedelta(seconds=0.3))
            until(lambda: len(ran) >= 200)
            done(first)
    assert sorted(ran) == list(range(200))


def test_one_far_ahead_holds_up_nobody(lattice: Lattice) -> None:
    """C18, C19"""
    ran: list[int] = []

    @lattice.task
    def note(number: int) -> None:
        ran.append(number)

    far = note.submit_many([(number,) for number in range(500)], _delay=timedelta(hours=1))
    soon = note.submit(1_000, _delay=timedelta(seconds=0.1))
    now = note.submit(2_000)
    with working(lattice):
        until_state(now, "succeeded")
        until_state(soon, "succeeded")
        assert len(lattice.broker._pump._held) == 0
    assert ran == [2_000, 1_000]
    assert states(far[:2]) == ["scheduled", "scheduled"]
    assert lattice.queues.depth("default").scheduled == 500


def test_a_long_queue_does_not_starve_its_neighbours_in_a_worker(lattice: Lattice) -> None:
    ran: list[str] = []

    def declare(queue: str) -> Any:
        @lattice.task(queue=queue, name=f"note {queue}")
        def note() -> None:
            time.sleep(0.002)
            ran.append(queue)

        return note

    long, short, shorter = (declare(queue) for queue in ("long", "short", "shorter"))
    long.submit_many([()] * 300)
    short.submit_many([()] * 3)
    shorter.submit()
    with working(lattice, threads=1):
        done(lattice, "long", "short", "shorter")

    assert len(ran) == 304
    assert max(ran.index("short"), ran.index("shorter")) < 100


def test_an_idle_worker_begins_what_another_process_submits_at_once(store_url: str) -> None:
    """The embedded shape wakes others within 200 ms; two lattices share nothing but the store."""
    started: list[float] = []

    with opened(store_url) as worker, opened(store_url) as client:

        @worker.task
        def note() -> None:
            started.append(time.monotonic())

        with working(worker):
            note.submit()
            until(lambda: len(started) == 1)
            waits = []
            for count in range(2, 8):
                asked = time.monotonic()
                client.submit("default", "note")
                until(lambda count=count: len(started) == count)
                waits.append(started[-1] - asked)

    limit_s = 0.2 if store_url.startswith("sqlite") else 0.3  # without RabbitMQ workers poll Postgres every 250 ms
    assert sorted(waits)[3] < limit_s
