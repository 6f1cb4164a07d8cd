"""`lattice-tasks tasks`, on both engines."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from .conftest import App, CommandLine
from .test_queues import worker

STRANGER = "0190b2a4-7c1e-7c3f-9d62-5f0d3a1b2c3d"


def test_submit_prints_the_id_and_what_was_given_arrives(cli: CommandLine, app: App) -> None:
    ran = cli("tasks", "submit", "sums", "add", "--args", "[40]", "--kwargs", '{"right": 2}')
    task_id = ran.out.strip()

    app.work()
    shown = cli.json("tasks", "show", task_id)

    assert ran.code == 0
    assert (shown["state"], shown["result"], shown["args"], shown["kwargs"]) == ("succeeded", 42, [40], {"right": 2})


def test_a_key_gives_the_first_tasks_id(cli: CommandLine) -> None:
    """L-30: a second submit of the key creates nothing."""
    first, second = (cli("tasks", "submit", "q", "a", "--key", "K", "-o", "json") for _ in range(2))

    assert first.data["id"] == second.data["id"]
    assert (first.data["created"], second.data["created"]) == (True, False)
    assert "was there already" in second.err


def test_a_key_with_other_arguments_is_told(cli: CommandLine) -> None:
    """C08: the answer says that what was stored differs."""
    first, same, other = (
        cli("tasks", "submit", "q", "a", "--key", "K", "--args", args) for args in ("[1]", "[1]", "[2]")
    )

    assert first.out == same.out == other.out
    assert [ran.err.count("with other arguments") for ran in (first, same, other)] == [0, 0, 1]


@pytest.mark.parametrize("delay", ["90s", "1m30s", "90", "instant"])
def test_a_delay_is_a_span_or_an_instant(cli: CommandLine, delay: str) -> None:
    """C57: the same instant, however it is said."""
    if delay == "instant":
        delay = (datetime.now(UTC) + timedelta(seconds=90)).isoformat()
    task_id = cli("tasks", "submit", "q", "a", "--delay", delay, "--priority", "3", "--deadline", "1d").out.strip()

    shown = cli.json("tasks", "show", task_id)
    wait_s = (datetime.fromisoformat(shown["due_at"]) - datetime.fromisoformat(shown["submitted_at"])).total_seconds()

    assert (shown["state"], shown["priority"]) == ("scheduled", 3)
    assert 30 < wait_s < 91
    assert shown["deadline_at"] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--args", "[1,"),
        ("--args", '{"a": 1}'),
        ("--args", "[NaN]"),
        ("--args", "[" * 66 + "]" * 66),
        ("--args", "[" * 50_000),
        ("--args", '["\\u0000"]'),
        ("--args", '["\\ud800"]'),
        ("--args", json.dumps(["x" * 1_048_577])),
        ("--kwargs", "[]"),
        ("--kwargs", '{"_namespace": "other"}'),
        ("--delay", "2030-01-31T12:00"),
        ("--delay", "-5"),
        ("--delay", "soon"),
        ("--delay", "9999999d"),
        ("--priority", "high"),
        ("--priority", "99999999999"),
        ("--key", ""),
        ("--nonsense",),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_stored(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    ran = cli("-q", "tasks", "submit", "q", "a", *arguments)

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert cli.json("tasks", "list") == []


def test_an_actor_that_no_worker_knows_is_refused_unless_forced(cli: CommandLine, app: App) -> None:
    assert cli("tasks", "submit", "sums", "ad").code == 0  # nobody is there to know better
    worker(app)

    refused = cli("tasks", "submit", "sums", "ad")

    assert (refused.code, refused.out) == (3, "")
    assert "known: add" in refused.err
    assert cli("tasks", "submit", "sums", "ad", "--force").code == 0
    assert cli("tasks", "submit", "sums", "add", "--dry-run").out == ""
    assert len(cli.json("tasks", "list")) == 2


def test_a_list_can_be_narrowed_and_says_when_there_is_more(cli: CommandLine, app: App) -> None:
    parked = app.park(3)
    waiting = app.add.submit(1).id

    assert [task["id"] for task in cli.json("tasks", "list", "--state", "waiting")] == [waiting]
    assert {task["id"] for task in cli.json("tasks", "list", "--actor", "fail")} == set(parked)
    assert "--limit N shows more" in cli("tasks", "list", "--limit", "2").err
    assert cli("tasks", "list", "--queue", "nope").code == 3
    assert cli("tasks", "list", "--state", "lost").code == 2


def test_a_task_is_shown_for_people_with_its_traceback(cli: CommandLine, app: App) -> None:
    (task_id,) = app.park(1, text="\x1b]0;renamed\x07 line\nsecond")

    out = cli("tasks", "show", task_id).out

    assert "state" in out.splitlines()[3]
    assert "parked" in out.splitlines()[3]
    assert "ValueError: \\x1b]0;renamed\\x07 line\n    second" in out
    assert "raise ValueError(text)" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("verb", ["show", "why", "cancel", "wait"])
@pytest.mark.parametrize("task_id", [STRANGER, "7", "x' or 1=1 --"])
def test_an_unknown_id_is_not_found(cli: CommandLine, verb: str, task_id: str) -> None:
    ran = cli("-q", "tasks", verb, task_id)

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (3, "", 1)


def test_why_is_a_line_for_each_reason_with_what_to_do(cli: CommandLine, app: App) -> None:
    (parked,) = app.park(1, text="\x1b[31m two\nlines")
    waiting = app.add.submit(1).id
    cli("queues", "pause", "sums")

    shown = cli("tasks", "why", waiting)
    data = cli.json("tasks", "why", waiting)

    first, second = shown.out.splitlines()
    assert first.startswith("queue sums is paused since 2")
    assert first.endswith("  [lattice-tasks queues resume sums]")
    assert second == "no live worker is there  [lattice-tasks worker APP]"
    assert [(reason["code"], reason["text"] + f"  [{reason['todo']}]") for reason in data] == [
        ("queue_paused", first),
        ("no_worker", second),
    ]
    assert data[0]["facts"]["queue"] == "sums"
    (line,) = cli("tasks", "why", parked).out.splitlines()
    assert "ValueError: \\x1b[31m two lines" in line


def test_cancel_asks_and_tells_what_was_too_late(cli: CommandLine, app: App) -> None:
    """C52: waiting and delayed ones never start."""
    done = app.add.submit(1).id
    app.work()
    waiting, delayed = app.add.submit(2).id, app.add.submit(3, _delay=timedelta(hours=1)).id

    unasked = cli("tasks", "cancel", waiting)
    refused = cli("tasks", "cancel", waiting, typed="n\n")
    cancelled = cli("tasks", "cancel", waiting, typed="y\n")
    both = cli("tasks", "cancel", delayed, done, "--yes", "-o", "json")
    late = cli("tasks", "cancel", done, "--yes")

    assert [unasked.code, refused.code, cancelled.code, both.code, late.code] == [6, 6, 0, 5, 4]
    assert "Cancel 1 task? [y/N]" in refused.err
    assert {row["id"]: row["outcome"] for row in both.data} == {delayed: "cancelled", done: "too_late"}
    assert {task["state"] for task in cli.json("tasks", "list")} == {"succeeded", "cancelled"}


def test_wait_tells_how_it_ended(cli: CommandLine, app: App) -> None:
    good, bad = app.add.submit(1, 2).id, app.fail.submit(1).id
    open_id = app.add.submit(1, _delay=timedelta(hours=1)).id
    app.work_off(good, bad)

    succeeded, failed = cli("tasks", "wait", good, "-o", "json"), cli("tasks", "wait", bad)
    open_ = cli("tasks", "wait", open_id, "--timeout", "50ms")

    assert (succeeded.code, succeeded.data["result"]) == (0, 3)
    assert (failed.code, "parked" in failed.err) == (1, True)
    assert (open_.code, open_.out) == (75, "")
    assert open_.err.splitlines()[-1] == f"error: task {open_id} has not ended within 0.05 s; it goes on"


def test_a_cancelled_replay_is_noted_with_who_and_why(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C52: its letter says what failed, as before."""
    monkeypatch.setenv("LATTICE_OPERATOR", "ann")
    (task_id,) = app.park(1)
    before = cli.json("dlq", "show", task_id)
    cli("dlq", "replay", task_id)

    assert cli("tasks", "cancel", task_id, "--yes", "--reason", "too early").code == 0

    after = cli.json("dlq", "show", task_id)
    assert [note["text"] for note in after.pop("notes")] == ["replay cancelled: too early (by ann)"]
    assert {**after, "notes": []} == before
    shown = cli("dlq", "show", task_id).out
    assert "replay cancelled: too early (by ann)" in shown
    assert "1 attempt failed" in shown
    assert cli("dlq", "replay", task_id).code == 0
