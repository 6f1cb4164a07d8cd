"""`lattice-tasks audit`, and that every command which changes something is recorded there."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import click
import pytest

from lattice_tasks.admin.entry import root
from lattice_tasks.errors import Conflict
from tests.working import change

from .conftest import App, CommandLine
from .test_queues import worker

Scene = Callable[[CommandLine, App], list[str]]


def planned(app: App, state: str = "planned") -> str:
    """A plan to discard two letters, as somebody who applies it would leave it; the library records nothing."""
    app.park(2, text="a secret")
    name = app.lattice.plans.make(verb="discard").id
    if state != "planned":
        change(app.lattice, "update lattice_plan set state = %s, owner = 'ann', beat_at = created_at", state)
    return name


def binned(app: App) -> str:
    (task_id,) = app.park(text="a secret")
    app.lattice.dead_letters("sums").discard(1)
    return task_id


def redirected(app: App) -> int:
    app.lattice.queues.add("others")
    return app.lattice.redirects.add(from_queue="sums", to_queue="others").id


#: Every verb that changes something, and a scene in which it does: the arguments to give it then.
CHANGING: dict[str, Scene] = {
    "queues add": lambda cli, app: ["fresh"],
    "queues pause": lambda cli, app: ["sums"],
    "queues resume": lambda cli, app: ["sums"],
    "tasks submit": lambda cli, app: ["sums", "add", "--args", '["a secret"]'],
    "tasks cancel": lambda cli, app: [app.add.submit(1, _delay=timedelta(hours=1)).id],
    "dlq discard": lambda cli, app: app.park(2, text="a secret"),
    "dlq replay": lambda cli, app: app.park(2, text="a secret"),
    "dlq mark": lambda cli, app: [app.park(2, text="a secret") and app.group(), "--state", "known"],
    "dlq edit": lambda cli, app: [app.park(2, text="a secret")[1], "--set", 'kwargs.text="a secret, too"'],
    "dlq apply": lambda cli, app: [planned(app)],
    "dlq pause": lambda cli, app: [planned(app, "running")],
    "dlq resume": lambda cli, app: [planned(app, "paused")],
    "dlq restore": lambda cli, app: [binned(app)],
    "dlq retention": lambda cli, app: ["sums", "--after", "90d"],
    "dlq redirects add": lambda cli, app: ["--from-queue", "sums", "--to-queue", "others"],
    "dlq redirects remove": lambda cli, app: [str(redirected(app))],
    "workers drain": lambda cli, app: [str(worker(app))],
    "db prune": lambda cli, app: [],
}
#: On a store of their own: they make it.
MAKING = {"db migrate"}
READ_ONLY = {
    "queues list", "queues show", "queues depth", "tasks list", "tasks show", "tasks why", "tasks wait",
    "dlq list", "dlq count", "dlq show", "dlq groups", "dlq group", "workers list", "audit list", "audit verify", "db check",
    "dlq plan", "dlq plans", "dlq plan-show", "dlq report", "dlq export", "dlq bin", "dlq redirects list",
    "fifo list", "fifo count", "fifo peek", "trees list", "trees scan", "trees get",
    "worker", "dev", "doctor", "health", "completion", "version",
}  # fmt: skip


def verbs(command: click.Command = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from verbs(child, (*path, name))
    else:
        yield " ".join(path), command


def is_changing(command: click.Command) -> bool:
    """Whether it was declared with `options.changing`."""
    return {"reason", "dry_run"} <= {param.name for param in command.params}


def records(cli: CommandLine, *filters: str) -> list[dict[str, Any]]:
    return cli.json("audit", "list", *filters)


def test_every_verb_is_known_to_change_something_or_not() -> None:
    """I13: a verb that is in neither list of this file would escape the tests below."""
    found = dict(verbs())

    assert {name for name, command in found.items() if is_changing(command)} == set(CHANGING) | MAKING
    assert {name for name, command in found.items() if not is_changing(command)} == READ_ONLY


@pytest.mark.parametrize("verb", sorted(CHANGING))
def test_a_changing_verb_is_recorded(cli: CommandLine, app: App, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: every change has an actor; who, when, which verb, on what, and why. Never what a task was given."""
    app.lattice.queues.add("sums")
    if verb == "dlq redirects add":
        app.lattice.queues.add("others")
    arguments = CHANGING[verb](cli, app)
    monkeypatch.setenv("LATTICE_OPERATOR", "ann")
    tried = cli(*verb.split(), *arguments, "--yes", "--dry-run")
    before = records(cli)

    ran = cli(*verb.split(), *arguments, "--yes", "--reason", "because")

    written = records(cli)
    assert (tried.code, before, ran.code) == (0, [], 0), ran.err
    assert [record["phase"] for record in written] in (["done"], ["ended", "begun"])
    assert {(record["verb"], record["who"], record["reason"]) for record in written} == {(verb, "ann", "because")}
    assert all(record["target"] for record in written)
    assert (written[0]["before"], written[0]["after"]) != ({}, {})
    assert "a secret" not in str(written)
    assert cli("audit", "verify").code == 0


def test_the_command_that_makes_the_store_is_recorded_in_it(cli: CommandLine) -> None:
    cli.json("db", "migrate", "--reason", "new")
    cli.json("db", "migrate")  # nothing to do, nothing to tell

    (record,) = records(cli)
    assert (record["verb"], record["reason"], record["after"]) == ("db migrate", "new", {"applied": ["0001_initial"]})


def test_looking_is_not_recorded(cli: CommandLine, app: App) -> None:
    (parked,) = app.park()
    for command in (
        ("queues", "list"), ("queues", "show", "sums"), ("queues", "depth", "sums"), ("tasks", "list"),
        ("tasks", "show", parked), ("tasks", "wait", parked), ("dlq", "list"), ("dlq", "count"), ("dlq", "show", parked),
        ("workers", "list"), ("audit", "list"), ("audit", "verify"), ("db", "check"), ("doctor",), ("health",),
    ):  # fmt: skip
        cli(*command)

    assert records(cli) == []


def test_what_was_refused_is_not_recorded(cli: CommandLine, app: App) -> None:
    (parked,) = app.park()

    codes = [
        cli(*command).code
        for command in (
            ("queues", "add", "sums"),
            ("queues", "pause", "nope"),
            ("tasks", "submit", "sums", "add", "--priority", "99999999999"),
            ("dlq", "discard", parked),
            ("workers", "drain", "7", "--yes"),
        )
    ]

    assert codes == [4, 3, 2, 6, 3]
    assert records(cli) == []


def test_a_record_says_what_was_and_what_is(cli: CommandLine, app: App) -> None:
    ids = app.park(3)
    cli("dlq", "discard", ids[0], "--yes")
    cli("dlq", "replay", ids[1], ids[2], ids[0], "--yes")
    cli("queues", "pause", "sums")
    cli("queues", "pause", "sums")

    paused_again, paused, ended, begun, *_ = records(cli)

    assert (paused["before"]["state"], paused["after"]["state"]) == ("active", "paused")
    assert paused_again["before"] == paused_again["after"]
    assert (begun["target"], begun["before"]) == ("sums", {"letters": {"sums": "2-3"}})
    assert ended["begun"] == begun["n"]
    assert ended["after"] == {"replaying": {"sums": "2-3"}, "not_found": {}}
    shown = cli("audit", "list").out.splitlines()
    assert "state active → paused" in shown[2]
    assert shown[4].endswith("letters sums 2-3")


def test_records_are_narrowed(cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("ann", "ben", "cleo")):
        monkeypatch.setenv("LATTICE_OPERATOR", name)
        cli("queues", "add", f"q{number}")
    cli("queues", "pause", "q0")

    def found(*filters: str) -> list[int]:
        return [record["n"] for record in records(cli, *filters)]

    assert found("--who", "ben") == [2]
    assert found("--verb", "queues pause") == [4]
    assert found("--target", "q0") == [4, 1]
    assert found("--limit", "2") == [4, 3]
    assert found("--since", "1h") == [4, 3, 2, 1]
    assert found("--since", "2100-01-01T00:00Z") == []
    assert found("--unfinished") == []
    assert "--limit N shows more" in cli("audit", "list", "--limit", "2").err
    assert cli("audit", "list", "--since", "2100-01-01").code == 2


def test_verify_names_the_first_wrong_record(cli: CommandLine, app: App) -> None:
    """I13"""
    for name in ("a", "b", "c"):
        cli("queues", "add", name)
    sound = cli("audit", "verify", "-o", "json")
    with app.lattice.engine.session() as session:
        session.raw.execute("update lattice_audit set who = 'nobody' where n >= 2")

    ran = cli("audit", "verify", "-o", "json")

    assert (sound.code, sound.data["records"], sound.data["kind"]) == (0, 3, None)
    assert (ran.code, ran.data["records"], ran.data["wrong"], ran.data["kind"]) == (1, 1, 2, "changed")
    assert ran.data["whole"] is False
    assert sound.data["whole"] is True
    assert list(ran.data) == list(sound.data) == ["whole", "records", "head", "wrong", "kind", "detail"]
    told = "error: the audit is not whole: record 2 was changed: its hash does not fit what it says"
    assert ran.err == f"{told} (1 record before it as written)\n"
    table = cli("audit", "verify")
    assert (table.code, table.out, table.err) == (1, "", ran.err)


def test_verify_says_in_words_that_the_chain_is_whole(cli: CommandLine) -> None:
    """I13: what it prints can be given to --kept."""
    cli("queues", "add", "a")
    head = cli.json("audit", "verify")["head"]

    told = cli("audit", "verify").out.splitlines()

    assert told == ["the audit is whole: 1 record, each as it was written and in its place", f"head 1:{head}"]
    assert cli("audit", "verify", "--kept", told[1].split()[1]).code == 0


def test_a_refused_act_is_recorded_with_the_sentence_that_was_told(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13"""
    app.park(1)

    def refuse(*_given: Any) -> None:
        raise Conflict("the shelf of postgresql://me:hush@db/x is being moved\nby ann")

    monkeypatch.setattr("lattice_tasks.dead_letters.shelf.Shelf.discard_many", refuse)

    ran = cli("dlq", "discard", "1", "--queue", "sums", "--yes")

    ended = records(cli, "--verb", "dlq discard")[0]
    assert ran.code == Conflict.exit_code
    assert ended["phase"] == "ended"
    assert ended["after"]["error"].startswith("the shelf of postgresql://me:")
    assert ended["after"]["error"].endswith("is being moved by ann")
    assert "hush" not in str(ended)


def test_a_chain_that_was_written_anew_does_not_hold_what_was_kept(cli: CommandLine) -> None:
    """I13: sound in itself, so only what was noted elsewhere gives it away."""
    cli("queues", "add", "a")
    kept = "{records}:{head}".format(**cli("audit", "verify", "-o", "json").data)
    cli("queues", "add", "b")

    right, wrong, beyond, nonsense = (
        cli("audit", "verify", "--kept", text) for text in (kept, f"1:{'0' * 64}", kept.replace("1:", "9:"), "1:x")
    )

    assert [ran.code for ran in (right, wrong, beyond, nonsense)] == [0, 1, 1, 2]
    assert "record 1 was changed: it is not the record whose hash was kept" in wrong.err
