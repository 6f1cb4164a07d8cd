"""The notifier over RabbitMQ: it never gives up, whatever the connection does to it."""

import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout

from lattice_tasks.broker.amqp import AmqpNotifier
from lattice_tasks.settings import Settings
from lattice_tasks.telemetry import Telemetry, make_log
from tests.working import Events, until

WAKE_ID = "test-amqp"


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def notifier(rabbitmq_url: str, events: Events) -> Iterator[AmqpNotifier]:
    telemetry = Telemetry(make_log("critical"))
    telemetry.subscribe(events)
    notifier = AmqpNotifier(Settings(broker_url=rabbitmq_url), telemetry, lambda: WAKE_ID)
    yield notifier
    notifier.stop()
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    connection.channel().queue_delete(f"lattice.wake.{WAKE_ID}.1")
    connection.close()


@pytest.mark.parametrize(
    "error",
    [AMQPConnectorStackTimeout("no answer to the handshake"), RuntimeError("nobody thought of this"), OSError()],
)
def test_any_error_while_connecting_is_told_and_survived(
    notifier: AmqpNotifier, events: Events, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """C14: a frozen RabbitMQ once ended the thread with an error outside pika's family, and wake-ups for ever."""
    connect, failures, woken = pika.BlockingConnection, [error, error, error], threading.Event()

    def fail_first(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return connect(*given)

    monkeypatch.setattr(pika, "BlockingConnection", fail_first)
    notifier.subscribe((1,), lambda *_: woken.set())

    until(lambda: notifier.is_connected)
    notifier.notify((1,))

    assert woken.wait(5)
    until(lambda: events.of("broker.recovered"))
    assert len(events.of("broker.unavailable")) == 1
