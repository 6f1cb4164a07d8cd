"""`lattice-tasks dlq show` and `edit`: what was different, and how it is repaired."""

import json
import stat
from pathlib import Path

import pytest

from lattice_tasks.errors import AlreadyHandled

from .conftest import App, CommandLine
from .test_queues import worker

CANARY = "s3cr3t-CANARY"


def good(app: App, *args: object, **kwargs: object) -> str:
    """One run of `fail` that succeeds."""
    app.is_broken = False
    task_id = app.fail.submit(*args, **kwargs).id
    app.work()
    app.is_broken = True
    return task_id


def test_a_letter_is_shown_beside_the_last_good_run(cli: CommandLine, app: App) -> None:
    good_id = good(app, 7, text="fine")
    (task_id,) = app.park(1)

    shown = cli.json("dlq", "show", task_id)
    table = cli("dlq", "show", task_id).out

    assert shown["last_good_run"]["task_id"] == good_id
    assert shown["differences"] == [
        {"path": "args.0", "kind": "changed", "before": 7, "after": 0},
        {"path": "kwargs.text", "kind": "removed", "before": "fine", "after": None},
    ]
    assert [(life["ended"], life["reason"], life["attempts"]) for life in shown["lives"]] == [("parked", "unknown", 1)]
    assert "~ args.0       7 -> 0" in table
    assert '- kwargs.text  "fine"' in table
    assert f"to the last good run, {good_id}" in table


def test_no_good_run_and_no_difference_are_told(cli: CommandLine, app: App) -> None:
    app.park(1)
    assert "no good run of this actor among the last 1 tasks" in cli("dlq", "show", "1", "--queue", "sums").out

    good(app, 0)
    assert "none: it succeeded with the same arguments" in cli("dlq", "show", "1", "--queue", "sums").out


def test_every_life_is_told(cli: CommandLine, app: App) -> None:
    (task_id,) = app.park(1)
    cli("dlq", "replay", "1", "--queue", "sums", "--yes")
    app.work_off(task_id)

    shown = cli("dlq", "show", "1", "--queue", "sums").out

    assert "parked: unknown" in shown
    assert "replay failed: unknown" in shown
    assert [life["ended"] for life in cli.json("dlq", "show", task_id)["lives"]] == ["parked", "replay failed"]


def test_secrets_are_shown_nowhere(cli: CommandLine, app: App) -> None:
    """Under a name that looks like one, at any depth; in what is shown, compared, edited and recorded."""
    app.lattice.submit("sums", "fail", (1,), {"text": {"api_key": CANARY, "port": 1}})
    app.lattice.submit("sums", "fail", (2,), {"text": {"api_key": f"{CANARY}-2", "port": 2}})
    app.is_broken = False
    app.work()
    app.is_broken = True
    task_id = app.lattice.submit("sums", "fail", (3,), {"text": {"api_key": f"{CANARY}-3", "port": 3}}).id
    app.lattice.submit("sums", "fail", (4,), {"password": CANARY})
    app.work()

    for form in ("table", "json", "csv"):
        for ran in (
            cli("dlq", "show", "1", "--queue", "sums", "-o", form),
            cli("dlq", "show", "2", "--queue", "sums", "-o", form),
            cli("dlq", "edit", "1", "--queue", "sums", "--set", "kwargs.text.port=5", "--dry-run", "-o", form),
            cli("tasks", "show", task_id, "-o", form),
        ):
            arguments = ran.out.partition("traceback")[0] if form == "table" else ran.out
            assert CANARY not in arguments.replace(str({"api_key": f"{CANARY}-3", "port": 3}), "")
    assert "kwargs.password = ***" in cli("dlq", "show", "2", "--queue", "sums").out
    shown = cli.json("dlq", "show", "1", "--queue", "sums")
    assert shown["kwargs"] == {"text": {"api_key": "***", "port": 3}}
    assert [(one["path"], one["before"]) for one in shown["differences"]][1] == ("kwargs.text.api_key", "***")
    cli("dlq", "edit", "1", "--queue", "sums", "--set", f'kwargs.text.api_key="{CANARY}-4"', "--yes")
    assert CANARY not in json.dumps(cli.json("audit", "list"))


def test_an_edit_shows_what_changes_asks_and_replaces(cli: CommandLine, app: App) -> None:
    (task_id,) = app.park(1)

    ran = cli("dlq", "edit", "1", "--queue", "sums", "--set", 'kwargs.text="ok"', "--set", "args.0=5", typed="y\n")

    assert ran.code == 0, ran.err
    assert "~ args.0       0 -> 5\n" in ran.out
    assert '+ kwargs.text  "ok"\n' in ran.out
    assert "Replace dead letter 1 of queue sums by this?" in ran.err
    parent = cli.json("tasks", "show", task_id)
    child = cli.json("tasks", "show", parent["replaced_by"])
    assert (parent["state"], parent["args"]) == ("discarded", [0])
    assert (child["state"], child["args"], child["kwargs"]) == ("waiting", [5], {"text": "ok"})
    assert child["replay_of"] == task_id
    assert cli.json("dlq", "count") == {"count": 0}
    gone = cli("dlq", "show", task_id)
    assert (gone.code, gone.err) == (3, f"error: task {task_id} was edited: {child['id']} took its place\n")
    app.work()
    assert cli.json("dlq", "show", child["id"])["replay_of"] == task_id
    (record,) = cli.json("audit", "list", "--verb", "dlq edit")
    assert record["after"] == {"task_id": child["id"], "changed": ["args.0", "kwargs.text"]}


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ((), 2, "nothing is changed"),
        (("--set", "args.0=0"), 2, "nothing is changed"),
        (("--set", "kwargs.text"), 2, "is not PATH=JSON"),
        (("--set", "kwargs.text=bob"), 2, "is not JSON; a text stands in quotes"),
        (("--set", "args.0=NaN"), 2, "NaN is no JSON"),
        (("--set", "id=1"), 2, "id is locked"),
        (("--set", "queue=1"), 2, "queue is locked"),
        (("--set", "namespace=1"), 2, "namespace is locked"),
        (("--set", "submitted_at=1"), 2, "submitted_at is locked"),
        (("--unset", "kwargs.nope"), 2, "nothing to take away"),
        (("--kwargs", "[]"), 2, "not a JSON object"),
        (("--set", 'args.0="\\u0000"'), 2, "NUL"),
        (("--set", "kwargs._key=1"), 2, "kept for options"),
        (("--set", "args.0=5", "--key", "taken"), 4, "key 'taken' names task"),
        (("--set", "args.0=5", "--app", "nowhere"), 78, "app 'nowhere'"),
    ],
)
def test_an_edit_that_cannot_be_is_one_line_and_changes_nothing(
    cli: CommandLine, app: App, said: tuple[str, ...], code: int, text: str
) -> None:
    app.park(1)
    app.add.submit(1, _key="taken")

    ran = cli("dlq", "edit", "1", "--queue", "sums", *said, "--yes")

    assert (ran.code, len(ran.err.splitlines())) == (code, 1), ran.err
    assert text in ran.err
    assert cli.json("dlq", "count") == {"count": 1}
    assert [task["state"] for task in cli.json("tasks", "list", "--actor", "fail")] == ["parked"]


def test_without_a_terminal_and_a_yes_nothing_is_edited(cli: CommandLine, app: App) -> None:
    app.park(1)

    refused = [
        cli("dlq", "edit", "1", "--queue", "sums", "--set", "args.0=5"),
        cli("dlq", "edit", "1", "--queue", "sums", "--set", "args.0=5", typed="no\n"),
    ]
    dry = cli.json("dlq", "edit", "1", "--queue", "sums", "--set", "args.0=5", "--dry-run")

    assert [ran.code for ran in refused] == [6, 6]
    assert (dry["outcome"], dry["child_id"]) == ("would_replace", None)
    assert cli.json("dlq", "count") == {"count": 1}


def test_an_app_checks_the_call_against_its_signature(cli: CommandLine, app: App, tmp_path: Path) -> None:
    app.park(1)
    text = f"""
from lattice_tasks import Lattice
lattice = Lattice(store_url={cli.store_url!r}, set_default=False, log_level="critical")
@lattice.task(queue="sums")
def fail(number: int, text: str = "it broke") -> str: ...
"""
    signed, empty = (f"{name}_{cli.store_url[:6]}.py" for name in ("signed", "empty"))
    (tmp_path / signed).write_text(text)
    (tmp_path / empty).write_text(text.partition("@lattice")[0])

    def edit(app_name: str, *said: str) -> tuple[int, str]:
        ran = cli("dlq", "edit", "1", "--queue", "sums", "--app", str(tmp_path / app_name), *said, "--yes")
        return ran.code, ran.err

    code, err = edit(signed, "--set", "kwargs.colour=1")
    assert (code, "unexpected keyword argument 'colour'" in err) == (2, True)
    code, err = edit(empty, "--set", "args.0=5")
    assert (code, "declares no task 'fail'" in err) == (3, True)
    assert cli.json("dlq", "count") == {"count": 1}
    assert edit(signed, "--set", "args.0=5")[0] == 0


def test_without_an_app_some_worker_has_to_know_the_actor(cli: CommandLine, app: App) -> None:
    app.park(1)
    worker(app)

    ran = cli("dlq", "edit", "1", "--queue", "sums", "--set", "args.0=5", "--yes")

    assert (ran.code, "no worker knows an actor 'fail'" in ran.err) == (3, True)
    assert cli("dlq", "edit", "1", "--queue", "sums", "--set", "args.0=5", "--yes", "--force").code == 0


def test_an_editor_changes_the_call_and_never_sees_its_secrets(
    cli: CommandLine, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.lattice.submit("sums", "fail", (3,), {"text": {"api_key": CANARY, "port": 3}})
    app.work()
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/seen\nsed -i "s/\\"port\\": 3/\\"port\\": 4/" "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))

    edited = cli.json("dlq", "edit", "1", "--queue", "sums", "--editor", "--yes")

    assert CANARY not in (tmp_path / "seen").read_text()
    assert [one["path"] for one in edited["differences"]] == ["kwargs.text.port"]
    app.work()
    (letter,) = app.lattice.dead_letters("sums").list()
    assert json.loads(letter.body)["kwargs"] == {"text": {"api_key": CANARY, "port": 4}}


@pytest.mark.parametrize("left", ["{", "[]", '{"args": []}', '{"args": {}, "kwargs": {}}'])
def test_what_an_editor_leaves_has_to_be_a_call(
    lite: CommandLine, sqlite_url: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(sqlite_url)
    app.park(1)
    app.lattice.close()
    monkeypatch.setattr("click.edit", lambda text, extension: left)

    ran = lite("dlq", "edit", "1", "--queue", "sums", "--editor", "--yes")

    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert "what the editor left is not" in ran.err


def test_who_comes_second_is_told(cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """C55: the other operator edits while this one is asked."""
    (task_id,) = app.park(1)
    shelf = app.lattice.dead_letters("sums")
    monkeypatch.setattr(
        "lattice_tasks.admin.desk.Desk.confirm", lambda _desk, _change, _question: shelf.edit(1, args=[9])
    )

    ran = cli("dlq", "edit", "1", "--queue", "sums", "--set", "args.0=5", "--yes")

    assert ran.code == AlreadyHandled.exit_code == 4
    assert f"was edited, replayed or discarded meanwhile; see `lattice-tasks tasks show {task_id}`" in ran.err
    assert [task["args"] for task in cli.json("tasks", "list", "--state", "waiting") if "args" in task] == []
    assert app.lattice.queues.depth("sums").waiting == 1
