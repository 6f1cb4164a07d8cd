"""`lattice-tasks doctor`, `health` and `db`, on both engines."""

import os
from datetime import timedelta

import pytest

from lattice_tasks.admin import findings
from lattice_tasks.clock import from_us, wall_us
from lattice_tasks.insights import StoreHealth, TableSize
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Statement
from tests.working import change

from .conftest import App, CommandLine
from .test_queues import worker

LOSE = Statement("delete from lattice_ready")


def codes(data: list[dict[str, str]]) -> dict[str, str]:
    return {row["code"]: row["severity"] for row in data}


def test_a_fresh_store_is_healthy(cli: CommandLine) -> None:
    cli("queues", "list")

    ran = cli("health")

    assert (ran.code, len(ran.out.splitlines()), ran.err) == (0, 1, "")
    assert cli.json("health")["healthy"] is True
    assert cli("doctor").code == 0


def test_a_probe_makes_nothing(cli: CommandLine, lite: CommandLine) -> None:
    assert cli("health").code == 1
    assert cli("health").code == 1
    assert cli("doctor").code == 0
    assert cli.json("db", "migrate") == [{"name": "0001_initial", "state": "applied"}]
    assert cli("health").code == 0


def test_a_store_that_is_away_is_found_by_both(lite: CommandLine) -> None:
    away = ("--store-url", "postgresql://nobody@127.0.0.1:1/none")

    healthy, checked = lite.bare(*away, "health", "-o", "json"), lite.bare(*away, "doctor", "-o", "json")

    assert (healthy.code, healthy.data["healthy"]) == (1, False)
    assert (checked.code, codes(checked.data)["store_unreachable"]) == (69, "error")


def test_a_broker_that_is_away_is_found(lite: CommandLine) -> None:
    lite("queues", "list")

    ran = lite("--broker-url", "amqp://guest:secret@127.0.0.1:1/", "doctor", "-o", "json")

    assert (ran.code, codes(ran.data)["broker_unreachable"]) == (1, "error")
    assert "secret" not in ran.out + ran.err
    assert lite("--broker-url", "amqp://guest:secret@127.0.0.1:1/", "tasks", "submit", "q", "a").code == 0


@pytest.mark.rabbitmq
def test_a_broker_that_is_there_tells_its_version(lite: CommandLine, rabbitmq_url: str) -> None:
    lite("queues", "list")

    (found,) = [row for row in lite.json("--broker-url", rabbitmq_url, "doctor") if row["code"] == "broker"]

    assert (found["severity"], "RabbitMQ" in found["finding"]) == ("ok", True)


def test_work_that_nobody_will_do_is_found(cli: CommandLine, app: App) -> None:
    app.park(1)
    app.add.submit(1)
    app.lattice.submit("sums", "misspelt")

    alone = codes(cli.json("doctor"))
    worker(app)
    attended = codes(cli.json("doctor"))
    worker(app, silent_s=100)
    silent = codes(cli.json("doctor"))
    cli("queues", "pause", "sums")

    assert (alone["queue_without_worker"], alone["dead_letters"]) == ("warning", "warning")
    assert "queue_without_worker" not in attended
    assert (attended["actor_unknown"], attended["version_mix"]) == ("warning", "info")
    assert silent["worker_silent"] == "warning"
    assert codes(cli.json("doctor"))["queue_paused"] == "info"
    assert all(row["fix"] for row in cli.json("doctor") if row["severity"] in ("warning", "error"))


def test_dead_letters_are_a_warning_when_they_are_new_or_many(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[str, str, str]:
        (row,) = [row for row in cli.json("doctor") if row["code"] == "dead_letters"]
        return row["severity"], row["finding"], row["fix"]

    app.park(2)
    look = "lattice-tasks dlq groups --queue sums"
    assert found() == ("warning", "sums has 2 dead letters, 2 parked within the last hour", look)

    change(app.lattice, "update lattice_letter set parked_at = parked_at - 3600000000")
    assert found() == ("info", "sums has 2 dead letters", look)

    monkeypatch.setattr(findings, "_MANY_LETTERS", 2)
    assert found() == ("warning", "sums has 2 dead letters", look)


def test_a_table_shows_the_fix_below_its_finding(cli: CommandLine, app: App) -> None:
    app.add.submit(1)

    lines = cli("doctor").out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "queue-without-worker" in line]

    assert lines[at + 1].strip() == "fix: start one: lattice-tasks worker APP"


def health(**values: object) -> StoreHealth:
    sound = {
        "engine": "postgres", "version": "15", "now": from_us(wall_us()), "size_bytes": 1, "free_bytes": 0,
        "tables": (), "oldest_transaction": None, "settings": {},
    }  # fmt: skip
    return StoreHealth(**{**sound, **values})


@pytest.mark.parametrize(
    ("store", "code", "severity"),
    [
        (health(settings={"fsync": "off"}), "fsync_off", "error"),
        (health(settings={"synchronous_commit": "off"}), "synchronous_commit_off", "warning"),
        (health(now=from_us(wall_us()) - timedelta(seconds=60)), "clock_difference", "warning"),
        (health(oldest_transaction=(7, "pg_dump", "active", 600.0)), "old_transaction", "warning"),
        (health(tables=(TableSize("lattice_ready", 5, 200_000, 1),)), "dead_rows", "warning"),
    ],
)
def test_what_threatens_the_store_is_found(store: StoreHealth, code: str, severity: str) -> None:
    """C40: the oldest transaction is named as a warning."""
    found = {each.code: each for each in findings.about_store(store, Settings())}

    assert found[code].severity == severity
    assert found[code].fix
    assert code not in {each.code for each in findings.about_store(health(), Settings())}


def test_a_file_that_may_not_be_written_is_an_error(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("queues", "add", "sums")
    monkeypatch.setattr(os, "access", lambda *_: False)

    ran = cli("doctor", "-o", "json")

    is_file = cli.store_url.startswith("sqlite")
    assert (ran.code, "store_read_only" in {row["code"] for row in ran.data}) == (int(is_file), is_file)


def test_check_counts_what_is_kept_and_finds_what_was_lost(cli: CommandLine, app: App) -> None:
    app.park(1)
    app.add.submit(1)

    sound = cli("db", "check")
    with app.lattice.engine.session() as session:
        session.execute(LOSE)
    broken = cli("db", "check", "-o", "json")

    assert (sound.code, "2 tasks kept in this namespace: 1 waiting, 1 parked" in sound.err) == (0, True)
    assert broken.code == 1
    assert {row["code"]: row["count"] for row in broken.data if row["count"]} == {"open_without_place": 1}


def test_prune_removes_what_retention_has_condemned(cli: CommandLine, app: App) -> None:
    cli("queues", "add", "sums", "--retention", "0")
    app.add.submit(1)
    app.park(1)
    app.add.submit(1)

    assert cli("db", "prune", "--dry-run").out == ""
    assert cli.json("db", "prune") == {"pruned": 1}
    assert {task["state"] for task in cli.json("tasks", "list")} == {"parked", "waiting"}


def test_migrating_twice_applies_nothing_the_second_time(cli: CommandLine) -> None:
    assert [row["state"] for row in cli.json("db", "migrate", "--dry-run")] == ["pending"]
    assert len(cli.json("db", "migrate")) == 1
    assert cli.json("db", "migrate") == []
