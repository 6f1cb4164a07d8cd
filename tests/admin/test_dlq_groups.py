"""`lattice-tasks dlq groups`, `group` and `mark`, on both engines."""

import io
import os
import shlex

import pytest

from lattice_tasks.admin.groups import _bars
from lattice_tasks.admin.screen import Screen

from .conftest import App, CommandLine


@pytest.fixture
def busy(app: App) -> App:
    """Three letters of `fail`, alike, and one of `refuse`."""
    app.park(3)
    app.refuse.submit()
    app.work()
    return app


def test_groups_say_what_is_wrong_most_first(cli: CommandLine, busy: App) -> None:
    first, second = cli.json("dlq", "groups")

    assert (first["live"], first["hits"], first["actors"], first["queues"]) == (3, 3, ["fail"], ["sums"])
    assert (first["error_class"], first["message"], first["state"]) == ("ValueError", "ValueError: it broke", "new")
    assert len(first["trend"]) == 24
    assert [sample["entry_id"] for sample in first["samples"]] == [3, 2, 1]
    assert (second["live"], second["message"]) == (1, "not today")
    table = cli("dlq", "groups").out.splitlines()
    assert table[0].split() == [
        *("GROUP", "LIVE", "TREND", "24H", "FIRST", "SEEN", "LAST", "SEEN", "STATE", "ACTOR", "ERROR")
    ]
    assert "the last 24 h, one column an hour" in cli("dlq", "groups").err
    assert table[1].split()[:2] == [first["fingerprint"][:8], "3"]
    assert [row["fingerprint"] for row in cli.json("dlq", "groups", "--queue", "sums")] == [
        first["fingerprint"],
        second["fingerprint"],
    ]
    assert cli("dlq", "groups", "--queue", "nope").code == 3


def test_a_row_fits_a_narrow_terminal(lite: CommandLine, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(sqlite_url)
    app.park(2, text="a long story, " * 20)
    app.lattice.close()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    listed, grouped = lite("dlq", "list", typed=""), lite("dlq", "groups", typed="")

    lines = [*listed.out.splitlines(), *grouped.out.splitlines()]
    assert max(map(len, lines)) == 80
    assert grouped.out.splitlines()[0].split() == [*("GROUP", "LIVE", "TREND", "24H", "STATE", "ACTOR", "ERROR")]
    assert "the last 24 h, one column 3 hours" in grouped.err
    assert listed.out.splitlines()[0].split() == ["ENTRY", "ID", "QUEUE", "GROUP", "ACTOR", "PARKED", "ERROR"]


def test_one_group_is_shown_with_samples_and_with_commands_that_work(cli: CommandLine, busy: App) -> None:
    group = busy.group()

    ran = cli("dlq", "group", group[:6])

    assert ran.code == 0
    assert "3  sums" in ran.out
    commands = [line.strip() for line in ran.out.splitlines() if "lattice-tasks dlq" in line]
    assert len(commands) == 5
    for line in commands:
        arguments = shlex.split(line[line.index("lattice-tasks") :])[1:]
        done = cli(*arguments, *(["--dry-run"] if arguments[1] in ("replay", "mark") else []))
        assert done.code == 0, (arguments, done.err)
    assert cli.json("dlq", "group", group)["versions"] == ["0.1.0"]
    assert cli("dlq", "group", "000000").code == 3
    assert cli("dlq", "group", "nope").code == 2


def test_a_marked_group_leaves_the_list_and_comes_back_by_itself(cli: CommandLine, busy: App) -> None:
    group = busy.group()

    cli.json("dlq", "mark", group[:8], "--state", "resolved", "--owner", "ann", "--note", "mended", "--ticket", "T-1")
    quiet = cli("dlq", "groups", "-o", "json")
    everything = cli.json("dlq", "groups", "--all")
    resolved = cli.json("dlq", "groups", "--state", "resolved")
    busy.park(1)
    back = cli.json("dlq", "groups")

    assert ([row["live"] for row in quiet.data], quiet.err) == ([1], "not shown: 1 resolved; --all shows them\n")
    assert len(everything) == 2
    assert [(row["fingerprint"], row["owner"], row["note"], row["ticket"]) for row in resolved] == [
        (group, "ann", "mended", "T-1")
    ]
    assert [(row["live"], row["state"], row["reopened"]) for row in back] == [(4, "new", True), (1, "new", False)]
    assert "reopened" in cli("dlq", "groups").out


def test_a_snoozed_group_says_until_when_and_who_said_so(
    cli: CommandLine, busy: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICE_OPERATOR", "ann@desk")
    group = busy.group()

    marked = cli.json("dlq", "mark", group[:8], "--state", "snoozed", "--for", "2h", "--reason", "lunch")

    assert (marked["state"], marked["changed_by"]) == ("snoozed", "ann@desk")
    assert marked["until"] > marked["changed_at"]
    assert "until 20" in cli("dlq", "group", group).out
    (record,) = cli.json("audit", "list", "--verb", "dlq mark")
    assert (record["target"], record["who"], record["reason"]) == (group, "ann@desk", "lunch")
    assert (record["before"], record["after"]["state"]) == ({"state": "new"}, "snoozed")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "nothing is said"),
        (("--state", "fine"), 2, "none of new, known"),
        (("--state", "snoozed"), 2, "snoozed for a time"),
        (("--for", "2h"), 2, "snoozed for a time"),
        (("--state", "snoozed", "--for", "2030-01-31T12:00Z"), 2, "is an instant"),
        (("--note", "a\nb"), 2, "note must be"),
    ],
)
def test_what_cannot_be_said_is_one_line_and_changes_nothing(
    cli: CommandLine, busy: App, arguments: tuple[str, ...], code: int, text: str
) -> None:
    ran = cli("dlq", "mark", busy.group(), *arguments)

    assert (ran.code, len(ran.err.splitlines())) == (code, 1)
    assert text in ran.err
    assert cli.json("dlq", "group", busy.group())["changed_at"] is None
    assert cli.json("audit", "list", "--verb", "dlq mark") == []


def test_groups_without_letters_are_told_of(cli: CommandLine, busy: App) -> None:
    cli("dlq", "discard", "--all", "--group", busy.group(), "--yes")

    ran = cli("dlq", "groups", "-o", "json")

    assert ([row["live"] for row in ran.data], ran.err) == ([1], "not shown: 1 without letters; --all shows them\n")
    assert [row["live"] for row in cli.json("dlq", "groups", "--all")] == [1, 0]


def test_bars_are_drawn_with_what_the_terminal_can_show() -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")

    assert _bars(Screen(io.StringIO(), io.StringIO()), [0, 1, 50, 100]) == "▁▂▅█"
    assert _bars(Screen(plain, io.StringIO()), [0, 1, 50, 100]) == "_.=#"
    assert _bars(Screen(io.StringIO(), io.StringIO()), []) == ""
    assert os.linesep not in _bars(Screen(io.StringIO(), io.StringIO()), [0] * 24)
