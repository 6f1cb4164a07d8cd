"""Batches, and the journal of replicated trees: all or nothing, once, and one record for each change."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks.errors import InvalidInput, OperationMismatch
from lattice_tasks.maintenance import compact_trees
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.journal import Record
from lattice_tasks.trees.tree import LatticeTree
from tests.forest import engine_at, journaled, last_stamp, stored, tree_of
from tests.stores import Crash, watched

pytestmark = pytest.mark.recycled

HOUR = timedelta(hours=1)


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


@pytest.fixture
def tree(engine: Engine) -> LatticeTree[Any]:
    return tree_of(engine)


def entries(tree: LatticeTree[Any]) -> dict[str, Any]:
    return {entry.key: entry.value for entry in tree.scan()}


def make(tree: LatticeTree[Any], operation_id: str | None = None, **changes: Any) -> bool:
    """A batch of sets, and of deletions where the value is None."""
    with tree.batch(operation_id) as batch:
        for key, value in changes.items():
            batch.delete(key) if value is None else batch.set(key, value)
    return batch.was_made


def test_a_batch_sets_and_deletes_together(tree: LatticeTree[Any]) -> None:
    tree.set_many({"a": 1, "b": 2})

    assert make(tree, a=None, b=3, c=4, missing=None)

    assert entries(tree) == {"b": 3, "c": 4}


def test_a_batch_that_raises_is_not_made(tree: LatticeTree[Any]) -> None:
    tree.set("a", 1)

    def fail() -> None:
        with tree.batch("op") as batch:
            batch.set("a", 2)
            batch.delete("b")
            raise LookupError

    with pytest.raises(LookupError):
        fail()

    assert entries(tree) == {"a": 1}
    assert make(tree, "op", a=3)


def test_a_key_stands_once_in_a_batch(tree: LatticeTree[Any]) -> None:
    with tree.batch() as batch:
        batch.set("a", 1)
        with pytest.raises(InvalidInput, match="'a' stands in this batch already"):
            batch.delete("a")

    assert entries(tree) == {"a": 1}


@pytest.mark.parametrize("crash_before", range(1, 9))
def test_a_crash_at_any_statement_leaves_all_or_nothing(engine: Engine, crash_before: int) -> None:
    """spec 2.10 atomic writes: cells, tombstones, journal, head and operation id are one transaction."""
    tree = tree_of(engine)
    tree.replicate()
    tree.set("a", 1)
    before, stamp, records = stored(engine), last_stamp(engine), len(journaled(engine))

    with watched(engine, crash_before) as session:
        try:
            make(tree_of(session), "op", a=None, b=2, c=3)
            crashed = False
        except Crash:
            crashed = True

    assert crashed == (crash_before <= 6)
    if crashed:
        assert (stored(engine), last_stamp(engine), len(journaled(engine))) == (before, stamp, records)
    else:
        assert entries(tree) == {"b": 2, "c": 3}
        assert len(journaled(engine)) == records + 4
    assert make(tree, "op", a=None, b=2, c=3) == crashed
    assert entries(tree) == {"b": 2, "c": 3}


@pytest.mark.parametrize("change", ["set", "set_many", "delete", "delete_range", "set_if_version", "first"])
def test_a_crash_in_any_change_leaves_all_or_nothing(engine: Engine, change: str) -> None:
    """The journal's row and the head are written by the transaction of the change: no change without, no row without."""
    tree = tree_of(engine)
    if change != "first":
        tree.replicate()
        tree.set_many({"a": 1, "b": 2})
    calls: dict[str, Callable[[LatticeTree[Any]], Any]] = {
        "set": lambda on: on.set("a", 2),
        "set_many": lambda on: on.set_many({"a": 2, "c": 3}),
        "delete": lambda on: on.delete("a"),
        "delete_range": lambda on: on.delete_range("a", "z"),
        "set_if_version": lambda on: on.set_if_version("a", 2, version),
        "first": lambda on: on.set("a", 2),
    }
    version = tree.get_with_version("a")[1]
    before, records = stored(engine), journaled(engine)

    for crash_before in range(1, 20):
        with watched(engine, crash_before) as session:
            try:
                calls[change](tree_of(session))
                break
            except Crash:
                assert (stored(engine), journaled(engine)) == (before, records), crash_before

    assert crash_before > (1 if change.startswith("set") and "if" not in change else 3)
    assert stored(engine) != before
    assert (len(journaled(engine)) > len(records)) == (change != "first")


def test_an_operation_is_made_once(tree: LatticeTree[Any]) -> None:
    """spec 2.10 atomic writes: idempotent by operation id; later changes are not undone by a repetition."""
    assert make(tree, "op", a=1, b=None) is True
    tree.set("a", 2)

    assert make(tree, "op", a=1, b=None) is False
    assert make(tree, "op", b=7, a=9) is False
    assert entries(tree) == {"a": 2}
    assert make(tree, "other", a=3) is True


def test_an_operation_id_belongs_to_its_keys(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.10 atomic writes: the fingerprint of the key set is checked; ids of other trees are others."""
    make(tree, "op", a=1, b=2)
    for keys in ({"a": 1}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}, {"ab": 1}):
        with pytest.raises(OperationMismatch, match="'op'"):
            make(tree, "op", **keys)

    assert entries(tree) == {"a": 1, "b": 2}
    assert make(tree_of(engine, "others"), "op", z=1)


def test_an_operation_is_remembered_for_two_days(store_url: str) -> None:
    """spec 2.10 atomic writes: state kept 48 h."""
    with engine_at(store_url) as engine:
        make(tree_of(engine), "op", a=1)
    for hours, again in ((47, False), (49, True)):
        with engine_at(store_url, hours * HOUR) as engine, engine.session() as session:
            compact_trees(session, 0)
            assert make(tree_of(engine), "op", a=2) is again


@pytest.mark.parametrize("operation_id", ["", " ", "a/b", "x" * 256, "a\0", "\ud800", 5, b"x"])
def test_a_bad_operation_id_is_refused(tree: LatticeTree[Any], operation_id: Any) -> None:
    """spec 2.10 atomic writes: operation id (no `/`)"""
    with pytest.raises(InvalidInput, match="operation id"):
        make(tree, operation_id, a=1)

    assert entries(tree) == {}


def test_one_operation_by_many_at_once_is_made_once(engine: Engine) -> None:
    """spec 2.10 atomic writes"""
    start = threading.Barrier(6)

    def attempt(number: int) -> bool:
        start.wait()
        return make(tree_of(engine), "op", a=number, b=number)

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(attempt, range(6)))

    assert made.count(True) == 1
    assert entries(tree_of(engine)) == {"a": made.index(True), "b": made.index(True)}


# --- the journal


def brief(records: list[Record]) -> list[tuple]:
    return [(one.op, one.key, one.end_key, one.value) for one in records]


def test_a_tree_that_is_not_declared_writes_no_journal(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.2: an undeclared tree is not replicated."""
    tree.set("a", 1)
    make(tree, "op", b=2)
    tree.delete_range("a", "c")

    assert journaled(engine) == []


def test_every_change_is_one_record(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.4, 2.5: dense from 0, in the order of the stamps; no record for what changed nothing."""
    tree.set("before", 0)
    tree.replicate()
    version = tree.set("a", 1)
    tree.set_many({"b": 2, "c": 3})
    tree.delete("b")
    tree.delete("b")
    tree.set_if_absent("a", 9)
    tree.set_if_version("a", 4, version)
    tree.set_if_version("a", 9, version)
    expires_at = next(tree.scan(start=tree.set("d", 5, ttl=HOUR) and "d")).expires_at

    found = journaled(engine)
    assert brief(found) == [
        ("set", "a", None, b"1"),
        ("set", "b", None, b"2"),
        ("set", "c", None, b"3"),
        ("delete", "b", None, None),
        ("set", "a", None, b"4"),
        ("set", "d", None, b"5"),
    ]
    assert found[0].version == version
    assert {one.version.origin for one in found} == {"local"}
    stamps = [one.version.stamp for one in found]
    assert stamps == sorted(set(stamps))
    assert {key: cell.version for key, cell in stored(engine).items() if key != "before"} == {
        one.key: one.version for one in found
    }
    assert [one.expires_at is not None for one in found] == [False] * 5 + [True]
    assert expires_at is not None
    assert {one.transaction_id for one in found} == {None}


def test_a_deleted_range_is_journaled_also_when_nothing_matched(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.10 range delete: peers may hold keys there; one stamp for the whole range (A-11)."""
    tree.replicate()
    tree.set_many({"a": 1, "b": 2})
    assert tree.delete_range("x", "z") == 0
    assert tree.delete_range("a", "c") == 2

    found = journaled(engine)
    assert brief(found)[2:] == [("delete_range", "x", "z", None), ("delete_range", "a", "c", None)]
    assert {cell.version for cell in stored(engine).values()} == {found[-1].version}
    assert found[-1].version > found[-2].version


def test_a_batch_is_journaled_as_one(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.4, 2.10: its records, then one commit, which tells how many they are; a repetition writes none."""
    tree.replicate()
    tree.set("a", 1)
    for _ in range(2):
        make(tree, "op", a=None, b=2, missing=None)
    make(tree, c=3)

    found = journaled(engine)[1:]
    assert brief(found) == [
        ("delete", "a", None, None),
        ("set", "b", None, b"2"),
        ("commit", None, None, None),
        ("set", "c", None, b"3"),
        ("commit", None, None, None),
    ]
    assert [(one.transaction_id, one.batch_size, one.batch_index) for one in found[:3]] == [
        ("op", 2, 0),
        ("op", 2, 1),
        ("op", 2, 2),
    ]
    assert found[3].transaction_id == found[4].transaction_id not in (None, "op")


def test_the_journal_keeps_what_was_written(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.5: the value at commit; later overwrites hide nothing."""
    tree.replicate()
    for number in range(3):
        tree.set("a", number)
    tree.delete("a")

    assert [one.value for one in journaled(engine)] == [b"0", b"1", b"2", None]


def test_the_journal_stays_dense_under_many_writers_and_roll_backs(engine: Engine) -> None:
    """spec 2.5: no gaps, and its order is that of the stamps."""
    tree_of(engine).replicate()
    start = threading.Barrier(4)

    def write(number: int) -> None:
        tree = tree_of(engine)
        start.wait()
        for turn in range(20):
            tree.set(f"k{number}", turn)
            try:
                with engine.session() as session, session.transaction():
                    tree_of(session).set("rolled", turn)
                    raise LookupError
            except LookupError:
                make(tree, **{f"b{number}": turn, f"c{number}": turn})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    found = journaled(engine)
    assert len(found) == 4 * 20 * 4
    stamps = [one.version.stamp for one in found]
    assert stamps == sorted(set(stamps))
    assert "rolled" not in {one.key for one in found}
    for at, one in enumerate(found):
        if one.transaction_id is not None:
            assert found[at - one.batch_index + 2].op == "commit"


def test_a_tree_may_be_declared_and_undeclared(tree: LatticeTree[Any], engine: Engine) -> None:
    tree.replicate()
    tree.set("a", 1)
    tree.replicate(None)
    tree.set("a", 2)
    tree.replicate("lww")
    tree.set("a", 3)
    with pytest.raises(InvalidInput, match="mode='or_set'"):
        tree.replicate("or_set")

    assert [one.value for one in journaled(engine)] == [b"1", b"3"]
