"""`lattice-tasks queues` and `workers`, on both engines."""

import json
from datetime import datetime, timedelta

import pytest

from lattice_tasks.store.engine import Statement

from .conftest import App, CommandLine

WORKER = Statement(
    """insert into lattice_worker (namespace_id, host, pid, threads, queues, actors, version, state, beat, started_at,
           seen_at) values (%s, 'host-a', 77, 8, %s, %s, '9.9', 'active', 3, {now}, {now} - %s) returning id"""
)


def worker(app: App, *, silent_s: int = 0, queues: tuple[str, ...] = ("sums",)) -> int:
    with app.lattice.engine.session() as session:
        columns = (app.lattice.namespace_id, json.dumps(queues), json.dumps(["add"]), silent_s * 1_000_000)
        return session.fetch(WORKER, columns)[0][0]


def test_a_queue_is_added_once(cli: CommandLine) -> None:
    """L-44: adding it again changes nothing and says so."""
    first = cli.json("queues", "add", "gpu", "--retention", "2d", "--dlq-capacity", "5")
    again = cli("queues", "add", "gpu")

    assert (first["name"], first["kind"], first["state"], first["namespace"]) == ("gpu", "fifo", "active", "default")
    assert (first["retention_ms"], first["dlq_capacity"]) == (172_800_000, 5)
    assert datetime.fromisoformat(first["created_at"]).tzinfo is not None
    assert (again.code, again.out) == (4, "")
    assert again.err.splitlines() == ["error: queue 'gpu' exists already in namespace 'default'"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("add", "gpu.DQ"), 2),
        (("add", ""), 2),
        (("add", "a\nb"), 2),
        (("add", "gpu", "--kind", "sideways"), 2),
        (("add", "gpu", "--retention", "2030-01-01T00:00Z"), 2),
        (("show", "nope"), 3),
        (("depth", "nope"), 3),
        (("pause", "nope"), 3),
        (("resume", "nope"), 3),
        (("rename", "nope"), 2),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(cli: CommandLine, arguments: list[str], code: int) -> None:
    ran = cli("queues", *arguments)

    assert (ran.code, ran.out, len(ran.err.splitlines()) - ("new, empty store" in ran.err)) == (code, "", 1)
    assert cli.json("queues", "list") == []


def test_pause_and_resume_are_shown_and_may_be_said_twice(cli: CommandLine) -> None:
    cli("queues", "add", "gpu")

    assert [cli.json("queues", verb, "gpu")["state"] for verb in ("pause", "pause", "resume", "resume")] == [
        "paused",
        "paused",
        "active",
        "active",
    ]


def test_a_dry_run_only_tells(cli: CommandLine) -> None:
    cli("queues", "add", "gpu")

    ran = cli("queues", "pause", "gpu", "--dry-run")
    added = cli("queues", "add", "cpu", "--dry-run")

    assert (ran.code, ran.err) == (0, "would pause queue gpu, which is active\n")
    assert (added.code, added.err) == (0, "would add queue cpu\n")
    assert [(queue["name"], queue["state"]) for queue in cli.json("queues", "list")] == [("gpu", "active")]


def test_depth_counts_every_place(cli: CommandLine, app: App) -> None:
    app.park(2)
    app.add.submit(1)
    app.add.submit(1, _delay=timedelta(minutes=1))

    depth = cli.json("queues", "depth", "sums")
    (queue,) = cli.json("queues", "list")

    assert depth == {"waiting": 1, "scheduled": 1, "running": 0, "parked": 2, "held": 0}
    assert {name: queue[name] for name in depth} == depth
    assert queue["oldest_waiting_at"] is not None


def test_a_table_of_queues_is_for_people(cli: CommandLine, app: App) -> None:
    app.add.submit(1)

    lines = cli("queues", "list").out.splitlines()

    assert lines[0].split() == [
        "NAME",
        "KIND",
        "STATE",
        "WAITING",
        "SCHEDULED",
        "RUNNING",
        "PARKED",
        "HELD",
        "WORKERS",
        "OLDEST",
        "WAITING",
    ]
    assert lines[1].split()[:9] == ["sums", "fifo", "active", "1", "0", "0", "0", "0", "0"]


def test_another_namespace_has_queues_of_its_own(cli: CommandLine) -> None:
    """L-21: a name of one namespace is free in another."""
    cli("queues", "add", "gpu")

    assert cli.json("--namespace", "lab", "queues", "list") == []
    assert cli("--namespace", "lab", "queues", "add", "gpu").code == 0


def test_workers_are_listed_with_what_they_serve(cli: CommandLine, app: App) -> None:
    worker_id = worker(app)

    (listed,) = cli.json("workers", "list")
    app.add.submit(1)
    (queue,) = cli.json("queues", "list")

    assert (listed["id"], listed["host"], listed["pid"], listed["state"]) == (worker_id, "host-a", 77, "active")
    assert (listed["queues"], listed["actors"], listed["running"]) == (["sums"], ["add"], 0)
    assert queue["workers"] == 1


def test_a_silent_worker_is_told_and_counts_for_no_queue(cli: CommandLine, app: App) -> None:
    app.add.submit(1)
    worker_id = worker(app, silent_s=100)

    ran = cli("workers", "list")

    assert f"worker {worker_id} has been silent for 100 s" in ran.err
    assert cli.json("queues", "show", "sums")["workers"] == 0


def test_draining_needs_a_yes_and_an_id_that_exists(cli: CommandLine, app: App) -> None:
    worker_id = str(worker(app))

    assert cli("workers", "drain", "4711", "--yes").code == 3
    assert cli("workers", "drain", worker_id).code == 6
    assert cli("workers", "drain", worker_id, "--dry-run").code == 0
    assert cli.json("workers", "list")[0]["state"] == "active"
    assert cli("workers", "drain", worker_id, "--yes").code == 0
    assert cli.json("workers", "list")[0]["state"] == "draining"


def test_no_workers_are_zero_workers(lite: CommandLine) -> None:
    ran = lite("workers", "list", "-o", "json")

    assert (ran.code, ran.data, ran.err.splitlines()[-1]) == (0, [], "0 workers")
