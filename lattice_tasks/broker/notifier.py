"""Wake-ups: telling idle workers that a queue has work. Lossy by design; the store is the truth and workers also poll.

`LocalNotifier` serves the shapes without RabbitMQ: it wakes the worker in the same process at once. `AmqpNotifier`
(amqp.py) adds RabbitMQ.
"""

from collections.abc import Callable, Collection
from typing import Protocol

__all__ = ["LocalNotifier", "Notifier", "OnWake"]

#: Called with the ids of the queues that have work, and whether that is only announced: it may appear in a moment.
OnWake = Callable[[Collection[int], bool], None]


class Notifier(Protocol):
    """What submits and the pump need of a notifier. No method blocks on the network or raises for it."""

    @property
    def is_connected(self) -> bool:
        """Whether wake-ups of other processes arrive, so that slow polling is enough."""

    def notify(self, queue_ids: Collection[int]) -> None:
        """Wake workers of these queues, wherever they are."""

    def announce(self, queue_ids: Collection[int]) -> None:
        """A commit is about to begin: let the wake-up travel meanwhile. Whoever comes too early finds nothing, and
        `notify` follows the commit as ever. While wake-ups are frequent anyway, this does nothing."""

    def subscribe(self, queue_ids: Collection[int], on_wake: OnWake) -> None:
        """Call back, in any thread, when one of these queues has work."""

    def listen(self, wanted: bool) -> None:
        """Consume wake-ups only while there are free threads, so that they reach idle workers."""

    def stop(self) -> None:
        """Close the connection; a notifier that was stopped may be used again."""


class LocalNotifier:
    """Wakes workers of this process; other processes poll."""

    def __init__(self) -> None:
        self._subscriptions: list[tuple[frozenset[int], OnWake]] = []

    @property
    def is_connected(self) -> bool:
        return False

    def notify(self, queue_ids: Collection[int]) -> None:
        for subscribed, on_wake in self._subscriptions:
            shared = subscribed.intersection(queue_ids)
            if shared:
                on_wake(shared, False)

    def announce(self, queue_ids: Collection[int]) -> None:
        return

    def subscribe(self, queue_ids: Collection[int], on_wake: OnWake) -> None:
        self._subscriptions.append((frozenset(queue_ids), on_wake))

    def listen(self, wanted: bool) -> None:
        return

    def stop(self) -> None:
        self._subscriptions.clear()
