"""Celery on RabbitMQ, results off, late acknowledgement; BENCH_CONFIRM=1 turns on publisher confirms."""

import os
from collections.abc import Iterable

import pika
from celery import Celery

from benchmarks import marks

RABBITMQ_URL = os.environ["BENCH_RABBITMQ_URL"]
QUEUE = "bench_celery"

app = Celery("bench", broker=RABBITMQ_URL.replace("%2f", "/").replace("%2F", "/"))
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=100,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": os.environ.get("BENCH_CONFIRM") == "1"},
)


@app.task(name="noop")
def noop(number: int) -> None:
    marks.ran(number)


def reset() -> None:
    with pika.BlockingConnection(pika.URLParameters(RABBITMQ_URL)) as connection:
        connection.channel().queue_delete(QUEUE)


def left() -> int:
    with pika.BlockingConnection(pika.URLParameters(RABBITMQ_URL)) as connection:
        return connection.channel().queue_declare(QUEUE, passive=True).method.message_count


class Producer:
    def submit(self, number: int) -> None:
        noop.delay(number)

    def submit_many(self, numbers: Iterable[int]) -> None:
        # One producer for the whole batch is faster than a group, which publishes one by one as well.
        with app.producer_pool.acquire(block=True) as producer:
            for number in numbers:
                noop.apply_async((number,), producer=producer)

    def flush(self) -> None:
        left()

    def close(self) -> None:
        app.close()
