"""`lattice-tasks trees`, on both engines."""

import base64
import csv
import io
from datetime import datetime, timedelta
from typing import Any

import pytest

from lattice_tasks import Lattice
from lattice_tasks.fifo import JSON

from .conftest import CommandLine


@pytest.fixture
def lattice(store_url: str) -> Any:
    lattice = Lattice(store_url, set_default=False, log_level="critical")
    yield lattice
    lattice.close()


def test_trees_are_listed_without_those_of_the_system(cli: CommandLine, lattice: Lattice) -> None:
    """spec 2.9: tree listing shows only non-system trees."""
    assert cli.json("trees", "list") == []
    lattice.fifo("work").enqueue(1)
    lattice.tree("orders").set("a", 1)
    lattice.tree("clients").set("a", 1)
    lattice.tree("clients").replicate()

    listed = cli.json("trees", "list")

    assert [(tree["name"], tree["mode"]) for tree in listed] == [("clients", "lww"), ("orders", None)]
    assert all(datetime.fromisoformat(tree[name]).tzinfo for tree in listed for name in ("created_at", "changed_at"))
    assert "orders" in cli("trees", "list").out


def test_a_scan_shows_entries_in_order(cli: CommandLine, lattice: Lattice) -> None:
    tree = lattice.tree("orders")
    tree.set_many({key: {"n": key} for key in ("b", "a/2", "ä", "a/1", "B")})
    tree.set("c", 3, ttl=timedelta(hours=1))
    tree.set("gone", 3)
    tree.delete("gone")

    scanned = cli.json("trees", "scan", "orders")

    assert [entry["key"] for entry in scanned] == ["B", "a/1", "a/2", "b", "c", "ä"]
    assert scanned[0]["value"] == {"n": "B"}
    assert (scanned[0]["encoding"], scanned[0]["origin"], len(scanned[0]["version"])) == ("json", "local", 30)
    assert [entry["expires_at"] is not None for entry in scanned] == [False] * 4 + [True, False]
    for options, keys in (
        (["--prefix", "a/"], ["a/1", "a/2"]),
        (["--start", "b", "--end", "c"], ["b"]),
        (["--reverse", "--limit", "2"], ["ä", "c"]),
    ):
        assert [entry["key"] for entry in cli.json("trees", "scan", "orders", *options)] == keys
    assert "the first 2; --limit N shows more" in cli("trees", "scan", "orders", "--limit", "2").err
    assert cli("trees", "scan", "orders", "--limit", "6").err == ""
    rows = list(csv.DictReader(io.StringIO(cli("trees", "scan", "orders", "-o", "csv").out)))
    assert [row["key"] for row in rows] == ["B", "a/1", "a/2", "b", "c", "ä"]


def test_one_key_is_shown(cli: CommandLine, lattice: Lattice) -> None:
    lattice.tree("orders").set("a", [1, "ä"])

    assert cli.json("trees", "get", "orders", "a")["value"] == [1, "ä"]


def test_a_value_that_is_no_json_is_shown_in_base64(cli: CommandLine, lattice: Lattice) -> None:
    class Raw:
        def serialize(self, value: bytes) -> bytes:
            return value

        deserialize = serialize

    lattice.tree("orders", serializer=Raw()).set("a", b"\xff\x00")

    shown = cli.json("trees", "get", "orders", "a")
    assert (shown["encoding"], base64.b64decode(shown["value"])) == ("base64", b"\xff\x00")


def test_keys_and_values_are_harmless_for_a_terminal(cli: CommandLine, lattice: Lattice) -> None:
    lattice.tree("or\u202eders").set("\x1b[31mred\n\u202e", "\x1b]0;title\x07")

    for words in (["list"], ["scan", "or\u202eders"], ["get", "or\u202eders", "\x1b[31mred\n\u202e"]):
        for form in ("table", "json", "jsonl", "csv"):
            ran = cli("trees", *words, "-o", form)
            assert ran.code == 0, ran.err
            assert not set(ran.out) & set("\x1b\x07\u202e")
    missing = cli("trees", "get", "or\u202eders", "\x1bno")
    assert (missing.code, len(missing.err.splitlines())) == (3, 1)
    assert not set(missing.err) & set("\x1b\u202e")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("scan", "nope"), 3, "no tree 'nope'"),
        (("get", "nope", "a"), 3, "no tree 'nope'"),
        (("get", "orders", "nope"), 3, "no key 'nope'"),
        (("get", "orders", ""), 2, "has 0 bytes"),
        (("get", "orders", "x" * 1_025), 2, "has 1025 bytes"),
        (("get", "_lattice_queue_work", "e/0000000000000000001"), 2, "kept for the system"),
        (("scan", "_lattice_queue_work"), 2, "kept for the system"),
        (("scan", "orders", "--limit", "0"), 2, "limit"),
        (("scan", ""), 2, "tree name"),
        (("set", "orders", "a"), 2, "set"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    cli: CommandLine, lattice: Lattice, words: tuple[str, ...], code: int, told: str
) -> None:
    """spec 2.9: no command reads a system tree."""
    lattice.fifo("work", serializer=JSON).enqueue(1)
    lattice.tree("orders").set("a", 1)

    ran = cli("trees", *words)

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1), ran.err
    assert told in ran.err
