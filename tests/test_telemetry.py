"""Events and their log lines: whole, masked, and never a payload."""

import io
import json
import logging
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks import Lattice, Park
from lattice_tasks.telemetry import EVENTS, Telemetry, make_log
from tests.working import done, heard, opened, until_state, working

pytestmark = pytest.mark.recycled

CANARY = "s3cr3t-CANARY"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_where_nobody_watches() -> None:
    stream = io.StringIO()

    Telemetry(make_log("info", stream)).emit("queue.created", queue="gpu", auto=True)

    (line,) = lines(stream)
    assert (line["event"], line["queue"], line["auto"], line["level"]) == ("queue.created", "gpu", True, "info")
    assert line["timestamp"].endswith("Z")


def test_lines_are_for_people_on_a_terminal() -> None:
    terminal = Terminal()

    Telemetry(make_log("info", terminal)).emit("queue.created", queue="gpu", auto=True)

    assert "queue.created" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_counted_events_and_those_below_the_level_write_no_line() -> None:
    stream = io.StringIO()
    telemetry = Telemetry(make_log("warning", stream))

    telemetry.emit("task.submitted", queue=1, count=3)
    telemetry.emit("queue.created", queue="gpu", auto=False)
    telemetry.emit("maintenance.failed", chore="prune", error="no")

    assert [line["event"] for line in lines(stream)] == ["maintenance.failed"]


def test_passwords_in_fields_are_masked() -> None:
    stream = io.StringIO()

    Telemetry(make_log("info", stream)).emit(
        "store.unavailable", error=f"cannot reach postgresql://me:{CANARY}@host/db or host=h password={CANARY}"
    )

    assert CANARY not in stream.getvalue()
    assert "postgresql://me:***@host/db" in stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_field_can_neither_forge_a_line_nor_move_the_cursor(stream: io.StringIO) -> None:
    telemetry = Telemetry(make_log("info", stream))

    telemetry.emit("task.cancelled", queue="q", task_id="1", reason='x\n{"event": "forged"}\x1b[2J')

    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in stream.getvalue()


def test_a_listener_that_fails_harms_nobody() -> None:
    stream = io.StringIO()
    telemetry = Telemetry(make_log("info", stream))
    told: list[str] = []

    def broken(name: str, fields: Any) -> None:
        raise RuntimeError("no")

    telemetry.subscribe(broken)
    telemetry.subscribe(lambda name, fields: told.append(name))
    telemetry.emit("broker.recovered")

    assert told == ["broker.recovered"]
    assert "telemetry.listener_failed" in stream.getvalue()


def test_an_event_that_the_table_does_not_know_is_refused() -> None:
    with pytest.raises(KeyError):
        Telemetry(make_log("info", io.StringIO())).emit("task.invented")


def test_events_of_a_whole_life_carry_exactly_the_fields_of_the_table(store_url: str) -> None:
    with opened(store_url) as lattice:
        events = heard(lattice)
        live_and_die(lattice)

    seen = {name: {frozenset(fields) for told, fields in events.all if told == name} for name in events.names}
    assert {name: {frozenset(EVENTS[name].fields)} for name in seen} == seen
    assert seen.keys() >= {
        "dead_letter.enqueued",
        "dead_letter.removed",
        "dead_letter.replaying",
        "queue.changed",
        "queue.created",
        "task.cancelled",
        "task.expired",
        "task.parked",
        "task.retried",
        "task.submitted",
        "task.succeeded",
        "worker.started",
        "worker.stopped",
    }


def test_what_a_task_is_called_with_and_returns_is_never_logged(
    store_url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), opened(store_url, log_level="debug") as lattice:
        events = heard(lattice)
        live_and_die(lattice)

    lines_written = capfd.readouterr().err
    assert "task.parked" in lines_written
    assert CANARY not in lines_written + caplog.text + repr(events.all)


def live_and_die(lattice: Lattice) -> None:
    """Every usual end of a task, each with the canary as its argument."""

    @lattice.task(max_retries=1, min_backoff=1, max_backoff=1)
    def fail(secret: str, *, also: str = "") -> None:
        raise RuntimeError("no")

    @lattice.task
    def refuse(secret: str) -> None:
        raise Park("not me")

    @lattice.task
    def succeed(secret: str) -> str:
        return secret

    failed = fail.submit(CANARY, also=CANARY)
    refuse.submit(CANARY)
    succeed.submit(CANARY)
    lattice.submit("default", "succeed", (CANARY, CANARY, CANARY))
    succeed.submit(CANARY, _deadline=timedelta(0))
    succeed.submit(CANARY, _delay=timedelta(hours=1)).cancel("not wanted")
    lattice.queues.pause("default")
    lattice.queues.resume("default")
    with working(lattice):
        done(lattice)
        shelf = lattice.dead_letters("default")
        entry_id = until_state(failed, "parked").entry_id
        shelf.replay(entry_id)
        until_state(failed, "parked")
        shelf.discard(entry_id)
