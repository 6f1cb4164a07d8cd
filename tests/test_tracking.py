"""Counting failed attempts, and parking at the limit; on both engines."""

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_tasks.dead_letters.tracking import Attempt, Failure, Parked, Tracker, digest_of, reason_of
from lattice_tasks.errors import (
    CallCancelled,
    CallTimedOut,
    InvalidInput,
    InvalidOperation,
    ReservedName,
    StoreError,
    StoreUnavailable,
)
from lattice_tasks.store.engine import Engine, Session
from tests.stores import fresh_engine
from tests.tracked import SHELF, WHO, Record, counts, fail, no_room, parked

pytestmark = pytest.mark.recycled


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        with engine.session() as session:
            session.execute(SHELF)
        yield engine


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
