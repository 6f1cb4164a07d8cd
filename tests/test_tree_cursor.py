"""Durable cursors: no key twice, from any process, until nobody cares any more."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice_tasks.errors import CursorNotFound, InvalidInput
from lattice_tasks.maintenance import compact_trees
from lattice_tasks.store.engine import Engine, Statement
from lattice_tasks.trees.cursor import LatticeCursor
from lattice_tasks.trees.tree import LatticeTree
from tests.forest import engine_at, journaled, stored, tree_at, tree_of
from tests.stores import Crash, watched

pytestmark = pytest.mark.recycled

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NAMES = [f"k{n:02}" for n in range(10)]


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


@pytest.fixture
def tree(engine: Engine) -> LatticeTree[Any]:
    tree = tree_of(engine)
    tree.set_many({name: int(name[1:]) for name in NAMES})
    return tree


def pages(cursor: LatticeCursor) -> list[list[Any]]:
    found = []
    for _ in range(50):
        page = cursor.next_page()
        if not page:
            return found
        found.append(page)
    raise AssertionError(f"this cursor does not end: {found}")


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cursor_yields_the_range_in_pages(tree: LatticeTree[Any], reverse: bool) -> None:
    """spec 2.10 cursors: the next page begins behind the last key; exhausted pages are empty, again and again."""
    cursor = tree.open_cursor("keys", start="k01", end="k09", page_size=3, reverse=reverse)
    expected = NAMES[1:9][::-1] if reverse else NAMES[1:9]

    assert pages(cursor) == [expected[:3], expected[3:6], expected[6:]]
    tree.set("k011", 1)
    tree.set("k0", 1)
    assert [cursor.next_page() for _ in range(3)] == [[], [], []]


def test_a_cursor_of_entries_yields_values_and_versions(tree: LatticeTree[Any]) -> None:
    """spec 2.10 cursors: kinds"""
    cursor = tree.open_cursor(prefix="k0", page_size=4)

    assert [entry for page in pages(cursor) for entry in page] == list(tree.scan())


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cursor_never_yields_a_key_twice(tree: LatticeTree[Any], reverse: bool) -> None:
    """spec 2.10 cursors: deleted, set again, overwritten behind it: yielded is yielded."""
    cursor = tree.open_cursor("keys", page_size=3, reverse=reverse)
    seen = list(cursor.next_page())
    for key in seen:
        tree.delete(key)
        tree.set(key, "again")
    while page := cursor.next_page():
        tree.set(page[-1], "again")
        seen += page

    assert seen == (NAMES[::-1] if reverse else NAMES)


def test_many_readers_of_one_cursor_share_its_keys(engine: Engine, tree: LatticeTree[Any]) -> None:
    """spec 2.10 cursors: a page is taken by one."""
    cursor = tree.open_cursor("keys", page_size=1)
    start = threading.Barrier(4)

    def read(_: int) -> list[str]:
        start.wait()
        return [key for page in pages(tree_of(engine).cursor(cursor.id)) for key in page]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read, range(4)))

    assert sorted(key for keys in found for key in keys) == NAMES
    assert all(keys == sorted(keys) for keys in found)


def test_another_process_goes_on_with_a_cursor(store_url: str) -> None:
    """spec 2.10 cursors: usable from another process."""
    with tree_at(store_url) as tree:
        tree.set_many(dict.fromkeys(NAMES, 0))
        cursor = tree.open_cursor("keys", page_size=4)
        first = cursor.next_page()
        code = (
            "import sys; from tests.forest import *\n"
            "with tree_at(sys.argv[1]) as tree: print(*tree.cursor(sys.argv[2]).next_page())"
        )
        root = Path(__file__).resolve().parents[1]
        done = subprocess.run(
            [sys.executable, "-c", code, store_url, cursor.id], cwd=root, capture_output=True, text=True, check=True
        )

        assert (first, done.stdout.split(), cursor.next_page()) == (NAMES[:4], NAMES[4:8], NAMES[8:])


def test_a_cursor_that_deletes_goes_through_in_pages(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.10 cursors: kind delete-range; each page one record, the last to the end of the range."""
    tree.replicate()
    cursor = tree.open_cursor("delete_range", start="k01", end="k08x", page_size=4)

    assert cursor.next_page() == NAMES[1:5]
    assert tree.count() == 6
    tree.set("k02", "new")
    assert cursor.next_page() == NAMES[5:9]
    assert cursor.next_page() == []
    assert cursor.next_page() == []

    assert [entry.key for entry in tree.scan()] == ["k00", "k02", "k09"]
    ranges = [(one.key, one.end_key) for one in journaled(engine) if one.op == "delete_range"]
    assert ranges == [("k01", "k04\x01"), ("k04\x01", "k08\x01"), ("k08\x01", "k08x")]


def test_deleting_by_cursor_where_nothing_is_still_tells_the_peers(engine: Engine) -> None:
    """spec 2.10 range delete"""
    tree = tree_of(engine)
    tree.replicate()
    cursor = tree.open_cursor("delete_range", start="a", end="b")

    assert [cursor.next_page() for _ in range(3)] == [[], [], []]
    assert [(one.op, one.key, one.end_key) for one in journaled(engine)] == [("delete_range", "a", "b")]


@pytest.mark.parametrize("kind", ["keys", "delete_range"])
def test_a_crash_at_any_statement_of_a_page_moves_nothing(engine: Engine, tree: LatticeTree[Any], kind: str) -> None:
    """spec 2.10 cursors: the move and the page are one transaction."""
    cursor = tree.open_cursor(kind, page_size=3)
    before = stored(engine)

    for crash_before in range(1, 20):
        with watched(engine, crash_before) as session:
            try:
                page = tree_of(session).cursor(cursor.id).next_page()
                break
            except Crash:
                assert stored(engine) == before

    assert page == NAMES[:3]
    assert crash_before > 3
    assert cursor.next_page() == NAMES[3:6]


def test_a_cursor_lives_while_it_is_used(store_url: str) -> None:
    """spec 2.10 cursors: idle time 48 h unless set, sliding; then it is gone, also from the store."""
    with tree_at(store_url) as tree:
        tree.set_many(dict.fromkeys(NAMES, 0))
        cursor_id = tree.open_cursor("keys", page_size=1).id
    for turn, hours in enumerate((47, 94, 141)):
        with tree_at(store_url, hours * HOUR) as tree:
            assert tree.cursor(cursor_id).next_page() == [NAMES[turn]]
    with engine_at(store_url, 190 * HOUR) as engine, engine.session() as session:
        with pytest.raises(CursorNotFound, match=cursor_id):
            tree_of(engine).cursor(cursor_id).next_page()
        compact_trees(session, 10**9)
        assert session.fetch(Statement("select count(*) from lattice_cursor")) == [(0,)]


def test_a_closed_or_unknown_cursor_is_not_found(tree: LatticeTree[Any], engine: Engine) -> None:
    cursor = tree.open_cursor()
    assert (cursor.close(), cursor.close()) == (True, False)

    for missing in (cursor, tree.cursor("nope"), tree_of(engine, "others").cursor(tree.open_cursor().id)):
        with pytest.raises(CursorNotFound):
            missing.next_page()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kind": "values"}, "kind='values'"),
        ({"page_size": 0}, "page_size=0"),
        ({"page_size": 10_001}, "page_size=10001"),
        ({"page_size": True}, "page_size=True"),
        ({"idle": MINUTE - timedelta(microseconds=1)}, "at least a minute"),
        ({"idle": 3_600}, "idle=3600"),
        ({"kind": "delete_range", "reverse": True}, "forwards only"),
    ],
)
def test_a_cursor_that_cannot_be_is_refused(tree: LatticeTree[Any], options: Any, told: str) -> None:
    """spec 2.10 cursors: idle time at least a minute."""
    with pytest.raises(InvalidInput, match=told):
        tree.open_cursor(**options)

    assert tree.open_cursor(idle=MINUTE).next_page()
