"""Stopping a worker costs nobody an attempt, whatever it was in the middle of."""

import sys
import time
from collections.abc import Callable

import pytest

from lattice_tasks.tasks.invocation import State
from tests.paths.conftest import Begin
from tests.paths.fleet import APP, Life, Supervised
from tests.paths.processes import Process
from tests.servers import Postgres

BRIEF_MS = 300


def stock_dramatiq(life: Life) -> Process:
    command = [sys.executable, "-m", "dramatiq", APP, "--processes", "1", "--threads", "2"]
    process = life.run([*command, "--worker-shutdown-timeout", str(BRIEF_MS)])
    life.event("worker.started")
    return process


def our_command(life: Life) -> Process:
    return Supervised(life, processes=1, threads=2, shutdown_s=BRIEF_MS / 1_000).process


@pytest.mark.parametrize("start", [stock_dramatiq, our_command])
def test_a_task_that_outlasts_the_shutdown_is_not_charged_and_runs_again(
    served: Begin, start: Callable[[Life], Process]
) -> None:
    """Faults 2: its lease is released last, so the next worker takes it at once, as if it had never begun."""
    life = served(lease_ms=30_000)
    gate = life.gate()
    process = start(life)
    life.submit("hold", "long", gate)
    (began,) = life.started("long")
    life.fault("SIGTERM", victim=began["pid"])

    assert process.stop() == 0

    (stopped,) = life.event("worker.stopped")
    row = {row.name: row for row in life.store.rows()}["long"]
    assert (row.state, row.attempt) == (State.WAITING, 0)
    assert stopped["fields"]["released"] == 1
    started_at = time.monotonic()
    life.worker()
    again = life.started("long", 2)[1]
    assert again["attempt"] == 1
    assert again["at"] - started_at < 5  # far below the lease
    life.open(gate)
    life.finished()
    assert life.history.of("end", pid=began["pid"]) == []
    assert life.checked(budget=1)["long"].attempt == 0


def test_five_stops_use_up_nothing(sqlite_url: str, begin: Begin) -> None:
    """C21: with three retries, it is still alive after five stops, and resumed each time."""
    life = begin(sqlite_url, lives_max_retries=3)
    gate = life.gate()
    life.submit("hold", "long", gate)
    for number in range(1, 6):
        worker = life.worker(threads=1, shutdown_ms=0)
        life.started("long", number)
        life.fault("SIGTERM", victim=worker.pid)
        assert worker.stop() == 0

    life.worker(threads=1)
    life.open(gate)
    life.finished()

    assert [one["attempt"] for one in life.history.of("start", name="long")] == [1] * 6
    assert life.checked(budget=1)["long"].state is State.SUCCEEDED


def test_a_task_that_asks_to_be_told_of_the_shutdown_is_not_charged_for_it(anywhere: Begin) -> None:
    """Dramatiq's `notify_shutdown`: the interrupt is no failure of the task."""
    life = anywhere()
    gate = life.gate()
    worker = life.worker(threads=1)
    life.submit("interruptible", "asks", gate)
    life.started("asks")
    life.fault("SIGTERM")

    assert worker.stop() == 0

    assert [one["error"] for one in life.history.of("end", name="asks")] == ["Shutdown"]
    assert [(row.state, row.attempt) for row in life.store.rows()] == [(State.WAITING, 0)]
    life.open(gate)
    life.worker(threads=1)
    life.finished()
    assert [one["attempt"] for one in life.history.of("start", name="asks")] == [1, 1]
    life.checked(budget=1)


@pytest.mark.parametrize("restarts", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_rolling_restarts_under_load_repeat_nothing(anywhere: Begin, restarts: int) -> None:
    """Faults 2: what runs ends in time, what has not begun goes back at once; each task runs exactly once."""
    life = anywhere()
    workers = [life.worker(), life.worker()]
    with life.submitting(every_s=0.003, ms=20) as stream:
        stream.more(20)
        for number in range(restarts):
            assert workers[number % 2].stop() == 0
            workers[number % 2] = life.worker()
            stream.more(20)
    life.finished()

    rows = life.checked(budget=1)
    assert len(life.history.of("start")) == len(rows) > 20 * restarts
    assert {(row.state, row.attempt) for row in rows.values()} == {(State.SUCCEEDED, 0)}
    assert len(life.history.events("worker.stopped")) == restarts


@pytest.mark.soak
def test_a_stop_without_the_store_is_bounded_and_names_what_it_could_not_write(
    own_postgres: Postgres, own_postgres_url: str, rabbitmq_url: str, begin: Begin
) -> None:
    """The effect may repeat then, and the log says whose."""
    life = begin(own_postgres_url, rabbitmq_url, lease_ms=2_000)
    gate = life.gate()
    worker = life.worker()
    job = life.submit("hold", "unwritten", gate)
    life.started("unwritten")
    life.fault("the store is away", victim=worker.pid)
    own_postgres.stop()
    life.open(gate)
    life.event("store.unavailable")

    stopping_at = time.monotonic()
    assert worker.stop() == 0

    assert time.monotonic() - stopping_at < 20
    (told,) = life.history.events("worker.unwritten")
    assert told["fields"]["task_ids"] == [job.id]
    own_postgres.start()
    life.worker()
    life.finished()
    assert life.checked()["unwritten"].state is State.SUCCEEDED
    assert len(life.started("unwritten")) == 2
