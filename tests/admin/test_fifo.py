"""`lattice-tasks fifo`, on both engines."""

import json
from typing import Any

import pytest

from lattice_tasks import Lattice

from .conftest import CommandLine


class Text:
    def serialize(self, value: bytes) -> bytes:
        return value

    def deserialize(self, data: bytes) -> bytes:
        return data


def fill(cli: CommandLine, *values: Any, serializer: Any = None, **settings: Any) -> None:
    lattice = Lattice(store_url=cli.store_url, set_default=False, log_level="error", **settings)
    queue = lattice.fifo("work", serializer=serializer) if serializer else lattice.fifo("work")
    queue.enqueue_many(values)
    lattice.close()


def test_a_queue_is_listed_counted_and_peeked_at_and_stays_as_it_is(cli: CommandLine) -> None:
    fill(cli, {"id": 7}, "two", None)

    for _ in range(2):
        assert [(row["entry_id"], row["value"]) for row in cli.json("fifo", "list", "work")] == [
            (1, {"id": 7}),
            (2, "two"),
            (3, None),
        ]
        assert cli.json("fifo", "peek", "work") == {
            "entry_id": 1,
            "size_bytes": 8,
            "encoding": "json",
            "value": {"id": 7},
        }
        assert cli.json("fifo", "count", "work") == {"count": 3}
        assert cli("fifo", "count", "work").out == "3\n"


def test_a_long_queue_is_listed_in_part_and_says_so(lite: CommandLine) -> None:
    fill(lite, *range(60))

    ran, rest = lite("fifo", "list", "work", "-o", "jsonl"), lite("fifo", "list", "work", "--limit", "100", "-o", "csv")

    assert [json.loads(line)["entry_id"] for line in ran.out.splitlines()] == list(range(1, 51))
    assert ran.err == "the first 50; --limit N shows more\n"
    assert (len(rest.out.splitlines()), rest.err) == (61, "")


def test_an_empty_queue_says_so(cli: CommandLine) -> None:
    listed, counted, peeked = (cli("fifo", verb, "nobody's") for verb in ("list", "count", "peek"))

    assert (listed.code, listed.out, listed.err.splitlines()[-1]) == (0, "", "0 entries")
    assert (counted.code, counted.out) == (0, "0\n")
    assert (peeked.code, peeked.out, peeked.err) == (3, "", 'error: queue "nobody\'s" is empty\n')


@pytest.mark.parametrize("value", [b"\x1b]0;mine\x07\x1b[31m", b"\xff\xfe\x00", "\u202eabc".encode(), b"=1+1", b"{"])
@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_a_value_cannot_do_anything_to_whoever_looks(lite: CommandLine, value: bytes, form: str) -> None:
    """Whatever the serializer was: controls, reversed writing, bytes that are no text, formulas."""
    fill(lite, value, json.dumps("\x1b[31m\u202e").encode(), serializer=Text())

    for verb in ("list", "peek"):
        ran = lite("fifo", verb, "work", "-o", form)
        assert ran.code == 0
        assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(ran.out)
    if form == "csv":
        assert not any(cell.startswith(("=", '"=')) for cell in ran.out.split(","))
    if form == "json":
        shown = lite.json("fifo", "list", "work")
        assert [row["encoding"] for row in shown] == ["bytes", "json"]
        assert shown[0]["value"] == value.decode("utf-8", "backslashreplace")
        assert shown[1]["value"] == "\x1b[31m\u202e"


def test_deep_nesting_is_shown_as_it_is_stored(lite: CommandLine) -> None:
    fill(lite, b"[" * 100_000, serializer=Text())

    (shown,) = lite.json("fifo", "list", "work")

    assert (shown["encoding"], len(shown["value"])) == ("bytes", 100_000)


def test_a_namespace_has_its_own_queues(lite: CommandLine) -> None:
    fill(lite, "theirs", namespace="b")

    assert lite.json("fifo", "count", "work") == {"count": 0}
    assert lite.json("fifo", "count", "work", "--namespace", "b") == {"count": 1}


@pytest.mark.parametrize(
    "arguments", [("list", ""), ("peek", "_lattice_dlq_1"), ("count", "a\nb"), ("list", "x", "--limit", "0")]
)
def test_what_cannot_be_a_queue_is_one_line(lite: CommandLine, arguments: tuple[str, ...]) -> None:
    fill(lite, 1)

    ran = lite("fifo", *arguments)

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
