"""Stock Dramatiq on RabbitMQ; BENCH_CONFIRM=1 turns on publisher confirms."""

import os
from collections.abc import Iterable

import dramatiq
import pika
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from benchmarks import marks

RABBITMQ_URL = os.environ["BENCH_RABBITMQ_URL"]
QUEUE = "bench_dramatiq"

broker = RabbitmqBroker(url=RABBITMQ_URL, confirm_delivery=os.environ.get("BENCH_CONFIRM") == "1")
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def noop(number: int) -> None:
    marks.ran(number)


def reset() -> None:
    with pika.BlockingConnection(pika.URLParameters(RABBITMQ_URL)) as connection:
        channel = connection.channel()
        for queue in (QUEUE, QUEUE + ".DQ", QUEUE + ".XQ"):
            channel.queue_delete(queue)


def left() -> int:
    with pika.BlockingConnection(pika.URLParameters(RABBITMQ_URL)) as connection:
        return connection.channel().queue_declare(QUEUE, passive=True).method.message_count


class Producer:
    def submit(self, number: int) -> None:
        noop.send(number)

    def submit_many(self, numbers: Iterable[int]) -> None:
        dramatiq.group([noop.message(number) for number in numbers]).run()

    def flush(self) -> None:
        broker.channel.queue_declare(QUEUE, passive=True)  # a round trip on the channel that published

    def close(self) -> None:
        broker.close()
