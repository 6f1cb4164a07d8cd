"""Counting failed attempts, exactly and for all processes, and parking at the limit; on both engines."""

import asyncio
import concurrent.futures
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.dead_letters.tracking import IDLE_US, Attempt, Failure, Parked, Tracker, digest_of, reason_of
from lattice_tasks.errors import (
    CallCancelled,
    CallTimedOut,
    InvalidInput,
    InvalidOperation,
    ReservedName,
    StoreError,
    StoreUnavailable,
)
from lattice_tasks.maintenance import Maintenance
from lattice_tasks.settings import Settings
from lattice_tasks.store import failures
from lattice_tasks.store.engine import Engine, Session, Statement
from lattice_tasks.telemetry import Telemetry, make_log
from tests.stores import fresh_engine

pytestmark = pytest.mark.recycled

WHO = ("orders", "paris", "17.4", "key", "set")
_SHELF = Statement("create table if not exists shelf (text text, attempts bigint)")
_PARK = Statement("insert into shelf (text, attempts) values (%s, %s)")
_PARKED = Statement("select text, attempts from shelf order by 1, 2")
_COUNTS = Statement("select attempts from lattice_failure order by 1")
_AGE = Statement("update lattice_failure set failed_at = failed_at - %s")


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        with engine.session() as session:
            session.execute(_SHELF)
        yield engine


def no_room(_failure: Failure) -> None:
    raise LookupError("no room")


@dataclass
class Record:
    """Something that is applied: it fails with the error it has now, and is parked in a table."""

    error: BaseException | None = None
    identity: tuple[str | bytes, ...] = WHO
    scope: str = "orders"
    result: Any = "applied"
    applied: int = 0
    before_park: Callable[[Failure], None] = lambda _failure: None
    seen: list[Failure] = field(default_factory=list)

    def attempt(self) -> Attempt[Any, str]:
        return Attempt(self.scope, self.identity, self.apply, self.park)

    def apply(self) -> Any:
        self.applied += 1
        if self.error is not None:
            raise self.error
        return self.result

    def park(self, session: Session, failure: Failure) -> str:
        session.execute(_PARK, (failure.text, failure.attempts))
        self.before_park(failure)
        self.seen.append(failure)
        return "row"


def fail(tracker: Tracker, record: Record, times: int) -> None:
    for _ in range(times):
        with pytest.raises(type(record.error)) as raised:
            tracker.track(record.attempt())
        assert raised.value is record.error


def parked(engine: Engine) -> list[tuple]:
    with engine.session() as session:
        return session.fetch(_PARKED)


def counts(engine: Engine) -> list[int]:
    with engine.session() as session:
        return [row[0] for row in session.fetch(_COUNTS)]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_last_attempt_parks_and_the_ones_before_raise(engine: Engine, limit: int) -> None:
    """D-01, D-02, D-03, D-04, D-10, A-24: attempts in total, not retries."""
    record, tracker = Record(OSError("disk")), Tracker(engine, limit)

    fail(tracker, record, limit - 1)
    answer = tracker.track(record.attempt())

    assert answer == Parked(Failure(record.error, "unknown", "disk", limit), "row")
    assert (parked(engine), record.applied, counts(engine)) == ([("disk", limit)], limit, [])


def test_five_is_the_default(engine: Engine) -> None:
    """D-04"""
    record = Record(OSError("disk"))
    fail(Tracker(engine), record, 4)

    assert isinstance(Tracker(engine).track(record.attempt()), Parked)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, None, "5"])
def test_a_limit_below_one_is_refused(engine: Engine, wrong: Any) -> None:
    """D-53"""
    with pytest.raises(InvalidInput, match="max_attempts="):
        Tracker(engine, wrong)


def test_every_part_of_an_identity_counts_for_itself(engine: Engine) -> None:
    """D-05"""
    tracker = Tracker(engine, 2)
    fail(tracker, Record(OSError("first")), 1)

    for place in range(len(WHO)):
        fail(tracker, Record(OSError("other"), (*WHO[:place], "else", *WHO[place + 1 :])), 1)
    fail(tracker, Record(OSError("other"), scope="users"), 1)

    assert parked(engine) == []
    assert isinstance(tracker.track(Record(OSError("first")).attempt()), Parked)


@given(st.lists(st.lists(st.text(max_size=3) | st.binary(max_size=3), min_size=1, max_size=4), min_size=2, max_size=2))
def test_no_two_identities_are_one(both: list[list[str | bytes]]) -> None:
    """D-05: neither where a part ends nor its kind is lost."""
    one, other = both

    assert (digest_of(one) == digest_of(other)) == (one == other)


@pytest.mark.parametrize("wrong", [(), ("a", 1), (None,)])
def test_an_identity_is_made_of_texts_and_bytes(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="identity"):
        digest_of(wrong)


@pytest.mark.parametrize("wrong", ["", "a\0b", "\ud800", "x" * 2_049, 7])
def test_a_scope_is_a_text_that_a_store_can_hold(engine: Engine, wrong: Any) -> None:
    """D-69"""
    record = Record(scope=wrong)

    with pytest.raises(InvalidInput, match="scope"):
        Tracker(engine).track(record.attempt())
    assert record.applied == 0


@pytest.mark.parametrize("result", ["applied", None, False])
def test_what_does_not_raise_begins_a_new_count(engine: Engine, result: Any) -> None:
    """D-06, D-07: also when it was filtered, and changed nothing."""
    record, tracker = Record(OSError("net"), result=result), Tracker(engine)
    fail(tracker, record, 4)
    record.error = None
    assert tracker.track(record.attempt()) is result
    record.error = OSError("net")

    fail(tracker, record, 4)

    assert parked(engine) == []


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(1),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        CallCancelled("no more"),
        CallTimedOut("too late"),
    ],
    ids=lambda error: type(error).__module__ + type(error).__name__,
)
def test_a_cancelled_attempt_counts_nothing(engine: Engine, error: BaseException) -> None:
    """D-08"""
    fail(Tracker(engine, 1), Record(error), 3)

    assert (counts(engine), parked(engine)) == ([], [])


def test_after_parking_a_copy_has_all_its_attempts(engine: Engine) -> None:
    """D-09, D-84"""
    record, tracker = Record(OSError("net")), Tracker(engine, 3)
    fail(tracker, record, 2)
    tracker.track(record.attempt())

    fail(tracker, record, 2)
    tracker.track(record.attempt())

    assert parked(engine) == [("net", 3), ("net", 3)]


def test_what_cannot_be_parked_keeps_its_count_and_is_parked_next_time(engine: Engine) -> None:
    """D-30"""
    record, tracker = Record(OSError("net"), before_park=no_room), Tracker(engine, 3)
    fail(tracker, record, 2)

    with pytest.raises(LookupError, match="no room") as raised:
        tracker.track(record.attempt())
    assert raised.value.__cause__ is record.error
    assert (parked(engine), counts(engine)) == ([], [3])
    record.before_park = lambda _failure: None

    answer = tracker.track(record.attempt())

    assert isinstance(answer, Parked)
    assert (answer.failure.attempts, parked(engine), counts(engine)) == (4, [("net", 4)], [])


def test_a_store_that_is_lost_while_parking_keeps_the_count(engine: Engine) -> None:
    """D-30: nothing of it is committed, and nothing is lost."""
    record, tracker = Record(OSError("net")), Tracker(engine, 2)
    fail(tracker, record, 1)
    doomed = Attempt("orders", WHO, record.apply, lambda session, _failure: _lose(session))

    with pytest.raises(StoreError):
        tracker.track(doomed)

    assert counts(engine) == [1]
    assert isinstance(tracker.track(record.attempt()), Parked)


def _lose(session: Session) -> None:
    session.close()
    raise StoreUnavailable("gone")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("x"), "schema"),
        (TypeError("x"), "schema"),
        (KeyError("x"), "schema"),
        (InvalidInput("x"), "schema"),
        (ReservedName("x"), "schema"),
        (InvalidOperation("x"), "schema"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), "schema"),
        (TimeoutError("x"), "unknown"),
        (OSError("x"), "unknown"),
        (StoreUnavailable("x"), "unknown"),
        (RuntimeError("x"), "unknown"),
        (IndexError("x"), "unknown"),
        (Exception(), "unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_class_of_the_error_is_the_reason(error: Exception, reason: str) -> None:
    """D-91, D-92, A-23"""
    assert reason_of(error) == reason


def test_an_error_without_words_is_told_by_its_class_and_a_hostile_one_is_cleaned(engine: Engine) -> None:
    """D-10"""
    tracker = Tracker(engine, 1)
    for error in (RuntimeError(), RuntimeError("a\0\ud800" + "x" * 9_000)):
        tracker.track(Record(error).attempt())

    cut, silent = sorted((row[0] for row in parked(engine)), reverse=True)
    assert silent == "RuntimeError"
    assert cut.startswith(r"a\x00\ud800x")
    assert len(cut.encode()) <= 4_096


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
            session.execute(_PARK, ("half", 0))
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
