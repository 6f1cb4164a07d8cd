"""RabbitMQ away, emptied, or frozen: submits go on, workers poll, and its return is noticed at once."""

import os
import signal
import time
from typing import Any

import pytest

from lattice_tasks.tasks.invocation import State
from tests.paths import wakes
from tests.paths.conftest import Begin
from tests.paths.fleet import Life, Submitting, settled
from tests.servers import RabbitMQ


@pytest.fixture
def living(postgres_url: str, own_rabbitmq: RabbitMQ, begin: Begin) -> Life:
    """A life whose RabbitMQ may be stopped; its workers would poll so rarely that wake-ups have to work."""
    own_rabbitmq.start()
    life = begin(postgres_url, own_rabbitmq.url, poll_ms=10_000)
    life.lattice.telemetry.subscribe(lambda name, fields: life.history.note("event", name=name, fields=dict(fields)))
    return life


def told_by_all(life: Life, name: str, pids: list[int], count: int = 1) -> None:
    """Wait until each of these processes has told an event so often."""
    for pid in pids:
        life.event(name, count, pid=pid)


def starts_within_a_second(life: Life, name: str) -> dict[str, Any]:
    submitted_at = time.monotonic()
    life.submit("work", name)
    (start,) = life.started(name)
    assert start["at"] - submitted_at < 1, f"{name} started {start['at'] - submitted_at:.2f} s after its submit"
    return start


def no_submit_waited(stream: Submitting) -> None:
    assert stream.errors == []
    assert stream.slowest_s() < 1


def test_rabbitmq_stopped_emptied_and_restarted_while_submitting_and_working(
    living: Life, own_rabbitmq: RabbitMQ
) -> None:
    """Faults 5 and 9, C14."""
    pids = [living.worker().pid for _ in range(2)]
    everyone = [*pids, os.getpid()]
    with living.submitting() as stream:
        stream.more()
        own_rabbitmq.stop()
        latecomer = living.worker()  # it starts without RabbitMQ, too
        pids.append(latecomer.pid)
        everyone.append(latecomer.pid)
        told_by_all(living, "broker.unavailable", everyone)
        stream.more()
        own_rabbitmq.start()
        starts_within_a_second(living, "after the return")
        told_by_all(living, "broker.recovered", everyone)
        for _ in range(5):
            with wakes.channel(living) as opened:
                opened.queue_purge(wakes.queue_of(living))
            stream.more(10)
        wakes.remove(living)
        stream.more()
        starts_within_a_second(living, "after the deletion")
    living.finished()

    own_rabbitmq.kill()
    told_by_all(living, "broker.unavailable", everyone, 2)
    own_rabbitmq.start()
    starts_within_a_second(living, "after the crash")  # no poll is due, and nobody else has submitted
    told_by_all(living, "broker.recovered", everyone, 2)
    living.finished()

    no_submit_waited(stream)
    assert {row.state for row in living.checked(budget=1).values()} == {State.SUCCEEDED}
    assert sorted(living.workers()) == sorted(pids)


def test_a_wake_up_queue_that_a_stranger_declared_is_used_as_it_is(living: Life) -> None:
    """C44: another version made it with other arguments; nobody stops for that."""
    living.lattice.queues.add("lives")
    with wakes.channel(living) as opened:
        opened.queue_declare(wakes.queue_of(living), durable=True, arguments={"x-max-length": 3})
    worker = living.worker()
    living.submit("work", "first")
    living.finished()

    starts_within_a_second(living, "second")

    assert living.history.events("wakeup.received")
    assert living.history.events("broker.unavailable") == []
    assert worker.is_alive


@pytest.mark.parametrize("frozen_s", [3, pytest.param(90, marks=pytest.mark.soak)])
def test_a_frozen_rabbitmq_holds_up_neither_submits_nor_work(
    living: Life, own_rabbitmq: RabbitMQ, frozen_s: int
) -> None:
    """C14, faults 6: it accepts bytes and never answers; heartbeats find that out, polling bridges it."""
    everyone = [living.worker(LATTICE_POLL_MS="500").pid, os.getpid()]
    pid = own_rabbitmq.pid
    assert pid is not None
    starts_within_a_second(living, "before")
    with living.submitting() as stream:
        os.kill(pid, signal.SIGSTOP)
        try:
            frozen_at = time.monotonic()
            living.submit("work", "meanwhile")
            (start,) = living.started("meanwhile")
            stream.more(20)
            settled(lambda: time.monotonic() - frozen_at > frozen_s, "the end of the freeze", frozen_s + 5)
        finally:
            os.kill(pid, signal.SIGCONT)
        stream.more(20)
    living.finished()

    assert start["at"] - frozen_at < 1.5
    no_submit_waited(stream)
    if frozen_s > 60:  # two heartbeats of 30 s: both ends have found out, and both have to come back
        told_by_all(living, "broker.unavailable", everyone)
        told_by_all(living, "broker.recovered", everyone)
    woken = len(living.history.events("wakeup.received"))
    starts_within_a_second(living, "after")
    assert settled(lambda: len(living.history.events("wakeup.received")) > woken, "a wake-up")
    living.finished()
    living.checked(budget=1)


@pytest.mark.soak
def test_the_first_task_after_many_a_quiet_outage_is_brought_by_a_wake_up(living: Life, own_rabbitmq: RabbitMQ) -> None:
    """C14: nobody submits meanwhile and no poll is due, so both ends have to have reconnected."""
    workers = [living.worker(threads=1) for _ in range(2)]
    everyone = [*(worker.pid for worker in workers), os.getpid()]
    starts_within_a_second(living, "before")
    for number in range(1, 21):
        if number % 2:
            own_rabbitmq.stop()
        else:
            own_rabbitmq.kill()
        told_by_all(living, "broker.unavailable", everyone, number)
        own_rabbitmq.start()
        starts_within_a_second(living, f"after {number}")
        told_by_all(living, "broker.recovered", everyone, number)
        living.finished()

    assert all(worker.is_alive for worker in workers)
    assert {row.state for row in living.checked(budget=1).values()} == {State.SUCCEEDED}
