"""Counts that outlive processes and roll-backs and are exact whoever fails at once; and batches; on both engines."""

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lattice_tasks.dead_letters.tracking import IDLE_US, Attempt, Parked, Tracker
from lattice_tasks.errors import (
    CallCancelled,
    InvalidOperation,
)
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.settings import Settings
from lattice_tasks.store import failures
from lattice_tasks.store.engine import Engine, Statement
from lattice_tasks.telemetry import Telemetry, make_log
from tests.stores import fresh_engine
from tests.tracked import PARK, SHELF, WHO, Record, counts, fail, parked

pytestmark = pytest.mark.recycled

_AGE = Statement("update lattice_failure set failed_at = failed_at - %s")


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        with engine.session() as session:
            session.execute(SHELF)
        yield engine


def test_a_count_survives_restarts_and_is_forgotten_when_nobody_fails_for_an_hour(
    engine: Engine, store_url: str
) -> None:
    """A-10, D-01"""
    record = Record(OSError("net"))
    fail(Tracker(engine, 3), record, 2)
    restarted = Engine(Settings(store_url=store_url))
    _age(engine, IDLE_US - 60_000_000)
    assert isinstance(Tracker(restarted, 3).track(record.attempt()), Parked)

    fail(Tracker(restarted, 3), record, 2)
    _age(engine, IDLE_US)

    fail(Tracker(restarted, 3), record, 2)
    restarted.close()


def test_maintenance_forgets_what_nobody_raised_for_an_hour(engine: Engine) -> None:
    """A-10: a page at a time, and nothing that still counts."""
    tracker = Tracker(engine)
    for number in range(5):
        fail(tracker, Record(OSError("net"), (str(number),)), 1)
    _age(engine, IDLE_US)
    fail(tracker, Record(OSError("net"), ("young",)), 2)

    with engine.session() as session:
        assert failures.prune(session, IDLE_US, 3) == 3
        chores = Maintenance(Settings(), Telemetry(make_log("critical")), lambda _ids: None)
        for chore in chores._chores:
            chore.due_at = 0.0 if chore.name == "failures" else float("inf")
        chores.run_due(session)

    assert counts(engine) == [2]


def _age(engine: Engine, by_us: int) -> None:
    with engine.session() as session:
        session.execute(_AGE, (by_us,))


def test_a_count_is_not_taken_where_it_could_be_rolled_back(engine: Engine) -> None:
    """A-10: the failed transaction must not take its count with it."""
    record, tracker = Record(OSError("net")), Tracker(engine, 1)

    with engine.session() as session, session.transaction(), pytest.raises(InvalidOperation, match="a transaction"):
        tracker.track(record.attempt())
    with engine.together(), pytest.raises(InvalidOperation, match="a transaction"):
        tracker.track_all([record.attempt()], record.apply)

    assert (record.applied, counts(engine), parked(engine)) == (0, [], [])


def test_a_count_survives_the_roll_back_of_what_failed(engine: Engine) -> None:
    """A-10"""

    def write_and_fail() -> None:
        with engine.session() as session, session.transaction():
            session.execute(PARK, ("half", 0))
            raise OSError("net")

    attempt = Attempt("orders", WHO, write_and_fail, Record().park)
    for _ in range(2):
        with pytest.raises(OSError, match="net"):
            Tracker(engine).track(attempt)

    assert (parked(engine), counts(engine)) == ([], [2])


def test_threads_that_fail_at_once_are_counted_one_by_one(engine: Engine) -> None:
    """A-10: 24 failures of one thing with a limit of 5 park four times, and four are left over."""
    tracker = Tracker(engine)
    start = threading.Barrier(4)

    def deliver() -> None:
        start.wait()
        for _ in range(6):
            try:
                tracker.track(Record(OSError("net")).attempt())
            except OSError:
                continue

    threads = [threading.Thread(target=deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (parked(engine), counts(engine)) == ([("net", 5)] * 4, [4])


def _deliver(store_url: str, times: int) -> None:
    engine = Engine(Settings(store_url=store_url))
    for _ in range(times):
        try:
            Tracker(engine).track(Record(OSError("net")).attempt())
        except OSError:
            continue
    engine.close()


def test_processes_share_the_count(engine: Engine, store_url: str) -> None:
    """A-10: three processes, five attempts in all."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_deliver, args=(store_url, times)) for times in (2, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0

    assert (parked(engine), counts(engine)) == ([("net", 5)], [2])


class Batch:
    """A good record behind a bad one, and a canonical call that applies both or fails."""

    def __init__(self, engine: Engine) -> None:
        self.bad, self.good = Record(OSError("bad"), ("bad",)), Record(identity=("good",))
        self.wholes = 0
        self.tracker = Tracker(engine)

    def deliver(self) -> list[Any]:
        return self.tracker.track_all([self.bad.attempt(), self.good.attempt()], self.whole)

    def whole(self) -> str:
        self.wholes += 1
        if self.bad.error:
            raise self.bad.error
        return "both"


def test_a_batch_without_history_goes_whole(engine: Engine) -> None:
    """D-21"""
    batch = Batch(engine)
    batch.bad.error = None

    assert (batch.deliver(), batch.wholes, batch.bad.applied, batch.good.applied) == (["both"], 1, 0, 0)


def test_one_bad_record_stalls_a_batch_five_times_at_most(engine: Engine) -> None:
    """D-11, D-22, D-28: whole at first, one by one while there is a history, the later ones not attempted."""
    batch = Batch(engine)
    for delivery in range(1, 5):
        with pytest.raises(OSError, match="bad"):
            batch.deliver()
        assert (batch.wholes, batch.bad.applied, batch.good.applied, counts(engine)) == (1, delivery, 0, [delivery])

    first, second = batch.deliver()

    assert isinstance(first, Parked)
    assert (second, batch.wholes, parked(engine)) == ("applied", 1, [("bad", 5)])


def test_a_single_one_never_goes_whole_and_none_is_no_call(engine: Engine) -> None:
    """D-22, D-27"""
    record = Record()

    def never() -> None:
        raise AssertionError

    assert Tracker(engine).track_all([record.attempt()], never) == ["applied"]
    assert Tracker(engine).track_all([], never) == []


def test_a_cancelled_batch_counts_nothing(engine: Engine) -> None:
    """D-08"""
    batch = Batch(engine)
    batch.bad.error = CallCancelled("no more")

    with pytest.raises(CallCancelled):
        batch.deliver()

    assert (batch.wholes, batch.bad.applied, counts(engine)) == (1, 0, [])
