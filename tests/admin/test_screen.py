"""How records look, on a terminal and off it."""

import io
import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from lattice_tasks.admin.screen import Screen, since

from .conftest import Terminal

NOW = datetime(2030, 1, 31, 3, 0, tzinfo=UTC)


def screen(form: str = "table", terminal: bool = False, **more: Any) -> Screen:
    stream = Terminal if terminal else io.StringIO
    return Screen(stream(), stream(), form, now=NOW, **more)


def record(**values: Any) -> dict[str, Any]:
    return {"id": 7, "state": "dead_end", "seen_at": NOW - timedelta(minutes=3), "error": "boom", **values}


def shown(form: str, *records: dict[str, Any], terminal: bool = False, **more: Any) -> str:
    where = screen(form, terminal, **more)
    where.many(records, ("id", "state", "seen_at", "error"), ("id", "state", "seen_at", "error"), "things")
    return where.out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (5, "5s ago"), (65, "1m 5s ago"), (3_600, "1h ago"), (90_061, "1d 1h ago"), (-7_260, "in 2h 1m")],
)
def test_an_age_has_two_units_at_most(seconds: int, text: str) -> None:
    assert since(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_table_is_aligned_dashed_and_without_trailing_space() -> None:
    table = shown("table", record(), record(id=12_345, error=None))

    assert table == (
        "   ID  STATE     SEEN    ERROR\n"
        "    7  dead-end  3m ago  boom\n"
        "12345  dead-end  3m ago  -\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "cells"), [("猫猫", 4), ("한글", 4), ("e\u0301a", 2), ("❤️", 2), ("👍🏽", 2), ("क्षि", 2), ("ｱ", 1)]
)
def test_wide_and_combining_characters_keep_the_columns_straight(text: str, cells: int) -> None:
    lines = shown("table", record(state=text), record(state="abcdef")).splitlines()

    assert lines[1].index("3m") - len(text) == lines[2].index("3m") - cells


@pytest.mark.parametrize(
    ("text", "shown_as"), [("猫" * 50, "猫" * 9 + " …"), ("e\u0301" * 50, "e\u0301" * 19 + "…"), ("猫" * 10, "猫" * 10)]
)
def test_wide_and_combining_characters_are_cut_between_them(
    monkeypatch: pytest.MonkeyPatch, text: str, shown_as: str
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    line = shown("table", record(error=text), terminal=True, colour="never").splitlines()[1]

    assert line.endswith(f"3m ago  {shown_as}")


def test_on_a_terminal_only_the_last_column_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = "x" * 200

    on_terminal = shown("table", record(error=long), terminal=True, colour="never")
    off_terminal = shown("table", record(error=long))

    assert max(map(len, on_terminal.splitlines())) == 60
    assert on_terminal.rstrip().endswith("…")
    assert long in off_terminal


def test_a_last_column_that_wraps_is_told_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    where = screen("table", terminal=True, colour="never")

    where.many(
        [record(error="word " * 30), record(error="short")], ("id",), ("id", "state", "error"), "things", wraps=True
    )

    lines = where.out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert where.out.getvalue().count("word") == 30
    assert lines[-1].split() == ["7", "dead-end", "short"]


def test_wide_characters_wrap_within_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    where = screen("table", terminal=True, colour="never")

    where.many([{"id": 7, "error": "猫" * 25}], ("id",), ("id", "error"), "things", wraps=True)

    assert [line.strip() for line in where.out.getvalue().splitlines()[1:]] == ["7  " + "猫" * 10, "猫" * 10, "猫" * 5]


def test_a_count_of_failures_is_called_that() -> None:
    where, sheet = screen(), screen()

    where.many([{"attempt": 0}], ("attempt",), ("attempt",), "things")
    sheet.one({"attempt": 0})

    assert where.out.getvalue().splitlines() == ["FAILURES", "       0"]
    assert sheet.out.getvalue() == "failures  0\n"


def test_colour_is_for_terminals_unless_it_is_asked_for() -> None:
    assert "\x1b[" in shown("table", record(state="parked"), terminal=True)
    assert "\x1b[" in shown("table", record(state="parked"), colour="always")
    assert "\x1b[" not in shown("table", record(state="parked"))
    assert "\x1b[" not in shown("table", record(state="parked"), terminal=True, colour="never")


def test_json_keeps_underscores_instants_and_every_field() -> None:
    (got,) = json.loads(shown("json", record(more=[1, None])))

    assert got == {
        "id": 7,
        "state": "dead_end",
        "seen_at": "2030-01-31T02:57:00+00:00",
        "error": "boom",
        "more": [1, None],
    }


def test_jsonl_is_one_line_a_record() -> None:
    lines = shown("jsonl", record(error="a\nb"), record()).splitlines()

    assert [json.loads(line)["error"] for line in lines] == ["a\nb", "boom"]


def test_csv_has_a_header_even_without_rows_and_no_formula() -> None:
    assert shown("csv") == "id,state,seen_at,error\n"
    assert shown("csv", record(id=-1, error="=2+3")).splitlines()[1] == "-1,dead_end,2030-01-31T02:57:00+00:00,'=2+3"


@pytest.mark.parametrize(("form", "out"), [("table", ""), ("json", "[]\n"), ("jsonl", "")])
def test_nothing_is_said_on_standard_error(form: str, out: str) -> None:
    where = screen(form)

    where.many([], ("id",), ("id",), "things")

    assert (where.out.getvalue(), where.err.getvalue()) == (out, "0 things\n")


def test_quiet_leaves_out_notes_but_not_complaints() -> None:
    where = screen(is_quiet=True)

    where.note("by the way")
    where.complain("error: no")

    assert where.err.getvalue() == "error: no\n"


def test_a_sheet_shows_exact_instants_and_text_of_several_lines() -> None:
    where = screen()

    where.one(record(error="first\n\x1b[31msecond"), blocks=("error",))

    assert where.out.getvalue().splitlines() == [
        "id       7",
        "state    dead-end",
        "seen at  2030-01-31T02:57:00.000+00:00  (3m ago)",
        "error",
        "    first",
        "    \\x1b[31msecond",
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_told_once() -> None:
    with open("/dev/full", "w") as out:
        where = Screen(out, io.StringIO())

        with pytest.raises(click.ClickException, match="No space left"):
            where.value({"count": 1}, "1")
        where.flush()


def test_a_reader_that_has_gone_ends_the_showing_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        where = Screen(out, io.StringIO())

        for _ in range(3):
            where.value({"count": 1}, "1")
        where.flush()

    assert where.err.getvalue() == ""
