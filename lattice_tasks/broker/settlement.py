"""The settlement buffer: outcomes stay here until the store has committed them."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lattice_tasks import clock
from lattice_tasks.broker.envelope import LatticeMessage
from lattice_tasks.dead_letters.parking import ShelfSpec
from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.store.engine import Session
from lattice_tasks.tasks.invocation import Flag
from lattice_tasks.tasks.settle import Ended, Kind, Outcome, settle
from lattice_tasks.telemetry import Telemetry

__all__ = ["SettlementBuffer"]

_NO_OUTCOME_US = 1_000_000


class SettlementBuffer:
    """Collects ended messages from any thread; the pump's thread settles them.

    Args:
        worker: who we are, as dead letters show it.
        shelf_of: queue id → (queue name, its shelf).
    """

    def __init__(
        self, worker: str, version: str, telemetry: Telemetry, shelf_of: Callable[[int], tuple[str, ShelfSpec]]
    ) -> None:
        self._worker = worker
        self._version = version
        self._telemetry = telemetry
        self._shelf_of = shelf_of
        self._arrived: deque[LatticeMessage] = deque()
        self._kept: list[LatticeMessage] = []
        self.is_uncertain = False  # after a lost answer a refusal may only mean that it was settled already

    def __len__(self) -> int:
        return len(self._arrived) + len(self._kept)

    def add(self, message: LatticeMessage) -> None:
        """An attempt ended. One append: this cannot fail."""
        self._arrived.append(message)

    def all(self) -> list[LatticeMessage]:
        """Everything that is not settled yet."""
        return [*self._kept, *list(self._arrived)]

    def clear(self) -> list[LatticeMessage]:
        """Give everything up and return it: this incarnation is dead, the store would refuse it all."""
        messages = self.all()
        self._arrived.clear()
        self._kept = []
        return messages

    def sort(self) -> tuple[list[LatticeMessage], list[LatticeMessage]]:
        """What is here now: plain successes for the fast lane, and the rest."""
        while self._arrived:
            self._kept.append(self._arrived.popleft())
        plain: list[LatticeMessage] = []
        special: list[LatticeMessage] = []
        for message in self._kept:
            if message.outcome is None:
                error = "the message came back without an outcome"
                message.outcome = Outcome(Kind.RETRY, delay_us=_NO_OUTCOME_US, error=error)
            outcome = message.outcome
            if message.follow_ups:
                outcome.follow_ups += message.follow_ups
                message.follow_ups = []
            outcome.group = outcome.group or message.group
            is_plain = outcome.is_plain and not message.claimed.flags & Flag.REPLAY
            (plain if is_plain else special).append(message)
        return plain, special

    def settle(self, session: Session, worker_id: int, messages: Sequence[LatticeMessage]) -> set[int]:
        """Settle these in one transaction, or, when one cannot be stored, each by itself, that one degraded.

        Returns:
            Ids of the queues that have work again.
        """
        try:
            return self._settle(session, worker_id, messages)
        except StoreUnavailable:
            raise
        except StoreError:
            woken: set[int] = set()
            for message in messages:
                woken |= self._settle_alone(session, worker_id, message)
            return woken

    def done(self, messages: Sequence[LatticeMessage], refused: Collection[int], worker_id: int) -> None:
        """These are settled; what was refused had been leased to another in the meantime."""
        gone = {id(one) for one in messages}
        self._kept = [one for one in self._kept if id(one) not in gone]
        if refused and not self.is_uncertain:
            for message in messages:
                if message.claimed.seq in refused:
                    self._telemetry.emit("settle.refused", task_id=message.message_id, worker=worker_id)

    def tell_succeeded(self, messages: Sequence[LatticeMessage], refused: Collection[int]) -> None:
        """Emit the successes, when somebody listens."""
        if not self._telemetry.is_heard:
            return
        now_ns = clock.monotonic_ns()
        for one in messages:
            if one.claimed.seq not in refused:
                run_s = ((one.ended_ns or now_ns) - one.started_ns) / 1e9
                self._telemetry.emit("task.succeeded", queue=one.queue_name, actor=one.actor_name, run_s=run_s)

    def _settle(self, session: Session, worker_id: int, messages: Sequence[LatticeMessage]) -> set[int]:
        ended = [
            Ended(one.claimed.seq, one.batch, one.message_id, one.actor_name, one.outcome)
            for one in messages
            if one.outcome is not None
        ]
        settled = settle(session, worker_id, f"{self._worker} #{worker_id}", self._version, ended, self._shelf_of)
        self.done(messages, settled.refused, worker_id)
        for name, fields in settled.events:
            self._telemetry.emit(name, **fields)
        succeeded = [one for one in messages if one.outcome is not None and one.outcome.kind is Kind.SUCCEED]
        self.tell_succeeded(succeeded, settled.refused)
        return settled.woken

    def _settle_alone(self, session: Session, worker_id: int, message: LatticeMessage) -> set[int]:
        try:
            return self._settle(session, worker_id, [message])
        except StoreUnavailable:
            raise
        except StoreError as error:
            self._telemetry.emit("settle.degraded", task_id=message.message_id, error=str(error))
            bare: Any = message.outcome
            bare.result, bare.traceback, bare.error = None, None, "not storable"
            bare.follow_ups, bare.group = [], None
        try:
            return self._settle(session, worker_id, [message])
        except StoreUnavailable:
            raise
        except StoreError as error:  # given up: its lease is freed by the next audit, and it runs again
            self._telemetry.emit("settle.degraded", task_id=message.message_id, error=str(error))
            self.done([message], (), worker_id)
            return set()
