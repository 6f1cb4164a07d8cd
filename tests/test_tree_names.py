"""Whose trees are whose: names, the registry, namespaces, snapshots; and what no tree takes."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.errors import (
    InvalidInput,
    InvalidOperation,
    NotEncodable,
    ReservedName,
    TooLarge,
    TreeExists,
    TreeNotFound,
)
from lattice_tasks.store import registry
from lattice_tasks.store.engine import Engine
from lattice_tasks.trees.tree import LatticeTree
from tests.forest import SITE, TREE, engine_at, journaled, last_stamp, stored, tree_at, tree_of
from tests.working import opened

pytestmark = pytest.mark.recycled

HOUR = timedelta(hours=1)


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


@pytest.fixture
def tree(engine: Engine) -> LatticeTree[Any]:
    return tree_of(engine)


def keys(tree: LatticeTree[Any], *args: Any, **options: Any) -> list[str]:
    return [entry.key for entry in tree.scan(*args, **options)]


# --- what is refused


BAD_KEYS = ["", "a\0", "\ud800", "x" * 1_025, "é" * 513, 5, None, b"a"]


@pytest.mark.parametrize("key", BAD_KEYS, ids=[repr(key)[:12] for key in BAD_KEYS])
def test_a_key_that_cannot_be_stored_is_refused_in_one_line(tree: LatticeTree[Any], key: Any) -> None:
    calls = [
        lambda: tree.set(key, 1),
        lambda: tree.set_many({"a": 1, key: 1}),
        lambda: tree.get(key),
        lambda: tree.exists(key),
        lambda: tree.delete(key),
        lambda: tree.set_if_absent(key, 1),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as refused:
            call()
        assert len(str(refused.value).splitlines()) == 1
        assert len(str(refused.value)) < 200
    with pytest.raises(InvalidInput), tree.batch() as batch:
        batch.delete(key)
    assert tree.is_registered() is False


def test_the_longest_and_the_oddest_keys_are_kept(tree: LatticeTree[Any]) -> None:
    odd = [
        "x" * 1_024,
        "é" * 512,
        "\U0010ffff" * 256,
        "\x01",
        "\n\r\t",
        "'; drop table",
        "%s{now}",
        "a/b",
        "\ufeff",
        " ",
    ]
    tree.set_many({key: key for key in odd})

    assert {entry.key: entry.value for entry in tree.scan()} == {key: key for key in odd}
    assert all(tree.get(key) == key for key in odd)
    assert all(tree.set_if_absent(key, 1) is None for key in odd)
    assert tree.delete_range("", "\U0010ffff") == len(odd) - 1
    assert keys(tree) == ["\U0010ffff" * 256]


@pytest.mark.parametrize("bound", ["a\0", "\udfff", "x" * 3_000, 7])
def test_a_bad_bound_is_refused_at_the_call(tree: LatticeTree[Any], bound: Any) -> None:
    for call in (tree.scan, tree.count, tree.open_cursor):
        for name in ("prefix", "start", "end"):
            with pytest.raises(InvalidInput, match=name):
                call(**{name: bound})
    for limit in (-1, 1.5, True, "3"):
        with pytest.raises(InvalidInput, match="limit"):
            tree.scan(limit=limit)


def test_a_value_that_cannot_be_stored_is_refused(tree: LatticeTree[Any], engine: Engine) -> None:
    class Text:
        def serialize(self, value: Any) -> Any:
            return str(value)

        def deserialize(self, data: bytes) -> str:
            return data.decode()

    with pytest.raises(NotEncodable):
        tree.set("a", object())
    with pytest.raises(TooLarge, match="1048577 bytes"):
        tree.set("a", "x" * 1_048_575)
    with pytest.raises(InvalidInput, match="must give bytes"):
        tree_of(engine, serializer=Text()).set("a", 1)
    assert tree.is_registered() is False

    tree.set("a", "x" * 1_048_574)
    assert len(tree.get("a")) == 1_048_574


def test_a_serializer_of_ones_own_is_used_for_everything(engine: Engine) -> None:
    class Hex:
        def serialize(self, value: int) -> bytes:
            return b"%x" % value

        def deserialize(self, data: bytes) -> int:
            return int(data, 16)

    tree = tree_of(engine, serializer=Hex())
    tree.set("a", 255)
    with tree.batch() as batch:
        batch.set("b", 16)

    assert stored(engine)["a"].value == b"ff"
    assert [entry.value for entry in tree.scan()] == [255, 16]
    assert [entry.value for entry in tree.open_cursor().next_page()] == [255, 16]


# --- the registry


def test_the_first_write_registers_a_tree_and_looking_does_not(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.9: a tree registers on first write, before its data."""
    assert (tree.get("a"), list(tree.scan()), tree.count()) == (None, [], 0)
    assert (tree.delete("a"), tree.delete_range("a", "b"), tree.is_registered()) == (False, 0, False)

    tree.set("a", 1)

    assert tree.is_registered()
    with engine.session() as session:
        assert registry.find(session, TREE) is not None


@pytest.mark.parametrize(
    "name", ["_lattice_trees", "_lattice_queue_work", "_lattice_dlq_1", "_lattice_replog_dlq_x", "_lattice_"]
)
def test_no_call_reaches_a_system_tree(store_url: str, name: str) -> None:
    """spec 2.9: reads and enumeration included, one class of error, one place; Q-06, D-41."""
    with opened(store_url) as lattice:
        lattice.fifo("work").enqueue(1)
        lattice.tree("mine").set("a", 1)

        for call in (
            lambda: lattice.tree(name),
            lambda: lattice.tree(name).get("e/1"),
            lambda: list(lattice.tree(name).scan()),
            lambda: lattice.tree(name).count(),
            lambda: lattice.tree(name).set("a", 1),
            lambda: lattice.tree(name).replicate(),
            lambda: lattice.tree("mine").snapshot(name),
        ):
            with pytest.raises(ReservedName, match="kept for the system"):
                call()
        assert [tree.name for tree in lattice.trees()] == ["mine"]


def test_a_queues_tree_cannot_be_enrolled_for_replication(store_url: str) -> None:
    """Q-06: not by its name, and not below the names either; its rows are in no journal."""
    with opened(store_url) as lattice:
        lattice.fifo("work").enqueue(1)
        with pytest.raises(ReservedName):
            lattice.tree("_lattice_queue_work").replicate()
        inside = LatticeTree[Any](lattice.engine, "work", lattice.namespace_id)
        inside._tree = "_lattice_queue_work"

        for call in (inside.replicate, lambda: inside.set("e/1", 2)):
            with pytest.raises(InvalidOperation, match="queue of the system"):
                call()
        lattice.fifo("work").enqueue(2)
        assert (inside.get("e/0000000000000000001"), inside.is_registered()) == (None, False)
        assert [entry.value for entry in lattice.fifo("work").list()] == [1, 2]
        assert journaled(lattice.engine, "_lattice_queue_work") == []


@pytest.mark.parametrize("name", ["", " ", "x" * 256, "a\n", "a\0b", "\ud800", None, 7])
def test_a_bad_name_of_a_tree_is_refused(store_url: str, name: Any) -> None:
    with opened(store_url) as lattice:
        with pytest.raises(InvalidInput, match="tree name"):
            lattice.tree(name)
        lattice.tree("t/2/orders").set("a", 1)
        lattice.tree("中 /'\"%s").set("a", 1)
        assert [tree.name for tree in lattice.trees()] == ["t/2/orders", "中 /'\"%s"]


def test_namespaces_share_no_tree(store_url: str) -> None:
    """I12"""
    with opened(store_url, namespace="one") as one, opened(store_url, namespace="two") as two:
        one.tree("orders").set("a", 1)
        assert (two.tree("orders").get("a"), two.trees()) == (None, [])
        two.tree("orders").set("a", 2)
        two.tree("others").set("a", 2)
        cursor = two.tree("orders").open_cursor()

        assert one.tree("orders").get("a") == 1
        assert [tree.name for tree in one.trees()] == ["orders"]
        assert [tree.name for tree in two.trees()] == ["orders", "others"]
        with pytest.raises(LookupError):
            one.tree("orders").cursor(cursor.id).next_page()


def test_a_change_joins_the_callers_transaction(store_url: str) -> None:
    """All of it, or nothing: a tree beside submits, in `lattice.transaction`."""
    with opened(store_url) as lattice:
        tree = lattice.tree("orders")
        tree.set("a", 1)

        def change(connection: Any, key: str, fails: bool) -> None:
            with lattice.transaction(connection):
                tree.set(key, 2)
                assert tree.get(key) == 2
                if fails:
                    raise LookupError

        with closing(lattice.engine.open_session()) as session:
            change(session.raw, "b", fails=False)
            with pytest.raises(LookupError):
                change(session.raw, "c", fails=True)
        assert keys(tree) == ["a", "b"]


# --- snapshots


def test_a_snapshot_keeps_versions_and_expiry(store_url: str) -> None:
    """spec 2.10 snapshot, 2.8: what lives, as it is; then each goes its own way."""
    with engine_at(store_url) as engine:
        tree = tree_of(engine)
        tree.replicate()
        tree.set("a", 1)
        tree.set("b", 2, ttl=HOUR)
        tree.set("c", 3)
        tree.delete("c")
        before = stored(engine)

        copy = tree.snapshot("copy")

        assert stored(engine, "t/1/copy") == {key: before[key] for key in "ab"}
        assert last_stamp(engine, "t/1/copy") == last_stamp(engine)
        assert copy.set("a", 9) > before["c"].version
        assert (tree.get("a"), copy.get("a")) == (1, 9)
        assert journaled(engine, "t/1/copy") == []
    with tree_at(store_url, 2 * HOUR, name="copy") as copy:
        assert keys(copy) == ["a"]


def test_writers_go_on_while_a_snapshot_is_made(postgres_url: str) -> None:
    """spec 2.10 snapshot: online; what is written meanwhile is not in it."""
    with engine_at(postgres_url) as engine, closing(engine.open_session()) as session:
        tree = tree_of(engine)
        tree.set_many({"a": 1, "b": 2})
        with session.transaction():
            copy = tree_of(session).snapshot("copy")
            tree.set("a", 9)
            tree.delete("b")
            tree.set("c", 9)

            assert [(entry.key, entry.value) for entry in copy.scan()] == [("a", 1), ("b", 2)]
            assert tree_of(engine, "copy").is_registered() is False
        assert keys(tree_of(engine, "copy")) == ["a", "b"]


def test_a_snapshot_needs_a_free_name_and_a_source(tree: LatticeTree[Any], engine: Engine) -> None:
    """spec 2.10 snapshot: the destination must neither exist nor be reserved."""
    with pytest.raises(TreeNotFound, match="'orders'"):
        tree.snapshot("copy")
    tree.set("a", 1)
    tree_of(engine, "copy").set("z", 1)
    for name, error in (("copy", TreeExists), ("orders", TreeExists), ("_lattice_x", ReservedName), ("", InvalidInput)):
        with pytest.raises(error):
            tree.snapshot(name)

    assert keys(tree_of(engine, "copy")) == ["z"]


def test_a_lattice_stamps_its_site(store_url: str) -> None:
    with opened(store_url, site_id="oslo-1") as lattice:
        assert lattice.tree("orders").set("a", 1).origin == "oslo-1"
    with opened(store_url) as lattice:
        assert lattice.tree("orders").set("a", 1).origin == SITE
    for site_id in ("", "x" * 65, "a/b", "a b", "-a", "ä"):
        with pytest.raises(Exception, match="site_id"):
            Lattice(store_url, set_default=False, site_id=site_id)
