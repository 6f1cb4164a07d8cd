"""Wake-ups over RabbitMQ.

One thread owns the connection: pika's belongs to a single thread. Submits only add a queue id to a set and poke that
thread; equal wake-ups merge. Nothing is confirmed or persistent: a lost, doubled, late or forged wake-up changes latency,
never an outcome. AMQP names are built from ids, never from names.
"""

# getaddrinfo loads this codec in the connecting thread: a fork in that moment would leave its child waiting for a lock.
import encodings.idna  # noqa: F401
import os
import random
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from time import sleep
from typing import Any

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionWrongStateError

from lattice_tasks import clock
from lattice_tasks.broker.notifier import LocalNotifier, OnWake
from lattice_tasks.errors import SettingsError
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings
from lattice_tasks.telemetry import Telemetry

__all__ = ["SOON", "WAKE", "AmqpNotifier", "parameters"]

#: The whole body of a wake-up, and of one for work whose commit is under way. Anything else on a wake-up queue is dropped and counted.
WAKE = b"lattice-wake-1"
SOON = b"lattice-soon-1"
_MERGE_S = 0.004
_YIELD_S = 0.0001
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 0.5  # a task submitted after RabbitMQ's return starts within a second
_HEARTBEAT_S = 30
_BUSY_S = 0.05
_MAX_WAITING = 16


def parameters(broker_url: str) -> list[pika.URLParameters]:
    """pika's parameters of every URL of a `;`-separated list.

    Raises:
        SettingsError: one of them is no AMQP URL.
    """
    found = []
    for url in broker_url.split(";"):
        try:
            one = pika.URLParameters(url.strip())
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"broker_url={masked(url)!r} is no AMQP URL: {type(error).__name__}") from error
        one.heartbeat = _HEARTBEAT_S
        one.blocked_connection_timeout = 30
        one.socket_timeout = 5
        one.connection_attempts = 1
        found.append(one)
    return found


class AmqpNotifier:
    """Publishes and consumes wake-ups; reconnects by itself with back-off and jitter; never holds up a submit."""

    def __init__(self, settings: Settings, telemetry: Telemetry, wake_id: Callable[[], str]) -> None:
        self._parameters = parameters(settings.broker_url)
        self._queue_type = settings.wake_queue_type
        self._telemetry = telemetry
        self._wake_id = wake_id
        self._local = LocalNotifier()
        self._lock = threading.Lock()
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """As after a fork: no thread, no connection; the parent's stay the parent's."""
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._channel: Any = None
        self._pending: set[int] = set()
        self._announced: set[int] = set()
        self._poked = False
        self._flushed_at = 0.0
        self._subscribed: dict[int, OnWake] = {}
        self._consumers: dict[int, str] = {}
        self._missed: set[int] = set()
        self._wanted = True
        self._unwanted_since = 0.0
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def is_connected(self) -> bool:
        return self._channel is not None

    def notify(self, queue_ids: Collection[int]) -> None:
        self._local.notify(queue_ids)
        with self._lock:
            self._pending.update(queue_ids)
            if self._thread is None:
                self._start()
        self._poke()

    def announce(self, queue_ids: Collection[int]) -> None:
        if self._channel is not None and clock.monotonic() - self._flushed_at > _MERGE_S:
            with self._lock:
                self._announced.update(queue_ids)
            self._poke()

    def subscribe(self, queue_ids: Collection[int], on_wake: OnWake) -> None:
        self._local.subscribe(queue_ids, on_wake)
        with self._lock:
            self._subscribed.update(dict.fromkeys(queue_ids, on_wake))
            if self._thread is None:
                self._start()
        self._poke()

    def listen(self, wanted: bool) -> None:
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if wanted:
            self._poke()
        else:
            self._unwanted_since = clock.monotonic()

    def stop(self) -> None:
        thread = self._thread
        self._stopping.set()
        self._poke()
        if thread is not None:
            thread.join(timeout=5)
        self._local.stop()
        self._reset()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="lattice-notifier", daemon=True)
        self._thread.start()

    def _poke(self) -> None:
        connection = self._connection
        if self._poked or connection is None:
            return
        self._poked = True
        try:
            connection.add_callback_threadsafe(self._attend)
        except (AMQPError, ConnectionWrongStateError):
            self._poked = False

    def _run(self) -> None:
        stopping, pause_s, was_down = self._stopping, _FIRST_PAUSE_S, False
        while not stopping.is_set():
            try:
                self._connect()
                if was_down:
                    self._telemetry.emit("broker.recovered")
                pause_s, was_down = _FIRST_PAUSE_S, False
                while not stopping.is_set():
                    self._attend()
                    self._connection.process_data_events(time_limit=_BUSY_S if not self._wanted else 1.0)
            except Exception as error:  # noqa: BLE001 - pika's errors have no common root, and this thread must not end
                self._forget_connection()
                wait_s = pause_s * random.uniform(0.5, 1.0)
                if not was_down and not stopping.is_set():
                    text = masked(repr(error))
                    self._telemetry.emit("broker.unavailable", error=text, retry_s=round(wait_s, 2))
                was_down = True
                stopping.wait(wait_s)
                pause_s = min(_LAST_PAUSE_S, pause_s * 2)
        self._forget_connection()

    def _connect(self) -> None:
        self._connection = pika.BlockingConnection(random.sample(self._parameters, len(self._parameters)))
        self._channel = self._open_channel()
        self._consumers = {}
        self._poked = False

    def _open_channel(self) -> Any:
        channel = self._connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.add_on_cancel_callback(self._cancelled_by_broker)
        return channel

    def _forget_connection(self) -> None:
        connection, self._channel, self._connection, self._consumers = self._connection, None, None, {}
        self._missed.update(self._subscribed)
        with suppress(Exception):
            if connection is not None and connection.is_open:
                connection.close()

    def _attend(self) -> None:
        """In the owning thread: follow the wish to listen, then publish what is pending, merged."""
        self._poked = False
        if self._channel is None:
            return
        busy_s = clock.monotonic() - self._unwanted_since
        if self._wanted:
            for queue_id in [one for one in self._subscribed if one not in self._consumers]:
                self._consume(queue_id)
            self._look_for_missed()
        elif self._consumers and busy_s > _BUSY_S:
            for tag in self._consumers.values():
                self._channel.basic_cancel(tag)
            self._consumers = {}
        if self._announced:
            with self._lock:
                announced, self._announced = self._announced, set()
            self._send(announced, SOON)
        if self._pending:
            since_s = clock.monotonic() - self._flushed_at
            if since_s < _MERGE_S:
                self._poked = True
                self._connection.call_later(_MERGE_S - since_s, self._attend)
                return
            self._publish()

    def _look_for_missed(self) -> None:
        """What was sent while nobody consumed, to a queue that was not there, is lost: look into the store once."""
        if self._missed:
            missed, self._missed = self._missed, set()
            self._local.notify(missed)

    def _send(self, queue_ids: Collection[int], body: bytes) -> None:
        for queue_id in queue_ids:
            self._channel.basic_publish("", self._queue_name(queue_id), body)

    def _publish(self) -> None:
        with self._lock:
            queue_ids, self._pending = self._pending, set()
        try:
            self._send(queue_ids, WAKE)
        except AMQPError:
            with self._lock:
                self._pending |= queue_ids  # for the next connection
            raise
        self._flushed_at = clock.monotonic()
        if self._telemetry.is_heard:
            self._telemetry.emit("wakeup.sent", count=len(queue_ids))

    def _queue_name(self, queue_id: int) -> str:
        return f"lattice.wake.{self._wake_id()}.{queue_id}"

    def _consume(self, queue_id: int) -> None:
        name = self._queue_name(queue_id)
        arguments = {"x-max-length": _MAX_WAITING, "x-overflow": "drop-head", "x-queue-type": self._queue_type}
        try:
            self._channel.queue_declare(name, durable=True, arguments=arguments)
        except ChannelClosedByBroker as error:
            if error.reply_code != 406:  # declared otherwise by another version: use it as it is
                raise
            self._channel = self._open_channel()
            self._consumers = {}
            self._channel.queue_declare(name, passive=True)

        def received(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            self._received(queue_id, channel, method.delivery_tag, body)

        self._consumers[queue_id] = self._channel.basic_consume(name, received)

    def _received(self, queue_id: int, channel: Any, delivery_tag: int, body: bytes) -> None:
        if body not in (WAKE, SOON):
            channel.basic_ack(delivery_tag)
            self._telemetry.emit("wakeup.garbage", size_bytes=len(body))
            return
        if not self._wanted:
            channel.basic_reject(delivery_tag, requeue=True)  # let it reach an idle worker
            self._unwanted_since = 0.0
            return
        on_wake = self._subscribed.get(queue_id)
        if on_wake is not None:
            on_wake((queue_id,), body == SOON)
            sleep(_YIELD_S)  # let the pump have the interpreter before the ack is written
        channel.basic_ack(delivery_tag)
        if self._telemetry.is_heard:
            self._telemetry.emit("wakeup.received", count=1)

    def _cancelled_by_broker(self, method: Any) -> None:
        tag = method.method.consumer_tag
        self._missed.update(queue_id for queue_id, own in self._consumers.items() if own == tag)
        self._consumers = {queue_id: other for queue_id, other in self._consumers.items() if other != tag}
