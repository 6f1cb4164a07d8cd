"""`lattice-tasks dlq plan`, `apply` and their kin, on both engines."""

import csv
import io
import json

import click
import pytest

from lattice_tasks import Lattice, insights
from tests.working import until

from .conftest import App, CommandLine


def lattice_workers(lattice: Lattice) -> list[insights.WorkerPicture]:
    with lattice.engine.session() as session:
        return insights.list_workers(session, lattice.namespace_id)


def records(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_plan_is_made_looked_at_and_applied(cli: CommandLine, app: App) -> None:
    """Nothing is done before `apply`, which asks; the audit has what was meant and what came of it."""
    app.park(3)
    made = cli("dlq", "plan", "--queue", "sums")
    (plan,) = cli.json("dlq", "plans")
    name = plan["id"]

    assert made.code == 0
    assert "by queue     sums: 3" in made.out
    assert "ValueError: it broke" in made.out
    assert f"replay these with: lattice-tasks dlq apply {name}" in made.err
    assert cli.json("dlq", "plan-show", name)["groups"][0]["count"] == 3
    unasked = cli("dlq", "apply", name)
    assert unasked.code == 6
    assert f"Replay 3 dead letters of queue sums (plan {name})?" in unasked.err
    assert cli("dlq", "apply", name, typed="n\n").code == 6
    dry = cli("dlq", "apply", name, "--dry-run")
    assert (dry.code, cli.json("dlq", "count")) == (0, {"count": 3})
    assert "would replay 3 dead letters" in dry.err

    app.is_broken = False
    with app.working():
        ran = cli("dlq", "apply", name, "--reason", "mended", "-o", "json", typed="y\n")

    assert (ran.code, ran.data["state"], ran.data["done"]) == (0, "finished", 3)
    assert "3/3 100%" in ran.err or "0/3" in ran.err
    ended, begun = cli.json("audit", "list", "--verb", "dlq apply")
    assert begun["before"] == {"plan": name, "verb": "replay", "letters": 3, "digest": plan["digest"]}
    assert (ended["after"]["done"], ended["reason"]) == (3, "mended")
    items = records(cli("dlq", "report", name, "-o", "jsonl").out)
    assert [(item["entry_id"], item["outcome"]) for item in items] == [(1, "done"), (2, "done"), (3, "done")]
    assert cli("dlq", "apply", name, "--yes").code == 4


def test_a_stop_says_why_and_how_to_go_on(cli: CommandLine, app: App) -> None:
    app.park(3)
    name = cli.json("dlq", "plan")["id"]

    with app.working():
        stopped = cli("dlq", "apply", name, "--yes")
        assert stopped.code == 5
        assert f"lattice-tasks dlq apply {name} --continue" in cli("dlq", "resume", name).err
        assert f"plan {name} stopped: 1 of the last 1 replays failed again" in stopped.err
        assert f"lattice-tasks dlq apply {name} --continue" in stopped.err
        assert cli("dlq", "apply", name, "--yes").code == 4
        ended = cli("dlq", "apply", name, "--yes", "--override")

    assert ended.code == 5
    assert "error: 3 failed again; see" in ended.err
    table = cli("dlq", "report", name).out
    assert "ValueError: it broke" in table
    assert "failed-again" in table
    rows = list(csv.DictReader(io.StringIO(cli("dlq", "report", name, "--only", "failed-again", "-o", "csv").out)))
    assert len(rows) == 3


def test_a_plan_out_of_date_is_refused_with_exit_code_4(cli: CommandLine, app: App) -> None:
    app.park(2)
    name = cli.json("dlq", "plan", "--verb", "discard")["id"]
    cli.json("dlq", "discard", "1", "--queue", "sums", "--yes")

    dry = cli("dlq", "apply", name, "--dry-run")
    dry_skipping = cli("dlq", "apply", name, "--dry-run", "--skip-changed")
    refused = cli("dlq", "apply", name, "--yes")
    assert (dry.code, dry.err) == (4, refused.err)
    assert (dry_skipping.code, "would discard 1 dead letters, and skip 1" in dry_skipping.err) == (0, True)
    assert cli.json("audit", "list", "--verb", "dlq apply") == []
    shown = cli("dlq", "plan-show", name)
    skipped = cli("dlq", "apply", name, "--yes", "--skip-changed", "-o", "json")

    assert refused.code == 4
    assert "1 of its 2 letters have changed: 1 discarded or evicted (such as 1 of queue sums)" in refused.err
    assert "out of date: since the plan, 1 discarded or evicted" in shown.err
    assert (skipped.code, skipped.data["done"], skipped.data["skipped"]) == (5, 1, 1)
    app.park(1)
    assert cli("dlq", "apply", cli.json("dlq", "plan")["id"], "--yes", "--if-unchanged", "0" * 64).code == 4


def test_a_plan_that_matches_nothing_is_not_kept(cli: CommandLine, app: App) -> None:
    """It says which value no letter has, and what there is."""
    app.park(1)

    ran = cli("dlq", "plan", "--actor", "nope")

    assert ran.code == 3
    assert "matches no dead letter (total 0)" in ran.err
    assert "no letter has actor 'nope'; there are fail" in ran.err
    assert cli.json("dlq", "plans") == []


def test_the_reason_of_a_plan_is_that_of_its_apply(cli: CommandLine, app: App) -> None:
    """`--reason` says why, in every verb that leads to a change; `--only` is the letters' reason tag."""
    app.park(2)
    first = cli.json("dlq", "plan", "--only", "unknown", "--verb", "discard", "--reason", "asked for by ann")
    second = cli.json("dlq", "plan", "--verb", "discard", "--reason", "asked for by ann")

    cli("dlq", "apply", first["id"], "--yes")
    app.park(1)
    cli("dlq", "apply", second["id"], "--yes", "--skip-changed", "--reason", "ben said so")

    assert (first["total"], first["reason"]) == (2, "asked for by ann")
    reasons = [record["reason"] for record in cli.json("audit", "list", "--verb", "dlq apply")]
    assert reasons == ["ben said so"] * 2 + ["asked for by ann"] * 2


def test_a_plan_without_workers_is_warned_of(cli: CommandLine, app: App) -> None:
    app.park(1)

    made = cli("dlq", "plan")
    name = cli.json("dlq", "plans")[0]["id"]
    with app.working() as lattice:
        until(lambda: any("sums" in one.queues for one in lattice_workers(lattice)), "a worker")
        served = cli("dlq", "apply", name, "--dry-run")

    assert "no live worker serves sums" in made.err
    assert "lattice-tasks worker APP --queues sums" in made.err
    assert "no live worker serves sums" in cli("dlq", "apply", name, "--dry-run").err
    assert "no live worker" not in served.err
    assert "no live worker" not in cli("dlq", "plan", "--verb", "discard").err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("apply", "nope", "--yes"), 3),
        (("report", "nope"), 3),
        (("report", "nope", "--only", "bogus"), 2),
        (("pause", "nope"), 3),
        (("plan", "--queue", "nope"), 3),
        (("plan", "--verb", "burn"), 2),
        (("plan", "--verb", "discard", "--to-actor", "x"), 2),
        (("apply", "nope", "--rate", "fast"), 2),
        (("apply", "nope", "--rate", "0"), 2),
        (("apply", "nope", "--stop-at", "120%"), 2),
        (("apply", "nope", "--canary", "1,x"), 2),
        (("redirects", "add", "--from-queue", "sums"), 2),
        (("redirects", "add", "--from-queue", "sums", "--to-queue", "sums"), 2),
        (("redirects", "remove", "9"), 3),
        (("restore", "9"), 3),
        (("restore",), 2),
        (("retention", "nope"), 3),
        (("retention", "sums", "--after", "1d", "--never"), 2),
        (("export", "--queue", "nope"), 3),
    ],
)
def test_what_cannot_be_ends_in_one_line(lite: CommandLine, arguments: tuple[str, ...], code: int) -> None:
    lite("queues", "add", "sums")

    ran = lite("dlq", *arguments)

    assert ran.code == code
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") <= 1


def test_redirects_are_added_listed_used_and_removed(cli: CommandLine, app: App) -> None:
    app.park(1)
    made = cli.json("dlq", "redirects", "add", "--from-actor", "fail", "--to-actor", "add")

    assert [one["id"] for one in cli.json("dlq", "redirects", "list")] == [made["id"]]
    cli("dlq", "replay", "1", "--queue", "sums")
    app.work()
    (task,) = cli.json("tasks", "list", "--queue", "sums")
    assert (task["state"], task["actor"]) == ("succeeded", "add")
    assert cli("dlq", "redirects", "remove", str(made["id"])).code == 0
    assert cli.json("dlq", "redirects", "list") == []


def test_the_bin_gives_back_what_was_discarded(cli: CommandLine, app: App) -> None:
    app.park(2)
    cli.json("dlq", "discard", "1", "2", "--queue", "sums", "--yes")
    newest, oldest = cli.json("dlq", "bin")

    partly = cli("dlq", "restore", str(oldest["id"]), "99", "-o", "json")

    assert (newest["entry_id"], oldest["entry_id"], oldest["why"]) == (2, 1, "discarded")
    assert partly.code == 5
    assert [(one["outcome"], one["entry_id"]) for one in partly.data] == [("restored", 3), ("not_restored", None)]
    assert [one["id"] for one in cli.json("dlq", "bin", "--queue", "sums")] == [newest["id"]]
    assert cli("dlq", "restore", newest["task_id"]).code == 0
    assert cli.json("dlq", "count") == {"count": 2}
    assert {one["verb"] for one in cli.json("audit", "list")} >= {"dlq discard", "dlq restore"}


def test_a_dry_restore_promises_what_will_happen(cli: CommandLine, app: App) -> None:
    app.park(1)
    cli.json("dlq", "discard", "1", "--queue", "sums", "--yes")
    (binned,) = cli.json("dlq", "bin")

    dry = cli("dlq", "restore", str(binned["id"]), "--dry-run", "-o", "json")

    assert (dry.code, dry.data[0]["outcome"], cli.json("dlq", "count")) == (0, "would_restore", {"count": 0})
    assert cli("dlq", "restore", "999999", "--dry-run").code == 3
    assert cli("dlq", "restore", str(binned["id"]), "999999", "--dry-run").code == 5
    assert len(cli.json("dlq", "bin")) == 1


def test_a_letter_that_is_replayed_says_how_to_look_and_to_take_it_back(cli: CommandLine, app: App) -> None:
    """The cancel gives the letter back."""
    (task_id,) = app.park(1)
    cli.json("dlq", "replay", task_id)

    told = cli("dlq", "replay", task_id)
    assert f"`lattice-tasks tasks why {task_id}`" in told.err
    assert f"`lattice-tasks tasks cancel {task_id}` takes it back" in told.err
    cli("tasks", "cancel", task_id, "--yes")

    assert cli.json("dlq", "list")[0]["is_replaying"] is False


def test_plans_and_the_bin_fit_eighty_columns(cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app.park(1)
    cli("dlq", "plan")
    cli("dlq", "discard", "1", "--queue", "sums", "--yes")

    for shown in (cli("dlq", "plans", typed=""), cli("dlq", "bin", typed="")):
        lines = [click.unstyle(line) for line in shown.out.splitlines()]
        assert len(lines) == 2
        assert max(map(len, lines)) <= 80


def test_the_retention_of_a_shelf_is_shown_and_set(lite: CommandLine) -> None:
    lite("queues", "add", "sums")

    assert "never" in lite("dlq", "retention", "sums").out
    assert lite.json("dlq", "retention", "sums", "--after", "90d")["dlq_retention_s"] == 7_776_000
    assert lite.json("dlq", "retention", "sums")["dlq_retention_s"] == 7_776_000
    assert lite.json("dlq", "retention", "sums", "--never")["dlq_retention_s"] is None


def test_an_export_holds_no_secret(cli: CommandLine, app: App) -> None:
    """Arguments are left out unless asked for; what looks like a secret is hidden then."""
    app.fail.submit(1, text="no way to amqp://me:s3cr3t-CANARY@host")
    app.lattice.submit("sums", "fail", (2,), {"password": "s3cr3t-CANARY"})
    app.work()

    bare = cli("dlq", "export")
    full = cli("dlq", "export", "--with-arguments", "-o", "json")
    table = list(csv.DictReader(io.StringIO(cli("dlq", "export", "-o", "csv", "--only", "unknown").out)))

    assert [record["entry_id"] for record in records(bare.out)] == [1, 2]
    assert "args" not in records(bare.out)[0]
    assert "s3cr3t-CANARY" not in bare.out
    assert full.data[1]["kwargs"] == {"password": "***"}
    assert full.data[0]["args"] == [1]
    assert [row["entry_id"] for row in table][:1] == ["1"]
