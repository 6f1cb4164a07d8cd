"""The wake-up queues of RabbitMQ as a stranger sees them: what lies there, and what can be done to it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

from tests.paths.fleet import Life, settled


@contextmanager
def channel(life: Life) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(life.broker_url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def queue_of(life: Life, queue: str = "lives") -> str:
    """The AMQP name of a queue's wake-ups."""
    (wake_id,) = life.store.fetch("select wake_id from lattice_namespace")[0]
    return f"lattice.wake.{wake_id}.{life.queue_id(queue)}"


def publish(life: Life, bodies: Iterable[bytes], at_once: int = 10) -> int:
    """Put forged wake-ups on the queue, never more than it holds; returns how many."""
    name, count = queue_of(life), 0
    with channel(life) as opened:
        opened.confirm_delivery()  # else the count of the queue may be older than what was just sent
        for count, body in enumerate(bodies, start=1):
            opened.basic_publish("", name, body)
            if count % at_once == 0:
                settled(lambda: opened.queue_declare(name, passive=True).method.message_count == 0, "it to be consumed")
    return count


def remove(life: Life) -> None:
    """Delete the queues, consumers or not; nothing happens when there is no RabbitMQ."""
    if not life.broker_url:
        return
    found = life.store.fetch(
        "select wake_id, q.id from lattice_namespace n join lattice_queue q on q.namespace_id = n.id"
    )
    with suppress(AMQPError), channel(life) as opened:
        for wake_id, queue_id in found:
            opened.queue_delete(f"lattice.wake.{wake_id}.{queue_id}")
