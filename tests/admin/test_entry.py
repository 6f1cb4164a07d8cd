"""The root: where options come from, and how every ending looks."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lattice_tasks.admin import main
from lattice_tasks.admin.desk import Desk
from lattice_tasks.admin.entry import root

from .conftest import CommandLine, Terminal

ROOT = Path(__file__).resolve().parents[2]


def started(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """The real program, in a process of its own."""
    more.setdefault("env", {**os.environ, "PYTHONPATH": str(ROOT)})
    command = [sys.executable, "-P", "-m", "lattice_tasks", *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **{**pipes, **more})


def test_global_options_may_stand_anywhere_and_the_last_one_wins(lite: CommandLine) -> None:
    lite("queues", "add", "gpu")

    before, between, after = (
        lite("-o", "jsonl", "queues", "list"),
        lite("queues", "-o", "jsonl", "list"),
        lite("-o", "csv", "queues", "list", "-o", "jsonl"),
    )

    assert before.out == between.out == after.out
    assert before.out.startswith('{"name": "gpu"')


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    lite: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lattice.toml").write_text('namespace = "from-file"\nstore_url = "sqlite:///file.db"\n')

    def namespace(*flags: str) -> str:
        return lite.bare(*flags, "queues", "add", "q", "-o", "json").data["namespace"]

    assert namespace() == "from-file"
    monkeypatch.setenv("LATTICE_NAMESPACE", "from-environment")
    assert namespace() == "from-environment"
    assert namespace("--namespace", "from-flag") == "from-flag"
    assert (tmp_path / "file.db").exists()


def test_every_option_has_a_variable(lite: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        lite("queues", "add", name)
    lite("tasks", "submit", "a", "x")
    lite("tasks", "submit", "a", "x")

    monkeypatch.setenv("LATTICE_OUTPUT", "json")
    monkeypatch.setenv("LATTICE_TASKS_LIST_LIMIT", "1")

    assert len(lite("tasks", "list").data) == 1
    assert len(lite("tasks", "list", "--limit", "2").data) == 2


def test_colour_is_left_out_where_no_color_is_set(lite: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    lite("queues", "add", "gpu")
    coloured = lite("queues", "list", typed="").out

    monkeypatch.setenv("NO_COLOR", "1")

    assert "\x1b[" in coloured
    assert "\x1b[" not in lite("queues", "list", typed="").out
    assert "\x1b[" in lite("queues", "list", "--color", "always").out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(lite: CommandLine, closed: str) -> None:
    lite("queues", "add", "gpu")
    command = f"{sys.executable} -P -m lattice_tasks --store-url {lite.store_url} queues list {closed}"

    done = subprocess.run(["bash", "-c", command], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_that_knows_only_ascii_gets_the_rest_written_out(lite: CommandLine) -> None:
    lite("queues", "add", "größe")

    program = started(
        "--store-url",
        lite.store_url,
        "queues",
        "list",
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
    )
    out, err = program.communicate(timeout=30)

    assert (program.returncode, err) == (0, "")
    assert "gr\\xf6\\xdfe" in out


def test_who_sits_in_the_wrong_folder_is_told(lite: CommandLine, tmp_path: Path) -> None:
    ran = lite.bare("queues", "list")

    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith(f"note: lattice.db does not exist in {tmp_path}")
    assert lite.bare("-q", "queues", "list").err == ""


@pytest.mark.parametrize(
    ("store", "code", "told"),
    [
        ("postgresql://nobody:secret@127.0.0.1:1/none", 69, "does not answer"),
        ("mysql://localhost/x", 78, "must start with"),
        ("sqlite:///", 78, "names no file"),
        ("sqlite:///.", 78, "is a directory"),
        ("sqlite:///no/such/folder/lattice.db", 78, "cannot be used"),
        ("sqlite:///garbage.db", 78, "not a database"),
    ],
)
@pytest.mark.parametrize(
    "command", [("queues", "list"), ("tasks", "submit", "q", "a"), ("db", "migrate"), ("dlq", "count")]
)
def test_a_store_that_cannot_be_used_is_one_line(
    lite: CommandLine, tmp_path: Path, store: str, code: int, told: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "garbage.db").write_bytes(b"this is no database at all, " * 200)

    ran = lite.bare("-q", "--store-url", store, *command)

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1), ran.err
    assert told in ran.err
    assert "secret" not in ran.err
    assert "Traceback" not in ran.err


def test_a_newer_schema_is_refused_with_what_to_do(lite: CommandLine, postgres_url: str) -> None:
    cli = CommandLine(postgres_url)
    cli("queues", "list")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("insert into lattice_migration (name, applied) values ('9999_later', now())")

    for command in (("queues", "list"), ("tasks", "submit", "q", "a"), ("db", "migrate")):
        ran = cli(*command)

        assert (ran.code, ran.out, len(ran.err.splitlines())) == (78, "", 1)
        assert "newer than this code" in ran.err
    assert cli("health").code == 1
    assert cli("doctor").code == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("nonsense",), 2),
        (("queues",), 2),
        (("queues", "add"), 2),
        (("-o", "xml", "queues", "list"), 2),
        (("--config", "missing.toml", "queues", "list"), 78),
        (("--namespace", "", "queues", "list"), 78),
        (("--broker-url", "http://x", "queues", "list"), 78),
    ],
)
def test_wrong_usage_is_told_and_ends_with_its_code(lite: CommandLine, arguments: tuple[str, ...], code: int) -> None:
    ran = lite.bare(*arguments)

    assert (ran.code, ran.out) == (code, "")
    assert "Traceback" not in ran.err
    assert ran.err


def test_a_noun_without_a_verb_shows_its_help_on_standard_error(lite: CommandLine) -> None:
    ran = lite.bare("dlq")

    assert (ran.code, ran.out) == (2, "")
    assert "\n  replay " in ran.err


@pytest.mark.parametrize("command", [[], *([name] for name in root.commands)])
def test_every_command_explains_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    assert "Usage: lattice-tasks" in capsys.readouterr().out


def test_the_unforeseen_is_one_line_unless_verbose(lite: CommandLine) -> None:
    def broken(**_: Any) -> Any:
        raise ZeroDivisionError("ouch")

    def desk() -> Desk:
        return Desk(broken, streams[0], streams[1])

    streams = [Terminal(), Terminal()]
    code, brief = main(["queues", "list"], desk), streams[1].getvalue()
    streams = [Terminal(), Terminal()]
    main(["queues", "list", "-v"], desk)

    assert (code, brief.splitlines()[-1]) == (1, "error: unforeseen ZeroDivisionError: ouch (-v shows where)")
    assert "Traceback" not in brief
    assert "Traceback" in streams[1].getvalue()


def test_a_pipe_that_closes_early_is_no_error(lite: CommandLine) -> None:
    for number in range(200):
        lite.bare("--store-url", lite.store_url, "-q", "queues", "add", f"queue-{number:03}-{'x' * 200}")
    program = started("--store-url", lite.store_url, "queues", "list", "-o", "json")

    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.read(10)
    program.stdout.close()

    assert (program.wait(30), program.stderr.read()) == (0, "")


def test_an_interrupt_ends_with_130_and_one_line(lite: CommandLine) -> None:
    task_id = lite("tasks", "submit", "q", "a").out.strip()
    program = started("--store-url", lite.store_url, "tasks", "wait", task_id)
    assert program.stderr is not None
    program.stderr.readline()  # it says that it waits

    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=30)

    assert (program.returncode, err.strip()) == (130, "interrupted")


def test_no_command_shows_a_password(lite: CommandLine) -> None:
    url = "postgresql://somebody:secret@127.0.0.1:1/none?sslpassword=hidden"

    for command in (("queues", "list"), ("health",), ("doctor",), ("worker", "no_such_app", "--processes", "1")):
        ran = lite.bare("--store-url", url, "--broker-url", "amqp://guest:secret@127.0.0.1:1/", *command)

        assert "secret" not in ran.out + ran.err
        assert "hidden" not in ran.out + ran.err


def test_the_version_is_told_with_what_it_stands_on(lite: CommandLine) -> None:
    assert lite("version").out.startswith("lattice-tasks 0.")
    assert {"version", "python", "sqlite", "dramatiq"} <= set(lite.json("version"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_both_names(lite: CommandLine, shell: str) -> None:
    script = lite("completion", shell).out

    assert "_LATTICE_TASKS_COMPLETE" in script
    assert script.splitlines()[-1].startswith("compdef" if shell == "zsh" else "complete")
    assert " lattice" in script.splitlines()[-1].replace("lattice_tasks", "").replace(";", " ")


def test_completion_offers_the_verbs_of_a_noun() -> None:
    program = started(
        env={**os.environ, "PYTHONPATH": str(ROOT), "_LATTICE_TASKS_COMPLETE": "bash_complete",
             "COMP_WORDS": "lattice-tasks dlq re", "COMP_CWORD": "2"},
    )  # fmt: skip

    out, _ = program.communicate(timeout=30)

    assert out.split() == [
        f"plain,{verb}" for verb in ("redirects", "replay", "report", "restore", "resume", "retention")
    ]
