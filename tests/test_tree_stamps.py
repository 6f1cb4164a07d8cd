"""Stamps rise: by their rules, in their texts, over every step of a clock and every restart."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice_tasks.clock import TICKS_PER_US, Stamp, Version
from lattice_tasks.errors import InvalidInput
from lattice_tasks.keys import stamp_key, stamp_of
from lattice_tasks.store.engine import Engine, Statement
from lattice_tasks.trees.writer import writing
from tests.forest import NAME, SITE, TREE, cell, engine_at, journaled, last_stamp, tree_at, tree_of

pytestmark = pytest.mark.recycled

WALLS = st.integers(0, 2**62) | st.integers(0, 5)
COUNTERS = st.integers(0, 2**31 - 1) | st.integers(0, 3)
STAMPS = st.builds(Stamp, WALLS, COUNTERS)
HOUR = timedelta(hours=1)


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


def key_of(stamp: Stamp) -> str:
    return stamp_key(stamp.wall, stamp.counter)


@given(STAMPS, WALLS)
@example(Stamp(5, 2**31 - 1), 5)
@example(Stamp(5, 3), 5)
@example(Stamp(5, 3), 6)
def test_a_tick_is_above_the_last_stamp_whatever_the_clock_says(last: Stamp, now: int) -> None:
    """spec 2.1 tick"""
    ticked = last.tick(now)

    assert ticked > last
    assert ticked.counter < 2**31
    if now > last.wall:
        assert ticked == Stamp(now, 0)
    elif last.counter < 2**31 - 1:
        assert ticked == Stamp(last.wall, last.counter + 1)


@given(STAMPS, STAMPS, WALLS)
@example(Stamp(5, 7), Stamp(5, 9), 5)
@example(Stamp(5, 7), Stamp(4, 9), 5)
@example(Stamp(5, 2**31 - 1), Stamp(4, 9), 5)
def test_a_merge_is_above_both(one: Stamp, other: Stamp, now: int) -> None:
    """spec 2.1 merge: counter 0 only of the clock; else that of the winner, or the higher of equals, and one."""
    merged = one.merge(other, now)

    assert merged > one
    assert merged > other
    assert merged == other.merge(one, now)
    highest = max(one, other)
    if now > highest.wall:
        assert merged == Stamp(now, 0)
    elif highest.counter < 2**31 - 1:
        winners = [stamp.counter for stamp in (one, other) if stamp.wall == highest.wall]
        assert merged == Stamp(highest.wall, max(winners) + 1)


def test_no_stamp_is_the_lowest() -> None:
    """spec 2.1 value"""
    assert Stamp() == Stamp(0, 0)
    assert Stamp() < Stamp(0, 1) < Stamp(1, 0) < Stamp(1, 1)
    assert Version(Stamp(1, 0), "b") < Version(Stamp(1, 1), "a")
    assert Version(Stamp(1, 0), "a") < Version(Stamp(1, 0), "b")


@given(STAMPS, STAMPS)
def test_the_order_of_texts_is_that_of_stamps(one: Stamp, other: Stamp) -> None:
    """spec 2.1 key"""
    assert (key_of(one) < key_of(other)) == (one < other)
    assert stamp_of(key_of(one)) == (one.wall, one.counter)


def test_a_stamp_is_written_in_thirty_digits() -> None:
    """spec 2.1 key"""
    assert stamp_key(17, 4) == "000000000000000000170000000004"
    for text in ("", "7", "x" * 30, "9" * 30, "٣" * 30, "0" * 20 + "9" * 10, " " + "0" * 29):
        assert stamp_of(text) is None, text
    for wall, counter in ((-1, 0), (0, -1), (2**63, 0), (0, 2**31)):
        with pytest.raises(InvalidInput, match="outside"):
            stamp_key(wall, counter)


def test_a_stamp_is_the_stores_clock(engine: Engine) -> None:
    """spec 2.1 value: units of 100 ns since 1970 UTC."""
    with engine.session() as session:
        before = session.fetch(Statement("select {now}"))[0][0]

    stamp = tree_of(engine).set("a", 1).stamp

    assert 0 <= stamp.wall - before * TICKS_PER_US < 60_000_000 * TICKS_PER_US
    assert stamp.counter == 0


def test_stamps_rise_over_restarts_and_steps_of_the_clock(store_url: str) -> None:
    """spec 2.1 tick: two hours back, one forward; every process starts anew from what the head holds."""
    stamps = []
    for hours in (0, 1, -1, -1, 0, 2, 0):
        with tree_at(store_url, hours * HOUR) as tree:
            stamps += [tree.set("a", hours).stamp, tree.set_many({"b": 1, "c": 2}).stamp]

    assert stamps == sorted(set(stamps))
    ahead = stamps[3]
    assert [(stamp.wall, stamp.counter - ahead.counter) for stamp in stamps[4:8]] == [
        (ahead.wall, 1), (ahead.wall, 3), (ahead.wall, 4), (ahead.wall, 6)
    ]  # fmt: skip
    assert stamps[-1].counter > 0


def test_after_a_step_back_a_newer_value_still_wins(store_url: str) -> None:
    """spec 2.1 tick, 2.2: the later write, not the later wall clock."""
    with tree_at(store_url, HOUR) as tree:
        tree.set("a", "early, fast clock")
    with tree_at(store_url) as tree:
        version = tree.set("a", "late")

        assert tree.get_with_version("a") == ("late", version)


def test_many_writers_at_once_never_make_one_stamp_twice(engine: Engine) -> None:
    """spec 2.1 tick: ticked where the change is made, so the order of stamps is the order of the journal."""
    tree_of(engine).replicate()
    start = threading.Barrier(4)

    def write(number: int) -> list[Stamp]:
        start.wait()
        return [tree_of(engine).set(f"k{number}", turn).stamp for turn in range(25)]

    with ThreadPoolExecutor(4) as pool:
        stamps = [stamp for made in pool.map(write, range(4)) for stamp in made]

    assert len(set(stamps)) == 100
    assert [record.version.stamp for record in journaled(engine)] == sorted(stamps)


def test_a_foreign_stamp_lifts_ours(engine: Engine) -> None:
    """spec 2.1 merge, 2.2: who has seen a change writes above it."""
    tree = tree_of(engine)
    ours = tree.set("a", 1).stamp
    far = ours.wall + 10**12
    with engine.session() as session, writing(session, TREE, SITE) as writer:
        writer.merge([cell("a", b"2", far, 5)])

    assert last_stamp(engine) == Stamp(far, 6)
    assert tree.set("a", 3).stamp == Stamp(far, 7)
    assert tree.get("a") == 3


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4])
def test_a_counter_that_is_used_up_moves_the_wall(engine: Engine, left: int) -> None:
    """spec 2.1 value: the counter is an int32; stamps rise all the same."""
    tree = tree_of(engine)
    tree.replicate()
    highest = 2**31 - 1
    with engine.session() as session, writing(session, TREE, SITE) as writer:
        writer.merge([cell("z", b"0", 2**61, highest - left - 1)])

    last = tree.set_many({"a": 1, "b": 2, "c": 3}).stamp

    stamps = [record.version.stamp for record in journaled(engine)]
    assert stamps[-1] == last
    assert stamps == sorted(set(stamps))
    assert all(stamp.counter <= highest for stamp in stamps)
    assert last.wall == 2**61 + (left < 3)
    assert tree.set("a", 4).stamp > last


def test_a_change_that_fails_takes_no_stamp(engine: Engine) -> None:
    tree = tree_of(engine)
    tree.set("a", 1)
    before = last_stamp(engine)

    assert tree.set_if_absent("a", 2) is None
    assert tree.delete("b") is False

    assert last_stamp(engine) == before


def test_trees_have_stamps_of_their_own(engine: Engine) -> None:
    """spec 2.1: per tree."""
    with engine.session() as session, writing(session, TREE, SITE) as writer:
        writer.merge([cell("a", b"2", 2**61)])

    assert tree_of(engine, "others").set("a", 1).stamp.wall < 2**60
    assert tree_of(engine, NAME).set("a", 1).stamp == Stamp(2**61, 2)
