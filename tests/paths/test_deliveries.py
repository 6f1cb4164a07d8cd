"""What a broker may do to a worker that leans on it: a stream of useless wake-ups, and an end to its patience."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pika
import pytest

from lattice_tasks.broker.amqp import WAKE
from lattice_tasks.tasks.invocation import State
from tests.conftest import _own
from tests.paths import wakes
from tests.paths.conftest import Begin
from tests.servers import RabbitMQ

BACKLOG, THREADS = 500, 4
PATIENCE_MS = 2_000


def most_at_once(history: list[dict[str, object]]) -> int:
    """How many executions overlapped at most."""
    running, most = 0, 0
    for record in sorted(history, key=lambda one: one["at"]):
        running += {"start": 1, "end": -1}.get(str(record["what"]), 0)
        most = max(most, running)
    return most


@pytest.mark.slow
def test_useless_wake_ups_keep_nobody_from_the_backlog(served: Begin) -> None:
    """C16: it was there before the worker; the wake-ups that pour in are for tasks that others have taken long ago."""
    life = served(poll_ms=60_000)
    life.submit_together([(f"task{number}", 10) for number in range(BACKLOG)])  # type: ignore[arg-type]
    name = wakes.queue_of(life)
    with wakes.channel(life) as opened:
        life.worker(threads=THREADS)
        told, began = 0, time.monotonic()
        while life.lattice.queues.depth("lives").waiting:
            opened.basic_publish("", name, WAKE)
            told += 1
            opened.connection.process_data_events(0.02)
    life.finished()

    assert told > 20
    assert time.monotonic() - began < 3 * BACKLOG * 0.010 / THREADS + 5
    assert most_at_once(life.history.records()) == THREADS
    assert len(life.history.of("start")) == BACKLOG
    assert {row.state for row in life.checked(budget=1).values()} == {State.SUCCEEDED}


class Impatient(RabbitMQ):
    """A node that allows two seconds to acknowledge a message, and looks every second."""

    def _environment(self) -> dict[str, str]:
        environment, arguments = super()._environment(), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"
        limits = f"-rabbit consumer_timeout {PATIENCE_MS} -rabbit channel_tick_interval 1000"
        return environment | {arguments: f"{environment[arguments]} {limits}"}


@pytest.fixture(scope="module")
def impatient() -> Iterator[RabbitMQ]:
    with _own(Impatient) as server:
        yield server


def is_closed_for_holding(url: str) -> bool:
    """Whether this node closes the channel of a consumer that does not acknowledge."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"held")
    channel.basic_consume(queue, lambda *_: None)
    connection.sleep(PATIENCE_MS / 1_000 + 6)
    is_open = channel.is_open
    connection.close()
    return not is_open


@pytest.mark.slow
def test_a_long_task_and_a_delay_outlast_the_brokers_patience(
    postgres_url: str, impatient: RabbitMQ, begin: Begin
) -> None:
    """C17: neither holds a message unacknowledged; each executes once, nothing is closed, no attempt is charged."""
    assert is_closed_for_holding(impatient.url), "this node is as patient as any"
    life = begin(postgres_url, impatient.url, lease_ms=30_000)
    worker = life.worker(threads=2)
    span_s = 3 * PATIENCE_MS / 1_000

    life.submit("work", "long", round(span_s * 1_000))
    life.history.submitting(
        "late", lambda: life.lattice.submit("lives", "work", ("late",), delay=timedelta(seconds=span_s))
    )
    life.finished()

    starts = {name: life.history.of("start", name=name) for name in ("long", "late")}
    assert {name: len(found) for name, found in starts.items()} == {"long": 1, "late": 1}
    assert starts["late"][0]["at"] - life.history.of("accepted", name="late")[0]["at"] >= span_s - 0.1
    assert [start["attempt"] for found in starts.values() for start in found] == [1, 1]
    assert life.history.events("broker.unavailable") == []
    assert worker.is_alive
    life.checked(budget=1)
