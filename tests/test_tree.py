"""What a tree does: values, versions, expiry, ranges and order."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lattice_tasks.clock import Stamp
from lattice_tasks.errors import InvalidInput
from lattice_tasks.maintenance import Maintenance, compact_trees
from lattice_tasks.store.engine import Engine
from lattice_tasks.trees import tree as trees
from lattice_tasks.trees.tree import ABSENT, LatticeTree
from tests.forest import TREE, engine_at, stored, tree_at, tree_of
from tests.working import heard, opened

pytestmark = pytest.mark.recycled

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
#: In the order of their UTF-8 bytes; no dictionary has this order, and UTF-16 has another one at the end.
IN_ORDER = [
    "\x01", " ", "-", "A", "B", "Z", "_", "a", "a-b", "ab", "a\u0301", "b", "co-op", "coop", "z", "\u00c4", "\u00e4", "\u00e9",
    "\u0416", "\u4e2d", "\ud7ff", "\ue000", "\uff5e", "\uffff", "\U00010000", "\U0001f600", "\U0010ffff",
]  # fmt: skip


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


@pytest.fixture
def tree(engine: Engine) -> LatticeTree[Any]:
    return tree_of(engine)


def keys(tree: LatticeTree[Any], *args: Any, **options: Any) -> list[str]:
    return [entry.key for entry in tree.scan(*args, **options)]


# --- values and versions


def test_a_value_is_there_from_its_set_to_its_delete(tree: LatticeTree[Any]) -> None:
    assert (tree.get("a"), tree.get("a", 7), tree.exists("a")) == (None, 7, False)

    tree.set("a", {"n": [1, "ä", None]})

    assert (tree.get("a"), tree.exists("a"), tree.count()) == ({"n": [1, "ä", None]}, True, 1)
    assert (tree.delete("a"), tree.delete("a")) == (True, False)
    assert (tree.get("a"), tree.exists("a"), tree.count(), keys(tree)) == (None, False, 0, [])


def test_a_newer_value_brings_a_deleted_key_back(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.2: a newer tombstone beats a value, a newer value resurrects."""
    tree.set("a", 1)
    tree.delete("a")
    assert stored(engine)["a"].is_tombstone

    tree.set("a", 2)

    assert tree.get("a") == 2


def test_a_cell_says_who_wrote_it_and_when(engine: Engine) -> None:
    """spec 2.2: the real site's id, always, and no expiry unless one was given."""
    tree = tree_of(engine, site_id="oslo")
    version = tree.set("a", 1)
    tree.set("b", 2)
    tree.delete("b")
    later = tree.set_many({"c": 3, "d": 4})

    cells = stored(engine)
    assert (cells["d"].version, cells["c"].version.origin, cells["c"].dead_at) == (later, "oslo", None)
    assert version < cells["b"].version < cells["c"].version < later
    assert (version.origin, cells["a"].version, cells["a"].dead_at) == ("oslo", version, None)
    assert (cells["b"].value, cells["b"].version.origin) == (None, "oslo")
    assert cells["b"].version > version


def test_none_is_a_value(tree: LatticeTree[Any]) -> None:
    tree.set("a", None)

    assert (tree.get("a", 7), tree.exists("a"), tree.count()) == (None, True, 1)


def test_compare_and_set_wins_once(tree: LatticeTree[Any]) -> None:
    """spec 2.10 CAS"""
    assert tree.get_with_version("a") == (None, ABSENT)
    assert ABSENT.stamp == Stamp(0, 0)

    first = tree.set_if_version("a", 1, ABSENT)
    assert first is not None
    assert tree.set_if_version("a", 2, ABSENT) is None
    assert tree.get_with_version("a") == (1, first)
    second = tree.set_if_version("a", 2, first)
    assert second is not None
    assert second > first
    assert tree.set_if_version("a", 3, first) is None
    assert tree.set_if_version("b", 3, first) is None
    assert [(entry.key, entry.value) for entry in tree.scan()] == [("a", 2)]

    tree.delete("a")
    assert tree.get_with_version("a") == (None, ABSENT)
    assert tree.set_if_version("a", 4, second) is None
    assert tree.set_if_version("a", 4, ABSENT) is not None


def test_set_if_absent_takes_only_a_free_key(tree: LatticeTree[Any]) -> None:
    assert tree.set_if_absent("a", 1) is not None
    assert tree.set_if_absent("a", 2) is None
    tree.delete("a")
    assert tree.set_if_absent("a", 3) is not None
    assert tree.get("a") == 3


def test_set_many_is_all_or_nothing(tree: LatticeTree[Any]) -> None:
    tree.set_many({"a": 1, "b": 2})
    for bad in ({"a": 3, "": 4}, {"a": 3, "b": object()}, {"a": 3, "b": "x" * 2**21}):
        with pytest.raises(InvalidInput):
            tree.set_many(bad)

    assert [(entry.key, entry.value) for entry in tree.scan()] == [("a", 1), ("b", 2)]


# --- expiry


def test_an_expired_key_is_gone_for_everybody_who_looks(store_url: str) -> None:
    """spec 2.10 TTL: invisible to get, exists, scan, count and compare-and-set; skipped by a range's deletion."""
    with tree_at(store_url) as tree:
        tree.set("a", 1, ttl=HOUR)
        tree.set("b", 2)
        assert (tree.get("a"), tree.count()) == (1, 2)
    with engine_at(store_url, 2 * HOUR) as engine:
        tree = tree_of(engine)
        before = stored(engine)["a"]

        assert (tree.get("a"), tree.exists("a"), tree.count(), keys(tree)) == (None, False, 1, ["b"])
        assert keys(tree, reverse=True) == ["b"]
        assert tree.get_with_version("a") == (None, ABSENT)
        assert tree.set_if_version("a", 9, before.version) is None
        assert tree.delete("a") is False
        assert tree.delete_range("a", "b") == 0
        assert stored(engine)["a"] == before


@pytest.mark.parametrize("write", ["set_if_absent", "set_if_version", "set"])
def test_an_expired_key_is_free(store_url: str, write: str) -> None:
    """spec 2.10 TTL: set-if-absent on an expired row writes."""
    with tree_at(store_url) as tree:
        tree.set("a", 1, ttl=HOUR)
    with tree_at(store_url, 2 * HOUR) as tree:
        more = {"version": ABSENT} if write == "set_if_version" else {}

        assert getattr(tree, write)("a", 2, **more) is not None
        assert tree.get("a") == 2


def test_an_overwrite_without_ttl_stays(store_url: str) -> None:
    """spec 2.10 TTL: a non-TTL overwrite clears the expiry."""
    with tree_at(store_url) as tree:
        tree.set("a", 1, ttl=HOUR)
        tree.set("a", 2)
        assert next(tree.scan()).expires_at is None
    with tree_at(store_url, 2 * HOUR) as tree:
        assert tree.get("a") == 2


def test_the_instant_of_expiry_is_the_stores(store_url: str) -> None:
    """spec 2.10 TTL: resolved in the store to an absolute instant, which everybody sees."""
    with tree_at(store_url, 10 * HOUR) as tree:
        tree.set("a", 1, ttl=HOUR)
        expires_at = next(tree.scan()).expires_at

    assert expires_at is not None
    assert timedelta(0) < datetime.now(UTC) + 11 * HOUR - expires_at < timedelta(minutes=1)


@pytest.mark.parametrize("ttl", [timedelta(0), -SECOND, timedelta(days=4000), 5, "1h"])
def test_a_time_to_live_that_is_none_is_refused(tree: LatticeTree[Any], ttl: Any) -> None:
    """spec 2.10 TTL: ttl <= 0 is an error."""
    with pytest.raises(InvalidInput, match="ttl"):
        tree.set("a", 1, ttl=ttl)
    with pytest.raises(InvalidInput, match="ttl"), tree.batch() as batch:
        batch.set("a", 1, ttl=ttl)

    assert tree.exists("a") is False


def test_the_dead_are_kept_for_their_grace_and_then_go(store_url: str) -> None:
    """spec 2.10 TTL: kept for merging until compaction past a grace, 24 h unless set; what lives stays."""
    grace_ms = 24 * 3_600_000
    with tree_at(store_url) as tree:
        tree.set_many({f"k{n:04}": n for n in range(2_500)})
        tree.set("e", 1, ttl=HOUR)
        tree.set("later", 1, ttl=30 * HOUR)
        tree.set("stays", 1)
        tree.delete_range("k", "l")
    for hours, gone in ((23.9, 0), (24.5, 2_500), (24.5, 0), (26, 1), (60, 1)):
        with engine_at(store_url, hours * HOUR) as engine, engine.session() as session:
            assert compact_trees(session, grace_ms) == gone, hours
    with engine_at(store_url) as engine:
        assert set(stored(engine)) == {"stays"}


def test_a_key_that_came_back_is_not_compacted(store_url: str) -> None:
    with tree_at(store_url) as tree:
        tree.set("a", 1, ttl=SECOND)
        tree.delete("a")
        tree.set("a", 2)
    with engine_at(store_url, 100 * HOUR) as engine, engine.session() as session:
        assert compact_trees(session, 0) == 0
        assert tree_of(engine).get("a") == 2


def test_a_key_that_is_being_written_is_not_compacted(postgres_url: str) -> None:
    """Compaction waits for nobody, and never takes what a writer is just bringing back."""
    with engine_at(postgres_url) as engine:
        tree_of(engine).set_many({"a": 1, "b": 1}, ttl=SECOND)
    with engine_at(postgres_url, HOUR) as engine, closing(engine.open_session()) as session:
        with session.transaction(), engine.session() as other:
            tree_of(session).set("a", 2)
            assert compact_trees(other, 0) == 1

        assert (tree_of(engine).get("a"), set(stored(engine))) == (2, {"a"})


def test_a_worker_compacts_page_by_page(store_url: str) -> None:
    """spec 2.10 TTL: a chore of living workers, and of `prune`; a full page is followed by the next one soon."""
    with opened(store_url, tree_grace_ms=0) as lattice:
        events = heard(lattice)
        tree = lattice.tree("orders")
        tree.set_many({f"k{n:04}": n for n in range(1_500)})
        tree.delete_range("k", "l")
        maintenance = Maintenance(lattice.settings, lattice.telemetry, lambda queue_ids: None)
        (chore,) = (one for one in maintenance._chores if one.name == "trees")
        with lattice.engine.session() as session:
            for pause_s in (1, 60, 60):
                chore.due_at = 0.0
                maintenance.run_due(session)
                assert pause_s - 1 < chore.due_at - time.monotonic() <= pause_s
        assert events.of("tree.compacted") == [{"count": 1_000}, {"count": 500}]
        tree.set("a", 1)
        tree.delete("a")
        lattice.prune()

        assert stored(lattice.engine, tree._tree) == {}


# --- ranges and order


def test_a_range_is_deleted_up_to_its_end_and_again_in_vain(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.10 range delete: tombstones the live keys in [start, end); idempotent."""
    tree.set_many(dict.fromkeys(["a", "b", "ba", "c", "d"], 0))
    tree.delete("ba")

    assert tree.delete_range("b", "d") == 2
    assert tree.delete_range("b", "d") == 0
    assert keys(tree) == ["a", "d"]
    assert {key for key, cell in stored(engine).items() if cell.is_tombstone} == {"b", "ba", "c"}


def test_an_empty_range_is_a_mistake(tree: LatticeTree[Any]) -> None:
    for start, end in (("b", "b"), ("b", "a")):
        with pytest.raises(InvalidInput, match="holds no key"):
            tree.delete_range(start, end)


def test_keys_are_in_the_order_of_their_bytes_whatever_the_language(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.10 order: as Python orders UTF-8, on a database whose own order is that of English dictionaries."""
    if engine.dialect == "postgres":
        with engine.session() as session:
            words = [row[0] for row in session.raw.execute("select w from unnest(array['a', 'B', 'b']) w order by w")]
        assert words == ["a", "b", "B"], "this database does not order by a language, so it would prove nothing"
    tree.set_many(dict.fromkeys(reversed(IN_ORDER), 0))

    assert sorted(IN_ORDER, key=str.encode) == IN_ORDER
    assert keys(tree) == IN_ORDER
    assert keys(tree, reverse=True) == IN_ORDER[::-1]
    for at, key in enumerate(IN_ORDER):
        assert keys(tree, start=key) == IN_ORDER[at:]
        assert keys(tree, end=key) == IN_ORDER[:at]
        assert keys(tree, start=key + "\x01", reverse=True) == IN_ORDER[:at:-1]


def test_a_prefix_scan_is_half_open(tree: LatticeTree[Any]) -> None:
    """spec 2.10 order: [`e/`, `e0`)."""
    tree.set_many(dict.fromkeys(["e", "e.", "e/", "e/1", "e/\U0010ffff", "e0", "e/2", "f"], 0))

    assert keys(tree, "e/") == ["e/", "e/1", "e/2", "e/\U0010ffff"]
    assert keys(tree, "e/", reverse=True, limit=2) == ["e/\U0010ffff", "e/2"]
    assert keys(tree, "e/", start="e/1", end="e/2") == ["e/1"]
    assert keys(tree, "e/", start="a", end="z") == ["e/", "e/1", "e/2", "e/\U0010ffff"]
    assert keys(tree, "e/", start="e0") == []
    assert keys(tree, "\U0010ffff") == []
    assert (tree.count("e/"), tree.count("e/", start="e/2"), tree.count(end="e/")) == (4, 2, 2)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_key_that_expires_under_a_scan_does_not_end_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """spec 2.10 TTL: a page has one instant, though SQLite's clock moves between the rows."""
    minutes = iter(range(10**6))
    monkeypatch.setattr(Engine, "_now_us", lambda self: next(minutes) * 60 * 1_000_000)
    monkeypatch.setattr(trees, "_PAGE_ROWS", 2)
    with tree_at(sqlite_url) as tree:
        stays = [f"k{n:02}" for n in range(10)]
        for minute in range(1, 30):
            tree.set_many(dict.fromkeys(stays, 0))
            for key in stays:
                tree.set(key + "x", 0, ttl=timedelta(minutes=minute))
            found = keys(tree, reverse=reverse)
            assert [key for key in found if key in stays] == sorted(stays, reverse=reverse), minute


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_goes_on_over_its_pages(tree: LatticeTree[Any], monkeypatch: pytest.MonkeyPatch, reverse: bool) -> None:
    monkeypatch.setattr(trees, "_PAGE_ROWS", 10)
    names = [f"k{n:03}" for n in range(40)]
    tree.set_many(dict.fromkeys(names, 0))
    names = names[::-1] if reverse else names

    assert keys(tree, reverse=reverse) == names
    for limit in (0, 1, 9, 10, 11, 40, 41):
        assert keys(tree, reverse=reverse, limit=limit) == names[:limit]


def test_a_scan_is_lazy_and_keeps_no_connection(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_PAGE_ROWS", 2)
    tree = tree_of(engine)
    tree.set_many(dict.fromkeys("abcdef", 0))

    scan = tree.scan()
    assert next(scan).key == "a"
    assert len(engine.database._in_use) == 0
    tree.delete("b")  # in the page that was read
    tree.delete("d")
    tree.set("cc", 0)

    assert [entry.key for entry in scan] == ["b", "c", "cc", "e", "f"]


def test_a_page_of_large_values_is_short(tree: LatticeTree[Any], engine: Engine) -> None:
    """No page holds much more than 4 MiB, whatever the values; nothing is missing."""
    for n in range(12):
        tree.set(f"k{n:02}", "x" * 1_000_000)

    with engine.session() as session:
        page, has_more = trees.cells.page(session, TREE, "", "z", 512)
    assert (len(page), has_more) == (5, True)
    assert keys(tree) == [f"k{n:02}" for n in range(12)]
    assert keys(tree, reverse=True, limit=7) == [f"k{n:02}" for n in range(11, 4, -1)]
