"""What Dramatiq's consumer thread sees of a queue: it takes from the pump's memory and hands outcomes back to it."""

from collections.abc import Callable, Iterable
from queue import Empty

from dramatiq.broker import Consumer, MessageProxy

from lattice_tasks.broker.lane import Lane
from lattice_tasks.broker.pump import Pump

__all__ = ["LatticeConsumer"]


class LatticeConsumer(Consumer):
    """Neither `ack` nor `nack` can fail: they only hand the outcome to the pump, which keeps it until it is stored."""

    def __init__(self, pump: Pump, lane: Lane, timeout_ms: int, finish: Callable[[MessageProxy], None]) -> None:
        self._pump = pump
        self._finish = finish
        self._lane = lane
        self._timeout_s = timeout_ms / 1000

    def __next__(self) -> MessageProxy | None:
        try:
            return self._lane.feed.get(timeout=self._timeout_s)
        except Empty:
            return None

    def ack(self, message: MessageProxy) -> None:
        self._finish(message)
        self._pump.ended(message)

    nack = ack

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        self._pump.hand_back(messages, "the worker is stopping")

    def close(self) -> None:
        return
